"""What consumers get of a queue, for tests that count rows: what is staged is in its figures, and nobody gets it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from angarium import blocking

_END = b"the end of what a test counts"


def drained(client: blocking.Client, queue: str) -> list[bytes]:
    """Take everything that is published in a queue now; give the payloads in order."""
    client.publish(queue=queue, payload=_END)
    found: list[bytes] = []
    flow = client.consume(queue, ack="manual")
    for message in flow:
        message.accept()
        if message.payload == _END:
            break
        found.append(message.payload)
    flow.close()
    return found
