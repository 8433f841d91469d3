"""What matching costs is charged to who publishes: windows, holding back, buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from cluster import objects
from node.matching import worker as worker_module
from router.ground.effects import SendWorker
from router.matching import effort
from tests.unit.router.wired_node import FakeClient, WiredNode, snapshot

if TYPE_CHECKING:
    from router.sessions.session import Session

pytestmark = pytest.mark.requirement("R278")

PROFILE = ("profile", "default", "default", {"max_matching_work_per_s": 1_000})
BURST = 2_000


class _Slow:
    """A node whose only worker answers by hand."""

    def __init__(self, node: WiredNode) -> None:
        self.node = node
        node.pause(0)

    def matches(self) -> list[tuple[int, list[str]]]:
        """Give reference and topics of the MATCH frames that wait at the worker."""
        return [
            (wire.unpack(frames[1])[1], [row[1] for row in wire.unpack(frames[2])])
            for frames in self.node.paused[0]
            if frames[0] == wire.MATCH
        ]

    def topics(self) -> list[str]:
        return [topic for _, topics in self.matches() for topic in topics]

    def tell(self, reference: int, work: int) -> None:
        self._say([wire.WORK, wire.pack([self.node.workers[0].incarnation, reference, work])])

    def answer(self, reference: int) -> None:
        """Match one of the waiting frames now."""
        (frames,) = [
            one for one in self.node.paused[0] if one[0] == wire.MATCH and wire.unpack(one[1])[1] == reference
        ]
        self.node.paused[0].remove(frames)
        self.node._to_worker(0, frames)
        self.node.settle()

    def _say(self, frames: list[bytes]) -> None:
        self.node._to_router(0, frames)
        self.node.settle()


def _session(node: WiredNode, client: FakeClient) -> Session:
    return node.router.sessions.by_routing_id[client.routing_id]


def _events(node: WiredNode) -> list[dict[str, Any]]:
    return [event for event in node.events if event["event"] == "CLIENT_MATCHING_WORK_EXCEEDED"]


@pytest.fixture
def slow(make_node: Any) -> _Slow:
    return _Slow(make_node(1, snapshot(PROFILE), worker_window=4))


def test_a_batch_that_waits_for_turns_at_its_worker_leaves_the_window_to_others(slow: _Slow) -> None:
    dear, busy = slow.node.client(), slow.node.client()
    for number in range(4):
        dear.publish(f"dear/{number}")
    busy.publish("x")
    busy.publish("y")
    assert "y" not in slow.topics(), "the window is full"
    for reference, _ in slow.matches()[:2]:
        slow.tell(reference, 1)
    assert "y" in slow.topics()


def test_a_publisher_with_such_a_batch_is_held_back_until_it_is_answered(slow: _Slow) -> None:
    dear = slow.node.client()
    dear.publish("dear")
    reference = slow.matches()[0][0]
    slow.tell(reference, 1)
    dear.publish("next")
    dear.publish("last")
    assert slow.topics() == ["dear"]
    slow.node.advance(5)
    assert slow.topics() == ["dear"]
    slow.answer(reference)
    assert slow.topics() == ["next", "last"]
    slow.node.unpause(0)
    assert _session(slow.node, dear).retired_round == 3


def test_who_costs_more_than_the_profile_allows_goes_on_when_that_is_paid(slow: _Slow) -> None:
    dear, other = slow.node.client(client_name="dear"), slow.node.client()
    dear.publish("dear")
    reference = slow.matches()[0][0]
    slow.tell(reference, BURST + 3_000)
    slow.answer(reference)
    dear.publish("next")
    other.publish("other")
    assert slow.topics() == ["other"], "nobody else waits"
    slow.node.advance(2.9)
    assert slow.topics() == ["other"]
    slow.node.advance(0.2)
    assert slow.topics() == ["other", "next"]
    (event,) = _events(slow.node)
    assert (event["client"], event["vpn"], event["severity"]) == ("dear", "default", "warning")
    stats = slow.node.router.stats()
    assert (stats["matching_work"], stats["publishers_held_back"], stats["publishers_waiting"]) == (
        5_000,
        1,
        0,
    )
    assert _session(slow.node, dear).counters["held_back"] == 1


def test_a_reconnect_does_not_fill_the_bucket(slow: _Slow) -> None:
    dear = slow.node.client()
    dear.publish("dear")
    reference = slow.matches()[0][0]
    slow.tell(reference, BURST + 3_000)
    slow.answer(reference)
    dear.send(wire.BYE, [])
    again, other = slow.node.client(), slow.node.client()
    again.publish("next")
    other.publish("other")
    assert slow.topics() == ["other"], "one takes over what the one before has spent"
    slow.node.advance(3.1)
    assert slow.topics() == ["other", "next"]


def test_what_is_told_of_after_the_end_is_not_forgotten(slow: _Slow) -> None:
    dear = slow.node.client()
    dear.publish("dear")
    reference = slow.matches()[0][0]
    vpn = _session(slow.node, dear).vpn
    slow.node.router.fail(dear.routing_id, errors.error_for(errors.MALFORMED_FRAME), slow.node.now)
    slow.tell(reference, BURST + 3_000)
    assert vpn.spent
    again = slow.node.client()
    assert not vpn.spent
    again.publish("next")
    slow.answer(reference)
    assert slow.topics() == []
    slow.node.advance(3.1)
    assert slow.topics() == ["next"]


def test_a_client_that_spent_little_does_not_hide_one_that_spent_much(slow: _Slow) -> None:
    much, little = slow.node.client(), slow.node.client()
    for client, work in ((much, BURST + 3_000), (little, 10)):
        client.publish(f"dear/{work}")
        reference = slow.matches()[0][0]
        slow.tell(reference, work)
        slow.answer(reference)
    (vpn,) = {_session(slow.node, one).vpn for one in (much, little)}
    for client in (much, little):
        client.send(wire.BYE, [])
    (left,) = vpn.spent.values()
    assert left.work == BURST + 3_000


def test_who_has_paid_leaves_nothing_to_the_next_one(slow: _Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = slow.node.client(), slow.node.client()
    vpn = _session(slow.node, first).vpn
    for number, client in enumerate((first, second)):
        client.publish(f"dear/{number}")
        reference = slow.matches()[0][0]
        slow.tell(reference, 1_000)
        slow.answer(reference)
    slow.node.advance(1.1)
    first.send(wire.BYE, [])
    assert not vpn.spent
    monkeypatch.setattr(effort, "SPENT_MAX", 0)
    second.publish("dear/2")
    slow.tell(slow.matches()[0][0], 1_000)
    slow.node.unpause(0)
    second.send(wire.BYE, [])
    assert not vpn.spent, "so many are remembered"


def test_credit_does_not_come_back_while_a_publisher_is_held_back(slow: _Slow) -> None:
    dear = slow.node.client()
    dear.publish("dear")
    reference = slow.matches()[0][0]
    slow.tell(reference, BURST + 3_000)
    slow.answer(reference)
    dear.publish("next", flush=True)
    assert dear.retired() < 2
    slow.node.unpause(0)
    slow.node.advance(4)
    assert dear.retired() == 2


def test_what_is_within_the_burst_holds_nobody_back(slow: _Slow) -> None:
    dear = slow.node.client()
    dear.publish("dear")
    reference = slow.matches()[0][0]
    slow.tell(reference, BURST)
    slow.answer(reference)
    dear.publish("next")
    assert slow.topics() == ["next"]
    assert not _events(slow.node)


def test_the_clients_of_a_message_vpn_share_what_it_allows(make_node: Any) -> None:
    rows = snapshot()
    rows[0][3]["max_matching_work_per_s"] = 1_000
    slow = _Slow(make_node(1, rows))
    first, second, cheap = slow.node.client(), slow.node.client(), slow.node.client()
    for number, client in enumerate((first, second)):
        client.publish(f"dear/{number}")
        reference = slow.matches()[-1][0]
        slow.tell(reference, BURST)
        slow.answer(reference)
        client.publish("next")
    cheap.publish("cheap")
    assert slow.topics() == ["next", "cheap"], "the second overdrew it; the first and the cheap one did not"
    slow.node.advance(2.1)
    assert slow.topics() == ["next", "cheap", "next"]


def test_zero_is_no_limit(make_node: Any) -> None:
    rows = snapshot(("profile", "default", "default", {"max_matching_work_per_s": 0}))
    rows[0][3]["max_matching_work_per_s"] = 0
    slow = _Slow(make_node(1, rows))
    dear = slow.node.client()
    dear.publish("dear")
    reference = slow.matches()[0][0]
    slow.tell(reference, 1 << 40)
    slow.answer(reference)
    dear.publish("next")
    assert slow.topics() == ["next"]


@pytest.mark.parametrize("allowed", [0, 8_000_000])
def test_a_limit_that_an_operator_raises_lets_go_who_is_held_back(slow: _Slow, allowed: int) -> None:
    """At a low one what a single batch has cost may be an hour's allowance, which a reconnect does not give back."""
    node = slow.node
    dear = node.client()
    dear.publish("dear")
    reference = slow.matches()[0][0]
    slow.tell(reference, 4_000_000)
    slow.answer(reference)
    dear.publish("next")
    node.advance(1)
    assert slow.topics() == []
    attributes = objects.complete("profile", {"max_matching_work_per_s": allowed})
    node.router.operators.put_object("profile", "default", "default", attributes, node.now)
    node.advance(1)
    assert slow.topics() == ["next"]
    again = node.client()
    dear.send(wire.BYE, [])
    again.publish("last")
    assert slow.topics() == ["next", "last"]


def test_a_limit_of_a_message_vpn_that_an_operator_raises_lets_go_who_is_held_back(make_node: Any) -> None:
    rows = snapshot(("profile", "default", "default", {"max_matching_work_per_s": 0}))
    rows[0][3]["max_matching_work_per_s"] = 1_000
    slow = _Slow(make_node(1, rows))
    node = slow.node
    dear = node.client()
    dear.publish("dear")
    reference = slow.matches()[0][0]
    slow.tell(reference, 4_000_000)
    slow.answer(reference)
    dear.publish("next")
    node.advance(1)
    assert slow.topics() == []
    attributes = objects.complete("vpn", {"max_matching_work_per_s": 8_000_000})
    node.router.operators.put_object("vpn", "", "default", attributes, node.now)
    node.advance(1)
    assert slow.topics() == ["next"]


def test_operators_are_told_once_a_minute_of_a_client_that_goes_on_costing(slow: _Slow) -> None:
    dear = slow.node.client()
    for number in range(3):
        dear.publish(f"dear/{number}")
        reference = slow.matches()[0][0]
        slow.tell(reference, BURST + 1_000)
        slow.answer(reference)
        slow.node.advance(10)
    assert len(_events(slow.node)) == 1
    assert slow.node.router.stats()["publishers_held_back"] == 3


def test_a_worker_that_dies_with_such_a_batch_ends_the_holding_back(slow: _Slow) -> None:
    dear = slow.node.client()
    dear.publish("dear")
    slow.tell(slow.matches()[0][0], 1)
    dear.publish("next")
    slow.node.kill_worker(0)
    slow.node.start_worker(0)
    assert [code for code, *_ in dear.notices()] == [50305]
    assert _session(slow.node, dear).retired_round == 2
    slow.node.validate()


def test_work_told_of_a_frame_that_is_not_out_any_more_is_dropped(slow: _Slow) -> None:
    dear = slow.node.client()
    dear.publish("dear")
    reference = slow.matches()[0][0]
    slow.answer(reference)
    slow.tell(reference, 1 << 40)
    dear.publish("next")
    assert slow.topics() == ["next"]


def test_rounds_that_are_held_back_are_cut_again_when_the_number_of_workers_changes(make_node: Any) -> None:
    slow = _Slow(make_node(1, snapshot(PROFILE)))
    node = slow.node
    dear, subscriber = node.client(), node.client()
    node.unpause(0)
    subscriber.subscribe(">")
    node.pause(0)
    dear.publish("dear")
    reference = slow.matches()[0][0]
    slow.tell(reference, BURST + 3_000)
    dear.publish(*[f"topic/{number}" for number in range(20)])
    slow.answer(reference)
    node.unpause(0)
    node.router.scaling.begin(2, node.now)
    node.settle()
    node.start_worker(1)
    assert subscriber.topics() == ["dear"]
    node.advance(4)
    assert subscriber.topics() == [f"topic/{number}" for number in range(20)]


def test_a_router_that_goes_down_holds_nobody_back(slow: _Slow) -> None:
    dear = slow.node.client()
    dear.publish("dear")
    reference = slow.matches()[0][0]
    slow.tell(reference, BURST + 1_000_000)
    slow.answer(reference)
    dear.publish("next")
    slow.node.router.drain(slow.node.now)
    slow.node.router.tick(slow.node.now)
    sent = [one for one in slow.node.router.out.take() if isinstance(one, SendWorker)]
    assert [one.frames[0] for one in sent] == [wire.MATCH]


def test_sets_that_were_defined_before_the_answer_deliver_like_others(
    node: WiredNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "SET_FILTERS_MAX", 2)
    worker = node.workers[0]
    worker._half_nodes = worker._left = 1
    all_of_it, some, publisher = node.client(), node.client(), node.client()
    all_of_it.subscribe("a*/b*", "a/*", "*/b", "*/*", ">")
    some.subscribe("a/*")
    told: list[bytes] = []
    carry = node._to_router

    def watch(index: int, frames: list[bytes]) -> None:
        told.append(frames[0])
        carry(index, frames)

    monkeypatch.setattr(node, "_to_router", watch)
    topics = ["a/b", "a/c", "x/b", "x/y", "a/b"]
    publisher.publish(*topics)
    assert wire.SETS in told
    assert told.index(wire.SETS) < told.index(wire.RESULT)
    assert all_of_it.topics() == topics
    assert some.topics() == ["a/b", "a/c", "a/b"]
    node.validate()
