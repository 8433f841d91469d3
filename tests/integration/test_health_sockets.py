"""The sockets of the health endpoint, without a node: who is slow, rude or gone harms nobody else."""

from __future__ import annotations

import errno
import socket
import struct
import time
from contextlib import ExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING

import pytest

from angarium import errors
from angarium_server.watch import Watch
from cluster.controller.health.http import Answer, Request
from cluster.controller.health.server import CLIENT_S, CLIENTS_MAX, HealthServer

if TYPE_CHECKING:
    from collections.abc import Iterator

PROBE = b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n"


class Endpoint:
    """A server in a loop that runs while a test waits for something."""

    def __init__(self, body: str) -> None:
        self.watch = Watch()
        self.asked: list[Request] = []
        self.body = body
        self.server = HealthServer(self.watch, ["tcp://127.0.0.1:0"], self.answer)
        self.host, _, port = self.server.urls[0].removeprefix("http://").rpartition(":")
        self.port = int(port)

    def answer(self, request: Request) -> Answer:
        self.asked.append(request)
        return Answer(HTTPStatus.OK, self.body)

    def connect(self) -> socket.socket:
        made = socket.create_connection((self.host, self.port), timeout=10.0)
        self.turn()
        return made

    def turn(self, after_s: float = 0.0) -> None:
        """Let the loop go round some times, as if so much time had passed."""
        for _ in range(5):
            self.watch.wait(0.001)
            self.server.tick(time.monotonic() + after_s)

    def read(self, client: socket.socket) -> bytes:
        """Give all that a client gets until the end."""
        client.setblocking(False)
        got, deadline = b"", time.monotonic() + 10.0
        while time.monotonic() < deadline:
            self.turn()
            try:
                piece = client.recv(1 << 16)
            except BlockingIOError:
                continue
            if not piece:
                return got
            got += piece
        raise AssertionError(f"no end after {len(got)} bytes")

    def probe(self) -> bytes:
        with self.connect() as client:
            client.sendall(PROBE)
            return self.read(client)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint("ok\n")
    yield made
    made.server.close()
    made.watch.close()


def test_a_probe_is_answered_and_the_connection_ends(endpoint: Endpoint) -> None:
    assert endpoint.probe().endswith(b"\r\n\r\nok\n")
    assert endpoint.asked == [Request("/readyz")]


def test_those_who_connect_and_say_nothing_keep_no_probe_out(endpoint: Endpoint) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(endpoint.connect()) for _ in range(CLIENTS_MAX + 20)]
        for one in silent[:40]:
            one.send(b"GET /readyz HT")
        assert endpoint.probe().endswith(b"ok\n")
        assert silent[0].recv(100) == b"", "the oldest made room"
        endpoint.turn(after_s=CLIENT_S)
        assert silent[-1].recv(100) == b"", "and nobody stays longer than his time"


@pytest.mark.parametrize(
    "garbage", [b"\x00" * 20_000, b"GET " * 5_000, b"\xff\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"]
)
def test_what_is_no_http_is_refused(endpoint: Endpoint, garbage: bytes) -> None:
    with endpoint.connect() as client:
        client.sendall(garbage)
        assert endpoint.read(client).startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 "))
    assert endpoint.asked == []
    assert endpoint.probe().endswith(b"ok\n")


def test_who_goes_on_talking_after_his_answer_is_cut_off(endpoint: Endpoint) -> None:
    with endpoint.connect() as client, pytest.raises(OSError, match=r"reset|Broken pipe"):  # noqa: PT012 - whichever send it is
        client.sendall(PROBE)
        for _ in range(1_000):
            client.sendall(bytes(4_096))
            endpoint.turn()
    assert len(endpoint.asked) == 1


def test_who_is_gone_before_his_answer_harms_nobody(endpoint: Endpoint) -> None:
    for _ in range(3):
        with endpoint.connect() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.send(PROBE)
    assert endpoint.probe().endswith(b"ok\n")


def test_an_answer_that_does_not_fit_leaves_bit_by_bit() -> None:
    endpoint = Endpoint("x" * 4_000_000)
    with endpoint.connect() as client:
        client.sendall(PROBE)
        assert endpoint.read(client).partition(b"\r\n\r\n")[2] == endpoint.body.encode()
    endpoint.server.close()
    endpoint.watch.close()


def test_an_address_in_use_is_named(endpoint: Endpoint) -> None:
    url = f"tcp://{endpoint.host}:{endpoint.port}"
    with pytest.raises(errors.InvalidRequestError, match=rf"health.listen: {url}: Address already in use"):
        HealthServer(endpoint.watch, [url], endpoint.answer)


def test_all_addresses_of_a_host_are_one_address(endpoint: Endpoint) -> None:
    for url in ("tcp://*:0", "tcp://localhost:*"):
        server = HealthServer(endpoint.watch, [url], endpoint.answer)
        assert server.urls[0].startswith("http://")
        server.close()


def test_a_process_without_descriptors_does_not_ask_for_ever_and_takes_who_came_later(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def full(_listener: socket.socket) -> None:
        asked.append(1)
        raise OSError(errno.EMFILE, "Too many open files")

    with socket.create_connection((endpoint.host, endpoint.port), timeout=10.0) as client:
        with monkeypatch.context() as patch:
            patch.setattr(socket.socket, "accept", full)
            endpoint.turn()
            assert len(asked) == 1
        client.sendall(PROBE)
        assert endpoint.read(client).endswith(b"ok\n")


def test_an_endpoint_that_rests_for_want_of_descriptors_can_be_closed(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_listener: socket.socket) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with socket.create_connection((endpoint.host, endpoint.port), timeout=10.0):
        monkeypatch.setattr(socket.socket, "accept", full)
        endpoint.turn()
        endpoint.server.close()
        endpoint.turn(1.0)
