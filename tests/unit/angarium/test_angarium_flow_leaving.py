"""Partitions that are to move: a flow gives back what its application has not seen, and settles what it has."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from angarium import errors, wire
from angarium.blocking.flow import SharedReader
from tests.unit.angarium.fake_portal import FakePortal
from tests.unit.angarium.spoken_node import SpokenNode, bound, open_flow, run

if TYPE_CHECKING:
    from angarium import Flow, GuaranteedMessage
    from angarium.blocking.portal import Portal

ACCEPTED, RELEASED = wire.OUTCOME_ACCEPTED, wire.OUTCOME_RELEASED


async def begin(node: SpokenNode, **options: Any) -> Flow:
    """Bind a flow that has the partitions 0 and 1."""
    return await open_flow(node, answer=bound(1, partitions=[0, 1]), ack_delay_ms=0, **options)


def come(node: SpokenNode) -> None:
    """Let messages come: 1 to 5 and 8 to 9 of partition 1 with 1 to 2 of partition 0 between them."""
    node.messages(1, 1, [b"1/1", b"1/2", b"1/3", b"1/4", b"1/5"], partition=1)
    node.messages(1, 1, [b"0/1", b"0/2"], partition=0)
    node.messages(1, 8, [b"1/8", b"1/9"], partition=1)


def leave(node: SpokenNode) -> None:
    node.hear(wire.INDICATION, [1, wire.FLOW_LEAVING, 0, [1]])


def told(node: SpokenNode, flow: Flow) -> dict[int, list[Any]]:
    """Give the ranges of each outcome that was said since the last call."""
    flow._binding.tell()
    found: dict[int, list[Any]] = {}
    for frame in node.sent(wire.SETTLE):
        _, outcome, ranges = frame.header
        found[outcome] = sorted(found.get(outcome, []) + ranges)
    return found


@pytest.mark.requirement("R192")
def test_what_was_received_is_settled_and_the_rest_given_back() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await begin(node, ack="manual", window=12)
        come(node)
        seen = [await flow.receive() for _ in range(2)]
        leave(node)
        assert told(node, flow) == {RELEASED: [[1, 3, 5], [1, 8, 9]]}
        assert (flow.buffered, flow.stats["released_messages"]) == (2, 5)
        assert list(flow.partitions) == [0, 1], "until all is settled"
        assert [(await flow.receive()).payload for _ in range(2)] == [b"0/1", b"0/2"]
        with pytest.raises(errors.TimeoutExpiredError):
            await flow.receive(0)
        flow.accept(seen)
        assert told(node, flow) == {ACCEPTED: [[1, 1, 2]]}
        node.hear(wire.INDICATION, [1, wire.FLOW_PARTITIONS, 0, [0]])
        assert (list(flow.partitions), flow.stats["dropped_messages"]) == ([0], 0)
        assert flow._binding.window.taken_messages == 9

    run(test())


def test_a_loop_goes_on_with_what_stays() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await begin(node)
        come(node)
        read = []
        async for message in flow:
            read.append(message.payload)
            if len(read) == 2:
                leave(node)
            elif len(read) == 4:
                break
        assert read == [b"1/1", b"1/2", b"0/1", b"0/2"]
        assert told(node, flow) == {ACCEPTED: [[0, 1, 1], [1, 1, 2]], RELEASED: [[1, 3, 5], [1, 8, 9]]}

    run(test())


def test_a_batch_that_was_handed_out_has_been_seen() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await begin(node)
        come(node)
        read = []
        async for batch in flow.batches(3):
            read.append(batch.payloads)
            if len(read) == 1:
                leave(node)
            else:
                break
        assert read == [[b"1/1", b"1/2", b"1/3"], [b"0/1", b"0/2"]]
        assert told(node, flow) == {ACCEPTED: [[1, 1, 3]], RELEASED: [[1, 4, 5], [1, 8, 9]]}

    run(test())


def test_callbacks_that_run_keep_their_messages() -> None:
    async def test() -> None:
        node, go_on, seen = SpokenNode(), asyncio.Event(), []

        async def callback(message: GuaranteedMessage) -> None:
            seen.append(message.payload)
            await go_on.wait()

        flow = await begin(node, callback=callback, concurrency=2)
        come(node)
        await node.steps()
        leave(node)
        assert told(node, flow) == {RELEASED: [[1, 3, 5], [1, 8, 9]]}
        go_on.set()
        await node.steps()
        assert told(node, flow) == {ACCEPTED: [[0, 1, 2], [1, 1, 2]]}
        assert seen == [b"1/1", b"1/2", b"0/1", b"0/2"]

    run(test())


def test_what_threads_read_ahead_is_given_back_too() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await begin(node, ack="manual")
        reader = SharedReader(cast("Portal", FakePortal()), flow._binding, {}, None, 0)
        come(node)
        message = reader.next(0)
        assert message is not None
        assert message.payload == b"1/1"
        leave(node)
        assert told(node, flow) == {RELEASED: [[1, 2, 5], [1, 8, 9]]}
        assert reader.left == 0
        batch = reader.next_batch(100)
        assert batch is not None
        assert batch.payloads == [b"0/1", b"0/2"]
        with pytest.raises(errors.TimeoutExpiredError):
            reader.next(0)
        message.accept()
        assert told(node, flow) == {ACCEPTED: [[1, 1, 1]]}
        assert flow._binding.window.taken_messages == 9

    run(test())


def test_what_was_given_back_does_not_count_for_max_messages() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await begin(node, max_messages=9, window=9)
        come(node)
        await flow.receive()
        leave(node)
        assert node.sent(wire.FLOW_CREDIT)[-1].header[1] == 15
        node.messages(1, 3, [b"0/%d" % number for number in range(3, 9)], partition=0)
        assert len([message async for message in flow]) == 8

    run(test())


def test_a_partition_that_leaves_and_is_not_there_is_no_matter() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await begin(node)
        leave(node)
        assert told(node, flow) == {}
        node.messages(1, 1, [b"0/1"], partition=0)
        assert (await flow.receive()).payload == b"0/1"

    run(test())
