"""What survives the end of a node, in order or by force, and a change of the number of its workers: all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from tests.integration.attacked_spool import LoneSpool
from tests.integration.raw_guaranteed import Got, RawGuaranteed, RawProducer, kept, to_queue
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

#: The same port after each start, so that clients find their way back.
CONFIG = """
[router]
resume_ms = 1000
"""


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[LoneSpool]:
    with LoneSpool(tmp_path, CONFIG) as lone:
        yield lone


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def payloads(messages: list[Got]) -> list[bytes]:
    return [one.payload for one in messages]


def end_in_order(lone: LoneSpool) -> None:
    lone.node.stop()


def end_by_force(lone: LoneSpool) -> None:
    lone.kill_everything()


@pytest.mark.requirement("R95", "R96", "R163", "R168", "R190")
@pytest.mark.parametrize(
    "end", [pytest.param(end_in_order, marks=pytest.mark.long), end_by_force], ids=["in-order", "by-force"]
)
def test_a_node_that_comes_back_has_all_that_it_had(
    lone: LoneSpool, end: Callable[[LoneSpool], None]
) -> None:
    dead = lone.queue("dead")
    plain = lone.queue("plain", subscriptions=["in/>"], access_type="non-exclusive")
    waiting = lone.queue("waiting", delivery_delay_s=1)
    mortal = lone.queue("mortal", dead_message_queue=dead)
    first = lone.queue("first", respect_priority=True)
    last = lone.queue("last", max_spool_usage_mb=0)
    small = lone.queue("small", max_message_bytes=10)
    parts = lone.queue("parts", access_type="non-exclusive", partition_count=3)
    endpoint = lone.create("topic-endpoint", "endpoint", permission="delete")
    client = lone.client()
    producer = RawProducer(client, name="before")
    of_endpoint = client.bind(endpoint, kind="topic-endpoint", topic="te/>", selector="JMSPriority > 4")
    client.done("flow.unbind", flow=of_endpoint)
    assert not any(producer.publish(*[kept(n, f"in/{n % 5}", b"%d" % n) for n in range(100)]))
    assert not any(producer.fill(first, b"low", meta=[0, 0, 1, None]))
    assert not any(producer.fill(first, b"high", meta=[0, 0, 8, None]))
    assert not any(producer.fill(last, *numbers(5)))
    keys = [to_queue(n, parts, b"%d" % n, meta=[0, 0, None, f"k{n % 7}"]) for n in range(50)]
    assert not any(producer.publish(*keys))
    chosen = [kept(n, "te/x", b"%d" % n, meta=[0, 0, n, None]) for n in range(10)]
    assert not any(producer.publish(*chosen))
    assert producer.fill(small, b"fits", bytes(11)) == [0, errors.MESSAGE_TOO_LARGE]
    flow = client.bind(plain, credit=(30, 1 << 30))
    got = client.messages(flow, 30)
    client.settle(flow, [[0, 3, 5], [0, 9, 10]])
    lone.expect_held(plain, 95)
    assert producer.fill(waiting, b"later") == [0]
    assert producer.fill(mortal, b"dies while nobody is there", meta=[200, 0, None, None]) == [0]
    stored = producer.last
    end(lone)
    client.close()
    lone.node.start()

    client = lone.client()
    producer = RawProducer(client, name="before")
    assert producer.last == stored
    producer.last = stored - 4  # what it sent last, once more
    assert producer.fill(small, b"fits", bytes(11)) == [0, errors.MESSAGE_TOO_LARGE]
    lone.expect_held(small, 1)
    again = sorted(client.messages(client.bind(plain), 95), key=lambda one: one.position)
    out = [one.position for one in got if one.position not in (3, 4, 5, 9, 10)]
    assert [one.position for one in again] == [*out, *range(31, 101)]
    assert payloads(again) == [b"%d" % (one.position - 1) for one in again]
    assert {one.tries for one in again[: len(out)]} == {1}, "what was out is marked"
    assert payloads(client.messages(client.bind(first), 2)) == [b"high", b"low"]
    assert payloads(client.messages(client.bind(last), 1)) == [b"4"]
    assert sorted(map(int, payloads(client.messages(client.bind(parts), 50)))) == [*range(50)]
    te: dict[str, Any] = {"kind": "topic-endpoint", "topic": "te/>", "selector": "JMSPriority > 4"}
    assert payloads(client.messages(client.bind(endpoint, **te), 5)) == numbers(5, 5)
    assert payloads(client.messages(client.bind(waiting), 1)) == [b"later"]
    (corpse,) = client.messages(client.bind(dead), 1)
    assert corpse.origin == ["queue", mortal, "expired"]


def test_settled_messages_do_not_come_back_and_refused_names_stay_known_after_force(lone: LoneSpool) -> None:
    queue = lone.queue()
    client = lone.client()
    producer = RawProducer(client, name="settling")
    assert not any(producer.fill(queue, *numbers(200)))
    flow = client.bind(queue)
    client.messages(flow, 200)
    client.settle(flow, [[0, 1, 150]])
    lone.expect_held(queue, 50)
    # What is settled goes to the disk with the next message at the latest.
    assert producer.fill(queue, b"200") == [0]
    lone.kill_everything()
    client.close()
    lone.node.start()
    client = lone.client()
    got = client.messages(client.bind(queue), 51)
    assert [one.position for one in got] == [*range(151, 202)]
    assert client.refused("producer.open", name="never", resume=True) == errors.UNKNOWN_FLOW_NAME
    assert client.done("producer.open", name="settling", resume=True)["last_sequence"] == 201


def test_what_a_lower_limit_finds_above_it_stays_and_can_be_taken(tmp_path: Path) -> None:
    with LoneSpool(tmp_path, "[spool]\nmax_usage_mb = 3\nmax_delivered_unacked = 1000\n") as lone:
        queue = lone.queue()
        client = lone.client()
        whole = bytes(1_000_000 - wire.SPOOL_OVERHEAD_BYTES)
        assert RawProducer(client).fill(queue, whole, whole, b"") == [0, 0, 0]
        client.close()
        lone.node.stop()
        file = tmp_path / "node.toml"
        file.write_text(
            "[spool]\nmax_usage_mb = 1\nmax_files = 1\nmax_delivered_unacked = 1\n", encoding="utf-8"
        )
        lone.node.start()
        client = lone.client()
        producer = RawProducer(client)
        assert producer.fill(queue, b"") == [errors.SPOOL_OVER_QUOTA]
        flow = client.bind(queue)
        for position in (1, 2, 3):
            (got,) = client.messages(flow, 1)
            assert got.position == position
            client.settle(flow, [[0, position, position]])
        lone.expect_held(queue, 0)
        wait_until(lambda: lone.status()["spool"]["usage_bytes"] == 0, "there is room")
        assert producer.fill(queue, b"") == [0]


# Other numbers of workers.


@pytest.mark.long
def test_a_backlog_goes_with_its_queue_when_its_worker_leaves(lone: LoneSpool) -> None:
    lone.scale(4)
    queues = [lone.queue() for _ in range(8)]
    client = lone.client()
    producer = RawProducer(client, name="backlog")
    for queue in queues:
        assert not any(producer.fill(queue, *numbers(100)))
    flow = client.bind(queues[-1])
    client.messages(flow, 100)
    client.settle(flow, [[0, 1, 10]])
    lone.expect_held(queues[-1], 90)
    lone.scale(1)
    for queue in queues[:-1]:
        got = client.messages(client.bind(queue), 100)
        assert [(one.position, one.payload) for one in got] == [(n + 1, b"%d" % n) for n in range(100)]
    with lone.client() as other:
        waiting = other.bind(queues[-1])
        client.close()
        rest = other.messages(waiting, 90)
        assert [(one.position, one.tries > 0) for one in rest] == [(n, True) for n in range(11, 101)]
        again = RawProducer(other, name="backlog")
        assert again.last == producer.last, "records of producers went along"
        assert again.fill(queues[0], b"next") == [0]


@pytest.mark.long
def test_a_change_of_workers_that_was_waited_for_is_complete(lone: LoneSpool) -> None:
    for number in range(4):
        lone.queue(f"waited/{number}")
    for count in (3, 1, 2):
        lone.node.run("worker", "scale", str(count), "--wait")


@pytest.mark.long
@pytest.mark.requirement("R89")
def test_an_endpoint_is_on_its_own_node_only(
    lone: LoneSpool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    queue = lone.queue(subscriptions=["both/>"])
    with LoneSpool(tmp_path_factory.mktemp("other"), CONFIG, workers=1) as other, other.client() as stranger:
        assert stranger.refused("endpoint.show", name=queue) == errors.UNKNOWN_ENDPOINT
        assert RawProducer(stranger).fill(queue, b"") == [errors.UNKNOWN_ENDPOINT]
        assert RawProducer(stranger).publish(kept(0, "both/x")) == [0]
    lone.expect_held(queue, 0)


def test_a_raw_client_is_told_that_the_node_goes_down(lone: LoneSpool) -> None:
    queue = lone.queue()
    client: RawGuaranteed = lone.client()
    handle = client.producer()
    client.bind(queue)
    client.publish(handle, 1, [to_queue(n, queue) for n in range(100)])
    lone.node.stop()
    assert client.closed() == errors.SHUTTING_DOWN
    lone.node.start()
    assert lone.held(queue) in (0, 100), "a round is taken as a whole or not at all"
