"""Access rules: what a default and its exceptions allow."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from angarium import errors
from angarium.topic import matches
from angarium_server.access import AddressRules, TopicRules, substitute, username_hash

_LEVELS = st.lists(st.sampled_from(["a", "b", "ab", "$S"]), min_size=1, max_size=3).map("/".join)
_PATTERNS = st.lists(st.sampled_from(["a", "b", "*", "a*", ">", "$S"]), min_size=1, max_size=3).map("/".join)


@pytest.mark.parametrize(
    ("default_allow", "topic", "allowed"),
    [
        (True, "a/b", False),
        (True, "c", True),
        (False, "a/b", True),
        (False, "c", False),
        (False, "a/b/c", False),
    ],
)
def test_an_exception_inverts_the_default_for_publishing(
    default_allow: bool, topic: str, allowed: bool
) -> None:
    assert TopicRules(["a/*", "x"], default_allow=default_allow).allows_publish(topic) is allowed


@pytest.mark.requirement("R57")
@pytest.mark.parametrize(
    ("pattern", "allowed"),
    [("a/b", False), ("a/>", False), (">", False), ("*/*", False), ("c", True), ("a", True), ("a/b/c", True)],
)
def test_where_all_is_allowed_touching_an_exception_is_enough_to_refuse_a_subscription(
    pattern: str, allowed: bool
) -> None:
    assert TopicRules(["a/*"], default_allow=True).allows_subscribe(pattern) is allowed


@pytest.mark.requirement("R57")
@pytest.mark.parametrize(
    ("pattern", "allowed"),
    [
        ("a/b", True),
        ("a/*", True),
        ("a/b*", True),
        ("a/>", False),
        (">", False),
        ("c", False),
        ("a/b/c", False),
    ],
)
def test_where_nothing_is_allowed_one_exception_must_cover_the_whole_subscription(
    pattern: str, allowed: bool
) -> None:
    assert TopicRules(["x", "a/*"], default_allow=False).allows_subscribe(pattern) is allowed


@pytest.mark.requirement("R57")
@settings(deadline=None)
@given(st.booleans(), st.lists(_PATTERNS, max_size=4), _PATTERNS, _LEVELS)
def test_a_subscription_that_is_allowed_never_brings_a_topic_that_is_not(
    default_allow: bool, exceptions: list[str], pattern: str, topic: str
) -> None:
    rules = TopicRules(exceptions, default_allow=default_allow)
    if rules.allows_subscribe(pattern) and matches(pattern, topic):
        assert rules.allows_publish(topic)


def test_without_exceptions_the_default_holds() -> None:
    for default in (True, False):
        rules = TopicRules(default_allow=default)
        assert rules.allows_publish("a") is default
        assert rules.allows_subscribe(">") is default
        assert rules.allows_name("g") is default


@pytest.mark.parametrize(
    ("name", "allowed"),
    [("red", False), ("green", False), ("gray", False), ("blue", True), ("reds", True), ("$g", True)],
)
def test_share_names_have_exceptions_with_a_prefix(name: str, allowed: bool) -> None:
    assert TopicRules(["red", "g*"], default_allow=True).allows_name(name) is allowed


@pytest.mark.parametrize("exception", ["*", ">"])
def test_a_lone_wildcard_is_every_share_name_also_one_that_starts_with_a_dollar(exception: str) -> None:
    assert TopicRules([exception], default_allow=False).allows_name("$g")


def test_the_username_is_put_into_exceptions() -> None:
    exceptions = ["a/$client-username/>", "#P2P/INB/$client-username-hash/>", "b/x$client-username", "c"]
    digits = f"{zlib.crc32('jörg'.encode()):08x}"
    assert substitute(exceptions, "jörg") == ["a/jörg/>", f"#P2P/INB/{digits}/>", "b/xjörg", "c"]
    assert len(username_hash("jörg")) == 8


def test_a_username_that_spells_the_other_variable_is_put_in_once() -> None:
    assert substitute(["a/$client-username"], "$client-username-hash") == ["a/$client-username-hash"]


@pytest.mark.parametrize("username", ["*", "a*", ">", "x>"])
def test_a_username_with_a_wildcard_cannot_widen_an_exception(username: str) -> None:
    with pytest.raises(errors.InvalidRequestError) as raised:
        substitute(["a/$client-username"], username)
    assert raised.value.code == errors.INVALID_ARGUMENT
    assert substitute(["a/b", "h/$client-username-hash"], username)[0] == "a/b"


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("10.1.2.3", True),
        ("10.1.3.3", False),
        ("192.168.0.1", True),
        ("::ffff:10.1.2.3", True),
        ("2001:db8::1", True),
        ("2001:db9::1", False),
        ("", False),
        ("localhost", False),
        ("10.1.2.3:5000", False),
    ],
)
def test_addresses_have_exceptions_in_cidr_form(address: str, allowed: bool) -> None:
    networks = ["10.1.2.0/24", "192.168.0.1", "2001:db8::/32"]
    assert AddressRules(networks, default_allow=False).allows(address) is allowed
    assert AddressRules(networks, default_allow=True).allows(address) is not allowed


def test_host_bits_in_a_cidr_range_are_ignored() -> None:
    assert AddressRules(["10.1.2.77/24"], default_allow=False).allows("10.1.2.3")


@pytest.mark.parametrize("text", ["", "10.0.0.0/33", "ten", "1.2.3"])
def test_what_is_no_cidr_range_is_an_invalid_attribute(text: str) -> None:
    with pytest.raises(errors.InvalidRequestError) as raised:
        AddressRules([text], default_allow=False)
    assert raised.value.code == errors.INVALID_ATTRIBUTE
