"""Ranges of positions that are browsed: they end by themselves, take nothing, and need no lease."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import Message, blocking, errors
from angarium_server.testing import Node

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.requirement("R221")]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("browsed") / "data", workers=2) as node:
        yield node


@pytest.fixture(scope="module")
def client(node: Node) -> Iterator[blocking.Client]:
    with blocking.connect(node.url) as client:
        yield client


def publish(client: blocking.Client, topic: str, count: int, **options: Any) -> None:
    producer = client.producer()
    messages = [
        Message(topic, str(at).encode(), mode="persistent", sequence_number=at, **options)
        for at in range(count)
    ]
    assert not producer.publish_many(messages).refused
    producer.close()


def browsed(
    client: blocking.Client, name: str, partition: int, first: int, end: int, **more: Any
) -> list[int]:
    batches = client.browse_range(name, partition, first, end, **more)
    return [position for batch in batches for position in batch.positions]


def test_a_range_ends_by_itself_and_leaves_its_messages(client: blocking.Client) -> None:
    client.create_queue("plain")
    publish(client, "#P2P/QUE/plain", 5_000)
    found = client.positions("plain")
    assert (found.lanes[0].oldest, found.lanes[0].next, found.lanes[0].messages) == (1, 5_001, 5_000)
    assert browsed(client, "plain", 0, 1, 5_001) == list(range(1, 5_001))
    assert browsed(client, "plain", 0, 2_000, 2_003) == [2_000, 2_001, 2_002]
    assert browsed(client, "plain", 0, 7, 7) == []
    assert browsed(client, "plain", 0, 4_999, 9_000) == [4_999, 5_000]
    assert browsed(client, "plain", 0, 1, 5_001) == list(range(1, 5_001))


def test_what_others_have_consumed_is_not_in_it(node: Node, client: blocking.Client) -> None:
    client.create_queue("holes")
    publish(client, "#P2P/QUE/holes", 10)
    with client.consume("holes", ack="manual", max_messages=10) as flow:
        messages = [flow.receive(10.0) for _ in range(10)]
        for message in messages:
            if message.position in (1, 4, 5, 10):
                message.accept()
    node_has = [2, 3, 6, 7, 8, 9]
    node.wait_for("what is left", lambda status: client.show_queue("holes")["messages"] == len(node_has))
    assert browsed(client, "holes", 0, 1, 11) == node_has
    assert browsed(client, "holes", 0, 4, 6) == []


def test_a_selector_chooses_within_a_range(client: blocking.Client) -> None:
    client.create_queue("chosen")
    publish(client, "#P2P/QUE/chosen", 3_000)
    chosen = browsed(
        client, "chosen", 0, 100, 2_900, selector="SequenceNumber >= 2000 AND SequenceNumber < 2003"
    )
    assert chosen == [2_001, 2_002, 2_003]
    assert browsed(client, "chosen", 0, 1, 2_000, selector="SequenceNumber > 2500") == []
    with pytest.raises(errors.InvalidRequestError, match="40601"):
        browsed(client, "chosen", 0, 1, 2, selector="=")


def test_partitions_are_ranges_of_their_own(client: blocking.Client) -> None:
    client.create_queue("parts", access_type="non-exclusive", partition_count=3)
    for key in range(12):
        publish(client, "#P2P/QUE/parts", 20, partition_key=str(key))
    lanes = client.positions("parts").lanes
    assert sorted(lanes) == [0, 1, 2]
    assert sum(one.messages for one in lanes.values()) == 240
    for partition, one in lanes.items():
        assert browsed(client, "parts", partition, 1, one.next) == list(range(1, one.next))
    with pytest.raises(errors.InvalidRequestError, match="no partition 3"):
        browsed(client, "parts", 3, 1, 2)


def test_a_leased_queue_is_browsed_too_and_so_is_a_topic_endpoint(client: blocking.Client) -> None:
    client.create_queue("leased")
    publish(client, "#P2P/QUE/leased", 10)
    with client.reader_group("leased", "g") as group:
        group.plan({0: 1}, 5)
        assert client.positions("leased").lanes[0].planned == 6
        assert browsed(client, "leased", 0, 1, 11) == list(range(1, 11))
    client.create_topic_endpoint("endpoint")
    with client.consume("endpoint", kind="topic-endpoint", topic="a/b", max_messages=1):
        publish(client, "a/b", 3)
    assert browsed(client, "endpoint", 0, 1, 4, kind="topic-endpoint") == [1, 2, 3]
    with pytest.raises(errors.NotFoundError, match="40404"):
        client.positions("endpoint")


def test_two_read_one_range_at_once(node: Node, client: blocking.Client) -> None:
    client.create_queue("shared")
    publish(client, "#P2P/QUE/shared", 2_000)
    with blocking.connect(node.url) as other:
        first = client.browse_range("shared", 0, 1, 2_001)
        second = other.browse_range("shared", 0, 1, 1_001)
        assert sum(len(batch) for batch in second) == 1_000
        assert sum(len(batch) for batch in first) == 2_000
