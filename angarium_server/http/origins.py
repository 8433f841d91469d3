"""Whom a request means, and which page sent it: a browser is made to ask by pages of other people.

A page of another site may have a name of its own lead to 127.0.0.1 (DNS rebinding). It then asks here by that name, so
plain HTTP, which only this host reaches, answers to names of this host alone. Over TLS the certificate sees to it.

A request may name the host in its line, too (`GET http://HOST/PATH`): then that one is meant, whatever the header
Host says (RFC 9112, section 3.2.2).

Behind a proxy that ends TLS a browser knows another address than the one that is listened at: `public_url` says which,
and pages of it are ours.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from angarium import errors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiohttp.web import BaseRequest

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
#: The target of a request that names the host, too.
_WITH_HOST: Final = re.compile(r"(https?)://([^/?#]*)(.*)", re.IGNORECASE)


class Origins:
    """The names of this node."""

    def __init__(self, listen: Iterable[str], hosts: Iterable[str], public_url: str = "") -> None:
        """Know the addresses that are listened at, more names by which clients may ask, and the address of browsers."""
        ours = [_host_of(entry.partition("://")[2]) for entry in listen]
        #: Of pages that browsers get by a proxy; empty: there is none.
        self._public = origin_of(public_url) if public_url else ""
        public = [_host_of(self._public.partition("://")[2])] if public_url else []
        self._names = frozenset(name.lower() for name in ("localhost", *ours, *hosts, *public))

    def check(self, request: BaseRequest, *, is_encrypted: bool) -> None:
        """Refuse a request that means somebody else, or that somebody else's page sent.

        Raises:
            InvalidRequestError: it names no host, or two (40018); plain HTTP, and no name of this host, or https://
                over plain HTTP, or the other way round (42101).
            ForbiddenError: it was sent by a page of another site (40328).
        """
        hosts = request.headers.getall("Host", [])
        if len(hosts) != 1:
            raise errors.invalid(f"it has {len(hosts)} headers Host", "send one")
        scheme, host = "https" if is_encrypted else "http", hosts[0]
        if named := _named_in(request.raw_path):
            host = named[2]
            if not host or "@" in host:
                raise errors.invalid(f"{request.raw_path[:200]!r} names no host")
            if named[1].lower() != scheme:
                raise errors.error_for(
                    errors.MISDIRECTED_REQUEST, f"{named[1]}:// over a connection of {scheme}://"
                )
        if not is_encrypted and not self._is_ours(_host_of(host)):
            raise errors.error_for(errors.MISDIRECTED_REQUEST, f"{host[:200]!r} is no name of this node")
        ours = (f"{scheme}://{host}".lower(), self._public)
        for origin in request.headers.getall("Origin", []):
            if not origin or origin.lower() not in ours:
                raise errors.error_for(errors.CROSS_ORIGIN, f"it was sent by a page of {origin[:200]!r}")

    def _is_ours(self, host: str) -> bool:
        if host.lower() in self._names:
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False


def _named_in(target: str) -> re.Match[str] | None:
    """Give scheme, host and the rest of a target that names the host, too; hardly any does."""
    return None if target.startswith("/") else _WITH_HOST.fullmatch(target)


def target_in(request: BaseRequest) -> str:
    """Give path and query of a request, without the host that its line may name."""
    raw = request.raw_path
    if named := _named_in(raw):
        raw = named[3] if named[3].startswith("/") else f"/{named[3]}"
    return raw


def origin_of(url: str) -> str:
    """Give what browsers say of a page at an address: in small letters, without the port that its scheme has anyway.

    Raises:
        ValueError: it is none of http:// or https:// without a path.
    """
    place = urlsplit(url)
    host, port = place.hostname, place.port
    if place.scheme not in _DEFAULT_PORTS or not host or not url.isprintable() or "@" in place.netloc:
        raise ValueError("write https://HOST or https://HOST:PORT")
    if place.path not in ("", "/") or "?" in url or "#" in url:
        raise ValueError("write it without a path")
    named = f"[{host}]" if ":" in host else host
    return f"{place.scheme}://{named}" + ("" if port in (None, _DEFAULT_PORTS[place.scheme]) else f":{port}")


def _host_of(place: str) -> str:
    """Give the host of HOST, HOST:PORT, [::1] or [::1]:PORT."""
    if place.startswith("["):
        return place[1:].partition("]")[0]
    return place.partition(":")[0]
