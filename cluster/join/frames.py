"""What the two sides of a join say: JOIN and JOINED, and the proof of a member.

A host that joins shows a token. To the other nodes it proves, with the secret of the cluster that it has got by then,
that it is a member: an HMAC over everything it wishes, for whom that is, and when. The secret itself is not said, and
a proof that somebody kept is of no use: after ten minutes, at another node, or for another wish.
"""

from __future__ import annotations

import hmac
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from angarium import errors
from cluster.objects.links import MAX_ADDRESSES

VERSION: Final = 1
#: Between the clocks of two members.
PROOF_AGE_MS: Final = 600_000
_Name = Annotated[str, Meta(max_length=255)]
_Address = Annotated[str, Meta(max_length=512)]


class Wish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of JOIN."""

    version: int = VERSION
    #: Of a member also `part`: it is going to leave, so the queue of the link with it is to take nothing more. And
    #: `stay`: it is to take messages again.
    wish: Literal["join", "part", "stay", "leave"] = "join"
    #: The node that asks, and its cluster if it is a member.
    node: Annotated[str, Meta(min_length=1, max_length=64)]
    cluster: Annotated[str, Meta(max_length=64)] = ""
    #: Where neighbours reach it, and the name that its certificate has there; empty: that of the node.
    addresses: Annotated[list[_Address], Meta(max_length=MAX_ADDRESSES)] = []
    server_name: _Name = ""
    #: Id and secret of a token.
    token_id: bytes = b""
    token_secret: bytes = b""
    #: A certificate signing request (PEM), which shows that it has the key; and whether it is to be signed.
    request: Annotated[str, Meta(max_length=4_096)] = ""
    wants_certificate: bool = False
    #: Of a member: for whom this is, when, and the proof.
    to: Annotated[str, Meta(max_length=64)] = ""
    time_ms: int = 0
    proof: bytes = b""


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """A node and how it is reached."""

    node: str
    addresses: list[str]
    server_name: str = ""


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """The content of JOINED; a member hears the name of the node only."""

    node: str
    cluster: str = ""
    secret: str = ""
    #: Authorities of the cluster (PEM), and the certificate of the node that asked.
    authority: str = ""
    certificate: str = ""
    #: Name that the certificate of this node has; empty: that of the node.
    server_name: str = ""
    neighbours: list[Neighbour] = []


def prove(wish: Wish, secret: str) -> Wish:
    """Give a wish with the proof that a member makes it."""
    return msgspec.structs.replace(wish, proof=_proof(wish, secret))


def check_proof(wish: Wish, secret: str, cluster: str, node: str, now_ms: int) -> None:
    """Refuse a wish that no member makes, or not of this node.

    Raises:
        UnauthorizedError: it is wrong (40103).
        ForbiddenError: it is another cluster (40318), or another node is meant (40322).
    """
    if not secret or not hmac.compare_digest(wish.proof, _proof(wish, secret)):
        raise errors.error_for(
            errors.LINK_UNAUTHORIZED, f"node {wish.node!r} did not prove that it is a member"
        )
    if wish.cluster != cluster:
        raise errors.error_for(errors.CLUSTER_MISMATCH, f"node {wish.node!r} is in cluster {wish.cluster!r}")
    if wish.to != node:
        raise errors.error_for(errors.LINK_WRONG_NODE, f"this is node {node!r}, not {wish.to!r}")
    if abs(now_ms - wish.time_ms) > PROOF_AGE_MS:
        minutes = PROOF_AGE_MS // 60_000
        detail = (
            f"the clocks of nodes {wish.node!r} and {node!r} differ by more than {minutes} minutes: set them"
        )
        raise errors.error_for(errors.LINK_UNAUTHORIZED, detail)


def _proof(wish: Wish, secret: str) -> bytes:
    said = msgspec.msgpack.encode(msgspec.structs.replace(wish, proof=b""))
    return hmac.digest(secret.encode(), b"angarium join proof 1\0" + said, "sha256")
