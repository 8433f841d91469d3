"""The figures that a report shows: all tables as Spark has them, and what fits on a page of them.

`Tables` are whole, one row for each topic, client, window and so on; they are written as Parquet. `collect_figures`
brings to the driver what a person can look at: totals, the busiest topics and clients, the rest of each as one row, and
at most `WINDOWS_SHOWN` windows. What comes to the driver is bounded, whatever the number of messages or topics.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - the name that every reader of Spark code expects

from angarium.pipeline.report.cells import merged, with_percentiles
from angarium.pipeline.report.sequences import capped_sum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, Row

#: More columns than that nobody can tell apart in a chart.
WINDOWS_SHOWN: Final = 240
#: Topics and clients in tables and charts by default.
TOP: Final = 20
CAUSES_SHOWN: Final = 100
GAPS_SHOWN: Final = 50

#: Bounds of the bars of a distribution in bytes and in ms; above the last one is one bar more.
EDGES: Final = {
    "sizes": (0, *(1 << power for power in range(31))),
    "latencies": (0, *(step * 10**power for power in range(11) for step in (1, 2, 5))),
}
#: Widths of windows that people can count in, in seconds.
WIDTHS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)

_RESTS: Final = "rest"


@dataclass(frozen=True)
class Tables:
    """All figures, as tables of Spark."""

    #: As `cells.cells` gives them; kept by Spark, since everything comes from them.
    cells: DataFrame
    #: As `sequences.publishers` and `sequences.largest_gaps` give them, from runs that are kept likewise.
    publishers: DataFrame
    gaps: DataFrame
    #: queue, origin_kind, origin_endpoint, origin_reason, messages.
    causes: DataFrame
    window_s: int

    @cached_property
    def topic_windows(self) -> DataFrame:
        """Cells by window and topic."""
        return merged(self.cells, "start", "topic")

    @cached_property
    def client_windows(self) -> DataFrame:
        """Cells by window and client."""
        return merged(self.cells, "start", "client")

    def named(self) -> dict[str, DataFrame]:
        """Give the tables that are written, by name."""
        return {
            "totals": with_percentiles(merged(self.cells)),
            "windows": self._rated(with_percentiles(merged(self.cells, "start"))),
            "topics": self.by_name("topic"),
            "clients": self.by_name("client"),
            "topic_windows": self._rated(with_percentiles(self.topic_windows)),
            "client_windows": self._rated(with_percentiles(self.client_windows)),
            "causes": self.causes,
            "sequences": self.publishers,
            "gaps": self.gaps,
        }

    def by_name(self, name: str) -> DataFrame:
        """Give a row for each topic or client, with the rates of its busiest window."""
        windows = self._rated(self.topic_windows if name == "topic" else self.client_windows)
        peaks = windows.groupBy(F.col(name).alias("peak_name")).agg(
            *(F.max(rate).alias(f"peak_{rate}") for rate in ("messages_per_s", "bytes_per_s"))
        )
        rows = with_percentiles(merged(self.cells, name))
        return rows.join(peaks, F.col(name).eqNullSafe(F.col("peak_name"))).drop("peak_name")

    def _rated(self, windows: DataFrame) -> DataFrame:
        """Add rates; what is in no window any more has none, however much it is."""
        is_window = F.col("start").isNotNull()
        return windows.select(
            "*",
            *(
                F.when(is_window, F.col(name) / self.window_s).alias(f"{name}_per_s")
                for name in ("messages", "bytes")
            ),
        )


def causes_of(found: DataFrame) -> DataFrame:
    """Count the messages that came from another endpoint, by why and from where."""
    origin = ("origin_kind", "origin_endpoint", "origin_reason")
    moved = found.where(F.col("origin_reason").isNotNull() | F.col("origin_endpoint").isNotNull())
    return moved.groupBy("queue", *origin).agg(F.count("*").alias("messages"))


def window_width(found: DataFrame) -> int:
    """Give the width of windows in seconds with which all of them fit on a page."""
    bounds = found.agg(
        F.unix_seconds(F.min("spooled")).alias("first"),
        F.unix_seconds(F.max("spooled")).alias("last"),
    ).first()
    span_s = 0 if bounds is None or bounds["first"] is None else bounds["last"] - bounds["first"]
    return fitting_width(span_s, 1)


def fitting_width(span_s: int, least_s: int) -> int:
    """Give a width, a multiple of another one, with which a span needs at most `WINDOWS_SHOWN` windows.

    The span is from the start of one window of the other width to that of another.
    """
    wanted = [width for width in WIDTHS_S if width % least_s == 0 and span_s / width < WINDOWS_SHOWN - 1]
    if span_s / least_s <= WINDOWS_SHOWN - 1:
        wanted.append(least_s)
    return min(wanted, default=least_s * (1 + span_s // (least_s * (WINDOWS_SHOWN - 1))))


def collect_figures(tables: Tables, top: int = TOP) -> dict[str, Any]:
    """Bring what a page shows to the driver, as JSON has it.

    Args:
        tables: the figures.
        top: so many topics and clients are named, the rest is one row.
    """
    totals = _totals(tables.cells)
    if totals is None:
        return {"totals": {"messages": 0}, "window_s": tables.window_s}
    bars = {name: _bars(EDGES[name], totals.pop(name)) for name in EDGES}
    counts = {name: totals.pop(f"{name}_count") for name in ("topic", "client")}
    span_s = max(1.0, (totals["last"] - totals["first"]) / 1000) if totals["first"] is not None else 1.0
    # What is older than the windows that are kept needs no place among them.
    shown_s = fitting_width(totals.pop("windows_span_s") or 0, tables.window_s)
    figures: dict[str, Any] = {
        "totals": totals | {"span_s": span_s},
        "window_s": tables.window_s,
        "shown_window_s": shown_s,
        "windows": _windows(tables.cells, shown_s),
        **bars,
        "causes": _some(tables.causes, [F.col("messages").desc(), *tables.causes.columns[:4]], CAUSES_SHOWN),
        "sequences": _sequences(tables, top),
    }
    for name in ("topic", "client"):
        figures[f"{name}s"] = _busiest(tables, name, top, counts[name])
        names = [row[name] for row in figures[f"{name}s"]["rows"]]
        figures[f"{name}_windows"] = _series(tables.cells, name, names, shown_s)
    return figures


def _totals(cells: DataFrame) -> dict[str, Any] | None:
    """Give the totals, with the numbers of topics and clients and what `_bars` needs, all from one pass."""
    whole = merged(cells)
    spread = [
        F.when(F.kll_sketch_get_n_bigint(name) > 0, F.struct(*_ranks(name, edges))).alias(f"{name}_ranks")
        for name, edges in EDGES.items()
    ]
    counts = cells.agg(
        F.count_distinct("topic").alias("topic_count"),
        (F.count_distinct("client") + F.max(F.col("client").isNull().cast("long"))).alias("client_count"),
        (F.unix_seconds(F.max("start")) - F.unix_seconds(F.min("start"))).alias("windows_span_s"),
    )
    found = with_percentiles(whole.select("*", *spread)).crossJoin(counts)
    totals = _one(found)
    if totals is not None:
        totals |= {name: totals.pop(f"{name}_ranks") for name in EDGES}
    return totals


def _ranks(sketch: str, edges: Sequence[int]) -> list[Column]:
    wanted = F.array(*(F.lit(edge).cast("long") for edge in edges))
    return [
        F.kll_sketch_get_n_bigint(sketch).alias("n"),
        F.kll_sketch_get_rank_bigint(sketch, wanted).alias("ranks"),
    ]


def _bars(edges: Sequence[int], found: Row | None) -> list[dict[str, int | None]]:
    """Give how many values lie between two edges: above `above`, up to `upto` (None: without bound)."""
    if found is None:
        return []
    below = [0, *(round(rank * found["n"]) for rank in found["ranks"]), found["n"]]
    bounds = [None, *edges, None]
    bars = [
        {"above": bounds[place], "upto": bounds[place + 1], "messages": below[place + 1] - below[place]}
        for place in range(len(below) - 1)
    ]
    used = [place for place, bar in enumerate(bars) if bar["messages"]]
    return bars[used[0] : used[-1] + 1]


def _busiest(tables: Tables, name: str, top: int, count: int) -> dict[str, Any]:
    rows = _some(tables.by_name(name), [F.col("messages").desc(), F.col(name)], top)
    rest = None
    if count > len(rows):
        others = tables.cells.where(~_is_one_of(name, [row[name] for row in rows]))
        rest = _one(with_percentiles(merged(others)))
    return {"count": count, "rows": rows, "rest": rest}


def _is_one_of(name: str, names: Sequence[str | None]) -> Column:
    """Tell whether a column has one of some values; NULL is a value like others."""
    found = F.coalesce(F.col(name).isin([one for one in names if one is not None]), F.expr("false"))
    return found | F.col(name).isNull() if None in names else found


def _coarse(width_s: int) -> Column:
    return (F.floor(F.unix_seconds("start") / width_s) * width_s * 1000).cast("long").alias("start_ms")


def _windows(cells: DataFrame, width_s: int) -> list[dict[str, Any]]:
    rows = with_percentiles(merged(cells.where(F.col("start").isNotNull()), _coarse(width_s)))
    return _some(rows, ["start_ms"], WINDOWS_SHOWN)


def _series(cells: DataFrame, name: str, names: Sequence[str | None], width_s: int) -> list[dict[str, Any]]:
    """Give messages and bytes of each window for each of some topics or clients, and of the rest together."""
    shown = _is_one_of(name, names)
    counted = (
        cells.where(F.col("start").isNotNull())
        .groupBy(_coarse(width_s), (~shown).alias(_RESTS), F.when(shown, F.col(name)).alias(name))
        .agg(F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes"))
    )
    found: dict[tuple[bool, Any], dict[str, Any]] = {
        (False, one): {name: one, _RESTS: False, "points": []} for one in names
    }
    for row in counted.orderBy("start_ms").limit(WINDOWS_SHOWN * (len(names) + 1)).collect():
        key = (row[_RESTS], row[name])
        series = found.setdefault(key, {name: None, _RESTS: True, "points": []})
        series["points"].append([row["start_ms"], row["messages"], row["bytes"]])
    return list(found.values())


def _sequences(tables: Tables, top: int) -> dict[str, Any]:
    sums = ("runs", "restarts", "numbered", "missing", "gaps", "duplicates", "out_of_order")
    found = tables.publishers
    totals = _one(found.agg(F.count("*").alias("publishers"), *(capped_sum(name) for name in sums)))
    assert totals is not None, "an aggregation without keys has a row"
    trouble = F.col("missing") + F.col("duplicates") + F.col("out_of_order") + F.col("restarts")
    return {
        "totals": totals,
        "rows": _some(found, [trouble.desc(), F.col("numbered").desc(), "client", "topic"], top),
        "gaps": _some(tables.gaps, [F.col("missing").desc(), "client", "topic", "first"], GAPS_SHOWN),
    }


def _one(frame: DataFrame) -> dict[str, Any] | None:
    row = frame.select(*_timeless(frame)).first()
    return None if row is None else _plain(row)


def _some(frame: DataFrame, order: Sequence[str | Column], limit: int) -> list[dict[str, Any]]:
    return [_plain(row) for row in frame.orderBy(*order).limit(limit).select(*_timeless(frame)).collect()]


def _timeless(frame: DataFrame) -> list[Column]:
    """Give the columns of a table with times as ms since 1970, so that no time zone comes between."""
    return [
        F.unix_millis(F.col(name)).alias(name) if kind == "timestamp" else F.col(name)
        for name, kind in frame.dtypes
    ]


def _plain(row: Row) -> dict[str, Any]:
    return {name: value for name, value in row.asDict().items() if not isinstance(value, dt.datetime | bytes)}
