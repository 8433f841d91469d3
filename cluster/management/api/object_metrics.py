"""The page `/metrics/objects`: figures of single objects and gateways, for Prometheus.

They are here and not on `/metrics` of the health endpoint, which everybody may read: names of queues tell what a
company does, so an operator logs in for them, and sees his Message VPN only. There may be very many, so each scrape
says which it wants, and how many of them at most; a metric says how many were left out.

What `/metrics` has too, of links, gateways, webhooks and bridges, has other names here: who scrapes both counts
nothing twice.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium import errors
from angarium_server.frames.metrics import Metrics
from angarium_server.http.exposition import Page
from cluster.objects import is_like

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Row = Mapping[str, Any]

LIMIT_DEFAULT: Final = 1_000
LIMIT_MAX: Final = 20_000
#: Asked of the controller for each queue and topic endpoint, beside its metrics.
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
    "reader_group",
    "dead_message_queue",
]
_ENDPOINT: Final = """
    messages_spooled | gauge | messages | that it holds, with those on their way to its homes
    spool_usage_bytes, quota_bytes | gauge | bytes | their spool size; its quota
    delivered_unacked | gauge | messages | delivered to consumers and not settled
    bound_flows | gauge | number | flows that are bound, `bind_count` of lists
    oldest_message_age_s | gauge | s | since its oldest message was spooled; 0: it is empty
    ingress_enabled, egress_enabled | gauge | 0, 1 | whether it takes messages, and gives them
    messages_in, bytes_in | counter | messages, bytes | that came in, since the start of the router
    messages_out, bytes_out | counter | messages, bytes | that left it for good since then
    discards | counter by reason | messages | what it refused or discarded, since the start of the router
    leased | gauge by reader_group | 1 | the reader group that has leased it, such as a stream of Spark
    dead_message_queue | gauge by dead_message_queue | 1 | the queue for its dead messages
    """
_STATE: Final = """
    up | gauge | 0, 1 | whether its state is `up`, or `standby`
    state | gauge by state | 1 | its state
    """
ENDPOINT: Final = Metrics("endpoint", _ENDPOINT)
LINK: Final = Metrics(
    "object_link",
    _STATE,
    """
    lag_ms | gauge | ms | an answer of the neighbour's router takes so long, of the slowest channel
    progress_percent | gauge | % | how much of what both sides want is in force
    uptime_s | gauge | s | since it is up
    messages_in, messages_out | counter | messages | from and to the neighbour, of all channels, since it is up
    queued_messages, queued_bytes | gauge | messages, bytes | direct ones that wait for the neighbour
    spooled_messages, spooled_bytes | gauge | messages, bytes | guaranteed ones that wait for it, in `#link/NODE`
    retry_messages, dead_messages | gauge | messages | in `#link/NODE/retry` and `#link/NODE/dmq`
    subscriptions_in, subscriptions_out | gauge | number | that the neighbour wants of this node; and this node of it
    """,
)
GATEWAY: Final = Metrics(
    "object_gateway",
    """
    up | gauge | 0, 1 | whether its process is ready
    restarts | counter | number | times that it was started again
    connections, clients | gauge | number | open connections; clients that are attached to the router
    messages_in, messages_out | counter | messages | of clients, given to the router; for clients
    discarded | counter | messages | for clients of MQTT, discarded by the router because the process was slow
    queued_bytes | gauge | bytes | that wait for slow clients of MQTT
    refused_messages | counter by code | messages | of clients, refused by the router
    """,
)
WEBHOOK: Final = Metrics(
    "object_webhook",
    _STATE,
    """
    attempts | counter | number | requests that were begun
    accepted, failed, rejected | counter | number | of them, answered with 2xx; tried again; the last ones of a message
    under_way | gauge | number | requests without an answer yet
    waiting | gauge | messages | taken, and posted later
    held_bytes | gauge | bytes | of messages that are taken and not settled
    """,
)
BRIDGE: Final = Metrics(
    "object_bridge",
    _STATE,
    """
    lag_ms | gauge | ms | how long the remote node takes to answer
    uptime_s | gauge | s | since it is up
    attempts | counter | number | to connect, since its process started
    messages, guaranteed_messages | counter | messages | direct ones that it took; those that are stored here
    queued_messages | gauge | messages | that the remote queue holds
    under_way | gauge | messages | of them, taken and not settled yet
    dropped | counter by reason | messages | not taken
    discarded | counter | messages | dropped on the remote node because the bridge was slow
    refused | counter by code | messages | refused by this node
    """,
)
SINK: Final = Metrics(
    "object_sink",
    """
    batch | gauge | number | the newest batch that it has committed
    last_commit_age_s | gauge | s | since then
    """,
)
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
    #: Whether it names the kinds; else those are left out that the operator may not see.
    is_exact: bool = False


def _endpoint(row: Row, now_ms: int) -> dict[str, Any]:
    oldest = row.get("oldest_stored_ms")
    return {
        **row,
        "quota_bytes": row["max_spool_usage_mb"] * 1_000_000,
        "oldest_message_age_s": None if oldest is None else max(0, now_ms - oldest) / 1_000 if oldest else 0,
        "bound_flows": row.get("bind_count"),
        "discards": row.get("counters"),
        "leased": {row["reader_group"]: 1} if row.get("reader_group") else {},
        "dead_message_queue": {row["dead_message_queue"]: 1},
    }


def _with_state(row: Row, _now_ms: int) -> dict[str, Any]:
    return {**row, "up": row["state"] in ("up", "standby"), "state": {row["state"]: 1}}


def _sink(row: Row, now_ms: int) -> dict[str, Any]:
    used_s = datetime.fromisoformat(row["last_used"]).timestamp()
    return {**row, "last_commit_age_s": max(0.0, now_ms / 1_000 - used_s)}


def _gateway(row: Row, _now_ms: int) -> dict[str, Any]:
    return {**row, "up": row["state"] == "ready"}


class Kind(NamedTuple):
    """How one kind comes to the page."""

    metrics: Metrics
    #: What the controller is asked.
    operation: str
    #: Gives the values of a row.
    values: Callable[[Row, int], Mapping[str, Any]]


_KINDS: Final = {
    "queue": Kind(Metrics("queue", _ENDPOINT), "endpoints.list", _endpoint),
    "topic_endpoint": Kind(Metrics("topic_endpoint", _ENDPOINT), "endpoints.list", _endpoint),
    "link": Kind(LINK, "links.list", _with_state),
    "gateway": Kind(GATEWAY, "gateways.list", _gateway),
    "webhook": Kind(WEBHOOK, "webhooks.list", _with_state),
    "bridge": Kind(BRIDGE, "bridges.list", _with_state),
    "sink": Kind(SINK, "sinks.list", _sink),
}
KINDS: Final = tuple(_KINDS)
#: All that may be on the page.
TABLES: Final = (*(kind.metrics for kind in _KINDS.values()), OBJECTS)
#: Those that are of the node, and in no Message VPN.
OF_NODE: Final = ("link", "gateway")


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
        raise errors.invalid(f"{strange[0][:50]!r} is no kind: {', '.join(KINDS)} are")
    limit = query.get("limit", [str(LIMIT_DEFAULT)])[-1]
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 6 and 1 <= int(limit) <= LIMIT_MAX):
        raise errors.invalid(f"limit is a number from 1 to {LIMIT_MAX}")
    vpn = query.get("vpn", [None])[-1]
    if vpn is not None:
        # What is in no Message VPN is in none of this name.
        kinds = tuple(kind for kind in kinds if kind not in OF_NODE)
    return Wanted(kinds, vpn, query.get("name", ["*"])[-1], int(limit), is_exact="kind" in query)


def question(kind: str, wanted: Wanted) -> tuple[str, dict[str, Any]]:
    """Give what to ask the controller for the objects of a kind: operation and arguments."""
    operation = _KINDS[kind].operation
    match operation:
        case "endpoints.list":
            asked = {"kind": kind.replace("_", "-"), "vpn": wanted.vpn, "name": wanted.name}
            return operation, {**asked, "fields": FIELDS}
        case "links.list":
            return operation, {"name": wanted.name}
        case "gateways.list":
            return operation, {}
    return operation, {"vpn": wanted.vpn, "name": wanted.name}


def page(found: Iterable[tuple[str, list[dict[str, Any]]]], wanted: Wanted, now_ms: int) -> str:
    """Give the page.

    Args:
        found: kinds, each with what the controller answered; what the router tells of endpoints may be None.
        wanted: which of them are shown, and how many of each kind, by name.
        now_ms: wall time.
    """
    text = Page()
    shown, left_out = {}, {}
    for name, rows in found:
        kind = _KINDS[name]
        fitting = [row for row in rows if is_like(row["name"], wanted.name)]
        kept = sorted(fitting, key=lambda row: (row.get("vpn") or "", row["name"]))[: wanted.limit]
        shown[name], left_out[name] = len(kept), len(fitting) - len(kept)
        for row in kept:
            labels = {} if name in OF_NODE else {"vpn": row["vpn"]}
            if name == "sink":
                labels["username"] = row["username"]
            text.add(kind.metrics, kind.values(row, now_ms), **labels, name=row["name"])
    text.add(OBJECTS, {"shown": shown, "left_out": left_out})
    return text.text()
