"""The numbered streams to the homes: what was admitted, in order, until it is on disk there.

A STORE is numbered per home, from 1 in the life of a router; the home tells up to which number it has accepted and
stored (COMMITTED), and when it comes (back), up to which it had stored (HOME). What is not stored is kept here and sent
again then, so that nothing admitted depends on one process. A home that is down is waited for:
what waits is bounded by the windows of producers, by the limit of promoted copies, and by one MOVE per lane.

    number   1 2 3 4 5 6 7 8
    stored -----^   |          1..3 are on disk: forgotten
    accepted -------^          4, 5 are relaxed: acknowledged, and kept until they are on disk
                      6 7 8    on their way: they count as in flight

Totals in COMMITTED and HOME cover exactly what is accepted; what is above counts as in flight (`usage`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from angarium import wire
from angarium_server.frames.frame import encode
from angarium_server.frames.homes import LanePartitions, LaneRefusals, RowGroup, StoreFrame
from router.admission.usage import numbers_of
from router.ground.ground import nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from angarium_server.frames.homes import CommittedFrame, HomeFrame, Origin, Past, StoreProducer
    from router.admission.usage import Account, Usage
    from router.guaranteed.endpoints import LaneUsage
    from router.matching.shards import Shard, Shards
    from router.sessions.producer import Memory


class Charge(NamedTuple):
    """What one STORE adds to one lane."""

    account: Account
    lane: LaneUsage
    messages: int
    bytes: int
    #: Of the endpoint when it was admitted; a lane of another one is empty (its topic or selector changed).
    generation: int

    @property
    def is_stale(self) -> bool:
        """Tell whether there is nothing to add to any more."""
        return self.account.is_gone or self.generation != self.account.endpoint.generation


class Store:
    """What one home is to store of one round."""

    __slots__ = ("batches", "charges", "counts", "groups", "packed_bytes", "refused", "size")

    def __init__(self) -> None:
        #: Rows and their lanes; in the same order, their batches.
        self.groups: list[RowGroup] = []
        self.batches: list[bytes] = []
        self.refused: list[LaneRefusals] = []
        self.charges: list[Charge] = []
        #: Of lanes of endpoints that have several partitions.
        self.counts: list[LanePartitions] = []
        #: Spool bytes; a message for several lanes counts once.
        self.size = 0
        #: Bytes of the batches.
        self.packed_bytes = 0


class _Sent:
    """A STORE that is not known to be on disk."""

    __slots__ = (
        "charges",
        "file",
        "header",
        "number",
        "packed_bytes",
        "pending",
        "promoted",
        "size",
        "store",
    )

    def __init__(
        self, header: StoreFrame, store: Store, file: int, pending: Any | None, *, promoted: bool
    ) -> None:
        self.header = header
        #: The spool file of its rows, of which it is a user; 0 if it has none.
        self.file = file
        self.number = header.number
        self.store = store
        self.charges = store.charges
        self.size = store.size
        self.packed_bytes = store.packed_bytes
        #: Whose acknowledgement waits for it; None once it was counted, or if nobody waits.
        self.pending = pending
        #: Whether these are promoted copies, which have a limit of their own.
        self.promoted = promoted

    def frames(self) -> list[bytes]:
        """Give the frames to send."""
        return [wire.STORE, encode(self.header), *self.store.batches]

    def leave_out_stale(self) -> list[Charge]:
        """Leave out lanes that are gone or were emptied since; gives what they would have got."""
        stale = [charge for charge in self.charges if charge.is_stale]
        if stale:
            store = self.store
            lanes = dict.fromkeys(charge.lane.lane_id for charge in stale)
            self.charges = [charge for charge in self.charges if charge.lane.lane_id not in lanes]
            kept = []
            for group, batch in zip(store.groups, store.batches, strict=True):
                left = [lane_id for lane_id in group.lanes if lane_id not in lanes]
                if left:
                    kept.append((RowGroup(left, group.rows, group.origins), batch))
            store.groups[:] = [group for group, _ in kept]
            store.batches[:] = [batch for _, batch in kept]
            store.refused[:] = [entry for entry in store.refused if entry.lane not in lanes]
        return stale


class _Stream:
    """The stream to one home."""

    __slots__ = (
        "accepted",
        "is_reported",
        "is_up",
        "kept",
        "number",
        "on_their_way",
        "packed_bytes",
        "promoted_bytes",
    )

    def __init__(self) -> None:
        #: The number of the newest STORE.
        self.number = 0
        #: True between HOME and the death of the worker.
        self.is_up = False
        #: True once it told what it holds.
        self.is_reported = False
        #: Not accepted yet, oldest first; consecutive numbers that end with `number`.
        self.on_their_way: deque[_Sent] = deque()
        #: Bytes of their batches.
        self.packed_bytes = 0
        #: Accepted and not stored, oldest first.
        self.kept: deque[_Sent] = deque()
        #: Spool bytes of promoted copies in both.
        self.promoted_bytes = 0
        self.accepted = 0


class Streams:
    """The streams to all homes; a listener of `Shards`."""

    def __init__(self, shards: Shards, usage: Usage) -> None:
        """Begin with no home known."""
        self._shards = shards
        self.usage = usage
        #: What was pending and all of whose STOREs are accepted by now.
        self._settled: list[Any] = []
        #: By index of the worker.
        self._streams: dict[int, _Stream] = {}
        #: Called with a lane and the home that has parted with it, on its disk, or is none any more.
        self.on_parted: Callable[[int, int], None] = nothing
        #: Called with a lane and the home that has the STORE that names it on disk, and died perhaps before the mark.
        self.on_unsure: Callable[[int, int], None] = nothing
        #: Whether a round waits for room on a disk.
        self._is_short = False
        #: Totals for the operators.
        self.stores = self.resent = 0

    def _stream(self, index: int) -> _Stream:
        found = self._streams.get(index)
        if found is None:
            found = self._streams[index] = _Stream()
        return found

    def is_up(self, index: int) -> bool:
        """Tell whether a home takes frames."""
        return self._stream(index).is_up

    @property
    def all_reported(self) -> bool:
        """Tell whether what the node holds is known: nothing guaranteed is admitted before."""
        for shard in self._shards.shards:
            stream = self._streams.get(shard.index)
            if stream is None or not stream.is_reported:
                return False
        return not self.usage.unknown

    def send(self, index: int, frames: list[bytes]) -> None:
        """Send a frame to a home that is up, behind every STORE that was given to it."""
        self._shards.send(self._shards.shards[index], frames)

    # -- storing ---------------------------------------------------------------------------------------------

    def store(
        self,
        stores: dict[int, Store],
        producer: StoreProducer | None,
        wall_ms: int,
        pending: Any | None = None,
        *,
        relaxed: bool,
        publisher: int | dict[int, int] = 0,
        pasts: dict[int, Past] | None = None,
        file: int | None = None,
        stage: int = 0,
        release: Sequence[int] = (),
        drop: Sequence[int] = (),
        parts: Sequence[int] = (),
    ) -> None:
        """Give a round to its homes.

        Args:
            stores: what each is to store.
            producer: whose rows they are; None for promoted copies.
            wall_ms: when it was taken.
            pending: what waits for it.
            relaxed: whether it may be written later.
            publisher: number of the client that published it, or index -> number; 0: nobody knows.
            pasts: index -> what a row of a closed partition had behind it.
            file: the spool file in which the rows are already; None: they are new.
            stage: number of the stage that the rows belong to; 0: none.
            release: stages whose rows go to their lanes.
            drop: stages that go.
            parts: lanes that have another home by now.
        """
        for index, store in stores.items():
            stream, chosen = self._stream(index), 0
            if store.size:
                chosen = self.usage.files.choose(index, store.size) if file is None else file
            stream.number += 1
            header = StoreFrame(
                self._shards.incarnation,
                stream.number,
                relaxed,
                producer,
                store.groups,
                store.refused,
                wall_ms,
                publisher,
                store.counts,
                pasts,
                chosen,
                stage,
                release,
                drop,
                parts,
            )
            self._give(index, stream, _Sent(header, store, chosen, pending, promoted=producer is None))

    def _give(self, index: int, stream: _Stream, sent: _Sent) -> None:
        self._count(sent)
        if sent.pending is not None:
            sent.pending.homes += 1
        if sent.promoted:
            stream.promoted_bytes += sent.size
        stream.on_their_way.append(sent)
        stream.packed_bytes += sent.packed_bytes
        self.stores += 1
        if stream.is_up:
            self.send(index, sent.frames())

    def short_of(self, stores: dict[int, Store]) -> int | None:
        """Give a home that has not told of room on its disk for what is on its way to it and these; None: all have.

        What it is given cannot be refused any more, so it has to find room. It waits until something that was sent
        before is on disk, and the home tells how much room is left. What is alone goes.
        """
        for index, store in stores.items():
            stream = self._stream(index)
            if stream.packed_bytes and stream.is_up:
                room = self.usage.home(index).room_bytes
                if room is not None and stream.packed_bytes + store.packed_bytes > room:
                    self._is_short = True
                    return index
        return None

    def _have_retried(self) -> None:
        """Have rounds tried again that wait for room on a disk."""
        if self._is_short:
            self._is_short = False
            self.usage.freed += 1

    def settle(self, release: list[int], drop: list[int], wall_ms: int, pending: Any) -> None:
        """Have every home release stages, and drop others."""
        stores = {shard.index: Store() for shard in self._shards.shards}
        self.store(stores, None, wall_ms, pending, relaxed=False, release=release, drop=drop)

    def part(self, lane_id: int, index: int) -> None:
        """Have a home part with a lane behind everything that it was given."""
        self.store({index: Store()}, None, 0, relaxed=False, parts=(lane_id,))

    def promoted_room(self, index: int, limit: int) -> int:
        """Give how many bytes of promoted copies a home may be given under a limit."""
        return limit - self._stream(index).promoted_bytes

    def _count(self, sent: _Sent) -> None:
        for account, lane, messages, size, _ in sent.charges:
            self.usage.charge(account, lane, messages, size)
        if sent.file:
            self.usage.files.join(sent.file)

    def _uncount(self, index: int, sent: _Sent) -> None:
        for account, lane, messages, size, _ in sent.charges:
            if lane.home == index:
                self.usage.uncharge(account, lane, messages, size)
            else:
                self.usage.uncharge_elsewhere(account, lane, messages, size)
        if sent.file:
            self.usage.files.leave(sent.file)

    def unstored(self, index: int) -> int:
        """Give the number of the last STORE of a home that is not on disk; 0 if everything is."""
        stream = self._streams.get(index)
        return stream.number if stream and (stream.kept or stream.on_their_way) else 0

    def has_stored(self, index: int, number: int) -> bool:
        """Tell whether nothing up to a number is on its way to a home, or waits there for the disk."""
        stream = self._streams.get(index)
        sent = stream and next(iter(stream.kept or stream.on_their_way), None)
        return not sent or sent.number > number

    # -- reports ---------------------------------------------------------------------------------------------

    def shard_lost(self, shard: Shard) -> None:
        """A worker died: nothing is sent to it until its successor has reported."""
        self._stream(shard.index).is_up = False
        self._have_retried()

    def home_reported(self, shard: Shard, home: HomeFrame, now: float) -> dict[Account, None]:
        """A home is there and has stored up to a number: send it what is above. Gives the accounts that changed."""
        stream, usage = self._stream(shard.index), self.usage
        stored, spool = home.stored, home.spool
        files = dict.fromkeys(numbers_of(spool.used))
        usage.files_used(shard.index, files)
        sents = (*stream.kept, *stream.on_their_way)
        unsure = [lane_id for sent in sents if sent.number <= stored for lane_id in sent.header.parts]
        self._advance(stream, shard.index, stored, stored)
        for sent in stream.kept:  # accepted by a predecessor, which took it along
            self._count(sent)
            stream.packed_bytes += sent.packed_bytes
        stream.on_their_way.extendleft(reversed(stream.kept))
        stream.kept.clear()
        usage.files_freed(shard.index, [file for file in usage.home(shard.index).files if file not in files])
        usage.files.go_on(shard.index, max(files, default=0), spool.newest_bytes)
        usage.home_began(home.totals)
        changed = usage.report(shard.index, home.totals, spool, now)
        self._have_retried()
        stream.is_up = stream.is_reported = True
        stream.accepted = stored
        if not stream.on_their_way:
            stream.number = stored  # a home that starts over counts from its own beginning
        for sent in stream.on_their_way:
            for account, lane, messages, size, _ in sent.leave_out_stale():
                self.usage.uncharge(account, lane, messages, size)
            self.send(shard.index, sent.frames())
            self.resent += 1
        for lane_id in unsure:
            self.on_unsure(lane_id, shard.index)
        return changed

    def committed(self, shard: Shard, frame: CommittedFrame, now: float) -> dict[Account, None]:
        """A home has accepted and stored up to these numbers; gives the accounts that changed."""
        stream = self._stream(shard.index)
        if not stream.is_up:
            return {}
        self.usage.files_used(shard.index, numbers_of(frame.spool.used))
        self._advance(stream, shard.index, frame.accepted, frame.stored)
        self._have_retried()
        return self.usage.report(shard.index, frame.totals, frame.spool, now)

    def _advance(self, stream: _Stream, index: int, accepted: int, stored: int) -> None:
        while stream.kept and stream.kept[0].number <= stored:
            self._forget(index, stream, stream.kept.popleft())
        waiting = stream.on_their_way
        while waiting and waiting[0].number <= accepted:
            sent = waiting.popleft()
            stream.packed_bytes -= sent.packed_bytes
            self._uncount(index, sent)
            self._settle(sent)
            if sent.number <= stored:
                self._forget(index, stream, sent)
            else:
                stream.kept.append(sent)
        stream.accepted = max(stream.accepted, accepted)

    def take_settled(self) -> list[Any]:
        """Give what has been accepted as a whole since the last call, in that order."""
        settled, self._settled = self._settled, []
        return settled

    def _settle(self, sent: _Sent) -> None:
        pending, sent.pending = sent.pending, None
        if pending is not None:
            pending.homes -= 1
            if not pending.homes:
                self._settled.append(pending)

    def _forget(self, index: int, stream: _Stream, sent: _Sent) -> None:
        if sent.promoted:
            stream.promoted_bytes -= sent.size
        for lane_id in sent.header.parts:
            self.on_parted(lane_id, index)

    # -- the number of workers -------------------------------------------------------------------------------

    def unfinished(self, count: int) -> list[int]:
        """Give the homes from this index on that have not stored all that they were given."""
        return [
            index
            for index, stream in self._streams.items()
            if index >= count and (stream.on_their_way or stream.kept)
        ]

    def abandon(self, index: int) -> list[Any]:
        """A home that leaves is gone before it stored all; gives what waits for that.

        What it stored without saying so comes to light at the homes that take its lanes over.
        """
        stream = self._stream(index)
        lost = list(stream.on_their_way)
        for sent in lost:
            self._uncount_lost(sent)
        for sent in (*stream.kept, *lost):
            self._forget(index, stream, sent)
        stream.kept.clear()
        stream.on_their_way.clear()
        stream.packed_bytes = 0
        return list(dict.fromkeys(sent.pending for sent in lost if sent.pending is not None))

    def _uncount_lost(self, sent: _Sent) -> None:
        for account, lane, messages, size, _ in sent.charges:
            self.usage.uncharge_elsewhere(account, lane, messages, size)
        if sent.file:
            self.usage.file_left(sent.file)

    def left(self, count: int) -> None:
        """Only the workers below this index are homes now."""
        for index in [index for index in self._streams if index >= count]:
            del self._streams[index]
            self.usage.home_left(index)

    def stats(self) -> dict[str, Any]:
        """Give the figures of all streams together."""
        homes = [self._stream(shard.index) for shard in self._shards.shards]
        return {
            "homes_ready": sum(home.is_up and home.is_reported for home in homes),
            "recovered": int(self.all_reported),
            "stores": self.stores,
            "stores_resent": self.resent,
            "stores_under_way": sum(len(stream.on_their_way) for stream in self._streams.values()),
        }

    def validate(self) -> None:
        """Check that numbers follow each other, and what counts as in flight is."""
        for index, stream in self._streams.items():
            numbers = [sent.number for sent in (*stream.kept, *stream.on_their_way)]
            assert numbers == list(range(stream.number - len(numbers) + 1, stream.number + 1)), index
            promoted = [sent.size for sent in (*stream.kept, *stream.on_their_way) if sent.promoted]
            assert stream.promoted_bytes == sum(promoted), index
            assert stream.packed_bytes == sum(sent.packed_bytes for sent in stream.on_their_way), index
            assert all(sent.pending is None for sent in stream.kept)
        sent_files = [
            sent.file for stream in self._streams.values() for sent in stream.on_their_way if sent.file
        ]
        self.usage.validate_files(sent_files)


def add_group(
    stores: dict[int, Store],
    targets: Sequence[tuple[Account, LaneUsage]],
    batch: bytes,
    rows: int,
    size: int,
    origins: list[Origin | None] | None = None,
) -> None:
    """Add rows to what their homes are to store: each home gets the batch once, with its lanes.

    Args:
        stores: home -> what it gets so far.
        targets: the lanes, with the accounts of their endpoints.
        batch: the rows, packed.
        rows: how many.
        size: their spool bytes.
        origins: where each row comes from, if it was moved.
    """
    lanes: dict[int, list[int]] = {}
    for account, lane in targets:
        home = lane.home
        store = stores.get(home)
        if store is None:
            store = stores[home] = Store()
        store.charges.append(Charge(account, lane, rows, size, account.endpoint.generation))
        partitions = len(account.endpoint.lanes)
        if partitions > 1:
            store.counts.append(LanePartitions(lane.lane_id, partitions))
        mine = lanes.get(home)
        if mine is None:
            lanes[home] = [lane.lane_id]
        else:
            mine.append(lane.lane_id)
    for home, lane_ids in lanes.items():
        store = stores[home]
        store.groups.append(RowGroup(lane_ids, rows, origins))
        store.batches.append(batch)
        store.size += size
        store.packed_bytes += len(batch)


def tell_nacks(stores: dict[int, Store], touched: Iterable[LaneUsage], memory: Memory) -> None:
    """Put into the records of every lane concerned what was refused of late (`memory`).

    Args:
        stores: home -> what it gets; a home that gets nothing but this is added.
        touched: lanes that refused rows matched.
        memory: of the producer.
    """
    if not memory.has_nacks:
        return
    lanes = dict.fromkeys(touched)
    for store in stores.values():
        lanes.update(dict.fromkeys(charge.lane for charge in store.charges))
    for lane in lanes:
        untold = memory.untold(lane.lane_id)
        if untold:
            found = stores.get(lane.home)
            if found is None:
                found = stores[lane.home] = Store()
            found.refused.append(LaneRefusals(lane.lane_id, untold))
