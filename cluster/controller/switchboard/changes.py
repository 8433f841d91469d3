"""How a change comes into force: durable first, then with the router, then it is answered.

The router is told everything when it says hello in a new incarnation, and each change afterwards. A change is answered
when the router confirmed it, which of an endpoint means that its filters and lanes are installed; or when it is not
there, since it will be told everything when it comes.

What processes ask at the same time shares a transaction (group commit: a synced write costs the same for one change and
for a hundred). Each is judged on what the ones before it left, so changes are taken over as they are made, and taken
back if the store refuses them. Nobody sees what is not durable: it is with the store before the next event, and answers
wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cluster.catalog import passwordless
from cluster.catalog.deletions import DELETIONS_TIDY
from cluster.controller.access.audit_log import DONE, Changed
from cluster.controller.switchboard.effects import Answer, Commit, Judge
from cluster.controller.switchboard.event_limits import clients_of
from cluster.controller.switchboard.switchboard import ROUTER, AdminAsker, ProcessAsker
from cluster.objects import KINDS
from storage.config_store import Change, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cluster.catalog.registries import Registries
    from cluster.controller.switchboard.effects import Asked, Effect
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


class _Made(NamedTuple):
    """Changes that are taken over and not durable yet, and what follows when they are."""

    changes: list[Entry]
    #: What brings back the state before them.
    undoing: list[Entry]
    asker: Asker | None
    answer: Any
    #: What tells the router.
    requests: list[tuple[str, list[Any]]]
    #: Those that operators hear of, and what the events say was done to each object.
    told: list[Change]
    verb: str
    #: Done when the router has been told.
    after: Sequence[Effect]
    #: Ids of producers whose records have to go from the homes.
    forgotten: list[int]


class _Transaction(NamedTuple):
    """What the store makes durable at once."""

    made: list[_Made]
    #: The questions that share it; empty if it is not of processes.
    shared_by: Sequence[Asked]
    #: Answers that may rest on what is not durable yet.
    answers: list[Answer]


class Changes:
    """Changes on their way to the store and to the router."""

    def __init__(self, board: Switchboard, registries: Registries) -> None:
        self._board = board
        self._registries = registries
        self._catalog, _, self._stages, self.deletions = registries
        #: When the router is asked which deletions are complete, and when it may be asked of very many; None before the
        #: first tick.
        self._tidy_due: float | None = None
        self._tidy_early = 0.0
        #: What will share a transaction; None unless questions are judged that do.
        self._sharing: list[_Made] | None = None
        #: Number -> what is with the store; empty between two events.
        self._uncommitted: dict[int, _Transaction] = {}

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
        made = self._take([*changes, *self.deletions.of(changes, self._catalog)], asker, verb, answer)
        made = made._replace(after=after, forgotten=forgotten or [])
        if self._sharing is None:
            self._commit(_Transaction([made], (), []))
        else:
            self._sharing.append(made)

    def share(self, questions: Sequence[Asked], judge: Callable[[Asked], None]) -> None:
        """Let the changes that questions bring about share a transaction; one that is refused concerns no other."""
        self._sharing = []
        for question in questions:
            judge(question)
        made, self._sharing = self._sharing, None
        if not made:
            return
        said = self._board.taken()
        for effect in said:
            if not isinstance(effect, Answer):
                self._board.emit(effect)
        answers = [effect for effect in said if isinstance(effect, Answer)]
        self._commit(_Transaction(made, questions, answers))

    def _take(self, changes: list[Entry], asker: Asker | None, verb: str, answer: Callable[[], Any]) -> _Made:
        """Take changes over, so that what comes next is judged on them."""
        changed = [entry for entry in changes if isinstance(entry, Change)]
        by_client = isinstance(asker, ProcessAsker)
        told = [one for one in changed if not self._is_of_client(one, by_client=by_client)]
        requests = [
            request_of(one, self._catalog.get(*one[:3])) for one in changed if KINDS[one.kind].is_told
        ]
        self._catalog.on_step()
        undoing = self._registries.undoing(changes)
        self._registries.take(changes)
        return _Made(changes, undoing, asker, answer(), requests, told, verb, (), [])

    def _commit(self, transaction: _Transaction) -> None:
        number = self._board.new_number()
        self._uncommitted[number] = transaction
        self._board.emit(Commit(number, [entry for made in transaction.made for entry in made.changes]))

    def committed(self, number: int, now: float) -> None:
        """The changes are durable: tell the router, and answer each when it knows."""
        transaction = self._uncommitted.pop(number)
        for made in transaction.made:
            self._tell(made, now)
        for answer in transaction.answers:
            self._board.emit(answer)

    def _tell(self, made: _Made, now: float) -> None:
        self._board.write_down(made.asker, DONE, _changed(made))
        self._catalog.on_step()
        gathering = self._board.gather(made.asker, now, CONFIRM_TIMEOUT_S)
        gathering.finish = lambda _: made.answer
        self._tell_router(made.requests, gathering)
        self._catalog.on_step()
        if made.forgotten:
            self._board.ask(ROUTER, "producer_forget", {"ids": made.forgotten}, gathering)
        if made.asker is None or isinstance(made.asker, AdminAsker):
            self._tell_stages(made.changes, gathering)
        told = made.told
        if passwordless.was_closed_by(made.changes):
            self._board.record_system("warning", passwordless.CLOSED_EVENT, passwordless.CLOSED_TEXT)
            told = [one for one in told if one[:3] not in passwordless.CLOSED_WITH]
        self._record(told, made.verb, by_client=isinstance(made.asker, ProcessAsker))
        for effect in made.after:
            self._board.emit(effect)
        self._board.end_if_complete(gathering)

    def not_committed(self, number: int, code: int, detail: str) -> None:
        """The store refused the changes: nothing of them stays.

        Those that shared a transaction are judged again, each for itself: one that asks for no room must not be refused
        because others do.
        """
        made, shared_by, _ = self._uncommitted.pop(number)
        for one in reversed(made):
            self._registries.take(one.undoing)
        if len(shared_by) > 1:
            for question in shared_by:
                self._board.emit(Judge(question))
            return
        for one in made:
            self._board.refuse(one.asker, code, detail)

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
        told = [
            [kind, *key, _told(attributes)]
            for kind, *key, attributes in self._catalog.snapshot()
            if KINDS[kind].is_told
        ]
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
        verbs = ["deleted" if verb == "applied" and one.attributes is None else verb for one in changed]
        vpns: list[str] = [one.vpn for one in changed]
        if len(titles) > SINGLE_CHANGES_MAX:
            titles, verbs, vpns = [f"{len(titles)} objects, {titles[0]} first, each"], [verb], [""]
        source = clients_of(changed[0].vpn) if by_client and changed else None
        for title, done, vpn in zip(titles, verbs, vpns, strict=True):
            where = {"vpn": vpn} if vpn else {}
            self._board.record_system("info", "SYSTEM_CONFIG_CHANGE", f"{title} was {done}", source, **where)

    def validate(self) -> None:
        """Assert what the attribute comments say."""
        assert not self._uncommitted, "changes were not committed between two events"
        assert self._sharing is None, "questions are judged between two events"


def _changed(made: _Made) -> list[Changed]:
    """Give what became of each object, for who asked; of processes nobody writes it down."""
    if not isinstance(made.asker, AdminAsker):
        return []
    before = {one[:3]: one.attributes for one in made.undoing if isinstance(one, Change)}
    after = {one[:3]: one.attributes for one in made.changes if isinstance(one, Change)}
    return [Changed(*key, before.get(key), attributes) for key, attributes in after.items()]


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
