"""Files with secrets: how they are made, and who may read them.

A secret is never printed, logged, or written over. `cluster.security.authority` makes certificates with their keys;
here is what they share with the secret of a cluster and with passwords.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

from angarium import errors
from storage.sync import sync_path

#: What others must not be able to do with a secret key file.
_OTHERS_MODE: Final = 0o077
#: The same where a file of root is handed to a node by its group, as orchestrators mount secrets.
_OTHERS_MODE_OF_ROOT: Final = 0o037
#: The file of a cluster's secret, which 'angarium keys cluster' makes, and how many random bytes are in it.
CLUSTER_SECRET: Final = "cluster.secret"  # noqa: S105 - the name of a file
_SECRET_BYTES: Final = 32


def create_secret(path: str | os.PathLike[str]) -> None:
    """Write a new secret, one line that nobody can guess, to a file that only its owner can read.

    Raises:
        ConflictError: a file is there already (40901).
        InvalidRequestError: the place cannot be written (40018).
    """
    write_new(Path(path), f"{secrets.token_hex(_SECRET_BYTES)}\n", 0o600)


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
        sync_path(path.parent)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise _unwritten(path, error) from None


def _unwritten(path: Path, error: Exception) -> errors.AngariumError:
    reason = getattr(error, "strerror", None) or str(error)
    return errors.invalid(f"{path}: {reason}")
