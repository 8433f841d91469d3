"""Readers of subscriptions and flows in other threads, without a client."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import Mock

import pytest

from angarium import errors, wire
from angarium.blocking.flow import SharedReader
from angarium.blocking.subscription import Subscription
from angarium.client.subscribing.mailbox import Chunk, Mailbox, Terms
from angarium.message import Delivery
from tests.unit.angarium.fake_portal import FakePortal
from tests.unit.angarium.spoken_node import SpokenNode, bound, open_flow, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium.blocking.portal import Portal
    from angarium.message import Message, Row

LIMIT_S = 10.0


async def close(mailbox: Mailbox) -> None:
    mailbox.discard()


def subscribe(callback: Callable[[Message], None] | None = None) -> Subscription:
    terms = Terms()
    mailbox = Mailbox(terms.check(["a"]), terms, lambda _: None)
    return Subscription(cast("Portal", FakePortal()), mailbox, close, {}, callback, 1)


def deliver(subscription: Subscription, count: int) -> None:
    rows: list[Row] = [(index, "a", 0, None, None, b"%d" % index) for index in range(count)]
    subscription._mailbox.push(Chunk(rows, Delivery(rows, None, count), count))
    subscription._mailbox.wake()


def test_a_loop_that_closes_its_subscription_gets_nothing_more() -> None:
    subscription = subscribe()
    deliver(subscription, 5)
    for number, _ in enumerate(subscription):
        assert not number
        subscription.close()
    subscription = subscribe()
    deliver(subscription, 5)
    for number, _ in enumerate(subscription.batches(2)):
        assert not number
        subscription.close()


def test_a_callback_that_closes_its_subscription_is_called_no_more() -> None:
    seen: list[bytes] = []

    def callback(message: Message) -> None:
        seen.append(message.payload)
        subscription.close()

    subscription = subscribe(callback)
    deliver(subscription, 5)
    subscription._threads.join(LIMIT_S)
    assert seen == [b"0"]


@pytest.mark.parametrize("kind", [ValueError, asyncio.CancelledError])
def test_a_callback_that_raises_is_called_again(kind: type[BaseException]) -> None:
    numbers = itertools.count(1)

    def callback(message: Message) -> None:
        if next(numbers) == 5:
            subscription.close()
        raise kind

    subscription = subscribe(callback)
    deliver(subscription, 5)
    subscription._threads.join(LIMIT_S)
    assert subscription.stats["callback_errors"] == 5


def receive_while_others_get(receive: Callable[[], Any], wake: Callable[[], None]) -> float:
    """Give how long a reader waits that is woken again and again for what another thread has taken by then."""
    is_over = threading.Event()

    def others() -> None:
        while not is_over.wait(0.005):
            wake()

    began = time.monotonic()
    with ThreadPoolExecutor() as pool:
        pool.submit(others)
        reading = pool.submit(receive)
        try:
            with pytest.raises(errors.TimeoutExpiredError, match=r"no message within 0\.05 s"):
                reading.result(LIMIT_S)
        finally:
            is_over.set()
    return time.monotonic() - began


def test_receive_waits_so_long_and_no_longer_whatever_other_threads_get() -> None:
    subscription = subscribe()
    assert receive_while_others_get(lambda: subscription.receive(0.05), subscription._mailbox.wake) < LIMIT_S

    async def test() -> None:
        flow = await open_flow(SpokenNode(), ack="manual")
        reader = SharedReader(cast("Portal", FakePortal()), flow._binding, {}, None, 0)
        assert receive_while_others_get(lambda: reader.receive(0.05), flow._binding.wake) < LIMIT_S

    run(test())


def test_a_browser_reads_on_what_it_has_taken_and_goes_on_behind_that_on_the_next_connection() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, browse=True)
        reader = SharedReader(cast("Portal", FakePortal()), flow._binding, {}, None, 0)
        node.messages(1, 1, [b"1", b"2"])
        node.messages(1, 3, [b"3"])

        def payload() -> bytes:
            message = reader.next(0)
            assert message is not None
            return message.payload

        assert payload() == b"1"
        node.lose()
        assert payload() == b"2"
        with pytest.raises(errors.TimeoutExpiredError):
            reader.next(0)
        node.connect()
        await node.steps()
        node.messages(2, 1, [b"1", b"2", b"3", b"4"])
        assert [payload(), payload()] == [b"3", b"4"]

    run(test())


def test_what_was_thrown_away_with_its_connection_does_not_count_for_max_messages() -> None:
    """A loop that was asked for the next message before the connection was there again had ended with that."""

    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, ack="manual", window=4, max_messages=4)
        reader = SharedReader(cast("Portal", FakePortal()), flow._binding, {}, None, 0)
        node.messages(1, 1, [b"1", b"2", b"3", b"4"])
        assert reader.next(0) is not None
        node.lose()
        with pytest.raises(errors.TimeoutExpiredError):
            reader.next(0)
        node.connect()
        await node.until(lambda: len(node.asked) == 2)
        assert node.asked[1][1]["messages"] == 3
        await node.steps()
        node.messages(2, 2, [b"2", b"3", b"4"])
        for payload in (b"2", b"3", b"4"):
            message = reader.next(0)
            assert message is not None
            assert message.payload == payload
        assert reader.next(0) is None

    run(test())


def test_a_thread_that_is_interrupted_while_it_settles_can_go_on_settling() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, ack="manual", window=1, ack_delay_ms=0)
        portal = FakePortal()
        reader = SharedReader(cast("Portal", portal), flow._binding, {}, None, 0)
        node.messages(1, 1, [b"1"])
        post, portal.post = portal.post, Mock(side_effect=KeyboardInterrupt)  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            reader.next(0)
        portal.post = post  # type: ignore[method-assign]
        with pytest.raises(errors.TimeoutExpiredError):
            reader.next(0)
        assert flow._binding.window.taken_messages == 1, "nothing comes to who waits without giving back"
        node.messages(1, 2, [b"2"])
        message = reader.next(0)
        assert message is not None
        assert message.payload == b"2"
        assert flow._binding.window.taken_messages == 2

    run(test())


def test_what_was_handed_out_counts_for_max_messages_whatever_credit_was_given_back_for_it() -> None:
    """A thread that is at work on a message while the connection is lost and made again asks for nothing meanwhile."""

    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, ack="manual", window=100, max_messages=4)
        reader = SharedReader(cast("Portal", FakePortal()), flow._binding, {}, None, 0)
        node.messages(1, 1, [b"1", b"2", b"3"])
        first = [reader.next(0), reader.next(0)]
        assert [message.payload for message in first if message is not None] == [b"1", b"2"]
        node.lose()
        node.connect()
        await node.until(lambda: len(node.asked) == 2)
        assert node.asked[1][1]["messages"] == 2
        await node.steps()
        node.messages(2, 1, [b"1", b"2"], counts=[1, 1])
        again = [reader.next(0), reader.next(0)]
        assert [message.payload for message in again if message is not None] == [b"1", b"2"]
        assert reader.next(0) is None

    run(test())


@pytest.mark.parametrize("is_lost", [False, True])
def test_what_another_flow_gets_is_not_read_any_more(is_lost: bool) -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, answer=bound(1, partitions=[0, 1]), ack="manual")
        reader = SharedReader(cast("Portal", FakePortal()), flow._binding, {}, None, 0)
        node.messages(1, 1, [b"1", b"2", b"3"])
        message = reader.next(0)
        assert message is not None
        assert message.payload == b"1"
        if is_lost:
            node.lose()
        else:
            node.messages(1, 1, [b"4"], partition=1)
            node.hear(wire.INDICATION, [1, wire.FLOW_PARTITIONS, 0, [1]])
            other = reader.next(0)
            assert other is not None
            assert other.payload == b"4"
        with pytest.raises(errors.TimeoutExpiredError):
            reader.next(0)

    run(test())
