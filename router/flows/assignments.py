"""Partitions and flows brought together: what the coordinators decide is done here.

One `Coordinator` per partitioned queue with consumers says which flow gets which partition and which one must let one
go. Here flows get their ends, hand-offs get their time, and clients are told what they have (FLOW_PARTITIONS, after
the change). Time is a parameter.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from router.flows.flow import Flow, HomeFlow, HomeState
from router.flows.partitions import Coordinator, Move, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router.flows.ends import Ends
    from router.guaranteed.endpoints import Endpoint, Endpoints, LaneUsage

#: A hand-off is ended by the home when its time is over; so much later the router does without its word.
HAND_OFF_GRACE_S: Final = 2.0
#: So many partitions that were handed off go to whom they are for in one step: a millisecond.
RELEASED_PER_TICK: Final = 100
_AT_ONCE: Final = float("-inf")


class Assignments:
    """Who has which partition, over all queues."""

    def __init__(self, endpoints: Endpoints, ends: Ends, tell: Callable[[Flow], None]) -> None:
        self._endpoints = endpoints
        self._ends = ends
        #: Called with a flow whose partitions are others now.
        self._tell = tell
        #: Endpoint id -> its coordinator; only queues with partitions and consumers.
        self._coordinators: dict[int, Coordinator] = {}
        #: Endpoint id -> flows that are gone, whose partitions others get with the next tick: each of both is a step.
        self._gone: dict[int, set[int]] = {}
        #: Ends that hand their partition off, by number.
        self._leaving: dict[int, HomeFlow] = {}
        #: No later than the next thing that time demands; infinite if there is none.
        self.wake = float("inf")
        #: What a tick does one of; the one that was asked last is the last.
        self._parts = deque([self._give_on, self._release_some, self._even_out])

    def add(self, flow: Flow, now: float) -> None:
        """A consumer of a partitioned queue was bound."""
        endpoint = flow.endpoint
        coordinator = self._caught_up(endpoint, now)
        if coordinator is None:
            coordinator = self._coordinators[endpoint.id] = Coordinator(endpoint.partitions)
        self._follow(endpoint, coordinator.bind(flow.id, now, _delay_s(endpoint)), now)

    def remove(self, flow: Flow, now: float) -> None:
        """A consumer is gone, also one of a queue without partitions; others get what it had soon."""
        if self._leaving:
            for end in flow.ends.values():
                self._leaving.pop(end.id, None)
        self._ends.detach_all(flow)
        endpoint = flow.endpoint
        if endpoint.id not in self._coordinators:
            return
        if all(one.browse for one in endpoint.flows.values()):
            self.forget(endpoint)
        else:
            self._gone.setdefault(endpoint.id, set()).add(flow.id)
            self.wake = min(self.wake, now)

    def _caught_up(self, endpoint: Endpoint, now: float) -> Coordinator | None:
        """Give the coordinator of a queue, which knows of all who are gone by then."""
        coordinator = self._coordinators.get(endpoint.id)
        gone = self._gone.pop(endpoint.id, None)
        if coordinator is not None and gone is not None:
            moves = coordinator.unbind(gone, now, _delay_s(endpoint), endpoint.partitions)
            self._follow(endpoint, moves, now)
        return coordinator

    def drop(self, end: HomeFlow) -> None:
        """Unbind an end at once, wherever it is in a hand-off."""
        self._leaving.pop(end.id, None)
        self._ends.detach(end)

    def forget(self, endpoint: Endpoint) -> None:
        """Nothing of this endpoint is given to anybody any more."""
        self._coordinators.pop(endpoint.id, None)
        self._gone.pop(endpoint.id, None)

    def resize(self, endpoint: Endpoint, now: float) -> None:
        """A partitioned queue may have another number of partitions."""
        coordinator = self._coordinators.get(endpoint.id)
        if coordinator is not None and coordinator.partitions != endpoint.partitions:
            self._caught_up(endpoint, now)
            self._follow(endpoint, coordinator.resize(endpoint.partitions, now, _delay_s(endpoint)), now)

    def _release(self, ends: Sequence[HomeFlow], now: float) -> None:
        """Partitions were handed off: they go to whom they are for."""
        by_endpoint: dict[Endpoint, list[tuple[int, int]]] = {}
        for end in ends:
            self.drop(end)
            let_go = by_endpoint.setdefault(end.flow.endpoint, [])
            let_go.append((end.lane.partition, end.release_epoch))
        for flow in dict.fromkeys(end.flow for end in ends):
            self._tell(flow)
        for endpoint, let_go in by_endpoint.items():
            coordinator = self._caught_up(endpoint, now)
            if coordinator is not None:
                self._follow(endpoint, coordinator.released(let_go, now, _delay_s(endpoint)), now)

    def end_soon(self, end: HomeFlow) -> None:
        """A hand-off needs no more waiting: its home says that it is over, or is gone, or its lane is.

        A thousand may be over at once, and others are not to wait for them: the next ticks give them to others.
        """
        if end.id in self._leaving:
            end.deadline = self.wake = _AT_ONCE

    def _follow(self, endpoint: Endpoint, moves: list[Move], now: float) -> None:
        given: dict[Flow, list[LaneUsage]] = {}
        leaving: dict[Flow, list[int]] = {}
        for move in moves:
            flow = endpoint.flows[move.flow]
            if move.step is Step.GIVE:
                given.setdefault(flow, []).append(endpoint.lanes[move.partition])
            else:
                self._hand_off(flow.ends[move.partition], move.epoch, now)
                leaving.setdefault(flow, []).append(move.partition)
        for flow, partitions in leaving.items():
            self._ends.tell_leaving(flow, partitions)
        for flow, lanes in given.items():
            self._ends.attach(flow, lanes)
            self._tell(flow)
        coordinator = self._coordinators[endpoint.id]
        if coordinator.rebalance_at is not None:
            self.wake = min(self.wake, coordinator.rebalance_at)

    def _hand_off(self, end: HomeFlow, epoch: int, now: float) -> None:
        """Have a partition handed off: its home delivers nothing more and waits for what is not settled."""
        hand_off_s = float(end.flow.endpoint.attributes["partition_rebalance_max_handoff_s"])
        end.release_epoch = epoch
        self._leaving[end.id] = end
        is_leaving = self._ends.hand_off(end, int(hand_off_s * 1000))
        end.deadline = now + hand_off_s + HAND_OFF_GRACE_S if is_leaving else now
        self.wake = min(self.wake, end.deadline)

    def tick(self, now: float) -> float:
        """Do what time demands, one part of it; gives when to call again, infinite if nothing is planned."""
        if now < self.wake:
            return self.wake
        for _ in range(len(self._parts)):
            self._parts.rotate(-1)
            if self._parts[-1](now):
                break
        dues = [end.deadline for end in self._leaving.values()]
        dues += [due for due, _ in self._rebalances()]
        self.wake = now if self._gone else min(dues, default=float("inf"))
        return self.wake

    def _rebalances(self) -> list[tuple[float, int]]:
        """Give when which queue evens out what its consumers have."""
        return [
            (one.rebalance_at, endpoint_id)
            for endpoint_id, one in self._coordinators.items()
            if one.rebalance_at is not None
        ]

    def _give_on(self, now: float) -> bool:
        """Give what those who left a queue had to others; tells whether there was something to do, like the others."""
        if not self._gone:
            return False
        self._caught_up(self._endpoints.by_id[next(iter(self._gone))], now)
        return True

    def _release_some(self, now: float) -> bool:
        over = [end for end in self._leaving.values() if end.deadline <= now]
        self._release(over[:RELEASED_PER_TICK], now)
        return bool(over)

    def _even_out(self, now: float) -> bool:
        due, endpoint_id = min(self._rebalances(), default=(float("inf"), 0))
        if due > now:
            return False
        endpoint = self._endpoints.by_id[endpoint_id]
        coordinator = self._caught_up(endpoint, now)
        assert coordinator is not None
        self._follow(endpoint, coordinator.tick(now), now)
        return True

    def validate(self) -> None:
        """Check that coordinators and ends agree."""
        for number, end in self._leaving.items():
            assert self._ends.by_id[number] is end
        leaving = [end for end in self._ends.by_id.values() if end.state is HomeState.LEAVING]
        assert all(end.id in self._leaving for end in leaving)
        for endpoint_id, coordinator in self._coordinators.items():
            coordinator.validate()
            endpoint = self._endpoints.by_id[endpoint_id]
            assert coordinator.partitions == endpoint.partitions
            consumers = [flow for flow in endpoint.flows.values() if not flow.browse]
            assert consumers
            assert all(coordinator.owned(flow.id) == sorted(flow.ends) for flow in consumers)
        assert self._gone.keys() <= self._coordinators.keys()
        assert not self._gone or self.wake < float("inf")


def _delay_s(endpoint: Endpoint) -> float:
    return float(endpoint.attributes.get("partition_rebalance_delay_s") or 0)
