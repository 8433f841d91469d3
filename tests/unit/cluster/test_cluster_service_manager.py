"""What a service manager is told, and when."""

from __future__ import annotations

import itertools
import os
import socket
from typing import TYPE_CHECKING

from cluster.supervisor.service_manager import EXTEND_INTERVAL_S, ServiceManager

if TYPE_CHECKING:
    from pathlib import Path


def test_a_node_says_that_it_is_ready_when_it_is_and_that_it_stops() -> None:
    manager = ServiceManager("/run/notify", None)
    assert manager.due("starting", 0.0)[0] == "STATUS=the node is starting"
    assert manager.due("running", 1.0) == ["READY=1", "STATUS=the node is running"]
    assert manager.due("running", 100.0) == [], "nothing new"
    assert manager.due("stopping", 101.0)[:2] == ["STOPPING=1", "STATUS=the node is stopping"]


def test_a_start_and_a_stop_may_take_as_long_as_the_supervisor_lets_them() -> None:
    manager = ServiceManager("/run/notify", None)
    assert "EXTEND_TIMEOUT_USEC=30000000" in manager.due("starting", 0.0)
    assert manager.due("starting", EXTEND_INTERVAL_S - 1) == []
    assert manager.due("starting", EXTEND_INTERVAL_S) == ["EXTEND_TIMEOUT_USEC=30000000"]
    manager.due("running", 20.0)
    assert "EXTEND_TIMEOUT_USEC=30000000" in manager.due("stopping", 21.0)


def test_a_node_that_is_watched_lets_itself_be_heard_in_time() -> None:
    manager = ServiceManager.from_environment({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "20000000"})
    heard = [second for second in range(60) if "WATCHDOG=1" in manager.due("running", float(second))]
    assert all(later - earlier <= 10 for earlier, later in itertools.pairwise(heard))
    assert len(heard) >= 6


def test_a_watch_over_another_process_is_not_ours() -> None:
    environment = {"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "20000000", "WATCHDOG_PID": str(os.getpid() + 1)}
    assert "WATCHDOG=1" not in ServiceManager.from_environment(environment).due("running", 0.0)


def test_children_do_not_hear_of_the_manager() -> None:
    environment = {"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "HOME": "/root"}
    ServiceManager.from_environment(environment)
    assert environment == {"HOME": "/root"}


def test_it_goes_to_the_socket_that_the_manager_names(tmp_path: Path) -> None:
    for address, name in (
        (str(tmp_path / "notify"),) * 2,
        ("@angarium-notify-test", "\0angarium-notify-test"),
    ):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
            listener.bind(name)
            listener.settimeout(5.0)
            ServiceManager(address, None).tell("running", 0.0)
            assert listener.recv(1_000) == b"READY=1\nSTATUS=the node is running"


def test_without_a_manager_and_without_its_socket_nothing_happens(tmp_path: Path) -> None:
    ServiceManager.from_environment({}).tell("running", 0.0)
    ServiceManager(str(tmp_path / "gone"), None).tell("running", 0.0)
