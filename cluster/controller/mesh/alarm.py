"""Which issues of the mesh operators are told: each once when it has lasted, and once when it is over.

A node that is restarted, or a link that is created on one side and then on the other, is an issue for a moment. So what
comes or goes has to last before anybody hears of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cluster.controller.mesh.topology import Issue

#: Longer than a process takes to be started again, and than two reports take to arrive.
HOLD_S: Final = 3.0
#: So much later an issue that was told before counts as over: after a start it takes a while until all are heard.
EARLIER_GRACE_S: Final = 10.0
#: Issues that are told, or wait for it; above that, more say nothing new.
ISSUES_MAX: Final = 1_000

Key = tuple[str, tuple[str, ...]]


class News(NamedTuple):
    """What changed for operators: issues that came, and issues that are over, with their last texts."""

    raised: list[Issue]
    cleared: list[Issue]


class Alarm:
    """Remembers which issues operators know."""

    def __init__(self, told: Iterable[Issue] = ()) -> None:
        """Begin with what operators were told before, and was not over yet."""
        #: Told, with the newest text.
        self._told: dict[Key, Issue] = {issue.key: issue for issue in told}
        #: Those of `_told` that were not there yet at any look.
        self._earlier: dict[Key, None] = dict.fromkeys(self._told)
        #: Issue -> since when it is there and not told, or told and not there; never both.
        self._since: dict[Key, float] = {}

    @property
    def is_busy(self) -> bool:
        """Whether time alone may give news, or operators know of an issue."""
        return bool(self._told or self._since)

    def look(self, issues: list[Issue], now: float) -> News:
        """Take the issues of this moment; give what is to be told."""
        there = {issue.key: issue for issue in issues[:ISSUES_MAX]}
        changing = [key for key in {**self._told, **there} if (key in there) != (key in self._told)]
        self._since = {key: self._since.get(key, self._begin(key, now)) for key in changing}
        for key in there:
            self._earlier.pop(key, None)
        due = [key for key in changing if now - self._since[key] >= HOLD_S]
        raised = [there[key] for key in due if key in there]
        cleared = [self._told[key] for key in due if key not in there]
        for key in due:
            del self._since[key]
            self._earlier.pop(key, None)
            self._told.pop(key, None)
        self._told.update((issue.key, issue) for issue in raised)
        self._told.update((key, issue) for key, issue in there.items() if key in self._told)
        return News(raised, cleared)

    def _begin(self, key: Key, now: float) -> float:
        """Give from when on a change counts."""
        return now + EARLIER_GRACE_S if key in self._earlier else now

    def validate(self) -> None:
        """Check what the comments promise."""
        assert all(key == issue.key for key, issue in self._told.items())
        assert len(self._told) <= 2 * ISSUES_MAX
