"""A process that writes a spool is killed at random moments; then what it promised is counted.

Each commit has a number, and does what a group of a home does: it adds a block, a segment and a state, replaces
a row that says the newest number, and from the tenth on deletes the block and the segment of an older one. So
the newest number tells every key and value that the spool must have, and nothing else.
"""

from __future__ import annotations

import os
import random
import selectors
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Final

import pytest

from storage import maintenance, pages
from storage.spool import DATA_FILE, LmdbSpool, Table, open_spool
from tests.share import short

ROOT: Final = Path(__file__).resolve().parents[2]
MAP_BYTES: Final = 256 << 20
#: A block is deleted when this many newer ones are there.
KEPT: Final = 10
SPEND_S: Final = short(2.0, long=5.0)
START_TIMEOUT_S: Final = 60.0

_WRITER: Final = textwrap.dedent(
    """
    import sys, threading, zlib
    sys.path.insert(0, sys.argv[2])
    from pathlib import Path
    import msgpack
    from storage.spool import Table, open_spool
    from storage.writer import Writer

    KEPT = 10
    key = lambda number: number.to_bytes(8, "big")
    spool = open_spool(Path(sys.argv[1]), 256 << 20)
    newest = int.from_bytes(spool.get(Table.META, b"newest") or bytes(8), "big")
    print("start", newest, flush=True)

    def changes_of(number):
        body = key(number) * (1 + number * 7919 % 6000)
        yield Table.BLOCKS, key(number), zlib.crc32(body).to_bytes(4, "big") + body
        yield Table.SEGMENTS, key(1) + key(number), msgpack.packb([1, number, "s" * (number % 300)])
        yield Table.STATES, key(1) + key(number), key(number)
        yield Table.META, b"newest", key(number)
        if number > KEPT:
            yield Table.BLOCKS, key(number - KEPT), None
            yield Table.SEGMENTS, key(1) + key(number - KEPT), None
            yield Table.STATES, key(1) + key(number - KEPT), None

    woken = threading.Semaphore(0)
    writer = Writer(spool, woken.release)
    while True:
        newest += 1
        writer.submit(newest, list(changes_of(newest)))
        woken.acquire()
        (written,) = writer.take_written()
        assert written == (newest, None), written
        print("stored", newest, flush=True)
    """
)


class Child:
    """A process that writes until it is killed."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(directory), str(ROOT)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        #: The newest number that it said to be on disk, when it began or since.
        self.promised = 0

    def wait_for_start(self) -> None:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            assert selector.select(START_TIMEOUT_S), "the writer did not begin"

    def kill(self) -> None:
        """Kill it; what it said until then counts."""
        self._process.send_signal(signal.SIGKILL)
        output, complaints = self._process.communicate(timeout=START_TIMEOUT_S)
        assert self._process.returncode == -signal.SIGKILL, complaints.decode()
        lines = output.decode().split("\n")[:-1]
        self.promised = int(lines[-1].split()[1]) if lines else 0


def key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def count(directory: Path, promised: int) -> int:
    """What is there after a kill: all that was promised, in order, whole, and at most the group under way more."""
    if (directory / DATA_FILE).exists():
        pages.check_file(directory / DATA_FILE)
        assert maintenance.verify(directory, lambda _done, _total: None) == []
    spool = open_spool(directory, MAP_BYTES)
    try:
        newest = int.from_bytes(spool.get(Table.META, b"newest") or bytes(8), "big")
        assert promised <= newest <= promised + 1
        check_rows(spool, newest)
    finally:
        spool.close()
    return newest


def check_rows(spool: LmdbSpool, newest: int) -> None:
    numbers = range(max(1, newest - KEPT + 1), newest + 1)
    blocks = spool.scan(Table.BLOCKS)
    assert [name for name, _ in blocks] == [key(number) for number in numbers]
    for number, (_, value) in zip(numbers, blocks, strict=True):
        assert value[4:] == key(number) * (1 + number * 7919 % 6000)
    for table in (Table.SEGMENTS, Table.STATES):
        assert [name for name, _ in spool.scan(table)] == [key(1) + key(number) for number in numbers]
    assert [value for _, value in spool.scan(Table.STATES)] == [key(number) for number in numbers]


@pytest.mark.slow
@pytest.mark.requirement("R163", "R96")
def test_what_was_committed_survives_a_kill_at_any_moment(tmp_path: Path) -> None:
    """For some seconds, at moments that the seed tells; also while the spool is made and opened."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    deadline = time.monotonic() + SPEND_S
    newest = kills = early = 0
    while time.monotonic() < deadline or not (kills and early):
        child = Child(tmp_path / "spool")
        if rng.random() < 0.25:
            early += 1
            time.sleep(rng.uniform(0.0, 0.25))
        else:
            kills += 1
            child.wait_for_start()
            time.sleep(rng.uniform(0.0, 0.25))
        child.kill()
        newest = count(tmp_path / "spool", max(newest, child.promised))
    assert newest > kills, f"{newest} commits in {kills} lives"


@pytest.mark.slow
def test_a_spool_whose_making_was_killed_is_made_again(tmp_path: Path) -> None:
    """The process dies between any two calls to the system of the making, not only at those that take long."""
    code = textwrap.dedent(
        """
        import os, signal, sys
        sys.path.insert(0, sys.argv[2])
        from pathlib import Path
        from storage import spool
        left = int(sys.argv[3])
        def trace(frame, event, argument):
            global left
            if frame.f_code.co_filename.endswith(("storage/spool.py", "storage/headroom.py")):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace
        sys.settrace(trace)
        spool.open_spool(Path(sys.argv[1]), 64 << 20)
        print("made")
        """
    )
    rng = random.Random(11)
    is_made = False
    for number, lines in enumerate(sorted(rng.sample(range(1, 130), 12))):
        directory = tmp_path / str(number)
        done = subprocess.run(
            [sys.executable, "-c", code, str(directory), str(ROOT), str(lines)],
            capture_output=True,
            timeout=START_TIMEOUT_S,
            check=False,
            env=os.environ,
        )
        is_made = done.stdout == b"made\n"
        assert is_made or done.returncode == -signal.SIGKILL, done.stderr
        spool = open_spool(directory, 64 << 20)
        assert len(spool.environment_id) == 16
        spool.commit([(Table.BLOCKS, key(1), b"x")])
        spool.close()
