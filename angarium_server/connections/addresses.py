"""Addresses of sockets as operators write them: what they look like, and who can reach them.

tcp://127.0.0.1:55555, tls://node-2.example:55555, tcp://[::1]:0, ipc:///run/angarium/clients    are addresses
127.0.0.1:55555, tcp://127.0.0.1, ipc://relative                                                 are none
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

_TCP: Final = re.compile(r"(?:tcp|tls)://(?P<host>\[[0-9a-fA-F:.%a-z]+\]|[^:/\[\]]+):(?P<port>\d{1,5}|\*)")
_IPC: Final = re.compile(r"ipc://(?P<path>/.+)")
_PORT_MAX: Final = 65_535


def is_loopback(url: str) -> bool:
    """Tell whether only this host can reach an address."""
    match = _TCP.fullmatch(url)
    if match is None:
        return True
    host = match["host"].strip("[]")
    if host in ("localhost", "lo"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_tls(url: str) -> bool:
    """Tell whether an address is one of TLS."""
    return url.startswith("tls://")


def host_and_port(url: str) -> tuple[str, int] | None:
    """Give the host (empty for all) and the port of a tcp or tls address whose port is chosen, None for any other."""
    match = _TCP.fullmatch(url)
    if match is None or has_open_port(url):
        return None
    host = match["host"].strip("[]")
    return "" if host == "*" else host, int(match["port"])


def reachable(url: str, host: str) -> str:
    """Give a tcp or tls address with this host where it stands for all hosts."""
    place = host_and_port(url)
    if place is None or place[0] not in ("", "0.0.0.0", "::"):  # noqa: S104 - nothing is bound here
        return url
    return f"{url.partition('://')[0]}://{host}:{place[1]}"


def has_open_port(url: str) -> bool:
    """Tell whether the system chooses the port of an address."""
    match = _TCP.fullmatch(url)
    return match is not None and match["port"] in ("0", "*")


def address_fault(url: str) -> str:
    """Say what is wrong with an address, nothing if it is one."""
    match = _TCP.fullmatch(url)
    if not url.isprintable():
        return f"{url!r} is no address: it holds characters that cannot be shown"
    if match is None and _IPC.fullmatch(url) is None:
        return f"{url!r} is no address: write tcp://HOST:PORT, tls://HOST:PORT or ipc:///PATH"
    if match is not None and match["port"] != "*" and int(match["port"]) > _PORT_MAX:
        return f"{url!r} has no port: write 0 to {_PORT_MAX}"
    return ""
