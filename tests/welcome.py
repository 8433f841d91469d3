"""What a router says to a session that it lets in, as tests play it."""

from __future__ import annotations

from typing import Any

from angarium.slots import slot_table


def welcome(workers: int = 1, **changes: Any) -> dict[str, Any]:
    """Give the body of a WELCOME, with these values in place of the usual ones."""
    return {
        "session": "1",
        "client_name": "me",
        "vpn": "default",
        "node": "n",
        "token": b"",
        "resumed": False,
        "epoch": 1,
        "slots": slot_table(workers),
        "workers": workers,
        "rounds": 100,
        "bytes": 1 << 20,
        "keepalive_ms": 1_000,
        "max_message_bytes": 1 << 20,
        "max_batch_rows": 10_000,
        "max_batch_bytes": 1 << 22,
        "inbox": "",
        **changes,
    }
