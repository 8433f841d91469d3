"""Rows of a size, and the codes with which they are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium import wire

if TYPE_CHECKING:
    from tests.unit.router.publish_rig import Publisher

#: Payload of a message that costs exactly 10,000 bytes of spool, so that 100 of them are one MB.
BODY = bytes(10_000 - wire.SPOOL_OVERHEAD_BYTES)
LOW, HIGH = wire.MODE_PERSISTENT, wire.MODE_PERSISTENT | 2 << wire.COS_SHIFT


def rows(count: int, topic: str = "a", flags: int = LOW) -> list[tuple[str, bytes, int]]:
    return [(topic, BODY, flags)] * count


def codes(publisher: Publisher) -> list[int]:
    """Take the codes of all nacks."""
    return [code for _, code in publisher.acked()[1]]
