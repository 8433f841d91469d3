"""What a process with many clients is told: its task first, then one order after the other, each a line of JSON.

Only the standard library is used: the clients of the peers run in an environment of their own.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import Final

#: Orders to a group, which answers each with one line; AWAIT_BACK with two, the first when it has begun to look.
CONNECT: Final = "connect"
PUBLISH: Final = "publish"
COUNT: Final = "count"
TAKE: Final = "take"
AWAIT_BACK: Final = "await-back"
#: The order to the closed loop.
LOOP: Final = "loop"

#: To whom messages go: all to the one collector, or each client's to its partner.
TO_COLLECTOR: Final = "to one collector"
PAIRWISE: Final = "pairwise"
PATTERNS: Final = (TO_COLLECTOR, PAIRWISE)
#: Of all messages: 8 bytes of time, one of the run, filler.
PAYLOAD_BYTES: Final = 64
STAMP_BYTES: Final = 8


@dataclass(frozen=True, kw_only=True)
class GroupTask:
    """Which clients a process holds."""

    #: For messages about it.
    role: str
    #: What is run.
    module: str
    url: str
    #: First level of all topics.
    prefix: str
    #: The numbers of its clients: every `groups`-th from `group` on, below `clients`. Without any it is the collector.
    clients: int = 0
    group: int = 0
    groups: int = 1

    def pack(self) -> bytes:
        """Give the line for standard input."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @property
    def numbers(self) -> range:
        """The clients of this process."""
        return range(self.group, self.clients, self.groups)

    @property
    def collector_filter(self) -> str:
        """What the collector subscribes to; one level for the number of the publisher."""
        return f"{self.prefix}/t/*"

    def own_topic(self, number: int) -> str:
        """Give what a client subscribes to."""
        return f"{self.prefix}/c/{number}"

    def target(self, number: int, pattern: str) -> str:
        """Give the topic that a client publishes to."""
        if pattern == TO_COLLECTOR:
            return f"{self.prefix}/t/{number}"
        return self.own_topic(partner(number, self.clients))


def partner(number: int, clients: int) -> int:
    """Give the client that gets the messages of another one: the next, which another process holds."""
    return (number + 1) % clients


def read_task() -> GroupTask:
    """Read the task from standard input."""
    return GroupTask(**json.loads(sys.stdin.readline()))
