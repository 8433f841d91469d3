"""What a client of direct messages is told in a comparison, besides what every client is: tables, bursts, bounds.

Only the standard library is used, as in `cluster.commands.bench.process`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from cluster.commands.bench.process import Task

#: A client that changes its subscriptions for `seconds`.
CHURN: Final = "churn"


@dataclass(frozen=True, kw_only=True)
class DirectTask(Task):
    """What one client of direct messages does."""

    #: Whether the subscriber lets the broker send as much as it likes.
    unbounded: bool = True
    #: Subscriptions of the table of filters that all holders have together, and which share this one holds.
    table: int = 0
    holder: int = 0
    holders: int = 1
    #: Whether the topics of the table are used in turn, instead of any of them.
    each_once: bool = False
    #: Messages that fill the queue of a frozen subscriber before the run; its topic is `burst_topic`.
    burst: int = 0
    #: Whether this subscriber also gets the burst, and is not to be missed for a minute.
    frozen: bool = False

    def topics(self, separator: str = "/") -> list[str]:
        """Give the topics of this run, spelled for a broker."""
        if not self.table:
            return super().topics(separator)
        topics = table_topics(self.table)
        return topics if self.each_once else random.Random(0).choices(topics, k=2 * self.table)

    @property
    def burst_topic(self) -> str:
        """Where the burst for a frozen subscriber goes."""
        return f"{self.prefix}-burst/0"


def table_filters(count: int) -> list[str]:
    """Give a table of filters, half of them exact (`a/{i}/b`) and half with a wildcard (`a/*/c{i}`)."""
    return [f"a/{number}/b" if number % 2 else f"a/*/c{number}" for number in range(count)]


def table_topics(count: int) -> list[str]:
    """Give one topic for each filter of the table, which matches it alone, in an order without locality."""
    topics = [f"a/{number}/b" if number % 2 else f"a/x/c{number}" for number in range(count)]
    random.Random(count).shuffle(topics)
    return topics
