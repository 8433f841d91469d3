"""The figures of a report, in a form that can be merged: one cell for each window, topic and client.

A **cell** holds counts, extremes and two sketches (sizes, latencies) of the messages of one topic and one client
(`sender_id`) that were spooled in one window. All other tables are cells merged by fewer keys, so messages are read
once, whether they come from an archive or trickle in, and what is merged grows with topics and clients, not messages.

Sketches are KLL sketches (Karnin, Lang, Liberty 2016, "Optimal quantile approximation in streams"), which Spark brings.
A percentile is exact for up to `SKETCH_SIZE` messages, and beyond that off by at most 0.13 % of the ranks.

What is counted as what:

- **Latency**: spooled time minus sender's time, in ms. A sender's clock that is ahead makes it negative: such a message
  is counted (`negative`, the worst in `latency_min_ms`) and left out of the percentiles. Without a sender's time:
  `untimed`.
- **Late**: spooled more than `late_ms` after the sender's time.
- **Expired**, **redeliveries**, **rejected**: dead messages, found where they were moved to, a dead message queue. What
  expired where there is none left no trace in any queue; the metrics of the node count it.
- **Moved**: moved, copied or redriven by an operator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - the name that every reader of Spark code expects

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: The `k` of the sketches; so many values are kept exactly.
SKETCH_SIZE: Final = 4096
QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
#: Reasons for which the node moves a message, see docs/protocol.md.
_DEAD: Final = ("expired", "redeliveries", "rejected")

_SUMS: Final = (
    "messages",
    "bytes",
    "timed",
    "negative",
    "untimed",
    "late",
    "with_ttl",
    *_DEAD,
    "moved",
    "redelivered",
    "numbered",
)
_LEAST: Final = ("size_min_bytes", "latency_min_ms", "first")
_MOST: Final = ("size_max_bytes", "latency_max_ms", "last")
_SKETCHES: Final = ("sizes", "latencies")


def cells(found: DataFrame, window_s: int, late_ms: int) -> DataFrame:
    """Aggregate messages to cells.

    Args:
        found: as `facts.facts` gives them.
        window_s: width of a window in seconds; windows begin at multiples of it since 1970.
        late_ms: from when on a message is late, in ms.
    """
    reason = F.col("origin_reason")
    latency = F.unix_millis("spooled") - F.unix_millis("sent")
    rows = found.select("*", window_start("spooled", window_s).alias("start"), latency.alias("latency"))
    timely = F.when(F.col("latency") >= 0, F.col("latency"))
    return rows.groupBy("start", "topic", "client").agg(
        F.count("*").alias("messages"),
        F.sum("size").alias("bytes"),
        F.count("latency").alias("timed"),
        F.count_if(F.col("latency") < 0).alias("negative"),
        F.count_if(F.col("latency").isNull()).alias("untimed"),
        F.count_if(F.col("latency") > late_ms).alias("late"),
        F.count_if("has_ttl").alias("with_ttl"),
        *(F.count_if(reason == name).alias(name) for name in _DEAD),
        F.count_if(reason.isNotNull() & ~reason.isin(*_DEAD)).alias("moved"),
        F.count_if("again").alias("redelivered"),
        F.count("number").alias("numbered"),
        F.min("size").alias("size_min_bytes"),
        F.min("latency").alias("latency_min_ms"),
        F.min("spooled").alias("first"),
        F.max("size").alias("size_max_bytes"),
        F.max(timely).alias("latency_max_ms"),
        F.max("spooled").alias("last"),
        F.kll_sketch_agg_bigint("size", F.lit(SKETCH_SIZE)).alias("sizes"),
        F.kll_sketch_agg_bigint(timely, F.lit(SKETCH_SIZE)).alias("latencies"),
    )


def window_start(column: str, window_s: int) -> Column:
    """Give the begin of the window that a time lies in."""
    return F.timestamp_seconds(F.floor(F.unix_seconds(column) / window_s) * window_s)


def merged(found: DataFrame, *keys: str | Column) -> DataFrame:
    """Merge cells, or tables of cells, by fewer keys; without a key to one row, or none if there is no cell."""
    return (
        found.groupBy(*keys)
        .agg(
            *(F.sum(name).alias(name) for name in _SUMS),
            *(F.min(name).alias(name) for name in _LEAST),
            *(F.max(name).alias(name) for name in _MOST),
            *(F.kll_merge_agg_bigint(name).alias(name) for name in _SKETCHES),
        )
        .where(F.col("messages") > 0)
    )


def with_percentiles(found: DataFrame) -> DataFrame:
    """Put percentiles in the place of the sketches; of latency they are NULL where nothing was timed."""
    names = [name for name in found.columns if name not in _SKETCHES]
    wanted = F.array(*(F.lit(q) for q in QUANTILES.values()))
    quantiles = found.select(
        *names,
        *(
            F.when(F.kll_sketch_get_n_bigint(name) > 0, F.kll_sketch_get_quantile_bigint(name, wanted)).alias(
                name
            )
            for name in _SKETCHES
        ),
    )
    return quantiles.select(
        *names,
        *(F.col("sizes")[i].alias(f"size_{name}_bytes") for i, name in enumerate(QUANTILES)),
        *(F.col("latencies")[i].alias(f"latency_{name}_ms") for i, name in enumerate(QUANTILES)),
    )
