"""Gives the system the pages of the interpreter's small objects where there are none, although others are near.

CPython has small objects in *pools* of 16 KiB, each for objects of one size, and 64 pools in an *arena*, which goes
back to the system when the last of its objects has gone. After very much was freed a few objects are left in many
arenas: a counter that changed last while much was in memory keeps a megabyte. So the pools in which nothing is are
taken, as anybody takes memory from the interpreter, with `PyObject_Malloc`: whole pools of blocks of our own. What is
in these is our affair, so the system gets their pages. At the begin of each pool the interpreter notes what it is for,
and looks at that when a block of it is freed: of a pool that is full, only its owner frees one. So the notes are kept
elsewhere, and put back before.

    an arena in which one object is left   1,024 KiB resident before, 16 after

It is done some pools at a time, so that nobody waits for it. With these pools taken, new objects that find no room get
a new arena, of which only those pages are resident that are used. What is taken stays so, for it costs addresses only:
when it is twice as much as it was, all is given back to the interpreter, which lets arenas go that became free
meanwhile, and what is free then is taken anew. `memory` says when it is time.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from array import array
from enum import Enum, auto
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: A pool, what the interpreter notes at its begin, and the largest blocks that it has pools for: fewest calls.
POOL_BYTES: Final = 16 << 10
HEADER_BYTES: Final = 48
BLOCK_BYTES: Final = 512
BLOCKS: Final = (POOL_BYTES - HEADER_BYTES) // BLOCK_BYTES
#: Pools that are taken or given back in one step: half a millisecond.
POOLS_PER_STEP: Final = 32
#: So many more than twice those taken anew are given back before others are taken: 64 MiB of addresses.
POOLS_KEPT: Final = 4_096
#: More than two gigabytes are left as they are.
_POOLS_MAX: Final = 1 << 17
#: That an arena was made shows that no pool is free any more.
_ARENA_BYTES: Final = 1 << 20
#: Versions whose pools are known to be like that, on systems where an address has 64 bits.
_KNOWN_FROM, _KNOWN_TO = (3, 11), (3, 15)
_STATM: Final = Path("/proc/self/statm")


class _Phase(Enum):
    RESTING = auto()
    GIVING = auto()
    TAKING = auto()


class FreePools:
    """The pools without objects of this process; there is one, because there is one interpreter."""

    def __init__(self) -> None:
        self._phase = _Phase.RESTING
        #: The first block of each pool that is taken, with all its blocks. No list: a number is a small object itself.
        self._pools = array("Q")
        #: What the interpreter has noted at the begin of each, one after the other.
        self._headers = bytearray()
        #: How many were taken when all was taken anew, and whether that goes on now.
        self._taken_anew, self._is_anew = 0, False
        self._between: Callable[[], None] = lambda: None
        self._malloc = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(
            ("PyObject_Malloc", ctypes.pythonapi)
        )
        self._free = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("PyObject_Free", ctypes.pythonapi))
        self._advise = ctypes.CDLL(None).madvise if is_known() else None
        if self._advise is not None:
            self._advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    @property
    def is_busy(self) -> bool:
        """Tell whether `step` has something to do."""
        return self._phase is not _Phase.RESTING

    @property
    def taken(self) -> int:
        """Give how many pools are ours; the interpreter, which reads zeros for its notes, counts no block of these."""
        return len(self._pools)

    def begin(self, between: Callable[[], None]) -> None:
        """Call `between`, which frees what it can, and take what is free then; if much is taken, give it back first."""
        self._between = between
        self._is_anew = len(self._pools) > 2 * self._taken_anew + POOLS_KEPT
        if self._is_anew:
            self._phase = _Phase.GIVING
        else:
            self._begin_to_take()

    def step(self) -> None:
        """Go on for some pools."""
        if self._phase is _Phase.GIVING:
            self._give()
            if not self._pools:
                self._begin_to_take()
        elif self._phase is _Phase.TAKING and not self._take():
            self._phase = _Phase.RESTING
            if self._is_anew:
                self._taken_anew = len(self._pools)

    def _begin_to_take(self) -> None:
        self._between()
        self._phase = _Phase.RESTING if self._advise is None else _Phase.TAKING

    def _give(self) -> None:
        for _ in range(min(POOLS_PER_STEP, len(self._pools))):
            first = self._pools.pop()
            ctypes.memmove(first - HEADER_BYTES, bytes(self._headers[-HEADER_BYTES:]), HEADER_BYTES)
            del self._headers[-HEADER_BYTES:]
            for block in range(first, first + BLOCKS * BLOCK_BYTES, BLOCK_BYTES):
                self._free(block)

    def _take(self) -> bool:
        """Take some pools; false if there are no more."""
        assert self._advise is not None
        before = _mapped_bytes()
        blocks = array("Q", map(self._malloc, repeat(BLOCK_BYTES, POOLS_PER_STEP * BLOCKS)))
        pools, others = sort_out(sorted(blocks))
        for first in pools:
            self._headers += ctypes.string_at(first - HEADER_BYTES, HEADER_BYTES)
            self._advise(first - HEADER_BYTES, POOL_BYTES, mmap.MADV_DONTNEED)
        self._pools += pools
        for block in others:
            self._free(block)
        is_found = bool(pools) and _mapped_bytes() < before + _ARENA_BYTES
        return is_found and len(self._pools) < _POOLS_MAX


def sort_out(blocks: list[int]) -> tuple[array[int], list[int]]:
    """Give the first blocks of whole pools, and the blocks of pools in which others have some too.

    Args:
        blocks: addresses, rising.
    """
    pools, others, at = array("Q"), [], 0
    while at < len(blocks):
        first = blocks[at]
        # None lies in another one: so many in so little room fill it.
        last = blocks[at + BLOCKS - 1] if at + BLOCKS <= len(blocks) else 0
        if first % POOL_BYTES == HEADER_BYTES and last == first + (BLOCKS - 1) * BLOCK_BYTES:
            pools.append(first)
            at += BLOCKS
        else:
            others.append(first)
            at += 1
    return pools, others


def is_known() -> bool:
    """Tell whether the pools of this interpreter are as this module takes them to be."""
    is_usual = sys.implementation.name == "cpython" and _KNOWN_FROM <= sys.version_info[:2] < _KNOWN_TO
    is_wide = sys.maxsize > 1 << 32 and mmap.PAGESIZE <= POOL_BYTES
    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    return is_usual and is_wide and has_lock and sys.platform == "linux" and _STATM.exists()


def _statm() -> list[int]:
    """Give how many pages are mapped, resident, and resident of files.

    Zeros where the system does not tell, or cannot be asked because all descriptors are in use.
    """
    try:
        return list(map(int, _STATM.read_bytes().split()[:3]))
    except OSError:
        return [0, 0, 0]


def _mapped_bytes() -> int:
    return _statm()[0] * mmap.PAGESIZE


def resident_bytes() -> int:
    """Give what is resident of this process alone, without the pages of files; 0 if nobody tells."""
    _, resident, shared = _statm()
    return (resident - shared) * mmap.PAGESIZE
