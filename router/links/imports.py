"""What neighbours want of this node, as memberships of their sessions in filters.

A wish for a pattern makes the neighbour's session a member of up to two filters: the deliver-always one, if a
deliver-always subscription or an endpoint over there wants the messages, and the plain one, if clients do. So workers
know nothing of neighbours, and a message costs the same for a neighbour as for a client.

The interest of a session that is over is taken back in pieces: a hundred thousand subscriptions at once would keep
everybody waiting, and those that the next session asks for again need not leave the workers at all.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from angarium import errors, wire
from angarium.errors import AngariumError, error_for
from angarium.topic import parse_filter

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.matching.shards import Shards
    from router.sessions.interest import Filter, Interest
    from router.sessions.neighbour import Neighbour
    from router.sessions.session import Session

_Natural = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
_Kind = Annotated[int, msgspec.Meta(ge=wire.EXPORTS_SNAPSHOT, le=wire.EXPORTS_CHANGES)]
_Wish = Annotated[int, msgspec.Meta(ge=0, le=4 << wire.WISH_DTO_SHIFT | 3)]
_Entries = Annotated[list[tuple[str, _Wish]], msgspec.Meta(max_length=wire.MAX_WISHES_PER_FRAME)]
#: Request, kind, entries.
decode_imports = msgspec.msgpack.Decoder(tuple[_Natural, _Kind, _Entries]).decode


class Imports:
    """Joins the sessions of neighbours to filters, and takes them away."""

    def __init__(
        self,
        interest: Interest[Session],
        shards: Shards,
        limit: int,
        on_filter: Callable[[int, str], None],
    ) -> None:
        """Begin without neighbours.

        Args:
            interest: the table of filters.
            shards: the workers.
            limit: patterns that one neighbour may want in one Message VPN.
            on_filter: called with (VPN number, pattern) when a filter comes or goes.
        """
        self._interest = interest
        self._shards = shards
        self._limit = limit
        self._on_filter = on_filter

    def take(
        self, session: Session, neighbour: Neighbour, entries: list[tuple[str, int]], done: Callable[[], None]
    ) -> None:
        """Change what a neighbour wants; `done` is called when the workers have confirmed it.

        Raises:
            InvalidRequestError: a pattern is none (40001), or there are too many (40031). Those before it are in.
        """
        added: list[Filter[Session]] = []
        removed: list[Filter[Session]] = []
        known: list[Filter[Session]] = []
        try:
            for pattern, wish in entries:
                self._check(neighbour, pattern, wish)
                self._change(session, neighbour.imports, pattern, wish, (added, removed, known))
        finally:
            self._shards.change_filters(added, removed, lambda: self._shards.await_pending(known, done))

    def _check(self, neighbour: Neighbour, pattern: str, wish: int) -> None:
        if not wish or pattern in neighbour.imports:
            return
        if len(neighbour.imports) >= self._limit:
            raise error_for(errors.LINK_IMPORTS_EXCEEDED, f"{neighbour.node}: the limit is {self._limit}")
        try:
            parsed = parse_filter(pattern)
        except AngariumError as error:
            raise error_for(errors.MALFORMED_FRAME, error.detail) from None
        if parsed.pattern != pattern or pattern.startswith(wire.QUEUE_TOPIC_PREFIX):
            raise error_for(errors.MALFORMED_FRAME, f"{pattern!r} is for one node only")

    def _change(
        self,
        session: Session,
        imports: dict[str, int],
        pattern: str,
        wish: int,
        changed: tuple[list[Any], list[Any], list[Any]],
    ) -> None:
        added, removed, known = changed
        before, after = _kinds(imports.get(pattern, 0)), _kinds(wish)
        for kind in after:
            if kind not in before:
                a_filter, is_new = self._join(session, pattern, kind)
                (added if is_new else known).append(a_filter)
        for kind in before:
            if kind not in after:
                removed += self._leave(session, pattern, kind)
        if wish:
            imports[pattern] = wish
        else:
            imports.pop(pattern, None)

    def _join(self, session: Session, pattern: str, kind: int) -> tuple[Filter[Session], bool]:
        vpn_id = session.vpn.id
        found = self._interest.find_kind(vpn_id, pattern, kind)
        is_new = found is None
        if found is None:
            found = self._interest.create_kind(vpn_id, pattern, kind, self._shards.table)
            self._on_filter(vpn_id, pattern)
        self._interest.join(found, session, pattern)
        return found, is_new

    def _leave(self, session: Session, pattern: str, kind: int) -> list[Filter[Session]]:
        found = self._interest.find_kind(session.vpn.id, pattern, kind)
        assert found is not None, "a wish is in force while it is known"
        if not self._interest.leave(found, session, pattern):
            return []
        self._on_filter(session.vpn.id, pattern)
        return [found]

    def release(self, session: Session, neighbour: Neighbour, limit: int) -> None:
        """Take back so many wishes of a session that is over."""
        removed: list[Filter[Session]] = []
        for pattern in list(islice(neighbour.imports, limit)):
            for kind in _kinds(neighbour.imports.pop(pattern)):
                removed += self._leave(session, pattern, kind)
        self._shards.change_filters([], removed)


def _kinds(wish: int) -> tuple[int, ...]:
    """Give the kinds of filters that a wish is a member of."""
    always = wish & (wire.WISH_DELIVER_ALWAYS | wire.WISH_ENDPOINT)
    if wish >> wire.WISH_DTO_SHIFT:
        return (wire.KIND_DELIVER_ALWAYS, wire.KIND_PLAIN) if always else (wire.KIND_PLAIN,)
    return (wire.KIND_DELIVER_ALWAYS,) if always else ()
