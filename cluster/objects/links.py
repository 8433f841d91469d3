"""Links: the neighbours of a node. A link is named after the node on its other side, and is configured on both."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from angarium import errors
from angarium_server.connections.addresses import address_fault, has_open_port, is_loopback, is_tls
from cluster.objects.attributes import Text, about, level_pattern, level_rule, own

#: Addresses of one neighbour, tried in turn.
MAX_ADDRESSES: Final = 16
#: A node name: it is a level of the client name of a link session, and stands in texts.
NODE_NAME: Final = level_pattern(64)
NODE_RULE: Final = level_rule(64)

_Addresses = Annotated[list[Text], Meta(max_length=MAX_ADDRESSES)]


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A link to a neighbour: its addresses, and the side that opens it."""

    enabled: Annotated[bool, about("Whether the link connects.")] = True
    addresses: Annotated[
        _Addresses,
        about("Addresses of the neighbour, as its clients use them, tried in turn.", "remoteAddresses"),
    ] = []
    initiator: Annotated[
        Literal["lexical", "local", "remote"],
        about("The side that opens it; lexical: the node whose name sorts last. Both nodes must agree."),
    ] = "lexical"
    server_name: Annotated[
        Text,
        own(
            "Name that the certificate of the neighbour must have at tls:// addresses; empty: that of the node."
        ),
    ] = ""


class LinkIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the node sets: the place of the link process."""

    number: Annotated[int, own("Index of its process, unique among links.")] = 0


def check_address(where: str, url: str) -> None:
    """Refuse what is no address to connect to.

    Raises:
        InvalidRequestError: with what it is (40015).
    """
    fault = address_fault(url) or (f"{url!r} names no port" if has_open_port(url) else "")
    if fault:
        raise errors.error_for(errors.INVALID_ATTRIBUTE, f"{where}: {fault}")


def check_link(attributes: dict[str, Any]) -> None:
    """Refuse a link that would tell others the secret of the cluster.

    Raises:
        InvalidRequestError: so it is (40015).
    """
    check_encrypted("link", attributes["addresses"])


def check_encrypted(where: str, addresses: list[str]) -> None:
    """Refuse addresses at which others could read, or answer, what is said there.

    Raises:
        InvalidRequestError: one is not of this host, and not of TLS (40015).
    """
    for url in addresses:
        if not is_loopback(url) and not is_tls(url):
            secure = url.replace("tcp://", "tls://", 1)
            detail = f"{where}: {url} is not on this host, so it must encrypt: write {secure}"
            raise errors.error_for(errors.INVALID_ATTRIBUTE, detail)
