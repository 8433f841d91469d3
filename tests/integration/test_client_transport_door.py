"""The SDK and the connection layer of the router, end to end without the rest: over tcp, ipc and tls."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from angarium import errors
from angarium_server.connections.door import Door, DoorLimits
from angarium_server.connections.framing import FramingLimits
from angarium_server.watch import Watch
from tests.integration.scripted_router import LIMIT_S, run
from tests.integration.transport_line import Line
from tests.waiting import until

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator
    from pathlib import Path

    from angarium_server.connections.connection import Connection
    from tests.integration.certificates import Authority, Pair

_LIMITS = DoorLimits(
    framing=FramingLimits(8 << 20, 16 << 20),
    unsent_bytes=64 << 20,
    login_s=LIMIT_S,
    unauthenticated=20,
    unauthenticated_per_network=20,
)


class Echo(threading.Thread):
    """A door that lets everybody in and says what it hears."""

    def __init__(self, url: str, context: ssl.SSLContext | None) -> None:
        super().__init__(daemon=True)
        self._watch = Watch()
        self._door = Door(
            self._watch, _LIMITS, self._answer, lambda *_: None, self._fault, lambda *_: None, lambda *_: True
        )
        self.url = self._door.listen(url, context)
        self._is_over = threading.Event()

    def _answer(self, connection: Connection, frames: list[bytes], _now: float) -> None:
        self._door.admit(connection.id)
        self._door.send(connection.id, frames)

    def _fault(self, identity: bytes, _reason: str, now: float) -> None:
        self._door.finish(identity, now)

    def run(self) -> None:
        while not self._is_over.is_set():
            self._watch.wait(0.0 if self._door.read_rest() else 0.01)
            self._door.tick(time.monotonic())
            self._door.flush()

    def close(self) -> None:
        self._is_over.set()
        self.join(LIMIT_S)
        self._door.close(0.1)
        self._watch.close()


@pytest.fixture(params=["tcp", "ipc", "tls"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def echo(kind: str, tmp_path: Path, server_pair: Pair) -> Iterator[Echo]:
    url = f"ipc://{tmp_path}/door" if kind == "ipc" else f"{kind}://127.0.0.1:0"
    echo = Echo(url, server_pair.server_context() if kind == "tls" else None)
    echo.start()
    yield echo
    echo.close()


@pytest.fixture
def context(kind: str, authority: Authority) -> ssl.SSLContext | None:
    return authority.client_context() if kind == "tls" else None


def test_several_at_once_do_not_disturb_each_other(echo: Echo, context: ssl.SSLContext | None) -> None:
    async def test() -> None:
        lines = [Line(echo.url, context=context) for _ in range(10)]
        for number in range(20):
            for line in lines:
                line.send(b"%d" % number)
        await until(lambda: all(len(line.got) == 20 for line in lines))
        for line in lines:
            assert [int(frames[0]) for frames in line.got] == list(range(20))
            line.transport.close()

    run(test())


def test_the_router_says_that_it_demands_a_certificate(authority: Authority, server_pair: Pair) -> None:
    echo = Echo("tls://127.0.0.1:0", server_pair.server_context(clients_of=authority.cert))
    echo.start()

    async def test() -> None:
        line = Line(echo.url, context=authority.client_context())
        await until(lambda: line.ends)
        (end,) = line.ends
        assert isinstance(end, errors.AngariumError)
        assert end.code == errors.TLS_FAILED
        assert "cert_file and key_file" in end.advice

    run(test())
    echo.close()
