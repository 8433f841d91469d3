"""Rounds: one batch of one session on its way through matching, and the order that they keep.

Sharding by topic breaks the publisher's order across topics; rounds restore it (R3). Each PUBLISH becomes a
round, numbered by its session; it is handed to all its workers in one step; whatever order the answers come
in, the rounds of a session retire in the order of their numbers, and nothing is sent on before that.

A worker has at most `window` frames out. A session whose next round finds a worker full waits in that
worker's line; when its turn comes and another of its workers is full, it may overdraw that one up to twice
the window, so that nobody waits for ever. So may a round that is the only one of its session, which never waits for the
batches of one who publishes a lot. A frame whose topics are so dear that it waits for turns at its worker does
not count; its session is held back instead (`router.matching.effort`).

What was out at a worker that dies: direct rows are lost and counted at once. Guaranteed rows are handed to the
successor, and only their sessions wait for it. One of these frames may have killed the worker, so they are
replayed one at a time; one that was alone at `DEATHS_MAX` deaths in a row is refused, and costs its session. The
death of a worker whose spool failed does not count.

What one session published is sent on for a step at most; then others have their turn (`router.matching.pieces`).
"""

from __future__ import annotations

from collections import deque
from itertools import repeat
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from angarium import errors, slots, wire
from angarium.errors import error_for
from angarium_server.frames.frame import MalformedFrameError, encode, read
from angarium_server.frames.gateways import CostlyFrame
from angarium_server.frames.matching import Match, Result
from router.matching.pieces import MEMBER_WORK_MAX
from router.matching.shards import FairQueue, Replay, Shard, Shards, ShardState
from router.sessions.producer import SEQUENCE_MAX, over
from router.sessions.round import ChoiceResult, EndpointResult, Inside, Part, PlainResult, Round

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from angarium_server.frames.matching import ChoiceHead, EndpointHead, Work
    from router.delivery.egress import Egress
    from router.ground.config import RouterConfig
    from router.matching.effort import Effort
    from router.matching.pieces import FanOut
    from router.sessions.session import Session

_Natural = Annotated[int, msgspec.Meta(ge=0)]
_Positive = Annotated[int, msgspec.Meta(ge=1)]
#: Worker and rows of each part; more parts than there can be workers are no round.
_Parts = Annotated[list[tuple[_Natural, _Positive]], msgspec.Meta(max_length=slots.MAX_WORKERS)]
#: Round, epoch, flush, parts.
_Direct = tuple[_Positive, _Natural, bool, _Parts]
#: The same, the handle that `producer.open` answered, and the sequence of the row with index 0.
_Guaranteed = tuple[
    _Positive,
    _Natural,
    bool,
    _Parts,
    _Positive,
    Annotated[int, msgspec.Meta(ge=-SEQUENCE_MAX, le=SEQUENCE_MAX)],
]
#: The same, and whether rows that match nothing are to be reported.
_Reporting = tuple[_Positive, _Natural, bool, _Parts, bool]
#: The same of a link, with the indices of rows for which a client is to be chosen.
_Open = tuple[_Positive, _Natural, bool, _Parts, list[_Natural]]
#: One of those two of a gateway: with the indices of rows that its clients have yet to get, or to be reported.
_Given = tuple[_Positive, _Natural, bool, _Parts, list[_Natural] | bool]
#: The same, with classes (`wire.CLASS_...`) and topics of the rows of its only batch.
_Described = tuple[
    _Positive,
    _Natural,
    bool,
    Annotated[list[tuple[_Natural, _Positive]], msgspec.Meta(min_length=1, max_length=1)],
    list[_Natural],
    Annotated[int, msgspec.Meta(ge=1, lt=wire.CLASS_DTO)],
    Annotated[list[str], msgspec.Meta(min_length=1, max_length=wire.FEW_TOPICS_MAX)],
]
_decode_described = msgspec.msgpack.Decoder(_Described).decode
_decode_open = msgspec.msgpack.Decoder(_Open).decode
_decode_given = msgspec.msgpack.Decoder(_Given).decode
_decode_reporting = msgspec.msgpack.Decoder(_Reporting).decode
_decode_direct = msgspec.msgpack.Decoder(_Direct).decode
_decode_guaranteed = msgspec.msgpack.Decoder(_Guaranteed).decode
_decode_body = msgspec.msgpack.Decoder(list[bytes]).decode
#: Classes of rows that are not said to be inside: a worker of the other node has to look at each of them.
_NOT_DESCRIBED: Final = wire.CLASS_DTO | wire.CLASS_RETAIN
#: How MessagePack begins arrays of seven, six, five and four.
_SEVEN_FIELDS: Final = wire.array_head(7)
_SIX_FIELDS: Final = wire.array_head(6)
_FIVE_FIELDS: Final = wire.array_head(5)
_FOUR_FIELDS: Final = wire.array_head(4)


class Rounds:
    """Hands rounds to workers, gathers their answers and retires them in order."""

    #: Tells whether a guaranteed round can be judged now; its session is `unjudged` until `retry`. Admission sets it.
    may_admit: Callable[[Round[Session]], bool]
    #: Is told of a session that is over, or is about to leave, when a round of it has left. The router sets it.
    on_left: Callable[[Session, float], None]

    def __init__(
        self,
        shards: Shards,
        egress: Egress,
        window: int,
        on_retire: Callable[[Round[Session], float], None],
        on_lost: Callable[[Session, int], None],
        on_deadly: Callable[[Session, float], None],
        effort: Effort,
        fan_out: FanOut,
    ) -> None:
        """Begin without rounds.

        Args:
            shards: the workers.
            egress: sends publishers what has retired.
            window: frames that may be out at one of them.
            on_retire: takes each round when its turn to be sent on has come.
            on_lost: is told of direct rows that a worker took with it.
            on_deadly: is told of a session whose batch ended a worker again and again.
            effort: knows who is held back because of what its messages cost.
            fan_out: knows what it costs to send them on.
        """
        self._effort, self._fan_out, self._crowds = effort, fan_out, fan_out.crowds
        self._crowds.push = self._push
        self._shards = shards
        self._window = window
        self._on_retire = on_retire
        self._on_lost = on_lost
        self._on_deadly = on_deadly
        self._egress = egress
        self._reference = 0
        #: What has retired since the router started.
        self.retired = self.rows_in = self.bytes_in = 0
        #: True while nothing may be dispatched (the number of workers is changing).
        self.held = False
        #: Sessions whose next round waits for the end of the hold.
        self.held_sessions: list[Session] = []
        #: Sessions with rounds that are answered and have not left, because that takes long.
        self.turns = FairQueue()
        #: Sessions with rounds that are answered and have not left, because the first of them cannot be judged yet.
        self.unjudged: dict[Session, None] = {}

    def accept(self, a_round: Round[Session], now: float) -> None:
        """Take a round that was checked, and dispatch it if its turn has come."""
        session = a_round.session
        if not a_round.learn and session.vpn.has_neighbours and not session.is_neighbour:
            a_round.learn = wire.LEARN_FEW  # a neighbour is told what is inside
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
            if session.burden is not None and not self._effort.may_go_on(session, now):
                session.parked = True
                return
            blocked = self._blocking_shard(pending[0])
            if blocked is not None:
                self._park(session, blocked)
                return
            self._hand_over(pending.pop(0), now)

    def _blocking_shard(self, a_round: Round[Session]) -> Shard | None:
        may_overdraw = a_round.waited or a_round.session.open_rounds[0] is a_round
        limit = self._window * 2 if may_overdraw else self._window
        for part in a_round.parts:
            shard = self._shards.shards[part.worker]
            if shard.state is not ShardState.READY:
                if not shard.given_up or a_round.producer is not None:
                    return shard
            elif shard.in_window >= limit or shard.replays:
                return shard
        return None

    def _hand_over(self, a_round: Round[Session], now: float) -> None:
        shards = self._shards
        if a_round.session.is_aside:
            for position in range(len(a_round.parts)):
                self._lose_part(a_round, position)
            a_round.broken, a_round.waiting = True, 0
            self._retire(a_round.session, now)
            return
        # The rules of this moment: those of the moment it came may be unknown to the workers by now.
        a_round.rules_id = a_round.session.publish_rules_id
        for position, part in enumerate(a_round.parts):
            shard = shards.shards[part.worker]
            if shard.state is not ShardState.READY:
                self._lose_part(a_round, position)
                a_round.waiting -= 1
                continue
            self._send(shard, a_round, position)
        if not a_round.waiting:
            self._retire(a_round.session, now)

    def _send(self, shard: Shard, a_round: Round[Session], position: int) -> None:
        part = a_round.parts[position]
        self._reference += 1
        shard.outstanding[self._reference] = (a_round, position)
        match = Match(
            self._shards.incarnation,
            self._reference,
            a_round.session.vpn.id,
            0 if a_round.resent else a_round.rules_id,
            wire.LEARN_ALL if part.rows <= LEARN_ROWS_MAX else a_round.learn,
            part.rows,
            a_round.mode | a_round.session.kind.match_bits,
            a_round.session.number,
        )
        self._shards.send(shard, [wire.MATCH, encode(match), part.batch])

    def release(self, shard: Shard, now: float) -> None:
        """A worker has room, or was given up: let those who wait for it go on."""
        if shard.given_up:  # those with guaranteed rows come back to its line
            for session in shard.waiting.take_all():
                session.parked = False
                self._dispatch_one(session, now)
            return
        if shard.replays:
            self._replay(shard, now)
            if shard.replays:
                return
        while shard.waiting and self._has_room(shard):
            session = shard.waiting.pop()
            session.parked = False
            self._dispatch_one(session, now)

    def tick(self, now: float, grace_s: float) -> float:
        """Let those go on who waited long enough; gives when to call again, infinite if nobody waits.

        Args:
            now: the time.
            grace_s: how long rows wait for a worker that died.
        """
        self.go_on(now)
        if self.turns:
            self._turn(now)
        wake = now if self.turns else self._effort.next_due
        for shard in self._shards.shards:
            if shard.state is ShardState.DOWN and not shard.given_up:
                if now - shard.died_at >= grace_s:
                    shard.given_up = True
                    self.release(shard, now)
                else:
                    wake = min(wake, shard.died_at + grace_s)
        return wake

    def _replay(self, shard: Shard, now: float) -> None:
        """Hand over the next frame that was out at a death, alone."""
        replays = shard.replays
        if shard.state is not ShardState.READY or shard.outstanding:
            return
        while replays:
            a_round = replays[0].round
            assert a_round.producer is not None
            if not (a_round.producer.is_over or a_round.session.is_aside):
                a_round.rules_id = a_round.session.publish_rules_id
                replays[0].is_out = True
                self._send(shard, a_round, replays[0].position)
                return
            self._give_up(replays.popleft(), now)

    def hand_elsewhere(self, replay: Replay, parts: list[Part]) -> None:
        """A frame was cut again, because its worker is gone for good: its pieces wait at their workers."""
        a_round = replay.round
        pieces = [replay.position, *range(len(a_round.parts), len(a_round.parts) + len(parts) - 1)]
        a_round.parts = [*a_round.parts, *parts[1:]]
        a_round.parts[replay.position] = parts[0]
        a_round.waiting += len(parts) - 1
        for position in pieces:
            shard = self._shards.shards[a_round.parts[position].worker]
            shard.replays.append(Replay(a_round, position, deaths=0))

    def _give_up(self, replay: Replay, now: float) -> None:
        """Leave a frame out; nothing of its round is taken."""
        replay.round.broken = True
        self._answered(replay.round, now)

    def _has_room(self, shard: Shard) -> bool:
        return shard.state is ShardState.READY and shard.in_window < self._window

    def _dispatch_one(self, session: Session, now: float) -> None:
        """Hand over one pending round of a session whose turn came; behind others it queues up again."""
        if self.held or (session.burden is not None and not self._effort.may_go_on(session, now)):
            self.dispatch(session, now)
            return
        blocked = self._blocking_shard(session.pending[0])
        if blocked is None:
            self._hand_over(session.pending.pop(0), now)
            if not session.pending:
                return
            blocked = self._shards.shards[session.pending[0].parts[0].worker]
            if not blocked.waiting or blocked.given_up:
                self.dispatch(session, now)
                return
        self._park(session, blocked)

    def worked(self, work: Work, shard: Shard, _batches: list[bytes], now: float) -> None:
        """A worker tells what a frame cost it so far, and perhaps that it goes on with it in turns."""
        entry = shard.outstanding.get(work.reference)
        if entry is None:
            return
        session = entry[0].session
        if work.reference not in shard.slow:
            shard.slow[work.reference] = session
            self._effort.begin_slow(session, now)
            if session.kind.carries_clients and work.work >= COSTLY_WORK:
                self._egress.answer(session, CostlyFrame(entry[0].number).frames())
        self._effort.charge(session, work.work, now)
        self.release(shard, now)

    def _end_slow(self, shard: Shard, reference: int, now: float) -> None:
        """A frame that waited for turns is answered, or lost with its worker."""
        session = shard.slow.pop(reference, None)
        if session is not None:
            self._effort.end_slow(session)
            self.go_on(now)

    def go_on(self, now: float) -> None:
        """Hand over what sessions have that are not held back any more."""
        for session in self._effort.take_free(now):
            session.parked = False
            self.dispatch(session, now)

    def _park(self, session: Session, blocked: Shard) -> None:
        session.pending[0].waited = True
        session.parked = True
        blocked.waiting.push(session)

    def hold_sessions(self, sessions: list[Session]) -> None:
        """Let sessions that waited for a worker, or were held back, wait for the end of the hold instead."""
        self.held_sessions += [*sessions, *self._effort.waiting]
        self._effort.waiting.clear()

    def resume(self, now: float) -> None:
        """End a hold: everybody who waited goes on."""
        self.held = False
        sessions, self.held_sessions = self.held_sessions, []
        for session in sessions:
            session.parked = False
            self.dispatch(session, now)

    def answer(self, shard: Shard, result: Result, body: bytes | None, now: float) -> Round[Session] | None:
        """Take a RESULT; gives the round it belongs to, or None for a stale one.

        The sets it names are looked up at once: the worker may retire its numbers before the round itself
        retires.

        Raises:
            MalformedFrameError: it names a set that was never defined, or has another number of batches.
        """
        entry = shard.outstanding.get(result.reference)
        if entry is None:
            return None
        a_round, position = entry
        whole = a_round.parts[position].batch
        batches = repeat(whole) if body is None else _batches_of(result, body, whole)
        learned, sets = result.learned, shard.sets
        topics = None
        if body is None and 0 < len(learned) <= wire.FEW_TOPICS_MAX:
            topics = [one.topic for one in learned]
        # Each zip asks its heads first, so it takes no batch too many. Nothing is changed before all sets are found.
        plain = [
            PlainResult(
                sets[head.set],
                head.rows,
                head.classes,
                batch,
                None if head.classes & _NOT_DESCRIBED else topics,
            )
            for head, batch in zip(result.plain, batches, strict=False)
        ]
        choice: list[ChoiceResult[Session]] = []
        taken: list[EndpointResult] = []
        if result.choice:
            choice = [_choice_result(shard, *one) for one in zip(result.choice, batches, strict=False)]
        if result.endpoints:
            taken = [_endpoint_result(shard, *one) for one in zip(result.endpoints, batches, strict=False)]
        if len(plain) > 1 and not choice and _is_in_one(a_round, plain, whole):
            a_round.whole = whole
        del shard.outstanding[result.reference]
        if shard.slow:
            self._end_slow(shard, result.reference, now)
        if shard.replays:
            shard.replays.popleft()
        a_round.plain += plain
        if choice:
            a_round.choice = [*a_round.choice, *choice]
        if taken:
            a_round.endpoints = [*a_round.endpoints, *taken]
        self._answered(a_round, now)
        return a_round

    def lose(self, shard: Shard, lost: list[tuple[Round[Session], int]], now: float) -> None:
        """A worker died: complete its direct rows empty, and count them; its successor gets the guaranteed ones."""
        for reference in list(shard.slow):
            self._end_slow(shard, reference, now)
        if shard.replays:
            if lost:
                self._died_alone(shard, now)
            return
        again = []
        deaths = int(len(lost) == 1 and not shard.spool_failed)
        for a_round, position in lost:
            if a_round.producer is not None:
                again.append(Replay(a_round, position, deaths=deaths))
            else:
                self._lose_part(a_round, position)
                self._answered(a_round, now)
        shard.replays.extend(again)

    def _lose_part(self, a_round: Round[Session], position: int) -> None:
        """Nobody will match these direct rows, nor has anybody looked into them: nothing of them stays in the round."""
        part = a_round.parts[position]
        self._on_lost(a_round.session, part.rows)
        a_round.parts[position] = Part(part.worker, 0, wire.array_head(0))

    def _died_alone(self, shard: Shard, now: float) -> None:
        """A worker died with a replayed frame, and nothing else, in its hands."""
        replay = shard.replays[0]
        replay.is_out = False
        if shard.spool_failed:
            return
        replay.deaths += 1
        if replay.deaths < DEATHS_MAX:
            return
        self.put_aside(replay.round.session, now)

    def put_aside(self, session: Session, now: float) -> None:
        """End a session whose frames workers die of; what it has not got an answer to is handed to none again."""
        session.is_aside = True
        self._on_deadly(session, now)
        for shard in self._shards.shards:
            mine = [one for one in shard.replays if one.round.session is session and not one.is_out]
            shard.replays = deque([one for one in shard.replays if one not in mine])
            for one in mine:
                self._give_up(one, now)
            self.release(shard, now)

    def _answered(self, a_round: Round[Session], now: float) -> None:
        a_round.waiting -= 1
        if not a_round.waiting:
            self._retire(a_round.session, now)

    def retry(self, now: float) -> None:
        """What kept guaranteed rounds from being judged is over."""
        unjudged, self.unjudged = self.unjudged, {}
        for session in unjudged:
            self._retire(session, now)

    def _retire(self, session: Session, now: float) -> None:
        rounds, work, step_us = session.open_rounds, 0.0, self._fan_out.step_us
        row_us_max = MEMBER_WORK_MAX * self._shards.interest.memberships
        while rounds and not rounds[0].waiting and not session.has_turns:
            a_round = rounds[0]
            if a_round.producer is not None and not self.may_admit(a_round):
                self.unjudged[session] = None
                return
            if work >= step_us:
                self._push(session)
                return
            leaving: Round[Session] | None = a_round
            if a_round.pieces is not None:
                work, leaving = step_us, self._next_piece(session, a_round, now)
            elif (a_round.rows - 1) * row_us_max >= step_us and self._cut(session, a_round, now):
                work, leaving = step_us, None
            elif len(rounds) > 1:
                work += self._fan_out.work(a_round)
            if leaving is not None:
                del rounds[0]
                session.unretired_bytes -= a_round.bytes
                session.retired_round = a_round.number
                session.messages_in += a_round.rows
                self.retired += 1
                self.rows_in += a_round.rows
                self.bytes_in += a_round.bytes
                self._on_retire(leaving, now)
                if leaving.pieces is None:
                    self.left(leaving, now)

    def _push(self, session: Session) -> None:
        if not session.has_turns:
            session.has_turns = True
            self.turns.push(session)

    def _turn(self, now: float) -> None:
        """Go on for one of those whose rounds take long."""
        session = self.turns.pop()
        session.has_turns = False
        if session not in self._crowds.of:
            self._retire(session, now)
            return
        gone = self._crowds.serve(session, now)
        if gone is not None:
            self.left(gone, now)
        if gone is None or session.open_rounds:
            self._push(session)

    def _cut(self, session: Session, a_round: Round[Session], now: float) -> bool:
        """Cut a round if it takes long; tells whether it does."""
        a_round.pieces = self._fan_out.cut(a_round)
        if a_round.pieces is None:
            return False
        self._effort.begin_slow(session, now)
        if session.kind.carries_clients:
            self._egress.answer(session, CostlyFrame(a_round.number).frames())
        return True

    def _next_piece(self, session: Session, a_round: Round[Session], now: float) -> Round[Session] | None:
        """Send on a piece of a round that takes long; its last one is given back."""
        pieces = a_round.pieces
        piece: Round[Session] | None = pieces.take()
        self._effort.charge(session, pieces.work, now)
        if pieces:
            if piece is not None:
                self._on_retire(piece, now)
            return None
        a_round.pieces = None  # or both would wait for the garbage collector
        self._effort.end_slow(session)
        return piece

    def under_way(self) -> dict[Session, int]:
        """Give the sessions with rounds that workers were given and that have not left, and the newest of these."""
        found: dict[Session, int] = {}
        for shard in self._shards.shards:
            rounds = [one for one, _ in shard.outstanding.values()]
            rounds += [replay.round for replay in shard.replays]
            found.update((one.session, 0) for one in rounds)
        found.update((session, 0) for session in (*self.turns, *self.unjudged))
        for session in found:
            pending = session.pending
            found[session] = pending[0].number - 1 if pending else session.round_number
        return found

    # -- what publishers are told ----------------------------------------------------------------------------

    def left(self, a_round: Round[Session], now: float) -> None:
        """All have got what there was for them of a round that has retired: renew the ingress credit of its session.

        One RETIRED renews that of many rounds: it is sent when half of the credit is used, when the client asks, with
        the answer to its heartbeat, and at the end. A client with credit left does not miss it.
        """
        session = a_round.session
        if not session.closed:
            session.untold_bytes += a_round.bytes
            untold = session.retired_round - session.retired_told
            half_used = untold * 2 >= session.rounds_max or session.untold_bytes * 2 >= session.bytes_max
            if half_used or a_round.flush:
                self.tell_retired(session)
        if session.closed or session.bye_at is not None:
            self.on_left(session, now)

    def tell_retired(self, session: Session) -> None:
        """Tell a publisher what has retired, and was given to all who get it, if it was not told."""
        upto = session.retired_round
        if self._crowds.of and self._crowds.is_served(session, upto):
            upto -= 1
        if session.retired_told < upto:
            session.retired_told = upto
            session.untold_bytes = 0
            self._egress.answer(session, [wire.RETIRED, wire.pack([upto])])


#: Rounds with at most so many rows teach the router the matches of their topics (the fast path serves small
#: rounds only).
LEARN_ROWS_MAX = 4
#: A gateway is told of what costs more, about 2 ms: all of its clients wait for it.
COSTLY_WORK = 2_000
#: A frame that was alone at a worker at so many deaths in a row is what kills it.
DEATHS_MAX = 3


def _batches_of(result: Result, body: bytes, whole: bytes) -> Iterator[bytes]:
    """Give the batches that belong to the heads of a RESULT; `whole` is the batch that the worker got."""
    batches: list[bytes] = read(_decode_body, [Result.operation, body])
    if len(batches) != len(result.plain) + len(result.choice) + len(result.endpoints):
        raise MalformedFrameError(f"a RESULT has {len(batches)} batches, which is not what its header says")
    return iter([batch or whole for batch in batches])


def _is_in_one(a_round: Round[Session], plain: list[PlainResult[Session]], batch: bytes) -> bool:
    """Tell whether a batch that a worker got is exactly what it found for subscribers, in several batches."""
    return (
        len(a_round.parts) == 1
        and a_round.producer is None
        and sum([one.rows for one in plain]) == a_round.rows
        and batch.startswith(wire.array_head(a_round.rows))
    )


def _choice_result(shard: Shard, head: ChoiceHead, batch: bytes) -> ChoiceResult[Session]:
    plain_set = shard.sets[head.plain_set] if head.plain_set else None
    return ChoiceResult(shard.sets[head.choice_set], plain_set, head.dto, head.rows, head.classes, batch)


def _endpoint_result(shard: Shard, head: EndpointHead, batch: bytes) -> EndpointResult:
    found = shard.sets[head.set]
    return EndpointResult(
        found, head.rows, head.spool_bytes, head.largest_message, head.low_priority_rows, batch
    )


def read_publish(
    session: Session, frames: list[bytes], shards: Shards, config: RouterConfig
) -> Round[Session]:
    """Check a PUBLISH and make it a round.

    A batch is checked without opening it: numbers, credit and sizes. What is inside is the worker's to check, and its
    verdict comes back with the result.

    Raises:
        InvalidRequestError: 40001 malformed, 40008 too large, 40009 more than the credit; of a guaranteed one
        also 40026, 40027, 40030 (`Producer.charge`). Each ends the session.
    """
    handle = first = 0
    reports = False
    opened: list[int] = []
    inside: Inside | None = None
    given: list[int] | bool = False
    if frames[1].startswith(_FOUR_FIELDS):
        number, epoch, flush, parts = wire.decode_header(_decode_direct, frames[1])
    elif frames[1].startswith(_SIX_FIELDS):
        number, epoch, flush, parts, handle, first = wire.decode_header(_decode_guaranteed, frames[1])
    elif frames[1].startswith(_FIVE_FIELDS) and session.kind.carries_clients:
        number, epoch, flush, parts, given = wire.decode_header(_decode_given, frames[1])
    elif frames[1].startswith(_FIVE_FIELDS) and not session.is_neighbour:
        number, epoch, flush, parts, reports = wire.decode_header(_decode_reporting, frames[1])
    elif frames[1].startswith(_FIVE_FIELDS):
        number, epoch, flush, parts, opened = wire.decode_header(_decode_open, frames[1])
    elif session.is_neighbour and frames[1].startswith(_SEVEN_FIELDS):
        number, epoch, flush, parts, opened, *described = wire.decode_header(_decode_described, frames[1])
        inside = Inside(*described)
    else:
        number, epoch, flush, parts = wire.decode_header(_decode_direct, frames[1])
    if len(parts) != len(frames) - 2:
        raise error_for(errors.MALFORMED_FRAME, "PUBLISH has one batch for each of its parts")
    may_come = session.unretired_bytes < session.bytes_max and len(session.open_rounds) < session.rounds_max
    if number != session.round_number + 1 or not may_come:
        raise session.beyond_credit(number)
    checked = []
    count = size = 0
    for (worker, rows), batch in zip(parts, frames[2:], strict=True):
        checked.append(Part(worker, rows, batch))
        count += rows
        size += len(batch)
    if count > config.max_batch_rows:
        raise error_for(errors.BATCH_TOO_LARGE, f"the limit is {config.max_batch_rows} messages")
    if size > config.max_batch_bytes:
        raise error_for(errors.BATCH_TOO_LARGE, f"{size} bytes, the limit is {config.max_batch_bytes}")
    cut = shards.assign(checked, epoch)
    a_round = Round(session, number, cut, session.publish_rules_id, count, size, len(cut), flush)
    if session.is_neighbour:
        a_round.mode = wire.MATCH_AS_DIRECT
        a_round.open = frozenset(opened)
        a_round.inside = inside
    elif isinstance(given, list):
        a_round.kept = frozenset(given)
    elif reports or given:
        a_round.mode |= wire.MATCH_REPORT
    if handle and checked:
        _charge_producer(a_round, handle, first, config)
    return a_round


def _charge_producer(a_round: Round[Session], handle: int, first: int, config: RouterConfig) -> None:
    """Make a round one of guaranteed messages, within the window of their producer."""
    session = a_round.session
    producer = session.producers.get(handle)
    if producer is None or not producer.takes_rounds:
        if not 0 < handle < session.next_producer:
            raise error_for(errors.UNKNOWN_PRODUCER, f"handle {handle}")
        a_round.producer = over(session)
        a_round.mode, a_round.learn = wire.MATCH_GUARANTEED, wire.LEARN_ALL
        return
    bytes_max = session.kind.producer_bytes or config.producer_window_bytes
    producer.charge(a_round.rows, a_round.bytes, first, bytes_max)
    a_round.producer = producer
    a_round.mode, a_round.learn = wire.MATCH_GUARANTEED, wire.LEARN_ALL
    a_round.first = first
    a_round.resent = producer.memory.is_known(first)
