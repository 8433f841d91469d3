"""A channel: connecting, refusals, back-off and the end of one side."""

from __future__ import annotations

import random
import weakref
from typing import Any

import pytest

from angarium import errors, wire
from angarium.errors import error_for
from cluster.link.link import Channel
from cluster.link.role import CHANNEL, LinkConfig
from cluster.relay.pair import (
    ATTEMPT_SEVERAL_S,
    BACKOFF_MAX_S,
    BACKOFF_SEVERAL_S,
    FAR,
    OWN,
    REFUSAL_EVENT_S,
    Connect,
    Disconnect,
    Effect,
    Emit,
    State,
    Surroundings,
)
from cluster.relay.runtime import RelayRuntime
from router.ground.config import Identity
from tests.garbage import uncollected
from tests.unit.cluster.played_relay import sent
from tests.unit.cluster.spooled_requests import answer, requests
from tests.unit.declared_metrics import differences
from tests.welcome import welcome

IDENTITY = Identity(node_id="id-a", cluster="c", secret="outside", local_secret="inside")


class Bench:
    """A channel, and what it wants."""

    def __init__(self, *addresses: str) -> None:
        self.outbox: list[Effect] = []
        self.now = 100.0
        config = LinkConfig(neighbour="b", addresses=list(addresses), vpns=["default"])
        runtime = RelayRuntime(node="a", identity=IDENTITY)
        #: The clock of this host, which its router reads too.
        self.wall_s = 0.0
        around = Surroundings(runtime, 7, "ipc:///own", self.outbox, random.Random(1), lambda: self.wall_s)
        self.channel = Channel(around, config, "default", self.now)
        self.events: list[dict[str, Any]] = []

    def effects(self) -> list[Effect]:
        found, self.outbox[:] = list(self.outbox), []
        for effect in found:
            if isinstance(effect, Disconnect):
                self.channel.forget(effect.side)
            elif isinstance(effect, Emit):
                self.events.append(effect.event)
        self.channel.validate()
        return found

    def wait(self, seconds: float) -> list[Effect]:
        self.now += seconds
        self.channel.tick(self.now)
        return self.effects()

    def until_connect(self) -> tuple[float, Connect]:
        """Wait for the next attempt; gives how long that took."""
        started = self.now
        while True:
            for effect in self.wait(0.01):
                if isinstance(effect, Connect):
                    return self.now - started, effect
            assert self.now - started < 20.0

    def hello(self, side: int) -> dict[str, Any]:
        session = self.channel.sessions[side]
        assert session is not None
        frames = session.take_outgoing().popleft()
        assert frames[0] == wire.HELLO
        found: dict[str, Any] = wire.unpack(frames[1])
        return found

    def welcome(self, side: int, node: str = "b", wall_ms: int = 0) -> None:
        link = {"node": node, "node_id": f"id-{node}", "cluster": "c", "wall_ms": wall_ms}
        body = welcome(node=node, max_batch_rows=1_000, max_batch_bytes=1 << 20, link=link)
        self.receive(side, wire.WELCOME, body)

    def receive(self, side: int, operation: bytes, header: Any) -> None:
        self.channel.received(side, [operation, wire.pack(header)], self.now)

    def close(self, side: int, code: int) -> None:
        self.receive(side, wire.CLOSED, [code, "because"])


def test_the_neighbour_is_asked_first_and_the_own_router_hears_who_answered() -> None:
    bench = Bench("tcp://far:1")
    _, connect = bench.until_connect()
    assert (connect.side, connect.url, connect.trust) == (FAR, "tcp://far:1", ("b", ""))
    hello = bench.hello(FAR)
    assert (hello["username"], hello["password"]) == ("#link", "outside")
    assert hello["link"] == {
        "node": "a",
        "node_id": "id-a",
        "cluster": "c",
        "incarnation": 7,
        "encrypted": False,
    }
    bench.welcome(FAR)
    (connect,) = [effect for effect in bench.effects() if isinstance(effect, Connect)]
    assert (connect.side, connect.url, connect.trust) == (OWN, "ipc:///own", ("", ""))
    hello = bench.hello(OWN)
    assert (hello.get("password"), hello["behalf"]) == (None, {"secret": "inside"})
    assert hello["link"]["node_id"] == "id-b"
    states = [bench.channel.state]
    bench.welcome(OWN, "a")
    assert [*states, bench.channel.state] == [State.JOINING, State.UP]
    bench.effects()


@pytest.mark.requirement("R204")
@pytest.mark.parametrize(("source", "stored_ms"), [(FAR, 499_000), (OWN, 3_699_000)])
def test_ages_are_right_although_the_clock_of_this_host_was_set(source: int, stored_ms: int) -> None:
    """A host may have begun with a wrong clock, and its links are up for months."""
    bench = Bench("tcp://far:1")
    bench.wall_s = 100.0
    bench.until_connect()
    bench.welcome(FAR, wall_ms=500_000)
    bench.effects()
    bench.welcome(OWN, "a", wall_ms=100_000)
    here, there = bench.channel.sessions[source], bench.channel.sessions[1 - source]
    assert here is not None
    assert there is not None
    answer(here, requests(here)[0][0], {"flow": 5, "endpoint_id": 9})
    answer(there, requests(there)[-1][0], {"producer": 3})
    bench.wall_s = 3_700.0
    rows = [[0, "t", wire.MODE_PERSISTENT, [8_000, 0, None, None], None, b""]]
    head = [5, [[0, 1, [[1, 1]], None, stored_ms, None]]]
    bench.channel.received(source, [wire.MESSAGES, wire.pack(head), wire.pack(rows)], bench.now)
    (published,) = [frames for frames in sent(there) if frames[0] == wire.PUBLISH]
    assert wire.unpack(published[2])[0][wire.ROW_META] == pytest.approx([7_000, 0, None, None], abs=20)


def test_another_node_at_the_address_is_not_joined() -> None:
    bench = Bench("tcp://far:1")
    bench.until_connect()
    bench.welcome(FAR, "c")
    bench.effects()
    assert bench.channel.state is State.WAITING
    assert bench.channel.error is not None
    assert bench.channel.error.code == errors.LINK_WRONG_NODE
    assert [event["code"] for event in bench.events] == [errors.LINK_WRONG_NODE]


def test_a_refusal_is_told_once_and_tried_again_with_growing_pauses() -> None:
    bench = Bench("tcp://far:1")
    bench.until_connect()
    pauses = []
    for _ in range(12):
        bench.close(FAR, errors.LINK_NOT_ALLOWED)
        bench.effects()
        pause, _ = bench.until_connect()
        pauses.append(pause)
    assert [event["code"] for event in bench.events] == [errors.LINK_NOT_ALLOWED]
    assert pauses[0] < 0.1
    assert BACKOFF_MAX_S / 2 - 0.1 < pauses[-1] < BACKOFF_MAX_S + 0.1


def test_addresses_are_tried_in_turn() -> None:
    bench = Bench("tcp://one:1", "tcp://two:2")
    urls = []
    for _ in range(4):
        _, connect = bench.until_connect()
        urls.append(connect.url)
        bench.channel.lost(FAR, error_for(errors.NOT_CONNECTED, "nobody"), bench.now)
        bench.effects()
    assert urls == ["tcp://one:1", "tcp://two:2"] * 2
    assert bench.events == []


def test_with_several_addresses_it_tries_again_sooner_and_gives_up_a_silent_one_sooner() -> None:
    bench = Bench("tcp://one:1", "tcp://two:2")
    pauses = []
    for _ in range(12):
        pause, _ = bench.until_connect()
        pauses.append(pause)
        bench.wait(ATTEMPT_SEVERAL_S + 0.1)
        assert bench.channel.state is State.WAITING
    assert BACKOFF_SEVERAL_S / 2 - 0.1 <= max(pauses) <= BACKOFF_SEVERAL_S + 0.1


def test_without_addresses_it_says_so() -> None:
    bench = Bench()
    bench.wait(0.1)
    assert bench.channel.error is not None
    assert "names no address" in bench.channel.error.detail


def test_an_attempt_ends_without_an_answer() -> None:
    bench = Bench("tcp://far:1")
    bench.until_connect()
    bench.wait(5.1)
    assert bench.channel.state is State.WAITING


def test_when_one_side_ends_the_other_hears_goodbye() -> None:
    for gone in (OWN, FAR):
        bench = Bench("tcp://far:1")
        bench.until_connect()
        bench.welcome(FAR)
        bench.effects()
        bench.welcome(OWN, "a")
        bench.effects()
        other = bench.channel.sessions[1 - gone]
        assert other is not None
        other.take_outgoing().clear()
        bench.channel.lost(gone, error_for(errors.NOT_CONNECTED, "cut"), bench.now)
        assert [frames[0] for frames in other.take_outgoing()] == [wire.BYE]
        assert {effect.side for effect in bench.effects() if isinstance(effect, Disconnect)} == {OWN, FAR}
        assert bench.channel.state is State.WAITING


def test_nothing_of_a_connection_that_ended_waits_for_the_garbage_collector() -> None:
    """A process of a node hardly ever collects: what waited for that would stay after every break of a link."""
    bench = Bench("tcp://far:1")
    with uncollected():
        bench.until_connect()
        bench.welcome(FAR)
        bench.effects()
        bench.welcome(OWN, "a")
        parts = [*bench.channel.sessions, *bench.channel.relays, *bench.channel.forwarders[OWN]]
        left = [weakref.ref(part) for part in parts if part is not None]
        del parts
        bench.close(FAR, errors.SHUTTING_DOWN)
        bench.effects()
        assert [part() for part in left] == [None] * 6


def test_a_silent_router_is_noticed() -> None:
    bench = Bench("tcp://far:1")
    bench.until_connect()
    bench.welcome(FAR)
    bench.effects()
    bench.welcome(OWN, "a")
    for _ in range(10):
        bench.wait(0.5)
        bench.receive(OWN, wire.PING, [1])
    assert bench.channel.error is not None
    assert bench.channel.error.code == errors.KEEPALIVE_TIMEOUT


def test_what_is_over_stays_over() -> None:
    bench = Bench("tcp://far:1")
    bench.until_connect()
    bench.channel.leave(bench.now)
    bench.effects()
    assert bench.wait(100.0) == []
    assert bench.channel.state is State.OVER


def opened() -> Bench:
    bench = Bench("tcp://far:1")
    bench.until_connect()
    bench.welcome(FAR)
    bench.effects()
    bench.welcome(OWN)
    assert bench.channel.state is State.UP
    return bench


def pings(bench: Bench) -> list[int]:
    session = bench.channel.sessions[FAR]
    assert session is not None
    frames = list(session.take_outgoing())
    session.take_outgoing().clear()
    return [wire.unpack(one[1])[0] for one in frames if one[0] == wire.PING]


def answer_all(bench: Bench, side: int, producers: int = 0) -> None:
    """Have a router give every flow, and every producer, or refuse these with a code."""
    session = bench.channel.sessions[side]
    assert session is not None
    while asked := requests(session):
        for number, operation, _ in asked:
            if operation == "producer.open" and producers:
                bench.receive(side, wire.ANSWER, [number, producers, "in Message VPN default"])
            else:
                given = {"flow": number, "endpoint_id": number, "producer": number}
                bench.receive(side, wire.ANSWER, [number, 0, given])


def test_a_producer_that_is_refused_is_told_and_shown_until_it_is_opened() -> None:
    """Direct messages cross, and guaranteed ones wait for as long as the other router has no place for one."""
    bench = opened()
    for _ in range(7):
        assert bench.events == []
        answer_all(bench, OWN)
        answer_all(bench, FAR, producers=errors.TOO_MANY_FLOWS)
        shown = bench.channel.describe(bench.now)
        assert (shown["state"], shown["code"]) == ("up", errors.TOO_MANY_FLOWS)
        for side in (FAR, OWN):
            bench.receive(side, wire.PING, [0])
        bench.wait(0.9)
    assert [event["code"] for event in bench.events] == [errors.TOO_MANY_FLOWS]
    for side in (FAR, OWN):
        answer_all(bench, side)
    shown = bench.channel.describe(bench.now)
    assert (shown["state"], shown["code"], shown["error"]) == ("up", 0, "")


def test_the_lag_of_a_link_is_how_long_the_far_router_takes_to_answer() -> None:
    bench = opened()
    shown = bench.channel.describe(bench.now)
    assert shown["lag_ms"] is None
    assert differences(CHANNEL, shown) == ["code", "error", "lag_ms", "state", "vpn"], "of the link as well"
    bench.wait(1.1)
    (number,) = pings(bench)
    bench.now += 0.2
    bench.receive(FAR, wire.PONG, [number])
    assert bench.channel.describe(bench.now)["lag_ms"] == pytest.approx(200.0)
    bench.wait(1.1)
    assert bench.channel.describe(bench.now + 0.1)["lag_ms"] == pytest.approx(200.0)
    assert bench.channel.describe(bench.now + 0.7)["lag_ms"] == pytest.approx(700.0), "it does not answer"
    bench.now += 0.01
    bench.receive(FAR, wire.PONG, [number])  # an answer to an earlier one says nothing
    assert bench.channel.describe(bench.now + 0.7)["lag_ms"] > 700.0


def test_a_lag_that_is_longer_than_the_time_between_two_questions_is_seen_as_it_is() -> None:
    bench = opened()
    asked: list[int] = []
    for _ in range(12):  # what is in front of the first one takes longer than the time to the next
        bench.wait(0.5)
        for side in (OWN, FAR):
            bench.receive(side, wire.PING, [0])
        asked += pings(bench)
    assert len(asked) >= 5
    assert bench.channel.describe(bench.now)["lag_ms"] > 4_500.0
    bench.receive(FAR, wire.PONG, [asked[0]])
    lag_ms = bench.channel.describe(bench.now)["lag_ms"]
    assert lag_ms > 4_500.0
    for number in asked[1:]:
        bench.receive(FAR, wire.PONG, [number])
    assert bench.channel.describe(bench.now)["lag_ms"] == lag_ms


@pytest.mark.parametrize("side", [OWN, FAR])
def test_a_report_of_one_controller_is_handed_to_the_other_side(side: int) -> None:
    bench = opened()
    bench.receive(side, wire.PEERS, [b"report"])
    there = bench.channel.sessions[1 - side]
    assert there is not None
    assert [wire.PEERS, wire.pack([b"report"])] in there.take_outgoing()


def test_a_report_that_comes_before_the_other_side_is_there_is_dropped() -> None:
    bench = Bench("tcp://far:1")
    bench.until_connect()
    bench.welcome(FAR)
    bench.receive(FAR, wire.PEERS, [b"report"])
    own = bench.channel.sessions[OWN]
    assert own is not None
    assert wire.PEERS not in [frames[0] for frames in own.take_outgoing()]


class TestRefusals:
    """Every reason for which a link cannot be is told the operators of the node that opens it."""

    @pytest.mark.parametrize(
        "code",
        [
            errors.CLUSTER_MISMATCH,
            errors.LINK_TO_OWN_NODE,
            errors.LINK_UNAUTHORIZED,
            errors.LINK_NOT_ALLOWED,
            errors.LINK_INITIATOR_MISMATCH,
            errors.LINK_EXISTS,
            errors.UNSUPPORTED_VERSION,
            errors.VPN_NOT_ALLOWED,
            errors.MALFORMED_FRAME,
        ],
    )
    def test_the_neighbour_refuses_the_login(self, code: int) -> None:
        bench = Bench("tcp://far:1")
        bench.until_connect()
        bench.close(FAR, code)
        bench.effects()
        (event,) = bench.events
        assert (event["event"], event["code"], event["link"]) == ("SYSTEM_LINK_REFUSED", code, "b")
        assert bench.channel.describe(bench.now)["code"] == code
        assert "because" in bench.channel.describe(bench.now)["error"]

    def test_a_certificate_that_is_not_trusted(self) -> None:
        bench = Bench("tcp://far:1")
        bench.until_connect()
        bench.channel.lost(FAR, error_for(errors.TLS_FAILED, "its certificate has expired"), bench.now)
        bench.effects()
        assert [event["code"] for event in bench.events] == [errors.TLS_FAILED]

    @pytest.mark.parametrize("side", [OWN, FAR])
    @pytest.mark.parametrize("code", [errors.LINK_IMPORTS_EXCEEDED, errors.MALFORMED_FRAME])
    def test_a_router_refuses_exports_and_the_other_hears_why(self, side: int, code: int) -> None:
        bench = opened()
        other = bench.channel.sessions[1 - side]
        assert other is not None
        other.take_outgoing().clear()
        bench.close(side, code)
        (bye,) = other.take_outgoing()
        assert bye == [wire.BYE, wire.pack([code, "because"])]

    def test_one_that_comes_again_after_the_link_was_up_is_told_once_a_minute(self) -> None:
        bench = Bench("tcp://far:1")
        told = []
        for _ in range(40):
            bench.until_connect()
            bench.welcome(FAR)
            bench.effects()
            bench.welcome(OWN)
            bench.close(FAR, errors.LINK_IMPORTS_EXCEEDED)
            bench.effects()
            told.append((len(bench.events), bench.now))
        assert bench.now > 160.0
        assert told[-1][0] == 1 + int((bench.now - told[0][1]) // REFUSAL_EVENT_S)

    def test_what_comes_after_the_end_does_not_replace_the_reason(self) -> None:
        bench = opened()
        bench.close(OWN, errors.LINK_IMPORTS_EXCEEDED)
        bench.close(FAR, 0)
        assert bench.channel.error is not None
        assert bench.channel.error.code == errors.LINK_IMPORTS_EXCEEDED
