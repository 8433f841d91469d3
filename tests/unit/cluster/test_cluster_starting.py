"""What a start says of an address that is taken, and how long it waits for it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import TYPE_CHECKING

import pytest

from angarium import errors
from cluster.supervisor import starting
from cluster.supervisor.starting import refuse_taken_addresses

if TYPE_CHECKING:
    from collections.abc import Iterator


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
