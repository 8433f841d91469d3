"""A Spark of two cores and a node for the tests of the pipeline.

Starting Spark takes seconds, so the modules that one process runs share a session, and each module has a node.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from angarium.testing import Node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

#: Set by scripts/test where there is no Java: the line that says what to install.
JAVA_MISSING = os.environ.get("ANGARIUM_JAVA_MISSING", "")
_REPOSITORY = str(Path(__file__).resolve().parents[2])


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test on Spark where there is no Java; never in CI."""
    if JAVA_MISSING and {"spark", "java"} & set(getattr(item, "fixturenames", ())):
        if os.environ.get("CI"):
            pytest.fail(JAVA_MISSING)
        pytest.skip(JAVA_MISSING)


@pytest.fixture
def java() -> None:
    """Need Java, for a Spark in a process of its own."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Give a session of `local[2]` that knows the format `angarium`."""
    from pyspark.sql import SparkSession

    _let_workers_import()
    folder = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.driver.memory": "1g",
        # Half of the CPU time of a short session goes into compiling code that is hardly used again.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    builder = SparkSession.builder.master("local[2]").appName("angarium-tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def _let_workers_import() -> None:
    """Have Spark's Python workers run this interpreter, with the code under test."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    paths = [_REPOSITORY, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Give the node of a module."""
    with Node(tmp_path_factory.mktemp("node") / "data") as node:
        yield node
