"""A home in tests, driven through frames on a simulated disk, as a router and a shell would drive it.

The driver keeps the rules of the protocol: numbers rise, everything a home says is checked for its shape, and
what it may be asked at any time (totals, states on disk) is compared with what it told.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from angarium import wire
from node.home.home import Home, HomeLimits
from storage.spool import SpoolFullError
from tests.simulation.simulated_disk import SimulatedDisk

if TYPE_CHECKING:
    from node.home.lanes.others import Neighbours

ROUTER = 7
INCARNATION = 40
LANE = 5 << wire.LANE_BITS
OTHER = 6 << wire.LANE_BITS
THIRD = 9 << wire.LANE_BITS
DMQ = 8 << wire.LANE_BITS
PRODUCER = 11

Row = list[Any]

_encode = msgspec.msgpack.Encoder().encode


def row_of(index: int, payload: bytes = b"x", *, flags: int = 1, meta: Any = None, topic: str = "a/b") -> Row:
    return [index, topic, flags, meta, None, payload]


def rows_of(count: int, first: int = 0, **kwargs: Any) -> list[Row]:
    return [row_of(first + i, b"m%d" % (first + i), **kwargs) for i in range(count)]


@dataclass
class Delivered:
    """Rows that came for a flow: position -> row, in order, and what was said of them."""

    rows: dict[int, Row] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
    stored_ms: dict[int, int] = field(default_factory=dict)
    origins: dict[int, Any] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    bytes: int = 0


class DrivenHome:
    """One worker's home, its disk, and the router at the other end."""

    def __init__(
        self,
        disk: SimulatedDisk | None = None,
        limits: HomeLimits | None = None,
        neighbours: Neighbours | None = None,
        allowance: int = 1_000_000,
    ) -> None:
        #: What the router lets it have out as soon as HOME came.
        self.allowance = allowance
        self.disk = disk or SimulatedDisk()
        #: How many the router has.
        self.workers = 1
        self.limits = limits
        self.neighbours = neighbours
        self.now = 100.0
        self.wall_ms = 1_700_000_000_000
        self.incarnation = INCARNATION - 1
        self.router = 0
        self.number = 0
        self.lanes_number = 0
        self.references = 0
        self.flow_number = 0
        self.out: tuple[int, list[Any]] | None = None
        self.boot()

    # -- process -----------------------------------------------------------------------------------------

    def boot(self) -> None:
        """Start a process on the disk."""
        self.incarnation += 1
        self.home = Home(self.disk, self.incarnation, self.limits, self.neighbours)
        self.progress = list(self.home.recover(self.now, self.wall_ms))
        self.out = None
        self.clear()

    def clear(self) -> None:
        self.confirmed: list[int] = []
        self.homes: list[list[Any]] = []
        self.committed: list[list[Any]] = []
        self.events: list[list[Any]] = []
        self.records: dict[int, dict[int, tuple[int, dict[int, int]]]] = {}
        #: Reference of a GATHER -> lane -> number of partitions -> last sequence.
        self.lasts: dict[int, dict[int, dict[int, int]]] = {}
        #: Reference of a LEASE -> code and value.
        self.leased: dict[int, tuple[int, Any]] = {}
        self.moves: list[tuple[list[Any], list[Row]]] = []
        self.delivered: dict[int, Delivered] = {}
        self.totals: dict[int, list[int]] = {}
        #: Messages and spool bytes that came into each lane, and that left it.
        self.traffic: dict[int, tuple[int, int, int, int]] = {}
        self.files: set[int] = set()
        self.disk_bytes = 0
        self.told: list[dict[str, Any]] = []
        self.accepted = self.stored = 0
        #: The allowance in force, and what would be out without it, as COMMITTED says.
        self.allowed = self.wanted = 0
        #: Whether the disk has no room for anything new, as it says too.
        self.lacks_room = False

    def kill(self) -> None:
        """End the process at once; what is being written is lost."""
        self.boot()

    def restart(self) -> None:
        """End the process in order, and start the next one."""
        self.home.stop(self.now, self.wall_ms)
        for _ in range(5):
            if self.home.is_stopped:
                break
            self.write()
        assert self.home.is_stopped
        self.home.validate()
        self.boot()

    # -- router -> home ----------------------------------------------------------------------------------

    def send(self, operation: bytes, *header: Any, batches: tuple[bytes, ...] = ()) -> None:
        self.home.handle([operation, _encode(header), *batches], self.now, self.wall_ms)

    def start(
        self,
        router: int | None = None,
        lanes: dict[int, dict[str, Any]] | None = None,
        deleted: tuple[int, ...] = (),
    ) -> None:
        """START and the complete LANES, with what was deleted, until HOME came."""
        new = router is not None and router != self.router
        self.router = router or self.router or ROUTER
        if new:
            self.number = 0
        self.send(wire.START, self.router, 1, bytes(1023) + bytes([self.workers - 1]))
        if lanes is not None:
            self.lanes(lanes, *deleted, complete=True)
            self.settle_down()
            assert self.homes, "HOME came"

    def lanes(
        self,
        puts: dict[int, dict[str, Any]],
        *deletes: int,
        complete: bool = False,
        generation: int = 1,
        leaving: tuple[int, ...] = (),
        elsewhere: tuple[int, ...] = (),
    ) -> int:
        self.lanes_number += 1
        entries = [[lane_id, generation, settings] for lane_id, settings in puts.items()]
        self.send(
            wire.LANES, self.router, self.lanes_number, complete, entries, list(deletes), leaving, elsewhere
        )
        return self.lanes_number

    def store(
        self,
        *groups: tuple[list[int], list[Row]],
        relaxed: bool = False,
        producer: tuple[int, int] | None = (PRODUCER, 1),
        refused: Any = (),
        origins: list[Any] | None = None,
        pasts: dict[int, Any] | None = None,
        counts: Any = (),
        number: int | None = None,
        router: int | None = None,
        publisher: int = 0,
        file: int = 1,
        stage: int = 0,
        release: tuple[int, ...] = (),
        drop: tuple[int, ...] = (),
        parts: tuple[int, ...] = (),
    ) -> int:
        if number is None:
            self.number += 1
            number = self.number
        heads = [[lanes, len(rows), origins] for lanes, rows in groups]
        batches = tuple(_encode(rows) for _, rows in groups)
        head = (router or self.router, number, relaxed, producer, heads, list(refused), self.wall_ms)
        stages = (stage, release, drop, parts) if stage or release or drop or parts else ()
        self.send(wire.STORE, *head, publisher, list(counts), pasts, file, *stages, batches=batches)
        return number

    def decide(self, *, release: tuple[int, ...] = (), drop: tuple[int, ...] = ()) -> int:
        """Release stages, and drop others."""
        return self.store(producer=None, release=release, drop=drop)

    def bind(
        self,
        lane_id: int = LANE,
        *,
        browse: bool = False,
        selector: str | None = None,
        messages: int = 1_000_000,
        size: int = 1 << 40,
        flow: int | None = None,
        **options: Any,
    ) -> int:
        if flow is None:
            self.flow_number += 1
            flow = self.flow_number
        self.order(flow, "bind", lane_id, browse, selector, messages, size, options)
        return flow

    def unbind(self, flow: int, hand_off_ms: int | None = None) -> None:
        self.order(flow, "unbind", hand_off_ms)

    def credit(self, flow: int, messages: int, size: int = 1 << 40) -> None:
        self.order(flow, "credit", messages, size)

    def settle(self, flow: int, *ranges: tuple[int, int], outcome: int = wire.OUTCOME_ACCEPTED) -> None:
        self.order(flow, "settle", outcome, list(ranges))

    def order(self, flow: int, *verb: Any) -> None:
        self.send(wire.FLOW, self.router, [[flow, verb]])

    def allow(self, messages: int) -> None:
        self.send(wire.ALLOWANCE, self.router, messages)

    def gather(self, producer: int = PRODUCER, *, forget: bool = False) -> int:
        self.references += 1
        self.send(wire.GATHER, self.router, self.references, producer, forget)
        return self.references

    def lease(self, verb: str, *arguments: Any, lane_id: int = LANE) -> int:
        """Ask a lane for a reader group; `leased` gets the answer."""
        self.references += 1
        self.send(wire.LEASE, self.router, self.references, lane_id, [verb, *arguments])
        return self.references

    def leased_at_once(self, verb: str, *arguments: Any, lane_id: int = LANE) -> Any:
        """Ask a lane and give the value that it answers."""
        reference = self.lease(verb, *arguments, lane_id=lane_id)
        self.settle_down()
        code, value = self.leased.pop(reference)
        assert code == 0, (code, value)
        return value

    def moved(self, lane_id: int, first: int, upto: int, *refused: tuple[int, int]) -> None:
        self.send(wire.MOVED, self.router, lane_id, first, upto, list(refused))

    def ask(self, operation: str, **arguments: Any) -> Any:
        """Ask as an operator; gives the answer when it is known."""
        answer = self.home.request(operation, arguments, self.now, self.wall_ms)
        if not hasattr(answer, "is_known"):
            return answer
        for _ in range(200):
            if answer in self.home.operations.take_answers() or answer.is_known:
                break
            self.settle_down()
        assert answer.is_known, "the answer came"
        if answer.error is not None:
            raise answer.error
        return answer.value

    # -- the loop ----------------------------------------------------------------------------------------

    def tick(self) -> float | None:
        due = self.home.tick(self.now, self.wall_ms)
        self.read()
        return due

    def begin_write(self) -> bool:
        """Hand the next group to the disk, without its end."""
        if self.out is None:
            self.out = self.home.take_write()  # type: ignore[assignment]
        return self.out is not None

    def end_write(self) -> None:
        assert self.out is not None
        number, changes = self.out
        self.out = None
        try:
            self.disk.commit(changes)
        except SpoolFullError as error:
            self.home.failed(number, str(error), self.now)
        else:
            self.home.written(number, self.now, self.wall_ms)
        self.read()

    def write(self) -> bool:
        """Write one group if there is one."""
        if not self.begin_write():
            return False
        self.end_write()
        return True

    def settle_down(self, seconds: float = 0.0) -> None:
        """Let everything happen that happens within so many seconds."""
        until = self.now + seconds
        for _ in range(10_000):
            due = self.tick()
            if self.write():
                continue
            if due is None or due > until:
                break
            self.pass_time(max(due - self.now, 0.001))
        else:
            raise AssertionError("it does not settle")
        self.pass_time(max(until - self.now, 0.0))
        self.home.validate()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.wall_ms += int(seconds * 1000)

    # -- home -> router ----------------------------------------------------------------------------------

    def read(self) -> None:
        for frames in self.home.take_frames():
            operation, header = frames[0], wire.unpack(frames[1])
            assert header[0] == self.incarnation
            if operation == wire.FLOW_MESSAGES:
                self._read_messages(header, frames[2:])
            elif operation == wire.COMMITTED:
                self._read_committed(header)
            elif operation == wire.HOME:
                self._read_home(header)
            elif operation == wire.LANES_CONFIRM:
                self.confirmed.append(header[1])
            elif operation == wire.FLOW_EVENT:
                self.events += header[1]
            elif operation == wire.RECORDS:
                self._read_records(header)
            elif operation == wire.LEASED:
                self.leased[header[1]] = (
                    header[2],
                    (header[3], *map(wire.unpack, frames[2:])) if frames[2:] else header[3],
                )
            else:
                assert operation == wire.MOVE
                assert len(wire.unpack(frames[2])) == header[4]
                self.moves.append((header[1:], wire.unpack(frames[2])))
        self.told += self.home.take_events()

    def _read_messages(self, header: list[Any], batches: list[bytes]) -> None:
        _, flow, parts, size = header
        assert len(parts) == len(batches)
        seen = self.delivered.setdefault(flow, Delivered())
        total = 0
        for (_, count, runs, counts, stored_ms, origins), batch in zip(parts, batches, strict=True):
            rows = wire.unpack(batch)
            positions = [position + k for position, n in runs for k in range(n)]
            assert len(rows) == len(positions) == count
            for i, (position, row) in enumerate(zip(positions, rows, strict=True)):
                seen.rows[position] = row
                seen.order.append(position)
                seen.counts[position] = 0 if counts is None else counts[i]
                seen.stored_ms[position] = stored_ms[i] if isinstance(stored_ms, list) else stored_ms
                seen.origins[position] = None if origins is None else origins[i]
                total += len(row[5]) + len(row[4] or b"") + wire.SPOOL_OVERHEAD_BYTES
        assert size == total
        seen.bytes += size

    def _read_committed(self, header: list[Any]) -> None:
        _, accepted, stored, totals, spool = header
        assert accepted >= stored
        assert accepted >= self.accepted
        assert stored >= self.stored
        self.accepted, self.stored = accepted, stored
        self._read_spool(spool)
        self.committed.append(header[1:])
        self.totals.update((one[0], _told(one)) for one in totals)
        self.traffic.update((one[0], tuple(one[8])) for one in totals)

    def _read_home(self, header: list[Any]) -> None:
        _, router, number, stored, totals, spool = header
        self.files = set()
        self._read_spool(spool)
        assert (router, number) == (self.router, self.lanes_number)
        self.homes.append(header[1:])
        self.accepted = self.stored = stored
        self.totals = {one[0]: _told(one) for one in totals}
        self.traffic = {one[0]: tuple(one[8]) for one in totals}
        self.allow(self.allowance)

    def _read_spool(self, spool: list[Any]) -> None:
        used, freed, _, self.disk_bytes, *_ = spool
        self.allowed, self.wanted = spool[8:10]
        self.lacks_room = not spool[11]
        self.files |= {first + i for first, count in used for i in range(count)}
        self.files -= {first + i for first, count in freed for i in range(count)}

    def _read_records(self, header: list[Any]) -> None:
        _, reference, records = header
        self.lasts[reference] = {lane: dict(lasts) for lane, lasts, _ in records}
        self.records[reference] = {
            lane: (max((last for _, last in lasts), default=0), dict(refused))
            for lane, lasts, refused in records
        }


def _told(totals: list[Any]) -> list[Any]:
    """Give what is said of a lane, without its traffic and what is as usual at its end (complete, not leased)."""
    figures = totals[1:8]
    for usual in ("", None, True):
        if len(figures) == 4 or figures[-1] != usual:
            break
        figures.pop()
    return figures


def settings_of(name: str = "q", **changed: Any) -> dict[str, Any]:
    return {"name": name, "access_type": "non-exclusive", **changed}


def started(limits: HomeLimits | None = None, *, allowance: int = 1_000_000) -> DrivenHome:
    """A home with two queues, ready for STORE."""
    driven = DrivenHome(limits=limits, allowance=allowance)
    driven.start(ROUTER, {LANE: settings_of("q"), OTHER: settings_of("other")})
    return driven
