"""Events of one source have limits, so that it does not push those of others out of the log."""

from __future__ import annotations

import pytest

from cluster.controller.switchboard.effects import Record
from cluster.controller.switchboard.event_limits import (
    SOURCES_MAX,
    SUMMARY_EVENT,
    EventLimits,
    clients_of,
    source_of,
)
from tests.unit.cluster.controller_world import World

pytestmark = pytest.mark.requirement("R284")

ALICE = ("username", "default", "alice")
BOB = ("username", "default", "bob")


def kept(
    limits: EventLimits, source: tuple[str, str, str] | None, count: int, name: str = "CLIENT_CONNECT"
) -> int:
    return sum(limits.admits(source, name) for _ in range(count))


def test_a_source_has_a_burst_and_a_rate_and_others_have_theirs() -> None:
    limits = EventLimits(100, 60)
    assert kept(limits, ALICE, 5_000) == 100
    assert kept(limits, BOB, 10) == 10
    assert kept(limits, None, 5_000) == 5_000
    list(limits.tick(30.0))
    assert kept(limits, ALICE, 5_000) == 30


def test_what_was_left_out_is_one_event_a_minute_with_numbers() -> None:
    limits = EventLimits(100, 60)
    kept(limits, ALICE, 200)
    kept(limits, ALICE, 50, "CLIENT_DISCONNECT")
    assert list(limits.tick(59.0)) == []
    (summary,) = limits.tick(60.0)
    assert summary["event"] == SUMMARY_EVENT
    assert summary["text"].startswith("150 events about username 'alice' in Message VPN 'default'")
    assert "100 x CLIENT_CONNECT, 50 x CLIENT_DISCONNECT" in summary["text"]
    assert (summary["count"], summary["username"], summary["vpn"]) == (150, "alice", "default")
    assert list(limits.tick(1_000.0)) == []
    assert kept(limits, ALICE, 5_000) == 100, "a quiet source has its whole burst again"


def test_very_many_sources_share_one_allowance() -> None:
    limits = EventLimits(10, 60)
    sources = [("client", "default", f"c{number}") for number in range(SOURCES_MAX + 100)]
    assert sum(limits.admits(source, "X") for source in sources) == SOURCES_MAX + 10
    (summary,) = limits.tick(60.0)
    assert summary["text"].startswith("90 events about other sources")


@pytest.mark.parametrize(
    ("event", "source"),
    [
        ({"username": "alice", "vpn": "v", "client": "c"}, ("username", "v", "alice")),
        ({"vpn": "v", "client": "c"}, ("client", "v", "c")),
        ({"vpn": "v", "endpoint": "q"}, ("endpoint", "v", "q")),
        ({"vpn": "v", "link": "n"}, None),
        ({"role": "worker"}, None),
    ],
)
def test_who_an_event_is_about_is_its_source(
    event: dict[str, str], source: tuple[str, str, str] | None
) -> None:
    assert source_of(event) == source
    assert clients_of("v") not in (source,)


def test_a_client_that_comes_and_goes_does_not_push_others_out_of_the_log() -> None:
    world = World()
    world.controller.tick(world.now)
    storm = {"event": "CLIENT_CONNECT", "text": "again", "severity": "info", "vpn": "v", "username": "u"}
    seen = [effect for _ in range(3_000) for effect in world.controller.event(dict(storm))]
    assert sum(isinstance(effect, Record) for effect in seen) == 1_000
    died = {"event": "SYSTEM_PROCESS_DIED", "text": "a worker", "severity": "error"}
    assert [type(effect) for effect in world.controller.event(died)] == [Record]
    told = [effect.event for effect in world.controller.tick(world.now + 60) if isinstance(effect, Record)]
    assert [(event["event"], event["count"]) for event in told] == [(SUMMARY_EVENT, 2_000)]
