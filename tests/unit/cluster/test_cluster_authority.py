"""Certificates of one's own authority: what is in them, what TLS makes of them, and what is refused."""

from __future__ import annotations

import hashlib
import socket
import ssl
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa, x25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from angarium import errors
from cluster.commands.node import node
from cluster.security import authority
from cluster.security.certificates import describe, ending, read_certificates
from cluster.security.keys import CLUSTER_SECRET

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cluster.security.authority import Issued


def cert_of(issued: Issued) -> x509.Certificate:
    (found,) = read_certificates(issued.cert_file)
    return found


def mode(file: Path) -> int:
    return file.stat().st_mode & 0o777


def handshake(server: Issued, host: str, client: Issued | None = None) -> dict[str, Any] | None:
    """Have both sides of TLS talk in memory; give what the server sees of the client's certificate."""
    ours = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=server.authority_file)
    ours.load_cert_chain(server.cert_file, server.key_file)
    theirs = ssl.create_default_context(cafile=server.authority_file)
    theirs.verify_flags |= ssl.VERIFY_X509_STRICT
    if client is not None:
        ours.verify_mode = ssl.CERT_REQUIRED
        theirs.load_cert_chain(client.cert_file, client.key_file)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [ours.wrap_bio(up, down, server_side=True), theirs.wrap_bio(down, up, server_hostname=host)]
    left = list(ends)
    for _ in range(10):
        for end in list(left):
            try:
                end.do_handshake()
                left.remove(end)
            except ssl.SSLWantReadError:
                pass
    assert not left
    return ends[0].getpeercert()


def test_a_node_has_a_certificate_a_key_and_an_authority(tmp_path: Path) -> None:
    issued = authority.create_certificate(tmp_path / "berlin")
    assert {file.name for file in tmp_path.iterdir()} == {
        *("berlin.pem", "berlin.key", "authority.pem", "authority.key")
    }
    assert mode(tmp_path / "berlin.key") == mode(tmp_path / "authority.key") == 0o600
    found = cert_of(issued)
    assert found.subject.rfc4514_string() == "CN=berlin"
    key: Any = found.public_key()
    assert key.key_size == 256
    usages = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usages) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}


def test_it_is_good_for_all_names_of_the_host(tmp_path: Path) -> None:
    issued = authority.create_certificate(
        tmp_path / "berlin", ["trains.example", "10.0.0.7", "::2", "[fe80::1]"]
    )
    assert issued.names[0] == "berlin"
    wanted = {"localhost", "127.0.0.1", "::1", "trains.example", "10.0.0.7", "::2", "fe80::1"}
    assert wanted <= set(issued.names)
    assert len(set(issued.names)) == len(issued.names)
    for host in wanted:
        handshake(issued, host)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(issued, "other.example")


def test_a_wildcard_stands_for_one_label(tmp_path: Path) -> None:
    issued = authority.create_certificate(tmp_path / "a", ["*.nodes.example"])
    handshake(issued, "x.nodes.example")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(issued, "x.y.nodes.example")


def test_the_name_of_this_host_is_among_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "host-7.example")
    assert "host-7.example" in authority.create_certificate(tmp_path / "a").names
    monkeypatch.setattr(socket, "gethostname", lambda: "no host")
    assert "no host" not in authority.create_certificate(tmp_path / "b").names


def test_what_is_no_name_of_a_host_stays_the_subject_only(tmp_path: Path) -> None:
    issued = authority.create_certificate(tmp_path / "Anna & Co")
    assert cert_of(issued).subject.rfc4514_string() == "CN=Anna & Co"
    assert "Anna & Co" not in issued.names


def test_one_authority_signs_all_of_a_directory(tmp_path: Path) -> None:
    first = authority.create_certificate(tmp_path / "a")
    content = first.authority_file.read_bytes()
    second = authority.create_certificate(tmp_path / "b")
    assert second.authority_file == first.authority_file
    assert first.authority_file.read_bytes() == content
    assert cert_of(first).issuer == cert_of(second).issuer


def test_the_authority_may_be_elsewhere(tmp_path: Path) -> None:
    place, other = tmp_path / "nodes", tmp_path / "authority"
    place.mkdir()
    other.mkdir()
    issued = authority.create_certificate(place / "a", authority=other)
    assert {file.name for file in place.iterdir()} == {"a.pem", "a.key"}
    assert issued.authority_file == other / "authority.pem"
    handshake(issued, "localhost")


def test_a_client_is_nobody_that_others_connect_to(tmp_path: Path) -> None:
    server = authority.create_certificate(tmp_path / "a")
    client = authority.create_client_certificate(tmp_path / "shop")
    assert client.names == ["shop"]
    seen = handshake(server, "localhost", client)
    assert seen is not None
    assert seen["subject"] == ((("commonName", "shop"),),)
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        handshake(client, "shop")


def test_what_a_node_has_signed_is_nothing(tmp_path: Path) -> None:
    """Who takes a node over cannot make certificates with its key."""
    node = authority.create_certificate(tmp_path / "a")
    place = tmp_path / "stolen"
    place.mkdir()
    (place / "authority.pem").write_bytes(node.cert_file.read_bytes())
    (place / "authority.key").write_bytes(node.key_file.read_bytes())
    (place / "authority.key").chmod(0o600)
    with pytest.raises(errors.InvalidRequestError, match="cannot sign others"):
        authority.create_certificate(place / "b")
    constraints = read_certificates(node.authority_file)[0].extensions.get_extension_for_class(
        x509.BasicConstraints
    )
    assert constraints.critical
    assert (constraints.value.ca, constraints.value.path_length) == (True, 0)


@pytest.mark.parametrize("there", ["a.pem", "a.key"])
def test_nothing_is_written_over(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("mine")
    with pytest.raises(errors.ConflictError, match="never written over") as caught:
        authority.create_certificate(tmp_path / "a")
    assert caught.value.code == errors.OBJECT_EXISTS
    assert [file.name for file in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_text() == "mine"


@pytest.mark.parametrize("name", ["node.pem", "node.key", "authority", "x" * 65, "a\nb"])
def test_what_cannot_be_a_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(errors.InvalidRequestError) as caught:
        authority.create_certificate(tmp_path / name)
    assert caught.value.code == errors.INVALID_ARGUMENT
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "host",
    [
        "tls://a",
        "10.0.0.1:55555",
        "a b",
        "",
        "a..b",
        "-a",
        "bücher.example",
        "1.2.3.4.5",
        "*.example",
        "a.*.b",
    ],
)
def test_what_is_no_host_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(errors.InvalidRequestError, match="neither the name of a host nor an IP address"):
        authority.create_certificate(tmp_path / "a", [host])
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidRequestError, match="No such file") as caught:
        authority.create_certificate(tmp_path / "missing" / "a")
    assert caught.value.code == errors.INVALID_ARGUMENT


def test_an_authority_of_which_a_part_is_missing_is_told_with_the_remedy(tmp_path: Path) -> None:
    authority.create_certificate(tmp_path / "a")
    key = (tmp_path / "authority.key").read_bytes()
    (tmp_path / "authority.key").unlink()
    with pytest.raises(errors.InvalidRequestError, match="make certificates where that is"):
        authority.create_certificate(tmp_path / "b")
    (tmp_path / "authority.key").write_bytes(key)
    (tmp_path / "authority.key").chmod(0o600)
    (tmp_path / "authority.pem").unlink()
    with pytest.raises(errors.InvalidRequestError, match="put it back, or remove the key"):
        authority.create_certificate(tmp_path / "b")
    assert not (tmp_path / "b.key").exists()


@pytest.mark.parametrize("file", ["authority.pem", "authority.key"])
@pytest.mark.parametrize(
    "content", [b"", b"\xff\x00", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_a_damaged_authority_is_told(tmp_path: Path, file: str, content: bytes) -> None:
    authority.create_certificate(tmp_path / "a")
    (tmp_path / file).write_bytes(content)
    with pytest.raises(errors.InvalidRequestError, match=file) as caught:
        authority.create_certificate(tmp_path / "b")
    assert caught.value.code == errors.INVALID_CONFIGURATION


@pytest.mark.parametrize(
    "make", [ed25519.Ed25519PrivateKey.generate, lambda: rsa.generate_private_key(65537, 2048)]
)
def test_an_authority_may_have_another_kind_of_key(tmp_path: Path, make: Callable[[], Any]) -> None:
    key = make()
    now = datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ours")])
    digest = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    cert = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now - timedelta(1), now + timedelta(9))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, digest)
    )
    (tmp_path / "authority.pem").write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    write_key(tmp_path / "authority.key", key)
    issued = authority.create_certificate(tmp_path / "a")
    cert_of(issued).verify_directly_issued_by(cert)
    assert issued.not_after == cert.not_valid_after_utc


def test_a_key_that_cannot_sign_is_told(tmp_path: Path) -> None:
    authority.create_certificate(tmp_path / "a")
    (tmp_path / "authority.key").unlink()
    write_key(tmp_path / "authority.key", x25519.X25519PrivateKey.generate())
    with pytest.raises(errors.InvalidRequestError, match="cannot sign certificates"):
        authority.create_certificate(tmp_path / "b")


def write_key(file: Path, key: Any) -> None:
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    file.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    file.chmod(0o600)


def test_a_key_of_another_authority_is_told(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        authority.create_certificate(tmp_path / name / "a")
    (tmp_path / "one" / "authority.key").write_bytes((tmp_path / "two" / "authority.key").read_bytes())
    with pytest.raises(errors.InvalidRequestError, match="is not its key"):
        authority.create_certificate(tmp_path / "one" / "b")


def test_a_key_of_an_authority_that_others_may_read_is_refused(tmp_path: Path) -> None:
    authority.create_certificate(tmp_path / "a")
    (tmp_path / "authority.key").chmod(0o644)
    with pytest.raises(errors.InvalidRequestError, match="chmod 600") as caught:
        authority.create_certificate(tmp_path / "b")
    assert "BEGIN" not in str(caught.value)


def test_no_certificate_outlives_its_authority(tmp_path: Path) -> None:
    short = authority.create_certificate(tmp_path / "a", days=30)
    left = short.not_after - datetime.now(UTC)
    assert timedelta(days=29) < left <= timedelta(days=30)
    long = authority.create_certificate(tmp_path / "b", days=100_000)
    assert long.not_after == read_certificates(long.authority_file)[0].not_valid_after_utc
    assert cert_of(long).not_valid_before_utc < datetime.now(UTC) - timedelta(minutes=30)


def test_a_cluster_has_a_secret_an_authority_and_a_certificate_for_each_node(tmp_path: Path) -> None:
    place = tmp_path / "keys"
    made = authority.create_cluster(place, {"a": ["10.0.0.1"], "b": []})
    secret = (place / CLUSTER_SECRET).read_text(encoding="ascii")
    assert len(secret.strip()) == 64
    assert mode(place / CLUSTER_SECRET) == 0o600
    assert mode(place) == 0o700
    handshake(made["a"], "10.0.0.1", made["b"])
    before = {file.name: file.read_bytes() for file in place.iterdir()}
    more = authority.create_cluster(place, {"a": [], "c": []})
    assert more["a"] == made["a"], "one more node changes nothing of the others"
    assert {name: (place / name).read_bytes() for name in before} == before
    handshake(more["c"], "c", made["a"])


def test_half_of_a_node_is_told(tmp_path: Path) -> None:
    authority.create_cluster(tmp_path, {"a": []})
    (tmp_path / "a.pem").unlink()
    with pytest.raises(errors.ConflictError, match=r"a\.key"):
        authority.create_cluster(tmp_path, {"a": []})


def test_a_certificate_is_described_without_its_key(tmp_path: Path) -> None:
    issued = authority.create_certificate(tmp_path / "a", days=30)
    found = describe(cert_of(issued), datetime.now(UTC))
    assert (found["subject"], found["names"], found["days_left"]) == ("CN=a", issued.names, 29)
    assert found["issuer"].startswith("CN=Angarium authority ")
    assert found["not_after"] == issued.not_after.isoformat()
    binary = ssl.PEM_cert_to_DER_cert(issued.cert_file.read_text())
    assert found["fingerprint"].replace(":", "") == hashlib.sha256(binary).hexdigest()


def test_operators_are_told_before_a_certificate_ends(tmp_path: Path) -> None:
    issued = authority.create_certificate(tmp_path / "a", days=30)
    files = {"router.tls_cert_file": str(issued.cert_file)}
    end = issued.not_after
    assert ending(files, end - timedelta(days=14)) == []
    (soon,) = ending(files, end - timedelta(days=14) + timedelta(seconds=1))
    assert (
        soon == f"router.tls_cert_file: the certificate {issued.cert_file} ends on {end:%Y-%m-%d %H:%M} UTC"
    )
    (over,) = ending(files, end)
    assert f"ended on {end:%Y-%m-%d %H:%M} UTC" in over
    issued.cert_file.unlink()
    (gone,) = ending(files, end)
    assert str(issued.cert_file) in gone


def test_the_command_has_the_default_of_the_library() -> None:
    """It is said twice, so that the command need not load the library to say it."""
    (option,) = [param for param in node.create_certificate.params if param.name == "days"]
    assert option.default == authority.DAYS
    assert node._DAYS_MAX == authority.AUTHORITY_DAYS
