"""Standing and holder as text, as they are in etcd, in a Lease, and in the file of the operator.

With a standing stands the name of the request that wrote it. A request that was repeated, because its answer was lost,
finds its own name and knows that it was carried out, once.
"""

from __future__ import annotations

import secrets
from typing import Final

import msgspec

from cluster.standby.pair.outside import Holder, Standing
from cluster.standby.stores.store import NoAnswerError

#: Between host and incarnation in one line, as in other holders of Leases.
_BETWEEN: Final = "_"


class WrittenStanding(msgspec.Struct, frozen=True, kw_only=True):
    """A standing, and the request that wrote it."""

    epoch: int
    primary: str
    in_sync: list[str]
    change: str = ""

    @property
    def standing(self) -> Standing:
        """Give it as the member knows it."""
        return Standing(self.epoch, self.primary, frozenset(self.in_sync))


def written(standing: Standing, change: str) -> WrittenStanding:
    """Give what is to be written; hosts are in order, so the same standing is the same text."""
    return WrittenStanding(
        epoch=standing.epoch, primary=standing.primary, in_sync=sorted(standing.in_sync), change=change
    )


def new_change() -> str:
    """Give the name of a request that no other one has."""
    return secrets.token_hex(12)


def text_of(value: msgspec.Struct) -> str:
    """Give a value as JSON on one line."""
    return msgspec.json.encode(value).decode()


def read_standing(text: str | bytes) -> WrittenStanding:
    """Give the standing that a store has.

    Raises:
        NoAnswerError: the text is no standing.
    """
    try:
        return msgspec.json.decode(text, type=WrittenStanding)
    except msgspec.DecodeError as error:
        raise NoAnswerError(f"what the outside store has as the standing cannot be read: {error}") from None


def line_of(holder: Holder) -> str:
    """Give a holder as one line: HOST_INCARNATION."""
    return f"{holder.host}{_BETWEEN}{holder.incarnation}"


def read_holder(line: str) -> Holder:
    """Give a holder; one that somebody else wrote, in another form, is a host that is none of ours."""
    host, _, incarnation = line.rpartition(_BETWEEN)
    return Holder(host, incarnation)


def check_holder(me: Holder) -> None:
    """Refuse a holder that would not be read again as it was written.

    Raises:
        ValueError: the host is empty, or the incarnation is empty or has an underscore.
    """
    if not me.host or not me.incarnation or _BETWEEN in me.incarnation:
        raise ValueError(f"{me} is no holder: host and incarnation have text, the incarnation no underscore")
