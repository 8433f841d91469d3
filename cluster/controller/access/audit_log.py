"""The audit log: what operators do is written down, each change, each refusal and each login, as a line of JSON.

    {"number": 7, "time": "2031-05-04T10:11:12.000Z", "who": "anna", "role": "administrator", "door": "management",
     "address": "10.0.0.7", "operation": "objects.update", "asked": {"kind": "queue", "vpn": "default", "name": "q"},
     "changes": [{"kind": "queue", "vpn": "default", "name": "q", "before": {"max_ttl_s": 0},
                  "after": {"max_ttl_s": 60}}],
     "outcome": "done"}

A change of objects is written when it is durable, everything else when it is answered; the answer waits for that. Reads
are not written: a page that refreshes itself would hide everything else; and refusals that repeat are counted. Of a
request only arguments that are known to hold no secret are kept, and of an object what the catalog knows, with
`(changed)` instead of secrets; so a secret does not get here by a misspelt name either. Each text, list and line has a
limit.

Pure: `AuditFile` keeps the lines. The newest are here too, for who asks for them.

Somebody who is refused can ask again without end, and the newest entries, which are what operators look at, would be
his alone. So the first is written at once, the others are counted, and a line with their number follows when the
minute is over. Of different refusals from one address so many are told apart; what is beyond counts as one.
"""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from angarium import errors
from cluster import objects
from cluster.admin.operations import CHANGES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cluster.controller.access.callers import Who

#: How long identical ones are counted instead of written.
FOLDED_S: Final = 60.0
#: Different ones of one address and door in that time.
DISTINCT_MAX: Final = 20
#: Of all addresses; with one more, the oldest is told of.
OPEN_MAX: Final = 2_000

_Key = tuple[str, str, str]


@dataclass(slots=True)
class _Repeat:
    """One refusal that was written, and those that were not."""

    began_s: float
    began: str
    #: The last of them.
    entry: dict[str, Any]
    #: Those that were not written.
    count: int = 0


class Repeats:
    """The refusals of the last minute."""

    def __init__(self) -> None:
        #: Door, address and what was refused -> how often; the oldest first.
        self._open: OrderedDict[_Key, _Repeat] = OrderedDict()
        #: Door and address -> how many of these are theirs.
        self._distinct: Counter[tuple[str, str]] = Counter()

    @property
    def is_counting(self) -> bool:
        """Whether there is a refusal whose minute is not over."""
        return bool(self._open)

    def folds(self, entry: dict[str, Any], time_s: float) -> bool:
        """Count a refusal; tell whether that is all, because one like it was written.

        Args:
            entry: as it would be written, with `time`.
            time_s: the same time.
        """
        place = (entry["door"], entry.get("address", ""))
        key = (*place, repr({name: value for name, value in entry.items() if name not in ("number", "time")}))
        if key not in self._open and self._distinct[place] >= DISTINCT_MAX:
            key = (*place, "")
            entry = {**entry, "is_various": True}
        repeat = self._open.get(key)
        if repeat is None:
            self._open[key] = _Repeat(time_s, entry["time"], entry)
            self._distinct[place] += 1
            return False
        repeat.entry = entry
        repeat.count += 1
        return True

    def due(self, time_s: float) -> Iterator[dict[str, Any]]:
        """Give what is to be written of those whose minute is over, and of the oldest if there are too many."""
        while self._open:
            oldest = next(iter(self._open.values()))
            # A clock that was set back must not keep them for long.
            if 0 <= time_s - oldest.began_s < FOLDED_S and len(self._open) <= OPEN_MAX:
                return
            yield from self._ended()

    def all(self) -> Iterator[dict[str, Any]]:
        """Give what is to be written of all: this is the end."""
        while self._open:
            yield from self._ended()

    def _ended(self) -> Iterator[dict[str, Any]]:
        key, repeat = self._open.popitem(last=False)
        self._distinct[key[:2]] -= 1
        if not self._distinct[key[:2]]:
            del self._distinct[key[:2]]
        if repeat.count:
            yield {**repeat.entry, "repeated": repeat.count, "since": repeat.began}

    def validate(self) -> None:
        """Assert what the attribute comments say."""
        assert self._distinct == Counter(key[:2] for key in self._open), "addresses are miscounted"


#: Changes that make room, or need none: they go on while the disk has no room for others.
RELIEVING: Final = frozenset(
    (
        *("objects.delete", "endpoints.purge", "messages.delete", "stages.abort", "clients.disconnect"),
        *("spool.drop", "spool.aside.delete", "cluster.token.delete", "down"),
    )
)
#: What a login is called; it is no operation.
LOGIN: Final = "login"
#: ... nor a promotion of a host, which is made before there is a controller.
PROMOTION: Final = "standby.promote"
DONE: Final = "done"
#: Any other outcome, as one.
REFUSED: Final = "refused"
#: Codes with which a read is written down as well.
_REFUSALS: Final = (errors.OPERATOR_DENIED, errors.UNAUTHORIZED)
#: Arguments that are kept; whatever else a request holds may be a secret.
_KEPT: Final = (
    *(
        "kind",
        "vpn",
        "name",
        "target_kind",
        "target",
        "selector",
        "limit",
        "partition",
        "positions",
        "add",
        "remove",
    ),
    *(
        "workers",
        "role",
        "index",
        "level",
        "names",
        "username",
        "id",
        "uses",
        "expires_s",
        "directory",
        "copy",
        "method",
        "subject",
        "reason",
        "prune",
        "does",
    ),
)
#: Attributes whose values are not kept. A file of authorities may hold a private key as well.
_SECRETS: Final = ("password", "ca_pem")
_HIDDEN: Final = "(changed)"

TEXT_MAX: Final = 256
ITEMS_MAX: Final = 20
#: Objects of one line, and of all lines about one request.
OBJECTS_OF_LINE_MAX: Final = 50
OBJECTS_MAX: Final = 1_000
LINE_BYTES_MAX: Final = 65_536
#: In memory; older ones are in the files.
ENTRIES_MAX: Final = 10_000
ENTRIES_BYTES_MAX: Final = 16 << 20
#: Entries of one answer.
ANSWER_MAX: Final = 1_000

Entry = dict[str, Any]
#: Whether lines find room: `low` means that the reserve is used.
Room = Literal["plenty", "low", "none"]


class Changed(NamedTuple):
    """An object before and after a change; None: there was none, or is none any more."""

    kind: str
    vpn: str
    name: str
    before: objects.Attributes | None
    after: objects.Attributes | None


@dataclass(slots=True)
class Deed:
    """What somebody asked for, until it is written down, once."""

    who: Who
    operation: str
    given: Mapping[str, Any]
    is_written: bool = False

    @property
    def is_change(self) -> bool:
        """Whether something is to change."""
        return self.operation in CHANGES and not self.given.get("dry_run")


class AuditLog:
    """The newest entries, the oldest first, and whether there is room for more."""

    def __init__(self, earlier: Iterable[Entry] = ()) -> None:
        """Go on after the entries of earlier runs."""
        #: Entries with the bytes of their lines; numbers rise strictly. Within both limits.
        self._entries: deque[tuple[Entry, int]] = deque()
        self._bytes = 0
        self._next = 1
        #: How many this controller has written, by their outcome.
        self.written = {DONE: 0, REFUSED: 0}
        #: As the file said last.
        self.room: Room = "plenty"
        self._repeats = Repeats()
        for entry in earlier:
            self._keep(entry, len(_line(entry)))

    def check_room(self, deed: Deed) -> None:
        """Refuse a change that could not be written down.

        Raises:
            UnavailableError: the disk is full (50329).
        """
        goes_on = self.room == "plenty" or (self.room == "low" and deed.operation in RELIEVING)
        if deed.is_change and not goes_on:
            raise errors.error_for(errors.DISK_FULL, "the audit log has no room, so nothing can be changed")

    def lines(
        self, deed: Deed, outcome: str | int, time: str, changed: Sequence[Changed] = ()
    ) -> list[bytes]:
        """Give what is to be written of a deed that has come to this; nothing if it is written, or not worth it."""
        is_told = deed.operation in (LOGIN, PROMOTION) or outcome in _REFUSALS
        if deed.is_written or not (is_told or (deed.is_change and outcome != errors.DISK_FULL)):
            return []
        deed.is_written = True
        if outcome in _REFUSALS or (deed.operation == LOGIN and outcome != DONE):
            return self._refusal({"time": time, **_head(deed), "outcome": outcome}, time)
        told = [one for one in map(_told, changed[:OBJECTS_MAX]) if one]
        left_out = max(0, len(changed) - OBJECTS_MAX)
        parts = [told[at : at + OBJECTS_OF_LINE_MAX] for at in range(0, len(told), OBJECTS_OF_LINE_MAX)] or [
            []
        ]
        found = []
        for part in parts:
            entry = {"number": self._next, "time": time, **_head(deed), "changes": part, "outcome": outcome}
            if left_out:
                entry["objects_left_out"] = left_out
            found.append(self._added({name: value for name, value in entry.items() if value != []}))
        return found

    def _refusal(self, entry: Entry, time: str) -> list[bytes]:
        """Give what is to be written of a refusal: nothing if it repeats one that was written."""
        time_s = moment_of(time).timestamp()
        is_folded = self._repeats.folds(entry, time_s)
        lines = [] if is_folded else [self._added({"number": self._next, **entry})]
        return lines + self._lines(self._repeats.due(time_s))

    def repeats(self, time: str) -> list[bytes]:
        """Give what is to be written by this time of refusals that were counted."""
        if not self._repeats.is_counting:
            return []
        return self._lines(self._repeats.due(moment_of(time).timestamp()))

    def end(self) -> list[bytes]:
        """Give what is to be written of all refusals that were counted: this is the end."""
        return self._lines(self._repeats.all())

    def _lines(self, entries: Iterable[Entry]) -> list[bytes]:
        return [self._added({"number": self._next, **entry}) for entry in entries]

    def _added(self, entry: Entry) -> bytes:
        line = _line(entry)
        if len(line) > LINE_BYTES_MAX:
            names = ("kind", "vpn", "name")
            entry["changes"] = [{name: one[name] for name in names} for one in entry.get("changes", ())]
            entry["is_cut"] = True
            line = _line(entry)
        self._keep(entry, len(line))
        self.written[DONE if entry["outcome"] == DONE else REFUSED] += 1
        return line

    def _keep(self, entry: Entry, size: int) -> None:
        self._entries.append((entry, size))
        self._bytes += size
        self._next = entry["number"] + 1
        while len(self._entries) > ENTRIES_MAX or self._bytes > ENTRIES_BYTES_MAX:
            self._bytes -= self._entries.popleft()[1]

    def find(self, since: int | str | None, who: str, limit: int) -> list[Entry]:
        """Give the newest entries, or the first ones after a number or from a time on; of one person or all.

        Raises:
            InvalidRequestError: `since` is neither a number nor an ISO time (40018).
        """
        limit = min(limit, ANSWER_MAX)
        found = [entry for entry, _ in self._entries if who in ("", entry.get("who"))]
        if since is None:
            return found[-limit:]
        if isinstance(since, int):
            return list(islice((entry for entry in found if entry["number"] > since), limit))
        start = moment_of(since)
        return list(islice((entry for entry in found if moment_of(entry["time"]) >= start), limit))

    def validate(self) -> None:
        """Assert what the attribute comments say."""
        numbers = [entry["number"] for entry, _ in self._entries]
        assert numbers == sorted(set(numbers)), "numbers rise strictly"
        assert not numbers or numbers[-1] < self._next, "the next number is new"
        self._repeats.validate()
        assert self._bytes == sum(size for _, size in self._entries), "the bytes are miscounted"


def moment_of(text: str) -> datetime:
    """Give a time that is written in ISO 8601, in UTC if it does not say.

    Raises:
        InvalidRequestError: it is none (40018).
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        detail = f"since {text!r} is neither the number of an entry nor a time like 2031-05-04T10:11:12Z"
        raise errors.invalid(detail) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _line(entry: Entry) -> bytes:
    # What is not ASCII is escaped: a lone surrogate has no bytes, and a line separator of Unicode ends lines for some.
    return json.dumps(entry, separators=(",", ":")).encode("ascii") + b"\n"


def _head(deed: Deed) -> Entry:
    """Give who asked for what."""
    name, role, vpn, door, address = deed.who
    head = {
        "who": _bounded(name),
        "role": role,
        **({"vpn": _bounded(vpn)} if vpn else {}),
        "door": door,
        **({"address": _bounded(address)} if address else {}),
        "operation": _bounded(deed.operation),
    }
    asked = {key: _bounded(deed.given[key]) for key in _KEPT if deed.given.get(key) is not None}
    attributes = deed.given.get("attributes")
    if isinstance(attributes, dict):
        kind = asked.get("kind")
        known = objects.names_of(kind) if isinstance(kind, str) and kind in objects.KINDS else ()
        asked["attributes"] = [name for name in attributes if name in known]
    return {**head, "asked": asked} if asked else head


def _told(changed: Changed) -> Entry | None:
    """Give an object with the attributes that differ; None: none does that somebody could set."""
    kind, vpn, name, before, after = changed
    whole = [one if one is None else _of_operators(kind, one) for one in (before, after)]
    if before is None or after is None:
        shown = [one if one is None else objects.differing(kind, one) for one in whole]
    else:
        differ = [key for key in whole[1] if whole[0].get(key) != whole[1][key]]  # type: ignore[union-attr,index]
        shown = [{key: one.get(key) for key in differ} for one in whole]  # type: ignore[union-attr]
        if not differ:
            return None
    was, becomes = _without_common(*shown)
    where = {"vpn": _bounded(vpn)} if vpn else {}
    return {"kind": kind, **where, "name": _bounded(name), "before": _values(was), "after": _values(becomes)}


def _of_operators(kind: str, attributes: objects.Attributes) -> objects.Attributes:
    known = objects.names_of(kind)
    return {name: value for name, value in attributes.items() if name in known}


def _without_common(
    before: objects.Attributes | None, after: objects.Attributes | None
) -> tuple[objects.Attributes | None, objects.Attributes | None]:
    """Give both with what went and what came of long lists, whose beginnings would mostly be the same."""
    if before is None or after is None:
        return before, after
    was, becomes = dict(before), dict(after)
    for name, new in after.items():
        old = before[name]
        if isinstance(new, list) and isinstance(old, list) and max(len(old), len(new)) > ITEMS_MAX:
            kept = set(old) & set(new)
            was[name], becomes[name] = ([one for one in every if one not in kept] for every in (old, new))
    return was, becomes


def _values(attributes: objects.Attributes | None) -> Entry | None:
    if attributes is None:
        return None
    return {
        name: (_HIDDEN if value else "") if name in _SECRETS else _bounded(value)
        for name, value in attributes.items()
    }


def _bounded(value: Any) -> Any:
    """Give a value that JSON can hold, and not too much of it."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case str():
            return value if len(value) <= TEXT_MAX else f"{value[:TEXT_MAX]}... ({len(value)} characters)"
        case list():
            few = [_bounded(one) if not isinstance(one, list | dict) else "..." for one in value[:ITEMS_MAX]]
            return few if len(value) <= ITEMS_MAX else [*few, f"... ({len(value)} entries)"]
    return f"({type(value).__name__})"
