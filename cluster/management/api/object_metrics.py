"""The page `/metrics/objects`: figures of single queues and topic endpoints, for Prometheus.

They are here and not on `/metrics` of the health endpoint, which everybody may read: names of queues tell what a
company does, so an operator logs in for them, and sees his Message VPN only. There may be very many, so each scrape
says which it wants, and how many of them at most; a metric says how many were left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium import errors
from angarium_server.frames.metrics import Metrics
from angarium_server.http.exposition import Page

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LIMIT_DEFAULT: Final = 1_000
LIMIT_MAX: Final = 20_000
KINDS: Final = ("queue", "topic_endpoint")
#: Asked of the controller for each object, beside its metrics.
FIELDS: Final = [
    "vpn",
    "name",
    "messages_spooled",
    "spool_usage_bytes",
    "delivered_unacked",
    "bind_count",
    "oldest_stored_ms",
    "max_spool_usage_mb",
    "ingress_enabled",
    "egress_enabled",
    "counters",
    "messages_in",
    "bytes_in",
    "messages_out",
    "bytes_out",
]
_TABLE: Final = """
    messages_spooled | gauge | messages | that it holds, with those on their way to its homes
    spool_usage_bytes, quota_bytes | gauge | bytes | their spool size; its quota
    delivered_unacked | gauge | messages | delivered to consumers and not settled
    bound_flows | gauge | number | flows that are bound, `bind_count` of lists
    oldest_message_age_s | gauge | s | since its oldest message was spooled; 0: it is empty
    ingress_enabled, egress_enabled | gauge | 0, 1 | whether it takes messages, and gives them
    messages_in, bytes_in | counter | messages, bytes | that came in, since the start of the router
    messages_out, bytes_out | counter | messages, bytes | that left it for good since then
    discards | counter by reason | messages | what it refused or discarded, since the start of the router
    """
ENDPOINT: Final = Metrics("endpoint", _TABLE)
_OF_KINDS: Final = {kind: Metrics(kind, _TABLE) for kind in KINDS}
OBJECTS: Final = Metrics(
    "objects",
    """
    shown, left_out | gauge by kind | number | objects on this page; those that its limit left out
    """,
)


class Wanted(NamedTuple):
    """What a scrape asks for."""

    kinds: tuple[str, ...]
    #: None: all that the operator may see.
    vpn: str | None
    #: A pattern with * and ?.
    name: str
    #: Objects of each kind.
    limit: int


def wanted_by(query: Mapping[str, list[str]]) -> Wanted:
    """Read what stands behind the question mark: kind (again and again), vpn, name, limit.

    Raises:
        InvalidRequestError: something else does, or a value is none (40018).
    """
    if unknown := sorted(set(query) - {"kind", "vpn", "name", "limit"}):
        raise errors.invalid(
            f"{unknown[0][:50]!r} is no parameter of this page: kind, vpn, name and limit are"
        )
    kinds = tuple(dict.fromkeys(query.get("kind", KINDS)))
    if strange := [kind for kind in kinds if kind not in KINDS]:
        raise errors.invalid(f"{strange[0][:50]!r} is no kind: {' and '.join(KINDS)} are")
    limit = query.get("limit", [str(LIMIT_DEFAULT)])[-1]
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 6 and 1 <= int(limit) <= LIMIT_MAX):
        raise errors.invalid(f"limit is a number from 1 to {LIMIT_MAX}")
    return Wanted(kinds, query.get("vpn", [None])[-1], query.get("name", ["*"])[-1], int(limit))


def page(found: Iterable[tuple[str, list[dict[str, Any]]]], limit: int, now_ms: int) -> str:
    """Give the page.

    Args:
        found: kinds, each with its objects: their FIELDS, of which those that the router tells may be None.
        limit: of each kind, so many are shown, by name.
        now_ms: wall time.
    """
    text = Page()
    shown, left_out = {}, {}
    for kind, rows in found:
        kept = sorted(rows, key=lambda row: (row["vpn"], row["name"]))[:limit]
        shown[kind], left_out[kind] = len(kept), len(rows) - len(kept)
        for row in kept:
            text.add(_OF_KINDS[kind], _values(row, now_ms), vpn=row["vpn"], name=row["name"])
    text.add(OBJECTS, {"shown": shown, "left_out": left_out})
    return text.text()


def _values(row: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
    oldest = row.get("oldest_stored_ms")
    return {
        **row,
        "quota_bytes": row["max_spool_usage_mb"] * 1_000_000,
        "oldest_message_age_s": None if oldest is None else max(0, now_ms - oldest) / 1_000 if oldest else 0,
        "bound_flows": row.get("bind_count"),
        "discards": row.get("counters"),
    }
