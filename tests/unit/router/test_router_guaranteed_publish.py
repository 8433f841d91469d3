"""Publishing guaranteed messages: matched by real workers, stored by simple homes, acknowledged by the router."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors, wire
from angarium.topic import slot_of
from tests.unit.router.publish_rig import Publisher, PublishNode, ask, request
from tests.unit.router.wired_node import snapshot

PERSISTENT, NON_PERSISTENT = wire.MODE_PERSISTENT, wire.MODE_NON_PERSISTENT


def topic_of(node: PublishNode, worker: int, prefix: str = "t") -> str:
    """Give a topic that hashes to a worker."""
    table = node.router.shards.table
    return next(f"{prefix}/{n}" for n in range(999) if table[slot_of(f"{prefix}/{n}")] == worker)


@pytest.mark.requirement("R112", "R113", "R155", "R162")
def test_a_message_reaches_every_endpoint_that_matches_once(spooling: PublishNode) -> None:
    spooling.queue("one", "a/>", "a/*", "a/b")
    spooling.queue("two", "*/b")
    spooling.queue("other", "x")
    publisher = spooling.publisher()
    publisher.publish(("a/b", b"1"), ("a/c", b"2"), ("c/b", b"3"))
    assert spooling.payloads("one") == [b"1", b"2"]
    assert spooling.payloads("two") == [b"1", b"3"]
    assert spooling.payloads("other") == []
    assert publisher.acked() == (3, [])


@pytest.mark.requirement("R116", "R156")
def test_one_publish_reaches_queues_topic_endpoints_and_direct_subscribers(spooling: PublishNode) -> None:
    spooling.queue("q", "a/b")
    spooling.put("topic-endpoint", "te", topic="a/>")
    subscriber = spooling.client()
    subscriber.subscribe("a/*")
    publisher = spooling.publisher()
    publisher.publish(("a/b", b"m"))
    assert spooling.payloads("q") == [b"m"]
    assert [row.payload for row in spooling.stored("te", kind="topic-endpoint")] == [b"m"]
    assert subscriber.payloads() == [b"m"]
    assert not any(frames[0] == wire.MESSAGES for frames in subscriber.received)
    assert spooling.router.stats()["spool"]["ingress_messages_demoted"] == 1


@pytest.mark.requirement("R160", "R161")
def test_operators_are_told_of_single_endpoints(spooling: PublishNode) -> None:
    spooling.queue("q", "a")
    these = [("default", "gone"), ("default", "q"), ("other", "q")]
    listed = list(spooling.router.operators.endpoints("default", "queue", "*", spooling.now, ["name"], these))
    assert listed == [{"name": "q"}]


def test_the_delivery_mode_stays_as_published(spooling: PublishNode) -> None:
    spooling.queue("q", "a")
    spooling.publisher().publish(("a", b"p", PERSISTENT), ("a", b"n", NON_PERSISTENT))
    modes = [row.flags & wire.FLAG_MODE for row in spooling.stored("q")]
    assert modes == [PERSISTENT, NON_PERSISTENT]


@pytest.mark.requirement("R163", "R164")
def test_nothing_is_acknowledged_before_every_home_has_it(make_publish_node: Any) -> None:
    node = make_publish_node(2)
    node.queue("near", "a", home=0)
    node.queue("far", "a", home=1)
    publisher = node.publisher()
    node.hold()
    publisher.publish("a", "a")
    assert publisher.told() == []
    node.homes[0].commit()
    assert publisher.told() == []
    node.homes[1].commit()
    assert publisher.acked() == (2, [])


@pytest.mark.requirement("R157")
def test_a_message_for_direct_subscribers_only_is_acknowledged(spooling: PublishNode) -> None:
    subscriber = spooling.client()
    subscriber.subscribe("a")
    publisher = spooling.publisher()
    publisher.publish(("a", b"m"))
    assert publisher.acked() == (1, [])
    assert subscriber.payloads() == [b"m"]


def test_a_message_that_matches_nothing_is_acknowledged_and_dropped_unless_the_profile_says_no(
    spooling: PublishNode,
) -> None:
    publisher = spooling.publisher()
    publisher.publish("nowhere")
    assert publisher.acked() == (1, [])
    assert spooling.router.stats()["discards"] == {"no-subscription-match": 1}
    spooling.change_profile(reject_no_subscription_match=True)
    publisher.publish("nowhere")
    assert publisher.acked() == (2, [[2, errors.NO_SUBSCRIPTION_MATCH]])


@pytest.mark.requirement("R122", "R124")
def test_an_exception_keeps_a_message_out_and_nobody_else_matching_is_no_match(spooling: PublishNode) -> None:
    spooling.queue("q", "animals/f*", "!animals/fox")
    publisher = spooling.publisher()
    publisher.publish("animals/frog", "animals/fox")
    assert [row.topic for row in spooling.stored("q")] == ["animals/frog"]
    assert publisher.acked() == (2, [])
    assert spooling.router.stats()["discards"] == {"no-subscription-match": 1}
    spooling.change_profile(reject_no_subscription_match=True)
    publisher.publish("animals/fox", "animals/flea")
    assert publisher.acked() == (4, [[3, errors.NO_SUBSCRIPTION_MATCH]])
    subscriber = spooling.client()
    subscriber.subscribe("animals/fox")
    publisher.publish("animals/fox")
    assert publisher.acked() == (5, []), "a direct subscriber is a match (R157)"


@pytest.mark.requirement("R179")
def test_what_was_spooled_for_a_subscription_stays_when_that_goes(spooling: PublishNode) -> None:
    spooling.queue("q", "a")
    publisher = spooling.publisher()
    spooling.hold()
    publisher.publish(("a", b"1"))
    spooling.change("q", subscriptions=[])
    publisher.publish(("a", b"2"))
    spooling.commit()
    assert publisher.acked() == (2, [])
    assert spooling.payloads("q") == [b"1"]


@pytest.mark.requirement("R115")
def test_a_queue_is_published_to_by_its_name(spooling: PublishNode) -> None:
    spooling.queue("orders/eu")
    publisher = spooling.publisher()
    publisher.publish("#P2P/QUE/orders/eu", "#P2P/QUE/none", "#P2P/QUE/orders/eu")
    assert publisher.acked() == (3, [[2, errors.UNKNOWN_ENDPOINT]])
    assert spooling.sequences("orders/eu") == [1, 3]
    assert spooling.router.stats()["discards"] == {"queue-not-found": 1}
    spooling.change("orders/eu", ingress_enabled=False, subscriptions=["t"])
    publisher.publish("#P2P/QUE/orders/eu", "t")
    assert publisher.acked() == (5, [[4, errors.ENDPOINT_SHUTDOWN], [5, errors.ENDPOINT_SHUTDOWN]])


def test_a_queue_that_is_deleted_while_its_message_is_matched_is_not_found(spooling: PublishNode) -> None:
    spooling.queue("q", "a")
    publisher = spooling.publisher()
    spooling.pause(0)
    publisher.publish("#P2P/QUE/q", "a")
    spooling.drop("q")
    spooling.unpause(0)
    assert publisher.acked() == (2, [[1, errors.UNKNOWN_ENDPOINT]])


def test_what_an_acl_denies_and_what_is_too_large_is_refused_by_itself(make_publish_node: Any) -> None:
    acl = {"publish_topic_default": "allow", "publish_topic_exceptions": ["secret/>"]}
    rows = snapshot(
        ("acl", "default", "careful", {**acl, "client_connect_default": "allow"}),
        ("username", "default", "u", {"acl_profile": "careful"}),
    )
    node = make_publish_node(1, rows)
    node.queue("q", ">")
    publisher = node.publisher(username="u")
    publisher.publish("a", "secret/x", ("a", bytes(10_000_001)), "b", "#share/x/y")
    upto, nacks = publisher.acked()
    assert upto == 5
    assert nacks == [
        [2, errors.PUBLISH_DENIED],
        [3, errors.MESSAGE_TOO_LARGE],
        [5, errors.RESERVED_TOPIC],
    ]
    assert node.sequences("q") == [1, 4]
    assert publisher.client.notices() == [], "a nack tells it"


@pytest.mark.requirement("R3")
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_endpoints_get_messages_of_all_topics_in_the_order_of_their_publisher(
    make_publish_node: Any, workers: int
) -> None:
    node = make_publish_node(workers)
    node.queue("all", "t/>", home=workers - 1)
    node.queue("some", "t/*/x")
    publisher = node.publisher()
    for start in range(0, 200, 40):
        rows = [(f"t/{n % 13}" + ("/x" if n % 3 else ""), b"%d" % n) for n in range(start, start + 40)]
        publisher.publish(*rows)
    assert node.payloads("all") == [b"%d" % n for n in range(200)]
    assert node.payloads("some") == [b"%d" % n for n in range(200) if n % 3]
    assert publisher.acked() == (200, [])


def test_a_round_cut_for_several_workers_is_stored_and_acknowledged_as_one(make_publish_node: Any) -> None:
    node = make_publish_node(2)
    node.queue("q", "t/>")
    publisher = node.publisher()
    here, there = topic_of(node, 0), topic_of(node, 1)
    node.pause(1)
    publisher.publish(here, there, here)
    assert node.sequences("q") == []
    node.unpause(1)
    assert node.sequences("q") == [1, 2, 3]
    assert publisher.acked() == (3, [])


def test_what_one_report_settles_is_told_in_one_frame(spooling: PublishNode) -> None:
    spooling.queue("q", "a")
    publisher = spooling.publisher()
    spooling.hold()
    for _ in range(5):
        publisher.publish("a", "a")
    spooling.commit()
    assert publisher.told() == [[publisher.handle, 10, [], 0, []]]


def test_rounds_are_told_in_their_order_whatever_home_is_first(make_publish_node: Any) -> None:
    node = make_publish_node(2)
    node.queue("slow", "s", home=0)
    node.queue("quick", "q", home=1)
    publisher = node.publisher()
    node.hold()
    publisher.publish("s")
    publisher.publish("q")
    node.homes[1].commit()
    assert publisher.told() == []
    node.homes[0].commit()
    assert publisher.acked() == (2, [])


def test_indices_may_have_gaps(spooling: PublishNode) -> None:
    spooling.queue("q", "a")
    publisher = spooling.publisher()
    publisher.publish("a", "a", "a", indices=[2, 5, 9])
    assert spooling.sequences("q") == [3, 6, 10]
    assert publisher.acked() == (10, [])
    publisher.publish("a", first=11)
    assert publisher.acked() == (11, [])


def test_a_message_is_stored_once_per_home_with_all_its_lanes(make_publish_node: Any) -> None:
    node = make_publish_node(2)
    node.queue("one", "a", home=0)
    node.queue("two", "a", home=0)
    node.queue("three", "a", home=1)
    node.publisher().publish("a", "a")
    ((group,),) = [store[4] for store in node.homes[0].stores]
    assert group == [[node.lane("one"), node.lane("two")], 2, None]
    ((group,),) = [store[4] for store in node.homes[1].stores]
    assert group == [[node.lane("three")], 2, None]


def test_a_batch_that_one_queue_takes_whole_is_not_opened(spooling: PublishNode) -> None:
    spooling.queue("q", "a/>")
    publisher = spooling.publisher()
    taken: list[bytes] = []
    take = spooling.homes[0].take

    def watch(frames: list[bytes]) -> None:
        taken.extend(frames[2:])
        take(frames)

    spooling.homes[0].take = watch  # type: ignore[method-assign]
    rows = [[index, "a/b", PERSISTENT, None, None, b"x"] for index in range(20)]
    publisher.send(rows, 1)
    assert taken == [wire.pack(rows)]


class TestPartitions:
    def keyed(self, key: str | None) -> Any:
        return None if key is None else [0, 0, None, key]

    def test_a_key_leads_to_one_partition(self, make_publish_node: Any) -> None:
        node = make_publish_node(2)
        node.queue("q", "a", home=[0, 1, 0], partition_count=3, access_type="non-exclusive")
        publisher = node.publisher()
        rows = [("a", b"%d" % (n % 7), PERSISTENT, self.keyed(f"key{n % 7}")) for n in range(70)]
        publisher.publish(*rows)
        assert publisher.acked() == (70, [])
        for key in range(7):
            found = [p for p in range(3) if b"%d" % key in node.payloads("q", p)]
            assert len(found) == 1
        parts = [node.stored("q", p) for p in range(3)]
        assert sum(map(len, parts)) == 70
        assert all([row.sequence for row in rows] == sorted(row.sequence for row in rows) for rows in parts)
        assert sum(map(bool, parts)) > 1

    def test_without_a_key_messages_spread_and_find_their_partition_again(
        self, spooling: PublishNode
    ) -> None:
        spooling.queue("q", "a", partition_count=4, access_type="non-exclusive")
        publisher = spooling.publisher()
        publisher.publish(*["a"] * 100)
        parts = [[row.sequence for row in spooling.stored("q", p)] for p in range(4)]
        assert all(len(part) > 5 for part in parts)
        again = publisher.reopen()
        assert again.last == 100
        again.publish(*["a"] * 100, first=1)
        assert again.acked() == (100, [])
        assert [[row.sequence for row in spooling.stored("q", p)] for p in range(4)] == parts

    def test_other_queues_of_the_message_share_its_groups(self, spooling: PublishNode) -> None:
        spooling.queue("parted", "a", partition_count=2, access_type="non-exclusive")
        spooling.queue("plain", "a")
        publisher = spooling.publisher()
        publisher.publish(*["a"] * 30)
        assert spooling.sequences("plain") == list(range(1, 31))
        assert sorted(spooling.sequences("parted")) == list(range(1, 31))
        (store,) = spooling.homes[0].stores
        assert sorted(lanes for lanes, _, _ in store[4]) == [
            [spooling.lane("parted", 0), spooling.lane("plain")],
            [spooling.lane("parted", 1), spooling.lane("plain")],
        ]
        assert sorted(store[8]) == [[spooling.lane("parted", 0), 2], [spooling.lane("parted", 1), 2]]


class TestRules:
    """What costs a publisher its session."""

    def closed(self, publisher: Publisher) -> int | None:
        return publisher.client.closed_with()

    @pytest.mark.requirement("R186")
    def test_the_window_in_messages(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        publisher = spooling.publisher(window=3)
        spooling.hold()
        publisher.publish("a", "a")
        publisher.publish("a")
        assert self.closed(publisher) is None
        publisher.publish("a")
        assert self.closed(publisher) == errors.PRODUCER_WINDOW_EXCEEDED

    def test_an_acknowledgement_opens_the_window(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        publisher = spooling.publisher(window=3)
        for _ in range(10):
            publisher.publish("a", "a", "a")
        assert publisher.acked() == (30, [])
        assert self.closed(publisher) is None

    def test_the_window_in_bytes_may_be_overdrawn_by_one_round(self, make_publish_node: Any) -> None:
        node = make_publish_node(producer_window_bytes=10_000)
        node.queue("q", "a")
        publisher = node.publisher()
        node.hold()
        publisher.publish(("a", bytes(9_000)))
        publisher.publish(("a", bytes(9_000)))
        assert self.closed(publisher) is None
        publisher.publish("a")
        assert self.closed(publisher) == errors.PRODUCER_WINDOW_EXCEEDED

    @pytest.mark.parametrize("first", [0, -1, (1 << 62) + 1])
    def test_sequences_start_at_one(self, spooling: PublishNode, first: int) -> None:
        publisher = spooling.publisher()
        publisher.publish("a", first=first)
        expected = errors.MALFORMED_FRAME if first > 1 else errors.INVALID_SEQUENCE
        assert self.closed(publisher) == expected

    @pytest.mark.parametrize("first", [3, 4])
    def test_sequences_rise(self, spooling: PublishNode, first: int) -> None:
        spooling.queue("q", "a")
        publisher = spooling.publisher()
        publisher.publish("a", "a", first=3)
        publisher.publish("a", first=first)
        assert self.closed(publisher) == errors.INVALID_SEQUENCE
        assert spooling.sequences("q") == [3, 4]

    def test_an_index_beyond_all_sequences(self, spooling: PublishNode) -> None:
        publisher = spooling.publisher()
        publisher.publish("a", indices=[(1 << 64) - 1])
        assert self.closed(publisher) == errors.INVALID_SEQUENCE

    def test_an_index_that_comes_twice_in_two_parts(self, make_publish_node: Any) -> None:
        node = make_publish_node(2)
        node.queue("q", "t/>")
        publisher = node.publisher()
        parts = [wire.pack([[0, topic_of(node, worker), PERSISTENT, None, None, b""]]) for worker in (0, 1)]
        header = [1, node.router.shards.epoch, False, [[0, 1], [1, 1]]]
        publisher.client.send(wire.PUBLISH, [*header, publisher.handle, 1], *parts)
        assert self.closed(publisher) == errors.INVALID_SEQUENCE
        assert node.stored("q") == []

    def test_direct_rows_in_a_guaranteed_round_and_the_other_way_round(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        publisher = spooling.publisher()
        publisher.publish("a", flags=wire.MODE_DIRECT)
        assert self.closed(publisher) == errors.MALFORMED_FRAME
        client = spooling.client()
        client.publish(("a", b"", PERSISTENT))
        assert client.closed_with() == errors.MALFORMED_FRAME
        assert spooling.stored("q") == []

    @pytest.mark.parametrize("handle", [99, 0])
    def test_a_handle_that_was_never_given(self, spooling: PublishNode, handle: int) -> None:
        client = spooling.client()
        client.send(
            wire.PUBLISH, [1, 0, False, [[0, 1]], handle, 1], wire.pack([[0, "a", 1, None, None, b""]])
        )
        assert client.closed_with() in (errors.UNKNOWN_PRODUCER, errors.MALFORMED_FRAME)

    @pytest.mark.parametrize(
        "header",
        [[1, 0, False, [[0, 1]], 1], [1, 0, False, [[0, 1]], 1, 1, 1], [1, 0, False, [[0, 1]], "p", 1]],
    )
    def test_a_header_of_another_shape(self, spooling: PublishNode, header: list[Any]) -> None:
        publisher = spooling.publisher()
        publisher.client.send(wire.PUBLISH, header, wire.pack([[0, "a", 1, None, None, b""]]))
        assert self.closed(publisher) == errors.MALFORMED_FRAME

    def test_after_a_broken_round_nothing_of_its_producer_is_taken(self, make_publish_node: Any) -> None:
        """Else a resend of the broken one would be taken for stored."""
        node = make_publish_node()
        node.queue("q", "a")
        publisher = node.publisher()
        node.pause(0)
        publisher.publish("a")
        publisher.send([[0, "a", PERSISTENT, None, None, "no bytes"]], 2)
        publisher.publish("a", first=3)
        node.unpause(0)
        assert self.closed(publisher) == errors.MALFORMED_FRAME
        assert node.sequences("q") == [1]


class TestOpening:
    def test_a_name_is_made_up_for_who_gives_none(self, spooling: PublishNode) -> None:
        one, two = spooling.publisher(""), spooling.publisher("")
        assert one.name != two.name
        assert (one.last, two.last) == (0, 0)

    def test_a_profile_may_forbid_it(self, spooling: PublishNode) -> None:
        spooling.change_profile(allow_guaranteed_send=False)
        code, _ = request(spooling.client(), "producer.open", name="p")
        assert code == errors.GUARANTEED_SEND_DENIED

    def test_a_profile_and_a_message_vpn_limit_how_many(self, spooling: PublishNode) -> None:
        spooling.change_profile(max_ingress_flow_count=2)
        client = spooling.client()
        opened = [Publisher(spooling, client, f"p{n}") for n in range(2)]
        assert request(client, "producer.open", name="more")[0] == errors.TOO_MANY_FLOWS
        opened[0].request("producer.close", producer=opened[0].handle)
        spooling.change_vpn(max_ingress_flow_count=2)
        Publisher(spooling, client, "again")
        assert request(spooling.client(), "producer.open", name="vpn")[0] == errors.TOO_MANY_FLOWS
        client.send(wire.BYE, [])
        spooling.publisher("free")

    def test_a_username_has_a_share_of_the_producers_of_its_message_vpn(self, spooling: PublishNode) -> None:
        spooling.change_profile(max_ingress_flow_count_per_client_username=2)
        clients = [spooling.client() for _ in range(3)]
        opened = [Publisher(spooling, client, f"p{n}") for n, client in enumerate(clients[:2])]
        assert request(clients[2], "producer.open", name="more")[0] == errors.TOO_MANY_FLOWS
        opened[0].request("producer.close", producer=opened[0].handle)
        Publisher(spooling, clients[2], "more")
        assert request(clients[0], "producer.open", name="again")[0] == errors.TOO_MANY_FLOWS

    @pytest.mark.parametrize("arguments", [{"window": 0}, {"window": 256}, {"name": 5}, {"what": 1}])
    def test_arguments_are_checked(self, spooling: PublishNode, arguments: dict[str, Any]) -> None:
        assert request(spooling.client(), "producer.open", **arguments)[0] == errors.INVALID_ARGUMENT

    def test_a_name_that_should_be_known_and_is_not_is_refused(self, spooling: PublishNode) -> None:
        client = spooling.client()
        assert request(client, "producer.open", name="p", resume=True)[0] == errors.UNKNOWN_FLOW_NAME
        assert client.closed_with() is None

    def test_closing_waits_for_what_was_accepted(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        publisher = spooling.publisher()
        spooling.hold()
        publisher.publish("a")
        publisher.client.send(wire.REQUEST, [50, "producer.close", {"producer": publisher.handle}])
        operations = [frames[0] for frames in publisher.client.received]
        assert operations == []
        spooling.commit()
        operations = [frames[0] for frames in publisher.client.received]
        assert operations == [wire.ACKED, wire.ANSWER]
        assert len(spooling.router.publishing.producers) == 0

    def test_a_closed_handle_is_dropped_without_a_word(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        publisher = spooling.publisher()
        publisher.request("producer.close", producer=publisher.handle)
        publisher.publish("a")
        assert spooling.stored("q") == []
        assert publisher.client.closed_with() is None
        assert (
            request(publisher.client, "producer.close", producer=publisher.handle)[0]
            == errors.UNKNOWN_PRODUCER
        )

    def test_a_goodbye_is_said_after_the_last_acknowledgement(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        publisher = spooling.publisher()
        spooling.hold()
        publisher.publish("a")
        publisher.client.send(wire.BYE, [])
        assert publisher.client.closed_with() is None
        spooling.commit()
        operations = [frames[0] for frames in publisher.client.received if frames[0] != wire.RETIRED]
        assert operations == [wire.ACKED, wire.CLOSED]

    def test_a_goodbye_does_not_wait_for_what_belongs_to_somebody_else_now(
        self, spooling: PublishNode
    ) -> None:
        spooling.queue("q", "a")
        publisher = spooling.publisher()
        spooling.hold()
        publisher.publish("a")
        publisher.client.send(wire.BYE, [])
        other = spooling.client()
        ask(other, "producer.open", name=publisher.name)
        spooling.advance(1.0)
        assert publisher.client.closed_with() == 0

    def test_a_goodbye_does_not_wait_for_messages_that_wait_for_room(self, spooling: PublishNode) -> None:
        """They are dropped with the session, so that it waits only for what is on its way to a home."""
        spooling.queue("near", "a")
        spooling.queue("far", "b")
        spooling.queue("other", "c")
        publisher = spooling.publisher()
        publisher.publish("a", "a")
        spooling.change("far", subscriptions=["a"], ingress_enabled=False)
        again = publisher.reopen()
        spooling.hold()
        again.publish("c", "a", first=1)
        again.client.send(wire.BYE, [])
        spooling.advance(1.0)
        assert again.client.closed_with() is None, "the first one is on its way"
        spooling.commit()
        spooling.advance(1.0)
        assert again.client.closed_with() == 0

    def test_a_goodbye_is_said_at_last_when_a_home_does_not_come_back(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        publisher = spooling.publisher()
        spooling.kill_worker(0)
        publisher.publish("a")
        publisher.client.send(wire.BYE, [])
        spooling.advance(29.0)
        assert publisher.client.closed_with() is None
        spooling.advance(3.0)
        assert publisher.client.closed_with() == errors.HOME_NOT_READY

    def test_operators_see_producers(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        publisher = spooling.publisher("orders", client_name="shop")
        spooling.hold()
        publisher.publish("a", "a")
        (row,) = spooling.router.publishing.producers.describe("default")
        assert row["name"] == "orders"
        assert row["client"] == "shop"
        assert (row["unacked_messages"], row["last_sequence"], row["acknowledged_sequence"]) == (2, 2, 0)
        assert list(spooling.router.publishing.producers.describe("other")) == []
