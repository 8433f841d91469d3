"""How often one source may have an event kept: what a client causes does not push the events of others out of the log.

A source is who an event is about: a client username, else a client, else an endpoint; and all that clients of a Message
VPN change in the configuration. Each may bring a burst, and then so many a minute; what is more is counted and told
once a minute in one event. What operators and the node itself do has no source, and is always kept. The clock is given.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

Event = dict[str, Any]

#: Events that are left out are told so often.
SUMMARY_INTERVAL_S: Final = 60.0
#: Sources that are told apart; those beyond are one together.
SOURCES_MAX: Final = 1_000
#: Kinds of events that a summary names, the most frequent ones.
KINDS_MAX: Final = 5
SUMMARY_EVENT: Final = "SYSTEM_EVENTS_LEFT_OUT"
#: Fields that name a source, the first one that an event has.
_FIELDS: Final = ("username", "client", "endpoint")

#: (field, Message VPN, name)
Source = tuple[str, str, str]
OTHERS: Final[Source] = ("others", "", "")


def clients_of(vpn: str) -> Source:
    """Give the source of what clients of a Message VPN change in the configuration."""
    return ("clients", vpn, "")


def source_of(event: Event) -> Source | None:
    """Give the source of an event that a process tells; None if it is the node's own."""
    for field in _FIELDS:
        if field in event:
            return field, str(event.get("vpn", "")), str(event[field])
    return None


class _Allowance:
    """What a source may still bring."""

    __slots__ = ("left_out", "level", "stamp", "tell_at")

    def __init__(self, level: float, now: float) -> None:
        #: Events that it may have kept at the time `stamp`; at most the burst.
        self.level = level
        self.stamp = now
        #: Name of the event -> how many were left out since the last summary; that is due then.
        self.left_out: Counter[str] = Counter()
        self.tell_at = 0.0


class EventLimits:
    """Decides which events are kept."""

    def __init__(self, burst: int, per_minute: int, now: float = 0.0) -> None:
        self._burst = burst
        self._per_s = per_minute / 60
        self._now = now
        #: Those that have brought events of late; at most SOURCES_MAX, and OTHERS.
        self._sources: dict[Source, _Allowance] = {}

    def admits(self, source: Source | None, name: str) -> bool:
        """Tell whether an event is kept; one that is not is counted."""
        if source is None:
            return True
        allowance = self._allowance(source)
        allowance.level = min(self._burst, allowance.level + (self._now - allowance.stamp) * self._per_s)
        allowance.stamp = self._now
        if allowance.level >= 1:
            allowance.level -= 1
            return True
        if not allowance.left_out:
            allowance.tell_at = self._now + SUMMARY_INTERVAL_S
        allowance.left_out[name] += 1
        return False

    def tick(self, now: float) -> Iterator[dict[str, Any]]:
        """Give the summaries that are due, and forget sources that have their whole burst again."""
        self._now = now
        for source, allowance in list(self._sources.items()):
            if allowance.left_out and now >= allowance.tell_at:
                yield _summary(source, allowance.left_out)
                allowance.left_out = Counter()
            elif (
                not allowance.left_out
                and (now - allowance.stamp) * self._per_s >= self._burst - allowance.level
            ):
                del self._sources[source]

    def _allowance(self, source: Source) -> _Allowance:
        found = self._sources.get(source)
        if found is None:
            key = source if len(self._sources) < SOURCES_MAX else OTHERS
            found = self._sources.get(key)
            if found is None:
                found = self._sources[key] = _Allowance(self._burst, self._now)
        return found


def _summary(source: Source, left_out: Counter[str]) -> dict[str, Any]:
    field, vpn, name = source
    if field == "others":
        who: str = "other sources"
    elif field == "clients":
        who = f"clients of Message VPN {vpn!r}"
    else:
        who = f"{field} {name!r}" + (f" in Message VPN {vpn!r}" if vpn else "")
    kinds = ", ".join(f"{count} x {kind}" for kind, count in left_out.most_common(KINDS_MAX))
    return {
        "severity": "warning",
        "scope": "SYSTEM",
        "event": SUMMARY_EVENT,
        "text": f"{left_out.total()} events about {who} were not kept, there were too many: {kinds}",
        "count": left_out.total(),
        **({"vpn": vpn} if vpn else {}),
        **({field: name} if name else {}),
    }
