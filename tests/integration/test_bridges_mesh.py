"""Bridges between nodes: beside links, encrypted, and declared in the configuration file."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from angarium import blocking, errors
from cluster.data.node_file import read_node_file
from tests.integration.bridged import Operator, receive
from tests.integration.certificates import Authority
from tests.integration.mesh_nodes import Mesh
from tests.waiting import expect_value

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.mark.long
def test_opposite_bridges_on_two_linked_nodes_make_no_loop(tmp_path: Path) -> None:
    """A link joins Message VPNs of one name: what was in one of them on a node was in it on both."""
    with Mesh(tmp_path, 2) as mesh, ExitStack() as stack:
        operators = {name: stack.enter_context(Operator(mesh[name])) for name in "ab"}
        for operator in operators.values():
            operator.make_vpns("other")
        mesh.join()
        operators["a"].bridge("other", "there", remote_vpn="default", remote_subscriptions=["t/>"])
        operators["b"].bridge("default", "back", remote_vpn="other", remote_subscriptions=["t/>"])
        places = [(name, vpn) for name in "ab" for vpn in ("default", "other")]
        clients = {
            (name, vpn): stack.enter_context(blocking.connect(mesh[name].url, vpn=vpn))
            for name, vpn in places
        }
        subscriptions = {place: client.subscribe("t/>") for place, client in clients.items()}
        for here, there in ("ab", "ba"):  # what is wanted over there is known by now
            mesh.wait_for(here, there, lambda row: row["subscriptions_in"] >= 2)
        sent = [b"%d" % number for number in range(20)]
        clients["a", "default"].publish_many([("t/x", payload) for payload in sent])
        clients["a", "default"].flush()
        for place, subscription in subscriptions.items():
            assert receive(subscription, 20) == sent, place
        operators["b"].wait_for("default", "back", lambda row: row["dropped"]["visited"] == 20)
        traced = {
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "tracestate": "a=b",
        }
        clients["a", "default"].publish("t/x", b"traced", properties=traced)
        for place, subscription in subscriptions.items():
            assert subscription.receive(20.0).properties == traced, place
        refuse_what_a_link_joins(mesh, operators["a"])


def refuse_what_a_link_joins(mesh: Mesh, here: Operator) -> None:
    told = {"remote_vpn": "default", "addresses": [mesh["b"].url], "remote_subscriptions": ["u"]}
    here.make("bridge", "default", "same", **told)
    here.wait_error("default", "same", errors.BRIDGE_TO_ITSELF)
    mesh["b"].run("link", "delete", "a")
    here.wait_up("default", "same")


def test_a_bridge_of_the_configuration_file_is_encrypted(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "theirs")
    Authority(tmp_path / "wrong")
    made = authority.issue("a", "DNS:node-a")
    (tmp_path / "word").write_text("a long password\n", encoding="utf-8")
    with Mesh(tmp_path, 0) as mesh:
        encrypting = (
            '[router]\nlisten = ["tls://127.0.0.1:0", "tcp://127.0.0.1:0"]\n'
            f'tls_cert_file = "{made.cert}"\ntls_key_file = "{made.key}"'
        )
        mesh.add("a", mesh.make("a", more=encrypting, listen=None))
        with Operator(mesh["a"]) as far:
            far.make_vpns()
            far.make("username", "default", "carrier", password="a long password")
        encrypted, plain = read_node_file(mesh["a"].data).urls
        declared = f"""
[[bridges]]
name = "from-a"
remote_vpn = "default"
addresses = ["{encrypted}"]
ca_file = "wrong/ca.pem"
remote_username = "carrier"
remote_password_file = "word"
remote_subscriptions = ["t/>"]
"""
        mesh.add("b", mesh.make("b", more=declared))
        with Operator(mesh["b"]) as near:
            near.wait_error("default", "from-a", errors.TLS_FAILED)
            mesh["b"].run("bridge", "update", "from-a", "--remote-ca-file", str(authority.cert))
            near.wait_for(
                "default", "from-a", lambda row: "not for '127.0.0.1'" in row["error"]
            )  # not in the certificate
            near.update("bridge", "default", "from-a", server_name="node-a")
            row = near.wait_up("default", "from-a")
            assert row["remote_password_file"] == str(tmp_path / "word")
            assert row["ca_pem"] == authority.cert.read_text()
            assert row["encrypted"] is True
        exported = mesh["b"].run("config", "export")
        assert "[[bridges]]" in exported
        assert 'name = "from-a"' in exported
        with blocking.connect(plain) as there, blocking.connect(mesh["b"].url) as here:
            subscription = here.subscribe("t/>")
            there.publish_many([("t/x", b"%d" % number) for number in range(100)])
            there.flush()
            assert len(receive(subscription, 100)) == 100

        def counted() -> int:
            return int(json.loads(mesh["b"].run("bridge", "show", "from-a", "--json"))["messages"])

        expect_value(counted, 100, "messages of the bridge")
