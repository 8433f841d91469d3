"""A worker process with a home on LMDB, and a router that is played by the test.

What the state machine does is shown in the unit tests; here a process is killed, stopped in order, and started
again on its data, and what was promised is counted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import zmq

from angarium import wire

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
ROUTER = 3
LANE = 5 << wire.LANE_BITS
ROWS = 255
#: Far above what any step takes.
PATIENCE_S = 30.0

_encode = msgspec.msgpack.Encoder().encode


class PlayedRouter:
    """The router's end of the socket, and the worker process at the other."""

    def __init__(self, folder: Path, runtime: Path) -> None:
        self.runtime = runtime
        config = {"spool_dir": str(folder / "spool"), "spool_map_bytes": 1 << 28}
        (runtime / "worker.json").write_text(json.dumps(config), encoding="utf-8")
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(f"ipc://{runtime}/workers")
        self.incarnation = 10
        self.process: subprocess.Popen[bytes] | None = None
        self.identity = b""
        self.clear()

    def clear(self) -> None:
        self.home: list[Any] | None = None
        self.stored = 0
        self.totals: list[Any] = []
        self.rows: list[tuple[int, bytes, int]] = []

    def begin(self) -> None:
        """Start the process, and tell it everything until it says HOME."""
        self.clear()
        self.incarnation += 1
        arguments = ["--runtime", str(self.runtime), "--index", "0", "--incarnation", str(self.incarnation)]
        self.process = subprocess.Popen([sys.executable, "-m", "node", *arguments], cwd=ROOT)
        self.until(lambda: self.identity == b"w0.%d" % self.incarnation, "READY")
        self.send(wire.START, [ROUTER, 1, bytes(1024)])
        self.send(wire.LANES, [ROUTER, 1, True, [[LANE, 1, {"name": "q"}]], []])
        self.until(lambda: self.home is not None, "HOME")

    def end(self, how: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(how)
        assert self.process.wait(PATIENCE_S) == (0 if how == signal.SIGTERM else -how)
        self.process = None

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.context.destroy(linger=0)

    def send(self, operation: bytes, header: Any, *batches: bytes) -> None:
        self.socket.send_multipart([self.identity, operation, _encode(header), *batches])

    def store(self, number: int, payload: bytes) -> None:
        batch = _encode([(i, "a/b", 1, None, None, payload) for i in range(ROWS)])
        head = [ROUTER, number, False, [11, number * ROWS], [[[LANE], ROWS, None]], [], 1_700_000_000_000]
        self.send(wire.STORE, head, batch)

    def bind(self, flow: int) -> None:
        self.send(wire.FLOW, [ROUTER, "bind", flow, [LANE, False, None, 1 << 40, 1 << 60, {}]])

    def until(self, done: Any, what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < deadline, f"no {what} in {PATIENCE_S} s"
            if self.socket.poll(100):
                self._read(self.socket.recv_multipart())

    def _read(self, frames: list[bytes]) -> None:
        identity, operation, header, *batches = frames
        body = wire.unpack(header)
        if operation == wire.READY:
            self.identity = identity
        elif operation == wire.HOME:
            self.home, self.stored, self.totals = body, body[3], body[4]
        elif operation == wire.COMMITTED:
            self.stored, self.totals = body[2], body[3]
        elif operation == wire.FLOW_MESSAGES:
            for part, batch in zip(body[2], batches, strict=True):
                counts = part[3] or [0] * part[1]
                positions = [first + i for first, n in part[2] for i in range(n)]
                rows = zip(positions, wire.unpack(batch), counts, strict=True)
                self.rows += [(position, row[5], count) for position, row, count in rows]


@pytest.fixture
def router(tmp_path: Path) -> Iterator[PlayedRouter]:
    runtime = Path(f"/tmp/ang-home-{os.getpid()}")
    runtime.mkdir(mode=0o700)
    played = PlayedRouter(tmp_path, runtime)
    try:
        yield played
    finally:
        played.close()
        for left in runtime.iterdir():
            left.unlink()
        runtime.rmdir()


@pytest.mark.slow
@pytest.mark.requirement("R96", "R163", "R212")
def test_what_was_stored_is_there_after_a_kill_and_is_marked_as_perhaps_delivered(
    router: PlayedRouter,
) -> None:
    router.begin()
    router.bind(1)
    for number in range(1, 21):
        router.store(number, b"m%d" % number)
    router.until(lambda: router.stored == 20, "COMMITTED")
    router.end(signal.SIGKILL)
    router.begin()
    assert router.home is not None
    assert router.stored == 20
    assert router.totals[0][:2] == [LANE, 20 * ROWS]
    router.bind(2)
    router.until(lambda: len(router.rows) == 20 * ROWS, "messages")
    assert [position for position, _, _ in router.rows] == list(range(1, 20 * ROWS + 1))
    assert {count for _, _, count in router.rows} == {1}


@pytest.mark.slow
def test_an_orderly_stop_writes_what_waits_and_needs_no_marks(router: PlayedRouter) -> None:
    router.begin()
    for number in range(1, 11):
        router.store(number, b"m%d" % number)
    router.until(lambda: router.stored > 0, "COMMITTED")
    router.end(signal.SIGTERM)
    router.begin()
    assert router.stored == 10, "what was received before the end was written"
    router.bind(1)
    router.until(lambda: len(router.rows) == 10 * ROWS, "messages")
    assert {count for _, _, count in router.rows} == {0}


@pytest.mark.slow
@pytest.mark.requirement("R165", "R166")
def test_settled_messages_stay_away_after_a_kill(router: PlayedRouter) -> None:
    router.begin()
    router.bind(1)
    for number in range(1, 6):
        router.store(number, b"m%d" % number)
    router.until(lambda: len(router.rows) == 5 * ROWS, "messages")
    router.send(wire.FLOW, [ROUTER, "settle", 1, [wire.OUTCOME_ACCEPTED, [[1, 5 * ROWS - 3]]]])
    router.until(lambda: any(one[:2] == [LANE, 3] for one in router.totals), "totals")
    time.sleep(0.1)  # Settled messages are on disk within 20 ms; a test cannot see it from outside.
    router.end(signal.SIGKILL)
    router.begin()
    assert router.totals[0][:2] == [LANE, 3]
