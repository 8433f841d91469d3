"""What each home was told of its lanes, and which requests wait for a home to have it.

A lane is one partition of an endpoint at its home worker. The home learns it by LANES: once completely, after START
and as soon as the directory is complete, with the endpoints whose deletion was decided (what else it finds in its
spool it purges if it is of one of these, and keeps aside if not), and then each change. It answers the complete one
with HOME, the others with LANES_CONFIRM, when they are durable and in force.
Frames to one worker keep their order, so whatever is sent to a home after LANES (STORE, FLOW) finds the lanes.

Frames: docs/node-protocol.md. No clock, no I/O.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from angarium import wire
from angarium_server.frames.homes import LanePut, LanesFrame
from angarium_server.memory.memory import give_up_room
from router.ground.ground import nothing
from router.matching.shards import Confirmation, Shard, Shards, ShardState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from angarium_server.frames.settings import LaneSettings

#: Lanes that one frame changes, unless they are taken over: a home does that in a millisecond or two, once in a turn.
PUTS_MAX: Final = 64
#: Requests that wait for one home; more are answered without waiting, since the controller gives up long before.
WAITING_MAX: Final = 10_000


class Lane(NamedTuple):
    """One lane as its home must know it."""

    lane_id: int
    #: Index of the worker.
    home: int
    #: Another generation of the endpoint: the home empties the lane first.
    generation: int
    settings: LaneSettings


class _Home:
    """One worker as the home of lanes."""

    __slots__ = ("complete_for", "number", "ready_for", "taken_over", "waiting")

    def __init__(self) -> None:
        #: Number of the newest LANES frame, over all incarnations of the worker.
        self.number = 0
        #: The incarnation that was sent the complete LANES; 0: none.
        self.complete_for = 0
        #: The incarnation that answered HOME; 0 while the worker is down.
        self.ready_for = 0
        #: (number, confirmation) in the order of the numbers.
        self.waiting: deque[tuple[int, Confirmation]] = deque()
        #: Lane id -> number of the frame that put it here from another home; not confirmed yet.
        self.taken_over: dict[int, int] = {}


class Lanes:
    """The lanes of every home; a listener of `Shards`."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        #: What is in force, by lane id: what the homes were told, or will be when they come.
        self.entries: dict[int, Lane] = {}
        self._homes: dict[int, _Home] = {}
        #: False until the directory is complete: no home may take what it has for orphans before.
        self._is_open = False
        #: Lanes that have another home, until the one before has parted with them on its disk -> that one.
        self.leaving: dict[int, int] = {}
        #: Endpoints whose deletion was decided and that a home may still have; it purges nothing else.
        self.deleted: dict[int, None] = {}
        #: Workers from this index on are leaving, or None: what they hold has other homes already, which take it
        #: over, so they must not take it for orphans.
        self._leaving_from: int | None = None
        #: Called with a home that was told of lanes that another one had.
        self.on_handed_over: Callable[[int], None] = lambda _: None

    def open(self) -> None:
        """The directory is complete: tell every worker that is there all its lanes."""
        if self._is_open:
            return
        self._is_open = True
        for shard in self._shards.shards:
            self.shard_started(shard)

    def part(self, lane_id: int, home: int) -> bool:
        """Note that a home is to part with a lane that has another one; False if it is none any more."""
        if home < len(self._shards.shards):
            self.leaving[lane_id] = home
            return True
        return False

    def parted(self, lane_id: int, home: int) -> None:
        """A home has parted with a lane, on its disk, or is none any more."""
        if self.leaving.get(lane_id) == home:
            del self.leaving[lane_id]

    def keep_workers(self, count: int) -> None:
        """The number of workers is to change: those above it are told no complete LANES any more."""
        self._leaving_from = count
        if self._is_open:
            for shard in self._shards.shards:
                self.shard_started(shard)

    def left(self, count: int) -> None:
        """Only the workers below this index are homes now; one that comes back is told all its lanes, and says HOME.

        It may be the same process: one that was not stopped yet when more workers were wanted again. What waits for
        one that left waits no longer: others take its lanes over, which nothing waits for.
        """
        for index, home in list(self._homes.items()):
            if index >= count:
                home.complete_for = home.ready_for = 0
                self.confirm(index, home.number + 1)

    def is_ready(self, lane_id: int, index: int) -> bool:
        """Tell whether a home can take STORE and FLOW for a lane: it has what it is to have of it."""
        home = self._homes.get(index)
        if home is None or not home.ready_for or self._shard(index) is None:
            return False
        return lane_id not in home.taken_over

    def change(self, puts: list[Lane], deletes: list[int], done: Callable[[], None] | None = None) -> None:
        """Tell the homes concerned, in one frame each or a few; lanes that did not change are left out.

        A lane that gets another home is not deleted at the old one: the new home takes over what that one leaves.

        Args:
            puts: new and changed lanes.
            deletes: ids of lanes that are no more.
            done: called when all homes have confirmed. A home that is down confirms new lanes when it comes back;
                it is not waited for because of deletions, since it will be told what is left. Nor is a home that
                takes lanes over: it confirms when the worker before it has ended.
        """
        frames: dict[int, tuple[list[LanePut], list[int]]] = {}
        handed_over: dict[int, None] = {}
        for lane in puts:
            known = self.entries.get(lane.lane_id)
            if known == lane:
                continue
            self.entries[lane.lane_id] = lane
            _of(frames, lane.home)[0].append(_put(lane))
            if known is not None and known.home != lane.home:
                handed_over[lane.home] = None
                self._home(known.home).taken_over.pop(lane.lane_id, None)
                self._home(lane.home).taken_over[lane.lane_id] = self._home(lane.home).number + 1
        for lane_id in deletes:
            gone = self.entries.pop(lane_id, None)
            self.leaving.pop(lane_id, None)
            if gone is not None:
                _of(frames, gone.home)[1].append(lane_id)
                self._home(gone.home).taken_over.pop(lane_id, None)
        give_up_room(self.entries)
        confirmation = Confirmation(done or nothing)
        for index, (put, delete) in frames.items():
            if index in handed_over:
                self._tell(index, [(put, delete)], Confirmation(nothing))
                self.on_handed_over(index)
            else:
                self._tell(index, _pieces(put, delete), confirmation)
        self._await_pending(puts, frames, confirmation)
        if not confirmation.waiting:
            confirmation.done()

    def lose(self, lane_ids: list[int]) -> None:
        """Know nothing of lanes any more whose deletion nobody decided; their homes keep what they have."""
        for lane_id in lane_ids:
            gone = self.entries.pop(lane_id, None)
            if gone is not None:
                self._home(gone.home).taken_over.pop(lane_id, None)

    def deletions(self, endpoint_ids: list[int]) -> list[int]:
        """Take note of deletions that were decided; gives those of which no home has anything any more."""
        self.deleted.update(dict.fromkeys(endpoint_ids))
        there = {lane_id >> wire.LANE_BITS for lane_id in self.entries}
        all_settled = len(self.settled()) == len(self._shards.shards)
        done = [one for one in self.deleted if one not in there] if all_settled else []
        for endpoint_id in done:
            del self.deleted[endpoint_id]
        return done

    def settled(self) -> list[int]:
        """Give the workers that are there and have confirmed all that they were told."""
        return [shard.index for shard in self._shards.shards if self._is_open and self._is_settled(shard)]

    def _is_settled(self, shard: Shard) -> bool:
        home = self._home(shard.index)
        return (
            self._shard(shard.index) is shard
            and home.ready_for == shard.incarnation
            and not home.waiting
            and not home.taken_over
        )

    def _tell(
        self, index: int, pieces: list[tuple[list[LanePut], list[int]]], confirmation: Confirmation
    ) -> None:
        home = self._home(index)
        shard = self._shard(index)
        if shard is not None and home.complete_for == shard.incarnation:
            for puts, deletes in pieces:
                self._send(home, shard, complete=False, puts=puts, deletes=deletes)
            self._wait(home, home.number, confirmation)
        elif any(puts for puts, _ in pieces):
            # It is down: its successor confirms it with the complete LANES.
            self._wait(home, home.number + 1, confirmation)

    def _wait(self, home: _Home, number: int, confirmation: Confirmation) -> None:
        if len(home.waiting) < WAITING_MAX:
            confirmation.waiting += 1
            home.waiting.append((number, confirmation))

    def _await_pending(
        self,
        puts: list[Lane],
        frames: dict[int, tuple[list[LanePut], list[int]]],
        confirmation: Confirmation,
    ) -> None:
        """Let a request that changes nothing wait for an earlier one that told the home the same."""
        for index in dict.fromkeys(lane.home for lane in puts if lane.home not in frames):
            home = self._home(index)
            if home.waiting:
                self._wait(home, home.waiting[-1][0], confirmation)

    def _send(
        self,
        home: _Home,
        shard: Shard,
        *,
        complete: bool,
        puts: list[LanePut],
        deletes: list[int],
        leaving: Sequence[int] = (),
        elsewhere: Sequence[int] = (),
    ) -> None:
        home.number += 1
        frame = LanesFrame(self._shards.incarnation, home.number, complete, puts, deletes, leaving, elsewhere)
        self._shards.send(shard, frame.frames())

    def shard_started(self, shard: Shard) -> None:
        """A worker was sent START: its new incarnation is told all its lanes, once."""
        if not self._is_open or shard.state is ShardState.DOWN or not shard.incarnation:
            return
        if self._leaving_from is not None and shard.index >= self._leaving_from:
            return
        home = self._home(shard.index)
        if home.complete_for == shard.incarnation:
            return
        home.complete_for = shard.incarnation
        mine = [_put(lane) for lane in self.entries.values() if lane.home == shard.index]
        deleted = [endpoint_id << wire.LANE_BITS for endpoint_id in self.deleted]
        leaving = [lane_id for lane_id, index in self.leaving.items() if index == shard.index]
        elsewhere = [
            lane_id
            for lane_id, lane in self.entries.items()
            if lane.home != shard.index and self.leaving.get(lane_id) != shard.index
        ]
        self._send(
            home, shard, complete=True, puts=mine, deletes=deleted, leaving=leaving, elsewhere=elsewhere
        )

    def shard_lost(self, shard: Shard) -> None:
        """A worker died."""
        home = self._home(shard.index)
        home.ready_for = 0
        home.complete_for = 0
        home.taken_over.clear()  # HOME of the next one comes when it has everything

    def home_ready(self, index: int, number: int) -> bool:
        """A home answered the complete LANES; true if that made it ready, false if it was."""
        home = self._home(index)
        shard = self._shard(index)
        if shard is None or home.complete_for != shard.incarnation or home.ready_for == shard.incarnation:
            return False
        home.ready_for = shard.incarnation
        self.confirm(index, number)
        return True

    def confirm(self, index: int, number: int) -> bool:
        """A home confirmed its lanes up to a number; true if it has taken some over by now."""
        home = self._home(index)
        waiting = home.waiting
        while waiting and waiting[0][0] <= number:
            _, confirmation = waiting.popleft()
            confirmation.waiting -= 1
            if not confirmation.waiting:
                confirmation.done()
        taken_over = [lane_id for lane_id, at in home.taken_over.items() if at <= number]
        for lane_id in taken_over:
            del home.taken_over[lane_id]
        return bool(taken_over)

    def _home(self, index: int) -> _Home:
        home = self._homes.get(index)
        if home is None:
            home = self._homes[index] = _Home()
        return home

    def _shard(self, index: int) -> Shard | None:
        """Give the worker of that index, if it is up."""
        if index >= len(self._shards.shards):
            return None
        shard = self._shards.shards[index]
        return None if shard.state is ShardState.DOWN else shard

    def validate(self) -> None:
        """Check that confirmations are in order and none is overdue."""
        for index, home in self._homes.items():
            numbers = [number for number, _ in home.waiting]
            assert numbers == sorted(numbers), (index, numbers)
            assert all(number <= home.number + 1 for number in numbers)
            assert all(confirmation.waiting > 0 for _, confirmation in home.waiting)
            assert home.ready_for in (0, home.complete_for)
            assert all(self.entries[lane_id].home == index for lane_id in home.taken_over)


def _of(frames: dict[int, tuple[list[LanePut], list[int]]], home: int) -> tuple[list[LanePut], list[int]]:
    return frames.setdefault(home, ([], []))


def _pieces(puts: list[LanePut], deletes: list[int]) -> list[tuple[list[LanePut], list[int]]]:
    """Cut a change into some that a home makes in short steps."""
    longest = max(len(puts), len(deletes))
    return [(puts[at : at + PUTS_MAX], deletes[at : at + PUTS_MAX]) for at in range(0, longest, PUTS_MAX)]


def _put(lane: Lane) -> LanePut:
    return LanePut(lane.lane_id, lane.generation, lane.settings)
