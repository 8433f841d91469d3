"""Links between nodes: interest, forwarding, and what is refused; state machines only."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from angarium.errors import error_for
from angarium.topic import slot_of
from angarium_server.memory.memory import ROOMY_BYTES
from cluster import objects
from router.links.imports import STEP_MAX
from tests.unit.router.wired_mesh import (
    WiredLink,
    WiredMesh,
    gated_node,
    identity_of,
    link_hello,
    link_object,
)
from tests.unit.router.wired_node import WiredNode, snapshot

if TYPE_CHECKING:
    from tests.unit.router.wired_node import FakeClient

TOPICS = [f"x/{number}" for number in range(20)]


def imports(node: WiredNode) -> dict[str, int]:
    """What the neighbours of a node want, by pattern."""
    return {
        pattern: wish
        for neighbour in node.router.links.sessions.values()
        for pattern, wish in neighbour.imports.items()
    }


class TestInterest:
    @pytest.mark.requirement("R214")
    def test_what_a_client_wants_is_wanted_of_every_neighbour(self, make_mesh: Any) -> None:
        mesh = make_mesh("a", "b", "c")
        mesh["a"].client().subscribe("orders/>")
        mesh.run()
        assert imports(mesh["b"]) == imports(mesh["c"]) == {"orders/>": 1 << wire.WISH_DTO_SHIFT}

    def test_many_subscribers_of_one_pattern_are_one_wish(self, pair: WiredMesh) -> None:
        clients = [pair["a"].client() for _ in range(3)]
        for client in clients:
            client.subscribe("x")
        pair.run()
        (neighbour,) = pair["a"].router.links.sessions.values()
        assert neighbour.exported == 1
        for client in clients:
            client.unsubscribe("x")
        pair.run()
        assert imports(pair["b"]) == {}
        assert neighbour.exported == 2

    def test_the_tables_of_many_subscriptions_become_small_again(self, pair: WiredMesh) -> None:
        """A dict keeps its room: a hundred thousand that come and go would leave 16 to 20 MB on each node."""
        client = pair["a"].client()
        texts = [f"many/{number}" for number in range(3_000)]
        for start in range(0, len(texts), 200):
            client.subscribe(*texts[start : start + 200])
        pair.run()
        (neighbour,) = pair["b"].router.links.sessions.values()
        (exports,) = pair["a"].router.links._exports.values()
        interests = [pair[name].router.interest for name in "ab"]
        tables: list[dict[Any, Any]] = [neighbour.imports, exports._told, exports._counts]
        tables += [table for interest in interests for table in (interest.filters, interest._by_key)]
        assert [len(table) for table in tables] == [3_000] * 7
        for start in range(0, len(texts), 200):
            client.unsubscribe(*texts[start : start + 200])
        pair.run()
        assert [len(table) for table in tables] == [0] * 7
        assert [sys.getsizeof(table) <= ROOMY_BYTES for table in tables] == [True] * 7

    @pytest.mark.requirement("R18", "R215")
    @pytest.mark.parametrize("text", ["#noexport/a/>", "#noexport/#share/g/a/>"])
    def test_noexport_stays_at_home(self, pair: WiredMesh, text: str) -> None:
        client = pair["a"].client()
        client.subscribe(text)
        pair.run()
        assert imports(pair["b"]) == {}
        client.subscribe("a/>")
        pair.run()
        assert list(imports(pair["b"])) == ["a/>"]
        client.unsubscribe("a/>")
        pair.run()
        assert imports(pair["b"]) == {}

    @pytest.mark.requirement("R17")
    def test_a_shared_subscription_is_exported_as_its_filter(self, pair: WiredMesh) -> None:
        pair["a"].client(network_priority=3).subscribe("#share/g/jobs/*")
        pair.run()
        assert imports(pair["b"]) == {"jobs/*": 3 << wire.WISH_DTO_SHIFT}

    def test_a_wish_merges_everybody(self, pair: WiredMesh) -> None:
        pair["a"].client(network_priority=4).subscribe("x")
        better = pair["a"].client(network_priority=2)
        better.subscribe("x")
        pair["a"].client().subscribe("x", deliver_always=True)
        pair.run()
        assert imports(pair["b"]) == {"x": wire.WISH_DELIVER_ALWAYS | 2 << wire.WISH_DTO_SHIFT}
        better.unsubscribe("x")
        pair.run()
        assert imports(pair["b"]) == {"x": wire.WISH_DELIVER_ALWAYS | 4 << wire.WISH_DTO_SHIFT}

    def test_everything_is_always_wanted(self, pair: WiredMesh) -> None:
        pair["a"].client().subscribe(">")
        pair.run()
        assert imports(pair["b"]) == {">": wire.WISH_DELIVER_ALWAYS}

    @pytest.mark.requirement("R90")
    def test_what_a_queue_attracts_is_exported_and_the_queue_itself_is_not(self, pair: WiredMesh) -> None:
        add_queue(pair["a"], "q", ["q/>", "#noexport/local", "!q/not"])
        pair.run()
        assert imports(pair["b"]) == {"q/>": wire.WISH_ENDPOINT}
        add_queue(pair["a"], "q", ["q/>", "local", "#noexport/local"])
        pair.run()
        assert imports(pair["b"]) == {"q/>": wire.WISH_ENDPOINT, "local": wire.WISH_ENDPOINT}
        add_queue(pair["a"], "q", ["#noexport/local"])
        pair.run()
        assert imports(pair["b"]) == {}

    def test_what_was_there_before_the_link_comes_with_the_snapshot(self) -> None:
        mesh = WiredMesh("a", "b", pairs=[])
        texts = [f"t/{n}" for n in range(2_500)]
        client = mesh["a"].client()
        for start in range(0, len(texts), 250):
            client.subscribe(*texts[start : start + 250])
        mesh.links["b", "a"] = link = WiredLink(mesh["b"], mesh["a"])
        mesh.run()
        assert sorted(imports(mesh["b"])) == sorted(texts)
        assert all(relay is not None and relay.is_synchronised for relay in link.channel.relays)
        mesh.validate()

    def test_the_interest_of_a_neighbour_goes_with_its_link(self, pair: WiredMesh) -> None:
        pair["a"].client().subscribe("x", "y/>")
        pair.run()
        filters = len(pair["b"].router.interest)
        link = pair.links["b", "a"]
        link.is_cut = True
        link.channel.lost(1, error_for(errors.NOT_CONNECTED, "cut"), pair["b"].now)
        pair.run(0.2)
        assert len(pair["b"].router.interest) == filters - 2
        assert not pair["b"].router.links.sessions
        link.is_cut = False
        pair.run(11.0)
        assert len(pair["b"].router.interest) == filters


@pytest.fixture
def small_steps(pair: WiredMesh) -> WiredMesh:
    imports = pair["b"].router.links.imports
    imports.step_max = 10
    imports.step()
    return pair


class TestSteps:
    """What a neighbour wants is taken in steps: nobody waits for a thousand subscriptions of another node."""

    pytestmark = pytest.mark.requirement("R278")

    def _wish(self, mesh: WiredMesh, count: int, first: int = 0) -> bool:
        client = mesh.links["b", "a"].clients[0]
        assert client is not None
        entries = [[f"t/{number}", 1 << wire.WISH_DTO_SHIFT] for number in range(first, first + count)]
        header = wire.pack([first + 1, wire.EXPORTS_CHANGES, entries])
        node = mesh["b"]
        return node.router.client_frames(client.routing_id, [wire.IMPORTS, header], node.now)

    def test_a_frame_is_taken_in_steps_and_answered_when_all_of_it_is_in_force(
        self, small_steps: WiredMesh
    ) -> None:
        node = small_steps["b"]
        assert STEP_MAX < wire.MAX_WISHES_PER_FRAME, "the largest frame takes several"
        assert self._wish(small_steps, 25)
        (client,) = [client for client in small_steps.links["b", "a"].clients if client is not None][:1]
        for done in (10, 20, 25):
            assert len(imports(node)) == done
            assert not self._answers(client)
            assert self._wish(small_steps, 1, first=100) is (done == 25)
            node.settle()
            node.router.validate()
            node.router.tick(node.now)
        node.settle()
        assert self._answers(client) == [[1], [101]]
        assert len(imports(node)) == 26

    def _answers(self, client: FakeClient) -> list[Any]:
        return [wire.unpack(frames[1]) for frames in client.received if frames[0] == wire.IMPORTED]

    def test_a_client_is_served_while_a_neighbour_tells_much(self, small_steps: WiredMesh) -> None:
        assert self._wish(small_steps, 1_000)
        client = small_steps["b"].client()
        client.subscribe("x")
        client.publish("x")
        assert client.topics() == ["x"]
        assert len(imports(small_steps["b"])) < 1_000

    def test_what_is_wrong_ends_the_session_in_the_step_that_finds_it(self, small_steps: WiredMesh) -> None:
        node = small_steps["b"]
        node.router.links.imports._limit = 15
        assert self._wish(small_steps, 25)
        assert len(imports(node)) == 10
        node.router.tick(node.now)
        assert imports(node) == {}
        for _ in range(3):
            node.settle()
            node.router.tick(node.now)
        assert len(node.router.interest) == 0
        node.validate()

    def test_a_session_that_ends_meanwhile_leaves_nothing(self, small_steps: WiredMesh) -> None:
        assert self._wish(small_steps, 25)
        small_steps.links["b", "a"].kill()
        node = small_steps["b"]
        for _ in range(5):
            node.router.tick(node.now)
            node.settle()
        assert len(node.router.interest) == 0
        node.validate()


class TestForwarding:
    def test_a_message_reaches_a_subscriber_of_the_neighbour(self, pair: WiredMesh) -> None:
        subscriber, publisher = pair["b"].client(), pair["a"].client()
        subscriber.subscribe("x/>")
        pair.run()
        publisher.publish(("x/1", b"one"), ("y", b"no"), ("x/2", b"two"))
        pair.run()
        assert subscriber.payloads() == [b"one", b"two"]

    @pytest.mark.parametrize("workers", [1, 3])
    def test_the_order_of_a_publisher_holds_across_a_link(self, make_mesh: Any, workers: int) -> None:
        mesh = make_mesh("a", "b", workers=workers)
        subscriber, publisher = mesh["b"].client(), mesh["a"].client()
        subscriber.subscribe("x/>", "y/>")
        mesh.run()
        expected = []
        for batch in range(20):
            rows = [(f"{'xyz'[n % 3]}/{n}", b"%d.%d" % (batch, n)) for n in range(12)]
            publisher.publish(*rows)
            expected += [payload for topic, payload in rows if topic[0] in "xy"]
        mesh.run()
        assert subscriber.payloads() == expected

    @pytest.mark.requirement("R3")
    def test_the_order_of_a_publisher_holds_when_a_link_breaks(self, make_mesh: Any) -> None:
        """What a busy worker still had of the first connection would come behind what the second one brought."""
        mesh = make_mesh("a", "b", workers=2)
        subscriber, publisher = mesh["b"].client(), mesh["a"].client()
        subscriber.subscribe("x/>")
        mesh.run()
        table = mesh["b"].router.shards.table
        slow, quick = (next(t for t in TOPICS if table[slot_of(t)] == worker) for worker in (0, 1))
        mesh["b"].pause(0)
        publisher.publish((slow, b"first"))
        mesh.run()
        mesh.links["b", "a"].kill()
        mesh.links["b", "a"] = WiredLink(mesh["b"], mesh["a"], incarnation=2)
        mesh.run()
        publisher.publish((quick, b"second"))
        mesh.run()
        mesh["b"].unpause(0)
        mesh.run()
        assert subscriber.payloads() == [b"second"]
        assert mesh["b"].router.counters.totals["discard.client-not-connected"] == 1

    @pytest.mark.parametrize(
        "pairs",
        [
            [("b", "a"), ("c", "b")],
            [("b", "a"), ("c", "b"), ("d", "c"), ("d", "a")],
            [("b", "a"), ("c", "a"), ("c", "b"), ("d", "a"), ("d", "b"), ("d", "c")],
        ],
    )
    def test_in_no_topology_is_there_a_loop_a_duplicate_or_transit(
        self, make_mesh: Any, pairs: list[tuple[str, str]]
    ) -> None:
        names = sorted({name for one in pairs for name in one})
        mesh = make_mesh(*names, pairs=pairs)
        subscribers = {name: mesh[name].client() for name in names}
        for subscriber in subscribers.values():
            subscriber.subscribe(">")
        publisher = mesh["a"].client()
        mesh.run()
        publisher.publish("x")
        mesh.run()
        near = {"a"} | {b if a == "a" else a for a, b in pairs if "a" in (a, b)}
        got = {name: len(subscriber.rows()) for name, subscriber in subscribers.items()}
        assert got == {name: int(name in near) for name in names}

    @pytest.mark.requirement("R31")
    def test_one_member_of_a_group_on_each_node_gets_a_copy(self, pair: WiredMesh) -> None:
        members = {name: [pair[name].client() for _ in range(3)] for name in "ab"}
        for group in members.values():
            for member in group:
                member.subscribe("#share/g/jobs/>")
        publisher = pair["a"].client()
        pair.run()
        for number in range(10):
            publisher.publish((f"jobs/{number}", b""))
        pair.run()
        for group in members.values():
            topics = sorted(topic for member in group for topic in member.topics())
            assert topics == sorted(f"jobs/{number}" for number in range(10))

    def test_a_request_is_answered_across_a_link(self, pair: WiredMesh) -> None:
        requester, replier = pair["a"].connection(), pair["b"].client()
        inbox = requester.hello()["inbox"]
        requester.subscribe(inbox)
        pair.run()
        replier.publish((inbox, b"pong"))
        pair.run()
        assert requester.payloads() == [b"pong"]

    def test_a_direct_message_is_spooled_by_a_queue_of_the_neighbour(self, pair: WiredMesh) -> None:
        add_queue(pair["b"], "q", ["q/>"])
        pair.run()
        publisher = pair["a"].client()
        publisher.publish("q/1")
        pair.run()
        (session,) = pair["b"].router.links.sessions
        assert session.messages_in == 1
        assert session.counters.get("discard.no-subscription-match", 0) == 0

    def test_message_vpns_are_apart(self) -> None:
        rows: list[tuple[str, str, str, dict[str, Any]]] = [
            ("vpn", "", "other", {}),
            ("username", "other", "default", {}),
        ]
        nodes = {
            name: WiredNode(1, snapshot(link_object(other), *rows), name=name, identity=identity_of(name))
            for name, other in (("a", "b"), ("b", "a"))
        }
        mesh = WiredMesh(pairs=[])
        mesh.nodes = nodes
        mesh.links["b", "a"] = WiredLink(nodes["b"], nodes["a"], vpn="other")
        mesh.run()
        here, there = nodes["b"].client(), nodes["b"].client(vpn="other")
        for client in (here, there):
            client.subscribe("x")
        mesh.run()
        nodes["a"].client().publish("x")
        nodes["a"].client(vpn="other").publish("x")
        mesh.run()
        assert (len(here.rows()), len(there.rows())) == (0, 1)


class TestImports:
    @pytest.mark.parametrize(
        ("header", "code"),
        [
            ([1, 0, [["a", 32]]], errors.MALFORMED_FRAME),
            ([1, 3, []], errors.MALFORMED_FRAME),
            ([1, 0, [["", 4]]], errors.MALFORMED_FRAME),
            ([1, 0, [["#noexport/a", 4]]], errors.MALFORMED_FRAME),
            ([1, 0, [["#share/g/a", 4]]], errors.MALFORMED_FRAME),
            ([1, 0, [["#P2P/QUE/q", 4]]], errors.MALFORMED_FRAME),
            ([1, 0, [["x" * 251, 4]]], errors.MALFORMED_FRAME),
            ([1, 0, [["a", 4]] * 1_001], errors.MALFORMED_FRAME),
            ("nonsense", errors.MALFORMED_FRAME),
            ([1, 0, [[f"t/{n}", 4] for n in range(11)]], errors.LINK_IMPORTS_EXCEEDED),
        ],
    )
    def test_what_no_neighbour_sends_ends_its_link_and_nothing_else(self, header: Any, code: int) -> None:
        node = gated_node(link_imports_max=10)
        neighbour, client = node.connection("10.0.0.1"), node.client()
        neighbour.send(wire.HELLO, link_hello("x"))
        client.subscribe("a")
        neighbour.send(wire.IMPORTS, header)
        node.advance(0.1)
        assert neighbour.closed_with() == code
        told = [event for event in node.events if event["event"] == "SYSTEM_LINK_REFUSED"]
        assert [(event["link"], event["code"]) for event in told] == [("x", code)]
        node.client().publish("a")
        assert client.topics() == ["a"]
        assert len(node.router.interest) == 1
        node.validate()

    @pytest.mark.parametrize("refusing", ["a", "b"])
    def test_both_nodes_hear_why_exports_of_one_are_refused(self, refusing: str) -> None:
        """b opens the link; whoever of the two refuses what the other wants, both have the reason and an event."""
        mesh = WiredMesh("a", "b")
        other = mesh["b" if refusing == "a" else "a"]
        mesh[refusing].router.links.imports._limit = 3
        other.client().subscribe(*[f"t/{number}" for number in range(10)])
        mesh.run()
        (link,) = mesh.links.values()
        assert link.channel.error is not None
        assert link.channel.error.code == errors.LINK_IMPORTS_EXCEEDED
        for name in "ab":
            events = mesh[name].events + (link.events if name == "b" else [])
            told = [event for event in events if event["event"] == "SYSTEM_LINK_REFUSED"]
            assert [event["code"] for event in told] == [errors.LINK_IMPORTS_EXCEEDED], name
        assert "a" in str(mesh["a"].events[-1]["text"])
        mesh.validate()

    @pytest.mark.parametrize("header", [[1], [40031, 7], [1, "a code"], [40031, "x" * 2_000]])
    def test_a_goodbye_of_another_shape_is_no_reason(self, header: Any) -> None:
        node = gated_node()
        neighbour = node.connection("10.0.0.1")
        neighbour.send(wire.HELLO, link_hello("x"))
        neighbour.send(wire.BYE, header)
        assert neighbour.closed_with() == errors.MALFORMED_FRAME

    def test_a_client_may_not_import(self) -> None:
        node = gated_node()
        client = node.client()
        client.send(wire.IMPORTS, [1, 0, []])
        assert client.closed_with() == errors.UNKNOWN_OPERATION


def add_queue(node: WiredNode, name: str, subscriptions: list[str]) -> None:
    """Create or change a queue."""
    attributes = objects.complete("queue", {"subscriptions": subscriptions})
    attributes |= {"id": 77, "generation": 1, "homes": [0], "created_by": "operator"}
    node.router.operators.put_object("queue", "default", name, attributes, node.now)
    node.settle()


class TestDeliverToOne:
    @pytest.mark.requirement("R75")
    def test_a_client_here_comes_before_every_neighbour(self, make_mesh: Any) -> None:
        mesh = make_mesh("a", "b", "c")
        near, far = mesh["a"].client(local_priority=4), mesh["b"].client(network_priority=1)
        near.subscribe("x")
        far.subscribe("x")
        mesh.run()
        publish_dto(mesh, "a", "x", 4)
        assert (len(near.rows()), len(far.rows())) == (4, 0)

    @pytest.mark.requirement("R76", "R77", "R78", "R216")
    def test_without_a_client_here_one_neighbour_gets_all(self, make_mesh: Any) -> None:
        mesh = make_mesh("a", "b", "c", "d")
        clients = {name: [mesh[name].client() for _ in range(2)] for name in "bcd"}
        for group in clients.values():
            for client in group:
                client.subscribe("x")
        mesh.run()
        publish_dto(mesh, "a", "x", 6)
        got = {name: [len(client.rows()) for client in group] for name, group in clients.items()}
        assert got == {"b": [3, 3], "c": [0, 0], "d": [0, 0]}

    @pytest.mark.requirement("R79")
    def test_network_priorities_decide_among_neighbours_and_there(self, make_mesh: Any) -> None:
        mesh = make_mesh("a", "b", "c")
        behind = mesh["b"].client(network_priority=3)
        better = mesh["c"].client(network_priority=2, local_priority=4)
        worse = mesh["c"].client(network_priority=4, local_priority=1)
        for client in (behind, better, worse):
            client.subscribe("x")
        mesh.run()
        publish_dto(mesh, "a", "x", 3)
        assert [len(client.rows()) for client in (behind, better, worse)] == [0, 3, 0]

    @pytest.mark.requirement("R82")
    @pytest.mark.parametrize("taker", ["a", "b", "c", None])
    def test_deliver_always_subscribers_get_theirs_wherever_it_is_taken(
        self, make_mesh: Any, taker: str | None
    ) -> None:
        mesh = make_mesh("a", "b", "c")
        monitors = [mesh[name].client() for name in "abc"]
        for monitor in monitors[:2]:
            monitor.subscribe("x", deliver_always=True)
        monitors[2].subscribe(">")
        one = mesh[taker].client() if taker else None
        if one is not None:
            one.subscribe("x")
        mesh.run()
        publish_dto(mesh, "a", "x", 2)
        assert [len(monitor.rows()) for monitor in monitors] == [2, 2, 2]
        if one is not None:
            assert len(one.rows()) == 2

    @pytest.mark.requirement("R86")
    def test_who_is_chosen_and_monitors_gets_one_copy(self, make_mesh: Any) -> None:
        mesh = make_mesh("a", "b")
        client = mesh["b"].client()
        client.subscribe("x")
        client.subscribe("x", deliver_always=True)
        mesh.run()
        publish_dto(mesh, "a", "x", 2)
        assert len(client.rows()) == 2

    @pytest.mark.parametrize("workers", [1, 3])
    def test_rows_of_all_sorts_travel_together_in_order(self, make_mesh: Any, workers: int) -> None:
        mesh = make_mesh("a", "b", "c", workers=workers)
        takers = {name: mesh[name].client() for name in "bc"}
        for taker in takers.values():
            taker.subscribe("dto/>", "all/>")
        mesh.run()
        rows = []
        for number in range(30):
            is_dto = number % 3 == 0
            rows.append((f"{'dto' if is_dto else 'all'}/{number}", b"%d" % number, wire.FLAG_DTO * is_dto))
        mesh["a"].client().publish(*rows)
        mesh.run()
        assert takers["b"].payloads() == [b"%d" % number for number in range(30)]
        assert takers["c"].payloads() == [b"%d" % number for number in range(30) if number % 3]

    def test_a_group_on_a_neighbour_is_one_candidate(self, pair: WiredMesh) -> None:
        members = [pair["b"].client() for _ in range(3)]
        for member in members:
            member.subscribe("#share/g/x")
        pair.run()
        publish_dto(pair, "a", "x", 9)
        assert sum(len(member.rows()) for member in members) == 9

    def test_a_row_whose_client_has_gone_meanwhile_is_counted(self, pair: WiredMesh) -> None:
        client, publisher = pair["b"].client(), pair["a"].client()
        client.subscribe("x")
        pair.run()
        pair["b"].pause(0)
        publisher.publish(("x", b"1", wire.FLAG_DTO))
        pair.run()
        client.send(wire.BYE, [])
        pair["b"].unpause(0)
        pair.run()
        assert pair["b"].router.stats()["discards"] == {"no-subscription-match": 1}

    def test_a_slow_link_keeps_what_is_open(self, pair: WiredMesh) -> None:
        client = pair["b"].client()
        client.subscribe("x", "y")
        pair.run()
        (session,) = pair["a"].router.links.sessions
        session.granted_bytes = session.sent_bytes  # nothing more, for now
        publisher = pair["a"].client()
        publisher.publish(("x", b"1", wire.FLAG_DTO), ("y", b"2", 2 << wire.COS_SHIFT))
        publisher.publish(("x", b"3", wire.FLAG_DTO))
        assert client.rows() == []
        session.granted_bytes = 1 << 40
        pair["a"].router.egress.drain(session)
        pair["a"].settle()
        pair.run()
        assert sorted(client.payloads()) == [b"1", b"2", b"3"]

    def test_a_client_cannot_open_a_choice(self, pair: WiredMesh) -> None:
        client = pair["a"].client()
        client.send(wire.PUBLISH, [1, 0, False, [[0, 1]], [0]], wire.pack([[0, "x", 0, None, None, b""]]))
        assert client.closed_with() == errors.MALFORMED_FRAME


def publish_dto(mesh: WiredMesh, name: str, topic: str, count: int) -> None:
    publisher = mesh[name].client()
    for _ in range(count):
        publisher.publish((topic, b"", wire.FLAG_DTO))
    mesh.run()
