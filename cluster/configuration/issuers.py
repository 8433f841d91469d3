"""Keys of issuers in files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from angarium import errors
from angarium_server.tokens.config import faults_of as faults_among

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium_server.tokens.config import TokenIssuer
    from angarium_server.tokens.keys import KeyRow


def faults_of(issuers: list[TokenIssuer]) -> list[str]:
    """Give what is wrong with the issuers of a configuration, and with the files that they name."""
    faults = faults_among(issuers)
    for issuer in issuers:
        try:
            if issuer.keys_file:
                read_keys(issuer.keys_file)
        except errors.AngariumError as error:
            faults.append(f"issuers {issuer.name!r}: keys_file: {error.detail}")
    return faults


def read_keys(path: str) -> list[KeyRow]:
    """Give the keys in a file.

    Raises:
        InvalidRequestError: it cannot be read, or holds none that can be used (40017).
    """
    from angarium_server.tokens.keys import (  # a node without issuers does without the library
        DOCUMENT_BYTES_MAX,
        read_document,
    )

    try:
        with Path(path).open("rb") as file:
            return read_document(file.read(DOCUMENT_BYTES_MAX + 1))
    except (OSError, ValueError) as error:  # a path may hold a NUL
        detail = f"{path}: {getattr(error, 'strerror', None) or error}"
        raise errors.error_for(errors.INVALID_CONFIGURATION, detail) from None
    except errors.AngariumError as error:
        raise errors.error_for(error.code, f"{path}: {error.detail}") from None


def read_all(issuers: Sequence[TokenIssuer]) -> tuple[dict[str, list[KeyRow]], list[str]]:
    """Give the keys of all issuers whose files can be read, and what is wrong with the others."""
    keys, faults = {}, []
    for issuer in issuers:
        try:
            if issuer.keys_file:
                keys[issuer.name] = read_keys(issuer.keys_file)
        except errors.AngariumError as error:
            faults.append(f"issuer {issuer.name!r}: {error.detail}")
    return keys, faults
