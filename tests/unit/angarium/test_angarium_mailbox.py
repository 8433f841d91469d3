"""The bound of a subscription: what is dropped, how it is told, and what it costs the others."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest

from angarium import errors, wire
from angarium.client.protocol.session import EgressWindow
from angarium.client.subscribing.dispatch import Dispatcher, StallWatch
from angarium.client.subscribing.mailbox import BUFFER_MESSAGES, Chunk, Mailbox, Terms
from angarium.client.subscribing.subscription import Subscription
from angarium.message import Delivery, Message, Row
from angarium.topic import parse_filter


def rows(first: int, count: int, topic: str = "a") -> list[Row]:
    return [(number, topic, 0, None, None, b"%d" % number) for number in range(first, first + count)]


def mailbox(slow: list[Mailbox] | None = None, **terms: Any) -> Mailbox:
    return Mailbox((parse_filter(">"),), Terms(**terms), (slow if slow is not None else []).append)


def push(box: Mailbox, first: int, count: int, size_bytes: int = 0) -> None:
    some = rows(first, count)
    box.push(Chunk(some, Delivery(some, None, size_bytes), size_bytes))
    box.validate()


def taken(box: Mailbox) -> list[int]:
    """Take everything, as the payloads."""
    found: list[int] = []
    while (chunk := box.take()) is not None:
        found += [int(row[5]) for row in chunk.rows]
        box.validate()
    return found


@pytest.mark.parametrize("sizes", [[1] * 30, [10, 10, 10], [30], [3, 1, 20, 1, 5], [1, 25, 4]])
def test_the_newest_messages_are_kept_exactly(sizes: list[int]) -> None:
    slow: list[Mailbox] = []
    box = mailbox(slow, buffer_messages=7)
    first = 0
    for size in sizes:
        push(box, first, size)
        first += size
    assert box.messages == 7
    assert box.stats["dropped_messages"] == 23
    assert taken(box) == list(range(23, 30))
    assert slow == [box]


def test_bytes_are_bounded_too_and_one_large_chunk_is_kept() -> None:
    box = mailbox(buffer_bytes=100)
    for first in range(0, 100, 10):
        push(box, first, 10, size_bytes=40)
        assert box.size_bytes <= 100
    assert taken(box) == list(range(80, 100))
    push(box, 0, 3, size_bytes=500)
    assert taken(box) == [0, 1, 2]


def test_what_is_dropped_agrees_with_counting_by_hand() -> None:
    rng = random.Random(7)
    for _ in range(200):
        limit = rng.randint(1, 20)
        box, next_number, dropped = mailbox(buffer_messages=limit), 0, 0
        kept: list[int] = []
        for _ in range(30):
            if rng.random() < 0.3:
                chunk = box.take()
                got = [] if chunk is None else [int(row[5]) for row in chunk.rows]
                assert got == kept[: len(got)]
                del kept[: len(got)]
            else:
                count = rng.randint(1, 12)
                push(box, next_number, count)
                kept += range(next_number, next_number + count)
                next_number += count
                dropped += max(len(kept) - limit, 0)
                del kept[: max(len(kept) - limit, 0)]
        assert box.dropped == dropped
        assert taken(box) == kept


def test_an_episode_is_told_once_until_the_reader_has_caught_up() -> None:
    slow: list[Mailbox] = []
    box = mailbox(slow, buffer_messages=10)
    for first in range(0, 100, 5):
        push(box, first, 5)
    assert len(slow) == 1
    taken(box)
    for first in range(100, 120, 5):
        push(box, first, 5)
    assert len(slow) == 2


def test_a_reader_that_is_always_behind_a_buffer_of_one_message_is_told_once() -> None:
    """A screen that wants the newest message only: others are dropped after each that it reads."""
    slow: list[Mailbox] = []
    box = mailbox(slow, buffer_messages=1)
    for first in range(0, 100, 5):
        push(box, first, 5)
        chunk = box.take()
        assert chunk is not None
        assert [int(row[5]) for row in chunk.rows] == [first + 4]
    assert len(slow) == 1
    assert box.take() is None
    push(box, 100, 5)
    assert len(slow) == 2


def test_pushing_into_a_full_mailbox_does_not_cost_what_waits_in_it() -> None:
    """The oldest chunk is large and loses one row at a time: no copy of it is made for each."""
    box = mailbox(buffer_messages=200_000)
    push(box, 0, 200_000)
    single = rows(0, 1)
    started = time.process_time()
    for _ in range(5_000):
        box.push(Chunk(single, Delivery(single, None, 1), 1))
    assert time.process_time() - started < 1.0, "about 5 ms; a copy each time takes 5 s"
    assert box.dropped == 5_000


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"on_full": "block"}, "on_full is 'block', not 'drop' or 'stall'"),
        ({"buffer_messages": 0}, "buffer_messages is 0, from 1 on is possible"),
        ({"buffer_bytes": 1.5}, "buffer_bytes is 1.5, from 1 on is possible"),
        ({"on_full": "stall", "buffer_messages": 5}, "window_messages and window_bytes of connect"),
    ],
)
def test_a_wrong_argument_is_refused_with_what_is_possible(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(errors.InvalidRequestError, match=told):
        Terms(**wrong).check(["a"])
    assert [one.text for one in Terms(on_full="stall").check(["a", "b"])] == ["a", "b"]
    assert Terms().buffer_messages == BUFFER_MESSAGES


def deliver(dispatcher: Dispatcher, some: list[Row]) -> None:
    dispatcher.dispatch(Delivery(some, None, 10 * len(some)))
    for box in dispatcher.take_ready():
        box.wake()


@pytest.mark.requirement("R276")
def test_what_waits_in_a_subscription_that_drops_holds_no_credit() -> None:
    window = EgressWindow(100, 10_000)
    dispatcher = Dispatcher(window.release)
    drops, stalls = mailbox(buffer_messages=50), mailbox(on_full="stall")
    dispatcher.add(drops)
    for _ in range(20):
        window.hold(10, 100)
        deliver(dispatcher, rows(0, 10))
    assert window.free() == (100, 10_000)
    assert drops.messages == 50
    dispatcher.add(stalls)
    window.hold(10, 100)
    deliver(dispatcher, rows(0, 10))
    assert window.held_messages == 10
    assert taken(stalls) == list(range(10))


@pytest.mark.requirement("R276")
def test_the_message_after_the_gap_says_that_others_were_dropped() -> None:
    async def test() -> None:
        box, other = mailbox(buffer_messages=4), mailbox()
        dispatcher = Dispatcher(lambda messages, size_bytes: None)
        dispatcher.add(box)
        dispatcher.add(other)
        one, two = (Subscription(each, _close) for each in (box, other))
        deliver(dispatcher, rows(0, 6))
        deliver(dispatcher, rows(6, 2))
        seen = [await one.receive(0) for _ in range(4)]
        assert [(int(each.payload), each.discard_indication) for each in seen] == [
            (4, True),
            (5, False),
            (6, False),
            (7, False),
        ]
        assert not any([(await two.receive(0)).discard_indication for _ in range(8)]), "only its own"
        assert one.stats["dropped_messages"] == 4

    asyncio.run(test())


async def _close(box: Mailbox) -> None:
    box.discard()


# A window that is full.


def test_a_stall_is_told_once_with_the_subscription_that_holds_the_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("angarium.client.subscribing.dispatch.STALL_S", 0.05)

    async def test() -> None:
        window = EgressWindow(10, 10_000)
        dispatcher = Dispatcher(window.release)
        told: list[str] = []
        watch = StallWatch(window, dispatcher.subscriptions, told.append)
        box = mailbox(on_full="stall")
        dispatcher.add(box)

        def come(count: int) -> None:
            window.hold(count, 0)
            deliver(dispatcher, rows(0, count))
            watch.look()

        come(9)
        assert watch.detail == ""
        come(1)
        assert "Subscription('>') holds the window of this client (10 messages of 10)" in watch.detail
        await asyncio.sleep(0.12)
        assert told == [watch.detail]
        chunk = box.take()
        assert chunk is not None
        chunk.release()
        assert watch.detail == ""
        for _ in range(5):
            come(10)
            await asyncio.sleep(0.03)
            chunk = box.take()
            assert chunk is not None
            chunk.release()
        watch.stop()
        assert len(told) == 1, "a reader that goes on is no stall"

    asyncio.run(test())


# Callbacks at once.


@pytest.mark.parametrize("concurrency", [1, 3])
def test_so_many_callbacks_run_at_once_and_begin_in_order(concurrency: int) -> None:
    async def test() -> None:
        dispatcher = Dispatcher(lambda messages, size_bytes: None)
        box = mailbox()
        began: list[int] = []
        running, most = 0, 0

        async def callback(message: Message) -> None:
            nonlocal running, most
            began.append(int(message.payload))
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.001 * (began[-1] % 4))
            running -= 1
            if began[-1] == 5:
                raise ValueError("five")

        Subscription(box, _close, callback, concurrency)
        dispatcher.add(box)
        for first in range(0, 40, 5):
            deliver(dispatcher, rows(first, 5))
            await asyncio.sleep(0)
        box.end(None)
        await asyncio.gather(*box.tasks)
        assert began == list(range(40))
        assert most == concurrency

    asyncio.run(test())


@pytest.mark.parametrize(
    ("callback", "concurrency", "told"),
    [
        (None, 2, "give one"),
        (lambda message: None, 2, "no 'async def'"),
        (_close, 0, "from 1 to 1000 is possible"),
        (_close, True, "from 1 to 1000 is possible"),
    ],
)
def test_a_concurrency_that_cannot_be_is_refused(callback: Any, concurrency: int, told: str) -> None:
    async def test() -> None:
        with pytest.raises(errors.InvalidRequestError, match=told):
            Subscription(mailbox(), _close, callback, concurrency)

    asyncio.run(test())


# -- what is retained comes before what comes live ---------------------------------------------------------------


def live(box: Mailbox, *topics: str) -> None:
    some: list[Row] = [(0, topic, wire.FLAG_RETAIN, None, None, b"live") for topic in topics]
    box.push(Chunk(some, Delivery(some, None, 0), 0))
    box.validate()


def page(box: Mailbox, *topics: str) -> None:
    box.push_retained([(0, topic, wire.FLAG_RETAIN, None, None, b"kept") for topic in topics], 0)
    box.validate()


def got(box: Mailbox) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    while (chunk := box.take()) is not None:
        found += [(row[1], row[5]) for row in chunk.rows]
    return found


@pytest.mark.requirement("R248")
def test_what_is_retained_comes_first_and_what_came_live_meanwhile_is_not_doubled() -> None:
    box = mailbox(retained=True)
    live(box, "b")
    assert got(box) == []
    page(box, "a", "b")
    assert got(box) == [("a", b"kept")]
    live(box, "a")
    page(box, "c")
    box.let_go()
    live(box, "d")
    assert got(box) == [("c", b"kept"), ("b", b"live"), ("a", b"live"), ("d", b"live")]
    assert box.stats["received_messages"] == 5


@pytest.mark.requirement("R248")
def test_after_a_lost_connection_what_is_retained_comes_again_before_what_comes_live() -> None:
    box = mailbox(retained=True)
    page(box, "a")
    box.let_go()
    live(box, "a")
    box.hold()
    live(box, "b")
    page(box, "a", "b")
    box.let_go()
    assert got(box) == [("a", b"kept"), ("a", b"live"), ("a", b"kept"), ("b", b"live")]


@pytest.mark.requirement("R248")
def test_what_was_held_back_before_a_connection_was_lost_leaves_out_nothing_of_the_next() -> None:
    box = mailbox(retained=True)
    live(box, "a")
    box.hold()
    page(box, "a")
    box.let_go()
    assert got(box) == [("a", b"live"), ("a", b"kept")]


def test_what_is_held_back_is_bounded_too() -> None:
    slow: list[Mailbox] = []
    box = mailbox(slow, retained=True, buffer_messages=3)
    for number in range(10):
        live(box, f"t{number}")
    box.let_go()
    assert [topic for topic, _ in got(box)] == ["t7", "t8", "t9"]
    assert box.stats["dropped_messages"] == 7


def test_the_bytes_of_what_is_held_back_are_bounded_too() -> None:
    box = mailbox(retained=True, buffer_bytes=250)
    for number in range(10):
        some: list[Row] = [(0, f"t{number}", wire.FLAG_RETAIN, None, None, b"")]
        box.push(Chunk(some, Delivery(some, None, 100), 100))
        assert box.stats["received_messages"] - box.stats["dropped_messages"] <= 2, "before it is let go"
    box.let_go()
    assert [topic for topic, _ in got(box)] == ["t8", "t9"]


def test_what_is_held_back_of_a_subscription_that_stalls_is_given_back_when_it_is_closed() -> None:
    released: list[int] = []
    dispatcher = Dispatcher(lambda messages, _: released.append(messages))
    box = mailbox(retained=True, on_full="stall")
    dispatcher.add(box)
    dispatcher.dispatch(Delivery(rows(0, 3), None, 30))
    assert not released
    box.discard()
    assert released == [3]


@pytest.mark.parametrize("terms", [{"local_only": True}, {}])
def test_a_shared_or_local_subscription_gets_nothing_that_is_retained(terms: dict[str, Any]) -> None:
    filters = ["a"] if terms else ["#share/g/a"]
    with pytest.raises(errors.InvalidRequestError, match="retained"):
        Terms(retained=True, **terms).check(filters)
