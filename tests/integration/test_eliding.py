"""Eliding on a real node: what a slow screen gets of topics that change all the time."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

import angarium
from angarium import wire
from tests.integration.attacked_spool import LoneSpool
from tests.integration.raw_client import row
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from angarium.client.subscribing.mailbox import OnFull
    from tests.integration.raw_guaranteed import RawGuaranteed

pytestmark = pytest.mark.slow

ELIDING = wire.FLAG_ELIDING
#: Longer than a busy machine delays a message, and a delay that never ends while a test runs.
DELAY_MS, FOREVER_MS = 1_000, 60_000
TOPICS_OF_NODE = 40
QUIET_S = 0.15
LIMIT_S = 20.0
MAX_EVENT = "CLIENT_MAX_ELIDING_TOPIC_COUNT"
CONFIG = f"[router]\neliding_topics_max = {TOPICS_OF_NODE}\n"


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneSpool]:
    with LoneSpool(tmp_path_factory.mktemp("eliding"), CONFIG) as lone:
        yield lone


@pytest.fixture
def publisher(lone: LoneSpool) -> Iterator[RawGuaranteed]:
    with lone.client() as publisher:
        yield publisher
    wait_until(lambda: lone.status()["sessions"] == 0, "everybody is gone")


def screen(lone: LoneSpool, *filters: str, credit: tuple[int, int] | None = None, **profile: Any) -> Screen:
    """Give a client of a profile that allows eliding, with its subscriptions."""
    fields: dict[str, Any] = {} if credit is None else {"credit": credit}
    client = lone.client(
        username=lone.user(allow_shared_subscriptions=True, eliding=True, **profile), **fields
    )
    assert client.subscribe(*filters) == [None] * len(filters)
    return Screen(client)


class Screen:
    """A client that shows what it gets; a context manager that closes it."""

    def __init__(self, client: RawGuaranteed) -> None:
        self.client = client
        #: What discard indications told.
        self.discarded: list[int] = []

    def take(self, count: int) -> list[bytes]:
        """Give at least so many payloads."""
        found: list[bytes] = []
        while len(found) < count:
            frame = self.client.receive_only(wire.DELIVER)
            if frame.header[0] & wire.DELIVER_DISCARD_INDICATION:
                self.discarded.append(frame.header[2])
            found += [one[5] for batch in frame.batches for one in wire.unpack(batch)]
        return found

    def is_quiet(self) -> bool:
        return not self.client.socket.poll(int(QUIET_S * 1000))

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()


def tracked(lone: LoneSpool) -> int:
    return sum(client["eliding_topics"] for client in lone.ask("clients.list"))


def put(publisher: RawGuaranteed, *rows: tuple[str, bytes], flags: int = ELIDING) -> None:
    publisher.publish_uncut([row(at, topic, body, flags) for at, (topic, body) in enumerate(rows)])


@pytest.mark.requirement("R38", "R47", "R48", "R49", "R50")
def test_the_first_goes_at_once_and_the_newest_when_the_delay_is_over(
    lone: LoneSpool, publisher: RawGuaranteed
) -> None:
    with screen(lone, "price", eliding_delay_ms=DELAY_MS) as slow:
        put(publisher, ("price", b"0"))
        assert slow.take(1) == [b"0"], "although nothing follows"
        began = time.monotonic()
        put(publisher, *[("price", b"%d" % number) for number in range(1, 6)])
        assert slow.is_quiet()
        assert slow.take(1) == [b"5"]
        assert time.monotonic() - began > DELAY_MS / 1000 - 0.2
        put(publisher, ("price", b"6"))
        assert slow.is_quiet(), "the delay counts from the last one that was sent"
        assert slow.take(1) == [b"6"]
        lone.expect_discards("message-elided", 4)


@pytest.mark.requirement("R32", "R44", "R51")
def test_a_stream_of_two_topics_gives_a_few_of_each_and_the_last(
    lone: LoneSpool, publisher: RawGuaranteed
) -> None:
    with screen(lone, "stream/*", eliding_delay_ms=200) as slow:
        began = time.monotonic()
        for number in range(500):
            put(publisher, ("stream/a", b"a%d" % number), ("stream/b", b"b%d" % number))
            time.sleep(0.002)
        seconds = time.monotonic() - began
        got: list[bytes] = []
        while not {b"a499", b"b499"} <= set(got):
            got += slow.take(1)
    for topic in (b"a", b"b"):
        numbers = [int(one[1:]) for one in got if one.startswith(topic)]
        assert numbers == sorted(set(numbers))
        assert numbers[0] == 0
        assert 4 <= len(numbers) <= seconds / 0.2 + 2


@pytest.mark.requirement("R25", "R34", "R37")
def test_profile_publisher_and_plain_subscription_must_all_allow_it(
    lone: LoneSpool, publisher: RawGuaranteed
) -> None:
    with (
        screen(lone, "who", eliding_delay_ms=DELAY_MS) as slow,
        screen(lone, "#share/g/who", eliding_delay_ms=DELAY_MS) as member,
        lone.client() as other,
    ):
        other.subscribe("who")
        everything = [b"%d" % number for number in range(8)]
        flags = [0 if number in (2, 5) else ELIDING for number in range(8)]
        publisher.publish_uncut([row(at, "who", everything[at], flags[at]) for at in range(8)])
        assert slow.take(3) == [b"0", b"2", b"5"], "what its publisher did not allow to be elided is not"
        assert Screen(other).take(8) == everything, "its profile does not allow it"
        assert member.take(8) == everything, "what comes by a shared subscription is never elided"
        assert slow.take(1) == [b"7"]


@pytest.mark.requirement("R39", "R41", "R42")
def test_at_its_maximum_the_oldest_topic_is_sent_and_begins_anew(
    lone: LoneSpool, publisher: RawGuaranteed
) -> None:
    before = len(lone.events(MAX_EVENT))
    with screen(lone, "aged/*", eliding_delay_ms=FOREVER_MS, eliding_max_topics=2) as slow:
        put(publisher, ("aged/a", b"a0"), ("aged/a", b"a1"), ("aged/b", b"b0"), ("aged/b", b"b1"))
        assert slow.take(2) == [b"a0", b"b0"]
        put(publisher, ("aged/c", b"c0"))
        assert slow.take(2) == [b"a1", b"c0"]
        put(publisher, ("aged/a", b"a2"))
        assert slow.take(2) == [b"b1", b"a2"], "a is as it was at the beginning, b has made room"
        put(publisher, ("aged/a", b"a3"))
        assert slow.is_quiet()
        assert len(lone.expect_events(MAX_EVENT, before + 1)) == before + 1, "one for the client"


@pytest.mark.requirement("R43")
def test_a_topic_that_is_quiet_again_leaves_its_place_to_others(
    lone: LoneSpool, publisher: RawGuaranteed
) -> None:
    before = len(lone.events(MAX_EVENT))
    with screen(lone, "quiet/*", eliding_delay_ms=50, eliding_max_topics=2) as slow:
        for number in range(5):
            rows = [(f"quiet/{number}", b"%d" % turn) for turn in range(4)]
            put(publisher, *rows)
            assert slow.take(2) == [b"0", b"3"], "each topic is elided in its turn"
            wait_until(lambda: tracked(lone) == 0, "none is tracked any more")
    assert len(lone.events(MAX_EVENT)) == before


@pytest.mark.requirement("R40")
def test_all_clients_together_track_so_many_topics_as_the_node_may(
    lone: LoneSpool, publisher: RawGuaranteed
) -> None:
    with (
        screen(lone, "many/*", eliding_delay_ms=FOREVER_MS) as one,
        screen(lone, "many/*", eliding_delay_ms=FOREVER_MS) as two,
    ):
        put(publisher, *[(f"many/{number}", b"%d" % number) for number in range(TOPICS_OF_NODE)])
        for slow in (one, two):
            assert sorted(slow.take(TOPICS_OF_NODE), key=int) == [b"%d" % n for n in range(TOPICS_OF_NODE)]
        wait_until(lambda: tracked(lone) == TOPICS_OF_NODE, "the limit is reached")
        put(publisher, *[(f"many/more{number}", b"") for number in range(TOPICS_OF_NODE)])
        assert (len(one.take(TOPICS_OF_NODE)), len(two.take(TOPICS_OF_NODE))) == (TOPICS_OF_NODE,) * 2
        assert tracked(lone) <= TOPICS_OF_NODE
    wait_until(lambda: tracked(lone) == 0, "their topics went with them")


@pytest.mark.requirement("R52")
def test_without_a_delay_everything_passes_until_the_client_is_congested(
    lone: LoneSpool, publisher: RawGuaranteed
) -> None:
    with screen(lone, "burst/*", credit=(3, 1 << 40), eliding_delay_ms=0) as slow:
        put(publisher, *[("burst/a", b"%d" % number) for number in range(3)])
        assert slow.take(3) == [b"0", b"1", b"2"]
        for number in range(10):
            put(publisher, ("burst/a", b"a%d" % number), ("burst/b", b"b%d" % number))
        assert slow.is_quiet()
        wait_until(lambda: lone.discards("message-elided") >= 18, "older ones were replaced")
        slow.client.send(wire.CREDIT, [100, 1 << 40])
        assert sorted(slow.take(2)) == [b"a9", b"b9"]
        put(publisher, ("burst/a", b"again"))
        assert slow.take(1) == [b"again"]


@pytest.mark.requirement("R45", "R46")
def test_what_an_egress_queue_dropped_is_told_although_the_next_message_is_elided(
    lone: LoneSpool, publisher: RawGuaranteed
) -> None:
    limits = {"queue_direct_1_max_depth": 2, "queue_direct_1_min_msg_burst": 0}
    dropped, elided = lone.discards("transmit-congestion"), lone.discards("message-elided")
    with screen(lone, "a", "p", credit=(0, 0), eliding_delay_ms=0, **limits) as slow:
        for number in range(20):
            put(publisher, ("a", b"%02d" % number + b"x" * 1_000), flags=0)
            put(publisher, ("p", b"p%d" % number))
        wait_until(lambda: lone.discards("transmit-congestion") > dropped, "the oldest are dropped")
        wait_until(lambda: lone.discards("message-elided") >= elided + 19, "the last of them has come")
        slow.client.send(wire.CREDIT, [100, 1 << 40])
        got: list[bytes] = []
        while b"p19" not in got:
            got += slow.take(1)
        assert [one for one in got if one.startswith(b"p")] == [b"p19"]
        others = [one[:2] for one in got if not one.startswith(b"p")]
        assert others == [b"%02d" % number for number in range(20 - len(others), 20)], "the newest are left"
        assert slow.discarded == [20 - len(others)]
        lone.expect_discards("transmit-congestion", dropped + 20 - len(others))


@pytest.mark.requirement("R32")
@pytest.mark.parametrize(("on_full", "least", "most"), [("stall", 21, 25), ("drop", 200, 200)])
def test_a_subscription_that_stalls_lets_the_node_elide(
    lone: LoneSpool, on_full: OnFull, least: int, most: int
) -> None:
    """As docs/guarantees.md shows it; one that drops takes everything, so the node has nothing to elide."""

    async def test() -> list[bytes]:
        username = lone.user(eliding=True)
        async with (
            angarium.connect(lone.node.url, username=username, window_messages=20) as client,
            angarium.connect(lone.node.url) as source,
            client.subscribe("price/>", on_full=on_full) as prices,
        ):
            for number in range(200):
                await source.publish("price/a", b"%d" % number, eliding=True)
                await source.flush()  # a round for each
            found = [(await prices.receive(LIMIT_S)).payload]
            while found[-1] != b"199":
                found.append((await prices.receive(LIMIT_S)).payload)
            return found

    found = asyncio.run(asyncio.wait_for(test(), LIMIT_S * 3))
    assert least <= len(found) <= most
