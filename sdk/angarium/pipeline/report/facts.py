"""What a report looks at of each message: one narrow row, made of the columns of `angarium.spark.schema`.

The payload is looked at here and nowhere else: of it the size counts, and a digest that tells messages apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - the name that every reader of Spark code expects

from angarium import errors
from angarium.spark.schema import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Without these there is nothing to report.
_NEEDED: Final = ("topic", "spooled_timestamp")
#: What tells messages of one publisher and number apart.
_CONTENT: Final = ("topic", "sender_timestamp", "application_message_id", "payload")


def facts(messages: DataFrame) -> DataFrame:
    """Give a narrow row for each message; columns that the data lacks are taken as NULL.

    The columns are topic, client, queue, spooled, sent, size (bytes), content (digest), number, has_ttl, again
    (redelivered), origin_kind, origin_endpoint, origin_reason.

    Raises:
        InvalidRequestError: topic or spooled_timestamp is missing (INVALID_ARGUMENT).
    """
    complete = _with_all_columns(messages)
    return complete.select(
        "topic",
        F.col("sender_id").alias("client"),
        "queue",
        F.col("spooled_timestamp").alias("spooled"),
        F.col("sender_timestamp").alias("sent"),
        F.coalesce(F.octet_length("payload"), F.lit(0)).cast("long").alias("size"),
        F.xxhash64(*_CONTENT).alias("content"),
        F.col("sequence_number").alias("number"),
        F.col("ttl_ms").isNotNull().alias("has_ttl"),
        F.coalesce("redelivered", F.expr("false")).alias("again"),
        "origin_kind",
        "origin_endpoint",
        "origin_reason",
    )


def _with_all_columns(messages: DataFrame) -> DataFrame:
    missing = [name for name in _NEEDED if name not in messages.columns]
    if missing:
        raise errors.invalid(
            f"the data has no column {', '.join(missing)}, only {', '.join(messages.columns)}; a report needs "
            "messages as an archive or format('angarium') has them",
        )
    absent = [column for column in COLUMNS if column.name not in messages.columns]
    return messages.select("*", *(F.lit(None).cast(column.type).alias(column.name) for column in absent))
