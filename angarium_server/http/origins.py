"""Whom a request means, and which page sent it: a browser is made to ask by pages of other people.

A page of another site may have a name of its own lead to 127.0.0.1 (DNS rebinding). It then asks here by that name, so
plain HTTP, which only this host reaches, answers to names of this host alone. Over TLS the certificate sees to it.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from angarium import errors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiohttp.web import BaseRequest


class Origins:
    """The names of this node."""

    def __init__(self, listen: Iterable[str], hosts: Iterable[str]) -> None:
        """Know the addresses that are listened at, and more names by which clients may ask."""
        ours = [_host_of(entry.partition("://")[2]) for entry in listen]
        self._names = frozenset(name.lower() for name in ("localhost", *ours, *hosts))

    def check(self, request: BaseRequest, *, is_encrypted: bool) -> None:
        """Refuse a request that means somebody else, or that somebody else's page sent.

        Raises:
            InvalidRequestError: it names no host, or two (40018); plain HTTP, and no name of this host (42101).
            ForbiddenError: it was sent by a page of another site (40328).
        """
        hosts = request.headers.getall("Host", [])
        if len(hosts) != 1:
            raise errors.invalid(f"it has {len(hosts)} headers Host", "send one")
        if not is_encrypted and not self._is_ours(_host_of(hosts[0])):
            raise errors.error_for(errors.MISDIRECTED_REQUEST, f"{hosts[0][:200]!r} is no name of this node")
        for origin in request.headers.getall("Origin", []):
            ours = f"{'https' if is_encrypted else 'http'}://{hosts[0]}"
            if origin.lower() != ours.lower():
                raise errors.error_for(errors.CROSS_ORIGIN, f"it was sent by a page of {origin[:200]!r}")

    def _is_ours(self, host: str) -> bool:
        if host.lower() in self._names:
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False


def _host_of(place: str) -> str:
    """Give the host of HOST, HOST:PORT, [::1] or [::1]:PORT."""
    if place.startswith("["):
        return place[1:].partition("]")[0]
    return place.partition(":")[0]
