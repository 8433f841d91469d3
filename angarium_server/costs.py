"""What things cost in memory, in bytes, as `max_memory_bytes` and the bounds of caches count them.

Router and workers charge for what clients make them keep, so both take the figures from here. They are those of CPython
3.11 on 64 bits with everything that hangs on a thing, and a test measures each of them (`tests/unit/angarium_server`):
none is off by more than a factor of 1.5.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from angarium.topic import has_wildcard
from angarium.topic_cache import text_bytes

#: A topic in the cache of a worker, or of the fast path, without its text.
CACHED_TOPIC_BYTES: Final = 280
#: A set of filters without its filters, and one filter in a set: a place in a tuple.
SET_BYTES: Final = 280
SET_FILTER_BYTES: Final = 8
#: A session in a set that was resolved: a place in a dict.
RESOLVED_SESSION_BYTES: Final = 40
#: A batch that waits for a slow consumer, without its content.
BUNDLE_BYTES: Final = 160
#: A subscription in the router, with a filter of its own, without its text.
SUBSCRIPTION_BYTES: Final = 830
#: A filter in one worker, without its text and its levels.
FILTER_BYTES: Final = 220
#: A level of a filter with wildcards in one worker: a node of the tree and its edge. Literal ones have a text too, and
#: their characters.
LITERAL_LEVEL_BYTES: Final = 260
LEVEL_TEXT_BYTES: Final = 49
LONE_LEVEL_BYTES: Final = 76
PREFIX_LEVEL_BYTES: Final = 620
#: A flow in the router and at its home, without its selector; and a character of a selector, which is compiled.
FLOW_BYTES: Final = 6_000
SELECTOR_CHARACTER_BYTES: Final = 40
#: A will in the router, without its topic, properties and payload.
WILL_BYTES: Final = 700
#: A queue or topic endpoint in the router, at its home and in the controller, without its filters; and a partition: one
#: takes a third of this without consumers, and half as much again with one. None leaves because others come.
ENDPOINT_BYTES: Final = 12_000
PARTITION_BYTES: Final = 3_500


#: Shapes of filters of which is known what they take: applications have a few.
SHAPES_KNOWN_MAX: Final = 1_000


def set_bytes(filters: int) -> int:
    """Give what a set of so many filters takes in one process."""
    return SET_BYTES + SET_FILTER_BYTES * filters


def filter_bytes(pattern: str) -> int:
    """Give what a filter takes in each worker that holds it, if it shares no level with others."""
    size = FILTER_BYTES + text_bytes(pattern)
    return size + _levels_bytes(pattern) if has_wildcard(pattern) else size


def _levels_bytes(pattern: str) -> int:
    # Whoever subscribes to thousands waits for this, so levels are counted and not looked at.
    starred = pattern.count("*/") + pattern.endswith("*")
    lone = f"/{pattern.replace('/', '//')}/".count("/*/") if starred else 0
    return _structure_bytes(pattern.count("/") + 1, lone, starred - lone) + text_bytes(pattern)


def _structure_bytes(levels: int, lone: int, prefixes: int) -> int:
    """Give what levels take without their characters."""
    literal = levels - lone - prefixes
    size = literal * (LITERAL_LEVEL_BYTES + LEVEL_TEXT_BYTES) - LEVEL_TEXT_BYTES
    return size + lone * LONE_LEVEL_BYTES + prefixes * PREFIX_LEVEL_BYTES


@lru_cache(maxsize=SHAPES_KNOWN_MAX)
def _shape_bytes(shape: str) -> int:
    """Give what the levels of a filter of this shape take without their characters."""
    places = shape.split("/")
    lone = places.count("*")
    return _structure_bytes(len(places), lone, sum(place.isdigit() for place in places))


def subscription_bytes(text: str, pattern: str, workers: int, shape: str | None = None) -> int:
    """Give what a subscription takes in the router and the workers that hold its filter: one if it has no wildcard.

    Who knows the shape of a pattern with wildcards says it (`angarium_server.shapes`): it is sooner found then.
    """
    characters = text_bytes(pattern)
    size = FILTER_BYTES + characters
    if shape is not None:
        size = workers * (size + characters + _shape_bytes(shape))
    elif has_wildcard(pattern):
        size = workers * (size + _levels_bytes(pattern))
    return SUBSCRIPTION_BYTES + (characters if text is pattern else text_bytes(text)) + size


def flow_bytes(selector: str | None) -> int:
    """Give what a flow takes."""
    return FLOW_BYTES + SELECTOR_CHARACTER_BYTES * len(selector or "")
