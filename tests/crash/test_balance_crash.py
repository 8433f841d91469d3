"""Workers are added while producers and consumers are busy, and one dies while queues go to them: nothing is lost."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import angarium
from angarium_server.testing import Node
from tests.crash.busy import LIMIT_S, Busy, end
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.requirement("R96", "R163", "R168", "R190")]

QUEUES = ("a", "b")
#: Messages in each queue before it is moved: what is copied is more than one step of it.
BACKLOG = 3_500
#: Between a hundred messages and the next ones.
PAUSE_S = 0.03


@contextmanager
def busy_queues(node: Node) -> Iterator[list[Busy]]:
    for queue in QUEUES:
        node.run("queue", "create", queue, "--set", "owner=default", "--set", f"subscriptions=in/{queue}")
    busy = [Busy(lambda: angarium.connect(node.url, timeout_s=LIMIT_S), queue, PAUSE_S) for queue in QUEUES]
    try:
        for one in busy:
            wait_until(lambda one=one: one.failures or len(one.acknowledged) >= BACKLOG, "a backlog", LIMIT_S)  # type: ignore[misc]
            assert not one.failures
        yield busy
    finally:
        for one in busy:
            one.stop()


def moves(node: Node) -> list[dict[str, Any]]:
    found = node.run("worker", "balance", "--show", "--json")
    return [json.loads(line) for line in found.splitlines()]


@pytest.mark.parametrize(
    "victim",
    [
        "source",
        pytest.param("target", marks=pytest.mark.long),
        pytest.param("router", marks=pytest.mark.long),
        pytest.param("controller", marks=pytest.mark.long),
    ],
)
def test_a_queue_that_goes_to_a_new_worker_keeps_every_message(tmp_path: Path, victim: str) -> None:
    with Node(tmp_path / "data", workers=1) as node, busy_queues(node) as busy:
        node.run("worker", "scale", "3")

        def begun() -> list[dict[str, Any]]:
            return [row for row in moves(node) if row["state"] != "planned"]

        wait_until(begun, "a queue goes to another worker", LIMIT_S)
        indices = {"source": 0, "target": int((begun() or moves(node))[0]["target"])}
        node.kill("worker", indices[victim]) if victim in indices else node.kill(victim)

        def homes() -> set[int]:
            shown = [json.loads(node.run("queue", "show", queue, "--json")) for queue in QUEUES]
            return {lane["home"] for one in shown for lane in one["lanes"]}

        wait_until(lambda: len(homes()) == 2, "the queues are at two workers", LIMIT_S)
        node.run("worker", "balance", "--stop")
        end(busy)
        assert "Traceback" not in node.output()
