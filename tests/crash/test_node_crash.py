"""Controller and supervisor die, and the node is stopped in every way: messages go on, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from angarium import blocking, errors
from angarium_server import launch, testing
from angarium_server.testing import Node
from cluster.admin.client import Admin
from cluster.data.node_file import process_runs, read_node_file
from tests.crash.watched_node import all_ready, figure, is_replaced, look_until, state_of
from tests.integration.machine import back_within_s
from tests.integration.numbered import Tally, payload
from tests.integration.steady_pair import SteadyPair
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from angarium import ClientEvent
    from tests.command_server import CommandServer

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
#: The controller is not on the way of any message; a machine that others use pauses everybody (alone: 15 to 25 ms).
PAUSE_MS = 2_500
LIMIT_S = 30.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node whose supervisor is left alone."""
    with Node(tmp_path_factory.mktemp("node") / "data", workers=2) as node:
        yield node


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Node]:
    """A node that may lose everything."""
    with Node(tmp_path / "data", workers=2) as node:
        yield node


def children(node: Node) -> list[int]:
    return [row["pid"] for row in node.status()["processes"]]


def test_messages_flow_on_without_a_controller_and_operators_objects_are_there_afterwards(node: Node) -> None:
    with Admin(node.data) as admin:
        admin.call("objects.create", kind="vpn", name="kept", attributes={"max_connection_count": 7})
        admin.call("objects.create", kind="username", vpn="kept", name="alice")
    with SteadyPair(node.url, [f"steady/{n}" for n in range(8)]) as pair:
        pair.look()
        pid = node.kill("controller")
        with blocking.connect(node.url, vpn="kept", username="alice") as client:
            assert client.connected, "logins need no controller"
        back_s = look_until(node, "the controller is back", is_replaced("controller", 0, pid))
        noticed = pair.finish()
    assert back_s < back_within_s()
    assert (noticed.not_rising, noticed.missing, noticed.reconnects) == (0, 0, 0)
    assert noticed.longest_pause_ms < PAUSE_MS
    with Admin(node.data) as admin:
        assert admin.call("objects.show", kind="vpn", name="kept")["max_connection_count"] == 7
        admin.call("objects.update", kind="username", vpn="kept", name="alice", attributes={"enabled": False})
    with pytest.raises(errors.UnauthorizedError, match="error 40101"):
        blocking.connect(node.url, vpn="kept", username="alice", timeout_s=LIMIT_S)
    figure("longest_pause_ms", noticed.longest_pause_ms)


def test_what_an_operator_was_told_is_created_survives_a_killed_controller(node: Node) -> None:
    created: list[str] = []

    def create() -> None:
        try:
            with Admin(node.data, timeout_s=2.0) as admin:
                for number in range(10_000):
                    admin.call("objects.create", kind="acl", name=f"acl-{number:04}")
                    created.append(f"acl-{number:04}")
        except errors.AngariumError:
            return

    operator = threading.Thread(target=create)
    operator.start()
    wait_until(lambda: len(created) >= 20, "the operator is at work")
    pid = node.kill("controller")
    operator.join(LIMIT_S)
    look_until(node, "the controller is back", is_replaced("controller", 0, pid))
    with Admin(node.data) as admin:
        found = {row["name"] for row in admin.call("objects.list", kind="acl")}
    assert set(created) <= found


def test_a_killed_supervisor_takes_everything_with_it_and_the_next_start_tidies_up(mortal: Node) -> None:
    pids = children(mortal)
    runtime = Path(read_node_file(mortal.data).runtime)
    happened: list[ClientEvent] = []
    with blocking.connect(mortal.url, on_event=happened.append) as client:
        subscription = client.subscribe("a")
        mortal.kill_all()
        killed = time.monotonic()
        wait_until(lambda: not any(process_runs(pid) for pid in pids), "every process is gone")
        figure("all_gone_s", time.monotonic() - killed)
        assert runtime.exists()
        with Node(mortal.data) as again:
            assert again.url == mortal.url
            assert not runtime.exists()
            assert not set(children(again)) & set(pids)
            wait_until(lambda: happened[-1].kind == "reconnected", "the client is back", LIMIT_S)
            client.publish("a", b"after")
            assert subscription.receive(LIMIT_S).payload == b"after"


def test_a_node_whose_supervisor_died_is_told_apart_from_one_that_runs(
    mortal: Node, commands: CommandServer
) -> None:
    mortal.kill_all()
    with pytest.raises(errors.UnavailableError, match=r"error 50308.*angarium up"):
        Admin(mortal.data)
    status = commands.run_text(["status", "--json", "--data", str(mortal.data)], launch.environment())
    assert (status.returncode, status.stderr.count("\n")) == (1, 1)
    assert status.stderr.startswith("error 50308: ")
    down = command("down", "--data", str(mortal.data))
    assert down.returncode == 0, "what is down already is down"


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return testing._run_command([*arguments], launch.environment())


def start_up(data: Path, ready: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start `angarium up` as a terminal does, in a process group of its own."""
    with log.open("wb") as output:
        started = subprocess.Popen(
            [
                *[sys.executable, "-P", "-m", "angarium_server", "up", "--data", str(data), "--workers", "2"],
                *["--listen", "tcp://127.0.0.1:0", "--ready-file", str(ready)],
            ],
            stdout=output,
            stderr=output,
            process_group=0,
            cwd=ROOT,
        )
    try:
        wait_until(ready.exists, "the node is ready", LIMIT_S)
    except BaseException:
        started.kill()
        started.wait()
        raise
    return started


@pytest.mark.parametrize(
    "way",
    # tests/integration/test_supervisor.py has the other ways lead to the same stop.
    [
        pytest.param("terminal", marks=pytest.mark.long),
        "SIGTERM",
        pytest.param("down", marks=pytest.mark.long),
    ],
)
def test_an_ordered_stop_hands_on_what_was_accepted_and_says_goodbye(tmp_path: Path, way: str) -> None:
    data, ready, log = tmp_path / "data", tmp_path / "ready", tmp_path / "log"
    up = start_up(data, ready, log)
    happened: list[ClientEvent] = []
    tally = Tally()
    try:
        url = read_node_file(data).url
        with Admin(data) as admin:
            pids = [row["pid"] for row in admin.call("status")["processes"]]
            admin.call("objects.create", kind="acl", name="kept")
        with (
            blocking.connect(url, reconnect=False, on_event=happened.append) as sink,
            blocking.connect(url, reconnect=False) as source,
        ):
            sink.subscribe("flow/>", callback=lambda message: tally.take([message.payload]))
            source.publish_many([(f"flow/{n % 9}", payload(0, n)) for n in range(5_000)])
            source.flush(LIMIT_S)
            if way == "terminal":
                os.killpg(up.pid, signal.SIGINT)
            elif way == "SIGTERM":
                up.terminate()
            else:
                assert command("down", "--data", str(data)).returncode == 0
            assert up.wait(LIMIT_S) == 0
            wait_until(lambda: sink.closed, "the client is told")
            wait_until(lambda: tally.total == 5_000, "everything arrived")
            assert tally.not_rising == []
            wait_until(lambda: happened[-1].code == errors.SHUTTING_DOWN, "it is told why")
    finally:
        up.kill()
        up.wait()
    assert not any(process_runs(pid) for pid in pids)
    assert not ready.exists()
    text = log.read_text(encoding="utf-8")
    assert "Traceback" not in text
    assert "stops in order" in text
    if way == "SIGTERM":
        with Node(data) as again, Admin(data) as admin:
            assert again.url == url
            assert admin.call("objects.show", kind="acl", name="kept")["name"] == "kept"


@pytest.mark.long  # so is the one above
def test_a_stop_under_load_is_in_order_too(tmp_path: Path) -> None:
    """Publishers that go on publishing do not hold the node up, and what was handed on is in order."""
    up = start_up(tmp_path / "data", tmp_path / "ready", tmp_path / "log")
    try:
        with SteadyPair(read_node_file(tmp_path / "data").url, [f"steady/{n}" for n in range(8)]) as pair:
            asked = time.monotonic()
            up.terminate()
            assert up.wait(LIMIT_S) == 0
            figure("stopped_under_load_s", time.monotonic() - asked)
            assert pair.look().not_rising == 0
    finally:
        up.kill()
        up.wait()
    assert "Traceback" not in (tmp_path / "log").read_text(encoding="utf-8")


def test_a_second_up_on_a_data_directory_is_refused_and_harms_nobody(node: Node) -> None:
    before = node.ready_file.read_bytes()
    with SteadyPair(node.url, [f"steady/{n}" for n in range(8)]) as pair:
        second = command("up", "--data", str(node.data), "--ready-file", str(node.ready_file))
        assert second.returncode == 1
        assert second.stderr.startswith("error 40902: ")
        assert f"angarium down --data {node.data}" in second.stderr
        assert "Traceback" not in second.stderr
        detached = command("up", "--data", str(node.data), "--detach")
        assert detached.returncode == 1
        assert "40902" in detached.stderr
        noticed = pair.finish()
        assert (noticed.missing, noticed.reconnects) == (0, 0)
    assert node.ready_file.read_bytes() == before
    node.wait_for("everything is ready", all_ready)


def test_all_processes_killed_at_once_come_back(node: Node) -> None:
    pids = {(row["role"], row["index"]): row["pid"] for row in node.status()["processes"]}
    for place, pid in pids.items():
        if place[0] != "supervisor":
            os.kill(pid, signal.SIGKILL)

    def all_replaced(status: dict[str, Any]) -> bool:
        return all_ready(status) and all(
            state_of(status, *place)["pid"] != pid for place, pid in pids.items() if place[0] != "supervisor"
        )

    figure("all_back_s", look_until(node, "everything is back", all_replaced))
    with blocking.connect(node.url) as client:
        subscription = client.subscribe("a/>")
        client.publish_many([(f"a/{n}", b"") for n in range(100)])
        assert [subscription.receive(LIMIT_S).topic for _ in range(100)] == [f"a/{n}" for n in range(100)]
