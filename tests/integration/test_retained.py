"""Retained messages on a node: what subscribers get first, over restarts, numbers of workers, and at limits."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import TYPE_CHECKING

import pytest

import angarium
from angarium import blocking, errors
from angarium.message import Message
from angarium_server.testing import Node, NodeFailedError
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

LIMIT_S = 20.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("retained"), workers=2) as node:
        yield node


@pytest.fixture
def client(node: Node) -> Iterator[blocking.Client]:
    with blocking.connect(node.url) as client:
        yield client


def kept(client: blocking.Client, filter_text: str) -> dict[str, bytes]:
    found = list(client.retained(filter_text))
    assert all(message.retained and message.retain for message in found)
    assert [message.topic for message in found] == sorted(message.topic for message in found)
    return {message.topic: message.payload for message in found}


def scaled(node: Node, workers: int) -> bool:
    try:
        node.run("worker", "scale", str(workers))
    except NodeFailedError as error:
        if "40902" not in str(error):
            raise
        return False
    return True


def publish(client: blocking.Client, topic: str, payload: bytes, mode: str) -> None:
    client.publish(topic, payload, retain=True, mode=mode)  # type: ignore[arg-type]
    client.flush()


@pytest.mark.requirement("R248")
@pytest.mark.parametrize("mode", ["direct", "persistent", "non-persistent"])
def test_the_newest_message_of_each_topic_is_kept_until_an_empty_one(
    client: blocking.Client, mode: str
) -> None:
    top = f"newest/{mode}"
    for payload in (b"1", b"2", b"3"):
        publish(client, f"{top}/a", payload, mode)
        publish(client, f"{top}/b/c", payload, mode)
    client.publish(f"{top}/a", b"not to be kept", mode=mode)  # type: ignore[arg-type]
    client.flush()
    assert kept(client, f"{top}/>") == {f"{top}/a": b"3", f"{top}/b/c": b"3"}
    assert kept(client, f"{top}/*") == {f"{top}/a": b"3"}
    assert kept(client, f"{top}/a") == {f"{top}/a": b"3"}
    publish(client, f"{top}/a", b"", mode)
    assert kept(client, f"{top}/>") == {f"{top}/b/c": b"3"}


@pytest.mark.requirement("R248")
def test_who_subscribes_gets_what_is_retained_first_and_then_what_comes_live(client: blocking.Client) -> None:
    publish(client, "first/a", b"kept", "persistent")
    with client.subscribe("first/>", retained=True) as subscription:
        message = subscription.receive(LIMIT_S)
        assert (message.topic, message.payload, message.retained) == ("first/a", b"kept", True)
        publish(client, "first/a", b"live", "direct")
        message = subscription.receive(LIMIT_S)
        assert (message.payload, message.retained, message.retain) == (b"live", False, True)
        publish(client, "first/a", b"", "direct")
        assert subscription.receive(LIMIT_S).payload == b""
    with client.subscribe("first/>") as plain:
        client.publish("first/b", b"x")
        assert plain.receive(LIMIT_S).topic == "first/b"


@pytest.mark.requirement("R248")
def test_a_topic_whose_message_is_replaced_while_others_are_read_is_not_left_out(
    client: blocking.Client,
) -> None:
    topics = [f"replaced/{number:02}" for number in range(12)]
    for topic in topics:
        publish(client, topic, bytes(200_000), "persistent")
    reading = iter(client.retained("replaced/>"))
    found = {(first := next(reading)).topic: first.payload}
    publish(client, topics[-1], b"newer", "persistent")
    found |= {message.topic: message.payload for message in reading}
    assert list(found) == topics
    assert found[topics[-1]] == b"newer"
    for topic in topics:  # there is room for few such messages
        publish(client, topic, b"", "persistent")


@pytest.mark.requirement("R248")
def test_none_is_missed_and_none_doubled_while_others_publish(node: Node) -> None:
    """Each topic counts up; whoever subscribes in between sees every number from the first that he gets."""
    topics = [f"counting/{number}" for number in range(20)]
    is_over = threading.Event()
    last = dict.fromkeys(topics, 0)

    def count() -> None:
        rng = random.Random(1)
        with blocking.connect(node.url) as publisher:
            while not is_over.wait(0.002):
                for topic in rng.sample(topics, 5):
                    last[topic] += 1
                    mode = "direct" if int(topic.rpartition("/")[2]) % 2 else "non-persistent"
                    publisher.publish(topic, b"%d" % last[topic], retain=True, mode=mode)  # type: ignore[arg-type]
            publisher.flush()

    async def watch() -> None:
        async with await angarium.connect(node.url) as client:
            for _ in range(30):
                async with client.subscribe("counting/>", retained=True) as subscription:
                    await follow(subscription)

    async def follow(subscription: angarium.Subscription) -> None:
        seen: dict[str, int] = {}
        async with asyncio.timeout(LIMIT_S):
            while len(seen) < len(topics) or min(seen.values()) < 3:
                message = await subscription.receive()
                number = int(message.payload)
                if message.topic in seen:
                    assert not message.retained
                    assert number == seen[message.topic] + 1
                seen[message.topic] = number

    with blocking.connect(node.url) as first:
        for topic in topics:
            last[topic] = 3
            publish(first, topic, b"3", "persistent")
    counting = threading.Thread(target=count)
    counting.start()
    try:
        asyncio.run(watch())
    finally:
        is_over.set()
        counting.join(LIMIT_S)


@pytest.mark.requirement("R249")
def test_what_is_retained_survives_every_restart_and_other_numbers_of_workers(tmp_path: Path) -> None:
    with Node(tmp_path, workers=2) as node:
        expected = {}
        with blocking.connect(node.url) as client:
            for number in range(200):
                topic = f"keep/{number % 50}"
                expected[topic] = b"%d" % number
                client.publish(topic, expected[topic], retain=True, mode="non-persistent")
            client.publish("keep/0", b"", retain=True, mode="persistent")
            del expected["keep/0"]
            assert kept(client, "keep/>") == expected
            for index in range(2):
                node.kill("worker", index)
                assert kept(client, "keep/>") == expected
            wait_until(lambda: scaled(node, 3), "the worker is there again", LIMIT_S)
            assert kept(client, "keep/>") == expected
            wait_until(lambda: scaled(node, 1), "the change before is complete", LIMIT_S)
            assert kept(client, "keep/>") == expected
            node.kill("router")
            assert kept(client, "keep/>") == expected
        node.restart()
        with blocking.connect(node.url) as client:
            assert kept(client, "keep/>") == expected


@pytest.mark.requirement("R249")
def test_a_backup_brings_back_what_was_retained(tmp_path: Path) -> None:
    with Node(tmp_path / "node", workers=2) as node:
        with blocking.connect(node.url) as client:
            for number in range(50):
                mode = "persistent" if number % 2 else "direct"
                publish(client, f"keep/{number % 20}", b"%d" % number, mode)
            publish(client, "keep/0", b"", "persistent")
            expected = kept(client, "keep/>")
            assert len(expected) == 19
            node.run("spool", "backup", str(tmp_path / "backup"))
            for number in range(20):
                publish(client, f"keep/{number}", b"later" if number % 3 else b"", "persistent")
        node.stop()
        node.run("spool", "restore", str(tmp_path / "backup"))
        node.start()
        with blocking.connect(node.url) as client:
            assert kept(client, "keep/>") == expected
            publish(client, "keep/1", b"new", "direct")
            assert kept(client, "keep/1") == {"keep/1": b"new"}


def test_it_ends_with_its_time_to_live(client: blocking.Client) -> None:
    client.publish("lives/short", b"x", retain=True, ttl_ms=300, mode="persistent")
    client.publish("lives/long", b"x", retain=True, mode="persistent")
    wait_until(lambda: kept(client, "lives/>") == {"lives/long": b"x"}, "the end of its life", LIMIT_S)


def test_topics_of_the_node_and_queues_retain_nothing(client: blocking.Client) -> None:
    client.create_queue("plain")
    client.publish(queue="plain", payload=b"x", retain=True)
    client.publish("#strange/topic", b"x", retain=True)
    client.flush()
    assert not kept(client, "#strange/>")
    assert not [topic for topic in kept(client, ">") if topic.startswith("#")]


def test_filters_that_nobody_may_read_are_refused(client: blocking.Client) -> None:
    with pytest.raises(errors.InvalidRequestError) as caught:
        list(client.retained("#share/g/a"))
    assert caught.value.code == errors.INVALID_FILTER
    with pytest.raises(errors.AngariumError):
        client.consume("#retained")


@pytest.mark.requirement("R249")
def test_a_message_vpn_retains_so_much_and_no_more(node: Node, client: blocking.Client) -> None:
    node.run("vpn", "update", "default", "--set", "max_retained_mb=1")
    try:
        with client.producer() as producer:
            rows = [Message(f"large/{n}", bytes(100_000), retain=True, mode="persistent") for n in range(20)]
            report = producer.publish_many(rows)
        assert {error.code for _, error in report.refused} == {errors.SPOOL_OVER_QUOTA}
        found = kept(client, "large/>")
        assert 8 <= len(found) <= 10
        for topic in found:
            client.publish(topic, b"", retain=True, mode="persistent")
        assert not kept(client, "large/>")
    finally:
        node.run("vpn", "update", "default", "--set", "max_retained_mb=100")


def test_the_command_line_shows_and_makes_them(node: Node) -> None:
    node.run("pub", "house/door", "open", "--retain")
    node.run("pub", "house/light", "on", "--retain", "--mode", "persistent")
    assert node.run("sub", "house/>", "--retained-only") == "house/door open\nhouse/light on\n"
    node.run("pub", "house/door", "--retain")
    assert node.run("sub", "house/>", "--retained", "--count", "1") == "house/light on\n"
