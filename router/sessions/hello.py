"""HELLO, the first frame of every session: its header, checked, with what processes of nodes say of themselves in it.

A process of this node shows that it is one with `behalf`. It may then log in a client that it speaks for, which is
judged like any other, by the address at which the process has it, and what it has shown there; or, under a username of
its kind, itself.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from angarium import errors, wire
from angarium.errors import AngariumError, error_for
from angarium.topic import check_topic
from angarium_server.connections.tls import Certificate  # noqa: TC001 - msgspec reads the types of Hello
from angarium_server.frames import gateways  # noqa: TC001 - msgspec reads the types of Hello
from router.sessions.kinds import CLIENT, KINDS, LINK, SessionKind
from router.sessions.neighbour import LinkHello  # noqa: TC001 - msgspec reads the types of Hello

MAX_CLIENT_NAME_BYTES = 160
MAX_PASSWORD_CHARACTERS = 128
#: What client names of links and bridges begin with.
_RESERVED_NAMES = tuple(f"{username}/" for username in KINDS)


class Behalf(msgspec.Struct, frozen=True):
    """What a process of this node shows: the secret that the supervisor made for this run, and for whom it speaks."""

    secret: Annotated[str, Meta(max_length=128)]
    #: IP address of the client that it logs in; empty: it logs in itself.
    address: Annotated[str, Meta(max_length=45)] = ""
    #: What the client has shown of itself to the process.
    certificate: Certificate | None = None
    #: Whether it takes the place of an attached client of the same name and username.
    takes_over: bool = False
    #: Whether `password` is taken for a token if an issuer that the node trusts has made it.
    password_may_be_token: bool = False
    #: Whether its username is asked for its password; false if operators have said as whom the process consumes.
    needs_password: bool = True
    #: Whether the client is a page of another site in a browser, which shows who it is also where others need not.
    is_foreign_page: bool = False
    #: What is published when the client ends without a word.
    will: gateways.Will | None = None
    #: Whether it begins a new session, so that its last one ends.
    clean: bool = False


class GatewayHello(msgspec.Struct, frozen=True):
    """What a gateway process says of itself."""

    #: Of the protocol that its clients speak.
    name: Annotated[str, Meta(min_length=1, max_length=32, pattern="^[a-z0-9-]+$")]
    index: Annotated[int, Meta(ge=0, le=1 << 16)]
    #: Of the process: its successor has a higher one.
    incarnation: Annotated[int, Meta(ge=0, le=1 << 62)]

    @property
    def client_name(self) -> str:
        """Give the name of its sessions."""
        return f"{wire.GATEWAY_NAME_PREFIX}{self.name}/{self.index}"

    def may_follow(self, before: CarriedFor | None) -> bool:
        """Tell whether this is the same gateway process, or its successor, on a new connection."""
        return isinstance(before, GatewayHello) and self.incarnation >= before.incarnation


class BridgeHello(msgspec.Struct, frozen=True):
    """Name and place of a bridge: the Message VPN that it takes messages into."""

    name: Annotated[str, Meta(min_length=1, max_length=32)]
    vpn: Annotated[str, Meta(min_length=1, max_length=wire.VPN_CHARACTERS_MAX)]
    node: Annotated[str, Meta(min_length=1, max_length=64)]
    node_id: Annotated[str, Meta(min_length=1, max_length=64)]
    #: Of the process: its successor has a higher one.
    incarnation: Annotated[int, Meta(ge=0, le=1 << 62)]

    @property
    def client_name(self) -> str:
        """Give the name of its sessions."""
        return f"{wire.BRIDGE_NAME_PREFIX}{self.node}/{self.vpn}/{self.name}"

    def may_follow(self, before: CarriedFor | None) -> bool:
        """Tell whether this is the same bridge process, or its successor, on a new connection."""
        is_bridge = isinstance(before, BridgeHello) and before.node_id == self.node_id
        return is_bridge and self.incarnation >= before.incarnation  # type: ignore[union-attr]


#: For whom a session carries messages that is neither a client's own nor a neighbour's.
CarriedFor: TypeAlias = BridgeHello | GatewayHello


class Hello(msgspec.Struct, frozen=True):
    """The header of HELLO, checked."""

    version: int
    vpn: Annotated[str, Meta(max_length=wire.VPN_CHARACTERS_MAX)] = "default"
    username: Annotated[str, Meta(max_length=189)] = "default"
    password: str | None = None
    token: Annotated[bytes, Meta(max_length=1024)] | None = None
    jwt: str | None = None
    client_name: str = ""
    sdk: Annotated[str, Meta(max_length=100)] = ""
    keepalive_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 3000
    local_priority: Annotated[int, Meta(ge=1, le=4)] = 1
    network_priority: Annotated[int, Meta(ge=1, le=4)] = 1
    no_local: bool = False
    #: Whether ACKED has its last field; a client of 0.1.0 takes that for a malformed frame.
    unroutable: bool = False
    #: Whether it is told which partitions of its flows are to move, and gives back what nobody has seen of them.
    leaving: bool = False
    credit: tuple[Annotated[int, Meta(ge=0, le=1 << 62)], Annotated[int, Meta(ge=0, le=1 << 62)]] = (0, 0)
    link: LinkHello | None = None
    bridge: BridgeHello | None = None
    gateway: GatewayHello | None = None
    behalf: Behalf | None = None

    @property
    def kind(self) -> SessionKind:
        """Give the kind of session that it asks for."""
        return LINK if self.link is not None else KINDS.get(self.username, CLIENT)

    @property
    def carried_for(self) -> CarriedFor | None:
        """Give what a bridge or gateway of this node says of itself; None if it says nothing."""
        return self.gateway if self.username == wire.GATEWAY_USERNAME else self.bridge

    @property
    def is_foreign_page(self) -> bool:
        """Tell whether it is of a page of another site in a browser."""
        return self.behalf is not None and self.behalf.is_foreign_page


_decode_hello = msgspec.msgpack.Decoder(Hello).decode


def parse_hello(header: bytes) -> Hello:
    """Check the shape of a HELLO; its version is judged apart (`check_version`), by those who know who came.

    Raises:
        InvalidRequestError: 40001 wrong shape, 40011 no possible client name.
    """
    hello = wire.decode_header(_decode_hello, header)
    behalf = hello.behalf
    if behalf is not None:
        _check_address(hello.kind, behalf.address)
    if len(hello.password or "") > MAX_PASSWORD_CHARACTERS and not (behalf and behalf.password_may_be_token):
        raise wire.malformed(f"a password has at most {MAX_PASSWORD_CHARACTERS} characters")
    if hello.client_name:
        try:
            check_topic(hello.client_name)
            too_long = len(hello.client_name.encode()) > MAX_CLIENT_NAME_BYTES
            if too_long or hello.client_name.startswith(_RESERVED_NAMES):
                raise error_for(errors.INVALID_TOPIC)
        except AngariumError:
            raise error_for(errors.INVALID_CLIENT_NAME, repr(hello.client_name[:200])) from None
    return hello


def _check_address(kind: SessionKind, address: str) -> None:
    if not kind.is_client and not address:
        return
    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise wire.malformed(f"behalf: {address!r} is no IP address") from None


def check_version(hello: Hello) -> None:
    """Refuse who speaks another version of the protocol.

    Raises:
        InvalidRequestError: the version is another (40003).
    """
    if hello.version != wire.PROTOCOL_VERSION:
        detail = f"{hello.version}, this node speaks {wire.PROTOCOL_VERSION}"
        raise error_for(errors.UNSUPPORTED_VERSION, detail)
