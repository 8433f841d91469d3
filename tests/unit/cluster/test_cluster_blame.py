"""Whether a worker died of what it was at, and what becomes of whose it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from angarium import wire
from angarium_server import black_box
from cluster.controller.blames import FORGOTTEN_AFTER_S, OWNERS_MAX, Deaths
from cluster.supervisor.blame import LONG_STEP_S, Death, how, is_stopped, is_to_blame
from tests.unit.cluster.controller_world import World, requests

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.requirement("R278")

NOTE = black_box.Note("match", 7, 3, since=100.0)
OWNER = {"vpn": "default", "username": "mallory", "client": "m1"}


@pytest.mark.parametrize(
    ("death", "blamed"),
    [
        (Death(1, is_hung=False, was_stopped=False, at=100.0), True),
        (Death(-signal.SIGSEGV, is_hung=False, was_stopped=False, at=100.0), True),
        (Death(-signal.SIGKILL, is_hung=True, was_stopped=False, at=105.0), True),
        (Death(-signal.SIGKILL, is_hung=True, was_stopped=True, at=105.0), False),
        (Death(-signal.SIGKILL, is_hung=False, was_stopped=False, at=100.1), False),
        (Death(-signal.SIGKILL, is_hung=False, was_stopped=False, at=100.0 + LONG_STEP_S), True),
        (Death(-signal.SIGTERM, is_hung=False, was_stopped=False, at=100.0), False),
        (Death(0, is_hung=False, was_stopped=False, at=100.0), False),
    ],
)
def test_what_a_worker_was_at_is_blamed_for_crashes_and_hangs(death: Death, *, blamed: bool) -> None:
    assert is_to_blame(NOTE, death) is blamed


def test_a_process_that_was_stopped_did_not_hang_by_itself() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        assert not is_stopped(child.pid)
        os.kill(child.pid, signal.SIGSTOP)
        deadline = time.monotonic() + 10
        while not is_stopped(child.pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        child.kill()
        child.wait()
    assert not is_stopped(child.pid)


class TestBlackBox:
    def test_a_note_survives_the_process(self, tmp_path: Path) -> None:
        path = black_box.path_of(tmp_path, 1)
        pid = os.fork()
        if not pid:
            box = black_box.BlackBox(path)
            box.turn(12.5)
            box.begin(black_box.DELIVER, 1 << 40, 2)
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(pid, 0)
        assert black_box.read(path) == black_box.Note("deliver", 1 << 40, 2, 12.5)

    def test_a_step_that_ended_and_a_new_process_leave_no_note(self, tmp_path: Path) -> None:
        path = black_box.path_of(tmp_path, 0)
        assert black_box.read(path) is None
        box = black_box.BlackBox(path)
        assert black_box.read(path) is None
        box.begin(black_box.MATCH, 1, 0)
        box.end()
        assert black_box.read(path) is None
        box.begin(black_box.MATCH, 1, 0)
        black_box.BlackBox(path)
        assert black_box.read(path) is None


class TestDeaths:
    def test_the_second_death_counts_and_the_owner_begins_anew(self) -> None:
        deaths = Deaths()
        assert [deaths.count(("a",), 1.0) for _ in range(4)] == [False, True, False, True]

    def test_owners_are_told_apart_even_if_they_take_turns(self) -> None:
        deaths = Deaths()
        assert [deaths.count((name,), 1.0) for name in "abab"] == [False, False, True, True]

    def test_a_death_is_forgotten(self) -> None:
        deaths = Deaths()
        assert not deaths.count(("a",), 1.0)
        assert not deaths.count(("a",), 2.0 + FORGOTTEN_AFTER_S)
        assert deaths.count(("a",), 3.0 + FORGOTTEN_AFTER_S)

    def test_owners_are_bounded(self) -> None:
        deaths = Deaths()
        for number in range(OWNERS_MAX + 1):
            assert not deaths.count((str(number),), 1.0)
        assert not deaths.count(("0",), 1.0)
        assert deaths.count((str(OWNERS_MAX),), 1.0)


class Node(World):
    """A controller whose supervisor tells of deaths."""

    def __init__(self) -> None:
        super().__init__()
        self.hello("router")
        self.hello("worker")
        self.deaths = 0

    def die(self, kind: str, whose: int) -> list[Any]:
        self.deaths += 1
        event = {
            "time": self.time,
            "severity": "error",
            "scope": "SYSTEM",
            "event": "SYSTEM_WORKER_DIED_AT_WORK",
            "text": "worker.0 died",
            "role": "worker",
            "index": 0,
            "note": {"kind": kind, "whose": whose, "router": 7, "since": 1.0},
        }
        news = {"node": "n", "processes": [], "events": [[self.deaths, event]]}
        return self.do(self.controller.node_news(news, self.now))

    def texts(self, name: str) -> list[str]:
        return [event["text"] for event in self.ring.find(0, 100) if event["event"] == name]


class TestOwners:
    def test_a_client_is_put_aside_at_the_second_death_of_its_username(self) -> None:
        node = Node()
        seen = node.die("match", 7)
        assert requests(seen) == [("session_owner", {"session": 7, "router": 7})]
        assert requests(node.answer(seen, OWNER)) == []
        seen = node.answer(node.die("match", 8), {**OWNER, "client": "m2"})
        assert requests(seen) == [("put_aside", {"session": 8, "router": 7})]
        first, second = node.texts("SYSTEM_WORKER_DIED_AT_WORK")
        assert first.startswith("worker.0 died while matching messages of client 'm1' of username 'mallory'")
        assert "'m2'" in second
        assert len(node.texts("SYSTEM_PUT_ASIDE")) == 1

    def test_a_client_that_is_gone_is_told_and_not_counted(self) -> None:
        node = Node()
        for _ in range(3):
            assert requests(node.answer(node.die("match", 7), None)) == []
        assert len(node.texts("SYSTEM_WORKER_DIED_AT_WORK")) == 3
        assert node.texts("SYSTEM_PUT_ASIDE") == []

    def test_an_endpoint_is_shut_down_for_delivery_and_an_operator_takes_it_back(self) -> None:
        node = Node()
        node.call("objects.create", kind="queue", name="q", vpn="default", attributes={})
        stored = node.catalog.get("queue", "default", "q")
        assert stored is not None
        lane = stored["id"] << wire.LANE_BITS | 3
        node.die("deliver", lane)
        assert node.ask("objects.show", kind="queue", name="q")["egress_enabled"]
        node.die("deliver", lane)
        assert not node.ask("objects.show", kind="queue", name="q")["egress_enabled"]
        assert len(node.texts("SYSTEM_PUT_ASIDE")) == 1
        node.call("objects.update", kind="queue", name="q", attributes={"egress_enabled": True})
        node.die("deliver", lane)
        assert node.ask("objects.show", kind="queue", name="q")["egress_enabled"]

    def test_an_endpoint_that_is_gone_is_told(self) -> None:
        node = Node()
        node.die("deliver", 99 << wire.LANE_BITS)
        node.die("deliver", 99 << wire.LANE_BITS)
        assert len(node.texts("SYSTEM_WORKER_DIED_AT_WORK")) == 2
        assert node.texts("SYSTEM_PUT_ASIDE") == []


def test_a_process_that_a_signal_without_a_name_ended_is_told_of_like_any_other() -> None:
    said = []
    for number in (signal.SIGKILL, signal.SIGRTMIN + 6):
        with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
            process.send_signal(number)
        said.append(how(process.returncode))
    assert said == ["signal SIGKILL", f"signal {signal.SIGRTMIN + 6}"]
