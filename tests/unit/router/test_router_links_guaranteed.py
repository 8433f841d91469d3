"""Guaranteed messages and links: what goes into the queue of a link, who gets copies, what a link may do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from angarium.topic import slot_of
from angarium_server.frames import gateways
from cluster.catalog.node_queues import queues_of
from router.gateways.wills import Will
from router.links import stored
from tests.unit.router.publish_rig import Publisher, PublishNode, request
from tests.unit.router.wired_mesh import CLUSTER, SECRET, identity_of, link_object
from tests.unit.router.wired_node import FakeClient, snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.ground.effects import AskController

DTO = wire.MODE_PERSISTENT | wire.FLAG_DTO


class LinkedNode(PublishNode):
    """A node whose controller stores what neighbours want, up to a limit."""

    limit = 1_000

    def answer_ask(self, effect: AskController) -> None:
        if effect.operation != "endpoint.subscribe":
            super().answer_ask(effect)
            return
        wish = effect.arguments
        known = self.endpoint(wish["name"]).attributes["client_subscriptions"]
        texts = dict.fromkeys(known)
        added: list[Any] = []
        for text in wish["add"]:
            has_room = len(texts) < self.limit or text in texts
            added.append(None if has_room else [errors.MAX_SUBSCRIPTIONS_EXCEEDED, ""])
            if has_room:
                texts[text] = None
        kept = [text for text in texts if text not in wish["remove"]]
        self.put("queue", wish["name"], client_subscriptions=kept)
        answer = {"added": added, "removed": [None for _ in wish["remove"]]}
        self.router.controller_answered(effect.ticket, True, answer, self.now)


@pytest.fixture
def near() -> Iterator[LinkedNode]:
    """Node n, whose neighbours x and y open their links, with the queues of these."""
    made = LinkedNode(1, snapshot(link_object("x"), link_object("y")), name="n", identity=identity_of("n"))
    for node in "xy":
        for name, attributes in queues_of(node).items():
            made.queue(name, max_spool_usage_mb=attributes["max_spool_usage_mb"])
    yield made
    made.validate()


def neighbour(node: PublishNode, name: str = "x", **credit: Any) -> FakeClient:
    client = node.connection("10.0.0.1")
    link = {"node": name, "node_id": f"id-{name}", "cluster": CLUSTER, "incarnation": 1}
    hello = {"version": 1, "username": wire.LINK_USERNAME, "password": SECRET, "credit": [1 << 40, 1 << 40]}
    client.send(wire.HELLO, {**hello, "link": link, **credit})
    assert client.take()[0] == wire.WELCOME
    return client


def wants(client: FakeClient, kind: int = wire.EXPORTS_COMPLETE, **wishes: int) -> None:
    """Have a neighbour want patterns; `a__` stands for a/>."""
    client.request += 1
    entries = [[name.replace("__", "/>"), wish] for name, wish in wishes.items()]
    client.send(wire.IMPORTS, [client.request, kind, entries])
    client.node.advance(0.1)


ENDPOINT = wire.WISH_ENDPOINT
CLIENTS = 1 << wire.WISH_DTO_SHIFT


class TestStoredInterest:
    def test_what_endpoints_want_is_stored_with_the_queue_and_outlives_the_session(
        self, near: PublishNode
    ) -> None:
        link = neighbour(near)
        wants(link, a__=ENDPOINT, b__=CLIENTS, c=ENDPOINT | CLIENTS)
        assert [*near.endpoint("#link/x").attributes["client_subscriptions"]] == ["a/>", "c"]
        assert [frames[0] for frames in link.received].count(wire.IMPORTED) == 1
        link.send(wire.BYE, [])
        near.publisher().publish("a/1", "b/1", "c")
        assert [row.topic for row in near.stored("#link/x")] == ["a/1", "c"]

    def test_what_a_complete_snapshot_does_not_name_goes_and_nothing_before(self, near: PublishNode) -> None:
        wants(neighbour(near), a=ENDPOINT, b=ENDPOINT)
        second = neighbour(near)
        wants(second, kind=wire.EXPORTS_SNAPSHOT, b=ENDPOINT, c=ENDPOINT)
        assert [*near.endpoint("#link/x").attributes["client_subscriptions"]] == ["a", "b", "c"]
        wants(second)
        assert [*near.endpoint("#link/x").attributes["client_subscriptions"]] == ["b", "c"]
        wants(second, kind=wire.EXPORTS_CHANGES, b=0, d=ENDPOINT)
        assert [*near.endpoint("#link/x").attributes["client_subscriptions"]] == ["c", "d"]

    def test_a_queue_that_comes_later_gets_what_the_neighbour_told_before(self, near: PublishNode) -> None:
        near.drop("#link/x")
        link = neighbour(near)
        wants(link, a=ENDPOINT, b=CLIENTS, c=ENDPOINT)
        wants(link, kind=wire.EXPORTS_CHANGES, c=0)
        assert [frames[0] for frames in link.received].count(wire.IMPORTED) == 2, "nobody is kept waiting"
        near.queue("#link/x", max_spool_usage_mb=1)
        near.advance(1.0)
        assert [*near.endpoint("#link/x").attributes["client_subscriptions"]] == ["a"]
        wants(link, kind=wire.EXPORTS_CHANGES, d=ENDPOINT)
        assert [*near.endpoint("#link/x").attributes["client_subscriptions"]] == ["a", "d"]

    def test_a_controller_that_is_away_is_asked_again(self, near: PublishNode) -> None:
        link = neighbour(near)
        near.held_asks = []
        wants(link, a=ENDPOINT)
        (ask,) = near.held_asks
        assert wire.IMPORTED not in [frames[0] for frames in link.received]
        near.held_asks = None
        near.router.controller_answered(ask.ticket, False, [errors.CONTROLLER_UNAVAILABLE, ""], near.now)
        near.advance(1.0)
        assert [*near.endpoint("#link/x").attributes["client_subscriptions"]] == ["a"]
        assert wire.IMPORTED in [frames[0] for frames in link.received]

    @pytest.mark.parametrize("code", [errors.DISK_FULL, errors.CONTROL_RATE_EXCEEDED])
    def test_a_refusal_that_passes_is_no_limit_of_the_queue(self, near: PublishNode, code: int) -> None:
        """Of what the queue does not take the neighbour's endpoints lack each message, acknowledged as it is."""
        link = neighbour(near)
        near.held_asks = []
        wants(link, a=ENDPOINT)
        (ask,) = near.held_asks
        near.held_asks = None
        near.router.controller_answered(ask.ticket, False, [code, ""], near.now)
        assert wire.IMPORTED not in [frames[0] for frames in link.received]
        near.advance(1.0)
        assert wire.IMPORTED in [frames[0] for frames in link.received]
        near.publisher().publish("a")
        assert [row.topic for row in near.stored("#link/x")] == ["a"]

    def test_what_is_above_the_limit_is_counted_told_once_and_asked_for_again(self, near: LinkedNode) -> None:
        near.limit = 2
        link = neighbour(near)
        wants(link, a=ENDPOINT, b=ENDPOINT, c=ENDPOINT | CLIENTS)
        wants(link, kind=wire.EXPORTS_CHANGES, d=ENDPOINT)
        told = [event for event in near.events if event["event"] == "SYSTEM_LINK_SUBSCRIPTIONS_EXCEEDED"]
        assert [(event["link"], event["vpn"]) for event in told] == [("x", "default")]
        (row,) = near.router.links.describe()
        assert row["subscriptions_dropped"] == 2
        near.publisher().publish("a", "c", "d")
        assert [row.topic for row in near.stored("#link/x")] == ["a"]
        assert link.topics() == ["c", "d"]
        wants(link, kind=wire.EXPORTS_CHANGES, a=0, d=0)
        near.advance(0.1)
        assert [*near.endpoint("#link/x").attributes["client_subscriptions"]] == ["b", "c"]
        (row,) = near.router.links.describe()
        assert row["subscriptions_dropped"] == 0

    def test_a_question_of_an_earlier_connection_takes_nothing_away_from_the_next(
        self, near: PublishNode
    ) -> None:
        first = neighbour(near)
        wants(first, a=ENDPOINT, b=ENDPOINT)
        near.held_asks = []
        wants(first, kind=wire.EXPORTS_CHANGES, b=0)
        second = neighbour(near)
        wants(second, a=ENDPOINT, b=ENDPOINT)
        (late,) = near.held_asks
        near.held_asks = None
        assert wire.IMPORTED not in [frames[0] for frames in second.received]
        near.answer_ask(late)
        near.advance(0.1)
        assert [*near.endpoint("#link/x").attributes["client_subscriptions"]] == ["a", "b"]
        assert wire.IMPORTED in [frames[0] for frames in second.received]

    def test_what_was_heard_and_not_answered_is_taken_back_if_nobody_wants_it_any_more(
        self, near: PublishNode
    ) -> None:
        link = neighbour(near)
        wants(link)
        near.held_asks = []
        wants(link, kind=wire.EXPORTS_CHANGES, a=ENDPOINT)
        (heard,) = near.held_asks
        near.held_asks = None
        near.put("queue", "#link/x", client_subscriptions=["a"])
        wants(link, kind=wire.EXPORTS_CHANGES, a=0)
        near.router.controller_answered(heard.ticket, False, [errors.CONTROLLER_UNAVAILABLE, ""], near.now)
        near.advance(1.0)
        assert [*near.endpoint("#link/x").attributes["client_subscriptions"]] == []

    def test_whatever_changes_the_queue_it_has_what_the_neighbour_wants(self, near: PublishNode) -> None:
        """A controller may take the question of an earlier router after this one had its configuration."""
        wants(neighbour(near), a=ENDPOINT, b=ENDPOINT)
        near.put("queue", "#link/x", client_subscriptions=["b", "c"])
        near.advance(0.1)
        assert [*near.endpoint("#link/x").attributes["client_subscriptions"]] == ["b", "a"]

    @pytest.mark.requirement("R278")
    def test_what_is_much_is_asked_for_in_questions_of_a_limited_size(
        self, near: PublishNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stored, "QUESTION_MAX", 10)
        near.held_asks = []
        link = neighbour(near)
        wants(link, **{f"a{number}": ENDPOINT for number in range(35)})
        sizes = []
        for _ in range(10):
            if not near.held_asks:
                break
            ask = near.held_asks.pop()
            sizes.append((len(ask.arguments["add"]), len(ask.arguments["remove"])))
            near.answer_ask(ask)
            near.advance(0.1)
            if len(sizes) == 2:
                wants(link, kind=wire.EXPORTS_CHANGES, a0=0, a1=0, a34=0)
        assert sizes == [(10, 0), (10, 0), (10, 0), (4, 2)]
        assert [*near.endpoint("#link/x").attributes["client_subscriptions"]] == [
            f"a{number}" for number in range(2, 34)
        ]
        assert [frames[0] for frames in link.received].count(wire.IMPORTED) == 2

    @pytest.mark.requirement("R278")
    def test_after_the_first_time_only_what_changed_is_compared(
        self, near: PublishNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        link = neighbour(near)
        wants(link, **{f"a{number}": ENDPOINT for number in range(10)})
        monkeypatch.setattr(stored._Line, "compare", None)
        edit = near.router.operators.edit_object
        edit("queue", "default", "#link/x", {"client_subscriptions": [["b", "c"], ["a1", "a2"]]})
        asks = near.held_asks = []
        wants(link, kind=wire.EXPORTS_CHANGES, a2=0, a3=0, c=ENDPOINT, d=ENDPOINT)
        (ask,) = asks
        assert ask.arguments["add"] == ["a1", "d"]
        assert ask.arguments["remove"] == ["b", "a3"]

    def test_a_neighbour_cannot_make_an_exception(self, near: PublishNode) -> None:
        wants(neighbour(near), **{"!a": ENDPOINT})
        assert [*near.endpoint("#link/x").attributes["client_subscriptions"]] == []


class TestCrossing:
    @pytest.mark.requirement("R167")
    def test_one_copy_crosses_and_it_is_the_guaranteed_one(self, near: PublishNode) -> None:
        link = neighbour(near)
        wants(link, a__=ENDPOINT | CLIENTS)
        publisher = near.publisher()
        publisher.publish(*[f"a/{n}" for n in range(10)])
        assert len(near.stored("#link/x")) == 10
        assert link.rows() == []
        assert publisher.acked() == (10, [])

    def test_what_no_endpoint_wants_crosses_as_a_direct_copy(self, near: PublishNode) -> None:
        link = neighbour(near)
        wants(link, a__=ENDPOINT, b__=CLIENTS)
        near.publisher().publish("a/1", "b/1", "a/2", "c/1")
        assert [row.topic for row in near.stored("#link/x")] == ["a/1", "a/2"]
        assert link.topics() == ["b/1"]

    @pytest.mark.requirement("R277")
    def test_what_the_queue_of_a_link_takes_is_not_unroutable(self, near: PublishNode) -> None:
        wants(neighbour(near), a__=ENDPOINT, b__=CLIENTS)
        publisher = near.publisher()
        publisher.publish("a/1", "b/1", "a/2", "c/1")
        assert [body[4] for body in publisher.told()] == [[[2, 1], [4, 1]]]

    def test_clients_here_get_theirs_all_the_same(self, near: PublishNode) -> None:
        link, client = neighbour(near), near.client()
        client.subscribe("a/>", "b/>")
        wants(link, a__=ENDPOINT, b__=CLIENTS)
        near.publisher().publish("a/1", "b/1", "a/2")
        assert client.topics() == ["a/1", "b/1", "a/2"]
        assert link.topics() == ["b/1"]

    def test_direct_messages_never_go_into_the_queue_of_a_link(self, near: PublishNode) -> None:
        link = neighbour(near)
        wants(link, a__=ENDPOINT)
        near.client().publish("a/1", "a/2")
        assert near.stored("#link/x") == []
        assert link.topics() == ["a/1", "a/2"]

    def test_the_refusal_of_a_links_queue_is_that_of_the_message(self, near: PublishNode) -> None:
        wants(neighbour(near), a__=ENDPOINT)
        near.change("#link/x", max_message_bytes=10)
        publisher, client = near.publisher(), near.client()
        client.subscribe("a/>")
        publisher.publish(("a/1", bytes(11)), "a/2")
        assert publisher.acked() == (2, [[1, errors.MESSAGE_TOO_LARGE]])
        assert client.topics() == ["a/2"]

    @pytest.mark.requirement("R285")
    def test_what_was_matched_before_the_link_was_deleted_is_acknowledged_as_taken_by_nobody(self) -> None:
        """The second round was matched at once, and waits for the first one, whose worker stands still."""
        node = LinkedNode(2, snapshot(link_object("x")), name="n", identity=identity_of("n"))
        node.queue("#link/x")
        node.change_profile(reject_no_subscription_match=True)
        table = node.router.shards.table
        slow, topic = (
            next(name for name in map("t/{}".format, range(100)) if table[slot_of(name)] == worker)
            for worker in (1, 0)
        )
        wants(neighbour(node), t__=ENDPOINT)
        publisher = node.publisher()
        node.pause(1)
        publisher.publish(slow)
        publisher.publish(topic)
        node.router.operators.drop_object("link", "", "x", node.now)
        node.drop("#link/x")
        node.unpause(1)
        assert publisher.acked() == (2, [[n, errors.NO_SUBSCRIPTION_MATCH] for n in (1, 2)])

    def test_nobody_publishes_to_it_by_its_name(self, near: PublishNode) -> None:
        publisher = near.publisher()
        publisher.publish("#P2P/QUE/#link/x")
        assert publisher.acked() == (1, [[1, errors.UNKNOWN_ENDPOINT]])

    def test_deliver_to_one_is_decided_here_and_travels_directly(self, near: PublishNode) -> None:
        link = neighbour(near)
        wants(link, a__=ENDPOINT | CLIENTS)
        publisher = near.publisher()
        publisher.publish("a/1", ("a/2", b"", DTO), "a/3")
        assert [row.topic for row in near.stored("#link/x")] == ["a/1", "a/2", "a/3"]
        (frames,) = [one for one in link.received if one[0] == wire.DELIVER]
        _, parts, dropped, opened = wire.unpack(frames[1])
        assert (parts, dropped, opened) == ([[1, None]], 0, [1])
        assert wire.unpack(frames[2])[0][wire.ROW_TOPIC] == "a/2"

    def test_deliver_always_subscribers_over_there_get_a_dto_message_that_is_taken_here(
        self, near: PublishNode
    ) -> None:
        link, client = neighbour(near), near.client()
        client.subscribe("a/>")
        wants(link, a__=ENDPOINT | wire.WISH_DELIVER_ALWAYS)
        near.publisher().publish("a/1", ("a/2", b"", DTO))
        assert client.topics() == ["a/1", "a/2"]
        assert link.topics() == ["a/2"]
        assert [row.topic for row in near.stored("#link/x")] == ["a/1", "a/2"]


class TestArriving:
    def test_a_link_publishes_what_it_carried_and_it_goes_to_no_other_link(self, near: PublishNode) -> None:
        link, other, client = neighbour(near), neighbour(near, "y"), near.client()
        wants(other, a__=ENDPOINT | CLIENTS)
        client.subscribe("a/>")
        near.queue("q", "a/>")
        carrier = Publisher(near, link, "#link/id-x/7")
        carrier.publish("a/1", "a/2", first=40)
        assert near.payloads("q") == [b"x", b"x"]
        assert client.topics() == ["a/1", "a/2"]
        assert other.rows() == []
        assert near.stored("#link/y") == []
        assert carrier.acked() == (41, [])

    def test_what_is_sent_again_is_stored_once(self, near: PublishNode) -> None:
        near.queue("q", "a/>")
        Publisher(near, neighbour(near), "#link/id-x/7").publish("a/1", "a/2", "a/3")
        again = Publisher(near, neighbour(near), "#link/id-x/7")
        again.publish("a/2", "a/3", "a/4", first=2)
        assert again.acked() == (4, [])
        assert near.sequences("q") == [1, 2, 3, 4]

    def test_its_window_is_that_of_a_link(self, near: PublishNode) -> None:
        link = neighbour(near)
        carrier = Publisher(near, link, "#link/id-x/7")
        carrier.publish(*["a"] * 1_000)
        assert link.closed_with() is None

    def test_a_guaranteed_copy_of_a_dto_message_is_for_endpoints_alone(self, near: PublishNode) -> None:
        link, client, monitor = neighbour(near), near.client(), near.client()
        client.subscribe("a/>")
        monitor.subscribe("a/>", deliver_always=True)
        near.queue("q", "a/>")
        carrier = Publisher(near, link, "#link/id-x/7")
        carrier.publish(("a/1", b"", DTO), "a/2")
        assert len(near.stored("q")) == 2
        assert client.topics() == monitor.topics() == ["a/2"]

    def test_a_direct_copy_of_a_guaranteed_message_is_for_no_endpoint(self, near: PublishNode) -> None:
        link, client = neighbour(near), near.client()
        client.subscribe("a/>")
        near.queue("q", "a/>")
        link.publish(("a/1", b"1", wire.MODE_PERSISTENT), ("a/2", b"2"))
        assert near.payloads("q") == [b"2"]
        assert client.payloads() == [b"1", b"2"]

    def test_a_node_retains_what_reaches_it_in_whatever_way(self, near: PublishNode) -> None:
        """What crosses as a direct copy is for no other endpoint."""
        link, retain = neighbour(near), wire.FLAG_RETAIN
        near.queue(wire.RETAINED_QUEUE)
        near.queue("q", "a/>")
        copy = wire.MODE_PERSISTENT | retain
        link.publish(("a/1", b"1", copy), ("a/2", b"2", retain), ("a/3", b"3", wire.MODE_PERSISTENT))
        Publisher(near, link, "#link/id-x/7").publish(("a/4", b"4", copy), ("a/5", b"5"))
        assert near.payloads(wire.RETAINED_QUEUE) == [b"1", b"2", b"4"]
        assert near.payloads("q") == [b"2", b"4", b"5"]

    def test_a_link_consumes_its_own_queue_and_nothing_else(self, near: PublishNode) -> None:
        near.queue("q", "a/>", permission="delete")
        link = neighbour(near)
        for name in ("q", "#link/y", "#link/x/dmq"):
            assert request(link, "flow.bind", name=name)[0] == errors.PERMISSION_DENIED
        code, _ = request(link, "flow.bind", name="none")
        assert code == errors.UNKNOWN_ENDPOINT


@pytest.mark.parametrize("qos", [0, 1])
def test_a_will_crosses_a_link_as_what_its_client_publishes_does(near: PublishNode, qos: int) -> None:
    """With QoS 1 by the queue, and without a copy besides; with QoS 0 as a direct message."""
    link = neighbour(near)
    wants(link, gone=ENDPOINT | CLIENTS)
    link.received.clear()
    message = gateways.Will("gone", wire.MODE_PERSISTENT if qos else 0, None, None, b"x", 0)
    will = Will(9, near.router.directory.vpns["default"], "default", "dev", None, None, message, 0)
    near.router.will_publishing.publish(will, near.now)
    near.settle()
    assert len(near.stored("#link/x")) == qos
    assert len(link.rows()) == 1 - qos
