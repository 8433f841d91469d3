"""The config store with a standby: which commits count, which are on this disk and wait for the other one."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING

from angarium_server.connections.names import Names
from cluster.data.data_dir import CONFIG_FOLDER
from storage.shipping.line import ShippingLine

if TYPE_CHECKING:
    from angarium_server.process import Process
    from storage.config_store import ConfigStore
    from storage.shipping.settings import StandbySettings


class ShippedStore:
    """Sends what is committed to the standby, if there is one."""

    def __init__(self, process: Process, store: ConfigStore, standby: StandbySettings | None) -> None:
        """Number what is committed from now on, if there is a standby."""
        self._store = store
        self._line: ShippingLine | None = None
        if standby is not None:
            log = store.begin_groups()
            self._line = ShippingLine(process, Names(process), standby, CONFIG_FOLDER, log)
        self._is_shipping = False
        #: Commits that do not count yet: the number of the group, and that of the commit; the oldest first.
        self._waiting: deque[tuple[int, int]] = deque()

    def committed(self, number: int) -> bool:
        """Take note of a commit that is on this disk; tells whether it counts, else `counting` gives it later."""
        if self._line is None:
            return True
        self._waiting.append((self._line.newest, number))
        return False

    def not_committed(self) -> None:
        """There was no room for the last commit."""
        if self._line is not None:
            self._line.not_written()

    def tick(self, now: float) -> float:
        """Do what is due; gives in how many seconds to do so again."""
        line = self._line
        if line is None:
            return inf
        wait_s = line.tick(now)
        if line.has_begun and not self._is_shipping:
            self._is_shipping = True
            self._store.ship(line.group, line.written)
        return wait_s

    def counting(self) -> list[int]:
        """Give the commits that count since the last call."""
        found = []
        while self._line is not None and self._waiting and self._waiting[0][0] <= self._line.committed:
            found.append(self._waiting.popleft()[1])
        return found

    def close(self) -> None:
        """Let go of the connection; the owner closes the store."""
        if self._line is not None:
            self._line.close()
