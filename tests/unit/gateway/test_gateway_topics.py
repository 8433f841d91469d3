"""Filters and topics of MQTT in our grammar: what is translated matches as MQTT says, and the rest is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium import errors
from angarium.errors import AngariumError
from angarium.topic import check_topic, matches, parse_filter
from gateway.mqtt.codec import topics as codec_topics
from gateway.mqtt.codec.errors import PacketError
from gateway.mqtt.codec.kinds import V5
from gateway.mqtt.topics import filters_of, mqtt_topic_of, topic_of

#: Few levels, so that they meet, and all that one of the two grammars takes for something special.
LEVELS = (
    "",
    "a",
    "b",
    "ab",
    "a*",
    "*",
    "**",
    "*a",
    ">",
    "a>",
    "!",
    "!a",
    "$",
    "$a",
    "$P2P",
    "$P2Pa",
    "$share",
    "é",
)
names = st.lists(st.sampled_from(LEVELS), min_size=1, max_size=4).map("/".join).filter(bool)
filters = st.builds(
    lambda levels, end: "/".join([*levels, *end]),
    st.lists(st.sampled_from(LEVELS) | st.just("+"), max_size=4),
    st.sampled_from([[], ["#"]]),
).filter(bool)
native_topics = st.text("ab/#+$P2*>", min_size=1, max_size=8)


def mqtt_matches(text: str, name: str) -> bool:
    """Tell whether a filter matches a topic name as sections 4.7.1 and 4.7.2 of the specification say."""
    if name[0] == "$" and text[0] in "+#":
        return False
    wanted, levels = text.split("/"), name.split("/")
    for place, level in enumerate(wanted):
        if level == "#":
            return True
        if place == len(levels):
            return False
        if level not in ("+", levels[place]):
            return False
        if place == len(levels) - 1 and wanted[place + 1 :] == ["#"]:
            return True
    return len(wanted) == len(levels)


def is_refused(text: str) -> bool:
    """Tell whether a filter would mean more here than in MQTT."""
    literal = text.removesuffix("#").removesuffix("/") if text.endswith("#") else text
    levels = literal.split("/")
    return text[0] == "!" or levels[-1] == ">" or any(level.endswith("*") for level in levels)


@pytest.mark.slow
@pytest.mark.requirement("R242")
@given(text=filters, name=names)
def test_a_translated_filter_matches_what_mqtt_says(text: str, name: str) -> None:
    codec_topics.check_name(name, V5)
    if codec_topics.shared(text):
        return
    if is_refused(text):
        with pytest.raises(AngariumError) as refused:
            filters_of(text)
        assert refused.value.code == errors.INVALID_FILTER
        return
    matching = [one for one in filters_of(text) if matches(one, topic_of(name))]
    assert len(matching) == mqtt_matches(text, name)


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("sport/tennis/#", "sport/tennis", True),
        ("sport/tennis/#", "sport/tennis/player1/ranking", True),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/monitor/Clients", False),
        ("+/monitor/Clients", "$SYS/monitor/Clients", False),
        ("$SYS/#", "$SYS/monitor/Clients", True),
        ("/#", "/", True),
    ],
)
def test_the_examples_of_the_specification(text: str, name: str, expected: bool) -> None:
    assert mqtt_matches(text, name) is expected
    assert any(matches(one, topic_of(name)) for one in filters_of(text)) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a/+/c", ("a/*/c",)),
        ("a/#", ("a", "a/>")),
        ("#", (">",)),
        ("/#", ("/>",)),
        ("+/#", ("*", "*/>")),
        ("a/>/b", ("a/>/b",)),
        ("$P2P/QUE/+", ("#P2P/QUE/*",)),
        ("$P2P/#", ("#P2P", "#P2P/>")),
        ("$P2Px/#", ("$P2Px", "$P2Px/>")),
        ("$share/g/a/#", ("#share/g/a", "#share/g/a/>")),
        ("$share/g/#", ("#share/g/>",)),
        ("$share/g/$P2P/x", ("#share/g/#P2P/x",)),
        ("$share", ("$share",)),
    ],
)
def test_how_filters_are_said_here(text: str, expected: tuple[str, ...]) -> None:
    assert filters_of(text) == expected


@pytest.mark.requirement("R242")
@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a*", errors.INVALID_FILTER),
        ("a/*/b", errors.INVALID_FILTER),
        (">", errors.INVALID_FILTER),
        ("a/>", errors.INVALID_FILTER),
        ("a/>/#", errors.INVALID_FILTER),
        ("!a", errors.INVALID_FILTER),
        ("$share/g/!a", errors.INVALID_FILTER),
        ("$share/g/a*", errors.INVALID_FILTER),
        ("$share/g", errors.INVALID_FILTER),
        ("$share//a", errors.INVALID_SHARE_NAME),
        ("$share/g*/a", errors.INVALID_SHARE_NAME),
        ("a" * 251, errors.INVALID_FILTER),
        ("é" * 126, errors.INVALID_FILTER),
        ("/" * 128, errors.INVALID_FILTER),
    ],
)
def test_what_cannot_be_said_here_is_refused(text: str, code: int) -> None:
    with pytest.raises(AngariumError) as refused:
        filters_of(text)
    assert refused.value.code == code


@pytest.mark.slow
@given(text=filters)
def test_what_comes_out_is_in_our_grammar(text: str) -> None:
    try:
        found = filters_of(text)
    except AngariumError:
        return
    shared = codec_topics.shared(text)
    for one in map(parse_filter, found):
        assert one.share == (shared.name if shared else None)
        assert not one.noexport


@given(name=names)
def test_each_name_of_mqtt_comes_back_as_it_was(name: str) -> None:
    check_topic(topic_of(name))
    assert mqtt_topic_of(topic_of(name)) == name


@given(topic=native_topics)
def test_clients_of_mqtt_see_legal_names_and_what_they_can_say(topic: str) -> None:
    name = mqtt_topic_of(topic)
    if name is not None:
        codec_topics.check_name(name, V5)
        assert topic_of(name) == topic
        return
    if not topic.startswith("$P2P"):
        with pytest.raises(PacketError):
            codec_topics.check_name(topic.removeprefix("#P2P"), V5)


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("#P2P/QUE/q", "$P2P/QUE/q"),
        ("#P2P", "$P2P"),
        ("#P2Px", None),
        ("#LOG/a", None),
        ("$P2P/x", None),
        ("$P2Px", "$P2Px"),
        ("a/b+", None),
        ("#P2P/a#", None),
        ("a*/>", "a*/>"),
    ],
)
def test_how_topics_are_said_in_mqtt(topic: str, name: str | None) -> None:
    assert mqtt_topic_of(topic) == name
