"""Tracing in a worker: the watch over sampled messages, and the exporter of its spans."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final

from node.tracing.watch import Watch

if TYPE_CHECKING:
    from node.tracing.config import TracingConfig

#: Of a worker that traces nothing.
NOTHING: Final = dict.fromkeys(
    (
        "spans_made",
        "spans_waiting",
        "spans_exported",
        "spans_dropped",
        "traced_messages",
        "traces_begun",
        "traces_passed_over",
    ),
    0,
)


class Tracing:
    """Both, joined."""

    def __init__(self, config: TracingConfig, node: str, index: int) -> None:
        """Begin; `index` is that of the worker.

        Raises:
            OSError: the file of authorities cannot be used.
        """
        from node.tracing.exporter import (
            Exporter,  # its HTTP and TLS are megabytes for workers that trace nothing
        )

        self.watch: Final = Watch(config, time.time_ns, random.Random())  # noqa: S311 - ids of spans are no secret
        self._exporter: Final = Exporter(config, node, index)

    def carry(self) -> None:
        """Hand over what was made."""
        spans = self.watch.take_spans()
        if spans:
            self._exporter.put(spans)

    def stats(self) -> dict[str, int]:
        """Give what was made since the start, and what became of it."""
        counts, exported = self.watch.counts, self._exporter.stats()
        return {
            "spans_made": counts["spans_made"],
            "spans_waiting": exported["spans_waiting"],
            "spans_exported": exported["spans_exported"],
            "spans_dropped": counts["spans_dropped"] + exported["spans_dropped"],
            "traced_messages": self.watch.watched,
            "traces_begun": counts["messages_watched"],
            "traces_passed_over": counts["messages_passed_over"],
        }

    def close(self) -> None:
        """Have what is left brought to the collector, if that is quick."""
        self.carry()
        self._exporter.close()
