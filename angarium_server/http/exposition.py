"""The text format of Prometheus: metrics as the pages `/metrics` and `/metrics/objects` show them.

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
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from angarium_server.frames.metrics import COUNTER

if TYPE_CHECKING:
    from angarium_server.frames.metrics import Metric, Metrics

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


class Page:
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
