"""Carries out decisions about stages: every home releases or drops them, whichever process dies meanwhile.

The controller decides durably and sends each router the list of unsettled decisions (`stages`). The router sends them
to the homes in the numbered streams of STOREs, in passes over all homes, one at a time; decisions that arrive during a
pass are in the next one. A home ignores a stage that it does not have, so a pass may be repeated, and is when

- a lane moved to another home meanwhile: perhaps neither of the two had its rows when the decision came;
- a home left before it stored the decision.

A pass begins only while every lane is complete at its home. So if no lane was handed over until all homes have the pass
on disk, nothing is left of its stages: the controller may forget them, and callers that wait for a release get their
answer.

No clock, no I/O; `router.publishers.publishing` hands the events here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from router.admission.streams import Streams
    from router.admission.usage import Usage
    from router.asking.asks import Asks
    from router.guaranteed.endpoints import Endpoints

    #: Called with the time when what was waited for is released.
    Done = Callable[[float], None]

#: Stages of one round; of more the others are the next.
ROUND_STAGES_MAX: Final = 10_000


class Settlement:
    """One round: every home is told of the same stages."""

    __slots__ = ("drop", "handovers", "homes", "release")

    def __init__(self, release: list[int], drop: list[int], handovers: int) -> None:
        self.release = release
        self.drop = drop
        #: How often a lane had got another home when it began.
        self.handovers = handovers
        #: STOREs of it that are not on disk.
        self.homes = 0


class _Waiter:
    """Somebody who waits until stages are released."""

    __slots__ = ("done", "missing")

    def __init__(self, missing: dict[int, None], done: Done) -> None:
        self.missing = missing
        self.done = done


class Settling:
    """All stages that are decided and not settled."""

    def __init__(
        self,
        streams: Streams,
        usage: Usage,
        endpoints: Endpoints,
        asks: Asks,
        wall_ms: Callable[[float], int],
    ) -> None:
        self._streams = streams
        self._usage = usage
        self._endpoints = endpoints
        self._asks = asks
        self._wall_ms = wall_ms
        #: Stages that wait for a round, in the order of the decisions.
        self._release: dict[int, None] = {}
        self._drop: dict[int, None] = {}
        #: The round that is under way, and whether all homes have it.
        self._round: Settlement | None = None
        self._is_stored = False
        self._waiters: list[_Waiter] = []
        #: Stages that all homes have settled and the controller does not know, and whether it is being told.
        self._settled: dict[int, None] = {}
        self._dropped: dict[int, None] = {}
        self._is_telling = False
        #: Whether a stage that was decided is not settled at all homes.
        self.is_open = False
        #: Totals for the operators.
        self.released = self.dropped = 0

    def settle(
        self, release: Iterable[int], drop: Iterable[int], now: float, done: Done | None = None
    ) -> None:
        """Carry out a decision, which may be under way already; `done` is called when all is released."""
        missing = {stage: None for stage in release if stage not in self._settled}
        under_way = [] if self._round is None else self._round.release
        self._release.update((stage, None) for stage in missing if stage not in under_way)
        going = (
            dict.fromkeys(self._dropped)
            if self._round is None
            else dict.fromkeys([*self._dropped, *self._round.drop])
        )
        self._drop.update((stage, None) for stage in drop if stage not in going)
        if done is not None and missing:
            self._waiters.append(_Waiter(missing, done))
        self.go_on(now)
        if done is not None and not missing:
            done(now)

    # -- rounds ----------------------------------------------------------------------------------------------

    def settled(self, settlement: Settlement) -> None:
        """All homes have a round on disk."""
        if settlement is self._round:
            self._is_stored = True

    def again(self, settlement: Settlement) -> None:
        """A home left before it stored a round: another one has to come."""
        if settlement is self._round:
            self._put_back()

    def _put_back(self) -> None:
        assert self._round is not None
        self._release = {**dict.fromkeys(self._round.release), **self._release}
        self._drop = {**dict.fromkeys(self._round.drop), **self._drop}
        self._round, self._is_stored = None, False

    def go_on(self, now: float) -> None:
        """End the round if it can be, and begin the next."""
        if self._round is not None and self._is_stored:
            self._end_round(now)
        if self._round is None and (self._release or self._drop) and self._may_begin():
            self._begin(now)
        self.is_open = bool(self._release or self._drop or self._round)

    def _may_begin(self) -> bool:
        return self._streams.all_reported and self._usage.all_at_home

    def _begin(self, now: float) -> None:
        release = list(self._release)[:ROUND_STAGES_MAX]
        drop = list(self._drop)[: ROUND_STAGES_MAX - len(release)]
        for stage in release:
            del self._release[stage]
        for stage in drop:
            del self._drop[stage]
        self._round = Settlement(release, drop, self._endpoints.handovers)
        self._streams.settle(release, drop, self._wall_ms(now), self._round)

    def _end_round(self, now: float) -> None:
        one = self._round
        assert one is not None
        if one.handovers != self._endpoints.handovers:
            self._put_back()
            return
        self._round, self._is_stored = None, False
        self.released += len(one.release)
        self.dropped += len(one.drop)
        self._settled.update(dict.fromkeys(one.release))
        self._dropped.update(dict.fromkeys(one.drop))
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            for stage in one.release:
                waiter.missing.pop(stage, None)
            if waiter.missing:
                self._waiters.append(waiter)
            else:
                waiter.done(now)
        self._tell()

    # -- the controller --------------------------------------------------------------------------------------

    def told(self, decided: dict[str, Any], now: float) -> None:
        """The controller tells which decisions are not settled, as far as it knows."""
        self.settle(decided["release"], decided["drop"], now)

    def retry(self) -> None:
        """Tell the controller what it did not take before."""
        if not self._is_telling:
            self._tell()

    def _tell(self) -> None:
        if self._is_telling or not (self._settled or self._dropped):
            return
        self._is_telling = True
        release, drop = list(self._settled), list(self._dropped)
        self._asks.ask(
            "stage.settled",
            {"release": release, "drop": drop},
            lambda ok, _value, _now: self._heard(release, drop, ok=ok),
        )

    def _heard(self, release: Sequence[int], drop: Sequence[int], *, ok: bool) -> None:
        self._is_telling = False
        if not ok:
            return  # the next sweep tells it again
        for stage in release:
            self._settled.pop(stage, None)
        for stage in drop:
            self._dropped.pop(stage, None)
        self._tell()

    def stats(self) -> dict[str, int]:
        """Give counters, and how many stages are being settled."""
        under_way = 0 if self._round is None else len(self._round.release) + len(self._round.drop)
        return {
            "stages_settling": under_way + len(self._release) + len(self._drop),
            "stages_released": self.released,
            "stages_dropped": self.dropped,
        }

    def validate(self) -> None:
        """Check that every caller waits for something that will come."""
        coming = dict.fromkeys([*self._release, *(self._round.release if self._round is not None else ())])
        for waiter in self._waiters:
            assert waiter.missing
            assert all(stage in coming for stage in waiter.missing)
        assert self.is_open or not (self._release or self._drop or self._round)
        assert self._round is not None or not self._is_stored
