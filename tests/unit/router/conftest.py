"""Fixtures: wired nodes that are validated when the test is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.router.flow_rig import Rig
from tests.unit.router.publish_rig import PublishNode
from tests.unit.router.wired_mesh import WiredMesh
from tests.unit.router.wired_node import WiredNode

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


@pytest.fixture
def make_rig() -> Iterator[Any]:
    """Give a maker of rigs for flows; each is validated at the end."""
    made: list[Rig] = []

    def make(homes: int = 1, **options: Any) -> Rig:
        rig = Rig(homes, **options)
        made.append(rig)
        return rig

    yield make
    for rig in made:
        rig.validate()


@pytest.fixture
def rig(make_rig: Any) -> Rig:
    made = make_rig()
    assert isinstance(made, Rig)
    return made


@pytest.fixture
def make_publish_node() -> Iterator[Any]:
    """Give a maker of nodes with homes; each is validated at the end."""
    made: list[PublishNode] = []

    def make(workers: int = 1, rows: list[list[Any]] | None = None, **options: Any) -> PublishNode:
        node = PublishNode(workers, rows, **options)
        made.append(node)
        return node

    yield make
    for node in made:
        node.validate()


@pytest.fixture
def spooling(make_publish_node: Any) -> PublishNode:
    """Give a node of one worker that spools."""
    made = make_publish_node()
    assert isinstance(made, PublishNode)
    return made


@pytest.fixture
def make_mesh() -> Iterator[Any]:
    """Give a maker of meshes; each is validated at the end."""
    made: list[WiredMesh] = []

    def make(*names: str, **options: Any) -> WiredMesh:
        made.append(WiredMesh(*names, **options))
        return made[-1]

    yield make
    for mesh in made:
        mesh.run()
        mesh.validate()


@pytest.fixture
def pair(make_mesh: Any) -> WiredMesh:
    mesh = make_mesh("a", "b")
    assert isinstance(mesh, WiredMesh)
    return mesh
