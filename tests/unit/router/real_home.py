"""The home of a worker in router tests: the real state machine over a disk in memory, with time that tests hold.

It writes at once, or when a test says so. What the STOREs of the router said of each message is remembered beside, by
lane and position, because a home does not keep all of it.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from angarium import errors, wire
from node.home.home import Home
from node.home.operations import Answer
from node.home.parts import HomeLimits
from node.home.spool.writing import FULL_RETRY_S
from tests.simulation.simulated_disk import SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from node.backlog.segment import Segment

WALL_MS = 1_700_000_000_000
#: Nothing waits for anything but its write.
_LIMITS = HomeLimits(ack_delay_ms=0, write_delay_ms=0)


@dataclass
class Stored:
    """One message in one lane."""

    index: int
    topic: str
    flags: int
    payload: bytes
    size: int
    producer: int | None
    sequence: int
    origin: Any
    past: Any
    file: int


@dataclass
class Disk:
    """The spool of a worker, and what was sent to it; it outlives the process."""

    spool: SimulatedDisk = field(default_factory=SimulatedDisk)
    #: Lane -> position -> message, as the router sent it last.
    sent: dict[int, dict[int, Stored]] = field(default_factory=dict)
    #: Everything that was ever durable, but for what homes moved: (lane, producer, sequence).
    log: list[tuple[int, int | None, int]] = field(default_factory=list)
    #: Lane -> what of it is on its way to another endpoint: first sequence, messages, bytes.
    moving: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    #: The newest process.
    home: Home | None = None

    @property
    def stored(self) -> int:
        """The STORE up to which everything is durable."""
        return 0 if self.home is None else self.home.pending.stored

    @property
    def router(self) -> int:
        return 0 if self.home is None else self.home.pending.router

    @property
    def lanes(self) -> dict[int, list[Stored]]:
        """What each lane has, as far as it is accepted."""
        if self.home is None:
            return {}
        return {
            held.lane_id: [
                self._message(held.lane_id, segment, i)
                for segment in held.lane.segments
                for i, state in enumerate(segment.state)
                if state
            ]
            for held in self.home.lanes
        }

    def _message(self, lane_id: int, segment: Segment, i: int) -> Stored:
        """Give a message as the router sent it, or, if it came otherwise, what the home knows of it."""
        sent = self.sent.get(lane_id, {}).get(segment.first + i)
        if sent is not None:
            return sent
        assert self.home is not None
        row = self.home.parts.blocks.row(segment, i, self.home.parts.operators_effort)
        origin = None if segment.origins is None else segment.origins[i]
        return Stored(
            row.index,
            row.topic,
            row.flags,
            row.payload,
            segment.sizes[i],
            None,
            0,
            origin,
            None,
            segment.file,
        )

    @property
    def records(self) -> dict[tuple[int, int], list[Any]]:
        """(lane, producer) -> [{partitions: last}, {sequence: code}]."""
        if self.home is None:
            return {}
        return {
            (lane_id, producer): [dict(record.lasts), {one[0]: one[1] for one in record.refused}]
            for producer, lanes in self.home.parts.records._records.items()
            for lane_id, record in lanes.items()
        }


class HomesNode(Protocol):
    """The node around a home, as far as the home is concerned."""

    now: float
    disks: dict[int, Disk]
    #: Whether homes may read the disks of workers that are gone, and what they wait for there.
    lets_adopt: bool
    claims: dict[tuple[int, int], None]
    taken: dict[tuple[int, int, int], None]

    @property
    def homes(self) -> Mapping[int, RealHome]:
        """Those that run."""

    def from_home(self, index: int, incarnation: int, frames: list[bytes]) -> None:
        """A home sends."""

    def settle(self) -> None:
        """Carry effects until nothing moves."""


class OtherDisks:
    """The port `Neighbours` of a home: the disks of the other workers, which it may open when the node lets it."""

    def __init__(self, node: HomesNode, own: int) -> None:
        self._node = node
        self._own = own

    def names(self) -> list[str]:
        return [str(index) for index, disk in self._node.disks.items() if disk.home and index != self._own]

    @contextmanager
    def view(self, name: str) -> Iterator[SimulatedDisk]:
        yield self._node.disks[int(name)].spool

    def read(self, name: str) -> SimulatedDisk:
        if not self._node.lets_adopt:
            raise errors.error_for(errors.HOME_NOT_READY, "not yet")
        return self._node.disks[int(name)].spool

    def stop_reading(self, name: str) -> None:
        """Nothing is kept open."""

    def open(self, name: str) -> SimulatedDisk | None:
        if not self._node.lets_adopt or int(name) in self._node.homes:
            return None
        old = self._node.disks[int(name)]
        for lane_id, messages in old.sent.items():
            self._node.disks[self._own].sent.setdefault(lane_id, {}).update(messages)
        return old.spool

    def close(self) -> None:
        """Nothing is kept open."""

    def remove(self, name: str) -> None:
        self._node.disks[int(name)] = Disk()

    def is_running(self, name: str) -> bool:
        return int(name) in self._node.homes

    def claim(self, name: str, lane_id: int) -> None:
        self._node.claims[int(name), lane_id] = None

    def unclaim(self, name: str, lane_id: int) -> None:
        self._node.claims.pop((int(name), lane_id), None)

    def is_claimed(self, lane_id: int) -> bool:
        return (self._own, lane_id) in self._node.claims

    def tell_taken(self, name: str, lane_id: int, handovers: int) -> None:
        self._node.taken[int(name), lane_id, handovers] = None

    def is_taken(self, lane_id: int, handovers: int) -> bool:
        return (self._own, lane_id, handovers) in self._node.taken

    def forget_taken(self, lane_id: int) -> None:
        self._node.claims.pop((self._own, lane_id), None)
        for key in [key for key in self._node.taken if key[:2] == (self._own, lane_id)]:
            del self._node.taken[key]


class RealHome:
    """A home as its process runs it: each write ends before the next frame, unless it is held."""

    def __init__(self, node: HomesNode, index: int, incarnation: int, disk: Disk) -> None:
        self.node = node
        self.index = index
        self.incarnation = incarnation
        self.disk = disk
        self.home = disk.home = Home(disk.spool, incarnation, _LIMITS, OtherDisks(node, index))
        self.commits = True
        #: What it says with these operations waits for `report`, and what it says behind it.
        self.holds: tuple[bytes, ...] = ()
        self._held: list[list[bytes]] = []
        #: Every STORE that came, in order, with those that were sent again.
        self.stores: list[list[Any]] = []
        #: Numbers of STOREs that are not durable, and what they store.
        self._unlogged: list[tuple[int, list[tuple[int, int | None, int]]]] = []
        #: Operations of the router that do not reach it.
        self.loses: tuple[bytes, ...] = ()
        self.gathers: list[list[Any]] = []
        self.moved: list[list[Any]] = []
        for _ in self.home.recover(node.now, self.wall_ms):
            pass
        for lane_id, moving in list(disk.moving.items()):
            self.note_moving(lane_id, moving)

    @property
    def wall_ms(self) -> int:
        return WALL_MS + int(self.node.now * 1000)

    @property
    def waiting(self) -> list[list[Any]]:
        """STOREs of the router of now that are not durable."""
        pending = self.home.pending
        return [body for body in self.stores if body[0] == pending.router and body[1] > pending.stored]

    @property
    def moving(self) -> dict[int, tuple[int, int, int]]:
        """Lane -> what of it is on its way to another endpoint: first sequence, messages, bytes."""
        return {held.lane_id: held.moving for held in self.home.lanes if held.moving is not None}

    def take(self, frames: list[bytes]) -> None:
        if frames[0] in self.loses:
            return
        body = wire.unpack(frames[1])
        if frames[0] == wire.STORE:
            self.stores.append(body)
            if self.home.pending.expects(body[1]):
                self._remember(body, frames[2:])
        elif frames[0] == wire.GATHER:
            self.gathers.append(body)
        elif frames[0] == wire.MOVED:
            self.moved.append(body)
        self.home.handle(frames, self.node.now, self.wall_ms)
        self.work()

    def _remember(self, body: list[Any], batches: list[bytes]) -> None:
        _, _, _, producer, groups, _, _, _, _, pasts, file, *stages = body
        if stages and stages[0]:
            return  # what is staged has no position
        assert len(groups) == len(batches)
        rows = []
        for (lanes, count, origins), batch in zip(groups, batches, strict=True):
            opened = wire.unpack(batch)
            assert lanes
            assert len(opened) == count
            rows += [(row, lanes, origins and origins[i]) for i, row in enumerate(opened)]
        assert len(rows) == len({row[0] for row, _, _ in rows}), "a row is in one group of a STORE"
        given: dict[int, int] = {}
        entries: list[tuple[int, int | None, int]] = []
        for row, lanes, origin in sorted(rows, key=lambda one: one[0][0]):
            size = len(row[5]) + len(row[4] or b"") + wire.SPOOL_OVERHEAD_BYTES
            owner, sequence = (producer[0], producer[1] + row[0]) if producer else (None, 0)
            past = (pasts or {}).get(row[0])
            for lane_id in lanes:
                held = self.home.lanes.get(lane_id)
                if held is None:
                    continue
                position = given[lane_id] = given.get(lane_id, held.tail) + 1
                if owner is None or not owner & wire.INTERNAL_PRODUCER:
                    entries.append((lane_id, owner, sequence))
                self.disk.sent.setdefault(lane_id, {})[position] = Stored(
                    row[0], row[1], row[2], row[5], size, owner, sequence, origin, past, file
                )

        self._unlogged.append((body[1], entries))

    def _log(self, stored: int) -> None:
        """Take note that everything up to a STORE is durable."""
        while self._unlogged and self._unlogged[0][0] <= stored:
            self.disk.log += self._unlogged.pop(0)[1]

    def work(self) -> float | None:
        """Do what is due, and write unless writes are held; gives when more is due."""
        for _ in range(1000):
            due, is_idle = self.tick()
            # What is held is STOREs: other writes go on while there are none.
            is_held = not self.commits and self.waiting
            write = None if is_held else self.home.take_write()
            if write is not None:
                self.disk.spool.commit(write[1])
                self.home.written(write[0], self.node.now, self.wall_ms)
                self._log(self.disk.stored)
            elif due is None or due > self.node.now or (is_held and is_idle):
                return due
        raise AssertionError("it does not come to an end")

    def tick(self) -> tuple[float | None, bool]:
        """Do what is due; gives when more is due, and whether there was nothing to say."""
        due = self.home.tick(self.node.now, self.wall_ms)
        said = self.home.take_frames()
        for frames in said:
            if frames[0] in self.holds or self._held:
                self._held.append(frames)
            else:
                self.node.from_home(self.index, self.incarnation, frames)
        return due, not said

    def report(self, *stages: int) -> None:
        """Let go out what waits; a HOME as if there were some more stages."""
        self.holds = ()
        held, self._held = self._held, []
        for frames in held:
            if frames[0] == wire.HOME and stages:
                body = wire.unpack(frames[1])
                body[5][-1] += stages
                frames[1] = wire.pack(body)
            self.node.from_home(self.index, self.incarnation, frames)

    def commit(self) -> None:
        """Write what waits, and say so."""
        before, self.commits = self.commits, True
        self.work()
        self.commits = before

    def part(self, lane_id: int) -> None:
        """Part with a lane, as a STORE would have it."""
        self.home.parts.parting.begin([lane_id], self.node.now, self.wall_ms)
        self.work()

    def commit_silently(self) -> None:
        """Write what waits; the process dies before it knows."""
        write = self.home.take_write()
        if write is not None:
            self.disk.spool.commit(write[1])
            self._log(self.home.pending.received)

    def consume(self, lane_id: int, count: int) -> None:
        """The oldest messages of a lane go."""
        held = self.home.lanes.get(lane_id)
        assert held is not None
        live = [
            segment.first + i
            for segment in held.lane.segments
            for i, state in enumerate(segment.state)
            if state
        ]
        if live[:count]:
            arguments = {"lane_id": lane_id, "positions": live[:count]}
            self.home.request("endpoint.delete_messages", arguments, self.node.now, self.wall_ms)
            self.tell(lane_id)

    def tell(self, *lane_ids: int) -> None:
        """Tell the router at once how things are."""
        self.work()
        lanes = self.home.lanes
        lanes.changed.update((held, None) for held in map(lanes.get, lane_ids) if held is not None)
        lanes.is_urgent = True
        self.work()

    def send(self, operation: bytes, body: list[Any], *batches: bytes) -> None:
        """Say something that the home has not come to say by itself."""
        self.node.from_home(self.index, self.incarnation, [operation, wire.pack(body), *batches])

    def note_moving(self, lane_id: int, moving: tuple[int, int, int] | None) -> None:
        """Let a lane have something on its way to another endpoint: first sequence, messages, bytes."""
        self.disk.moving.pop(lane_id, None)
        if moving is not None:
            self.disk.moving[lane_id] = moving
        held = self.home.lanes.get(lane_id)
        assert held is not None
        held.moving = moving
        self.home.lanes.changed[held] = None

    def tell_space(self, size: int) -> None:
        """Let the disk have so many bytes for what is under way."""
        self.disk.spool.room_bytes = size
        if size and self.home.stats()["spool_full"]:
            self.node.now += FULL_RETRY_S
        self.home.writing.is_urgent = True
        self.tell(*[held.lane_id for held in self.home.lanes])
        self.node.settle()

    def ask(self, operation: str, **arguments: Any) -> Any:
        value = self.home.request(operation, arguments, self.node.now, self.wall_ms)
        self.work()
        while isinstance(value, Answer):
            (answer,) = [one for one in self.home.operations.take_answers() if one is value]
            value = answer.value
        return value
