"""A set of positions of a lane that stays small however scattered they are.

What a flow has not settled, what became ready again, what waits for its redelivery delay: positions come and
go in runs, but a consumer may settle every second one, and a range that it names may be absurd. So the set is
a map from a chunk of 1,024 positions to a bitmap (an int): a run costs one or two operations on ints, and a
range costs what the set has in it, never its width. A sorted list of runs was rejected: settling every second
of 1,000,000 messages moves megabytes for each.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_BITS: Final = 10
_SIZE: Final = 1 << _BITS
_LOW: Final = _SIZE - 1
_FULL: Final = (1 << _SIZE) - 1


class PositionSet:
    """Positions (0 or more), in rising order."""

    __slots__ = ("_chunks", "_keys", "count")

    def __init__(self) -> None:
        #: Chunk number -> bitmap of the positions in it, never 0.
        self._chunks: dict[int, int] = {}
        #: The chunk numbers, rising.
        self._keys: list[int] = []
        #: Positions in the set.
        self.count = 0

    def __contains__(self, position: int) -> bool:
        """Tell whether a position is in the set."""
        return bool(self._chunks.get(position >> _BITS, 0) >> (position & _LOW) & 1)

    def add(self, first: int, last: int) -> None:
        """Add the positions from `first` to `last`; the work grows with their number."""
        low_chunk, high_chunk = first >> _BITS, last >> _BITS
        if low_chunk == high_chunk:
            self._merge(low_chunk, ((1 << (last - first + 1)) - 1) << (first & _LOW))
            return
        self._merge(low_chunk, _FULL >> (first & _LOW) << (first & _LOW))
        for chunk in range(low_chunk + 1, high_chunk):
            self._merge(chunk, _FULL)
        self._merge(high_chunk, (1 << ((last & _LOW) + 1)) - 1)

    def _merge(self, chunk: int, mask: int) -> None:
        old = self._chunks.get(chunk)
        if old is None:
            keys = self._keys
            if not keys or chunk > keys[-1]:
                keys.append(chunk)
            else:
                insort(keys, chunk)
            self._chunks[chunk] = mask
            self.count += mask.bit_count()
        else:
            self._chunks[chunk] = old | mask
            self.count += (mask & ~old).bit_count()

    def remove(self, first: int, last: int) -> list[tuple[int, int]]:
        """Remove the positions from `first` to `last`; gives the runs of those that were in the set.

        Any range may be given: the work grows with what it removes, not with its width.
        """
        keys = self._keys
        start = bisect_left(keys, first >> _BITS)
        high_chunk = last >> _BITS
        at = start
        removed: list[tuple[int, int]] = []
        kept: list[int] = []
        while at < len(keys) and keys[at] <= high_chunk:
            chunk = keys[at]
            at += 1
            if not self._cut(chunk, first, last, removed):
                kept.append(chunk)
        if at - start > len(kept):
            keys[start:at] = kept
        return removed

    def _cut(self, chunk: int, first: int, last: int, removed: list[tuple[int, int]]) -> bool:
        """Remove a range from one chunk, adding the runs to `removed`; tells whether the chunk is empty now."""
        mask = self._chunks[chunk]
        base = chunk << _BITS
        low = max(first - base, 0)
        high = min(last - base, _LOW)
        hit = mask & ((1 << max(high - low + 1, 0)) - 1) << low
        if not hit:
            return False
        for at, length in _runs(hit):
            run_first, run_last = base + at, base + at + length - 1
            if removed and removed[-1][1] == run_first - 1:
                removed[-1] = (removed[-1][0], run_last)
            else:
                removed.append((run_first, run_last))
        self.count -= hit.bit_count()
        if hit == mask:
            del self._chunks[chunk]
            return True
        self._chunks[chunk] = mask ^ hit
        return False

    def run_in(self, first: int, last: int) -> tuple[int, int] | None:
        """Give the first run of those positions from `first` to `last` that are in the set, whole; None: none is."""
        keys = self._keys
        run: tuple[int, int] | None = None
        for at in range(bisect_left(keys, first >> _BITS), len(keys)):
            base = keys[at] << _BITS
            if base > last or (run is not None and base != run[1] + 1):
                break
            low, high = max(first - base, 0), min(last - base, _LOW)
            mask = self._chunks[keys[at]] & ((1 << (high - low + 1)) - 1) << low
            if not mask:
                if run is not None:
                    break
                continue
            bit, length = next(_runs(mask))
            if run is not None and bit:
                break
            run = (base + bit if run is None else run[0], base + bit + length - 1)
            if bit + length <= _LOW:
                break
        return run

    def first_run(self) -> tuple[int, int] | None:
        """Give the first run of positions, None if the set is empty; a long run may come in pieces."""
        if not self._keys:
            return None
        chunk = self._keys[0]
        at, length = next(_runs(self._chunks[chunk]))
        first = (chunk << _BITS) + at
        return first, first + length - 1

    def runs(self) -> Iterator[tuple[int, int]]:
        """Give all runs of positions in rising order; long runs come in pieces."""
        for chunk in self._keys:
            base = chunk << _BITS
            for at, length in _runs(self._chunks[chunk]):
                yield base + at, base + at + length - 1

    def clear(self) -> None:
        """Remove everything."""
        self._chunks.clear()
        self._keys.clear()
        self.count = 0

    def validate(self) -> None:
        """Check what the comments on the attributes say."""
        assert self._keys == sorted(self._chunks)
        assert all(0 < mask <= _FULL for mask in self._chunks.values())
        assert self.count == sum(mask.bit_count() for mask in self._chunks.values())


def _runs(mask: int) -> Iterator[tuple[int, int]]:
    """Give (first bit, length) of each run of set bits of a mask, lowest first."""
    offset = 0
    while mask:
        skip = (mask & -mask).bit_length() - 1
        mask >>= skip
        offset += skip
        length = (~mask & (mask + 1)).bit_length() - 1
        yield offset, length
        mask >>= length
        offset += length
