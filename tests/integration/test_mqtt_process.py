"""Gateway processes of MQTT in a real node: where they listen, that a port stays theirs, and who replaces whom."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from typing import TYPE_CHECKING

import pytest

from angarium import errors
from angarium_server.testing import Node, Row
from cluster.supervisor.starting import UpOptions, effective_config, refuse_taken
from gateway.mqtt.codec import Parser, Sender, write
from gateway.mqtt.codec.connect import ConnAck, Connect
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.mqtt.codec import Packet

pytestmark = pytest.mark.slow


def answer_to_connect(url: str) -> Packet:
    """Say CONNECT, and give what comes first."""
    host, _, port = url.removeprefix("tcp://").partition("/")[0].rpartition(":")
    with socket.create_connection((host, int(port)), 10) as made:
        made.sendall(write(Connect(client_id="c"), 5))
        parser = Parser(Sender.SERVER, version=5)
        while data := made.recv(4096):
            if packets := parser.feed(data):
                return packets[0]
    raise AssertionError("the connection was closed without a word")


def metric(node: Node, name: str) -> dict[str, float]:
    """Give a metric of each gateway process, by its index."""
    kept = json.loads((node.data / "node.json").read_text(encoding="utf-8"))
    with urllib.request.urlopen(f"{kept['health']}/metrics", timeout=5) as page:
        text = page.read().decode()
    found = re.findall(rf'^angarium_mqtt_{name}{{index="(\d+)"}} (\S+)$', text, flags=re.MULTILINE)
    return {index: float(value) for index, value in found}


def test_a_port_is_kept_over_deaths_and_over_restarts_of_the_node(tmp_path: Path) -> None:
    with Node(tmp_path / "data", workers=1, mqtt="tcp://127.0.0.1:0") as node:
        url = node.mqtt_url
        assert isinstance(answer_to_connect(url), ConnAck)
        assert node.status()["mqtt"] == [url]
        killed = node.kill("mqtt")
        node.wait_for("another gateway", lambda status: gateway(status) not in (0, killed))
        node.wait_for("it is ready", lambda status: state(status) == "ready")
        assert isinstance(answer_to_connect(url), ConnAck)
        node.restart()
        assert node.mqtt_url == url
        assert isinstance(answer_to_connect(url), ConnAck)


def gateway(status: Row) -> int:
    (pid,) = (row["pid"] for row in status["processes"] if row["role"] == "mqtt")
    return int(pid)


def state(status: Row) -> str:
    (found,) = (row["state"] for row in status["processes"] if row["role"] == "mqtt")
    return str(found)


def test_processes_share_a_port_and_who_comes(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("[mqtt]\nlisten = ['tcp://127.0.0.1:0', 'tcp://127.0.0.1:0/orders']\nprocesses = 2\n")
    with Node(tmp_path / "data", workers=1, config=file) as node:
        first, second = node.status()["mqtt"]
        assert first.startswith("tcp://127.0.0.1:")
        assert second.endswith("/orders")
        assert first.partition("/orders")[0] != second.partition("/orders")[0]
        port = int(first.rpartition(":")[2])
        held = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(40)]
        try:
            shares = wait_for(lambda: metric(node, "connections"), lambda seen: sum(seen.values()) == 40)
            assert min(shares.values()) > 0
        finally:
            for one in held:
                one.close()
        wait_for(lambda: metric(node, "connections"), lambda seen: set(seen.values()) == {0})


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
