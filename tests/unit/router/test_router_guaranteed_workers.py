"""Guaranteed rounds and the workers they need: deaths, deadly frames, silent homes, scaling, the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire

if TYPE_CHECKING:
    from tests.unit.router.publish_rig import PublishNode
from angarium.topic import slot_of
from router.matching.shards import ShardState


def topics(node: PublishNode) -> list[str]:
    """Give one topic for each worker."""
    table = node.router.shards.table
    return [
        next(f"t/{n}" for n in range(999) if table[slot_of(f"t/{n}")] == worker)
        for worker in range(len(node.router.shards.shards))
    ]


def matches(node: PublishNode, index: int) -> list[list[Any]]:
    """Give the headers of the MATCH frames that wait at a paused worker."""
    return [wire.unpack(frames[1]) for frames in node.paused[index] if frames[0] == wire.MATCH]


class TestDeath:
    def test_guaranteed_rows_wait_for_the_successor_and_direct_ones_are_lost(
        self, make_publish_node: Any
    ) -> None:
        node = make_publish_node(2)
        node.queue("q", "t/>")
        subscriber = node.client()
        subscriber.subscribe("t/>")
        publisher, direct = node.publisher(), node.client()
        here, there = topics(node)
        node.pause(1)
        publisher.publish((here, b"1"), (there, b"2"))
        direct.publish((there, b"lost"))
        publisher.publish((here, b"3"))
        node.kill_worker(1)
        assert direct.notices()[0][0] == errors.SHARD_UNAVAILABLE
        assert subscriber.payloads() == []
        node.start_worker(1)
        assert node.payloads("q") == [b"1", b"2", b"3"]
        assert publisher.acked() == (3, [])
        assert subscriber.payloads() == [b"1", b"2", b"3"]
        assert node.router.stats()["discards"]["shard-unavailable"] == 1

    def test_new_rounds_wait_longer_than_direct_ones(self, make_publish_node: Any) -> None:
        node = make_publish_node(2)
        node.queue("q", "t/>")
        publisher, direct = node.publisher(), node.client()
        here, there = topics(node)
        node.kill_worker(1)
        direct.publish((there, b"d1"))
        publisher.publish((there, b"1"))
        publisher.publish((here, b"2"))
        node.advance(1.0)
        assert direct.notices()[0][0] == errors.SHARD_UNAVAILABLE
        direct.publish((there, b"d2"))
        assert direct.notices()[0][0] == errors.SHARD_UNAVAILABLE, "lost at once by now"
        publisher.publish((there, b"3"))
        assert node.stored("q") == []
        node.start_worker(1)
        assert node.payloads("q") == [b"1", b"2", b"3"]
        assert publisher.acked() == (3, [])

    def test_direct_rounds_of_the_same_session_keep_their_place_and_others_do_not_wait(
        self, make_publish_node: Any
    ) -> None:
        node = make_publish_node(2)
        node.queue("q", "t/>")
        subscriber = node.client()
        here, there = topics(node)
        subscriber.subscribe(here)
        publisher, other = node.publisher(), node.client()
        node.kill_worker(1)
        publisher.publish(there)
        publisher.client.publish((here, b"behind"))
        other.publish((here, b"free"))
        assert subscriber.payloads() == [b"free"]
        node.start_worker(1)
        assert subscriber.payloads() == [b"behind"]

    def test_a_given_up_worker_loses_direct_rounds_of_sessions_in_its_line_at_once(
        self, make_publish_node: Any
    ) -> None:
        node = make_publish_node(2)
        node.queue("q", "t/>")
        _, there = topics(node)
        waiting = [node.publisher(f"p{n}") for n in range(3)]
        node.kill_worker(1)
        for publisher in waiting:
            publisher.client.publish((there, b"d"))
            publisher.client.publish((there, b"d"))
            publisher.publish(there)
            publisher.client.publish((there, b"d"))
        node.advance(1.0)
        for publisher in waiting:
            assert sum(notice[2] for notice in publisher.client.notices()) == 2
        node.start_worker(1)
        assert len(node.stored("q")) == 6, "with the promoted copies behind them"
        assert all(publisher.acked() == (1, []) for publisher in waiting)


class TestReplay:
    """Frames that were out at a death are replayed one at a time."""

    def die(self, node: PublishNode, index: int = 0) -> None:
        """The worker dies with what it has, and its successor reads nothing yet."""
        node.kill_worker(index)
        node.pause(index)
        node.start_worker(index)
        for frames in list(node.paused[index]):
            if frames[0] != wire.MATCH:
                node.paused[index].remove(frames)
                node._to_worker(index, frames)
        node.settle()

    def test_one_at_a_time_in_order_and_before_anything_else(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        publisher, other = spooling.publisher(), spooling.publisher("other")
        spooling.pause(0)
        for _ in range(3):
            publisher.publish("a")
        self.die(spooling)
        other.publish("a")
        (only,) = matches(spooling, 0)
        assert only[6] == wire.MATCH_GUARANTEED
        spooling.unpause(0)
        assert publisher.acked() == (3, [])
        assert other.acked() == (1, [])
        assert [row.producer for row in spooling.stored("q")] == [1, 1, 1, 2]

    def test_what_is_alone_at_three_deaths_costs_its_session(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        deadly, innocent = spooling.publisher("deadly"), spooling.publisher("innocent")
        spooling.pause(0)
        deadly.publish("a")
        deadly.publish("a")
        innocent.publish("a")
        self.die(spooling)
        for _ in range(3):
            assert len(matches(spooling, 0)) == 1
            assert deadly.client.closed_with() is None
            self.die(spooling)
        assert deadly.client.closed_with() == errors.PUT_ASIDE
        spooling.unpause(0)
        assert innocent.acked() == (1, [])
        assert [row.producer for row in spooling.stored("q")] == [2], "nothing of it was taken"

    def test_a_first_death_alone_counts(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        publisher = spooling.publisher()
        spooling.pause(0)
        publisher.publish("a")
        for _ in range(2):
            self.die(spooling)
            assert publisher.client.closed_with() is None
        self.die(spooling)
        assert publisher.client.closed_with() == errors.PUT_ASIDE

    @pytest.mark.requirement("R278")
    def test_what_is_put_aside_is_handed_to_no_worker_again(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        deadly, innocent = spooling.publisher("deadly"), spooling.publisher("innocent")
        spooling.pause(0)
        deadly.publish("a")
        innocent.publish("a")
        spooling.kill_worker(0)
        deadly.publish("a")
        number = spooling.router.sessions.by_routing_id[deadly.client.routing_id].number
        owner = self.blame(spooling, "session_owner", number)
        assert (owner["vpn"], owner["username"]) == ("default", "default")
        assert deadly.client.closed_with() is None
        assert self.blame(spooling, "put_aside", number, router=1) is None, "another router numbered it"
        assert self.blame(spooling, "put_aside", number) is not None
        assert deadly.client.closed_with() == errors.PUT_ASIDE
        spooling.start_worker(0)
        assert innocent.acked() == (1, [])
        assert [row.producer for row in spooling.stored("q")] == [2]
        assert self.blame(spooling, "session_owner", number) is None

    def blame(self, node: PublishNode, operation: str, session: int, router: int | None = None) -> Any:
        incarnation = node.router.shards.incarnation
        asked = {"session": session, "router": incarnation if router is None else router}
        put_aside = node.router.rounds.put_aside if operation == "put_aside" else None
        found = node.router.operators.blamed(asked, incarnation, node.now, put_aside)
        node.settle()
        return found

    @pytest.mark.requirement("R190")
    @pytest.mark.parametrize("others", [0, 2])
    def test_a_worker_whose_spool_failed_is_no_death_of_its_frame(
        self, spooling: PublishNode, others: int
    ) -> None:
        spooling.queue("q", "a")
        publisher = spooling.publisher()
        spooling.pause(0)
        for _ in range(1 + others):
            publisher.publish("a")
        for _ in range(4):
            incarnation = spooling.workers[0].incarnation
            spooling._to_router(0, [wire.SPOOL_FAILED, wire.pack([incarnation])])
            assert spooling.router.shards.shards[0].state is ShardState.DOWN
            self.die(spooling)
            assert len(matches(spooling, 0)) == 1
        for _ in range(2):  # these count
            self.die(spooling)
        assert publisher.client.closed_with() is None
        spooling.unpause(0)
        assert publisher.acked() == (1 + others, [])

    def test_an_answer_ends_the_row_of_deaths(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        publisher = spooling.publisher()
        for _ in range(3):
            spooling.pause(0)
            publisher.publish("a")
            self.die(spooling)
            self.die(spooling)
            spooling.unpause(0)
        assert publisher.acked() == (3, [])

    def test_rounds_of_a_fenced_producer_are_not_replayed(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        publisher = spooling.publisher()
        spooling.pause(0)
        publisher.publish("a")
        publisher.publish("a")
        spooling.kill_worker(0)
        client = spooling.client()
        client.send(wire.REQUEST, [1, "producer.open", {"name": "p"}])
        spooling.start_worker(0)
        assert spooling.stored("q") == []
        assert publisher.client.closed_with() is None
        assert not spooling.router.shards.shards[0].replays


class TestReports:
    """Nothing guaranteed is admitted before all homes have reported; rounds wait, they are not refused."""

    def test_rounds_wait_for_the_last_home(self, make_publish_node: Any) -> None:
        node = make_publish_node(2)
        node.queue("q", "a", home=0)
        node.silent.add(1)
        node.restart_router()
        publisher_client = node.client()
        publisher_client.send(wire.REQUEST, [1, "producer.open", {"name": "p"}])
        assert [frames[0] for frames in publisher_client.received] == [], "its records are not known"
        node.homes[1].report()
        node.settle()
        assert [frames[0] for frames in publisher_client.received] == [wire.ANSWER]

    def test_a_worker_more_is_waited_for_too(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        subscriber = spooling.client()
        subscriber.subscribe("a")
        publisher = spooling.publisher()
        spooling.silent.add(1)
        spooling.router.scaling.begin(2, spooling.now)
        spooling.settle()
        spooling.start_worker(1)
        publisher.publish(("a", b"1"))
        publisher.client.publish(("a", b"2"))
        assert publisher.told() == []
        assert subscriber.payloads() == [], "the session keeps its order"
        spooling.homes[1].report()
        spooling.settle()
        assert publisher.acked() == (1, [])
        assert subscriber.payloads() == [b"1", b"2"]

    def test_a_lane_that_was_emptied_meanwhile_gets_nothing_of_before(self, spooling: PublishNode) -> None:
        """A changed topic of a topic endpoint is a new generation (R149)."""
        spooling.put("topic-endpoint", "te", topic="a")
        spooling.queue("q", "a")
        publisher = spooling.publisher()
        spooling.hold()
        publisher.publish("a", "a")
        spooling.kill_worker(0)
        spooling.put("topic-endpoint", "te", topic="b", generation=2)
        spooling.start_worker(0)
        assert spooling.sequences("q") == [1, 2]
        assert spooling.stored("te", kind="topic-endpoint") == []
        assert publisher.acked() == (2, [])
        assert spooling.router.publishing.usage.node.bytes == spooling.endpoint("q").bytes


class TestScaling:
    def test_a_home_leaves_when_it_has_stored_all(self, make_publish_node: Any) -> None:
        node = make_publish_node(2)
        node.queue("far", "a", home=1)
        publisher = node.publisher()
        node.homes[1].commits = False
        publisher.publish("a")
        node.router.scaling.begin(1, node.now)
        node.settle()
        assert len(node.router.shards.shards) == 2
        node.homes[1].commit()
        assert publisher.acked() == (1, [])
        assert len(node.router.shards.shards) == 1

    def test_rounds_that_wait_meanwhile_are_cut_anew(self, make_publish_node: Any) -> None:
        node = make_publish_node(1)
        node.queue("q", "t/>")
        publisher = node.publisher()
        node.pause(0)
        publisher.publish("t/0", "t/1")
        node.router.scaling.begin(3, node.now)
        publisher.publish(*[f"t/{n}" for n in range(20)])
        node.unpause(0)
        node.start_worker(1)
        node.start_worker(2)
        assert publisher.acked() == (22, [])
        assert node.sequences("q") == list(range(1, 23))

    def test_questions_to_a_home_that_left_are_answered_without_it(self, make_publish_node: Any) -> None:
        node = make_publish_node(2)
        node.kill_worker(1)
        client = node.client()
        client.send(wire.REQUEST, [1, "producer.open", {"name": "p"}])
        assert not client.received
        node.router.scaling.begin(1, node.now)
        node.settle()
        assert [frames[0] for frames in client.received if frames[0] != wire.TABLE] == [wire.ANSWER]

    @pytest.mark.requirement("R163")
    def test_who_took_over_from_a_home_that_left_is_asked_again(self, make_publish_node: Any) -> None:
        """It may have answered before it knew of the lanes whose records the other one took along."""
        node = make_publish_node(2)
        node.kill_worker(1)
        client = node.client()
        client.send(wire.REQUEST, [1, "producer.open", {"name": "p"}])
        assert len(node.homes[0].gathers) == 1
        node.router.scaling.begin(1, node.now)
        node.settle()
        assert len(node.homes[0].gathers) == 2

    def test_frames_that_wait_to_be_replayed_go_to_the_new_owners(self, make_publish_node: Any) -> None:
        node = make_publish_node(2)
        node.queue("q", "t/>")
        publisher = node.publisher()
        node.pause(0)
        node.pause(1)
        publisher.publish(*[f"t/{n}" for n in range(30)])
        publisher.publish("t/0")
        node.unpause(0)
        node.kill_worker(1)
        node.router.scaling.begin(3, node.now)
        node.settle()
        assert len(node.router.shards.shards) == 3
        node.start_worker(1)
        node.start_worker(2)
        assert publisher.acked() == (31, [])
        assert node.sequences("q") == list(range(1, 32))

    def test_a_worker_that_dies_on_its_way_out_holds_nobody_up(self, make_publish_node: Any) -> None:
        node = make_publish_node(2)
        node.queue("q", "t/>", home=1)
        publisher = node.publisher()
        node.homes[1].commits = False
        here, there = topics(node)
        publisher.publish(here)
        node.pause(1)
        publisher.publish(there, here)
        node.put("queue", "q", homes=[0])
        node.kill_worker(1)
        node.router.scaling.begin(1, node.now)
        node.settle()
        assert len(node.router.shards.shards) == 1
        assert publisher.client.closed_with() == errors.SHARD_UNAVAILABLE, "its home had not stored the first"
        assert node.sequences("q") == [], "and nothing after it was taken"
        node.hand_over()
        again = publisher.reopen()
        again.publish(here, there, here, first=1)
        assert again.acked() == (3, [])
        assert node.sequences("q") == [1, 2, 3]

    def test_what_a_dead_worker_had_stored_and_not_said_is_not_stored_again(
        self, make_publish_node: Any
    ) -> None:
        node = make_publish_node(2)
        node.queue("q", "t/>", home=1)
        publisher = node.publisher()
        here, _ = topics(node)
        node.homes[1].commits = False
        publisher.publish(here, here)
        node.homes[1].commit_silently()
        node.put("queue", "q", homes=[0])
        node.kill_worker(1)
        node.router.scaling.begin(1, node.now)
        node.settle()
        node.hand_over()
        again = publisher.reopen()
        assert again.last == 2
        again.publish(here, here, here, first=1)
        assert again.acked() == (3, [])
        assert node.sequences("q") == [1, 2, 3]

    def test_a_move_to_a_worker_that_dies_on_its_way_out_is_judged_anew(self, make_publish_node: Any) -> None:
        node = make_publish_node(3)
        node.queue("source", home=0)
        node.queue("target", home=2)
        node.homes[2].commits = False
        home = node.homes[0]
        row = wire.pack([[0, "t", wire.MODE_PERSISTENT, None, None, b"1"]])
        target = ["queue", "default", "target"]
        home.send(wire.MOVE, [home.incarnation, node.lane("source"), 1, target, 1, None, {}, {}, 1], row)
        node.put("queue", "target", homes=[1])
        node.kill_worker(2)
        node.router.scaling.begin(2, node.now)
        node.settle()
        node.hand_over()
        assert [body[2:] for body in node.homes[0].moved] == [[1, 1, []]]
        assert node.payloads("target") == [b"1"]


class TestTheEnd:
    def test_what_was_accepted_is_acknowledged_before_the_session_is_closed(
        self, spooling: PublishNode
    ) -> None:
        spooling.queue("q", "a")
        publisher = spooling.publisher()
        spooling.hold()
        publisher.publish("a")
        assert not spooling.router.drain(spooling.now)
        publisher.publish("a")
        assert not spooling.router.drain(spooling.now)
        spooling.commit()
        assert spooling.router.drain(spooling.now)
        spooling.settle()
        operations = [frames[0] for frames in publisher.client.received if frames[0] != wire.RETIRED]
        assert operations == [wire.ACKED, wire.CLOSED]
        assert publisher.acked() == (1, []), "what came after the word was not accepted"
        assert publisher.client.closed_with() == errors.SHUTTING_DOWN
        assert spooling.sequences("q") == [1]
