"""What goes into queues, what is in them, what consumers get and what an archive has, for tests that count rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.dataset

from angarium import Message
from angarium.pipeline.dataset.files import LocalFiles, walk

if TYPE_CHECKING:
    from pathlib import Path

    from angarium import blocking

_END = b"the end of what a test counts"


def drained(client: blocking.Client, queue: str) -> list[bytes]:
    """Take everything that is published in a queue now, and not what is staged; give the payloads in order."""
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


def archived(path: Path) -> list[dict[str, Any]]:
    """Give what a reader that knows nothing of us finds."""
    files = [str(path / entry.path) for entry in walk(LocalFiles(path))]
    columns = ["queue", "partition", "position", "topic", "payload"]
    rows: list[dict[str, Any]] = pyarrow.dataset.dataset(files).to_table(columns=columns).to_pylist()
    return rows


def publish(client: blocking.Client, topic: str, numbers: range) -> None:
    producer = client.producer()
    producer.publish_many(
        Message(f"{topic}/{at % 5}", str(at).encode(), mode="persistent", partition_key=str(at % 50))
        for at in numbers
    )
    producer.close()


def left_in(client: blocking.Client, queue: str) -> int:
    """Count what is in a queue that nobody has leased."""
    with client.reader_group(queue, "count") as group:
        messages = sum(one.messages for one in group.positions().values())
        group.release()
    return messages
