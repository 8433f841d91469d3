"""Rounds with lone messages of several clients: the router sorts them by itself once it knows their topics."""

from __future__ import annotations

import random
from typing import Any

import pytest

from angarium.message import pack_rows
from router.matching.fast_path import GATHERED_ROWS_MAX
from tests.share import short
from tests.unit.router.wired_gateway import IDENTITY, FakeGateway
from tests.unit.router.wired_node import FakeClient, WiredNode, snapshot


def node_of(workers: int, **config: Any) -> WiredNode:
    return WiredNode(workers, snapshot(("username", "default", "default", {})), identity=IDENTITY, **config)


def gateway_of(node: WiredNode) -> FakeGateway:
    made = FakeGateway(node)
    assert made.welcome
    return made


def fast(node: WiredNode) -> int:
    return int(node.router.stats()["fast_path_rounds"])


@pytest.mark.parametrize("workers", [1, 3])
def test_messages_of_many_topics_need_no_worker_once_these_are_known(workers: int) -> None:
    node = node_of(workers)
    gateway, native = gateway_of(node), node.client()
    topics = [f"c/{number}" for number in range(GATHERED_ROWS_MAX)]
    for topic in topics:
        gateway.attach().subscribe(topic, deliver_always=True)
    native.subscribe("c/3", "c/5")
    for number in range(4):
        gateway.publish(*[(topic, b"%d" % number) for topic in topics])
        assert [row[1] for row in gateway.rows()] == topics
        assert [row[1] for row in native.rows()] == ["c/3", "c/5"]
    assert fast(node) == 3
    gateway.publish(*topics, "c/1")
    assert fast(node) == 3, "so many are worth the way to the workers"
    assert [row[1] for row in gateway.rows()] == [*topics, "c/1"]
    node.validate()


def test_a_batch_that_goes_as_a_whole_is_not_packed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    node = node_of(1)
    gateway = gateway_of(node)
    for topic in "ab":
        gateway.attach().subscribe(topic, deliver_always=True)
    for pack in (pack_rows, None):
        monkeypatch.setattr("router.sessions.round.pack_rows", pack)
        gateway.received.clear()
        gateway.publish(("a", b"1"), ("b", b"2"), ("a", b"3"))
    ((_, _, *batches),) = [frames for frames in gateway.received if len(frames) > 2]
    assert len(batches) == 1
    assert [row[5] for row in gateway.rows()] == [b"1", b"2", b"3"]


def test_lone_messages_of_a_native_client_to_different_places_need_none_either() -> None:
    node = node_of(1)
    publisher, one, other = (node.client() for _ in range(3))
    one.subscribe("a")
    other.subscribe("b")
    for _ in range(3):
        publisher.publish("a", "b", "nobody")
    assert fast(node) == 2
    assert (len(one.rows()), len(other.rows())) == (3, 3)
    publisher.publish("a", "b", "nobody", reports=True)
    assert fast(node) == 2, "only a worker reports what nobody wants"


@pytest.mark.parametrize("seed", range(short(6, long=40)))
def test_everybody_gets_what_workers_would_have_said(seed: int) -> None:
    rng = random.Random(seed)
    nodes = [node_of(rng.randint(1, 3), fast_path_topics_max=most) for most in (0, 20_000)]
    worlds = [(node, *people(node)) for node in nodes]
    for _ in range(40):
        step = rng.random()
        if step < 0.2:
            who, pattern = rng.randrange(4), rng.choice(["t/*", "t/1", "t/2", "t/>", "s/1", "*/1"])
            for _, _, clients in worlds:
                change(clients[who], pattern)
        rows = [(f"{rng.choice('ts')}/{rng.randrange(4)}", b"%d" % n) for n in range(rng.randint(1, 12))]
        for _, gateway, _ in worlds:
            gateway.publish(*rows)
        slow, known = ([[row[1:] for row in one.rows()] for one in (w[1], *w[2][2:])] for w in worlds)
        assert known == slow, f"seed {seed}"
    assert fast(nodes[0]) == 0 < fast(nodes[1])
    for node in nodes:
        node.validate()


def people(node: WiredNode) -> tuple[FakeGateway, list[FakeClient]]:
    """Give a gateway, and two attached and two native clients."""
    gateway = gateway_of(node)
    return gateway, [gateway.attach(), gateway.attach(), node.client(), node.client()]


def change(client: FakeClient, pattern: str) -> None:
    """Subscribe, or unsubscribe if it has."""
    code = client.subscribe(pattern, deliver_always=True)[0]
    if code is not None and code[0]:
        client.unsubscribe(pattern, deliver_always=True)
