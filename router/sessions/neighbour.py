"""A neighbour as one of its link sessions: who it is, what it wants, and how much of our interest it was told.

A link process has one session per Message VPN with each of its two routers; the session stands for the node on the
other side. It is an attribute of the session (`Session.link`); a client has none.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta

from angarium import wire
from angarium.errors import error_for

if TYPE_CHECKING:
    from angarium.errors import AngariumError

_Code = Annotated[int, Meta(ge=10_000, le=99_999)]
_decode_goodbye: Final = msgspec.msgpack.Decoder(tuple[_Code, Annotated[str, Meta(max_length=1_000)]]).decode
_NO_REASON: Final = wire.pack([])
#: At most so many doublings of the rounds between two tries.
TRIAL_DOUBLINGS_MAX = 7


class LinkHello(msgspec.Struct, frozen=True):
    """What a link process says of the neighbour for which its session stands."""

    node: Annotated[str, Meta(min_length=1, max_length=64)]
    node_id: Annotated[str, Meta(min_length=1, max_length=64)]
    cluster: Annotated[str, Meta(max_length=64)]
    #: Of the link process: its successor has a higher one.
    incarnation: Annotated[int, Meta(ge=0, le=1 << 62)]
    #: Whether TLS encrypts the connection between the two nodes.
    encrypted: bool = False


class FastPathTrials:
    """When it is worth trying whether the router knows the topics of a round: each failure makes the next try later."""

    __slots__ = ("failures", "skip")

    def __init__(self) -> None:
        #: In a row.
        self.failures = 0
        #: Rounds that go to the workers without a try.
        self.skip = 0

    def is_due(self) -> bool:
        """Tell whether to try with this round."""
        if self.skip:
            self.skip -= 1
            return False
        return True

    def failed(self) -> None:
        """The topics of a round were not known, or had no common place to go."""
        self.failures = min(self.failures + 1, TRIAL_DOUBLINGS_MAX)
        self.skip = 1 << self.failures


class Neighbour:
    """The node that a link session stands for."""

    __slots__ = (
        "encrypted",
        "exported",
        "fast_path",
        "goodbye",
        "imports",
        "incarnation",
        "is_local",
        "is_synchronised",
        "node",
        "node_id",
        "report",
        "since",
        "untold",
    )

    def __init__(self, hello: LinkHello, now: float, *, is_local: bool) -> None:
        self.node = hello.node
        #: Made with its data directory: two nodes of one name have two of them.
        self.node_id = hello.node_id
        #: Of the link process.
        self.incarnation = hello.incarnation
        #: Whether TLS encrypts the connection between the nodes.
        self.encrypted = hello.encrypted
        #: Whether the link process is one of this node.
        self.is_local = is_local
        self.since = now
        self.fast_path = FastPathTrials()
        #: What it wants: pattern -> wish, never 0.
        self.imports: dict[str, int] = {}
        #: True once the snapshot of what it wants is complete and in force.
        self.is_synchronised = False
        #: Patterns of ours that it was not told yet; None once it was told that the snapshot is complete.
        self.untold: deque[str] | None = deque()
        #: Entries that it was told, of the snapshot and of changes.
        self.exported = 0
        #: Why it left, if it said so.
        self.goodbye: AngariumError | None = None
        #: What its controller told last, and when; None before the first.
        self.report: tuple[bytes, float] | None = None

    @property
    def client_name(self) -> str:
        """Give the name of its sessions."""
        return wire.LINK_NAME_PREFIX + self.node

    def take_goodbye(self, header: bytes) -> None:
        """Take the header of BYE: with a reason, it is what the link process, or the other router, refused.

        Raises:
            InvalidRequestError: it is neither empty nor [code, detail] (40001).
        """
        if header != _NO_REASON:
            self.goodbye = error_for(*wire.decode_header(_decode_goodbye, header))

    def may_follow(self, other: Neighbour) -> bool:
        """Tell whether this is the same link process, or its successor, on a new connection."""
        mine = (self.node_id, self.is_local)
        return mine == (other.node_id, other.is_local) and self.incarnation >= other.incarnation

    def describe(self, now: float) -> dict[str, Any]:
        """Give what `angarium link show` says of it."""
        return {
            "node_id": self.node_id,
            "initiator": "local" if self.is_local else "remote",
            "encrypted": self.encrypted,
            "uptime_s": round(now - self.since, 3),
            "synchronised": self.is_synchronised and self.untold is None,
            "subscriptions_in": len(self.imports),
            "subscriptions_out": self.exported,
            "untold": len(self.untold or ()),
        }
