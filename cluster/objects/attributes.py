"""What all attributes share: the words and limits from which the structs of the kinds are made."""

from __future__ import annotations

import fnmatch
import re
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

#: The name of the Message VPN, username and profiles that exist from the first start.
DEFAULT_NAME: Final = "default"
#: Bytes of the name of a username, so that its key fits the store.
MAX_NAME_BYTES: Final = 189
#: Bytes of one topic, filter or share name.
MAX_TOPIC_BYTES: Final = 250
#: The largest count, and the largest number of seconds, that the reference broker takes.
COUNT_MAX: Final = 4_294_967_295
#: Megabytes of the largest spool quota.
SPOOL_MB_MAX: Final = 6_000_000
#: Endpoints, and flows to clients, that a Message VPN or a client may be allowed.
FLOWS_MAX: Final = 200_000
#: Producers that a Message VPN or a client may be allowed.
PRODUCERS_MAX: Final = 1_000_000

#: The attributes of one object: what operators set, and what the node set beside them.
Attributes = dict[str, Any]
#: Whether a message is acknowledged after it is on disk (synced) or before (relaxed): docs/guarantees.md.
Durability = Literal["synced", "relaxed"]
Text = Annotated[str, Meta(max_length=MAX_TOPIC_BYTES)]
Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Percent = Annotated[int, Meta(ge=0, le=100)]
MemoryBytes = Annotated[int, Meta(ge=0, le=1 << 40)]
SpoolMegabytes = Annotated[int, Meta(ge=0, le=SPOOL_MB_MAX)]
Flows = Annotated[int, Meta(ge=0, le=FLOWS_MAX)]
Producers = Annotated[int, Meta(ge=0, le=PRODUCERS_MAX)]
_THRESHOLD: Final = re.compile(r"(event_\w+)_(set|clear)_percent")
_UNIT: Final = re.compile(r"_(ms|s|mb)$")


def about(sentence: str, reference: str | None = None) -> Meta:
    """Attach a sentence to an attribute, and the reference's name where `reference_name` does not say it."""
    return Meta(description=sentence, extra={"reference": reference})


def own(sentence: str) -> Meta:
    """Attach a sentence to an attribute that the reference does not have."""
    return about(sentence, "")


def raises(limit: str, reference: str | None = None) -> Meta:
    """Describe the share of a limit that raises an event."""
    return about(f"Share of {limit} that raises an event.", reference)


def clears(limit: str, reference: str | None = None) -> Meta:
    """Describe the share of a limit that ends the event."""
    return about(f"Share of {limit} that ends it.", reference)


def reference_name(name: str) -> str:
    """Give what the reference calls most attributes of a name, without the object's prefix (MsgVpn...).

    max_connection_count                  maxConnectionCount
    max_ttl_s                             maxTtl
    event_connection_count_set_percent    eventConnectionCountThreshold.setPercent
    """
    if threshold := _THRESHOLD.fullmatch(name):
        return f"{reference_name(threshold[1])}Threshold.{threshold[2]}Percent"
    first, *words = _UNIT.sub("", name).split("_")
    return first + "".join(word.capitalize() for word in words)


def level_pattern(length_max: int) -> re.Pattern[str]:
    """Give the pattern of a name that is a level of a client name; `level_rule` says it in words."""
    first = r"[^*?'<>&/;\s\x00-\x1f\x7f\ud800-\udfff#]"
    other = r"[^*?'<>&/;\s\x00-\x1f\x7f\ud800-\udfff]"
    return re.compile(f"{first}{other}{{0,{length_max - 1}}}")


def level_rule(length_max: int) -> str:
    """Say what `level_pattern` takes."""
    return f"1 to {length_max} characters without * ? ' < > & / ; and blanks, and does not begin with #"


def is_like(text: str, pattern: str) -> bool:
    """Tell whether a text fits a pattern, in which * and ? stand for characters, and nothing else does."""
    return pattern == "*" or fnmatch.fnmatchcase(text, pattern.replace("[", "[[]"))
