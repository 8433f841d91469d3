"""Small deliveries that leave for one session at the same time share a frame: order, credit, and what never shares."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from angarium import wire
from router.delivery.egress import SMALL_BYTES
from router.ground.effects import SendWorker
from router.ground.ground import BUNDLED_BYTES_MAX, JOINED_BYTES_MAX
from tests.share import short
from tests.unit.router.wired_node import BIG, FakeClient, WiredNode, snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.sessions.session import Session

pytestmark = pytest.mark.requirement("R226", "R227")


def session_of(client: FakeClient) -> Session:
    return client.node.router.sessions.by_routing_id[client.routing_id]


class Turn:
    """Frames of clients that the shell takes before it carries anything out."""

    def __init__(self, node: WiredNode) -> None:
        self._node = node
        self._settle = node.settle

    def __enter__(self) -> None:
        """Know every topic, so that no worker is asked, and collect."""
        self._node.settle = lambda: None  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        self._node.settle = self._settle  # type: ignore[method-assign]
        self._node.settle()


def publishers_of(node: WiredNode, count: int, topic: str = "a/%d") -> list[FakeClient]:
    """Give some publishers whose topics the router knows."""
    made = [node.client() for _ in range(count)]
    for number, client in enumerate(made):
        client.publish(topic % number)
    return made


def frames_of(client: FakeClient) -> list[tuple[bytes, Any]]:
    """Take what came, as operations and headers."""
    found = [(frames[0], wire.unpack(frames[1])) for frames in client.received]
    client.received.clear()
    return found


def test_lone_messages_of_one_turn_are_one_frame_in_their_order(node: WiredNode) -> None:
    subscriber = node.client()
    subscriber.subscribe("a/*")
    publishers = publishers_of(node, 5)
    subscriber.received.clear()
    with Turn(node):
        for number, client in enumerate(publishers):
            client.publish((f"a/{number}", b"%d" % number))
    (frames,) = subscriber.received
    assert wire.unpack(frames[1]) == [0, [[5, None]], 0]
    assert subscriber.payloads() == [b"0", b"1", b"2", b"3", b"4"]
    node.validate()


def test_a_lone_message_is_a_frame_as_it_came(node: WiredNode) -> None:
    subscriber, publisher = node.client(), node.client()
    subscriber.subscribe("a")
    publisher.publish(("a", b"x"))
    (frames,) = subscriber.received
    assert frames == [
        wire.DELIVER,
        wire.pack([0, [[1, None]], 0]),
        wire.pack([[0, "a", 0, None, None, b"x"]]),
    ]


def test_each_subscriber_gets_what_it_wants_of_a_turn(node: WiredNode) -> None:
    every, one = node.client(), node.client()
    every.subscribe("a/*")
    one.subscribe("a/1")
    publishers = publishers_of(node, 3)
    every.received.clear()
    one.received.clear()
    with Turn(node):
        for number in (0, 1, 2, 1, 0):
            publishers[number].publish((f"a/{number}", b"%d" % number))
    assert [parts for _, parts, _ in every.deliveries()] == [[[5, None]]]
    assert one.payloads() == [b"1", b"1"]


def test_nothing_joins_a_frame_of_an_earlier_turn(node: WiredNode) -> None:
    subscriber, publisher = node.client(), node.client()
    subscriber.subscribe("a")
    for _ in range(3):
        publisher.publish("a")
    assert [parts for _, parts, _ in subscriber.deliveries()] == [[[1, None]]] * 3


def test_what_was_said_in_between_stays_in_between(node: WiredNode) -> None:
    subscriber = node.client()
    subscriber.subscribe("a/*")
    (publisher,) = publishers_of(node, 1)
    subscriber.received.clear()
    with Turn(node):
        publisher.publish(("a/0", b"1"))
        publisher.publish(("a/0", b"2"))
        subscriber.send(wire.PING, [7])
        publisher.publish(("a/0", b"3"))
        publisher.publish(("a/0", b"4"))
    heads = frames_of(subscriber)
    assert heads == [
        (wire.DELIVER, [0, [[2, None]], 0]),
        (wire.PONG, [7]),
        (wire.DELIVER, [0, [[2, None]], 0]),
    ]


def test_a_batch_that_is_no_small_one_ends_the_frame_before_it(node: WiredNode) -> None:
    subscriber = node.client()
    subscriber.subscribe("a/*")
    (publisher,) = publishers_of(node, 1)
    subscriber.received.clear()
    with Turn(node):
        publisher.publish(("a/0", b"1"))
        publisher.publish(("a/0", b"2" * SMALL_BYTES))
        publisher.publish(("a/0", b"3"))
    assert [payload[:1] for payload in subscriber.payloads()] == [b"1", b"2", b"3"]


def test_shared_rows_and_rows_of_several_workers_share_no_frame(make_node: Any) -> None:
    node = make_node(2)
    shared, plain = node.client(), node.client()
    shared.subscribe("#share/g/s/*")
    plain.subscribe("p/>")
    publisher = node.client()
    with Turn(node):
        for number in range(2):
            publisher.publish(f"s/{number}")
    assert [parts for _, parts, _ in shared.deliveries()] == [[[1, "#share/g/s/*"]]] * 2
    with Turn(node):
        for _ in range(2):
            publisher.publish(*[f"p/{number}" for number in range(20)])
    assert [flags for flags, _, _ in plain.deliveries()] == [wire.DELIVER_UNSORTED] * 2


def test_a_frame_has_a_bound(node: WiredNode) -> None:
    subscriber = node.client()
    subscriber.subscribe("a/*")
    (publisher,) = publishers_of(node, 1)
    subscriber.received.clear()
    with Turn(node):
        for number in range(20):
            publisher.publish(("a/0", b"%02d" % number + b"x" * 2_000))
    sizes = [len(frames[2]) for frames in subscriber.received]
    assert len(sizes) == 3
    assert max(sizes) <= JOINED_BYTES_MAX
    assert [payload[:2] for payload in subscriber.payloads()] == [b"%02d" % n for n in range(20)]


@pytest.mark.requirement("R45")
def test_a_frame_with_an_indication_of_discards_is_not_joined(make_node: Any) -> None:
    node = make_node(
        1,
        snapshot(
            (
                "profile",
                "default",
                "slow",
                {"queue_direct_1_max_depth": 2, "queue_direct_1_min_msg_burst": 0},
            ),
            ("username", "default", "slow", {"client_profile": "slow"}),
        ),
    )
    slow, publisher = node.client(username="slow", credit=[0, 0]), node.client()
    slow.subscribe("a")
    for number in range(40):
        publisher.publish(("a", b"%02d" % number + b"x" * 300))
    publisher.publish(("a", b"last", wire.FLAG_COS & 1 << wire.COS_SHIFT))
    slow.send(wire.CREDIT, [BIG, BIG])
    heads = slow.deliveries()
    # Rows of the higher class, what came behind discards, and the rest.
    assert [flags for flags, _, _ in heads] == [0, wire.DELIVER_DISCARD_INDICATION, 0]
    assert [rows for rows, _ in heads[1][1]] == [1]
    told = sum(dropped for _, _, dropped in heads)
    assert told + sum(rows for _, parts, _ in heads for rows, _ in parts) == 41


@pytest.mark.parametrize("seed", range(short(6, long=20)))
def test_the_router_counts_credit_as_the_client_does(node: WiredNode, seed: int) -> None:
    """The bytes of the batches that came, whatever was joined, are what the router took off the credit."""
    rng = random.Random(seed)
    subscriber = node.client(credit=[0, 0])
    subscriber.subscribe("a/*")
    publishers = publishers_of(node, 4)
    messages = size = rows = 0
    for _ in range(30):
        with Turn(node):
            for _ in range(rng.randint(0, 12)):
                number, count = rng.randrange(4), rng.choice([1, 1, 2, 15, 16, 17, 200])
                publishers[number].publish(*[(f"a/{number}", b"x" * rng.randrange(40))] * count)
                rows += count
            granted = rng.choice([(messages + rng.randrange(50), size + rng.randrange(3_000)), None])
            session = session_of(subscriber)
            if granted is not None and granted >= (session.granted_messages, session.granted_bytes):
                granted = max(granted[0], session.granted_messages), max(granted[1], session.granted_bytes)
                subscriber.send(wire.CREDIT, list(granted))
        came = [frames for frames in subscriber.received if frames[0] == wire.DELIVER]
        subscriber.received.clear()
        for frames in came:
            session = session_of(subscriber)
            assert messages < session.granted_messages
            assert size < session.granted_bytes
            messages += len(wire.unpack(frames[2]))
            size += len(frames[2])
            assert wire.unpack(frames[1])[1] == [[len(wire.unpack(frames[2])), None]]
        session = session_of(subscriber)
        assert (session.sent_messages, session.sent_bytes) == (messages, size)
        node.validate()
    assert messages
    assert messages + session.egress.messages == rows + 4  # type: ignore[union-attr]


def test_what_shares_a_frame_to_a_client_that_is_gone_is_counted_in_all(node: WiredNode) -> None:
    subscriber = node.client()
    subscriber.subscribe("a/*")
    (publisher,) = publishers_of(node, 1)
    with Turn(node):
        for _ in range(3):
            publisher.publish("a/0")
        del node.clients[subscriber.routing_id]
    assert node.router.stats()["discards"]["client-not-connected"] == 3


def test_lone_rounds_for_one_worker_share_a_message_there_and_back(make_node: Any) -> None:
    node = make_node(1, fast_path_topics_max=0)
    subscriber = node.client()
    subscriber.subscribe("a/*")
    publishers = [node.client() for _ in range(5)]
    sent: list[list[bytes]] = []
    to_worker, to_router = node._to_worker, node._to_router

    def note(carry: Callable[[int, list[bytes]], None], index: int, frames: list[bytes]) -> None:
        sent.append(frames)
        carry(index, frames)

    node._to_worker = partial(note, to_worker)
    node._to_router = partial(note, to_router)
    with Turn(node):
        for number, client in enumerate(publishers):
            client.publish((f"a/{number}", b"%d" % number), flush=True)
    assert [frames[0] for frames in sent] == [wire.BUNDLE] * 2
    assert [one[0] for one in wire.unpack(sent[0][1])[0]] == [wire.MATCH] * 5
    assert subscriber.payloads() == [b"0", b"1", b"2", b"3", b"4"]
    assert [client.retired() for client in publishers] == [1] * 5


def test_what_a_worker_is_told_in_between_stays_in_between(make_node: Any) -> None:
    node = make_node(1, fast_path_topics_max=0)
    early, late, publisher = node.client(), node.client(), node.client()
    early.subscribe("a")
    with Turn(node):
        publisher.publish(("a", b"1"))
        publisher.publish(("a", b"2"))
        late.send(wire.SUBSCRIBE, [1, [["*", 0]], None])
        publisher.publish(("a", b"3"))
        publisher.publish(("a", b"4"))
        operations = [frames[0] for frames in worker_frames(node)]
    assert operations == [wire.BUNDLE, wire.FILTERS, wire.BUNDLE]
    assert early.payloads() == [b"1", b"2", b"3", b"4"]
    assert late.payloads() == [b"3", b"4"]


def test_a_large_batch_goes_to_its_worker_alone(make_node: Any) -> None:
    node = make_node(1, fast_path_topics_max=0)
    subscriber, publisher = node.client(), node.client()
    subscriber.subscribe("a")
    with Turn(node):
        publisher.publish(("a", b"1"))
        publisher.publish(("a", b"2" * BUNDLED_BYTES_MAX))
        publisher.publish(("a", b"3"))
        operations = [frames[0] for frames in worker_frames(node)]
    assert operations == [wire.MATCH] * 3
    assert [payload[:1] for payload in subscriber.payloads()] == [b"1", b"2", b"3"]


def test_a_worker_that_dies_with_a_bundle_loses_what_was_in_it_and_no_more(make_node: Any) -> None:
    node = make_node(1, fast_path_topics_max=0, shard_grace_ms=0)
    subscriber, publisher = node.client(), node.client()
    subscriber.subscribe("a")
    node.pause(0)
    with Turn(node):
        for number in range(3):
            publisher.publish(("a", b"%d" % number))
    node.kill_worker(0)
    assert sum(count for _, _, count, _ in publisher.notices()) == 3
    node.start_worker(0)
    publisher.publish(("a", b"later"))
    assert subscriber.payloads() == [b"later"]


def worker_frames(node: WiredNode) -> list[list[bytes]]:
    """Give what leaves for workers, and leave it to be carried out."""
    effects = node.router.out.take()
    node.router.out.effects[:0] = effects
    return [effect.frames for effect in effects if isinstance(effect, SendWorker)]
