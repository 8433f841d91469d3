"""A new kind of process: one folder, a few lines elsewhere, and a node starts, shows, replaces and stops it."""

from __future__ import annotations

import difflib
import json
import os
import shutil
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from angarium_server import launch, testing
from angarium_server.testing import Node
from cluster.data.node_file import process_runs
from tests.command_server import CommandServer

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = Path(__file__).with_name("metronome")
PACKAGES = ("angarium_server", "cluster", "node", "router", "storage")
TABLE = "cluster/roster/table.py"
#: What is written elsewhere: where -> what becomes of it there.
ELSEWHERE = {
    "from cluster.link.role import LINK\n": (
        "from cluster.link.role import LINK\nfrom cluster.metronome.role import METRONOME\n"
    ),
    "WORKER, LINK, BRIDGE)": "WORKER, LINK, BRIDGE, METRONOME)",
}
LINES_ELSEWHERE_MAX = 5
STOP_S = 30.0


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A node of a house with a metronome in it."""
    house = tmp_path / "house"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, house / package, ignore=shutil.ignore_patterns("__pycache__"))
    (house / "sdk").symlink_to(ROOT / "sdk")
    shutil.copytree(EXAMPLE, house / "cluster" / "metronome", ignore=shutil.ignore_patterns("__pycache__"))
    before = after = (house / TABLE).read_text(encoding="utf-8")
    for old, new in ELSEWHERE.items():
        assert after.count(old) == 1, f"{TABLE} has another form: {old!r}"
        after = after.replace(old, new)
    changes = difflib.ndiff(before.splitlines(), after.splitlines())
    assert sum(line.startswith("+") for line in changes) <= LINES_ELSEWHERE_MAX
    (house / TABLE).write_text(after, encoding="utf-8")
    monkeypatch.setattr(launch, "PARTS", house)
    commands = CommandServer()  # those of the house
    monkeypatch.setattr(testing, "_run_command", commands.run_text)
    yield Node(tmp_path / "data")
    commands.close()


def figures(node: Node) -> dict[str, float]:
    """Give what /metrics says of metronomes."""
    kept = json.loads((node.data / "node.json").read_text(encoding="utf-8"))
    with urllib.request.urlopen(f"{kept['health']}/metrics", timeout=5) as page:
        lines = page.read().decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines)
        if name.startswith("angarium_metronome_")
    }


def wait_for_beats(node: Node) -> dict[str, float]:
    found: dict[str, float] = {}
    for _ in range(100):
        found = figures(node)
        if found.get('angarium_metronome_beats_total{index="0"}', 0) > 0:
            return found
        time.sleep(0.1)
    raise AssertionError(f"no beat is on /metrics: {found}")


@pytest.mark.requirement("R217")
def test_a_kind_of_process_is_a_folder_and_a_few_lines(node: Node) -> None:
    with node:
        assert node.process("metronome")["state"] == "ready"
        assert "metronome " in node.run("status")
        checks = json.loads(node.run("health", "--json"))["checks"]
        assert {"name": "metronome.0", "ok": True, "text": ""} in checks
        assert (
            wait_for_beats(node)['angarium_metronome_interval_s{index="0"}'.replace("_s{", "_seconds{")]
            == 0.1
        )

        killed = node.kill("metronome")
        node.wait_for(
            "a new metronome",
            lambda status: any(
                row["role"] == "metronome" and row["state"] == "ready" and row["pid"] not in (0, killed)
                for row in status["processes"]
            ),
        )

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
    assert (
        "has stopped; others: controller ready, metronome ready, router ready, worker ready" in node.output()
    )
