"""The pair of this host, as its keeper tells it: shown to operators, told of in events, handed over on demand.

operation         arguments    answer
standby.status                 how the host sees the pair: `cluster.admin.answers.HostStatus`
standby.switch                 nothing, at once; then the node stops here, and starts on the other host
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from angarium import errors
from cluster.admin.answers import HostStatus
from cluster.controller.access.audit_log import DONE, PROMOTION, Deed, moment_of
from cluster.controller.access.callers import ADMINISTRATOR, Who
from cluster.controller.switchboard.effects import SwitchOver

if TYPE_CHECKING:
    from cluster.admin import arguments
    from cluster.controller.switchboard.switchboard import Asker, Handlers, Switchboard
    from cluster.standby.promotion import Promotion

PRIMARY_EVENT: Final = "SYSTEM_PRIMARY_BEGAN"
LOST_EVENT: Final = "SYSTEM_STANDBY_LOST"
CLEAR_EVENT: Final = f"{LOST_EVENT}_CLEAR"
#: Of a standby that is waited for (`standby.required`): then operators hear of it.
SILENT_S: Final = 5.0
#: How the standby does: it has everything; all waits for it, and it does not follow; it lacks something.
THERE, SILENT, LACKING = "there", "silent", "lacking"

#: Of a node that has one host.
ALONE: Final = HostStatus(
    host="",
    role="alone",
    pid=0,
    pid_start=0,
    since="",
    epoch=0,
    primary="",
    in_sync=[],
    acts=True,
    required=False,
    store="",
    failure="",
    follows=[],
    stores=[],
)


class StandbyOperations:
    """What a controller knows of the pair."""

    def __init__(self, board: Switchboard) -> None:
        self._board = board
        self._status: HostStatus | None = None
        #: Whether a keeper has ever been looked for.
        self._has_keeper = False
        #: The epoch, and how the standby does, as operators were told last.
        self._told: tuple[int, str] | None = None
        self.operations: Handlers = {"standby.status": self._show, "standby.switch": self._switch}

    def told(self, status: HostStatus | None, promotion: Promotion | None = None) -> None:
        """Take what the keeper says; None: nothing for now. And that somebody promoted this host before it began."""
        self._status, self._has_keeper = status, True
        if promotion is not None:
            given = {"name": promotion.host, **({"reason": promotion.cost} if promotion.cost else {})}
            who = Who(promotion.who, ADMINISTRATOR, "", "local", "")
            self._board.write_deed(Deed(who, PROMOTION, given), DONE)
        if status is None or status.role != "primary":
            return
        (epoch, before), found = self._told or (0, ""), _standby_in(status)
        if self._told is None or epoch != status.epoch:
            how = ", by force: what only the other host had is lost" if status.forced else ""
            why = f": {status.why}" if status.why else ""
            text = f"host {status.host} is the primary of epoch {status.epoch}{how}{why}"
            self._board.record_system("error" if status.forced else "warning", PRIMARY_EVENT, text)
        if found not in (THERE, before):
            text = f"host {status.host} goes on without a standby: what is acknowledged now is on one disk"
            if status.required:
                text = f"host {status.host} waits for a standby that has everything, and acknowledges nothing"
            self._board.record_system("error", LOST_EVENT, text)
        elif found == THERE and before not in ("", THERE):
            text = f"everything that is acknowledged is on the disks of {' and '.join(status.in_sync)}"
            self._board.record_system("info", CLEAR_EVENT, text)
        self._told = status.epoch, found

    def is_there(self) -> bool:
        """Tell whether this host is one of a pair, also while nobody knows how it does."""
        return self._has_keeper

    def metrics(self) -> dict[str, Any]:
        """Give the figures of `STANDBY`; nothing without a pair."""
        status = self._status
        if status is None:
            return {}
        begun = {"begun_timestamp_s": moment_of(status.begun).timestamp()} if status.begun else {}
        return {
            **begun,
            "primary": {status.primary: 1} if status.primary else {},
            "has_all": dict.fromkeys(status.in_sync, 1),
            "in_sync": len(status.in_sync) > 1,
            "epoch": status.epoch,
            "silent_s": status.silent_s,
            "lag_groups": max((store.lag_groups for store in status.stores), default=0),
            "bringing_bytes": sum(store.bringing_bytes for store in status.stores),
            "sent_bytes": sum(store.sent_bytes for store in status.stores),
        }

    def _show(self, _request: arguments.NoArguments, asker: Asker, _now: float) -> None:
        self._board.reply(asker, msgspec.to_builtins(self._status or ALONE))

    def _switch(self, _request: arguments.NoArguments, asker: Asker, _now: float) -> None:
        status = self._known()
        if len(status.in_sync) < 2:
            raise errors.error_for(errors.STANDBY_REFUSED, "no standby has everything that was acknowledged")
        if status.store == "manual":
            detail = 'with standby.store = "manual" this host would be the primary again: stop it and promote the other'
            raise errors.error_for(errors.STANDBY_REFUSED, detail)
        self._board.reply(asker, None)
        self._board.emit(SwitchOver(status.pid))

    def _known(self) -> HostStatus:
        if self._status is None:
            raise errors.error_for(errors.STANDBY_REFUSED, "this node has no standby: see standby.store")
        return self._status


def _standby_in(status: HostStatus) -> str:
    """Say how the standby of a primary does."""
    if len(status.in_sync) < 2:
        return LACKING
    return SILENT if status.required and status.silent_s >= SILENT_S else THERE
