"""`python -m cluster.metronome --runtime DIR --index 0 --incarnation K` runs a metronome."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from angarium import errors
from angarium_server.process import Process, load_config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium_server.frames.control import TableRow

ROLE: Final = "metronome"
#: Its end takes so long, that others can be seen to wait for it.
LAST_BEAT_S: Final = 0.5

_log = logging.getLogger(ROLE)


class Runtime(msgspec.Struct, frozen=True):
    """What the supervisor writes for it."""

    node: str
    interval_s: float


class Metronome:
    """Beats; time is told to it."""

    def __init__(self, runtime: Runtime, now: float) -> None:
        self._runtime = runtime
        self.beats = 0
        self._due = now
        self._stop_due: float | None = None
        self._states: dict[str, str] = {}

    def tick(self, now: float) -> float:
        """Beat if it is time, and give how long it is until the next beat."""
        while self._due <= now:
            self.beats += 1
            self._due += self._runtime.interval_s
        return self._due - now

    def take_table(self, rows: Sequence[TableRow]) -> None:
        """Note how the other processes do."""
        self._states = {row.role: row.state for row in rows}

    def answer(self, operation: str, _arguments: Any) -> Any:
        """Answer the controller."""
        if operation != "stats":
            raise errors.error_for(errors.UNKNOWN_OPERATION, operation)
        return {"beats": self.beats, "interval_s": self._runtime.interval_s}

    def stopped(self, now: float) -> bool:
        """Tell whether the last beat has faded."""
        if self._stop_due is None:
            self._stop_due = now + LAST_BEAT_S
        return now >= self._stop_due

    def last_words(self) -> str:
        """Say what the others did at the end."""
        states = ", ".join(f"{role} {state}" for role, state in sorted(self._states.items()))
        return f"the metronome of {self._runtime.node} has stopped; others: {states}"


def main() -> None:
    """Run until it is told to stop."""
    process = Process.from_command_line(ROLE)
    try:
        runtime = load_config(process.runtime_dir, ROLE, Runtime)
        metronome = Metronome(runtime, time.monotonic())
        process.on_request(metronome.answer)
        process.on_table(metronome.take_table)
        process.ready({})
        process.run(metronome.tick, lambda: metronome.stopped(time.monotonic()))
        _log.info("%s", metronome.last_words())
    finally:
        process.close()


if __name__ == "__main__":
    main()
