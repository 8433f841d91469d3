"""The shell of requests to issuers: threads that wait for addresses, a pipe that brings what came, and files.

What an address gave last is kept in the data directory, `issuers/NAME.json`, so that a node that starts while the
issuer is away knows its keys. Keys of another address, or of another issuer, are not taken from there.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from angarium import errors
from cluster.data.data_dir import write_durably

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from angarium_server.process import Process
    from angarium_server.tokens.config import TokenIssuer
    from angarium_server.tokens.keys import KeyRow

_log = logging.getLogger("controller")


class Kept(msgspec.Struct):
    """A document as it is kept."""

    issuer: str
    url: str
    document: bytes


class Downloads:
    """All requests of one process."""

    def __init__(
        self, process: Process, folder: Path, on_done: Callable[[str, list[KeyRow] | None, str], None]
    ) -> None:
        """Ask nobody yet; `on_done` is called in the loop: name, keys or None, what was wrong."""
        self._process = process
        self._folder = folder
        self._on_done = on_done
        #: A deque is safe between threads.
        self._results: deque[tuple[str, list[KeyRow] | None, bytes, str]] = deque()
        self._issuers: dict[str, TokenIssuer] = {}
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        process.add(self._wake_read, self._take)

    def begin(self, issuer: TokenIssuer) -> None:
        """Ask the address of an issuer."""
        from cluster.controller.issuers.download import (
            Download,  # a node without issuers does without the library
        )

        self._issuers[issuer.name] = issuer
        Download(issuer, self._finished)

    def kept(self, issuers: Sequence[TokenIssuer]) -> dict[str, list[Any]]:
        """Give the keys that addresses gave to an earlier process."""
        from angarium_server.tokens.keys import read_document

        found = {}
        for issuer in [one for one in issuers if one.jwks_url]:
            try:
                kept = msgspec.json.decode(self._file(issuer).read_bytes(), type=Kept)
                if (kept.issuer, kept.url) == (issuer.issuer, issuer.jwks_url):
                    found[issuer.name] = read_document(kept.document)
            except FileNotFoundError:
                continue
            except (OSError, msgspec.DecodeError, errors.AngariumError) as error:
                _log.warning("the kept keys of issuer %r cannot be used: %s", issuer.name, error)
        return found

    def close(self) -> None:
        """Hear of nothing more."""
        self._process.remove(self._wake_read)
        os.close(self._wake_read)
        self._wake_read = -1

    def _finished(self, name: str, keys: list[KeyRow] | None, document: bytes, fault: str) -> None:
        """Bring a result from its thread."""
        self._results.append((name, keys, document, fault))
        with contextlib.suppress(OSError):  # it is full, and will be read; or this process ends
            os.write(self._wake_write, b"d")

    def _take(self) -> None:
        os.read(self._wake_read, 4_096)
        while self._results:
            name, keys, document, fault = self._results.popleft()
            if keys is not None:
                self._keep(self._issuers[name], document)
            self._on_done(name, keys, fault)

    def _keep(self, issuer: TokenIssuer, document: bytes) -> None:
        content = msgspec.json.encode(Kept(issuer.issuer, issuer.jwks_url, document))
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            if not self._file(issuer).exists() or self._file(issuer).read_bytes() != content:
                write_durably(self._file(issuer), content)
        except OSError as error:
            _log.warning("the keys of issuer %r are not kept over a restart: %s", issuer.name, error)

    def _file(self, issuer: TokenIssuer) -> Path:
        return self._folder / f"{issuer.name}.json"
