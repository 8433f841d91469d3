"""What a client of HTTP can do to harm others: requests that are damaged or never end, and those that cost much.

`WAYS` are turns of the kind `http` of `tests.attack.attackers`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import socket
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tests.attack.gateway_attack import ANSWER_S, LOOK_S, Attack

if TYPE_CHECKING:
    from collections.abc import Callable

#: Streams that nobody reads, and what is published for each in a turn.
STREAMS: Final = 20
UNREAD_BYTES: Final = 4 << 20
#: Requests that are begun and not ended; some stay over turns.
BEGUN: Final = 50
MESSAGES: Final = 300


class HttpAttack(Attack):
    """A client of HTTP."""

    __slots__ = ()

    def connection(self, receive_bytes: int = 0) -> socket.socket:
        """Give a connection that has not said anything."""
        place = urlsplit(self.url)
        made = socket.socket()
        if receive_bytes:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        made.settimeout(ANSWER_S)
        made.connect((place.hostname, place.port))
        return made

    def head(self, method: str, target: str, length: int = 0, *more: str) -> bytes:
        """Give the head of a request that is let in."""
        login = base64.b64encode(f"{self.username}:{self.password}".encode()).decode()
        lines = [
            f"{method} {target} HTTP/1.1",
            f"Host: {urlsplit(self.url).netloc}",
            f"Authorization: Basic {login}",
            f"Content-Length: {length}",
            *more,
        ]
        return "\r\n".join([*lines, "", ""]).encode()

    def ask(self, connection: socket.socket, method: str, target: str, body: bytes = b"") -> bytes:
        """Ask, count the status, and give the body."""
        connection.sendall(self.head(method, target, len(body)) + body)
        data = b""
        while b"\r\n\r\n" not in data:
            data += _some(connection)
        head, _, rest = data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.counts[f"{method} {lines[0].split(' ')[1]}"] += 1
        fields = dict(line.lower().split(": ", 1) for line in lines[1:])
        while len(rest) < int(fields.get("content-length", "0")):
            rest += _some(connection)
        return rest


def _some(connection: socket.socket) -> bytes:
    data = connection.recv(1 << 16)
    if not data:
        raise ConnectionResetError("closed")
    return data


def damaged(attack: HttpAttack, _turn: int) -> None:
    """Good requests with some bytes that are others, cut anywhere."""
    rng = attack.rng
    for _ in range(50):
        target = rng.choice(
            ["/v1/topics/a/b", "/v1/events?topic=a/%3E", "/v1/queues/x/receive?max=9", "/v1/%ff"]
        )
        stream = bytearray(
            attack.head(rng.choice(["GET", "POST", "PUT"]), target, 9, "X: " + "y" * rng.randrange(9_000))
        )
        stream += b"some body"
        for _ in range(rng.randrange(5)):
            stream[rng.randrange(len(stream))] = rng.randrange(256)
        with attack.connection() as one:
            one.sendall(stream[: rng.randrange(len(stream)) if rng.random() < 0.3 else None])
            one.settimeout(LOOK_S)
            with contextlib.suppress(TimeoutError):
                attack.counts[f"damaged {one.recv(12)[9:].decode('latin-1')}"] += 1


def slow(attack: HttpAttack, _turn: int) -> None:
    """Heads and bodies that do not end, of connections that stay."""
    for _ in range(BEGUN):
        head = attack.head("POST", "/v1/topics/slow", 1_000_000)
        said = attack.rng.choice([head[:-9], head, head + bytes(attack.rng.randrange(900_000))])
        attack.held.append(attack.connection())
        attack.held[-1].sendall(said)
        attack.counts["begun"] += 1
    while len(attack.held) > 4 * BEGUN:
        attack.held.pop(attack.rng.randrange(len(attack.held))).close()


def unread(attack: HttpAttack, turn: int) -> None:
    """Streams of events that nobody reads."""
    streams = [attack.connection(4_096) for _ in range(STREAMS)]
    for one in streams:
        one.sendall(attack.head("GET", f"/v1/events?topic=unread/{turn}/%3E&topic=unread/*/x*"))
    payload = bytes(50_000)
    with attack.connection() as publisher:
        for at in range(UNREAD_BYTES // len(payload)):
            attack.ask(publisher, "POST", f"/v1/topics/unread/{turn}/x{at}?delivery=direct", payload)
    for one in streams:
        one.close()


def streams(attack: HttpAttack, turn: int) -> None:
    """Streams with many filters that overlap, and each with a topic of its own."""
    rng, opened = attack.rng, []
    for at in range(STREAMS):
        wanted = {"/".join(rng.choices(["a", "*", "a*"], k=8)) for _ in range(20)}
        query = "&".join(f"topic={text}" for text in [f"own/{turn}.{at}", *sorted(wanted)])
        opened.append(attack.connection())
        opened[-1].sendall(attack.head("GET", f"/v1/events?{query}"))
        attack.counts["streams"] += 1
    with attack.connection() as publisher:
        for at in range(MESSAGES):
            topic = "/".join([*["a"] * 7, f"a{turn}.{at}"])
            attack.ask(publisher, "POST", f"/v1/topics/{topic}?delivery=direct", b"x")
    for one in opened:
        one.close()


def leases(attack: HttpAttack, turn: int) -> None:
    """Messages that are taken on lease and not settled, and requests that wait and are left."""
    queue = f"leases{turn}"
    with attack.connection() as one:
        for at in range(MESSAGES):
            attack.ask(one, "POST", f"/v1/topics/leases/{turn}/{at}", bytes(1_000))
        told = attack.ask(one, "POST", f"/v1/queues/{queue}/receive?max=1000&lease=1")
        with contextlib.suppress(ValueError):
            attack.counts["leased"] += len(json.loads(told).get("messages", ()))
    for _ in range(BEGUN):
        with attack.connection() as one:
            one.sendall(attack.head("POST", f"/v1/queues/{queue}/receive?wait=60"))


WAYS: Final[tuple[Callable[[HttpAttack, int], None], ...]] = (damaged, slow, unread, streams, leases)
