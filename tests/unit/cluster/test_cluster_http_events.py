"""Streams of events whose requests end before they begin: nothing of them is left, and nothing of a queue is kept."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from angarium import errors, wire
from angarium.client.protocol.events import Arrived
from angarium.client.protocol.flow_window import FlowWindow, spool_size
from angarium.client.protocol.messages import GuaranteedDelivery
from angarium.errors import AngariumError
from angarium.message import Message
from angarium_server.http import outlet
from cluster.http import events
from cluster.http.events import RESUME_S, Events, Journal
from gateway.http.client import ClientState, HttpClient
from gateway.http.queues import Lease, Receipts, Taken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiohttp.web import BaseRequest

    from gateway.attached import Attached
    from gateway.http.clients import Clients
    from gateway.http.streams import Stream, Streams

OWNER = ("v", "anna", "q")


class FakeAttached:
    """A client at a node that notes what it is asked for."""

    vpn = "v"

    def __init__(self) -> None:
        self.filters: list[str] = []
        self.settled: list[tuple[int, int]] = []

    def subscribe(self, filters: Sequence[tuple[str, int]]) -> None:
        self.filters += [one for one, _ in filters]

    def unsubscribe(self, filters: Sequence[tuple[str, int]]) -> None:
        for one, _ in filters:
            self.filters.remove(one)

    def settle(self, _window: FlowWindow, _partition: int, position: int, outcome: int) -> None:
        self.settled.append((position, outcome))

    def renew(self, window: FlowWindow) -> None:
        """It has."""

    def unbind(self, window: FlowWindow) -> None:
        """It is."""

    def bind(self, _window: FlowWindow, _arguments: Any, _done: Any) -> None:
        """It is, soon."""


class FakeOutlet:
    """A connection that takes all."""

    def __init__(self) -> None:
        self.sent = b""

    def send(self, data: bytes) -> None:
        self.sent += data

    def unsent(self) -> int:
        return 0


class FakeResponse:
    """An answer whose head was sent."""

    def force_close(self) -> None:
        """It does not go on."""


class World:
    """The streams of a process, and one client."""

    def __init__(self) -> None:
        self.attached = FakeAttached()
        self.client = HttpClient({})
        self.client.attached = cast("Attached", self.attached)
        self.client.state = ClientState.OPEN
        self.client._username = "anna"
        self.receipts = Receipts()
        clients = cast("Clients", SimpleNamespace(receipts=self.receipts))
        streams = SimpleNamespace(add=lambda *_: None, remove=lambda *_: None)
        self.events = Events(clients, cast("Streams", streams), {}, lambda: None)
        self.request = cast("BaseRequest", None)
        self.reader = self.client.reader("q", self.receipts)

    def bring(self, position: int) -> None:
        """Have a message of the queue come."""
        window = self.reader._window
        assert window is not None
        row = Message("t", b"x", mode="persistent").row
        size = spool_size((row,))
        window.receive(1, size)
        delivery = GuaranteedDelivery(window, 0, [row], [(position, 1)], None, 0, None, size)
        self.reader.take(Arrived(window, [delivery]), time.monotonic())

    def lease(self) -> Lease:
        """Have a message that the stream `before` has sent, and nobody has read."""
        window = self.reader._window = FlowWindow(10, 1_000)
        row = Message("t", b"x", mode="persistent").row
        window.receive(1, 1)
        lease = Lease(self.reader, 0, 1, row, time.monotonic() + RESUME_S)
        receipt = self.receipts.add(lease)
        self.reader._leases[receipt] = lease
        stream = cast("Stream", SimpleNamespace(end=lambda _error: None))
        journal = Journal(OWNER, stream)
        journal.sent = [Taken(receipt, row, 0, 0)]
        self.events._journals["before"] = journal
        return lease


def test_filters_of_a_stream_that_may_not_begin_are_given_back() -> None:
    world = World()

    async def run() -> None:
        asked = asyncio.ensure_future(world.events.of_topics(world.request, world.client, ["a", "secret"]))
        await asyncio.sleep(0)
        world.client.answered([0, errors.SUBSCRIBE_DENIED], 0.0)
        with pytest.raises(AngariumError):
            await asked

    asyncio.run(run())
    assert world.attached.filters == []


def test_what_is_sent_again_fails_after_a_while_if_its_client_is_gone_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def gone(_request: Any, _headers: Any) -> Any:
        raise ConnectionResetError

    monkeypatch.setattr(outlet, "begin", gone)
    world = World()
    lease = world.lease()
    with pytest.raises(ConnectionResetError):
        asyncio.run(world.events.of_queue(world.request, world.client, "q", "before.0"))
    world.reader.tick(time.monotonic() + RESUME_S + 1.0)
    assert world.attached.settled == [(lease.position, wire.OUTCOME_FAILED)]


def test_what_comes_in_the_moment_in_which_a_stream_of_a_queue_ends_is_not_kept_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outlet_of_stream = FakeOutlet()

    async def begin(_request: Any, _headers: Any) -> Any:
        return FakeResponse(), outlet_of_stream

    monkeypatch.setattr(outlet, "begin", begin)
    world = World()

    async def run() -> None:
        stream = world.events.of_queue(world.request, world.client, "q", "")
        asked = asyncio.ensure_future(stream)
        await asyncio.sleep(0.01)
        world.bring(7)
        asked.cancel()  # as a time that is over does it, and a client that is gone
        with pytest.raises(asyncio.CancelledError):
            await asked

    asyncio.run(run())
    assert b".1" in outlet_of_stream.sent
    world.reader.tick(time.monotonic() + RESUME_S - 1.0)
    assert world.attached.settled == [], "it is kept for who comes again"
    world.reader.tick(time.monotonic() + RESUME_S + 1.0)
    assert world.attached.settled == [(7, wire.OUTCOME_FAILED)]


def test_who_comes_again_and_is_gone_before_he_reads_comes_again_with_the_same_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was sent behind it came only when its lease was over, behind newer messages and as one that had failed."""
    outlets: list[FakeOutlet] = []

    async def begin(_request: Any, _headers: Any) -> Any:
        outlets.append(FakeOutlet())
        return FakeResponse(), outlets[-1]

    monkeypatch.setattr(outlet, "begin", begin)
    world = World()

    async def stream(last: str, *positions: int) -> list[str]:
        """Have a stream, messages that come meanwhile, and its connection break; gives the ids of its events."""
        asked = asyncio.ensure_future(world.events.of_queue(world.request, world.client, "q", last))
        await asyncio.sleep(0.01)
        for position in positions:
            world.bring(position)
            await asyncio.sleep(0.01)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        return [line[4:] for line in outlets[-1].sent.decode().splitlines() if line.startswith("id: ")]

    async def run() -> None:
        first = await stream("", 1, 2, 3)
        assert len(first) == 3
        for _ in range(2):  # nothing of it was read, and it breaks for a second time
            assert await stream(first[0]) == first[1:]
        assert world.attached.settled == [(1, wire.OUTCOME_ACCEPTED)]
        assert len(await stream(first[1], 4)) == 2
        await stream("nobody.9")
        assert world.attached.settled[1:] == [(2, wire.OUTCOME_ACCEPTED)]

    asyncio.run(run())


def test_what_streams_of_queues_have_sent_is_forgotten_in_time_without_another_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It stayed with all its messages, and the connection, until somebody asked for a stream of a queue again."""

    async def begin(_request: Any, _headers: Any) -> Any:
        return FakeResponse(), FakeOutlet()

    monkeypatch.setattr(outlet, "begin", begin)
    monkeypatch.setattr(events, "RESUME_S", 0.05)
    world = World()

    async def run() -> None:
        for _ in range(10):
            asked = asyncio.ensure_future(world.events.of_queue(world.request, world.client, "q", ""))
            await asyncio.sleep(0)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
        assert len(world.events._journals) == 10, "it is kept for who comes again"
        async with asyncio.timeout(5):
            while world.events._journals:
                await asyncio.sleep(0.01)

    asyncio.run(run())


def test_a_stream_whose_client_ends_before_it_begins_is_ended_too(monkeypatch: pytest.MonkeyPatch) -> None:
    world, outlet_of_stream = World(), FakeOutlet()

    async def begin(_request: Any, _headers: Any) -> Any:
        world.client.ended(errors.error_for(errors.DISCONNECTED_BY_OPERATOR), 0.0)
        return FakeResponse(), outlet_of_stream

    monkeypatch.setattr(outlet, "begin", begin)

    async def run() -> None:
        async with asyncio.timeout(5):
            await world.events.of_queue(world.request, world.client, "q", "")

    asyncio.run(run())
    assert str(errors.DISCONNECTED_BY_OPERATOR).encode() in outlet_of_stream.sent
