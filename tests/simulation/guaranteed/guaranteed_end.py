"""What must hold of homes and disks: limits at any time, and in the end nothing on disk but what is alive.

These checks look inside the state machines; the histories are judged elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.spool import Table
from tests.simulation.guaranteed.holdings import holdings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.event_history import Message
    from tests.simulation.guaranteed.guaranteed_node import GuaranteedNode
    from tests.simulation.guaranteed.guaranteed_world import GuaranteedWorld
    from tests.simulation.guaranteed.records import GuaranteedHistory, Publication

#: A message without payload has so many bytes at most, and is gone so long after it was sent.
ENDING_BYTES = 150
ENDING_S = 6.0


def exceeded(node: GuaranteedNode, world: GuaranteedWorld, history: GuaranteedHistory) -> Iterator[str]:
    """Say which limits are exceeded now: quotas in bytes, files, delivered messages."""
    held, files = holdings(node)
    yield from _quotas(node, world, history, held)
    limits = world.spool.limits
    if len(files) > limits.max_files:
        yield f"{len(files)} spool files are used, {limits.max_files} are allowed"
    homes = [home for index, home in node.homes.items() if node.supervisor.workers.get(index) is not None]
    # What a reader group has planned is out, and has no limit.
    leases = [held.lane.lease for home in homes for held in home.home.lanes]
    planned = sum(lease.out.count for lease in leases if lease is not None)
    unacked = sum(home.home.lanes.unacked for home in homes) - planned
    if unacked > limits.max_delivered_unacked:
        yield f"{unacked} messages are delivered and not settled, {limits.max_delivered_unacked} are allowed"


def _quotas(
    node: GuaranteedNode, world: GuaranteedWorld, history: GuaranteedHistory, held: dict[int, int]
) -> Iterator[str]:
    sums: dict[str, int] = {}
    for endpoint_id, size in held.items():
        endpoint = history.endpoints.get(endpoint_id)
        if endpoint is None or endpoint.deleted_at <= node.loop.now:
            continue
        quotas = [change.attributes["max_spool_usage_mb"] for change in endpoint.changes]
        if 0 in quotas:
            continue  # a last-value queue has no quota
        sums[endpoint.vpn] = sums.get(endpoint.vpn, 0) + size
        if endpoint.retains:
            size -= _ending(node, history, endpoint.vpn)
        if size > max(quotas) * world.mb_bytes:
            yield f"{endpoint} holds {size} bytes, its quota is {max(quotas) * world.mb_bytes}"
    beyond = {vpn: size - _ending(node, history, vpn) for vpn, size in sums.items()}
    for vpn, size in beyond.items():
        quota = max(one.get("max_spool_usage_mb", 10_000) for _, one in history.vpns[vpn]) * world.mb_bytes
        if size > quota:
            yield f"Message VPN {vpn} holds {size} bytes, its quota is {quota}"
    quota = world.spool.limits.max_usage_mb * world.mb_bytes
    if sum(beyond.values()) > quota:
        yield f"the node holds {sum(sums.values())} bytes, its quota is {quota}"


def _ending(node: GuaranteedNode, history: GuaranteedHistory, vpn: str) -> int:
    """Give the bytes of messages that end what is retained: they are taken whatever the quotas, and go soon."""
    since = node.loop.now - ENDING_S
    sent: list[Message | Publication] = [one for one in node.history.messages if one.publisher.vpn == vpn]
    sent += [one for one in history.publications if one.vpn == vpn]
    return ENDING_BYTES * sum(one.is_empty and since <= one.sent_at <= node.loop.now for one in sent)


def disagreements(node: GuaranteedNode, history: GuaranteedHistory) -> Iterator[str]:
    """Say where disk, home and router know different things at rest."""
    for index, place in node.disks.items():
        simulated = node.homes.get(index)
        if simulated is None or node.supervisor.workers.get(index) is None:
            continue
        on_disk = {lane: sorted(found) for lane, found in place.observer.live().items() if found}
        in_home = {}
        for held in simulated.home.lanes:
            positions = sorted(
                segment.first + i
                for segment in held.lane.segments
                for i in range(segment.count)
                if segment.state[i]
            )
            if positions:
                in_home[held.lane_id] = positions
        if on_disk != in_home:
            yield f"worker {index} has {in_home} in memory, and {on_disk} on disk"
        for held in simulated.home.parts.changes.aside:
            why = "it has another home" if held.is_parting else "its deletion was decided"
            yield f"worker {index} keeps lane {held.lane_id} aside, although {why}"
        yield from _orphans(node, index)
    yield from _router(node)


def _orphans(node: GuaranteedNode, index: int) -> Iterator[str]:
    disk = node.disks[index].disk
    segments = {key for key, _ in disk.scan(Table.SEGMENTS)}
    live = node.disks[index].observer.live()
    if len(segments) > sum(len(found) for found in live.values()):
        yield f"the disk of worker {index} has {len(segments)} segments for {live}"
    states = [key for key, _ in disk.scan(Table.STATES) if key not in segments]
    if states:
        yield f"the disk of worker {index} has states without segments: {states[:3]}"
    if disk.count(Table.BLOCKS) > len(segments):
        yield f"the disk of worker {index} has {disk.count(Table.BLOCKS)} blocks for {len(segments)} segments"
    lanes = {int.from_bytes(key, "big") for key, _ in disk.scan(Table.LANES) if len(key) == 8}
    records = {int.from_bytes(key[:8], "big") for key, _ in disk.scan(Table.RECORDS)}
    moves = {int.from_bytes(key, "big") for key, _ in disk.scan(Table.MOVES)}
    if moves - lanes:
        yield f"the disk of worker {index} has moves of lanes {sorted(moves - lanes)}, which are gone"
    if records - lanes:
        yield f"the disk of worker {index} has records of lanes {sorted(records - lanes)}, which are gone"


def _router(node: GuaranteedNode) -> Iterator[str]:
    router = node.router
    assert router is not None
    for endpoint in router.endpoints:
        for lane in endpoint.all_lanes():
            simulated = node.homes.get(lane.home)
            held = None if simulated is None else simulated.home.lanes.get(lane.lane_id)
            if held is None:
                yield f"lane {lane.lane_id} of {endpoint.name} is not at its home {lane.home}"
            elif (lane.messages, lane.bytes, lane.unacked) != (
                held.lane.messages,
                held.lane.bytes,
                held.lane.unacked,
            ):
                yield (
                    f"lane {lane.lane_id} of {endpoint.name}: the router knows {lane.messages} messages, "
                    f"{lane.bytes} bytes and {lane.unacked} unacknowledged, its home has "
                    f"{held.lane.messages}, {held.lane.bytes} and {held.lane.unacked}"
                )
            if lane.inflight_messages or lane.inflight_bytes:
                yield f"lane {lane.lane_id} of {endpoint.name} has {lane.inflight_messages} under way"
