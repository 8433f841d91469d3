"""`tls://` from the application's side: whom a client trusts, what it shows, and what it says when that fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import shutil
import ssl
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives import serialization

import angarium
from angarium import blocking, errors
from angarium.client.transport.credentials import Credentials
from angarium.client.transport.stream import StreamTransport
from tests.integration.certificates import FUTURE, PAST, Authority, Pair
from tests.integration.scripted_router import LIMIT_S, Router, run
from tests.integration.stream_peer import GREETING, StreamPeer
from tests.integration.tls_front import tls_front
from tests.integration.transport_line import Line
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Give an authority that nobody trusts."""
    return Authority(tmp_path_factory.mktemp("certificates") / "other")


@pytest.fixture(scope="module")
def client_pair(authority: Authority) -> Pair:
    return authority.issue("client", "DNS:alice")


@pytest.fixture
def url(router: Router, server_pair: Pair) -> Iterator[str]:
    with tls_front(router.port, server_pair.server_context()) as url:
        yield url


def fails(url: str, **arguments: Any) -> angarium.AngariumError:
    """Connect, and give the error, which comes long before the time is over."""
    began = time.monotonic()
    with pytest.raises(angarium.ConnectionLostError) as caught:
        blocking.connect(url, timeout_s=LIMIT_S, **arguments)
    assert time.monotonic() - began < LIMIT_S / 2
    assert caught.value.code == errors.TLS_FAILED
    assert caught.value.detail.startswith(f"{url}: ")
    return caught.value


@contextlib.contextmanager
def refusing(context: ssl.SSLContext, folder: Path) -> Iterator[str]:
    """Give the address of a peer with whom the handshake fails, any number of times."""
    peer = StreamPeer("tls", folder, context)

    def take() -> None:
        while True:
            try:
                peer.accept()
            except ssl.SSLError:
                continue
            except OSError:
                return

    taking = threading.Thread(target=take)
    taking.start()
    yield peer.url
    peer.close()
    taking.join(LIMIT_S)


def fails_at(pair: Pair, router: Router, **arguments: Any) -> angarium.AngariumError:
    with tls_front(router.port, pair.server_context()) as url:
        return fails(url, **arguments)


# What works.


def test_messages_go_through_tls(url: str, authority: Authority) -> None:
    async def test() -> None:
        async with angarium.connect(url, ca_file=authority.cert) as client:
            async with client.subscribe("orders/>") as subscription:
                for number in range(100):
                    await client.publish(f"orders/{number}", bytes(number * 100))
                got = [await subscription.receive() for _ in range(100)]
            assert [len(message.payload) for message in got] == [number * 100 for number in range(100)]

    run(test())


def test_the_blocking_client_takes_the_same_arguments(url: str, authority: Authority) -> None:
    for ca_file in (authority.cert, str(authority.cert)):
        with blocking.connect(url, ca_file=ca_file) as client, client.subscribe("a") as subscription:
            client.publish("a", b"x")
            assert subscription.receive(LIMIT_S).payload == b"x"


def test_without_files_the_authorities_of_the_system_count(
    url: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.cert))
    with blocking.connect(url) as client:
        assert client.connected


def test_a_context_of_the_application_is_used_as_it_is(url: str, authority: Authority) -> None:
    with blocking.connect(url, ssl_context=authority.client_context()) as client:
        assert client.connected


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_shows_its_certificate_to_a_node_that_demands_one(
    router: Router, server_pair: Pair, client_pair: Pair, authority: Authority, version: ssl.TLSVersion
) -> None:
    context = server_pair.server_context(clients_of=authority.cert)
    context.maximum_version = version
    with tls_front(router.port, context) as url:
        arguments: dict[str, Any] = {
            "ca_file": authority.cert,
            "cert_file": client_pair.cert,
            "key_file": client_pair.key,
        }
        with blocking.connect(url, **arguments) as client:
            assert client.connected


def test_certificate_and_key_may_be_in_one_file(
    router: Router, server_pair: Pair, client_pair: Pair, authority: Authority, tmp_path: Path
) -> None:
    both = tmp_path / "both.pem"
    both.write_text(client_pair.key.read_text() + client_pair.cert.read_text())
    both.chmod(0o600)
    with (
        tls_front(router.port, server_pair.server_context(clients_of=authority.cert)) as url,
        blocking.connect(url, ca_file=authority.cert, cert_file=both) as client,
    ):
        assert client.connected


@pytest.mark.slow
def test_a_client_comes_back_over_tls(
    router: Router, url: str, authority: Authority, server_pair: Pair
) -> None:
    async def test() -> None:
        async with angarium.connect(url, ca_file=authority.cert) as client:
            subscription = await client.subscribe("a")
            router.drop_connections()
            await until(lambda: client.stats["reconnects"] == 1)
            await client.publish("a", b"again")
            assert (await subscription.receive()).payload == b"again"

    run(test())


# What fails, and what is said about it.


def test_an_unknown_authority_is_told(url: str, other: Authority) -> None:
    for arguments in ({"ca_file": other.cert}, {}):
        error = fails(url, **arguments)
        assert "no authority that is trusted here" in error.detail
        assert "ca_file" in error.advice


def test_the_other_side_is_told_why_the_handshake_failed(
    server_pair: Pair, other: Authority, tmp_path: Path
) -> None:
    peer = StreamPeer("tls", tmp_path, server_pair.server_context())
    why: list[str] = []

    def take() -> None:
        with pytest.raises(ssl.SSLError) as caught:
            peer.accept()
        why.append(str(caught.value))

    taking = threading.Thread(target=take)
    taking.start()
    fails(peer.url, ca_file=other.cert)
    taking.join(LIMIT_S)
    assert "unknown ca" in why[0]
    peer.close()


def test_a_certificate_that_signed_itself_is_told(router: Router, authority: Authority) -> None:
    itself = Pair(authority.cert, authority.cert.with_suffix(".key"))
    assert "ca_file" in fails_at(itself, router).advice


def test_a_host_name_that_does_not_match_is_told(router: Router, authority: Authority) -> None:
    pair = authority.issue("elsewhere", "DNS:elsewhere.example, IP:10.1.2.3")
    with tls_front(router.port, pair.server_context()) as url:
        for one in (url, url.replace("127.0.0.1", "localhost")):
            error = fails(one, ca_file=authority.cert)
            assert f"not for {one[6:].partition(':')[0]!r}" in error.detail
            assert "a name or IP address that is in its certificate" in error.advice


def test_an_ip_address_has_to_be_in_the_certificate_as_one(router: Router, authority: Authority) -> None:
    pair = authority.issue("127.0.0.1", "DNS:localhost, DNS:127.0.0.1")
    with tls_front(router.port, pair.server_context()) as url:
        assert "not for '127.0.0.1'" in fails(url, ca_file=authority.cert).detail
        with blocking.connect(url.replace("127.0.0.1", "localhost"), ca_file=authority.cert) as client:
            assert client.connected


@pytest.mark.parametrize(
    ("since", "until_", "text", "advice"),
    [
        (PAST, "20210101000000Z", "has expired", "needs a new one"),
        ("20970101000000Z", FUTURE, "not valid yet", "clocks"),
    ],
)
def test_a_certificate_out_of_its_time_is_told(
    router: Router, authority: Authority, since: str, until_: str, text: str, advice: str
) -> None:
    pair = authority.issue(f"since-{since}", since=since, until=until_)
    error = fails_at(pair, router, ca_file=authority.cert)
    assert text in error.detail
    assert advice in error.advice


@pytest.mark.parametrize(
    "said", [GREETING, b"HTTP/1.1 400 Bad Request\r\n\r\n", b"220 mail.example ESMTP\r\n"]
)
def test_what_does_not_speak_tls_is_told(said: bytes, authority: Authority, tmp_path: Path) -> None:
    peer = StreamPeer("tcp", tmp_path)
    answering = threading.Thread(target=lambda: peer.accept().give(said))
    answering.start()
    error = fails(peer.url.replace("tcp:", "tls:"), ca_file=authority.cert)
    assert "does not speak TLS" in error.detail
    assert "tcp://HOST:PORT" in error.advice
    answering.join(LIMIT_S)
    peer.close()


def test_a_client_without_tls_is_told_of_a_peer_that_has_it(server_pair: Pair, tmp_path: Path) -> None:
    """Not every one answers with an alert; some only close."""
    with refusing(server_pair.server_context(), tmp_path) as url:
        with pytest.raises(angarium.ConnectionLostError, match="want tls://") as caught:
            blocking.connect(url.replace("tls:", "tcp:"), timeout_s=0.2)
        assert caught.value.code == errors.CONNECT_FAILED
    peer = StreamPeer("tcp", tmp_path)
    answering = threading.Thread(target=lambda: peer.accept().give(b"\x15\x03\x01\x00\x02\x02\x46"))
    answering.start()
    assert "tls://HOST:PORT" in fails(peer.url).advice
    answering.join(LIMIT_S)
    peer.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_node_that_demands_a_certificate_is_told(
    server_pair: Pair, authority: Authority, version: ssl.TLSVersion, tmp_path: Path
) -> None:
    context = server_pair.server_context(clients_of=authority.cert)
    context.maximum_version = version
    with refusing(context, tmp_path) as url:
        error = fails(url, ca_file=authority.cert)
        assert "demands a certificate of the client" in error.detail
        assert "cert_file and key_file" in error.advice


def test_a_node_that_demands_one_is_told_although_it_refuses_before_anything_was_said(
    server_pair: Pair, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With TLS 1.3 the handshake is over for the client then, and it has its HELLO to send."""
    write = StreamTransport._write

    def write_and_wait(self: StreamTransport, pieces: list[bytes]) -> None:
        write(self, pieces)
        assert self._socket is not None
        select.select((self._socket,), (), (), LIMIT_S)

    monkeypatch.setattr(StreamTransport, "_write", write_and_wait)
    with refusing(server_pair.server_context(clients_of=authority.cert), tmp_path) as url:
        assert "demands a certificate of the client" in fails(url, ca_file=authority.cert).detail


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_certificate_that_the_node_refuses_is_told(
    server_pair: Pair, authority: Authority, other: Authority, version: ssl.TLSVersion, tmp_path: Path
) -> None:
    stranger = other.issue("stranger")
    late = authority.issue(f"late-{version.name}", until="20210101000000Z")
    context = server_pair.server_context(clients_of=authority.cert)
    context.maximum_version = version
    with refusing(context, tmp_path) as url:
        for pair in (stranger, late):
            error = fails(url, ca_file=authority.cert, cert_file=pair.cert, key_file=pair.key)
            assert "refused the certificate of this client" in error.detail
            assert "cert_file" in error.advice


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
def test_an_old_version_of_tls_is_refused(server_pair: Pair, authority: Authority, tmp_path: Path) -> None:
    context = server_pair.server_context()
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with refusing(context, tmp_path) as url:
        assert "TLS 1.2" in fails(url, ca_file=authority.cert).advice


def test_a_peer_that_says_nothing_is_given_up_after_the_time(authority: Authority, tmp_path: Path) -> None:
    peer = StreamPeer("tcp", tmp_path)
    with pytest.raises(angarium.ConnectionLostError) as caught:
        blocking.connect(peer.url.replace("tcp:", "tls:"), ca_file=authority.cert, timeout_s=0.2)
    assert caught.value.code == errors.CONNECT_FAILED
    peer.close()


def test_an_end_within_the_handshake_is_tried_again(
    router: Router, server_pair: Pair, authority: Authority, tmp_path: Path
) -> None:
    """A node that starts or ends may look like that."""
    peer = StreamPeer("tls", tmp_path, server_pair.server_context())

    async def test() -> None:
        async def end_some() -> None:
            for _ in range(2):
                raw = await asyncio.to_thread(peer.accept_raw)
                await asyncio.to_thread(raw.recv, 10)
                raw.close()
            peer.close()

        ending = asyncio.create_task(end_some())
        with pytest.raises(angarium.ConnectionLostError) as caught:
            await angarium.connect(peer.url, ca_file=authority.cert, timeout_s=1.0)
        await ending
        assert caught.value.code == errors.CONNECT_FAILED

    run(test())


@pytest.mark.slow
def test_a_client_that_was_connected_outlasts_a_wrong_certificate(
    router: Router, server_pair: Pair, authority: Authority, other: Authority
) -> None:
    """At first it fails at once; later the operator may mend it."""
    wrong = other.issue("server")
    context = server_pair.server_context()

    async def test(url: str) -> None:
        async with angarium.connect(url, ca_file=authority.cert) as client:
            context.load_cert_chain(wrong.cert, wrong.key)
            router.drop_connections()
            await until(lambda: not client.connected)
            await asyncio.sleep(0.3)  # several attempts
            assert not client.connected
            assert not client.closed
            context.load_cert_chain(server_pair.cert, server_pair.key)
            await until(lambda: client.connected)

    with tls_front(router.port, context) as url:
        run(test(url))


# Arguments.


def refused(text: str, url: str = "tls://127.0.0.1:1", **arguments: Any) -> None:
    with pytest.raises(angarium.InvalidArgumentError, match=text) as caught:
        angarium.connect(url, **arguments)
    assert caught.value.code == errors.INVALID_ARGUMENT


def test_files_that_cannot_be_used_are_refused_at_once(
    authority: Authority, client_pair: Pair, server_pair: Pair, tmp_path: Path
) -> None:
    cert, key = client_pair
    empty, missing = tmp_path / "empty", tmp_path / "missing"
    empty.write_text("nothing of the kind")
    refused("ca_file: .*missing: No such file", ca_file=missing)
    refused("ca_file: .*empty holds no certificate", ca_file=empty)
    refused("ca_file: ", ca_file=tmp_path)
    refused("ca_file: .*null", ca_file="a\0b")
    refused("missing: No such file", cert_file=missing, key_file=key)
    refused("missing: No such file", cert_file=cert, key_file=missing)
    refused("missing: No such file", cert_file=missing)
    refused("empty: no certificate", cert_file=cert, key_file=empty)
    refused("empty, .*: no certificate", cert_file=empty, key_file=key)
    refused("no certificate and its private key", cert_file=cert)
    refused("mismatch", cert_file=cert, key_file=server_pair.key)
    refused("null", cert_file="a\0b", key_file=key)
    refused("null", cert_file=cert, key_file="a\0b")


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked(client_pair: Pair, tmp_path: Path) -> None:
    locked = tmp_path / "locked.key"
    key = serialization.load_pem_private_key(client_pair.key.read_bytes(), None)
    locking = serialization.BestAvailableEncryption(b"secret")
    locked.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locking)
    )
    refused("passphrase", cert_file=client_pair.cert, key_file=locked)


def test_arguments_that_do_not_fit_together_are_refused(authority: Authority, client_pair: Pair) -> None:
    context = authority.client_context()
    refused("key_file: .*cert_file", key_file=client_pair.key)
    refused("ssl_context: ", ssl_context=context, ca_file=authority.cert)
    for url in ("tcp://127.0.0.1:1", "ipc:///tmp/none"):
        refused("ca_file: no address is one of TLS", url, ca_file=authority.cert)
        refused("cert_file: no address", url, cert_file=client_pair.cert, key_file=client_pair.key)
        refused("ssl_context: no address", url, ssl_context=context)


def test_a_context_for_servers_and_a_host_that_cannot_be_are_refused(
    server_pair: Pair, authority: Authority
) -> None:
    refused("ssl_context: it is none for clients", ssl_context=server_pair.server_context())
    refused("there cannot be a host", f"tls://{'a' * 64}:1", ca_file=authority.cert)
    refused("there cannot be a host", "tls://a..b:1", ca_file=authority.cert)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_private_key_that_others_may_read_is_warned_of(
    client_pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    key = Path(shutil.copy(client_pair.key, tmp_path / "loose.key"))
    key.chmod(mode)
    angarium.connect("tls://127.0.0.1:1", cert_file=client_pair.cert, key_file=key)
    assert f"chmod 600 {key}" in caplog.text
    assert f"mode {mode:04o}" in caplog.text
    caplog.clear()
    key.chmod(0o600)
    angarium.connect("tls://127.0.0.1:1", cert_file=client_pair.cert, key_file=key)
    assert not caplog.records


def test_files_that_were_renewed_count_for_the_next_connection(
    authority: Authority, client_pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = (Path(shutil.copy(file, tmp_path)) for file in client_pair)
    key.chmod(0o600)
    credentials = Credentials(authority.cert, cert, key)
    first = credentials.context()
    assert credentials.context() is first
    with caplog.at_level(logging.WARNING):
        cert.write_text("half wri")
        assert credentials.context() is first
    assert "before the last change" in caplog.text
    cert.write_text(client_pair.cert.read_text())
    os.utime(cert, ns=(1, 1))
    assert credentials.context() is not first
    key.unlink()
    assert credentials.context() is not first


def test_nothing_is_warned_of_for_a_line_of_its_own(url: str, authority: Authority) -> None:
    """The transport alone needs a context and no files."""

    async def test() -> None:
        line = Line(url, context=authority.client_context())
        await until(lambda: line.drained)
        assert line.ends == []
        line.transport.close()

    run(test())
