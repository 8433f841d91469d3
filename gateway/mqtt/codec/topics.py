"""Topic names and topic filters as MQTT spells them: what is legal, and what a shared filter is made of.

    topic name      legal: a/b, /, a//b, $SYS/x          not: (nothing), a/+, a#
    topic filter    legal: a/b, +, a/+/c, a/#, #, +/+    not: (nothing), a+, a/b#, #/a, a/#/b
    shared          legal: $share/workers/a/#            not: $share, $share/workers, $share//a, $share/w+/a, $share/w/

What they match, and how they are said in our own grammar, is not the codec's business; nor are limits of length.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gateway.mqtt.codec import errors
from gateway.mqtt.codec.errors import PacketError
from gateway.mqtt.codec.kinds import V5

SHARE: Final = "$share"


class Shared(NamedTuple):
    """A shared filter taken apart."""

    name: str
    filter: str


def check_name(topic: str, version: int, rule: errors.Rule = errors.TOPIC_WILDCARD) -> None:
    """Refuse what is no topic name [MQTT-3.3.2-2] [MQTT-4.7.0-1] [MQTT-4.7.3-1]."""
    if not topic:
        raise PacketError(errors.EMPTY_TOPIC, "an empty one", version)
    if "+" in topic or "#" in topic:
        raise PacketError(rule, repr(topic), version)


def check_filter(text: str, version: int) -> None:
    """Refuse what is no topic filter, shared or not [MQTT-4.8.2-1] [MQTT-4.8.2-2]; 3.1.1 knows no shared ones."""
    if version == V5 and text.partition("/")[0] == SHARE:
        name, pattern = shared(text) or Shared("", "")
        if not name or not pattern or "+" in name or "#" in name:
            raise PacketError(errors.SHARE_NAME, repr(text), version)
        text = pattern
    _check_wildcards(text, version)


def shared(text: str) -> Shared | None:
    """Take a shared filter apart; None if it is not shared. Parts that are missing are empty."""
    prefix, slash, rest = text.partition("/")
    if prefix != SHARE or not slash:
        return None
    name, _, pattern = rest.partition("/")
    return Shared(name, pattern)


def _check_wildcards(text: str, version: int) -> None:
    """Refuse wildcards where they may not be [MQTT-4.7.1-1] [MQTT-4.7.1-2]."""
    if not text:
        raise PacketError(errors.EMPTY_FILTER, "an empty one", version)
    if "#" in text and (text.index("#") != len(text) - 1 or not f"/{text}".endswith("/#")):
        raise PacketError(errors.MULTI_LEVEL_WILDCARD, repr(text), version)
    if "+" in text and any("+" in level and level != "+" for level in text.split("/")):
        raise PacketError(errors.SINGLE_LEVEL_WILDCARD, repr(text), version)
