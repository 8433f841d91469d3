"""Messages of several parts between processes of a node, sent and received without waiting.

`recv_multipart` and `send_multipart` of pyzmq look over what they are given, and ask for each part with a constant that
is an enum. Between our own processes that took longer than to carry the message:

    a message of three parts: received in 5.1 us, 3.5 here; sent in 3.4, 1.6 here
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import zmq

if TYPE_CHECKING:
    from collections.abc import Sequence

_LAST: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)
_HAS_MORE: Final = int(zmq.RCVMORE)
_EVENTS: Final = int(zmq.EVENTS)
_READABLE: Final = int(zmq.POLLIN)


def receive(socket: zmq.Socket[bytes]) -> list[bytes]:
    """Take a message.

    Raises:
        zmq.Again: there is none; to be told so costs as much as a message, to ask `is_readable` half of that.
    """
    take, has = socket.recv, socket.get
    parts = [take(_LAST)]
    while has(_HAS_MORE):
        parts.append(take(_LAST))
    return parts


def send(socket: zmq.Socket[bytes], parts: Sequence[bytes]) -> None:
    """Send a message.

    Raises:
        zmq.ZMQError: it cannot be sent now, or there is nobody; both show with the first part.
    """
    last = len(parts) - 1
    for number, part in enumerate(parts):
        socket.send(part, _LAST if number == last else _MORE)


def is_readable(socket: zmq.Socket[bytes]) -> bool:
    """Tell whether a message has come; that uses up the signal of it (`angarium_server.watch`)."""
    return bool(int(socket.get(_EVENTS)) & _READABLE)
