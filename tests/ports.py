"""A port that stays free until it is used."""

from __future__ import annotations

import random
import socket
from contextlib import closing
from typing import Final

#: Below those that the system gives to connections: one of these would be taken by the next connection of anybody.
FIRST: Final = 20_000
END: Final = 32_000


def free_port() -> int:
    """Give a port of loopback that nobody listens at."""
    for _ in range(100):
        port = random.randrange(FIRST, END)
        try:
            with closing(socket.create_server(("127.0.0.1", port))):
                return port
        except OSError:
            continue
    raise AssertionError("no port is free")
