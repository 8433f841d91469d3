"""The router's side of its workers: what each one knows, what is out at it, and who waits for it.

A worker that comes (or comes again) gets START, all filters that it must hold and all rules; it is ready
when it has confirmed them. Its identity and every frame carry an incarnation, so that nothing of a dead
predecessor is taken for an answer.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from angarium import errors, slots, wire
from angarium.errors import error_for
from angarium_server.frames.frame import MalformedFrameError
from angarium_server.frames.matching import Filters, PublishRules, Rules, Start
from router.ground.ground import SEALED
from router.matching.feed import Feed
from router.sessions.interest import FilterSet, Interest, filter_entry
from router.sessions.round import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from angarium_server.frames.homes import FlowVerb
    from angarium_server.frames.matching import SetDefinition
    from router.ground.ground import Outbox
    from router.sessions.round import Round
    from router.sessions.session import Session

#: A row with its meta left packed: what else is wrong with it is the worker's to say.
CutRow = tuple[int, str, int, msgspec.Raw, bytes | None, bytes]
_decode_rows = msgspec.msgpack.Decoder(list[CutRow]).decode
_encode_rows = msgspec.msgpack.Encoder().encode


class ShardState(Enum):
    """What a worker can do for us."""

    DOWN = "down"
    SYNCING = "syncing"
    READY = "ready"


class FairQueue:
    """Sessions that wait for a worker, or their turn; Message VPNs take turns, and sessions inside a VPN."""

    def __init__(self) -> None:
        #: VPN number -> its waiting sessions; no empty ones.
        self._lines: dict[int, deque[Session]] = {}
        self._turns: deque[int] = deque()

    def __bool__(self) -> bool:
        return bool(self._turns)

    def __iter__(self) -> Iterator[Session]:
        return chain.from_iterable(self._lines.values())

    def push(self, session: Session) -> None:
        """Put a session at the end of its VPN's line."""
        line = self._lines.get(session.vpn.id)
        if line is None:
            line = self._lines[session.vpn.id] = deque()
            self._turns.append(session.vpn.id)
        line.append(session)

    def pop(self) -> Session:
        """Take the session whose turn it is."""
        vpn_id = self._turns.popleft()
        line = self._lines[vpn_id]
        session = line.popleft()
        if line:
            self._turns.append(vpn_id)
        else:
            del self._lines[vpn_id]
        return session

    def take_all(self) -> list[Session]:
        """Empty the lines."""
        taken = []
        while self:
            taken.append(self.pop())
        return taken


class Replay:
    """A guaranteed frame that was out at a worker when it died."""

    __slots__ = ("deaths", "is_out", "position", "round")

    def __init__(self, a_round: Round[Session], position: int, *, deaths: int) -> None:
        self.round = a_round
        self.position = position
        #: Deaths in a row at which nothing else was out.
        self.deaths = deaths
        #: True from its handing over to its answer, or the next death.
        self.is_out = False

    @property
    def part(self) -> Part:
        """Give the rows of the frame."""
        return self.round.parts[self.position]


class SetsByNumber(dict[int, "FilterSet[Session]"]):
    """The sets behind the numbers of a worker; `[]` raises MalformedFrameError for one that it never defined."""

    def __missing__(self, number: int) -> FilterSet[Session]:
        raise MalformedFrameError(f"set {number} was never defined")


class Shard:
    """One worker as the router knows it."""

    def __init__(self, index: int) -> None:
        self.index = index
        #: See `router.ground.effects`.
        self.open_frame = SEALED
        #: The newest incarnation that announced itself; 0 before the first.
        self.incarnation = 0
        self.state = ShardState.DOWN
        #: True once it said that it ends because of its spool, until the next one: no frame killed it.
        self.spool_failed = False
        #: When it was found dead; rows for it wait from then for the grace time only.
        self.died_at = float("-inf")
        #: True once the grace time after a death is over and it is not back: rows for it are lost at once.
        self.given_up = False
        #: Reference -> (round, part) of each frame that is out.
        self.outstanding: dict[int, tuple[Round[Session], int]] = {}
        #: References of those that wait there for turns, because their topics are dear, and whose they are.
        self.slow: dict[int, Session] = {}
        #: What was out at the death of a predecessor, oldest first; only the first one may be out. Nothing else is
        #: handed over before these are answered.
        self.replays: deque[Replay] = deque()
        self.waiting = FairQueue()
        #: Its set numbers -> set.
        self.sets = SetsByNumber()
        #: Number of the newest FILTERS frame, over all incarnations.
        self.sequence = 0
        #: What it is still to be told of filters.
        self.feed = Feed()
        #: The filter whose confirmation ends the replay.
        self.replay_end = 0

    @property
    def in_window(self) -> int:
        """Count the frames that keep others from being handed over."""
        return len(self.outstanding) - len(self.slow)

    def take_replays(self) -> list[Replay]:
        """Give up what waits to be handed over again."""
        replays, self.replays = self.replays, deque()
        return list(replays)

    def next_sequence(self) -> int:
        """Number a FILTERS frame."""
        self.sequence += 1
        return self.sequence


class Confirmation:
    """Calls back once every shard concerned has confirmed the filters of one request."""

    __slots__ = ("done", "waiting")

    def __init__(self, done: Callable[[], None]) -> None:
        self.done = done
        self.waiting = 0


class Shards:
    """All workers of the node and what they must know."""

    def __init__(
        self, count: int, table: bytes, incarnation: int, interest: Interest[Session], outbox: Outbox
    ) -> None:
        self.table = table
        self.epoch = 1
        self.incarnation = incarnation
        self.shards = [Shard(index) for index in range(count)]
        #: Rules number -> (default_allow, exceptions) of everything the workers must know.
        self.rules: dict[int, tuple[bool, tuple[str, ...]]] = {}
        self.interest = interest
        self._outbox = outbox
        #: Shards that were let go, by index: a worker that did not end yet does not announce itself again.
        self._known: dict[int, Shard] = {}
        #: Indices of shards that are still to be told of new filters; perhaps of some that were told meanwhile.
        self._behind: dict[int, None] = {}
        #: The newest filter that the workers were, or are to be, told of.
        self._newest = 0
        #: Shard index -> confirmations in the order in which they were asked for: (newest filter, confirmation).
        self._waiting: list[deque[tuple[int, Confirmation]]] = [deque() for _ in self.shards]
        #: Called in their order with a worker that was sent START, its rules and its filters, and with one that died,
        #: which may have been lost already; complete before the first worker announces itself.
        self.on_started: list[Callable[[Shard], None]] = []
        self.on_lost: list[Callable[[Shard], None]] = []

    def send(self, shard: Shard, frames: list[bytes]) -> None:
        """Send frames to the incarnation of a worker that is known."""
        self._outbox.send_worker(shard, frames)

    def send_order(self, index: int, flow: int, verb: FlowVerb) -> None:
        """Say something about a flow to a home, if it is there."""
        if index < len(self.shards) and self.shards[index].state is not ShardState.DOWN:
            self._outbox.send_order(self.shards[index], self.incarnation, flow, verb)

    def change_filters(self, added: list[Any], removed: list[Any]) -> None:
        """Tell the workers concerned about new and gone filters (`Filter` objects), in one step."""
        self._newest = max([self._newest, *[f.id for f in added]])
        for shard in self.shards:
            mine_added = [f for f in added if f.shard is None or f.shard == shard.index]
            mine_removed = [f for f in removed if f.shard is None or f.shard == shard.index]
            # If it is down the replay to its successor tells it.
            if (mine_added or mine_removed) and shard.state is not ShardState.DOWN:
                shard.feed.put(mine_added, mine_removed)
                self._feed(shard)

    def await_pending(self, filters: list[Any], done: Callable[[], None]) -> None:
        """Call back when filters that are known, but perhaps not confirmed yet, are in force."""
        confirmation = Confirmation(done)
        for shard in self.shards:
            self._await(
                shard, [f for f in filters if f.shard is None or f.shard == shard.index], confirmation
            )
        if not confirmation.waiting:
            done()

    def _await(self, shard: Shard, filters: list[Any], confirmation: Confirmation) -> None:
        newest = max([f.id for f in filters], default=0)
        if newest > shard.feed.confirmed:
            confirmation.waiting += 1
            self._waiting[shard.index].append((newest, confirmation))

    def _feed(self, shard: Shard) -> None:
        """Send a worker what it may be told of filters."""
        while shard.feed.is_due:
            self._send_filters(shard)
        if shard.feed.first_untold is not None:
            self._behind[shard.index] = None

    def assign(self, parts: list[Part], epoch: int) -> list[Part]:
        """Give each part of a round to its worker.

        Batches that were cut by an older slot table, or not at all, are cut here.

        Raises:
            InvalidRequestError: the parts are no cut of a round (40001).
        """
        count = len(self.shards)
        if not epoch and len(parts) > 1:
            raise error_for(errors.MALFORMED_FRAME, "a round that is not cut has one part")
        if count == 1 and len(parts) == 1:
            return parts if not parts[0].worker else [Part(0, parts[0].rows, parts[0].batch)]
        if epoch == self.epoch:
            workers = {part.worker for part in parts}
            if len(workers) != len(parts) or max(workers, default=0) >= count:
                raise error_for(errors.MALFORMED_FRAME, "parts name each worker of the table at most once")
            return parts
        return self.recut(parts)

    def recut(self, parts: list[Part]) -> list[Part]:
        """Cut parts by the slot table in force.

        Raises:
            InvalidRequestError: a batch is malformed (40001).
        """
        cut = [piece for part in parts for piece in partition(part.batch, part.rows, self.table)]
        return cut if len(parts) == 1 else _merge(cut)

    def told_below(self, next_filter: int) -> int:
        """Give the number below which the workers were told of all filters, `next_filter` if they were of all.

        What they answer to a batch that is handed on now may lack the filters from there on.
        """
        if not self._behind:
            return next_filter
        for index in list(self._behind):
            first = self.shards[index].feed.first_untold if index < len(self.shards) else None
            if first is None:
                del self._behind[index]
            else:
                next_filter = min(next_filter, first)
        return next_filter

    def _send_filters(self, shard: Shard) -> None:
        sequence = shard.next_sequence()
        added, removed = shard.feed.take(sequence, self._newest)
        entries = [filter_entry(one) for one in added]
        self.send(shard, Filters(self.incarnation, sequence, entries, removed).frames())

    def put_rules(self, rules_id: int, default_allow: bool, exceptions: tuple[str, ...]) -> None:  # noqa: FBT001 - a value of the rules
        """Tell all workers one list of publish rules."""
        self.rules[rules_id] = (default_allow, exceptions)
        for shard in self.shards:
            if shard.state is not ShardState.DOWN:
                self._send_rules(shard, rules_id)

    def drop_rules(self, rules_id: int) -> None:
        """Nobody publishes under these rules any more."""
        del self.rules[rules_id]
        for shard in self.shards:
            if shard.state is not ShardState.DOWN:
                self._send_rules(shard, rules_id)

    def _send_rules(self, shard: Shard, rules_id: int) -> None:
        rules = self.rules.get(rules_id)
        body = None if rules is None else PublishRules(*rules)
        self.send(shard, Rules(self.incarnation, rules_id, body).frames())

    def start(self, shard: Shard, incarnation: int) -> None:
        """A worker announced itself: tell it everything it must know."""
        shard.incarnation = incarnation
        shard.state = ShardState.SYNCING
        shard.spool_failed = False
        self._forget_sets(shard)
        self.send(shard, Start(self.incarnation, self.epoch, self.table).frames())
        for rules_id in self.rules:
            self._send_rules(shard, rules_id)
        shard.feed.restart(self.interest.filters_of_shard(shard.index))
        shard.replay_end = self._newest
        self._send_filters(shard)  # there is one, if only for its confirmation
        self._feed(shard)
        for started in self.on_started:
            started(shard)

    def confirm(self, shard: Shard, sequence: int) -> bool:
        """A worker confirmed its filters up to a number; true if that made it ready."""
        if not shard.feed.confirm(sequence, self._newest):
            return False
        became_ready = False
        self._feed(shard)
        if shard.state is ShardState.SYNCING:
            if shard.feed.confirmed < shard.replay_end:
                return False
            shard.state = ShardState.READY
            shard.given_up = False
            became_ready = True
        waiting = self._waiting[shard.index]
        while waiting and waiting[0][0] <= shard.feed.confirmed:
            _, confirmation = waiting.popleft()
            confirmation.waiting -= 1
            if not confirmation.waiting:
                confirmation.done()
        return became_ready

    def lose(self, shard: Shard, now: float) -> list[tuple[Round[Session], int]]:
        """A worker died: give what was out at it."""
        if shard.state is not ShardState.DOWN:
            shard.died_at = now
        shard.state = ShardState.DOWN
        lost = list(shard.outstanding.values())
        shard.outstanding.clear()
        shard.feed.clear()
        self._forget_sets(shard)
        for was_lost in self.on_lost:
            was_lost(shard)
        return lost

    def define_sets(self, shard: Shard, definitions: Sequence[SetDefinition]) -> None:
        """A worker named sets."""
        for one in definitions:
            shard.sets[one.set] = self.interest.use_set(one.filters)

    def retire_sets(self, shard: Shard, numbers: Sequence[int]) -> None:
        """A worker will not name these sets again.

        It may have said so before it heard that the number of workers changes, when all sets were forgotten.
        """
        for number in numbers:
            a_set = shard.sets.pop(number, None)
            if a_set is not None:
                self.interest.drop_set(a_set)

    def _forget_sets(self, shard: Shard) -> None:
        for a_set in shard.sets.values():
            self.interest.drop_set(a_set)
        shard.sets.clear()

    def resize(self, count: int, table: bytes) -> None:
        """Change the number of workers; the caller has seen to it that nothing is out."""
        for shard in self.shards:
            assert not shard.outstanding
            self._forget_sets(shard)
        while len(self.shards) < count:
            self.shards.append(self._known.pop(len(self.shards), Shard(len(self.shards))))
            self._waiting.append(deque())
        for shard in self.shards[count:]:
            self._known[shard.index] = shard
            self._release(shard)
        del self.shards[count:], self._waiting[count:]
        self.table = table
        self.epoch += 1

    def _release(self, shard: Shard) -> None:
        """Confirm on behalf of a worker that leaves: its part is on the others now."""
        waiting = self._waiting[shard.index]
        while waiting:  # what follows a confirmation may wait for this worker again
            _, confirmation = waiting.popleft()
            confirmation.waiting -= 1
            if not confirmation.waiting:
                confirmation.done()

    @property
    def all_ready(self) -> bool:
        """Tell whether every worker can match."""
        return all(shard.state is ShardState.READY for shard in self.shards)

    @property
    def all_told(self) -> bool:
        """Tell whether no worker that is there is still to be told of filters: what is sent now comes behind them."""
        return all(shard.feed.first_untold is None for shard in self.shards)


def partition(batch: bytes, rows: int, table: bytes) -> list[Part]:
    """Split an unopened batch by the owners of its topics.

    Raises:
        InvalidRequestError: it is no batch of so many rows (40001).
    """
    # The number of rows is looked at first and their types while they are decoded: a batch that lies must
    # not cost memory or time.
    if wire.array_length(batch) != rows:
        raise error_for(errors.MALFORMED_FRAME, "the batch has another number of rows than its header says")
    try:
        opened = _decode_rows(batch)
    except (ValueError, RecursionError) as error:
        raise error_for(errors.MALFORMED_FRAME, f"no batch of rows: {error}") from None
    parts = slots.partition(opened, table)
    return [Part(worker, len(part), _encode_rows(part)) for worker, part in parts.items()]


def _merge(parts: list[Part]) -> list[Part]:
    """Join the pieces for each worker, in the order of their indices."""
    by_worker: dict[int, list[Any]] = {}
    for part in parts:
        by_worker.setdefault(part.worker, []).extend(wire.unpack(part.batch))
    merged = []
    for worker, rows in by_worker.items():
        rows.sort(key=_index)
        merged.append(Part(worker, len(rows), wire.pack(rows)))
    return merged


def _index(row: list[Any]) -> int:
    index = row[wire.ROW_INDEX]
    return index if type(index) is int else -1  # the worker refuses it
