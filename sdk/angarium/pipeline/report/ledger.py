"""What is known of one publisher's numbering while messages still come: the past in sums, the present in a `Numbering`.

It is kept as bytes between the batches of a live report. No I/O, no Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from angarium.pipeline.report.numbering import COUNT_MAX, GAPS_KEPT, Gap, Numbering, gap_of

if TYPE_CHECKING:
    from angarium.pipeline.report.numbering import Run

#: Figures of runs that can be added up.
_SUMS: Final = ("numbered", "missing", "gaps", "duplicates", "out_of_order")


class Ledger:
    """The figures of one publisher."""

    def __init__(self, reorder: int) -> None:
        self.numbering = Numbering(reorder)
        #: Of runs that can get no more numbers.
        self._runs = 0
        self._sums = dict.fromkeys(_SUMS, 0)
        self._highest: int | None = None
        self._largest: list[Gap] = []

    def row(self) -> dict[str, Any]:
        """Give the figures; what is awaited still counts as missing."""
        self._fold()
        sums, largest, highest = dict(self._sums), list(self._largest), self._highest
        for run in self.numbering.open:
            _add(sums, largest, run)
            highest = run.high if highest is None else max(highest, run.high)
        runs = self._runs + len(self.numbering.open)
        return {
            "runs": runs,
            "restarts": max(0, runs - 1),
            **sums,
            "highest": highest,
            "largest": [gap._asdict() for gap in sorted(largest, reverse=True)[:GAPS_KEPT]],
        }

    def to_bytes(self) -> bytes:
        """Give what `from_bytes` needs to go on later."""
        self._fold()
        past = [self._runs, self._sums, self._highest, self._largest]
        return msgspec.msgpack.encode([past, self.numbering.to_state()])

    @classmethod
    def from_bytes(cls, state: bytes) -> Ledger:
        """Go on where `to_bytes` was called."""
        past, numbering = msgspec.msgpack.decode(state)
        ledger = cls(numbering[0])
        ledger.numbering = Numbering.from_state(numbering)
        ledger._runs, ledger._sums, ledger._highest = past[:3]
        ledger._largest = [Gap(*gap) for gap in past[3]]
        return ledger

    def _fold(self) -> None:
        """Add what can change no more to the sums, so that a publisher that starts over a million times stays small."""
        for run in self.numbering.take_closed():
            self._runs += 1
            self._highest = run.high if self._highest is None else max(self._highest, run.high)
            _add(self._sums, self._largest, run)
            self._largest = sorted(self._largest)[-GAPS_KEPT:]


def _add(sums: dict[str, int], largest: list[Gap], run: Run) -> None:
    awaited = [gap_of(first, last, at_ms) for first, last, at_ms in run.holes]
    sums["numbered"] += run.numbered
    sums["missing"] = min(COUNT_MAX, sums["missing"] + run.missing + sum(gap.missing for gap in awaited))
    sums["gaps"] += run.gaps + len(awaited)
    sums["duplicates"] += run.duplicates
    sums["out_of_order"] += run.out_of_order
    largest += [*run.largest, *awaited]
