"""The tutorial works line by line as it is printed, and with --long once more in the same place."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.document import blocks
from tests.acceptance.installation import ROOT
from tests.share import short
from tests.spark.warm_python import warm_python

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.acceptance.document import Desk
    from tests.acceptance.installation import Installation

TUTORIAL = ROOT / "docs" / "tutorial"
SPARK = "A stream into Spark"
REPORT = "A report"
CLEAN_UP = "Clean up"

IN_A_HURRY = (
    "spark.driver.extraJavaOptions -Xms600m -Xmn400m",
    "spark.python.sql.dataFrameDebugging.enabled false",
    "spark.ui.enabled false",
    "spark.sql.adaptive.enabled false",
    "spark.sql.lightweightPlanChangeValidation false",
    "spark.sql.codegen.wholeStage false",
    "spark.sql.codegen.factoryMode NO_CODEGEN",
    "spark.sql.shuffle.partitions 2",
)

#: An hour of a reader takes a minute here; more on a machine that is busy.
pytestmark = [pytest.mark.slow, pytest.mark.requirement("R274"), pytest.mark.timeout(500)]


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("part", ["1-publish-and-subscribe", "2-queues-and-workers"])
def test_a_part_works_as_printed(
    desk: Desk, installation: Installation, quick: Path, part: str, times: int
) -> None:
    """With --long each command is started as usual; so are those of README at any time."""
    desk.use(installation.folder / "bin", instead=short(quick, long=None))
    page = blocks(TUTORIAL / f"{part}.md")
    for _ in range(times):
        with desk.reader() as reader:
            reader.read(page)


@pytest.fixture
def spark_in_a_hurry(request: pytest.FixtureRequest, desk: Desk, tmp_path: Path) -> Iterator[None]:
    """Have Spark interpret queries, as there are few rows, and not import PySpark in each of its processes.

    With --long it does what it always does.
    """
    if request.config.getoption("--long"):
        yield
        return
    (tmp_path / "spark-defaults.conf").write_text("\n".join(IN_A_HURRY), encoding="ascii")
    with warm_python(tmp_path) as python:
        desk.environment |= {"SPARK_CONF_DIR": str(tmp_path), "PYSPARK_PYTHON": str(python)}
        yield


@pytest.mark.usefixtures("spark_in_a_hurry")
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.long)])
def test_the_mesh_and_the_stream_into_spark_work_as_printed(
    desk: Desk, installation: Installation, quick: Path, times: int, request: pytest.FixtureRequest
) -> None:
    """The environment of this test run has PySpark; that of the installation has the server only, and comes second.

    The report takes a Java of its own for half a minute; tests/spark has the command, --long has it as printed, and
    starts `angarium` each time as a newcomer does.
    """
    missing = os.environ.get("ANGARIUM_JAVA_MISSING")
    if missing and "CI" in os.environ:
        pytest.fail(missing)
    page = TUTORIAL / "3-mesh-and-spark.md"
    without_spark = [*blocks(page, until=SPARK), *blocks(page, since=CLEAN_UP)]
    with_spark = [*blocks(page, until=REPORT), *blocks(page, since=CLEAN_UP)]
    if request.config.getoption("--long"):
        with_spark = blocks(page)
    desk.use(Path(sys.executable).parent, instead=short(quick, long=None))
    with desk.reader(listen=False) as reader:
        reader.read(without_spark if missing else with_spark)
    if times > 1:
        desk.use(installation.folder / "bin")
        with desk.reader(listen=False) as reader:
            reader.read(without_spark)
    if missing:
        pytest.skip(missing)
