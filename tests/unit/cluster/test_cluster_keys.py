"""Files with secrets, and password hashes."""

from __future__ import annotations

import errno
import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from angarium import errors
from cluster.security import keys, passwords

if TYPE_CHECKING:
    from pathlib import Path


def test_a_hash_fits_its_password_only() -> None:
    stored = passwords.hash_password("wonderland")
    assert passwords.fits(stored, "wonderland")
    assert not passwords.fits(stored, "Wonderland")
    assert not passwords.fits("", "wonderland")
    assert not passwords.fits("wonderland", "wonderland")


def test_two_hashes_of_one_password_differ() -> None:
    assert passwords.hash_password("x") != passwords.hash_password("x")


@pytest.mark.usefixtures("usual_cost")
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


def test_a_secret_is_for_its_owner_only(tmp_path: Path) -> None:
    keys.create_secret(tmp_path / "s")
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600
    assert len((tmp_path / "s").read_text(encoding="ascii").strip()) == 64


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    for place in (tmp_path / "missing" / "s", tmp_path / "a\0b"):
        with pytest.raises(errors.InvalidRequestError) as caught:
            keys.create_secret(place)
        assert caught.value.code == errors.INVALID_ARGUMENT


def test_what_cannot_be_written_whole_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(errors.InvalidRequestError, match="No space left"):
        keys.create_secret(tmp_path / "s")
    assert list(tmp_path.iterdir()) == []


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
