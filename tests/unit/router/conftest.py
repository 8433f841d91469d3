"""Fixtures: wired nodes that are validated when the test is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from wired_node import WiredNode

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def make_node() -> Iterator[Any]:
    """Give a maker of wired nodes; each is validated at the end."""
    made: list[WiredNode] = []

    def make(workers: int = 1, rows: list[list[Any]] | None = None, **config: Any) -> WiredNode:
        node = WiredNode(workers, rows, **config)
        made.append(node)
        return node

    yield make
    for node in made:
        node.validate()


@pytest.fixture
def node(make_node: Any) -> WiredNode:
    made = make_node()
    assert isinstance(made, WiredNode)
    return made
