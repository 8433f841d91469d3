"""Pools of the interpreter in which nothing is: the system gets their pages, and nobody else's."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from angarium_server.memory import free_pools
from angarium_server.memory.free_pools import (
    BLOCK_BYTES,
    BLOCKS,
    HEADER_BYTES,
    POOL_BYTES,
    POOLS_KEPT,
    FreePools,
    sort_out,
)

pytestmark = pytest.mark.requirement("R279")

PLACE = 1 << 40


def pool(number: int) -> list[int]:
    first = PLACE + number * POOL_BYTES + HEADER_BYTES
    return [first + at * BLOCK_BYTES for at in range(BLOCKS)]


def test_pools_whose_blocks_are_all_ours_are_told_from_those_that_others_use() -> None:
    others_too = pool(1)[3:]
    ended = pool(4)[:-1]
    pools, others = sort_out([*pool(0), *others_too, *pool(2), *pool(3), *ended])
    assert [*pools] == [pool(number)[0] for number in (0, 2, 3)]
    assert others == [*others_too, *ended]


def test_blocks_that_lie_otherwise_are_no_pools() -> None:
    """Another allocator has other places for them."""
    for distance, start in ((BLOCK_BYTES + 16, HEADER_BYTES), (BLOCK_BYTES, 0), (BLOCK_BYTES, 64)):
        blocks = [PLACE + start + at * distance for at in range(200)]
        pools, others = sort_out(blocks)
        assert (len(pools), others) == (0, blocks)


#: A process that takes 60 MB of small things and keeps one in each arena, some times; what is resident of it at its
#: most, without the pools and with them, and how many pools are taken then. What is kept stays what it was. At the end
#: nothing is kept, and all pools are taken anew.
KEEPING = """
import json, mmap, sys
from angarium_server.memory import free_pools, memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * mmap.PAGESIZE

def steps(pools):
    pools.begin(memory.give_back)
    while pools.is_busy:
        pools.step()

pools, seen = free_pools.FreePools(), []
for cycle in range(5):
    things = [(cycle, at) for at in range(600_000)]
    most = resident()
    kept = things[::8_000]
    del things
    memory.give_back()
    without, counted = resident(), sys.getallocatedblocks()
    steps(pools)
    assert sys.getallocatedblocks() < counted + 1_000, "the pools are counted as what is in them"
    seen.append([most, without, resident(), pools.taken])
    assert kept == [(cycle, at) for at in range(0, 600_000, 8_000)], kept
taken = pools.taken
kept.clear()
free_pools.POOLS_KEPT = -2 * taken
steps(pools)
seen.append([taken, pools.taken, resident()])
print(json.dumps(seen))
"""


@pytest.mark.skipif(not free_pools.is_known(), reason="another interpreter has other memory")
def test_a_thing_that_is_kept_does_not_keep_a_megabyte_around_it() -> None:
    done = subprocess.run([sys.executable, "-c", KEEPING], check=True, capture_output=True, text=True)
    *cycles, (taken_before, taken_at_the_end, at_the_end) = json.loads(done.stdout)
    for most, without, with_pools, _ in cycles:
        assert without > 0.8 * most, "the interpreter kept it"
        assert with_pools < 0.35 * without
    assert max(with_pools for *_, with_pools, _ in cycles) < 1.3 * cycles[0][2], "less is resident each time"
    taken = [taken for *_, taken in cycles]
    assert max(taken) < 4 * taken[0] + POOLS_KEPT
    assert taken != sorted(taken), "what is taken is given back before it is too much"
    assert taken_at_the_end < taken_before / 4, "arenas in which nothing is go"
    assert at_the_end < cycles[-1][2]


def test_an_interpreter_that_is_not_known_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_pools, "_KNOWN_TO", (3, 11))
    calls: list[None] = []
    pools = FreePools()
    pools.begin(lambda: calls.append(None))
    assert (pools.is_busy, pools.taken, len(calls)) == (False, 0, 1)
