"""A Spark of two cores that runs jobs on demand: the client process of `benchmarks.pipeline`.

The parent writes one line of JSON per job, `{"job": name, ...}`; this process answers each with one line,
`{"rows": n, "seconds": s}` or `{"error": text}`. The session is there, and has run a small job, before the first
answer. What Spark writes to standard output goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

import angarium.spark

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

_PARTITIONS: Final = 2
_JOB_TIMEOUT_S: Final = 600


def session(folder: str) -> SparkSession:
    """Start Spark, with everything that it leaves behind in a folder."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": str(_PARTITIONS),
        "spark.local.dir": f"{folder}/local",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    builder = SparkSession.builder.master("local[2]").appName("angarium-bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    angarium.spark.register(found)
    return found


def queue_to_parquet(spark: SparkSession, task: dict[str, Any]) -> float:
    """Drain a queue into Parquet, as a stream that ends when it is empty."""
    source = spark.readStream.format("angarium").option("url", task["url"]).option("queue", task["queue"])
    return stream_to_parquet(source.load(), task, availableNow=True)


def rate_to_parquet(spark: SparkSession, task: dict[str, Any]) -> float:
    """Write what Spark makes by itself, in one micro-batch of as many rows with as large a payload."""
    source = spark.readStream.format("rate-micro-batch").option("numPartitions", _PARTITIONS)
    rows = source.option("rowsPerBatch", task["count"]).load()
    return stream_to_parquet(with_payload(rows, "value", task["payload_bytes"]), task, once=True)


def stream_to_parquet(rows: DataFrame, task: dict[str, Any], **trigger: bool) -> float:
    """Run a query to its end; gives the seconds that its batches took, as Spark tells them.

    Raises:
        TimeoutError: it does not end.
    """
    writing = rows.writeStream.format("parquet").option("path", task["path"])
    query = writing.option("checkpointLocation", task["path"] + ".checkpoint").trigger(**trigger).start()
    if not query.awaitTermination(_JOB_TIMEOUT_S):
        query.stop()
        raise TimeoutError(f"not done after {_JOB_TIMEOUT_S} s")
    batches = [progress for progress in query.recentProgress if progress.numInputRows]
    return sum(progress.durationMs["triggerExecution"] for progress in batches) / 1_000


def make_parquet(spark: SparkSession, task: dict[str, Any]) -> float:
    """Write the rows that `parquet_to_queue` reads."""
    started = time.monotonic()
    rows = with_payload(spark.range(0, task["count"], 1, _PARTITIONS), "id", task["payload_bytes"])
    topic = fn.concat(fn.lit(f"{task['prefix']}/"), (fn.col("id") % 16).cast("string"))
    rows.select(topic.alias("topic"), "payload").write.parquet(task["path"])
    return time.monotonic() - started


def parquet_to_queue(spark: SparkSession, task: dict[str, Any]) -> float:
    """Publish rows of Parquet, exactly once."""
    started = time.monotonic()
    writer = spark.read.parquet(task["path"]).write.format("angarium").mode("append")
    writer.option("url", task["url"]).option("queue", task["queue"]).save()
    return time.monotonic() - started


def with_payload(rows: DataFrame, number: str, size: int) -> DataFrame:
    """Add a payload of so many bytes, no two of them equal: Parquet works much more on values that are all alike."""
    text = fn.rpad(fn.col(number).cast("string"), size, "x")
    return rows.withColumn("payload", text.cast("binary"))


JOBS: Final[dict[str, Callable[[SparkSession, dict[str, Any]], float]]] = {
    "queue-to-parquet": queue_to_parquet,
    "rate-to-parquet": rate_to_parquet,
    "make-parquet": make_parquet,
    "parquet-to-queue": parquet_to_queue,
}


def rows_in(path: str) -> int:
    """Count the rows of a folder of Parquet by the footers of its files."""
    files = [os.path.join(path, name) for name in os.listdir(path) if name.endswith(".parquet")]
    return sum(pyarrow.parquet.read_metadata(file).num_rows for file in files)


def answer(spark: SparkSession, task: dict[str, Any]) -> dict[str, Any]:
    """Run a job; gives its rows and seconds, or why it failed."""
    try:
        seconds = JOBS[task["job"]](spark, task)
    except (PySparkException, TimeoutError) as error:
        traceback.print_exc()
        said = [line for line in str(error).splitlines() if "Error" in line]
        return {"error": (said or [str(error)])[-1]}
    return {"seconds": seconds, "rows": rows_in(task["path"])}


def main() -> None:
    """Answer jobs until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    spark = session(sys.argv[1])
    spark.range(10).selectExpr("id + 1").collect()
    print("READY", file=answers, flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        print(json.dumps(answer(spark, task)), file=answers, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
