"""What was promised and what came: sets of messages, objects and retained values, and what is wrong with them.

A message is a producer and a number of it. Whoever was told that a message is stored finds it in every queue; who gets
it again is told so; and nothing comes that nobody has sent.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

#: Of what is wrong, so much is shown.
SHOWN: Final = 5


class Id(NamedTuple):
    """One message."""

    producer: str
    number: int


@dataclass
class Sent:
    """What the producers tried, and what they were told."""

    attempted: set[Id] = field(default_factory=set)
    acknowledged: set[Id] = field(default_factory=set)
    #: Refused: stored nowhere.
    refused: dict[Id, int] = field(default_factory=dict)


@dataclass
class Queue:
    """What came of one endpoint."""

    name: str
    #: Whether messages of one producer come first in the order in which they were sent.
    is_ordered: bool
    got: Counter[Id] = field(default_factory=Counter)
    accepted: set[Id] = field(default_factory=set)
    #: Accepted, and the node has answered to the end of the flow.
    confirmed: set[Id] = field(default_factory=set)
    #: Came again without the flag.
    unflagged: list[Id] = field(default_factory=list)
    #: Came again, with the flag, after the acceptance was confirmed.
    came_back: list[Id] = field(default_factory=list)
    late: list[Id] = field(default_factory=list)
    redelivered: int = 0
    _newest: dict[str, int] = field(default_factory=dict)

    def take(self, one: Id, *, redelivered: bool) -> None:
        """A consumer got a message."""
        self.redelivered += redelivered
        if self.got[one]:
            if not redelivered:
                self.unflagged.append(one)
            if one in self.confirmed:
                self.came_back.append(one)
        elif self.is_ordered:
            if one.number < self._newest.get(one.producer, -1) and not redelivered:
                self.late.append(one)
            self._newest[one.producer] = max(one.number, self._newest.get(one.producer, -1))
        self.got[one] += 1

    def judge(self, sent: Sent) -> dict[str, Any]:
        """Give what is wrong, by kind."""
        got = set(self.got)
        found = {
            "lost": sorted(sent.acknowledged - got),
            "doubled": self.unflagged,
            "unexpected": sorted(got - sent.attempted),
            "refused_but_stored": sorted(got & sent.refused.keys()),
            "out_of_order": self.late,
        }
        return shown(found)

    def figures(self) -> dict[str, int]:
        """Give how many there are."""
        return {
            "received": len(self.got),
            "redelivered": self.redelivered,
            "accepted": len(self.accepted),
            "confirmed": len(self.confirmed),
            "came_back": len(self.came_back),
        }


@dataclass
class Objects:
    """Queues that a client created and deleted."""

    created: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)

    def judge(self, there: set[str]) -> dict[str, Any]:
        """Give what is wrong with those that are there now."""
        found = {
            "objects_lost": sorted(self.created - self.deleted - there),
            "objects_back": sorted(self.deleted & there),
        }
        return shown(found)


@dataclass
class Retained:
    """The value of one topic: what was sent last, and what of that was acknowledged."""

    sent: int = -1
    acknowledged: int = -1

    def judge(self, topic: str, value: int | None) -> dict[str, Any]:
        """Give what is wrong with the value that is there now."""
        newest = -1 if value is None else value
        is_right = self.acknowledged <= newest <= self.sent
        return {} if is_right else {"retained": [topic, newest, self.acknowledged, self.sent]}


class Operation(NamedTuple):
    """Something that a host did for a client: it acted in between."""

    host: str
    since: float
    until: float


@dataclass
class Reign:
    """The time in which an epoch was seen in the outside store; it may have begun before, and ended after."""

    epoch: int
    primary: str
    since: float
    until: float


@dataclass
class Reigns:
    """Who was the primary, as the outside store said."""

    all: list[Reign] = field(default_factory=list)

    def saw(self, epoch: int, primary: str, asked_at: float, answered_at: float) -> None:
        """The outside store has said who is the primary."""
        if not self.all or self.all[-1].epoch != epoch:
            self.all.append(Reign(epoch, primary, answered_at, answered_at))
        self.all[-1].until = max(self.all[-1].until, asked_at)

    def judge(self, operations: list[Operation]) -> dict[str, Any]:
        """Give what a host did while another one was the primary, from the beginning to the end."""
        found = [
            [*one, reign.epoch, reign.primary]
            for reign in self.all
            for one in operations
            if reign.primary != one.host and reign.since < one.since and one.until < reign.until
        ]
        return shown({"two_primaries": found})


def shown(found: dict[str, list[Any]]) -> dict[str, Any]:
    """Give what is not empty: how many, and the first of them."""
    return {kind: [len(some), *some[:SHOWN]] for kind, some in found.items() if some}
