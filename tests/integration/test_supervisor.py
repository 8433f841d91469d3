"""A node of real processes: it starts, survives what happens to them, and stops without leaving anything."""

from __future__ import annotations

import fcntl
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zmq

from angarium import errors
from angarium_server import launch
from angarium_server.testing import Node, NodeFailedError
from cluster.admin.client import Admin, shut_down
from cluster.data.node_file import NodeFile, process_runs, read_node_file
from cluster.supervisor.server import run_supervisor
from cluster.supervisor.starting import UpOptions, run_detached
from tests.integration.machine import back_within_s
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.command_server import CommandServer

pytestmark = pytest.mark.slow

ANY_PORT = "tcp://127.0.0.1:0"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path / "data") as node:
        yield node


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node for tests that leave it as they found it."""
    with Node(tmp_path_factory.mktemp("shared") / "data", workers=1) as node:
        yield node


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node for tests that kill a process of it, and leave it with all of them ready."""
    with Node(tmp_path_factory.mktemp("lasting") / "data") as node:
        yield node


def all_ready(status: dict[str, Any]) -> bool:
    states = [row["state"] for row in status["processes"]]
    return bool(states) and set(states) == {"ready"}


def runtime_directory(node: Node) -> Path:
    return Path(read_node_file(node.data).runtime)


@pytest.mark.requirement("R206", "R217")
def test_a_node_is_supervisor_controller_router_and_workers(lasting: Node) -> None:
    node = lasting
    status = node.wait_for("everything is ready", all_ready)
    places = [(row["role"], row["index"], row["state"]) for row in status["processes"]]
    assert places == [
        ("supervisor", 0, "ready"),
        ("controller", 0, "ready"),
        ("router", 0, "ready"),
        ("worker", 0, "ready"),
        ("worker", 1, "ready"),
    ]
    ready = [(row["role"], row["index"], row["pid"]) for row in node.ready["processes"]]
    assert ready == [(row["role"], row["index"], row["pid"]) for row in status["processes"]]
    assert all(row["rss_bytes"] > 1_000_000 for row in status["processes"])
    assert node.url == status["url"]
    assert not node.url.endswith(":0")


def test_what_processes_use_is_measured_for_who_asks(shared: Node) -> None:
    """Not longer than a second before, also if nobody has asked for a while."""
    with Admin(shared.data) as admin:
        first, answered = admin.call("status")["processes"][0]["uptime_s"], time.monotonic()
        wait_until(lambda: time.monotonic() > answered + 1.5, "a while")
        asked = time.monotonic()
        last = admin.call("status")["processes"][0]["uptime_s"]
    assert last - first >= asked - answered - 1


def test_sockets_and_secrets_are_for_this_user_only(lasting: Node) -> None:
    runtime = runtime_directory(lasting)
    assert runtime.stat().st_mode & 0o777 == 0o700
    assert (runtime / "admin").stat().st_mode & 0o777 == 0o600
    assert (runtime / "router.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("detach", [pytest.param(False, marks=pytest.mark.long), True])
def test_nobody_else_reads_what_is_in_a_data_directory(
    *, detach: bool, tmp_path: Path, cold_start: None
) -> None:
    """Whatever the umask is: messages, events, log and secrets are in it.

    A worker that is killed here begins as a new interpreter, and is back as soon as in the tests below.
    """
    data, earlier = tmp_path / "data", os.umask(0)
    try:
        node = Node(data, workers=1)
        if detach:
            run_detached(UpOptions(data_dir=str(data), listen=(ANY_PORT,), workers=1))
        else:
            node.start()
        pid, killed = node.kill("worker"), time.monotonic()
        wait_until((data / "events.jsonl").exists, "an event is written")
        node.wait_for("a new worker", lambda status: all_ready(status) and _pid(status, "worker") != pid)
        assert time.monotonic() - killed < back_within_s()
        node.run("spool", "backup", str(tmp_path / "backup"))
        found = {str(path.relative_to(tmp_path)): path.stat().st_mode for path in (data, *data.rglob("*"))}
        assert {"data/spool", "data/spool/0/data.mdb", "data/events.jsonl", "data/config/data.mdb"} <= set(
            found
        )
        assert [name for name, mode in found.items() if mode & 0o077] == []
        assert [path.name for path in (node.ready_file, data / "ready.json") if _is_open(path)] == []
        assert not _is_open(tmp_path / "backup")
    finally:
        os.umask(earlier)
        shut_down(data)
        node.kill_all()


def _is_open(path: Path) -> bool:
    return path.exists() and path.stat().st_mode & 0o077 != 0


def test_a_stopped_node_leaves_nothing_behind(tmp_path: Path) -> None:
    with Node(tmp_path / "data") as node:
        pids = [row["pid"] for row in node.ready["processes"]]
        runtime = runtime_directory(node)
        assert shut_down(node.data) is True
        assert not any(process_runs(pid) for pid in pids)
        assert not runtime.exists()
        assert not node.ready_file.exists()
    assert read_node_file(tmp_path / "data").pid == 0
    with pytest.raises(errors.UnavailableError, match="no node runs"):
        Admin(tmp_path / "data")
    assert shut_down(tmp_path / "data") is False


@pytest.mark.parametrize(
    ("role", "index"),
    # tests/crash/test_worker_crash.py and test_router_crash.py kill the others.
    [
        pytest.param("worker", 0, marks=pytest.mark.long),
        pytest.param("router", 0, marks=pytest.mark.long),
        ("controller", 0),
    ],
)
def test_a_killed_process_is_back_soon(lasting: Node, role: str, index: int) -> None:
    node, told = lasting, _events(lasting)
    restarts = node.process(role, index)["restarts"]
    pid = node.kill(role, index)
    killed = time.monotonic()

    def is_back() -> bool:
        try:
            with Admin(node.data, timeout_s=1.0) as admin:
                rows = admin.call("status")["processes"]
        except errors.AngariumError:  # the controller itself is away
            return False
        row = next(row for row in rows if (row["role"], row["index"]) == (role, index))
        return bool(row["state"] == "ready" and row["pid"] != pid and row["restarts"] == restarts + 1)

    wait_until(is_back, f"{role}.{index} is back")
    back_s = time.monotonic() - killed
    assert back_s < back_within_s()
    wait_until(
        lambda: {"SYSTEM_PROCESS_DOWN", "SYSTEM_PROCESS_UP"} <= _names_since(told, node), "both are told"
    )


def test_a_new_controller_answers_nobody_before_it_knows_the_node(lasting: Node) -> None:
    """All die at once: nobody tells it anything but the supervisor, who is busy."""
    for row in lasting.wait_for("everything is ready", all_ready)["processes"]:
        if row["role"] != "supervisor":
            os.kill(row["pid"], signal.SIGKILL)
    with Admin(lasting.data, timeout_s=30.0) as admin:
        status = admin.call("status")
    assert len(status["processes"]) == 5
    assert status["url"] == lasting.url
    lasting.wait_for("everything is ready", all_ready)


def test_a_later_router_has_the_address_of_the_first(lasting: Node) -> None:
    node = lasting
    before = node.kill("router")
    node.wait_for("a new router", lambda status: all_ready(status) and _pid(status, "router") != before)
    assert node.status()["url"] == node.url
    host, port = node.url.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port)), timeout=5):
        pass


def test_objects_events_and_the_port_survive_a_restart(tmp_path: Path) -> None:
    with Node(tmp_path / "data") as node:
        url = node.url
        with Admin(node.data) as admin:
            admin.call("objects.create", kind="vpn", name="orders", attributes={"max_connection_count": 5})
            admin.call("objects.delete", kind="vpn", name="orders")
            admin.call("objects.create", kind="vpn", name="kept", attributes={"max_connection_count": 5})
            last = admin.call("events")[-1]
    with Node(tmp_path / "data") as node:
        assert node.url == url
        with Admin(node.data) as admin:
            assert [found["name"] for found in admin.call("objects.list", kind="vpn")] == ["default", "kept"]
            assert admin.call("objects.show", kind="vpn", name="kept")["max_connection_count"] == 5
            assert last in admin.call("events", since=last["id"] - 1)


@pytest.mark.long
def test_a_change_is_durable_when_it_is_answered(node: Node) -> None:
    with Admin(node.data) as admin:
        admin.call("objects.create", kind="acl", name="kept")
        node.kill_all()
    with Node(node.data) as again, Admin(again.data) as admin:
        assert admin.call("objects.show", kind="acl", name="kept")["name"] == "kept"


@pytest.mark.long
def test_the_children_of_a_killed_supervisor_die_with_it(node: Node) -> None:
    pids = [row["pid"] for row in node.ready["processes"]]
    node.kill_all()
    wait_until(lambda: not any(process_runs(pid) for pid in pids), "every process is gone")


@pytest.mark.long
def test_a_node_starts_again_after_its_supervisor_was_killed(node: Node) -> None:
    left = runtime_directory(node)
    node.kill_all()
    assert left.exists()
    with Node(node.data) as again:
        assert again.url == node.url
        assert not left.exists()


@pytest.mark.long
def test_a_paused_worker_is_hung_and_is_replaced(lasting: Node) -> None:
    node, told = lasting, _events(lasting)
    other = _pid(node.wait_for("everything is ready", all_ready), "worker", 0)
    pid = node.kill("worker", 1, signal.SIGSTOP)
    paused = time.monotonic()
    status = node.wait_for(
        "a new worker", lambda status: all_ready(status) and _pid(status, "worker", 1) != pid
    )
    assert time.monotonic() - paused >= 4.5
    assert _pid(status, "worker", 0) == other
    wait_until(lambda: "SYSTEM_PROCESS_HUNG" in _names_since(told, node), "it is told")


def test_a_supervisor_that_was_paused_itself_harms_nobody(lasting: Node) -> None:
    node = lasting
    before = node.wait_for("everything is ready", all_ready)["processes"]
    os.kill(node.pid, signal.SIGSTOP)
    time.sleep(6.5)  # longer than the silence after which others are taken for hung
    os.kill(node.pid, signal.SIGCONT)
    time.sleep(1.5)  # its next looks, one each half second
    status = node.wait_for("everything is ready", all_ready)
    assert len(before) == 5
    assert [row["restarts"] for row in status["processes"]] == [row["restarts"] for row in before]
    assert [row["pid"] for row in status["processes"]] == [row["pid"] for row in before]


def test_a_node_with_a_paused_process_still_stops(tmp_path: Path) -> None:
    with Node(tmp_path / "data", workers=1) as node:
        pid = node.kill("worker", 0, signal.SIGSTOP)
        shut_down(node.data, timeout_s=30)
        assert not process_runs(pid)


def test_a_second_node_on_a_data_directory_is_refused(shared: Node) -> None:
    with pytest.raises(NodeFailedError, match="error 40902"):
        Node(shared.data).start()


def test_a_copy_of_a_running_node_harms_it_nothing(lasting: Node, tmp_path: Path) -> None:
    node = lasting
    runtime = runtime_directory(node)
    shutil.copytree(node.data, tmp_path / "copy")
    with Node(tmp_path / "copy", listen=ANY_PORT.replace("127.0.0.1", "127.0.0.2")) as copy:
        assert runtime_directory(copy) != runtime
        assert shut_down(copy.data) is True
    assert (runtime / "admin").exists()
    node.kill("worker")
    node.wait_for("everything is ready", all_ready)


def test_an_address_in_use_fails_the_start_and_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(NodeFailedError, match="In Use"):
            Node(tmp_path / "data", workers=1, listen=url).start()


def test_an_address_that_others_reach_is_refused_without_keys(tmp_path: Path) -> None:
    with pytest.raises(NodeFailedError, match="angarium keys create"):
        Node(tmp_path / "data", listen="tcp://0.0.0.0:0").start()


def test_the_number_of_workers_is_kept_from_the_first_start(tmp_path: Path) -> None:
    with Node(tmp_path / "data", workers=1):
        pass
    with Node(tmp_path / "data", workers=3) as node:
        assert [row["role"] for row in node.ready["processes"]].count("worker") == 1
        assert "keeps the 1 it began with" in node.output()


@pytest.mark.long
def test_a_detached_node_is_ready_when_the_call_returns(tmp_path: Path) -> None:
    node = run_detached(UpOptions(data_dir=str(tmp_path / "data"), listen=(ANY_PORT,), workers=1))
    assert isinstance(node, NodeFile)
    try:
        assert process_runs(node.pid)
        with Admin(tmp_path / "data") as admin:
            assert admin.call("status")["url"] == node.url
        assert os.getsid(node.pid) != os.getsid(0)
        assert "is ready" in (tmp_path / "data" / "log" / "node.log").read_text(encoding="utf-8")
    finally:
        shut_down(tmp_path / "data")


def test_a_node_stops_when_its_terminal_is_closed(tmp_path: Path) -> None:
    """A SIGHUP without that has certificates read again."""
    ready = tmp_path / "ready.json"
    command = ["up", "--data", str(tmp_path / "data"), "--listen", ANY_PORT, "--workers", "1"]
    terminal, inside = pty.openpty()
    try:
        process = subprocess.Popen(
            launch.command(*command, "--ready-file", str(ready)),
            env=launch.environment(),
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
    finally:
        os.close(inside)
    try:
        wait_until(lambda: ready.exists() or process.poll() is not None, "the node is ready")
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)
    finally:
        os.close(terminal)
        try:
            status = process.wait(30)
        finally:
            process.kill()
    assert status == 0


def test_a_detached_node_that_fails_says_why_in_one_line(tmp_path: Path, commands: CommandServer) -> None:
    """Somebody listens where its controller has to: that is known only when the node runs."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        config = tmp_path / "node.toml"
        config.write_text(f'[health]\nlisten = ["{url}"]\n')
        places = ["--data", str(tmp_path / "data"), "--config", str(config), "--listen", ANY_PORT]
        failed = commands.run_text(["up", "--detach", *places, "--workers", "1"], launch.environment())
    assert failed.returncode == 1
    shown = failed.stderr.rstrip("\n")
    assert shown.startswith("error 40017: Invalid Configuration: health.listen: ")
    assert "already in use" in shown
    assert (shown.count("error"), shown.count(url), shown.count("\n")) == (1, 1, 0)


def test_a_detached_node_that_fails_otherwise_shows_its_log(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "spool").write_text("no directory")
    with pytest.raises(errors.UnavailableError, match=r"spool.*(Not a directory|File exists)") as caught:
        run_detached(UpOptions(data_dir=str(tmp_path / "data"), listen=(ANY_PORT,), workers=1))
    assert "Traceback" not in str(caught.value)
    assert "node.log has all of it" in str(caught.value)


@pytest.mark.parametrize("start", [run_detached, run_supervisor])
def test_an_address_in_use_is_refused_at_once_and_in_one_line(start: Any, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(errors.ConflictError) as caught:
            start(UpOptions(data_dir=str(tmp_path / "data"), listen=(url,), workers=1))
    assert time.monotonic() - began < 10, "nobody waits for a node that cannot be"
    assert str(caught.value) == (
        f"error 40902: In Use: another process listens on {url} (end what listens there, or name another port "
        "for it: 0 takes any free one, as in --listen tcp://127.0.0.1:0)"
    )


def test_a_second_start_on_a_data_directory_says_that_a_node_runs_there(tmp_path: Path) -> None:
    with Node(tmp_path / "data", workers=1) as node:
        with pytest.raises(errors.ConflictError, match=r"a node runs on .*angarium down --data"):
            run_detached(UpOptions(data_dir=str(node.data), listen=(ANY_PORT,)))
        with pytest.raises(errors.ConflictError, match=f"the node of {node.data} listens on {node.url}"):
            run_detached(UpOptions(data_dir=str(tmp_path / "other"), listen=(node.url,)))
        assert node.status()["node"]


def test_the_admin_api_stops_the_node(tmp_path: Path) -> None:
    with Node(tmp_path / "data", workers=1) as node:
        with Admin(node.data) as admin:
            assert admin.call("down") is None
        wait_until(lambda: not process_runs(node.pid), "the node is gone")


def test_a_node_that_is_killed_during_a_call_is_told_at_once(tmp_path: Path) -> None:
    with Node(tmp_path / "data", workers=1) as node, Admin(node.data) as admin:
        os.kill(_pid(node.status(), "controller"), signal.SIGSTOP)
        node.kill_all()
        with pytest.raises(errors.UnavailableError, match="ended before it answered"):
            admin.call("status", timeout_s=30)


def test_a_call_without_an_answer_ends_after_its_time(shared: Node) -> None:
    pid = _pid(shared.status(), "controller")
    with Admin(shared.data) as admin:
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(errors.TimeoutExpiredError, match="status"):
                admin.call("status", timeout_s=0.3)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert admin.call("objects.list", kind="vpn")[0]["name"] == "default"


def test_log_levels_change_while_the_node_runs(shared: Node) -> None:
    with Admin(shared.data) as admin:
        assert admin.call("log_level", level="DEBUG") == ["controller.0", "router.0", "worker.0"]
        assert admin.call("log_level", level="INFO", role="worker") == ["worker.0"]
        admin.call("log_level", level="INFO")


def test_a_malformed_admin_frame_costs_the_node_nothing(shared: Node) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as intruder:
        intruder.setsockopt(zmq.LINGER, 0)
        intruder.connect(read_node_file(shared.data).admin)
        for frame in (b"", b"\xc1", b"\x93\x01\x02\x03", b"\x90", b"x" * 100_000):
            intruder.send(frame)
        intruder.send_multipart([b"a", b"b", b"c"])
        with Admin(shared.data) as admin:
            assert admin.call("status")["node"]
    assert _pid(shared.status(), "controller") == _ready_pid(shared, "controller")


def test_declared_objects_are_there_at_the_start(tmp_path: Path) -> None:
    config = tmp_path / "node.toml"
    (tmp_path / "alice.password").write_text("wonderland\n", encoding="utf-8")
    config.write_text(
        "[vpn.orders]\nmax_connection_count = 7\n"
        "[vpn.orders.acl.readers]\nsubscribe_topic_exceptions = ['orders/>']\n"
        "[vpn.orders.username.alice]\npassword_file = 'alice.password'\nacl_profile = 'readers'\n",
        encoding="utf-8",
    )
    with Node(tmp_path / "data", workers=1, config=config) as node, Admin(node.data) as admin:
        alice = admin.call("objects.show", kind="username", vpn="orders", name="alice")
        assert (alice["acl_profile"], alice["password_set"]) == ("readers", True)
        assert "wonderland" not in str(admin.call("config.show"))
        for row in node.ready["processes"]:
            assert "wonderland" not in Path(f"/proc/{row['pid']}/cmdline").read_text(encoding="utf-8")
    for path in (tmp_path / "data").rglob("*"):
        assert not path.is_file() or b"wonderland" not in path.read_bytes()


def test_signals_of_the_terminal_stop_the_node_in_order(tmp_path: Path) -> None:
    """A Ctrl-C goes to the whole process group of the terminal; only the supervisor may take it."""
    command = [sys.executable, "-P", "-m", "angarium_server", "up", "--workers", "1", "--listen", ANY_PORT]
    with (tmp_path / "log").open("wb") as log:
        supervisor = subprocess.Popen(
            [*command, "--data", str(tmp_path / "data"), "--ready-file", str(tmp_path / "ready")],
            stdout=log,
            stderr=log,
            process_group=0,
            cwd=Path(__file__).resolve().parents[2],
        )
    try:
        wait_until((tmp_path / "ready").exists, "the node is ready")
        os.killpg(supervisor.pid, signal.SIGINT)
        assert supervisor.wait(60) == 0
    finally:
        supervisor.kill()
        supervisor.wait()
    text = (tmp_path / "log").read_text(encoding="utf-8")
    assert "received SIGINT: the node stops in order" in text
    assert "Traceback" not in text


def _events(node: Node) -> list[dict[str, Any]]:
    with Admin(node.data) as admin:
        found: list[dict[str, Any]] = admin.call("events")
        return found


def _names_since(earlier: list[dict[str, Any]], node: Node) -> set[str]:
    """Give what events there are besides earlier ones."""
    return {event["event"] for event in _events(node) if event not in earlier}


def _pid(status: dict[str, Any], role: str, index: int = 0) -> int:
    return int(next(r["pid"] for r in status["processes"] if (r["role"], r["index"]) == (role, index)))


def _ready_pid(node: Node, role: str, index: int = 0) -> int:
    return _pid(node.ready, role, index)
