"""From where a request comes that a proxy passes on: the proxy says, in X-Forwarded-For, and only a proxy is believed.

    configured 10.0.0.0/8, connection of 10.0.0.1      X-Forwarded-For: 192.0.2.7              is from 192.0.2.7
    the same                                           X-Forwarded-For: 1.1.1.1, 192.0.2.7     is from 192.0.2.7
    the same                                           X-Forwarded-For: 192.0.2.7, 10.0.0.2    is from 192.0.2.7
    connection of 192.0.2.9                            X-Forwarded-For: 1.1.1.1                is from 192.0.2.9

Each proxy adds whom it talks to at the end; what is before that anybody may have written.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Address = ipaddress.IPv4Address | ipaddress.IPv6Address

FORWARDED_FOR: Final = "X-Forwarded-For"
#: Of the addresses in it; those before are not looked at.
HOPS_MAX: Final = 20
#: Browsers come by TLS alone for a year: of a name that nothing else of its host is reached by, at the usual port.
_STRICT_TRANSPORT: Final = {"Strict-Transport-Security": "max-age=31536000"}


class Public(NamedTuple):
    """How browsers reach a server by a proxy."""

    #: Whether the proxy encrypts, so that cookies are for TLS alone.
    is_encrypted: bool
    #: For every answer.
    headers: dict[str, str]


def public_of(url: str) -> Public:
    """Give what follows from the address by which browsers come; empty: from none."""
    place = urlsplit(url)
    is_encrypted = place.scheme == "https"
    return Public(is_encrypted, _STRICT_TRANSPORT if is_encrypted and place.port in (None, 443) else {})


class Proxies:
    """The proxies that are believed."""

    def __init__(self, networks: Iterable[str]) -> None:
        """Believe those with these addresses.

        Raises:
            ValueError: one is no address and no network.
        """
        self._networks = [ipaddress.ip_network(one) for one in networks]

    def address_of(self, address: str, forwarded: Sequence[str]) -> str:
        """Give where a request comes from: over a connection of an address, with these headers X-Forwarded-For."""
        if not (self._networks and self._has(address)):
            return address
        hops = [hop.strip() for one in forwarded for hop in one.split(",")]
        for hop in reversed(hops[-HOPS_MAX:]):
            found = _read(hop)
            if found is None:
                break  # a proxy writes addresses: who knows what is before that
            address = str(found)
            if not self._has(address):
                break
        return address

    def _has(self, address: str) -> bool:
        found = _read(address)
        return found is not None and any(found in network for network in self._networks)


def _read(text: str) -> Address | None:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found
