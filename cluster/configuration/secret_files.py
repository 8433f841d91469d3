"""Which files with secrets of a configuration somebody else may read or replace.

A private key that others may read is refused (`encryption.py`). Files with the secret of the cluster and with
passwords are warned of: orchestrators mount them with modes that the operator of the node cannot always choose.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from cluster.security.keys import forbidden_mode

if TYPE_CHECKING:
    from cluster.configuration.config import NodeConfig

_PASSWORD_FILES: Final = ("password_file", "remote_password_file")


def exposed(config: NodeConfig) -> list[str]:
    """Give a sentence for each file that others may read, or that somebody else owns."""
    given = [attributes.get(key) for *_, attributes in config.objects for key in _PASSWORD_FILES]
    paths = dict.fromkeys(
        path
        for path in (
            config.cluster.secret_file,
            config.oidc.client_secret_file,
            config.tracing.headers_file,
            config.standby.secret_file,
            config.standby.password_file,
            *given,
        )
        if path
    )
    return [sentence for path in paths if (sentence := _sentence(path))]


def _sentence(path: str) -> str:
    user = os.geteuid()
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return ""  # who reads it says so
    if found.st_uid not in (user, 0):
        return (
            f"{path} belongs to user {found.st_uid}, who can replace the secret in it: 'chown {user} {path}'"
        )
    if found.st_mode & forbidden_mode(found.st_uid, user):
        return f"{path} has mode {found.st_mode & 0o777:04o}, so others may read the secret in it: 'chmod 600 {path}'"
    return ""
