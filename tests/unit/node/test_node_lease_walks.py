"""A leased lane on long walks at random, against a simple account of what the group has.

Whatever consumers, operators, clocks and crashes do: what is planned is there until it is acknowledged, deleted by an
operator (and then counted), or given back with the lease; a range gives exactly that, in order; consumers get nothing
meanwhile; a plan passes over nothing that comes later.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from node.backlog.segment import MOVING
from tests.share import short
from tests.unit.node.lane_driver import ACCEPTED, CLOSED, FAILED, KINDS, REJECTED, merged, row
from tests.unit.node.leased_driver import GROUP, LeasedDriver

pytestmark = pytest.mark.requirement("R221")

STEPS = 250
WEIGHTS = {
    "append": 12,
    "bind": 3,
    "hand_out": 8,
    "settle": 5,
    "unbind": 2,
    "take": 5,
    "plan": 12,
    "read": 8,
    "acknowledge": 6,
    "end": 1,
    "time": 8,
    "delete": 2,
    "move": 2,
    "keep_or_move_on": 3,
    "purge": 0.2,
    "restart": 2,
    "figures": 3,
    "merge": 2,
}


class Walk:
    """A lane, and what the reader group must have of it."""

    def __init__(self, kind: dict[str, Any], rng: Random) -> None:
        self.rng = rng
        self.driver = LeasedDriver(**kind)
        self.flows = 0
        #: What the group has, and what somebody took of it with this lease.
        self.planned: dict[int, None] = {}
        self.lost = 0
        #: What is durable of both.
        self.kept: tuple[dict[int, None], int] = ({}, 0)
        #: The segments and rows that are on their way somewhere.
        self.moving: list[tuple[Any, int]] = []

    @property
    def lease(self) -> Any:
        return self.driver.leasing.lease

    def keep(self) -> None:
        self.driver.keep()
        self.kept = (dict(self.planned), self.lost)

    def step(self) -> None:
        (name,) = self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
        getattr(self, name)()
        self.check()

    def check(self) -> None:
        lane = self.driver.lane
        lane.validate()
        there = dict.fromkeys(self.driver.positions())
        if self.lease is None:
            return
        assert [one for one in self.planned if one not in there] == []
        assert self.lease.out.count == len(self.planned)
        assert all(one in self.lease.out for one in self.planned)
        assert self.lease.lost == self.lost

    def lose(self, position: int) -> None:
        if self.planned.pop(position, 0) is None:
            self.lost += 1

    # --- what happens -------------------------------------------------------------------------------------------

    def append(self) -> None:
        rng = self.rng
        rows = [
            row(
                k,
                ttl=rng.choice([0, 0, 80, 300]),
                delay=rng.choice([0, 0, 40]),
                priority=rng.choice([None, 0, 9]),
                tag="a",
            )
            for k in range(rng.randint(1, 12))
        ]
        self.driver.put(*rows)

    def bind(self) -> None:
        if len(self.driver.lane.flows) < 4:
            self.flows += 1
            browse, resume = self.rng.random() < 0.2, self.rng.random() < 0.3
            self.driver.bind(self.flows, browse=browse, resume=resume, max_unacked=self.rng.choice([3, 50]))

    def hand_out(self) -> None:
        for flow in self.driver.deliver(self.rng.choice([2, 100])):
            assert self.lease is None or self.driver.lane.flows[flow].is_browser

    def settle(self) -> None:
        flows = [flow for flow in self.driver.lane.flows.values() if not flow.is_browser]
        if flows:
            first = self.rng.randint(1, self.driver.lane.next_position)
            outcome = self.rng.choice([ACCEPTED, ACCEPTED, FAILED, REJECTED])
            self.driver.settle(self.rng.choice(flows).id, outcome, (first, first + self.rng.randint(0, 20)))

    def unbind(self) -> None:
        if self.driver.lane.flows:
            flow = self.rng.choice(list(self.driver.lane.flows))
            self.driver.unbind(flow, self.rng.choice([None, 0, 100]))

    def take(self) -> None:
        continued, _ = self.driver.take(GROUP, self.rng.choice([3_000, 3_600_000]))
        if not continued:
            self.forget()
        self.keep()

    def plan(self) -> None:
        if self.lease is None:
            return
        lane, rng = self.driver.lane, self.rng
        before = dict.fromkeys(self.driver.positions())
        start = rng.choice([self.lease.planned, self.lease.planned, rng.randint(1, lane.next_position)])
        end = rng.choice([0, 0, 0, rng.randint(1, lane.next_position + 3)])
        messages = rng.choice([1, 5, 20, 1 << 40])
        planned = self.driver.plan(max(start, 1), end=end, messages=messages)
        assert planned.start >= start or planned.start == 1
        assert planned.end >= planned.start
        assert planned.messages <= messages
        states = self.driver.states()
        inside = [one for one in before if planned.start <= one < planned.end and one in states]
        mine = [one for one in inside if states[one] != "moving"]
        assert all(states[one] == "unacked" and one in self.lease.out for one in mine)
        assert len(mine) == planned.messages
        assert all(self.is_dead(one) for one in inside if states[one] == "moving")
        self.planned.update(dict.fromkeys(mine))
        self.keep()

    def is_dead(self, position: int) -> bool:
        found = self.driver.lane.find(position)
        if found is None:
            return False
        segment, i = found
        return segment.state[i] == MOVING and segment.dead is not None and bool(segment.dead[i])

    def read(self) -> None:
        if self.lease is None or not self.lease.ranges:
            return
        first, end = self.rng.choice(self.lease.ranges)
        start, stop = sorted((self.rng.randint(first, end), self.rng.randint(first, end)))
        expected = sorted(one for one in self.planned if start <= one < stop)
        assert self.driver.read(start, stop, messages=self.rng.choice([1, 4, 1_000])) == expected

    def acknowledge(self) -> None:
        if self.lease is None:
            return
        end = self.rng.randint(0, self.driver.lane.next_position + 2)
        gone = [one for one in self.planned if one < end]
        assert self.driver.acknowledge(end) == len(gone)
        for one in gone:
            del self.planned[one]
        assert [one for one in self.driver.positions() if one in gone] == []
        self.keep()

    def end(self) -> None:
        self.driver.end()
        self.forget()
        self.keep()

    def forget(self) -> None:
        self.planned, self.lost = {}, 0

    def time(self) -> None:
        self.driver.pass_ms(self.rng.choice([5, 60, 400, 6_000]))
        events = self.driver.tick()
        if self.driver.leasing.timed_out is not None:
            self.driver.leasing.timed_out = None
            self.forget()
            self.keep()
        assert all(event.event != CLOSED or event.code for event in events if event.flow > 1_000)
        for segment, i, _ in self.driver.lane.take_dead(self.rng.choice([1, 100])):
            self.moving.append((segment, i))

    def delete(self) -> None:
        there = self.driver.positions()
        if there:
            position = self.rng.choice(there)
            self.driver.gone(position)
            self.lose(position)

    def move(self) -> None:
        there = self.driver.positions()
        if there:
            position = self.rng.choice(there)
            found = self.driver.lane.find(position)
            assert found is not None
            if self.driver.lane.take(*found):
                assert position not in self.planned
                self.moving.append(found)

    def keep_or_move_on(self) -> None:
        while self.moving:
            segment, i = self.moving.pop()
            # A dead message that nobody takes is tried again, and never given back.
            if self.rng.random() < 0.5 and not self.is_dead(segment.first + i):
                self.driver.lane.kept(segment, i, self.driver.now, self.driver.wall_ms)
            else:
                self.driver.lane.gone(segment, i)

    def purge(self) -> None:
        self.lost += len(self.planned)
        self.planned.clear()
        self.driver.lane.purge()

    def restart(self) -> None:
        self.keep_or_move_on()
        clean = self.rng.random() < 0.5
        if clean:
            self.keep()
        self.driver.restart(clean=clean)
        planned, self.lost = self.kept
        self.planned = dict(planned)
        self.moving.clear()

    def merge(self) -> None:
        """Put neighbours into one block, as the home does in the background."""
        self.keep()
        segments = list(self.driver.lane.segments)
        pairs = [k for k in range(1, len(segments)) if segments[k - 1].last + 1 == segments[k].first]
        if not pairs or self.moving:
            return
        at = self.rng.choice(pairs)
        old = segments[at - 1 : at + 1]
        new = merged(self.driver, old)
        self.driver.lane.replace(old, new)
        for one in old:
            del self.driver.records[one.key()]
        self.driver.records[new.key()] = (new.pack(), new.pack_state())

    def figures(self) -> None:
        start = self.rng.randint(0, self.driver.lane.next_position + 2)
        above = [one for one in self.driver.positions() if one >= start]
        assert self.driver.leasing.measure(start)[0] == len(above)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(short(1, long=3)))
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "selector" not in kind], ids=str)
def test_a_group_has_what_it_planned_whatever_happens(kind: dict[str, Any], seed: int) -> None:
    walk = Walk(kind, Random(seed))
    for _ in range(STEPS):
        walk.step()
