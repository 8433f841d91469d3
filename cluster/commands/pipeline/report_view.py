"""The figures of a report on a terminal: a few lines, and tables of what stands out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cluster.commands import output
from cluster.visible import visible

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Columns of topics and clients, with the figure each shows.
_PARTY: Final = {
    "messages": "messages",
    "per_s": "messages_per_s",
    "peak_per_s": "peak_messages_per_s",
    "payload_bytes": "bytes",
    "size_p50_bytes": "size_p50_bytes",
    "size_max_bytes": "size_max_bytes",
    "p50_ms": "latency_p50_ms",
    "p90_ms": "latency_p90_ms",
    "p99_ms": "latency_p99_ms",
    "max_ms": "latency_max_ms",
    "late": "late",
    "expired": "expired",
    "dead": "dead",
    "ahead": "negative",
}
_NUMBERING: Final = (
    "client",
    "topic",
    "numbered",
    "missing",
    "gaps",
    "duplicates",
    "out_of_order",
    "restarts",
    "highest",
)
_GAPS: Final = ("client", "topic", "missing", "first", "last")
_CAUSES: Final = ("queue", "origin_kind", "origin_endpoint", "origin_reason", "messages")
#: A terminal has no room for more gaps; the page and --json have.
_GAPS_SHOWN: Final = 5


def view(figures: dict[str, Any]) -> RenderableType:
    """Give the report as something that rich draws."""
    from rich.console import Group
    from rich.text import Text

    totals = figures["totals"]
    if not totals["messages"]:
        return Text("There is no message.")
    parts: list[Any] = [Text(visible(line)) for line in summary(figures)]
    for name in ("topic", "client"):
        parts += [Text(""), _parties(figures, name)]
    if figures["causes"]:
        parts += [Text(""), output.table(figures["causes"], _CAUSES, "Moved and dead messages")]
    sequences = figures["sequences"]
    if sequences["totals"]["numbered"]:
        parts += [
            Text(""),
            output.table(sequences["rows"], _with_topic(_NUMBERING, sequences["rows"]), "Numbering"),
        ]
    if sequences["gaps"]:
        rows = sequences["gaps"][:_GAPS_SHOWN]
        parts += [Text(""), output.table(rows, _with_topic(_GAPS, rows), "Largest gaps")]
    return Group(*parts)


def summary(figures: dict[str, Any]) -> list[str]:
    """Give the totals as lines."""
    totals, sums = figures["totals"], figures["sequences"]["totals"]
    dead = totals["redeliveries"] + totals["rejected"]
    lines = [
        f"{output.counted(totals['messages'], 'message')}, {output.size(totals['bytes'])}, "
        f"{totals['messages'] / totals['span_s']:,.1f} a second "
        f"from {output.moment(totals['first'])} to {output.moment(totals['last'])}; "
        f"{output.counted(figures['topics']['count'], 'topic')}, "
        f"{output.counted(figures['clients']['count'], 'client')}",
    ]
    if totals["timed"] > totals["negative"]:
        lines.append(
            f"latency: median {totals['latency_p50_ms']:,} ms, 90 % {totals['latency_p90_ms']:,} ms, "
            f"99 % {totals['latency_p99_ms']:,} ms, at most {totals['latency_max_ms']:,} ms; {totals['late']:,} late, "
            f"{totals['negative']:,} with a clock that is ahead, {totals['untimed']:,} without a sender's time"
        )
    lines.append(
        f"lost or aside: {totals['expired']:,} expired, {dead:,} dead for other reasons, {totals['moved']:,} moved"
    )
    if sums["numbered"]:
        lines.append(
            f"numbering: {sums['missing']:,} missing in {output.counted(sums['gaps'], 'gap')}, "
            f"{output.counted(sums['duplicates'], 'duplicate')}, {sums['out_of_order']:,} out of order, "
            f"{output.counted(sums['restarts'], 'restart')} of {output.counted(sums['publishers'], 'publisher')}"
        )
    return lines


def _parties(figures: dict[str, Any], name: str) -> Any:
    found, span_s = figures[f"{name}s"], figures["totals"]["span_s"]
    rows = [
        {name: row[name] if row[name] is not None else "(no sender id)"} | _shown(row, span_s)
        for row in found["rows"]
    ]
    if found["rest"]:
        rows.append({name: f"(the other {found['count'] - len(rows):,})"} | _shown(found["rest"], span_s))
    return output.table(rows, (name, *_PARTY), f"{name.capitalize()}s")


def _shown(row: dict[str, Any], span_s: float) -> dict[str, Any]:
    values = row | {"messages_per_s": row["messages"] / span_s, "dead": row["redeliveries"] + row["rejected"]}
    return {column: values.get(figure) for column, figure in _PARTY.items()}


def _with_topic(columns: tuple[str, ...], rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """Leave the column of topics out where publishers number all their topics together."""
    return tuple(name for name in columns if name != "topic" or any(row["topic"] is not None for row in rows))
