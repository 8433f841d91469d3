"""The figures of a lane under the names that operators know, in snake_case (docs/metrics.md).

What begins with `total_` or names an event counts since the worker started; the rest is how things are now.
`docs/metrics.md` explains each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from node.home.lanes.held_lanes import HeldLane

#: Figure -> what the lane calls it.
_OF_THE_LANE: Final = {
    "messages_spooled": "messages",
    "bytes_spooled": "bytes",
    "delivered_unacked": "unacked",
    "messages_ready": "ready",
    "messages_delayed": "held",
    "messages_moving": "moving",
    "oldest_stored_ms": "oldest_stored_ms",
    "total_messages_spooled": "spooled",
    "total_bytes_spooled": "spooled_bytes",
    "messages_delivered": "delivered",
    "messages_redelivered": "redelivered",
    "messages_browsed": "browsed",
    "confirmed_delivered": "accepted",
    "request_for_redelivery": "failed",
    "rejected": "rejected",
    "settles_refused": "settles_refused",
    "selector_examined": "selector_examined",
    "selector_match": "selector_matched",
    "selector_discard": "selector_discarded",
    "last_value_replaced": "replaced",
    "total_deleted_messages": "deleted",
    "purged_messages": "purged",
    "segments": "segments",
    "consumer_flows": "consumers",
    "browser_flows": "browsers",
}
#: Figure -> what the lane calls it; a message that could not be moved is counted by the home.
_DISCARDS: Final = {
    "ttl_expired_discard": "expired_discarded",
    "max_redelivery_exceeded_discard": "redeliveries_discarded",
    "rejected_discard": "rejected_discarded",
}
#: What the home counts of every lane.
_OF_THE_HOME: Final = (
    "ttl_expired_to_dmq",
    "ttl_expired_to_dmq_failures",
    "max_redelivery_exceeded_to_dmq",
    "max_redelivery_exceeded_to_dmq_failures",
    "rejected_to_dmq",
    "rejected_to_dmq_failures",
    "messages_unreadable",
)


def lane_figures(held: HeldLane) -> dict[str, Any]:
    """Give the figures of a lane: numbers, and the reader group that has leased it."""
    stats = held.lane.stats()
    counts = held.counts
    oldest = next(iter(held.lane.segments), None)
    figures = {figure: stats[name] for figure, name in _OF_THE_LANE.items()}
    figures.update((figure, stats[name] + counts.get(figure, 0)) for figure, name in _DISCARDS.items())
    figures.update((figure, counts.get(figure, 0)) for figure in _OF_THE_HOME)
    lease = held.lane.leasing.lease
    return {
        **figures,
        "reader_group": "" if lease is None else lease.group,
        "leased_messages": held.lane.leasing.held,
        "lease_lost_messages": 0 if lease is None else lease.lost,
        "longest_lease_s": 0 if lease is None else round(lease.lease_s),
        "oldest_lease_ms": 0 if lease is None else lease.epoch,
        "messages_staged": held.staged[0],
        "bytes_staged": held.staged[1],
        "high_water_mark_messages": held.peak_messages,
        "high_water_mark_bytes": held.peak_bytes,
        "oldest_position": 0 if oldest is None else oldest.first,
        "newest_position": held.accepted,
    }
