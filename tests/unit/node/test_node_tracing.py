"""Spans of a worker, without one: which messages are watched, how many, and what is told of them."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from angarium import Message, wire
from angarium_server.frames.settings import LaneSettings
from node.matching.batch import Row
from node.tracing.config import HEADERS_BYTES_MAX, TracingConfig, faults_of, read_headers
from node.tracing.watch import LOOKS, WATCHED_MAX, Shares, Watch, level_of
from tests.unit.node.lane_driver import ACCEPTED, FAILED, LANE_ID, REJECTED, Driver

if TYPE_CHECKING:
    from pathlib import Path

    from node.backlog.segment import Segment
    from node.tracing.spans import Span

SPAN = "00f067aa0ba902b7"


def row(trace: int, index: int = 0, flags: str = "01", **options: Any) -> Row:
    """Give the row of a message in a trace."""
    properties = {"traceparent": f"00-{trace:032x}-{SPAN}-{flags}"}
    made = Message("topic", b"body", mode="persistent", properties=properties, **options).row
    return Row(index, made[1], made[2], made[3], made[4], made[5])


class World(Driver):
    """A lane with a watch over it, as a home has them; the clock of spans is that of the lane."""

    def __init__(self, config: TracingConfig | None = None, **settings: Any) -> None:
        super().__init__(**{"name": "q", **settings})
        self.ns = 1_700_000_000_000_000_000
        self.watch = Watch(
            config or TracingConfig(messages_per_second=10_000), lambda: self.ns, random.Random(7)
        )

    def come(self, *rows: Row) -> Segment:
        sampled = self.watch.sampled(rows, self.lane.settings.vpn)
        found = [(i, rows[i], context) for i, context in sampled.items()]
        if found:
            self.watch.arrived(self.lane, self.lane.next_position, found)
        self.ns += 1_000
        segment = self.put(*rows)
        self.watch.stored(self.lane, segment)
        return segment

    def serve(self) -> None:
        self.ns += 1_000
        self.watch.handed_out(self.lane, self.handouts())

    def say(self, flow: int, outcome: int, *ranges: tuple[int, int]) -> None:
        self.ns += 1_000
        self.watch.settled(self.lane, flow, outcome, ranges)
        self.settle(flow, outcome, *ranges)
        self.look()

    def look(self) -> None:
        self.watch.look(self.lane, self.wall_ms)
        self.watch.validate()

    def spans(self) -> list[Span]:
        return self.watch.take_spans()

    def names(self) -> list[str]:
        return [span.name for span in self.spans()]


def test_the_ways_of_a_message() -> None:
    world = World()
    world.come(row(1), row(2, 1), row(3, 2), row(4, 3, "00"))
    world.bind(5)
    world.serve()
    world.say(5, ACCEPTED, (1, 1), (4, 4))
    world.say(5, FAILED, (2, 2))
    world.serve()
    world.say(5, ACCEPTED, (2, 2))
    world.unbind(5)
    world.look()
    spans = world.spans()
    ways = {trace: [span for span in spans if span.trace_id == f"{trace:032x}"] for trace in (1, 2, 3, 4)}
    assert [span.name for span in ways[1]] == ["enqueue q", "deliver q", "accept q"]
    assert [span.name for span in ways[2]] == ["enqueue q", "deliver q", "fail q", "deliver q", "accept q"]
    assert [span.name for span in ways[3]] == ["enqueue q", "deliver q", "lose q"]
    assert ways[4] == []
    for way in ways.values():
        assert all(a.end_ns == b.start_ns for a, b in itertools.pairwise(way))
        assert [span.parent_id for span in way[:1]] == [SPAN] * bool(way)
        for span in way[1:]:
            before = way[0] if span.name == "deliver q" else way[way.index(span) - 1]
            assert span.parent_id == before.span_id
    assert len({span.span_id for span in spans}) == len(spans)
    assert world.watch.watched == 1


def test_a_flow_settles_only_what_it_has() -> None:
    world = World(access_type="non-exclusive")
    world.come(row(1))
    world.bind(5)
    world.serve()
    world.say(6, ACCEPTED, (1, 1))
    world.say(5, 99, (1, 1))
    assert world.names() == ["enqueue q", "deliver q"]
    world.say(5, ACCEPTED, (0, 1 << 60))
    assert world.names() == ["accept q"]


def test_browsers_take_nothing() -> None:
    world = World()
    world.come(row(1))
    world.bind(5, browse=True)
    world.serve()
    assert world.names() == ["enqueue q"]


def test_what_is_dead_moves_or_is_deleted() -> None:
    for queue, last in (("dmq", "move q"), ("", "delete q")):
        world = World(dead_message_queue=queue)
        segment = world.come(row(1))
        world.bind(5)
        world.serve()
        world.say(5, REJECTED, (1, 1))
        if queue:
            ((dead, i, reason),) = world.lane.take_dead()
            assert (dead, i, reason) == (segment, 0, "rejected")
            assert world.names() == ["enqueue q", "deliver q", "reject q"]
            world.lane.gone(segment, 0)
            world.look()
            (moved,) = world.spans()
            assert moved.attributes["angarium.reason"] == "rejected"
            assert moved.name == last
        else:
            assert world.names() == ["enqueue q", "deliver q", "reject q", last]
        assert not world.watch.watched


def test_what_expires_and_what_is_purged() -> None:
    world = World()
    world.come(row(1, ttl_ms=1_000))
    world.pass_ms(2_000)
    world.tick()
    world.look()
    world.come(row(2))
    world.lane.purge()
    world.look()
    assert world.names() == ["enqueue q", "expire q", "enqueue q", "delete q"]


def test_what_a_holder_has_done_is_accepted() -> None:
    world = World()
    world.come(row(1))
    world.bind(5)
    world.serve()
    world.lane.finish(1)
    world.watch.finished(world.lane, 1)
    world.look()
    assert world.names() == ["enqueue q", "deliver q", "accept q"]


def test_what_is_retained_is_not_watched() -> None:
    world = World(retains=True)
    world.come(row(1))
    assert (world.names(), world.watch.watched) == ([], 0)


@pytest.mark.parametrize(("ratio", "least", "most"), [(0.0, 0, 0), (0.25, 200, 300), (1.0, 1_000, 1_000)])
def test_a_ratio_takes_a_share_of_the_traces_the_same_everywhere(ratio: float, least: int, most: int) -> None:
    config = TracingConfig(sample_ratio=ratio, messages_per_second=10_000)
    ids = random.Random(11)
    rows = [row(ids.getrandbits(128), i) for i in range(1_000)]
    first, second = (World(config).watch.sampled(rows, "default") for _ in range(2))
    assert first == second
    assert least <= len(first) <= most


def test_more_than_there_may_be_in_a_second_are_passed_over() -> None:
    world = World(TracingConfig(messages_per_second=3))
    rows = [row(i + 1, i) for i in range(5)]
    assert list(world.watch.sampled(rows, "a")) == [0, 1, 2]
    world.ns += 400_000_000
    assert list(world.watch.sampled(rows, "a")) == []
    world.ns += 600_000_000
    assert len(world.watch.sampled(rows, "a")) == 3
    world.ns -= 10_000_000_000  # A wall clock may be set.
    assert len(world.watch.sampled(rows, "a")) == 3
    assert world.watch.counts["messages_passed_over"] == 2 + 5 + 2 + 2
    world.watch.validate()


def test_a_message_vpn_that_asks_for_much_leaves_the_others_their_part() -> None:
    shares = Shares(100, 0)
    for second in range(1, 4):
        now_ns = second * 1_000_000_000
        got = {vpn: [shares.take(vpn, now_ns) for _ in range(asks)].count(True) for vpn, asks in ASKED}
        shares.validate()
        if second > 1:
            assert got == {"loud": 60, "quiet": 30, "small": 10}
    assert [shares.take("loud", 9_000_000_000) for _ in range(200)].count(True) == 100, "there is nobody else"
    assert level_of([500, 30, 10], 100) == 60
    assert (level_of([], 7), level_of([5, 2], 7), level_of([9] * 10, 3)) == (7, 7, 1)


#: Message VPN -> how much it asks for in a second, of 100 that there are.
ASKED = (("loud", 500), ("quiet", 30), ("small", 10))


def test_the_message_vpn_with_most_messages_loses_the_oldest() -> None:
    world = World()
    other: Any = SimpleNamespace(lane_id=LANE_ID + 1, settings=LaneSettings(vpn="other"))
    sampled = world.watch.sampled([row(1)], "other")
    world.watch.arrived(other, 1, [(0, row(1), sampled[0])])
    for start in range(0, WATCHED_MAX, 100):
        world.come(*[row(start + i + 2, i) for i in range(100)])
    world.watch.validate()
    assert world.watch.watched == WATCHED_MAX
    assert list(world.watch.lanes[LANE_ID + 1].by_position) == [1], "it was there first, and is there still"


@pytest.mark.parametrize(
    ("queue", "shown"),
    [
        ("orders", "orders"),
        ("#DEAD_MSG_QUEUE", "#DEAD_MSG_QUEUE"),
        ("#mqtt/sensor-4711", "#mqtt/*"),
        ("#mqtt/$share/group/a", "#mqtt/$share/*"),
    ],
)
def test_a_span_has_no_name_that_only_one_client_has(queue: str, shown: str) -> None:
    world = World(name=queue)
    world.come(row(1))
    (span,) = world.spans()
    assert (span.name, span.attributes["messaging.destination.name"]) == (f"enqueue {shown}", queue)


def test_so_many_are_watched_and_so_many_looked_at() -> None:
    world = World(TracingConfig(messages_per_second=10_000))
    for start in range(0, WATCHED_MAX + 100, 100):
        world.come(*[row(start + i + 1, i) for i in range(100)])
    assert world.watch.watched == WATCHED_MAX
    assert world.watch.counts["messages_passed_over"] == 100
    world.lane.purge()
    looked = 0
    while world.watch.watched:
        before = world.watch.watched
        world.look()
        assert before - world.watch.watched <= LOOKS
        looked += 1
    assert looked == WATCHED_MAX // LOOKS
    assert not world.watch.lanes


def test_spans_that_nobody_takes_are_dropped() -> None:
    world = World()
    world.bind(5)
    for start in range(0, 2_000, 100):
        segment = world.come(*[row(start + i + 1, i) for i in range(100)])
        world.serve()
        world.say(5, ACCEPTED, (segment.first, segment.last))
    counts = world.watch.counts
    assert (counts["spans_made"], counts["spans_dropped"]) == (6_000, 2_000)
    assert len(world.spans()) == 4_000


def test_a_lane_that_is_gone_is_forgotten() -> None:
    world = World()
    world.come(row(1))
    world.watch.forget(LANE_ID)
    world.watch.forget(LANE_ID)
    assert not world.watch.watched
    world.watch.validate()


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("http://[::1]:4318/", "http://[::1]:4318/v1/traces"),
        ("http://localhost/otlp?key=1", "http://localhost/otlp?key=1"),
        ("https://collector.example", "https://collector.example/v1/traces"),
    ],
)
def test_where_spans_are_posted(endpoint: str, url: str) -> None:
    config = TracingConfig(endpoint=endpoint)
    assert (faults_of(config), config.url) == ([], url)


@pytest.mark.parametrize(
    ("endpoint", "text"),
    [
        ("http://collector.example:4318", "must encrypt"),
        ("http://10.0.0.1", "must encrypt"),
        ("http://0.0.0.0:4318", "must encrypt"),
        ("grpc://127.0.0.1:4317", "is no address"),
        ("127.0.0.1:4318", "is no address"),
        ("https://", "is no address"),
        ("https://a:99999", "it is no address"),
        ("https://a b", "is no address"),
        ("https://user:secret@collector.example", "headers_file"),
        ("ftp://user:secret@collector.example", "is no address"),
    ],
)
def test_what_is_no_place_for_spans(endpoint: str, text: str) -> None:
    (fault,) = faults_of(TracingConfig(endpoint=endpoint))
    assert fault.startswith("tracing.endpoint: ")
    assert text in fault
    assert "secret@" not in fault


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("Authorization: Bearer of-tests\r\n\n X: y", "line 3 is no header"),
        ("Authorization Bearer of-tests", "line 1 is no header"),
        ("A: b\x00", "line 1 is no header"),
        ("A: ü", "it is no text"),
        ("A: b\n" * HEADERS_BYTES_MAX, "more than"),
        (None, "No such file"),
    ],
)
def test_a_file_of_headers_that_is_none_is_told_without_what_it_holds(
    tmp_path: Path, text: str | None, fault: str
) -> None:
    file = tmp_path / "headers"
    if text is not None:
        file.write_text(text)
    (found,) = faults_of(TracingConfig(endpoint="http://127.0.0.1:1", headers_file=str(file)))
    assert found.startswith(f"tracing.headers_file: {file}: ")
    assert fault in found
    assert "of-tests" not in found


def test_headers_are_read(tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("Authorization: Bearer a b\n\nX-Team:red \n")
    assert read_headers(str(file)) == {"Authorization": "Bearer a b", "X-Team": "red"}
    assert read_headers("") == {}


def test_every_outcome_has_a_name() -> None:
    assert {wire.OUTCOME_ACCEPTED, wire.OUTCOME_FAILED, wire.OUTCOME_REJECTED} == {ACCEPTED, FAILED, REJECTED}
