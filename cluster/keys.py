"""CURVE key files: the identity of a node, of an operator, of a client that wants encryption.

`create_keys("node.key")` writes two files, each a comment and one line with a key (Z85, 40 characters):
`node.key` holds the secret key, mode 0600; `node.key.pub` the public one, for clients and neighbours.
`create_cluster_keys` makes all that the nodes of a cluster need, in one go.
The public key follows from the secret one. A secret key is never printed or logged. Called by the command
line, by the supervisor (at start, to refuse early) and by the controller; the router reads the secret file
itself.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final

import zmq

from angarium import errors

if TYPE_CHECKING:
    from collections.abc import Sequence

#: What others must not be able to do with a secret key file.
_OTHERS_MODE: Final = 0o077
#: The same where a file of root is handed to a node by its group, as orchestrators mount secrets.
_OTHERS_MODE_OF_ROOT: Final = 0o037
#: The file of a cluster's secret, which `create_cluster_keys` makes, and how many random bytes are in it.
CLUSTER_SECRET: Final = "cluster.secret"  # noqa: S105 - the name of a file
_SECRET_BYTES: Final = 32
#: Characters of a key in Z85.
KEY_LENGTH: Final = 40
_PUBLIC_SUFFIX: Final = ".pub"
_PUBLIC_COMMENT: Final = "# Angarium CURVE public key: give it to clients and neighbours."
_SECRET_COMMENT: Final = "# Angarium CURVE secret key: keep it secret."  # noqa: S105 - a comment, no secret


def create_keys(path: str | os.PathLike[str]) -> str:
    """Write a new pair of keys to `path` and `path.pub` and give the public key (Z85).

    Raises:
        ConflictError: a file is there already; keys are never overwritten (40901).
        InvalidRequestError: the place cannot be written (40018).
    """
    public_raw, secret_raw = zmq.curve_keypair()
    public = public_raw.decode()
    write_new(Path(path), f"{_SECRET_COMMENT}\n{secret_raw.decode()}\n", 0o600)
    write_new(Path(f"{os.fspath(path)}{_PUBLIC_SUFFIX}"), f"{_PUBLIC_COMMENT}\n{public}\n", 0o644)
    return public


def create_secret(path: str | os.PathLike[str]) -> None:
    """Write a new secret, one line that nobody can guess, to a file that only its owner can read.

    Raises:
        ConflictError: a file is there already (40901).
        InvalidRequestError: the place cannot be written (40018).
    """
    write_new(Path(path), f"{secrets.token_hex(_SECRET_BYTES)}\n", 0o600)


def create_cluster_keys(directory: str | os.PathLike[str], nodes: Sequence[str]) -> dict[str, str]:
    """Write the secret of a cluster and a pair of keys for each node, and give the public keys by node.

    What is there stays, so that the same call with one more node adds that.

    Args:
        directory: made if it does not exist: `cluster.secret`, `NODE.key` and `NODE.key.pub` for each node.
        nodes: their names.

    Raises:
        InvalidRequestError: the place cannot be written (40018), or what is there is no key (40017).
    """
    place = Path(directory)
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise errors.error_for(errors.INVALID_ARGUMENT, f"{place}: {error.strerror}") from None
    if not (place / CLUSTER_SECRET).exists():
        create_secret(place / CLUSTER_SECRET)
    public = {}
    for node in nodes:
        path = place / f"{node}.key"
        public[node] = read_public(path) if path.exists() else create_keys(path)
    return public


def read_public(path: str | os.PathLike[str]) -> str:
    """Read a public key from either of the two files.

    Raises:
        InvalidRequestError: the file is missing or is no key file (40017).
    """
    place = Path(path)
    comment, key = _load(place)
    return key if comment == _PUBLIC_COMMENT else _public_of(place, key)


def read_secret(path: str | os.PathLike[str]) -> tuple[str, str]:
    """Read (public, secret) from a secret key file.

    Raises:
        InvalidRequestError: missing, no secret in it, or readable by others (40017). A file of root may be readable by
            its group, for that is how orchestrators hand secrets to a process.
    """
    place = Path(path)
    comment, secret = _load(place)
    if comment == _PUBLIC_COMMENT:
        raise _fault(place, "holds a public key: name the file without .pub")
    found = place.stat()
    mode = found.st_mode & 0o777
    if mode & forbidden_mode(found.st_uid, os.geteuid()):
        raise _fault(place, f"has mode {mode:04o}, so others may read the secret key: 'chmod 600 {place}'")
    return _public_of(place, secret), secret


def forbidden_mode(owner: int, user: int) -> int:
    """Give the permissions that a secret file must not have, of an owner and for a user who reads it."""
    return _OTHERS_MODE_OF_ROOT if owner == 0 and user != 0 else _OTHERS_MODE


def write_new(path: Path, text: str, mode: int) -> None:
    """Write a file that is not there yet, and have it on disk; what cannot be written whole is not there.

    Raises:
        ConflictError: it is there (40901).
        InvalidRequestError: the place cannot be written (40018).
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        detail = f"{path}; a key is never written over"
        raise errors.error_for(errors.OBJECT_EXISTS, detail, "choose another path, or remove it") from None
    except (OSError, ValueError) as error:  # a path may hold a NUL
        raise _unwritten(path, error) from None
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        _sync_directory(path.parent)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise _unwritten(path, error) from None


def _load(path: Path) -> tuple[str, str]:
    """Give (the last comment above the key, the key)."""
    comment = ""
    try:
        for line in path.read_text(encoding="ascii").splitlines():
            if line.startswith("#"):
                comment = line
            elif len(line.strip()) == KEY_LENGTH:
                return comment, line.strip()
    except (OSError, ValueError) as error:  # a path may hold a NUL
        raise _fault(path, f"{error}; 'angarium keys curve {path}' makes one") from None
    raise _fault(
        path, f"holds no line with a key of {KEY_LENGTH} characters; 'angarium keys curve' makes one"
    )


def _public_of(path: Path, secret: str) -> str:
    try:
        return zmq.curve_public(secret.encode()).decode()
    except (ValueError, zmq.ZMQError):
        raise _fault(path, "its key is not in the Z85 alphabet") from None


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unwritten(path: Path, error: Exception) -> errors.AngariumError:
    reason = getattr(error, "strerror", None) or str(error)
    return errors.error_for(errors.INVALID_ARGUMENT, f"{path}: {reason}")


def _fault(path: Path, what: str) -> errors.AngariumError:
    return errors.error_for(errors.INVALID_CONFIGURATION, f"key file {path}: {what}")
