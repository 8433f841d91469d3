"""A raw client that speaks of guaranteed messages: requests, rounds of producers, flows, and what comes back.

Like `RawClient` it keeps no rule: it sends what it is told to, and gives what came. Frames of other
operations that come while one is waited for are kept for later, and PINGs are answered.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from angarium import wire
from tests.integration.raw_client import RECEIVE_S, Frame, RawClient, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: More credit than any test uses.
PLENTY = (1 << 40, 1 << 50)
#: Rows of guaranteed messages say so.
PERSISTENT = wire.MODE_PERSISTENT


class Acked(NamedTuple):
    """ACKED: everything up to a sequence is settled, all but the refused are stored."""

    producer: int
    upto: int
    nacks: list[list[Any]]
    code: int
    #: The first sequence and the number of messages that no endpoint took.
    unroutable: list[list[int]]

    @property
    def codes(self) -> dict[int, int]:
        """Give sequence -> code of what was refused."""
        return {sequence: code for sequence, code, _ in self.nacks}


class Got(NamedTuple):
    """One message that came on a flow."""

    flow: int
    partition: int
    position: int
    tries: int
    topic: str
    payload: bytes
    origin: Any


class RawGuaranteed(RawClient):
    """A DEALER socket that asks, publishes and consumes by hand."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Connect, and say nothing."""
        super().__init__(*arguments, **options)
        #: Frames that came while another one was waited for.
        self.kept: list[Frame] = []
        #: The number of the last request.
        self.asked = 0

    # -- frames ----------------------------------------------------------------------------------------------

    def next(
        self, operation: bytes, timeout_s: float = RECEIVE_S, fits: Callable[[Frame], bool] | None = None
    ) -> Frame:
        """Give the next frame of an operation, and keep the others.

        Raises:
            AssertionError: none came in time, or the session ended.
        """
        deadline = time.monotonic() + timeout_s
        for at, frame in enumerate(self.kept):
            if frame.operation == operation and (fits is None or fits(frame)):
                return self.kept.pop(at)
        while True:
            frame = self.receive(max(0.0, deadline - time.monotonic()))
            if frame.operation == operation and (fits is None or fits(frame)):
                return frame
            if frame.operation == wire.PING:
                self.send(wire.PONG, frame.header)
                continue
            assert frame.operation != wire.CLOSED, frame
            if frame.operation not in (wire.RETIRED, wire.PONG):
                self.kept.append(frame)

    def none_within(self, operation: bytes, timeout_s: float) -> None:
        """Fail if a frame of an operation comes in this time."""
        deadline = time.monotonic() + timeout_s
        assert not [frame for frame in self.kept if frame.operation == operation]
        while (left := deadline - time.monotonic()) > 0 and self.socket.poll(int(left * 1000)):
            frame = self.receive()
            assert frame.operation != operation, frame
            if frame.operation == wire.PING:
                self.send(wire.PONG, frame.header)
            elif frame.operation not in (wire.RETIRED, wire.PONG):
                self.kept.append(frame)

    # -- requests --------------------------------------------------------------------------------------------

    def ask(self, operation: str, **arguments: Any) -> int:
        """Send a REQUEST and give its number."""
        self.asked += 1
        self.send(wire.REQUEST, [self.asked, operation, arguments])
        return self.asked

    def answer(self, number: int, timeout_s: float = RECEIVE_S) -> tuple[int, Any]:
        """Give code and value of the answer to a REQUEST."""
        frame = self.next(wire.ANSWER, timeout_s, lambda frame: frame.header[0] == number)
        return frame.header[1], frame.header[2]

    def answers_or_end(self, numbers: Sequence[int], timeout_s: float) -> None:
        """Wait until all these requests are answered, or the session has ended."""
        deadline = time.monotonic() + timeout_s
        waiting = dict.fromkeys(numbers)
        while waiting:
            frame = self.receive(max(0.0, deadline - time.monotonic()))
            if frame.operation == wire.CLOSED:
                return
            if frame.operation == wire.ANSWER:
                waiting.pop(frame.header[0], None)
            elif frame.operation == wire.PING:
                self.send(wire.PONG, frame.header)

    def request(self, operation: str, **arguments: Any) -> tuple[int, Any]:
        """Ask, and give code and value of the answer."""
        return self.answer(self.ask(operation, **arguments))

    def done(self, operation: str, **arguments: Any) -> Any:
        """Ask for what must be possible, and give the value."""
        code, value = self.request(operation, **arguments)
        assert code == 0, (operation, code, value)
        return value

    def refused(self, operation: str, **arguments: Any) -> int:
        """Ask for what must not be possible, and give the code."""
        code, value = self.request(operation, **arguments)
        assert code, (operation, value)
        assert isinstance(value, str)
        return code

    # -- publishing ------------------------------------------------------------------------------------------

    def producer(self, **arguments: Any) -> int:
        """Open a producer and give its handle."""
        return int(self.done("producer.open", **arguments)["producer"])

    def publish(self, handle: int, first: int, rows: Sequence[Row]) -> None:
        """Publish rows of a producer in one round, not cut by worker."""
        self.round += 1
        self.send(wire.PUBLISH, [self.round, 0, True, [[0, len(rows)]], handle, first], wire.pack(list(rows)))

    def acked(self, handle: int, upto: int, timeout_s: float = RECEIVE_S) -> dict[int, int]:
        """Wait until a producer has heard of everything up to a sequence, and give sequence -> code of the refused."""
        refused: dict[int, int] = {}
        told = 0
        while told < upto:
            frame = self.next(wire.ACKED, timeout_s, lambda frame: frame.header[0] == handle)
            acked = Acked(*frame.header)
            assert not acked.code, acked
            assert acked.upto >= told, acked
            assert not refused.keys() & acked.codes.keys(), "a nack is told once"
            refused |= acked.codes
            told = acked.upto
        return refused

    # -- consuming -------------------------------------------------------------------------------------------

    def bind(self, name: str, credit: tuple[int, int] = PLENTY, **arguments: Any) -> int:
        """Bind to an endpoint and give the flow."""
        value = self.done("flow.bind", name=name, messages=credit[0], bytes=credit[1], **arguments)
        return int(value["flow"])

    def messages(self, flow: int, count: int, timeout_s: float = RECEIVE_S) -> list[Got]:
        """Give at least so many messages of a flow, in the order of the wire."""
        found: list[Got] = []
        while len(found) < count:
            frame = self.next(wire.MESSAGES, timeout_s, lambda frame: frame.header[0] == flow)
            found += read_messages(frame)
        return found

    def settle(
        self, flow: int, ranges: Sequence[Sequence[int]], outcome: int = wire.OUTCOME_ACCEPTED
    ) -> None:
        """Settle ranges of [partition, first, last]."""
        self.send(wire.SETTLE, [flow, outcome, [list(one) for one in ranges]])

    def indication(self, flow: int, event: int, timeout_s: float = RECEIVE_S) -> tuple[int, Any]:
        """Give code and detail of an INDICATION of this kind."""
        frame = self.next(wire.INDICATION, timeout_s, lambda frame: frame.header[:2] == [flow, event])
        return frame.header[2], frame.header[3]


class RawProducer:
    """A producer of a raw client that counts its sequences."""

    def __init__(self, client: RawGuaranteed, **arguments: Any) -> None:
        """Open it, and go on where its name was."""
        opened = client.done("producer.open", **arguments)
        self.client = client
        self.handle = int(opened["producer"])
        self.last = int(opened["last_sequence"])

    def publish(self, *rows: Row) -> list[int]:
        """Publish rows in one round, and give for each its code, 0 if it was acknowledged."""
        first = self.last + 1
        self.last += len(rows)
        self.client.publish(self.handle, first, rows)
        refused = self.client.acked(self.handle, self.last)
        return [refused.get(first + at, 0) for at in range(len(rows))]

    def fill(self, queue: str, *payloads: bytes, flags: int = PERSISTENT, meta: Any = None) -> list[int]:
        """Publish to a queue by its name, and give the codes."""
        return self.publish(
            *[to_queue(index, queue, payload, flags, meta) for index, payload in enumerate(payloads)]
        )


def read_messages(frame: Frame) -> list[Got]:
    """Open MESSAGES."""
    flow, parts = frame.header
    found = []
    for (partition, rows, runs, counts, _, origins), batch in zip(parts, frame.batches, strict=True):
        positions = [first + offset for first, count in runs for offset in range(count)]
        opened = wire.unpack(batch)
        assert len(opened) == len(positions) == rows
        for at, one in enumerate(opened):
            count = counts[at] if counts else 0
            origin = origins[at] if origins else None
            found.append(Got(flow, partition, positions[at], count, one[1], one[5], origin))
    return found


def kept(index: int, topic: str, payload: bytes = b"", flags: int = PERSISTENT, meta: Any = None) -> Row:
    """Give a row of a persistent message."""
    return index, topic, flags, meta, None, payload


def to_queue(index: int, queue: str, payload: bytes = b"", flags: int = PERSISTENT, meta: Any = None) -> Row:
    """Give a row of a persistent message to a queue."""
    return kept(index, f"{wire.QUEUE_TOPIC_PREFIX}{queue}", payload, flags, meta)
