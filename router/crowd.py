"""When a router rests for a moment between two turns: a crowd of clients keeps it busy with lone messages.

A turn that brings one message costs nearly as much as one that brings two: the system calls around it, and a flush for
each receiver. So a router that needs much of a core for the lone messages of many clients begins its turns at
intervals, as network cards signal packets (interrupt moderation), and what came meanwhile shares a turn. That costs
these messages a fraction of a millisecond, and gives the core a tenth to a sixth of the time back.

Nobody rests in vain. A router that has time anyway does not, nor one whose turns are longer than the interval; nor one
with few clients, however busy: what they send next waits for what they sent before. That may be so with many, too; it
shows in turns that bring a single message all the same, and is not tried again for a while.

A state machine without clock and sockets: `server` measures, and rests.
"""

from __future__ import annotations

from typing import Final

#: From one look to the next, so many clients have said something at least.
CROWD_MIN: Final = 64
#: The share of a core that the router needs before it rests, and below which it ends that.
BUSY_SHARE: Final = 0.4
CALM_SHARE: Final = 0.2
#: Turns begin so far apart, at least, while it rests between them.
INTERVAL_S: Final = 0.00035
#: What a turn has to bring then, and how long it is not tried again if it does not.
MESSAGES_MIN: Final = 1.25
VAIN_S: Final = 2.0


class CrowdPace:
    """Whether turns are kept apart."""

    __slots__ = ("_again_at", "_clients", "_cpu_s", "_looked_at", "_messages", "_turns", "is_resting")

    def __init__(self, now: float, cpu_s: float) -> None:
        """Begin without rests.

        Args:
            now: the monotonic time in seconds.
            cpu_s: CPU time of the loop's thread, in seconds.
        """
        self._looked_at, self._cpu_s = now, cpu_s
        #: Since then: who said something, how much, and how many turns were followed by a rest.
        self._clients: set[bytes] = set()
        self._messages = self._turns = 0
        #: Rests were in vain, and are not tried before.
        self._again_at = now
        self.is_resting = False

    def heard(self, client: bytes) -> None:
        """Note that a client has said something."""
        self._clients.add(client)
        self._messages += 1

    def rested(self) -> None:
        """Note the end of a turn while `is_resting`."""
        self._turns += 1

    def look(self, now: float, cpu_s: float) -> None:
        """Find out, now and then, whether rests pay."""
        passed_s, used_s = now - self._looked_at, cpu_s - self._cpu_s
        if self._messages < MESSAGES_MIN * self._turns:
            self._again_at = now + VAIN_S
        share = CALM_SHARE if self.is_resting else BUSY_SHARE
        is_busy = len(self._clients) >= CROWD_MIN and used_s >= share * passed_s
        self.is_resting = is_busy and now >= self._again_at
        self._looked_at, self._cpu_s = now, cpu_s
        self._clients.clear()
        self._messages = self._turns = 0
