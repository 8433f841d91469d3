"""The tutorial works line by line as it is printed, and with --long once more in the same place."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.document import blocks
from tests.acceptance.installation import ROOT
from tests.share import is_long, short

if TYPE_CHECKING:
    from tests.acceptance.document import Desk
    from tests.acceptance.installation import Installation

TUTORIAL = ROOT / "docs" / "tutorial"
SPARK = "A stream into Spark"
CLEAN_UP = "Clean up"

#: An hour of a reader takes a minute here; more on a machine that is busy.
pytestmark = [pytest.mark.slow, pytest.mark.requirement("R274"), pytest.mark.timeout(500)]


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("part", ["1-publish-and-subscribe", "2-queues-and-workers"])
def test_a_part_works_as_printed(
    desk: Desk, installation: Installation, quick: Path, part: str, times: int
) -> None:
    """With --long each command is started as usual."""
    desk.use(installation.folder / "bin", instead=short(quick, long=None))
    page = blocks(TUTORIAL / f"{part}.md")
    for _ in range(times):
        with desk.reader() as reader:
            reader.read(page)


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.long)])
def test_the_mesh_and_the_stream_into_spark_work_as_printed(
    desk: Desk, installation: Installation, quick: Path, times: int
) -> None:
    """The environment of this test run has PySpark; that of the installation has the server only, and comes second.

    What is about Spark takes a Java of its own for half a minute, each time: tests/spark has the stream of the page and
    the command of the report, --long has them as printed, and starts `angarium` each time as a newcomer does.
    """
    missing = os.environ.get("ANGARIUM_JAVA_MISSING")
    page = TUTORIAL / "3-mesh-and-spark.md"
    without_spark = [*blocks(page, until=SPARK), *blocks(page, since=CLEAN_UP)]
    desk.use(Path(sys.executable).parent, instead=short(quick, long=None))
    with desk.reader(listen=False) as reader:
        reader.read(blocks(page) if is_long() and not missing else without_spark)
    if times > 1:
        desk.use(installation.folder / "bin")
        with desk.reader(listen=False) as reader:
            reader.read(without_spark)
    if is_long() and missing:
        pytest.skip(missing)
