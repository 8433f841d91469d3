"""Addresses to connect to: what they look like, and what is wrong with one that is none.

tcp://127.0.0.1:55555, tcp://[::1]:55555, tls://node-2.example:55555, ipc:///run/angarium/clients    are addresses
localhost:55555, tcp://localhost, tcp://localhost:0, nats://localhost:4222                           are none
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from angarium import errors

#: Where a node listens unless it is told otherwise, and where clients look for one.
DEFAULT_PORT: Final = 55555
DEFAULT_URL: Final = f"tcp://127.0.0.1:{DEFAULT_PORT}"
_LOOPBACK: Final = re.compile(r"127(?:\.\d{1,3}){3}")
_HOST: Final = re.compile(r"(?:\w[\w.-]*|\[[0-9a-fA-F:.]+(?:%\w+)?\])(?::\d+)?")


@lru_cache(maxsize=256)
def parse(url: str) -> tuple[str, int] | str:
    """Give host and port, or the path of a socket.

    Raises:
        InvalidRequestError: it is no address; the text shows the right form (INVALID_ARGUMENT).
    """
    if url.startswith("ipc://") and len(url) > len("ipc://"):
        return url.removeprefix("ipc://")
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("tcp", "tls"):
        raise _error(url, f"write {_suggestion(url)}, or ipc:///PATH for a socket of this host")
    form = f"{scheme}://HOST:PORT"
    if "@" in rest:
        raise _error(
            f"{scheme}://...@...", f"username and password are given separately, the address is {form}"
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _error(url, f"write {form}, with a port of 1 to 65535") from None
    if not host or not _HOST.fullmatch(rest):
        raise _error(url, f"write {form}")
    if not port:
        with_port = f"{scheme}://{rest.partition(':')[0] if '[' not in rest else f'[{host}]'}:{DEFAULT_PORT}"
        raise _error(url, f"it names no port: write {with_port}, or the port on which the node listens")
    return host, port


def is_encrypted(url: str) -> bool:
    """Tell whether an address is one of TLS."""
    return url.startswith("tls://")


def is_of_this_host(address: tuple[str, int] | str) -> bool:
    """Tell whether what `parse` gave is of this host without asking for a name: a path, 127.0.0.1, ::1."""
    return isinstance(address, str) or address[0] == "::1" or _LOOPBACK.fullmatch(address[0]) is not None


def _suggestion(url: str) -> str:
    """Give the address that was probably meant by something without a scheme of ours."""
    given, _, rest = url.rpartition("://")
    scheme = "tls" if given.lower() in ("tls", "ssl") else "tcp"
    if not _HOST.fullmatch(rest):
        return f"{scheme}://HOST:PORT"
    return f"{scheme}://{rest}" if re.search(r":\d+$", rest) else f"{scheme}://{rest}:{DEFAULT_PORT}"


def _error(url: str, advice: str) -> errors.AngariumError:
    return errors.invalid(f"{url!r} is no address to connect to", advice)
