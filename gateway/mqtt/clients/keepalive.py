"""Keep alive: a client that is silent for one and a half times what it promised is gone (5.0 section 3.1.2.10)."""

from __future__ import annotations

import math
from typing import Final

#: So many times the keep alive may a client be silent.
PATIENCE: Final = 1.5


class KeepAlive:
    """The silence of one client."""

    __slots__ = ("heard_at", "interval_s")

    def __init__(self, now: float) -> None:
        #: What was agreed; 0: it may be silent for ever.
        self.interval_s = 0
        #: When something came last, be it a part of a packet.
        self.heard_at = now

    @property
    def deadline(self) -> float:
        """Give when it has been silent for too long, if nothing comes until then."""
        return self.heard_at + PATIENCE * self.interval_s if self.interval_s else math.inf
