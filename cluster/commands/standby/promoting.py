"""An operator makes a host the primary: the manual store is told so, or a candidate that lacks something goes ahead.

Both are written down by the controller of the node that begins then (`angarium audit`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium import errors
from cluster.data.data_dir import user_of_node
from cluster.standby.promotion import Promotion, force, forget_promotion, note_promotion, noted_promotion
from cluster.standby.stores.manual import PromotionError, is_named, is_of, promote
from cluster.standby.stores.opening import MANUAL_FILE
from cluster.standby.stores.store import NoAnswerError

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.admin.answers import HostStatus


def promote_host(data: Path, status: HostStatus, *, may_lose: bool) -> str:
    """Make the host that runs on a data directory the primary; gives what follows, as a sentence.

    Raises:
        ConflictError: it may lack something, or nobody knows whether it does (40909).
    """
    if status.role == "primary":
        return f"host {status.host} is the primary"
    lacks = status.host not in status.in_sync or bool(status.fault)
    have = " and ".join(name for name in status.in_sync if name != status.host)
    if lacks and not may_lose and (status.primary or status.store != "manual"):
        raise _refusal(status, have)
    cost = f"what only {have} has is lost" if lacks and have else ""
    promotion = Promotion(host=status.host, who=user_of_node(), cost=cost)
    if status.store == "manual":
        return _name_noted(data, promotion, may_lose=may_lose)
    if may_lose:
        force(data, promotion)
        lost = f"; {cost}" if cost else ""
        return f"host {status.host} takes the lease when nobody has it{lost}"
    return f"host {status.host} has everything, and takes over by itself when nobody has the lease"


def _name_noted(data: Path, promotion: Promotion, *, may_lose: bool) -> str:
    """Name a host the primary, which has to know what that costs: it may begin as soon as it is named."""
    path, host = data / MANUAL_FILE, promotion.host
    if not is_named(path, host):  # or what that cost was noted then
        before = noted_promotion(data)
        note_promotion(data, promotion)
        try:
            _name(path, host, may_lose=may_lose)
        except BaseException:
            if before is None:
                forget_promotion(data)
            else:
                note_promotion(data, before)
            raise
    other = f"'angarium standby promote --host {host}'"
    return f"host {host} is named the primary; before the other one is started again, type {other} there"


def _refusal(status: HostStatus, have: str) -> errors.AngariumError:
    if not status.primary:
        why = status.failure or "it knows of no primary"
        detail = (
            f"nobody knows whether host {status.host} has everything: outside store {status.store}: {why}"
        )
        return errors.error_for(
            errors.STANDBY_REFUSED, detail, "see to that, or say --force where everything is"
        )
    detail = f"host {status.host} may lack what was acknowledged"
    if status.fault:
        detail += f": {status.fault}"
    elif have:
        detail += f"; {have} has everything"
    return errors.error_for(errors.STANDBY_REFUSED, detail, "promote the one with everything, or say --force")


def name_other(data: Path, host: str, *, may_lose: bool) -> str:
    """Name a host, mostly the other one, the primary in the file of that of a data directory, whether it runs or not.

    Raises:
        ConflictError: that host may lack something, or the operator does not decide here (40909).
    """
    path = data / MANUAL_FILE
    if not path.exists():
        detail = f"{path} is not there: the outside store decides, or no host of a pair ran here"
        raise errors.error_for(errors.STANDBY_REFUSED, detail, "leave --host out")
    if is_of(path, host):
        # It need not run, and then nobody knows what it lacks.
        cost = "what only the other host has is lost" if may_lose else ""
        return _name_noted(data, Promotion(host=host, who=user_of_node(), cost=cost), may_lose=may_lose)
    _name(path, host, may_lose=may_lose)
    return f"host {host} is named the primary here; what runs on {data} is its standby"


def _name(path: Path, host: str, *, may_lose: bool) -> None:
    try:
        promote(path, host, may_lose=may_lose)
    except PromotionError as error:
        raise errors.error_for(errors.STANDBY_REFUSED, str(error)) from None
    except NoAnswerError as error:
        advice = "move it away, and name the primary: nobody has been named then"
        raise errors.error_for(errors.INVALID_CONFIGURATION, error.reason, advice) from None
