"""What the shells of all processes share, with a pretended supervisor and controller on real sockets."""

from __future__ import annotations

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

from angarium import errors, wire
from angarium_server import process
from angarium_server.frames.control import TableRow
from angarium_server.process import EVENTS_PER_FRAME, Process, load_config
from cluster.configuration.config import NodeConfig
from cluster.controller.access.callers import LOCAL
from cluster.controller.server import ControllerRuntime, ControllerServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 20.0
#: Longer than any wait that ends by itself here.
LONG_S = 5.0


class Side:
    """A ROUTER that a supervisor or controller would have."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], path: Path) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.bind(f"ipc://{path}")
        self.identity = b""
        #: What `arrived` found and `receive` has not given yet.
        self._waiting: list[list[Any]] = []

    def arrived(self, kind: str) -> int:
        """Give how many frames of a kind have come and were not received yet."""
        while self.socket.poll(0):
            self._waiting.append(self._read())
        return sum(frame[0] == kind for frame in self._waiting)

    def receive(self) -> list[Any]:
        if self._waiting:
            return self._waiting.pop(0)
        assert self.socket.poll(int(LIMIT_S * 1000)), "nothing came"
        return self._read()

    def _read(self) -> list[Any]:
        self.identity, frame = self.socket.recv_multipart()
        found: list[Any] = wire.unpack(frame)
        return found

    def receive_kind(self, kind: str) -> list[Any]:
        for _ in range(100):
            frame = self.receive()
            if frame[0] == kind:
                return frame
        raise AssertionError(f"no {kind} came")

    def send(self, frame: list[Any]) -> None:
        self.socket.send_multipart([self.identity, wire.pack(frame)])


class World:
    """A runtime directory with a supervisor, and a controller when the test wants one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.supervisor = Side(self.context, path / "supervisor")
        #: Kept, because a socket that nobody holds is closed with a warning.
        self.sides: list[Side] = []
        self.processes: list[Process] = []

    def controller(self) -> Side:
        self.sides.append(Side(self.context, self.path / "control"))
        return self.sides[-1]

    def process(self) -> Process:
        made = Process("worker", 3, 7, self.path)
        self.processes.append(made)
        return made

    def close(self) -> None:
        for made in self.processes:
            made.close()
        self.context.destroy(linger=0)


@pytest.fixture
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("r"))
    yield world
    world.close()


def run_for(made: Process, seconds: float) -> list[float]:
    """Run the loop for a while, and give when it ticked."""
    ticks: list[float] = []
    end = time.monotonic() + seconds

    def tick(now: float) -> float:
        ticks.append(now)
        made.stopping = now >= end
        return 0.01

    made.run(tick, lambda: True)
    return ticks


def run_until(made: Process, condition: Callable[[], object]) -> None:
    """Run the loop until a condition holds."""
    end = time.monotonic() + LIMIT_S

    def tick(now: float) -> float:
        made.stopping = bool(condition()) or now >= end
        return 0.01

    made.run(tick, lambda: True)
    assert time.monotonic() < end, "it did not happen in time"


def test_a_start_reports_its_progress_before_the_loop_runs(world: World) -> None:
    made = world.process()
    assert world.supervisor.receive() == ["heartbeat", "worker", 3, 7, "starting", "", {}]
    assert world.supervisor.identity == b"worker-3-7"
    made.progress("reading")
    assert world.supervisor.receive()[4:6] == ["starting", "reading"]
    made.ready({"urls": ["u"]})
    assert world.supervisor.receive()[4:] == ["ready", "", {"urls": ["u"]}]


@pytest.mark.slow
def test_the_loop_beats_every_half_second_and_says_when_it_stops(world: World) -> None:
    made = world.process()
    started = time.monotonic()
    made.ready({})
    run_until(made, lambda: world.supervisor.arrived("heartbeat") == 5)
    assert time.monotonic() - started >= 1.0
    states = [world.supervisor.receive()[4] for _ in range(6)]
    assert states == ["starting", *["ready"] * 4, "stopping"]


@pytest.mark.slow
def test_a_controller_that_comes_later_learns_who_is_there_and_what_happened(world: World) -> None:
    made = world.process()
    for number in range(3):
        made.emit_event({"severity": "info", "event": "E", "scope": "SYSTEM", "text": str(number)})
    run_for(made, 0.1)
    controller = world.controller()
    run_until(made, lambda: controller.arrived("events"))
    assert controller.receive_kind("hello") == ["hello", "worker", 3, 7, os.getpid()]
    events = controller.receive_kind("events")[1]
    assert [event["text"] for event in events] == ["0", "1", "2"]
    assert {(event["role"], event["index"]) for event in events} == {("worker", 3)}
    assert events[0]["time"].endswith("Z")


@pytest.mark.slow
def test_events_of_a_turn_leave_at_its_end_together_also_of_the_last_one(world: World) -> None:
    controller = world.controller()
    made = world.process()
    run_until(made, lambda: controller.arrived("hello"))
    turns: list[float] = []

    def tick(now: float) -> None:
        turns.append(now)
        for number in range(EVENTS_PER_FRAME + 1):
            made.emit_event({"severity": "info", "event": "E", "scope": "SYSTEM", "text": str(number)})

    made.stopping = True
    made.run(tick, lambda: True)
    assert len(turns) == 1
    told = [controller.receive_kind("events")[1] for _ in range(2)]
    assert [len(events) for events in told] == [EVENTS_PER_FRAME, 1]
    assert [event["text"] for events in told for event in events] == [
        str(one) for one in range(EVENTS_PER_FRAME + 1)
    ]


@pytest.mark.slow
def test_requests_are_answered_and_refusals_keep_their_code(world: World) -> None:
    controller = world.controller()
    made = world.process()
    asked = []

    def answer(operation: str, arguments: Any) -> Any:
        asked.append((operation, arguments))
        if operation == "bad":
            raise errors.error_for(errors.OBJECT_NOT_FOUND, "gone")
        return {"done": arguments}

    made.on_request(answer)
    run_until(made, lambda: controller.arrived("hello"))
    controller.receive_kind("hello")
    controller.send(["request", 1, "good", [1, 2]])
    controller.send(["request", 2, "bad", None])
    controller.send(["request", 3, "log_level", "INFO"])
    run_until(made, lambda: controller.arrived("reply") == 3)
    assert controller.receive_kind("reply") == ["reply", 1, True, {"done": [1, 2]}]
    assert controller.receive_kind("reply") == ["reply", 2, False, [errors.OBJECT_NOT_FOUND, "gone"]]
    assert controller.receive_kind("reply") == ["reply", 3, True, None]
    assert asked == [("good", [1, 2]), ("bad", None)]


@pytest.mark.slow
def test_a_process_without_a_handler_refuses_requests(world: World) -> None:
    controller = world.controller()
    made = world.process()
    run_until(made, lambda: controller.arrived("hello"))
    controller.receive_kind("hello")
    controller.send(["request", 1, "x", None])
    run_until(made, lambda: controller.arrived("reply"))
    assert controller.receive_kind("reply") == ["reply", 1, False, [errors.UNKNOWN_OPERATION, "x"]]


@pytest.mark.slow
def test_a_request_may_be_answered_later_and_in_another_order(world: World) -> None:
    controller = world.controller()
    made = world.process()
    promised: list[process.DeferredReply] = []

    def answer(operation: str, _arguments: Any) -> Any:
        promised.append(process.DeferredReply())
        if operation == "at once":
            made.reply(promised[-1], True, "now")
        return promised[-1]

    made.on_request(answer)
    run_until(made, lambda: controller.arrived("hello"))
    controller.receive_kind("hello")
    for number, operation in enumerate(("later", "later", "at once"), start=1):
        controller.send(["request", number, operation, None])
    run_until(made, lambda: controller.arrived("reply"))
    assert controller.receive_kind("reply") == ["reply", 3, True, "now"]
    made.reply(promised[1], False, [errors.HOME_NOT_READY, "w"])
    made.reply(promised[0], True, None)
    assert controller.receive_kind("reply") == ["reply", 2, False, [errors.HOME_NOT_READY, "w"]]
    assert controller.receive_kind("reply") == ["reply", 1, True, None]


@pytest.mark.slow
def test_a_process_asks_the_controller_and_each_answer_finds_its_question(world: World) -> None:
    made = world.process()
    got: list[Any] = []
    made.ask("early", 1, lambda ok, value: got.append(("early", ok, value)))
    controller = world.controller()
    run_until(made, lambda: controller.arrived("ask"))
    made.ask("late", 2, lambda ok, value: got.append(("late", ok, value)))
    assert controller.receive_kind("ask") == ["ask", 1, "early", 1]
    assert controller.receive_kind("ask") == ["ask", 2, "late", 2]
    controller.send(["answer", 2, False, [errors.OBJECT_EXISTS, "q"]])
    controller.send(["answer", 1, True, {"id": 7}])
    controller.send(["answer", 1, True, "twice"])
    run_until(made, lambda: len(got) == 2)
    run_for(made, 0.1)
    assert got == [("late", False, [errors.OBJECT_EXISTS, "q"]), ("early", True, {"id": 7})]


@pytest.mark.slow
def test_an_ask_without_an_answer_is_refused_after_a_bound(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "ASK_TIMEOUT_S", 0.2)
    made = world.process()
    got: list[Any] = []
    made.ask("nobody there", None, lambda ok, value: got.append((ok, value[0])))
    run_until(made, lambda: got)
    assert got == [(False, errors.CONTROLLER_UNAVAILABLE)]


@pytest.mark.slow
def test_an_ask_that_died_with_the_controller_is_refused_when_its_successor_is_known(world: World) -> None:
    controller = world.controller()
    made = world.process()
    tables: list[Any] = []
    made.on_table(tables.append)
    run_until(made, lambda: controller.arrived("hello"))
    world.supervisor.receive()
    world.supervisor.send(["table", [["controller", 0, 8, "ready", 5]], {}])
    run_until(made, lambda: tables)
    got: list[Any] = []
    made.ask("x", None, lambda ok, value: got.append((ok, value[0])))
    run_until(made, lambda: controller.arrived("ask"))
    assert got == []
    world.supervisor.send(["table", [["controller", 0, 9, "starting", 5]], {}])
    run_until(made, lambda: got)
    assert got == [(False, errors.CONTROLLER_UNAVAILABLE)]


def test_too_many_asks_are_refused_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "PENDING_ASKS_MAX", 1)
    made = world.process()
    got: list[Any] = []
    made.ask("first", None, lambda ok, _: got.append(("first", ok)))
    made.ask("second", None, lambda ok, value: got.append(("second", ok, value[0])))
    assert got == [("second", False, errors.CONTROLLER_UNAVAILABLE)]


@pytest.mark.slow
def test_the_table_and_other_frames_reach_their_handlers(world: World) -> None:
    controller = world.controller()
    made = world.process()
    rows: list[Any] = []
    nodes: list[Any] = []
    made.on_table(rows.append)
    made.on_node(nodes.append)
    run_until(made, lambda: controller.arrived("hello"))
    world.supervisor.receive()
    world.supervisor.send(["table", [["router", 0, 1, "ready", 5]], {"node": "n"}])
    controller.receive_kind("hello")
    controller.send(["news", 1])
    run_until(made, lambda: rows and nodes)
    assert rows == [[TableRow("router", 0, 1, "ready", 5)]]
    assert nodes == [{"node": "n"}]


def test_a_tick_comes_when_it_was_asked_for_and_not_before(world: World) -> None:
    ticks = run_for(world.process(), 0.2)
    assert 2 <= len(ticks) <= 25
    assert ticks == sorted(ticks)


def test_a_socket_is_served_while_it_is_readable_and_not_after_it_was_removed(world: World) -> None:
    made = world.process()
    reading, writing = os.pipe()
    got: list[bytes] = []
    made.add(reading, lambda: got.append(os.read(reading, 1)))
    os.write(writing, b"ab")
    run_until(made, lambda: len(got) == 2)
    assert got == [b"a", b"b"]
    made.remove(reading)
    os.write(writing, b"c")
    run_for(made, 0.05)
    assert got == [b"a", b"b"]
    os.close(reading)
    os.close(writing)


def test_a_signal_wakes_the_loop_and_the_earlier_handler_comes_back(world: World) -> None:
    made = world.process()
    before = signal.getsignal(signal.SIGTERM)
    ticked = []

    def tick(now: float) -> float:
        ticked.append(now)
        if len(ticked) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return LONG_S

    started = time.monotonic()
    made.run(tick, lambda: True)
    assert time.monotonic() - started < LONG_S
    assert made.stopping
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_drain_is_waited_for_but_not_for_ever(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world.process()
    made.stopping = True
    asked: list[int] = []
    made.run(lambda _: 0.01, lambda: len(asked) >= 3 or bool(asked.append(1)))  # type: ignore[func-returns-value]
    assert len(asked) == 3
    monkeypatch.setattr(process, "DRAIN_LIMIT_S", 0.1)
    started = time.monotonic()
    made.run(lambda _: 0.01, lambda: False)
    assert 0.1 <= time.monotonic() - started < LONG_S


def test_the_configuration_comes_from_the_file_of_the_role(tmp_path: Path) -> None:
    class Config(msgspec.Struct):
        size: int

    (tmp_path / "worker.json").write_text('{"size": 5}', encoding="utf-8")
    assert load_config(tmp_path, "worker", Config).size == 5
    (tmp_path / "worker.json").write_text('{"size": "x"}', encoding="utf-8")
    with pytest.raises(errors.InvalidRequestError, match=r"worker\.json"):
        load_config(tmp_path, "worker", Config)
    with pytest.raises(errors.InvalidRequestError, match=r"router\.json"):
        load_config(tmp_path, "router", Config)


PROGRAM = """
import sys
from angarium_server.process import EVENTS_PER_FRAME, Process
made = Process("worker", 0, 1, sys.argv[1])
print("up", flush=True)
made.run(lambda now: None, lambda: True)
"""


def start_child(world: World, supervisor_pid: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, process.SUPERVISOR_PID_VARIABLE: str(supervisor_pid)}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(world.path)], cwd=ROOT, env=environment, stdout=subprocess.PIPE
    )


@pytest.mark.slow
def test_a_process_of_another_supervisor_ends_at_once(world: World) -> None:
    with start_child(world, supervisor_pid=1) as child:
        assert child.wait(60) == process.EXIT_ORPHANED


@pytest.mark.slow
def test_a_process_stops_with_status_zero_when_it_is_asked_to(world: World) -> None:
    with start_child(world, os.getpid()) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        world.supervisor.receive()
        deadline = time.monotonic() + 60
        while child.poll() is None and time.monotonic() < deadline:
            child.terminate()  # the first one may come before the loop runs
            time.sleep(0.05)
        assert child.returncode in (0, -signal.SIGTERM)


def test_a_controller_that_applies_many_objects_says_meanwhile_that_it_works(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tens of thousands take it seconds on a busy host; it was killed for that silence, each time anew."""
    monkeypatch.setattr(process, "HEARTBEAT_INTERVAL_S", 0.0)
    made = Process("controller", 0, 7, world.path)
    world.processes.append(made)
    runtime = ControllerRuntime(node="n", node_id="x", data_dir=str(tmp_path), workers=1, config=NodeConfig())
    server = ControllerServer(made, runtime)
    try:
        world.supervisor.receive_kind("heartbeat")
        before = world.supervisor.arrived("heartbeat")
        users = [["username", "default", f"user{number}", {}] for number in range(200)]
        asked = {"objects": users}
        server._do(server._controller.admin(b"a", 1, "config.apply", asked, time.monotonic(), LOCAL))
        assert world.supervisor.receive_kind("heartbeat")
        assert world.supervisor.arrived("heartbeat") >= before + 100
    finally:
        server.close()
