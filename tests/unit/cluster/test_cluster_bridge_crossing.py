"""What crosses a bridge: hops are counted, and no message is taken where it has been."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from angarium import errors, trail, wire
from angarium.message import Message, pack_rows, unpack_rows
from cluster.bridge.crossing import TOO_MANY_HOPS, VISITED, Crossing
from cluster.relay.direct import Relay
from tests.unit.cluster.played_relay import deliver, make_session, published, rows_of, take


def crossing(max_hops: int = 8, *neighbours: str) -> Crossing:
    """A bridge of node a that takes messages from its Message VPN x into y."""
    return Crossing("a/x", "y", ("a", *neighbours), max_hops)


@pytest.mark.parametrize(
    ("came", "goes_on"),
    [
        (None, (None, "a/x")),
        ("key", ("key", "a/x")),
        (("key", "b/x"), ("key", "b/x", "a/x")),
        ((None, "b/y"), (None, "b/y", "a/x")),
        ((None, "a/x"), (None, "a/x", "a/x")),
        ((None, "a/y"), VISITED),
        ((None, "a/y", "a/z"), VISITED),
        ((None, "a/p", "a/q", "a/r"), TOO_MANY_HOPS),
    ],
)
def test_a_message_gets_the_place_that_it_is_taken_from_or_is_dropped(came: Any, goes_on: Any) -> None:
    bridge = crossing(max_hops=3)
    for count in (1, 2):
        assert bridge.cross(came) == goes_on
        dropped = {VISITED: count * (goes_on == VISITED), TOO_MANY_HOPS: count * (goes_on == TOO_MANY_HOPS)}
        assert bridge.dropped == dropped


def test_nodes_joined_by_links_share_a_message_vpn_of_one_name() -> None:
    assert crossing(8, "b").cross((None, "b/y", "b/z")) == VISITED
    apart = crossing(8, "c")
    assert apart.cross((None, "b/y", "b/z")) == (None, "b/y", "b/z", "a/x")
    apart.join(["a", "b"])
    assert apart.cross((None, "b/y", "b/z")) == VISITED


@pytest.mark.parametrize("max_hops", [1, 8, wire.HOPS_MAX])
def test_a_message_crosses_as_many_bridges_as_the_limit_says(max_hops: int) -> None:
    """Each bridge leads into a Message VPN of its own, so nothing else stops it."""
    route: Any = "key"
    for hop in range(max_hops):
        route = Crossing(f"a/v{hop}", f"v{hop + 1}", ["a"], max_hops).cross(route)
        assert len(trail.places_of(route)) == hop + 1
    assert Crossing("a/last", "next", ["a"], max_hops).cross(route) == TOO_MANY_HOPS
    assert trail.key_of(route) == "key"


def test_many_different_trails_are_not_all_remembered() -> None:
    bridge = crossing()
    for number in range(5_000):
        assert bridge.cross(f"key-{number}") == (f"key-{number}", "a/x")
    assert len(bridge._known) <= 1_000


def test_direct_messages_are_relayed_with_their_trail_and_in_order() -> None:
    source, target = make_session(), make_session(2)
    bridge = crossing()
    relay = Relay(source, bridge.admit)
    relay.open(target)
    rows = rows_of("t/1", "t/2", "t/3", "t/4")
    rows[1][3] = [8_000, 0, 3, "key"]
    rows[2][3] = [0, 0, None, [None, "a/y"]]
    take(relay, deliver(source, rows))
    ((head, sent),) = published(target)
    assert head[1] == 3, "it was cut by the table of the router that takes it"
    assert [row[:4] for row in sent] == [
        [0, "t/1", 0, [0, 0, None, [None, "a/x"]]],
        [1, "t/2", 0, [8_000, 0, 3, ["key", "a/x"]]],
        [2, "t/4", 0, [0, 0, None, [None, "a/x"]]],
    ]
    assert bridge.dropped[VISITED] == 1


def test_rows_of_several_rounds_in_one_frame_are_numbered_anew() -> None:
    """A node takes only rows whose indices rise."""
    source, target = make_session(), make_session()
    relay = Relay(source, crossing().admit)
    relay.open(target)
    rows = rows_of("t/1", "t/2", "t/3")
    for row, index in zip(rows, (4, 0, 0), strict=True):
        row[0] = index
    take(relay, deliver(source, rows))
    ((_, sent),) = published(target)
    assert [row[:2] for row in sent] == [[0, "t/1"], [1, "t/2"], [2, "t/3"]]


def test_what_is_dropped_as_a_whole_gives_its_credit_back() -> None:
    source, target = make_session(), make_session()
    relay = Relay(source, crossing().admit)
    relay.open(target)
    rows = rows_of("t/1")
    rows[0][3] = [0, 0, None, [None, "a/y"]]
    take(relay, deliver(source, rows))
    assert published(target) == []
    assert source.window.held_bytes == 0


def test_an_application_sees_a_key_and_no_trail_and_can_publish_the_message_again() -> None:
    row = (0, "t", 0, (0, 0, None, ("key", "a/x", "b/y")), None, b"payload")
    (received,) = unpack_rows(pack_rows([row]))
    assert received == row
    message = Message("t", b"")
    message._row = received
    assert message.partition_key == "key"
    assert message.row == (0, "t", 0, (0, 0, None, "key"), None, b"payload")


def test_a_trail_that_no_node_made_is_refused() -> None:
    for places in ((), ("x",) * (wire.HOPS_MAX + 1)):
        packed = msgspec.msgpack.encode([(0, "t", 0, (0, 0, None, (None, *places)), None, b"")])
        with pytest.raises(errors.InvalidRequestError):
            unpack_rows(packed)
