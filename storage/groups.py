"""Groups: what a writer commits at once has a number, and a spool remembers which keys each of them touched.

The values are in the spool anyway. So who lacks some groups gets the values, as they are now, of the keys that those
touched (`Patch`): that is less than the groups were, and it also brings back a spool that wrote groups which nobody
else has, for it knows their keys. Only who was away for longer than the keys are kept needs a copy of everything.

Numbers rise by one. Who writes them calls itself by a *run*, which nobody else ever uses: where two spools know the
same run they have the same groups, up to where the first of them left it (the leader epochs of Kafka, KIP-101).
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgpack

from storage.spool import Change, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from storage.spool import Spool

KEY_PAST: Final = b"groups"
#: Before the number of a group, in the same table.
KEYS_OF: Final = b"group/"
#: Of how many groups the keys are kept, of those that both sides have too.
KEPT_MAX: Final = 20_000
#: What a patch may hold, about: it is one message, and written at once.
PATCH_BYTES_MAX: Final = 8 << 20
#: What is read at once for a part: a block is as large as a batch, the rest is small.
PART_ROWS: Final = {table: 32 if table is Table.BLOCKS else 1_000 for table in Table}
#: Runs that are remembered; who was never in one of them needs a copy.
RUNS_MAX: Final = 100

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
    #: The first group of which the keys are known; what was there before the first group is of a group 1 that nobody
    #: knows.
    oldest: int = 1

    @property
    def is_unknown(self) -> bool:
        """Tell whether there is something that is of no group."""
        return not self.newest and self.oldest > 1

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


class Brought(NamedTuple):
    """The end of what was sent in parts: with these, a spool has everything up to `past`, and some of what came after.

    What came after is sent anew then: whoever has got parts says where he is, as if he had just connected.
    """

    #: The group up to which he had everything; None: he has got everything anew.
    base: int | None
    past: Past
    touched: tuple[Touched, ...]


class GroupLog:
    """The groups of one spool, as they are on its disk."""

    def __init__(
        self, spool: Spool, kept_max: int = KEPT_MAX, patch_bytes_max: int = PATCH_BYTES_MAX
    ) -> None:
        self._spool = spool
        self._kept_max = kept_max
        self._patch_bytes_max = patch_bytes_max
        #: Of the newest group that was made, which may not be on disk yet.
        self.ahead = self.past

    @property
    def past(self) -> Past:
        """Give what is on disk."""
        stored = self._spool.get(Table.META, KEY_PAST)
        if stored is None:
            return Past() if self._is_empty() else Past(oldest=2)
        begun, newest, oldest = msgpack.unpackb(stored)
        return Past(tuple(Begun(*one) for one in begun), newest, oldest)

    def found(self, run: str) -> Group | None:
        """Give the first group of a spool that has none: all of one that was just made.

        Of one that has something already nobody knows the keys: who has nothing needs a copy of it. None: there are
        groups already.
        """
        if self.ahead.newest:
            return None
        if not self.ahead.is_unknown:
            return self.group(run, [(Table.META, *row) for row in self._spool.scan(Table.META)])
        self.ahead = Past((Begun(run, 1),), 1, 2)
        return Group(1, run, [_row_of(self.ahead)])

    def _is_empty(self) -> bool:
        """Tell whether there is nothing but what each spool says of itself."""
        return not any(self._spool.scan(table, limit=1) for table in Table if table is not Table.META)

    def group(self, run: str, changes: Sequence[Change]) -> Group:
        """Give changes the next number, as a group of a run, to be written by this spool and by others."""
        before = self.ahead
        number = before.newest + 1
        begun = before.begun if _is_of(run, before) else (*before.begun, Begun(run, number))[-RUNS_MAX:]
        oldest = max(before.oldest, number - self._kept_max + 1)
        self.ahead = Past(begun, number, oldest)
        forgotten = [(Table.META, _key(one), None) for one in range(before.oldest, oldest)]
        kept = _kept(number, self.ahead, [(table, key) for table, key, _ in changes])
        return Group(number, run, (*changes, *forgotten, *kept))

    def forget_ahead(self) -> None:
        """Forget groups that were made and not written."""
        self.ahead = self.past

    def touched_since(self, number: int) -> tuple[Touched, ...] | None:
        """Give the keys that groups after this one touched; None: that is not known any more."""
        if number + 1 < self.past.oldest:
            return None
        found: dict[Touched, None] = {}
        for _, value in self._spool.scan(Table.META, _key(number + 1), KEYS_OF + b"\xff"):
            found |= dict.fromkeys((Table(table), key) for table, key in msgpack.unpackb(value))
        return tuple(found)

    def parted(self, base: int, touched: Iterable[Touched]) -> tuple[Touched, ...] | None:
        """Give the keys in which somebody differs who has everything up to `base`, and has touched these since.

        None if that is not known any more: then only a copy helps.
        """
        ours = self.touched_since(base)
        return None if ours is None else tuple(dict.fromkeys((*ours, *touched)))

    def patch(self, base: int, parted: tuple[Touched, ...]) -> Patch | None:
        """Give what makes him the same, by the keys in which he differs; None: that is too much at once."""
        past, values, size = self.past, [], 0
        for table, key in parted:
            value = self._spool.get(table, key)
            values.append((table, key, value))
            size += len(key) + len(value or b"")
            if size > self._patch_bytes_max:
                return None
        return Patch(base, past, parted, tuple(values))

    def patched(self, patch: Patch) -> Sequence[Change]:
        """Give the changes that bring this spool to where the patch leads."""
        return (*patch.changes, *self.brought(Brought(patch.base, patch.past, patch.touched)))

    def brought(self, brought: Brought) -> Sequence[Change]:
        """Give the changes that say that this spool is where it was brought."""
        before, number = self.past, brought.past.newest
        if brought.base is None:
            self.ahead = brought.past
            return [_row_of(self.ahead)]
        self.ahead = Past(brought.past.begun, number, min(before.oldest, brought.base + 1))
        undone = [(Table.META, _key(one), None) for one in range(brought.base + 1, before.newest + 1)]
        kept = _kept(number, self.ahead, brought.touched)
        # What leads back to `base` is no group: the keys of the group with that number stay what they are.
        return (*undone, *(kept if number > brought.base else kept[1:]))

    def parts(self, parted: Iterable[Touched] | None) -> Iterator[list[Change]]:
        """Give the rows with these keys, or all that there are, as they are when they are asked for, some at a time."""
        for rows in self._all() if parted is None else self._some(iter(parted)):
            yield [
                (table, key, value) for table, key, value in rows if (table, key) != (Table.META, KEY_PAST)
            ]

    def _all(self) -> Iterator[list[Change]]:
        for table in Table:
            start = b""
            while found := self._spool.scan(table, start, None, PART_ROWS[table]):
                yield [(table, key, value) for key, value in found]
                start = found[-1][0] + b"\x00"

    def _some(self, parted: Iterator[Touched]) -> Iterator[list[Change]]:
        while part := list(islice(parted, PART_ROWS[Table.BLOCKS])):
            yield [(table, key, self._spool.get(table, key)) for table, key in part]


def forget_groups(spool: Spool) -> None:
    """Have a spool know of no groups any more: what is written to it from now on is of none.

    Else a standby that has the same groups would be taken for one that has that as well.
    """
    if spool.get(Table.META, KEY_PAST) is not None:
        kept = [key for key, _ in spool.scan(Table.META, KEYS_OF, KEYS_OF + b"\xff")]
        spool.commit([(Table.META, key, None) for key in (*kept, KEY_PAST)])


def _is_of(run: str, past: Past) -> bool:
    return bool(past.begun) and past.begun[-1].run == run


def _key(number: int) -> bytes:
    return KEYS_OF + number.to_bytes(8, "big")


def _row_of(past: Past) -> Change:
    return Table.META, KEY_PAST, msgpack.packb([past.begun, past.newest, past.oldest])


def _kept(number: int, past: Past, touched: Sequence[Touched]) -> list[Change]:
    """Give the changes that say which group this is, and what it touched."""
    packed = msgpack.packb([(int(table), key) for table, key in touched])
    return [(Table.META, _key(number), packed), _row_of(past)]
