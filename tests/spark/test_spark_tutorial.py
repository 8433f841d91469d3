"""The stream of the tutorial, as it is printed, in the session that these tests share.

tests/acceptance reads the rest of the page as a newcomer does, and with --long all of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from angarium import Message, blocking
from tests.acceptance.document import blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from angarium_server.testing import Node

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "3-mesh-and-spark.md"
URL = "tcp://127.0.0.1:55555"
CITIES = ("berlin", "munich")


@pytest.mark.slow
@pytest.mark.requirement("R221", "R274")
def test_the_stream_prints_what_the_page_says(
    spark: SparkSession, node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = blocks(PAGE, since="A stream into Spark", until="A report")
    (program,) = (one.text for one in page if one.title == "stream.py")
    (expected,) = (one.text for one in page if one.language == "text")
    assert program.count(URL) == 1
    with blocking.connect(node.url) as client:
        client.create_queue("orders", subscriptions=["orders/>"])
        with client.producer() as producer:
            producer.publish_many(
                Message(f"orders/{city}/{line}", b"an order", mode="persistent")
                for city in CITIES
                for line in range(500)
            )
            producer.flush()
    here = program.replace(URL, node.url).replace("lake/", f"{tmp_path}/lake/")
    exec(compile(here, "stream.py", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == expected
