"""Makes password hashes: what is stored instead of a password.

A hash is one string, `scrypt$n$r$p$salt_hex$hash_hex`, so that its cost can be raised later while older ones
stay good. The router checks passwords at login, in a pool behind a rate limit; here one is compared only to
see whether a declared password changed. Called by the controller, and of many at once by the command, for the
controller does nothing else meanwhile.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

_Key = TypeVar("_Key")

#: 16 MiB and about 45 ms on a core of 2024: the parameters that RFC 7914 names for interactive logins.
COST: Final = 1 << 14
BLOCK_SIZE: Final = 8
PARALLELISM: Final = 1
SALT_BYTES: Final = 16
HASH_BYTES: Final = 32
PREFIX: Final = "scrypt$"

#: Of the cost of a hash that is given: eight times ours, so that nobody's login keeps a core busy for long.
WORK_MAX: Final = 8 * COST * BLOCK_SIZE * PARALLELISM
#: OpenSSL refuses more memory than it was allowed; a hash needs 128 * n * r bytes and a little.
_MEMORY_MAX: Final = 64 << 20


def is_hash(text: str) -> bool:
    """Tell whether a text is a hash in our form rather than a password."""
    parts = text.split("$")
    if len(parts) != 6 or parts[0] != "scrypt":
        return False
    numbers, strings = parts[1:4], parts[4:]
    are_numbers = all(number.isascii() and number.isdigit() for number in numbers)
    return are_numbers and all(_is_hex(string) for string in strings)


def is_affordable(hashed: str) -> bool:
    """Tell whether passwords can be compared with a hash: it may come from anywhere, and say any cost."""
    numbers = hashed.split("$")[1:4]
    if any(len(number) > 7 for number in numbers):
        return False
    cost, block_size, parallelism = map(int, numbers)
    is_power = cost > 1 and not cost & (cost - 1)
    work = cost * block_size * parallelism
    return is_power and 0 < work <= WORK_MAX and 128 * cost * block_size < _MEMORY_MAX


def hash_password(password: str, salt: bytes | None = None) -> str:
    """Give the hash of a password, with a fresh salt unless one is given (tests)."""
    salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
    digest = _scrypt(password, salt, COST, BLOCK_SIZE, PARALLELISM)
    return f"{PREFIX}{COST}${BLOCK_SIZE}${PARALLELISM}${salt.hex()}${digest.hex()}"


def unfitting() -> str:
    """Give a hash that no password fits, and that costs as much to compare as one that is made now."""
    salt, digest = secrets.token_hex(SALT_BYTES), secrets.token_hex(HASH_BYTES)
    return f"{PREFIX}{COST}${BLOCK_SIZE}${PARALLELISM}${salt}${digest}"


def fits(stored: str, password: str) -> bool:
    """Tell whether a stored hash is that of a password."""
    if not (is_hash(stored) and is_affordable(stored)):
        return False
    _, cost, block_size, parallelism, salt, digest = stored.split("$")
    made = _scrypt(password, bytes.fromhex(salt), int(cost), int(block_size), int(parallelism))
    return hmac.compare_digest(made, bytes.fromhex(digest))


def hashes_of(given: Mapping[_Key, str], stored: Mapping[_Key, str]) -> dict[_Key, str]:
    """Give the hash of each password: the stored one if it is the same, else a new one; on all cores."""

    def hash_of(key: _Key) -> str:
        before, password = stored.get(key, ""), given[key]
        return before if fits(before, password) else hash_password(password)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(given, pool.map(hash_of, given), strict=True))


def _scrypt(password: str, salt: bytes, cost: int, block_size: int, parallelism: int) -> bytes:
    return hashlib.scrypt(
        password.encode(),
        salt=salt,
        n=cost,
        r=block_size,
        p=parallelism,
        maxmem=_MEMORY_MAX,
        dklen=HASH_BYTES,
    )


def _is_hex(text: str) -> bool:
    try:
        return bool(bytes.fromhex(text))
    except ValueError:
        return False
