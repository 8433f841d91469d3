"""A process of clients of HTTP without a library: requests over kept sockets, cheap, so that the node is measured.

It prints READY when it is connected, waits for GO, and prints one line of JSON when it has all answers.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any, Final
from urllib.parse import urlsplit

MODULE: Final = "benchmarks.http.client"
PAYLOAD_BYTES: Final = 128
#: A node that does not answer for so long is not waited for.
TIMEOUT_S: Final = 30.0
_READ_BYTES: Final = 1 << 16


@dataclass(frozen=True, kw_only=True)
class PostTask:
    """What one process does."""

    url: str
    #: Messages are posted to topics below it, in turn.
    prefix: str
    connections: int
    seconds: float
    role: str = "publish"
    topics: int = 16
    module: str = MODULE

    def pack(self) -> bytes:
        """Give the line for standard input."""
        return json.dumps(asdict(self)).encode() + b"\n"


class Poster:
    """One connection, with one request on its way."""

    def __init__(self, task: PostTask, number: int) -> None:
        """Connect."""
        place = urlsplit(task.url)
        self.socket = socket.create_connection((place.hostname, place.port), TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = f"POST /v1/topics/{task.prefix}/{number}/{{}} HTTP/1.1\r\nHost: {place.netloc}\r\n"
        head += f"Content-Length: {PAYLOAD_BYTES}\r\n\r\n"
        self._requests = [head.format(topic).encode() + bytes(PAYLOAD_BYTES) for topic in range(task.topics)]
        self.sent = self.stored = 0

    def post(self) -> None:
        """Send a request."""
        self.socket.sendall(self._requests[self.sent % len(self._requests)])
        self.sent += 1

    def take(self) -> bool:
        """Take an answer; tell whether the message is stored."""
        came = b""
        while not came.endswith(b"\r\n\r\n"):
            data = self.socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionResetError("the node has closed the connection")
            came += data
        is_stored = came.startswith(b"HTTP/1.1 204 ") and b"Angarium-Unrouted" not in came
        self.stored += is_stored
        return is_stored


def post_all(task: PostTask) -> dict[str, Any]:
    """Post for a time, the next request of a connection behind each answer; tell how many were stored, and when."""
    posters = [Poster(task, number) for number in range(task.connections)]
    print("READY", flush=True)
    sys.stdin.readline()
    first_ns, until = time.monotonic_ns(), time.monotonic() + task.seconds
    open_requests = len(posters)
    with selectors.DefaultSelector() as selector:
        for one in posters:
            selector.register(one.socket, selectors.EVENT_READ, one)
            one.post()
        while open_requests:
            ready = selector.select(TIMEOUT_S)
            if not ready:
                break
            is_time = time.monotonic() < until
            for key, _ in ready:
                if key.data.take() and is_time:
                    key.data.post()
                else:
                    open_requests -= 1
    return {
        "sent": sum(one.sent for one in posters),
        "acknowledged": sum(one.stored for one in posters),
        "first_ns": first_ns,
        "last_ns": time.monotonic_ns(),
    }


def main() -> None:
    """Do what the task says, and print what came of it."""
    figures = post_all(PostTask(**json.loads(sys.stdin.readline())))
    print(json.dumps(figures | {"cpu_s": time.process_time()}), flush=True)


if __name__ == "__main__":
    main()
