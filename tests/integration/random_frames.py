"""Frames that no client should send, from a seed: noise, good frames damaged, good frames of odd values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from angarium import wire
from angarium.slots import slot_table
from angarium.topic import slot_of
from tests.integration.raw_client import hello_header, row

if TYPE_CHECKING:
    import random

WORKERS = 2
_OPERATIONS = [bytes([one]) for one in b"HPSUCBKk?"]
_GOOD: list[list[bytes]] = [
    [wire.HELLO, wire.pack(hello_header())],
    [wire.PUBLISH, wire.pack([1, 0, False, [[0, 1]]]), wire.pack([row(0, "t")])],
    [
        wire.PUBLISH,
        wire.pack([1, 1, False, [[0, 2], [1, 1]]]),
        wire.pack([row(0, "a"), row(2, "b")]),
        wire.pack([row(1, "c")]),
    ],
    [wire.SUBSCRIBE, wire.pack([1, [["noise/>", 0], ["#share/g/noise", 0]], None])],
    [wire.UNSUBSCRIBE, wire.pack([2, [["noise/>", 1]], None])],
    [wire.CREDIT, wire.pack([1 << 30, 1 << 40])],
]
_TOPICS = ["a", "noise/1", "noise/2", "a/b/c", "$SYS", "#P2P/INB/x", "#share/g/a", "x" * 250, ""]
_FILTERS = [
    "a",
    "noise/>",
    "noise/*",
    "#share/g/noise/>",
    "#share/h/a",
    "#noexport/a",
    "#noexport/#share/g/a",
]
_FILTERS += [">", "*", "a*", "!a", "$SYS", "#P2P/INB/x", "#share/*/a", ""]
_METAS = [None, None, None, [1, 2, 3, "k"], [0, 0, None, None], [0, 0, 0, ""], [1 << 62, 0, 255, None]]
_PROPERTIES = [None, None, b"", b"\x80", b"\x81\x01\xa1x", b"\xc1"]


def noise(rng: random.Random) -> list[bytes]:
    """Give a multipart of noise, or a good one with a few bytes changed, cut off, added or doubled."""
    if rng.random() < 0.3:
        return [
            rng.choice(_OPERATIONS),
            *(rng.randbytes(rng.randrange(200)) for _ in range(rng.randrange(4))),
        ]
    frames = [bytearray(frame) for frame in rng.choice(_GOOD)]
    for _ in range(rng.randrange(1, 4)):
        frame = rng.choice(frames[1:])
        place = rng.randrange(len(frame) + 1)
        change = rng.randrange(4)
        if change == 0 and frame:
            frame[place % len(frame)] = rng.randrange(256)
        elif change == 1:
            del frame[place:]
        elif change == 2:
            frame[place:place] = rng.randbytes(rng.randrange(1, 9))
        else:
            frames.append(bytearray(frame))
    return [bytes(frame) for frame in frames]


class OddClient:
    """Makes frames of the right shape with odd values, so that most get past the first check."""

    def __init__(self, rng: random.Random) -> None:
        """Begin a session."""
        self._rng = rng
        self._round = 0

    def frames(self) -> list[bytes]:
        """Give the next multipart."""
        rng = self._rng
        kind = rng.randrange(10)
        if kind < 5:
            return self._publish()
        if kind < 9:
            operation = wire.SUBSCRIBE if kind < 8 else wire.UNSUBSCRIBE
            filters = [[rng.choice(_FILTERS), rng.randrange(2)] for _ in range(rng.randrange(1, 5))]
            return [
                operation,
                wire.pack([rng.randrange(1_000), filters, rng.choice([None, None, None, "x"])]),
            ]
        odd = [(wire.PING, [1]), (wire.PONG, [rng.randrange(3)]), (wire.CREDIT, [1 << 40, 1 << 50])]
        operation, header = rng.choice(odd)
        return [operation, wire.pack(header)]

    def _publish(self) -> list[bytes]:
        rng = self._rng
        rows = self._rows()
        self._round += 1
        flush = rng.random() < 0.5
        if rng.random() < 0.5:
            return [wire.PUBLISH, wire.pack([self._round, 0, flush, [[0, len(rows)]]]), wire.pack(rows)]
        table = slot_table(WORKERS)
        parts: dict[int, list[Any]] = {}
        for one in rows:
            parts.setdefault(table[slot_of(one[1])], []).append(one)
        heads = [[worker, len(part)] for worker, part in parts.items()]
        return [wire.PUBLISH, wire.pack([self._round, 1, flush, heads]), *map(wire.pack, parts.values())]

    def _rows(self) -> list[list[Any]]:
        rng = self._rng
        rows: list[list[Any]] = []
        index = 0
        for _ in range(rng.randrange(1, 8)):
            index += 1 if rng.random() < 0.97 else rng.choice([0, -1, 5])
            flags = (
                rng.choice([0, 4, 8, 16, 32, 48, 64, 128, 256]) if rng.random() < 0.95 else rng.randrange(512)
            )
            body = rng.randbytes(rng.choice([0, 1, 10, 3_000]))
            rows.append(
                [index, rng.choice(_TOPICS), flags, rng.choice(_METAS), rng.choice(_PROPERTIES), body]
            )
        return rows
