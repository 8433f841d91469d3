"""Nodes with several workers each, not as many on both sides of a link: nothing is reordered, lost or doubled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from angarium import blocking
from tests.integration.mesh_messages import has_one, publish_until, receive_all
from tests.integration.mesh_nodes import Mesh
from tests.integration.mesh_queues import add_queue, drain, numbers, persistent
from tests.share import some

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNT = 3_000
#: So many that every worker has some of them.
TOPICS = 40
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Node a with two workers, and node b with four."""
    mesh = Mesh(tmp_path_factory.mktemp("uneven"), 2, workers=2)
    mesh.nodes["b"] = mesh.make("b", workers=4)
    with mesh:
        mesh.join()
        yield mesh


@pytest.mark.parametrize(("here", "there"), some((("a", "b"), ("b", "a")), of=2))
def test_direct_messages_keep_their_order_between_nodes_with_several_workers(
    uneven: Mesh, here: str, there: str
) -> None:
    with blocking.connect(uneven[here].url) as publisher, blocking.connect(uneven[there].url) as client:
        subscription = client.subscribe("many/>")
        publish_until(publisher, "many/probe", has_one(subscription))
        receive_all(subscription)
        publisher.publish_many([(f"many/{n % TOPICS}", payload) for n, payload in enumerate(numbers(COUNT))])
        publisher.flush()
        assert receive_all(subscription, 2.0) == numbers(COUNT)


@pytest.mark.requirement("R89")
@pytest.mark.parametrize(("here", "there"), some((("a", "b"), ("b", "a")), of=2))
def test_guaranteed_messages_keep_their_order_between_nodes_with_several_workers(
    uneven: Mesh, here: str, there: str
) -> None:
    add_queue(uneven, there, f"kept-{there}", f"kept/{there}/>")
    with blocking.connect(uneven[here].url) as publisher:
        messages = [persistent(f"kept/{there}/{n % TOPICS}", one) for n, one in enumerate(numbers(COUNT))]
        report = publisher.producer().publish_many(messages)
    assert report.acknowledged == COUNT
    assert drain(uneven[there], f"kept-{there}") == numbers(COUNT)
