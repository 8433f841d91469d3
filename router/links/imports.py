"""What neighbours want of this node, as memberships of their sessions in filters.

A wish for a pattern makes the neighbour's session a member of up to two filters: the deliver-always one, if a
deliver-always subscription or an endpoint over there wants the messages, and the plain one, if clients do. So workers
know nothing of neighbours, and a message costs the same for a neighbour as for a client.

A frame has up to a thousand wishes, and a neighbour a hundred thousand, so both what comes and what a session that is
over leaves behind is done in steps, neighbours in turn; others are served in between. A session whose frame is not done
is *busy*: what it sends next is taken afterwards. Wishes of a session that is over and that the next one asks for again
need not leave the workers at all.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final

from angarium import errors, wire
from angarium.errors import AngariumError, error_for
from angarium.topic import parse_filter
from angarium_server.frames.frame import decoder
from angarium_server.frames.links import ImportsFrame
from angarium_server.memory.memory import give_up_room_of_few
from router.ground.ground import nothing

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.matching.shards import Shards
    from router.sessions.interest import Filter, Interest
    from router.sessions.neighbour import Neighbour
    from router.sessions.session import Session

decode_imports = decoder(ImportsFrame)

#: Wishes that are done in one step: 2 to 3 ms.
STEP_MAX: Final = 160
#: So many of a frame are done before another neighbour has its turn.
PIECE: Final = 16


class _Frame:
    """A frame of a neighbour, and how far it is."""

    __slots__ = ("added", "at", "done", "entries", "finished", "joined", "neighbour", "removed", "session")

    def __init__(
        self,
        session: Session,
        neighbour: Neighbour,
        entries: list[tuple[str, int]],
        finished: Callable[[], None],
        done: Callable[[], None],
    ) -> None:
        self.session, self.neighbour = session, neighbour
        self.entries = entries
        #: So many of them are in.
        self.at = 0
        self.finished, self.done = finished, done
        #: What the workers are to be told of at the end of the piece.
        self.added: list[Filter[Session]] = []
        self.removed: list[Filter[Session]] = []
        #: Filters that the workers have to confirm before the frame is in force.
        self.joined: list[Filter[Session]] = []


class Imports:
    """Joins the sessions of neighbours to filters, and takes them away."""

    def __init__(
        self,
        interest: Interest[Session],
        shards: Shards,
        limit: int,
        on_filter: Callable[[int, str], None],
    ) -> None:
        """Begin without neighbours; one may want `limit` patterns. `on_filter` gets (VPN number, pattern)."""
        self._interest = interest
        self._shards = shards
        self._limit = limit
        self._on_filter = on_filter
        #: Frames that are not done, one of a session; who had a turn is last.
        self._line: deque[_Frame] = deque()
        #: Sessions that are over and what they still want, the oldest first; nothing is empty.
        self._leaving: deque[tuple[Session, Neighbour]] = deque()
        #: What a step may cost, and what this one still may before the next one begins.
        self.step_max = self._left = STEP_MAX
        #: Called with a session that sent what is no wish (40001), or too many (40031); those before it are in.
        self.on_fault: Callable[[Session, AngariumError], None] = nothing

    def __bool__(self) -> bool:
        """Tell whether there is something left to do."""
        return bool(self._line or self._leaving)

    def begin(
        self,
        session: Session,
        neighbour: Neighbour,
        entries: list[tuple[str, int]],
        finished: Callable[[], None],
        done: Callable[[], None],
    ) -> None:
        """Begin to change what a neighbour wants.

        `finished` is called when it is changed here, which may be now, `done` when the workers have confirmed it.
        """
        session.is_busy = True
        self._line.append(_Frame(session, neighbour, entries, finished, done))
        self._go_on()

    def step(self) -> None:
        """Do the next step, in the next turn of the loop."""
        self._left = self.step_max
        self._go_on()

    def _go_on(self) -> None:
        while self._line and self._left > 0:
            frame = self._line.popleft()
            error = self._do_some(frame, PIECE if self._line else self._left)
            if error is not None:
                frame.session.is_busy = False
                self.on_fault(frame.session, error)
            elif frame.at < len(frame.entries):
                self._line.append(frame)
            else:
                self._finish(frame)
        while self._leaving and self._left > 0:
            self._release_some()

    def _do_some(self, frame: _Frame, limit: int) -> AngariumError | None:
        """Do the next wishes of a frame; gives what is wrong with one of them."""
        error = None
        for pattern, wish in islice(frame.entries, frame.at, frame.at + limit):
            try:
                self._check(frame.neighbour, pattern, wish)
            except AngariumError as fault:
                error = fault
                break
            self._change(frame, pattern, wish)
            frame.at += 1
            self._left -= 1
        self._shards.change_filters(frame.added, frame.removed)
        frame.added, frame.removed = [], []
        return error

    def _finish(self, frame: _Frame) -> None:
        frame.session.is_busy = False
        give_up_room_of_few(frame.neighbour.imports)
        frame.finished()
        self._shards.await_pending(frame.joined, frame.done)

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

    def _change(self, frame: _Frame, pattern: str, wish: int) -> None:
        session, imports = frame.session, frame.neighbour.imports
        before, after = _kinds(imports.get(pattern, 0)), _kinds(wish)
        for kind in after:
            if kind not in before:
                a_filter, is_new = self._join(session, pattern, kind)
                frame.joined.append(a_filter)
                if is_new:
                    frame.added.append(a_filter)
        for kind in before:
            if kind not in after:
                frame.removed += self._leave(session, pattern, kind)
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

    def ended(self, session: Session, neighbour: Neighbour) -> None:
        """A session is over: what it wants is taken back in the next steps."""
        self._line = deque(frame for frame in self._line if frame.session is not session)
        if neighbour.imports:
            self._leaving.append((session, neighbour))

    def _release_some(self) -> None:
        session, neighbour = self._leaving[0]
        removed: list[Filter[Session]] = []
        for pattern in list(islice(neighbour.imports, self._left)):
            for kind in _kinds(neighbour.imports.pop(pattern)):
                removed += self._leave(session, pattern, kind)
            self._left -= 1
        self._shards.change_filters([], removed)
        if not neighbour.imports:
            self._leaving.popleft()

    def validate(self) -> None:
        """Check what the comments promise."""
        assert all(frame.session.is_busy and frame.at < len(frame.entries) for frame in self._line)
        assert len({frame.session for frame in self._line}) == len(self._line)
        assert all(session.closed and neighbour.imports for session, neighbour in self._leaving)


def _kinds(wish: int) -> tuple[int, ...]:
    """Give the kinds of filters that a wish is a member of."""
    always = wish & (wire.WISH_DELIVER_ALWAYS | wire.WISH_ENDPOINT)
    if wish >> wire.WISH_DTO_SHIFT:
        return (wire.KIND_DELIVER_ALWAYS, wire.KIND_PLAIN) if always else (wire.KIND_PLAIN,)
    return (wire.KIND_DELIVER_ALWAYS,) if always else ()
