"""What the clients of queues have in common: the payloads, the confirmations and what they report.

A storing client publishes `task.count` messages with at most `task.window` unconfirmed; a draining one takes
and acknowledges as many. With a rate a storing client publishes one message at a time when it is due, and
notes how long its confirmation took.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cluster.commands.bench.process import STAMP_BYTES, Task, Telling, report

if TYPE_CHECKING:
    from collections.abc import Sequence


def queue_names(task: Task) -> list[str]:
    """Give the queues of a run."""
    return [f"{task.prefix}-{number}" for number in range(task.queues)]


class Stored:
    """What a storing client has had confirmed."""

    def __init__(self, task: Task) -> None:
        """Begin to count; the clock starts with `begin`."""
        self._task = task
        self.payload = bytes(task.payload_bytes)
        self.confirmed = 0
        self.refused = 0
        self.latencies_ns: list[int] = []
        #: Messages and end of each batch: a long backlog may make publishing slower.
        self._parts: list[tuple[int, int]] = []
        self._first_ns = 0
        self._tell = Telling(task)

    def begin(self) -> None:
        """The first message leaves now."""
        self._first_ns = time.monotonic_ns()

    def due_ns(self, number: int) -> float:
        """Give when a message of a run with a rate is to leave."""
        return self._first_ns + number * 1e9 / self._task.rate

    def end_part(self, confirmed: int, refused: int) -> None:
        """Count a batch that was confirmed just now."""
        self.confirmed += confirmed
        self.refused += refused
        self._parts.append((confirmed + refused, time.monotonic_ns()))
        self._tell(self.confirmed + self.refused)

    def report(self) -> None:
        """Tell the parent; the last confirmation came just now."""
        report(
            {
                "published": self.confirmed,
                "refused": self.refused,
                "parts": self._parts,
                "first_ns": self._first_ns,
                "last_ns": time.monotonic_ns(),
                "latencies_ns": self.latencies_ns,
            }
        )


class Drained:
    """What a draining client has taken."""

    def __init__(self, task: Task) -> None:
        """Begin; `begin` is the GO."""
        self._task = task
        self.received = 0
        self._first_ns = 0
        self._first_delivery_ns = 0
        self._late_ns: list[int] = []
        self._tell = Telling(task)

    def begin(self) -> None:
        """Consuming begins now."""
        self._first_ns = time.monotonic_ns()

    def take(self, payloads: Sequence[bytes]) -> bool:
        """Count messages; true when all have come."""
        if not self.received:
            self._first_delivery_ns = time.monotonic_ns()
        self.received += len(payloads)
        self._tell(self.received)
        if self._task.delay_ms:
            now = time.monotonic_ns()
            delay_ns = self._task.delay_ms * 1_000_000
            for payload in payloads:
                sent_ns = int.from_bytes(payload[:STAMP_BYTES], "little")
                self._late_ns.append(now - sent_ns - delay_ns)
        return self.received >= self._task.count

    def report(self) -> None:
        """Tell the parent; the last acknowledgement left just now."""
        report(
            {
                "received": self.received,
                "first_ns": self._first_ns,
                "first_delivery_ns": self._first_delivery_ns,
                "last_ns": time.monotonic_ns(),
                "latencies_ns": self._late_ns,
            }
        )
