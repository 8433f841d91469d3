"""A check of the pages of an LMDB file, before LMDB reads them.

LMDB trusts its file. A page of an index that was lost (a power cut may leave it full of zeros) ends the whole
process by an assertion in C, a page number behind the end of the file by a signal; nobody then learns which
file is damaged, and the next start ends the same way. So the index is walked here first: the head of each of
its pages, the offsets in it, the pages that it leads to, that no page is used twice, and that none of those in
use is on the list of free ones, from which the next commit would overwrite it.

Values are not read: they carry checksums (`storage.spool`, `storage.maintenance`). So `check_index` takes time
with the number of keys only. `check_file` reads the heads of big values too, of which LMDB takes how many pages
become free with a value.

A process of its own in which LMDB reads every key, and whose death is the verdict, would need less code and find less:
LMDB shows nobody the list of free pages, so a page that is in use and on that list would be overwritten. It would also
cost each start of a worker the start of an interpreter.

The format is that of LMDB 0.9, data version 1, as its mdb.c and lmdb.h define it
(https://github.com/LMDB/lmdb/tree/mdb.master/libraries/liblmdb). The file must not be written meanwhile.
"""

from __future__ import annotations

import os
import struct
import sys
from array import array
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    #: Called with (done, total) now and then.
    Tell: TypeAlias = Callable[[int, int], None]

_MAGIC: Final = 0xBEEFC0DE
_DATA_VERSION: Final = 1
#: The page size stands in the head, so this much is read before it is known; no page is smaller.
_SMALLEST_PAGE: Final = 256
_LARGEST_PAGE: Final = 1 << 16

#: Number, padding, flags, lower and upper end of the free space; of an overflow page the last two are a count.
_HEAD: Final = struct.Struct("=QHHHH")
_OVERFLOW_HEAD: Final = struct.Struct("=QHHI")
#: Padding (page size in the first), flags, depth, branch, leaf and overflow pages, entries, root.
_TREE: Final = struct.Struct("=IHHQQQQQ")
_META: Final = struct.Struct("=II16x")
_META_TAIL: Final = struct.Struct("=QQ")
#: Two halves of a size (or of the lower part of a page number), flags (its upper part), length of the key.
_NODE: Final = struct.Struct("=HHHH")
_NUMBER: Final = struct.Struct("=Q")

_BRANCH: Final = 0x01
_LEAF: Final = 0x02
_OVERFLOW: Final = 0x04
_META_FLAG: Final = 0x08
_BIG_VALUE: Final = 0x01
_SUB_TREE: Final = 0x02
_NO_PAGE: Final = (1 << 64) - 1
#: LMDB's own limit.
_DEPTH_MAX: Final = 32
#: Pages of an index are read in some milliseconds.
_TELL_PAGES: Final = 500


class PageFaultError(Exception):
    """The file is not as LMDB wrote it; the text says which check failed and what it found."""


class _Meta(NamedTuple):
    page_bytes: int
    transaction: int
    last_page: int
    free_root: int
    main_root: int


class _Visit(NamedTuple):
    """A page to look at: its keys are from `low` on and below `high` (None: no bound)."""

    page: int
    depth: int
    low: bytes | None
    high: bytes | None


class _Entry(NamedTuple):
    """A key and what it leads to."""

    key: bytes
    flags: int
    value: bytes


def silent(_done: int, _total: int) -> None:
    """Tell nobody how far a check is."""


def check_index(file: Path, tell: Tell = silent) -> None:
    """Walk the index of an LMDB file; an empty file is one that LMDB has still to begin.

    Args:
        file: nobody writes it meanwhile.
        tell: called with (pages, pages of the file) many times a second.

    Raises:
        PageFaultError: it is damaged.
        OSError: it cannot be read.
    """
    _check(file, _Walk, tell)


def check_file(file: Path) -> None:
    """Walk the index of an LMDB file as `check_index` does, and read the head of each big value."""
    _check(file, _WalkWithValues, silent)


def _check(file: Path, walk: type[_Walk], tell: Tell) -> None:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if size:
            walk(descriptor, size, tell).run()
    finally:
        os.close(descriptor)


class _Walk:
    def __init__(self, descriptor: int, size: int, tell: Tell) -> None:
        self._descriptor = descriptor
        self._tell = tell
        #: Pages of the index that were read.
        self._read_pages = 0
        self._meta = _newest_meta(descriptor)
        self._page_bytes = self._meta.page_bytes
        self._pages = self._meta.last_page + 1
        if size < self._pages * self._page_bytes:
            needed = self._pages * self._page_bytes
            raise PageFaultError(
                f"the length check found {size:,} bytes, its {self._pages:,} pages have {needed:,}"
            )
        #: 1 for each page that something leads to.
        self._used = bytearray(self._pages)
        self._used[0:2] = b"\1\1"

    def run(self) -> None:
        free = [
            self._free_pages(self._entry(page, content, offset))
            for page, content, offsets in self._leaves(self._meta.free_root, is_sorted=False)
            for offset in offsets
        ]
        for page, content, offsets in self._leaves(self._meta.main_root, is_sorted=True):
            for offset in offsets:
                entry = self._entry(page, content, offset)
                if entry.flags & _SUB_TREE:
                    self._check_table(entry)
        self._check_free(free)

    def _check_table(self, entry: _Entry) -> None:
        if len(entry.value) != _TREE.size:
            raise PageFaultError(f"the table check found {len(entry.value)} bytes for {entry.key!r}")
        for page, content, offsets in self._leaves(_TREE.unpack(entry.value)[-1], is_sorted=True):
            self._check_entries(page, content, offsets)

    def _leaves(self, root: int, *, is_sorted: bool) -> Iterator[tuple[int, bytes, list[int]]]:
        """Walk a tree; gives its leaves: number, content, where in it the entries are."""
        if root == _NO_PAGE:
            return
        left = [_Visit(root, 1, None, None)]
        while left:
            visit = left.pop()
            content = self._read(visit)
            (_, _, flags, _, _) = _HEAD.unpack_from(content)
            offsets = self._offsets(visit.page, content)
            if flags & _BRANCH:
                left.extend(self._children(visit, content, offsets))
            else:
                if is_sorted:
                    self._check_bounds(visit, content, offsets)
                yield visit.page, content, offsets

    def _read(self, visit: _Visit) -> bytes:
        """Give a page of an index, after a look at its head."""
        page = visit.page
        self._use(page, 1)
        self._read_pages += 1
        if self._read_pages % _TELL_PAGES == 0:
            self._tell(self._read_pages, self._pages)
        if visit.depth > _DEPTH_MAX:
            raise PageFaultError(f"the page check found page {page} deeper than {_DEPTH_MAX}")
        content = os.pread(self._descriptor, self._page_bytes, page * self._page_bytes)
        if len(content) < self._page_bytes:
            raise PageFaultError(f"the page check could not read page {page}")
        number, _, flags, lower, upper = _HEAD.unpack_from(content)
        if number != page or flags not in (_BRANCH, _LEAF):
            raise PageFaultError(
                f"the page check found number {number} and flags {flags:#x} in the index page {page}"
            )
        if not (_HEAD.size <= lower <= upper <= self._page_bytes) or lower % 2:
            raise PageFaultError(f"the page check found the bounds {lower} and {upper} in page {page}")
        return content

    def _offsets(self, page: int, content: bytes) -> list[int]:
        _, _, flags, lower, upper = _HEAD.unpack_from(content)
        offsets = list(memoryview(content)[_HEAD.size : lower].cast("H"))
        least = 2 if flags & _BRANCH else 1
        if len(offsets) < least:
            raise PageFaultError(f"the page check found {len(offsets)} entries in page {page}")
        if min(offsets) < upper or max(offsets) > self._page_bytes - _NODE.size:
            raise PageFaultError(f"the page check found an entry outside of page {page}")
        return offsets

    def _children(self, visit: _Visit, content: bytes, offsets: list[int]) -> list[_Visit]:
        pages, bounds = [], []
        for offset in offsets:
            low, high, top, key_size = _NODE.unpack_from(content, offset)
            pages.append(low | high << 16 | top << 32)
            bounds.append(self._key(visit.page, content, offset, key_size))
        # The first key of a branch stands for everything below the second one.
        ends = [*bounds[1:], visit.high]
        starts = [visit.low, *bounds[1:]]
        return [
            _Visit(page, visit.depth + 1, start, end)
            for page, start, end in zip(pages, starts, ends, strict=True)
        ]

    def _key(self, page: int, content: bytes, offset: int, size: int) -> bytes:
        start = offset + _NODE.size
        if start + size > self._page_bytes:
            raise PageFaultError(f"the page check found a key that leaves page {page}")
        return content[start : start + size]

    def _check_bounds(self, visit: _Visit, content: bytes, offsets: list[int]) -> None:
        """Look whether the first and the last key belong here: a search would not find them else."""
        for offset in (offsets[0], offsets[-1]):
            key = self._key(visit.page, content, offset, _NODE.unpack_from(content, offset)[3])
            if (visit.low is not None and key < visit.low) or (visit.high is not None and key >= visit.high):
                raise PageFaultError(f"the order check found the key {key.hex()} in page {visit.page}")

    def _check_entries(self, page: int, content: bytes, offsets: list[int]) -> None:
        """Look whether entries stay inside of their page, and big values inside of the file."""
        unpack, page_bytes = _NODE.unpack_from, self._page_bytes
        for offset in offsets:
            low, high, flags, key_size = unpack(content, offset)
            if flags & _BIG_VALUE or offset + _NODE.size + key_size + (low | high << 16) > page_bytes:
                self._entry(page, content, offset)

    def _entry(self, page: int, content: bytes, offset: int) -> _Entry:
        """Give an entry of a leaf; of a big value the pages that it is in."""
        low, high, flags, key_size = _NODE.unpack_from(content, offset)
        size = low | high << 16
        key = self._key(page, content, offset, key_size)
        start = offset + _NODE.size + key_size
        stored = _NUMBER.size if flags & _BIG_VALUE else size
        if start + stored > self._page_bytes:
            raise PageFaultError(f"the page check found a value that leaves page {page}")
        value = content[start : start + stored]
        if flags & _BIG_VALUE:
            self._take_value(_NUMBER.unpack(value)[0], size)
        return _Entry(key, flags, value)

    def _take_value(self, page: int, size: int) -> int:
        """Look whether the pages of a big value are in the file, and nobody else's; gives how many they are."""
        count = -(-(_HEAD.size + size) // self._page_bytes)
        self._use(page, count)
        return count

    def _value_pages(self, page: int) -> int:
        """Give how many pages the head of a big value says that it has."""
        head = os.pread(self._descriptor, _HEAD.size, page * self._page_bytes)
        if len(head) < _HEAD.size:
            raise PageFaultError(f"the page check could not read page {page}")
        number, _, flags, count = _OVERFLOW_HEAD.unpack(head)
        if number != page or flags != _OVERFLOW or not 0 < count <= self._pages - page:
            raise PageFaultError(f"the page check found no head of a value in page {page}")
        return int(count)

    def _use(self, page: int, count: int) -> None:
        if page + count > self._pages:
            raise PageFaultError(f"the page check found page {page + count - 1} of {self._pages:,}")
        if self._used.find(1, page, page + count) >= 0:
            raise PageFaultError(f"the page check found page {page} in two places")
        self._used[page : page + count] = b"\1" * count

    def _free_pages(self, entry: _Entry) -> array[int]:
        """Give the page numbers of an entry of the list of free pages: their count, then each."""
        content = entry.value
        if entry.flags & _BIG_VALUE:
            page = _NUMBER.unpack(content)[0]
            count = self._value_pages(page)
            at = page * self._page_bytes + _HEAD.size
            content = os.pread(self._descriptor, count * self._page_bytes - _HEAD.size, at)
        count = _NUMBER.unpack_from(content)[0] if len(content) >= _NUMBER.size else _NO_PAGE
        if (count + 1) * _NUMBER.size > len(content):
            raise PageFaultError(f"the free list check found {count} pages in {len(content)} bytes")
        return array("Q", content[_NUMBER.size : (count + 1) * _NUMBER.size])

    def _check_free(self, free: list[array[int]]) -> None:
        used, pages = self._used, self._pages
        for numbers in free:
            for number in numbers:
                if number >= pages:
                    raise PageFaultError(f"the free list check found page {number} of {pages:,}")
                if used[number]:
                    raise PageFaultError(f"the free list check found page {number}, which is in use")
                used[number] = 1


class _WalkWithValues(_Walk):
    def _take_value(self, page: int, size: int) -> int:
        count = super()._take_value(page, size)
        found = self._value_pages(page)
        if found < count:
            raise PageFaultError(f"the page check found {found} pages in page {page}, its value has {count}")
        # A value that a transaction makes shorter after it has written it keeps all of its pages.
        self._use(page + count, found - count)
        return found


def _newest_meta(descriptor: int) -> _Meta:
    """Give what the newer of the two heads says; LMDB writes them in turn."""
    first = _read_meta(descriptor, 0)
    second = _read_meta(descriptor, first.page_bytes)
    if second.page_bytes != first.page_bytes:
        raise PageFaultError("the head check found two sizes of pages")
    newest = max(first, second, key=lambda meta: meta.transaction)
    if newest.last_page < 1:
        raise PageFaultError("the head check found no pages")
    return newest


def _read_meta(descriptor: int, offset: int) -> _Meta:
    size = _HEAD.size + _META.size + 2 * _TREE.size + _META_TAIL.size
    content = os.pread(descriptor, size, offset)
    if len(content) < size:
        raise PageFaultError(f"the head check found {len(content)} bytes at {offset}")
    _, _, flags, _, _ = _HEAD.unpack_from(content)
    magic, version = _META.unpack_from(content, _HEAD.size)[:2]
    if not flags & _META_FLAG or magic != _MAGIC or version != _DATA_VERSION:
        raise PageFaultError(f"the head check found no head of LMDB at {offset} (order {sys.byteorder})")
    at = _HEAD.size + _META.size
    free, main = _TREE.unpack_from(content, at), _TREE.unpack_from(content, at + _TREE.size)
    last_page, transaction = _META_TAIL.unpack_from(content, at + 2 * _TREE.size)
    page_bytes = free[0]
    if not _SMALLEST_PAGE <= page_bytes <= _LARGEST_PAGE or page_bytes & (page_bytes - 1):
        raise PageFaultError(f"the head check found pages of {page_bytes} bytes")
    return _Meta(page_bytes, transaction, last_page, free[-1], main[-1])
