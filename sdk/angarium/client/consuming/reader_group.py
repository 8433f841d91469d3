"""Reader groups: consumers that read a queue by positions, in ranges that they plan and acknowledge.

    group = await client.reader_group("orders", "archive")
    planned = await group.plan({0: 1}, messages=100_000)
    async for batch in client.read_range("orders", "archive", 0, *planned[0][:2]):
        ...
    await group.acknowledge({0: planned[0].end})

A group leases all partitions of a durable queue; other consumers stand by. The lease outlives clients and nodes: who
opens the group again goes on with it. Everything here may be asked for twice, so what is lost with a connection, or
with a process of the node that is replaced, is asked for again until the time is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium import errors
from angarium.client.connection.opening import Closing
from angarium.client.consuming.flow_options import POSITION_MAX
from angarium.client.protocol import answers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from angarium.client.connection.operations import Operations

#: A lease ends when nobody uses it for so long.
LEASE_S: Final = 3600.0
LEASE_S_MIN: Final = 1.0
LEASE_S_MAX: Final = 30 * 86_400.0


class ReaderPosition(NamedTuple):
    """What there is in a partition for a reader group."""

    #: The first message that is there, `next` if none is.
    oldest: int
    #: What the next message will get.
    next: int
    #: Everything that was planned below it is acknowledged with this lease; 0 before the first time.
    acknowledged: int
    #: The end of what is planned with this lease; 0: nothing is.
    planned: int
    #: Messages that are there, those that are planned and not acknowledged among them, and their spool bytes.
    messages: int
    bytes: int
    #: Planned messages that somebody else deleted: an operator, for instance.
    lost: int
    #: Whether the group had the lease already when it was opened here.
    continued: bool


class EndpointPositions(NamedTuple):
    """What a queue or topic endpoint has, for who only looks."""

    endpoint_id: int
    #: By partition; `continued` is False, as there need be no lease.
    lanes: dict[int, ReaderPosition]


class Planned(NamedTuple):
    """A range that belongs to a reader group: `start` to before `end`."""

    start: int
    end: int
    #: In it, and their spool bytes.
    messages: int
    bytes: int


class ReaderGroup(Closing):
    """A reader group that has leased a queue; `Client.reader_group` opens it.

    Partitions are those of the queue; 0 is the only one of a queue without. Positions begin at 1.
    """

    def __init__(self, operations: Operations, queue: str, name: str, timeout_s: float) -> None:
        """Be ready to open; applications call `Client.reader_group`."""
        self._operations = operations
        self._timeout_s = timeout_s
        self.queue: Final = queue
        self.name: Final = name
        #: Of the queue: another queue of the same name has another one.
        self.endpoint_id = 0
        #: Of the node: one that was made anew, or restored, has another one, and gives positions again.
        self.node_id = ""
        #: Partition -> epoch of its lease.
        self._epochs: dict[int, int] = {}
        #: Partitions that the group had leased before.
        self._continued: dict[int, None] = {}
        self._is_closed = False

    @property
    def partitions(self) -> list[int]:
        """The partitions of the queue when it was opened."""
        return list(self._epochs)

    @property
    def continued(self) -> bool:
        """Whether the group had the lease of every partition already when it was opened here."""
        return len(self._continued) == len(self._epochs)

    async def _open(self, lease_s: float) -> None:
        """Lease all partitions, or go on with that.

        Raises:
            AngariumError: as for `Client.reader_group`.
        """
        if not LEASE_S_MIN <= lease_s <= LEASE_S_MAX:
            detail = f"lease_s is {lease_s!r}, from {LEASE_S_MIN:g} to {LEASE_S_MAX:g} is possible"
            raise errors.invalid(detail)
        opened: answers.GroupOpened = await self._ask(
            "open", {"lease_ms": round(lease_s * 1000)}, answers.decode_group, None
        )
        self.endpoint_id, self.node_id = opened.endpoint_id, opened.node_id
        self._epochs = {partition: figures.epoch for partition, figures in opened.lanes}
        self._continued = {partition: None for partition, figures in opened.lanes if figures.continued}

    async def positions(self, *, timeout_s: float | None = None) -> dict[int, ReaderPosition]:
        """Give what there is, by partition.

        Raises:
            ConflictError: the group does not have the lease any more (LEASE_LOST).
            AngariumError: the node refuses, or is not there.
        """
        found = await self._ask_lanes(
            "positions", dict.fromkeys(self._epochs, ()), answers.decode_group_figures, timeout_s
        )
        return {partition: _position(one, continued=partition in self._continued) for partition, one in found}

    async def count(self, starts: Mapping[int, int], *, timeout_s: float | None = None) -> dict[int, int]:
        """Give how many messages there are at these positions and above them, by partition.

        Raises:
            AngariumError: as for `positions`.
        """
        lanes = {partition: (start,) for partition, start in starts.items()}
        found = await self._ask_lanes("count", lanes, answers.decode_group_counts, timeout_s)
        return {partition: messages for partition, (messages, _) in found}

    async def find_time(
        self, times_ms: Mapping[int, int], *, timeout_s: float | None = None
    ) -> dict[int, int]:
        """Give the first position that was spooled at a time (ms since 1970) or later, by partition.

        Of messages that are there; without one it is the position that the next message will get.

        Raises:
            AngariumError: as for `positions`.
        """
        lanes = {partition: (wall_ms,) for partition, wall_ms in times_ms.items()}
        return dict(await self._ask_lanes("find_time", lanes, answers.decode_group_numbers, timeout_s))

    async def plan(
        self,
        starts: Mapping[int, int],
        messages: int | None = None,
        bytes: int | None = None,  # noqa: A002 - the name of the limit everywhere
        *,
        ends: Mapping[int, int] | None = None,
        timeout_s: float | None = None,
    ) -> dict[int, Planned]:
        """Make what comes next the group's own; gives the range of each partition.

        What is in a range neither expires nor moves before it is acknowledged. A range ends before a message that
        may come back (a consumer has it, an operator moves it) or may not be delivered yet. It may be empty.

        Args:
            starts: the first position wanted, by partition.
            messages: limit of all partitions together, None for none.
            bytes: limit of all partitions together in spool bytes, None for none; one message of each partition
                is possible in any case.
            ends: ranges end before these positions at the latest.
            timeout_s: how long to wait for the node, by default that of the group.

        Raises:
            InvalidRequestError: a limit is below 1, or there is no such partition (INVALID_ARGUMENT).
            AngariumError: as for `positions`.
        """
        until = ends or {}
        lanes = {partition: (start, until.get(partition, 0)) for partition, start in starts.items()}
        limits = {"messages": messages, "bytes": bytes}
        for name, limit in limits.items():
            if limit is not None and (type(limit) is not int or not 1 <= limit <= POSITION_MAX):
                detail = f"plan: {name} is {limit!r}, from 1 to {POSITION_MAX} is possible, None for no limit"
                raise errors.invalid(detail)
        found = await self._ask_lanes("plan", lanes, answers.decode_group_plans, timeout_s, limits)
        return {partition: Planned(*planned) for partition, planned in found}

    async def acknowledge(self, ends: Mapping[int, int], *, timeout_s: float | None = None) -> None:
        """Delete what is planned below these positions; it is gone for good when this returns.

        Raises:
            AngariumError: as for `positions`.
        """
        lanes = {partition: (end,) for partition, end in ends.items()}
        await self._ask_lanes("acknowledge", lanes, answers.decode_group_numbers, timeout_s)

    async def release(self, *, timeout_s: float | None = None) -> None:
        """End the lease: consumers get what is not acknowledged, flagged as redelivered if it was planned.

        Raises:
            AngariumError: the node refuses, or is not there.
        """
        await self._ask_lanes("release", dict.fromkeys(self._epochs, ()), answers.decode_done, timeout_s)
        self._is_closed = True

    async def close(self) -> None:
        """Close this object; the lease stays, and continues when the group is opened again."""
        self._is_closed = True

    def __repr__(self) -> str:
        return f"ReaderGroup({self.queue!r}, {self.name!r})"

    async def _ask_lanes(
        self,
        verb: str,
        asked: Mapping[int, tuple[Any, ...]],
        decode: Callable[[bytes], Any],
        timeout_s: float | None,
        limits: dict[str, Any] | None = None,
    ) -> Any:
        """Ask for some partitions: partition -> what is asked behind it and the epoch of its lease."""
        if self._is_closed:
            raise errors.error_for(errors.CLIENT_CLOSED, f"{self} is closed")
        if not asked:
            return []
        unknown = [partition for partition in asked if partition not in self._epochs]
        if unknown:
            detail = f"{self} has no partition {unknown[0]!r}; open it again if the queue has more by now"
            raise errors.invalid(detail)
        numbers = [number for rest in asked.values() for number in rest]
        wrong = [one for one in numbers if type(one) is not int or not 0 <= one <= POSITION_MAX]
        if wrong:
            detail = f"{verb}: {wrong[0]!r} is no position or time, from 0 to {POSITION_MAX} is possible"
            raise errors.invalid(detail)
        lanes = [[partition, self._epochs[partition], *rest] for partition, rest in asked.items()]
        return await self._ask(verb, {"lanes": lanes, **(limits or {})}, decode, timeout_s)

    async def _ask(
        self, verb: str, arguments: dict[str, Any], decode: Callable[[bytes], Any], timeout_s: float | None
    ) -> Any:
        wish = {"name": self.queue, "group": self.name, **arguments}

        async def attempt() -> Any:
            return await self._operations.ask(
                lambda session: session.guaranteed.ask(f"group.{verb}", wish, decode)
            )

        return await self._operations.insist(attempt, self._timeout_s if timeout_s is None else timeout_s)


async def endpoint_positions(
    operations: Operations, name: str, kind: str, timeout_s: float
) -> EndpointPositions:
    """Ask which positions an endpoint has, see `Client.positions`."""

    async def attempt() -> answers.GroupOpened:
        found: answers.GroupOpened = await operations.ask(
            lambda session: session.guaranteed.ask(
                "endpoint.positions", {"kind": kind, "name": name}, answers.decode_group
            )
        )
        return found

    found = await operations.insist(attempt, timeout_s)
    lanes = {partition: _position(one, continued=False) for partition, one in found.lanes}
    return EndpointPositions(found.endpoint_id, lanes)


def _position(figures: answers.GroupFigures, *, continued: bool) -> ReaderPosition:
    return ReaderPosition(
        figures.oldest,
        figures.next,
        figures.acknowledged,
        figures.planned,
        figures.messages,
        figures.bytes,
        figures.lost,
        continued,
    )
