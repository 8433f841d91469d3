"""What every part of the router stands on, made once when it starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from router.ground.config import Identity, SpoolLimits
from router.ground.counters import Counters
from router.ground.effects import Outbox

if TYPE_CHECKING:
    import random

    from router.ground.config import RouterConfig


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

    def wall_ms(self, now: float) -> int:
        """Give the wall time in ms that belongs to a time of this process."""
        return int(now * 1000) + self.wall_offset_ms
