"""A Spark of two cores and a node for the tests of the pipeline.

Starting Spark takes seconds, so all modules share a session (tests/conftest.py sees to that); each has a node.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from angarium_server.testing import Node
from tests.spark.warm_python import warm_python

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

#: Set by scripts/test where there is no Java: the line that says what to install.
JAVA_MISSING = os.environ.get("ANGARIUM_JAVA_MISSING", "")
#: Faults of one run of --long, each of which costs a start of Java.
FAULTS = int(os.environ.get("ANGARIUM_SPARK_FAULTS", "1"))
#: Java starts slowly on a machine that is busy.
TIMEOUT_S = 480
_HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give time: a limit that cuts off a call to Java leaves the session, which all modules share, of no use to any."""
    for item in items:
        if item.path.parent == _HERE and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test on Spark where there is no Java; never in CI."""
    if JAVA_MISSING and {"spark", "java"} & set(getattr(item, "fixturenames", ())):
        if os.environ.get("CI"):
            pytest.fail(JAVA_MISSING)
        pytest.skip(JAVA_MISSING)


@pytest.fixture
def faults() -> int:
    """Give how many faults a long run has."""
    return FAULTS


@pytest.fixture
def java() -> None:
    """Need Java, for a Spark in a process of its own."""


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give what Spark is told is its Python."""
    with warm_python(tmp_path_factory.mktemp("python")) as program:
        yield str(program)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, python: str) -> Iterator[SparkSession]:
    """Give a session of `local[2]` that knows the format `angarium`."""
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.driver.memory": "1g",
        # Half of the CPU time of a short session goes into compiling code that is hardly used again.
        # Most of what a query makes is garbage at its end; a heap that begins small is looked through all the time.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -Xms600m -Xmn400m",
        "spark.ui.enabled": "false",
        # Queries here see few rows once: Java that is made and compiled for each takes longer than to interpret it. The
        # jobs of the tutorial run with what Spark does by default.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": "2",
        # Every query would be planned once more behind each of its stages.
        "spark.sql.adaptive.enabled": "false",
        # A fifth of the CPU time of a query goes into noting where each column was made, and into looking at the plan
        # after each rule.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.lightweightPlanChangeValidation": "false",
        # Each query is described for a page that nobody has.
        "spark.sql.ui.explainMode": "simple",
        "spark.sql.debug.maxToStringFields": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    builder = SparkSession.builder.master("local[2]").appName("angarium-tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    # For this session alone.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("PYSPARK_PYTHON", python)
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Give the node of a module."""
    with Node(tmp_path_factory.mktemp("node") / "data") as node:
        yield node
