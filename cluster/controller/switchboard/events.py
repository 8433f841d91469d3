"""Events: what happened on the node, for operators to look back on.

An event is a map {"id", "time", "severity", "scope", "event", "text", ...}: the time in UTC, a severity of
syslog, a scope of SYSTEM, VPN or CLIENT, the name that operators of the reference broker know (or one built
like it), and a sentence. Ids rise by one and go on after a restart. The newest are in memory; all are
appended to a file, one JSON object per line, that is rotated by size, so nothing grows without bound. Called
by the controller only.
"""

from __future__ import annotations

import fnmatch
import itertools
import json
import logging
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium import errors
from cluster.controller.switchboard.event_limits import EventLimits
from cluster.data.rotated_file import RotatedFile
from storage.headroom import NO_ROOM

if TYPE_CHECKING:
    from pathlib import Path

#: Events given in one answer; who wants more asks again from the last id.
ANSWER_MAX: Final = 10_000
FILE_NAME: Final = "events.jsonl"

Event = dict[str, Any]

_log = logging.getLogger(__name__)


class Followed(NamedTuple):
    """Events behind one of them, and where to go on."""

    events: list[Event]
    #: The id up to which everything was looked at.
    upto: int
    #: Events behind the asked id that are not kept any more; None: it is the id of no event.
    lost: int | None


class EventRing:
    """The newest events, oldest first."""

    def __init__(self, size: int, earlier: list[Event], limits: EventLimits | None = None) -> None:
        """Begin with the events of earlier runs; without limits with those of the default configuration."""
        #: How many of one source are kept.
        self.limits = limits or EventLimits(1_000, 60)
        #: Ids rise strictly; at most `size` of them, the oldest goes first.
        self._events: deque[Event] = deque(earlier, maxlen=size)
        self._next_id = earlier[-1]["id"] + 1 if earlier else 1

    def add(self, event: Event) -> Event:
        """Keep an event, and give it with its id."""
        kept = {"id": self._next_id, **{key: value for key, value in event.items() if key != "id"}}
        self._next_id += 1
        self._events.append(kept)
        return kept

    @property
    def newest(self) -> int:
        """Give the id of the newest event; 0 if there was none yet."""
        return self._next_id - 1

    def find(
        self, since: int | str | None, limit: int, vpn: str | None = None, name: str = "*"
    ) -> list[Event]:
        """Give the newest events, or the first ones after an id or from a time on.

        Args:
            since: an id, or an ISO time; None: the newest.
            limit: so many at most.
            vpn: of this Message VPN; None: of all, and of the node.
            name: a pattern with * and ? that their names are like.

        Raises:
            InvalidRequestError: `since` is neither an id nor an ISO time (40018).
        """
        limit = min(limit, ANSWER_MAX)
        if since is None:
            newest = (event for event in reversed(self._events) if _fits(event, vpn, name))
            return list(itertools.islice(newest, limit))[::-1]
        later = (event for event in self._since(since) if _fits(event, vpn, name))
        return list(itertools.islice(later, limit))

    def follow(self, since: int | str | None, limit: int, vpn: str | None, name: str) -> Followed:
        """Give the events behind an id, and where to go on; None is behind the newest. It costs what is new.

        Raises:
            InvalidRequestError: `since` is neither an id nor an ISO time (40018).
        """
        if since is None:
            return Followed([], self.newest, 0)
        is_known = isinstance(since, str) or 0 <= since <= self.newest
        later = self._since(since if is_known else 0)
        limit = min(limit, ANSWER_MAX)
        found = list(itertools.islice((event for event in later if _fits(event, vpn, name)), limit))
        upto = found[-1]["id"] if len(found) == limit else self.newest
        if not is_known:
            return Followed(found, upto, None)
        kept = sum(event["id"] <= upto for event in later)
        return Followed(found, upto, upto - since - kept if isinstance(since, int) else 0)

    def _since(self, since: int | str) -> list[Event]:
        """Give those after an id, or from a time on, the oldest first."""
        if isinstance(since, int):
            later = itertools.takewhile(lambda event: event["id"] > since, reversed(self._events))
            return list(later)[::-1]
        start = _parse_time(since)
        return [event for event in self._events if _parse_time(event["time"]) >= start]

    def validate(self) -> None:
        """Assert what the attribute comments say."""
        ids = [event["id"] for event in self._events]
        assert ids == sorted(set(ids)), "event ids rise strictly"
        assert not ids or ids[-1] < self._next_id, "the next id is new"


class EventFile:
    """The files behind the ring."""

    def __init__(self, directory: Path, bytes_max: int, files_max: int) -> None:
        """Name the files; nothing is opened before the first event."""
        self._file = RotatedFile(directory / FILE_NAME, bytes_max, files_max)

    def load(self, count: int) -> list[Event]:
        """Give the newest events of earlier runs, oldest first, without lines that a crash cut off."""
        self._file.end_last_line()
        found: list[Event] = []
        for path, lines in self._file.files():
            found = _read_lines(path, lines) + found
            if len(found) >= count:
                break
        return found[-count:]

    def append(self, event: Event) -> bool:
        """Append one event, and tell whether there was room for it; without, it is in memory only.

        Losing the last ones in a power cut is accepted, so nothing is synced.
        """
        try:
            self._file.append(json.dumps(event, ensure_ascii=False, default=str).encode() + b"\n")
        except OSError as error:
            if error.errno in NO_ROOM:
                return False
            _log.error("an event cannot be written: %s", error)
        return True


def _fits(event: Event, vpn: str | None, name: str) -> bool:
    return vpn in (None, event.get("vpn")) and (
        name == "*" or fnmatch.fnmatchcase(str(event.get("event")), name)
    )


def _read_lines(path: Path, lines: list[bytes]) -> list[Event]:
    found = []
    for line in lines:
        try:
            event = json.loads(line)
            _parse_time(event["time"])
            found.append({**event, "id": int(event["id"])})
        except (ValueError, KeyError, TypeError, errors.AngariumError):
            _log.warning("%s holds a line that is no event: %r", path, line[:100])
    return found


def _parse_time(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        detail = f"since {text!r} is neither the id of an event nor a time like 2031-05-04T10:11:12Z"
        raise errors.invalid(detail) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
