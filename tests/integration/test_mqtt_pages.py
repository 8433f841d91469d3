"""Pages of other sites in a browser on the host of a node: who needs no password is not let in from there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

from angarium_server.testing import Node
from gateway.mqtt.codec import V3, V5, Parser, ReasonCode, Sender, write
from gateway.mqtt.codec.connect import ConnAck, Connect

if TYPE_CHECKING:
    from collections.abc import Iterator

PASSWORD: Final = "of alice, for tests"
FOREIGN: Final = (
    "https://elsewhere.example",
    "null",
    "http://127.0.0.1.example",
    "http://localhost.example:80",
)
OWN: Final = (None, "http://localhost:8000", "https://127.1.2.3", "http://[::1]:3000")
_CONFIG: Final = """
[mqtt]
listen = ["ws://127.0.0.1:0"]

# Who has no password is let in although somebody has one.
[vpn.default.username.default]
enabled = true

[vpn.default.username.alice]
password_file = "alice.password"
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("pages")
    (folder / "alice.password").write_text(PASSWORD)
    (folder / "alice.password").chmod(0o600)
    file = folder / "node.toml"
    file.write_text(_CONFIG)
    with Node(folder / "data", workers=1, config=file) as node:
        yield node


def answer(node: Node, origin: str | None, version: int = V5, **login: Any) -> int:
    """Have a page of this origin connect; gives the code of the CONNACK."""
    (url,) = node.status()["mqtt"]
    named = None if origin is None else Origin(origin)
    with connect(url, origin=named, subprotocols=[Subprotocol("mqtt")], compression=None) as socket:
        socket.send(write(Connect(version=version, client_id="page", **login), version))
        data = socket.recv(10)
        assert isinstance(data, bytes)
        (packet,) = Parser(Sender.SERVER, version=version).feed(data)
    assert isinstance(packet, ConnAck)
    return packet.code


@pytest.mark.parametrize("origin", OWN)
def test_a_page_of_this_host_and_who_is_no_page_needs_no_password(node: Node, origin: str | None) -> None:
    assert answer(node, origin) == ReasonCode.SUCCESS


@pytest.mark.parametrize("origin", FOREIGN)
def test_a_page_of_another_site_shows_who_it_is(node: Node, origin: str) -> None:
    assert answer(node, origin) == ReasonCode.NOT_AUTHORIZED
    assert answer(node, origin, V3) == 5
    assert answer(node, origin, username="alice") == ReasonCode.NOT_AUTHORIZED
    assert answer(node, origin, username="alice", password=PASSWORD.encode()) == ReasonCode.SUCCESS


@pytest.mark.parametrize("username", ["default", "", None])
def test_any_password_is_none_for_it_where_the_username_has_none(node: Node, username: str | None) -> None:
    assert answer(node, None, username=username, password=b"any") == ReasonCode.SUCCESS
    assert (
        answer(node, FOREIGN[0], username=username, password=b"any") == ReasonCode.BAD_USER_NAME_OR_PASSWORD
    )


def test_operators_see_that_it_was_refused(node: Node) -> None:
    answer(node, FOREIGN[0])
    shown = json.loads(node.run("gateway", "show", "mqtt.0", "--json"))
    assert shown["ended"][f"{ReasonCode.NOT_AUTHORIZED:d}"] >= 1
