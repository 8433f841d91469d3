"""A driver of its own process: files to a queue, exactly once, with a fault where the environment says.

    python sink_driver.py URL FILES CHECKPOINT QUEUE

`ANGARIUM_SINK_FAULTS` has `<what>:<batch>`, one or several:

    task     the Python worker of a task dies when its rows are staged and its driver does not know yet
    twin     a task stages its rows twice, as two attempts of it do that run side by side, and tells of one of them
    before   the driver is killed when all tasks are done, before it commits
    after    the driver is killed when the batch is committed, before Spark knows

A test has the same in a session of its own by `FaultySource` and its option `faults`: there `before` and `after` are
errors, which end the query.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import psutil
from pyspark import TaskContext
from pyspark.sql import SparkSession

from angarium.spark.datasource import AngariumDataSource
from angarium.spark.sink import StreamWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql.types import StructType

    from angarium.spark.sink import Written

NAME = "angarium_faulty"
FAULTS = "faults"
#: Has the id of this process, for all that Spark starts.
DRIVER = "ANGARIUM_SINK_DRIVER"


class FaultyWriter(StreamWriter):
    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._faults = options.get(FAULTS, "").split()
        super().__init__({k: v for k, v in options.items() if k != FAULTS}, schema, overwrite=overwrite)

    def _is_time(self, what: str, batch: object) -> bool:
        return f"{what}:{batch}" in self._faults

    def write(self, iterator: Iterator[Any]) -> Written:
        context = TaskContext.get()
        assert context is not None
        batch = context.getLocalProperty("streaming.sql.batchId")
        batches = list(iterator)
        written = super().write(iter(batches))
        if self._is_time("task", batch) and context.attemptNumber() == 0:
            os._exit(9)
        return super().write(iter(batches)) if self._is_time("twin", batch) else written

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        if self._is_time("before", batchId):
            kill_driver()
        super().commit(messages, batchId)
        if self._is_time("after", batchId):
            kill_driver()


class FaultySource(AngariumDataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def streamWriter(self, schema: Any, overwrite: bool) -> FaultyWriter:
        return FaultyWriter(self.options, schema, overwrite=overwrite)


def kill_driver() -> None:
    """Kill the JVM of the driver and the program that started it, as a power cut does; if it is ours to kill."""
    if DRIVER not in os.environ:
        raise RuntimeError("the driver is dead")
    driver = psutil.Process(int(os.environ[DRIVER]))
    for process in (*driver.children(recursive=True), driver):
        process.kill()
    os._exit(9)


def main(url: str, files: str, checkpoint: str, queue: str) -> None:
    os.environ[DRIVER] = str(os.getpid())
    builder = SparkSession.builder.master("local[2,4]").appName("sink-driver")
    for name, value in {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -Xms600m -Xmn400m",
        "spark.ui.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.lightweightPlanChangeValidation": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(FaultySource)
    faults = os.environ.get("ANGARIUM_SINK_FAULTS", "")
    deliver(spark, NAME, url, files, checkpoint, queue, **{FAULTS: faults})
    spark.stop()


def deliver(
    spark: SparkSession, name: str, url: str, files: str, checkpoint: str, queue: str, **options: str
) -> None:
    """Bring what is in the files and is not in the queue yet there, by a format of this name."""
    rows = spark.readStream.schema("payload binary").option("maxFilesPerTrigger", 1).parquet(files)
    query = (
        rows.repartition(2)
        .writeStream.format(name)
        .options(url=url, queue=queue, checkpointLocation=checkpoint, **options)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
