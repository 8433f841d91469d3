"""Finds the addresses of a host name in threads, since the library of the system waits; one thread a name at most.

Connections of links and bridges ask it. A thread may outlast whoever asked, and the next who asks for the same name
waits for the same thread, so that a resolver that does not answer costs one thread and not one for each attempt.
"""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from angarium_server.connections.door import Watcher

#: Family and address, as a socket takes them.
Place: TypeAlias = "tuple[int, str | tuple[Any, ...]]"
#: Is told the addresses, or why there are none.
Found: TypeAlias = Callable[[list[Place], str], None]


class Names:
    """The look-ups of one process."""

    def __init__(self, watcher: Watcher) -> None:
        """Look up nothing yet; `watcher` calls when something was found."""
        #: Host and port -> those who wait; exactly those that have a thread.
        self._waiting: dict[tuple[str, int], list[Found]] = {}
        #: What threads found; a deque is safe between threads.
        self._answers: deque[tuple[tuple[str, int], list[Place], str]] = deque()
        self._signal = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        watcher.add(self._signal, self._answer)

    def find(self, host: str, port: int, found: Found) -> None:
        """Call `found` later with the addresses of a name."""
        name = host, port
        if name in self._waiting:
            self._waiting[name].append(found)
            return
        self._waiting[name] = [found]
        # The end of the process does not wait for it.
        threading.Thread(target=self._look_up, args=(name,), name=f"look-up {host}", daemon=True).start()

    def _look_up(self, name: tuple[str, int]) -> None:
        """Ask the system; runs in a thread of its own."""
        places: list[Place] = []
        fault = ""
        try:
            places = places_of(*name)
        except (OSError, ValueError) as error:  # the latter: there cannot be such a name
            fault = str(getattr(error, "strerror", None) or error)
        self._answers.append((name, places, fault))
        os.eventfd_write(self._signal, 1)

    def _answer(self) -> None:
        os.eventfd_read(self._signal)
        while self._answers:
            name, places, fault = self._answers.popleft()
            for found in self._waiting.pop(name):
                found(list(places), fault)


def places_of(host: str, port: int, flags: int = 0) -> list[Place]:
    """Give the addresses of a host; with AI_NUMERICHOST only if it is one, and at once.

    Raises:
        OSError: there are none.
        ValueError: there cannot be such a host.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [(family, address) for family, _, _, _, address in found]
