"""An operator makes a host the primary: the manual store is told so, or a candidate that lacks something goes ahead."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from angarium import errors
from cluster.standby.stores.manual import PromotionError, promote
from cluster.standby.stores.opening import MANUAL_FILE

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.admin.answers import HostStatus

#: In the data directory: the operator accepts that messages may be lost. Read once.
FORCE_FILE: Final = "standby.force"


def promote_host(data: Path, status: HostStatus, *, may_lose: bool) -> str:
    """Make the host that runs on a data directory the primary; gives what follows, as a sentence.

    Raises:
        ConflictError: it may lack something (40909).
    """
    if status.role == "primary":
        return f"host {status.host} is the primary"
    lacks = status.host not in status.in_sync
    if lacks and not may_lose and status.primary:
        have = " and ".join(status.in_sync)
        detail = f"host {status.host} may lack what was acknowledged; {have} has everything"
        raise errors.error_for(errors.STANDBY_REFUSED, detail, "promote that one, or say --force")
    if status.store == "manual":
        try:
            promote(data / MANUAL_FILE, status.host, may_lose=may_lose)
        except PromotionError as error:
            raise errors.error_for(errors.STANDBY_REFUSED, str(error)) from None
        other = f"'angarium standby promote --host {status.host}'"
        return f"host {status.host} is named the primary; before the other one is started again, type {other} there"
    if lacks:
        descriptor = os.open(data / FORCE_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.close(descriptor)
        return (
            f"host {status.host} takes the lease when nobody has it; what only {status.primary} has is lost"
        )
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
