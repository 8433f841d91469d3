"""Groups: what a writer commits at once has a number, and a spool remembers which keys each of them touched.

The values are in the spool anyway. So who lacks some groups gets the values, as they are now, of the keys that those
touched (`Patch`): that is less than the groups were, and it also brings back a spool that wrote groups which nobody
else has, for it knows their keys. Only who was away for longer than the keys are kept needs a copy of everything.

Numbers rise by one. Who writes them calls itself by a *run*, which nobody else ever uses: where two spools know the
same run they have the same groups, up to where the first of them left it (the leader epochs of Kafka, KIP-101).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgpack

from storage.spool import Change, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from storage.spool import Spool

KEY_PAST: Final = b"groups"
#: Before the number of a group, in the same table.
KEYS_OF: Final = b"group/"
#: Of how many groups the keys are kept, of those that both sides have too.
KEPT_MAX: Final = 10_000

Touched: TypeAlias = tuple[Table, bytes]


class Begun(NamedTuple):
    """A run, and the number of its first group."""

    run: str
    first: int


class Past(NamedTuple):
    """What a spool has gone through: enough to find where two of them parted."""

    begun: tuple[Begun, ...] = ()
    #: The number of the newest group; 0: none.
    newest: int = 0
    #: The first group of which the keys are known.
    oldest: int = 1

    def common(self, other: Past) -> int:
        """Give the number of the newest group that both have."""
        theirs = dict(other.begun)
        for run, first in reversed(self.begun):
            if theirs.get(run) == first:
                return min(self._end(run), other._end(run))
        return 0

    def _end(self, run: str) -> int:
        names = [one.run for one in self.begun]
        after = names.index(run) + 1
        return self.begun[after].first - 1 if after < len(names) else self.newest


class Group(NamedTuple):
    """What is written at once."""

    number: int
    run: str
    changes: Sequence[Change]


class Patch(NamedTuple):
    """What makes a spool that has everything up to `base` like another one."""

    base: int
    past: Past
    touched: tuple[Touched, ...]
    changes: tuple[Change, ...]


class GroupLog:
    """The groups of one spool, as they are on its disk."""

    def __init__(self, spool: Spool, kept_max: int = KEPT_MAX) -> None:
        """Read where it is."""
        self._spool = spool
        self._kept_max = kept_max
        #: Of the newest group that was made, which may not be on disk yet.
        self.ahead = self.past

    @property
    def past(self) -> Past:
        """Give what is on disk."""
        stored = self._spool.get(Table.META, KEY_PAST)
        if stored is None:
            return Past()
        begun, newest, oldest = msgpack.unpackb(stored)
        return Past(tuple(Begun(*one) for one in begun), newest, oldest)

    def group(self, run: str, changes: Sequence[Change]) -> Group:
        """Give changes the next number, as a group of a run, to be written by this spool and by others."""
        before = self.ahead
        number = before.newest + 1
        begun = before.begun if _is_of(run, before) else (*before.begun, Begun(run, number))
        oldest = max(before.oldest, number - self._kept_max + 1)
        self.ahead = Past(begun, number, oldest)
        forgotten = [(Table.META, _key(one), None) for one in range(before.oldest, oldest)]
        kept = _kept(number, self.ahead, [(table, key) for table, key, _ in changes])
        return Group(number, run, (*changes, *forgotten, *kept))

    def touched_since(self, number: int) -> tuple[Touched, ...] | None:
        """Give the keys that groups after this one touched; None: that is not known any more."""
        if number + 1 < self.past.oldest:
            return None
        found: dict[Touched, None] = {}
        for _, value in self._spool.scan(Table.META, _key(number + 1), KEYS_OF + b"\xff"):
            found |= dict.fromkeys((Table(table), key) for table, key in msgpack.unpackb(value))
        return tuple(found)

    def patch(self, base: int, touched: Iterable[Touched]) -> Patch | None:
        """Give what somebody lacks who has everything up to `base`, and has touched these keys since.

        None if that is not known any more: then only a copy helps.
        """
        ours = self.touched_since(base)
        if ours is None:
            return None
        keys = tuple(dict.fromkeys((*ours, *touched)))
        values = tuple((table, key, self._spool.get(table, key)) for table, key in keys)
        return Patch(base, self.past, keys, values)

    def patched(self, patch: Patch) -> Sequence[Change]:
        """Give the changes that bring this spool to where the patch leads."""
        before = self.past
        number = patch.past.newest
        oldest = min(before.oldest, patch.base + 1)
        self.ahead = Past(patch.past.begun, number, oldest)
        undone = [(Table.META, _key(one), None) for one in range(patch.base + 1, before.newest + 1)]
        kept = _kept(number, self.ahead, patch.touched)
        # What leads back to `base` is no group: the keys of the group with that number stay what they are.
        return (*patch.changes, *undone, *(kept if number > patch.base else kept[1:]))


def _is_of(run: str, past: Past) -> bool:
    return bool(past.begun) and past.begun[-1].run == run


def _key(number: int) -> bytes:
    return KEYS_OF + number.to_bytes(8, "big")


def _kept(number: int, past: Past, touched: Sequence[Touched]) -> list[Any]:
    """Give the changes that say which group this is, and what it touched."""
    return [
        (Table.META, _key(number), msgpack.packb([(int(table), key) for table, key in touched])),
        (Table.META, KEY_PAST, msgpack.packb([past.begun, past.newest, past.oldest])),
    ]
