"""Clients of MQTT that log in with a token as their password."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from angarium import blocking
from angarium_server.testing import Node
from gateway.mqtt.codec import ReasonCode
from gateway.mqtt.codec.control import Disconnect
from gateway.mqtt.codec.publish import Publish
from tests.integration.mqtt_clients import LIMIT_S, Raw
from tests.integration.mqtt_node import clients
from tests.token_issuer import AUDIENCE, ISSUER, TokenMaker, jwks

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

_CONFIG = f"""
[mqtt]
listen = ["tcp://127.0.0.1:0"]

[[issuers]]
name = "login"
issuer = "{ISSUER}"
audience = ["{AUDIENCE}"]
keys_file = "login.jwks"
algorithms = ["ES256"]
clock_skew_s = 0
vpns = ["default", "orders"]
vpn_claim = "vpn"

[vpn.default.username.alice]
[vpn.default.username.default]
enabled = true
[vpn.orders.acl.all]
client_connect_default = "allow"
publish_topic_default = "allow"
subscribe_topic_default = "allow"
[vpn.orders.username.alice]
acl_profile = "all"
"""


class Served(NamedTuple):
    """A node with an issuer."""

    node: Node
    maker: TokenMaker

    def connect(self, raw: Raw, name: str, **claims: Any) -> int:
        """Log in with a token, and give the code."""
        token = self.maker.token(**claims).encode()
        return raw.connect(name, username="alice", password=token).code


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("mqtt-tokens")
    maker = TokenMaker("ES256")
    (folder / "login.jwks").write_bytes(jwks(maker))
    (folder / "node.toml").write_text(_CONFIG)
    with Node(folder / "data", workers=1, config=folder / "node.toml") as node:
        yield Served(node, maker)


@pytest.mark.parametrize("version", [4, 5])
def test_a_token_as_a_password_is_a_login(served: Served, version: int) -> None:
    with Raw(served.node.mqtt_url, version) as theirs:
        assert served.connect(theirs, f"device-{version}", vpn="default") == 0
        row = clients(served.node)[f"device-{version}"]
        assert (row["username"], row["vpn"]) == ("alice", "default")


def test_a_token_may_name_another_message_vpn_than_the_address(served: Served) -> None:
    with Raw(served.node.mqtt_url) as here, Raw(served.node.mqtt_url) as there:
        assert here.connect("here").code == 0
        assert served.connect(there, "there", vpn="orders") == 0
        assert set(clients(served.node, "orders")) == {"there"}
        for one in (here, there):
            assert one.subscribe("a/#") == (0,)
        with blocking.connect(served.node.url, token=served.maker.token(vpn="orders"), vpn="orders") as ours:
            ours.publish("a/1", b"in orders")
            assert next(iter(there.payloads())) == b"in orders"
            heard = ours.subscribe("b")
            there.say(Publish("b", b"back"))
            assert heard.receive(LIMIT_S).payload == b"back"
        with blocking.connect(served.node.url) as ours:
            ours.publish("a/1", b"in default")
            assert next(iter(here.payloads())) == b"in default"


@pytest.mark.parametrize("claims", [{"exp": 1_000_000_000}, {"aud": "elsewhere"}, {"vpn": "nowhere"}])
def test_a_token_that_is_not_good_lets_nobody_in(served: Served, claims: dict[str, Any]) -> None:
    with Raw(served.node.mqtt_url) as theirs:
        assert served.connect(theirs, "late", **claims) in (
            ReasonCode.BAD_USER_NAME_OR_PASSWORD,
            ReasonCode.NOT_AUTHORIZED,
        )
        assert theirs.next() is None


def test_a_client_goes_when_its_token_ends(served: Served) -> None:
    with Raw(served.node.mqtt_url) as theirs:
        assert served.connect(theirs, "brief", exp=int(time.time()) + 3, vpn="default") == 0
        told = theirs.next()
        assert isinstance(told, Disconnect)
        assert told.code == ReasonCode.NOT_AUTHORIZED
        assert theirs.next() is None


def test_whom_only_his_token_names_stays_who_he_is_when_the_router_is_replaced(served: Served) -> None:
    with Raw(served.node.mqtt_url) as theirs:
        assert theirs.connect("stays", password=served.maker.token(vpn="default").encode()).code == 0
        assert clients(served.node)["stays"]["username"] == "alice"
        served.node.kill("router")
        assert theirs.subscribe("a") == (0,)
        assert clients(served.node)["stays"]["username"] == "alice"
