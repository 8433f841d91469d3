"""A client of 0.1.0: it reads most headers as arrays of a fixed length, and takes no longer ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from angarium import wire

if TYPE_CHECKING:
    from tests.unit.router.wired_node import FakeClient, WiredNode

_Natural = Annotated[int, msgspec.Meta(ge=0)]
_Number = Annotated[int, msgspec.Meta(ge=1)]
_Run = tuple[_Number, _Number]
_Origin = tuple[str, str, str]
_Part = tuple[
    _Natural,
    _Number,
    list[_Run],
    list[_Natural] | None,
    _Natural | list[_Natural],
    list[_Origin | None] | None,
]
#: Its headers, by operation; those of WELCOME and of the values in ANSWER are maps, which may have more.
_HEADERS: Final[dict[bytes, Any]] = {
    wire.DELIVER: tuple[_Natural, list[tuple[_Natural, str | None]], _Natural],
    wire.RETIRED: tuple[_Natural],
    wire.SUBACK: tuple[_Natural, list[tuple[int, str] | None]],
    wire.NOTICE: tuple[int, str, _Natural, int | None],
    wire.CLOSED: tuple[_Natural, str],
    wire.ANSWER: tuple[_Natural, _Natural, msgspec.Raw],
    wire.ACKED: tuple[_Number, _Natural, list[tuple[_Number, _Number, str]], _Natural],
    wire.MESSAGES: tuple[_Number, list[_Part]],
    wire.INDICATION: tuple[
        _Number,
        Annotated[int, msgspec.Meta(ge=wire.FLOW_CLOSED, le=wire.FLOW_SETTLE_REFUSED)],
        _Natural,
        str | list[_Natural] | None,
    ],
}


def read_all(client: FakeClient) -> list[bytes]:
    """Read what came as 0.1.0 does; gives the operations."""
    operations = []
    while client.received:
        operation, header, *_ = client.received.popleft()
        msgspec.msgpack.decode(header, type=_HEADERS[operation])
        operations.append(operation)
    return operations


def client_of(node: WiredNode) -> FakeClient:
    """Log in as it does, with all that its HELLO has."""
    about = {"client_name": "old", "local_priority": 1, "network_priority": 1, "no_local": False}
    client = node.connection()
    client.hello(sdk="angarium-python", vpn="default", keepalive_ms=3000, unroutable=False, **about)
    return client
