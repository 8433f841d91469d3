"""What objects may look like: attributes, ranges, defaults, conversion of text."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors
from cluster import objects
from router.ground.config import RouterConfig

#: What the reference broker does not have.
OURS = {
    "max_lease_s",
    "ca_pem",
    "server_name",
    "durability",
    "kind_of_endpoint",
    "max_matching_work_per_s",
    "max_overlapping_filters",
    "max_overlapping_filters_per_queue",
    "max_memory_bytes",
    "max_retained_mb",
    "max_idle_s",
    "max_memory_bytes_per_client_username",
    "max_egress_flow_count_per_client_username",
    "max_ingress_flow_count_per_client_username",
}


def test_every_attribute_says_what_it_is() -> None:
    for kind in objects.KINDS:
        for attribute in objects.attributes_of(kind):
            assert attribute.sentence.endswith("."), attribute
            if kind not in ("operator", "webhook"):  # the reference has others, or none
                assert attribute.reference or attribute.name in OURS, attribute
            assert attribute.range_text, attribute
            assert attribute.name == attribute.name.lower()


def test_every_default_is_within_its_own_range() -> None:
    for kind in objects.KINDS:
        defaults = objects.complete(kind, {})
        assert objects.convert_stored(kind, defaults) == defaults


@pytest.mark.requirement("R280")
def test_by_default_one_client_has_a_tenth_of_its_message_vpn_and_a_username_half() -> None:
    vpn, profile = objects.complete("vpn", {}), objects.complete("profile", {})
    pairs = {
        "max_egress_flow_count": "max_egress_flow_count",
        "max_ingress_flow_count": "max_ingress_flow_count",
        "max_endpoint_count_per_username": "max_endpoint_count",
    }
    for own, of_all in pairs.items():
        assert 10 * profile[own] <= vpn[of_all], own
    for name in ("max_egress_flow_count", "max_ingress_flow_count"):
        assert 2 * profile[f"{name}_per_client_username"] <= vpn[name]
    assert 2 * profile["max_connection_count_per_client_username"] <= RouterConfig().max_connections


@pytest.mark.parametrize(
    ("kind", "name", "text", "value"),
    [
        ("vpn", "enabled", "false", False),
        ("vpn", "max_connection_count", "12", 12),
        ("profile", "eliding", "true", True),
        ("profile", "eliding_delay_ms", "200", 200),
        ("profile", "eliding_delay_ms", 200, 200),
        ("acl", "publish_topic_default", "allow", "allow"),
        ("acl", "publish_topic_exceptions", "a/b,c/>", ["a/b", "c/>"]),
        ("acl", "publish_topic_exceptions", '["a,b/c"]', ["a,b/c"]),
        ("acl", "publish_topic_exceptions", "", []),
        ("acl", "publish_topic_exceptions", ["a", "b"], ["a", "b"]),
        ("acl", "publish_topic_exceptions", "only/$client-username/>", ["only/$client-username/>"]),
        ("acl", "client_connect_exceptions", "10.0.0.0/8,::1", ["10.0.0.0/8", "::1"]),
        ("acl", "subscribe_share_name_exceptions", "g*", ["g*"]),
        ("username", "acl_profile", "readers", "readers"),
    ],
)
def test_text_becomes_a_value_of_the_attributes_type(
    kind: str, name: str, text: object, value: object
) -> None:
    assert objects.convert(kind, {name: text}) == {name: value}


def test_a_program_sends_values_of_the_attributes_type() -> None:
    objects.check_types(
        "queue", {"max_bind_count": 2.0, "ingress_enabled": False, "subscriptions": ["a"], "nothing": 1}
    )
    unfit: dict[str, Any] = {
        "max_bind_count": "2",
        "ingress_enabled": 1,
        "subscriptions": "a",
        "max_ttl_s": 1.5,
    }
    for name, value in unfit.items():
        with pytest.raises(errors.InvalidRequestError, match=name) as caught:
            objects.check_types("queue", {name: value})
        assert caught.value.code == errors.INVALID_ATTRIBUTE


@pytest.mark.requirement("R38", "R39")
@pytest.mark.parametrize(
    ("kind", "name", "value", "told"),
    [
        ("profile", "eliding_delay_ms", "60001", "0..60000"),
        ("profile", "eliding_delay_ms", "-1", "0..60000"),
        ("profile", "eliding_delay_ms", "1.5", "0..60000"),
        ("profile", "eliding_max_topics", "0", "1..32000"),
        ("profile", "eliding_max_topics", "32001", "1..32000"),
        ("profile", "queue_direct_1_max_depth", "1", "2..262144"),
        ("profile", "eliding", "maybe", "true or false"),
        ("acl", "publish_topic_default", "alow", "allow or disallow"),
        ("acl", "publish_topic_exceptions", "x" * 251, "at most"),
        ("acl", "client_connect_exceptions", "10.0.0.0/99", "10.0.0.0/8"),
        ("acl", "subscribe_topic_exceptions", "a\0b", "subscribe_topic_exceptions"),
        ("acl", "subscribe_share_name_exceptions", "a/b", "share name"),
        ("acl", "publish_topic_exceptions", '["a"', "truncated"),
        ("bridge", "ca_pem", "\u00e4", "no certificate"),
        ("webhook", "url", "ftp://a/b", "no URL"),
        ("webhook", "url", "https://", "no URL"),
        ("webhook", "url", "https://a:0/", "no URL"),
        ("webhook", "url", "https://a:99999/", "no URL"),
        ("webhook", "url", "https://a/b c", "no URL"),
        ("webhook", "url", "https://a/\n", "no URL"),
        ("webhook", "url", "https://anna:secret@a/b", "authorization_file"),
        ("webhook", "url", "https://a/b#c", "never sent"),
        ("webhook", "url", "https://2130706433/", "four numbers"),
        ("webhook", "url", "https://127.1:80/", "four numbers"),
        ("webhook", "url", "https://0177.0.0.1./", "four numbers"),
        ("webhook", "url", "https://a.7/", "four numbers"),
        ("webhook", "headers", "X-A", "NAME: VALUE"),
        ("webhook", "headers", "X A: b", "NAME: VALUE"),
        ("webhook", "headers", '["X-A: b\\r\\nX-B: c"]', "NAME: VALUE"),
        ("webhook", "headers", "Webhook-Id: 1", "set by the webhook"),
        ("webhook", "headers", "angarium-topic: 1", "set by the webhook"),
        ("webhook", "headers", "Content-Length: 1", "set by the webhook"),
        ("webhook", "headers", "authorization: Bearer x", "authorization_file"),
        ("webhook", "secret_file", "secret", "from / on"),
        ("webhook", "permanent_codes", "200", "permanent_codes"),
        ("webhook", "window", "0", "1..1000"),
    ],
)
def test_a_value_out_of_range_is_refused_with_the_range(kind: str, name: str, value: str, told: str) -> None:
    with pytest.raises(errors.InvalidRequestError) as caught:
        objects.convert(kind, {name: value})
    assert caught.value.code == errors.INVALID_ATTRIBUTE
    assert name in caught.value.detail
    assert told in caught.value.detail


@pytest.mark.parametrize("value", ["0", "60000"])
def test_the_ends_of_a_range_belong_to_it(value: str) -> None:
    assert objects.convert("profile", {"eliding_delay_ms": value}) == {"eliding_delay_ms": int(value)}


def test_a_misspelt_attribute_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(errors.InvalidRequestError, match=r"did you mean 'eliding_delay_ms'\?") as caught:
        objects.convert("profile", {"eliding_dely_ms": "200"})
    assert caught.value.code == errors.INVALID_ATTRIBUTE


def test_a_misspelt_kind_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(errors.InvalidRequestError, match=r"did you mean 'profile'\?"):
        objects.convert("profil", {})


def test_a_refused_password_is_not_told() -> None:
    with pytest.raises(errors.InvalidRequestError) as caught:
        objects.convert("username", {"password": "s3cret" * 100})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("vpn", "orders"),
        ("vpn", "v" * 32),
        ("profile", "#acl-profile"),
        ("username", "alice@example.org"),
        ("username", "ü" * 94),
    ],
)
def test_names_that_fit_their_kind_are_taken(kind: str, name: str) -> None:
    objects.check_name(objects.kind_of(kind), name)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("vpn", ""),
        ("vpn", "a*"),
        ("vpn", "a?"),
        ("vpn", "a/b"),
        ("vpn", "v" * 33),
        ("vpn", "nul\0"),
        ("profile", "with blank"),
        ("profile", "p" * 33),
        ("username", "u" * 190),
        ("username", "ü" * 95),
        ("username", "\ud800"),
    ],
)
def test_names_that_do_not_fit_are_refused_with_the_rule(kind: str, name: str) -> None:
    with pytest.raises(errors.InvalidRequestError, match="a name has") as caught:
        objects.check_name(objects.kind_of(kind), name)
    assert caught.value.code == errors.INVALID_ARGUMENT


def test_a_shown_username_holds_no_password() -> None:
    shown = objects.shown("username", "default", "alice", {"enabled": True, "password": "scrypt$1$2$3$a$b"})
    assert shown == {
        "kind": "username",
        "vpn": "default",
        "name": "alice",
        "enabled": True,
        "password_set": True,
    }


def test_a_shown_vpn_is_in_no_vpn() -> None:
    assert "vpn" not in objects.shown("vpn", "", "default", objects.complete("vpn", {}))


def test_new_objects_are_usable_and_new_acl_profiles_deny() -> None:
    assert objects.complete("vpn", {})["enabled"] is True
    assert objects.complete("username", {})["enabled"] is True
    assert objects.complete("profile", {})["allow_shared_subscriptions"] is True
    acl = objects.complete("acl", {})
    denied = [acl[f"{name}_default"] for name in ("client_connect", "publish_topic", "subscribe_topic")]
    assert denied == ["disallow"] * 3
    assert acl["subscribe_share_name_default"] == "allow"


def test_only_the_default_vpn_has_a_username_without_being_asked() -> None:
    assert [kind for kind, _, _ in objects.built_in("default")] == ["profile", "acl", "username"]
    assert [kind for kind, _, _ in objects.built_in("orders")] == ["profile", "acl"]


def test_a_backup_names_only_what_differs_from_the_defaults() -> None:
    attributes = objects.complete("profile", {"eliding": True})
    assert objects.differing("profile", attributes) == {"eliding": True}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"queue": ""}, "set queue"),
        ({"url": ""}, "set url"),
        ({"retry_delay_max_ms": 50}, "at least"),
        ({"authorization_file": "/token"}, "https:// alone"),
    ],
)
def test_a_webhook_has_what_it_needs_and_tells_no_secret(changed: dict[str, Any], told: str) -> None:
    sound = {"queue": "q", "url": "http://192.0.2.1/a?b=c", "headers": ["X-A: b, c"]}
    objects.check_together("webhook", objects.complete("webhook", sound))
    with pytest.raises(errors.InvalidRequestError, match=told):
        objects.check_together("webhook", objects.complete("webhook", sound | changed))


@pytest.mark.parametrize("kind", ["link", "bridge"])
def test_what_0_1_0_stored_of_a_link_or_bridge_is_loaded_without_its_key(kind: str) -> None:
    stored = {**objects.complete(kind, {"addresses": ["tcp://127.0.0.1:5000"]}), "public_key": ""}
    loaded = objects.load(kind, stored)
    assert loaded == objects.complete(kind, {"addresses": ["tcp://127.0.0.1:5000"]})
    with pytest.raises(errors.InvalidRequestError, match="40015"):
        objects.load(kind, {**stored, "private_key": ""})
