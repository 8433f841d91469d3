"""What no client should say about guaranteed messages, from a seed: requests of odd arguments, odd rounds, odd settles.

Half of the arguments are what they should be, so that much gets past the first check and the rest is odd by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from angarium import wire

if TYPE_CHECKING:
    import random

#: Queues that must be there, with their attributes.
ODD_QUEUES: dict[str, dict[str, Any]] = {
    "odd/a": {},
    "odd/b": {"max_spool_usage_mb": 1, "dead_message_queue": "odd/a"},
    "odd/parts": {"access_type": "non-exclusive", "partition_count": 3},
    "odd/last": {"max_spool_usage_mb": 0},
}
#: Topic endpoints that must be there.
ODD_ENDPOINTS = ("odd/te",)
_NAMES = [
    *ODD_QUEUES,
    *ODD_ENDPOINTS,
    "odd/gone",
    "odd/te2",
    "",
    "#x",
    "a//b",
    "/",
    "x" * 251,
    "\u00e9" * 126,
    "a\0b",
    "a*b",
    "\u2028",
]
_NUMBERS = [0, 1, 2, 3, -1, 7, 255, 256, 1_000, 1 << 31, (1 << 62) - 1, 1 << 62, (1 << 62) + 1, (1 << 64) - 1]
_SELECTORS = [
    "",
    "a = 1",
    "a = ",
    "(" * 100,
    "b LIKE '%x_'",
    "x" * 2_001,
    "JMSPriority > 3 AND NOT c IN ('d')",
    "\0",
]
_TOPICS = [
    "odd/>",
    "odd/*/x",
    "!odd/not",
    "#share/g/odd",
    "#P2P/QUE/odd/a",
    "#noexport/odd",
    "",
    "x" * 251,
    "odd/x",
]
#: Raw MessagePack that MessagePack libraries disagree about.
_TWISTED = [
    b"\xd4\x05\x00",  # an extension
    b"\xd6\xff\x00\x00\x00\x01",  # a timestamp
    b"\xc7\x0c\xff" + bytes(12),  # another one
    b"\x81\x90\x01",  # a map from an array
    b"\x81\x80\x01",  # a map from a map
    b"\x82\xa1a\x01\xa1a\x02",  # a key twice
    b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",  # not a number
    b"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00",  # infinite
    b"\xa1\xff",  # no UTF-8
    b"\xa3\xed\xa0\x80",  # a surrogate
    b"\x91" * 600 + b"\xc0",
    b"\x81\xa1a" * 600 + b"\xc0",
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc1",
    b"\xd3\x80\x00\x00\x00\x00\x00\x00\x00",
    b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
]
_ATTRIBUTES: dict[str, list[Any]] = {
    "access_type": ["exclusive", "non-exclusive", "both", 1],
    "permission": ["consume", "delete", "everything", None],
    "max_spool_usage_mb": [0, 1, 5, -1, 6_000_001],
    "max_message_bytes": [0, 100, 30_000_001],
    "max_redelivery_count": [0, 1, 256],
    "max_ttl_s": [0, 1, -1, 1 << 32],
    "partition_count": [0, 1, 3, 1_001, -1],
    "dead_message_queue": ["", "#DEAD_MSG_QUEUE", "odd/b", "a*b"],
    "subscriptions": [[], ["odd/>"], ["!odd/not", "odd/>"], ["#share/a/b"], ["", "odd"], "odd", [1], [None]],
    "durability": ["synced", "relaxed", "none"],
    "id": [1],
    "homes": [[0]],
    "nonsense": [1],
}
_GROUPS = ["g", "g", "h", "", "x" * 201, "a\nb"]
_ARGUMENTS: dict[str, dict[str, list[Any]]] = {
    "producer.open": {
        "name": ["", "odd", "odd2", "x" * 161, "\0"],
        "window": [1, 10, 255, 256, 4_096, 4_097, 0],
        "resume": [True, False],
        "stage": [True, False],
    },
    "stage.commit": {
        "stages": [[], ["odd"], ["odd"] * 300, ["x" * 65], [""], [1], "odd", {}],
        "sink": [None, "odd", "", "x" * 161, "\0", 1],
        "batch": [None, *_NUMBERS],
    },
    "stage.abort": {"stages": [[], ["odd"], ["odd"] * 10_001, [None], "odd"]},
    "producer.close": {"producer": _NUMBERS, "forget": [True, False]},
    "endpoint.create": {
        "name": _NAMES,
        "kind": ["queue", "topic-endpoint", "lane"],
        "durable": [True, True, False],
        "attributes": [],
        "ignore_exists": [True, False],
    },
    "endpoint.delete": {"name": _NAMES[1:], "kind": ["queue", "topic-endpoint"]},
    "endpoint.show": {"name": _NAMES, "kind": ["queue", "topic-endpoint"]},
    "endpoint.subscribe": {"name": _NAMES, "filters": [[], _TOPICS, ["odd/a"], ["odd/a"] * 257, [1], "odd"]},
    "endpoint.unsubscribe": {"name": _NAMES, "filters": [[], _TOPICS, ["odd/a"], [b"odd"]]},
    "flow.bind": {
        "kind": ["queue", "queue", "topic-endpoint"],
        "name": _NAMES,
        "browse": [True, False],
        "selector": [None, *_SELECTORS],
        "messages": _NUMBERS,
        "bytes": _NUMBERS,
        "topic": [None, *_TOPICS],
        "temporary": [False, False, True],
        "attributes": [],
        "active_indication": [True, False],
        "no_local": [True, False],
        "max_unacked": [None, *_NUMBERS],
        "range": [None, *[{"group": "g", "partition": 0, "first": 1, "end": one} for one in _NUMBERS]],
    },
    "flow.unbind": {"flow": _NUMBERS},
    "group.open": {"name": _NAMES, "group": _GROUPS, "lease_ms": [1_000, 1_000, 0, 999, 1 << 40]},
    "group.positions": {"name": _NAMES, "group": _GROUPS, "lanes": [[[0, 0]], [[2, 0], [0, 0]], [[0]], []]},
    "group.count": {"name": _NAMES, "group": _GROUPS, "lanes": [[[0, 0, one]] for one in _NUMBERS]},
    "group.plan": {
        "name": _NAMES,
        "group": _GROUPS,
        "lanes": [
            [[0, 0, 1, 0]],
            [[0, 0, 9, 3], [1, 0, 1, 1 << 62]],
            [[0, 0, 1, 0]] * 2,
            [[0, 0, 1 << 62, 0]],
        ],
        "messages": [None, *_NUMBERS],
        "bytes": [None, *_NUMBERS],
    },
    "group.acknowledge": {"name": _NAMES, "group": _GROUPS, "lanes": [[[0, 0, one]] for one in _NUMBERS]},
    "group.find_time": {"name": _NAMES, "group": _GROUPS, "lanes": [[[0, 7, one]] for one in _NUMBERS]},
    "group.release": {"name": _NAMES, "group": _GROUPS, "lanes": [[[0, 0]], [[0, 0]] * 1_025]},
    "nothing.such": {"x": [1]},
}
_ODD: list[Any] = [None, True, 0, -1, 1.5, "", "x", b"", b"x", [], {}, [[]], {"a": 1}, {1: 2}, 1 << 63]


class OddSpeaker:
    """Makes frames about guaranteed messages."""

    def __init__(self, rng: random.Random, asked: int) -> None:
        """Speak in a session that has opened producers and bound flows 1 to 3, with so many requests."""
        self._rng = rng
        self._round = 0
        self._request = asked
        #: Requests that were made, whose answers have to come if the session stays.
        self.asked: list[int] = []

    def frames(self) -> list[bytes]:
        """Give the next multipart."""
        kind = self._rng.random()
        if kind < 0.6:
            return self.ask()
        if kind < 0.8:
            return self._publish()
        return self._consume()

    def ask(self) -> list[bytes]:
        """Give a REQUEST."""
        rng = self._rng
        self._request += 1
        self.asked.append(self._request)
        operation = rng.choice(list(_ARGUMENTS))
        packed = [b"\x93", wire.pack(self._request), wire.pack(operation), self._arguments(operation)]
        return [wire.REQUEST, b"".join(packed)]

    def _arguments(self, operation: str) -> bytes:
        rng = self._rng
        if rng.random() < 0.03:
            return wire.pack(rng.choice(_ODD))
        known = _ARGUMENTS[operation]
        fields: list[bytes] = []
        for name in [name for name in known if name == next(iter(known)) or rng.random() < 0.5]:
            value = known[name]
            fields.append(
                wire.pack(name) + (self._attributes() if name == "attributes" else self._value(value))
            )
        if rng.random() < 0.02:
            fields.append(wire.pack("more") + wire.pack(1))
        return bytes([0x80 | len(fields)]) + b"".join(fields)

    def _value(self, good: list[Any]) -> bytes:
        rng = self._rng
        kind = rng.random()
        if kind < 0.05:
            return rng.choice(_TWISTED)
        return wire.pack(rng.choice(_ODD) if kind < 0.1 else rng.choice(good))

    def _attributes(self) -> bytes:
        rng = self._rng
        if rng.random() < 0.05:
            return rng.choice(_TWISTED)
        chosen = rng.sample(list(_ATTRIBUTES), rng.randrange(4))
        return bytes([0x80 | len(chosen)]) + b"".join(
            wire.pack(name) + self._value(_ATTRIBUTES[name]) for name in chosen
        )

    def _publish(self) -> list[bytes]:
        rng = self._rng
        rows: list[Any] = []
        index = -1
        for _ in range(rng.randrange(1, 6)):
            index += 1 if rng.random() < 0.97 else rng.choice([0, -1, 9])
            flags = rng.choice([1, 2, 5, 65]) if rng.random() < 0.95 else rng.randrange(256)
            meta = rng.choice(
                [None, None, [1, 0, None, None], [0, 50, 9, "k"], [1 << 62, 1 << 62, 255, "\0"]]
            )
            topic = rng.choice([f"#P2P/QUE/{rng.choice(_NAMES)}", *_TOPICS])
            rows.append([index, topic, flags, meta, rng.choice([None, b"\x80", b"\xc1"]), rng.randbytes(9)])
        self._round += 1
        header = [
            self._round,
            0,
            True,
            [[0, len(rows)]],
            1 + rng.randrange(3) if rng.random() < 0.99 else 99,
            self._round * 100,
        ]
        if rng.random() < 0.05:
            header[5] = rng.choice(_NUMBERS)
        return [wire.PUBLISH, wire.pack(header), wire.pack(rows)]

    def _consume(self) -> list[bytes]:
        rng = self._rng
        flow = 1 + rng.randrange(3) if rng.random() < 0.99 else 99
        if rng.random() < 0.3:
            credit = [1 << 62, 1 << 62] if rng.random() < 0.97 else [1, 1]
            return [wire.FLOW_CREDIT, wire.pack([flow, *credit])]
        ranges = []
        for _ in range(rng.randrange(4)):
            first = rng.choice([1, 2, 5, 100, 1 << 61])
            ranges.append([rng.choice([0, 0, 0, 1, 999]), first, first + rng.choice([0, 3, 1 << 60])])
        return [wire.SETTLE, wire.pack([flow, rng.choice([0, 2, 3]), ranges])]
