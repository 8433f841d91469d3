"""MOVE: messages that a home publishes itself, to a dead message queue, another queue, another partition.

Every move is a publish: by an internal producer, one for each lane, whose sequences the source
home gives and keeps until it is answered. So a move is exactly once like any other: what the target has of it is
gathered before the first MOVE of a lane that a source sends in its life, and judges what comes again. Targets are
named, so nothing is matched. Admission is the router's, as ever; what is refused stays with the source, which is told
so (MOVED), and that decides what becomes of it. Between the partitions of one queue no quota is asked: it holds them
already.

One MOVE of a lane is under way at a time.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, Final

from angarium import errors, wire
from angarium_server.frames.frame import MalformedFrameError, read
from angarium_server.frames.homes import MovedFrame, StoreProducer
from router.admission.judging import CopyTally, MoveTally, judge, lane_of
from router.admission.streams import Store, add_group, tell_nacks
from router.admission.transits import Amount
from router.admission.verdict import Verdict
from router.ground.ground import nothing
from router.matching.rows import decode_rows, encode_rows, partition_hash, salt_of, spool_bytes
from router.sessions.producer import Memory, Nack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from angarium_server.frames.homes import MoveFrame
    from router.admission.streams import Streams
    from router.admission.usage import Pool, Usage
    from router.ground.ground import Counters
    from router.guaranteed.endpoints import Endpoint, Endpoints
    from router.matching.rows import Row
    from router.matching.shards import Shard, Shards
    from router.publishers.gathering import Gathering
    from router.sessions.producer import Record

#: A target of this sort is another partition of the same endpoint.
LANE_HOME: Final = "lane-home"
#: Rows of one MOVE at most; the nacks of so many are remembered at the lanes.
WINDOW: Final = 255


class Move:
    """One MOVE under way."""

    __slots__ = (
        "batch",
        "file",
        "first",
        "home",
        "homes",
        "incarnation",
        "lane_id",
        "nacks",
        "origins",
        "pasts",
        "publishers",
        "rows",
        "target",
        "upto",
    )

    def __init__(self, shard: Shard, frame: MoveFrame, batch: bytes) -> None:
        self.lane_id, self.first, self.target, self.file = frame.lane, frame.first, frame.target, frame.file
        self.origins, self.publishers, self.pasts = frame.origins, frame.publishers, frame.pasts
        self.batch = batch
        self.rows: list[Row] = read(decode_rows, [wire.MOVE, batch])
        if not self.rows:
            raise MalformedFrameError("a MOVE has no rows")
        #: The home that asked, and its incarnation: another one asks again.
        self.home = shard.index
        self.incarnation = shard.incarnation
        self.upto = self.first + self.rows[-1].index
        self.nacks: list[Nack] = []
        #: STOREs of it that are not covered by what their home reported.
        self.homes = 0


class _Line:
    """The moves of one lane in the life of its home."""

    __slots__ = ("memory", "move")

    def __init__(self) -> None:
        #: What was known of its internal producer; None until that was gathered.
        self.memory: Memory | None = None
        #: What is under way.
        self.move: Move | None = None


class Moves:
    """All moves; a listener of `Shards`."""

    def __init__(
        self,
        shards: Shards,
        usage: Usage,
        endpoints: Endpoints,
        streams: Streams,
        gathering: Gathering,
        counters: Counters,
        wall_ms: Callable[[float], int],
    ) -> None:
        self._shards = shards
        self._usage = usage
        self._endpoints = endpoints
        self._streams = streams
        self._gathering = gathering
        self._counters = counters
        self._wall_ms = wall_ms
        #: Home -> lane id -> its line; those that moved something since the home came.
        self._lines: dict[int, dict[int, _Line]] = {}
        #: Moves that wait until all homes have reported.
        self._held: list[Move] = []

    def shard_lost(self, shard: Shard) -> None:
        """A worker died: its successor asks again, and what its predecessor asked for is not answered."""
        self._lines.pop(shard.index, None)
        self._held = [move for move in self._held if move.home != shard.index]

    def endpoint_gone(self, endpoint: Endpoint) -> None:
        """Its lanes move nothing any more: the homes forget what they have of the producers of those that did."""
        gone = dict.fromkeys(lane.lane_id for lane in endpoint.all_lanes())
        for lines in self._lines.values():
            for lane_id in gone:
                if lines.pop(lane_id, None) is not None:
                    self._gathering.ask(wire.INTERNAL_PRODUCER | lane_id, nothing, forget=True)
        self._held = [move for move in self._held if move.lane_id not in gone]

    def asked(self, frame: MoveFrame, shard: Shard, batches: list[bytes], now: float) -> None:
        """A home wants rows moved."""
        if len(batches) != 1:
            raise MalformedFrameError("a MOVE has one batch")
        move = Move(shard, frame, batches[0])
        if not self._comes_from_home(move):
            return
        lines = self._lines.setdefault(shard.index, {})
        line = lines.get(move.lane_id)
        if line is None or line.move is not None:  # with one under way it starts over
            self._held = [one for one in self._held if line is None or one is not line.move]
            line = lines[move.lane_id] = _Line()
        line.move = move
        if move.file is not None:
            self._usage.transits.asked(move.lane_id, move.first, _amount(move.rows))
        if not self._streams.all_reported:
            self._held.append(move)
        else:
            self._begin(line, move, now)

    def _comes_from_home(self, move: Move) -> bool:
        """Tell whether a move is not one of a home that has parted with its lane, whose successor has asked again.

        What a home before has asked for and nobody has judged is left to that one: both would be judged by what the
        target has now.
        """
        lane_id = move.lane_id
        source = self._endpoints.lane(lane_id)
        if (
            source is not None
            and source[1].home != move.home
            and lane_id in self._lines.get(source[1].home, {})
        ):
            return False
        for home, lines in self._lines.items():
            before = lines.pop(lane_id, None) if home != move.home else None
            if before is not None:
                self._held = [one for one in self._held if one is not before.move]
        return True

    def homes_reported(self, now: float) -> None:
        """All homes have told what they hold: moves that waited for it go on."""
        held, self._held = self._held, []
        for move in held:
            line = self._line_of(move)
            if line is not None:
                self._begin(line, move, now)

    def _line_of(self, move: Move) -> _Line | None:
        """Give the line of a move, unless its home asked again."""
        line = self._lines.get(move.home, {}).get(move.lane_id)
        return line if line is not None and line.move is move else None

    def _begin(self, line: _Line, move: Move, now: float) -> None:
        if line.memory is not None:
            self._judge(line.memory, move, now)
            return
        number = wire.INTERNAL_PRODUCER | move.lane_id
        self._gathering.ask(number, lambda records, then: self._gathered(move, records, then))

    def _gathered(self, move: Move, records: dict[int, Record], now: float) -> None:
        line = self._line_of(move)
        if line is not None:
            line.memory = Memory(wire.INTERNAL_PRODUCER | move.lane_id, WINDOW, records)
            self._judge(line.memory, move, now)

    # -- judging ---------------------------------------------------------------------------------------------

    def _judge(self, memory: Memory, move: Move, now: float) -> None:
        target = self._target(move)
        stores: dict[int, Store] = {}
        if target is None:
            verdict = _refuse(move, move.rows, errors.UNKNOWN_ENDPOINT)
        elif move.target[0] == LANE_HOME:
            verdict, stores = self._rehome(memory, move, target)
        else:
            verdict = self._admit(memory, move, target)
            stores = self._stores(move, verdict)
        move.nacks = verdict.nacks
        for account, reason in verdict.discards:
            self._usage.refused(account, reason)
        self._counters.totals["moved_messages"] += len(move.rows) - len(move.nacks)
        if target is not None:
            self._count_once(move, target)
        self._hand_on(memory, move, stores, verdict, now)

    def _pools(self, move: Move, target: Endpoint) -> list[Pool]:
        """Give the sums to which a move adds nothing, because all of it is in them."""
        transit = self._usage.transits.find(move.lane_id, move.first)
        source = self._endpoints.lane(move.lane_id)
        if move.file is None or transit is None or not transit.is_whole or source is None:
            return []
        return self._usage.shared_pools(self._usage.account(source[0]), self._usage.account(target))

    def _count_once(self, move: Move, target: Endpoint) -> None:
        """What is admitted counts where it goes to, and no more where it is."""
        transit = self._usage.transits.find(move.lane_id, move.first)
        source = self._endpoints.lane(move.lane_id)
        if move.file is not None and transit is not None and source is not None:
            accounts = self._usage.account(source[0]), self._usage.account(target)
            refused = dict.fromkeys(nack.sequence for nack in move.nacks)
            left = _amount(row for row in move.rows if move.first + row.index in refused)
            transit.judged(*accounts, self._usage.shared_pools(*accounts), left)

    def _target(self, move: Move) -> Endpoint | None:
        if move.target[0] == LANE_HOME:
            return self._endpoints.by_id.get(int(move.target[1]))
        kind, vpn_name, name = map(str, move.target)
        return self._endpoints.find(vpn_name, kind, name)

    def _admit(self, memory: Memory, move: Move, target: Endpoint) -> Verdict:
        tally = CopyTally(self._usage)
        if move.file is not None:
            tally = MoveTally(self._usage, move.file, self._pools(move, target))
        verdict = judge(tally, memory, move.first, ((row, (target,)) for row in move.rows))
        assert verdict.waits_from is None, "with one target nothing is held in part"
        return verdict

    def _stores(self, move: Move, verdict: Verdict) -> dict[int, Store]:
        stores: dict[int, Store] = {}
        for targets, rows in verdict.stores.items():
            self._add(stores, move, targets, rows)
        return stores

    def _add(self, stores: dict[int, Store], move: Move, targets: Any, rows: list[Row]) -> None:
        origins = None
        if move.origins is not None:
            wanted = dict.fromkeys(row.index for row in rows)
            numbered = zip(move.rows, move.origins, strict=True)
            origins = [origin for row, origin in numbered if row.index in wanted]
        add_group(stores, targets, encode_rows(rows), len(rows), spool_bytes(rows), origins)

    def _rehome(self, memory: Memory, move: Move, target: Endpoint) -> tuple[Verdict, dict[int, Store]]:
        """Give rows of a partition that is closed to the others: the endpoint holds them already.

        What one of these has from before is never refused: the source would ask for it again with another sequence.
        """
        account = self._usage.account(target)
        groups: dict[Any, list[Row]] = {}
        for row in move.rows:
            sequence = move.first + row.index
            hashed = partition_hash(row, salt_of(memory.id, sequence))
            if not memory.is_held(sequence, target.id, hashed):
                groups.setdefault(lane_of(target, hashed), []).append(row)
        code = self._obstacle(move, target)
        if groups and code:
            missing = {row.index for rows in groups.values() for row in rows}
            return _refuse(move, [row for row in move.rows if row.index in missing], code), {}
        stores: dict[int, Store] = {}
        for lane, mine in groups.items():
            self._add(stores, move, [(account, lane)], mine)
        return Verdict(), stores

    def _obstacle(self, move: Move, target: Endpoint) -> int:
        """Give the code of what keeps rows from another partition; 0 for nothing."""
        transit = self._usage.transits.find(move.lane_id, move.first)
        if (
            move.file is None
            or transit is None
            or not transit.is_whole
            or not self._usage.files.fits(move.file)
        ):
            return errors.SPOOL_OVER_QUOTA
        is_full = any(lane.home in self._usage.full_homes for lane in target.lanes)
        return errors.DISK_FULL if is_full else 0

    def _hand_on(
        self,
        memory: Memory,
        move: Move,
        stores: dict[int, Store],
        verdict: Verdict,
        now: float,
    ) -> None:
        memory.take(len(move.rows), move.upto, [(nack.sequence, nack.code) for nack in move.nacks])
        tell_nacks(stores, verdict.touched, memory)
        head = StoreProducer(memory.id, move.first)
        self._streams.store(
            stores,
            head,
            self._wall_ms(now),
            move,
            relaxed=False,
            publisher=move.publishers,
            pasts=move.pasts,
            file=move.file,
        )
        if not move.homes:
            self.settled(move)

    def again(self, move: Move) -> None:
        """A home left with rows of a move on their way: judge it again, by what the others know then."""
        line = self._line_of(move)
        if line is not None:
            fresh = copy(move)  # of the other one STOREs may be on their way
            fresh.homes, fresh.nacks = 0, []
            transit = self._usage.transits.find(move.lane_id, move.first)
            if transit is not None:
                transit.end()
            line.memory, line.move = None, fresh
            self._held.append(fresh)

    def left(self, count: int) -> None:
        """Only the workers below this index are homes now."""
        for index in [index for index in self._lines if index >= count]:
            del self._lines[index]
        self._held = [move for move in self._held if move.home < count]

    def settled(self, move: Move) -> None:
        """The targets have what they took: tell the source (MOVED)."""
        line = self._line_of(move)
        if line is None:
            return
        line.move = None
        shard = self._shards.shards[move.home]
        if shard.incarnation != move.incarnation or not self._streams.is_up(move.home):
            return
        refused = [(nack.sequence, nack.code) for nack in move.nacks]
        frame = MovedFrame(self._shards.incarnation, move.lane_id, move.first, move.upto, refused)
        self._streams.send(move.home, frame.frames())

    def __len__(self) -> int:
        return sum(line.move is not None for lines in self._lines.values() for line in lines.values())

    def validate(self) -> None:
        """Check that what waits is under way."""
        waiting = [line.move for lines in self._lines.values() for line in lines.values()]
        assert all(move in waiting for move in self._held)


def _refuse(move: Move, rows: Iterable[Row], code: int) -> Verdict:
    """There is no such endpoint, or no room for rows."""
    verdict = Verdict()
    for row in rows:
        verdict.refuse(row, Nack(move.first + row.index, code, ""), ())
    return verdict


def _amount(rows: Iterable[Row]) -> Amount:
    sizes = [row.message_bytes + wire.SPOOL_OVERHEAD_BYTES for row in rows]
    return Amount(len(sizes), sum(sizes))
