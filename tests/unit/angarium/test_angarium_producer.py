"""Producers: rounds, the window, receipts, and what happens when a connection comes and goes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from angarium.message import Message
from angarium.slots import slot_table
from tests.unit.angarium.spoken_node import LIMIT_S, SpokenNode, open_producer, opened, run

if TYPE_CHECKING:
    from angarium.client.publishing.receipts import Acknowledgement


# Opening.


def test_a_producer_asks_for_its_name_and_window() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node, "orders", 100)
        assert node.asked == [("producer.open", {"name": "orders", "window": 100, "resume": False})]
        assert (producer.name, producer.window, producer.last_sequence) == ("orders", 100, 0)

    run(test())


def test_a_producer_without_a_name_gets_one() -> None:
    async def test() -> None:
        assert (await open_producer(SpokenNode(), "")).name == "made-up"

    run(test())


@pytest.mark.parametrize("window", [0, 256, -1, True, "5"])
def test_a_window_out_of_range_is_refused(window: Any) -> None:
    async def test() -> None:
        with pytest.raises(errors.InvalidRequestError, match="40018"):
            await SpokenNode().guaranteed.producer("p", window, None, 1.0)

    run(test())


def test_who_waits_for_the_producer_of_all_gives_up_in_time_while_others_wait_for_it() -> None:
    """Its first messages come together while the node is not there: each waits so long, and not one after the other."""

    async def test() -> None:
        node = SpokenNode()
        patient = asyncio.ensure_future(node.guaranteed.default_producer(LIMIT_S))
        await node.until(lambda: node.sent(wire.REQUEST))
        async with asyncio.timeout(LIMIT_S / 2):
            with pytest.raises(errors.TimeoutExpiredError, match=r"did not answer within 0\.01 s"):
                await node.guaranteed.default_producer(0.01)
        patient.cancel()
        node.answers["producer.open"] = opened(2, "made-up")
        later = asyncio.ensure_future(node.guaranteed.default_producer(LIMIT_S))
        await node.until(later.done)
        assert await node.guaranteed.default_producer(LIMIT_S) is later.result()

    run(test())


def test_a_refused_producer_raises_and_leaves_nothing_behind() -> None:
    async def test() -> None:
        node = SpokenNode()
        node.answers["producer.open"] = errors.error_for(errors.GUARANTEED_SEND_DENIED)
        task = asyncio.ensure_future(node.guaranteed.producer("p", 255, None, 5.0))
        await node.until(task.done)
        with pytest.raises(errors.ForbiddenError, match="40312"):
            task.result()
        assert node.guaranteed.stats["producers"] == 0

    run(test())


def test_a_node_that_is_starting_is_asked_again() -> None:
    async def test() -> None:
        node = SpokenNode()
        replies = iter([errors.error_for(errors.CONTROLLER_UNAVAILABLE), opened(1)])
        node.answers["producer.open"] = lambda _: next(replies)
        task = asyncio.ensure_future(node.guaranteed.producer("p", 255, None, 5.0))
        await node.until(task.done)
        assert task.result().name == "p"
        assert len(node.asked) == 2

    run(test())


def test_a_node_that_never_answers_is_not_waited_for_longer_than_asked() -> None:
    async def test() -> None:
        node = SpokenNode()
        with pytest.raises(errors.TimeoutExpiredError):
            await node.guaranteed.producer("p", 255, None, 0.02)
        (frame,) = node.sent(wire.REQUEST)
        node.answer(frame.header[0], opened(1))
        assert [frame.header[1:] for frame in node.sent(wire.REQUEST)] == [
            ["producer.close", {"producer": 1, "forget": False}]
        ]

    run(test())


# Sequences and rounds.


@pytest.mark.requirement("R186", "R191")
def test_sequences_go_on_above_what_the_node_knows() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node, last_sequence=41)
        first = await producer.send("t", b"a")
        second = await producer.send("t", b"b")
        assert (first.sequence, second.sequence, producer.last_sequence) == (42, 43, 43)

    run(test())


def test_the_first_of_a_step_leaves_at_once_and_the_others_together() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        await producer.send("t", b"0")
        assert [one.payloads for one in node.published()] == [[b"0"]]
        for number in (1, 2, 3):
            await producer.send("t", b"%d" % number)
        assert node.published() == []
        await node.steps(1)
        assert [one.payloads for one in node.published()] == [[b"1", b"2", b"3"]]

    run(test())


def test_a_full_round_is_half_a_window() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node, window=10)
        for number in range(9):
            await producer.send("t", b"%d" % number)
        assert [len(one.sequences) for one in node.published()] == [1, 5]
        await node.steps(1)
        assert [len(one.sequences) for one in node.published()] == [3]

    run(test())


@pytest.mark.parametrize(("window", "rounds"), [(1, [1]), (2, [1, 1]), (10, [5, 5]), (255, [127, 127])])
def test_two_rounds_are_on_their_way_at_a_time(window: int, rounds: list[int]) -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node, window=window)
        task = asyncio.ensure_future(producer.publish_many([("t", b"")] * 1_000))
        await node.steps(3)
        assert [len(one.sequences) for one in node.published()] == rounds
        task.cancel()

    run(test())


def test_rows_are_cut_by_the_owner_of_their_topic() -> None:
    async def test() -> None:
        node = SpokenNode(workers=3, slots=slot_table(3), epoch=9)
        producer = await open_producer(node)
        task = asyncio.ensure_future(producer.publish_many([(f"topic/{n}", b"%d" % n) for n in range(60)]))
        await node.steps(2)
        (frame,) = node.sent(wire.PUBLISH)
        assert frame.header[1] == 9
        assert len(frame.header[3]) == len(frame.batches) == 3
        task.cancel()

    run(test())


def test_a_new_table_cuts_what_was_not_sent() -> None:
    async def test() -> None:
        node = SpokenNode(rounds=1)
        producer = await open_producer(node)
        await producer.send("a", b"")
        await producer.send("b", b"")
        assert len(node.sent(wire.PUBLISH)) == 1
        node.hear(wire.TABLE, [5, slot_table(2)])
        node.retire()
        (frame,) = node.sent(wire.PUBLISH)
        assert frame.header[1] == 5

    run(test())


def test_a_sequence_of_the_application_must_rise() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node, last_sequence=100)
        assert (await producer.send("t", b"", sequence=7)).sequence == 7
        assert (await producer.send("t", b"", sequence=9)).sequence == 9
        for wrong in (9, 8, 0, -1, True, 1 << 62, "x"):
            with pytest.raises(errors.InvalidRequestError, match="40027"):
                await producer.send("t", b"", sequence=wrong)  # type: ignore[arg-type]
        assert (await producer.send("t", b"")).sequence == 101
        await node.steps(1)
        assert [one.sequences for one in node.published()] == [[7], [9, 101]]

    run(test())


def test_sequences_far_apart_go_in_rounds_of_their_own() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        for sequence in (1, 2, 1 << 40):
            await producer.send("t", b"", sequence=sequence)
        await node.steps(1)
        assert [one.sequences for one in node.published()] == [[1], [2], [1 << 40]]
        node.acked(1, 1 << 40)
        assert producer.unacknowledged == 0

    run(test())


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"topic": ""}, errors.INVALID_TOPIC),
        ({"topic": "a", "payload": "text"}, errors.INVALID_ARGUMENT),
        ({"topic": 5}, errors.INVALID_ARGUMENT),
        ({"topic": "a", "mode": "direct"}, errors.INVALID_ARGUMENT),
        ({"topic": "a", "queue": "q"}, errors.INVALID_ARGUMENT),
        ({"topic": "a", "payload": b"x" * ((1 << 20) + 1)}, errors.MESSAGE_TOO_LARGE),
    ],
)
def test_an_illegal_message_is_not_sent_and_takes_no_sequence(arguments: dict[str, Any], code: int) -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        with pytest.raises(errors.InvalidRequestError) as caught:
            await producer.send(**arguments)
        assert caught.value.code == code
        assert (await producer.send("a")).sequence == 1

    run(test())


def test_a_message_for_a_queue_goes_to_its_topic_and_the_mode_can_be_chosen() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        await producer.send(queue="orders")
        await producer.send("t", mode="non-persistent", ttl_ms=50)
        await node.steps(1)
        rows = [wire.unpack(frame.batches[0])[0] for frame in node.sent(wire.PUBLISH)]
        assert [(row[1], row[2]) for row in rows] == [("#P2P/QUE/orders", 1), ("t", 2)]
        assert rows[1][3] == [50, 0, None, None]

    run(test())


# The window.


@pytest.mark.requirement("R186")
def test_a_sender_waits_for_room_in_the_window_and_nothing_else() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node, window=3)
        for _ in range(3):
            await producer.send("t", b"")
        fourth = asyncio.ensure_future(producer.send("t", b""))
        await node.steps()
        assert not fourth.done()
        assert sum(len(one.sequences) for one in node.published()) == 3
        node.acked(1, 1)
        await node.steps()
        assert fourth.result().sequence == 4
        assert [one.sequences for one in node.published()] == [[4]]
        assert producer.unacknowledged == 3

    run(test())


def test_who_came_first_is_sent_first() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node, window=1)
        await producer.send("t", b"0")
        tasks = [asyncio.ensure_future(producer.send("t", b"%d" % n)) for n in range(1, 6)]
        for upto in range(1, 6):
            await node.steps()
            node.acked(1, upto)
        await node.steps()
        assert [task.result().sequence for task in tasks] == [2, 3, 4, 5, 6]
        assert [one.payloads[0] for one in node.published()] == [b"0", b"1", b"2", b"3", b"4", b"5"]

    run(test())


def test_a_sender_that_gives_up_lets_the_next_one_go() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node, window=1)
        await producer.send("t", b"0")
        gone, stays = (asyncio.ensure_future(producer.send("t", name)) for name in (b"gone", b"stays"))
        await node.steps()
        gone.cancel()
        node.acked(1, 1)
        await node.steps()
        assert stays.done()
        assert [one.payloads for one in node.published()] == [[b"0"], [b"stays"]]

    run(test())


def test_bytes_are_a_window_too() -> None:
    async def test() -> None:
        node = SpokenNode(producer_bytes=5_000)
        producer = await open_producer(node)
        for _ in range(2):
            await producer.send("t", b"x" * 3_000)
        blocked = asyncio.ensure_future(producer.send("t", b"small"))
        await node.steps()
        assert not blocked.done(), "what is held has the bytes of a window"
        assert len(node.published()) == 2
        node.acked(1, 2)
        await node.steps()
        assert blocked.done()

    run(test())


def test_a_message_larger_than_the_window_of_bytes_still_passes() -> None:
    async def test() -> None:
        node = SpokenNode(producer_bytes=1_000)
        producer = await open_producer(node)
        for upto in (1, 2):
            receipt = await producer.send("t", b"x" * 100_000)
            await node.steps()
            node.acked(1, upto)
            assert receipt.done

    run(test())


def test_no_ingress_credit_no_round() -> None:
    async def test() -> None:
        node = SpokenNode(rounds=1)
        producer = await open_producer(node)
        await producer.send("t", b"0")
        await producer.send("t", b"1")
        await node.steps()
        assert [one.sequences for one in node.published()] == [[1]]
        node.retire()
        assert [one.sequences for one in node.published()] == [[2]]

    run(test())


# Receipts.


@pytest.mark.requirement("R163", "R177")
def test_a_receipt_gives_the_sequence_or_raises_the_refusal() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        stored, refused = await producer.send("t"), await producer.send("t")
        waiter = asyncio.ensure_future(_result(stored))
        await node.steps()
        assert not stored.done
        node.acked(1, 2, (2, errors.SPOOL_OVER_QUOTA, "queue q"))
        assert await stored == 1
        assert await waiter == 1
        with pytest.raises(errors.UnavailableError, match=r"50310.*queue q"):
            await refused
        assert refused.error is not None
        assert (producer.stats["acknowledged_messages"], producer.stats["refused_messages"]) == (1, 1)

    run(test())


async def _result(receipt: Any) -> int:
    sequence: int = await receipt
    return sequence


def test_many_may_wait_for_a_receipt_and_one_may_leave() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        receipt = await producer.send("t")
        tasks = [asyncio.ensure_future(_result(receipt)) for _ in range(3)]
        await node.steps()
        tasks[0].cancel()
        await node.steps()
        node.acked(1, 1)
        await node.steps()
        assert tasks[0].cancelled()
        assert [task.result() for task in tasks[1:]] == [1, 1]

    run(test())


def test_a_nack_may_come_before_the_acknowledgement_that_covers_it() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        receipts = [await producer.send("t") for _ in range(3)]
        await node.steps()
        node.acked(1, 0, (2, errors.ENDPOINT_SHUTDOWN, ""))
        assert [receipt.done for receipt in receipts] == [False, True, False]
        assert producer.unacknowledged == 3, "the window is given back by what covers it"
        node.acked(1, 3)
        assert [receipt.error is None for receipt in receipts] == [True, False, True]
        assert producer.unacknowledged == 0

    run(test())


@pytest.mark.requirement("R191")
def test_an_acknowledgement_may_end_inside_a_round() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        receipts = [await producer.send("t", b"x") for _ in range(6)]
        await node.steps()
        assert [len(one.sequences) for one in node.published()] == [1, 5]
        node.acked(1, 4)
        assert [receipt.done for receipt in receipts] == [True] * 4 + [False] * 2
        node.acked(1, 6)
        assert all(receipt.done for receipt in receipts)

    run(test())


def test_publish_waits_for_its_message() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        task = asyncio.ensure_future(producer.publish("t", b"x"))
        await node.steps()
        assert not task.done()
        node.acked(1, 1)
        await node.steps()
        assert task.result() == 1

    run(test())


@pytest.mark.requirement("R186")
def test_publish_many_uses_the_whole_window_and_reports() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node, window=20)
        messages = [("t", b"%d" % n) for n in range(95)]
        task = asyncio.ensure_future(producer.publish_many(iter(messages)))
        seen: list[bytes] = []
        upto = largest = 0
        while not task.done():
            await node.steps(2)
            for one in node.published():
                seen += one.payloads
                assert len(one.sequences) <= 10
            largest = max(largest, len(seen) - upto)
            if len(seen) > upto:
                upto = min(upto + 10, len(seen))
                nacks = [(s, errors.SPOOL_OVER_QUOTA, "") for s in (7, 61) if upto - 10 < s <= upto]
                node.acked(1, upto, *nacks)
        report = task.result()
        assert seen == [payload for _, payload in messages]
        assert largest == 20
        assert report.acknowledged == 93
        assert [(place, error.code) for place, error in report.refused] == [(6, 50310), (60, 50310)]

    run(test())


def test_publish_many_of_nothing_reports_nothing() -> None:
    async def test() -> None:
        producer = await open_producer(SpokenNode())
        assert await producer.publish_many([]) == (0, [], 0)

    run(test())


def test_publish_many_beside_single_messages_counts_its_own() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node, window=8)
        task = asyncio.ensure_future(producer.publish_many([("t", b"%d" % n) for n in range(20)]))
        single = [asyncio.ensure_future(producer.publish("t", b"single")) for _ in range(5)]
        payloads: list[bytes] = []
        while not (task.done() and all(one.done() for one in single)):
            await node.steps(2)
            published = node.published()
            payloads += [payload for one in published for payload in one.payloads]
            if published:
                node.acked(1, published[-1].sequences[-1], (published[0].sequences[0], 50310, ""))
        refused = dict(task.result().refused)
        assert task.result().acknowledged + len(refused) == 20
        assert [payload for payload in payloads if payload != b"single"] == [b"%d" % n for n in range(20)]
        for one in single:
            one.exception()  # Some of them are the refused ones.

    run(test())


def test_what_is_before_an_illegal_message_is_published_and_settled_before_it_is_told() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        task = asyncio.ensure_future(producer.publish_many([("t", b"1"), ("", b"2"), ("t", b"3")]))
        await node.steps()
        assert not task.done()
        assert [one.payloads for one in node.published()] == [[b"1"]]
        node.acked(1, 1)
        await node.steps()
        with pytest.raises(errors.InvalidRequestError, match="40004"):
            task.result()

    run(test())


def test_publish_many_takes_messages_and_refuses_direct_ones() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        mixed: list[Message | tuple[str, bytes]] = [Message("a", mode="persistent"), ("b", b""), Message("c")]
        task = asyncio.ensure_future(producer.publish_many(mixed))
        await node.steps()
        node.acked(1, 2)
        await node.steps()
        with pytest.raises(errors.InvalidRequestError, match="40018"):
            task.result()

    run(test())


def test_flush_waits_for_what_was_given_before_it() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        await producer.send("t")
        flush = asyncio.ensure_future(producer.flush())
        await node.steps()
        await producer.send("t")
        node.acked(1, 1)
        await node.steps()
        assert flush.done(), "the second message was given after it"
        with pytest.raises(errors.TimeoutExpiredError):
            await producer.flush(timeout_s=0.01)

    run(test())


@pytest.mark.requirement("R177")
def test_a_refusal_that_nobody_looked_at_is_told_by_flush() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        receipts = [await producer.send("t") for _ in range(4)]
        await node.steps()
        node.acked(1, 4, (1, 50310, "seen"), (2, 50310, "first"), (3, 50311, "second"))
        with pytest.raises(errors.UnavailableError, match="seen"):
            await receipts[0]
        with pytest.raises(errors.UnavailableError, match=r"50310.*sequence 2: first; 2 messages"):
            await producer.flush()
        await producer.flush()

    run(test())


def test_an_application_that_takes_acknowledgements_is_not_told_twice() -> None:
    async def test() -> None:
        node = SpokenNode()
        told: list[Acknowledgement] = []
        producer = await open_producer(node, on_ack=told.append)
        for _ in range(3):
            await producer.send("t")
        await node.steps()
        node.acked(1, 1)
        node.acked(1, 3, (3, 50310, "full"))
        assert [one.upto for one in told] == [1, 3]
        assert [(sequence, error.code) for sequence, error in told[1].refused] == [(3, 50310)]
        await producer.flush()

    run(test())


def test_an_on_ack_that_raises_harms_nobody() -> None:
    async def test() -> None:
        node = SpokenNode()

        def on_ack(_: object) -> None:
            raise ValueError

        producer = await open_producer(node, on_ack=on_ack)
        receipt = await producer.send("t")
        await node.steps()
        node.acked(1, 1)
        assert await receipt == 1

    run(test())
