"""The grammar of topics and filters, by example and against generated topics."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from angarium import errors
from angarium.topic import (
    MAX_TOPIC_BYTES,
    MAX_TOPIC_LEVELS,
    SLOTS,
    check_topic,
    covers,
    has_wildcard,
    is_reserved_topic,
    matches,
    overlaps,
    parse_filter,
    slot_of,
)

# Few letters and levels, so that filters meet topics often; the shy first levels are among them.
_LEVELS = ["", "a", "ab", "b", "*", ">", "!a"]
_FIRST_LEVELS = [*_LEVELS, "$", "$S", "#P2P", "#P2Px", "#P2", "#share"]
_FILTER_LEVELS = [*_LEVELS, "a*", "ab*", "**", "a*b", "a>"]
_FIRST_FILTER_LEVELS = [*_FILTER_LEVELS, *_FIRST_LEVELS, "$*", "$S*", "#*", "#P*", "#P2P*", "#P2Px*"]


def _joined(first: list[str], others: list[str]) -> st.SearchStrategy[str]:
    rest = st.lists(st.sampled_from(others), max_size=3)
    return (
        st.tuples(st.sampled_from(first), rest).map(lambda pair: "/".join([pair[0], *pair[1]])).filter(bool)
    )


TOPICS = _joined(_FIRST_LEVELS, _LEVELS)
PATTERNS = _joined(_FIRST_FILTER_LEVELS, _FILTER_LEVELS)


def _code_of(call: object, *arguments: object) -> int:
    with pytest.raises(errors.AngariumError) as raised:
        call(*arguments)  # type: ignore[operator]
    return raised.value.code


@pytest.mark.parametrize(
    ("pattern", "topic"),
    [
        ("a/b", "a/b"),
        ("a/*/c", "a/b/c"),
        ("a/*/c", "a//c"),
        ("a/b*", "a/b"),
        ("a/b*", "a/bcd"),
        ("a/>", "a/b"),
        ("a/>", "a/b/c"),
        ("a/>", "a/"),
        (">", "a"),
        (">", "a/b/c"),
        (">", "/"),
        ("*", "a"),
        ("*/b*/>", "a/bc/d/e"),
        ("a/*b", "a/*b"),
        ("a/x*y/c", "a/x*y/c"),
        ("a>", "a>"),
        ("a/>/b", "a/>/b"),
        ("!a/b", "!a/b"),
        ("a/**", "a/*x"),
        ("$S*/a", "$SYS/a"),
        ("$SYS/>", "$SYS/a"),
        ("a/*", "a/$x"),
        ("#P2P/x/>", "#P2P/x/y"),
        (">", "#LOG/INFO"),
        ("#*/x", "#MCAST/x"),
        ("é*/b", "éa/b"),
    ],
)
def test_a_filter_matches_a_topic(pattern: str, topic: str) -> None:
    assert matches(pattern, topic)


@pytest.mark.parametrize(
    ("pattern", "topic"),
    [
        ("a/b", "a/B"),
        ("a/*/c", "a/c"),
        ("a/*/c", "a/b/b/c"),
        ("a/b*", "a/cb"),
        ("a/b*", "a/b/c"),
        ("a/>", "a"),
        ("a/>", "ab"),
        ("a/*b", "a/bb"),
        ("a>", "ab"),
        ("a>", "a/b"),
        ("a/>/b", "a/c/b"),
        ("a", "a/"),
        ("*", "a/b"),
        ("!a/b", "a/b"),
    ],
)
def test_a_filter_does_not_match_a_topic(pattern: str, topic: str) -> None:
    assert not matches(pattern, topic)


@pytest.mark.parametrize("pattern", [">", "*/>", "*/x/y", "#*/>", "#P2P*/x/y", "#P*/x/y"])
def test_no_leading_wildcard_reaches_a_point_to_point_topic(pattern: str) -> None:
    assert not matches(pattern, "#P2P/x/y")


@pytest.mark.parametrize("pattern", [">", "*/>", "*/x"])
def test_a_lone_leading_wildcard_does_not_reach_a_topic_that_starts_with_a_dollar(pattern: str) -> None:
    assert not matches(pattern, "$SYS/x")


@pytest.mark.parametrize(
    "topic", ["a", "/", "a//b", "a/", "a/*/b", ">", "!x", "a b", "é" * 125, "x" * 250, "/" * 127]
)
def test_a_valid_topic_passes(topic: str) -> None:
    check_topic(topic)


@pytest.mark.parametrize(
    "topic",
    ["", "x" * (MAX_TOPIC_BYTES + 1), "é" * 126, "a\0b", "/" * MAX_TOPIC_LEVELS, "\ud800", "a/\udfff" * 400],
)
def test_an_invalid_topic_is_refused_and_so_is_the_same_text_as_filter(topic: str) -> None:
    assert _code_of(check_topic, topic) == errors.INVALID_TOPIC
    assert _code_of(parse_filter, topic) == errors.INVALID_FILTER


@pytest.mark.parametrize("topic", ["#share/g/a", "#share/", "#noexport/a", "#LOG/INFO/x"])
def test_topics_of_the_broker_are_reserved(topic: str) -> None:
    assert is_reserved_topic(topic)


@pytest.mark.parametrize("topic", ["#P2P/QUE/q", "#share", "a/#share/g", "#LOGS/x", "_x", "#log/x"])
def test_other_topics_are_not_reserved(topic: str) -> None:
    assert not is_reserved_topic(topic)


def test_a_plain_filter_is_its_own_pattern() -> None:
    parsed = parse_filter("a/*/c")
    assert (parsed.text, parsed.pattern, parsed.levels) == ("a/*/c", "a/*/c", ("a", "*", "c"))
    assert (parsed.share, parsed.noexport, parsed.wildcard) == (None, False, True)
    assert not parse_filter("a/b").wildcard


@pytest.mark.requirement("R15", "R22")
def test_a_shared_filter_has_a_share_name_and_a_pattern_with_wildcards() -> None:
    parsed = parse_filter("#share/group 1/a/*/c*/>")
    assert (parsed.share, parsed.pattern, parsed.noexport) == ("group 1", "a/*/c*/>", False)
    assert parsed.wildcard
    assert matches(parsed.pattern, "a/x/cd/e")


@pytest.mark.requirement("R18")
def test_noexport_comes_first_and_is_no_part_of_the_pattern() -> None:
    shared = parse_filter("#noexport/#share/g/a/b")
    assert (shared.noexport, shared.share, shared.pattern) == (True, "g", "a/b")
    plain = parse_filter("#noexport/a/>")
    assert (plain.noexport, plain.share, plain.pattern, plain.wildcard) == (True, None, "a/>", True)


@pytest.mark.requirement("R16")
@pytest.mark.parametrize("name", ["*", "g*", "*g", "g*h", ">", "g>", ">g", ""])
def test_a_share_name_is_refused_if_it_is_empty_or_has_a_wildcard(name: str) -> None:
    assert _code_of(parse_filter, f"#share/{name}/a") == errors.INVALID_SHARE_NAME
    assert _code_of(parse_filter, f"#noexport/#share/{name}/a") == errors.INVALID_SHARE_NAME


@pytest.mark.parametrize(
    "text",
    [
        "#noexport/",
        "#share/g",
        "#share/g/",
        "#noexport/#share/g/",
        "#share/g/#noexport/a",
        "#share/g/#share/h/a",
        "#noexport/#noexport/a",
    ],
)
def test_a_filter_is_refused_if_its_prefixes_leave_nothing_or_are_in_the_wrong_order(text: str) -> None:
    assert _code_of(parse_filter, text) == errors.INVALID_FILTER


@pytest.mark.parametrize(
    ("pattern", "expected"), [("#share", False), ("#noexport", False), ("#shared/*", True)]
)
def test_only_a_whole_first_level_is_a_prefix(pattern: str, expected: bool) -> None:
    parsed = parse_filter(pattern)
    assert (parsed.pattern, parsed.wildcard, parsed.share) == (pattern, expected, None)


@pytest.mark.requirement("R210")
def test_a_slot_is_the_crc32_of_the_topic_modulo_1024() -> None:
    assert SLOTS == 1024
    assert slot_of("a/b") == zlib.crc32(b"a/b") % 1024
    assert slot_of("é/ü") == zlib.crc32("é/ü".encode()) % 1024
    assert len({slot_of(f"topic/{number}") for number in range(20_000)}) == SLOTS


@settings(deadline=None)
@given(PATTERNS, TOPICS)
def test_a_pattern_without_wildcard_matches_itself_alone(pattern: str, topic: str) -> None:
    if not has_wildcard(pattern):
        assert matches(pattern, topic) == (pattern == topic)
        assert matches(pattern, pattern)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("a/b", "a/b"),
        ("a/*", "*/b"),
        ("a/>", "*/b/c"),
        ("a/b*", "a/bc*"),
        ("a/>", "a/b/>"),
        (">", "*"),
        ("a*/x", "ab/*"),
        ("$S*", "$*"),
        ("#P2P/x/>", "#P2P/*/y"),
        ("#*", "#P*"),
    ],
)
def test_two_patterns_overlap(a: str, b: str) -> None:
    assert overlaps(a, b)
    assert overlaps(b, a)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("a/b", "a/c"),
        ("a/>", "a"),
        ("a/*", "a/b/c"),
        ("a/b*", "a/c*"),
        ("a/b/>", "a/*"),
        (">", "$SYS/a"),
        ("*", "$S*"),
        (">", "#P2P/x"),
        ("#*/x", "#P2P/x"),
        ("#P*", "#P2P*"),
    ],
)
def test_two_patterns_do_not_overlap(a: str, b: str) -> None:
    assert not overlaps(a, b)
    assert not overlaps(b, a)


@pytest.mark.parametrize(
    ("general", "special"),
    [
        ("a/b", "a/b"),
        ("a/*", "a/b"),
        ("a/*", "a/b*"),
        ("a/>", "a/b"),
        ("a/>", "a/*/c/>"),
        ("a/>", "a/>"),
        (">", "*"),
        (">", "a*/b"),
        ("a*", "ab*"),
        ("$*/>", "$SYS/x"),
        ("#P2P/x/>", "#P2P/x/y"),
    ],
)
def test_a_pattern_covers_another(general: str, special: str) -> None:
    assert covers(general, special)


@pytest.mark.parametrize(
    ("general", "special"),
    [
        ("a/b", "a/*"),
        ("a/b*", "a/*"),
        ("a/*", "a/>"),
        ("a/>", "a"),
        ("a/*/>", "a/>"),
        (">", "$SYS/x"),
        (">", "$S*"),
        (">", "#P2P/x/y"),
        ("*/x", "$*/x"),
        ("#*/>", "#P2P/x"),
        ("ab*", "a*"),
    ],
)
def test_a_pattern_does_not_cover_another(general: str, special: str) -> None:
    assert not covers(general, special)


@pytest.mark.slow
@given(PATTERNS, PATTERNS, st.lists(TOPICS, min_size=5, max_size=20))
def test_generated_topics_agree_with_overlaps_and_covers(a: str, b: str, topics: list[str]) -> None:
    """A single topic can refute both: one that both match, or one that only the special pattern matches."""
    for topic in topics:
        in_a, in_b = matches(a, topic), matches(b, topic)
        if in_a and in_b:
            assert overlaps(a, b), topic
        if in_b and not in_a:
            assert not covers(a, b), topic


@pytest.mark.slow
@given(PATTERNS, PATTERNS)
def test_what_overlaps_has_a_common_topic(a: str, b: str) -> None:
    """Level by level the longer literal part, lengthened where it is a wildcard's, is such a topic."""
    assert overlaps(a, b) == overlaps(b, a)
    assert covers(a, a)
    if overlaps(a, b):
        assert any(matches(a, topic) and matches(b, topic) for topic in _common_topics(a, b))
    if covers(a, b) and any(matches(b, topic) for topic in _common_topics(b, b)):
        assert overlaps(a, b)


def _common_topics(a: str, b: str) -> list[str]:
    """Give the candidates for a topic that two patterns match; one of them does if any does."""
    one, two = a.split("/"), b.split("/")
    size = max(len(one), len(two))
    candidates = []
    for ending in ("", "x"):
        levels = []
        for position in range(size):
            texts = []
            for pattern in (one, two):
                level = pattern[position] if position < len(pattern) else "*"
                wild = level.endswith("*") or (level == ">" and position == len(pattern) - 1)
                texts.append(
                    (level.removesuffix("*") + ending, True) if wild and level != ">" else (level, wild)
                )
                if wild and level == ">":
                    texts[-1] = (ending, True)
            literal = [text for text, wild in texts if not wild]
            levels.append(literal[0] if literal else max((text for text, _ in texts), key=len))
        candidates.append("/".join(levels))
    return candidates
