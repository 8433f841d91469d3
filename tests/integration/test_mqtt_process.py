"""Gateway processes of MQTT in a real node: where they listen, that a port stays theirs, and who replaces whom."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from angarium import errors
from angarium_server.testing import Node, Row
from cluster.supervisor.starting import UpOptions, effective_config, refuse_taken
from gateway.mqtt.codec import ReasonCode
from gateway.mqtt.codec.control import Disconnect, PingReq, PingResp
from gateway.mqtt.codec.properties import Properties
from gateway.mqtt.codec.publish import Publish
from tests.integration.mqtt_clients import Paho, Raw, place_of
from tests.integration.mqtt_node import metric, two_gateways
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow


def test_a_port_is_kept_over_deaths_and_over_restarts_of_the_node(tmp_path: Path) -> None:
    with Node(tmp_path / "data", workers=1, mqtt="tcp://127.0.0.1:0") as node:
        url = node.mqtt_url
        assert is_let_in(url)
        assert node.status()["mqtt"] == [url]
        killed = node.kill("mqtt")
        node.wait_for("another gateway", lambda status: gateway(status) not in (0, killed))
        node.wait_for("it is ready", lambda status: state(status) == "ready")
        assert is_let_in(url)
        doors = [node.url, url]
        node.stop()
        for door in doors:  # the system gives them to nobody meanwhile
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", urlsplit(door).port))
        node.start()
        assert [node.url, node.mqtt_url] == doors
        assert is_let_in(url)


def test_a_start_that_says_nothing_of_mqtt_listens_where_the_last_one_did(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Node(data, workers=1, mqtt="tcp://127.0.0.1:0") as node:
        url = node.mqtt_url
    with Node(data, workers=1) as node:
        assert node.mqtt_url == url
        assert node.status()["mqtt"] == [url]
        assert is_let_in(url)
    with Node(data, workers=1, mqtt="none") as node:
        assert not node.status()["mqtt"]
    with Node(data, workers=1) as node:
        assert not node.status()["mqtt"]


def is_let_in(url: str) -> bool:
    """Connect as a client, and tell whether that is let in."""
    with Raw(url) as client:
        return client.connect("c").code == 0


def gateway(status: Row) -> int:
    (pid,) = (row["pid"] for row in status["processes"] if row["role"] == "mqtt")
    return int(pid)


def state(status: Row) -> str:
    (found,) = (row["state"] for row in status["processes"] if row["role"] == "mqtt")
    return str(found)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Node]:
    with two_gateways(tmp_path) as node:
        yield node


@pytest.mark.requirement("R232")
def test_processes_share_their_addresses_and_who_comes(pair: Node) -> None:
    first, second = pair.status()["mqtt"]
    assert first.startswith("tcp://127.0.0.1:")
    assert second.endswith("/orders")
    assert place_of(first) != place_of(second)
    with contextlib.ExitStack() as stack:
        many = [stack.enter_context(Raw(first)) for _ in range(40)]
        for number, one in enumerate(many):
            one.connect(f"c{number}")
        shares = wait_for(lambda: metric(pair, "clients"), lambda seen: sum(seen.values()) == 40)
        assert min(shares.values()) > 0
        for one in many:
            one.subscribe("all/#", "$share/crew/work")
        many[0].say(Publish("all/1", b"x"))
        assert [next(iter(one.payloads())) for one in many] == [b"x"] * 40
        # Who comes again may come to the other process; his first connection ends all the same.
        again = [stack.enter_context(Raw(first)) for _ in range(40)]
        for number, one in enumerate(again):
            assert one.connect(f"c{number}").code == 0
        for one in many:
            told = one.next()
            assert isinstance(told, Disconnect)
            assert told.code == ReasonCode.SESSION_TAKEN_OVER
    wait_for(lambda: metric(pair, "connections"), lambda seen: set(seen.values()) == {0})


@pytest.mark.requirement("R233")
def test_operators_see_each_process_and_what_it_does(pair: Node) -> None:
    with Raw(pair.mqtt_url) as kept, Raw(pair.mqtt_url, 4) as bad:
        kept.connect("kept", properties=Properties(session_expiry_interval=60))
        kept.subscribe("a/#")
        bad.connect("bad")
        for _ in range(3):
            bad.say(Publish("a/1", b"x"))
        assert [next(iter(kept.payloads())) for _ in range(3)] == [b"x"] * 3
        bad.socket.sendall(b"\x00\x00")
        assert bad.next() is None
        rows = wait_for(lambda: listed(pair), lambda seen: sum(row["clients"] for row in seen) == 1)
    assert [row["name"] for row in rows] == ["mqtt.0", "mqtt.1"]
    assert all(row["state"] == "ready" and row["listen"] == pair.status()["mqtt"] for row in rows)
    for name, count in {"sessions": 1, "messages_in": 3, "messages_out": 3}.items():
        assert sum(row[name] for row in rows) == count, name
    assert [row["ended"] for row in rows if row["ended"]] == [{str(int(ReasonCode.MALFORMED_PACKET)): 1}]
    shown = json.loads(pair.run("gateway", "show", "mqtt.1", "--json"))
    assert shown["pid"] == pair.process("mqtt", 1)["pid"]


def listed(node: Node) -> list[Row]:
    return [json.loads(line) for line in node.run("gateway", "list", "--json").splitlines()]


#: Chi-squared with 19 degrees of freedom is larger once in a thousand million times, if all are equally likely.
CHI_SQUARED_19 = 88.0


@pytest.mark.requirement("R241")
def test_those_who_share_get_equally_much_whichever_process_they_are_in(pair: Node) -> None:
    messages = 2_000
    with contextlib.ExitStack() as stack:
        many = [stack.enter_context(Paho(pair.mqtt_url)) for _ in range(20)]
        for one in many:
            one.subscribe("$share/crew/even/#")
        for number in range(messages):
            many[0].publish(f"even/{number}")
        wait_for(
            lambda: sum(one.messages.qsize() for one in many), lambda seen: seen == messages, "all have come"
        )
        got = [one.messages.qsize() for one in many]
    expected = messages / len(many)
    assert sum((one - expected) ** 2 / expected for one in got) < CHI_SQUARED_19, got


def test_a_process_that_is_killed_takes_its_own_clients_only(pair: Node) -> None:
    with contextlib.ExitStack() as stack:
        many = [stack.enter_context(Raw(pair.mqtt_url)) for _ in range(20)]
        for number, one in enumerate(many):
            one.connect(f"c{number}")
        shares = wait_for(lambda: metric(pair, "clients"), lambda seen: sum(seen.values()) == 20)
        killed = pair.kill("mqtt", 1)
        wait_for(
            lambda: pair.process("mqtt", 1), lambda row: row["state"] == "ready" and row["pid"] != killed
        )
        alive = 0
        for one in many:
            with contextlib.suppress(ConnectionError):
                one.say(PingReq())
                alive += isinstance(one.next(), PingResp)
        assert alive == shares["0"]
    wait_for(lambda: metric(pair, "connections"), lambda seen: set(seen.values()) == {0})


def test_a_second_node_is_refused_where_gateways_listen(tmp_path: Path) -> None:
    """They share their port among themselves only, although the second node is of the same user."""
    with Node(tmp_path / "data", workers=1, mqtt="tcp://127.0.0.1:0") as node:
        options = UpOptions(
            data_dir=str(tmp_path / "other"), listen=("tcp://127.0.0.1:0",), mqtt=(f"{node.mqtt_url}/orders",)
        )
        with pytest.raises(errors.ConflictError) as caught:
            refuse_taken(options, effective_config(options), tmp_path / "other")
        assert caught.value.code == errors.OBJECT_IN_USE
        assert node.mqtt_url in caught.value.detail
