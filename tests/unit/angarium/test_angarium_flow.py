"""Flows: credit, outcomes, reading, and what the application sees of a message."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from angarium.client.protocol.messages import Settlement
from angarium.client.protocol.send_window import guaranteed_row
from angarium.message import DeliveryMode, message_of, pack_rows
from tests.unit.angarium.spoken_node import SpokenNode, bound, open_flow, rows, run

if TYPE_CHECKING:
    from angarium.client.protocol.messages import GuaranteedMessage


def settles(node: SpokenNode) -> list[Any]:
    """Give the headers of what was settled since the last call."""
    return [frame.header for frame in node.sent(wire.SETTLE)]


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last + 1)]


# Binding.


def test_a_flow_says_what_it_wants_and_grants_a_window() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, "orders", window=10, window_bytes=5_000, selector="a = 1", max_unacked=7)
        ((operation, arguments),) = node.asked
        assert operation == "flow.bind"
        assert arguments == {
            "kind": "queue",
            "name": "orders",
            "browse": False,
            "selector": "a = 1",
            "topic": None,
            "temporary": False,
            "attributes": {},
            "active_indication": True,
            "no_local": False,
            "max_unacked": 7,
            "messages": 10,
            "bytes": 5_000,
        }
        assert (flow.name, flow.active, flow.access_type) == ("orders", True, "exclusive")
        assert flow.topic == "#P2P/QUE/orders"

    run(test())


@pytest.mark.parametrize(
    "wrong",
    [
        {"window": 0},
        {"window": True},
        {"window": 1_000_001},
        {"window_bytes": 0},
        {"ack": "never"},
        {"ack_threshold_percent": 0},
        {"ack_threshold_percent": 101},
        {"ack_delay_ms": -1},
        {"max_unacked": 0},
        {"kind": "stack"},
        {"topic": "a"},
        {"subscriptions": ("a",)},
        {"attributes": {"a": 1}},
        {"name": ""},
        {"name": None},
        {"max_messages": 0},
    ],
)
def test_an_argument_out_of_range_is_refused(wrong: dict[str, Any]) -> None:
    async def test() -> None:
        with pytest.raises(errors.InvalidRequestError, match="40018"):
            await open_flow(SpokenNode(), **{"name": "q", **wrong})

    run(test())


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"window": 0}, "window is 0, from 1 to 1000000 is possible"),
        ({"max_unacked": "7"}, "max_unacked is '7', from 1 to 2147483648 is possible"),
        ({"ack": "never"}, "ack is 'never', not 'auto' or 'manual'"),
        ({"kind": "stack"}, "kind is 'stack', not 'queue' or 'topic-endpoint'"),
        ({"topic": "a"}, "add_queue_subscription"),
        ({"subscriptions": ("a",)}, "add_queue_subscription"),
        ({"attributes": {"a": 1}}, "create_queue"),
    ],
)
def test_a_refused_argument_is_told_with_what_is_possible(wrong: dict[str, Any], told: str) -> None:
    async def test() -> None:
        with pytest.raises(errors.InvalidRequestError, match=told):
            await open_flow(SpokenNode(), **{"name": "q", **wrong})

    run(test())


def test_a_refused_bind_raises_and_leaves_nothing_behind() -> None:
    async def test() -> None:
        node = SpokenNode()
        node.answers["flow.bind"] = errors.error_for(errors.MAX_BIND_COUNT_EXCEEDED)
        with pytest.raises(errors.UnavailableError, match="50312"):
            await open_flow(node)
        assert node.guaranteed.stats["flows"] == 0

    run(test())


@pytest.mark.requirement("R102", "R106", "R107", "R108")
def test_a_temporary_queue_is_made_by_the_bind_with_its_subscriptions() -> None:
    async def test() -> None:
        node = SpokenNode()
        more: dict[str, Any] = {"subscriptions": ("a/>", "b"), "attributes": {"max_ttl_s": 5}}
        flow = await open_flow(node, "", bound(1, "made-up"), temporary=True, **more)
        assert flow.name == "made-up"
        ((_, arguments),) = node.asked
        assert arguments["temporary"] is True
        assert arguments["attributes"] == {"max_ttl_s": 5, "subscriptions": ["a/>", "b"]}

    run(test())


# What a message says.


@pytest.mark.requirement("R151", "R159", "R160", "R161")
def test_a_message_knows_where_it_stands_and_where_it_was() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, ack="manual")
        some = rows([b"a", b"b", b"c"])
        some[1] = (1, "t", wire.MODE_NON_PERSISTENT, None, None, b"b")
        some[2] = (5, "t", wire.MODE_DIRECT, None, None, b"c")
        part = [3, 3, [[7, 1], [20, 2]], [0, 0, 2], [10, 20, 30], [None, None, ["queue", "x", "expired"]]]
        node.hear(wire.MESSAGES, [1, [part]], pack_rows(some))
        first, second, third = [await flow.receive() for _ in range(3)]
        assert [one.position for one in (first, second, third)] == [7, 20, 21]
        assert [one.mode for one in (first, second, third)] == [
            DeliveryMode.PERSISTENT,
            DeliveryMode.NON_PERSISTENT,
            DeliveryMode.NON_PERSISTENT,
        ]
        assert [one.stored_ms for one in (first, second, third)] == [10, 20, 30]
        assert (first.redelivered, first.delivery_count, first.origin) == (False, 1, None)
        assert (third.redelivered, third.delivery_count, third.partition) == (True, 3, 3)
        assert third.origin == ("queue", "x", "expired")
        assert flow.stats["redelivered_messages"] == 1

    run(test())


def test_a_message_is_published_again_in_the_mode_that_it_says() -> None:
    """One that was published as direct came from a queue, and is to be acknowledged wherever it goes."""

    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, ack="manual")
        some = rows([b"a", b"b", b"c"])
        for at, bits in enumerate((wire.MODE_DIRECT, wire.MODE_PERSISTENT, wire.MODE_NON_PERSISTENT)):
            some[at] = (at, "t", bits | wire.FLAG_DTO, (9, 0, None, "k"), None, b"x")
        node.hear(wire.MESSAGES, [1, [[0, 3, [[1, 3]], None, 1_000, None]]], pack_rows(some))
        came = [await flow.receive() for _ in range(3)]
        for message, mode in zip(came, ("non-persistent", "persistent", "non-persistent"), strict=True):
            again = guaranteed_row(message)
            assert message_of(again).mode == message.mode == mode
            assert again[2] & ~wire.FLAG_MODE == wire.FLAG_DTO
            assert again[3:] == some[0][3:]

    run(test())


def test_a_batch_gives_columns_slices_and_messages() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, ack="manual")
        node.messages(1, 5, numbered(0, 9))
        batches = flow.batches()
        batch = await anext(batches)
        assert (batch.payloads, list(batch.positions)) == (numbered(0, 9), list(range(5, 15)))
        assert batch.topics == ["t"] * 10
        assert [one.position for one in batch] == list(range(5, 15))
        assert (batch[2].position, batch[-1].position) == (7, 14)
        some = batch[3:6]
        assert not isinstance(some, list)
        assert some.payloads == [b"3", b"4", b"5"]
        assert some[1:].payloads == [b"4", b"5"]  # type: ignore[union-attr]
        assert [one.payload for one in batch[::4]] == [b"0", b"4", b"8"]
        with pytest.raises(IndexError):
            batch[10]

    run(test())


def test_a_batch_has_the_size_that_was_asked_for_at_most() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, ack="manual")
        node.messages(1, 1, numbered(1, 5))
        sizes = []
        async for batch in flow.batches(2):
            sizes.append(len(batch))
            if sum(sizes) == 5:
                break
        assert sizes == [2, 2, 1]
        with pytest.raises(errors.InvalidRequestError):
            await anext(flow.batches(0))

    run(test())


# Outcomes.


@pytest.mark.requirement("R188", "R189", "R191")
def test_accepted_messages_are_told_in_one_range_at_the_threshold() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, window=10, ack="manual", ack_delay_ms=60_000)
        node.messages(1, 1, numbered(1, 10))
        messages = [await flow.receive() for _ in range(10)]
        for message in messages[:5]:
            message.accept()
        await node.steps()
        assert settles(node) == []
        messages[5].accept()
        assert settles(node) == [[1, wire.OUTCOME_ACCEPTED, [[0, 1, 6]]]]
        assert flow.stats["accepted_messages"] == 6

    run(test())


@pytest.mark.requirement("R189")
def test_the_threshold_can_be_chosen_and_heeds_the_limit_of_the_endpoint() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(
            node, answer=bound(1, max_unacked=4), window=100, ack="manual", ack_threshold_percent=50
        )
        node.messages(1, 1, numbered(1, 10))
        (await flow.receive()).accept()
        assert settles(node) == []
        (await flow.receive()).accept()
        assert settles(node) == [[1, wire.OUTCOME_ACCEPTED, [[0, 1, 2]]]]

    run(test())


@pytest.mark.requirement("R188")
def test_accepted_messages_wait_for_a_short_time_only() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, ack="manual", ack_delay_ms=5)
        node.messages(1, 1, numbered(1, 3))
        (await flow.receive()).accept()
        frames: list[Any] = []

        def has_settled() -> bool:
            frames.extend(settles(node))
            return bool(frames)

        await node.until(has_settled)
        assert frames == [[1, wire.OUTCOME_ACCEPTED, [[0, 1, 1]]]]

    run(test())


def test_failed_and_rejected_messages_are_told_at_the_end_of_the_step() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, ack="manual", ack_delay_ms=60_000)
        node.messages(1, 1, numbered(1, 6))
        messages = [await flow.receive() for _ in range(6)]
        messages[0].accept()
        for message in messages[1:3]:
            message.fail()
        flow.reject(messages[4:])
        assert settles(node) == []
        await node.steps(1)
        assert settles(node) == [[1, 0, [[0, 1, 1]]], [1, 2, [[0, 2, 3]]], [1, 3, [[0, 5, 6]]]]

    run(test())


def test_positions_in_any_order_become_the_fewest_ranges() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, ack="manual", ack_delay_ms=60_000, window=20)
        node.messages(1, 1, numbered(1, 8), partition=0)
        node.messages(1, 1, numbered(1, 4), partition=1)
        messages = [await flow.receive() for _ in range(12)]
        for number in (7, 2, 8, 0, 1, 9, 11, 5, 4, 3):
            messages[number].accept()
        flow._binding.tell()
        assert settles(node) == [[1, 0, [[0, 1, 6], [0, 8, 8], [1, 1, 2], [1, 4, 4]]]]
        assert flow.stats["untold_messages"] == 0

    run(test())


def test_a_settlement_joins_neighbours_of_one_partition() -> None:
    settlement = Settlement()
    for position in (7, 2, 8, 1, 4, 5, 3):
        settlement.add(0, position, position)
    settlement.add(1, 9, 12)
    settlement.add(1, 13, 13)
    settlement.validate()
    assert settlement.messages == 12
    assert settlement.take() == [(0, 1, 5), (0, 7, 8), (1, 9, 13)]
    assert settlement.take() == []
    assert settlement.messages == 0


def test_a_message_is_settled_once_and_what_is_said_first_counts() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, ack="manual", ack_delay_ms=60_000)
        node.messages(1, 1, numbered(1, 4))
        batch = await anext(flow.batches())
        assert not batch[1].settled
        batch[1].reject()
        assert batch[1].settled
        batch[1].accept()
        flow.accept(batch)
        batch.fail()
        await node.steps()
        assert settles(node) == [[1, 0, [[0, 1, 1], [0, 3, 4]]], [1, 3, [[0, 2, 2]]]]

    run(test())


def test_many_ranges_go_in_several_frames() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, ack="manual", window=10_000, ack_delay_ms=60_000)
        node.messages(1, 1, numbered(1, 5_000))
        batch = await anext(flow.batches())
        flow.reject(batch[number] for number in range(0, 5_000, 2))
        await node.steps(1)
        frames = settles(node)
        assert [len(header[2]) for header in frames] == [1_000, 1_000, 500]
        assert sum(last - first + 1 for header in frames for _, first, last in header[2]) == 2_500

    run(test())


def test_a_loop_accepts_a_message_when_it_asks_for_the_next() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, window=1)
        node.messages(1, 1, [b"1"])
        loop = flow.__aiter__()
        message = await anext(loop)
        await node.steps()
        assert not message.settled
        following = asyncio.ensure_future(anext(loop))
        await node.steps()
        assert settles(node) == [[1, 0, [[0, 1, 1]]]]
        following.cancel()

    run(test())


def test_a_loop_does_not_accept_what_was_settled_or_what_it_was_left_with() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, ack_delay_ms=60_000)
        node.messages(1, 1, numbered(1, 4))
        async for message in flow:
            if message.position == 2:
                message.fail()
            if message.position == 3:
                break
        flow._binding.tell()
        assert settles(node) == [[1, 0, [[0, 1, 1]]], [1, 2, [[0, 2, 2]]]]
        assert (await flow.receive()).position == 4, "another reader goes on behind it"

    run(test())


def test_receive_accepts_the_message_before_it() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, ack_delay_ms=60_000)
        node.messages(1, 1, numbered(1, 2))
        first = await flow.receive()
        assert not first.settled
        second = await flow.receive()
        assert first.settled
        with pytest.raises(errors.TimeoutExpiredError):
            await flow.receive(timeout_s=0.01)
        assert second.settled

    run(test())


def test_batches_are_accepted_when_the_next_one_is_asked_for() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, ack_delay_ms=60_000)
        node.messages(1, 1, numbered(1, 4))
        node.messages(1, 9, numbered(1, 4))
        batches = flow.batches()
        await anext(batches)
        assert flow.stats["accepted_messages"] == 0
        await anext(batches)
        assert flow.stats["accepted_messages"] == 4

    run(test())


# Callbacks.


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("kind", [ValueError, asyncio.CancelledError])
def test_a_callback_that_returns_accepts_and_one_that_raises_fails(
    kind: type[BaseException], is_async: bool
) -> None:
    async def test() -> None:
        node = SpokenNode()

        def callback(message: GuaranteedMessage) -> None:
            if message.payload == b"2":
                raise kind

        async def async_callback(message: GuaranteedMessage) -> None:
            callback(message)

        chosen = async_callback if is_async else callback
        flow = await open_flow(node, callback=chosen, ack_delay_ms=60_000)
        node.messages(1, 1, numbered(1, 3))
        await node.steps()
        assert settles(node) == [[1, 0, [[0, 1, 1], [0, 3, 3]]], [1, 2, [[0, 2, 2]]]]
        assert flow.stats["callback_errors"] == 1

    run(test())


def test_an_async_callback_is_awaited_before_the_next_message() -> None:
    async def test() -> None:
        node = SpokenNode()
        seen: list[int] = []
        gate = asyncio.Event()

        async def callback(message: GuaranteedMessage) -> None:
            seen.append(message.position)
            await gate.wait()

        flow = await open_flow(node, callback=callback)
        node.messages(1, 1, numbered(1, 3))
        await node.steps()
        assert seen == [1]
        gate.set()
        await node.until(lambda: seen == [1, 2, 3])
        await flow.close(timeout_s=0)
        await asyncio.gather(*flow._binding.tasks)

    run(test())


def test_a_callback_leaves_the_loop_its_turn() -> None:
    async def test() -> None:
        node = SpokenNode()
        seen: list[int] = []
        await open_flow(node, window=5_000, callback=lambda message: seen.append(message.position))
        node.messages(1, 1, numbered(1, 2_500))
        assert len(seen) == 1_000
        await node.steps(3)
        assert len(seen) == 2_500

    run(test())


# Credit.


@pytest.mark.requirement("R186", "R187")
def test_credit_is_renewed_as_the_application_takes_messages() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, window=8, window_bytes=1 << 20, ack="manual")
        node.messages(1, 1, numbered(1, 8))
        granted = []
        for _ in range(8):
            await flow.receive()
            granted += [frame.header for frame in node.sent(wire.FLOW_CREDIT)]
        assert granted == [[1, 12, (1 << 20) + 4 * 65], [1, 16, (1 << 20) + 8 * 65]]

    run(test())


def test_credit_in_bytes_is_renewed_too() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, window=100, window_bytes=1_000, ack="manual")
        node.messages(1, 1, [b"x" * 436, b"y"])
        await anext(flow.batches(1))
        assert [frame.header for frame in node.sent(wire.FLOW_CREDIT)] == [[1, 101, 1_500]]

    run(test())


def test_who_reads_nothing_gets_no_more_credit() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, window=8)
        node.messages(1, 1, numbered(1, 8))
        await node.steps()
        assert node.sent(wire.FLOW_CREDIT) == []
        assert flow.buffered == 8

    run(test())


def test_a_window_of_one_is_renewed_with_every_message() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, window=1, ack="manual")
        for position in (1, 2, 3):
            node.messages(1, position, [b"x"])
            await flow.receive()
            (frame,) = node.sent(wire.FLOW_CREDIT)
            assert frame.header[:2] == [1, position + 1]

    run(test())


def test_who_wants_a_few_messages_asks_for_no_more() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, window=4, max_messages=6, ack="manual")
        assert node.asked[0][1]["messages"] == 4
        node.messages(1, 1, numbered(1, 4))
        for _ in range(4):
            await flow.receive()
        node.messages(1, 5, numbered(5, 6))
        await flow.receive()
        assert [frame.header[1] for frame in node.sent(wire.FLOW_CREDIT)] == [6]
        node.lose()
        node.connect()
        await node.steps()
        assert node.asked[1][1]["messages"] == 1, "five were handed out, the sixth was thrown away"

    run(test())


@pytest.mark.parametrize("wanted", [1, 3, 9, 10, 11, 57, 100])
def test_who_wants_a_number_of_messages_gets_them_whatever_the_window(wanted: int) -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, window=10, max_messages=wanted, ack="manual")
        granted, given = min(wanted, 10), 0
        while given < wanted:
            assert granted > given, "it waits for what it does not ask for"
            node.messages(1, given + 1, numbered(given + 1, granted))
            for _ in range(granted - given):
                await flow.receive()
            given = granted
            granted = max([granted, *(frame.header[1] for frame in node.sent(wire.FLOW_CREDIT))])
        assert granted == wanted

    run(test())


def test_a_flow_that_ends_asks_for_nothing_more() -> None:
    """What it asked for would come, and count as delivered, for nothing."""

    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, window=4, ack="manual")
        node.messages(1, 1, numbered(1, 4))
        await flow.receive()
        await flow.close(timeout_s=0)
        assert node.sent(wire.FLOW_CREDIT) == []

    run(test())


# Browsers.


@pytest.mark.requirement("R150")
def test_a_browser_looks_and_settles_nothing() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, browse=True, selector="a = 1")
        assert node.asked[0][1].items() >= {"browse": True, "selector": "a = 1"}.items()
        node.messages(1, 1, numbered(1, 3))
        seen = []
        async for message in flow:
            seen.append(message.position)
            if len(seen) == 3:
                break
        with pytest.raises(errors.InvalidRequestError, match="browser"):
            message.accept()
        flow._binding.tell()
        assert seen == [1, 2, 3]
        assert settles(node) == []

    run(test())


# The end.


def test_close_tells_what_is_known_and_unbinds() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, ack="manual", ack_delay_ms=60_000)
        node.messages(1, 1, numbered(1, 3))
        (await flow.receive()).accept()
        reader = asyncio.ensure_future(_rest(flow))
        close = asyncio.ensure_future(flow.close())
        await node.steps(1)
        node.messages(1, 4, numbered(4, 5))
        assert [frame.operation for frame in node.sent()] == [wire.SETTLE, wire.REQUEST]
        node.session.guaranteed.validate()
        await node.steps()
        assert not close.done()
        node.answer(2, None)
        await node.steps()
        assert close.done()
        assert await reader == [b"2", b"3"], "what came before the end"
        assert flow.closed
        with pytest.raises(errors.ConnectionLostError, match="60002"):
            await flow.receive()
        await flow.close()
        node.messages(1, 6, [b"late"])
        assert node.closed == [errors.MALFORMED_FRAME], "nothing may come after the answer"

    run(test())


@pytest.mark.parametrize("takes", [True, False])
def test_what_the_application_has_not_seen_is_given_back_to_a_node_that_takes_it(*, takes: bool) -> None:
    async def test() -> None:
        node = SpokenNode(**({"takes_released": True} if takes else {}))
        node.answers["flow.unbind"] = None
        flow = await open_flow(node, ack="manual")
        node.messages(1, 1, numbered(1, 3))
        node.messages(1, 9, numbered(9, 10))
        await flow.receive()
        close = asyncio.ensure_future(flow.close())
        await node.until(close.done)
        given = {"released": [[0, 2, 3], [0, 9, 10]]} if takes else {}
        assert node.asked[-1] == ("flow.unbind", {"flow": 1, **given})
        assert flow.stats["dropped_messages"] == 4

    run(test())


def test_a_client_that_is_closed_gives_back_what_its_flows_have_not_seen_but_browsers_nothing() -> None:
    async def test() -> None:
        node = SpokenNode(takes_released=True)
        node.answers["flow.unbind"] = None
        flow = await open_flow(node)
        browser = await open_flow(node, browse=True)
        node.messages(1, 1, numbered(1, 3))
        node.messages(2, 1, numbered(1, 3))
        await flow.receive()
        await node.guaranteed.drain()
        node.serve()
        assert settles(node) == [[1, wire.OUTCOME_ACCEPTED, [[0, 1, 1]]]]
        assert node.asked[-1] == ("flow.unbind", {"flow": 1, "released": [[0, 2, 3]]})
        assert flow.closed
        assert not browser.closed

    run(test())


async def _rest(flow: Any) -> list[bytes]:
    return [message.payload async for message in flow]


def test_close_without_an_answer_ends_all_the_same() -> None:
    async def test() -> None:
        node = SpokenNode()
        async with await open_flow(node) as flow:
            await flow.close(timeout_s=0.01)
        assert flow.closed

    run(test())
