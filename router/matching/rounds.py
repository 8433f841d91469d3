"""Rounds: one batch of one session on its way through matching, and the order that they keep.

Sharding by topic breaks the publisher's order across topics; rounds restore it (design section 5). Each
PUBLISH becomes a round, numbered by its session; it is handed to all its workers in one step; whatever
order the answers come in, the rounds of a session retire in the order of their numbers, and only then
anything is sent on.

A worker has at most `window` frames out. A session whose next round finds a worker full waits in that
worker's line; when its turn comes and another of its workers is full, it may overdraw that one up to twice
the window, so that nobody waits for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from angarium import errors, slots, wire
from router.matching.round import ChoiceResult, Part, PlainResult, Round
from router.matching.shards import Shard, Shards, ShardState

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.session import Session


class Rounds:
    """Hands rounds to workers, gathers their answers and retires them in order."""

    def __init__(
        self,
        shards: Shards,
        window: int,
        on_retire: Callable[[Round[Session], float], None],
        on_lost: Callable[[Session, int], None],
    ) -> None:
        self._shards = shards
        self._window = window
        self._on_retire = on_retire
        self._on_lost = on_lost
        self._reference = 0
        #: True while nothing may be dispatched (the number of workers is changing).
        self.held = False
        #: Sessions whose next round waits for the end of the hold.
        self.held_sessions: list[Session] = []

    def accept(self, a_round: Round[Session], now: float) -> None:
        """Take a round that was checked, and dispatch it if its turn has come."""
        session = a_round.session
        session.open_rounds.append(a_round)
        session.pending.append(a_round)
        session.unretired_bytes += a_round.bytes
        if not session.parked:
            self.dispatch(session, now)

    def accept_answered(self, a_round: Round[Session], now: float) -> None:
        """Take a round whose answers are known already; it retires when its turn comes."""
        session = a_round.session
        a_round.waiting = 0
        session.open_rounds.append(a_round)
        session.unretired_bytes += a_round.bytes
        self._retire(session, now)

    def dispatch(self, session: Session, now: float) -> None:
        """Hand over the pending rounds of a session until one has to wait."""
        pending = session.pending
        while pending:
            if self.held:
                session.parked = True
                self.held_sessions.append(session)
                return
            blocked = self._blocking_shard(pending[0])
            if blocked is not None:
                self._park(session, blocked)
                return
            self._hand_over(pending.popleft(), now)

    def _blocking_shard(self, a_round: Round[Session]) -> Shard | None:
        limit = self._window * 2 if a_round.waited else self._window
        for part in a_round.parts:
            shard = self._shards.shards[part.worker]
            if shard.state is not ShardState.READY:
                if not shard.given_up:
                    return shard
            elif len(shard.outstanding) >= limit:
                return shard
        return None

    def _hand_over(self, a_round: Round[Session], now: float) -> None:
        shards = self._shards
        # The rules of this moment: those of the moment it came may be unknown to the workers by now.
        a_round.rules_id = a_round.session.publish_rules_id
        for position, part in enumerate(a_round.parts):
            shard = shards.shards[part.worker]
            if shard.state is not ShardState.READY:
                self._on_lost(a_round.session, part.rows)
                a_round.waiting -= 1
                continue
            self._reference += 1
            shard.outstanding[self._reference] = (a_round, position)
            head = [
                shards.incarnation,
                self._reference,
                a_round.session.vpn.id,
                a_round.rules_id,
                part.rows <= LEARN_ROWS_MAX,
                part.rows,
            ]
            shards.send(shard, [wire.MATCH, wire.pack(head), part.batch])
        if not a_round.waiting:
            self._retire(a_round.session, now)

    def release(self, shard: Shard, now: float) -> None:
        """A worker has room, or was given up: let those who wait for it go on."""
        while shard.waiting and (shard.given_up or self._has_room(shard)):
            session = shard.waiting.pop()
            session.parked = False
            self._dispatch_one(session, now)

    def _has_room(self, shard: Shard) -> bool:
        return shard.state is ShardState.READY and len(shard.outstanding) < self._window

    def _dispatch_one(self, session: Session, now: float) -> None:
        """Hand over one pending round of a session whose turn came; behind others it queues up again."""
        if self.held:
            self.dispatch(session, now)
            return
        blocked = self._blocking_shard(session.pending[0])
        if blocked is None:
            self._hand_over(session.pending.popleft(), now)
            if not session.pending:
                return
            blocked = self._shards.shards[session.pending[0].parts[0].worker]
            if not blocked.waiting:
                self.dispatch(session, now)
                return
        self._park(session, blocked)

    def _park(self, session: Session, blocked: Shard) -> None:
        session.pending[0].waited = True
        session.parked = True
        blocked.waiting.push(session)

    def hold_sessions(self, sessions: list[Session]) -> None:
        """Let sessions that waited for a worker wait for the end of the hold instead."""
        self.held_sessions.extend(sessions)

    def resume(self, now: float) -> None:
        """End a hold: everybody who waited goes on."""
        self.held = False
        sessions, self.held_sessions = self.held_sessions, []
        for session in sessions:
            session.parked = False
            self.dispatch(session, now)

    def answer(
        self, shard: Shard, header: list[Any], body: bytes | None, now: float
    ) -> Round[Session] | None:
        """Take a RESULT; gives the round it belongs to, or None for a stale one.

        The sets it names are looked up at once: the worker may retire its numbers before the round itself
        retires.
        """
        _, reference, _, _, plain, choice, _, _, _ = header
        entry = shard.outstanding.pop(reference, None)
        if entry is None:
            return None
        a_round, position = entry
        if body is None:
            batches: list[bytes] = [a_round.parts[position].batch]
        else:
            batches = wire.unpack(body)
        for (set_id, rows, _, classes), batch in zip(plain, batches, strict=False):
            a_round.plain.append(PlainResult(shard.find_set(set_id), rows, classes, batch))
        for (set_id, plain_id, dto, rows, _, classes), batch in zip(
            choice, batches[len(plain) :], strict=False
        ):
            plain_set = shard.find_set(plain_id) if plain_id else None
            a_round.choice.append(ChoiceResult(shard.find_set(set_id), plain_set, dto, rows, classes, batch))
        self._answered(a_round, now)
        return a_round

    def lose(self, lost: list[tuple[Round[Session], int]], now: float) -> None:
        """Complete empty, and count, what was out at a worker that died."""
        for a_round, position in lost:
            self._on_lost(a_round.session, a_round.parts[position].rows)
            self._answered(a_round, now)

    def _answered(self, a_round: Round[Session], now: float) -> None:
        a_round.waiting -= 1
        if not a_round.waiting:
            self._retire(a_round.session, now)

    def _retire(self, session: Session, now: float) -> None:
        rounds = session.open_rounds
        while rounds and not rounds[0].waiting:
            a_round = rounds.popleft()
            session.unretired_bytes -= a_round.bytes
            session.retired_round = a_round.number
            self._on_retire(a_round, now)


#: Rounds with at most so many rows teach the router the matches of their topics (the short way serves small
#: rounds only).
LEARN_ROWS_MAX = 4


def partition(batch: bytes, rows: int, table: bytes) -> list[Part]:
    """Split an unopened batch by the owners of its topics.

    Raises:
        InvalidRequestError: it is no batch of so many rows (40001).
    """
    # The number of rows is looked at first and their types while they are decoded: a batch that lies must
    # not cost memory or time.
    if wire.array_length(batch) != rows:
        raise errors.error_for(
            errors.MALFORMED_FRAME, "the batch has another number of rows than its header says"
        )
    try:
        opened = _decode_rows(batch)
    except (ValueError, RecursionError) as error:
        raise errors.error_for(errors.MALFORMED_FRAME, f"no batch of rows: {error}") from None
    parts = slots.partition(opened, table)
    return [Part(worker, len(part), _encode_rows(part)) for worker, part in parts.items()]


#: A row with its meta left packed: what else is wrong with it is the worker's to say.
CutRow = tuple[int, str, int, msgspec.Raw, bytes | None, bytes]
_decode_rows = msgspec.msgpack.Decoder(list[CutRow]).decode
_encode_rows = msgspec.msgpack.Encoder().encode
