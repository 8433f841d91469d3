"""Operators on other hosts: who gets in, what the others are told, and what a restart of the controller costs."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

import pytest

from angarium import errors
from angarium_server.testing import Node
from cluster.admin.client import Admin
from cluster.data.node_file import read_node_file
from tests.integration.certificates import Authority
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.certificates import Pair

pytestmark = pytest.mark.slow

CONFIG = """
[router]
listen = ["tcp://127.0.0.1:0", "tls://127.0.0.1:0"]
tls_cert_file = "{cert}"
tls_key_file = "{key}"

[admin]
listen = ["tls://127.0.0.1:{port}"]
tls_client_ca_file = "{authority}"
operators = ["anna", "late"]
"""


class Administered(NamedTuple):
    """A running node, and where operators come in."""

    node: Node
    url: str
    authority: Authority
    pair: Pair
    anna: Pair

    def admin(self, pair: Pair | None = None, url: str = "", timeout_s: float = 10.0) -> Admin:
        pair = pair or self.anna
        return Admin(
            admin_url=url or self.url,
            ca_file=self.authority.cert,
            cert_file=pair.cert,
            key_file=pair.key,
            timeout_s=timeout_s,
        )

    def refused(self) -> int:
        with Admin(self.node.data) as admin:
            return int(admin.call("stats")["controller"]["operators_refused"])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    folder = tmp_path_factory.mktemp("remote")
    authority = Authority(folder / "authority")
    pair, anna = authority.issue("node"), authority.issue("anna", "DNS:anna")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    file = folder / "node.toml"
    file.write_text(CONFIG.format(cert=pair.cert, key=pair.key, authority=authority.cert, port=port))
    with Node(folder / "data", workers=1, listen=None, config=file) as node:
        yield Administered(node, f"tls://127.0.0.1:{port}", authority, pair, anna)


def code_of(admin: Admin) -> errors.AngariumError:
    """Give the error with which a call fails."""
    with admin, pytest.raises(errors.AngariumError) as failed:
        admin.call("status")
    return failed.value


def test_an_operator_does_what_the_local_way_does(served: Administered) -> None:
    with served.admin() as admin:
        assert admin.call("status")["node"] == served.node.status()["node"]
        admin.call("objects.create", kind="queue", name="far", vpn="default", attributes={})
        with pytest.raises(errors.AngariumError) as again:
            admin.call("objects.create", kind="queue", name="far", vpn="default", attributes={})
        assert again.value.code == errors.OBJECT_EXISTS
        assert admin.call("objects.show", kind="queue", name="far", vpn="default")["name"] == "far"


def test_a_request_may_be_large_once_an_operator_is_known(served: Administered) -> None:
    text = "x" * 3_000_000
    with served.admin() as admin, pytest.raises(errors.AngariumError) as refused:
        admin.call("objects.show", kind="queue", name=text, vpn="default")
    assert refused.value.code != errors.CONNECT_FAILED
    with served.admin() as admin:
        assert admin.call("health")


def test_a_certificate_of_the_authority_that_is_not_listed_is_refused_with_a_word(
    served: Administered,
) -> None:
    before = served.refused()
    error = code_of(served.admin(served.authority.issue("carl", "DNS:carl")))
    assert error.code == errors.UNAUTHORIZED
    assert "'carl'" in str(error)
    assert served.refused() == before + 1


def test_a_certificate_of_another_authority_is_refused(served: Administered, tmp_path: Path) -> None:
    before = served.refused()
    error = code_of(served.admin(Authority(tmp_path / "other").issue("anna", "DNS:anna")))
    assert error.code == errors.TLS_FAILED
    assert "cert_file" in str(error)
    wait_until(lambda: served.refused() > before, "it is counted")
    with Admin(served.node.data) as admin:
        told = [row for row in admin.call("events") if row["event"] == "SYSTEM_OPERATOR_REFUSED"]
    assert told


def test_a_certificate_that_has_ended_is_refused(served: Administered) -> None:
    ended = served.authority.issue("late", "DNS:late", until="20210101000000Z")
    error = code_of(served.admin(ended))
    assert error.code == errors.TLS_FAILED
    assert "expired" in str(error)


def test_without_a_certificate_a_handshake_comes_to_nothing(served: Administered) -> None:
    before = served.refused()
    host, port = place(served.url)
    with (
        socket.create_connection((host, port), 10) as made,
        contextlib.suppress(OSError),
        served.authority.client_context().wrap_socket(made, server_hostname=host) as encrypted,
    ):
        assert encrypted.recv(1) == b""
    wait_until(lambda: served.refused() > before, "it is counted")
    with pytest.raises(errors.AngariumError, match="--cert-file"):
        Admin(admin_url=served.url)


def test_the_certificate_of_the_node_must_be_for_the_name_and_of_a_trusted_authority(
    served: Administered, tmp_path: Path
) -> None:
    _, port = place(served.url)
    error = code_of(served.admin(url=f"tls://127.1:{port}"))  # the same host by a name that is not in it
    assert error.code == errors.TLS_FAILED
    assert "'127.1'" in str(error)
    stranger = Authority(tmp_path / "stranger")
    error = code_of(
        Admin(
            admin_url=served.url, ca_file=stranger.cert, cert_file=served.anna.cert, key_file=served.anna.key
        )
    )
    assert error.code == errors.TLS_FAILED
    assert "ca_file" in str(error)


def test_an_address_for_clients_is_said_to_be_one(served: Administered) -> None:
    tcp, tls = read_node_file(served.node.data).urls
    error = code_of(served.admin(url=tls))
    assert (error.code, "address for clients" in str(error)) == (errors.CONNECT_FAILED, True)
    error = code_of(served.admin(url=tcp.replace("tcp:", "tls:")))
    assert error.code == errors.TLS_FAILED
    assert "does not speak TLS" in str(error)
    assert "[admin] listen" in str(error)


def test_an_address_where_nobody_answers_or_somebody_keeps_silent(served: Administered) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"tls://127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        assert code_of(served.admin(url=url, timeout_s=1.0)).code == errors.TIMEOUT
        assert time.monotonic() - began < 5.0
    assert code_of(served.admin(url=url, timeout_s=1.0)).code == errors.CONNECT_FAILED


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00" + bytes(600), b"\0"])
def test_garbage_is_refused_and_harms_nobody(served: Administered, said: bytes) -> None:
    with served.admin() as admin, socket.create_connection(place(served.url), 10) as stranger:
        stranger.sendall(said)
        with contextlib.suppress(OSError):
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(4096):
                pass
        assert admin.call("health")


def test_garbage_of_an_operator_ends_his_connection_only(served: Administered) -> None:
    context = served.authority.client_context()
    context.load_cert_chain(served.anna.cert, served.anna.key)
    host, port = place(served.url)
    with served.admin() as admin:
        for said in (b"\xff" * 200, bytes(64), ssl.RAND_bytes(500)):
            with (
                socket.create_connection((host, port), 10) as made,
                context.wrap_socket(made, server_hostname=host) as encrypted,
            ):
                encrypted.settimeout(15)
                encrypted.sendall(said)
                with contextlib.suppress(OSError):
                    while encrypted.recv(4096):
                        pass
        assert admin.call("health")


def test_strangers_who_say_nothing_do_not_keep_operators_out(served: Administered) -> None:
    silent = []
    try:
        for number in range(150):
            made = socket.socket()
            made.bind((f"127.0.3.{number % 30 + 1}", 0))
            made.connect(place(served.url))
            silent.append(made)
        with served.admin() as admin:
            assert admin.call("health")
    finally:
        for made in silent:
            made.close()


def test_a_call_after_a_restart_of_the_controller_goes_through(served: Administered) -> None:
    with served.admin() as admin:
        assert admin.call("health")
        pid = served.node.kill("controller")
        wait_until(lambda: served.node.process("controller")["pid"] not in (0, pid), "there is another one")
        assert admin.call("status")["node"]


def test_a_call_that_a_restart_cuts_off_is_said_to_be_in_doubt(served: Administered) -> None:
    """The controller is stopped, so that the request is under way when it is killed."""
    with served.admin(timeout_s=20.0) as admin:
        admin.call("health")
        pid = served.node.kill("controller", number=signal.SIGSTOP)
        killer = threading.Timer(0.5, os.kill, (pid, signal.SIGKILL))
        killer.start()
        with pytest.raises(errors.AngariumError, match="not known") as lost:
            admin.call("status")
        killer.join()
        assert lost.value.code == errors.CONNECT_FAILED
        wait_until(lambda: served.node.process("controller")["pid"] not in (0, pid), "there is another one")
        assert admin.call("status")["node"], "the next one connects again"


def test_the_certificate_is_renewed_with_that_of_clients(served: Administered) -> None:
    with served.admin() as early:
        early.call("health")
        before = certificate_of(served)
        renewed = served.authority.issue("renewed")
        shutil.copy(renewed.key, served.pair.key)
        shutil.copy(renewed.cert, served.pair.cert)
        early.call("keys.reload")
        assert certificate_of(served) != before
        with served.admin() as late:
            assert late.call("health")
        whole = served.pair.cert.read_bytes()
        served.pair.cert.write_bytes(whole[: len(whole) // 2])
        try:
            with pytest.raises(errors.AngariumError) as refused:
                early.call("keys.reload")
            assert refused.value.code == errors.INVALID_CONFIGURATION
            with served.admin() as late:
                assert late.call("health")
        finally:
            served.pair.cert.write_bytes(whole)


def test_an_address_that_is_taken_is_named(tmp_path: Path, served: Administered) -> None:
    file = tmp_path / "node.toml"
    _, port = place(served.url)
    text = CONFIG.format(
        cert=served.pair.cert, key=served.pair.key, authority=served.authority.cert, port=port
    )
    file.write_text(text)
    node = Node(tmp_path / "data", workers=1, listen=None, config=file)
    node.__enter__()
    try:
        wait_until(
            lambda: re.search(rf"admin\.listen: tls://127\.0\.0\.1:{port}: ", node.output()), "it is told"
        )
    finally:
        with contextlib.suppress(Exception):
            node.stop()
        node.kill_all()


def certificate_of(served: Administered) -> bytes:
    """Give the certificate that new connections see."""
    context = served.authority.client_context()
    host, port = place(served.url)
    with (
        socket.create_connection((host, port), 10) as made,
        context.wrap_socket(made, server_hostname=host) as encrypted,
    ):
        found = encrypted.getpeercert(binary_form=True)
        assert found is not None
        return found


def place(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("tls://").rpartition(":")
    return host, int(port)


@pytest.mark.requirement("R257", "R258")
def test_a_certificate_of_an_operator_has_the_role_that_the_operator_has_now(served: Administered) -> None:
    made = {"certificate_name": "dora", "vpn": "default"}
    with Admin(served.node.data) as local, served.admin(served.authority.issue("dora", "DNS:dora")) as dora:
        local.call("objects.create", kind="operator", name="dora-1", attributes=made)
        assert dora.call("operators.me") == {"name": "dora-1", "role": "viewer", "vpn": "default"}
        assert dora.call("objects.list", kind="queue", vpn=None)
        for operation, given in (
            ("objects.create", {"kind": "queue", "name": "doras", "attributes": {}}),
            ("status", {}),
            ("operators.credentials", {"name": "dora-1"}),
        ):
            with pytest.raises(errors.AngariumError) as refused:
                dora.call(operation, **given)
            assert refused.value.code == errors.OPERATOR_DENIED
        local.call("objects.update", kind="operator", name="dora-1", attributes={"role": "operator"})
        assert dora.call("objects.create", kind="queue", name="doras", attributes={})["name"] == "doras"
        local.call("objects.update", kind="operator", name="dora-1", attributes={"enabled": False})
        with pytest.raises(errors.AngariumError) as disabled:
            dora.call("operators.me")
        assert disabled.value.code == errors.UNAUTHORIZED
