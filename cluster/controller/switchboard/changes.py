"""How a change comes into force: durable first, then with the router, then it is answered.

The router is told everything when it says hello in a new incarnation, and each change afterwards. A change is answered
when the router confirmed it, which of an endpoint means that its filters and lanes are installed; or when it is not
there, since it will be told everything when it comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cluster.catalog import passwordless
from cluster.catalog.deletions import DELETIONS_TIDY
from cluster.controller.switchboard.effects import Commit
from cluster.controller.switchboard.event_limits import clients_of
from cluster.controller.switchboard.switchboard import ROUTER, AdminAsker, ProcessAsker
from storage.config_store import Change, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cluster.catalog.registries import Registries
    from cluster.controller.switchboard.effects import Effect
    from cluster.controller.switchboard.switchboard import Asker, Gathering, Place, Switchboard
    from cluster.objects import Attributes
    from storage.config_store import Entry

#: How long a change waits for the router's word; the change itself is durable by then.
CONFIRM_TIMEOUT_S: Final = 3.0
#: The router is asked which deletions are complete so often, and of very many at most so often.
TIDY_INTERVAL_S: Final = 3_600.0
TIDY_LEAST_S: Final = 10.0
#: More changes at once are told the router as a whole configuration.
SINGLE_CHANGES_MAX: Final = 100
#: Attributes of which the router is told what came and what went: a small request must not cost it the whole list.
EDITED_LISTS: Final = frozenset(("subscriptions", "client_subscriptions"))


class _Uncommitted(NamedTuple):
    """Changes that the store is making durable, and what follows."""

    changes: list[Entry]
    asker: Asker | None
    #: What the events say was done to each object.
    verb: str
    #: Makes the answer, once the changes are taken over.
    answer: Callable[[], Any]
    #: Done when the router has been told.
    after: Sequence[Effect]
    #: Ids of producers whose records have to go from the homes.
    forgotten: list[int]


class Changes:
    """Changes on their way to the store and to the router."""

    def __init__(self, board: Switchboard, registries: Registries) -> None:
        """Change these registries, and nothing else."""
        self._board = board
        self._catalog, self._producers, self._stages, self.deletions = registries
        #: When the router is asked which deletions are complete, and when it may be asked of very many; None before the
        #: first tick.
        self._tidy_due: float | None = None
        self._tidy_early = 0.0
        #: Number -> changes that are with the store; empty between two events.
        self._uncommitted: dict[int, _Uncommitted] = {}

    def make(
        self,
        changes: list[Entry],
        asker: Asker | None,
        verb: str,
        answer: Callable[[], Any],
        *,
        after: Sequence[Effect] = (),
        forgotten: list[int] | None = None,
    ) -> None:
        """Bring changes into force and answer then; without any that is at once.

        Args:
            changes: what the catalog or the registry of producers gave.
            asker: whom to answer.
            verb: what the events say was done to each object: "created", "updated by client username 'a'".
            answer: makes the answer when the changes are taken over.
            after: effects behind those that tell the router.
            forgotten: producers whose records the homes have to delete.
        """
        if not changes:
            for effect in after:
                self._board.emit(effect)
            self._board.reply(asker, answer())
            return
        changes = [*changes, *self.deletions.of(changes, self._catalog)]
        number = self._board.new_number()
        self._uncommitted[number] = _Uncommitted(changes, asker, verb, answer, after, forgotten or [])
        self._board.emit(Commit(number, changes))

    def committed(self, number: int, now: float) -> None:
        """The changes are durable: take them over, tell the router, and answer when it knows."""
        change = self._uncommitted.pop(number)
        changed = [entry for entry in change.changes if isinstance(entry, Change)]
        by_client = isinstance(change.asker, ProcessAsker)
        told = [one for one in changed if not self._is_of_client(one, by_client=by_client)]
        requests = [request_of(one, self._catalog.get(*one[:3])) for one in changed]
        self._catalog.take(change.changes)
        self._producers.take(change.changes)
        self._stages.take(change.changes)
        self.deletions.take(change.changes)
        answer = change.answer()
        gathering = self._board.gather(change.asker, now, CONFIRM_TIMEOUT_S)
        gathering.finish = lambda _: answer
        self._tell_router(requests, gathering)
        if change.forgotten:
            self._board.ask(ROUTER, "producer_forget", {"ids": change.forgotten}, gathering)
        if change.asker is None or isinstance(change.asker, AdminAsker):
            self._tell_stages(change.changes, gathering)
        if passwordless.was_closed_by(change.changes):
            self._board.record_system("warning", passwordless.CLOSED_EVENT, passwordless.CLOSED_TEXT)
            told = [one for one in told if one[:3] not in passwordless.CLOSED_WITH]
        self._record(told, change.verb, by_client=by_client)
        for effect in change.after:
            self._board.emit(effect)
        self._board.end_if_complete(gathering)

    def not_committed(self, number: int, code: int, detail: str) -> None:
        """The changes were refused by the store and nothing changed."""
        self._board.refuse(self._uncommitted.pop(number).asker, code, detail)

    def push_everything(self, now: float) -> None:
        """Give the router all objects; if it does not take them, its next hello counts as its first."""
        board = self._board
        gathering = board.gather(None, now, CONFIRM_TIMEOUT_S)
        if len(self._stages):
            board.ask(ROUTER, "stages", self._stages.decided, gathering)
        number = self._tell_everything(gathering)

        def finish(answers: dict[int, Any]) -> None:
            if number not in answers:
                board.peers.pop(ROUTER, None)

        gathering.finish = finish
        board.end_if_complete(gathering)

    def _tell_everything(self, gathering: Gathering) -> int:
        """Tell the router all objects; what is missing is deleted only if its deletion is told before."""
        if len(self.deletions):
            self._board.ask(ROUTER, "deletions", self.deletions.ids, gathering)
        told = [[*key, _told(attributes)] for *key, attributes in self._catalog.snapshot()]
        return self._board.ask(ROUTER, "config_snapshot", told, gathering)

    def tick(self, now: float) -> None:
        """Remove the records of deletions that are complete, if it is time for that."""
        if self._tidy_due is None:
            self._tidy_due = now + TIDY_INTERVAL_S
        elif now >= self._tidy_due or (now >= self._tidy_early and len(self.deletions) >= DELETIONS_TIDY):
            self._tidy_due, self._tidy_early = now + TIDY_INTERVAL_S, now + TIDY_LEAST_S
            self._tidy(now)

    def _tidy(self, now: float) -> None:
        if not len(self.deletions):
            return

        def finish(answers: dict[Place, Any]) -> None:
            self.make(self.deletions.completed(answers.get(ROUTER) or ()), None, "", lambda: None)

        asked = {ROUTER: (ROUTER, "deletions", self.deletions.ids)}
        self._board.collect(None, now, asked, finish, CONFIRM_TIMEOUT_S)

    def _tell_stages(self, changes: list[Entry], gathering: Gathering) -> None:
        """Tell the router what was decided of stages without a question of its."""
        if any(isinstance(entry, Stage) for entry in changes):
            self._board.ask(ROUTER, "stages", self._stages.decided, gathering)

    def _tell_router(self, requests: list[tuple[str, list[Any]]], gathering: Gathering) -> None:
        if len(requests) > SINGLE_CHANGES_MAX:
            self._tell_everything(gathering)
            return
        for operation, content in requests:
            self._board.ask(ROUTER, operation, content, gathering)

    def _is_of_client(self, change: Change, *, by_client: bool) -> bool:
        """Tell whether a change is of something that comes and goes with a client: operators need not hear of it."""
        attributes = change.attributes or self._catalog.get(*change[:3]) or {}
        is_session = by_client and attributes.get("session") is not None
        return is_session or not attributes.get("durable", True)

    def _record(self, changed: list[Change], verb: str, *, by_client: bool) -> None:
        """Keep an event for each change; very many are one event."""
        titles = [
            f"{kind} {name!r}" + (f" in Message VPN {vpn!r}" if vpn else "") for kind, vpn, name, _ in changed
        ]
        if len(titles) > SINGLE_CHANGES_MAX:
            titles = [f"{len(titles)} objects, {titles[0]} first, each"]
        source = clients_of(changed[0].vpn) if by_client and changed else None
        for title in titles:
            self._board.record_system("info", "SYSTEM_CONFIG_CHANGE", f"{title} was {verb}", source)

    def validate(self) -> None:
        """Assert what the attribute comments say."""
        assert not self._uncommitted, "changes were not committed between two events"


def request_of(change: Change, before: Attributes | None) -> tuple[str, list[Any]]:
    """Give what tells the router a change; of subscriptions, which may be thousands, what came and what went."""
    kind, vpn, name, after = change
    if after is None:
        return "config_delete", [kind, vpn, name]
    after = _told(after)
    edits = None if before is None else _edits_of(_told(before), after)
    if edits is not None:
        return "config_edit", [kind, vpn, name, edits]
    return "config_set", [kind, vpn, name, after]


def _told(attributes: Attributes) -> Attributes:
    """Give what the router is told of an object: a session concerns it by its filters, and may be large."""
    return {**attributes, "session": None} if attributes.get("session") else attributes


def _edits_of(before: Attributes, after: Attributes) -> dict[str, list[list[str]]] | None:
    """Give (added, removed) of lists that clients edit; None if something else changed."""
    if before.keys() != after.keys():
        return None
    edits = {}
    for name, value in after.items():
        old = before[name]
        if value is old or value == old:
            continue
        if name not in EDITED_LISTS:
            return None
        was, becomes = dict.fromkeys(old), dict.fromkeys(value)
        added = [text for text in becomes if text not in was]
        if [text for text in was if text in becomes] + added != value:
            return None
        edits[name] = [added, [text for text in was if text not in becomes]]
    return edits
