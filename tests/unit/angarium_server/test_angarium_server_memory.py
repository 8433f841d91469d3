"""When a process gives memory back: after much was freed, and stays free."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from angarium_server.memory import free_pools, memory
from angarium_server.memory.memory import (
    AGAIN_S,
    AGAIN_TIMES,
    GIVE_BACK_BYTES,
    GIVE_BACK_DELAY_S,
    FreedMemory,
    collect_rarely,
    give_up_room,
    in_use_bytes,
)

pytestmark = pytest.mark.requirement("R279")

LATER = GIVE_BACK_DELAY_S


@pytest.fixture
def given_back(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Note when memory is given back, without the pools, which take some more calls."""
    calls: list[None] = []
    monkeypatch.setattr(memory, "give_back", lambda: calls.append(None))
    monkeypatch.setattr(free_pools, "_KNOWN_TO", (3, 11))
    monkeypatch.setattr(memory, "_pools", free_pools.FreePools())
    return calls


def test_memory_is_given_back_a_while_after_much_was_freed(given_back: list[None]) -> None:
    freed = FreedMemory()
    freed.update(GIVE_BACK_BYTES - 1, 0.0)
    freed.update(GIVE_BACK_BYTES, 10.0)
    freed.update(2 * GIVE_BACK_BYTES, 10.0 + LATER - 0.1)
    assert not given_back
    freed.update(2 * GIVE_BACK_BYTES, 10.0 + LATER)
    assert len(given_back) == 1
    freed.update(3 * GIVE_BACK_BYTES - 1, 10.0 + LATER + AGAIN_S - 0.1)
    assert len(given_back) == 1


def test_memory_is_given_back_again_a_few_times_and_then_left_alone(given_back: list[None]) -> None:
    """What is in use by chance at the first time keeps an arena of a megabyte."""
    freed = FreedMemory()
    freed.update(GIVE_BACK_BYTES, 0.0)
    freed.update(GIVE_BACK_BYTES, LATER)
    times = [LATER + AGAIN_S * number / 10 for number in range(10 * (AGAIN_TIMES + 5))]
    counts = []
    for now in times:
        freed.update(GIVE_BACK_BYTES, now)
        counts.append(len(given_back))
    assert counts == [min(1 + number // 10, 1 + AGAIN_TIMES) for number in range(len(times))]


def test_what_caches_do_not_hold_any_more_is_freed(given_back: list[None]) -> None:
    freed = FreedMemory()
    freed.update(0, 0.0, 3 * GIVE_BACK_BYTES)
    freed.update(0, 10.0, GIVE_BACK_BYTES)
    assert not given_back
    freed.update(0, 10.0 + LATER, GIVE_BACK_BYTES)
    assert len(given_back) == 1
    freed.update(0, 10.0 + LATER + 1.0, 2)  # less than is worth it
    freed.update(0, 10.0 + LATER + 5.0, 2)
    assert len(given_back) == 1


def test_caches_that_empty_and_fill_again_keep_their_memory(given_back: list[None]) -> None:
    freed = FreedMemory()
    for second in range(0, 100, 10):
        freed.update(0, second, 3 * GIVE_BACK_BYTES)
        freed.update(0, second + 1, 0)
        freed.update(0, second + 1 + LATER, 3 * GIVE_BACK_BYTES)
    assert not given_back


@pytest.mark.skipif(not in_use_bytes(), reason="the C library does not tell")
def test_what_is_in_use_counts_large_and_small_things_and_no_longer_than_they_live() -> None:
    gc.collect()  # what earlier tests left goes now, not meanwhile
    before = in_use_bytes()
    large = bytearray(50_000_000)
    assert 49e6 < in_use_bytes() - before < 55e6
    del large
    small = [(float(number),) for number in range(200_000)]  # 64 bytes each and a place of 8
    assert 12e6 < in_use_bytes() - before < 60e6
    del small
    assert abs(in_use_bytes() - before) < 3e6


@pytest.mark.skipif(not in_use_bytes(), reason="the C library does not tell")
def test_looking_at_the_memory_leaves_nothing_that_only_a_full_collection_frees() -> None:
    functions = type(ctypes.CDLL(None).malloc).__mro__[1]
    gc.collect()
    before = len(functions.__subclasses__())
    for _ in range(10):
        in_use_bytes()
    memory.give_back()
    in_use_bytes()
    assert len(functions.__subclasses__()) == before


def test_names_that_c_code_asked_for_are_not_kept() -> None:
    """LMDB asks for one when it opens a spool, and each kept a megabyte of what was freed around it."""
    memory.give_back()
    before, others = sys.getallocatedblocks(), []
    for _ in range(2_000):
        ctypes.pythonapi.PyObject_HasAttrString(ctypes.py_object(memory), b"nothing")
        others.append(bytes(24))  # next to the name, of the same size
    del others
    memory.give_back()
    assert sys.getallocatedblocks() - before < 100


#: A process with threads that had 8 MB each and wait; prints what is resident before and after it is given back.
IDLE_THREADS = """
import ctypes, threading, time
from angarium_server.memory import free_pools, memory
memory.keep_freed_memory()
library, taken, end = ctypes.CDLL(None), threading.Barrier(4), threading.Event()
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, (ctypes.c_void_p,)
def have_had_much():
    blocks = [library.malloc(400_000) for _ in range(20)]
    for block in blocks:
        ctypes.memset(ctypes.c_void_p(block), 1, 400_000)
    for block in blocks:
        library.free(block)
    taken.wait()
    end.wait()
for _ in range(3):
    threading.Thread(target=have_had_much, daemon=True).start()
taken.wait()
before = free_pools.resident_bytes()
for _ in range(2):
    {give_back}()
    while memory._arenas.is_busy:
        time.sleep(0.001)
print(before, free_pools.resident_bytes())
"""


def resident_of_idle_threads(give_back: str) -> tuple[int, int]:
    program = IDLE_THREADS.format(give_back=give_back)
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    before, after = map(int, done.stdout.split())
    return before, after


@pytest.mark.skipif(not in_use_bytes(), reason="the C library is no glibc")
def test_what_other_threads_freed_is_given_back_from_the_ends_of_their_arenas() -> None:
    before, after = resident_of_idle_threads("memory.give_back")
    assert before - after > 3 * 7 << 20
    before, after = resident_of_idle_threads("memory._glibc.malloc_trim(0) or int")
    assert before - after < 1 << 20, "or it needs no threads"


#: A process that counts while it takes 30 MB of small things, a few numbers among them, and then has nothing of it.
COUNTING = """
from angarium_server.memory import memory
if not {has_room}:
    memory.RESERVED_NUMBERS.clear()
freed = memory.FreedMemory()
counts, times, things = dict.fromkeys(range(30), 1 << 20), dict.fromkeys(range(30), 1 << 40), []
for at in range(300_000):
    things.append((None, None, None, None, None, (1 << 20) + at if at % 15 == 0 else None))
    if at % 10_000 == 0:
        counts[at // 10_000] += 1
        times[at // 10_000] += 1
del things
memory.give_back()
import sys
import time
from pathlib import Path
sys._debugmallocstats()
"""


def arenas_after_counting(*, has_room: bool) -> int:
    program = COUNTING.format(has_room=has_room)
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    found = re.search(r"arenas allocated current +=\s+(\d+)", done.stderr)
    assert found is not None, done.stderr
    return int(found[1])


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="another interpreter has other memory")
def test_numbers_that_were_counted_while_much_was_in_memory_keep_none_of_it() -> None:
    least = arenas_after_counting(has_room=True)
    assert least < 8
    assert arenas_after_counting(has_room=False) > least + 8, "without the room for them they do"


def test_a_table_that_most_left_gives_its_room_up_and_stays_the_same_one() -> None:
    table = dict.fromkeys(range(100_000))
    roomy = sys.getsizeof(table)
    for key in range(99_990):
        del table[key]
    small = dict.fromkeys(range(10))
    before = sys.getsizeof(small)
    for one in (table, small):
        give_up_room(one)
    assert list(table) == list(range(99_990, 100_000))
    assert sys.getsizeof(table) < roomy / 100
    assert (list(small), sys.getsizeof(small)) == (list(range(10)), before)


@pytest.mark.requirement("R278")
def test_no_collection_but_a_rare_full_one_looks_at_more_than_six_thousand_objects() -> None:
    """While a client subscribes to very much, all that it makes survives: each look at it stops everybody."""
    before = gc.get_threshold()
    try:
        collect_rarely()
        young, middle, old = gc.get_threshold()
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
    assert young <= 2_000
    assert young * (middle + 1) <= 6_000, "3 ms for 15,000"
    assert young * middle * old >= 100_000_000


class Quiet:
    """A process that says how busy it is, and what is resident of it."""

    def __init__(self, given_back: list[None], monkeypatch: pytest.MonkeyPatch) -> None:
        self.given_back, self.now, self.used_s, self.resident = given_back, 0.0, 0.0, 100 << 20
        monkeypatch.setattr(time, "process_time", lambda: self.used_s)
        monkeypatch.setattr(memory, "resident_bytes", lambda: self.resident)
        self.freed = FreedMemory()
        self.freed.update(0, 0.0)

    def look(self, *, busy: float = 0.0, grown_bytes: int = 0) -> int:
        """Let the time to the next look pass; gives how often memory was given back."""
        before = len(self.given_back)
        self.now += memory.QUIET_S
        self.used_s += busy * memory.QUIET_S
        self.resident += grown_bytes
        self.freed.update(0, self.now)
        return len(self.given_back) - before


@pytest.fixture
def quiet(given_back: list[None], monkeypatch: pytest.MonkeyPatch) -> Quiet:
    monkeypatch.setattr(memory, "AGAIN_TIMES", 0)
    return Quiet(given_back, monkeypatch)


def test_what_nobody_counted_is_given_back_when_the_process_is_quiet(quiet: Quiet) -> None:
    assert quiet.look() == 0
    assert quiet.look(busy=0.5, grown_bytes=20 << 20) == 0, "it works"
    assert quiet.look() == 1
    assert quiet.look(grown_bytes=-18 << 20) == 0
    assert quiet.look(grown_bytes=1 << 20) == 0, "not for so little"
    assert quiet.look(grown_bytes=4 << 20) == 1


def test_what_a_quiet_process_needs_is_not_looked_for_again_and_again(quiet: Quiet) -> None:
    quiet.look()
    assert [quiet.look(grown_bytes=20 << 20)] + [quiet.look() for _ in range(20)] == [1] + 20 * [0]


def test_what_came_while_memory_was_given_back_is_not_taken_for_what_stays(quiet: Quiet) -> None:
    quiet.look()
    assert quiet.look(grown_bytes=20 << 20) == 1
    assert quiet.look(busy=0.5) == 0
    assert [quiet.look(), quiet.look(grown_bytes=-20 << 20)] == [1, 0]


def test_what_came_before_the_first_look_is_not_taken_for_what_stays(quiet: Quiet) -> None:
    assert quiet.look(grown_bytes=20 << 20) == 1


def test_a_process_that_works_gives_small_objects_back_in_few_steps(
    quiet: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that come and go would take those that stay a tenth of its time."""
    steps: list[float] = []
    pools = SimpleNamespace(is_busy=True, step=lambda: steps.append(quiet.now))
    monkeypatch.setattr(memory, "_pools", pools)

    def steps_in_a_second(busy: float) -> int:
        steps.clear()
        for _ in range(1_000):
            quiet.now += 0.001
            quiet.used_s += busy * 0.001
            quiet.freed.update(0, quiet.now)
        return len(steps)

    assert steps_in_a_second(busy=0.1) >= 160
    assert steps_in_a_second(busy=0.9) <= 45
    assert steps_in_a_second(busy=0.0) >= 160, "it has time again"


def test_a_process_without_a_free_descriptor_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    freed = FreedMemory()
    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert free_pools.resident_bytes() == 0
    for look in range(3):
        freed.update(0, look * memory.QUIET_S)


def test_a_look_that_gives_nothing_changes_nothing(quiet: Quiet) -> None:
    resident, quiet.resident = quiet.resident, 0
    assert quiet.look() == 0
    quiet.resident = resident
    assert quiet.look() == 0, "it has not grown"
