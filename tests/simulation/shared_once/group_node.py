"""A node as a model of what it promises to a group: a router, a home with notes, and one with a lane that is real.

A home answers what it was told with its next write. The router sends again what a home has not answered when it is
back. What has reached a home outlives the router.
"""

from __future__ import annotations

import copy
from collections import deque
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from angarium import errors
from angarium.client.protocol.events import Arrived
from angarium.client.protocol.flow_window import spool_size
from angarium.client.protocol.messages import GuaranteedDelivery
from angarium_server.frames.homes import KeepNote, ListHolders
from router.guaranteed.holders import Holders
from tests.unit.node.lane_driver import ACCEPTED, Driver

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from angarium.client.protocol.flow_window import FlowWindow
    from node.endpoints.holdings import HoldingRow
    from node.matching.batch import Row
    from tests.simulation.exactly_once.simulated_gateway import SimulatedAttached

QUEUE = "#mqtt/$share/g/in/#"
#: The home of notes, and that of the queue.
NOTES, GROUP = 0, 1


class Session(NamedTuple):
    """A session that is kept; its number is that of its queue."""

    id: int
    name: str
    filters: dict[str, Any]


class Queue:
    """What the router knows of a queue."""

    durable, is_gone = True, False

    def __init__(self, number: int, name: str) -> None:
        self.id = number
        self.name = name
        self.lanes = [None]


class HeldDriver(Driver):
    """The lane, and what is durable of what is held."""

    def __init__(self) -> None:
        self.rows: list[HoldingRow] = []
        super().__init__(name=QUEUE, access_type="non-exclusive")

    def store(self) -> None:
        super().store()
        self.rows = self.lane.holdings.rows()

    def load(self) -> None:
        self.lane.holdings.load(self.rows)
        super().load()


class Home:
    """What both homes do."""

    def __init__(self) -> None:
        #: What is told when what has come is on disk.
        self.pending: list[Callable[[], None]] = []
        #: By number of the session, as it will be with the next write, and on disk.
        self.notes: dict[int, bytes] = {}
        self.disk: dict[int, bytes] = {}
        self.driver = HeldDriver()

    def write(self) -> list[Callable[[], None]]:
        self.disk = copy.copy(self.notes)
        self.driver.store()
        told, self.pending = self.pending, []
        return told

    def die(self) -> None:
        self.pending.clear()
        self.notes = copy.copy(self.disk)
        self.driver.restart(clean=False)


class Waiting(NamedTuple):
    """What a home was told, and was not answered; `act` gives the answer, `then` takes it."""

    act: Callable[[Home], Any]
    then: Callable[[Any], None]


class GroupNode:
    """The homes and the router."""

    def __init__(self) -> None:
        self.homes = [Home(), Home()]
        self.incarnation = 0
        self.sessions: dict[str, Session] = {}
        self._next_id = 1
        self._next_flow = 1
        self.begin()

    # -- the router ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Be a new router, which knows what the controller has."""
        self.incarnation += 1
        self.attached: dict[str, SimulatedAttached] = {}
        #: Who came last with a name, though he may be gone.
        self.newest: dict[str, SimulatedAttached] = {}
        self.to_homes: list[deque[Callable[[Home], None]]] = [deque(), deque()]
        self.unanswered: list[list[Waiting]] = [[], []]
        self.from_homes: list[deque[Callable[[], None]]] = [deque(), deque()]
        #: Flow -> its client and window, those at the group's queue only.
        self.flows: dict[int, tuple[SimulatedAttached, FlowWindow]] = {}
        self.share: Any = Queue(0, QUEUE)
        self.by_id = {one.id: _queue_of(one) for one in self.sessions.values()}
        endpoints: Any = SimpleNamespace(by_id=self.by_id, find=self._find)
        self.holders = Holders(endpoints, self._ask_lane)

    def _find(self, _vpn: str, _kind: str, name: str) -> Any:
        session = self.sessions.get(name.removeprefix("#mqtt/"))
        return None if session is None else self.by_id[session.id]

    def _ask_lane(self, _share: Any, _lane: Any, verb: Any, done: Any, _now: float) -> None:
        if isinstance(verb, KeepNote):
            keep = partial(_keep, verb.holder, verb.note, verb.held, verb.done)
            self._ask_home(GROUP, keep, lambda value: done(value, None, 0.0))
        else:
            assert isinstance(verb, ListHolders)
            ask = lambda home: home.driver.lane.holdings.holders()  # noqa: E731 - it is one of several
            self._ask_home(GROUP, ask, lambda value: done(value, None, 0.0))

    def _tell_home(self, home: int, what: Callable[[Home], None]) -> None:
        self.to_homes[home].append(what)

    def _ask_home(self, home: int, act: Callable[[Home], Any], then: Callable[[Any], None]) -> None:
        waiting = Waiting(act, then)
        self.unanswered[home].append(waiting)
        self._tell_home(home, partial(self._carry_out, home, waiting, self.incarnation))

    def _carry_out(self, number: int, waiting: Waiting, incarnation: int, home: Home) -> None:
        value = waiting.act(home)
        home.pending.append(partial(self._answered, number, waiting, incarnation, value))

    def _answered(self, home: int, waiting: Waiting, incarnation: int, value: Any) -> None:
        if incarnation == self.incarnation and waiting in self.unanswered[home]:
            self.unanswered[home].remove(waiting)
            waiting.then(value)

    def attach(self, attached: SimulatedAttached) -> None:
        if attached.name in self.attached:
            self.end(self.attached[attached.name], errors.TAKEN_OVER)
        self.attached[attached.name] = self.newest[attached.name] = attached
        attached.is_known = True
        attached.tell(attached.welcomed)

    def attach_again(self, attached: SimulatedAttached) -> None:
        """Let somebody in whom the router before had let in; this one knows only who has come to it."""
        if not attached.is_open:
            return
        if self.newest.get(attached.name) not in (None, attached):
            attached.tell(lambda: attached.ended(errors.TAKEN_OVER))
        else:
            self.attach(attached)

    def end(self, attached: SimulatedAttached, code: int) -> None:
        if self.attached.get(attached.name) is attached:
            del self.attached[attached.name]
            for flow in [flow for flow, (one, _) in self.flows.items() if one is attached]:
                self._unbind(flow)
        attached.is_known = False
        if code:
            attached.tell(lambda: attached.ended(code))

    def _unbind(self, flow: int) -> None:
        del self.flows[flow]
        self._tell_home(GROUP, lambda home: _ignore(home.driver.unbind(flow)))

    def request(self, attached: SimulatedAttached, operation: str, arguments: dict[str, Any]) -> None:
        if not attached.is_known:
            return
        if attached.name in self.sessions or operation == "session.open":
            getattr(self, "_" + operation.replace(".", "_"))(attached, arguments)
        else:  # it was over while the client waited for another router
            attached.tell(lambda: attached.answered(None, errors.UNKNOWN_ENDPOINT))

    def _answer(self, attached: SimulatedAttached, value: Any) -> None:
        if attached.is_known:
            attached.tell(lambda: attached.answered(value))

    def expire(self, name: str) -> bool:
        """End the session of a client that is away; false if it is not."""
        is_away = name in self.sessions and name not in self.attached
        if is_away:
            self._end_session(name)
        return is_away

    def _end_session(self, name: str) -> None:
        session = self.sessions.pop(name)
        self.holders.endpoint_gone(self.by_id.pop(session.id))

    def _session_open(self, attached: SimulatedAttached, arguments: dict[str, Any]) -> None:
        name = attached.name
        if arguments["clean"] and name in self.sessions:
            self._end_session(name)
        present = name in self.sessions
        if not present:
            session = self.sessions[name] = Session(self._next_id, name, {})
            self.by_id[session.id] = _queue_of(session)
            self._next_id += 1
        filters = dict(self.sessions[name].filters)
        value = {"name": f"#mqtt/{name}", "present": present, "temporary": False, "filters": filters}
        self._answer(attached, value)

    def _session_change(self, attached: SimulatedAttached, arguments: dict[str, Any]) -> None:
        filters = self.sessions[attached.name].filters
        filters.update(arguments["put"])
        for text in arguments["drop"]:
            filters.pop(text, None)
        self._answer(attached, [None] * len(arguments["put"]))

    def _session_share(self, attached: SimulatedAttached, _arguments: dict[str, Any]) -> None:
        client: Any = SimpleNamespace(
            carrier=True, client_name=attached.name, vpn=SimpleNamespace(name="default")
        )
        self.holders.joined(client, self.share, 0.0)
        self._answer(attached, {"name": QUEUE})

    def _session_note(self, attached: SimulatedAttached, arguments: dict[str, Any]) -> None:
        number = self.sessions[attached.name].id
        answer = partial(self._answer, attached)
        if arguments.get("share"):
            self._ask_home(GROUP, lambda home: home.driver.lane.holdings.read(str(number)), answer)
        else:
            self._ask_home(NOTES, lambda home: home.notes.get(number, b""), answer)

    def _session_keep(self, attached: SimulatedAttached, wish: dict[str, Any]) -> None:
        number = self.sessions[attached.name].id
        answer = partial(self._answer, attached)
        if wish.get("share"):
            keep = partial(_keep, str(number), wish["note"], wish["held"], wish["done"])
            self._ask_home(GROUP, keep, answer)
        else:
            self._ask_home(NOTES, lambda home: home.notes.update({number: wish["note"]}), answer)

    def _flow_bind(self, attached: SimulatedAttached, arguments: dict[str, Any]) -> None:
        if arguments["name"] == QUEUE:
            flow, self._next_flow = self._next_flow, self._next_flow + 1
            self.flows[flow] = attached, arguments["window"]
            holder = str(self.sessions[attached.name].id)
            bind = lambda home: _ignore(home.driver.bind(flow, messages=0, bytes_=0, holder=holder))  # noqa: E731
            self._tell_home(GROUP, bind)
        self._answer(attached, {})

    def _flow_unbind(self, attached: SimulatedAttached, arguments: dict[str, Any]) -> None:
        for flow in [flow for flow, (_, one) in self.flows.items() if one is arguments["window"]]:
            self._unbind(flow)
        self._answer(attached, None)

    def settle(self, attached: SimulatedAttached, window: FlowWindow, position: int) -> None:
        flows = [flow for flow, (_, one) in self.flows.items() if one is window]
        for flow in flows if attached.is_known else ():
            settle = lambda home, flow=flow: _ignore(home.driver.settle(flow, ACCEPTED, (position, position)))  # noqa: E731
            self._tell_home(GROUP, settle)

    # -- steps -----------------------------------------------------------------------------------------------

    def deliver(self) -> None:
        """Have the lane hand something out."""
        driver = self.homes[GROUP].driver
        for flow, (_, window) in self.flows.items():
            if window.flow:
                driver.lane.credit(flow, window.granted_messages, window.granted_bytes)
        for handout in driver.handouts(limit=1):
            positions = [handout.segment.first + i for i in handout.indices]
            rows = [msgspec.structs.astuple(driver.read_row(handout.segment, i)) for i in handout.indices]
            self._give(handout.flow, positions, rows, handout.counts)

    def _give(self, flow: int, positions: list[int], rows: list[Any], counts: list[int] | None) -> None:
        if flow not in self.flows:
            return
        attached, window = self.flows[flow]
        size = spool_size(rows)
        window.receive(len(rows), size)
        runs = [(position, 1) for position in positions]
        delivery = GuaranteedDelivery(window, 0, rows, runs, counts, 0, None, size)
        attached.tell(lambda: attached.spooled(Arrived(window, [delivery])))

    def kill_home(self, home: int) -> None:
        """What is not on its disk is lost there; the router tells it again, and its flows are over for a while."""
        self.homes[home].die()
        self.to_homes[home].clear()
        self.from_homes[home].clear()
        for waiting in self.unanswered[home]:
            self._tell_home(home, partial(self._carry_out, home, waiting, self.incarnation))
        if home == GROUP:
            flows, self.flows = self.flows, {}
            for attached, window in flows.values():
                attached.tell(partial(attached.flow_closed, window))

    def kill_router(self) -> None:
        """What has reached the homes stays there; their flows end."""
        for attached in self.attached.values():
            attached.is_known = False
        self.homes[GROUP].driver.lane.end_flows(0.0, 0)
        for home in self.homes:
            home.pending.clear()
        self.begin()

    def put(self, row: Row) -> None:
        """Have a message for the group that somebody has published."""
        self.homes[GROUP].driver.put(row)

    def home_takes(self, home: int) -> None:
        if self.to_homes[home]:
            self.to_homes[home].popleft()(self.homes[home])

    def home_writes(self, home: int) -> None:
        self.from_homes[home].extend(self.homes[home].write())

    def home_answers(self, home: int) -> None:
        if self.from_homes[home]:
            self.from_homes[home].popleft()()

    def flush(self) -> None:
        """Carry everything to the homes and back."""
        self.holders.tick(0.0)
        for home in (NOTES, GROUP):
            while self.to_homes[home]:
                self.home_takes(home)
            self.home_writes(home)
            while self.from_homes[home]:
                self.home_answers(home)


def _queue_of(session: Session) -> Any:
    return Queue(session.id, f"#mqtt/{session.name}")


def _keep(holder: str, note: bytes, held: Sequence[int], done: Sequence[int], home: Home) -> list[int]:
    lane = home.driver.lane
    for position in done:
        lane.finish(position)
    return lane.holdings.keep(holder, note, held, home.driver.wall_ms)


def _ignore(_events: Any) -> None:
    """Nobody is told."""
