"""Changes the number of workers while clients stay connected: hold rounds, drain, assign the slots again.

Go on.

Nothing is lost: rounds that were held are cut for the new table. Clients learn the table last; a batch that
was cut by the old one is cut again by the router.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from angarium import slots, wire
from angarium.errors import AngariumError
from router.ground.ground import nothing
from router.matching.shards import ShardState

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.ground.ground import Outbox
    from router.matching.rounds import Rounds
    from router.matching.shards import Shard, Shards
    from router.sessions.interest import Interest
    from router.sessions.round import Part
    from router.sessions.session import Session
    from router.sessions.session_table import SessionTable


class Scaling:
    """One change of the number of workers at a time; a newer wish replaces one that waits."""

    def __init__(
        self,
        shards: Shards,
        rounds: Rounds,
        interest: Interest[Session],
        sessions: SessionTable,
        outbox: Outbox,
        may_leave: Callable[[int, float], bool],
        on_left: Callable[[int, float], None],
    ) -> None:
        """Begin without a change; `may_leave` tells whether the workers from an index on have stored everything."""
        self._shards = shards
        self._rounds = rounds
        self._interest = interest
        self._sessions = sessions
        self._outbox = outbox
        self._may_leave = may_leave
        self._on_left = on_left
        #: The number that was asked for last.
        self.target = len(shards.shards)
        #: The number that is wanted while rounds that are out retire, else None.
        self._wanted: int | None = None
        #: Called with the number when a change begins.
        self.on_begin: Callable[[int], None] = nothing

    def begin(self, workers: int, now: float) -> None:
        """Change to so many workers; the supervisor sees to the processes."""
        self._wanted = self.target = workers
        self._rounds.held = True
        self.on_begin(workers)
        self.step(now)

    def step(self, now: float) -> None:
        """Go on with a change, if there is one, as far as the workers are."""
        if not self._rounds.held:
            return
        if self._wanted is not None:
            if any(_is_busy(shard) for shard in self._shards.shards):
                return
            if not self._may_leave(self._wanted, now):
                return
            self._deal(self._wanted)
            self._on_left(self._wanted, now)
            self._wanted = None
        if self._shards.all_ready:
            self._finish(now)

    def _deal(self, workers: int) -> None:
        shards = self._shards
        replays = [replay for shard in shards.shards for replay in shard.take_replays()]
        parked = [session for shard in shards.shards for session in shard.waiting.take_all()]
        self._rounds.hold_sessions(parked)
        table = slots.slot_table(workers)
        shards.resize(workers, table)
        self._interest.rehome(table)
        for shard in shards.shards:
            if shard.state is not ShardState.DOWN:
                shards.start(shard, shard.incarnation)
        for replay in replays:
            self._rounds.hand_elsewhere(replay, _recut([replay.part], shards))

    def _finish(self, now: float) -> None:
        shards = self._shards
        frames = [wire.TABLE, wire.pack([shards.epoch, shards.table])]
        for session in self._sessions:
            self._outbox.send(session, frames)
        for session in self._rounds.held_sessions:
            for a_round in session.pending:
                a_round.parts = _recut(a_round.parts, shards)
                a_round.waiting = len(a_round.parts)
        self._rounds.resume(now)


def _is_busy(shard: Shard) -> bool:
    """Tell whether a worker has something to answer; what one that is down had goes to the others."""
    return bool(shard.outstanding) or (bool(shard.replays) and shard.state is not ShardState.DOWN)


def _recut(parts: list[Part], shards: Shards) -> list[Part]:
    """Cut the parts of a round that waited; a malformed one goes to a worker as it is, which refuses it."""
    try:
        return shards.recut(parts)
    except AngariumError:
        return [replace(parts[0], worker=0)]
