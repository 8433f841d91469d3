"""The figures of a node as the page `/metrics`, in the text format of Prometheus.

https://prometheus.io/docs/instrumenting/exposition_formats/ says how it looks. The names are those of docs/metrics.md
with `angarium_`, the part of the node and, for totals, `_total` around them, so that there is one list of figures:

    messages_in of the router                  angarium_router_messages_in_total
    usage_bytes of the spool                   angarium_spool_usage_bytes
    queued_messages of a link                  angarium_link_queued_messages{neighbour="munich",vpn="default"}
    guaranteed_messages of a bridge            angarium_bridge_guaranteed_messages_total{name="b",vpn="default"}
    rss_bytes of a process                     angarium_process_rss_bytes{role="worker",index="0"}

Pure: everything was told to the controller within the last seconds, and nobody is asked when somebody looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cluster.controller.health.checks import passed
from cluster.roster.table import ROLES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cluster.controller.health.checks import Health
    from cluster.roles.role import Role

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
#: What goes up and down; every other number counts from the start of its process.
GAUGES: Final = {
    "router": {
        "sessions",
        "subscriptions",
        "filters",
        "memory_bytes",
        "cache_bytes",
        "queued_bytes",
        "eliding_topics",
        "endpoints",
        "flows",
        "publishers_waiting",
        "logins_waiting",
        "strangers",
        "requests_waiting",
    },
    "spool": {
        *(
            "messages",
            "usage_bytes",
            "quota_bytes",
            "disk_bytes",
            "files",
            "files_max",
            "endpoints",
            "producers",
        ),
        *("delivered_unacked", "delivered_unacked_max", "stores_under_way", "rounds_waiting"),
        *(
            "homes_ready",
            "recovered",
            "staged_messages",
            "staged_bytes",
            "stages_settling",
            "lanes_kept_aside",
        ),
    },
    "link": {
        "synchronised",
        "encrypted",
        "uptime_s",
        "subscriptions_in",
        "untold",
        "queued_messages",
        "queued_bytes",
        "subscriptions_dropped",
    },
    "cluster": {
        *("topology_issues", "nodes", "nodes_up", "up", "lag_ms", "progress_percent"),
        *("spooled_messages", "spooled_bytes", "retry_messages", "dead_messages"),
    },
    "process": {"ready", "rss_bytes", "cpu_percent", "uptime_s"},
    "node": {"live", "started", "ready", "stopping", "uptime_s"},
    # What processes tell themselves is declared with their role.
    **{role.name: role.figures.gauges for role in ROLES.values() if role.figures is not None},
}
#: Seconds have their long name in Prometheus.
_SECONDS: Final = "_s"

Row = Mapping[str, Any]


class Sample(NamedTuple):
    """What a process told last of how it does; empty if it did not answer."""

    role: Role
    labels: Mapping[str, str]
    figures: Row


class _Page:
    """Samples by the name of their figure, in the order in which figures came."""

    def __init__(self) -> None:
        self._samples: dict[str, list[str]] = {}

    def add(self, part: str, figures: Row, **labels: object) -> None:
        """Add each figure that is a number."""
        inside = ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())
        for name, value in figures.items():
            if isinstance(value, int | float):
                kind = "gauge" if name in GAUGES[part] else "counter"
                full = f"angarium_{part}_{_prometheus(name)}{'' if kind == 'gauge' else '_total'}"
                samples = self._samples.setdefault(f"# TYPE {full} {kind}", [])
                # A switch is 0 or 1.
                samples.append(f"{full}{f'{{{inside}}}' if inside else ''} {value + 0}")

    def text(self) -> str:
        """Give the whole page."""
        return "".join(f"{line}\n" for head, samples in self._samples.items() for line in (head, *samples))


def metrics(
    health: Health,
    node: Row,
    usage: Mapping[int, Row],
    stats: Row | None,
    cluster: Row,
    samples: Iterable[Sample],
) -> str:
    """Give the page.

    Args:
        health: how the node does.
        node: what the supervisor told last.
        usage: what each pid uses.
        stats: what the router told last; None if it did not answer, then its figures are not there.
        cluster: figures of the cluster, and under `links` those of each link by the name of the neighbour.
        samples: of the processes whose role has figures.
    """
    page = _Page()
    verdicts = {name: passed(getattr(health, name)) for name in ("live", "started", "ready")}
    stopping = node.get("phase") == "stopping"
    page.add("node", {**verdicts, "stopping": stopping, "uptime_s": node.get("uptime_s", 0.0)})
    for row in node.get("processes", ()):
        used = usage.get(row["pid"], {}) if row["pid"] else {}
        figures: Row = {"ready": row["state"] == "ready", "restarts": row.get("restarts", 0), **used}
        page.add("process", figures, role=row["role"], index=row["index"])
    told: Row = stats or {}
    page.add("router", told)
    for code, count in told.get("errors", {}).items():
        page.add("router", {"errors": count}, code=code)
    for reason, count in told.get("discards", {}).items():
        page.add("router", {"discards": count}, reason=reason)
    page.add("spool", told.get("spool", {}))
    page.add("cluster", cluster)
    for neighbour, figures in cluster.get("links", {}).items():
        page.add("cluster", figures, neighbour=neighbour)
    _add_links(page, told.get("links", ()))
    for sample in samples:
        _add_sample(page, *sample)
    return page.text()


def _add_links(page: _Page, rows: Iterable[Row]) -> None:
    for row in rows:
        labels = {"neighbour": row["name"], "vpn": row["vpn"]}
        page.add("link", row, **labels)
        for reason, count in row.get("discards", {}).items():
            page.add("link", {"discards": count}, **labels, reason=reason.removeprefix("discard."))


def _add_sample(page: _Page, role: Role, labels: Row, row: Row) -> None:
    assert role.figures is not None, f"{role.name} shows none"
    state = {"up": row.get("state") == "up"} if "up" in role.figures.gauges else {}
    page.add(role.name, {**state, **row}, **labels)
    for name, label in role.figures.splits.items():
        for key, count in row.get(name, {}).items():
            page.add(role.name, {name: count}, **labels, **{label: key})


def _prometheus(name: str) -> str:
    return f"{name.removesuffix(_SECONDS)}_seconds" if name.endswith(_SECONDS) else name


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
