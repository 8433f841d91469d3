"""The registry of producers: names under which clients publish guaranteed messages, and the id of each.

A name belongs to its (Message VPN, username). The records that distinguish a resend from a new message contain its id,
so an id is assigned once and never again; a name that was forgotten and is opened again gets another id and starts
without records. The registry is bounded, and shared by all: a name that was not opened for `idle_days` is forgotten;
where a Message VPN or a username has its share, or the node has `limit` names, a new name replaces the one of its own
username that was unused for longest, and is refused if there is none. Nobody's names give way to those of another.

Pure: methods give the entries to make durable, `take` takes them over. Days are ordinals.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium import errors
from cluster.catalog.shares import WHOLE, Percents, Shares
from cluster.objects import is_like
from router.sessions.kinds import KINDS
from storage.config_store import Counter, Entry, Producer

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

#: The counter of the ids in the config store.
COUNTER: Final = "producer"
#: Bytes of a producer's name: what a client name may have, which is what most names are made from.
MAX_NAME_BYTES: Final = 160
#: Ids opened again that are not given away at once.
REOPENED_MAX: Final = 100

Key = tuple[str, str, str]


class Known(NamedTuple):
    """What is known of a producer."""

    id: int
    used_day: int


class Producers:
    """All names of the node."""

    def __init__(
        self,
        stored: Sequence[Producer],
        next_id: int,
        limit: int,
        idle_days: int,
        percents: Percents = WHOLE,
    ) -> None:
        self._idle_days = idle_days
        #: In step with the names.
        self._shares = Shares("producers", limit, percents, "close some, or raise spool.producers_max")
        #: Exactly the stored names; ids are distinct and below `_next_id`.
        self._known: dict[Key, Known] = {}
        #: Id -> its name: the other way round.
        self._keys: dict[int, Key] = {}
        #: (Message VPN, username) -> the ids of its names; none is empty.
        self._owned: dict[tuple[str, str], dict[int, None]] = {}
        self._next_id = max(next_id, 1)
        #: Ids that were asked for again of late: whoever asked may not have heard the answer yet.
        self._reopened: deque[int] = deque(maxlen=REOPENED_MAX)
        self.take(stored)

    def __len__(self) -> int:
        return len(self._known)

    @property
    def newest(self) -> int:
        """The highest id that was given."""
        return self._next_id - 1

    def open(
        self, key: Key, *, resume: bool, today: int, in_use: Sequence[int] | None = None, newest: int = 0
    ) -> tuple[int, list[Entry]]:
        """Give the id of a name, and what has to be durable first.

        Args:
            key: (Message VPN, username, name).
            resume: whether it must be known.
            today: a day.
            in_use: ids of the producers of its username that are open; None: there are too many to tell, so none
                gives way.
            newest: the highest id that whoever asks has heard of, 0 for none; higher ones are being opened.

        Raises:
            InvalidRequestError: the name does not fit (40018), or is not known and should be (40019).
            UnavailableError: there is no room for a new name, because the share is used up (50324) or the node
                knows as many as it may (50319), and no name of this username is idle.
        """
        _check_name(key[2])
        known = self._known.get(key)
        if known is not None:
            self._reopened.append(known.id)
            used = [] if known.used_day >= today else [Producer(*key, known.id, today)]
            return known.id, list(used)
        if resume:
            raise errors.error_for(errors.UNKNOWN_FLOW_NAME, f"producer {key[2]!r} of username {key[1]!r}")
        # Links and bridges are as many as operators made: they neither have a share nor find the node full.
        full = None if key[1] in KINDS else self._shares.refusal(key[:2])
        room = [] if full is None else self._make_room(key[:2], in_use, newest, full)
        return self._next_id, [
            *room,
            Counter(COUNTER, self._next_id + 1),
            Producer(*key, self._next_id, today),
        ]

    def _make_room(
        self, owner: tuple[str, str], in_use: Sequence[int] | None, newest: int, full: errors.AngariumError
    ) -> list[Entry]:
        """Give what removes the producer of an owner that was unused for longest."""
        used = dict.fromkeys([*(in_use or ()), *self._reopened])
        idle = [
            (self._known[self._keys[number]].used_day, number)
            for number in self._owned.get(owner, ())
            if number not in used and (number <= newest or not newest)
        ]
        if in_use is None or not idle:
            raise full
        return self.forget(min(idle)[1])

    def forget(self, producer: int) -> list[Entry]:
        """Give what removes a producer by its id; nothing if it is not known."""
        key = self._keys.get(producer)
        return [] if key is None else [Producer(*key, None, 0)]

    def forget_all(self, vpn: str, username: str | None = None) -> list[Entry]:
        """Give what removes the producers of a Message VPN, or of one of its usernames."""
        return [
            Producer(*key, None, 0) for key in self._known if key[0] == vpn and username in (None, key[1])
        ]

    def age(self, today: int, in_use: Container[int]) -> list[Entry]:
        """Give what notes the use of those that are in use, and removes those that were idle for too long."""
        entries: list[Entry] = []
        for key, known in self._known.items():
            if known.id in in_use:
                if known.used_day < today:
                    entries.append(Producer(*key, known.id, today))
            # A link or a bridge that was down for long goes on where it was, so its producers do not age.
            elif today - known.used_day > self._idle_days and key[1] not in KINDS:
                entries.append(Producer(*key, None, 0))
        return entries

    def ids_of(self, entries: Sequence[Entry]) -> list[int]:
        """Give the ids of those that some entries, not taken over yet, remove."""
        return [
            self._known[entry[:3]].id
            for entry in entries
            if isinstance(entry, Producer) and entry.id is None and entry[:3] in self._known
        ]

    def find(self, vpn: str | None, pattern: str) -> list[dict[str, Any]]:
        """Give a row for each producer whose name matches, ordered; vpn None means all Message VPNs."""
        return [
            {"vpn": key[0], "username": key[1], "name": key[2], "id": known.id, "used_day": known.used_day}
            for key, known in sorted(self._known.items())
            if vpn in (None, key[0]) and is_like(key[2], pattern)
        ]

    def take(self, entries: Sequence[Entry]) -> None:
        """Take over entries; those of others are passed over."""
        for entry in entries:
            if isinstance(entry, Counter) and entry.name == COUNTER:
                self._next_id = entry.value
            elif isinstance(entry, Producer):
                self._put(entry)

    def undoing(self, entries: Iterable[Entry]) -> list[Entry]:
        """Give the entries that bring back what there is now, once these are taken over."""
        undoing: list[Entry] = []
        for entry in entries:
            if isinstance(entry, Counter) and entry.name == COUNTER:
                undoing.append(Counter(COUNTER, self._next_id))
            elif isinstance(entry, Producer):
                undoing.append(Producer(*entry[:3], *self._known.get(entry[:3], (None, 0))))
        return undoing

    def _put(self, entry: Producer) -> None:
        key = entry[:3]
        if entry.id is None:
            known = self._known.pop(key, None)
            if known is not None:
                self._disown(key[:2], known.id)
            return
        before = self._known.get(key)
        if before is not None:
            self._disown(key[:2], before.id)
        self._shares.count(key[:2], 1)
        self._owned.setdefault(key[:2], {})[entry.id] = None
        self._known[key] = Known(entry.id, entry.used_day)
        self._keys[entry.id] = key
        self._next_id = max(self._next_id, entry.id + 1)

    def _disown(self, owner: tuple[str, str], number: int) -> None:
        del self._keys[number]
        self._shares.count(owner, -1)
        owned = self._owned[owner]
        del owned[number]
        if not owned:
            del self._owned[owner]

    def validate(self) -> None:
        """Assert what the attribute comments say."""
        self._shares.validate()
        assert len(self._shares) == len(self._known)
        owned = {number: owner for owner, numbers in self._owned.items() for number in numbers}
        assert owned == {number: key[:2] for number, key in self._keys.items()}, "an owner has other names"
        assert {known.id: key for key, known in self._known.items()} == self._keys, "names and ids differ"
        assert all(number < self._next_id for number in self._keys), "an id would be given twice"


def _check_name(name: str) -> None:
    fits = 1 <= len(name.encode(errors="replace")) <= MAX_NAME_BYTES and name.isprintable()
    if not fits:
        detail = (
            f"{name!r} cannot name a producer: a name has 1 to {MAX_NAME_BYTES} bytes that can be printed"
        )
        raise errors.invalid(detail)
