"""Carrying the remote queue of a bridge: what is settled how, and when the bridge stands by."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors, wire
from cluster.bridge.bridge import BridgeForwarder
from cluster.bridge.crossing import Crossing
from cluster.relay.frames import read_messages
from tests.unit.cluster.played_relay import make_session, sent
from tests.unit.cluster.spooled_requests import NOW_MS, answer, requests

QUEUE = "outgoing"


class Bench:
    """The forwarder of a bridge of node a, which takes messages of Message VPN x into y."""

    def __init__(self, *, active: bool = True, max_hops: int = 3) -> None:
        self.source = make_session(node="b", link={"node": "b", "node_id": "id-b"})
        self.target = make_session(node="a")
        self.crossing = Crossing("b/x", "y", ["a"], max_hops)
        self.forwarder = BridgeForwarder(self.source, self.target, QUEUE, 0, self.crossing)
        self.forwarder.open()
        (bind,) = requests(self.source)
        assert bind[2]["name"] == QUEUE
        assert bind[2]["in_order"] is bind[2]["active_indication"] is True
        answer(self.source, bind[0], {"flow": 5, "endpoint_id": 9, "active": active})
        if active:
            self.open_producer()

    def open_producer(self) -> None:
        (opening,) = requests(self.target)
        assert opening[1:] == ["producer.open", {"name": "#bridge/id-b/9"}]
        answer(self.target, opening[0], {"producer": 3})

    def deliver(self, *rows: tuple[int, Any], mode: int = wire.MODE_PERSISTENT, age_ms: int = 0) -> None:
        """Deliver (position, meta) of each message."""
        packed = [[0, f"t/{position}", mode, meta, None, b""] for position, meta in rows]
        runs = [[position, 1] for position, _ in rows]
        head = [5, [[0, len(rows), runs, None, NOW_MS - age_ms, None]]]
        frames = [wire.MESSAGES, wire.pack(head), wire.pack(packed)]
        _, parts = read_messages(frames)
        self.forwarder.messages(parts, frames[2:], NOW_MS)

    def published(self) -> dict[int, list[Any]]:
        """Take what was published: sequence -> flags and meta."""
        found = {}
        for frames in sent(self.target):
            if frames[0] == wire.PUBLISH:
                first = wire.unpack(frames[1])[5]
                for batch in frames[2:]:
                    found.update({first + row[0]: row[2:4] for row in wire.unpack(batch)})
        return found

    def settled(self) -> list[list[Any]]:
        return [wire.unpack(frames[1])[1:] for frames in sent(self.source) if frames[0] == wire.SETTLE]


def test_messages_go_on_with_their_positions_as_sequences_and_a_trail() -> None:
    bench = Bench()
    bench.deliver((1, None), (2, [0, 0, 4, "key"]), (4, [0, 0, None, ["k", "c/z"]]))
    assert bench.published() == {
        1: [1, [0, 0, None, [None, "b/x"]]],
        2: [1, [0, 0, 4, ["key", "b/x"]]],
        4: [1, [0, 0, None, ["k", "c/z", "b/x"]]],
    }


@pytest.mark.requirement("R204", "R199")
def test_time_to_live_and_delay_go_on() -> None:
    """8 s less the 2 s that it was in the remote queue are 6 s."""
    bench = Bench()
    bench.deliver((1, [8_000, 3_000, None, None]), age_ms=2_000)
    assert bench.published() == {1: [1, [6_000, 1_000, None, [None, "b/x"]]]}


def test_a_direct_message_that_the_queue_attracted_is_a_guaranteed_one_from_then_on() -> None:
    bench = Bench()
    bench.deliver((1, None), mode=wire.MODE_DIRECT)
    assert bench.published() == {1: [wire.MODE_NON_PERSISTENT, [0, 0, None, [None, "b/x"]]]}


def test_what_has_been_here_is_accepted_and_what_crossed_too_often_rejected() -> None:
    bench = Bench()
    been, far = [0, 0, None, [None, "a/y"]], [0, 0, None, [None, "c/p", "c/q", "c/r"]]
    bench.deliver((1, been), (2, None), (3, been), (4, been), (5, far), (6, far))
    assert list(bench.published()) == [2]
    assert bench.settled() == [
        [wire.OUTCOME_ACCEPTED, [[0, 1, 1], [0, 3, 4]]],
        [wire.OUTCOME_REJECTED, [[0, 5, 6]]],
    ]
    assert bench.crossing.dropped == {"visited": 3, "max_hops": 2}
    bench.deliver((1, been), (2, None), (3, been), (6, far))
    assert bench.settled() == [
        [wire.OUTCOME_ACCEPTED, [[0, 1, 1], [0, 3, 3]]],
        [wire.OUTCOME_REJECTED, [[0, 6, 6]]],
    ], "a home that died delivers them again, while 2 is under way"
    assert bench.crossing.dropped == {"visited": 3, "max_hops": 2}


def test_dropped_messages_do_not_use_up_the_credit_of_the_flow() -> None:
    bench = Bench()
    been = [0, 0, None, [None, "a/y"]]
    last = wire.LINK_WINDOW * 5 // 4
    for start in range(1, last, 1_000):
        bench.deliver(*[(position, been) for position in range(start, start + 1_000)])
    granted = [wire.unpack(f[1])[1] for f in sent(bench.source) if f[0] == wire.FLOW_CREDIT]
    assert granted[-1] > last


def test_it_stands_by_while_another_consumer_has_the_queue() -> None:
    bench = Bench(active=False)
    assert bench.forwarder.is_standing_by
    assert requests(bench.target) == [], "a producer would fence that of another bridge"
    bench.forwarder.activated(5)
    bench.open_producer()
    bench.deliver((1, None))
    assert list(bench.published()) == [1]


def test_what_an_endpoint_refuses_is_rejected_and_what_is_stored_accepted() -> None:
    bench = Bench()
    bench.deliver((1, None), (2, None), (3, None))
    bench.forwarder.acked(3, [(2, errors.SPOOL_OVER_QUOTA, "q")])
    assert bench.settled() == [
        [wire.OUTCOME_REJECTED, [[0, 2, 2]]],
        [wire.OUTCOME_ACCEPTED, [[0, 1, 1], [0, 3, 3]]],
    ]
