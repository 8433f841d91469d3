"""Messages with everything that a message can carry, of several publishers and topics, from a seed."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final

from angarium import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

FILTER: Final = "shop/>"
TOPICS: Final = (
    *(
        f"shop/orders/{city}/{kind}"
        for city in ("berlin", "lyon", "oslo")
        for kind in ("new", "paid", "sent")
    ),
    *(f"shop/stock/{item}" for item in ("pretzels", "würstchen", "a b", "..", "x=1")),
    "shop/payments",
)
PUBLISHERS: Final = ("tills", "web", "warehouse")
PAYLOAD_BYTES: Final = 100


def messages(rows: int, seed: float) -> Iterator[Message]:
    """Give so many messages; each publisher numbers its own from 1."""
    rng = random.Random(seed)
    sequences = dict.fromkeys(PUBLISHERS, 0)
    body = rng.randbytes(2 * PAYLOAD_BYTES)
    for number in range(rows):
        publisher = PUBLISHERS[number % len(PUBLISHERS)]
        sequences[publisher] += 1
        start = rng.randrange(PAYLOAD_BYTES)
        yield Message(
            TOPICS[rng.randrange(len(TOPICS))],
            b"%d:" % number + body[start : start + PAYLOAD_BYTES],
            mode="non-persistent" if number % 11 == 0 else "persistent",
            cos=3 if number % 7 == 0 else 1,
            priority=number % 10 if number % 3 == 0 else None,
            dmq_eligible=number % 2 == 0,
            correlation_id=f"c-{number}" if number % 5 == 0 else None,
            reply_to="shop/answers" if number % 50 == 0 else None,
            sender_id=publisher,
            sequence_number=sequences[publisher],
            sender_timestamp_ms=int(time.time() * 1000),
            partition_key=publisher,
            properties=_properties(number) if number % 4 == 0 else None,
        )


def _properties(number: int) -> dict[str, str | int | float | bool | bytes]:
    return {
        "currency": "EUR",
        "amount": number,
        "rate": number / 8,
        "gift": number % 8 == 0,
        "tag": b"\x00\xff",
    }
