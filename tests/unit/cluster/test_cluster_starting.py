"""What a start says of an address that is taken, and how long it waits for it."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import struct
import threading
from typing import TYPE_CHECKING

import pytest

from angarium import errors
from cluster.data.node_file import NodeFile
from cluster.supervisor import starting
from cluster.supervisor.fronts import MANAGEMENT, MQTT, NONE, held, left_out, urls_to_bind
from cluster.supervisor.ports import Ports
from cluster.supervisor.starting import (
    UpOptions,
    effective_config,
    refuse_taken_addresses,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    """Give a connection to somewhere else, whose own port is one that a node might want."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.bind(("127.0.0.1", 0))
        client.connect(server.getsockname())
        # Closed without a wait of the kernel, so that the port is free at once.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with contextlib.closing(server.accept()[0]):
            yield client


def url_of(connection: socket.socket) -> str:
    return f"tcp://127.0.0.1:{connection.getsockname()[1]}"


def test_a_port_that_a_connection_has_is_refused_after_a_while_and_not_called_a_listener(
    connection: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "CONNECTION_WAIT_S", 0.2)
    with pytest.raises(errors.ConflictError) as caught:
        refuse_taken_addresses([url_of(connection)], was_killed=False)
    assert caught.value.detail == f"{url_of(connection)} is taken, by a listener or a connection"
    assert caught.value.advice.startswith("'ss -tanp' shows it")


def test_a_port_that_a_connection_had_is_taken_when_it_ends(connection: socket.socket) -> None:
    ending = threading.Timer(0.3, connection.close)
    url = url_of(connection)
    ending.start()
    try:
        refuse_taken_addresses([url], was_killed=False)
    finally:
        ending.join()


def test_an_open_port_for_mqtt_is_the_one_that_it_was_last() -> None:
    node = NodeFile(
        node="n",
        node_id="i",
        workers=1,
        mqtt={
            "tcp://127.0.0.1:0/orders": "tcp://127.0.0.1:4711/orders",
            "tcp://127.0.0.1:1": "tcp://127.0.0.1:1",
        },
    )
    assert MQTT.fixed(["tcp://127.0.0.1:0", "tcp://127.0.0.1:0/orders"], node) == [
        "tcp://127.0.0.1:0",
        "tcp://127.0.0.1:4711/orders",
    ]


def test_addresses_for_mqtt_on_the_command_line_come_instead_of_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("[mqtt]\nlisten = ['tcp://127.0.0.1:1']\nprocesses = 2\n")
    options = UpOptions(data_dir=str(tmp_path / "data"), config_file=str(file))
    assert effective_config(options).mqtt.listen == ["tcp://127.0.0.1:1"]
    asked = dataclasses.replace(options, mqtt=("tcp://127.0.0.1:2", "tcp://127.0.0.1:3/orders"))
    found = effective_config(asked).mqtt
    assert found.listen == ["tcp://127.0.0.1:2", "tcp://127.0.0.1:3/orders"]
    assert found.processes == 2


@pytest.mark.parametrize(
    ("asked", "configured", "kept", "expected"),
    [
        ((), [], [], []),
        ((), [], ["tcp://127.0.0.1:0/orders"], ["tcp://127.0.0.1:0/orders"]),
        (("tcp://127.0.0.1:1",), [], ["tcp://127.0.0.1:2"], ["tcp://127.0.0.1:1"]),
        ((), ["tcp://127.0.0.1:1"], ["tcp://127.0.0.1:2"], ["tcp://127.0.0.1:1"]),
        (NONE, ["tcp://127.0.0.1:1"], ["tcp://127.0.0.1:2"], []),
        ((), [], ["tcp://127.0.0.1:2", "tls://0.0.0.0:8883"], []),
        ((), [], ["tls://127.0.0.1:8883"], []),  # there is no certificate any more
    ],
)
def test_a_start_that_names_no_address_for_mqtt_takes_those_that_were_named_last_on_this_host(
    asked: tuple[str, ...], configured: list[str], kept: list[str], expected: list[str], tmp_path: Path
) -> None:
    options = UpOptions(data_dir=str(tmp_path), mqtt=asked)
    config = effective_config(options)
    if not asked:
        config = MQTT.with_listen(config, configured)
    node = NodeFile(node="n", node_id="i", workers=1, mqtt_named=kept)
    assert MQTT.asked(options.mqtt, config, node) == expected


def test_an_address_that_has_lost_its_certificate_is_told_of_and_not_forgotten(tmp_path: Path) -> None:
    entry = "https://127.0.0.1:0"
    node = NodeFile(node="n", node_id="i", workers=1, management_named=[entry])
    options = UpOptions(data_dir=str(tmp_path))
    config = effective_config(options)
    (text,) = left_out(config, options.named, node)
    assert text.startswith(f"--management {entry} of an earlier start is left out: ")
    assert "certificate" in text
    ports = Ports()
    try:
        _, kept = held(config, options.named, node, ports)
        assert (kept["management"], kept["management_named"]) == ({}, [entry])
        forgetting = UpOptions(data_dir=str(tmp_path), management=NONE)
        config = effective_config(forgetting)
        assert left_out(config, forgetting.named, node) == []
        assert held(config, forgetting.named, node, ports)[1]["management_named"] == []
    finally:
        ports.close()


def test_the_management_api_has_its_port_again_and_mqtt_its_own(tmp_path: Path) -> None:
    node = NodeFile(
        node="n",
        node_id="i",
        workers=1,
        mqtt_named=["tcp://127.0.0.1:1883"],
        management={"http://127.0.0.1:0": "http://127.0.0.1:4712"},
        management_named=["http://127.0.0.1:0"],
    )
    options = UpOptions(data_dir=str(tmp_path))
    config = effective_config(options)
    assert MANAGEMENT.asked(options.management, config, node) == ["http://127.0.0.1:0"]
    assert urls_to_bind(config, options.named, node) == ["tcp://127.0.0.1:1883", "tcp://127.0.0.1:4712"]
    without = UpOptions(data_dir=str(tmp_path), management=NONE)
    assert urls_to_bind(effective_config(without), without.named, node) == ["tcp://127.0.0.1:1883"]


def test_an_address_for_mqtt_that_others_reach_is_refused_without_encryption(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidRequestError) as caught:
        effective_config(UpOptions(data_dir=str(tmp_path), mqtt=("tcp://0.0.0.0:1883",)))
    assert caught.value.code == errors.INVALID_CONFIGURATION
    assert "--mqtt tls://0.0.0.0:1883" in caught.value.detail


def test_a_port_that_is_held_is_for_those_who_share_it_only() -> None:
    """Whoever listens there meanwhile, and lets go, finds it again: that is a gateway process that is replaced."""
    ports = Ports()
    try:
        url = ports.hold("tcp://127.0.0.1:0")
        port = int(url.rpartition(":")[2])
        assert url == f"tcp://127.0.0.1:{port}"
        assert port > 0
        for _ in range(2):
            with socket.create_server(("127.0.0.1", port), reuse_port=True):
                socket.create_connection(("127.0.0.1", port), 5).close()
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.1", port), reuse_port=False).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5)
    finally:
        ports.close()


def test_a_port_that_cannot_be_held_says_why() -> None:
    ports = Ports()
    try:
        with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(errors.ConflictError) as taken:
            ports.hold(f"tcp://127.0.0.1:{other.getsockname()[1]}")
        assert taken.value.code == errors.OBJECT_IN_USE
        with pytest.raises(errors.InvalidRequestError, match=r"tcp://192\.0\.2\.1:0"):
            ports.hold("tcp://192.0.2.1:0")
    finally:
        ports.close()
