"""Worker processes with homes on LMDB, and a router and a controller that are played by the test.

What the state machine does is shown in the unit tests; here a process is killed, stopped in order, and started
again on its data, and what was promised is counted.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import zmq

from angarium import wire
from angarium_server import launch
from node.backlog.segment import Segment
from storage.spool import Table, is_owned, open_readonly, open_spool
from tests.command_server import PROGRAM
from tests.warm_start import WarmNode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.command_server import CommandServer

ROOT = Path(__file__).resolve().parents[2]
ROUTER = 3
LANE = 5 << wire.LANE_BITS
ROWS = 255
#: Far above what any step takes.
PATIENCE_S = 30.0

_encode = msgspec.msgpack.Encoder().encode


class PlayedRouter:
    """The router's end of the socket to one worker process, and the controller's."""

    def __init__(self, commands: CommandServer, folder: Path, runtime: Path, index: int = 0) -> None:
        self._commands = commands
        self._log = folder / f"{index}.log"
        self.runtime = runtime
        self.index = index
        config = {"spool_dir": str(folder / "spool"), "spool_map_bytes": 1 << 28}
        (runtime / "worker.json").write_text(json.dumps(config), encoding="utf-8")
        self.context = zmq.Context()
        self.socket = self._bind("workers")
        self.control = self._bind("control")
        self.incarnation = 10
        self.process: WarmNode | None = None
        self.identity = self.control_identity = b""
        self.requests = 0
        self.clear()

    def _bind(self, name: str) -> zmq.Socket[bytes]:
        socket = self.context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(f"ipc://{self.runtime}/{name}")
        return socket

    def clear(self) -> None:
        self.home: list[Any] | None = None
        self.stored = 0
        #: Whether the process said that its spool failed.
        self.has_failed = False
        #: The flow that ended last.
        self.ended = 0
        self.totals: list[Any] = []
        self.rows: list[tuple[int, bytes, int]] = []
        self.replies: dict[int, list[Any]] = {}
        self.events: list[dict[str, Any]] = []

    def begin(self, *lanes: int) -> None:
        """Start the process, and tell it everything until it says HOME."""
        self.start()
        self.until(lambda: self.identity == b"w%d.%d" % (self.index, self.incarnation), "READY")
        self.send(wire.START, [ROUTER, 1, bytes(1024)])
        puts = [[lane, 1, {"name": "q"}] for lane in lanes or (LANE,)]
        self.send(wire.LANES, [ROUTER, 1, True, puts, []])
        self.until(lambda: self.home is not None, "HOME")
        self.send(wire.ALLOWANCE, [ROUTER, 1_000_000])

    def start(self) -> None:
        self.clear()
        self.incarnation += 1
        index, incarnation = str(self.index), str(self.incarnation)
        arguments = ["--runtime", str(self.runtime), "--index", index, "--incarnation", incarnation]
        program = [PROGRAM, str(ROOT / "node" / "__main__.py"), *arguments]
        with self._log.open("ab") as log:
            self.process = WarmNode(self._commands, program, log, launch.environment())

    def end(self, how: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, how)
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
        self.send(wire.FLOW, [ROUTER, [[flow, ["bind", LANE, False, None, 1 << 40, 1 << 60, {}]]]])

    def wait_for_receipt(self) -> None:
        """Wait until the home has read all that was sent to it, whatever it has written of that."""
        self.send(wire.FLOW, [ROUTER, [[99, ["bind", LANE, False, None, 0, 0, {}]]]])
        self.send(wire.FLOW, [ROUTER, [[99, ["unbind", 60_000]]]])
        self.until(lambda: self.ended == 99, "end of the flow")

    def ask(self, operation: str, **arguments: Any) -> Any:
        """Ask as the controller does."""
        self.until(lambda: self.control_identity != b"", "hello")
        self.requests += 1
        number = self.requests
        frame = wire.pack(["request", number, operation, arguments])
        self.control.send_multipart([self.control_identity, frame])
        self.until(lambda: number in self.replies, f"reply to {operation}")
        done, value = self.replies[number]
        assert done, value
        return value

    def until(self, done: Any, what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        poller = zmq.Poller()
        poller.register(self.socket, zmq.POLLIN)
        poller.register(self.control, zmq.POLLIN)
        while not done():
            assert time.monotonic() < deadline, f"no {what} in {PATIENCE_S} s"
            for socket, _ in poller.poll(100):
                read = self._read if socket is self.socket else self._read_control
                read(socket.recv_multipart())

    def _read_control(self, frames: list[bytes]) -> None:
        kind, *body = wire.unpack(frames[1])
        if kind == "hello" and body[2] == self.incarnation:
            self.control_identity = frames[0]
        elif kind == "reply":
            self.replies[body[0]] = body[1:]
        elif kind == "events":
            self.events += body[0]

    def _read(self, frames: list[bytes]) -> None:
        identity, operation, header, *batches = frames
        if identity != b"w%d.%d" % (self.index, self.incarnation):
            return  # What an earlier process had sent before its end.
        body = wire.unpack(header)
        if operation == wire.READY:
            self.identity = identity
        elif operation == wire.HOME:
            self.home, self.stored, self.totals = body, body[3], body[4]
        elif operation == wire.SPOOL_FAILED:
            self.has_failed = True
        elif operation == wire.FLOW_EVENT:
            self.ended = body[1][-1][0]
        elif operation == wire.COMMITTED:
            self.stored, self.totals = body[2], body[3]
        elif operation == wire.FLOW_MESSAGES:
            for part, batch in zip(body[2], batches, strict=True):
                counts = part[3] or [0] * part[1]
                positions = [first + i for first, n in part[2] for i in range(n)]
                rows = zip(positions, wire.unpack(batch), counts, strict=True)
                self.rows += [(position, row[5], count) for position, row, count in rows]


def _runtime(name: str) -> Path:
    """Make a short directory: a socket's path has at most 107 bytes."""
    runtime = Path(tempfile.gettempdir()) / f"ang-home-{os.getpid()}{name}"
    runtime.mkdir(mode=0o700)
    return runtime


@pytest.fixture
def routers(tmp_path: Path, commands: CommandServer) -> Iterator[list[PlayedRouter]]:
    """Two workers of one node."""
    played = [PlayedRouter(commands, tmp_path, _runtime(str(index)), index) for index in range(2)]
    try:
        yield played
    finally:
        for one in played:
            one.close()
            shutil.rmtree(one.runtime)


@pytest.fixture
def router(routers: list[PlayedRouter]) -> PlayedRouter:
    return routers[0]


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
def test_a_damaged_spool_ends_the_process_with_a_sentence(router: PlayedRouter, tmp_path: Path) -> None:
    (tmp_path / "spool" / "0").mkdir(parents=True)
    (tmp_path / "spool" / "0" / "data.mdb").write_bytes(b"nonsense" * 1_000)
    supervisor = router._bind("supervisor")
    arguments = ["--runtime", str(router.runtime), "--index", "0", "--incarnation", "11"]
    command = [sys.executable, "-m", "node", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (said,) = [line for line in done.stderr.splitlines() if "CRITICAL" in line]
    assert "this worker cannot work: error 50322" in said
    heartbeats = []
    while supervisor.poll(100):
        heartbeats.append(wire.unpack(supervisor.recv_multipart()[1]))
    supervisor.close()
    assert heartbeats[-1][4:6] == ["starting", said.partition("this worker ")[2]]


@pytest.mark.slow
@pytest.mark.requirement("R190")
def test_the_last_frame_of_a_process_whose_disk_fails_says_so(router: PlayedRouter) -> None:
    """A file that must not grow is an error that LMDB does not know, as a failed sync is."""
    router.begin()
    process = router.process
    assert process is not None
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, 0))
    router.store(1, b"lost")
    # 120: its log is a file here, which must not grow either, and Python says so.
    assert process.wait(PATIENCE_S) in (1, 120)
    router.until(lambda: router.has_failed, "SPOOL_FAILED")
    assert int(router.stored) == 0
    router.begin()
    router.store(1, b"kept")
    router.until(lambda: router.stored == 1, "COMMITTED")


@pytest.mark.slow
@pytest.mark.requirement("R190")
def test_damage_that_is_found_while_the_spool_is_read_is_told_in_the_last_frame(
    router: PlayedRouter, tmp_path: Path
) -> None:
    """The worker has announced itself by then, and may have a frame of a publisher."""
    router.begin()
    router.store(1, b"m")
    router.until(lambda: router.stored == 1, "COMMITTED")
    router.end(signal.SIGTERM)
    spool = open_spool(tmp_path / "spool" / "0", 1 << 28)
    ((key, _),) = spool.scan(Table.SEGMENTS)
    spool.commit([(Table.SEGMENTS, key, b"\x90")])
    spool.close()
    router.start()
    assert router.process is not None
    assert router.process.wait(PATIENCE_S) == 1
    router.until(lambda: router.has_failed, "SPOOL_FAILED")


@pytest.mark.slow
def test_an_orderly_stop_writes_what_waits_and_needs_no_marks(router: PlayedRouter) -> None:
    router.begin()
    for number in range(1, 11):
        router.store(number, b"m%d" % number)
    router.wait_for_receipt()
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
    router.send(wire.FLOW, [ROUTER, [[1, ["settle", wire.OUTCOME_ACCEPTED, [[1, 5 * ROWS - 3]]]]]])
    router.until(lambda: any(one[:2] == [LANE, 3] for one in router.totals), "totals")
    router.store(6, b"m6")  # Settled messages are on disk with the next one at the latest.
    router.until(lambda: router.stored == 6, "COMMITTED")
    router.end(signal.SIGKILL)
    router.begin()
    assert router.totals[0][:2] == [LANE, 3 + ROWS]


@pytest.mark.slow
def test_a_lane_comes_from_the_spool_of_a_worker_that_left(
    routers: list[PlayedRouter], tmp_path: Path
) -> None:
    old, new = routers[1], routers[0]
    old.begin()
    for number in range(1, 9):
        old.store(number, b"m%d" % number)
    old.until(lambda: old.stored == 8, "COMMITTED")
    new.begin(LANE + 1024)
    new.send(wire.LANES, [ROUTER, 2, False, [[LANE, 1, {"name": "q"}]], []])
    new.bind(1)
    new.store(1, b"new")
    new.until(lambda: new.stored == 1, "COMMITTED")
    assert (tmp_path / "spool" / "1" / f"claim-{LANE}").exists()
    assert new.rows == []
    old.end(signal.SIGTERM)
    new.until(lambda: len(new.rows) == 9 * ROWS, "messages")
    payloads = [payload for _, payload, _ in new.rows]
    assert payloads == [b"m%d" % number for number in range(1, 9) for _ in range(ROWS)] + [b"new"] * ROWS
    assert [position for position, _, _ in new.rows[: 8 * ROWS]] == list(range(1, 8 * ROWS + 1))
    new.until(lambda: "SYSTEM_AD_LANE_ADOPTED" in [event["event"] for event in new.events], "event")
    assert not (tmp_path / "spool" / "1").exists()


@pytest.mark.slow
def test_a_backup_is_a_spool_and_messages_go_on_meanwhile(router: PlayedRouter, tmp_path: Path) -> None:
    router.begin()
    for number in range(1, 9):
        router.store(number, b"m%d" % number)
    router.until(lambda: router.stored == 8, "COMMITTED")  # a request goes another way, and may be faster
    place = tmp_path / "backup" / "0"
    job = router.ask("spool.backup", directory=str(place))["job"]
    router.store(9, b"later")
    router.until(lambda: router.ask("job", job=job)["state"] == "done", "end of the backup")
    copy = open_readonly(place)
    segments = [Segment.unpack(key, value, None) for key, value in copy.scan(Table.SEGMENTS)]
    assert sum(segment.count for segment in segments) >= 8 * ROWS
    copy.close()
    assert not is_owned(place)
    router.until(lambda: router.stored == 9, "COMMITTED")
    assert router.ask("endpoint.purge", lane_id=LANE) == 9 * ROWS
    assert router.ask("spool.show")["messages_spooled"] == 0
    job = router.ask("spool.backup", directory=str(place))["job"]
    router.until(lambda: router.ask("job", job=job)["state"] == "failed", "refusal of the second backup")
