"""Who asks, who is asked, and who waits for whose answer: what every operation of the controller goes through.

An operation is answered at once, or it gathers: it asks processes, and is answered when all have answered, one refused,
or its time is over. A process that is known to be down is not asked, so nobody waits for it. Pure: effects are
collected here until the shell takes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from angarium import errors
from cluster.controller.access.audit_log import DONE, AuditLog
from cluster.controller.switchboard.effects import Answer, Effect, Record, Reply, Request, WriteDown
from cluster.controller.switchboard.event_limits import source_of
from cluster.roster import table as roles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cluster.controller.access.audit_log import Changed, Deed
    from cluster.controller.access.callers import Who
    from cluster.controller.switchboard.event_limits import Source
    from cluster.controller.switchboard.events import Event, EventRing

#: How long the answers of processes are waited for; one that is paused must not make a status late.
GATHER_TIMEOUT_S: Final = 1.0
#: Requests to processes without an answer yet, beyond which the admin API refuses: nobody seems to answer.
PENDING_MAX: Final = 10_000

#: (role, index).
Place = tuple[str, int]
ROUTER: Final[Place] = (roles.ROUTER.name, 0)
#: Whom to ask, the operation, and its arguments.
Question = tuple[Place, str, Any]
#: Name of an operation of the admin API -> who does it: `handler(arguments, asker, now)`.
Handlers: TypeAlias = "dict[str, Callable[..., None]]"
_Key = TypeVar("_Key")


class AdminAsker(NamedTuple):
    """Who asked over the admin API: the identity of the connection, the number of the request, and who that is."""

    identity: bytes
    number: int
    who: Who
    #: What is written down of it; nothing of what is done without being asked for.
    deed: Deed | None = None

    def answer(self, *, ok: bool, value: Any) -> Effect:
        """Give the effect that answers."""
        return Reply(self.identity, self.number, ok, value)


class ProcessAsker(NamedTuple):
    """The process that asked, and the number of its question."""

    identity: bytes
    number: int

    def answer(self, *, ok: bool, value: Any) -> Effect:
        """Give the effect that answers."""
        return Answer(self.identity, self.number, ok, value)


Asker = AdminAsker | ProcessAsker


class Peer(NamedTuple):
    """A process that said hello."""

    identity: bytes
    incarnation: int
    pid: int


@dataclass(slots=True)
class Gathering:
    """An operation, or something of our own, that waits for answers of processes."""

    deadline: float
    #: Whom to answer; None if the controller itself wants to know.
    asker: Asker | None
    finish: Callable[[dict[int, Any]], Any]
    #: Numbers of requests that are not answered yet; the gathering ends when there are none.
    waiting: dict[int, Place] = field(default_factory=dict)
    #: Number -> answer; refused ones are in `refusals`.
    answers: dict[int, Any] = field(default_factory=dict)
    refusals: list[tuple[int, str]] = field(default_factory=list)
    #: Whether a refusal is as good as no answer: a view shows what there is.
    takes_refusals: bool = False
    #: Called before the asker is refused.
    give_up: Callable[[], None] = lambda: None


def answer_of_router(answers: Mapping[Place, Any]) -> Any:
    """Give what the router answered.

    Raises:
        TimeoutError: nothing (40801).
    """
    if ROUTER not in answers:
        detail = "the router did not answer; 'angarium status' shows its state"
        raise errors.error_for(errors.TIMEOUT, detail)
    return answers[ROUTER]


class Switchboard:
    """The processes that are there, the questions under way, and the effects to carry out."""

    def __init__(
        self,
        events: EventRing,
        wall_time: Callable[[], str],
        first_number: int = 1,
        audit_log: AuditLog | None = None,
    ) -> None:
        """Begin without any process; no answer to an earlier controller may have a number from `first_number` on."""
        self.events = events
        self.audit_log = audit_log or AuditLog()
        self._wall_time = wall_time
        #: Place -> the newest process that said hello there.
        self.peers: dict[Place, Peer] = {}
        #: Request number -> the gathering that waits for it; each gathering is in here once per waiting
        #: number.
        self.pending: dict[int, Gathering] = {}
        #: Place -> what its process is asked as soon as it says hello: number, operation, content.
        self._held: dict[Place, list[tuple[int, str, Any]]] = {}
        self._next_number = first_number
        #: The newest description by the supervisor; empty before the first.
        self.node: dict[str, Any] = {}
        self._effects: list[Effect] = []

    # -- time ------------------------------------------------------------------------------------------------

    def now_s(self) -> int:
        """Give the time of the day in seconds since 1970."""
        return int(datetime.fromisoformat(self._wall_time()).timestamp())

    def today(self) -> int:
        """Give the ordinal of the day."""
        return date.fromisoformat(self._wall_time()[:10]).toordinal()

    # -- effects ---------------------------------------------------------------------------------------------

    def emit(self, effect: Effect) -> None:
        """Have something done, after all that was emitted before."""
        self._effects.append(effect)

    def record(self, event: Event, source: Source | None = None) -> None:
        """Keep an event, with the time if it has none; not if its source has brought too many."""
        if not self.events.limits.admits(source or source_of(event), str(event.get("event"))):
            return
        self.emit(Record(self.events.add({"time": self._wall_time(), **event})))

    def tell_left_out(self, now: float) -> None:
        """Keep an event about the events that were not kept, once a minute and source."""
        for summary in self.events.limits.tick(now):
            self.emit(Record(self.events.add({"time": self._wall_time(), **summary})))

    def record_system(
        self, severity: str, name: str, text: str, source: Source | None = None, **more: str
    ) -> None:
        """Keep an event of the controller itself, or one that a source has caused."""
        event = {"severity": severity, "scope": "SYSTEM", "event": name, "text": text, **more}
        self.record(event, source)

    def reply(self, asker: Asker | None, value: Any) -> None:
        """Answer; nobody to answer is fine."""
        if asker is not None:
            self.write_down(asker, DONE)
            self.emit(asker.answer(ok=True, value=value))

    def refuse(self, asker: Asker | None, code: int, detail: str) -> None:
        """Refuse; what the controller itself wanted becomes an event."""
        if asker is not None:
            self.write_down(asker, code)
            self.emit(asker.answer(ok=False, value=[code, detail]))
            return
        text = f"a request of the controller was refused: {errors.error_for(code, detail)}"
        self.record_system("error", "SYSTEM_CONTROLLER_REQUEST_REFUSED", text)

    def write_down(self, asker: Asker | None, outcome: str | int, changed: Sequence[Changed] = ()) -> None:
        """Have it written down what an operator asked for and what came of it, unless it is already."""
        deed = asker.deed if isinstance(asker, AdminAsker) else None
        if deed is not None:
            self.write_deed(deed, outcome, changed)

    def write_deed(self, deed: Deed, outcome: str | int, changed: Sequence[Changed] = ()) -> None:
        """Have a deed written down, unless it is already."""
        for line in self.audit_log.lines(deed, outcome, self._wall_time(), changed):
            self.emit(WriteDown(line))

    def tell_repeats(self, *, is_end: bool = False) -> None:
        """Have it written down how often refusals have repeated whose minute is over; at the end of all."""
        for line in self.audit_log.end() if is_end else self.audit_log.repeats(self._wall_time()):
            self.emit(WriteDown(line))

    def taken(self) -> list[Effect]:
        """Give all effects, once."""
        effects, self._effects = self._effects, []
        return effects

    # -- processes -------------------------------------------------------------------------------------------

    def hello(self, place: Place, peer: Peer) -> bool:
        """Note a process; false if it or a later one is known."""
        known = self.peers.get(place)
        if known is not None and known.incarnation >= peer.incarnation:
            return False
        self.peers[place] = peer
        return True

    def lives(self, place: Place) -> bool:
        """Tell whether the process that said hello there runs and is not hung, as far as the supervisor told."""
        peer = self.peers.get(place)
        if peer is None:
            return False
        row = self._row(place)
        if row is None or row["incarnation"] < peer.incarnation:
            return True
        same: bool = row["incarnation"] == peer.incarnation
        return same and row["pid"] != 0 and row["state"] != "hung"

    def _is_awaited(self, place: Place) -> bool:
        """Tell whether a process is ready there, as far as the supervisor told, and has yet to say hello.

        Both tell us of it in their own time: whoever asks in between is to have an answer all the same.
        """
        row, peer = self._row(place), self.peers.get(place)
        if row is None or row["pid"] == 0 or row["state"] != "ready":
            return False
        return peer is None or peer.incarnation < row["incarnation"]

    def _row(self, place: Place) -> dict[str, Any] | None:
        """Give what the supervisor told of a process."""
        rows = self.node.get("processes", ())
        return next((row for row in rows if (row["role"], row["index"]) == place), None)

    # -- questions -------------------------------------------------------------------------------------------

    def new_number(self) -> int:
        """Give a number that was not used before."""
        number = self._next_number
        self._next_number += 1
        return number

    def gather(self, asker: Asker | None, now: float, wait_s: float = GATHER_TIMEOUT_S) -> Gathering:
        """Begin to gather; `ask`, set `finish`, then `end_if_complete`."""
        return Gathering(now + wait_s, asker, lambda _: None)

    def gather_view(self, asker: Asker | None, now: float) -> Gathering:
        """Start gathering a view, which is complete even if some processes do not answer."""
        gathering = self.gather(asker, now)
        gathering.takes_refusals = True
        return gathering

    def ask(self, place: Place, operation: str, content: Any, gathering: Gathering) -> int:
        """Ask a process, if it is there and lives; gives the number under which its answer will stand.

        One that is about to say hello is asked then.
        """
        number = self.new_number()
        if self.lives(place):
            self.emit(Request(self.peers[place].identity, number, operation, content))
        elif self._is_awaited(place):
            self._held.setdefault(place, []).append((number, operation, content))
        else:
            return number
        gathering.waiting[number] = place
        self.pending[number] = gathering
        return number

    def ask_held(self, place: Place) -> None:
        """Ask a process that has said hello what waited for that."""
        for number, operation, content in self._held.pop(place, ()) if self.lives(place) else ():
            if number in self.pending:
                self.emit(Request(self.peers[place].identity, number, operation, content))

    def collect(
        self,
        asker: Asker | None,
        now: float,
        questions: Mapping[_Key, Question],
        finish: Callable[[dict[_Key, Any]], Any],
        wait_s: float = GATHER_TIMEOUT_S,
        give_up: Callable[[], None] = lambda: None,
    ) -> None:
        """Ask processes, and answer with what `finish` makes of their answers, each by the key of its question.

        Those that did not come are missing there; one that refuses refuses it all, after `give_up`.
        """
        gathering = self.gather(asker, now, wait_s)
        gathering.give_up = give_up
        self._collect(gathering, questions, finish)

    def collect_view(
        self,
        asker: Asker | None,
        now: float,
        questions: Mapping[_Key, Question],
        finish: Callable[[dict[_Key, Any]], Any],
    ) -> None:
        """Do the same for a view: who refuses is missing there like who does not answer."""
        self._collect(self.gather_view(asker, now), questions, finish)

    def _collect(
        self,
        gathering: Gathering,
        questions: Mapping[_Key, Question],
        finish: Callable[[dict[_Key, Any]], Any],
    ) -> None:
        keys = {self.ask(*question, gathering): key for key, question in questions.items()}
        gathering.finish = lambda answers: finish(
            {key: answers[number] for number, key in keys.items() if number in answers}
        )
        self.end_if_complete(gathering)

    def forward(self, operation: str, content: Any, asker: Asker | None, now: float) -> None:
        """Have the router answer, or refuse, an operation."""
        self.collect(asker, now, {ROUTER: (ROUTER, operation, content)}, answer_of_router)

    def check_worker(self, index: int) -> None:
        """Refuse a worker that this node does not have.

        Raises:
            NotFoundError: so it is (40401).
        """
        rows = [row for row in self.node.get("processes", ()) if row["role"] == roles.WORKER.name]
        if rows and all(row["index"] != index for row in rows):
            raise errors.error_for(errors.OBJECT_NOT_FOUND, f"worker {index}; there are {len(rows)}")

    def forwarding(self, operation: str) -> Callable[[Any, Asker, float], None]:
        """Give what has the router answer an operation of the admin API, with the same arguments."""
        return lambda request, asker, now: self.forward(
            operation, msgspec.structs.asdict(request), asker, now
        )

    def answered(self, number: int, value: Any) -> None:
        """A process answered."""
        gathering = self._settled(number)
        if gathering is not None:
            gathering.answers[number] = value
            self.end_if_complete(gathering)

    def refused(self, number: int, code: int, detail: str) -> None:
        """A process refused."""
        gathering = self._settled(number)
        if gathering is not None:
            gathering.refusals.append((code, detail))
            self.end_if_complete(gathering)

    def unanswered(self, number: int) -> None:
        """A request could not be sent: its process is gone."""
        gathering = self._settled(number)
        if gathering is not None:
            self.end_if_complete(gathering)

    def expire(self, now: float) -> None:
        """End what waited long enough."""
        overdue = {id(one): one for one in self.pending.values() if one.deadline <= now}
        for gathering in overdue.values():
            for number in gathering.waiting:
                del self.pending[number]
            gathering.waiting.clear()
        if overdue:
            self._drop_held()
        for gathering in overdue.values():
            self.end_if_complete(gathering)

    def _drop_held(self) -> None:
        for place, questions in list(self._held.items()):
            self._held[place] = [held for held in questions if held[0] in self.pending]
            if not self._held[place]:
                del self._held[place]

    def end_if_complete(self, gathering: Gathering) -> None:
        """Answer, if nothing is waited for any more."""
        if gathering.waiting:
            return
        try:
            if gathering.refusals and not gathering.takes_refusals:
                raise errors.error_for(*gathering.refusals[0])
            answer = gathering.finish(gathering.answers)
        except errors.AngariumError as error:
            gathering.give_up()
            self.refuse(gathering.asker, error.code, error.detail)
            return
        self.reply(gathering.asker, answer)

    def _settled(self, number: int) -> Gathering | None:
        gathering = self.pending.pop(number, None)
        if gathering is not None:
            del gathering.waiting[number]
        return gathering

    def validate(self) -> None:
        """Assert what the attribute comments say."""
        for number, gathering in self.pending.items():
            assert number in gathering.waiting, f"request {number} is settled and pending"
            assert number < self._next_number, f"request {number} was never made"
        assert len(self.pending) <= PENDING_MAX + len(self.peers), "too many requests wait"
        for place, questions in self._held.items():
            assert questions, f"nothing is held for {place}"
        assert not self._effects, "effects were not taken"
