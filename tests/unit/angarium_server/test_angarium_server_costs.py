"""What things cost is measured: each figure is right within a factor of 1.5."""

from __future__ import annotations

import gc
import tracemalloc
from types import SimpleNamespace
from typing import TYPE_CHECKING

import msgspec
import pytest

from angarium import wire
from angarium.topic import parse_filter
from angarium.topic_cache import TopicCache, text_bytes
from angarium.wire import KIND_PLAIN
from angarium_server import costs
from angarium_server.frames import gateways
from node.config import WorkerConfig
from node.home.spool.held_lanes import REST_AFTER_S
from node.matching.matching import Matching
from router.gateways.wills import Wills
from router.ground.config import RouterConfig
from router.guaranteed.endpoints import LaneUsage
from router.matching.known_topic import Entry
from router.sessions.directory import Vpn
from router.sessions.hello import Behalf
from router.sessions.interest import FilterSet, Interest, Subscription
from router.sessions.queues import Bundle, ClassQueue
from router.sessions.session import Session
from tests.share import short
from tests.unit.node.driven_home import ROUTER, DrivenHome, settings_of

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.requirement("R279")

COUNT = short(5_000, long=10_000)
WITHIN = 1.5


def _expect(charged: float, make: Callable[[int], object], count: int = COUNT) -> None:
    """Compare what a thing is charged with what each of so many takes that share nothing."""
    measured = _measure(make, count)
    assert measured / WITHIN < charged < measured * WITHIN, f"{measured:.0f} bytes, charged are {charged:.0f}"


def _measure(make: Callable[[int], object], count: int) -> float:
    """Give the bytes that each of so many things takes."""
    for number in range(count, count + count // 10):  # tables have their first sizes
        make(number)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(count):
            make(number)
        gc.collect()
        return (tracemalloc.get_traced_memory()[0] - before) / count
    finally:
        tracemalloc.stop()


def _fresh(text: str) -> str:
    """Give a text that is an object of its own, as what was decoded from a frame is."""
    return text.encode().decode()


@pytest.mark.parametrize(
    "form",
    [
        "a/{}",
        "{}/a/b/*",
        "{}/a/b*",
        "{}/" + "a/" * 60 + "*",
        "{}/" + "ab/" * 60 + "*",
        "{}/" + "*/" * 60 + "a",
    ],
    ids=["exact", "wildcard", "prefix", "literals", "texts", "lone"],
)
def test_a_filter_in_a_worker(form: str) -> None:
    matching = Matching(WorkerConfig())
    sample = form.format(COUNT)

    def make(number: int) -> None:
        matching.add(number + 1000, 1, _fresh(form.format(number)), KIND_PLAIN)

    _expect(costs.filter_bytes(sample), make, COUNT if len(sample) < 20 else 1_000)


def test_prefixes_in_a_worker() -> None:
    matching = Matching(WorkerConfig())
    form = "{}/" + "a*/" * 30 + "b"
    _expect(
        costs.filter_bytes(form.format(1000)),
        lambda number: matching.add(number + 1, 1, _fresh(form.format(number)), KIND_PLAIN),
        1_000,
    )


@pytest.mark.parametrize("form", ["a/{}", "{}/" + "a/" * 100 + "*"], ids=["short", "long"])
def test_a_subscription_in_the_router(form: str) -> None:
    interest: Interest[object] = Interest()
    session, subscriptions = object(), {}

    def make(number: int) -> None:
        text = _fresh(form.format(number))
        parsed = parse_filter(text)
        made = interest.create(1, parsed, False, bytes(1024))
        interest.join(made, session, text)
        subscriptions[text, False] = Subscription(text, False, made, 1, "")

    text = form.format(COUNT)
    _expect(costs.subscription_bytes(text, text, 0) - ("*" not in text) * costs.filter_bytes(text), make)


def test_a_cached_topic_in_a_worker() -> None:
    matching = Matching(WorkerConfig())
    matching.add(1, 1, ">", KIND_PLAIN)
    vpn = matching.vpn(1)
    topic = f"plant/line/{COUNT}"
    _expect(
        costs.CACHED_TOPIC_BYTES + text_bytes(topic),
        lambda number: vpn.match(_fresh(f"plant/line/{number}"), 1_000),
    )


def test_a_cached_topic_of_the_fast_path() -> None:
    cache: TopicCache[Entry] = TopicCache(lambda _: None, RouterConfig().fast_path_topics_max)
    one: FilterSet[object] = FilterSet(())
    topic = f"plant/line/{COUNT}"

    def make(number: int) -> None:
        entry = Entry(one, None)  # type: ignore[arg-type]
        entry.rules[1] = None
        cache.put(_fresh(f"plant/line/{number}"), entry)

    _expect(costs.CACHED_TOPIC_BYTES + text_bytes(topic), make)


@pytest.mark.parametrize("members", [1, 1_000])
def test_a_set_in_a_worker(members: int) -> None:
    matching = Matching(WorkerConfig())
    values = tuple(range(1 << 20, (1 << 20) + members - 1))
    _expect(
        costs.set_bytes(members),
        lambda number: matching.sets.acquire((number << 3, *values)),
        COUNT // members + 100,
    )


def test_a_resolved_session() -> None:
    interest: Interest[object] = Interest()
    made = interest.create(1, parse_filter(">"), False, bytes(1024))
    other = interest.create(1, parse_filter("a"), False, bytes(1024))
    for _ in range(1_000):
        interest.join(made, object(), ">")
    sets = [FilterSet((made, other)) for _ in range(200)]
    _expect(
        costs.RESOLVED_SESSION_BYTES * 1_000,
        lambda number: interest.resolve(sets[number]),
        100,
    )


def test_a_batch_that_waits_for_a_slow_consumer() -> None:
    queue = ClassQueue(1 << 40, 1)
    _expect(costs.BUNDLE_BYTES + 20, lambda number: queue.push(Bundle(1, number.to_bytes(20, "big"), 1)))
    assert queue.bytes == len(queue.entries) * (costs.BUNDLE_BYTES + 20)


def test_a_partition_in_the_router_and_at_its_home_takes_little_until_a_consumer_comes() -> None:
    driven = DrivenHome()
    driven.start(ROUTER, {})
    usages: dict[int, LaneUsage] = {}

    def make(number: int) -> None:
        usages[number] = LaneUsage(_make_partition(driven, number), 0)

    def make_bound(number: int) -> None:
        make(number)
        _bind(driven, number)

    assert _measure(make, 200) < costs.PARTITION_BYTES / 2
    assert costs.PARTITION_BYTES < _measure(make_bound, 200) < costs.PARTITION_BYTES * 1.8


def test_a_partition_whose_consumers_left_takes_about_what_it_took_before() -> None:
    driven = DrivenHome()
    driven.start(ROUTER, {})

    def make_used(number: int) -> None:
        _make_partition(driven, number)
        _bind(driven, number)
        driven.send(wire.FLOW, driven.router, [[number + 1, ["unbind", None]]])
        driven.tick()
        assert number + 1 not in driven.home.lanes.flows
        driven.pass_time(2 * REST_AFTER_S)
        driven.tick()
        driven.write()
        driven.clear()  # what the driver notes

    never_used = _measure(lambda number: _make_partition(driven, number + 500), 200)
    assert _measure(make_used, 200) < never_used * 1.1


def _bind(driven: DrivenHome, number: int) -> None:
    bind = ["bind", 7 << wire.LANE_BITS | number, False, None, 100, 1 << 40, {}]
    driven.send(wire.FLOW, driven.router, [[number + 1, bind]])
    driven.tick()
    assert number + 1 in driven.home.lanes.flows


def _make_partition(driven: DrivenHome, number: int) -> int:
    lane_id = 7 << wire.LANE_BITS | number
    driven.lanes({lane_id: settings_of("parted", partitions=1_000)})
    driven.tick()
    driven.write()
    return lane_id


def test_a_will_that_waits() -> None:
    decode = msgspec.msgpack.Decoder(gateways.Will).decode
    memory = SimpleNamespace(keep=lambda *_: None, charge=lambda *_: None)
    wills = Wills(memory, lambda *_: True, lambda *_: None)  # type: ignore[arg-type]
    session = Session(1, b"", Vpn(1, "v", {}), "u", "", 0.0)

    def make(number: int) -> None:
        session.number, session.client_name = number + 1_000, f"dev{number}"
        will = decode(wire.pack([f"gone/{number}", 1, None, bytes(50), bytes(100), 1_000]))
        wills.attached(session, Behalf("", will=will), 0.0)
        wills.session_ended(session, None, float(number))

    _expect(costs.WILL_BYTES + len(f"gone/{COUNT}") + 150, make)
