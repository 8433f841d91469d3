"""Clients that break the protocol, each in a way of its own, beside the healthy ones.

Whatever they send may cost themselves the session, and nobody else anything. What they publish in good form
carries no message number, so the checkers pass over it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack

from angarium import wire
from tests.simulation.simulated_network import Connection, Endpoint, Frames

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.simulation.simulated_network import Loop
    from tests.simulation.simulated_node import SimulatedNode

#: Deeper than a packer goes, not deeper than an unpacker does.
DEEP = 600
RETURN_MAX_S = 0.8

Attack = tuple[str, list[Frames]]


def pack(value: Any) -> bytes:
    """Pack anything, in good form or not."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def deep(levels: int) -> bytes:
    """Give an array in an array in an array..."""
    return b"\x91" * levels + b"\x01"


def row(index: Any, topic: Any, flags: Any = 0, payload: Any = b"hostile", meta: Any = None) -> list[Any]:
    """Give a row, or what pretends to be one."""
    return [index, topic, flags, meta, None, payload]


def publish(number: int, epoch: int, parts: list[list[int]], *batches: bytes) -> Frames:
    """Give a PUBLISH."""
    return [wire.PUBLISH, pack([number, epoch, False, parts]), *batches]


def _frames_without_shape(rng: random.Random) -> list[Frames]:
    junk = bytes(rng.getrandbits(8) for _ in range(rng.randint(0, 30)))
    return [
        rng.choice(
            [
                [junk],
                [wire.PUBLISH],
                [wire.PUBLISH, junk],
                [junk, junk, junk],
                [wire.DELIVER, pack([0, [], 0])],
                [wire.CREDIT, pack([-1, "x"])],
                [wire.SUBSCRIBE, pack([1, [], None])],
                [wire.SUBSCRIBE, pack([1, [["a", 7]], None])],
                [wire.UNSUBSCRIBE, pack({"a": 1})],
                [wire.PING, junk],
                [wire.PING, deep(DEEP)],
                [wire.PONG, deep(DEEP)],
                [wire.BYE, junk],
                [wire.HELLO, pack({"version": 1})],
                [wire.CREDIT, pack([0, 0])],
                [b"", b""],
            ]
        )
    ]


def _publishes_without_shape(rng: random.Random, epoch: int, topics: list[str]) -> list[Frames]:
    topic = rng.choice(topics)
    good = pack([row(0, topic)])
    return [
        rng.choice(
            [
                publish(2, 0, [[0, 1]], good),
                publish(1, 0, [[0, 2]], good),
                publish(1, 0, [[0, 0]], good),
                publish(1, 0, [[0, 1]]),
                publish(1, 0, [], good),
                publish(1, epoch, [[0, 1], [0, 1]], good, good),
                publish(1, epoch, [[200, 1]], good),
                publish(1, epoch, [[0, 1], [1, 1]], good, good),
                publish(1, epoch + 5, [[0, 1], [1, 1]], good, pack([{1: topic}])),
                publish(1, 0, [[0, 1]], pack([{1: topic}])),
                publish(1, 0, [[0, 1]], deep(DEEP)),
                publish(1, 0, [[0, 1]], b"\x91\x96\x00\xa1a\x00\xc0\xc0" + deep(DEEP)),
                publish(1, -3, [[0, 1]], good),
                publish(1 << 60, 0, [[0, 1]], good),
                publish(1, 0, []),
                publish(1, epoch, [], b""),
            ]
        )
    ]


def _rows_without_shape(rng: random.Random, epoch: int, topics: list[str]) -> list[Frames]:
    topic, other = rng.choice(topics), rng.choice(topics)
    rows = rng.choice(
        [
            [row(1, topic), row(0, other)],
            [row(0, topic), row(0, other)],
            [row(0, topic, 3)],
            [row(0, topic, 0b1100)],
            [row(0, topic, 300)],
            [row(-1, topic)],
            [row(0, topic, payload="text")],
            [row(0, b"bytes")],
            [row(0, topic, meta=[0, 0, 900, None])],
            [row(0, topic), [1, other]],
            [row(0, topic), 7],
            [row(0, None)],
            "no list",
            {0: 1},
        ]
    )
    count = len(rows) if isinstance(rows, list) else 1
    use_epoch, worker = rng.choice([(0, 0), (epoch, 0), (epoch, 1), (epoch - 1, 0)])
    return [publish(1, use_epoch, [[worker, count]], pack(rows))]


def _floods(rng: random.Random, topics: list[str]) -> list[Frames]:
    """Give more rounds than any credit allows."""
    batch = pack([row(0, rng.choice(topics))])
    return [publish(number, 0, [[0, 1]], batch) for number in range(1, 40 + rng.randint(0, 60))]


def _bad_topics(rng: random.Random, topics: list[str]) -> list[Frames]:
    """Give rows that are refused one by one, among others that are not."""
    bad = ["", "x" * 251, "#share/g/a", "#noexport/a", "#LOG/a", "a\0b", "/".join("a" * 130)]
    rows = [row(index, rng.choice(bad + topics)) for index in range(6)]
    return [publish(1, 0, [[0, 6]], pack(rows))]


def _bad_filters(rng: random.Random) -> list[Frames]:
    bad = ["", "#share//a", "#share/a*/b", "#share/g", "#noexport/", "#P2P/INB/>", "a" * 300, "a\0", "h/>"]
    wanted = [[rng.choice(bad), rng.randint(0, 1)] for _ in range(4)]
    target = rng.choice([None, None, "nobody"])
    return [[wire.SUBSCRIBE, pack([1, wanted, target])], [wire.UNSUBSCRIBE, pack([2, wanted, target])]]


def _more_after_bye(rng: random.Random, topics: list[str]) -> list[Frames]:
    batch = pack([row(0, rng.choice(topics))])
    return [
        publish(1, 0, [[0, 1]], batch),
        [wire.BYE, pack([])],
        publish(2, 0, [[0, 1]], batch),
        [wire.SUBSCRIBE, pack([1, [["h/>", 0]], None])],
        [wire.BYE, pack([])],
    ]


def _odd_encoding(rng: random.Random, topics: list[str]) -> list[Frames]:
    """Give a batch that is right, but not in the shortest form."""
    topic = rng.choice(topics).encode()
    one = b"\x96\xcd\x00\x00\xda" + len(topic).to_bytes(2, "big") + topic + b"\x00\xc0\xc0\xc4\x01h"
    two = b"\x96\x07\xda" + len(topic).to_bytes(2, "big") + topic + b"\x00\xc0\xc0\xc5\x00\x01h"
    head = rng.choice([b"\x92", b"\xdc\x00\x02", b"\xdd\x00\x00\x00\x02"])
    return [publish(1, 0, [[0, 2]], head + one + two)]


def _strange_hello(rng: random.Random) -> bytes:
    return rng.choice(
        [
            pack({"version": 9}),
            pack({"version": 1, "vpn": "nowhere"}),
            pack({"version": 1, "username": "nobody"}),
            pack({"version": 1, "client_name": "a\0"}),
            pack({"version": 1, "credit": [-1, 0]}),
            pack({"version": 1, "token": b"x" * 40, "client_name": "c0"}),
            pack({"version": 1, "local_priority": 9}),
            pack([1, 2]),
            deep(DEEP),
            b"\xc1",
        ]
    )


class HostileClient:
    """Connects, does one evil thing, and comes back for the next."""

    def __init__(self, loop: Loop, rng: random.Random, node: SimulatedNode, topics: list[str]) -> None:
        self._loop = loop
        self._rng = rng
        self._node = node
        self._topics = topics
        self._connection: Connection | None = None
        self._epoch = 1
        #: False once it was stopped.
        self.is_active = True

    def begin(self) -> None:
        """Start an attack."""
        if not self.is_active:
            return
        self._loop.after(0.1 + self._rng.random() * RETURN_MAX_S, self._next)
        if not self._node.is_listening:
            return
        connection: Connection | None = None

        def arrived(frames: Frames) -> None:
            if connection is not None and connection is self._connection:
                self._receive(connection, frames)

        connection = self._connection = self._node.accept(Endpoint(arrived, lambda: None), "127.0.0.1")
        if self._rng.random() < 0.2:
            connection.up.send([wire.HELLO, _strange_hello(self._rng)])
        else:
            credit = self._rng.choice([[0, 0], [1, 1], [1 << 40, 1 << 40]])
            connection.up.send([wire.HELLO, pack({"version": 1, "credit": credit, "keepalive_ms": 500})])

    def stop(self) -> None:
        """Disturb nobody from now on."""
        self.is_active = False
        self._next()

    def _next(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close_near(is_noticed=self._rng.random() < 0.7)
        self.begin()

    def _receive(self, connection: Connection, frames: Frames) -> None:
        if frames[0] != wire.WELCOME or not self.is_active:
            return
        self._epoch = wire.unpack(frames[1])["epoch"]
        for attack in self._attack():
            connection.up.send(attack)

    def _attack(self) -> list[Frames]:
        rng, epoch, topics = self._rng, self._epoch, self._topics
        makers: list[Callable[[], list[Frames]]] = [
            lambda: _frames_without_shape(rng),
            lambda: _publishes_without_shape(rng, epoch, topics),
            lambda: _rows_without_shape(rng, epoch, topics),
            lambda: _floods(rng, topics),
            lambda: _bad_topics(rng, topics),
            lambda: _bad_filters(rng),
            lambda: _more_after_bye(rng, topics),
            lambda: _odd_encoding(rng, topics),
        ]
        return rng.choice(makers)()
