"""Messages of several parts over sockets of ZeroMQ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import zmq

from angarium_server.parts import is_readable, receive, send
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Sockets = tuple[zmq.Socket[bytes], zmq.Socket[bytes]]


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[Sockets]:
    """Give a ROUTER and a DEALER that has reached it."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.ROUTING_ID, b"w0.1")
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.bind(f"ipc://{tmp_path}/s")
    dealer.connect(f"ipc://{tmp_path}/s")
    send(dealer, [b"here"])
    wait_until(lambda: is_readable(router), "the first message")
    assert receive(router) == [b"w0.1", b"here"]
    yield router, dealer
    context.destroy(linger=0)


@pytest.mark.parametrize(
    "parts", [[b""], [b"R"], [b"R", b""], [b"", b"", b""], [b"R", bytes(100), bytes(1 << 20), b"end"]]
)
def test_a_message_comes_with_all_of_its_parts(sockets: Sockets, parts: list[bytes]) -> None:
    router, dealer = sockets
    send(router, [b"w0.1", *parts])
    send(router, [b"w0.1", b"next"])
    wait_until(lambda: is_readable(dealer), "the message")
    assert receive(dealer) == parts
    wait_until(lambda: is_readable(dealer), "the next one")
    assert receive(dealer) == [b"next"]


def test_where_nothing_has_come_nothing_is_readable(sockets: Sockets) -> None:
    for socket in sockets:
        assert not is_readable(socket)
        with pytest.raises(zmq.Again):
            receive(socket)


def test_who_is_not_there_shows_with_the_first_part_and_the_next_message_is_whole(sockets: Sockets) -> None:
    router, dealer = sockets
    with pytest.raises(zmq.ZMQError) as refused:
        send(router, [b"w7.1", b"a", b"b"])
    assert refused.value.errno == zmq.EHOSTUNREACH
    send(router, [b"w0.1", b"c"])
    wait_until(lambda: is_readable(dealer), "the message")
    assert receive(dealer) == [b"c"]
