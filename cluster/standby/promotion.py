"""An operator makes a host the primary: the manual store is told so, or a candidate that lacks something goes ahead.

Both are written down by the controller of the node that begins then (`angarium audit`); they are in a file until then.
"""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING, Final

import msgspec

from angarium import errors
from cluster.data.data_dir import write_durably
from cluster.standby.stores.manual import PromotionError, promote
from cluster.standby.stores.opening import MANUAL_FILE

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.admin.answers import HostStatus

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


def promote_host(data: Path, status: HostStatus, *, may_lose: bool) -> str:
    """Make the host that runs on a data directory the primary; gives what follows, as a sentence.

    Raises:
        ConflictError: it may lack something (40909).
    """
    if status.role == "primary":
        return f"host {status.host} is the primary"
    lacks = status.host not in status.in_sync
    have = " and ".join(status.in_sync)
    if lacks and not may_lose and status.primary:
        detail = f"host {status.host} may lack what was acknowledged; {have} has everything"
        raise errors.error_for(errors.STANDBY_REFUSED, detail, "promote that one, or say --force")
    cost = f"what only {have} has is lost" if lacks and have else ""
    promotion = Promotion(host=status.host, who=_user(), cost=cost)
    if status.store == "manual":
        try:
            promote(data / MANUAL_FILE, status.host, may_lose=may_lose)
        except PromotionError as error:
            raise errors.error_for(errors.STANDBY_REFUSED, str(error)) from None
        note_promotion(data, promotion)
        other = f"'angarium standby promote --host {status.host}'"
        return f"host {status.host} is named the primary; before the other one is started again, type {other} there"
    if may_lose:
        write_durably(data / FORCE_FILE, msgspec.json.encode(promotion))
        lost = f"; what only {status.primary} has is lost" if lacks else ""
        return f"host {status.host} takes the lease when nobody has it{lost}"
    return f"host {status.host} has everything, and takes over by itself when nobody has the lease"


def name_other(data: Path, host: str, *, may_lose: bool) -> str:
    """Name another host the primary in the file of the host of a data directory, whether it runs or not.

    Raises:
        ConflictError: that host may lack something, or the operator does not decide here (40909).
    """
    path = data / MANUAL_FILE
    if not path.exists():
        detail = f"{path} is not there: the outside store decides, or no host of a pair ran here"
        raise errors.error_for(errors.STANDBY_REFUSED, detail, "leave --host out")
    try:
        promote(path, host, may_lose=may_lose)
    except PromotionError as error:
        raise errors.error_for(errors.STANDBY_REFUSED, str(error)) from None
    return f"host {host} is named the primary here; what runs on {data} is its standby"


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


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may run as a number
        return str(os.getuid())
