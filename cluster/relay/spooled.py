"""Guaranteed messages of one queue of a link, on their way to the neighbour: exactly once, through any break.

A `Forwarder` consumes a queue of the link at the one router and publishes its messages at the other, as a producer of
its own that is named after the node and the queue. The sequence of a message is its position in the queue, which is
never used again. So what was sent before a break is sent again with the same sequence after it, and the other router
tells what it has already:

    bind the queue, open the producer ──► MESSAGES ──► PUBLISH ──► ACKED ──► SETTLE accepted
                                                                      └────► refused: SETTLE rejected, and the home
                                                                             moves it to the dead message queue of the
                                                                             queue, which is the one for another try

No message is kept here: what is not acknowledged is not settled, and comes again. Within a session positions rise. A
home that dies delivers again what it had not written down as settled: of that, what is under way is ignored, and what
became of the rest is said once more. So the death of a worker is no end of a link. Only what this session never had, or
has forgotten, ends the channel: the other router knows what became of it.

The rows are opened: they get their position as the index, and their time to live is what is left of it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from angarium import errors, slots, wire
from angarium.errors import error_for
from angarium.slots import Round
from angarium.wire import malformed
from cluster.relay.frames import Meta, Part, Range, Row, decode_rows, encode_rows

if TYPE_CHECKING:
    from angarium.client.protocol.events import Welcome
    from cluster.relay.session import LinkSession

#: What the home may have out: bytes fill the same path as those of direct messages.
FLOW_MESSAGES: Final = wire.LINK_WINDOW
FLOW_BYTES: Final = wire.LINK_WINDOW_BYTES
#: Rows of one round: as many as a client's at most.
ROUND_ROWS_MAX: Final = slots.ROUND_ROWS_MAX
#: Under load rounds cost more than the messages in them: each is synced, acknowledged and settled. So while a round of
#: so many rows left less than this time ago, what comes gathers until it is a large one; smaller ones never wait.
GATHER_FROM_ROWS: Final = 64
GATHER_S: Final = 0.004
GATHER_ROWS: Final = 512
GATHER_BYTES: Final = 256 << 10
#: What a message that is past its time still gets: the endpoint over there lets it die, and counts it.
TTL_MIN_MS: Final = 1
#: In how many pieces a flow's window is renewed, as that of a session of a link.
WINDOW_PIECES: Final = 8
#: Ranges in one SETTLE.
SETTLE_RANGES_MAX: Final = 1_000
#: Positions settled out of turn that are remembered, for homes that deliver them again; then the oldest are forgotten.
FATES_MAX: Final = 10_000
#: Why a message is in the queue for another try although nobody refused it.
_EXPIRED: Final = "expired"


class _UnderWay(NamedTuple):
    """A round that was published and is not settled: its positions in order, and what it takes."""

    runs: list[Range]
    rows: int
    size_bytes: int

    @property
    def last(self) -> int:
        """The highest position."""
        return self.runs[-1][1]


class Forwarder:
    """Carries the messages of one queue from its router to the other one."""

    #: What the names of its producers begin with.
    PRODUCER_PREFIX: ClassVar[str] = wire.LINK_NAME_PREFIX
    #: What else is asked for with the flow.
    MORE_WISHES: ClassVar[dict[str, Any]] = {}

    def __init__(self, source: LinkSession, target: LinkSession, queue: str, clock_offset_ms: int) -> None:
        """Ask for the flow and the producer; the offset is the clock of the source's router less that of `messages`."""
        self._source = source
        self._target = target
        self._queue = queue
        self._offset_ms = clock_offset_ms
        #: Numbers of the flow and of the producer; 0 until they are there.
        self.flow = 0
        self.producer = 0
        self._endpoint_id = 0
        #: True while the flow, or the producer, was refused and is not asked for again.
        self.is_refused = False
        #: Rows that wait for credit, oldest first, with their positions and when they came (0: before the first tick),
        #: and the bytes they count for.
        self._waiting: deque[tuple[int, Row, float]] = deque()
        self._waiting_bytes = 0
        #: The time of the last tick, and until when what waits gathers.
        self._now = self._gather_until = 0.0
        #: Published, oldest first.
        self._under_way: deque[_UnderWay] = deque()
        self._under_way_rows = self._under_way_bytes = 0
        #: The last position that was taken in this session, and the first one of which everything is known.
        self._last = 0
        self._known_from = 0
        #: Position -> outcome of those that were settled out of turn in this session; all others were accepted in turn.
        self._fates: dict[int, int] = {}
        #: Outcome -> positions that are settled without being carried; empty between two events.
        self._dropped: dict[int, list[Range]] = {}
        #: Credit of the flow: totals granted and taken.
        self._granted = [FLOW_MESSAGES, FLOW_BYTES]
        self._taken = [0, 0]
        #: Refused, and not covered by an `upto` yet.
        self._refused_early: dict[int, None] = {}
        self.acknowledged = 0
        #: Messages that the neighbour refused, by code.
        self.refused: dict[int, int] = {}

    @property
    def held(self) -> int:
        """Count the messages that were taken and are not settled."""
        return len(self._waiting) + self._under_way_rows

    # -- opening ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Ask for the flow, or if it is there for the producer; messages wait until that is open."""
        if not self.flow:
            arguments = {
                "name": self._queue,
                "messages": FLOW_MESSAGES,
                "bytes": FLOW_BYTES,
                "in_order": True,
                **self.MORE_WISHES,
            }
            self._source.ask("flow.bind", arguments, self._bound, self._refused)
        else:
            welcome = self._source.welcome
            assert welcome is not None
            name = f"{self.PRODUCER_PREFIX}{welcome.link['node_id']}/{self._endpoint_id}"
            self._target.ask("producer.open", {"name": name}, self._opened, self._refused)

    def _refused(self) -> None:
        """A home or a controller is being replaced, for instance."""
        self.is_refused = True

    def open_again(self) -> None:
        """Ask again for what was refused."""
        if self.is_refused:
            self.is_refused = False
            self.open()

    def _bound(self, value: dict[str, Any]) -> None:
        self.flow = int(value["flow"])
        self._endpoint_id = int(value["endpoint_id"])
        self.open()

    def _opened(self, value: dict[str, Any]) -> None:
        self.producer = int(value["producer"])
        self.go_on()

    # -- messages --------------------------------------------------------------------------------------------

    def messages(self, parts: list[Part], batches: list[bytes], wall_ms: int) -> None:
        """Take messages of the flow.

        Raises:
            AngariumError: one came before, and is not under way: the channel has to start over (60001).
        """
        for (_, count, runs, _, stored_ms, origins), batch in zip(parts, batches, strict=True):
            rows = decode_rows(batch)
            positions = [first + n for first, length in runs for n in range(length)]
            if not len(rows) == count == len(positions):
                raise malformed(f"{len(rows)} rows, {count} announced, at {len(positions)} positions")
            self._count(rows)
            stored = stored_ms if isinstance(stored_ms, list) else [stored_ms] * count
            self._take(rows, positions, stored, origins, wall_ms + self._offset_ms)
        self._settle_dropped()
        self.go_on()

    def _count(self, rows: list[Row]) -> None:
        self._taken[0] += len(rows)
        self._taken[1] += sum(map(_spooled_bytes, rows))

    def _take(
        self,
        rows: list[Row],
        positions: list[int],
        stored: list[int],
        origins: list[tuple[str, str, str] | None] | None,
        wall_ms: int,
    ) -> None:
        for number, (row, position) in enumerate(zip(rows, positions, strict=True)):
            if position <= self._last:
                outcome = self._outcome(position)
                if outcome is not None:
                    self._dropped.setdefault(outcome, []).append((position, position))
                continue
            self._last = position
            self._known_from = self._known_from or position
            origin = origins[number] if origins is not None else None
            self._admit(position, row, wall_ms - stored[number], origin)

    def _admit(self, position: int, row: Row, age_ms: int, origin: tuple[str, str, str] | None) -> None:
        """Take one message that has waited for so long, or settle it at once."""
        if origin is not None and origin[2] == _EXPIRED:
            self._drop(position, wire.OUTCOME_REJECTED)
            return
        if row[3] is not None:
            row = (*row[:3], aged(row[3], age_ms), *row[4:])
        self._add(position, row)

    def _add(self, position: int, row: Row) -> None:
        self._waiting.append((position, row, self._now))
        self._waiting_bytes += _spooled_bytes(row)

    def _outcome(self, position: int) -> int | None:
        """Give what became of a message that a home delivers again; None while it is under way.

        Raises:
            AngariumError: that is not known here (60001).
        """
        fate = self._fates.get(position)
        if fate is not None or position >= self._oldest():
            return fate
        if position >= self._known_from:
            return wire.OUTCOME_ACCEPTED
        raise error_for(errors.NOT_CONNECTED, f"position {position} of {self._queue} came again")

    def _oldest(self) -> int:
        """Give the lowest position that is not settled in turn."""
        if self._under_way:
            return self._under_way[0].runs[0][0]
        return self._waiting[0][0] if self._waiting else self._last + 1

    def _drop(self, position: int, outcome: int) -> None:
        """Settle a message out of turn, together with others."""
        self._dropped.setdefault(outcome, []).append((position, position))
        self._fates[position] = outcome
        if len(self._fates) > FATES_MAX:
            oldest = next(iter(self._fates))
            del self._fates[oldest]
            self._known_from = max(self._known_from, oldest + 1)

    def _settle_dropped(self) -> None:
        for outcome, ranges in self._dropped.items():
            self._settle(outcome, joined(ranges))
        self._dropped.clear()

    def go_on(self) -> None:
        """Publish what credit allows, and grant what there is room for."""
        target, welcome = self._target, self._target.welcome
        if not self.producer or welcome is None:
            return
        while self._waiting and target.can_publish() and self._has_window(welcome) and not self._gathers():
            position, row, _ = self._waiting[0]
            if len(row[5]) + len(row[4] or b"") + slots.ROW_OVERHEAD_BYTES > welcome.max_batch_bytes:
                self._waiting.popleft()
                self._waiting_bytes -= _spooled_bytes(row)
                self._drop(position, wire.OUTCOME_REJECTED)
            else:
                self._publish(welcome)
        self._settle_dropped()
        self._renew()

    def tick(self, now: float) -> float:
        """Publish what has gathered for long enough; gives when to call again, infinite if nothing gathers."""
        self._now = now
        if not self._waiting:
            return float("inf")
        if self._gathers():
            return self._gather_until
        self.go_on()
        return float("inf")

    def _gathers(self) -> bool:
        """Tell whether what waits is to become more before it leaves."""
        return (
            self._now < self._gather_until
            and len(self._waiting) < GATHER_ROWS
            and self._waiting_bytes < GATHER_BYTES
        )

    def _has_window(self, welcome: Welcome) -> bool:
        room = wire.LINK_WINDOW - self._under_way_rows
        return (
            room >= min(ROUND_ROWS_MAX, len(self._waiting)) and self._under_way_bytes < welcome.producer_bytes
        )

    def _publish(self, welcome: Welcome) -> None:
        first = self._waiting[0][0]
        rows: list[Row] = []
        runs: list[Range] = []
        size = 0
        limit = min(slots.ROUND_BYTES_MAX, welcome.max_batch_bytes - slots.ROW_OVERHEAD_BYTES)
        while self._waiting and len(rows) < min(ROUND_ROWS_MAX, welcome.max_batch_rows):
            position, row, came_at = self._waiting[0]
            size += len(row[5]) + len(row[4] or b"") + slots.ROW_OVERHEAD_BYTES
            if rows and size > limit:
                break
            self._waiting.popleft()
            if row[3] is not None and came_at:
                row = (*row[:3], aged(row[3], round((self._now - came_at) * 1000)), *row[4:])
            rows.append((position - first, *row[1:]))
            if runs and runs[-1][1] == position - 1:
                runs[-1] = (runs[-1][0], position)
            else:
                runs.append((position, position))
        parts = slots.partition(rows, welcome.slots)
        self._waiting_bytes -= sum(map(_spooled_bytes, rows))
        batches = [encode_rows(part) for part in parts.values()]
        heads = [(worker, len(part)) for worker, part in parts.items()]
        a_round = Round(welcome.epoch, heads, batches, len(rows), sum(map(len, batches)))
        self._target.publish_spooled(a_round, self.producer, first)
        if len(rows) >= GATHER_FROM_ROWS:
            self._gather_until = self._now + GATHER_S
        self._under_way.append(_UnderWay(runs, len(rows), a_round.size_bytes))
        self._under_way_rows += len(rows)
        self._under_way_bytes += a_round.size_bytes

    # -- acknowledgements ------------------------------------------------------------------------------------

    def acked(self, upto: int, nacks: list[tuple[int, int, str]]) -> None:
        """The other router has stored everything up to a position, but for what it refused."""
        refused = {position: code for position, code, _ in nacks}
        for code in refused.values():
            self.refused[code] = self.refused.get(code, 0) + 1
        accepted: list[Range] = []
        while self._under_way and self._under_way[0].last <= upto:
            done = self._under_way.popleft()
            self._under_way_rows -= done.rows
            self._under_way_bytes -= done.size_bytes
            accepted += done.runs
        if self._under_way and self._under_way[0].runs[0][0] <= upto:
            accepted += self._split(upto)
        if refused:
            for position in sorted(refused):
                self._drop(position, wire.OUTCOME_REJECTED)
            self._settle_dropped()
            self._refused_early.update(dict.fromkeys(refused))
        self._accept(accepted)
        self.go_on()

    def _split(self, upto: int) -> list[Range]:
        """Take the positions of the oldest round that are settled; its bytes stay charged until all are."""
        oldest = self._under_way.popleft()
        done = [(first, min(last, upto)) for first, last in oldest.runs if first <= upto]
        left = [(max(first, upto + 1), last) for first, last in oldest.runs if last > upto]
        rows = sum(last - first + 1 for first, last in done)
        self._under_way.appendleft(_UnderWay(left, oldest.rows - rows, oldest.size_bytes))
        self._under_way_rows -= rows
        return done

    def _accept(self, runs: list[Range]) -> None:
        """Settle positions, but those that were refused: a nack may come before what covers it."""
        accepted: list[Range] = []
        for first, last in runs:
            inside = (
                sorted(p for p in self._refused_early if first <= p <= last) if self._refused_early else ()
            )
            for position in inside:
                del self._refused_early[position]
                if first < position:
                    accepted.append((first, position - 1))
                first = position + 1
            if first <= last:
                accepted.append((first, last))
        self.acknowledged += sum(last - first + 1 for first, last in accepted)
        self._settle(wire.OUTCOME_ACCEPTED, joined(accepted))

    def _settle(self, outcome: int, ranges: list[Range]) -> None:
        for start in range(0, len(ranges), SETTLE_RANGES_MAX):
            some = [(0, first, last) for first, last in ranges[start : start + SETTLE_RANGES_MAX]]
            self._source.settle(self.flow, outcome, some)

    def _renew(self) -> None:
        """Grant what there is room for, if that is a piece of a window."""
        messages = self._taken[0] + FLOW_MESSAGES - len(self._waiting)
        size = self._taken[1] + FLOW_BYTES - self._waiting_bytes
        more_messages, more_bytes = messages - self._granted[0], size - self._granted[1]
        if more_messages * WINDOW_PIECES >= FLOW_MESSAGES or more_bytes * WINDOW_PIECES >= FLOW_BYTES:
            self._granted = [max(messages, self._granted[0]), max(size, self._granted[1])]
            self._source.grant(self.flow, *self._granted)

    def describe(self) -> dict[str, Any]:
        """Give what `angarium link show` says of it."""
        return {
            "queue": self._queue,
            "open": bool(self.producer),
            "waiting": len(self._waiting),
            "under_way": self._under_way_rows,
            "acknowledged": self.acknowledged,
            "refused": {str(code): count for code, count in sorted(self.refused.items())},
        }


def aged(meta: Meta, age_ms: int) -> Meta:
    """Give the meta of a message that waited: less time to live, and less delay.

    A time to live of 8 s, 2 s after the message was stored, is 6 s; 0 is none at all. A delay of 3 s is 1 s: messages
    leave the queue in the order of their positions, so the endpoints over there wait for what is left of it.
    """
    ttl_ms, delay_ms, priority, key = meta
    age_ms = max(age_ms, 0)
    left_ms = max(ttl_ms - age_ms, TTL_MIN_MS) if ttl_ms else 0
    return (left_ms, max(delay_ms - age_ms, 0), priority, key)


def _spooled_bytes(row: Row) -> int:
    """Give what a row counts for in the credit of a flow."""
    return len(row[5]) + len(row[4] or b"") + wire.SPOOL_OVERHEAD_BYTES


def joined(ranges: list[Range]) -> list[Range]:
    """Join ranges that follow each other."""
    found: list[Range] = []
    for first, last in ranges:
        if found and found[-1][1] == first - 1:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found
