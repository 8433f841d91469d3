"""Flows when connections come and go, what the node says of them, and a node that breaks the protocol."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from angarium import errors, wire
from angarium.client.consuming.flow import Flow
from angarium.client.consuming.flow_options import FlowOptions
from angarium.message import pack_rows
from tests.unit.angarium.spoken_node import SpokenNode, bound, open_flow, rows, run


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


# Reconnects.


@pytest.mark.requirement("R190")
def test_after_a_reconnect_the_flow_binds_again_with_a_fresh_window() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, "q", window=8, selector="a = 1")
        node.messages(1, 1, numbered(1, 5))
        await flow.receive()
        node.lose()
        assert not flow.active
        node.connect()
        await node.until(lambda: len(node.asked) == 2)
        assert node.asked[1] == node.asked[0]
        await node.steps()
        assert flow.active
        node.messages(2, 1, numbered(1, 5), counts=[1] * 5)
        message = await flow.receive()
        assert (message.payload, message.redelivered) == (b"1", True)

    run(test())


def test_a_browser_goes_on_behind_what_it_has_handed_out() -> None:
    """It settles nothing, so the next bind begins with the oldest message again."""

    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, window=8, browse=True)
        node.messages(1, 1, numbered(1, 5))
        node.messages(1, 1, numbered(1, 2), partition=3)
        assert [(await flow.receive()).payload for _ in range(3)] == numbered(1, 3)
        node.lose()
        assert flow.buffered == 0
        node.connect()
        await node.steps()
        node.messages(2, 1, numbered(1, 2))
        assert flow.buffered == 0
        node.lose()
        node.connect()
        await node.steps()
        node.messages(3, 1, numbered(1, 2), partition=3)
        node.messages(3, 1, numbered(1, 6))
        came = [await flow.receive() for _ in range(5)]
        assert [one.payload for one in came] == [*numbered(1, 2), *numbered(4, 6)]
        assert [one.position for one in came] == [1, 2, 4, 5, 6]
        assert flow._binding.window.taken_messages >= 3

    run(test())


def test_a_browser_has_seen_nothing_of_another_queue_of_the_same_name() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, browse=True)
        node.messages(1, 1, numbered(1, 3))
        assert [(await flow.receive()).payload for _ in range(3)] == numbered(1, 3)
        node.lose()
        node.answers["flow.bind"] = {**bound(2), "endpoint_id": 77}
        node.connect()
        await node.steps()
        node.messages(2, 1, [b"new"])
        assert (await flow.receive()).payload == b"new"

    run(test())


@pytest.mark.parametrize("is_consumed", [False, True])
def test_a_browser_that_wants_a_number_of_messages_gets_so_many_over_connections(is_consumed: bool) -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, window=8, browse=True, max_messages=5)
        assert node.asked[0][1]["messages"] == 5
        node.messages(1, 1, numbered(1, 3))
        assert [(await flow.receive()).payload for _ in range(2)] == numbered(1, 2)
        node.lose()
        node.connect()
        await node.until(lambda: len(node.asked) == 2)
        assert node.asked[1][1]["messages"] == 5
        await node.steps()
        first = 3 if is_consumed else 1
        node.messages(2, first, numbered(first, first + 4))
        assert [(await flow.receive()).payload for _ in range(3)] == numbered(3, 5)
        assert flow.buffered == 0

    run(test())


def test_unread_messages_of_a_lost_bind_are_thrown_away() -> None:
    """They come again; whoever read them now could not settle them."""

    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, window=8)
        node.messages(1, 1, numbered(1, 5))
        assert (await flow.receive()).position == 1
        node.lose()
        assert flow.buffered == 0
        assert flow.stats["dropped_messages"] == 4
        node.connect()
        await node.steps()
        node.messages(2, 6, [b"6"])
        assert (await flow.receive()).position == 6

    run(test())


def test_a_message_of_a_lost_bind_can_be_settled_without_effect() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, ack="manual", ack_delay_ms=60_000)
        node.messages(1, 1, numbered(1, 4))
        kept = [await flow.receive() for _ in range(3)]
        kept[0].accept()
        node.lose()
        assert flow.stats["late_settles"] == 1, "it was not told in time"
        node.connect()
        await node.steps()
        kept[1].accept()
        kept[2].reject()
        flow._binding.tell()
        assert flow.stats["late_settles"] == 3
        assert node.sent(wire.SETTLE) == []
        node.messages(2, 1, [b"1"])
        flow.accept(await flow.receive())
        flow._binding.tell()
        assert [frame.header for frame in node.sent(wire.SETTLE)] == [[2, 0, [[0, 1, 1]]]]

    run(test())


def test_a_reader_that_waits_goes_on_over_a_reconnect() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node)
        reader = asyncio.ensure_future(flow.receive())
        await node.steps()
        node.lose()
        node.connect()
        await node.steps()
        node.messages(2, 1, [b"1"])
        await node.steps()
        assert reader.result().payload == b"1"

    run(test())


def test_a_temporary_queue_is_bound_again_by_the_name_that_it_got() -> None:
    async def test() -> None:
        node = SpokenNode()
        await open_flow(node, "", bound(1, "made-up"), temporary=True, subscriptions=("a",))
        node.lose()
        node.connect()
        await node.until(lambda: len(node.asked) == 2)
        assert node.asked[1][1] == {**node.asked[0][1], "name": "made-up"}

    run(test())


@pytest.mark.parametrize(
    "code",
    [
        errors.ENDPOINT_SHUTDOWN,
        errors.MAX_BIND_COUNT_EXCEEDED,
        errors.HOME_NOT_READY,
        errors.CONTROLLER_UNAVAILABLE,
        errors.TOO_MANY_FLOWS,
        errors.ALREADY_BOUND,
    ],
)
def test_a_refusal_that_passes_is_tried_again(code: int) -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node)
        replies = iter([errors.error_for(code), errors.error_for(code), bound(5)])
        node.answers["flow.bind"] = lambda _: next(replies)
        node.lose()
        node.connect()
        await node.until(lambda: flow.active)
        node.messages(5, 1, [b"1"])
        assert (await flow.receive()).payload == b"1"
        assert not flow.closed

    run(test())


@pytest.mark.parametrize("code", [errors.UNKNOWN_ENDPOINT, errors.PERMISSION_DENIED, errors.INVALID_SELECTOR])
def test_a_refusal_for_good_ends_the_flow_and_its_readers_know_why(code: int) -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node)
        reader = asyncio.ensure_future(flow.receive())
        node.answers["flow.bind"] = errors.error_for(code, "why")
        node.lose()
        node.connect()
        await node.until(reader.done)
        with pytest.raises(errors.AngariumError, match=f"{code}.*why"):
            reader.result()
        with pytest.raises(errors.AngariumError, match=str(code)):
            await anext(flow.batches())
        assert node.events == [("flow_failed", code, "Flow('q'): why")]

    run(test())


# What the node says of a flow.


def test_a_flow_that_the_node_ends_for_a_while_binds_again() -> None:
    async def test() -> None:
        node = SpokenNode()
        states: list[bool] = []
        flow = await open_flow(node, on_active=states.append)
        node.messages(1, 1, numbered(1, 3))
        node.hear(wire.INDICATION, [1, wire.FLOW_CLOSED, errors.ENDPOINT_SHUTDOWN, "down"])
        assert flow.buffered == 0
        await node.until(lambda: len(node.asked) == 2)
        await node.steps()
        assert states == [True, False, True]
        assert node.events == [("flow_lost", errors.ENDPOINT_SHUTDOWN, "Flow('q'): down")]
        node.messages(2, 1, numbered(1, 3))
        assert (await flow.receive()).position == 1

    run(test())


def test_a_deleted_endpoint_ends_its_flows() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node)
        reader = asyncio.ensure_future(flow.receive())
        await node.steps()
        node.hear(wire.INDICATION, [1, wire.FLOW_CLOSED, errors.UNKNOWN_ENDPOINT, "deleted"])
        await node.steps()
        with pytest.raises(errors.NotFoundError, match="40404"):
            reader.result()
        assert flow.closed
        assert node.guaranteed.stats["flows"] == 0

    run(test())


def test_a_flow_learns_when_it_becomes_active_or_stands_by() -> None:
    async def test() -> None:
        node = SpokenNode()
        states: list[bool] = []
        flow = await open_flow(node, answer=bound(1, active=False), on_active=states.append)
        assert not flow.active
        node.hear(wire.INDICATION, [1, wire.FLOW_ACTIVE, 0, None])
        assert flow.active
        node.hear(wire.INDICATION, [1, wire.FLOW_INACTIVE, 0, ""])
        assert states == [True, False]

    run(test())


def test_an_on_active_that_raises_harms_nobody() -> None:
    async def test() -> None:
        def on_active(_: bool) -> None:
            raise ValueError

        flow = await open_flow(SpokenNode(), on_active=on_active)
        assert flow.active

    run(test())


def test_messages_of_a_partition_that_went_elsewhere_are_thrown_away() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, answer=bound(1, partitions=[0, 1, 2]), window=12, ack="manual")
        assert list(flow.partitions) == [0, 1, 2]
        node.messages(1, 1, numbered(1, 3), partition=0)
        node.messages(1, 1, numbered(1, 3), partition=1)
        node.messages(1, 1, numbered(1, 3), partition=2)
        assert (await flow.receive()).partition == 0
        node.hear(wire.INDICATION, [1, wire.FLOW_PARTITIONS, 0, [2]])
        assert flow.partitions == (2,)
        assert flow.buffered == 3
        assert flow.stats["dropped_messages"] == 5
        assert [(await flow.receive()).partition for _ in range(3)] == [2, 2, 2]
        credit = node.sent(wire.FLOW_CREDIT)[-1].header
        assert 9 + 6 < credit[1] <= 9 + 12, "what was thrown away made room"

    run(test())


def test_a_refused_outcome_is_told_and_counted() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node)
        node.hear(wire.INDICATION, [1, wire.FLOW_SETTLE_REFUSED, errors.PARTITION_LOST, "partition 3"])
        assert node.events == [("settle_refused", errors.PARTITION_LOST, "Flow('q'): partition 3")]
        assert flow.stats["refused_settles"] == 1

    run(test())


# Connections that go while something is under way.


def test_a_first_bind_goes_on_over_a_reconnect() -> None:
    async def test() -> None:
        node = SpokenNode()
        opening = asyncio.ensure_future(node.guaranteed.bind(FlowOptions(name="q", timeout_s=5.0)))
        await node.steps()
        node.lose()
        node.connect()
        node.answers["flow.bind"] = bound(4)
        await node.until(opening.done)
        node.messages(4, 1, [b"1"])
        node.flows.append(Flow(opening.result()))
        assert (await node.flows[0].receive()).payload == b"1"

    run(test())


def test_a_flow_that_was_bound_for_nobody_is_let_go() -> None:
    async def test() -> None:
        node = SpokenNode()
        opening = asyncio.ensure_future(node.guaranteed.bind(FlowOptions(name="q", timeout_s=5.0)))
        await node.steps()
        opening.cancel()
        await node.steps()
        (frame,) = node.sent(wire.REQUEST)
        node.answer(frame.header[0], bound(1))
        node.messages(1, 1, [b"for nobody"])
        assert [one.header[1:] for one in node.sent(wire.REQUEST)] == [["flow.unbind", {"flow": 1}]]
        assert node.closed == []

    run(test())


# A node that breaks the protocol.


def part(**changes: Any) -> list[Any]:
    """Give a good part of three rows with a field changed."""
    fields = {
        "partition": 0,
        "rows": 3,
        "runs": [[1, 3]],
        "counts": None,
        "stored_ms": 5,
        "origins": None,
    }
    return list({**fields, **changes}.values())


@pytest.mark.parametrize(
    "header",
    [
        [2, [part()]],
        [1, []],
        [1, [part(), part()]],
        [1, [part(rows=2)]],
        [1, [part(rows=0, runs=[])]],
        [1, [part(runs=[[1, 2]])]],
        [1, [part(runs=[[0, 3]])]],
        [1, [part(runs=[[1, 3], [9, 0]])]],
        [1, [part(runs=[[1, 1], [2, 1], [3, 2]])]],
        [1, [part(counts=[1, 2])]],
        [1, [part(counts=[1, 2, -1])]],
        [1, [part(counts="abc")]],
        [1, [part(stored_ms=-1)]],
        [1, [part(stored_ms=[1, 2])]],
        [1, [part(stored_ms=1.5)]],
        [1, [part(origins=[None])]],
        [1, [part(origins=[None, None, ["queue", "x"]])]],
        [1, [part(partition=1_000)]],
        [1, [part()[:5]]],
        [1],
        None,
    ],
)
def test_messages_that_cannot_be_close_the_session(header: Any) -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node)
        node.hear(wire.MESSAGES, header, pack_rows(rows([b"1", b"2", b"3"])))
        assert node.closed == [errors.MALFORMED_FRAME]
        assert flow.buffered == 0

    run(test())


def test_a_batch_that_is_none_closes_the_session() -> None:
    async def test() -> None:
        node = SpokenNode()
        await open_flow(node)
        node.hear(wire.MESSAGES, [1, [part()]], b"\x93\x01\x02\x03")
        assert node.closed == [errors.MALFORMED_FRAME]

    run(test())


def test_far_more_than_was_granted_closes_the_session() -> None:
    """So no node can fill the memory of an application that does not read."""

    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, window=1, window_bytes=1)
        largest = 0
        for number in range(30):
            node.messages(1, 1 + number * 1_000, [b"x" * 1_000] * 1_000)
            largest = max(largest, flow.buffered)
            if node.closed:
                break
        assert node.closed == [errors.MALFORMED_FRAME]
        assert largest <= 12_000

    run(test())


@pytest.mark.parametrize(
    "header",
    [
        [2, wire.FLOW_ACTIVE, 0, ""],
        [1, 5, 0, ""],
        [1, -1, 0, ""],
        [1, wire.FLOW_PARTITIONS, 0, "0,1"],
        [1, wire.FLOW_PARTITIONS, 0, [1_000]],
        [1, wire.FLOW_PARTITIONS, 0, None],
        [1, wire.FLOW_ACTIVE, 0, [1]],
        [1, wire.FLOW_CLOSED, "40404", ""],
        [1, wire.FLOW_CLOSED],
    ],
)
def test_an_indication_that_cannot_be_closes_the_session(header: Any) -> None:
    async def test() -> None:
        node = SpokenNode()
        await open_flow(node)
        node.hear(wire.INDICATION, header)
        assert node.closed == [errors.MALFORMED_FRAME]

    run(test())


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {**bound(1), "flow": 0},
        {**bound(1), "active": 1},
        {**bound(1), "partitions": None},
        {**bound(1), "max_unacked": 0},
        {**bound(1), "name": None},
    ],
)
def test_an_answer_of_another_shape_closes_the_session(value: Any) -> None:
    async def test() -> None:
        node = SpokenNode()
        node.answers["flow.bind"] = value
        opening = asyncio.ensure_future(open_flow(node))
        await node.steps()
        assert node.closed == [errors.MALFORMED_FRAME]
        opening.cancel()

    run(test())


@pytest.mark.parametrize("header", [[9, 0, None], [1, 40001, 5], [1, -1, ""], [1, 0], [1, True, None], 7])
def test_an_answer_that_cannot_be_closes_the_session(header: Any) -> None:
    async def test() -> None:
        node = SpokenNode()
        opening = asyncio.ensure_future(node.guaranteed.producer("p", 255, None, 1.0))
        await asyncio.sleep(0)
        node.hear(wire.ANSWER, header)
        assert node.closed == [errors.MALFORMED_FRAME]
        opening.cancel()

    run(test())


def test_numbers_that_are_in_use_cannot_be_given_again() -> None:
    async def test() -> None:
        node = SpokenNode()
        await open_flow(node, answer=bound(1))
        opening = asyncio.ensure_future(open_flow(node, answer=bound(1)))
        await node.steps()
        assert node.closed == [errors.MALFORMED_FRAME]
        opening.cancel()

    run(test())


def test_what_was_thrown_away_with_its_partition_does_not_count_for_max_messages_later() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, answer=bound(1, partitions=[0, 1]), max_messages=4)
        node.messages(1, 1, [b"1", b"2"])
        node.hear(wire.INDICATION, [1, wire.FLOW_PARTITIONS, 0, [1]])
        assert flow.stats["dropped_messages"] == 2
        node.messages(1, 7, [b"7"], partition=1)
        await flow.receive()
        node.lose()
        node.connect()
        await node.until(lambda: len(node.asked) == 2)
        assert node.asked[1][1]["messages"] == 3

    run(test())
