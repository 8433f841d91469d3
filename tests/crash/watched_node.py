"""What crash tests ask a node: its processes and events at short intervals, and how long something took."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from angarium.errors import TimeoutExpiredError, UnavailableError
from angarium.slots import slot_table
from angarium.topic import slot_of
from cluster.admin.client import Admin

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium_server.testing import Node

LOOK_INTERVAL_S = 0.05


def look_until(
    node: Node, what: str, condition: Callable[[dict[str, Any]], bool], timeout_s: float = 30.0
) -> float:
    """Look at the status until a condition holds, and give the seconds that took."""
    started = time.monotonic()
    status: Any = None
    while True:
        try:
            with Admin(node.data, timeout_s=1.0) as admin:
                status = admin.call("status")
            if condition(status):
                return time.monotonic() - started
        except (TimeoutExpiredError, UnavailableError) as error:  # the controller itself is away for a moment
            status = error
        assert time.monotonic() - started < timeout_s, f"{what} did not happen in {timeout_s:g} s: {status}"
        time.sleep(LOOK_INTERVAL_S)


def state_of(status: dict[str, Any], role: str, index: int = 0) -> dict[str, Any]:
    """Give the row of one process."""
    found: dict[str, Any] = next(
        row for row in status["processes"] if (row["role"], row["index"]) == (role, index)
    )
    return found


def all_ready(status: dict[str, Any]) -> bool:
    """Tell whether every process is ready."""
    states = [row["state"] for row in status["processes"]]
    return bool(states) and set(states) == {"ready"}


def is_replaced(role: str, index: int, pid: int) -> Callable[[dict[str, Any]], bool]:
    """Give the condition that another process has taken the place of `pid`, and everything is ready."""
    return lambda status: all_ready(status) and state_of(status, role, index)["pid"] != pid


def events(node: Node) -> list[dict[str, Any]]:
    """Give what happened on the node."""
    with Admin(node.data) as admin:
        found: list[dict[str, Any]] = admin.call("events")
        return found


def topics_of_worker(worker: int, workers: int, count: int, prefix: str) -> list[str]:
    """Give topics that one worker owns."""
    table = slot_table(workers)
    numbered = (f"{prefix}/{number}" for number in range(100_000))
    owned = (topic for topic in numbered if table[slot_of(topic)] == worker)
    return [topic for topic, _ in zip(owned, range(count), strict=False)]


def figure(name: str, value: float) -> None:
    """Print what was measured; pytest shows it with -rP."""
    print(f"figure {name} = {value:g}")
