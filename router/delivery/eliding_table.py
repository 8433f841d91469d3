"""The topics that are tracked for eliding on behalf of one session.

`eliding` decides what to hold and when to send.
"""

from __future__ import annotations


class Topic:
    """One topic tracked for one session."""

    __slots__ = ("held", "held_classes", "ready")

    def __init__(self) -> None:
        #: The newest packed row not sent yet, or None.
        self.held: bytes | None = None
        self.held_classes = 0
        #: True when the delay is over and only congestion keeps `held` back.
        self.ready = False


class ElidingTable:
    """The tracked topics of one session."""

    __slots__ = ("delay_s", "event_raised", "peak", "ready", "topics", "topics_max")

    def __init__(self, delay_ms: int, topics_max: int) -> None:
        self.delay_s = delay_ms / 1000
        self.topics_max = topics_max
        #: In the order in which tracking began.
        self.topics: dict[str, Topic] = {}
        #: Topics whose `ready` is True, in the order in which they became it.
        self.ready: dict[str, None] = {}
        self.peak = 0
        #: The event for reaching the maximum is raised once per client (R42).
        self.event_raised = False

    def __len__(self) -> int:
        return len(self.topics)

    def validate(self) -> None:
        """Check the sentences above."""
        assert len(self.topics) <= self.topics_max
        assert list(self.ready) == [
            t for t in self.ready if self.topics[t].ready and self.topics[t].held is not None
        ]
