"""How deliveries find subscriptions, how they are read, and when the credit comes back."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium import errors
from angarium.client.subscribing import subscription
from angarium.client.subscribing.dispatch import Dispatcher
from angarium.client.subscribing.mailbox import Mailbox, Terms
from angarium.client.subscribing.subscription import Subscription
from angarium.message import Delivery, Message, Row
from angarium.topic import matches, parse_filter

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


class Bench:
    """A dispatcher, its subscriptions, and what they gave back."""

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.dispatcher = Dispatcher(self._release)
        self.closed: list[Mailbox] = []
        self.slow: list[Mailbox] = []

    def _release(self, messages: int, size_bytes: int) -> None:
        self.messages += messages
        self.bytes += size_bytes

    async def _close(self, mailbox: Mailbox) -> None:
        self.closed.append(mailbox)
        self.dispatcher.remove(mailbox)
        mailbox.discard()

    def subscribe(
        self, *filters: str, callback: Any = None, concurrency: int = 1, on_full: Any = "stall", **terms: Any
    ) -> Subscription:
        wanted = Terms(on_full=on_full, **terms)
        mailbox = Mailbox(tuple(map(parse_filter, filters)), wanted, self.slow.append)
        one = Subscription(mailbox, self._close, callback, concurrency)
        self.dispatcher.add(mailbox)
        return one

    def deliver(self, *topics: str, share: str | None = None, size: int = 0, head: bool = False) -> None:
        """Deliver one row per topic, and wake who got something."""
        rows: list[Row] = [(index, topic, 0, None, None, b"%d" % index) for index, topic in enumerate(topics)]
        delivery = Delivery(rows, share, size)
        delivery.head = rows[0] if head else None
        self.dispatcher.dispatch(delivery)
        for one in self.dispatcher.take_ready():
            one.wake()
        self.validate()

    def validate(self) -> None:
        self.dispatcher.validate()
        for one in self.dispatcher.subscriptions:
            one.validate()


def run(test: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    """Run a test in a loop with a bound."""

    async def bounded() -> None:
        bench = Bench()
        await asyncio.wait_for(test(bench), 20)
        bench.validate()

    asyncio.run(bounded())


async def read_all(one: Subscription) -> list[str]:
    """Read what there is and return, releasing everything."""
    seen: list[str] = []
    while True:
        try:
            seen.append((await one.receive(0)).topic)
        except errors.TimeoutExpiredError:
            return seen


# Dispatch.


def test_a_message_goes_to_each_subscription_that_it_matches_and_once_to_each() -> None:
    async def test(bench: Bench) -> None:
        everything = bench.subscribe(">")
        several = bench.subscribe("a/*", "a/b", "*/b")
        other = bench.subscribe("x")
        bench.deliver("a/b", "a/c", "d")
        assert await read_all(everything) == ["a/b", "a/c", "d"]
        assert await read_all(several) == ["a/b", "a/c"]
        assert await read_all(other) == []

    run(test)


FILTERS = st.sampled_from(["a", "a/b", "a/>", "*/b", ">", "a/b*", "c"])
TOPICS = st.sampled_from(["a", "a/b", "a/bc", "c", "d", "x/b"])


@given(
    st.lists(st.lists(FILTERS, min_size=1, max_size=3), max_size=4),
    st.lists(st.lists(TOPICS, min_size=1, max_size=8), max_size=4),
)
def test_dispatch_agrees_with_matching_by_hand_and_gives_everything_back(
    filters: list[list[str]], deliveries: list[list[str]]
) -> None:
    async def test(bench: Bench) -> None:
        subscriptions = [(bench.subscribe(*some), some) for some in filters]
        for topics in deliveries:
            bench.deliver(*topics, size=101)
        for one, some in subscriptions:
            wanted = [t for topics in deliveries for t in topics if any(matches(p, t) for p in some)]
            assert await read_all(one) == wanted
        assert bench.messages == sum(map(len, deliveries))
        assert bench.bytes == 101 * len(deliveries)

    run(test)


def test_a_shared_delivery_goes_to_the_subscriptions_of_its_share_only() -> None:
    async def test(bench: Bench) -> None:
        shared = bench.subscribe("#share/g/a/>")
        again = bench.subscribe("#share/g/a/>", "other")
        plain = bench.subscribe("a/>")
        bench.deliver("a/1", "a/2", share="#share/g/a/>")
        bench.deliver("a/3")
        assert await read_all(shared) == await read_all(again) == ["a/1", "a/2"]
        assert await read_all(plain) == ["a/3"]
        assert bench.messages == 3

    run(test)


@pytest.mark.requirement("R65")
def test_what_a_manager_shared_for_a_client_is_dispatched_by_topic() -> None:
    async def test(bench: Bench) -> None:
        local = bench.subscribe("a/>", local_only=True)
        bench.deliver("a/1", share="#share/g/a/>")
        message = await local.receive(0)
        assert (message.topic, message.share) == ("a/1", "#share/g/a/>")

    run(test)


def test_a_message_for_nobody_is_counted_and_gives_its_credit_back_at_once() -> None:
    async def test(bench: Bench) -> None:
        bench.subscribe("b")
        bench.deliver("a", size=10)
        bench.deliver("a", "b", "c", size=30)
        assert bench.dispatcher.unclaimed_messages == 3
        assert (bench.messages, bench.bytes) == (3, 10 + 20)

    run(test)


def test_a_subscription_added_or_removed_counts_from_then_on_also_for_known_topics() -> None:
    async def test(bench: Bench) -> None:
        first = bench.subscribe("a/*")
        bench.deliver("a/b")
        second = bench.subscribe("a/>")
        bench.deliver("a/b")
        bench.dispatcher.remove(first._mailbox)
        bench.dispatcher.remove(first._mailbox)
        bench.deliver("a/b")
        assert len(await read_all(first)) == 2
        assert len(await read_all(second)) == 2

    run(test)


def test_removing_one_of_two_subscriptions_of_a_share_keeps_the_other() -> None:
    async def test(bench: Bench) -> None:
        first, second = bench.subscribe("#share/g/a"), bench.subscribe("#share/g/a")
        bench.dispatcher.remove(first._mailbox)
        bench.validate()
        bench.deliver("a", share="#share/g/a")
        assert await read_all(second) == ["a"]
        bench.dispatcher.remove(second._mailbox)
        bench.deliver("a", share="#share/g/a")
        assert bench.dispatcher.unclaimed_messages == 1

    run(test)


@pytest.mark.requirement("R45")
def test_the_discard_indication_reaches_whoever_gets_the_first_message() -> None:
    async def test(bench: Bench) -> None:
        first, second = bench.subscribe("a"), bench.subscribe("b")
        bench.deliver("a", "b", "a", head=True)
        assert [(await first.receive(0)).discard_indication for _ in range(2)] == [True, False]
        assert not (await second.receive(0)).discard_indication

    run(test)


# Credit.


def test_credit_comes_back_with_the_last_message_of_a_delivery() -> None:
    async def test(bench: Bench) -> None:
        one = bench.subscribe(">")
        bench.deliver("a", "b", size=10)
        await one.receive()
        assert bench.messages == 0
        await one.receive()
        assert (bench.messages, bench.bytes) == (2, 10)
        bench.deliver("c")
        await one.receive()
        assert bench.messages == 3

    run(test)


def test_the_slowest_of_several_subscriptions_holds_the_credit() -> None:
    async def test(bench: Bench) -> None:
        fast, slow = bench.subscribe("a/>"), bench.subscribe("a/>")
        bench.deliver("a/1", "a/2", size=10)
        await read_all(fast)
        assert bench.messages == 0
        await read_all(slow)
        assert (bench.messages, bench.bytes) == (2, 10)

    run(test)


def test_a_subscription_that_nobody_reads_holds_its_own_messages_only() -> None:
    async def test(bench: Bench) -> None:
        read, unread = bench.subscribe("a"), bench.subscribe("b")
        for _ in range(10):
            bench.deliver("a", "a", "b", "a", size=40)
        await read_all(read)
        assert (bench.messages, bench.bytes) == (30, 300)
        unread._mailbox.discard()
        assert (bench.messages, bench.bytes) == (40, 400)

    run(test)


def test_discarding_gives_back_what_is_buffered_and_what_is_half_read() -> None:
    async def test(bench: Bench) -> None:
        one = bench.subscribe(">")
        bench.deliver("a", "b", size=10)
        bench.deliver("c", size=5)
        await one.receive()
        await one.close()
        assert (bench.messages, bench.bytes) == (3, 15)
        with pytest.raises(errors.ConnectionLostError, match="60002"):
            await one.receive()
        bench.deliver("d")
        assert bench.messages == 4

    run(test)


# Reading.


def test_iterating_ends_when_the_subscription_ends_after_what_is_buffered() -> None:
    async def test(bench: Bench) -> None:
        one = bench.subscribe(">")
        bench.deliver("a", "b")
        bench.deliver("c")
        one._mailbox.end(None)
        assert [message.topic async for message in one] == ["a", "b", "c"]
        assert [message.topic async for message in one] == []
        assert bench.messages == 3

    run(test)


def test_leaving_a_loop_loses_nothing() -> None:
    async def test(bench: Bench) -> None:
        one = bench.subscribe(">")
        bench.deliver("a", "b", "c", "d")
        async for message in one:
            assert message.topic == "a"
            break
        assert (await one.receive(0)).topic == "b"
        async for batch in one.batches(1):
            assert batch.topics == ["c"]
            break
        assert [message.topic async for message in _ended(one)] == ["d"]

    run(test)


def _ended(one: Subscription) -> Subscription:
    one._mailbox.end(None)
    return one


def test_batches_come_as_they_arrived_and_no_larger_than_asked() -> None:
    async def test(bench: Bench) -> None:
        one = bench.subscribe(">")
        bench.deliver("a", "b", "c", "d", "e")
        bench.deliver("f")
        one._mailbox.end(None)
        assert [batch.topics async for batch in one.batches(2)] == [["a", "b"], ["c", "d"], ["e"], ["f"]]
        with pytest.raises(errors.InvalidRequestError):
            await anext(one.batches(0))

    run(test)


def test_a_reader_waits_for_what_comes_later() -> None:
    async def test(bench: Bench) -> None:
        one = bench.subscribe(">")
        asyncio.get_running_loop().call_soon(bench.deliver, "a")
        assert (await one.receive()).topic == "a"
        reader = asyncio.ensure_future(anext(aiter(one)))
        await asyncio.sleep(0)
        bench.deliver("b")
        assert (await reader).topic == "b"

    run(test)


def test_several_readers_get_each_message_once() -> None:
    async def test(bench: Bench) -> None:
        one = bench.subscribe(">")
        seen: list[str] = []

        async def read() -> None:
            async for message in one:
                seen.append(message.topic)
                await asyncio.sleep(0)

        readers = [asyncio.ensure_future(read()) for _ in range(3)]
        for start in range(0, 30, 3):
            bench.deliver(*(str(number) for number in range(start, start + 3)))
            await asyncio.sleep(0)
        one._mailbox.end(None)
        await asyncio.gather(*readers)
        assert Counter(seen) == Counter(map(str, range(30)))
        assert bench.messages == 30

    run(test)


def test_receive_gives_up_in_time_and_nothing_is_lost() -> None:
    async def test(bench: Bench) -> None:
        one = bench.subscribe(">")
        with pytest.raises(errors.TimeoutExpiredError, match="40801"):
            await one.receive(0.01)
        bench.deliver("a")
        assert (await one.receive(0)).topic == "a"

    run(test)


def test_a_reader_that_is_cancelled_leaves_no_trace() -> None:
    async def test(bench: Bench) -> None:
        one = bench.subscribe(">")
        reader = asyncio.ensure_future(one.receive())
        await asyncio.sleep(0)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        bench.deliver("a")
        assert (await one.receive(0)).topic == "a"

    run(test)


def test_a_subscription_that_failed_tells_why_after_what_is_buffered() -> None:
    async def test(bench: Bench) -> None:
        one = bench.subscribe(">")
        bench.deliver("a")
        one._mailbox.end(errors.error_for(errors.SUBSCRIBE_DENIED, "x"))
        assert (await one.receive()).topic == "a"
        with pytest.raises(errors.ForbiddenError):
            await one.receive()
        with pytest.raises(errors.ForbiddenError):
            [message async for message in one]

    run(test)


def test_unsubscribing_ends_a_loop_at_once() -> None:
    async def test(bench: Bench) -> None:
        one = bench.subscribe(">")
        bench.deliver("a", "b", "c")
        seen = []
        async for message in one:
            seen.append(message.topic)
            await one.close()
        assert seen == ["a"]
        assert bench.closed == [one._mailbox]
        assert bench.messages == 3

    run(test)


def test_buffered_counts_what_waits() -> None:
    async def test(bench: Bench) -> None:
        one = bench.subscribe(">")
        bench.deliver("a", "b")
        bench.deliver("c")
        assert one.buffered == 3
        await one.receive()
        assert one.buffered == 1

    run(test)


def test_a_subscription_names_its_filters() -> None:
    async def test(bench: Bench) -> None:
        one = bench.subscribe("a/>", "#share/g/b")
        assert one.filters == ("a/>", "#share/g/b")
        assert str(one) == "Subscription('a/>', '#share/g/b')"
        assert repr(one) == "<Subscription to 'a/>', '#share/g/b', open, 0 buffered>"

    run(test)


# Callbacks.


def test_a_callback_is_called_with_each_message_and_the_credit_comes_back() -> None:
    async def test(bench: Bench) -> None:
        seen: list[Message] = []
        bench.subscribe("a/>", callback=seen.append)
        bench.deliver("a/1", "a/2", size=10)
        assert [message.topic for message in seen] == ["a/1", "a/2"]
        assert (bench.messages, bench.bytes) == (2, 10)

    run(test)


def test_an_async_callback_is_awaited_before_the_next_message() -> None:
    async def test(bench: Bench) -> None:
        steps: list[str] = []

        async def callback(message: Message) -> None:
            steps.append(f"begin {message.topic}")
            await asyncio.sleep(0)
            steps.append(f"end {message.topic}")

        one = bench.subscribe(">", callback=callback)
        bench.deliver("a", "b")
        one._mailbox.end(None)
        await asyncio.gather(*one._mailbox.tasks)
        assert steps == ["begin a", "end a", "begin b", "end b"]
        assert bench.messages == 2

    run(test)


def test_an_object_with_an_async_call_is_an_async_callback() -> None:
    async def test(bench: Bench) -> None:
        class Callback:
            seen = 0

            async def __call__(self, message: Message) -> None:
                self.seen += 1

        callback = Callback()
        one = bench.subscribe(">", callback=callback)
        bench.deliver("a")
        one._mailbox.end(None)
        await asyncio.gather(*one._mailbox.tasks)
        assert callback.seen == 1

    run(test)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("kind", [ValueError, asyncio.CancelledError])
def test_a_callback_that_raises_is_logged_counted_and_called_again(
    kind: type[BaseException], is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(bench: Bench) -> None:
        seen: list[str] = []

        def callback(message: Message) -> None:
            seen.append(message.topic)
            raise kind(message.topic)

        async def async_callback(message: Message) -> None:
            callback(message)

        one = bench.subscribe(">", callback=async_callback if is_async else callback)
        bench.deliver("a", "b")
        one._mailbox.end(None)
        await asyncio.gather(*one._mailbox.tasks)
        assert seen == ["a", "b"]
        assert one.stats["callback_errors"] == 2
        assert bench.messages == 2

    with caplog.at_level(logging.ERROR):
        run(test)
    assert len(caplog.records) == 2


def test_a_callback_that_is_cancelled_with_its_task_ends_it() -> None:
    async def test(bench: Bench) -> None:
        async def callback(message: Message) -> None:
            await asyncio.sleep(60)

        one = bench.subscribe(">", callback=callback)
        bench.deliver("a")
        await asyncio.sleep(0)
        one._mailbox.tasks[0].cancel()
        await asyncio.wait(one._mailbox.tasks, timeout=5)
        assert one._mailbox.tasks[0].cancelled()
        assert one.stats["callback_errors"] == 0

    run(test)


def test_a_callback_never_keeps_the_loop_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "CALLBACKS_PER_STEP", 10)

    async def test(bench: Bench) -> None:
        seen: list[Message] = []
        bench.subscribe(">", callback=seen.append)
        for _ in range(5):
            rows: list[Row] = [(index, "a", 0, None, None, b"") for index in range(6)]
            bench.dispatcher.dispatch(Delivery(rows, None, 6))
        for ready in bench.dispatcher.take_ready():
            ready.wake()
        assert len(seen) == 12
        bench.deliver("b")
        assert len(seen) == 12, "what is scheduled already is not run twice"
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(seen) == 31
        assert seen[-1].topic == "b"
        assert bench.messages == 31

    run(test)


def test_a_callback_that_unsubscribes_gets_nothing_more() -> None:
    async def test(bench: Bench) -> None:
        seen: list[str] = []

        def callback(message: Message) -> None:
            seen.append(message.topic)
            bench.dispatcher.remove(one._mailbox)
            one._mailbox.discard()

        one = bench.subscribe(">", callback=callback)
        bench.deliver("a", "b")
        bench.deliver("c")
        assert seen == ["a"]
        assert bench.messages == 3

    run(test)


def test_the_task_of_a_subscription_that_failed_ends_quietly() -> None:
    async def test(bench: Bench) -> None:
        async def callback(message: Message) -> None:
            """Nothing comes."""

        one = bench.subscribe(">", callback=callback)
        await asyncio.sleep(0)
        one._mailbox.end(errors.error_for(errors.NOT_CONNECTED))
        await asyncio.gather(*one._mailbox.tasks)

    run(test)


def test_another_thread_may_take_chunks_and_is_told_of_them() -> None:
    async def test(bench: Bench) -> None:
        one = bench.subscribe(">")
        told: list[None] = []
        one._mailbox.on_ready = lambda: told.append(None)
        bench.deliver("a", "b")
        assert len(told) == 1
        chunk = await asyncio.to_thread(one._mailbox.take)
        assert chunk is not None
        assert [row[1] for row in chunk.rows] == ["a", "b"]
        assert one._mailbox.take() is None
        chunk.release()
        chunk.release()
        assert bench.messages == 2
        one._mailbox.end(None)
        assert len(told) == 2
        assert one._mailbox.outcome == (True, None)

    run(test)


def test_subscriptions_that_have_ended_are_not_kept_for_the_topics_that_they_got() -> None:
    """A program that waits for each of its jobs in `jobs/ID/>` kept 20,000 of them, with the last message of each."""

    async def test(bench: Bench) -> None:
        def play(count: int) -> int:
            for number in range(count):
                bench.subscribe(f"{count}/{number}/>")
                bench.deliver(f"{count}/{number}/done")
                (mailbox,) = bench.dispatcher.subscriptions
                bench.dispatcher.remove(mailbox)
                mailbox.discard()
                ended.append(weakref.ref(mailbox))
            del mailbox
            gc.collect()
            return sum(one() is not None for one in ended)

        ended: list[weakref.ref[Mailbox]] = []
        kept = play(200)
        assert play(400) == kept <= 1

    run(test)


def test_a_subscription_that_got_very_many_topics_is_not_kept_for_them_with_its_messages() -> None:
    async def test(bench: Bench) -> None:
        one = bench.subscribe("jobs/>")
        bench.deliver(*(f"jobs/{number}" for number in range(1_000)))
        await one.receive()
        await one.close()
        bench.closed.clear()
        ended = weakref.ref(one)
        del one
        gc.collect()
        assert ended() is None

    run(test)
