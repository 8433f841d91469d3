"""Links: the neighbours of a node. A link is named after the node on its other side, and is configured on both."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from angarium import errors
from cluster.addresses import address_fault, has_open_port, is_loopback
from cluster.objects.attributes import Text, about, level_pattern, level_rule

#: Addresses of one neighbour, tried in turn.
MAX_ADDRESSES: Final = 16
#: A node name: it is a level of the client name of a link session, and stands in texts.
NODE_NAME: Final = level_pattern(64)
NODE_RULE: Final = level_rule(64)
#: A public CURVE key in Z85.
_KEY_CHARACTERS: Final = 40

_Addresses = Annotated[list[Text], Meta(max_length=MAX_ADDRESSES)]


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A link to a neighbour: its addresses, and the side that opens it."""

    enabled: Annotated[bool, about("Whether the link connects.", "enabled")] = True
    addresses: Annotated[
        _Addresses,
        about("Addresses of the neighbour, as its clients use them, tried in turn.", "remoteAddresses"),
    ] = msgspec.field(default_factory=list)
    initiator: Annotated[
        Literal["lexical", "local", "remote"],
        about(
            "The side that opens it; lexical: the node whose name sorts last. Both nodes must agree.",
            "initiator",
        ),
    ] = "lexical"
    public_key: Annotated[
        Text,
        about("CURVE public key of the neighbour; required unless its addresses are on this host."),
    ] = ""


class LinkIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the node sets: the place of the link process."""

    number: Annotated[int, about("Index of its process, unique among links.")] = 0


def check_address(where: str, url: str) -> None:
    """Refuse what is no address to connect to.

    Raises:
        InvalidRequestError: with what it is (40015).
    """
    fault = address_fault(url) or (f"{url!r} names no port" if has_open_port(url) else "")
    if fault:
        raise errors.error_for(errors.INVALID_ATTRIBUTE, f"{where}: {fault}")


def check_public_key(where: str, key: str) -> None:
    """Refuse what is no public key.

    Raises:
        InvalidRequestError: it has another length (40015).
    """
    if key and len(key) != _KEY_CHARACTERS:
        detail = f"{where}: {key!r} is no public key of {_KEY_CHARACTERS} characters (Z85)"
        raise errors.error_for(errors.INVALID_ATTRIBUTE, detail)


def check_link(attributes: dict[str, Any]) -> None:
    """Refuse a link that would tell others the secret of the cluster.

    Raises:
        InvalidRequestError: an address is not of this host, and there is no key (40015).
    """
    if attributes["public_key"]:
        return
    for url in attributes["addresses"]:
        if not is_loopback(url):
            detail = f"link: {url} is not on this host: set public_key to that of the neighbour, in its node.key.pub"
            raise errors.error_for(errors.INVALID_ATTRIBUTE, detail)
