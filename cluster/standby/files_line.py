"""The primary's end of the conversation about files: they are sent when they have changed, and confirmed."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from angarium import errors
from angarium.errors import AngariumError, error_for
from angarium_server.frames.frame import decoder, read
from angarium_server.frames.shipping import AskSynced, LeaseGiven, NotFollowed, ToldSynced, Whereabouts
from cluster.standby import files
from storage.shipping.calling import Calling, refusal_in

if TYPE_CHECKING:
    from pathlib import Path

    from angarium_server.connections.names import Names
    from angarium_server.connections.outgoing import Connection
    from angarium_server.frames.shipping import ShipFiles
    from angarium_server.watch import Watch
    from cluster.standby.pair.outside import Standing
    from storage.shipping.settings import StandbySettings

RETRY_S: Final = 0.5
#: How often files are looked at, and the standby is asked whether it is there.
LOOK_S: Final = 0.5
SILENT_S: Final = 1.5
#: Who has said nothing for so long is called anew: the network, or a host that went without a word, may be back.
LOST_S: Final = 5.0

_log = logging.getLogger("standby")
_decode_synced = decoder(ToldSynced)


class FilesLine:
    """A connection to the standby, and what it has."""

    def __init__(self, watch: Watch, names: Names, settings: StandbySettings, data: Path) -> None:
        self._settings = settings
        self._calling = Calling(watch, names, settings, files.STORE)
        self._data = data
        self._connection: Connection | None = None
        self._outgoing: deque[list[bytes]] = deque()
        self._is_met = False
        self._retry_at = self._look_at = self._heard_at = 0.0
        #: What was sent last, with its number; the number that the standby has on disk.
        self._sent: ShipFiles | None = None
        self._number = self._synced = 0
        self._why = ""

    def follows(self, now: float) -> bool:
        """Tell whether the standby has the files as they are."""
        return self._is_met and 0 < self._number == self._synced and now - self._heard_at < SILENT_S

    def tick(self, now: float, standing: Standing) -> None:
        """Do what is due."""
        if self._connection is None and now >= self._retry_at:
            self._connect(now, standing.epoch)
        self._calling.tick(now)
        if self._connection is not None:
            self._connection.tick(now)
        if self._connection is not None and now - self._heard_at > LOST_S:
            self._calling.let_go(self._connection)
            self._lost(error_for(errors.CONNECT_FAILED, f"{self._settings.peer} says nothing"), now)
        if self._is_met and now >= self._look_at:
            self._look_at = now + LOOK_S
            self._look(standing)
        if self._connection is not None:
            self._connection.send(self._outgoing)

    def _connect(self, now: float, epoch: int) -> None:
        self._retry_at, self._heard_at = now + RETRY_S, now
        try:
            self._connection = self._calling.connect(
                self._outgoing, epoch, self._received, lambda: None, self._lost
            )
        except AngariumError as error:
            self._note(str(error))

    def _look(self, standing: Standing) -> None:
        found = files.collect(self._data, self._number + 1, standing)
        if found is None:
            return
        if self._sent is None or msgspec.structs.replace(found, number=self._number) != self._sent:
            self._number += 1
            self._sent = found
            self._outgoing.append(found.frames())
        else:
            self._outgoing.append(AskSynced().frames())

    def _received(self, frames: list[bytes], now: float) -> None:
        self._heard_at = now
        match frames[0]:
            case Whereabouts.operation:
                self._is_met, self._why = True, ""
            case ToldSynced.operation:
                self._synced = max(self._synced, read(_decode_synced, frames).number)
            case NotFollowed.operation:
                self._note(str(refusal_in(frames)))

    def _lost(self, why: AngariumError, _now: float) -> None:
        self._connection, self._is_met, self._sent, self._synced = None, False, None, 0
        self._outgoing.clear()
        self._note(str(why))

    def _note(self, why: str) -> None:
        if not self._why:
            self._why = why
            _log.warning("the standby %s does not get the files of the node: %s", self._settings.peer, why)

    def close(self, *, has_given_lease: bool = False) -> None:
        """Let go of the connection, and say before that nobody has the lease, if that is so."""
        if self._connection is not None:
            self._connection.close(deque([LeaseGiven().frames()] if has_given_lease else ()))
            self._connection = None
