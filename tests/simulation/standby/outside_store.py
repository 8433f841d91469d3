"""The outside store as it has to be: one order for everybody, a lease that ends by its own clock.

Requests and answers are as late as a seed says: one that its host has given up may still be carried out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cluster.standby.pair.member import LEASE_S
from cluster.standby.pair.outside import (
    Answer,
    Holder,
    Read,
    Renew,
    Request,
    Resign,
    Seen,
    Standing,
    Swap,
    Take,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.simulation.simulated_network import Loop

#: Usually; sometimes a request or an answer takes far longer than anybody waits.
DELAY_MAX_S: Final = 0.05
LATE_MAX_S: Final = 6.0


class OutsideStore:
    """What is true, as far as anybody can know."""

    def __init__(self, loop: Loop, rng: random.Random) -> None:
        self._loop = loop
        self._rng = rng
        self.standing: Standing | None = None
        self.revision = 0
        self._holder: Holder | None = None
        self._until = 0.0
        #: Share of the requests and answers that are late.
        self.late_rate = 0.0
        #: Hosts of which requests do not arrive, and those to which answers do not.
        self.deaf_to: set[str] = set()
        self.mute_to: set[str] = set()
        #: Every standing that there was.
        self.standings: list[Standing] = []

    @property
    def holder(self) -> Holder | None:
        """Give who has the lease now."""
        return self._holder if self._loop.now < self._until else None

    def ask(self, me: Holder, number: int, request: Request, answer: Callable[[Answer], None]) -> None:
        """Carry a request out, if it arrives, and answer, if that does."""

        def arrive() -> None:
            if me.host in self.deaf_to:
                return
            is_done = self._do(me, request)
            told = Answer(number, is_done, Seen(self.revision, self.standing, self.holder))
            self._loop.after(self._delay(), lambda: None if me.host in self.mute_to else answer(told))

        self._loop.after(self._delay(), arrive)

    def _delay(self) -> float:
        is_late = self._rng.random() < self.late_rate
        return self._rng.random() * (LATE_MAX_S if is_late else DELAY_MAX_S)

    def _do(self, me: Holder, request: Request) -> bool:
        match request:
            case Read():
                return True
            case Renew() if self.holder == me:
                self._until = self._loop.now + LEASE_S
                return True
            case Resign() if self.holder == me:
                self._holder = None
                return True
            case Swap(revision, standing) if self.holder == me and revision == self.revision:
                self._set(standing)
                return True
            case Take(seen, standing) if seen.revision == self.revision and seen.holder == self.holder:
                self._holder, self._until = me, self._loop.now + LEASE_S
                self._set(standing)
                return True
        return False

    def _set(self, standing: Standing) -> None:
        self.standing = standing
        self.revision += 1
        self.standings.append(standing)
