"""Guaranteed messages over bridges: once, through any break, between two nodes and inside of one."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from angarium import Message, blocking, errors
from angarium_server.testing import Node
from tests.integration.bridged import DEADLINE_S, Operator, receive
from tests.share import short
from tests.waiting import expect_value

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PASSWORD = "a word that nobody says"
#: Messages of one call while processes die.
ROUND = short(20, long=100)
pytestmark = pytest.mark.slow


class Pair:
    """Node `here` with Message VPN default, and node `there` with Message VPN sales."""

    def __init__(self, folder: Path, here: Node, there: Node) -> None:
        self.nodes = {"here": here, "there": there}
        self.here, self.there = Operator(here), Operator(there)
        self.there.make("vpn", "", "sales")
        self.there.make("profile", "sales", "bridges", allow_bridge_connections=True)
        self.there.make("username", "sales", "default")
        self.there.make("username", "sales", "carrier", client_profile="bridges", password=PASSWORD)
        self.password_file = folder / "password"
        self.password_file.write_text(PASSWORD + "\n", encoding="utf-8")

    def far(self, **attributes: Any) -> dict[str, Any]:
        """Give the attributes of a bridge of `here` that takes from `there`."""
        return {
            "remote_vpn": "sales",
            "addresses": [self.nodes["there"].url],
            "remote_username": "carrier",
            "remote_password_file": str(self.password_file),
            **attributes,
        }

    def bridge(self, name: str, **queue: Any) -> None:
        """Make a queue there, one here, and a bridge between them; all have the topics NAME/..."""
        there = {"subscriptions": [f"{name}/>"], "permission": "consume", **queue}
        self.there.make("queue", "sales", name, **there)
        self.here.make("queue", "default", name, subscriptions=[f"{name}/>"])
        self.here.bridge("default", name, **self.far(remote_queue=name))

    def close(self) -> None:
        self.here.admin.close()
        self.there.admin.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("bridged")
    nodes = []
    for name in ("here", "there"):
        config = folder / f"{name}.toml"
        config.write_text(f'[node]\nname = "{name}"\n', encoding="utf-8")
        nodes.append(Node(folder / name, workers=1, config=config))
    with nodes[0], nodes[1]:
        made = Pair(folder, *nodes)
        yield made
        made.close()


def spooled(operator: Operator, vpn: str, name: str) -> int:
    found = operator.admin.call("endpoints.show", kind="queue", vpn=vpn, name=name)
    return int(found["messages_spooled"])


def wait_spooled(operator: Operator, vpn: str, name: str, count: int) -> None:
    expect_value(lambda: spooled(operator, vpn, name), count, f"messages in queue {name}")


def persistent(topic: str, payload: bytes, **options: Any) -> Message:
    return Message(topic, payload, mode="persistent", **options)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def drain(operator: Operator, name: str, vpn: str = "default") -> list[Message]:
    """Consume everything a queue holds."""
    found: list[Message] = []
    with (
        blocking.connect(operator.node.url, vpn=vpn) as client,
        client.consume(name) as flow,
        contextlib.suppress(errors.TimeoutExpiredError),
    ):
        while True:
            message = flow.receive(0.7)
            found.append(message)
            flow.accept(message)
    return found


def payloads(operator: Operator, name: str, vpn: str = "default") -> list[bytes]:
    return [message.payload for message in drain(operator, name, vpn)]


def test_messages_of_the_remote_queue_come_over_once_and_in_order(pair: Pair) -> None:
    pair.bridge("first")
    with (
        blocking.connect(pair.nodes["there"].url, vpn="sales") as there,
        blocking.connect(pair.nodes["here"].url) as here,
    ):
        watcher = here.subscribe("first/>")
        there.publish_many([persistent(f"first/{n % 3}", b"%d" % n, partition_key="k") for n in range(2_000)])
        there.publish("first/direct", b"2000")
        there.flush()
        assert receive(watcher, 2_001) == numbers(2_001), "who subscribed here gets a copy of each"
    got = drain(pair.here, "first")
    assert [message.payload for message in got] == numbers(2_001)
    assert [message.partition_key for message in got] == ["k"] * 2_000 + [None]
    wait_spooled(pair.there, "sales", "first", 0)
    row = pair.here.wait_for("default", "first", lambda row: row["queued_messages"] == 0)
    assert row["guaranteed_messages"] == 2_001
    assert row["remote_node"] == "there"


@pytest.mark.requirement("R204", "R199")
def test_time_on_the_remote_node_counts(pair: Pair) -> None:
    """8 s of life less the 2 s over there are 6 s here."""
    pair.bridge("ttl")
    pair.here.switch_off("default", "ttl")
    with blocking.connect(pair.nodes["there"].url, vpn="sales") as there:
        there.publish_many([persistent("ttl/x", b"", ttl_ms=8_000), persistent("ttl/x", b"", ttl_ms=100)])
        time.sleep(2.0)  # this is the time that counts
    pair.here.update("bridge", "default", "ttl", enabled=True)
    wait_spooled(pair.here, "default", "ttl", 1)
    (message,) = drain(pair.here, "ttl")
    assert 3_000 < message.ttl_ms <= 6_000
    wait_spooled(pair.there, "sales", "ttl", 0)


def test_a_queue_that_does_not_fit_says_why_and_is_taken_once_it_does(pair: Pair) -> None:
    pair.here.make(
        "bridge", "default", "unfit", **pair.far(remote_queue="unfit", remote_subscriptions=["unfit/>"])
    )

    def refused_with(code: int) -> None:
        """The queue is refused, and direct messages still come."""
        pair.here.wait_for(
            "default", "unfit", lambda row: row["state"] == "degraded" and str(code) in row["error"]
        )
        # The event takes another way than the state.
        expect_value(lambda: told_codes().count(code), 1, f"events with {code}")

    def told_codes() -> list[int]:
        events = pair.here.events("VPN_BRIDGE_REFUSED")
        return [event["code"] for event in events if event["bridge"] == "unfit"]

    refused_with(errors.UNKNOWN_ENDPOINT)
    pair.there.make("queue", "sales", "unfit", access_type="non-exclusive")
    refused_with(errors.PERMISSION_DENIED)
    pair.there.update("queue", "sales", "unfit", permission="consume")
    refused_with(errors.QUEUE_UNFIT)
    pair.there.update("queue", "sales", "unfit", access_type="exclusive")
    pair.here.wait_up("default", "unfit")
    pair.there.delete("queue", "sales", "unfit")
    refused_with(errors.UNKNOWN_ENDPOINT)


def test_a_bridge_stands_by_while_another_consumer_has_the_queue(pair: Pair) -> None:
    pair.there.make("queue", "sales", "shared", subscriptions=["shared/>"], permission="consume")
    pair.here.make("queue", "default", "shared", subscriptions=["shared/>"])
    with (
        blocking.connect(pair.nodes["there"].url, vpn="sales") as there,
        there.consume("shared") as flow,
    ):
        pair.here.make("bridge", "default", "shared", **pair.far(remote_queue="shared"))
        pair.here.wait_for("default", "shared", lambda row: row["state"] == "standby")
        there.publish_many([persistent("shared/x", b"0"), persistent("shared/x", b"1")])
        message = flow.receive(DEADLINE_S)
        flow.accept(message)
    pair.here.wait_up("default", "shared")
    wait_spooled(pair.here, "default", "shared", 1)
    assert payloads(pair.here, "shared") == [b"1"]


def test_what_an_endpoint_here_refuses_goes_to_the_dead_message_queue_over_there(pair: Pair) -> None:
    pair.there.make("queue", "sales", "dead")
    pair.bridge("small", dead_message_queue="dead")
    pair.here.update("queue", "default", "small", max_message_bytes=100)
    with blocking.connect(pair.nodes["there"].url, vpn="sales") as there:
        rows = [persistent("small/x", bytes(200 if n == 3 else 1)) for n in range(10)]
        there.publish_many(rows)
    wait_spooled(pair.here, "default", "small", 9)
    wait_spooled(pair.there, "sales", "dead", 1)
    told = [one["code"] for one in pair.here.events("VPN_BRIDGE_MESSAGE_REFUSED") if one["bridge"] == "small"]
    assert told == [errors.MESSAGE_TOO_LARGE]
    pair.here.update("queue", "default", "small", max_message_bytes=1_000)
    pair.nodes["there"].run("queue", "redrive", "dead", "--vpn", "sales")
    wait_spooled(pair.here, "default", "small", 10)


def test_opposite_bridges_with_queues_make_no_loop_and_no_duplicate(pair: Pair) -> None:
    """Each Message VPN has a queue for the bridge of the other one; both attract what the bridges bring."""
    operator = pair.there
    operator.make_vpns("east", "west")
    for vpn in ("east", "west"):
        for name in ("out", "in"):
            operator.make("queue", vpn, name, subscriptions=["t/>"])
    for vpn, remote in (("east", "west"), ("west", "east")):
        operator.bridge(vpn, "opposite", remote_vpn=remote, remote_queue="out")
    for number, vpn in enumerate(("east", "west")):
        with blocking.connect(operator.node.url, vpn=vpn) as client:
            client.publish_many([persistent("t/x", b"%d" % (1_000 * number + n)) for n in range(500)])
    expected = [b"%d" % n for n in (*range(500), *range(1_000, 1_500))]
    for vpn in ("east", "west"):
        wait_spooled(operator, vpn, "in", 1_000)
        wait_spooled(operator, vpn, "out", 0)
        assert sorted(payloads(operator, "in", vpn), key=int) == expected
        operator.wait_for(vpn, "opposite", lambda row: row["dropped"] == {"visited": 500, "max_hops": 0})


@pytest.mark.parametrize(
    "victim",
    [
        "bridge",
        pytest.param("near router", marks=pytest.mark.long),
        pytest.param("far router", marks=pytest.mark.long),
    ],
)
def test_messages_come_over_exactly_once_whatever_process_dies(pair: Pair, victim: str) -> None:
    name = f"deaths/{victim.replace(' ', '-')}"
    pair.there.make("queue", "sales", name, subscriptions=[f"{name}/>"], permission="consume")
    pair.here.make("queue", "default", name, subscriptions=[f"{name}/>"])
    bridge = victim.replace(" ", "-")
    pair.here.bridge("default", bridge, **pair.far(remote_queue=name))
    total = 30 * ROUND
    done = threading.Event()

    def publish() -> None:
        with blocking.connect(pair.nodes["there"].url, vpn="sales", timeout_s=60.0) as client:
            producer = client.producer(f"p-{victim}")
            for start in range(0, total, ROUND):
                rows = [persistent(f"{name}/{n % 5}", b"%d" % n) for n in range(start, start + ROUND)]
                producer.publish_many(rows)
                time.sleep(0.01)
        done.set()

    thread = threading.Thread(target=publish)
    thread.start()
    for _ in range(2):
        time.sleep(0.2)
        kill(pair, victim)
    thread.join(60.0)
    assert done.is_set()
    wait_spooled(pair.here, "default", name, total)
    wait_spooled(pair.there, "sales", name, 0)
    assert payloads(pair.here, name) == numbers(total), "each once, and in the order of the publisher"
    pair.here.delete("bridge", "default", bridge)


def kill(pair: Pair, victim: str) -> None:
    """Kill the processes of a role as they are now."""
    node = pair.nodes["there" if victim.startswith("far") else "here"]
    role = victim.rpartition(" ")[2]
    for row in node.status()["processes"]:
        if row["role"] == role and row["pid"]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(row["pid"], signal.SIGKILL)
