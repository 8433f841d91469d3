"""What all attributes share: the words and limits from which the structs of the kinds are made."""

from __future__ import annotations

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


def about(sentence: str, reference: str = "") -> Meta:
    """Attach a sentence and the reference's name (MsgVpn..., without the object's prefix) to an attribute."""
    return Meta(description=sentence, extra={"reference": reference})


def level_pattern(length_max: int) -> re.Pattern[str]:
    """Give the pattern of a name that is a level of a client name; `level_rule` says it in words."""
    first = r"[^*?'<>&/;\s\x00-\x1f\x7f\ud800-\udfff#]"
    other = r"[^*?'<>&/;\s\x00-\x1f\x7f\ud800-\udfff]"
    return re.compile(f"{first}{other}{{0,{length_max - 1}}}")


def level_rule(length_max: int) -> str:
    """Say what `level_pattern` takes."""
    return f"1 to {length_max} characters without * ? ' < > & / ; and blanks, and does not begin with #"
