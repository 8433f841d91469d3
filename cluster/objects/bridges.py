"""Static bridges: a bridge takes messages from a remote Message VPN into the one that it belongs to (docs/bridges.md).

What is remote is written with `remote_`: a Message VPN of another node, or another one of this node if there is no
address. Two bridges, one in each Message VPN, carry in both directions.
"""

from __future__ import annotations

import ssl
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from angarium import errors, topic, wire
from cluster.objects.attributes import DEFAULT_NAME, Text, about, level_pattern, level_rule, own
from cluster.objects.endpoints import EXCEPTION_MARK
from cluster.objects.links import MAX_ADDRESSES, check_encrypted

#: Remote subscriptions of one bridge in each of the two lists: they are asked for again with every connection.
MAX_REMOTE_SUBSCRIPTIONS: Final = 1_000
#: A level of the client name of its session over there.
BRIDGE_NAME: Final = level_pattern(32)
BRIDGE_RULE: Final = level_rule(32)
#: The longest path that Linux takes.
_PATH_MAX: Final = 4_096
#: A few authorities: a certificate has about 2,000 characters.
CA_CHARACTERS_MAX: Final = 65_536

_Addresses = Annotated[list[Text], Meta(max_length=MAX_ADDRESSES)]
_Filters = Annotated[list[Text], Meta(max_length=MAX_REMOTE_SUBSCRIPTIONS)]


class Bridge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A bridge: takes messages of a remote Message VPN into its own."""

    enabled: Annotated[bool, about("Whether the bridge connects.")] = True
    remote_vpn: Annotated[
        str,
        Meta(max_length=32),
        about("Message VPN that messages are taken from.", "remoteMsgVpns.remoteMsgVpnName"),
    ] = ""
    addresses: Annotated[
        _Addresses,
        about(
            "Addresses of the remote node, as its clients use them, tried in turn; none: this node.",
            "remoteMsgVpns.remoteMsgVpnLocation",
        ),
    ] = []
    server_name: Annotated[
        Text,
        own(
            "Name that the certificate of the remote node must have at tls:// addresses; empty: the host there."
        ),
    ] = ""
    ca_pem: Annotated[
        str,
        Meta(max_length=CA_CHARACTERS_MAX),
        own(
            "Authorities (PEM) that sign the certificate of the remote node; empty: cluster.ca_file of this one."
        ),
    ] = ""
    remote_username: Annotated[
        str,
        Meta(max_length=189),
        about("Client username in the remote Message VPN.", "remoteAuthenticationBasicClientUsername"),
    ] = DEFAULT_NAME
    remote_password_file: Annotated[
        str,
        Meta(max_length=_PATH_MAX),
        about(
            "File on the node's host whose first line is the password; read for every connection.",
            "remoteAuthenticationBasicPassword",
        ),
    ] = ""
    remote_subscriptions: Annotated[
        _Filters,
        about(
            "Filters of direct messages to take, with remote_deliver_to_one_priority for deliver-to-one ones."
        ),
    ] = []
    remote_deliver_always_subscriptions: Annotated[
        _Filters,
        about(
            "Filters of direct messages to take, always including deliver-to-one ones.",
            "remoteSubscriptions.deliverAlwaysEnabled",
        ),
    ] = []
    remote_deliver_to_one_priority: Annotated[
        Literal["p1", "p2", "p3", "p4", "da"],
        about("Priority of remote_subscriptions for deliver-to-one messages; da: deliver-always."),
    ] = "p1"
    remote_queue: Annotated[
        Text,
        about("Exclusive remote queue whose guaranteed messages are taken.", "remoteMsgVpns.queueBinding"),
    ] = ""
    max_hops: Annotated[
        int,
        Meta(ge=1, le=wire.HOPS_MAX),
        about("Bridges that a message may cross, including this one; at one more it is dropped.", "maxTtl"),
    ] = 8


class BridgeIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the node sets: the place of the bridge process."""

    number: Annotated[int, own("Index of its process, unique among bridges.")] = 0


def check_remote_filter(where: str, text: str) -> None:
    """Refuse what is no subscription for direct messages.

    Raises:
        InvalidRequestError: it is no filter (40015).
    """
    try:
        topic.parse_filter(text)
    except errors.AngariumError as error:
        raise errors.error_for(errors.INVALID_ATTRIBUTE, f"{where}: {error.describe()}") from None
    if text.startswith(EXCEPTION_MARK):
        detail = f"{where}: {text!r}: a direct subscription has no exceptions"
        raise errors.error_for(errors.INVALID_ATTRIBUTE, detail)


def check_ca_pem(where: str, text: str) -> None:
    """Refuse what holds no authority.

    Raises:
        InvalidRequestError: it is no certificate (40015).
    """
    try:
        if text:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError, TypeError):  # of the last kind if it is not ASCII
        raise errors.error_for(errors.INVALID_ATTRIBUTE, f"{where}: it holds no certificate in PEM") from None


def check_password_file(where: str, path: str) -> None:
    """Refuse a path that depends on where a process was started.

    Raises:
        InvalidRequestError: it is not absolute (40015).
    """
    if path and not path.startswith("/"):
        raise errors.error_for(errors.INVALID_ATTRIBUTE, f"{where}: {path!r}: write the path from / on")


def check_bridge(attributes: dict[str, Any]) -> None:
    """Refuse a bridge that has nowhere to go, that takes nothing, or that tells others a password.

    Raises:
        InvalidRequestError: so it is (40015).
    """
    if not attributes["remote_vpn"]:
        raise errors.error_for(
            errors.INVALID_ATTRIBUTE, "bridge: set remote_vpn, from which it takes messages"
        )
    taken = ("remote_subscriptions", "remote_deliver_always_subscriptions")
    if not attributes["remote_queue"] and not any(attributes[name] for name in taken):
        detail = "bridge: it takes nothing: set remote_subscriptions, or remote_queue, or both"
        raise errors.error_for(errors.INVALID_ATTRIBUTE, detail)
    both = [text for text in attributes[taken[0]] if text in attributes[taken[1]]]
    if both:
        detail = f"bridge: {both[0]!r} is in {taken[0]} and in {taken[1]}: leave one"
        raise errors.error_for(errors.INVALID_ATTRIBUTE, detail)
    check_encrypted("bridge", attributes["addresses"])
