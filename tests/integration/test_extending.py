"""docs/extending.md as a newcomer follows it: its changes are applied, a node of the result runs, and its commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import time
import urllib.request
from typing import TYPE_CHECKING

import pytest

from angarium_server import launch, testing
from angarium_server.testing import Node
from cluster.data.node_file import process_runs
from tests.command_server import CommandServer
from tests.extending_page import SECTIONS, extend

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

#: What is shown comes within a second or two; a loaded machine is slow.
SHOWN_S = 15.0
STOP_S = 30.0


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository with everything that the page adds."""
    house = tmp_path_factory.mktemp("extended") / "house"
    extend(house)
    return house


@pytest.fixture
def node(house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A node of that copy; commands are those of the copy too."""
    monkeypatch.setattr(launch, "PARTS", house)
    commands = CommandServer()
    monkeypatch.setattr(testing, "_run_command", commands.run_text)
    yield Node(tmp_path / "data")
    commands.close()


def figures(node: Node) -> str:
    """Give what /metrics says."""
    kept = json.loads((node.data / "node.json").read_text(encoding="utf-8"))
    with urllib.request.urlopen(f"{kept['health']}/metrics", timeout=5) as page:
        text: str = page.read().decode()
    return text


def run(node: Node, line: str, background: list[subprocess.Popen[bytes]]) -> str:
    """Run a line of a console, and give what it prints."""
    words = shlex.split(line)
    if words[0] == "curl":
        return figures(node)
    assert words[0] == "angarium", line
    if words[-1] == "&":
        command = [*launch.command(*words[1:-1]), "--data", str(node.data)]
        background.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        return ""
    return node.run(*words[1:])


def is_shown(expected: str, printed: str) -> bool:
    """Tell whether each line was printed as often as the page says; `...` in it stands for anything."""
    wanted, lines = ([" ".join(line.split()) for line in text.splitlines()] for text in (expected, printed))
    patterns = {one: ".*".join(map(re.escape, one.split("..."))) for one in wanted}
    return all(
        sum(bool(re.search(pattern, line)) for line in lines) == wanted.count(one)
        for one, pattern in patterns.items()
    )


def walk(node: Node, section: str, background: list[subprocess.Popen[bytes]]) -> None:
    """Type what a section says, and find what it shows; what only looks is done until it shows that."""
    commands: list[str] = []
    for block in SECTIONS[section]:
        if block.language == "console":
            commands = [line.removeprefix("$ ") for line in block.text.splitlines()]
        elif block.language == "text":
            printed = "".join(run(node, line, background) for line in commands)
            deadline = time.monotonic() + SHOWN_S
            while not is_shown(block.text, printed):
                assert "consume" not in commands[-1], printed
                assert time.monotonic() < deadline, printed
                time.sleep(0.1)
                printed = run(node, commands[-1], background)


@pytest.mark.requirement("R217")
def test_what_the_page_adds_is_there_when_a_node_of_it_runs(node: Node) -> None:
    background: list[subprocess.Popen[bytes]] = []
    with node:
        try:
            for section in SECTIONS:
                walk(node, section, background)
        finally:
            for process in background:
                process.terminate()
                process.wait(10)
    assert not node.output().count("Traceback"), node.output()


@pytest.mark.long
@pytest.mark.requirement("R217")
def test_a_kind_of_process_is_watched_replaced_and_stopped_at_its_turn(node: Node) -> None:
    def wait_for_metronome(killed: int) -> None:
        node.wait_for(
            "a new metronome",
            lambda status: any(
                row["role"] == "metronome" and row["state"] == "ready" and row["pid"] not in (0, killed)
                for row in status["processes"]
            ),
        )

    with node:
        wait_for_metronome(0)  # clients need not wait for it
        checks = json.loads(node.run("health", "--json"))["checks"]
        assert {"name": "metronome.0", "ok": True, "text": ""} in checks
        wait_for_metronome(node.kill("metronome"))
        pids = {row["role"]: row["pid"] for row in node.status()["processes"]}
        os.kill(node.pid, 15)
        deadline = time.monotonic() + STOP_S
        while process_runs(pids["metronome"]):
            assert time.monotonic() < deadline, node.output()
            # The router was looked at first: if it is gone, and the metronome is not, then it did not wait.
            router_runs = process_runs(pids["router"])
            assert router_runs or not process_runs(pids["metronome"]), node.output()
            time.sleep(0.01)
        node.stop()
    assert "the metronome of" in node.output()
