"""Topics and filters: what is valid, what matches what, and which slot a topic hashes to.

This is the grammar, and the slow but obvious answer to every matching question. The fast answer is
`angarium.trie`, which is tested against `matches` here. Everybody uses this module: SDK, router, workers,
configuration. It keeps no state.

A topic is 1 to 250 bytes of UTF-8 without NUL, at most 128 levels divided by `/`; empty levels are legal. In
a topic `*`, `>` and `!` mean nothing special. In a filter a level is a wildcard in three cases only:

    filter      matches                       does not match
    a/*/c       a/b/c, a//c                   a/c, a/b/b/c            a lone `*` is exactly one level
    a/b*        a/b, a/bcd                    a/cb, a/b/c             `b*` is one level that starts with `b`
    a/>         a/b, a/b/c, a/                a                       a last level `>` is one or more levels
    a/*b, a>    the topics `a/*b` and `a>`    a/bb, a/b               anything else is literal

Two families of topics are shy. A filter that starts with any wildcard never matches a topic that starts with
`#P2P`, and one that starts with a lone `*` or with `>` never matches a topic that starts with `$`;
`#P2P/x/>` and `$S*` do match.

A filter may carry two prefixes, in this order: `#noexport/` (other nodes are not told) and `#share/<name>/`
(one member of the group gets each message). What is left is the pattern, the part that is matched.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

import msgspec

from angarium import errors

#: Topics hash to so many slots, and slots map to workers; far more than workers, so that a move is
#: fine-grained.
SLOTS: Final = 1024
#: The limits of the field's reference broker; applications rely on both.
MAX_TOPIC_BYTES: Final = 250
MAX_TOPIC_LEVELS: Final = 128

NOEXPORT_PREFIX: Final = "#noexport/"
SHARE_PREFIX: Final = "#share/"
LOG_PREFIX: Final = "#LOG/"
#: Topics that start so are addresses of one client or queue; no leading wildcard reaches them.
POINT_TO_POINT_PREFIX: Final = "#P2P"
#: Inboxes for replies. Nobody can guess them, so publishing to them needs no ACL.
INBOX_PREFIX: Final = "#P2P/INB/"
_HIDDEN_PREFIX: Final = "$"
_RESERVED_PREFIXES: Final = (SHARE_PREFIX, NOEXPORT_PREFIX, LOG_PREFIX)


class Filter(msgspec.Struct, frozen=True, gc=False):
    """A filter taken apart.

    Attributes:
        text: the filter as it was given.
        pattern: what is matched: `text` without `#noexport/` and `#share/<name>/`.
        levels: the levels of `pattern`.
        share: the name of the share group, or None.
        noexport: whether other nodes must not be told about it.
        wildcard: whether some level of `pattern` is a wildcard.
    """

    text: str
    pattern: str
    levels: tuple[str, ...]
    share: str | None
    noexport: bool
    wildcard: bool


def slot_of(topic: str) -> int:
    """Give the slot to which a topic hashes."""
    return crc32(topic.encode()) & (SLOTS - 1)


def check_topic(topic: str) -> None:
    """Return if a topic may be published to, as far as its form goes.

    Raises:
        InvalidRequestError: it is no valid topic (40004).
    """
    fault = _fault(topic)
    if fault:
        raise errors.error_for(errors.INVALID_TOPIC, fault)


def is_reserved_topic(topic: str) -> bool:
    """Tell whether only the broker itself may publish to a topic."""
    return topic.startswith(_RESERVED_PREFIXES)


def parse_filter(text: str) -> Filter:
    """Take a filter apart.

    Raises:
        InvalidRequestError: it is no valid filter (40005), or its share name is empty or has `*` or `>` in
        it (40006).
    """
    fault = _fault(text)
    if fault:
        raise errors.error_for(errors.INVALID_FILTER, fault)
    if text[0] != "#":  # nearly always: it has no prefix
        levels = tuple(text.split("/"))
        return Filter(text, text, levels, share=None, noexport=False, wildcard=has_wildcard(text))
    noexport = text.startswith(NOEXPORT_PREFIX)
    pattern = text[len(NOEXPORT_PREFIX) :] if noexport else text
    share: str | None = None
    if pattern.startswith(SHARE_PREFIX):
        share, _, pattern = pattern[len(SHARE_PREFIX) :].partition("/")
        if not share or "*" in share or ">" in share:
            raise errors.error_for(errors.INVALID_SHARE_NAME, f"{share!r} in filter {text!r}")
    if not pattern:
        raise errors.error_for(
            errors.INVALID_FILTER, f"nothing to match is left of {text!r} after its prefixes"
        )
    if pattern.startswith((NOEXPORT_PREFIX, SHARE_PREFIX)):
        detail = f"{text!r}: #noexport/ comes first, #share/<name>/ second, each at most once"
        raise errors.error_for(errors.INVALID_FILTER, detail)
    levels = tuple(pattern.split("/"))
    return Filter(text, pattern, levels, share, noexport, has_wildcard(pattern))


def has_wildcard(pattern: str) -> bool:
    """Tell whether some level of a pattern is a wildcard, so that it can match more than one topic."""
    if "*" not in pattern:
        return pattern.endswith(">") and (pattern == ">" or pattern.endswith("/>"))
    return pattern.endswith(("*", "/>")) or "*/" in pattern


def matches(pattern: str, topic: str) -> bool:
    """Tell whether a pattern matches a topic: the reference that everything faster is tested against."""
    wanted, is_open = _open_levels(pattern)
    levels = topic.split("/")
    if _is_shy(wanted[0], topic):
        return False
    if len(levels) < len(wanted) or (len(levels) > len(wanted) and not is_open):
        return False
    return all(_level_matches(one, level) for one, level in zip(wanted, levels, strict=False))


def overlaps(a: str, b: str) -> bool:
    """Tell whether there is a topic that both patterns match (its length apart)."""
    left, left_open = _open_levels(a)
    right, right_open = _open_levels(b)
    # Only an open pattern reaches further than it is long, so the shorter one must be open.
    if len(left) < len(right) and not left_open:
        return False
    if len(right) < len(left) and not right_open:
        return False
    pairs = list(zip(left, right, strict=False))
    return _firsts_overlap(*pairs[0]) and all(_levels_overlap(one, two) for one, two in pairs[1:])


def covers(general: str, special: str) -> bool:
    """Tell whether every topic that `special` matches is matched by `general` too."""
    outer, outer_open = _open_levels(general)
    inner, inner_open = _open_levels(special)
    if outer_open:
        if len(inner) < len(outer):
            return False
    elif inner_open or len(inner) != len(outer):
        return False
    pairs = list(zip(outer, inner, strict=False))
    return _first_covers(*pairs[0]) and all(_level_covers(one, two) for one, two in pairs[1:])


def level_prefix(level: str) -> str | None:
    """Give what a level must start with to match a wildcard level, "" for a lone `*`; None if literal."""
    return level[:-1] if level.endswith("*") else None


def _fault(text: str) -> str:
    """Say what is wrong with a text as topic or filter; empty if nothing is."""
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        return f"{text[:MAX_TOPIC_BYTES]!r} has no UTF-8 form"
    if not 1 <= size <= MAX_TOPIC_BYTES:
        return f"{text[:MAX_TOPIC_BYTES]!r} has {size} bytes, allowed are 1 to {MAX_TOPIC_BYTES}"
    if "\0" in text:
        return f"{text!r} has a NUL in it"
    if text.count("/") >= MAX_TOPIC_LEVELS:
        return f"{text!r} has {text.count('/') + 1} levels, at most {MAX_TOPIC_LEVELS} are allowed"
    return ""


def _is_shy(first: str, topic: str) -> bool:
    """Tell whether a topic hides from filters with this first level (`*` stands for `>` as well)."""
    if topic.startswith(POINT_TO_POINT_PREFIX):
        return first.endswith("*")
    return first == "*" and topic.startswith(_HIDDEN_PREFIX)


def _level_matches(wanted: str, level: str) -> bool:
    prefix = level_prefix(wanted)
    return wanted == level if prefix is None else level.startswith(prefix)


def _open_levels(pattern: str) -> tuple[list[str], bool]:
    """Split a pattern; a last `>` becomes `*` (it takes at least one level) and the second value True."""
    levels = pattern.split("/")
    if levels[-1] != ">":
        return levels, False
    levels[-1] = "*"
    return levels, True


def _levels_overlap(one: str, two: str) -> bool:
    """Tell whether some text matches both levels."""
    first, second = level_prefix(one), level_prefix(two)
    if first is None:
        return _level_matches(two, one)
    if second is None:
        return two.startswith(first)
    return first.startswith(second) or second.startswith(first)


def _firsts_overlap(one: str, two: str) -> bool:
    """Tell the same of two first levels, which do not match every topic."""
    if not _levels_overlap(one, two):
        return False
    # The longer literal part begins every first level that both match, and that alone decides who is shy.
    longest = max(one.removesuffix("*"), two.removesuffix("*"), key=len)
    return not (_is_shy(one, longest) or _is_shy(two, longest))


def _level_covers(outer: str, inner: str) -> bool:
    """Tell whether every text that matches the inner level matches the outer one."""
    prefix = level_prefix(outer)
    if prefix is None:
        return outer == inner
    inner_prefix = level_prefix(inner)
    return (inner if inner_prefix is None else inner_prefix).startswith(prefix)


def _first_covers(outer: str, inner: str) -> bool:
    """Tell the same of two first levels, where a topic may hide from the outer one alone."""
    if not _level_covers(outer, inner):
        return False
    inner_prefix = level_prefix(inner)
    if inner_prefix is None:
        return not _is_shy(outer, inner)
    return not (outer == "*" and inner_prefix.startswith(_HIDDEN_PREFIX))
