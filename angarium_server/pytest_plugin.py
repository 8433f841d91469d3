"""The pytest fixture `angarium_node`, for every project in whose environment the server is installed.

pytest imports this module in each run, also where nobody uses the fixture, so it imports nothing of ours itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from angarium_server.testing import Node


@pytest.fixture
def angarium_node(tmp_path: Path) -> Iterator[Node]:
    """A fresh node with two workers, stopped after the test."""
    from angarium_server.testing import Node

    with Node(tmp_path / "angarium-data") as node:
        yield node
