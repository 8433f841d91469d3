"""Exactly once: what a publisher sends again after a lost connection, home or router; fencing, forgetting."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from angarium import errors, wire
from router.publishers import gathering
from router.sessions.session import Session
from tests.garbage import uncollected
from tests.unit.router.publish_rig import Publisher, PublishNode, answer_to, ask, request

BODY = bytes(10_000 - wire.SPOOL_OVERHEAD_BYTES)


def rows(count: int, topic: str = "a") -> list[tuple[str, bytes]]:
    return [(topic, BODY)] * count


class TestResend:
    @pytest.mark.requirement("R190")
    def test_what_was_stored_is_acknowledged_and_not_stored_again(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        publisher = spooling.publisher()
        publisher.publish(*["a"] * 5)
        again = publisher.reopen()
        assert again.last == 5
        again.publish(*["a"] * 8, first=3)
        assert again.acked() == (10, [])
        assert spooling.sequences("q") == list(range(1, 11))

    def test_a_new_router_knows_what_the_homes_have(self, make_publish_node: Any) -> None:
        node = make_publish_node(2)
        node.queue("near", "a", home=0)
        node.queue("far", "b", home=1)
        publisher = node.publisher()
        publisher.publish("a", "b", "a")
        node.hold()
        publisher.publish("b", "a")
        node.homes[0].commit()
        node.restart_router()
        again = publisher.reopen()
        assert again.last == 5
        node.commit()
        again.publish("b", "a", "b", first=4)
        assert again.acked() == (6, [])
        assert node.sequences("near") == [1, 3, 5]
        assert node.sequences("far") == [2, 4, 6]

    def test_a_home_that_ends_between_store_and_commit(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        publisher = spooling.publisher()
        spooling.hold()
        publisher.publish("a", "a")
        publisher.publish("a")
        spooling.restart_worker(0)
        assert spooling.sequences("q") == [1, 2, 3]
        assert publisher.acked() == (3, [])

    def test_a_home_that_ends_between_commit_and_saying_so(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        publisher = spooling.publisher()
        spooling.hold()
        publisher.publish("a", "a")
        spooling.homes[0].commit_silently()
        publisher.publish("a")
        spooling.restart_worker(0)
        assert spooling.sequences("q") == [1, 2, 3]
        assert publisher.acked() == (3, [])
        assert [store[1] for store in spooling.homes[0].stores] == [2], "only what it had not"

    def test_admission_goes_on_while_a_home_is_down(self, make_publish_node: Any) -> None:
        node = make_publish_node(2)
        node.queue("far", "#P2P", home=1)
        topic = next(t for t in ("x", "y", "z", "u", "v") if _worker(node, t) == 0)
        node.change("far", subscriptions=[topic])
        publisher = node.publisher()
        node.kill_worker(1)
        publisher.publish(topic, topic)
        assert publisher.told() == []
        node.start_worker(1)
        assert publisher.acked() == (2, [])
        assert node.sequences("far") == [1, 2]

    @pytest.mark.requirement("R177")
    def test_a_refusal_is_repeated_with_the_same_code(self, spooling: PublishNode) -> None:
        """5 refused and the nack lost, 6..10 stored, 5..10 sent again although there is room now."""
        spooling.queue("q", "a", max_spool_usage_mb=1)
        publisher = spooling.publisher()
        publisher.publish(*["a"] * 4)
        publisher.publish(("a", bytes(1_000_000)))
        publisher.publish(*["a"] * 5)
        spooling.consume("q", 9)
        spooling.change("q", max_spool_usage_mb=10)
        spooling.restart_router()
        again = publisher.reopen()
        assert again.last == 10
        again.publish(("a", bytes(1_000_000)), *["a"] * 5, first=5)
        assert again.acked() == (10, [[5, errors.SPOOL_OVER_QUOTA]])
        assert spooling.stored("q") == []
        again.publish("a")
        assert again.acked() == (11, [])

    def test_a_refusal_after_which_nothing_was_stored_is_known_too(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a", ingress_enabled=False)
        publisher = spooling.publisher()
        publisher.publish("a")
        spooling.change("q", ingress_enabled=True)
        again = publisher.reopen()
        assert again.last == 1
        again.publish("a", first=1)
        assert again.acked() == (1, [[1, errors.ENDPOINT_SHUTDOWN]])

    def test_a_refusal_is_recorded_at_every_endpoint_that_matched_before_it_is_told(
        self, make_publish_node: Any
    ) -> None:
        node = make_publish_node(2)
        node.queue("down", "a", home=0, ingress_enabled=False)
        node.queue("up", "a", "b", home=1)
        publisher = node.publisher()
        node.hold()
        publisher.publish("a")
        node.homes[0].commit()
        assert publisher.told() == []
        node.homes[1].commit()
        assert publisher.acked() == (1, [[1, errors.ENDPOINT_SHUTDOWN]])
        node.commit()
        publisher.publish("b")
        node.drop("down")
        again = publisher.reopen()
        again.publish("a", "b", first=1)
        assert again.acked() == (2, [[1, errors.ENDPOINT_SHUTDOWN]])
        assert node.sequences("up") == [2]

    def test_a_refusal_is_known_to_endpoints_that_get_later_messages_only(
        self, spooling: PublishNode
    ) -> None:
        """Else, with other subscriptions, `at or below the last` would read as `stored`."""
        spooling.queue("down", "a", ingress_enabled=False)
        spooling.queue("up", "b")
        publisher = spooling.publisher()
        publisher.publish("a")
        publisher.publish("b")
        publisher.publish("b")
        refused = [store[5] for store in spooling.homes[0].stores]
        down, up = spooling.lane("down"), spooling.lane("up")
        nack = [[1, errors.ENDPOINT_SHUTDOWN]]
        assert refused == [[[down, nack]], [[up, nack]], []], "once for each"
        spooling.drop("down")
        spooling.change("up", subscriptions=["a", "b"])
        spooling.restart_router()
        again = publisher.reopen()
        again.publish("a", "b", "b", first=1)
        assert again.acked() == (3, nack)
        assert spooling.sequences("up") == [2, 3]

    def test_a_refusal_is_known_to_a_queue_that_was_made_later(self, spooling: PublishNode) -> None:
        """The nack was lost; no endpoint had matched, so only others with later messages know of it."""
        spooling.queue("orders", "a")
        publisher = spooling.publisher()
        publisher.publish("#P2P/QUE/late", "a", "a")
        spooling.queue("late", "b")
        spooling.change("orders", subscriptions=["a", "b"])
        spooling.restart_router()
        again = publisher.reopen()
        again.publish("#P2P/QUE/late", "a", "a", first=1)
        assert again.acked() == (3, [[1, errors.UNKNOWN_ENDPOINT]])
        assert spooling.stored("late") == []
        assert spooling.sequences("orders") == [2, 3]

    def test_a_refusal_is_kept_if_others_match_now(self, spooling: PublishNode) -> None:
        spooling.queue("down", "a", ingress_enabled=False)
        spooling.queue("up", "b")
        publisher = spooling.publisher()
        publisher.publish("a")
        spooling.change("down", subscriptions=[])
        spooling.change("up", subscriptions=["a", "b"])
        again = publisher.reopen()
        again.publish("a", "b", first=1)
        assert again.acked() == (2, [[1, errors.ENDPOINT_SHUTDOWN]])
        assert spooling.sequences("up") == [2]

    def test_old_refusals_are_not_told_for_ever(self, spooling: PublishNode) -> None:
        spooling.queue("down", "a", ingress_enabled=False)
        spooling.queue("up", "b")
        spooling.queue("late", "c")
        publisher = spooling.publisher(window=5)
        publisher.publish("a")
        for _ in range(4):
            publisher.publish("b", "b", "b")
        publisher.publish("c")
        assert spooling.homes[0].stores[-1][5] == []

    def test_a_denied_message_is_judged_like_what_was_stored_after_it(self, spooling: PublishNode) -> None:
        spooling.change_profile(reject_no_subscription_match=True)
        spooling.queue("q", "b")
        publisher = spooling.publisher()
        publisher.publish("a", "b")
        assert publisher.acked() == (2, [[1, errors.NO_SUBSCRIPTION_MATCH]])
        spooling.change("q", subscriptions=["a", "b"])
        again = publisher.reopen()
        again.publish("a", "b", first=1)
        assert again.acked() == (2, [[1, errors.NO_SUBSCRIPTION_MATCH]])
        assert spooling.sequences("q") == [2]

    def test_records_are_judged_before_any_quota(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a", max_spool_usage_mb=1)
        publisher = spooling.publisher()
        publisher.publish(*rows(100))
        spooling.change("q", ingress_enabled=False, max_message_bytes=1)
        again = publisher.reopen()
        again.publish(*rows(101), first=1)
        assert again.acked() == (101, [[101, errors.SPOOL_OVER_QUOTA]])

    def test_a_recreated_queue_has_nothing_of_the_old_one(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        publisher = spooling.publisher()
        publisher.publish("a", "a")
        spooling.drop("q")
        spooling.queue("q", "a")
        again = publisher.reopen()
        assert again.last == 2, "this router judged them"
        again.publish("a", "a", first=1)
        assert again.acked() == (2, [])
        assert spooling.sequences("q") == [1, 2]

    def test_direct_subscribers_get_no_second_copy_in_the_life_of_a_router(
        self, spooling: PublishNode
    ) -> None:
        spooling.queue("q", "a")
        subscriber, member = spooling.client(), spooling.client()
        subscriber.subscribe("a", "b")
        member.subscribe("#share/g/b")
        publisher = spooling.publisher()
        publisher.publish(("a", b"1"), ("b", b"2"), ("b", b"3"))
        assert subscriber.payloads() == [b"1", b"2", b"3"]
        assert member.payloads() == [b"2", b"3"]
        again = publisher.reopen()
        assert again.last == 3
        again.publish(("b", b"3"), ("a", b"4"), ("b", b"5"), first=3)
        assert again.acked() == (5, [])
        assert subscriber.payloads() == [b"4", b"5"]
        assert member.payloads() == [b"5"]
        spooling.restart_router()
        subscriber = spooling.client()
        subscriber.subscribe("a")
        third = publisher.reopen()
        third.publish(("a", b"4"), first=4)
        assert subscriber.payloads() == [b"4"], "a new router does not know"

    def test_a_sequence_of_ones_own_may_leave_gaps(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        publisher = spooling.publisher()
        publisher.publish("a", first=1000)
        again = publisher.reopen()
        assert again.last == 1000
        again.publish("a", "a", first=1000)
        assert spooling.sequences("q") == [1000, 1001]


class TestMemory:
    @pytest.mark.parametrize("is_forgotten", [False, True])
    def test_a_producer_that_was_closed_keeps_nothing_of_its_session(
        self, spooling: PublishNode, is_forgotten: bool
    ) -> None:
        spooling.queue("q", "a")
        publisher = spooling.publisher()
        publisher.publish("a")
        numbers = {session.number for session in spooling.router.sessions}
        with uncollected():
            publisher.request("producer.close", producer=publisher.handle, forget=is_forgotten)
            publisher.client.send(wire.BYE, [])
            for _ in range(25):
                spooling.advance(0.5)
            assert not [one for one in gc.get_objects() if isinstance(one, Session) and one.number in numbers]


class TestFencing:
    def test_the_older_session_is_told_and_what_was_not_judged_is_dropped(
        self, spooling: PublishNode
    ) -> None:
        spooling.queue("q", "a", "new")
        old = spooling.publisher()
        old.publish("a")
        assert old.acked() == (1, [])
        spooling.hold()
        old.publish("a")
        spooling.pause(0)
        old.publish("new")  # a topic that the router does not know: it goes to the worker
        client = spooling.client()
        number = ask(client, "producer.open", name="p")
        assert old.told() == [[old.handle, 1, [], errors.PRODUCER_FENCED, []]]
        assert answer_to(client, number) is None, "not before everything before it is on disk"
        spooling.unpause(0)
        spooling.commit()
        found = answer_to(client, number)
        assert found is not None
        assert found[1]["last_sequence"] == 2
        assert spooling.sequences("q") == [1, 2]
        old.publish("a", first=9)
        assert old.told() == []
        assert old.client.closed_with() is None
        assert spooling.sequences("q") == [1, 2]
        assert spooling.router.stats()["discards"] == {"producer-fenced": 2}
        old.request("producer.close", producer=old.handle)

    def test_who_comes_back_late_does_not_throw_out_who_took_over(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        first = spooling.publisher(client_name="one")
        second = Publisher(spooling, spooling.client(client_name="two"), "p")
        assert first.told()[0][3] == errors.PRODUCER_FENCED
        late = spooling.client(client_name="three")
        assert request(late, "producer.open", name="p", resume=True)[0] == errors.PRODUCER_FENCED
        second.publish("a")
        assert second.acked() == (1, [])
        again = Publisher(spooling, second.client, "p", resume=True)
        assert again.last == 1
        assert Publisher(spooling, late, "p", resume=False).last == 1
        again.client.send(wire.BYE, [])
        assert request(spooling.client(), "producer.open", name="p", resume=True)[0] == errors.PRODUCER_FENCED
        late.send(wire.BYE, [])
        assert request(spooling.client(), "producer.open", name="p", resume=True)[0] == 0

    def test_two_who_open_at_once(self, spooling: PublishNode) -> None:
        spooling.hold()
        spooling.queue("q", "a")
        first = spooling.publisher("busy")
        first.publish("a")
        one, two = spooling.client(), spooling.client()
        earlier = ask(one, "producer.open", name="busy")
        later = ask(two, "producer.open", name="busy")
        spooling.commit()
        assert answer_to(one, earlier) == (errors.PRODUCER_FENCED, "busy")
        answer = answer_to(two, later)
        assert answer is not None
        assert (answer[0], answer[1]["last_sequence"]) == (0, 1)
        assert len(spooling.router.publishing.producers) == 1

    def test_a_session_may_fence_itself(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        old = spooling.publisher()
        new = Publisher(spooling, old.client, "p")
        assert old.told() == [[old.handle, 0, [], errors.PRODUCER_FENCED, []]]
        assert new.handle != old.handle
        new.publish("a")
        assert new.acked() == (1, [])

    def test_names_belong_to_a_username_in_a_message_vpn(self, make_publish_node: Any) -> None:
        node = make_publish_node(1, _two_usernames())
        one, two = node.publisher("p"), node.publisher("p", username="other")
        one.publish("a")
        two.publish("a")
        assert one.acked() == two.acked() == (1, [])

    def test_a_session_that_ends_while_its_producer_is_opened(self, spooling: PublishNode) -> None:
        spooling.held_asks = []
        client = spooling.client()
        ask(client, "producer.open", name="p")
        client.send(wire.BYE, [])
        spooling.answer_ask(spooling.held_asks[0])
        spooling.held_asks = None
        assert len(spooling.router.publishing.producers) == 0
        spooling.hold()
        spooling.silent.add(0)
        spooling.restart_worker(0)
        client = spooling.client()
        ask(client, "producer.open", name="p")
        assert len(spooling.router.publishing.gathering) == 1
        client.send(wire.BYE, [])
        assert len(spooling.router.publishing.producers) == len(spooling.router.publishing.gathering) == 0
        spooling.homes[0].report()
        spooling.settle()

    def test_a_session_that_ends_with_messages_on_their_way_loses_none(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        publisher = spooling.publisher()
        spooling.hold()
        publisher.publish("a", "a")
        spooling.router.sessions.close(
            next(iter(spooling.router.sessions)), errors.error_for(errors.INTERNAL), spooling.now
        )
        assert len(spooling.router.publishing.producers) == 1
        spooling.commit()
        assert len(spooling.router.publishing.producers) == 0
        assert spooling.sequences("q") == [1, 2]
        assert publisher.reopen().last == 2


class TestForgetting:
    def test_the_registry_and_the_homes_forget(self, make_publish_node: Any) -> None:
        node = make_publish_node(2)
        node.queue("near", "a", home=0)
        node.queue("far", "a", home=1)
        publisher = node.publisher()
        publisher.publish("a")
        publisher.request("producer.close", producer=publisher.handle, forget=True)
        assert node.registry == {}
        assert all(disk.records == {} for disk in node.disks.values())
        assert request(node.client(), "producer.open", name="p", resume=True)[0] == errors.UNKNOWN_FLOW_NAME
        assert node.publisher().last == 0

    @pytest.mark.parametrize("is_forgotten", [True, False])
    def test_who_opens_a_name_that_is_being_forgotten_gets_its_next_number(
        self, spooling: PublishNode, is_forgotten: bool
    ) -> None:
        """Else it would publish under a number that is nobody's, and whoever comes next would not fence it."""
        spooling.queue("q", "a")
        publisher = spooling.publisher()
        publisher.publish("a")
        spooling.held_asks = held = list[Any]()
        other = spooling.client()
        opening = ask(other, "producer.open", name="p")
        ask(publisher.client, "producer.close", producer=publisher.handle, forget=True)
        assert [effect.operation for effect in held] == ["producer.open", "producer.forget"]
        spooling.answer_ask(held[0])
        assert answer_to(other, opening) is None
        if is_forgotten:
            spooling.answer_ask(held[1])
        else:
            spooling.router.controller_answered(held[1].ticket, False, [50321, ""], spooling.now)
        spooling.settle()
        spooling.answer_ask(held[2])
        spooling.settle()
        answer = answer_to(other, opening)
        assert answer is not None
        assert answer[1]["last_sequence"] == (0 if is_forgotten else 1)
        (known,) = spooling.registry.values()
        assert list(spooling.router.publishing.producers.by_id) == [known]

    def test_without_it_the_name_goes_on(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        publisher = spooling.publisher()
        publisher.publish("a", "a")
        publisher.request("producer.close", producer=publisher.handle)
        assert publisher.reopen().last == 2

    def test_names_that_the_registry_let_go(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        publisher = spooling.publisher()
        publisher.publish("a")
        publisher.request("producer.close", producer=publisher.handle)
        spooling.router.publishing.producers.forget([1, 77])
        spooling.settle()
        assert spooling.disks[0].records == {}

    def test_a_home_that_is_down_is_asked_when_it_is_back(self, make_publish_node: Any) -> None:
        node = make_publish_node(2)
        node.queue("far", "a", home=1)
        publisher = node.publisher()
        publisher.publish("a")
        node.kill_worker(1)
        client = node.client()
        number = ask(client, "producer.open", name="p")
        assert answer_to(client, number) is None
        node.start_worker(1)
        found = answer_to(client, number)
        assert found is not None
        assert found[1]["last_sequence"] == 1

    def test_a_home_that_is_back_is_asked_in_steps(
        self, make_publish_node: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(gathering, "STEP_MAX", 2)
        node = make_publish_node(2)
        node.kill_worker(1)
        client = node.client()
        numbers = [ask(client, "producer.open", name=f"p{number}") for number in range(5)]
        node.start_worker(1)
        assert [answer_to(client, number) is not None for number in numbers] == [
            True,
            True,
            False,
            False,
            False,
        ]
        node.router.tick(node.now)
        node.settle()
        node.kill_worker(1)
        node.start_worker(1)
        assert answer_to(client, numbers[4]) is not None, "in line once"


def _worker(node: PublishNode, topic: str) -> int:
    from angarium.topic import slot_of

    return int(node.router.shards.table[slot_of(topic)])


def _two_usernames() -> list[list[Any]]:
    from tests.unit.router.wired_node import snapshot

    return snapshot(("username", "default", "other", {}))
