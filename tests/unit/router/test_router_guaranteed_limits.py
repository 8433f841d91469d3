"""Admission: the checks of R171 to R176, what it counts, who is told, and no limit is exceeded by one message."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors, wire
from router.ground.config import SpoolLimits
from tests.unit.router.limited_publishing import BODY, HIGH, LOW, codes, rows
from tests.unit.router.publish_rig import MB, PublishNode


class TestEachLimitByOne:
    """100 messages fit exactly; the next one does not, and after one was consumed exactly one does."""

    def exceed(self, node: PublishNode, name: str, counter: str) -> None:
        publisher = node.publisher()
        publisher.publish(*rows(60))
        publisher.publish(*rows(40))
        assert publisher.acked() == (100, [])
        publisher.publish(*rows(1))
        assert codes(publisher) == [errors.SPOOL_OVER_QUOTA]
        publisher.publish("a", "a")
        assert codes(publisher) == [errors.SPOOL_OVER_QUOTA] * 2, "not even a small one"
        assert len(node.stored("q")) == 100
        node.consume("q", 1)
        publisher.publish(*rows(3))
        assert publisher.acked()[1] == [[105, errors.SPOOL_OVER_QUOTA], [106, errors.SPOOL_OVER_QUOTA]]
        assert node.sequences("q") == [*range(2, 101), 104]
        assert node.router.stats()["discards"] == {name: 5}
        assert publisher.client.node.router.stats()["errors"][str(errors.SPOOL_OVER_QUOTA)] == 5
        assert node.endpoint("q").counters == {counter: 5}
        (described,) = node.router.operators.clients("default", node.now)
        assert described["discards"] == {f"discard.{name}": 5}

    @pytest.mark.requirement("R171", "R178")
    def test_the_quota_of_the_node(self, make_publish_node: Any) -> None:
        node = make_publish_node(spool=SpoolLimits(max_usage_mb=1))
        node.queue("q", "a")
        self.exceed(node, "spool-usage-exceeded", "node_spool_usage_exceeded")

    @pytest.mark.requirement("R172", "R178")
    def test_the_quota_of_the_message_vpn(self, spooling: PublishNode) -> None:
        spooling.change_vpn(max_spool_usage_mb=1)
        spooling.queue("q", "a")
        self.exceed(spooling, "vpn-spool-usage-exceeded", "vpn_spool_usage_exceeded")

    @pytest.mark.requirement("R173", "R178")
    def test_the_quota_of_the_endpoint(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a", max_spool_usage_mb=1)
        self.exceed(spooling, "endpoint-usage-exceeded", "spool_usage_exceeded")

    @pytest.mark.requirement("R174", "R178")
    def test_the_largest_message_of_the_endpoint(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a", max_message_bytes=100)
        publisher = spooling.publisher()
        publisher.publish(("a", bytes(100)), ("a", bytes(101)), ("a", bytes(99)))
        assert publisher.acked() == (3, [[2, errors.MESSAGE_TOO_LARGE]])
        publisher.send([[0, "a", LOW, None, bytes(1), bytes(100)]], 4)
        publisher.send([[0, "a", LOW, None, bytes(50), bytes(50)]], 5)
        assert publisher.acked() == (5, [[4, errors.MESSAGE_TOO_LARGE]]), "properties count"
        assert spooling.sequences("q") == [1, 3, 5]
        assert spooling.router.stats()["discards"] == {"max-message-size-exceeded": 2}
        assert spooling.endpoint("q").counters == {"max_message_size_exceeded": 2}

    @pytest.mark.requirement("R175", "R178")
    def test_an_endpoint_that_is_shut_down(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a", ingress_enabled=False)
        publisher = spooling.publisher()
        publisher.publish("a")
        assert codes(publisher) == [errors.ENDPOINT_SHUTDOWN]
        spooling.change("q", ingress_enabled=True, subscriptions=["a"])
        publisher.publish("a")
        assert publisher.acked() == (2, [])
        assert spooling.sequences("q") == [2]
        assert spooling.router.stats()["discards"] == {"endpoint-disabled": 1}
        assert spooling.endpoint("q").counters == {"spool_shutdown_discard": 1}

    @pytest.mark.requirement("R176", "R178")
    def test_the_limit_for_low_priority(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a", reject_low_priority=True, reject_low_priority_limit=5)
        publisher = spooling.publisher()
        publisher.publish(*rows(3, flags=HIGH), *rows(1), *rows(3))
        assert publisher.acked()[1] == [
            [6, errors.LOW_PRIORITY_CONGESTION],
            [7, errors.LOW_PRIORITY_CONGESTION],
        ]
        publisher.publish(*rows(2, flags=HIGH), *rows(1, flags=LOW | 1 << wire.COS_SHIFT))
        assert publisher.acked()[1] == [[10, errors.LOW_PRIORITY_CONGESTION]], "high ones are always taken"
        assert len(spooling.stored("q")) == 7
        spooling.consume("q", 3)
        publisher.publish(*rows(2))
        assert codes(publisher) == [errors.LOW_PRIORITY_CONGESTION]
        assert spooling.router.stats()["discards"] == {"low-priority-msg-congestion": 4}
        assert spooling.endpoint("q").counters == {"low_priority_msg_congestion_discard": 4}

    @pytest.mark.requirement("R171", "R172", "R173")
    @pytest.mark.parametrize("whose", ["node", "vpn", "endpoint"])
    @pytest.mark.parametrize("room", [0, 12_345])
    def test_not_by_one_byte(self, make_publish_node: Any, whose: str, room: int) -> None:
        node = make_publish_node(spool=SpoolLimits(max_usage_mb=1 if whose == "node" else 9))
        node.change_vpn(max_spool_usage_mb=1 if whose == "vpn" else 9)
        node.queue("q", "a", max_spool_usage_mb=1 if whose == "endpoint" else 9)
        publisher = node.publisher()
        if room:
            publisher.publish(("a", bytes(MB - room - wire.SPOOL_OVERHEAD_BYTES)))
        fits = (room or MB) - wire.SPOOL_OVERHEAD_BYTES
        publisher.publish(("a", bytes(fits + 1)))
        assert codes(publisher) == [errors.SPOOL_OVER_QUOTA]
        publisher.publish(("a", bytes(fits)))
        assert codes(publisher) == []
        assert node.endpoint("q").bytes == MB

    @pytest.mark.parametrize("size", [500_000, 500_001])
    @pytest.mark.parametrize("whose", ["node", "vpn"])
    def test_each_copy_of_a_message_counts(self, make_publish_node: Any, size: int, whose: str) -> None:
        node = make_publish_node(spool=SpoolLimits(max_usage_mb=1 if whose == "node" else 9))
        node.change_vpn(max_spool_usage_mb=1 if whose == "vpn" else 9)
        node.queue("q", "a")
        node.queue("r", "a")
        publisher = node.publisher()
        publisher.publish(("a", bytes(size - wire.SPOOL_OVERHEAD_BYTES)), ("nowhere", b""))
        assert codes(publisher) == ([] if size == 500_000 else [errors.SPOOL_OVER_QUOTA])
        assert len(node.stored("q")) == len(node.stored("r")) == int(size == 500_000)
        publisher.publish(("a", b""))
        assert codes(publisher) == ([errors.SPOOL_OVER_QUOTA] if size == 500_000 else [])

    def test_a_limit_of_zero_takes_no_low_priority_at_all(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a", reject_low_priority=True, reject_low_priority_limit=0)
        publisher = spooling.publisher()
        publisher.publish(*rows(1), *rows(1, flags=HIGH))
        assert publisher.acked() == (2, [[1, errors.LOW_PRIORITY_CONGESTION]])

    @pytest.mark.requirement("R181", "R182", "R183", "R184")
    def test_the_number_of_spool_files(self, make_publish_node: Any) -> None:
        node = make_publish_node(spool=SpoolLimits(max_files=2))
        node.queue("q", "a")
        node.queue("tolerant", "b", reject_to_sender="never")
        publisher = node.publisher()
        for _ in range(8):  # two files of 8 MB
            publisher.publish(*rows(200))
        assert publisher.acked() == (1600, [])
        assert len(node.router.publishing.usage.files) == 2
        publisher.publish(*rows(2))
        assert codes(publisher) == [errors.SPOOL_FILES_EXCEEDED] * 2
        publisher.publish("b")
        assert codes(publisher) == [errors.SPOOL_FILES_EXCEEDED], "all publishers hear of it"
        assert node.router.stats()["discards"] == {"spool-file-limit-exceeded": 3}
        node.consume("q", 799)
        publisher.publish("a")
        assert codes(publisher) == [errors.SPOOL_FILES_EXCEEDED], "one message keeps a file"
        node.consume("q", 1)
        publisher.publish("a")
        assert codes(publisher) == []

    def test_what_fits_into_the_open_file_is_taken_at_the_limit(self, make_publish_node: Any) -> None:
        node = make_publish_node(spool=SpoolLimits(max_files=1))
        node.queue("q", "a")
        publisher = node.publisher()
        for _ in range(7):
            publisher.publish(*rows(100))
        publisher.publish(*rows(101))
        assert codes(publisher) == [], "a round is not cut for it"
        publisher.publish(*rows(1))
        assert codes(publisher) == [errors.SPOOL_FILES_EXCEEDED]
        assert len(node.stored("q")) == 801


class TestOnTheirWay:
    """What was admitted counts before the home has reported it."""

    def test_admitted_messages_count_until_they_are_reported(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a", max_spool_usage_mb=1)
        spooling.hold()
        publisher = spooling.publisher()
        publisher.publish(*rows(99))
        publisher.publish(*rows(2))
        spooling.commit()
        assert publisher.acked() == (101, [[101, errors.SPOOL_OVER_QUOTA]])

    def test_two_homes_and_two_publishers_share_the_quota_of_their_message_vpn(
        self, make_publish_node: Any
    ) -> None:
        node = make_publish_node(2)
        node.change_vpn(max_spool_usage_mb=1)
        node.queue("near", "a", home=0)
        node.queue("far", "a", home=1)
        one, two = node.publisher("one"), node.publisher("two")
        node.hold()
        one.publish(*rows(30))
        two.publish(*rows(30))
        node.homes[1].commit()
        node.commit()
        assert one.acked() == (30, [])
        assert two.acked()[1] == [[n, errors.SPOOL_OVER_QUOTA] for n in range(21, 31)], "each copy counts"
        assert len(node.stored("near")) == len(node.stored("far")) == 50

    def test_rows_for_several_sets_of_endpoints_in_one_round_count_together(
        self, spooling: PublishNode
    ) -> None:
        spooling.queue("q", "a", "b", "c", max_spool_usage_mb=1)
        spooling.queue("b", "b")
        publisher = spooling.publisher()
        publisher.publish(*[(topic, BODY) for _ in range(40) for topic in ("a", "b", "c")])
        assert len(spooling.stored("q")) == 100
        upto, nacks = publisher.acked()
        assert (upto, len(nacks)) == (120, 20)
        assert spooling.sequences("b") == [n for n in range(1, 101) if n % 3 == 2]

    @pytest.mark.parametrize("workers", [1, 2, 4])
    def test_a_limit_holds_with_several_workers_and_homes(self, make_publish_node: Any, workers: int) -> None:
        node = make_publish_node(workers, spool=SpoolLimits(max_usage_mb=2))
        for home in range(workers):
            node.queue(f"q{home}", f"t/*/{home}", "all/>", home=home, max_spool_usage_mb=1)
        publishers = [node.publisher(f"p{n}") for n in range(3)]
        for turn in range(20):
            for publisher in publishers:
                topics = [f"t/{n}/{n % workers}" for n in range(10)] + [f"all/{turn}"]
                publisher.publish(*[(topic, BODY) for topic in topics])
            if turn % 7 == 6:
                for home in range(workers):
                    node.consume(f"q{home}", 5)
        held = sum(row.size for home in range(workers) for row in node.stored(f"q{home}"))
        assert 2 * MB - 10_000 * workers <= held <= 2 * MB or workers == 1

    def test_what_a_home_had_not_stored_counts_again_when_it_comes_back(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a", max_spool_usage_mb=1)
        publisher = spooling.publisher()
        publisher.publish(*rows(50))
        spooling.hold()
        publisher.publish(*rows(40))
        home = spooling.restart_worker(0)
        home.commits = True
        publisher.publish(*rows(11))
        assert publisher.acked() == (101, [[101, errors.SPOOL_OVER_QUOTA]])
        assert spooling.sequences("q") == list(range(1, 101))

    @pytest.mark.requirement("R180")
    def test_a_deleted_endpoint_gives_its_share_back(self, spooling: PublishNode) -> None:
        spooling.change_vpn(max_spool_usage_mb=1)
        spooling.queue("q", "a")
        spooling.queue("r", "r")
        publisher = spooling.publisher()
        publisher.publish(*rows(100))
        spooling.hold()
        publisher.publish(*rows(1, "r"))
        spooling.drop("q")
        publisher.publish(*rows(100, "r"))
        spooling.commit()
        assert publisher.acked() == (201, [[101, errors.SPOOL_OVER_QUOTA]])
        assert len(spooling.stored("r")) == 100

    def test_a_queue_is_deleted_with_messages_on_their_way(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        publisher = spooling.publisher()
        spooling.hold()
        publisher.publish("a", "a")
        spooling.drop("q")
        spooling.commit()
        assert publisher.acked() == (2, [])
        assert spooling.router.publishing.usage.node.bytes == 0


class TestPolicies:
    """Who hears of a refusal, and what it means for the other endpoints."""

    @pytest.mark.requirement("R114", "R177")
    def test_one_refusal_keeps_a_message_from_everybody(self, spooling: PublishNode) -> None:
        spooling.queue("full", "a", max_spool_usage_mb=1)
        spooling.queue("other", "a")
        subscriber = spooling.client()
        subscriber.subscribe("a")
        publisher = spooling.publisher()
        publisher.publish(*rows(101))
        assert publisher.acked() == (101, [[101, errors.SPOOL_OVER_QUOTA]])
        assert spooling.sequences("other") == list(range(1, 101))
        assert len(subscriber.rows()) == 100, "neither as a direct copy"

    @pytest.mark.requirement("R115")
    @pytest.mark.parametrize(
        ("attributes", "code"),
        [
            ({"max_spool_usage_mb": 1}, errors.SPOOL_OVER_QUOTA),
            ({"max_message_bytes": 1_000}, errors.MESSAGE_TOO_LARGE),
            ({"ingress_enabled": False}, errors.ENDPOINT_SHUTDOWN),
            ({"reject_low_priority": True, "reject_low_priority_limit": 0}, errors.LOW_PRIORITY_CONGESTION),
        ],
        ids=["quota", "size", "shutdown", "low-priority"],
    )
    def test_a_publisher_hears_the_same_whether_a_queue_is_named_or_matched(
        self, spooling: PublishNode, attributes: dict[str, Any], code: int
    ) -> None:
        spooling.queue("q", "a", **attributes)
        publisher = spooling.publisher()
        if code == errors.SPOOL_OVER_QUOTA:
            publisher.publish(*rows(100))
        at = publisher.publish(*rows(1))
        publisher.publish(*rows(1, topic="#P2P/QUE/q"))
        assert publisher.acked()[1] == [[at, code], [at + 1, code]]

    def test_never_leaves_only_this_endpoint_without_it(self, spooling: PublishNode) -> None:
        spooling.queue("full", "a", max_spool_usage_mb=1, reject_to_sender="never")
        spooling.queue("other", "a")
        publisher = spooling.publisher()
        publisher.publish(*rows(102))
        assert publisher.acked() == (102, [])
        assert len(spooling.stored("full")) == 100
        assert len(spooling.stored("other")) == 102
        assert spooling.endpoint("full").counters == {"spool_usage_exceeded": 2}
        assert spooling.router.stats()["discards"] == {"endpoint-usage-exceeded": 2}

    def test_when_enabled_is_silent_about_an_endpoint_that_is_shut_down_only(
        self, spooling: PublishNode
    ) -> None:
        spooling.queue("q", "a", max_spool_usage_mb=1, reject_to_sender="when-enabled")
        publisher = spooling.publisher()
        publisher.publish(*rows(101))
        assert codes(publisher) == [errors.SPOOL_OVER_QUOTA]
        spooling.consume("q", 100)
        spooling.change("q", ingress_enabled=False, subscriptions=["a"])
        publisher.publish(*rows(1))
        assert publisher.acked() == (102, [])
        assert spooling.stored("q") == []
        assert spooling.endpoint("q").counters["spool_shutdown_discard"] == 1

    @pytest.mark.parametrize("first", ["never", "always"])
    def test_a_refusal_of_one_outweighs_the_silence_of_another(
        self, spooling: PublishNode, first: str
    ) -> None:
        second = {"never": "always", "always": "never"}[first]
        spooling.queue("one", "a", ingress_enabled=False, reject_to_sender=first)
        spooling.queue("two", "a", ingress_enabled=False, reject_to_sender=second)
        spooling.queue("three", "a")
        publisher = spooling.publisher()
        publisher.publish("a")
        assert publisher.acked() == (1, [[1, errors.ENDPOINT_SHUTDOWN]])
        assert spooling.stored("three") == []
        assert spooling.router.stats()["discards"] == {"endpoint-disabled": 1}, "told once"

    def test_the_node_is_asked_before_the_vpn_and_that_before_the_endpoint(
        self, make_publish_node: Any
    ) -> None:
        node = make_publish_node(spool=SpoolLimits(max_usage_mb=0))
        node.change_vpn(max_spool_usage_mb=0)
        node.queue("q", "a", max_spool_usage_mb=1, max_message_bytes=1, ingress_enabled=False)
        publisher = node.publisher()
        asked = []
        for step in (
            lambda: None,
            lambda: setattr(node.router.publishing.usage.node, "_limit_bytes", 10 * MB),
            lambda: node.change_vpn(max_spool_usage_mb=10),
        ):
            step()
            publisher.publish(("a", bytes(1_000_000)))
            asked.append(next(iter(reversed(node.endpoint("q").counters))))
        node.change("q", max_spool_usage_mb=10)
        publisher.publish(("a", bytes(1_000_000)))
        asked.append(next(iter(reversed(node.endpoint("q").counters))))
        node.change("q", max_message_bytes=1_000_000)
        publisher.publish("a")
        asked.append(next(iter(reversed(node.endpoint("q").counters))))
        assert asked == [
            "node_spool_usage_exceeded",
            "vpn_spool_usage_exceeded",
            "spool_usage_exceeded",
            "max_message_size_exceeded",
            "spool_shutdown_discard",
        ]

    def test_a_last_value_queue_takes_no_quota(self, make_publish_node: Any) -> None:
        node = make_publish_node(spool=SpoolLimits(max_usage_mb=1))
        node.change_vpn(max_spool_usage_mb=1)
        node.queue("last", "v", max_spool_usage_mb=0)
        node.queue("q", "a")
        publisher = node.publisher()
        publisher.publish(*rows(150, "v"))
        publisher.publish(*rows(100))
        assert publisher.acked() == (250, [])
        assert node.router.stats()["spool"]["usage_bytes"] == MB

    def test_a_quota_that_is_taken_away_and_given_again(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a", max_spool_usage_mb=1)
        publisher = spooling.publisher()
        publisher.publish(*rows(100))
        spooling.change("q", max_spool_usage_mb=0)
        assert spooling.router.publishing.usage.node.bytes in (0, MB)
        publisher.publish(*rows(1))
        assert spooling.router.publishing.usage.node.bytes == 0
        spooling.homes[0].tell(spooling.lane("q"))
        assert spooling.endpoint("q").messages == 1, "it keeps the last value"
        spooling.change("q", max_spool_usage_mb=1)
        publisher.publish(*rows(101))
        refused = [[sequence, errors.SPOOL_OVER_QUOTA] for sequence in (201, 202)]
        assert publisher.acked() == (202, refused)


class TestRelaxed:
    """Durability `relaxed`: acknowledged when accepted."""

    def test_what_a_relaxed_queue_accepted_is_acknowledged(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a", durability="relaxed")
        publisher = spooling.publisher()
        spooling.hold()
        publisher.publish("a")
        assert spooling.homes[0].stores[0][2] is True
        assert publisher.acked() == (1, [])
        assert len(spooling.homes[0].waiting) == 1

    def test_the_strongest_of_several_endpoints_counts(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a", durability="relaxed")
        spooling.queue("r", "a")
        spooling.publisher().publish("a")
        assert spooling.homes[0].stores[0][2] is False

    def test_a_message_vpn_may_be_relaxed(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a")
        spooling.change_vpn(durability="relaxed")
        spooling.publisher().publish("a")
        assert spooling.homes[0].stores[0][2] is True

    def test_what_was_accepted_and_not_stored_is_sent_again(self, spooling: PublishNode) -> None:
        spooling.queue("q", "a", durability="relaxed", max_spool_usage_mb=1)
        publisher = spooling.publisher()
        spooling.hold()
        publisher.publish(*rows(60))
        publisher.publish(*rows(20))
        spooling.restart_worker(0)
        publisher.publish(*rows(21))
        assert publisher.acked() == (101, [[101, errors.SPOOL_OVER_QUOTA]])
        assert spooling.sequences("q") == list(range(1, 101))
