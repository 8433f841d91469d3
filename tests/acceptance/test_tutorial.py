"""The tutorial works line by line as it is printed, and once more in the same place."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from document import Desk, blocks
from installation import ROOT

TUTORIAL = ROOT / "docs" / "tutorial"
SPARK = "A stream into Spark"
CLEAN_UP = "Clean up"

#: An hour of a reader takes a minute here; more on a machine that is busy.
pytestmark = [pytest.mark.slow, pytest.mark.requirement("R274"), pytest.mark.timeout(500)]


@pytest.mark.parametrize("part", ["1-publish-and-subscribe", "2-queues-and-workers"])
def test_a_part_works_as_printed_twice_in_a_row(desk: Desk, part: str) -> None:
    page = blocks(TUTORIAL / f"{part}.md")
    for _ in range(2):
        with desk.reader() as reader:
            reader.read(page)


def test_the_mesh_works_as_printed_twice_in_a_row(desk: Desk) -> None:
    page = TUTORIAL / "3-mesh-and-spark.md"
    for _ in range(2):
        with desk.reader(listen=False) as reader:
            reader.read([*blocks(page, until=SPARK), *blocks(page, since=CLEAN_UP)])


def test_the_stream_into_spark_works_as_printed(tmp_path: Path) -> None:
    """The environment of this test run has PySpark; that of the installation has the server only."""
    if missing := os.environ.get("ANGARIUM_JAVA_MISSING"):
        if "CI" in os.environ:
            pytest.fail(missing)
        pytest.skip(missing)
    desk = Desk(tmp_path, Path(sys.executable).parent)
    try:
        with desk.reader(listen=False) as reader:
            reader.read(blocks(TUTORIAL / "3-mesh-and-spark.md"))
    finally:
        desk.clear()
