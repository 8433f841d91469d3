"""Streams of events: who gets a message, and what becomes of who does not read."""

from __future__ import annotations

import json

import pytest

from angarium import errors
from angarium.errors import AngariumError, error_for
from angarium.message import Message
from angarium_server.http.sse import COMMENT, QUIET_S, farewell_of
from gateway import fanout
from gateway.http import streams as module
from gateway.http.streams import Stream, Streams, event_of
from gateway.http.targets import Verb, target_of


class FakeOutlet:
    """A connection that takes everything, of which so much has left as the test says."""

    def __init__(self) -> None:
        self.data = b""
        self.left = 0
        self.is_gone = False

    def send(self, data: bytes) -> None:
        self.data += data

    def unsent(self) -> int:
        return len(self.data) - self.left

    def drop(self) -> None:
        self.is_gone = True

    @property
    def payloads(self) -> list[str]:
        lines = self.data.decode().splitlines()
        told = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
        return [one["payload"] for one in told if "payload" in one]


class World:
    """Streams at a process."""

    def __init__(self) -> None:
        self.streams = Streams(1_000_000)
        self.codes: list[int] = []

    def stream(self, *filters: str, vpn: str = "v") -> tuple[Stream, FakeOutlet]:
        outlet = FakeOutlet()
        made = Stream(vpn, filters, outlet, self.ended)
        self.streams.add(made, 0.0)
        return made, outlet

    def ended(self, error: AngariumError) -> None:
        self.codes.append(error.code)

    def deliver(self, *messages: tuple[str, bytes], vpn: str = "v") -> None:
        self.streams.deliver(vpn, [Message(topic, payload).row for topic, payload in messages], 1.0)


@pytest.fixture
def world() -> World:
    return World()


def test_a_stream_gets_what_its_filters_match_once_and_in_order(world: World) -> None:
    _, both = world.stream("a/>", "*/b")
    _, one = world.stream("a/c")
    _, other = world.stream("a/>", vpn="w")
    world.deliver(("a/b", b"1"), ("a/c", b"2"), ("x", b"3"), ("x/b", b"4"))
    assert (both.payloads, one.payloads, other.payloads) == (["1", "2", "4"], ["2"], [])
    assert world.streams.sent == 4


def test_a_topic_that_very_many_filters_match_takes_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "TURN_NODES", 300)
    world = World()
    patterns = ("/".join("a" if number >> bit & 1 else "*" for bit in range(11)) for number in range(2_048))
    _, dear = world.stream(*patterns)
    _, other = world.stream("b")
    _, elsewhere = world.stream("b", vpn="w")
    world.deliver(("b", b"1"), ("/".join("a" * 11), b"2"), ("b", b"3"))
    world.deliver(("b", b"4"))
    turns = 0
    while world.streams.is_behind:
        assert dear.payloads or other.payloads == ["1"], "order is kept"
        turns += 1
        assert world.streams.begin_turn(1.0) == ([] if world.streams.is_behind else ["v"])
        world.deliver(("b", b"5"), vpn="w")
    assert 4_095 // (300 + 256) <= turns <= 4_095 // 256
    assert (dear.payloads, other.payloads) == (["2"], ["1", "3", "4"])
    assert elsewhere.payloads == turns * ["5"], "other Message VPNs do not wait"


def test_a_stream_that_is_gone_gets_nothing_more(world: World) -> None:
    gone, outlet = world.stream("a")
    _, stays = world.stream("a")
    world.streams.remove(gone)
    world.deliver(("a", b"1"))
    assert (outlet.payloads, stays.payloads) == ([], ["1"])


def test_who_reads_too_slowly_is_told_and_ended_and_others_are_not(world: World) -> None:
    _, slow = world.stream("a")
    _, fast = world.stream("a")
    for _ in range(20):
        world.deliver(("a", b"x" * 100_000))
        fast.left = len(fast.data)
    assert world.codes == [errors.EGRESS_BLOCKED]
    assert world.streams.slow == 1
    assert slow.data.endswith(b"\n\n")
    assert json.loads(slow.data.rpartition(b"event: end\ndata: ")[2])["code"] == errors.EGRESS_BLOCKED
    assert len(fast.payloads) == 20


def test_who_has_most_is_ended_when_all_together_have_too_much(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UNSENT_BYTES_MAX", 10_000_000)
    _, most = world.stream("a", "b")
    _, less = world.stream("b")
    world.deliver(("a", b"x" * 400_000), ("b", b"x" * 400_000))
    world.streams.tick(1.0)
    assert b"event: end" in most.data
    assert b"event: end" not in less.data


def test_what_waits_for_streams_that_have_ended_counts_and_goes_first(world: World) -> None:
    """Each left up to a mebibyte behind, for as long as its connection was there, and the next ones had all again."""
    for _ in range(3):
        stream, slow = world.stream("a")
        while not stream.is_over:
            world.deliver(("a", b"x" * 400_000))
        world.streams.remove(stream)
        assert b"event: end" in slow.data
    _, fast = world.stream("a")
    _, quiet = world.stream("b")
    world.streams.tick(1.0)
    world.deliver(("a", b"1"), ("b", b"2"))
    assert slow.is_gone
    assert (fast.payloads, quiet.payloads) == (["1"], ["2"])
    assert sum(one.unsent for one in world.streams._left) <= 1_000_000


def test_a_quiet_stream_says_something(world: World) -> None:
    _, outlet = world.stream("a")
    world.streams.tick(QUIET_S - 0.1)
    assert outlet.data == b""
    world.streams.tick(QUIET_S)
    world.streams.tick(QUIET_S)
    assert outlet.data == COMMENT


def test_a_stream_ends_once(world: World) -> None:
    stream, outlet = world.stream("a")
    world.streams.end_all(error_for(errors.SHUTTING_DOWN))
    world.streams.end_all(error_for(errors.SHUTTING_DOWN))
    world.deliver(("a", b"1"))
    assert world.codes == [errors.SHUTTING_DOWN]
    assert outlet.payloads == []
    assert stream.is_over


def test_an_event_is_one_line_of_json_whatever_the_message_is() -> None:
    event = event_of(Message("a", b"one\n\ndata: two").row, "n.1", stored_ms=5)
    head, data, empty, end = event.split(b"\n")
    assert (head, empty, end) == (b"id: n.1", b"", b"")
    told = json.loads(data.removeprefix(b"data: "))
    assert (told["payload"], told["stored_ms"]) == ("one\n\ndata: two", 5)
    assert farewell_of(error_for(errors.SHUTTING_DOWN, "a\nb")).count(b"\n") == 3


def test_a_path_names_filters_or_a_queue() -> None:
    assert target_of("/v1/events?topic=a/%3E&topic=b&vpn=v").topics == ("a/>", "b")
    queue = target_of("/v1/events?queue=a%2Fb")
    assert (queue.verb, queue.name, queue.query) == (Verb.EVENTS, "a/b", {})


@pytest.mark.parametrize(
    "query",
    ["", "?topic=a&queue=b", "?queue=a&queue=b", "?topic=%23share/a/b", "?topic=!a", "?topic=a&x=1&x=2"],
)
def test_other_streams_are_refused(query: str) -> None:
    with pytest.raises(AngariumError) as refused:
        target_of(f"/v1/events{query}")
    assert refused.value.code == errors.INVALID_ARGUMENT
