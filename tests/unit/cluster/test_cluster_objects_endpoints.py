"""What queues, topic endpoints and templates may look like."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors
from cluster import objects

KINDS = ["queue", "topic-endpoint"]


@pytest.mark.requirement("R101", "R133", "R202")
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_endpoint_is_up_and_closed_to_others(kind: str) -> None:
    made = objects.complete(kind, {})
    assert (made["ingress_enabled"], made["egress_enabled"]) == (True, True)
    assert made["access_type"] == "exclusive"
    assert made["permission"] == "no-access"
    assert made["respect_ttl"] is True
    assert made["dead_message_queue"] == "#DEAD_MSG_QUEUE"


@pytest.mark.requirement("R135")
@pytest.mark.parametrize("convert", [objects.convert, objects.convert_declared])
@pytest.mark.parametrize("kind", [*KINDS, "template"])
def test_a_permission_may_be_none_and_is_shown_as_no_access(kind: str, convert: Any) -> None:
    assert convert(kind, {"permission": "none"}) == {"permission": "no-access"}
    assert convert(kind, {"permission": "no-access"}) == {"permission": "no-access"}
    with pytest.raises(errors.InvalidRequestError, match=r"valid is .*no-access"):
        convert(kind, {"permission": "nothing"})


@pytest.mark.requirement("R110")
def test_a_template_has_the_bind_count_of_the_endpoints_that_it_is_for() -> None:
    """And a backup names it, since it depends on another attribute."""
    assert objects.complete("template", {})["max_bind_count"] == 1_000
    topics = {"kind_of_endpoint": "topic-endpoint"}
    for given, count in (({}, 1), ({"max_bind_count": 1_000}, 1_000), ({"max_bind_count": 7}, 7)):
        made = objects.complete("template", {**topics, **given})
        assert made["max_bind_count"] == count
        assert objects.differing("template", made) == {**topics, "max_bind_count": count}


@pytest.mark.requirement("R114")
@pytest.mark.parametrize("kind", KINDS)
def test_publishers_are_told_of_every_refusal_unless_an_operator_decides_otherwise(kind: str) -> None:
    assert objects.complete(kind, {})["reject_to_sender"] == "always"
    for value in ("never", "when-enabled"):
        assert objects.convert(kind, {"reject_to_sender": value}) == {"reject_to_sender": value}


def test_a_topic_endpoint_has_one_consumer_no_partitions_and_no_subscriptions() -> None:
    made = objects.complete("topic-endpoint", {})
    assert made["max_bind_count"] == 1
    for name in ("partition_count", "subscriptions"):
        assert name not in made
        with pytest.raises(errors.InvalidRequestError, match="no attribute"):
            objects.convert("topic-endpoint", {name: "1"})


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("access_type", "shared", "exclusive or non-exclusive"),
        ("permission", "all", "read-only"),
        ("max_bind_count", "10001", "0..10000"),
        ("max_delivered_unacked_per_flow", "0", "1..1000000"),
        ("max_message_bytes", "30000001", "0..30000000"),
        ("max_spool_usage_mb", "6000001", "0..6000000"),
        ("max_redelivery_count", "256", "0..255"),
        ("redelivery_delay_multiplier_percent", "99", "100..500"),
        ("redelivery_delay_max_ms", "10800001", "1..10800000"),
        ("max_ttl_s", "4294967296", "0..4294967295"),
        ("partition_count", "1001", "0..1000"),
        ("event_spool_usage_set_percent", "101", "0..100"),
        ("dead_message_queue", "a*", "names no queue"),
        ("id", "7", "set by the node"),
        ("homes", "[1]", "set by the node"),
        ("created_by", "operator", "set by the node"),
    ],
)
def test_a_value_outside_its_range_is_refused_with_the_range(name: str, value: str, told: str) -> None:
    with pytest.raises(errors.InvalidRequestError, match=told) as caught:
        objects.convert("queue", {name: value})
    assert caught.value.code == errors.INVALID_ATTRIBUTE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["q", "orders/in/eu", "with blank", "ü" * 100, "#DEAD_MSG_QUEUE", "a!b"])
def test_a_name_that_fits_is_taken(kind: str, name: str) -> None:
    objects.check_name(objects.kind_of(kind), name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name",
    [
        "",
        "/a",
        "a/",
        "a//b",
        "a*",
        "a?",
        "it's",
        "a<b",
        "a>b",
        "a&b",
        "a;b",
        "#mine",
        "x" * 201,
        "ü" * 101,
        "a\0",
    ],
)
def test_a_name_that_does_not_fit_is_refused_with_the_rule(kind: str, name: str) -> None:
    with pytest.raises(errors.InvalidRequestError, match="a name has") as caught:
        objects.check_name(objects.kind_of(kind), name)
    assert caught.value.code == errors.INVALID_ENDPOINT_NAME


def test_a_temporary_name_may_be_as_long_as_its_address_allows() -> None:
    kind = objects.kind_of("queue")
    objects.check_temporary_name(kind, "x" * 241)
    with pytest.raises(errors.InvalidRequestError):
        objects.check_temporary_name(kind, "x" * 242)


def test_filters_are_a_list_without_doubles() -> None:
    assert objects.convert("queue", {"subscriptions": "a/>,!a/b,a/>"}) == {"subscriptions": ["a/>", "!a/b"]}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", errors.INVALID_FILTER),
        ("!", errors.INVALID_FILTER),
        ("a\0", errors.INVALID_FILTER),
        ("#P2P/QUE/other", errors.RESERVED_TOPIC),
        ("!#P2P/QUE/other", errors.RESERVED_TOPIC),
    ],
)
def test_what_is_no_subscription_of_a_queue_is_refused(text: str, code: int) -> None:
    with pytest.raises(errors.AngariumError) as caught:
        objects.check_queue_filter("subscription", text)
    assert caught.value.code == code


@pytest.mark.requirement("R13", "R23")
@pytest.mark.parametrize("text", ["#share/g/a", "#noexport/#share/g/a", "!#share/g/a"])
def test_an_operator_cannot_give_a_queue_a_shared_subscription(text: str) -> None:
    with pytest.raises(errors.ForbiddenError) as caught:
        objects.convert("queue", {"subscriptions": [text]})
    assert caught.value.code == errors.SHARED_ON_ENDPOINT


@pytest.mark.requirement("R123")
def test_a_topic_endpoint_has_no_exceptions() -> None:
    objects.check_topic("topic", "animals/f*")
    with pytest.raises(errors.InvalidRequestError) as caught:
        objects.check_topic("topic", "!animals/fox")
    assert caught.value.code == errors.EXCEPTIONS_NOT_SUPPORTED


@pytest.mark.parametrize(
    ("kind", "values", "told"),
    [
        ("queue", {"partition_count": 2}, "partition_count needs access_type=non-exclusive"),
        ("queue", {"reject_low_priority": True, "reject_to_sender": "never"}, "reject_low_priority needs"),
        ("template", {"reject_low_priority": True, "reject_to_sender": "never"}, "reject_low_priority needs"),
        (
            "queue",
            {"redelivery_delay_initial_ms": 9, "redelivery_delay_max_ms": 8},
            "at most redelivery_delay_max_ms",
        ),
        ("queue", {"event_bind_count_set_percent": 10}, "event_bind_count_clear_percent = 60"),
        ("vpn", {"event_spool_usage_clear_percent": 90}, "is at most event_spool_usage_set_percent"),
    ],
)
def test_attributes_that_do_not_go_together_are_refused(kind: str, values: dict[str, Any], told: str) -> None:
    with pytest.raises(errors.InvalidRequestError, match=told) as caught:
        objects.check_together(kind, objects.complete(kind, values))
    assert caught.value.code == errors.INVALID_ATTRIBUTE


def test_partitions_go_with_a_non_exclusive_queue() -> None:
    values = {"partition_count": 2, "access_type": "non-exclusive"}
    objects.check_together("queue", objects.complete("queue", values))


@pytest.mark.parametrize("text", ["", ">", "orders", "orders/in", "orders/*", "orders/in/>"])
def test_a_name_filter_that_fits_is_taken(text: str) -> None:
    assert objects.convert("template", {"name_filter": text}) == {"name_filter": text}


@pytest.mark.parametrize("text", ["*", "or*", "orders/*/in", "*/orders", "orders/>/in", "/", "/*", "a//>"])
def test_what_is_no_name_filter_is_refused(text: str) -> None:
    with pytest.raises(errors.InvalidRequestError, match="no name filter"):
        objects.convert("template", {"name_filter": text})


def test_a_backup_holds_who_created_an_endpoint_but_not_where_it_lives() -> None:
    made = objects.complete("queue", {"max_ttl_s": 5})
    made |= {
        "id": 7,
        "homes": [2],
        "generation": 3,
        "created_by": "client:alice",
        "client_subscriptions": ["a"],
    }
    kept = {"max_ttl_s": 5, "created_by": "client:alice", "client_subscriptions": ["a"]}
    assert objects.differing("queue", made) == kept
    assert objects.convert_declared("queue", kept) == kept


def test_every_identity_is_described() -> None:
    for kind in KINDS:
        assert {one.name for one in objects.identity_of(kind)} <= objects.complete(kind, {}).keys()
        assert all(one.sentence.endswith(".") for one in objects.identity_of(kind))
    assert objects.identity_of("vpn") == ()


@pytest.mark.requirement("R127")
def test_a_new_client_profile_allows_guaranteed_messages() -> None:
    profile = objects.complete("profile", {})
    for name in ("allow_guaranteed_send", "allow_guaranteed_receive", "allow_endpoint_create"):
        assert profile[name] is True
