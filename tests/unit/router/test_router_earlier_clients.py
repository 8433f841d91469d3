"""What a node says to clients of 0.1.0 as they publish."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from angarium import wire
from tests.unit.router.earlier_client import client_of, read_all
from tests.unit.router.publish_rig import Publisher, PublishNode

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def node() -> Iterator[PublishNode]:
    node = PublishNode()
    yield node
    node.validate()


def test_a_client_of_0_1_0_publishes_direct_messages_and_gets_them(node: PublishNode) -> None:
    client = client_of(node)
    client.subscribe("a/>", "#share/g/a/>")
    client.publish("a/1", ("a/2", b"kept", wire.FLAG_RETAIN), "#share/x", flush=True)
    assert {wire.DELIVER, wire.NOTICE, wire.RETIRED} <= set(read_all(client))
    client.send(wire.BYE, [])
    assert read_all(client) == [wire.CLOSED]


def test_a_client_of_0_1_0_publishes_guaranteed_messages_of_which_some_are_unroutable(
    node: PublishNode,
) -> None:
    node.queue("q", "a")
    client = client_of(node)
    publisher = Publisher(node, client)
    publisher.publish("a", "nowhere", "#P2P/QUE/none")
    assert wire.ACKED in read_all(client)
    assert node.payloads("q") == [b"x"]
    assert Publisher(node, node.client(), publisher.name).last == 3
    assert read_all(client) == [wire.ACKED], "it is told that its producer is over"


def test_what_no_endpoint_took_is_said_to_who_asks_for_it(node: PublishNode) -> None:
    asking, other = (Publisher(node, node.client(unroutable=asks), f"p{asks}") for asks in (True, False))
    for publisher in (asking, other):
        publisher.publish("nowhere")
    assert asking.told() == [[1, 1, [], 0, [[1, 1]]]]
    assert other.told() == [[1, 1, [], 0]]
