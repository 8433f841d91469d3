"""A node that a test speaks for: producers and flows of a client on real sessions, without a socket.

The test sees every frame that is sent (`sent`) and says every frame that comes (`hear`). Operations that a test
is not about are answered by `serve`. Everything is checked after every step.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from angarium import errors, wire
from angarium.client.consuming.flow import Flow
from angarium.client.consuming.flow_options import FlowOptions
from angarium.client.producers_and_flows import ProducersAndFlows
from angarium.client.protocol.events import Closed, Opened, Retired, TableChanged
from angarium.client.protocol.session import ClientSession, EgressWindow, Hello
from angarium.message import Row, pack_rows, unpack_rows
from tests.welcome import welcome

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from angarium.client.protocol.events import Welcome
    from angarium.client.publishing.producer import Producer

LIMIT_S = 20.0
WELCOME = welcome(
    token=b"t",
    rounds=64,
    bytes=1 << 22,
    keepalive_ms=3000,
    max_batch_bytes=1 << 24,
    inbox="#P2P/INB/x",
    guaranteed=True,
    producer_bytes=1 << 24,
)


class Frame(NamedTuple):
    """What was sent."""

    operation: bytes
    header: Any
    batches: list[bytes]


class Published(NamedTuple):
    """A guaranteed PUBLISH."""

    producer: int
    sequences: list[int]
    payloads: list[bytes]


class FakeConnection:
    """Has a session, or none, and counts how often it was asked to send."""

    def __init__(self) -> None:
        self.session: ClientSession | None = None
        self.transmits = 0

    def transmit(self) -> None:
        self.transmits += 1


class SpokenNode:
    """Producers and flows of a client, and the node that a test plays."""

    def __init__(self, **welcome: Any) -> None:
        self.connection = FakeConnection()
        self.events: list[tuple[str, int, str]] = []
        self.guaranteed = ProducersAndFlows(self.connection, self._emit, lambda: None)  # type: ignore[arg-type]
        self.welcome = {**WELCOME, **welcome}
        self.session: ClientSession
        self.opened: Welcome
        #: The error of each session that ended.
        self.closed: list[int] = []
        #: Operation -> what answers it: a value, an error code, or a function of the arguments.
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, dict[str, Any]]] = []
        #: Held here, because a flow that nobody holds is closed.
        self.flows: list[Flow] = []
        self._frames: list[Frame] = []
        self.connect()

    def _emit(self, kind: str, code: int, detail: str) -> None:
        self.events.append((kind, code, detail))

    # Connections.

    def connect(self) -> None:
        """Open a session."""
        self.session = ClientSession(Hello(), EgressWindow(100, 100_000), 0.0)
        self.hear(wire.WELCOME, self.welcome)

    def lose(self) -> None:
        """Lose the connection, with what was asked on it."""
        self._frames = [frame for frame in self._frames if frame.operation != wire.REQUEST]
        self._take(self.session.lose(errors.error_for(errors.NOT_CONNECTED)))

    # What the node says.

    def hear(self, operation: bytes, header: Any, *batches: bytes) -> None:
        """Let a frame come."""
        self._take(self.session.receive([operation, wire.pack(header), *batches], 0.0))

    def _take(self, events: list[Any]) -> None:
        for event in events:
            if isinstance(event, Opened):
                self.connection.session = self.session
                self.opened = event.welcome
                self.guaranteed.connected(event.welcome)
            elif isinstance(event, Closed):
                self.connection.session = None
                self.closed.append(0 if event.error is None else event.error.code)
                self.guaranteed.lost()
            elif isinstance(event, Retired):
                self.guaranteed.go_on()
            elif isinstance(event, TableChanged):
                self.opened = self.opened.with_table(event)
                self.guaranteed.set_table(self.opened)
            else:
                self.guaranteed.take(event)
        self.guaranteed.wake()
        self.guaranteed.validate()
        self.session.validate()

    def retire(self) -> None:
        """Retire all rounds."""
        self.hear(wire.RETIRED, [self.session.last_round])

    def acked(
        self,
        producer: int,
        upto: int,
        *nacks: tuple[int, int, str],
        code: int = 0,
        unroutable: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Acknowledge messages; unroutable are ranges of a first sequence and a number."""
        self.hear(wire.ACKED, [producer, upto, nacks, code, unroutable])

    def messages(
        self,
        flow: int,
        first: int,
        payloads: list[bytes],
        *,
        partition: int = 0,
        counts: list[int] | None = None,
    ) -> None:
        """Deliver messages at dense positions."""
        part = [partition, len(payloads), [[first, len(payloads)]], counts, 1_000, None]
        self.hear(wire.MESSAGES, [flow, [part]], pack_rows(rows(payloads)))

    # What the client says.

    def sent(self, operation: bytes | None = None) -> list[Frame]:
        """Give what was sent since the last call, of one operation or all."""
        self._read()
        frames, self._frames = self._frames, []
        return [frame for frame in frames if operation in (None, frame.operation)]

    def published(self) -> list[Published]:
        """Give the guaranteed rounds that were sent since the last call."""
        found = []
        for frame in self.sent(wire.PUBLISH):
            _, _, _, parts, producer, first = frame.header
            batches = [unpack_rows(batch) for batch in frame.batches]
            assert [count for _, count in parts] == [len(batch) for batch in batches]
            together = sorted(row for batch in batches for row in batch)
            assert all(row[2] & wire.FLAG_MODE for row in together)
            sequences = [first + row[0] for row in together]
            found.append(Published(producer, sequences, [row[5] for row in together]))
        return found

    def _read(self) -> None:
        outgoing = self.session.take_outgoing()
        while outgoing:
            operation, header, *batches = outgoing.popleft()
            self._frames.append(Frame(operation, wire.unpack(header), batches))

    def serve(self) -> None:
        """Answer the operations that were asked for and that `answers` knows."""
        self._read()
        for frame in [frame for frame in self._frames if frame.operation == wire.REQUEST]:
            number, operation, arguments = frame.header
            if operation in self.answers:
                self._frames.remove(frame)
                self.asked.append((operation, arguments))
                answer = self.answers[operation]
                self.answer(number, answer(arguments) if callable(answer) else answer)

    def answer(self, number: int, value: Any) -> None:
        """Answer a request with a value, or with an error if it is an Exception."""
        if isinstance(value, errors.AngariumError):
            self.hear(wire.ANSWER, [number, value.code, value.detail])
        else:
            self.hear(wire.ANSWER, [number, 0, value])

    async def steps(self, count: int = 6) -> None:
        """Let the loop run, and answer what is asked."""
        for _ in range(count):
            await asyncio.sleep(0)
            self.serve()
            self.guaranteed.validate()

    async def until(self, condition: Callable[[], Any]) -> None:
        """Let the loop run until something holds, with a bound."""
        deadline = asyncio.get_running_loop().time() + LIMIT_S
        while not condition():
            assert asyncio.get_running_loop().time() < deadline, "it never came true"
            self.serve()
            await asyncio.sleep(0.001)


def rows(payloads: list[bytes], topic: str = "t") -> list[Row]:
    """Give persistent rows."""
    return [(i, topic, wire.MODE_PERSISTENT, None, None, payload) for i, payload in enumerate(payloads)]


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine with a bound."""
    asyncio.run(asyncio.wait_for(test, LIMIT_S * 2))


def opened(producer: int, name: str = "p", last_sequence: int = 0, window: int = 255) -> dict[str, Any]:
    """Give the answer to producer.open."""
    return {"producer": producer, "name": name, "last_sequence": last_sequence, "window": window}


def bound(flow: int, name: str = "q", **more: Any) -> dict[str, Any]:
    """Give the answer to flow.bind."""
    answer = {"flow": flow, "name": name, "endpoint_id": 7, "active": True, "partitions": []}
    return {**answer, "access_type": "exclusive", **more}


async def open_producer(
    node: SpokenNode, name: str = "p", window: int = 255, on_ack: Any = None, **answer: Any
) -> Producer:
    """Open a producer; the node answers with number 1, then 2, ..."""
    numbers = itertools.count(1)
    last = answer.pop("last_sequence", 0)
    node.answers["producer.open"] = lambda arguments: opened(
        next(numbers),
        arguments["name"] or "made-up",
        last,
        min(arguments["window"], answer.get("window", 255)),
    )
    task = asyncio.ensure_future(node.guaranteed.producer(name, window, on_ack, 5.0))
    await node.until(task.done)
    node.sent()
    return task.result()


async def open_flow(
    node: SpokenNode, name: str = "q", answer: dict[str, Any] | None = None, **options: Any
) -> Flow:
    """Bind a flow; the node answers with number 1, then 2, ... unless it has another answer."""
    numbers = itertools.count(1)
    if answer is not None:
        node.answers["flow.bind"] = answer
    elif "flow.bind" not in node.answers:
        node.answers["flow.bind"] = lambda arguments: bound(next(numbers), arguments["name"])
    flow = node.guaranteed.bind(FlowOptions(name=name, timeout_s=5.0, **options))
    task = asyncio.ensure_future(flow)
    await node.until(task.done)
    node.serve()
    node.sent()
    node.flows.append(Flow(task.result()))
    return node.flows[-1]
