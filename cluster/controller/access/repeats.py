"""Refusals that repeat: of identical ones of one address the first of a minute is written down, and how many came.

Somebody who is refused can ask again without end, and the newest entries, which are what operators look at, would be
his alone. So the first is written at once, the others are counted, and a line with their number follows when the
minute is over. Of different refusals from one address so many are told apart; what is beyond counts as one.

Pure; `audit_log` makes the lines.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How long identical ones are counted instead of written.
FOLDED_S: Final = 60.0
#: Different ones of one address and door in that time.
DISTINCT_MAX: Final = 20
#: Of all addresses; with one more, the oldest is told of.
OPEN_MAX: Final = 2_000

_Key = tuple[str, str, str]


@dataclass(slots=True)
class _Repeat:
    """One refusal that was written, and those that were not."""

    began_s: float
    began: str
    #: The last of them.
    entry: dict[str, Any]
    #: Those that were not written.
    count: int = 0


class Repeats:
    """The refusals of the last minute."""

    def __init__(self) -> None:
        #: Door, address and what was refused -> how often; the oldest first.
        self._open: OrderedDict[_Key, _Repeat] = OrderedDict()
        #: Door and address -> how many of these are theirs.
        self._distinct: Counter[tuple[str, str]] = Counter()

    @property
    def is_counting(self) -> bool:
        """Whether there is a refusal whose minute is not over."""
        return bool(self._open)

    def folds(self, entry: dict[str, Any], time_s: float) -> bool:
        """Count a refusal; tell whether that is all, because one like it was written.

        Args:
            entry: as it would be written, with `time`.
            time_s: the same time.
        """
        place = (entry["door"], entry.get("address", ""))
        key = (*place, repr({name: value for name, value in entry.items() if name not in ("number", "time")}))
        if key not in self._open and self._distinct[place] >= DISTINCT_MAX:
            key = (*place, "")
            entry = {**entry, "is_various": True}
        repeat = self._open.get(key)
        if repeat is None:
            self._open[key] = _Repeat(time_s, entry["time"], entry)
            self._distinct[place] += 1
            return False
        repeat.entry = entry
        repeat.count += 1
        return True

    def due(self, time_s: float) -> Iterator[dict[str, Any]]:
        """Give what is to be written of those whose minute is over, and of the oldest if there are too many."""
        while self._open:
            oldest = next(iter(self._open.values()))
            # A clock that was set back must not keep them for long.
            if 0 <= time_s - oldest.began_s < FOLDED_S and len(self._open) <= OPEN_MAX:
                return
            yield from self._ended()

    def all(self) -> Iterator[dict[str, Any]]:
        """Give what is to be written of all: this is the end."""
        while self._open:
            yield from self._ended()

    def _ended(self) -> Iterator[dict[str, Any]]:
        key, repeat = self._open.popitem(last=False)
        self._distinct[key[:2]] -= 1
        if not self._distinct[key[:2]]:
            del self._distinct[key[:2]]
        if repeat.count:
            yield {**repeat.entry, "repeated": repeat.count, "since": repeat.began}

    def validate(self) -> None:
        """Assert what the attribute comments say."""
        assert self._distinct == Counter(key[:2] for key in self._open), "addresses are miscounted"
