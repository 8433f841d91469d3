"""Why a host is the primary, in files of the data directory; what an operator said who made it that.

A candidate that lacks something reads one and goes ahead; the other is written down by the controller of the node that
begins then (`angarium audit`). `cluster.commands.standby.promoting` has the decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from cluster.data.data_dir import write_durably

if TYPE_CHECKING:
    from pathlib import Path

#: In the data directory: the operator accepts that messages may be lost. Until the host has taken over, or need not.
FORCE_FILE: Final = "standby.force"
#: ... a promotion that is to be written down.
PROMOTED_FILE: Final = "standby.promoted"


#: ... why the primary that there is began; both hosts have it.
BEGUN_FILE: Final = "standby.begun"


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """When the primary of an epoch began, and why, as a clause."""

    epoch: int
    at: str
    why: str


def note_begun(data: Path, begun: Begun) -> None:
    """Remember why this host is the primary; its standby gets it with the other files."""
    write_durably(data / BEGUN_FILE, msgspec.json.encode(begun))


def begun_of(data: Path, epoch: int) -> Begun:
    """Give why the primary of an epoch began; empty, if that is not known."""
    try:
        found = msgspec.json.decode((data / BEGUN_FILE).read_bytes(), type=Begun)
    except (OSError, msgspec.DecodeError):
        found = None
    return found if found is not None and found.epoch == epoch else Begun(epoch=epoch, at="", why="")


def why_begun(host: str, before: str, *, is_given_back: bool, is_heard: bool) -> str:
    """Give why a host is the primary by itself, as a clause.

    Args:
        host: its name.
        before: that of the primary before it; empty: there was none.
        is_given_back: that one said that it has given its lease back.
        is_heard: the other host still says something.
    """
    if not before:
        return "nobody was it before"
    if before == host:
        return "it was that before, and was started again"
    if is_given_back:
        return f"{before} stopped in order, or handed over"
    if is_heard:
        return f"{before} did not renew its lease, though it was heard"
    return f"nothing was heard of {before}, and its lease was over"


class Promotion(msgspec.Struct, frozen=True, kw_only=True):
    """That an operator made a host the primary."""

    host: str
    #: The user of the operating system who said so.
    who: str
    #: What it costs, as a sentence; empty: nothing.
    cost: str = ""


def force(data: Path, promotion: Promotion) -> None:
    """Have the host go ahead although it may lack something."""
    write_durably(data / FORCE_FILE, msgspec.json.encode(promotion))


def wanted_force(data: Path) -> Promotion | None:
    """Give the promotion by force that an operator wants; None: nobody does."""
    place = data / FORCE_FILE
    if not place.exists():
        return None
    return _read(place) or Promotion(host="", who="", cost="what only the other host has is lost")


def forget_force(data: Path) -> None:
    """The host has taken over, or has no reason to any more."""
    (data / FORCE_FILE).unlink(missing_ok=True)


def note_promotion(data: Path, promotion: Promotion) -> None:
    """Have it written down by the next controller."""
    write_durably(data / PROMOTED_FILE, msgspec.json.encode(promotion))


def noted_promotion(data: Path) -> Promotion | None:
    """Give what is to be written down; None: nothing."""
    return _read(data / PROMOTED_FILE)


def forget_promotion(data: Path) -> None:
    """It is written down."""
    (data / PROMOTED_FILE).unlink(missing_ok=True)


def _read(place: Path) -> Promotion | None:
    try:
        return msgspec.json.decode(place.read_bytes(), type=Promotion)
    except (OSError, msgspec.DecodeError):
        return None
