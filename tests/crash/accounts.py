"""What a campaign was promised and what it got: lines published, acknowledged and consumed, and the verdict.

The model is that of sets: attempted, acknowledged, got; and what follows from them: lost, duplicated,
unexpected, out of order.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Account:
    """One queue of one round."""

    queue: str
    #: Whether a line may come again, if it says so (a consumer that lives through faults).
    redelivers: bool
    #: Line -> how often it came.
    got: dict[int, int] = field(default_factory=dict)
    #: Lines that came again without the redelivered flag.
    unflagged: list[int] = field(default_factory=list)
    #: Lines that came for the first time after a later one.
    late: list[int] = field(default_factory=list)
    _newest: int = -1

    def take(self, line: int, *, redelivered: bool) -> None:
        """A consumer got a line."""
        times = self.got.get(line, 0)
        self.got[line] = times + 1
        if times and not (redelivered and self.redelivers):
            self.unflagged.append(line)
        if not times:
            if line < self._newest and not redelivered:
                self.late.append(line)
            self._newest = max(self._newest, line)

    def judge(
        self, attempted: int, acknowledged: set[int], refused: frozenset[int] = frozenset()
    ) -> dict[str, list[int]]:
        """Give what is wrong, by kind; nothing if all is well."""
        found = {
            "lost": sorted(acknowledged - set(self.got)),
            "duplicated": sorted(set(self.unflagged)),
            "unexpected": sorted(line for line in self.got if not 0 <= line < attempted),
            "refused": sorted(refused & set(self.got)),
            "out_of_order": self.late,
        }
        return {kind: lines for kind, lines in found.items() if lines}
