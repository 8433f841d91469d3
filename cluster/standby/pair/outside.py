"""The outside store: it knows who is the primary, and until when nobody else may be.

Two values of one Message broker's pair are in it: its `Standing`, which changes by compare-and-swap, and a lease that
ends by itself when it is not renewed. What is asked is carried out as a whole or not at all, in one order for
everybody (linearizable); an answer may be lost. etcd has that, and the Lease objects of Kubernetes.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class Standing(NamedTuple):
    """Who is who (PacificA: the configuration)."""

    #: Rises with each primary that begins.
    epoch: int
    primary: str
    #: Hosts that have all that was ever acknowledged; the primary is one of them.
    in_sync: frozenset[str]


class Holder(NamedTuple):
    """Who has the lease."""

    host: str
    #: Of the process that asked: one that was started again is another holder.
    incarnation: str


class Seen(NamedTuple):
    """What is in the store."""

    #: Rises with each change of the standing; 0: there is none.
    revision: int
    standing: Standing | None
    #: None: the lease is over.
    holder: Holder | None


class Read(NamedTuple):
    """What is there?"""


class Take(NamedTuple):
    """Become the holder, with a new standing, if all is still as it was seen."""

    seen: Seen
    standing: Standing


class Swap(NamedTuple):
    """Change the standing as its holder, if nobody else has."""

    revision: int
    standing: Standing


class Renew(NamedTuple):
    """Keep the lease."""


class Resign(NamedTuple):
    """Give the lease back: nothing is done here any more. The operator's store keeps it; nobody takes over there."""


Request: TypeAlias = Read | Take | Swap | Renew | Resign


class Answer(NamedTuple):
    """To a request: whether it was carried out, and what is there now."""

    number: int
    is_done: bool
    seen: Seen
