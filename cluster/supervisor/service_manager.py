"""What a service manager is told, if one started the node: that it is ready, that it stops, and that it lives.

systemd names a socket in NOTIFY_SOCKET and takes datagrams of lines there (`man sd_notify`); others do the same.
Without the variable nothing is told. Called by the supervisor's shell in every round of its loop, so that a supervisor
that hangs is silent too: with `WatchdogSec=` the manager then starts the node again, which nobody inside could do.

A start may take as long as its processes make progress, and a stop as long as they have time to. Both are watched by
the supervisor, which is why the manager's own time limits are moved on until then.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import MutableMapping

#: While a node starts or stops its manager is told this often that it needs more time, and how much.
EXTEND_INTERVAL_S: Final = 5.0
EXTEND_BY_S: Final = 30.0
_MICROSECONDS: Final = 1_000_000


class ServiceManager:
    """The manager that started this process, or nobody."""

    def __init__(self, address: str, watchdog_s: float | None) -> None:
        """Remember where it listens, empty for nobody, and how long it bears silence, None for ever."""
        self._address = address
        self._watchdog_s = watchdog_s
        #: What was told of last.
        self._phase = ""
        self._alive_due = 0.0
        self._extend_due = 0.0

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str]) -> ServiceManager:
        """Take what the manager told us out of the environment: it is not meant for our children."""
        address = environment.pop("NOTIFY_SOCKET", "")
        microseconds = environment.pop("WATCHDOG_USEC", "")
        pid = environment.pop("WATCHDOG_PID", str(os.getpid()))
        watched = microseconds.isdecimal() and pid == str(os.getpid())
        return cls(address, int(microseconds) / _MICROSECONDS if watched else None)

    def tell(self, phase: str, now: float) -> None:
        """Tell what is due in the phase `starting`, `running` or `stopping`; nobody waits for a manager."""
        if not self._address:
            return
        lines = self.due(phase, now)
        if not lines:
            return
        # A first @ stands for the zero byte with which an abstract address begins.
        address = self._address.replace("@", "\0", 1) if self._address.startswith("@") else self._address
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to_manager:
            to_manager.setblocking(False)  # noqa: FBT003 - its only parameter
            to_manager.sendto("\n".join(lines).encode(), address)

    def due(self, phase: str, now: float) -> list[str]:
        """Give the lines that are due now."""
        lines = []
        if phase != self._phase:
            self._phase = phase
            lines += {"running": ["READY=1"], "stopping": ["STOPPING=1"]}.get(phase, [])
            lines.append(f"STATUS=the node is {phase}")
        if phase != "running" and now >= self._extend_due:
            self._extend_due = now + EXTEND_INTERVAL_S
            lines.append(f"EXTEND_TIMEOUT_USEC={int(EXTEND_BY_S * _MICROSECONDS)}")
        if self._watchdog_s is not None and now >= self._alive_due:
            self._alive_due = now + self._watchdog_s / 4
            lines.append("WATCHDOG=1")
        return lines
