"""A node with addresses of TLS: who comes in, what is refused, and a certificate that is renewed meanwhile."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import ssl
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from angarium import blocking, errors
from angarium_server.testing import Node, NodeFailedError
from cluster.admin.client import Admin
from cluster.data.node_file import read_node_file
from cluster.security.authority import create_certificate
from tests.integration.certificates import Authority
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.certificates import Pair

CONFIG = """
[router]
listen = ["tcp://127.0.0.1:0", "tls://127.0.0.1:0"]
tls_cert_file = "{cert}"
tls_key_file = "{key}"
{more}
"""


class TlsNode(NamedTuple):
    """A running node, its two addresses, and the files of its certificate."""

    node: Node
    tcp: str
    tls: str
    authority: Authority
    pair: Pair

    def connect(self, **given: Any) -> blocking.Client:
        return blocking.connect(self.tls, ca_file=str(self.authority.cert), timeout_s=10, **given)


def started(folder: Path, authority: Authority, more: str = "") -> Iterator[TlsNode]:
    pair = authority.issue("node")
    file = folder / "node.toml"
    file.write_text(CONFIG.format(cert=pair.cert, key=pair.key, more=more))
    with Node(folder / "data", workers=1, listen=None, config=file) as node:
        tcp, tls = read_node_file(node.data).urls
        yield TlsNode(node, tcp, tls, authority, pair)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsNode]:
    folder = tmp_path_factory.mktemp("tls")
    yield from started(folder, Authority(folder / "authority"))


@pytest.mark.requirement("R222")
def test_clients_of_all_addresses_hear_each_other(served: TlsNode) -> None:
    large = bytes(5_000_000)
    with blocking.connect(served.tcp) as plain, served.connect() as secure:
        here, there = plain.subscribe("both/>"), secure.subscribe("both/>")
        plain.publish("both/plain", large)
        secure.publish("both/secure", large)
        for subscription in (here, there):
            got = {
                message.topic: message.payload
                for message in (subscription.receive(timeout_s=20) for _ in "12")
            }
            assert got == {"both/plain": large, "both/secure": large}


@pytest.mark.requirement("R222")
def test_guaranteed_messages_go_over_tls(served: TlsNode) -> None:
    with served.connect() as client:
        client.create_queue("tls", subscriptions=["kept/>"])
        with client.producer() as producer:
            for number in range(500):
                producer.publish(f"kept/{number}", b"%d" % number)
        with client.consume("tls") as flow:
            got = [flow.receive(timeout_s=20).payload for _ in range(500)]
    assert got == [b"%d" % number for number in range(500)]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_is_spoken_from_1_2_on(served: TlsNode, version: ssl.TLSVersion) -> None:
    context = served.authority.client_context()
    context.minimum_version = context.maximum_version = version
    with handshake(served.tls, context) as connection:
        assert connection.version() == f"TLSv1.{version.value - 0x301}"


@pytest.mark.requirement("R223")
def test_older_versions_are_refused(served: TlsNode) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(served.authority.cert)
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError):
        handshake(served.tls, context)


@pytest.mark.requirement("R228")
@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00" + bytes(600), b"\xff" * 64]
)
def test_garbage_instead_of_tls_ends_the_connection_and_no_other(served: TlsNode, said: bytes) -> None:
    with served.connect() as client, socket.create_connection(place(served.tls), 10) as stranger:
        stranger.sendall(said)
        stranger.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(4096):
                pass
        heard = client.subscribe("innocent")
        client.publish("innocent", b"hi")
        assert heard.receive(timeout_s=10).payload == b"hi"


@pytest.mark.requirement("R222")
def test_a_certificate_is_renewed_while_sessions_go_on(served: TlsNode) -> None:
    with served.connect() as early:
        heard = early.subscribe("renewed")
        before = certificate_of(served)
        renewed = served.authority.issue("renewed")
        shutil.copy(renewed.key, served.pair.key)
        shutil.copy(renewed.cert, served.pair.cert)
        with Admin(served.node.data) as admin:
            admin.call("keys.reload")
        assert certificate_of(served) != before
        with served.connect() as late:
            late.publish("renewed", b"still here")
        assert heard.receive(timeout_s=10).payload == b"still here"


@pytest.mark.requirement("R222")
def test_a_signal_has_the_certificate_read_again(served: TlsNode) -> None:
    """And a damaged one changes nothing."""
    whole = served.pair.cert.read_bytes()
    with served.connect() as early, Admin(served.node.data) as admin:
        before = certificate_of(served)
        renewed = served.authority.issue("signalled")
        shutil.copy(renewed.key, served.pair.key)
        shutil.copy(renewed.cert, served.pair.cert)
        hang_up(served, admin, "SYSTEM_CERTIFICATE_RELOADED")
        changed = certificate_of(served)
        assert changed != before
        whole = served.pair.cert.read_bytes()
        served.pair.cert.write_bytes(whole[: len(whole) // 2])
        try:
            told = hang_up(served, admin, "SYSTEM_CERTIFICATE_NOT_RELOADED")
        finally:
            served.pair.cert.write_bytes(whole)
        assert str(served.pair.cert) in told["text"]
        assert certificate_of(served) == changed
        assert early.connected


def hang_up(served: TlsNode, admin: Admin, expected: str) -> dict[str, Any]:
    """Send the signal, and give the event that follows."""
    since = admin.call("events", limit=1)[-1]["id"]
    os.kill(served.node.ready["pid"], signal.SIGHUP)
    found: list[dict[str, Any]] = wait_until(
        lambda: [one for one in admin.call("events", since=since, limit=100) if one["event"] == expected],
        expected,
    )
    return found[0]


@pytest.mark.requirement("R222")
def test_a_damaged_certificate_changes_nothing(served: TlsNode) -> None:
    before, whole = certificate_of(served), served.pair.cert.read_bytes()
    served.pair.cert.write_bytes(whole[: len(whole) // 2])
    try:
        with Admin(served.node.data) as admin:
            with pytest.raises(errors.AngariumError, match=r"node\.pem"):
                admin.call("keys.reload")
            assert certificate_of(served) == before
            names = {event["event"] for event in admin.call("events", limit=50)}
            assert "SYSTEM_CERTIFICATE_NOT_RELOADED" in names
    finally:
        served.pair.cert.write_bytes(whole)


@pytest.mark.requirement("R223")
def test_a_certificate_may_be_demanded_of_clients(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "authority"), Authority(tmp_path / "other")
    more = f'tls_client_ca_file = "{authority.cert}"\ntls_client_certificates = "required"'
    for served in started(tmp_path, authority, more):
        known, unknown = authority.issue("client", "DNS:alice"), other.issue("client", "DNS:alice")
        with served.connect(cert_file=str(known.cert), key_file=str(known.key)) as client:
            client.publish("known", b"x")
        for pair in (None, unknown):
            files = {} if pair is None else {"cert_file": str(pair.cert), "key_file": str(pair.key)}
            with pytest.raises(errors.AngariumError) as refused:
                served.connect(**files)
            assert refused.value.code == errors.TLS_FAILED


@pytest.mark.requirement("R223")
@pytest.mark.parametrize("demanded", ["optional", "required"])
def test_the_certificate_of_a_client_is_its_username(tmp_path: Path, demanded: str) -> None:
    authority = Authority(tmp_path / "authority")
    more = (
        f'tls_client_ca_file = "{authority.cert}"\ntls_client_certificates = "{demanded}"\n'
        'tls_username = "common-name"\n'
    )
    (tmp_path / "secret").write_text("a long password\n")
    for name in ("alice", "bob", "carol"):
        more += f'[vpn.default.username.{name}]\npassword_file = "secret"\nenabled = {str(name != "carol").lower()}\n'
    for served in started(tmp_path, authority, more):
        pairs = {name: authority.issue(name) for name in ("alice", "carol", "stranger")}
        files = {
            name: {"cert_file": str(pair.cert), "key_file": str(pair.key)} for name, pair in pairs.items()
        }
        for username in ("alice", "default"):
            with (
                served.connect(username=username, **files["alice"]) as client,
                Admin(served.node.data) as admin,
            ):
                (row,) = admin.call("clients.list")
                assert row["username"] == "alice"
                assert client.connected
        with pytest.raises(errors.AngariumError) as refused:
            served.connect(username="bob", password="a long password", **files["alice"])
        assert refused.value.code == errors.CERTIFICATE_USERNAME
        for name in ("carol", "stranger"):
            with pytest.raises(errors.AngariumError) as refused:
                served.connect(**files[name])
            assert refused.value.code == errors.UNAUTHORIZED
        without = {"username": "bob", "password": "a long password"}
        if demanded == "optional":
            with served.connect(**without) as client:
                assert client.connected
            with pytest.raises(errors.AngariumError) as refused:
                served.connect(username="bob")
            assert refused.value.code == errors.UNAUTHORIZED
        else:
            with pytest.raises(errors.AngariumError) as refused:
                served.connect(**without)
            assert refused.value.code == errors.TLS_FAILED


@pytest.mark.requirement("R222")
def test_an_address_of_tls_needs_a_certificate_that_can_be_used(tmp_path: Path) -> None:
    pair, other = Authority(tmp_path / "authority").issue("node"), Authority(tmp_path / "other").issue("node")
    for cert, key in ((pair.cert, other.key), (pair.key, pair.key), (tmp_path / "none.pem", pair.key)):
        file = tmp_path / "node.toml"
        file.write_text(CONFIG.format(cert=cert, key=key, more=""))
        with pytest.raises(NodeFailedError, match=r"error 40017: .*tls_cert_file"):
            Node(tmp_path / "data", listen=None, config=file).start()


def place(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("tls://").rpartition(":")
    return host, int(port)


def certificate_of(served: TlsNode) -> bytes:
    """Give the certificate that new connections see."""
    with handshake(served.tls, served.authority.client_context()) as connection:
        found = connection.getpeercert(binary_form=True)
        assert found is not None
        return found


def handshake(url: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    made = socket.create_connection(place(url), 10)
    try:
        return context.wrap_socket(made, server_hostname="127.0.0.1")
    except BaseException:
        made.close()
        raise


def test_operators_are_told_that_a_certificate_ends(tmp_path: Path) -> None:
    pair = create_certificate(tmp_path / "node", days=10)
    file = tmp_path / "node.toml"
    file.write_text(CONFIG.format(cert=pair.cert_file, key=pair.key_file, more=""))
    with Node(tmp_path / "data", workers=1, listen=None, config=file) as node, Admin(node.data) as admin:

        def events() -> list[dict[str, Any]]:
            return [one for one in admin.call("events") if one["event"] == "SYSTEM_CERTIFICATE_ENDS"]

        wait_until(lambda: events() and admin.call("status")["certificates"], "operators are told soon")
        (told,), (event,) = admin.call("status")["certificates"], events()
        assert told.startswith(f"router.tls_cert_file: the certificate {pair.cert_file} ends on ")
        assert (event["severity"], event["text"]) == ("warning", told)
