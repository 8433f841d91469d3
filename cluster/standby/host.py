"""One host of a pair, from `angarium up` to its end: a standby, which follows, or the primary, whose node it runs.

    candidate, follows the primary --takes the lease--> primary, runs the node --the lease is over--> everything ends
        ^                                                                                               |
        +-----------------------------------------------------------------------------------------------+

Each way through that is a `Life`; the host has the data directory, hears signals, and begins again as a candidate with
what is on its disk.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import time
from typing import TYPE_CHECKING, Final

from angarium.errors import AngariumError
from cluster.data.data_dir import in_use
from cluster.data.node_file import HOST_LOCK_FILE, LOCK_FILE, is_locked
from cluster.standby.equipment import Equipment
from cluster.standby.life import TURN_S, Life
from cluster.standby.pair.settings import SWITCH_SIGNAL

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.configuration.config import NodeConfig

PATH_BYTES_MAX: Final = 4_096
#: The node of a host that was killed ends with it, within milliseconds unless the machine is busy.
LEFT_S: Final = 5.0

_log = logging.getLogger("standby")


def run_host(data: Path, config: NodeConfig) -> int:
    """Run one host of a pair until it is asked to stop; gives the exit status.

    Raises:
        AngariumError: another one runs on the data directory (40902), or the section cannot be used (40017).
    """
    host = Host(data, config)
    return asyncio.run(host.run())


class Host:
    """This host, over all that it is in turn."""

    def __init__(self, data: Path, config: NodeConfig) -> None:
        """Take the data directory.

        Raises:
            AngariumError: as `run_host`.
        """
        self._data = data.absolute()
        self._data.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = self._take_lock()
        self._equipment = Equipment(self._data, config, os.pread(self._lock, PATH_BYTES_MAX, 0).decode())
        # In this order, a full disk need not give back what it has just been given.
        os.ftruncate(self._lock, os.pwrite(self._lock, str(self._equipment.directory).encode(), 0))
        self._is_stopping = False
        self._status = 0
        #: The life that is going on.
        self.life: Life | None = None

    def _take_lock(self) -> int:
        descriptor = os.open(self._data / HOST_LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise in_use(self._data) from None
        deadline = time.monotonic() + LEFT_S
        while is_locked(self._data / LOCK_FILE):  # of a node without a keeper, or of a command that restores
            if time.monotonic() >= deadline:
                os.close(descriptor)
                raise in_use(self._data)
            time.sleep(TURN_S)
        return descriptor

    async def run(self) -> int:
        """Be a candidate, and whatever comes of it, again and again."""
        loop, watch = asyncio.get_running_loop(), self._equipment.watch
        loop.add_reader(watch.descriptor, watch.wait, 0.0)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        loop.add_signal_handler(SWITCH_SIGNAL, self._switch)
        try:
            while not self._is_stopping:
                await loop.run_in_executor(None, self._equipment.look_for_damage)
                if self._is_stopping:
                    break
                self.life = Life(self._equipment, self._data)
                await self.life.live()
                if self.life.node_status is not None:
                    # Whoever stopped the node stops this host with it.
                    self._is_stopping, self._status = True, self.life.node_status
                if self.life.has_switched:
                    # The other host is to be the primary, and takes what nobody has.
                    await self._wait(self._equipment.lease_s)
            return self._status
        finally:
            loop.remove_reader(watch.descriptor)
            self._equipment.close()
            os.close(self._lock)

    async def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._is_stopping:
            await asyncio.sleep(TURN_S)

    def _stop(self) -> None:
        self._is_stopping = True
        if self.life is not None:
            self.life.stop()

    def _reload(self) -> None:
        """Have certificates read again: by the node, or that of a standby."""
        if self.life is None:
            return
        self.life.signal_node(signal.SIGHUP)
        try:
            self.life.encrypt_with(self._equipment.encryption())
        except AngariumError as error:
            _log.error("the certificate was not read again, and the one before stays: %s", error.detail)

    def _switch(self) -> None:
        """Hand over: the node stops in order, with everything at the standby, and this host is a candidate then."""
        if self.life is not None:
            self.life.switch()
