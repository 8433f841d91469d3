"""The figures of a report on a terminal: a few lines, and tables of what stands out."""

from __future__ import annotations

from typing import Any, Final

from angarium_server.visible import visible
from cluster.commands.terminal import table

#: Columns of topics and clients with the figure each shows, those first that are looked at most.
_PARTY: Final = {
    "messages": "messages",
    "rate_per_s": "messages_per_s",
    "p50_ms": "latency_p50_ms",
    "p99_ms": "latency_p99_ms",
    "max_ms": "latency_max_ms",
    "late": "late",
    "expired": "expired",
    "dead": "dead",
    "payload_bytes": "bytes",
    "peak_per_s": "peak_messages_per_s",
    "p90_ms": "latency_p90_ms",
    "size_p50_bytes": "size_p50_bytes",
    "size_max_bytes": "size_max_bytes",
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


def view(figures: dict[str, Any], width: int) -> list[str]:
    """Give the report as lines."""
    totals = figures["totals"]
    if not totals["messages"]:
        return ["There is no message."]
    lines = [visible(line) for line in summary(figures)]
    for name in ("topic", "client"):
        lines += _part(f"{name.capitalize()}s", _parties(figures, name), (name, *_PARTY), width)
    if figures["causes"]:
        lines += _part("Moved and dead messages", figures["causes"], _CAUSES, width)
    sequences = figures["sequences"]
    if sequences["totals"]["numbered"]:
        lines += _part("Numbering", sequences["rows"], _with_topic(_NUMBERING, sequences["rows"]), width)
    if sequences["gaps"]:
        rows = sequences["gaps"][:_GAPS_SHOWN]
        lines += _part("Largest gaps", rows, _with_topic(_GAPS, rows), width)
    return lines


def _part(title: str, rows: list[dict[str, Any]], columns: tuple[str, ...], width: int) -> list[str]:
    """Give a table below an empty line and its title, without columns that hold nothing."""
    name, *rest = columns
    telling = [column for column in rest if any(row.get(column) not in (None, 0) for row in rows)]
    drawn = table.table(rows, (name, *telling), width)
    return ["", title, drawn.header, *drawn.body]


def summary(figures: dict[str, Any]) -> list[str]:
    """Give the totals as lines."""
    totals, sums = figures["totals"], figures["sequences"]["totals"]
    dead = totals["redeliveries"] + totals["rejected"]
    lines = [
        f"{table.counted(totals['messages'], 'message')}, {table.size(totals['bytes'])}, "
        f"{totals['messages'] / totals['span_s']:,.1f} a second "
        f"from {table.moment(totals['first'])} to {table.moment(totals['last'])}; "
        f"{table.counted(figures['topics']['count'], 'topic')}, "
        f"{table.counted(figures['clients']['count'], 'client')}",
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
            f"numbering: {sums['missing']:,} missing in {table.counted(sums['gaps'], 'gap')}, "
            f"{table.counted(sums['duplicates'], 'duplicate')}, {sums['out_of_order']:,} out of order, "
            f"{table.counted(sums['restarts'], 'restart')} of {table.counted(sums['publishers'], 'publisher')}"
        )
    return lines


def _parties(figures: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found, span_s = figures[f"{name}s"], figures["totals"]["span_s"]
    rows = [
        {name: row[name] if row[name] is not None else "(no sender id)"} | _shown(row, span_s)
        for row in found["rows"]
    ]
    if found["rest"]:
        rows.append({name: f"(the other {found['count'] - len(rows):,})"} | _shown(found["rest"], span_s))
    return rows


def _shown(row: dict[str, Any], span_s: float) -> dict[str, Any]:
    values = row | {"messages_per_s": row["messages"] / span_s, "dead": row["redeliveries"] + row["rejected"]}
    return {column: values.get(figure) for column, figure in _PARTY.items()}


def _with_topic(columns: tuple[str, ...], rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """Leave the column of topics out where publishers number all their topics together."""
    return tuple(name for name in columns if name != "topic" or any(row["topic"] is not None for row in rows))
