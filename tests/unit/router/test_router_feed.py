"""What workers are told of filters comes in small frames, a few at a time, whatever a client does at once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from angarium import slots, wire
from angarium.topic import parse_filter
from router.ground.effects import SendWorker
from router.matching.feed import FRAME_LEVELS_MAX, FRAMES_MAX, Feed
from router.sessions.interest import Interest

if TYPE_CHECKING:
    from router.sessions.interest import Filter
    from tests.unit.router.wired_node import FakeClient, WiredNode

TABLE = slots.slot_table(1)
#: A filter of ten levels.
LONG = "/".join("abcdefgh") + "/{}/*"
PER_FRAME = FRAME_LEVELS_MAX // 10
MANY = 3 * PER_FRAME


def _filters(count: int, text: str = LONG) -> list[Filter[Any]]:
    interest: Interest[Any] = Interest()
    return [
        interest.create(1, parse_filter(text.format(at)), deliver_always=False, table=TABLE)
        for at in range(count)
    ]


def _subscribe_many(client: FakeClient, count: int, text: str = LONG) -> list[int]:
    """Subscribe without waiting; gives the numbers of the requests."""
    texts = [text.format(at) for at in range(count)]
    requests = []
    for at in range(0, count, wire.MAX_FILTERS_PER_REQUEST):
        client.request += 1
        requests.append(client.request)
        some = texts[at : at + wire.MAX_FILTERS_PER_REQUEST]
        client.send(wire.SUBSCRIBE, [client.request, [[text, 0] for text in some], None])
    return requests


def _answered(client: FakeClient) -> list[int]:
    return [wire.unpack(frames[1])[0] for frames in client.received if frames[0] == wire.SUBACK]


def _filter_frames(node: WiredNode) -> list[Any]:
    """Give what waits for the paused worker: FILTERS."""
    return [wire.unpack(frames[1]) for frames in node.paused[0] if frames[0] == wire.FILTERS]


@pytest.mark.requirement("R278")
def test_a_frame_has_so_many_levels_and_a_filter_more_at_most() -> None:
    feed, filters = Feed(), _filters(5 * PER_FRAME)
    feed.put(filters, [])
    told: list[int] = []
    number = 0
    while feed.is_due:
        number += 1
        new, gone = feed.take(number, filters[-1].id)
        assert not gone
        assert sum(one.levels for one in new) < FRAME_LEVELS_MAX + 10
        told += [one.id for one in new]
        assert feed.confirm(number, filters[-1].id)
        assert feed.confirmed == told[-1]
    assert told == [one.id for one in filters]


@pytest.mark.requirement("R278")
def test_new_filters_and_gone_ones_share_a_frame() -> None:
    feed, filters = Feed(), _filters(4 * PER_FRAME)
    old, new = filters[: 2 * PER_FRAME], filters[2 * PER_FRAME :]
    feed.restart(old)
    while feed.is_due:
        feed.take(1, old[-1].id)
        feed.confirm(1, old[-1].id)
    feed.put(new, old)
    added, removed = feed.take(2, new[-1].id)
    assert (len(added), len(removed)) == (PER_FRAME // 2, PER_FRAME // 2)


def test_nobody_is_told_of_a_filter_that_went_before_its_turn() -> None:
    feed, filters = Feed(), _filters(3)
    feed.put(filters, [])
    feed.put([], filters[1:])
    assert feed.take(1, 3) == (filters[:1], [])
    assert feed.confirm(1, 3)
    assert feed.confirmed == 3
    assert not feed.is_due


def test_a_confirmation_of_what_was_sent_before_a_restart_confirms_nothing() -> None:
    feed, filters = Feed(), _filters(2)
    feed.put(filters, [])
    feed.take(1, 2)
    feed.restart(filters)
    feed.take(2, 2)
    assert not feed.confirm(1, 2)
    assert feed.confirmed == 0
    assert feed.confirm(2, 2)
    assert feed.confirmed == 2


@pytest.mark.requirement("R278")
def test_a_batch_passes_between_the_filters_of_one_client(make_node: Any) -> None:
    """What one client subscribes to does not stand in the worker's way before what others publish."""
    node = make_node()
    subscriber, other = node.client(), node.client()
    node.pause(0)
    requests = _subscribe_many(subscriber, MANY)
    other.publish("x/y")
    frames = node.paused[0]
    assert [one[0] for one in frames] == [*[wire.FILTERS] * FRAMES_MAX, wire.MATCH]
    assert all(len(added) <= PER_FRAME for _, _, added, _ in _filter_frames(node))
    assert not _answered(subscriber)
    node.unpause(0)
    assert _answered(subscriber) == requests
    assert len(node.workers[0]._matching) == MANY


@pytest.mark.requirement("R278")
def test_a_client_that_leaves_with_many_filters_takes_them_away_in_small_frames(make_node: Any) -> None:
    node = make_node()
    leaving, other = node.client(), node.client()
    _subscribe_many(leaving, MANY)
    assert len(node.workers[0]._matching) == MANY
    sizes: list[int] = []
    carry = node._carry

    def watched(effect: Any) -> None:
        if isinstance(effect, SendWorker) and effect.frames[0] == wire.FILTERS:
            sizes.append(len(wire.unpack(effect.frames[1])[3]))
        carry(effect)

    node._carry = watched
    leaving.send(wire.BYE, [])
    node.advance(1.0)
    assert sum(sizes) == MANY
    assert max(sizes) <= PER_FRAME
    assert len(node.workers[0]._matching) == 0
    other.publish("x/y")


def test_what_was_not_told_when_a_worker_died_is_in_force_when_its_successor_is_ready(make_node: Any) -> None:
    node = make_node()
    subscriber = node.client()
    node.pause(0)
    requests = _subscribe_many(subscriber, MANY)
    node.kill_worker(0)
    subscriber.send(wire.UNSUBSCRIBE, [99, [[LONG.format(MANY - 1), 0]], None])
    assert _answered(subscriber) == [99]
    node.start_worker(0)
    assert _answered(subscriber) == [99, *requests]
    assert len(node.workers[0]._matching) == MANY - 1


def _drained_s(filters: list[Filter[Any]]) -> float:
    """Measure how long it takes to tell a worker of filters."""
    feed = Feed()
    feed.put(filters, [])
    number = 0
    started = time.process_time()
    while feed.is_due:
        number += 1
        feed.take(number, len(filters))
        feed.confirm(number, len(filters))
    return time.process_time() - started


def test_each_of_many_filters_costs_what_each_of_a_few_thousand_does() -> None:
    filters = _filters(20_000, "a/{}/*")
    few, many = (min(_drained_s(filters[:count]) for _ in range(3)) for count in (2_000, 20_000))
    assert many < 30 * few, "ten times as many take ten times as long, not a hundred"


def test_of_a_worker_that_is_behind_nothing_is_learned_about_topics(node: WiredNode) -> None:
    """What it matched while filters were still to be told would be taken for all that match, for ever."""
    subscriber, publisher = node.client(), node.client()
    topic = LONG.format(MANY - 1).replace("*", "x")
    node.pause(0)
    _subscribe_many(subscriber, MANY)
    newest = node.router.interest.next_id
    behind = node.router.shards.told_below(newest)
    assert behind < newest, "some filters wait in the router"
    publisher.publish((topic, b"x"))
    node.unpause(0)
    node.settle()
    subscriber.received.clear()
    assert node.router.shards.told_below(newest) == newest
    publisher.publish((topic, b"y"))
    node.settle()
    assert subscriber.payloads() == [b"y"]


def test_sets_that_a_worker_retires_after_they_were_forgotten_are_no_news(node: WiredNode) -> None:
    """It may have said so before it heard that the number of workers changes."""
    node.router.shards.retire_sets(node.router.shards.shards[0], [1, 2])
