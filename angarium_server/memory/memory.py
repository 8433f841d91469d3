"""How the processes of a node treat their memory: what is freed is kept for the next batch, up to a bound.

And given back when much of it was freed that no batch needs again: the state of clients that went.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from functools import lru_cache
from math import inf
from typing import Any, Final

from angarium_server.memory.arenas import Arenas
from angarium_server.memory.free_pools import FreePools, resident_bytes

#: Young objects that start a collection, and so many of these before their survivors are looked at too; each batch
#: makes thousands that die at once without it. While clients subscribe, or partitions are made, all survive, and 15,000
#: took 3 ms, which came on top of a turn: so few are looked at at once that nobody notices. Full collections are rare.
_GC_THRESHOLDS: Final = (2_000, 2, 30_000)
#: So much of counted state has to be freed before memory is given back, and so long it is waited for more of it.
GIVE_BACK_BYTES: Final = 1 << 20
GIVE_BACK_DELAY_S: Final = 3.0
#: Then it is given back so often again, and so long after the last time. The interpreter has small objects in arenas of
#: a megabyte, and what was in use by chance, or freed and kept for the next one of its type, kept a whole one. The last
#: time is after a minute: so long a client that left may resume its session, and there is something of it.
AGAIN_TIMES: Final = 8
AGAIN_S: Final = 8.0
#: So often it is looked whether the process is quiet: it used no more of the time between two looks than this share.
#: Then what nobody counts is given back too, if so much more is resident than after the last time: this, and a part.
QUIET_S: Final = 5.0
QUIET_SHARE: Final = 0.25
GROWN_BYTES: Final = 512 << 10
GROWN_PART: Final = 32
#: Between two steps with small objects, which take half a millisecond each; and if the process used more than this
#: share of the time since the last one: clients that come and go would cost it a tenth of what it does for others.
STEP_S: Final = 0.005
WORKING_STEP_S: Final = 0.025
WORKING_SHARE: Final = 0.5
#: What a dict may take beyond what its entries need, and what these need at most.
ROOMY_BYTES: Final = 64 << 10
ENTRY_BYTES: Final = 200
#: So many entries are copied in a fraction of a millisecond.
FEW_ENTRIES: Final = 2_000
#: The mean size of the small objects of the interpreter in our processes, which it only counts.
SMALL_OBJECT_BYTES: Final = 90

#: The first of some numbers -> how many, for all of which there is room from the start on; those above 2**30 take half
#: as much again. That is 1.4 MB. One of so many stays, so each pool does, of 340 or 510.
RESERVED_NUMBERS: Final = {1 << 20: 32_000, 1 << 62: 8_000}
_RESERVED_STEP: Final = 250
_reserved: Final[list[int]] = []


class _Glibc:
    """Functions of glibc; None where the C library is another one, or too old to have one.

    Looked up once, at the start: each `ctypes.CDLL` makes types, which only a full collection takes away again, and
    full collections are rare.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(None) if sys.platform == "linux" else None
        self.mallinfo2 = getattr(library, "mallinfo2", None)
        if self.mallinfo2 is not None:
            self.mallinfo2.restype = _MallocInfo
        self.malloc_trim = getattr(library, "malloc_trim", None)


_MALLOC_FIELDS: Final = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


class _MallocInfo(ctypes.Structure):
    """What mallinfo2(3) gives."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _MALLOC_FIELDS)


_glibc: Final = _Glibc()
_pools: Final = FreePools()
_arenas: Final = Arenas()
#: To be called before memory is taken.
keep_freed_memory: Final = _arenas.keep
_LRU_CACHE: Final = type(lru_cache(int))
#: Empties the cache of what types have, under the name of a later Python or of this one.
_clear_type_cache: Final = getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache


def collect_rarely() -> None:
    """Have the garbage collector run seldom, and never over what a process was made of.

    The hot paths make no cycles, so collections find nothing there; but each would stop everything for as long as the
    tables of filters and sessions are large.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def _reserve_numbers() -> None:
    """Have room for numbers where others stay.

    A process replaces its counters and times all the time. Those that it replaced last while clients made it take very
    much would stand among that, and each would keep an arena when all else of it has gone. Arenas consist of pools,
    each for objects of one size, and another pool is begun when those before are full; so there are some with room.
    """
    if not _reserved:
        for first, count in RESERVED_NUMBERS.items():
            _reserved.extend(list(range(first, first + count))[::_RESERVED_STEP])


def in_use_bytes() -> int:
    """Give about how much of the memory of this process is in use; 0 where nobody tells.

    What is resident is more: the interpreter keeps 16 KiB around a small object that stays behind a large number that
    went, for the next ones (`free_pools`).
    """
    if _glibc.mallinfo2 is None:
        return 0
    told = _glibc.mallinfo2()
    return int(told.uordblks + told.hblkhd) + SMALL_OBJECT_BYTES * sys.getallocatedblocks()


def give_up_room(table: dict[Any, Any]) -> None:
    """Take the room from a dict that most entries have left: a dict never becomes smaller.

    It is the same dict after that: another one would stand among what is leaving (`_reserve_numbers`).
    """
    if sys.getsizeof(table) > ROOMY_BYTES + ENTRY_BYTES * len(table):
        left = dict(table)
        table.clear()
        table.update(left)


def give_up_room_of_few(table: dict[Any, Any]) -> None:
    """Do the same once few entries are left: of a hundred thousand, a quarter that is left takes 8 ms."""
    if len(table) <= FEW_ENTRIES:
        give_up_room(table)


class FreedMemory:
    """Gives memory back to the system a while after much of it was freed.

    The allocator keeps what is freed below what is in use, and looks for it only when it is told to. That takes a
    millisecond for some ten megabytes, so nobody does it per message. What is free among small objects is given back in
    steps after that. Who has one has room for numbers, too.
    """

    def __init__(self) -> None:
        _reserve_numbers()
        self._caches = _caches_of_functions()
        #: Of what had been freed when memory was given back last.
        self._given_back = 0
        #: The most that caches have held since then.
        self._held_max = 0
        self._due_at: float | None = None
        #: How often memory is given back again, if nothing else is freed, and when next.
        self._again = 0
        self._again_at = 0.0
        #: When it was gone on last with what is given back of small objects, what CPU time had been used then, and how
        #: long after that to go on.
        self._stepped_at, self._stepped_used_s, self._step_s = 0.0, 0.0, STEP_S
        #: When it was looked last whether the process is quiet, and what CPU time it had used then.
        self._looked_at: float | None = None
        self._used_s = 0.0
        #: What was resident when all had been given back, and whether that has been done since the last look.
        self._resident = 0
        self._is_given_back = False

    def update(self, freed_bytes: int, now: float, held_bytes: int = 0) -> None:
        """Take note of how much was freed since the process started, and of how much caches hold.

        Caches free and take all the time; what they held before and do not hold any more counts as freed.
        """
        if self._looked_at is None:
            self._looked_at, self._used_s = now, time.process_time()
            self._resident = resident_bytes()  # whoever comes from now on counts
        elif now >= self._looked_at + QUIET_S:
            self._look(now, self._looked_at)
        self._held_max = max(self._held_max, held_bytes)
        self._given_back = min(self._given_back, freed_bytes)  # whoever counts may begin again
        if _pools.is_busy:
            if now >= self._stepped_at + self._step_s:
                self._step(now)
        elif self._due_at is None:
            if self._freed(freed_bytes, held_bytes) >= GIVE_BACK_BYTES:
                self._due_at = now + GIVE_BACK_DELAY_S
            elif self._again and now >= self._again_at:
                self._again -= 1
                self._again_at = now + AGAIN_S
                self._give_back()
        elif now >= self._due_at:
            self._due_at = None
            if self._freed(freed_bytes, held_bytes) >= GIVE_BACK_BYTES:  # or the caches are full again
                self._given_back, self._held_max = freed_bytes, held_bytes
                self._again, self._again_at = AGAIN_TIMES, now + AGAIN_S
                self._give_back()

    def _step(self, now: float) -> None:
        """Go on with small objects, and say when next."""
        used_s = time.process_time()
        is_working = used_s - self._stepped_used_s > WORKING_SHARE * (now - self._stepped_at)
        self._stepped_at, self._stepped_used_s = now, used_s
        self._step_s = WORKING_STEP_S if is_working else STEP_S
        _pools.step()

    def _look(self, now: float, looked_at: float) -> None:
        """Have memory given back that was freed although nobody counted it, if the process has little to do."""
        passed_s, used_s = now - looked_at, time.process_time() - self._used_s
        self._looked_at, self._used_s = now, self._used_s + used_s
        if _pools.is_busy or self._due_at is not None:
            return
        is_given_back, self._is_given_back = self._is_given_back, False
        if used_s > QUIET_SHARE * passed_s:
            return  # and what comes now is not what stayed
        resident = resident_bytes()
        if not resident:
            return  # nobody tells
        if is_given_back or resident < self._resident:
            self._resident = resident
        elif resident > self._resident + GROWN_BYTES + resident // GROWN_PART:
            self._is_given_back = True
            self._again, self._again_at = AGAIN_TIMES, now + AGAIN_S
            self._give_back()

    def _give_back(self) -> None:
        for one in self._caches:
            one.cache_clear()
        _pools.begin(give_back)

    @property
    def wait_s(self) -> float:
        """Give in how many seconds `update` has to be called again at the latest."""
        return self._step_s if _pools.is_busy else inf

    def _freed(self, freed_bytes: int, held_bytes: int) -> int:
        return freed_bytes - self._given_back + self._held_max - held_bytes


def _caches_of_functions() -> list[Any]:
    """Give what functions remember results in, and forget them for lack of room; they come among all that comes."""
    found = [one for one in gc.get_objects() if type(one) is _LRU_CACHE]
    return [one for one in found if one.cache_parameters()["maxsize"] is not None]


def give_back() -> None:
    """Give the system the memory that nothing is in.

    The interpreter keeps freed objects of some types for the next ones, and each keeps a megabyte around it. Only a
    full collection empties these lists; with everything frozen it looks at nothing else, so it takes no time. Its cache
    of what types have keeps a text for each time that C code asked for an attribute by name: each opening of a spool
    leaves one among what is in use then, and two of three arenas were kept by nothing else.
    """
    gc.freeze()
    gc.collect()
    gc.unfreeze()
    _clear_type_cache()
    if _glibc.malloc_trim is not None:
        _glibc.malloc_trim(0)
    _arenas.give_back()
