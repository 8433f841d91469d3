"""The rules of a mesh object to what is wrong: the history of a right run is changed in one place.

The run is a line of three nodes, a - b - c. Every node has a queue that takes everything, and a consumer that
subscribes to `t/1/*`. What else there is for a rule is made by `base`.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from tests.simulation.event_history import Delivery
from tests.simulation.guaranteed.records import Change, Stored
from tests.simulation.mesh import mesh_checker
from tests.simulation.mesh.mesh_end import Wanted, differences, merged
from tests.simulation.mesh.mesh_stage import MeshStage

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.event_history import ConnectionRecord, Message
    from tests.simulation.guaranteed.records import EndpointRecord, Publication
    from tests.simulation.mesh.mesh_history import MeshHistory

DTO = wire.FLAG_DTO


@pytest.fixture(scope="module")
def base() -> MeshHistory:
    """Give the history of a right run; its messages were sent when nothing was disturbed."""
    stage = MeshStage("right", "line")
    for client in stage["b"].clients:
        client.ask([("#share/g/t/2/*", False), ("#noexport/n/>", False)])
    stage["c"].clients[0].ask([("t/3/*", True)])
    stage["c"].clients[1].ask([("t/3/*", False), ("t/4/*", False)])
    stage["b"].clients[1].ask([("t/3/*", False)])
    stage.wait(1.0)
    stage.scenario.shared.calm_since = stage.now
    stage.say("a", "t/1/0", "t/1/1", "t/2/0", "n/1")
    stage.say("b", "t/3/0", "t/4/0", flags=DTO)
    stage.publish("a", "t/1/0", "t/1/1", ttl_ms=60_000)
    stage.publish("a", "t/5/0", "t/5/1", "t/1/9")
    stage.publish("b", "t/3/1", dto=True)
    stage.wait(1.0)
    stage.scenario.drain("drain")
    stage.scenario.history.is_over = True
    assert stage.scenario.outcome().violations == []
    return stage.scenario.history


class Changed:
    """A copy of that history, to be spoilt."""

    def __init__(self, base: MeshHistory) -> None:
        self.history = copy.deepcopy(base)

    def rules(self) -> list[str]:
        return list(dict.fromkeys(one.rule for one in mesh_checker.check(self.history)))

    def client(self, name: str) -> ConnectionRecord:
        return next(one for one in self.history.shared.connections if one.client == name)

    def message(self, topic: str) -> Message:
        return next(one for one in self.history.shared.messages if one.topic == topic)

    def deliver(self, client: str, topic: str, share: str | None = None) -> None:
        message = self.message(topic)
        self.client(client).deliveries.append(Delivery(message, share, message.sent_at + 0.1))

    def withhold(self, client: str, topic: str) -> None:
        record = self.client(client)
        kept = [one for one in record.deliveries if one.message.topic != topic]
        assert len(kept) < len(record.deliveries)
        record.deliveries[:] = kept

    def publication(self, topic: str) -> Publication:
        return next(one for one in self.history.publications if one.topic == topic)

    def endpoint(self, node: str, name: str) -> EndpointRecord:
        records = self.history.nodes[node].guaranteed
        return next(one for one in records.endpoints.values() if one.name == name)

    def store(self, node: str, name: str, topic: str, position: int = 99) -> None:
        """Put another copy into an endpoint."""
        place = (self.endpoint(node, name).id << wire.LANE_BITS, position)
        what = f"g{self.publication(topic).number}"
        found = Stored(self.history.shared.calm_since + 0.5, place, what, 0, 0, None)
        self.history.nodes[node].guaranteed.home_events.append(found)

    def edit(self, node: str, name: str, topic: str, edit: Callable[[Stored], Stored | None]) -> None:
        """Change, or take away, what an endpoint stored."""
        lane = self.endpoint(node, name).id << wire.LANE_BITS
        what = f"g{self.publication(topic).number}"
        events: list[Any] = []
        count = 0
        for event in self.history.nodes[node].guaranteed.home_events:
            if isinstance(event, Stored) and event.what == what and event.place[0] == lane:
                count += 1
                changed = edit(event)
                events += [] if changed is None else [changed]
            else:
                events.append(event)
        assert count == 1
        self.history.nodes[node].guaranteed.home_events[:] = events


@pytest.fixture
def changed(base: MeshHistory) -> Changed:
    return Changed(base)


def test_a_right_history_stays_right(changed: Changed) -> None:
    assert changed.rules() == []


# -- direct messages -----------------------------------------------------------------------------------------


def test_a_message_that_crosses_two_links(changed: Changed) -> None:
    changed.deliver("c-consumer", "t/1/0")
    assert "transit" in changed.rules()


@pytest.mark.parametrize("client", ["a-consumer", "b-consumer"])
def test_a_message_that_does_not_come(changed: Changed, client: str) -> None:
    changed.withhold(client, "t/1/0")
    assert changed.rules() == ["lost"]


def test_a_message_that_comes_twice(changed: Changed) -> None:
    changed.deliver("b-consumer", "t/1/0")
    assert "duplicate" in changed.rules()


def test_messages_that_overtake_each_other(changed: Changed) -> None:
    deliveries = changed.client("b-consumer").deliveries
    deliveries[:] = [*reversed(deliveries)]
    assert "order" in changed.rules()


def test_a_message_that_nobody_attracts(changed: Changed) -> None:
    changed.deliver("b-consumer", "n/1")
    assert changed.rules() == ["noexport"]


def test_two_members_of_a_group_on_one_node(changed: Changed) -> None:
    for client in ("b-publisher", "b-consumer"):
        changed.client(client).deliveries[:] = []
        changed.deliver(client, "t/2/0", "#share/g/t/2/*")
    assert "shared" in changed.rules()


def test_no_member_of_a_group(changed: Changed) -> None:
    for client in ("b-publisher", "b-consumer"):
        record = changed.client(client)
        record.deliveries[:] = [one for one in record.deliveries if one.message.topic != "t/2/0"]
    assert changed.rules() == ["shared"]


def test_two_clients_of_two_nodes_for_one_message(changed: Changed) -> None:
    changed.deliver("c-consumer", "t/3/0")
    assert "deliver-to-one" in changed.rules()


def test_a_neighbour_for_a_message_that_a_client_here_wants(changed: Changed) -> None:
    changed.withhold("b-consumer", "t/3/0")
    changed.deliver("c-consumer", "t/3/0")
    assert "deliver-to-one" in changed.rules()


def test_nobody_for_a_message_that_a_neighbour_wants(changed: Changed) -> None:
    changed.withhold("c-consumer", "t/4/0")
    assert changed.rules() == ["deliver-to-one"]


def test_who_always_wants_messages_and_gets_none_of_a_neighbour(changed: Changed) -> None:
    changed.withhold("c-publisher", "t/3/0")
    assert changed.rules() == ["lost"]


# -- guaranteed messages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("node", ["a", "b"])
def test_an_acknowledged_message_that_is_not_in_a_queue(changed: Changed, node: str) -> None:
    changed.edit(node, "q0", "t/5/0", lambda event: None)
    assert changed.rules() == ["lost"]


def test_an_endpoint_that_was_emptied_after_a_message_left_need_not_have_it(changed: Changed) -> None:
    """What is on its way there for the topic before goes with what was there (R149)."""
    changed.edit("b", "q0", "t/5/0", lambda event: None)
    endpoint, sent_at = changed.endpoint("b", "q0"), changed.publication("t/5/0").sent_at
    emptied = {**endpoint.changes[-1].attributes, "generation": 2}
    endpoint.changes.append(Change(sent_at - 0.1, sent_at - 0.1, emptied))
    assert changed.rules() == ["lost"], "it was emptied before"
    endpoint.changes[-1] = Change(sent_at + 0.1, sent_at + 0.2, emptied)
    assert changed.rules() == []


def test_a_message_that_is_stored_after_it_is_acknowledged(changed: Changed) -> None:
    changed.edit("a", "q0", "t/5/0", lambda event: event._replace(at=event.at + 5))
    assert changed.rules() == ["lost"]


def test_a_message_that_is_stored_twice(changed: Changed) -> None:
    changed.store("b", "q0", "t/5/1")
    assert "duplicate" in changed.rules()


@pytest.mark.parametrize(("node", "queue"), [("c", "q0"), ("b", "#link/c")])
def test_a_stored_message_that_goes_on(changed: Changed, node: str, queue: str) -> None:
    changed.store(node, queue, "t/5/0")
    assert "transit" in changed.rules()


def test_a_refused_message_that_is_stored(changed: Changed) -> None:
    changed.publication("t/5/0").refused_at = changed.history.shared.calm_since + 1
    assert "refused" in changed.rules()


def test_a_message_that_a_link_gave_up_and_that_came_all_the_same(changed: Changed) -> None:
    changed.store("a", "#link/b/dmq", "t/5/0")
    assert changed.rules() == ["refused"]


def test_a_message_that_vanished_on_a_link_and_one_that_the_link_gave_up(changed: Changed) -> None:
    changed.edit("b", "q0", "t/5/0", lambda event: None)
    assert changed.rules() == ["lost"]
    changed.store("a", "#link/b/dmq", "t/5/0")
    assert changed.rules() == []


def test_stored_messages_that_overtake_each_other(changed: Changed) -> None:
    changed.edit("b", "q0", "t/5/0", lambda event: event._replace(place=(event.place[0], 1_000)))
    assert "order" in changed.rules()


def test_a_stored_message_that_is_never_delivered(changed: Changed) -> None:
    what = f"g{changed.publication('t/5/0').number}"
    for flow in changed.history.nodes["b"].guaranteed.flows:
        flow.deliveries[:] = [one for one in flow.deliveries if one.what != what]
    assert changed.rules() == ["lost"]


def test_a_time_to_live_that_grows(changed: Changed) -> None:
    changed.edit("b", "q0", "t/1/0", lambda event: event._replace(ttl_ms=61_000))
    assert changed.rules() == ["ttl"]


def test_a_time_to_live_that_is_gone(changed: Changed) -> None:
    changed.edit("b", "q0", "t/1/0", lambda event: event._replace(ttl_ms=0))
    assert changed.rules() == ["ttl"]


def test_two_clients_for_the_direct_copy_of_one_message(changed: Changed) -> None:
    number = changed.publication("t/3/1").number
    at = changed.history.shared.calm_since + 0.5
    for node, client in (("b", "b-consumer"), ("c", "c-consumer")):
        copies = changed.history.nodes[node].history.copies
        copies[:] = [one for one in copies if one[1] != number]
        copies.append((changed.client(client), number, None, at))
    assert changed.rules() == ["deliver-to-one"]


@pytest.mark.parametrize(("node", "client"), [("a", "a-consumer"), ("b", "b-consumer")])
def test_a_direct_copy_that_does_not_come_and_one_that_comes_twice(
    changed: Changed, node: str, client: str
) -> None:
    number = changed.publication("t/1/9").number
    copies = changed.history.nodes[node].history.copies
    (mine,) = [one for one in copies if one[0].client == client and one[1] == number]
    copies.append(mine)
    assert changed.rules() == ["duplicate"]
    copies[:] = [one for one in copies if one is not mine]
    assert changed.rules() == ["lost"]


def test_a_message_without_a_match_that_a_neighbour_attracts(changed: Changed) -> None:
    publication = changed.publication("t/1/9")
    publication.refused_at, publication.acked_at = publication.acked_at, float("inf")
    publication.code = errors.NO_SUBSCRIPTION_MATCH
    assert changed.rules() == ["refused"]


# -- interest ------------------------------------------------------------------------------------------------

PLAIN = 1 << wire.WISH_DTO_SHIFT


@pytest.mark.requirement("R17", "R18", "R214", "R215")
def test_wishes_of_clients_and_endpoints_are_merged_and_what_is_local_is_none() -> None:
    clients = [
        Wanted("a/>", False, 2),
        Wanted("#share/g/a/>", False, 1),
        Wanted("a/>", True, 1),
        Wanted(">", False, 1),
        Wanted("#noexport/b", False, 1),
        Wanted("#noexport/#share/g/b", False, 1),
    ]
    always, endpoint = wire.WISH_DELIVER_ALWAYS, wire.WISH_ENDPOINT
    assert merged(clients, ["a/>", "c", "!d"]) == {
        "a/>": PLAIN | always | endpoint,
        ">": always,
        "c": endpoint,
    }


def test_interest_that_differs_is_told_whichever_side_has_more() -> None:
    assert list(differences("x", {"a": PLAIN}, {"a": PLAIN})) == []
    assert len(list(differences("x", {"a": PLAIN}, {}))) == 1
    assert len(list(differences("x", {}, {"a": PLAIN}))) == 1
    assert len(list(differences("x", {"a": PLAIN}, {"a": 2 * PLAIN}))) == 1
