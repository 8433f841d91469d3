"""What an operator said who made a host the primary, in files of the data directory.

A candidate that lacks something reads one and goes ahead; the other is written down by the controller of the node that
begins then (`angarium audit`). `cluster.commands.standby.promoting` has the decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from cluster.data.data_dir import write_durably

if TYPE_CHECKING:
    from pathlib import Path

#: In the data directory: the operator accepts that messages may be lost. Read once.
FORCE_FILE: Final = "standby.force"
#: ... a promotion that is to be written down.
PROMOTED_FILE: Final = "standby.promoted"


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


def take_force(data: Path) -> Promotion | None:
    """Give the promotion by force that an operator wants, once; None: nobody does."""
    place = data / FORCE_FILE
    if not place.exists():
        return None
    promotion = _read(place) or Promotion(host="", who="", cost="what only the other host has is lost")
    place.unlink()
    return promotion


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
