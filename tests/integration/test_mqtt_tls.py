"""Clients of MQTT over TLS and WebSocket: all hear each other; a certificate is a login, and is renewed meanwhile."""

from __future__ import annotations

import shutil
import ssl
from typing import TYPE_CHECKING, NamedTuple

import pytest

from angarium import blocking
from angarium_server.testing import Node
from gateway.mqtt.codec.connect import Connect
from tests.integration.certificates import Authority, Pair
from tests.integration.mqtt_clients import LIMIT_S, Paho, Raw, place_of
from tests.integration.mqtt_node import clients

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

_CONFIG = """
[router]
tls_cert_file = "{cert}"
tls_key_file = "{key}"
tls_client_ca_file = "{authority}"
tls_client_certificates = "optional"
tls_username = "common-name"

[mqtt]
listen = ["tcp://127.0.0.1:0", "tls://127.0.0.1:0", "ws://127.0.0.1:0", "wss://127.0.0.1:0"]

[vpn.default.username.default]
enabled = true

[vpn.default.username.device]
"""


class Served(NamedTuple):
    """A node with all kinds of addresses, and its certificate."""

    node: Node
    authority: Authority
    pair: Pair

    def url(self, scheme: str) -> str:
        return next(str(url) for url in self.node.ready["mqtt"] if url.startswith(f"{scheme}://"))

    def client(self, scheme: str, name: str, pair: Pair | None = None) -> Paho:
        tls = None
        if scheme in ("tls", "wss"):
            tls = ssl.create_default_context(cafile=str(self.authority.cert))
            if pair is not None:
                tls.load_cert_chain(pair.cert, pair.key)
        return Paho(self.url(scheme), name, tls=tls)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("mqtt-tls")
    authority = Authority(folder / "authority")
    pair = authority.issue("node")
    file = folder / "node.toml"
    file.write_text(_CONFIG.format(cert=pair.cert, key=pair.key, authority=authority.cert))
    with Node(folder / "data", workers=1, config=file) as node:
        yield Served(node, authority, pair)


@pytest.mark.requirement("R232")
def test_clients_of_all_addresses_hear_each_other(served: Served) -> None:
    payload = bytes(range(256)) * 2_000  # larger than what a connection takes at once
    with (
        served.client("tcp", "plain") as plain,
        served.client("tls", "encrypted") as encrypted,
        served.client("ws", "browser") as browser,
        served.client("wss", "careful") as careful,
        blocking.connect(served.node.url) as ours,
    ):
        every = (plain, encrypted, browser, careful)
        subscription = ours.subscribe("all")
        for one in every:
            one.subscribe("all")
        for one in every:
            one.publish("all", payload)
            assert [other.receive().payload for other in every] == [payload] * 4
            assert subscription.receive(LIMIT_S).payload == payload


@pytest.mark.parametrize("scheme", ["tls", "wss"])
def test_who_shows_a_certificate_is_whom_it_names(served: Served, scheme: str) -> None:
    device = served.authority.issue("device")
    with served.client(scheme, f"by-{scheme}", device):
        assert clients(served.node)[f"by-{scheme}"]["username"] == "device"
    stranger = served.client(scheme, "stranger", served.authority.issue("nobody"))
    reason = stranger.connect()
    stranger.__exit__()
    assert reason.is_failure
    assert f"{reason}" == "Bad user name or password"


def test_a_renewed_certificate_is_shown_to_those_who_come(served: Served) -> None:
    with served.client("tls", "stays") as stays:
        before = shown(served)
        renewed = served.authority.issue("renewed")
        shutil.copy(renewed.cert, served.pair.cert)
        shutil.copy(renewed.key, served.pair.key)
        served.node.run("keys", "reload")
        assert shown(served) != before
        stays.subscribe("a")
        with served.client("tls", "comes") as comes:
            comes.publish("a", b"x")
        assert stays.receive().payload == b"x"


def shown(served: Served) -> str:
    """Give the certificate that a client sees."""
    return ssl.get_server_certificate(place_of(served.url("tls")), timeout=LIMIT_S)


def test_who_speaks_no_tls_is_closed_and_not_reset_and_nobody_else_minds(served: Served) -> None:
    with served.client("tls", "calm") as calm:
        with Raw(served.url("tls")) as wrong:
            wrong.say(Connect(client_id="wrong"))
            assert wrong.socket.recv(100)[:1] in (b"", b"\x15"), "nothing but an alert of TLS"
        calm.subscribe("a")
        calm.publish("a", b"x")
        assert calm.receive().payload == b"x"


def test_an_address_for_mqtt_beyond_loopback_disables_default_too(tmp_path: Path) -> None:
    """As one for our own clients does: whoever reaches the node from elsewhere needs a password."""
    pair = Authority(tmp_path / "authority").issue("node")
    for listen, enabled in (("tls://127.0.0.1:0", True), ("wss://0.0.0.0:0", False)):
        file = tmp_path / "node.toml"
        file.write_text(
            f"[router]\ntls_cert_file = '{pair.cert}'\ntls_key_file = '{pair.key}'\n"
            f"[mqtt]\nlisten = ['{listen}']\n"
        )
        with Node(tmp_path / "data", workers=1, config=file) as node:
            assert [row["username"] for row in node.status()["passwordless"]] == ["default"] * enabled
