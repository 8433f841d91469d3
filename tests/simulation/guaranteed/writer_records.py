"""What a writer staged, and which of it was committed."""

from __future__ import annotations

from tests.simulation.event_history import FOREVER

#: What a staged message carries in its payload begins with this letter.
STAGED_MARK = "s"


class Attempt:
    """One way to write a batch: its rows are published together, or none is."""

    def __init__(self, number: int) -> None:
        self.number = number
        #: What -> the queue that it is for.
        self.rows: dict[str, str] = {}
        #: When a commit was asked for first.
        self.committed_at = FOREVER


class Batch:
    """One batch of a sink."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.attempts: list[Attempt] = []
        #: When it was told first that the batch is published; for each time, whether that commit did it.
        self.answered_at = FOREVER
        self.answers: list[bool] = []

    def begin(self) -> Attempt:
        """Begin another attempt."""
        self.attempts.append(Attempt(len(self.attempts)))
        return self.attempts[-1]


class WriterRecord:
    """One sink."""

    def __init__(self, vpn: str, sink: str) -> None:
        self.vpn = vpn
        self.sink = sink
        self.batches: list[Batch] = []
        self._rows = 0
        #: (time, batch, code).
        self.refusals: list[tuple[float, int, int]] = []

    def __repr__(self) -> str:
        return f"sink {self.sink!r} of {self.vpn}"

    def begin(self) -> Batch:
        """Begin the next batch."""
        self.batches.append(Batch(len(self.batches)))
        return self.batches[-1]

    def name_row(self, attempt: Attempt, queue: str) -> str:
        """Give what another row carries."""
        self._rows += 1
        what = f"{STAGED_MARK}{self.sink}-{self._rows}"
        attempt.rows[what] = queue
        return what
