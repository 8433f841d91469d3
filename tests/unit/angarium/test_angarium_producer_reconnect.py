"""Producers when connections come and go, at their end, and with a node that breaks the protocol."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from angarium import errors, wire
from tests.unit.angarium.spoken_node import SpokenNode, open_producer, opened, run

# Reconnects.


@pytest.mark.requirement("R190")
def test_after_a_reconnect_the_same_rows_go_with_the_same_sequences() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node, "orders", window=6)
        receipts = [await producer.send("t", b"%d" % n) for n in range(6)]
        await node.steps()
        node.acked(1, 2, (5, 50310, ""))
        node.published()
        node.lose()
        blocked = [asyncio.ensure_future(producer.send("t", b"%d" % n)) for n in (6, 7)]
        await node.steps()
        assert [task.done() for task in blocked] == [True, True]
        node.connect()
        await node.until(lambda: len(node.asked) == 2)
        assert node.asked[1] == ("producer.open", {"name": "orders", "window": 6, "resume": True})
        await node.steps()
        resent = node.published()
        assert [one.producer for one in resent] == [2] * len(resent)
        assert [s for one in resent for s in one.sequences] == [3, 4, 6, 7, 8], "5 was refused and told"
        assert [p for one in resent for p in one.payloads] == [b"2", b"3", b"5", b"6", b"7"]
        node.acked(2, 8)
        assert await receipts[5] == 6
        assert producer.unacknowledged == 0

    run(test())


def test_nothing_is_sent_again_before_the_producer_is_open_again() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        await producer.send("t", b"x")
        node.answers.clear()
        node.lose()
        node.connect()
        node.retire()
        await node.steps()
        assert node.published() == []

    run(test())


def test_a_node_that_gives_a_smaller_window_gets_smaller_rounds() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node, window=10)
        for _ in range(10):
            await producer.send("t")
        await node.steps()
        node.published()
        node.lose()
        node.answers["producer.open"] = opened(9, window=4)
        node.connect()
        await node.steps()
        first = node.published()
        assert [one.sequences for one in first] == [[1, 2], [3, 4]]
        node.acked(9, 2)
        assert [one.sequences for one in node.published()] == [[5, 6]]
        assert producer.window == 4

    run(test())


def test_who_waits_for_half_a_window_goes_on_with_half_of_a_smaller_one() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node, window=10)
        for _ in range(10):
            await producer.send("t")
        many = asyncio.ensure_future(producer.publish_many([("t", b"")] * 3))
        await node.steps()
        node.lose()
        node.answers["producer.open"] = opened(9, window=4)
        node.connect()
        await node.steps()
        for upto in range(1, 14):
            node.acked(9, upto)
            await node.steps()
        assert many.done()
        assert (await many).acknowledged == 3

    run(test())


@pytest.mark.parametrize(
    "code", [errors.CONTROLLER_UNAVAILABLE, errors.HOME_NOT_READY, errors.TOO_MANY_FLOWS, errors.INTERNAL]
)
def test_a_refusal_that_passes_is_tried_again(code: int) -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        receipt = await producer.send("t")
        node.lose()
        replies = iter([errors.error_for(code), errors.error_for(code), opened(5)])
        node.answers["producer.open"] = lambda _: next(replies)
        node.connect()
        await node.until(lambda: len(node.asked) == 4)
        await node.steps()
        assert [one.producer for one in node.published()] == [5]
        node.acked(5, 1)
        assert await receipt == 1

    run(test())


@pytest.mark.parametrize("code", [errors.GUARANTEED_SEND_DENIED, errors.UNKNOWN_FLOW_NAME])
def test_a_refusal_for_good_ends_the_producer_with_the_fate_of_its_messages_unknown(code: int) -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node, window=2)
        receipts = [await producer.send("t") for _ in range(2)]
        waiting = asyncio.ensure_future(producer.send("t"))
        many = asyncio.ensure_future(producer.publish_many([("t", b"")] * 3))
        flush = asyncio.ensure_future(producer.flush())
        await node.steps()
        node.lose()
        node.answers["producer.open"] = errors.error_for(code, "why")
        node.connect()
        await node.until(lambda: producer.closed)
        await node.steps()
        for task in (waiting, many, flush):
            assert task.exception().code == code  # type: ignore[union-attr]
        for receipt in receipts:
            with pytest.raises(errors.AngariumError, match=str(code)):
                await receipt
        with pytest.raises(errors.AngariumError, match=str(code)):
            await producer.send("t")
        assert node.events[-1][:2] == ("producer_failed", code)
        assert node.guaranteed.stats["producers"] == 0

    run(test())


def test_a_forgotten_name_is_opened_anew_if_nothing_depends_on_it() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        receipt = await producer.send("t")
        node.acked(1, 1)
        assert await receipt == 1
        node.lose()
        replies = iter([errors.error_for(errors.UNKNOWN_FLOW_NAME), opened(2, last_sequence=0)])
        node.answers["producer.open"] = lambda _: next(replies)
        node.connect()
        await node.until(lambda: len(node.asked) == 3)
        assert [arguments["resume"] for _, arguments in node.asked] == [False, True, False]
        await node.steps()
        assert (await producer.send("t")).sequence == 2, "sequences go on"

    run(test())


def test_a_producer_that_another_session_opened_is_over() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        receipts = [await producer.send("t") for _ in range(3)]
        await node.steps()
        node.acked(1, 1, code=errors.PRODUCER_FENCED)
        assert await receipts[0] == 1
        for receipt in receipts[1:]:
            with pytest.raises(errors.ConflictError, match="40903"):
                await receipt
        assert producer.closed
        assert node.closed == []
        node.lose()
        node.connect()
        await node.steps()
        assert len(node.asked) == 1, "it does not fight for its name"

    run(test())


def test_a_producer_can_be_over_before_anything_was_acknowledged_on_a_new_session() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        await producer.send("t")
        await node.steps()
        node.acked(1, 1)
        node.lose()
        node.connect()
        await node.steps()
        node.acked(2, 0, code=errors.PRODUCER_FENCED)
        assert producer.closed
        assert node.closed == [errors.NOT_CONNECTED]

    run(test())


def test_a_name_that_somebody_else_used_meanwhile_is_not_used_again() -> None:
    """Its sequences mean other messages at the node: what is sent again would be taken for stored."""

    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        receipt = await producer.send("t")
        node.published()
        node.lose()
        node.answers["producer.open"] = opened(2, last_sequence=7)
        node.connect()
        await node.until(lambda: producer.closed)
        assert node.published() == []
        with pytest.raises(errors.ConflictError, match="40903"):
            await receipt

    run(test())


def test_a_connection_that_is_lost_while_a_producer_is_opened_again_is_no_end() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        await producer.send("t")
        reply = node.answers.pop("producer.open")
        for _ in range(3):
            node.lose()
            node.connect()
            await node.steps()
        node.answers["producer.open"] = reply
        await node.steps()
        assert [one.sequences for one in node.published()] == [[1]]

    run(test())


# The end.


def test_close_waits_for_everything_and_tells_the_node() -> None:
    async def test() -> None:
        node = SpokenNode()
        async with await open_producer(node) as producer:
            receipt = await producer.send("t")
            close = asyncio.ensure_future(producer.close(forget=True))
            await node.steps()
            assert not close.done()
            node.acked(1, 1)
            node.answers["producer.close"] = None
            await node.steps()
            assert close.done()
            assert node.asked[-1] == ("producer.close", {"producer": 1, "forget": True})
            assert await receipt == 1
        with pytest.raises(errors.ConnectionLostError, match="60002"):
            await producer.send("t")
        assert [kind for kind, _, _ in node.events] == []

    run(test())


def test_close_with_a_limit_leaves_what_is_not_settled() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        receipt = await producer.send("t")
        await producer.close(timeout_s=0.01)
        with pytest.raises(errors.ConnectionLostError, match="60002"):
            await receipt

    run(test())


def test_acknowledgements_may_come_until_the_end_is_answered() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        await producer.send("t")
        node.acked(1, 1)
        close = asyncio.ensure_future(producer.close())
        await node.steps()
        node.acked(1, 1)
        assert node.closed == []
        node.answers["producer.close"] = None
        await node.steps()
        assert close.done()
        node.acked(1, 1)
        assert node.closed == [errors.MALFORMED_FRAME]

    run(test())


# A node that breaks the protocol.


@pytest.mark.parametrize(
    "header",
    [
        [2, 1, [], 0, []],
        [1, 3, [], 0, []],
        [1, -1, [], 0, []],
        [1, 1, [[0, 50310, ""]], 0, []],
        [1, 1, [[3, 50310, ""]], 0, []],
        [1, 2, [[1, 50310, ""], [1, 50310, ""]], 0, []],
        [1, 2, [[1, 0, ""]], 0, []],
        [1, 2, [[1, 50310]], 0, []],
        [1, 2, [[1, "50310", ""]], 0, []],
        [1, 2, {}, 0, []],
        [1, 2, []],
        [1, 2, [], None, []],
        [1, True, [], 0, []],
        [1, 2, [], 0, [[0, 1]]],
        [1, 2, [], 0, [[2, 2]]],
        [1, 1, [], 0, [[2, 1]]],
        [1, 2, [], 0, [[1, 0]]],
        [1, 2, [], 0, [1]],
        [1, 2, [], 0, None],
        "no array",
    ],
)
def test_an_acknowledgement_that_cannot_be_closes_the_session(header: Any) -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        await producer.send("t")
        await producer.send("t")
        await node.steps()
        node.hear(wire.ACKED, header)
        assert node.closed == [errors.MALFORMED_FRAME]
        assert producer.unacknowledged == 2, "what is unknown is sent again"

    run(test())


def test_an_acknowledgement_of_a_node_of_0_1_0_is_taken() -> None:
    """It does not say what no endpoint took."""

    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        await producer.send("t")
        await node.steps()
        node.hear(wire.ACKED, [1, 1, [], 0])
        assert (node.closed, producer.unacknowledged) == ([], 0)

    run(test())


def test_an_acknowledgement_that_falls_closes_the_session() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        for _ in range(3):
            await producer.send("t")
        await node.steps()
        node.acked(1, 2)
        node.acked(1, 1)
        assert node.closed == [errors.MALFORMED_FRAME]

    run(test())


def test_nothing_is_acknowledged_again_before_it_was_sent_again() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        await producer.send("t")
        node.lose()
        node.welcome["rounds"] = 1
        node.connect()
        node.session.publish_guaranteed = lambda *_: 0  # type: ignore[method-assign]
        node.connection.session = None
        await node.steps()
        node.acked(2, 1)
        assert node.closed[-1] == errors.MALFORMED_FRAME
        assert producer.unacknowledged == 1

    run(test())


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"producer": 0, "name": "p", "last_sequence": 0, "window": 1},
        {"producer": 1, "name": "p", "last_sequence": -1, "window": 1},
        {"producer": 1, "name": "p", "last_sequence": 0, "window": 0},
        {"producer": 1, "name": "p", "last_sequence": 0, "window": 4_097},
        {"producer": 1, "name": 5, "last_sequence": 0, "window": 1},
        None,
        [1, "p", 0, 1],
    ],
)
def test_an_answer_of_another_shape_closes_the_session(value: Any) -> None:
    async def test() -> None:
        node = SpokenNode()
        node.answers["producer.open"] = value
        task = asyncio.ensure_future(node.guaranteed.producer("p", 255, None, 0.05))
        await node.steps()
        assert node.closed == [errors.MALFORMED_FRAME]
        task.cancel()

    run(test())


def test_the_client_holds_no_more_than_its_window_while_the_node_is_away() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node, window=50)
        node.lose()
        tasks = [asyncio.ensure_future(producer.send("t", b"x")) for _ in range(200)]
        many = asyncio.ensure_future(producer.publish_many([("t", b"x")] * 1_000))
        await node.steps()
        assert producer.unacknowledged == 50
        for task in (*tasks, many):
            task.cancel()

    run(test())


def test_a_producer_that_is_closed_before_everything_is_settled_is_closed_at_the_node() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        await producer.send("t")
        node.answers["producer.close"] = {}
        await producer.close(timeout_s=0.01)
        await node.steps()
        assert node.asked[-1] == ("producer.close", {"producer": 1, "forget": False})

    run(test())


def test_a_close_that_the_node_does_not_answer_in_time_is_asked_for_once() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        await producer.close(timeout_s=0.01)
        assert [frame.header[1] for frame in node.sent(wire.REQUEST)] == ["producer.close"]

    run(test())


def test_a_producer_whose_opening_is_cancelled_when_the_answer_comes_is_closed_at_the_node() -> None:
    async def test() -> None:
        node = SpokenNode()
        opening = asyncio.ensure_future(node.guaranteed.producer("p", 255, None, 5.0))
        await asyncio.sleep(0)
        node.answers |= {"producer.open": opened(1), "producer.close": {}}
        node.serve()
        opening.cancel()
        await node.steps()
        assert opening.cancelled()
        assert node.asked[-1] == ("producer.close", {"producer": 1, "forget": False})
        assert node.guaranteed.stats["producers"] == 0

    run(test())
