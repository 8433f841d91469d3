"""Certificates as logins: who a client is by the rule of the node, and what it may not say then."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors, wire
from angarium_server.connections.tls import Certificate, Peer
from cluster.security import passwords
from tests.unit.router.wired_node import FakeClient, WiredNode, snapshot

ALICE = Certificate("alice", ("a.example",), ("alice@example.org",), ("urn:alice",))
FAR = "10.0.0.7"


class Shower(FakeClient):
    """A client that shows a certificate."""

    certificate: Certificate | None = ALICE

    def send(self, operation: bytes, header: Any, *batches: bytes) -> None:
        frames = [operation, wire.pack(header), *batches]
        self.node.router.client_frames(
            self.routing_id, frames, self.node.now, Peer(self.address, self.certificate)
        )
        self.node.settle()

    def login(self, **fields: Any) -> tuple[bytes, Any]:
        self.send(wire.HELLO, {"version": 1, "credit": [1000, 1000], **fields})
        return self.take()


def made(part: str, *usernames: str, **attributes: Any) -> WiredNode:
    objects = [("username", "default", name, attributes) for name in usernames]
    return WiredNode(rows=snapshot(*objects), tls_username=part)


def shower(node: WiredNode, certificate: Certificate | None = ALICE) -> Shower:
    client = Shower(node, b"s%d" % len(node.clients), FAR)
    client.certificate = certificate
    node.clients[client.routing_id] = client
    return client


def username_of(node: WiredNode, client: Shower) -> str:
    return str(node.router.sessions.by_routing_id[client.routing_id].username)


@pytest.mark.requirement("R223")
@pytest.mark.parametrize(
    ("part", "username"),
    [("common-name", "alice"), ("dns", "a.example"), ("email", "alice@example.org"), ("uri", "urn:alice")],
)
@pytest.mark.parametrize("says", [True, False])
def test_a_part_of_the_certificate_is_the_username(part: str, username: str, says: bool) -> None:
    node = made(part, username, password=passwords.hash_password("unknown to it"))
    client = shower(node)
    answer, _ = client.login(**({"username": username} if says else {}))
    assert answer == wire.WELCOME
    assert username_of(node, client) == username


@pytest.mark.requirement("R223")
def test_who_shows_a_certificate_is_nobody_else() -> None:
    node = made("common-name", "alice", "bob", password=passwords.hash_password("bob's"))
    for password in (None, "bob's"):
        answer, told = shower(node).login(username="bob", password=password)
        assert (answer, told[0]) == (wire.CLOSED, errors.CERTIFICATE_USERNAME)
        assert "bob" in told[1]


def test_a_certificate_without_that_part_names_nobody() -> None:
    node = made("email", "alice")
    answer, told = shower(node, Certificate("alice")).login(username="alice")
    assert (answer, told[0]) == (wire.CLOSED, errors.CERTIFICATE_USERNAME)
    assert "names no email" in told[1]


@pytest.mark.parametrize("attributes", [{"enabled": False}, None])
def test_the_username_must_be_there_and_enabled(attributes: dict[str, Any] | None) -> None:
    node = made("common-name", "bob") if attributes is None else made("common-name", "alice", **attributes)
    answer, told = shower(node).login()
    assert (answer, told[0]) == (wire.CLOSED, errors.UNAUTHORIZED)


def test_without_a_rule_a_certificate_says_nothing() -> None:
    node = made("", "alice", password=passwords.hash_password("secret"))
    answer, told = shower(node).login(username="alice")
    assert (answer, told[0]) == (wire.CLOSED, errors.UNAUTHORIZED)
    assert shower(node).login(username="alice", password="secret")[0] == wire.WELCOME


def test_who_shows_none_needs_a_password() -> None:
    node = made("common-name", "alice", password=passwords.hash_password("secret"))
    answer, told = shower(node, None).login(username="alice")
    assert (answer, told[0]) == (wire.CLOSED, errors.UNAUTHORIZED)
    assert shower(node, None).login(username="alice", password="secret")[0] == wire.WELCOME


def test_names_of_our_own_processes_are_nobody_s() -> None:
    node = made("common-name", "alice")
    for name in (wire.BRIDGE_USERNAME, wire.LINK_USERNAME):
        assert shower(node, Certificate(name)).login()[0] == wire.CLOSED
