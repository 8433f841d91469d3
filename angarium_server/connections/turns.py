"""How much of a loop's time unauthenticated connections get: a storm of logins delays nobody who is logged in by much.

A *turn* is what a loop does between two waits for input. In each of them unauthenticated connections are served for a
slice of CPU time: `SLICE_S`, or a share of what the process did besides in the turn before, if that is more. Who comes
when it is used up, or behind others who wait, is put off to the next turns. While many are put off nobody else is
accepted; the system keeps those. So the limit is the work, and no number per second:

    besides them, in a turn     for logins        of the loop's time
    nothing                     2 ms, again       all
    4 ms                        2 ms              a third
    20 ms                       10 ms             a third
    100 ms                      20 ms             a sixth

A state machine without clock and sockets: `door` measures, and says what came.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

#: What a turn has for logins at least: some of them, and less than a message waits for in a busy node anyway.
SLICE_S: Final = 0.002
#: Of what the process did besides. A message waits for one turn, which becomes half as long again at most.
SHARE: Final = 0.5
#: And at most, or one long step would be followed by a second one.
SLICE_MAX_S: Final = 0.02
#: Connections that are put off before nobody else is accepted: what they cost is over in a fraction of a second.
PUT_OFF_MAX: Final = 128

T = TypeVar("T")


class LoginTurns(Generic[T]):
    """Whose turn it is among those who have not logged in."""

    def __init__(self) -> None:
        self._left_s = SLICE_S
        #: CPU time that unauthenticated connections took in this turn.
        self._spent_s = 0.0
        #: In the order in which they came.
        self._put_off: dict[T, None] = {}
        #: How often somebody was put off.
        self.put_off_total = 0

    def __len__(self) -> int:
        """Count those who wait."""
        return len(self._put_off)

    def __contains__(self, connection: T) -> bool:
        """Tell whether somebody waits."""
        return connection in self._put_off

    @property
    def is_calm(self) -> bool:
        """Whether this turn had no unauthenticated connections, and none wait for the next one."""
        return not self._spent_s and not self._put_off

    @property
    def may_serve(self) -> bool:
        """Whether one who comes is served at once: there is time, and nobody waits."""
        return self._left_s > 0 and not self._put_off

    @property
    def may_accept(self) -> bool:
        """Whether a new connection is taken."""
        return self._left_s > 0 and len(self._put_off) < PUT_OFF_MAX

    def put_off(self, connection: T) -> None:
        """Have somebody wait, behind those who do already."""
        if connection not in self._put_off:
            self._put_off[connection] = None
            self.put_off_total += 1

    def next(self) -> T | None:
        """Give who has waited longest, if there is time; he waits no more."""
        if self._left_s <= 0 or not self._put_off:
            return None
        first = next(iter(self._put_off))
        del self._put_off[first]
        return first

    def forget(self, connection: T) -> None:
        """Somebody is gone, or has logged in."""
        self._put_off.pop(connection, None)

    def spend(self, seconds: float) -> None:
        """Unauthenticated connections took so much CPU time."""
        self._spent_s += seconds
        self._left_s -= seconds

    def end(self, used_s: float) -> None:
        """Begin a turn; in the one that ended the process used so much CPU time, that of logins included."""
        besides_s = max(0.0, used_s - self._spent_s)
        self._left_s = min(max(SLICE_S, SHARE * besides_s), SLICE_MAX_S)
        self._spent_s = 0.0

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert self._spent_s >= 0
        assert self._left_s <= SLICE_MAX_S
