"""Which flow has which partition of a queue: balanced, one owner at a time, moved with a hand-off.

A partition belongs to one flow, a flow may have several, and in the end the flows' shares differ by
at most one. A partition without owner is given away at once, to the flow that has least, so a spare flow takes over
when another one goes, and nobody waits while there are flows. Shares are evened out later: when a flow came for which
there was none, or the number of partitions fell, after the rebalance delay, so that a fleet of consumers that starts
moves its partitions once. A partition that moves is taken from its owner first; the owner settles what it has, at
most for the hand-off time, and only then the next one gets it.

This is the decision alone: flows are numbers here, time is a parameter, and what follows is a list of `Move`. Every
change of an assignment has a new epoch; the end of a hand-off names the epoch of its beginning, so that one which was
overtaken changes nothing.
"""

from __future__ import annotations

import heapq
from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Set

#: Shares that are compared in one step of evening out, each time for one partition that moves, which itself takes as
#: long as some of them: a millisecond.
COMPARED_MAX: Final = 1_500
MOVED: Final = 12


class Step(Enum):
    """What is to be done with one partition of one flow."""

    #: The flow gets the partition.
    GIVE = "give"
    #: The flow must hand it off; `released` tells when it has.
    TAKE = "take"
    #: The partition is no more; the flow lets it go in the same way.
    DROP = "drop"


class Move(NamedTuple):
    """One step."""

    step: Step
    partition: int
    flow: int
    epoch: int


class _Leaving(NamedTuple):
    """A partition that is being handed off."""

    flow: int
    epoch: int
    #: The flow it is for; None for one that is no more.
    target: int | None


class Coordinator:
    """The assignment of one partitioned queue. Its methods give the steps to take, in order."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        #: Rises with every change of the assignment.
        self.epoch = 0
        #: Bound flows, in the order of their binding -> their partitions, those on their way to them included and
        #: those being taken from them not.
        self._shares: dict[int, dict[int, None]] = {}
        #: Partition -> the flow that has it and is not asked to let it go.
        self._owners: dict[int, int] = {}
        #: Partition -> its hand-off. One that is here is not in `_owners`.
        self._leaving: dict[int, _Leaving] = {}
        #: When shares are evened out, or None.
        self.rebalance_at: float | None = None

    def owned(self, flow: int) -> list[int]:
        """Give the partitions that a flow has now: also those that it is asked to let go."""
        own = [partition for partition, owner in self._owners.items() if owner == flow]
        own += [partition for partition, leaving in self._leaving.items() if leaving.flow == flow]
        return sorted(own)

    def bind(self, flow: int, now: float, delay_s: float) -> list[Move]:
        """A flow came."""
        assert flow not in self._shares
        free = range(0 if self._shares else self.partitions)
        self._shares[flow] = {}
        return self._settle(free, now, delay_s)

    def unbind(
        self, flows: Set[int], now: float, delay_s: float, partitions: int | None = None
    ) -> list[Move]:
        """Flows are gone, and with them what they had; if there are fewer `partitions` now `resize` has to follow."""
        self.partitions = min(self.partitions, partitions or self.partitions)
        for flow in flows:
            del self._shares[flow]
        free = [p for p, owner in self._owners.items() if owner in flows]
        for partition in free:
            del self._owners[partition]
        for partition, leaving in list(self._leaving.items()):
            if leaving.flow in flows:
                del self._leaving[partition]
                free.append(partition)
            elif leaving.target in flows:
                self._leaving[partition] = leaving._replace(target=None)
        self._share_out()
        if not self._shares:
            self.rebalance_at = None
        return self._settle(sorted(free), now, delay_s)

    def resize(self, partitions: int, now: float, delay_s: float) -> list[Move]:
        """The queue has another number of partitions."""
        moves = []
        free = [p for p in range(self.partitions, partitions) if p not in self._leaving]
        self.partitions = partitions
        for partition in sorted((p for p in self._owners if p >= partitions), reverse=True):
            moves.append(self._take(partition, None, Step.DROP))
        for partition, leaving in list(self._leaving.items()):
            if partition >= partitions:
                self._leaving[partition] = leaving._replace(target=None)
        self._share_out()
        return moves + self._settle(free, now, delay_s)

    def released(self, let_go: Iterable[tuple[int, int]], now: float, delay_s: float) -> list[Move]:
        """Flows have let partitions go: each is named with the epoch in which it was asked for."""
        moves = []
        for partition, epoch in let_go:
            leaving = self._leaving.get(partition)
            if leaving is None or leaving.epoch != epoch:
                continue
            del self._leaving[partition]
            if leaving.target is not None:
                moves.append(self._give(partition, leaving.target))
        return moves + self._settle([], now, delay_s)

    def tick(self, now: float) -> list[Move]:
        """Even the shares out if it is time; what is left to do then is due at once."""
        if self.rebalance_at is None or now < self.rebalance_at:
            return []
        self.rebalance_at = None
        moves = []
        owned: dict[int, list[int]] = {flow: [] for flow in self._shares}
        for partition in sorted(self._owners):
            owned[self._owners[partition]].append(partition)
        left = COMPARED_MAX
        while (pair := self._uneven(owned)) is not None:
            if left <= 0:
                self.rebalance_at = now
                break
            left -= len(self._shares) + MOVED
            most, least = pair
            moves.append(self._take(owned[most].pop(), least, Step.TAKE))
        return moves

    def _take(self, partition: int, target: int | None, step: Step) -> Move:
        flow = self._owners.pop(partition)
        self.epoch += 1
        self._leaving[partition] = _Leaving(flow, self.epoch, target)
        del self._shares[flow][partition]
        if target is not None:
            self._shares[target][partition] = None
        return Move(step, partition, flow, self.epoch)

    def _share_out(self) -> None:
        """Rebuild the shares from owners and hand-offs; partitions without either get a flow."""
        for share in self._shares.values():
            share.clear()
        for partition, flow in self._owners.items():
            self._shares[flow][partition] = None
        for partition, leaving in self._leaving.items():
            if leaving.target is not None:
                self._shares[leaving.target][partition] = None
        for partition, leaving in list(self._leaving.items()):
            if leaving.target is None and partition < self.partitions:
                target = self._least()
                assert target is not None, "a hand-off of a flow that is gone"
                self._leaving[partition] = leaving._replace(target=target)
                self._shares[target][partition] = None

    def _settle(self, free: Iterable[int], now: float, delay_s: float) -> list[Move]:
        """Give away what is free, and note when to even out, unless that is planned already.

        Who has least gets the next one, of several the one that bound first.
        """
        shares = [(len(share), turn, flow) for turn, (flow, share) in enumerate(self._shares.items())]
        heapq.heapify(shares)
        moves = []
        for partition in free if shares else ():
            if partition < self.partitions:
                size, turn, flow = shares[0]
                heapq.heapreplace(shares, (size + 1, turn, flow))
                moves.append(self._give(partition, flow))
        if self.rebalance_at is None and self._uneven(Counter(self._owners.values())) is not None:
            self.rebalance_at = now + delay_s
        return moves

    def _give(self, partition: int, flow: int) -> Move:
        self.epoch += 1
        self._owners[partition] = flow
        self._shares[flow][partition] = None
        return Move(Step.GIVE, partition, flow, self.epoch)

    def _least(self) -> int | None:
        """Give the flow with the smallest share, of several the one that bound first."""
        return min(self._shares, key=lambda flow: len(self._shares[flow]), default=None)

    def _uneven(self, owned: Mapping[int, Any]) -> tuple[int, int] | None:
        """Give (most, least) of two flows whose shares differ by more than one.

        `owned` has an entry that is true for each flow from which a partition can be taken.
        """
        least = self._least()
        if least is None:
            return None
        takeable = [flow for flow in self._shares if owned.get(flow)]
        most = max(takeable, key=lambda flow: len(self._shares[flow]), default=least)
        if len(self._shares[most]) - len(self._shares[least]) <= 1:
            return None
        return most, least

    def validate(self) -> None:
        """Check what must hold after every call."""
        for partition, flow in self._owners.items():
            assert partition not in self._leaving, "a partition that is owned and handed off"
            assert partition in self._shares[flow]
            assert 0 <= partition < self.partitions
        for partition, leaving in self._leaving.items():
            assert leaving.flow in self._shares
            assert leaving.target is None or partition in self._shares[leaving.target]
            assert leaving.epoch <= self.epoch
        shared = [partition for share in self._shares.values() for partition in share]
        assert len(shared) == len(dict.fromkeys(shared)), "a partition in two shares"
        if self._shares:
            covered = [p for p in range(self.partitions) if p in self._owners or p in self._leaving]
            assert len(covered) == self.partitions, "a partition without owner while there are flows"
            assert len(shared) == self.partitions
