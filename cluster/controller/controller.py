"""The controller's decisions: the admin API, the objects, what router and workers are told, the reports.

A pure state machine: admin requests, answers and events of processes, news of the supervisor and the clock go
in; effects come out: commit these changes, send this request, reply that, record this event.
`cluster/controller/server.py` carries them out in order, so a change is durable before the router hears of it
and before its author gets an answer. Which objects may exist is decided by `cluster/controller/catalog.py`.

The router is told everything when it says hello in a new incarnation, and each change afterwards; a change is
answered when the router confirmed it, or is not there (it will be told everything when it comes).

The admin API: `Admin.call(operation, **arguments)`

    operation           arguments                                   answer
    status                                                          what `angarium status --json` prints
    workers                                                         a row per worker, with its counters
    workers.scale       workers                                     {"workers"}: what is wanted from now on
    stats               role=None                                   raw counters of each process
    objects.list        kind, vpn="default" (None: all), name="*"   objects whose name matches
    objects.show        kind, name, vpn="default"                   one object
    objects.create      kind, name, vpn="default", attributes={}    the object
    objects.update      kind, name, vpn="default", attributes       the object
    objects.delete      kind, name, vpn="default"                   None
    clients.list        vpn=None                                    connected clients
    clients.show        name, vpn="default"                         one of them
    clients.disconnect  name, vpn="default"                         None
    subscriptions.list  client=None, vpn=None                       subscriptions of connected clients
    events              since=None (id or ISO time), limit=1000     events, oldest first
    config.show                                                     the configuration in force
    config.export                                                   [kind, vpn, name, attributes] and hashes
    config.apply        objects, dry_run=False                      what was done, or would be, per object
    log_level           level, role=None, index=None                the processes that changed
    down                                                            None; the node then stops in order
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from angarium import errors
from cluster.controller import arguments, report

if TYPE_CHECKING:
    from cluster.controller.catalog import Catalog
    from cluster.controller.events import Event, EventRing
    from storage.config_store import Change

#: How long the answers of processes are waited for; one that is paused must not make a status late.
GATHER_TIMEOUT_S: Final = 1.0
#: How long a change waits for the router's word; the change itself is durable by then.
CONFIRM_TIMEOUT_S: Final = 3.0
#: Requests to processes without an answer yet, beyond which the admin API refuses: nobody seems to answer.
PENDING_MAX: Final = 10_000
#: More changes at once are told the router as a whole configuration.
SINGLE_CHANGES_MAX: Final = 100
#: Rates are differences of totals over this time.
SAMPLE_INTERVAL_S: Final = 1.0

#: (role, index).
Place = tuple[str, int]
ROUTER: Final[Place] = ("router", 0)
#: (identity of the connection, number of the request) of an admin request.
Asker = tuple[bytes, int]
#: Makes the answer of an admin operation from the answers of processes; what is missing did not answer.
Finish = Callable[[dict[int, Any]], Any]


@dataclass(frozen=True, slots=True)
class Commit:
    """Make these changes durable; then say `committed` or `not_committed` before anything else."""

    number: int
    changes: list[Change]


@dataclass(frozen=True, slots=True)
class Request:
    """Ask a process; a failure to send is `unanswered`."""

    identity: bytes
    number: int
    operation: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer an admin request."""

    asker: bytes
    number: int
    ok: bool
    value: Any


@dataclass(frozen=True, slots=True)
class Record:
    """Append an event to the file."""

    event: Event


@dataclass(frozen=True, slots=True)
class SetLogLevel:
    """Change what the controller itself logs."""

    level: str


@dataclass(frozen=True, slots=True)
class StopNode:
    """Ask the supervisor to stop the node."""


@dataclass(frozen=True, slots=True)
class ScaleNode:
    """Ask the supervisor for another number of workers."""

    workers: int


Effect = Commit | Request | Reply | Record | SetLogLevel | StopNode | ScaleNode


class Peer(NamedTuple):
    """A process that said hello."""

    identity: bytes
    incarnation: int
    pid: int


class Uncommitted(NamedTuple):
    """Changes that the store is making durable, and what follows."""

    changes: list[Change]
    asker: Asker
    #: What the events say was done to each object.
    verb: str
    #: Makes the answer, once the changes are taken over.
    answer: Callable[[], Any]


@dataclass(slots=True)
class Gathering:
    """An admin request, or one of our own, that waits for answers of processes."""

    deadline: float
    finish: Finish
    #: Whom to answer; None if the controller itself wants to know.
    asker: Asker | None
    #: Numbers of requests that are not answered yet; the gathering ends when there are none.
    waiting: dict[int, Place] = field(default_factory=dict)
    #: Number -> answer; refused ones are in `refusals`.
    answers: dict[int, Any] = field(default_factory=dict)
    refusals: list[tuple[int, str]] = field(default_factory=list)


class Controller:
    """All that the controller knows. Methods that take `now` return the effects to carry out, in order."""

    def __init__(
        self,
        catalog: Catalog,
        events: EventRing,
        shown_config: dict[str, Any],
        wall_time: Callable[[], str],
    ) -> None:
        """Begin with the stored objects and events; no process is known yet.

        Args:
            catalog: complete with what is built in.
            events: those of earlier runs.
            shown_config: what `config.show` answers, without secrets.
            wall_time: gives the time for events as ISO 8601.
        """
        self._wall_time = wall_time
        self._catalog = catalog
        self._events = events
        self._shown_config = shown_config
        #: Place -> the newest process that said hello there.
        self._peers: dict[Place, Peer] = {}
        #: Request number -> the gathering that waits for it; each gathering is in here once per waiting
        #: number.
        self._pending: dict[int, Gathering] = {}
        #: Number -> changes that are with the store; empty between two events.
        self._uncommitted: dict[int, Uncommitted] = {}
        self._next_number = 1
        #: The newest description by the supervisor; empty before the first.
        self._node: dict[str, Any] = {}
        #: Number of the last event of the supervisor that was taken.
        self.supervisor_events = 0
        #: pid -> what it uses, as measured last.
        self._usage: dict[int, dict[str, Any]] = {}
        self._sampler = report.Sampler()
        self._sample_due = 0.0
        self._effects: list[Effect] = []

    # -- events of the node ----------------------------------------------------------------------------------

    def hello(self, identity: bytes, place: Place, incarnation: int, pid: int, now: float) -> list[Effect]:
        """A process says that it is there; a new router gets the whole configuration."""
        known = self._peers.get(place)
        if known is not None and known.incarnation >= incarnation:
            return []
        self._peers[place] = Peer(identity, incarnation, pid)
        if place == ROUTER:
            self._push_everything(now)
        return self._taken()

    @property
    def knows_router(self) -> bool:
        """Tell whether a router said hello."""
        return ROUTER in self._peers

    def answered(self, number: int, value: Any) -> list[Effect]:
        """A process answered a request."""
        gathering = self._settle(number)
        if gathering is not None:
            gathering.answers[number] = value
            self._end_if_complete(gathering)
        return self._taken()

    def refused(self, number: int, code: int, detail: str) -> list[Effect]:
        """A process refused a request."""
        gathering = self._settle(number)
        if gathering is not None:
            gathering.refusals.append((code, detail))
            self._end_if_complete(gathering)
        return self._taken()

    def unanswered(self, number: int) -> list[Effect]:
        """A request could not be sent: its process is gone."""
        gathering = self._settle(number)
        if gathering is not None:
            self._end_if_complete(gathering)
        return self._taken()

    def event(self, event: Event) -> list[Effect]:
        """A process tells an event."""
        self._record(event)
        return self._taken()

    def node_news(self, node: dict[str, Any]) -> list[Effect]:
        """The supervisor describes the node, with the events that were not confirmed yet."""
        self._node = node
        for number, event in node["events"]:
            if number > self.supervisor_events:
                self.supervisor_events = number
                self._record(event)
        return self._taken()

    def measured(self, usage: dict[int, dict[str, Any]]) -> None:
        """Take what each pid uses: rss_bytes, cpu_percent, uptime_s."""
        self._usage = usage

    def pids(self) -> list[int]:
        """Give the pids of all processes that live, to be measured."""
        return [row["pid"] for row in self._node.get("processes", ()) if row["pid"]]

    def tick(self, now: float) -> list[Effect]:
        """End what waited long enough, and take a sample of the router's totals."""
        overdue = {
            id(gathering): gathering for gathering in self._pending.values() if gathering.deadline <= now
        }
        for gathering in overdue.values():
            for number in gathering.waiting:
                del self._pending[number]
            gathering.waiting.clear()
            self._end_if_complete(gathering)
        if now >= self._sample_due:
            self._sample_due = now + SAMPLE_INTERVAL_S
            self._sample(now)
        return self._taken()

    # -- the admin API
    # ------------------------------------------------------------------------------------------------

    def admin(self, asker: bytes, number: int, operation: str, given: Any, now: float) -> list[Effect]:
        """Do an admin operation; its reply is among these effects or later ones."""
        known = _OPERATIONS.get(operation)
        if known is None:
            detail = f"{operation!r}; there are {', '.join(_OPERATIONS)}"
            self._refuse((asker, number), errors.UNKNOWN_OPERATION, detail)
            return self._taken()
        if len(self._pending) >= PENDING_MAX:
            detail = f"{PENDING_MAX} requests wait for answers of the processes"
            self._refuse((asker, number), errors.CONTROL_RATE_EXCEEDED, detail)
            return self._taken()
        kind, handler = known
        try:
            handler(self, msgspec.convert(given, kind), (asker, number), now)
        except msgspec.ValidationError as error:
            self._refuse((asker, number), errors.INVALID_ARGUMENT, f"{operation}: {error}")
        except errors.AngariumError as error:
            self._refuse((asker, number), error.code, error.detail)
        return self._taken()

    def _status(self, _request: arguments.NoArguments, asker: Asker, now: float) -> None:
        gathering = self._gather(asker, now)
        router = self._ask(ROUTER, "stats", None, gathering)
        gathering.finish = lambda answers: report.status(
            self._node, self._usage, answers.get(router), self._sampler.rates
        )
        self._end_if_complete(gathering)

    def _workers(self, _request: arguments.NoArguments, asker: Asker, now: float) -> None:
        gathering = self._gather(asker, now)
        rows = [row for row in report.processes(self._node, self._usage) if row["role"] == "worker"]
        numbers = [self._ask(("worker", row["index"]), "stats", None, gathering) for row in rows]
        gathering.finish = lambda answers: [
            {**(answers.get(number) or {}), **row} for number, row in zip(numbers, rows, strict=True)
        ]
        self._end_if_complete(gathering)

    def _stats(self, request: arguments.StatsArguments, asker: Asker, now: float) -> None:
        gathering = self._gather(asker, now)
        asked = {
            self._ask(place, "stats", None, gathering): place
            for place in sorted(self._peers)
            if request.role in (None, place[0])
        }
        own = self._own_stats()

        def finish(answers: dict[int, Any]) -> dict[str, Any]:
            router = [answers.get(number) for number, place in asked.items() if place == ROUTER]
            workers = [answers.get(number) for number, place in asked.items() if place[0] == "worker"]
            return {"router": router[0] if router else None, "workers": workers, "controller": own}

        gathering.finish = finish
        self._end_if_complete(gathering)

    def _list_objects(self, request: arguments.ListArguments, asker: Asker, _now: float) -> None:
        self._reply(asker, self._catalog.find(request.kind, request.vpn, request.name))

    def _show_object(self, request: arguments.ObjectArguments, asker: Asker, _now: float) -> None:
        self._reply(asker, self._catalog.show(request.kind, request.vpn or "", request.name))

    def _create_object(self, request: arguments.ChangeArguments, asker: Asker, _now: float) -> None:
        where = (request.kind, request.vpn or "", request.name)
        changes = self._catalog.create(*where, request.attributes)
        self._change(changes, asker, "created", lambda: self._catalog.show(*where))

    def _update_object(self, request: arguments.ChangeArguments, asker: Asker, _now: float) -> None:
        where = (request.kind, request.vpn or "", request.name)
        changes = self._catalog.update(*where, request.attributes)
        self._change(changes, asker, "updated", lambda: self._catalog.show(*where))

    def _delete_object(self, request: arguments.ObjectArguments, asker: Asker, _now: float) -> None:
        changes = self._catalog.delete(request.kind, request.vpn or "", request.name)
        self._change(changes, asker, "deleted", lambda: None)

    def _list_clients(self, request: arguments.VpnArguments, asker: Asker, now: float) -> None:
        self._forward("clients", {"vpn": request.vpn}, asker, now)

    def _show_client(self, request: arguments.ClientArguments, asker: Asker, now: float) -> None:
        self._forward("client", {"name": request.name, "vpn": request.vpn}, asker, now)

    def _disconnect_client(self, request: arguments.ClientArguments, asker: Asker, now: float) -> None:
        self._forward("disconnect", {"name": request.name, "vpn": request.vpn}, asker, now)

    def _list_subscriptions(self, request: arguments.SubscriptionArguments, asker: Asker, now: float) -> None:
        self._forward("subscriptions", {"client": request.client, "vpn": request.vpn}, asker, now)

    def _find_events(self, request: arguments.EventArguments, asker: Asker, _now: float) -> None:
        self._reply(asker, self._events.find(request.since, request.limit))

    def _show_config(self, _request: arguments.NoArguments, asker: Asker, _now: float) -> None:
        self._reply(asker, self._shown_config)

    def _export_config(self, _request: arguments.NoArguments, asker: Asker, _now: float) -> None:
        self._reply(asker, self._catalog.export())

    def _apply_config(self, request: arguments.ApplyArguments, asker: Asker, _now: float) -> None:
        applied = self._catalog.apply([list(entry) for entry in request.objects])
        self._change([] if request.dry_run else applied.changes, asker, "applied", lambda: applied.report)

    def _set_log_level(self, request: arguments.LogLevelArguments, asker: Asker, now: float) -> None:
        chosen = [
            place
            for place in sorted(self._peers)
            if request.role in (None, place[0]) and request.index in (None, place[1])
        ]
        gathering = self._gather(asker, now)
        asked = {self._ask(place, "log_level", request.level, gathering): place for place in chosen}
        own = []
        if request.role in (None, "controller"):
            self._effects.append(SetLogLevel(request.level))
            own = ["controller.0"]
        gathering.finish = lambda answers: (
            own + [f"{role}.{index}" for number, (role, index) in asked.items() if number in answers]
        )
        self._end_if_complete(gathering)

    def _stop_node(self, _request: arguments.NoArguments, asker: Asker, _now: float) -> None:
        self._reply(asker, None)
        self._effects.append(StopNode())

    def _scale(self, request: arguments.ScaleArguments, asker: Asker, _now: float) -> None:
        self._effects.append(ScaleNode(request.workers))
        self._reply(asker, {"workers": request.workers})

    # -- changes ---------------------------------------------------------------------------------------------

    def committed(self, number: int, now: float) -> list[Effect]:
        """The changes are durable: take them over, tell the router, and answer when it knows."""
        change = self._uncommitted.pop(number)
        self._catalog.take(change.changes)
        answer = change.answer()
        gathering = Gathering(now + CONFIRM_TIMEOUT_S, lambda _: answer, change.asker)
        if len(change.changes) > SINGLE_CHANGES_MAX:
            self._ask(ROUTER, "config_snapshot", self._catalog.snapshot(), gathering)
        for kind, vpn, name, attributes in change.changes:
            operation, content = "config_set", [kind, vpn, name, attributes]
            if attributes is None:
                operation, content = "config_delete", [kind, vpn, name]
            if len(change.changes) <= SINGLE_CHANGES_MAX:
                self._ask(ROUTER, operation, content, gathering)
            title = f"{kind} {name!r}" + (f" in Message VPN {vpn!r}" if vpn else "")
            self._record(_event("info", "SYSTEM_CONFIG_CHANGE", f"{title} was {change.verb}"))
        self._end_if_complete(gathering)
        return self._taken()

    def not_committed(self, number: int, code: int, detail: str) -> list[Effect]:
        """The changes of a `Commit` were refused by the store and nothing changed."""
        change = self._uncommitted.pop(number)
        self._refuse(change.asker, code, detail)
        return self._taken()

    def _change(self, changes: list[Change], asker: Asker, verb: str, answer: Callable[[], Any]) -> None:
        if not changes:
            self._reply(asker, answer())
            return
        number = self._number()
        self._uncommitted[number] = Uncommitted(changes, asker, verb, answer)
        self._effects.append(Commit(number, changes))

    def _push_everything(self, now: float) -> None:
        """Give the router all objects; if it does not take them, its next hello counts as its first."""
        gathering = Gathering(now + CONFIRM_TIMEOUT_S, lambda _: None, None)
        number = self._ask(ROUTER, "config_snapshot", self._catalog.snapshot(), gathering)

        def finish(answers: dict[int, Any]) -> None:
            if number not in answers:
                self._peers.pop(ROUTER, None)

        gathering.finish = finish
        self._end_if_complete(gathering)

    # -- asking processes ------------------------------------------------------------------------------------

    def _gather(self, asker: Asker, now: float) -> Gathering:
        return Gathering(now + GATHER_TIMEOUT_S, lambda _: None, asker)

    def _ask(self, place: Place, operation: str, content: Any, gathering: Gathering) -> int:
        """Ask a process, if it is there and lives; gives the number under which its answer will stand."""
        number = self._number()
        peer = self._peers.get(place)
        if peer is None or not self._lives(place, peer):
            return number
        gathering.waiting[number] = place
        self._pending[number] = gathering
        self._effects.append(Request(peer.identity, number, operation, content))
        return number

    def _forward(self, operation: str, content: dict[str, Any], asker: Asker, now: float) -> None:
        """Have the router answer, or refuse, an operation."""
        gathering = self._gather(asker, now)
        number = self._ask(ROUTER, operation, content, gathering)

        def finish(answers: dict[int, Any]) -> Any:
            if number not in answers:
                detail = "the router did not answer; 'angarium status' shows its state"
                raise errors.error_for(errors.TIMEOUT, detail)
            return answers[number]

        gathering.finish = finish
        self._end_if_complete(gathering)

    def _lives(self, place: Place, peer: Peer) -> bool:
        """Tell whether this very process runs and is not hung, as far as the supervisor told."""
        for row in self._node.get("processes", ()):
            if (row["role"], row["index"]) == place and row["incarnation"] >= peer.incarnation:
                same: bool = row["incarnation"] == peer.incarnation
                return same and row["pid"] != 0 and row["state"] != "hung"
        return True

    def _settle(self, number: int) -> Gathering | None:
        gathering = self._pending.pop(number, None)
        if gathering is not None:
            del gathering.waiting[number]
        return gathering

    def _end_if_complete(self, gathering: Gathering) -> None:
        if gathering.waiting:
            return
        try:
            if gathering.refusals:
                raise errors.error_for(*gathering.refusals[0])
            answer = gathering.finish(gathering.answers)
        except errors.AngariumError as error:
            if gathering.asker is None:
                text = f"a request of the controller was refused: {error}"
                self._record(_event("error", "SYSTEM_CONTROLLER_REQUEST_REFUSED", text))
            else:
                self._refuse(gathering.asker, error.code, error.detail)
            return
        if gathering.asker is not None:
            self._reply(gathering.asker, answer)

    def _sample(self, now: float) -> None:
        gathering = Gathering(now + GATHER_TIMEOUT_S, lambda _: None, None)
        number = self._ask(ROUTER, "stats", None, gathering)
        incarnation = self._peers[ROUTER].incarnation if ROUTER in self._peers else 0

        def finish(answers: dict[int, Any]) -> None:
            if number in answers:
                self._sampler.sample(now, incarnation, answers[number])
            else:
                self._sampler.forget()

        gathering.finish = finish
        self._end_if_complete(gathering)

    def _own_stats(self) -> dict[str, Any]:
        return {
            "objects": len(self._catalog),
            "pending": len(self._pending),
            "peers": [f"{role}.{index}" for role, index in sorted(self._peers)],
        }

    # -- parts -----------------------------------------------------------------------------------------------

    def _number(self) -> int:
        number = self._next_number
        self._next_number += 1
        return number

    def _record(self, event: Event) -> None:
        self._effects.append(Record(self._events.add({"time": self._wall_time(), **event})))

    def _reply(self, asker: Asker, value: Any) -> None:
        self._effects.append(Reply(*asker, ok=True, value=value))

    def _refuse(self, asker: Asker, code: int, detail: str) -> None:
        self._effects.append(Reply(*asker, ok=False, value=[code, detail]))

    def _taken(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def validate(self) -> None:
        """Assert what the attribute comments say."""
        self._catalog.validate()
        for number, gathering in self._pending.items():
            assert number in gathering.waiting, f"request {number} is settled and pending"
        assert len(self._pending) <= PENDING_MAX, "too many requests wait"
        assert not self._effects, "effects were not taken"


def _event(severity: str, name: str, text: str) -> Event:
    return {"severity": severity, "scope": "SYSTEM", "event": name, "text": text}


_OPERATIONS: Final[dict[str, tuple[type[msgspec.Struct], Callable[..., None]]]] = {
    "status": (arguments.NoArguments, Controller._status),
    "workers": (arguments.NoArguments, Controller._workers),
    "stats": (arguments.StatsArguments, Controller._stats),
    "objects.list": (arguments.ListArguments, Controller._list_objects),
    "objects.show": (arguments.ObjectArguments, Controller._show_object),
    "objects.create": (arguments.ChangeArguments, Controller._create_object),
    "objects.update": (arguments.ChangeArguments, Controller._update_object),
    "objects.delete": (arguments.ObjectArguments, Controller._delete_object),
    "clients.list": (arguments.VpnArguments, Controller._list_clients),
    "clients.show": (arguments.ClientArguments, Controller._show_client),
    "clients.disconnect": (arguments.ClientArguments, Controller._disconnect_client),
    "subscriptions.list": (arguments.SubscriptionArguments, Controller._list_subscriptions),
    "events": (arguments.EventArguments, Controller._find_events),
    "config.show": (arguments.NoArguments, Controller._show_config),
    "config.export": (arguments.NoArguments, Controller._export_config),
    "config.apply": (arguments.ApplyArguments, Controller._apply_config),
    "log_level": (arguments.LogLevelArguments, Controller._set_log_level),
    "workers.scale": (arguments.ScaleArguments, Controller._scale),
    "down": (arguments.NoArguments, Controller._stop_node),
}
