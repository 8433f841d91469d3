"""Ports that several processes share: found before the first of them starts, and held while all of them restart.

A socket that is bound and does not listen gets no connection, but keeps the port from whoever does not share it.
"""

from __future__ import annotations

import errno
import socket
from typing import Final

from angarium import errors

_ADVICE: Final = "name another address: --mqtt, --http or --management, or that key of the configuration"


class Ports:
    """Those that are held, until `close`."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def hold(self, url: str) -> str:
        """Hold the port of an address, of which port 0 is any that is free; give the address with it.

        Raises:
            InvalidRequestError: this host has no such address (40017).
            ConflictError: somebody has the port (40902).
        """
        scheme, _, place = url.partition("://")
        host, _, port = place.rpartition(":")
        try:
            found = socket.getaddrinfo(
                None if host == "*" else host.strip("[]"),
                0 if port == "*" else int(port),
                type=socket.SOCK_STREAM,
                flags=socket.AI_PASSIVE,
            )
            number = self._bind(found[0][0], found[0][4])
        except OSError as error:
            code = errors.OBJECT_IN_USE if error.errno == errno.EADDRINUSE else errors.INVALID_CONFIGURATION
            raise errors.error_for(code, f"{url}: {error.strerror or error}", _ADVICE) from None
        return f"{scheme}://{host}:{number}"

    def _bind(self, family: int, address: tuple[object, ...]) -> int:
        made = socket.socket(family, socket.SOCK_STREAM)
        self._held.append(made)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind(address)
        # That was for connections of the last start that are ending; with it others could have the port in a pause.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        return int(made.getsockname()[1])

    def close(self) -> None:
        """Let them go."""
        for held in self._held:
            held.close()
        self._held.clear()
