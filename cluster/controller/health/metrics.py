"""The metrics of a node as the page `/metrics`, in the text format of Prometheus.

https://prometheus.io/docs/instrumenting/exposition_formats/ says how it looks. Everything is shown that is
declared (`angarium_server.frames.metrics`), under its name there with `angarium_`, the part of the node and, for
counters, `_total` around it:

    messages_in of the router                  angarium_router_messages_in_total
    usage_bytes of the spool                   angarium_spool_usage_bytes
    queued_messages of a link                  angarium_link_queued_messages{neighbour="munich",vpn="default"}
    guaranteed_messages of a bridge            angarium_bridge_guaranteed_messages_total{name="b",vpn="default"}
    rss_bytes of a process                     angarium_process_rss_bytes{role="worker",index="0"}
    lag_ms of a bridge                         angarium_bridge_lag_seconds{name="b",vpn="default"}
    cpu_percent of a process                   angarium_process_cpu_ratio{role="worker",index="0"}

The last two are in base units (https://prometheus.io/docs/practices/naming/). The help of each is its meaning.

Pure: everything was told to the controller within the last seconds, and nobody is asked when somebody looks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium_server.frames.metrics import COUNTER
from cluster.controller.health.checks import passed
from cluster.controller.health.node_metrics import CLUSTER, NODE, PROCESS
from router.ground.metrics import LINK, ROUTER, SPOOL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from angarium_server.frames.metrics import Metric, Metrics
    from cluster.controller.health.checks import Health
    from cluster.roles.role import Role

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
#: End of a name -> what Prometheus has instead, and how much of that one of ours is.
_UNITS: Final[dict[str, tuple[str, float]]] = {
    "_s": ("_seconds", 1),
    "_ms": ("_seconds", 0.001),
    "_percent": ("_ratio", 0.01),
}
#: A link in a meaning; only its text is shown.
_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]+\)")
#: Begins the name of a reason where a session counts it.
_DISCARD: Final = "discard."

Row = Mapping[str, Any]


class Sample(NamedTuple):
    """What a process told last of how it does; empty if it did not answer."""

    role: Role
    labels: Mapping[str, str]
    values: Row


class _Page:
    """Lines by the metric that they are of, in the order in which metrics came."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], list[str]] = {}

    def add(self, metrics: Metrics, values: Row, **labels: object) -> None:
        """Add what is declared of these values and known."""
        for metric in metrics:
            value = values.get(metric.name)
            if metric.label:
                for key, count in (value or {}).items():
                    shown = key.removeprefix(_DISCARD)
                    self._add(metrics.part, metric, count, {**labels, metric.label: shown})
            elif metric.kind and value is not None:
                self._add(metrics.part, metric, value, labels)

    def _add(self, part: str, metric: Metric, value: float, labels: Row) -> None:
        inside = ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())
        name, factor = exposed(part, metric)
        begin = [f"# HELP {name} {_help(metric)}", f"# TYPE {name} {metric.kind}"]
        lines = self._lines.setdefault((part, metric.name), begin)
        # A switch is 0 or 1.
        shown = value + 0 if factor == 1 else round(value * factor, 6)
        lines.append(f"{name}{f'{{{inside}}}' if inside else ''} {shown}")

    def text(self) -> str:
        """Give the whole page."""
        return "".join(f"{line}\n" for lines in self._lines.values() for line in lines)


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
        stats: what the router told last; None if it did not answer, then its metrics are not there.
        cluster: those of the cluster, and under `links` those of each link by the name of the neighbour.
        samples: of the processes whose role has metrics.
    """
    page = _Page()
    verdicts = {name: passed(getattr(health, name)) for name in ("live", "started", "ready")}
    stopping = node.get("phase") == "stopping"
    page.add(NODE, {**verdicts, "stopping": stopping, "uptime_s": node.get("uptime_s", 0.0)})
    for row in node.get("processes", ()):
        used = usage.get(row["pid"], {}) if row["pid"] else {}
        values: Row = {"ready": row["state"] == "ready", "restarts": row.get("restarts", 0), **used}
        page.add(PROCESS, values, role=row["role"], index=row["index"])
    told: Row = stats or {}
    page.add(ROUTER, told)
    page.add(SPOOL, told.get("spool", {}))
    page.add(CLUSTER, cluster)
    for neighbour, values in cluster.get("links", {}).items():
        page.add(CLUSTER, values, neighbour=neighbour)
    for row in told.get("links", ()):
        page.add(LINK, row, neighbour=row["name"], vpn=row["vpn"])
    for role, labels, values in samples:
        assert role.metrics is not None, f"{role.name} shows none"
        page.add(role.metrics, {"up": values.get("state") == "up", **values}, **labels)
    return page.text()


def exposed(part: str, metric: Metric) -> tuple[str, float]:
    """Give the name of a metric on the page, and what a value is multiplied with."""
    own, factor = metric.name, 1.0
    for end, (unit, of_one) in _UNITS.items():
        if own.endswith(end):
            own, factor = own.removesuffix(end) + unit, of_one
            break
    return f"angarium_{part}_{own}{'_total' if metric.kind == COUNTER else ''}", factor


def _help(metric: Metric) -> str:
    text = _LINK.sub(r"\1", metric.meaning)
    return f"{text[:1].upper()}{text[1:]}".replace("\\", "\\\\")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
