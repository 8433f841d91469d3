"""Fixtures: wired nodes that are validated when the test is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.router.flow_rig import FakeClient, Rig
from tests.unit.router.publish_rig import PublishNode
from tests.unit.router.wired_mesh import WiredMesh
from tests.unit.router.wired_node import WiredNode

if TYPE_CHECKING:
    from collections.abc import Iterator


def validated(kind: type[Any]) -> Iterator[Any]:
    """Give a maker of things of a kind; each is validated at the end."""
    made: list[Any] = []

    def make(*arguments: Any, **options: Any) -> Any:
        made.append(kind(*arguments, **options))
        return made[-1]

    yield make
    for one in made:
        if isinstance(one, WiredMesh):
            one.run()
        one.validate()


@pytest.fixture
def make_node() -> Iterator[Any]:
    """Give a maker of wired nodes."""
    yield from validated(WiredNode)


@pytest.fixture
def node(make_node: Any) -> WiredNode:
    made: WiredNode = make_node()
    return made


@pytest.fixture
def make_rig() -> Iterator[Any]:
    """Give a maker of rigs for flows."""
    yield from validated(Rig)


@pytest.fixture
def rig(make_rig: Any) -> Rig:
    made: Rig = make_rig()
    return made


@pytest.fixture
def client(rig: Rig) -> FakeClient:
    """Give a client that owns what it consumes."""
    return rig.client("consumer", "owner")


@pytest.fixture
def make_publish_node() -> Iterator[Any]:
    """Give a maker of nodes with homes."""
    yield from validated(PublishNode)


@pytest.fixture
def spooling(make_publish_node: Any) -> PublishNode:
    """Give a node of one worker that spools."""
    made: PublishNode = make_publish_node()
    return made


@pytest.fixture
def make_mesh() -> Iterator[Any]:
    """Give a maker of meshes."""
    yield from validated(WiredMesh)


@pytest.fixture
def pair(make_mesh: Any) -> WiredMesh:
    made: WiredMesh = make_mesh("a", "b")
    return made
