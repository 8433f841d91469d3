"""Key files and password hashes."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
import zmq

from angarium import errors
from cluster import keys, passwords

if TYPE_CHECKING:
    from pathlib import Path


def test_the_two_files_hold_a_pair(tmp_path: Path) -> None:
    public = keys.create_keys(tmp_path / "node.key")
    assert keys.read_public(tmp_path / "node.key.pub") == public
    assert keys.read_public(tmp_path / "node.key") == public
    read_public, secret = keys.read_secret(tmp_path / "node.key")
    assert read_public == public == zmq.curve_public(secret.encode()).decode()


def test_the_secret_is_for_its_owner_only_and_in_one_file_only(tmp_path: Path) -> None:
    keys.create_keys(tmp_path / "node.key")
    _, secret = keys.read_secret(tmp_path / "node.key")
    assert (tmp_path / "node.key").stat().st_mode & 0o777 == 0o600
    assert secret not in (tmp_path / "node.key.pub").read_text(encoding="utf-8")


def test_keys_are_never_overwritten(tmp_path: Path) -> None:
    before = keys.create_keys(tmp_path / "node.key")
    with pytest.raises(errors.ConflictError, match="never written over"):
        keys.create_keys(tmp_path / "node.key")
    assert keys.read_public(tmp_path / "node.key") == before


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidRequestError, match="No such file"):
        keys.create_keys(tmp_path / "missing" / "node.key")


def test_a_secret_that_others_may_read_is_refused_with_the_remedy(tmp_path: Path) -> None:
    keys.create_keys(tmp_path / "node.key")
    (tmp_path / "node.key").chmod(0o644)
    with pytest.raises(errors.InvalidRequestError, match="chmod 600") as caught:
        keys.read_secret(tmp_path / "node.key")
    secret = (tmp_path / "node.key").read_text(encoding="utf-8").splitlines()[1]
    assert secret not in str(caught.value)


@pytest.mark.parametrize("text", ["", "# only a comment\n", "short\n", "ü" * 40])
def test_a_file_without_a_key_is_refused_with_the_remedy(tmp_path: Path, text: str) -> None:
    (tmp_path / "node.key").write_text(text, encoding="utf-8")
    with pytest.raises(errors.InvalidRequestError, match="angarium keys curve"):
        keys.read_secret(tmp_path / "node.key")


def test_a_public_key_is_not_taken_for_a_secret_one(tmp_path: Path) -> None:
    keys.create_keys(tmp_path / "node.key")
    with pytest.raises(errors.InvalidRequestError, match=r"without \.pub"):
        keys.read_secret(tmp_path / "node.key.pub")


def test_a_hash_fits_its_password_only() -> None:
    stored = passwords.hash_password("wonderland")
    assert passwords.fits(stored, "wonderland")
    assert not passwords.fits(stored, "Wonderland")
    assert not passwords.fits("", "wonderland")
    assert not passwords.fits("wonderland", "wonderland")


def test_two_hashes_of_one_password_differ() -> None:
    assert passwords.hash_password("x") != passwords.hash_password("x")


def test_a_hash_says_how_it_was_made() -> None:
    stored = passwords.hash_password("pass", b"salt" * 4)
    made = hashlib.scrypt(b"pass", salt=b"salt" * 4, n=16384, r=8, p=1, maxmem=64 << 20, dklen=32)
    assert stored == f"scrypt$16384$8$1${(b'salt' * 4).hex()}${made.hex()}"


@pytest.mark.parametrize(
    ("text", "is_hash"),
    [
        ("scrypt$16384$8$1$00ff$aa", True),
        ("scrypt$16384$8$1$00ff$", False),
        ("scrypt$x$8$1$00ff$aa", False),
        ("scrypt$1$2", False),
        ("bcrypt$16384$8$1$00ff$aa", False),
        ("scrypt$is$my$favourite$hash$ever", False),
    ],
)
def test_only_our_own_form_is_taken_for_a_hash(text: str, is_hash: bool) -> None:
    assert passwords.is_hash(text) is is_hash


def test_a_cluster_has_a_secret_and_a_pair_of_keys_for_each_node(tmp_path: Path) -> None:
    place = tmp_path / "keys"
    public = keys.create_cluster_keys(place, ["a", "b"])
    assert [keys.read_public(place / f"{node}.key.pub") for node in "ab"] == list(public.values())
    assert keys.read_secret(place / "a.key")[0] == public["a"]
    secret = (place / keys.CLUSTER_SECRET).read_text(encoding="ascii")
    assert len(secret.strip()) == 64
    assert (place / keys.CLUSTER_SECRET).stat().st_mode & 0o777 == 0o600
    assert place.stat().st_mode & 0o777 == 0o700
    more = keys.create_cluster_keys(place, ["a", "b", "c"])
    assert {node: more[node] for node in "ab"} == public, "one more node changes nothing of the others"
    assert (place / keys.CLUSTER_SECRET).read_text(encoding="ascii") == secret


def test_secrets_are_never_overwritten(tmp_path: Path) -> None:
    keys.create_secret(tmp_path / "s")
    before = (tmp_path / "s").read_text(encoding="ascii")
    with pytest.raises(errors.ConflictError, match="never written over"):
        keys.create_secret(tmp_path / "s")
    assert (tmp_path / "s").read_text(encoding="ascii") == before


@pytest.mark.parametrize(
    ("mode", "owner", "user", "good"),
    [
        (0o600, 7, 7, True),
        (0o640, 7, 7, False),
        (0o644, 7, 7, False),
        (0o440, 0, 7, True),  # a mounted secret: of root, for the group of the node
        (0o444, 0, 7, False),
        (0o460, 0, 7, False),
        (0o640, 0, 0, False),
    ],
)
def test_who_may_read_a_secret_key(mode: int, owner: int, user: int, good: bool) -> None:
    assert (mode & keys.forbidden_mode(owner, user) == 0) is good
