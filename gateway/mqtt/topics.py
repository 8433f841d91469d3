"""Topics and filters of MQTT in our own grammar, and ours in that of MQTT.

    MQTT filter         ours                        why
    a/+/c               a/*/c                       one level
    a/#                 a, a/>                      MQTT's wildcard takes its parent too, ours does not
    #, +/a              >, */a                      neither matches a topic that starts with `$`, there or here
    $P2P/QUE/q          #P2P/QUE/q                  addresses of clients and queues; no name of MQTT has a `#`
    $share/g/a/#        #share/g/a, #share/g/a/>    shared

Refused as filters are those that would mean more to us than they say: a level that ends in `*`, a last literal level
`>`, and a leading `!`. In topics these are ordinary characters, in both grammars. The other way round topics with a `+`
or `#` in them cannot be said to clients of MQTT, nor can those of ours that start with the level `$P2P`.

What is legal MQTT is the codec's business, which has looked at everything that comes here. No state but a cache of what
depends only on its argument.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from angarium import errors
from angarium.topic import POINT_TO_POINT_PREFIX, SHARE_PREFIX, parse_filter
from gateway.mqtt.codec import topics

#: Filters of which ours are remembered: each is asked for some times while its SUBSCRIBE is under way.
KNOWN_MAX: Final = 256
#: The first level of addresses as clients of MQTT write it.
_ADDRESS: Final = "$P2P"


@lru_cache(KNOWN_MAX)
def filters_of(text: str) -> tuple[str, ...]:
    """Give the filters that together match what a filter of MQTT does, each topic by one of them.

    Raises:
        InvalidRequestError: it cannot be said here, or is too long (INVALID_FILTER), or its share name cannot
            (INVALID_SHARE_NAME).
    """
    shared = topics.shared(text)
    prefix = f"{SHARE_PREFIX}{shared.name}/" if shared else ""
    found = tuple([prefix + pattern for pattern in _patterns_of(shared.filter if shared else text)])
    for one in found:
        parse_filter(one)
    return found


def _patterns_of(text: str) -> tuple[str, ...]:
    """Give the patterns of a filter that is not shared."""
    levels = text.split("/")
    is_open = levels[-1] == "#"
    if is_open:
        levels.pop()
    if text[:1] == "!" or levels[-1:] == [">"] or any(level.endswith("*") for level in levels):
        detail = f"{text!r}: a level that ends in '*', a last level '>' and a leading '!' have another meaning here"
        raise errors.error_for(errors.INVALID_FILTER, detail)
    if levels[:1] == [_ADDRESS]:
        levels[0] = POINT_TO_POINT_PREFIX
    pattern = "/".join(["*" if level == "+" else level for level in levels])
    if not is_open:
        return (pattern,)
    below = f"{pattern}/>" if levels else ">"
    return (pattern, below) if pattern else (below,)


def topic_of(name: str) -> str:
    """Give the topic that a topic name of MQTT stands for; whether one may publish to it is judged elsewhere."""
    if name.startswith(_ADDRESS) and name[len(_ADDRESS) :][:1] in ("", "/"):
        return POINT_TO_POINT_PREFIX + name[len(_ADDRESS) :]
    return name


def mqtt_topic_of(topic: str) -> str | None:
    """Give the topic name by which clients of MQTT know a topic; None if it has none."""
    first, slash, rest = topic.partition("/")
    if first == _ADDRESS:
        return None
    name = f"{_ADDRESS}{slash}{rest}" if first == POINT_TO_POINT_PREFIX else topic
    return None if "#" in name or "+" in name else name
