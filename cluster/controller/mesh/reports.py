"""What a node tells its neighbours of itself: name, version, Message VPNs, and how its links do.

A report is an array, so that it stays small: with 50 nodes in a full mesh it has about 4 KB. It is soft state: who gets
one forgets what came before. The version comes first. A later one may add fields at the end, which nodes that do not
know them leave alone; what means something else needs another version, and is not read.

All times are durations at the moment of the report, because no two clocks agree.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from angarium import errors, wire
from angarium.errors import error_for

VERSION: Final = 1
#: Links in a report; those that are not up come first, so it is the healthy ones of a huge mesh that are left out.
LINKS_MAX: Final = 250
#: Names of Message VPNs in a report; with more the digest tells whether two nodes have the same.
VPNS_MAX: Final = 50
#: Characters of a name, an id or a version.
NAME_MAX: Final = 64
#: Characters of an error.
ERROR_MAX: Final = 200

_Count = Annotated[int, Meta(ge=0)]
_Seconds = Annotated[float, Meta(ge=0)]
_Name = Annotated[str, Meta(max_length=NAME_MAX)]


class LinkReport(msgspec.Struct, array_like=True, frozen=True):
    """One link, as the node on this side of it sees it."""

    #: The node on the other side, and the id that it had when the link was up last; empty if it never was.
    node: _Name
    node_id: _Name
    #: As in `angarium link list`.
    state: Annotated[str, Meta(max_length=16)]
    #: How long it has been in this state.
    for_s: _Seconds
    #: Whether this side opens it.
    opens: bool
    code: _Count = 0
    error: Annotated[str, Meta(max_length=ERROR_MAX)] = ""
    #: Round trip; None on the side that does not open it.
    lag_ms: _Seconds | None = None
    queued_messages: _Count = 0
    queued_bytes: _Count = 0
    spooled_messages: _Count = 0
    spooled_bytes: _Count = 0
    retry_messages: _Count = 0
    dead_messages: _Count = 0
    subscriptions_in: _Count = 0
    subscriptions_out: _Count = 0
    #: How much of the interest of both sides is in force.
    progress_percent: Annotated[int, Meta(ge=0, le=100)] = 0
    #: None while there is no connection.
    encrypted: bool | None = None
    #: Whether a queue of it takes no messages, so that publishers are refused.
    shut: bool = False


class NodeReport(msgspec.Struct, array_like=True, frozen=True):
    """One node, as it tells of itself."""

    version: Annotated[int, Meta(ge=0)]
    node: _Name
    node_id: _Name
    cluster: _Name
    #: Of the software.
    release: _Name
    up_s: _Seconds
    vpn_count: _Count
    vpn_digest: _Name
    #: The enabled Message VPNs, by name; the first VPNS_MAX of them.
    vpns: Annotated[list[str], Meta(max_length=VPNS_MAX)]
    link_count: _Count
    links: Annotated[list[LinkReport], Meta(max_length=LINKS_MAX)]


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(NodeReport).decode
_decode_version: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_number: Final = msgspec.msgpack.Decoder(int).decode


def encode(report: NodeReport) -> bytes:
    """Give the bytes of a report; links that do not fit into the limit are left out."""
    packed = _encode(report)
    while len(packed) > wire.MAX_REPORT_BYTES:
        report = msgspec.structs.replace(report, links=report.links[: len(report.links) // 2])
        packed = _encode(report)
    return packed


def decode(data: bytes, node: str) -> NodeReport:
    """Read the report of a node.

    Raises:
        InvalidRequestError: it is of another version (40003), no report, or that of another node (40001).
    """
    try:
        first = _decode_version(data)
        version = _decode_number(first[0]) if first else 0
        if version != VERSION:
            detail = f"node {node!r} reports in version {version}, this node reads {VERSION}"
            raise error_for(errors.UNSUPPORTED_VERSION, detail)
        report = _decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise error_for(errors.MALFORMED_FRAME, f"the report of node {node!r}: {error}") from None
    if report.node != node:
        raise error_for(errors.MALFORMED_FRAME, f"node {node!r} reports as {report.node!r}")
    return report


def clipped(name: str) -> str:
    """Give what a report has room for of a name that others chose."""
    return name[:NAME_MAX]


def order_links(links: list[LinkReport]) -> list[LinkReport]:
    """Give the links that a report has room for: those that are not up first, then by name."""
    return sorted(links, key=lambda link: (link.state == "up", link.node))[:LINKS_MAX]


def digest(names: list[str]) -> str:
    """Give what is the same for the same set of names."""
    return hashlib.sha256("\0".join(sorted(names)).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def essence(report: NodeReport) -> tuple[object, ...]:
    """Give what the others have to hear of at once when it changes: no metrics, no times."""
    links = [
        (one.node, one.node_id, one.state, one.code, one.progress_percent, one.shut) for one in report.links
    ]
    return (report.release, report.cluster, report.vpn_digest, links)
