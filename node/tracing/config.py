"""The section `[tracing]` of the configuration: where spans of the node go, and how many there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from angarium_server.configuration import about, within
from angarium_server.connections.addresses import is_loopback

#: Of a file with headers, and what its lines are.
HEADERS_BYTES_MAX: Final = 16_384
_HEADER: Final = re.compile(
    r"([A-Za-z0-9!#$%&'*+.^_`|~-]+):[ \t]*([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)[ \t]*"
)
#: Where collectors take spans, unless the address says something else.
_PATH: Final = "/v1/traces"


class TracingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Spans of the node, for guaranteed messages whose traceparent says that they are sampled."""

    endpoint: Annotated[
        str,
        about(
            "Collector of OpenTelemetry (OTLP over HTTP): https://HOST:PORT, or http:// on this host;"
            " empty: no spans."
        ),
    ] = ""
    headers_file: Annotated[
        str, about("File with headers for it, NAME: VALUE on each line, such as a key; empty: none.")
    ] = ""
    ca_file: Annotated[
        str, about("Authorities that may sign its certificate (PEM); empty: those of the system.")
    ] = ""
    service_name: Annotated[
        str, Meta(min_length=1, max_length=100, description="Name of the service that the spans are of.")
    ] = "angarium"
    sample_ratio: Annotated[
        float, within(0.0, 1.0, "Share of the sampled traces that the node adds its spans to.")
    ] = 1.0
    messages_per_second: Annotated[
        int,
        within(
            1,
            10_000,
            "Messages for which each worker begins to make spans in a second; Message VPNs share them.",
        ),
    ] = 100

    @property
    def url(self) -> str:
        """Where spans are posted."""
        parts = urlsplit(self.endpoint)
        return self.endpoint if parts.path.strip("/") else parts._replace(path=_PATH).geturl()


def faults_of(config: TracingConfig) -> list[str]:
    """Give what is wrong with the section, but for the file of authorities, as sentences."""
    if not config.endpoint:
        return []
    faults = [f"tracing.endpoint: {fault}"] if (fault := _endpoint_fault(config.endpoint)) else []
    try:
        read_headers(config.headers_file)
    except ValueError as error:
        faults.append(f"tracing.headers_file: {error}")
    return faults


def _endpoint_fault(url: str) -> str:
    example = "write https://collector.example:4318, or http://127.0.0.1:4318"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return f"it is no address: {example}"
    if parts.scheme not in ("http", "https") or not host or not url.isprintable() or " " in url:
        return f"{_shown(url)!r} is no address of a collector: {example}"
    if parts.username is not None or parts.password is not None:
        return "secrets do not belong into an address: write them into tracing.headers_file"
    named = f"[{host}]" if ":" in host else host
    if parts.scheme == "http" and not is_loopback(f"tcp://{named}:{port or 80}"):
        return f"{_shown(url)}: others are on the way to this address, so it must encrypt: {example}"
    return ""


def _shown(url: str) -> str:
    """Give an address without what may be secret in it."""
    head, at, rest = url.partition("@")
    return f"{head.partition('://')[0]}://...@{rest}" if at else url[:200]


def read_headers(path: str) -> dict[str, str]:
    """Give the headers of a file; none without one.

    Raises:
        ValueError: it cannot be read, or a line is no header; the text has nothing of what it holds.
    """
    if not path:
        return {}
    try:
        with Path(path).open(encoding="ascii") as file:
            text = file.read(HEADERS_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {getattr(error, 'strerror', None) or 'it is no text'}") from None
    if len(text) > HEADERS_BYTES_MAX:
        raise ValueError(f"{path}: it has more than {HEADERS_BYTES_MAX} bytes")
    headers: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        found = _HEADER.fullmatch(line)
        if found is None:
            raise ValueError(f"{path}: line {number} is no header: write NAME: VALUE")
        headers[found[1]] = found[2]
    return headers
