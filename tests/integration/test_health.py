"""The health endpoint of a real node: what probes see while it starts, works, breaks and stops."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from angarium import blocking
from angarium_server import launch
from angarium_server.testing import Node
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEADLINE_S = 30.0
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node for tests that leave it as they found it."""
    with Node(tmp_path_factory.mktemp("health") / "data", workers=1) as node:
        wait_until(lambda: get(node, "/readyz")[0] == 200)
        yield node


def address(node: Node) -> tuple[str, int]:
    """Give host and port as node.json tells them."""
    url = json.loads((node.data / "node.json").read_text(encoding="utf-8"))["health"]
    host, _, port = url.removeprefix("http://").rpartition(":")
    return host, int(port or 0)


def get(node: Node, path: str) -> tuple[int, str]:
    """Give status and body; (0, why) if nobody answers."""
    host, port = address(node)
    try:
        with urlopen(f"http://{host}:{port}{path}", timeout=10.0) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def test_a_node_at_work_says_so(node: Node) -> None:
    assert get(node, "/healthz") == get(node, "/readyz") == get(node, "/startupz") == (200, "ok\n")
    assert "[+]spool ok" in get(node, "/readyz?verbose")[1]
    assert get(node, "/elsewhere")[0] == 404
    assert json.loads(node.run("health", "--json"))["ready"] is True
    wait_until(lambda: 'angarium_process_rss_bytes{role="worker",index="0"}' in get(node, "/metrics")[1])
    assert "angarium_spool_recovered 1\n" in get(node, "/metrics")[1]


def test_a_new_controller_answers_again(node: Node) -> None:
    node.kill("controller")
    wait_until(lambda: get(node, "/readyz")[0] == 200)
    assert node.process("controller")["restarts"] == 1


def test_readiness_ends_before_anything_else_when_a_node_stops(tmp_path: Path) -> None:
    config = tmp_path / "node.toml"
    config.write_text("[health]\ndrain_ms = 1000\n", encoding="utf-8")
    with Node(tmp_path / "data", workers=1, config=config) as node:
        wait_until(lambda: get(node, "/readyz")[0] == 200)
        down = subprocess.Popen(launch.command("down", "--data", str(node.data)))
        wait_until(lambda: get(node, "/readyz")[0] == 503)
        assert "[-]node stops" in get(node, "/readyz")[1]
        assert get(node, "/healthz")[0] == 200
        with blocking.connect(node.url) as late:
            late.publish("still/here", b"", mode="persistent")
        assert down.wait(DEADLINE_S) == 0
        assert get(node, "/healthz")[0] == 0


def test_without_an_address_there_is_no_endpoint(tmp_path: Path) -> None:
    config = tmp_path / "node.toml"
    config.write_text("[health]\nlisten = []\n", encoding="utf-8")
    with Node(tmp_path / "data", workers=1, config=config) as node:
        assert json.loads((node.data / "node.json").read_text(encoding="utf-8"))["health"] == ""
        node.wait_for("ready", lambda _: json.loads(node.run("health", "--for", "live", "--json"))["live"])
