"""A node as a model of what it promises: two homes with disks, a router, and what dies with each.

A home does what it was told with its next write, as a whole, and answers then. The router sends again what a home has
not answered when it is back; what has reached a home outlives the router. A producer's message is stored by each of two
queues, which are at different homes, so that one may have it while the other has not.
"""

from __future__ import annotations

import copy
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from angarium import errors, wire
from angarium.client.protocol.events import Arrived, Indicated
from angarium.client.protocol.flow_window import spool_size
from angarium.client.protocol.messages import GuaranteedDelivery
from angarium.errors import error_for
from gateway.session import Acknowledged

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from angarium.client.protocol.flow_window import FlowWindow
    from angarium.message import Row
    from tests.simulation.exactly_once.simulated_gateway import Carrier, SimulatedAttached

REFUSAL = errors.SPOOL_OVER_QUOTA


class Store(NamedTuple):
    """Rows of a producer for one home."""

    incarnation: int
    number: int
    producer: str
    rows: list[tuple[int, bytes]]
    refused: list[int]


class Keep(NamedTuple):
    note: bytes
    done: list[int]


class Settle(NamedTuple):
    positions: list[int]


class Ask(NamedTuple):
    """A question that is answered when everything before it is on disk."""


class Put(NamedTuple):
    """A message for the queue of the session."""

    row: Row


Order = Store | Keep | Settle | Ask | Put


class Disk:
    """What is on the disk of a home."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.last: dict[str, int] = {}
        self.refused: dict[str, set[int]] = {}
        #: Router -> the number of its last STORE.
        self.numbers: dict[int, int] = {}
        self.note = b""
        self.queue: dict[int, Row] = {}
        self.tries: dict[int, int] = {}
        self.next_position = 1

    def carry_out(self, order: Order) -> None:
        if isinstance(order, Store):
            self._store(order)
        elif isinstance(order, Keep):
            self.note = order.note
            for position in order.done:
                self.queue.pop(position, None)
        elif isinstance(order, Settle):
            for position in order.positions:
                self.queue.pop(position, None)
        elif isinstance(order, Put):
            self.queue[self.next_position] = order.row
            self.next_position += 1

    def _store(self, order: Store) -> None:
        if order.number <= self.numbers.get(order.incarnation, 0):
            return
        self.numbers[order.incarnation] = order.number
        self.stored += [payload for _, payload in order.rows]
        highest = max((sequence for sequence, _ in order.rows), default=0)
        self.last[order.producer] = max(self.last.get(order.producer, 0), highest)
        self.refused.setdefault(order.producer, set()).update(order.refused)


class Home:
    """A home: orders wait for its next write."""

    def __init__(self) -> None:
        self.disk = Disk()
        #: What has come and is not on disk, and what is told then.
        self.pending: list[tuple[Order, Callable[[], None] | None]] = []

    def write(self) -> list[Callable[[], None]]:
        """Write what has come; gives what is told to the router."""
        disk = copy.deepcopy(self.disk)
        for order, _ in self.pending:
            disk.carry_out(order)
        self.disk = disk
        told = [then for _, then in self.pending if then is not None]
        self.pending.clear()
        return told


class _Waiting(NamedTuple):
    """What a home was told, and was not answered."""

    order: Order
    then: Callable[[], None]


class _Producer:
    """A producer that is open: of a session, or of a gateway process."""

    def __init__(self, name: str, session: SimulatedAttached | Carrier, *, may_refuse: bool) -> None:
        self.name = name
        self.may_refuse = may_refuse
        self.session = session
        self.is_over = False
        #: By home: the last sequence that it has or will have.
        self.lasts = [0, 0]
        self.refused: set[int] = set()
        #: Rounds that were judged and not told, in order: the last sequence, refusals, homes without it.
        self.unsettled: deque[list[Any]] = deque()


class ModelledNode:
    """The homes and the router."""

    def __init__(self, random: random.Random) -> None:
        self.random = random
        self.homes = [Home(), Home()]
        self.incarnation = 0
        self.is_kept = False
        self.filters: dict[str, Any] = {}
        self.refuses = True
        self.refusal_rate = random.choice((0.05, 0.4))
        self.begin()

    # -- the router ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Be a new router, which knows nothing."""
        self.incarnation += 1
        self.session: SimulatedAttached | None = None
        #: The last one that was let in.
        self.newest: SimulatedAttached | None = None
        #: By home: what is on its way to it, and everything that it has not answered.
        self.to_homes: list[deque[tuple[Order, Callable[[], None] | None]]] = [deque(), deque()]
        self.unanswered: list[list[_Waiting]] = [[], []]
        self.from_homes: list[deque[Callable[[], None]]] = [deque(), deque()]
        self.numbers = [0, 0]
        self.producers: dict[str, _Producer] = {}
        self.window: FlowWindow | None = None
        self.given: set[int] = set()

    def _tell_home(self, home: int, order: Order, then: Callable[[], None] | None = None) -> None:
        if then is None:
            self.to_homes[home].append((order, None))
            return
        waiting = _Waiting(order, then)
        self.unanswered[home].append(waiting)
        self.to_homes[home].append((order, partial(self._answered, home, waiting, self.incarnation)))

    def _answered(self, home: int, waiting: _Waiting, incarnation: int) -> None:
        if incarnation == self.incarnation and waiting in self.unanswered[home]:
            self.unanswered[home].remove(waiting)
            waiting.then()

    def attach(self, attached: SimulatedAttached) -> None:
        if self.session is not None:
            self.end(self.session, errors.TAKEN_OVER)
        self.session = self.newest = attached
        attached.is_known = True
        attached.tell(attached.welcomed)

    def attach_again(self, attached: SimulatedAttached) -> None:
        """Let somebody in whom the router before had let in; this one knows only who has come to it."""
        if not attached.is_open:
            return
        if self.newest not in (None, attached):
            attached.tell(lambda: attached.ended(errors.TAKEN_OVER))
        else:
            self.attach(attached)

    def end(self, attached: SimulatedAttached, code: int) -> None:
        """End a session, which is told why if that has a code."""
        if self.session is attached:
            self.session = None
            self._unbind()
        attached.is_known = False
        if code:
            attached.tell(lambda: attached.ended(code))

    def request(self, attached: SimulatedAttached, operation: str, arguments: dict[str, Any]) -> None:
        if not attached.is_known:
            return
        handler = getattr(self, "_" + operation.replace(".", "_"))
        handler(attached, arguments)

    def _answer(self, attached: SimulatedAttached, value: Any) -> None:
        if attached.is_known:
            attached.tell(lambda: attached.answered(value))

    def _session_open(self, attached: SimulatedAttached, arguments: dict[str, Any]) -> None:
        present, self.is_kept = self.is_kept, True
        assert not arguments["clean"]
        value = {"name": "#mqtt/c", "present": present, "temporary": False, "filters": dict(self.filters)}
        self._answer(attached, value)

    def _session_change(self, attached: SimulatedAttached, arguments: dict[str, Any]) -> None:
        self.filters.update(arguments["put"])
        self._answer(attached, [None] * len(arguments["put"]))

    def _session_note(self, attached: SimulatedAttached, _arguments: dict[str, Any]) -> None:
        self._tell_home(0, Ask(), lambda: self._answer(attached, self.homes[0].disk.note))

    def _session_keep(self, attached: SimulatedAttached, arguments: dict[str, Any]) -> None:
        self._tell_home(0, Keep(arguments["note"], arguments["done"]), lambda: self._answer(attached, None))

    def _producer_open(self, attached: SimulatedAttached, arguments: dict[str, Any]) -> None:
        name = arguments["name"]

        def opened(last: int) -> None:
            self._answer(attached, {"producer": 1, "name": name, "last_sequence": last, "window": 255})

        self._open(_Producer(name, attached, may_refuse=True), opened)

    def open_producer(self, carrier: Carrier) -> None:
        """Open that of a gateway process, in the place of the process before it."""

        def opened(last: int) -> None:
            if carrier.is_known:
                carrier.tell(lambda: carrier.opened(last))

        self._open(_Producer(carrier.name, carrier, may_refuse=False), opened)

    def _open(self, producer: _Producer, opened: Callable[[int], None]) -> None:
        if producer.name in self.producers:
            self.producers[producer.name].is_over = True
        self.producers[producer.name] = producer
        missing = [0, 1]

        def gathered(home: int) -> None:
            missing.remove(home)
            disk = self.homes[home].disk
            producer.lasts[home] = disk.last.get(producer.name, 0)
            producer.refused |= disk.refused.get(producer.name, set())
            if not missing:
                opened(max(*producer.lasts, *producer.refused, 0))

        for home in (0, 1):
            self._tell_home(home, Ask(), partial(gathered, home))

    def _flow_bind(self, attached: SimulatedAttached, arguments: dict[str, Any]) -> None:
        self.window = arguments["window"]
        self.given = set()
        self._answer(attached, {})

    def _unbind(self) -> None:
        self.window = None
        self.given = set()

    def settle(self, attached: SimulatedAttached, _window: FlowWindow, position: int) -> None:
        if attached.is_known:
            self._tell_home(0, Settle([position]))

    def publish(self, session: SimulatedAttached | Carrier, first: int, payloads: list[bytes]) -> None:
        """Take a round."""
        producer = next((one for one in self.producers.values() if one.session is session), None)
        if producer is None or producer.is_over or not session.is_known:
            return
        rows = list(enumerate(payloads, first))
        nacks = [sequence for sequence, _ in rows if self._is_refused(producer, sequence)]
        settled: list[Any] = [rows[-1][0], nacks, 0]
        producer.unsettled.append(settled)

        def stored() -> None:
            settled[2] -= 1
            self._acknowledge(producer)

        for home in (0, 1):
            lacking = [one for one in rows if one[0] > producer.lasts[home] and one[0] not in nacks]
            if lacking or nacks:
                settled[2] += 1
                self.numbers[home] += 1
                store = Store(self.incarnation, self.numbers[home], producer.name, lacking, nacks)
                self._tell_home(home, store, stored)
            producer.lasts[home] = max([producer.lasts[home], *[sequence for sequence, _ in lacking]])
        producer.refused.update(nacks)
        self._acknowledge(producer)

    def _is_refused(self, producer: _Producer, sequence: int) -> bool:
        if sequence in producer.refused:
            return True
        is_new = sequence > max(producer.lasts) and producer.may_refuse
        return is_new and self.refuses and self.random.random() < self.refusal_rate

    def _acknowledge(self, producer: _Producer) -> None:
        while producer.unsettled and not producer.unsettled[0][2]:
            upto, nacks, _ = producer.unsettled.popleft()
            event = Acknowledged(1, upto, [(sequence, REFUSAL, "") for sequence in nacks], 0, [])
            if producer.session.is_known and not producer.is_over:
                producer.session.tell(partial(producer.session.stored, event))

    # -- steps -----------------------------------------------------------------------------------------------

    def deliver(self) -> bool:
        """Give the consumer the next message that it does not have."""
        window, attached, disk = self.window, self.session, self.homes[0].disk
        if window is None or attached is None or not window.flow:
            return False
        settled = {one for order, _ in self.homes[0].pending for one in _gone(order)}
        settled |= {one for order, _ in self.to_homes[0] for one in _gone(order)}
        ready = [one for one in sorted(disk.queue) if one not in self.given and one not in settled]
        if not ready or window.granted_messages - window.received_messages < 1:
            return False
        position = ready[0]
        self.given.add(position)
        row, tries = disk.queue[position], disk.tries.get(position, 0)
        self.homes[0].disk.tries[position] = tries + 1
        size = spool_size((row,))
        window.receive(1, size)
        delivery = GuaranteedDelivery(window, 0, [row], [(position, 1)], [tries], 0, None, size)
        attached.tell(lambda: attached.spooled(Arrived(window, [delivery])))
        return True

    def kill_home(self, home: int) -> None:
        """What is not on its disk is lost there; the router tells it again."""
        self.homes[home].pending.clear()
        self.to_homes[home].clear()
        self.from_homes[home].clear()
        for waiting in self.unanswered[home]:
            again = partial(self._answered, home, waiting, self.incarnation)
            self.to_homes[home].append((waiting.order, again))
        window, attached = self.window, self.session
        if home == 0 and window is not None and attached is not None:
            self._unbind()
            attached.tell(lambda: attached.flow_closed(window))

    def kill_router(self) -> list[SimulatedAttached]:
        """What has reached the homes is written; gives whose sessions are over."""
        lost = [self.session] if self.session is not None else []
        for home in self.homes:
            home.write()
        for one in lost:
            one.is_known = False
        self.begin()
        return lost

    def put(self, row: Row) -> None:
        """Have a message for the client that somebody else has published."""
        self.homes[0].disk.carry_out(Put(row))

    def flush(self) -> None:
        """Carry everything to the homes and back."""
        for home in (0, 1):
            while self.to_homes[home]:
                self.homes[home].pending.append(self.to_homes[home].popleft())
            if self.homes[home].pending:
                self.from_homes[home].extend(self.homes[home].write())
            while self.from_homes[home]:
                self.from_homes[home].popleft()()


def _gone(order: Order) -> list[int]:
    if isinstance(order, Settle):
        return order.positions
    return order.done if isinstance(order, Keep) else []


def closed(window: FlowWindow) -> Indicated:
    """Say that a flow is over for a while."""
    window.flow = 0
    return Indicated(window, wire.FLOW_CLOSED, errors.HOME_NOT_READY, "", [])


def ending(code: int) -> errors.AngariumError:
    """Give the error with which a session ends."""
    return error_for(code)


def encoded(value: Any, decode: Callable[[bytes], Any]) -> Any:
    """Give a value as it comes over the wire."""
    return decode(msgspec.msgpack.encode(value))
