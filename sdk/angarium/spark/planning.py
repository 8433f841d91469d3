"""What the driver of a streaming query decides from one batch to the next, with reader groups as its only means.

Spark calls, in this order, for each batch:

    latest(start, limit)     the end of the next batch; `start` is the end of the one before, which is complete
    commit(end)              of the batch before, once the next one is in the checkpoint
    tasks(start, end)        what to read; also for a batch of which a driver knew that is no more

Only what these arguments say survives a driver, so every call opens what it needs, and asks the group: it knows what is
planned, whatever became of the drivers in between. What a batch holds is planned before its end is told, so it is there
as often as it is read; `tasks` plans the same range again, which changes nothing, and compares the number of messages.

The connection is a parameter: unit tests give one that they made up.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from angarium import errors
from angarium.spark import offsets
from angarium.spark.offsets import Lane, Offset, Range
from angarium.spark.options import EARLIEST, LATEST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

#: A group whose name is in no checkpoint yet goes after so long, if the driver does.
FIRST_LEASE_S: Final = 60.0
#: How long a range that was planned may wait for messages that a consumer had out when the lease came; the node takes
#: them back after 5 s.
OUT_WAIT_S: Final = 20.0
_LOOK_S: Final = 0.25
#: Parts whose messages are counted, at a question to the node each; with more of them only whole ranges are.
COUNTED_PARTS_MAX: Final = 1_000
#: The start of the names of groups that the option `group` does not name.
GROUP_PREFIX: Final = "spark-"

_logger = logging.getLogger(__name__)


class Position(Protocol):
    """What of a partition a group tells."""

    oldest: int
    next: int
    continued: bool


class Planned(Protocol):
    """A range that a group has from now on."""

    start: int
    end: int
    messages: int


class Group(Protocol):
    """A reader group of one queue, as `angarium.blocking.Client.reader_group` gives it."""

    @property
    def endpoint_id(self) -> int:
        """The endpoint."""

    @property
    def node_id(self) -> str:
        """Of the node."""

    def positions(self) -> Mapping[int, Any]:
        """Give a `Position` of each partition."""

    def count(self, starts: Mapping[int, int]) -> Mapping[int, int]:
        """Give how many messages there are from positions on."""

    def find_time(self, times: Mapping[int, int]) -> Mapping[int, int]:
        """Give the first positions that were spooled at times or later."""

    def plan(
        self,
        starts: Mapping[int, int],
        messages: int | None = None,
        bytes: int | None = None,  # noqa: A002 - the name that the SDK has
        *,
        ends: Mapping[int, int] | None = None,
    ) -> Mapping[int, Any]:
        """Give a `Planned` of each partition."""

    def acknowledge(self, ends: Mapping[int, int]) -> Any:
        """Delete what is planned below positions."""

    def close(self) -> Any:
        """Let go of the connection's part; the lease stays."""

    def release(self) -> Any:
        """End the lease."""


class Node(Protocol):
    """What a planner needs of a connection."""

    name: str
    vpn: str

    def open(self, queue: str, group: str, lease_s: float) -> Group:
        """Open or go on with the lease of a queue."""


class Limit(NamedTuple):
    """What a batch may hold at most, None for no limit."""

    messages: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the options say of a stream."""

    queues: Sequence[str]
    group: str | None = None
    lease_s: float = 3600.0
    starting: str | int = EARLIEST
    fail_on_data_loss: bool = True
    task_messages_max: int | None = None
    tasks_min: int | None = None


class _Held:
    """A queue that is leased."""

    __slots__ = ("group", "lapsed", "positions")

    def __init__(self, group: Group, positions: Mapping[int, Any]) -> None:
        self.group = group
        self.positions = positions
        #: Partitions whose lease had ended before it was opened here.
        self.lapsed = {partition for partition, one in positions.items() if not one.continued}


class Planner:
    """Decides where batches of one run of a query end, and what their tasks read."""

    def __init__(
        self,
        wishes: Wishes,
        node: Node,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Plan with a connection; nothing is asked before the first call."""
        self._wishes = wishes
        self._node = node
        self._clock = clock
        self._sleep = sleep
        self._name = ""
        self._held: dict[str, _Held] = {}
        #: With Trigger.AvailableNow: where this run ends; None before that is known, or without it.
        self._targets: dict[Lane, int] | None = None
        self._is_bounded = False
        #: Whether Spark has asked this planner for anything; before, all that it names is in the checkpoint.
        self._was_asked = False

    # What Spark calls.

    def bound(self) -> None:
        """Read up to what is there now, and no further: Trigger.AvailableNow."""
        self._is_bounded = True
        self._targets = None

    def latest(self, raw: Mapping[str, Any], limit: Limit) -> Mapping[str, Any]:
        """Plan the next batch and give its end; what was given if there is nothing.

        Raises:
            AngariumError: the checkpoint is of something else, messages are lost, or what the node says.
        """
        start = offsets.parse(raw)
        base = self._first() if start is None else self._continued(start)
        end = self._planned(base, limit)
        until = self._clock() + OUT_WAIT_S
        while self._is_bounded and end.positions == base.positions and self._is_short_of_target(end):
            # A run that ends must not end before messages that a consumer had out when the lease came.
            if self._clock() >= until:
                break
            self._sleep(_LOOK_S)
            end = self._planned(base, limit)
        if start is not None and not end.begins and end.positions == base.positions:
            return raw
        return end.to_json()

    def tasks(self, raw_start: Mapping[str, Any], raw_end: Mapping[str, Any]) -> list[Range]:
        """Give what the tasks of a batch read.

        Raises:
            AngariumError: messages of the batch are lost, or what the node says.
        """
        start, end = offsets.parse(raw_start), offsets.parse(raw_end)
        is_durable = not self._was_asked
        self._was_asked = True
        if end is None:
            return []
        found = offsets.ranges(start, end)
        if found:
            self._open(end.group, self._wishes.lease_s)
            self._check(end)
            if is_durable and start is not None:
                self._delete(start)
        found = [self._ensured(one) for one in found]
        parts = offsets.split(found, self._wishes.task_messages_max, self._wishes.tasks_min)
        return [self._counted(one) for one in parts] if len(parts) <= COUNTED_PARTS_MAX else parts

    def commit(self, raw: Mapping[str, Any]) -> None:
        """Delete what is complete."""
        end = offsets.parse(raw)
        self._was_asked = True
        if end is not None:
            if not self._held:
                self._open(end.group, self._wishes.lease_s)
                self._check(end)
            self._acknowledge(end)

    def newest(self) -> Mapping[str, Any] | None:
        """Give the offset of the newest messages, as they were when the last batch was planned."""
        if not self._held:
            return None
        positions = {
            Lane(queue, partition): one.next
            for queue, held in self._held.items()
            for partition, one in held.positions.items()
        }
        return replace(self._now(), positions=positions).to_json()

    def renew(self) -> None:
        """Use the leases, so that they do not end while a batch takes long; may be called from another thread.

        Raises:
            AngariumError: what the node says.
        """
        for held in list(self._held.values()):
            held.group.positions()

    def close(self) -> None:
        """Let go of the groups; their leases stay."""
        for held in self._held.values():
            held.group.close()
        self._held.clear()

    # Leases.

    def _open(self, name: str, lease_s: float) -> None:
        """Open, or renew, the lease of every queue, and learn its partitions and positions."""
        self._name = name
        for queue in self._wishes.queues:
            group = self._node.open(queue, name, lease_s)
            fresh = _Held(group, group.positions())
            before = self._held.get(queue)
            if before is not None:
                fresh.lapsed |= before.lapsed
            self._held[queue] = fresh
        if self._is_bounded and self._targets is None:
            self._targets = {
                Lane(queue, partition): one.next
                for queue, held in self._held.items()
                for partition, one in held.positions.items()
            }

    def _now(self) -> Offset:
        endpoints = {queue: held.group.endpoint_id for queue, held in self._held.items()}
        node_id = next((held.group.node_id for held in self._held.values()), "")
        return Offset(self._node.name, self._node.vpn, self._name, endpoints, {}, {}, node_id=node_id)

    def _check(self, offset: Offset) -> None:
        now = self._now()
        try:
            offsets.check(offset, now, self._wishes.group)
        except errors.AngariumError:
            is_elsewhere = (offset.node, offset.vpn) != (now.node, now.vpn) or offsets.is_anew(
                offset, now.node_id
            )
            others = [one for one, number in now.endpoints.items() if offset.endpoints.get(one) != number]
            self._give_back(list(self._held) if is_elsewhere else others)
            raise

    def _give_back(self, queues: Iterable[str]) -> None:
        """End the leases of queues that began just now: nobody uses them, and another start must not find them."""
        for queue in queues:
            held = self._held[queue]
            if len(held.lapsed) == len(held.positions):
                with contextlib.suppress(errors.AngariumError):
                    held.group.release()
                    held.group.close()
                del self._held[queue]

    # The start of a batch.

    def _first(self) -> Offset:
        self._was_asked = True
        name = self._wishes.group or GROUP_PREFIX + secrets.token_hex(8)
        self._open(name, min(self._wishes.lease_s, FIRST_LEASE_S))
        begins: dict[Lane, int] = {}
        for queue, held in self._held.items():
            begins |= {Lane(queue, partition): at for partition, at in self._starts(held).items()}
            held.lapsed.clear()
        return replace(self._now(), positions=begins, messages=dict.fromkeys(begins, 0), begins=begins)

    def _starts(self, held: _Held) -> Mapping[int, int]:
        starting = self._wishes.starting
        if starting == EARLIEST:
            return {partition: one.oldest for partition, one in held.positions.items()}
        if starting == LATEST:
            return {partition: one.next for partition, one in held.positions.items()}
        assert isinstance(starting, int)
        return held.group.find_time(dict.fromkeys(held.positions, starting))

    def _continued(self, start: Offset) -> Offset:
        """Give where a batch begins that is not the first: with partitions that came, without those that went."""
        self._open(start.group, self._wishes.lease_s)
        self._check(start)
        # Async progress tracking may call `latest` before a batch is in the checkpoint; but not first of all, and not
        # with Trigger.AvailableNow.
        is_durable = self._is_bounded or not self._was_asked
        self._was_asked = True
        try:
            for queue, held in self._held.items():
                self._check_lapse(queue, held, start)
        except errors.AngariumError:
            self._give_back(list(self._held))
            raise
        if is_durable:
            self._delete(start)
        for held in self._held.values():
            held.lapsed.clear()
        positions: dict[Lane, int] = {}
        begins: dict[Lane, int] = {}
        for queue, held in self._held.items():
            for partition, one in held.positions.items():
                lane = Lane(queue, partition)
                if lane not in start.positions:
                    begins[lane] = one.oldest
                positions[lane] = start.positions.get(lane, one.oldest)
        messages = {lane: start.messages.get(lane, 0) for lane in positions}
        node_id = self._now().node_id or start.node_id  # an earlier version of the node does not tell
        return replace(start, positions=positions, messages=messages, begins=begins, node_id=node_id)

    # What is lost.

    def _check_lapse(self, queue: str, held: _Held, start: Offset) -> None:
        """Count what is there after a lease had ended: others may have consumed it."""
        starts = {
            one: start.positions[Lane(queue, one)]
            for one in held.lapsed
            if Lane(queue, one) in start.positions
        }
        found = held.group.count(starts) if starts else {}
        for partition, first in starts.items():
            end = held.positions[partition].next
            if first > end:
                detail = f"partition {partition} of queue {queue!r} has positions below {end}, the checkpoint {first}"
                raise errors.invalid(detail, "the queue is not the one of the checkpoint")
            if found[partition] < end - first:
                missing = end - first - found[partition]
                why = f"the lease of reader group {self._name!r} had ended, and they were consumed or expired"
                self._lose(Lane(queue, partition), first, end, missing, why)

    def _lose(self, lane: Lane, first: int, end: int, missing: int, why: str) -> None:
        detail = f"{missing} messages of {_named(lane)}, positions {first} to {end - 1} are gone: {why}"
        if self._wishes.fail_on_data_loss:
            raise errors.error_for(errors.MESSAGES_LOST, detail)
        _logger.warning("%s", detail)

    # The end of a batch.

    def _planned(self, base: Offset, limit: Limit) -> Offset:
        starts = {queue: self._open_starts(queue, base) for queue in self._held}
        shares = self._shares(starts, limit)
        positions, messages = dict(base.positions), dict(base.messages)
        for queue, share in shares.items():
            ends = (
                {one: self._targets[Lane(queue, one)] for one in starts[queue]}
                if self._targets is not None
                else None
            )
            planned = self._held[queue].group.plan(starts[queue], share.messages, share.bytes, ends=ends)
            for partition, one in planned.items():
                lane = Lane(queue, partition)
                first = starts[queue][partition]
                if one.start > first:
                    self._lose(lane, first, one.start, one.start - first, "they are acknowledged already")
                positions[lane] = max(one.end, first)
                messages[lane] += one.messages
        return replace(base, positions=positions, messages=messages, starts=base.positions)

    def _open_starts(self, queue: str, base: Offset) -> dict[int, int]:
        """Give the partitions of a queue in which there may be something, and where that starts."""
        found = {}
        for partition, one in self._held[queue].positions.items():
            lane = Lane(queue, partition)
            end = one.next if self._targets is None else min(one.next, self._targets.get(lane, 0))
            if base.positions[lane] < end:
                found[partition] = base.positions[lane]
        return found

    def _is_short_of_target(self, end: Offset) -> bool:
        return any(self._open_starts(queue, end) for queue in self._held)

    def _shares(self, starts: Mapping[str, Mapping[int, int]], limit: Limit) -> dict[str, Limit]:
        wanted = [queue for queue, some in starts.items() if some]
        if len(wanted) < 2 or limit == Limit():
            return dict.fromkeys(wanted, limit)
        backlogs = {queue: sum(self._held[queue].group.count(starts[queue]).values()) for queue in wanted}
        by_messages = offsets.share(limit.messages, backlogs)
        bytes_each = None if limit.bytes is None else max(limit.bytes // max(len(by_messages), 1), 1)
        return {queue: Limit(messages, bytes_each) for queue, messages in by_messages.items()}

    # What tasks read.

    def _ensured(self, one: Range) -> Range:
        """Plan a range once more, which tells what is in it; give it with that."""
        lane = one.lane
        group = self._held[lane.queue].group
        until = self._clock() + OUT_WAIT_S
        while True:
            planned = group.plan({lane.partition: one.first}, ends={lane.partition: one.end})[lane.partition]
            if planned.end >= one.end:
                break
            if self._clock() >= until:
                detail = f"{_named(lane)}: position {planned.end} is out at a consumer"
                raise errors.error_for(errors.TIMEOUT, detail)
            self._sleep(_LOOK_S)
        if planned.messages < one.messages or planned.start > one.first:
            missing = max(one.messages - planned.messages, planned.start - one.first)
            self._lose(
                lane, one.first, one.end, missing, "they were acknowledged, consumed or deleted meanwhile"
            )
        return one._replace(first=max(one.first, planned.start), messages=planned.messages)

    def _counted(self, part: Range) -> Range:
        """Give a part of a range that was divided with the number of its messages, which its task compares."""
        if part.messages >= 0:
            return part
        group, partition = self._held[part.lane.queue].group, part.lane.partition
        planned = group.plan({partition: part.first}, ends={partition: part.end})[partition]
        return part._replace(messages=planned.messages)

    def _delete(self, done: Offset) -> None:
        """Delete a batch that is complete in the checkpoint, also if it went back to the queue as its lease ended."""
        for queue, held in self._held.items():
            left = {
                one: start
                for one in held.lapsed
                if (start := done.starts.get(Lane(queue, one))) is not None
                # What is below is of another time: this is not the queue as the batch left it.
                and start <= held.positions[one].oldest < done.positions[Lane(queue, one)]
            }
            if left:
                held.group.plan(left, ends={one: done.positions[Lane(queue, one)] for one in left})
        self._acknowledge(done)

    def _acknowledge(self, end: Offset) -> None:
        for queue, held in self._held.items():
            ends = {
                one: end.positions[Lane(queue, one)]
                for one in held.positions
                if Lane(queue, one) in end.positions
            }
            if ends:
                held.group.acknowledge(ends)


def _named(lane: Lane) -> str:
    return f"queue {lane.queue!r}, partition {lane.partition}"
