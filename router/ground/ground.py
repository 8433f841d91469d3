"""What every part of the router stands on: counters, rates, and `Ground`, which is made once when it starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from router.ground.alarms import Alarms
from router.ground.config import Identity, SpoolLimits
from router.ground.outbox import Outbox

if TYPE_CHECKING:
    import random

    from router.ground.config import RouterConfig


class Counters:
    """What happened since the router started, by name (`docs/metrics.md`); a session's own are added at its end."""

    def __init__(self) -> None:
        self.totals: dict[str, int] = {}
        #: Errors told to clients, by code.
        self.errors: dict[int, int] = {}

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a total."""
        self.totals[name] = self.totals.get(name, 0) + amount

    def error(self, code: int, amount: int = 1) -> None:
        """Count an error that a client was told."""
        self.errors[code] = self.errors.get(code, 0) + amount


class TokenBucket:
    """Allows so many actions a second on average, and a burst; time is a parameter."""

    __slots__ = ("burst", "level", "rate", "stamp")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate = rate
        self.burst = burst
        #: Between 0 and `burst` after each call.
        self.level = burst
        self.stamp = now

    def take(self, now: float, weight: float = 1.0) -> bool:
        """Tell whether one more action, or a part of one, is allowed now, and count it."""
        self.level = min(self.burst, self.level + (now - self.stamp) * self.rate)
        self.stamp = now
        if self.level < weight:
            return False
        self.level -= weight
        return True


@dataclass(slots=True)
class Ground:
    """Configuration, identity, chance, the clock on the wall, and where effects and counts go."""

    config: RouterConfig
    #: The name of this node.
    node: str
    #: For choices among equals.
    rng: random.Random
    #: For names that nobody may guess.
    secrets: random.Random
    spool: SpoolLimits = field(default_factory=SpoolLimits)
    identity: Identity = field(default_factory=Identity)
    #: Whether a subscription of a queue that starts with `!` is an exception (R125).
    exceptions: bool = True
    out: Outbox = field(default_factory=Outbox)
    counters: Counters = field(default_factory=Counters)
    #: Wall time less the time of this process, in ms; the shell keeps it.
    wall_offset_ms: int = 0
    alarms: Alarms = field(init=False)

    def __post_init__(self) -> None:
        """Watch with the limits of this node."""
        self.alarms = Alarms(self.config, self.spool, self.out)

    def wall_ms(self, now: float) -> int:
        """Give the wall time in ms that belongs to a time of this process."""
        return int(now * 1000) + self.wall_offset_ms
