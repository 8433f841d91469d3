"""Direct messages over a mesh of real nodes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from angarium import blocking, errors

if TYPE_CHECKING:
    from collections.abc import Callable


DEADLINE_S = 15.0


def publish_until(client: blocking.Client, topic: str, got: Callable[[], Any]) -> float:
    """Publish until something arrives; gives the seconds that it took."""
    started = time.monotonic()
    while time.monotonic() - started < DEADLINE_S:
        client.publish(topic, b"probe")
        client.flush()
        if got():
            return time.monotonic() - started
    raise AssertionError(f"nothing came on {topic}")


def receive_all(subscription: Any, idle_s: float = 0.3) -> list[bytes]:
    """Take what comes until nothing does."""
    found = []
    while True:
        try:
            found.append(subscription.receive(idle_s).payload)
        except errors.TimeoutExpiredError:
            return found


def has_one(subscription: Any) -> Callable[[], bool]:
    def got() -> bool:
        try:
            subscription.receive(0.005)
        except errors.TimeoutExpiredError:
            return False
        return True

    return got
