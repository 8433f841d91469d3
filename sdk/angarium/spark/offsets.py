"""Offsets of a streaming query: what its checkpoint holds of queues, and everything that follows from it alone.

An offset says of each queue which endpoint it was, and how far each partition is read:

    {"version": 1, "node": "n1", "node_id": "6b0e…", "vpn": "default", "group": "spark-5f0c…",
     "endpoints": {"17": {"queue": "orders", "positions": {"0": 1201}, "messages": {"0": 1180}}},
     "starts": {"17": {"0": 901}},
     "begins": {"17": {"0": 1}}}

`positions` are exclusive ends. `messages` counts what was read since the query began; the difference of two offsets is
what a range must hold, so a range that is not whole is found out. `starts` is where the batch begins that ends here, so
that who finds it complete knows what to delete. `begins` is where partitions start that the offset before does not
have, as all of them in the first batch: Spark asks for the initial offset again when it repeats that batch, and must
then get what it got. So the initial offset says nothing, and the first planned one everything. For the same reason the
name of the reader group is here: the checkpoint is all that a restarted driver has.

Pure functions, neither Spark nor a node.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium import errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

VERSION: Final = 1
#: The offset of a query that has planned nothing.
INITIAL: Final[dict[str, Any]] = {"version": VERSION}
#: Spark tasks of one batch at most, whatever the options say: each costs the driver memory and a connection.
SPLITS_MAX: Final = 10_000

_NEW_CHECKPOINT: Final = "give this query a checkpoint location of its own"


class Lane(NamedTuple):
    """A partition of a queue."""

    queue: str
    partition: int


@dataclass(frozen=True, slots=True)
class Offset:
    """What one offset says."""

    node: str
    vpn: str
    group: str
    #: Endpoint id of each queue.
    endpoints: Mapping[str, int]
    #: Where the next batch starts.
    positions: Mapping[Lane, int]
    #: Messages that were read since the query began; the same lanes.
    messages: Mapping[Lane, int]
    #: Where lanes start that the offset before does not have.
    begins: Mapping[Lane, int] = field(default_factory=dict)
    #: Where the batch starts that ends here; unknown if an earlier version planned it.
    starts: Mapping[Lane, int] = field(default_factory=dict)
    #: With another one the node gives positions again; empty: an earlier version does not tell.
    node_id: str = ""

    def to_json(self) -> dict[str, Any]:
        """Give what Spark writes into the checkpoint."""
        endpoints = {
            str(number): {
                "queue": queue,
                "positions": _of_queue(self.positions, queue),
                "messages": _of_queue(self.messages, queue),
            }
            for queue, number in sorted(self.endpoints.items())
        }
        found: dict[str, Any] = {
            "version": VERSION,
            "node": self.node,
            **({"node_id": self.node_id} if self.node_id else {}),
            "vpn": self.vpn,
            "group": self.group,
            "endpoints": endpoints,
        }
        for name, places in (("starts", self.starts), ("begins", self.begins)):
            if places:
                found[name] = {
                    str(number): _of_queue(places, queue) for queue, number in sorted(self.endpoints.items())
                }
        return found


def parse(raw: Mapping[str, Any]) -> Offset | None:
    """Read an offset; None for the initial one.

    Raises:
        InvalidRequestError: it is not ours, or of a later version (INVALID_ARGUMENT).
    """
    if raw.get("version") != VERSION:
        raise _wrong(f"its offsets have version {raw.get('version')!r}, this release reads {VERSION}")
    if "endpoints" not in raw:
        return None
    try:
        return _parsed(raw)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _wrong(f"its offsets cannot be read: {error!r}") from None


def check(offset: Offset, now: Offset, configured_group: str | None) -> None:
    """Check that an offset is of the queues that a query reads.

    Args:
        offset: from the checkpoint.
        now: what is there: node, VPN, and the endpoint of each queue that the options name; nothing else of it counts.
        configured_group: the option `group`, if it was given.

    Raises:
        InvalidRequestError: it is of something else (INVALID_ARGUMENT); the text says of what.
    """
    for what, was, has in (("node", offset.node, now.node), ("Message VPN", offset.vpn, now.vpn)):
        if was != has:
            raise _wrong(f"it is of {what} {was!r}, and the query reads from {what} {has!r}")
    if is_anew(offset, now.node_id):
        raise _wrong(f"node {now.node!r} was made anew or restored since then, and gives positions again")
    was_queues, has_queues = sorted(offset.endpoints), sorted(now.endpoints)
    if was_queues != has_queues:
        raise _wrong(f"it is of {_listed(was_queues)}, and option queue names {_listed(has_queues)}")
    for queue, number in now.endpoints.items():
        if offset.endpoints[queue] != number:
            raise _wrong(
                f"it is of a queue {queue!r} that was deleted (endpoint {offset.endpoints[queue]}), and "
                f"queue {queue!r} is another one now (endpoint {number})"
            )
    if configured_group is not None and configured_group != offset.group:
        raise _wrong(
            f"it is of reader group {offset.group!r}, and option group is {configured_group!r}",
            f"set option group to {offset.group!r} or leave it out, or {_NEW_CHECKPOINT}",
        )


def is_anew(offset: Offset, node_id: str) -> bool:
    """Tell whether the node gives positions again that an offset names."""
    return bool(offset.node_id and node_id) and offset.node_id != node_id


class Range(NamedTuple):
    """Messages of one lane that a batch reads: those from `first` to before `end`."""

    lane: Lane
    first: int
    end: int
    #: How many there must be.
    messages: int


def ranges(start: Offset | None, end: Offset) -> list[Range]:
    """Give what lies between two offsets, lanes without messages left out.

    Raises:
        InvalidRequestError: they are not of one query (INVALID_ARGUMENT).
    """
    found = []
    for lane, upto in sorted(end.positions.items()):
        known = start is not None and lane in start.positions
        if not known and lane not in end.begins:
            raise _wrong(f"it does not say where partition {lane.partition} of {lane.queue!r} begins")
        first = start.positions[lane] if start is not None and known else end.begins[lane]
        before = start.messages.get(lane, 0) if start is not None else 0
        if upto > first:
            found.append(Range(lane, first, upto, end.messages[lane] - before))
    return found


def split(found: Iterable[Range], messages_max: int | None, parts_min: int | None) -> list[Range]:
    """Divide ranges into what single tasks read, in their order.

    Positions are dense, so equal parts of positions are about equal parts of messages. A part of a range that is
    divided does not know how many messages it has: -1.

    Args:
        found: the ranges, each read by one task if nothing else is asked for.
        messages_max: messages that a task reads at most, or None.
        parts_min: how many parts there should be if there are fewer ranges, and so many messages; or None.
    """
    found = list(found)
    total = sum(one.end - one.first for one in found)
    size = min(
        messages_max or total, -(-total // parts_min) if parts_min and len(found) < parts_min else total
    )
    size = max(size, -(-total // SPLITS_MAX), 1)
    parts: list[Range] = []
    for one in found:
        length = one.end - one.first
        pieces = -(-length // size)
        if pieces == 1:
            parts.append(one)
            continue
        cuts = [one.first + length * piece // pieces for piece in range(pieces + 1)]
        parts.extend(Range(one.lane, cuts[at], cuts[at + 1], -1) for at in range(pieces))
    return parts


def share(limit: int | None, backlogs: Mapping[str, int]) -> dict[str, int | None]:
    """Divide a limit among queues: each gets an equal share, and what one does not need the others get.

    Args:
        limit: of all together, or None for no limit.
        backlogs: what each queue has; one without backlog gets nothing.

    Returns:
        The limit of each queue that has something, at least 1.
    """
    wanting = sorted((size, queue) for queue, size in backlogs.items() if size > 0)
    if limit is None:
        return {queue: None for _, queue in wanting}
    shares: dict[str, int | None] = {}
    for at, (size, queue) in enumerate(wanting):
        part = max(min(size, limit // (len(wanting) - at)), min(limit, 1))
        if part:
            shares[queue] = part
        limit -= part
    return shares


def _of_queue(values: Mapping[Lane, int], queue: str) -> dict[str, int]:
    return {str(lane.partition): value for lane, value in sorted(values.items()) if lane.queue == queue}


def _parsed(raw: Mapping[str, Any]) -> Offset:
    queues = {number: str(one["queue"]) for number, one in raw["endpoints"].items()}

    def lanes(name: str) -> dict[Lane, int]:
        return {
            Lane(queues[number], int(partition)): int(value)
            for number, one in raw["endpoints"].items()
            for partition, value in one[name].items()
        }

    def places(name: str) -> dict[Lane, int]:
        return {
            Lane(queues[number], int(partition)): int(value)
            for number, one in raw.get(name, {}).items()
            for partition, value in one.items()
        }

    endpoints = {queue: int(number) for number, queue in queues.items()}
    node, vpn, group = (str(raw[name]) for name in ("node", "vpn", "group"))
    counts = lanes("positions"), lanes("messages")
    node_id = str(raw.get("node_id", ""))
    return Offset(node, vpn, group, endpoints, *counts, places("begins"), places("starts"), node_id)


def _listed(queues: list[str]) -> str:
    return f"queue{'s' if len(queues) > 1 else ''} {', '.join(repr(one) for one in queues)}"


def _wrong(detail: str, advice: str = "") -> errors.AngariumError:
    why = f"the checkpoint is not of what this query reads: {detail}"
    return errors.invalid(why, advice or _NEW_CHECKPOINT)
