"""Moving lanes to other workers while everything goes on: by load, some at a time, and so many bytes per second.

operation              arguments                             answer
workers.balance        bytes_per_s, moves_max, dry_run       the plan: `cluster.admin.answers.Balance`
workers.balance.show                                         the same, and how far it is
workers.balance.stop                                         nothing; what is under way ends, nothing else begins

A move is a batch of lanes from one worker to another: one large lane, or many small ones. It goes through three
steps.

    copy     the target copies the large lane from the spool of the source, which goes on serving it
    switch   the lanes get their new home in one transaction of the config store, which decides whose they are
    take     the router has the source part with them and the target take over what is left; done when both say so

Before the switch nothing depends on a move: a process that dies ends it, and it is planned again. After it the
homes finish it by themselves, whoever dies. That lanes are to be moved is in the config store, so the next
controller goes on; it makes a plan of its own, from how things are by then. No lane moves twice within `REST_S`,
since its rates are not known.

On a node with a standby workers leave like this, too (`leave`): what a worker that has ended left on its disk is
shipped by nobody, so it goes when its last lane has gone, and no lane is anywhere but at workers that run.

No clock, no I/O.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final

from angarium import errors, wire
from cluster.catalog.placement import BALANCE, STAYING, WORKERS
from cluster.controller.switchboard.effects import ScaleNode
from cluster.controller.switchboard.switchboard import ROUTER
from cluster.controller.workers.plan import Lane, Plan, PlannedMove, plan_departures, plan_moves
from cluster.data.data_dir import SPOOLS
from cluster.roster.table import WORKER
from storage.config_store import Change, Counter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cluster.admin import arguments
    from cluster.catalog.catalog import Catalog
    from cluster.controller.switchboard.changes import Changes
    from cluster.controller.switchboard.effects import Effect
    from cluster.controller.switchboard.switchboard import Asker, Handlers, Switchboard
    from storage.config_store import Entry

#: So often is looked how far a move is, and whether a plan can be made.
STEP_S: Final = 0.2
PLAN_RETRY_S: Final = 1.0
#: A lane with so many bytes is copied before it is switched; smaller ones share a move up to this size and number.
LARGE_BYTES: Final = 1 << 20
BATCH_BYTES: Final = 8 << 20
BATCH_LANES: Final = 50
#: Questions in a row without an answer after which a move that was not switched is given up.
MISSES_MAX: Final = 25
#: Rounds in a row in which everybody says that a move is done.
ROUNDS_DONE: Final = 2
#: Endpoints whose loads the router gives in one turn.
ENDPOINTS_PER_QUESTION: Final = 500
#: A lane that was moved stays where it is so long at least.
REST_S: Final = 60.0
#: A copy that takes so many times as long as the limit allows is given up: more comes in than may be copied.
PATIENCE: Final = 4
PATIENCE_MIN_S: Final = 60.0
#: Moves that are over and are shown.
SHOWN_MAX: Final = 100
DEFAULT_BYTES_PER_S: Final = 64 << 20
DEFAULT_MOVES: Final = 2


class Step(enum.Enum):
    """Where a move is."""

    COPY = "copying"
    SWITCH = "switching"
    TAKE = "taking over"
    DONE = "done"
    FAILED = "given up"


class Move:
    """Lanes that go from one worker to another."""

    def __init__(self, lanes: list[Lane], target: int) -> None:
        self.lanes = lanes
        self.source = lanes[0].home
        self.target = target
        self.step = Step.SWITCH if all(lane.bytes < LARGE_BYTES for lane in lanes) else Step.COPY
        #: What the target has copied while the source served it.
        self.copied_bytes = 0
        self.misses = 0
        self.rounds_done = 0
        self.began_at: float | None = None
        self.why = ""

    @property
    def bytes(self) -> int:
        """Give what its lanes had when it was planned."""
        return sum(lane.bytes for lane in self.lanes)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Give what operators see of each of its lanes."""
        for lane in self.lanes:
            yield {
                **_row(PlannedMove(lane, self.target)),
                "state": self.step.value,
                "copied_bytes": self.copied_bytes,
                "why": self.why,
            }


class Balancing:
    """The moves that are planned and under way."""

    def __init__(self, board: Switchboard, catalog: Catalog, changes: Changes) -> None:
        self._board = board
        self._catalog = catalog
        self._changes = changes
        self._bytes_per_s = DEFAULT_BYTES_PER_S
        self._moves_max = DEFAULT_MOVES
        self._planned: list[Move] = []
        self._under_way: list[Move] = []
        self._over: list[Move] = []
        self._plan: Plan | None = None
        #: Lane -> when it was switched.
        self._moved_at: dict[int, float] = {}
        self._is_asking = False
        #: Whether the store was asked to note that all of it is done.
        self._is_ending = False
        self._due = 0.0
        self._now = 0.0
        #: Whether the supervisor has done the last change of the number of workers.
        self.is_node_settled: Callable[[], bool] = lambda: True
        self.operations: Handlers = {
            "workers.balance": self._balance,
            "workers.balance.show": self._show,
            "workers.balance.stop": self._stop,
        }

    # -- wishes ----------------------------------------------------------------------------------------------

    @property
    def is_wanted(self) -> bool:
        """Whether lanes are to be moved."""
        return self._catalog.placement.counters[BALANCE] % 2 == 1

    @property
    def staying(self) -> int:
        """Give how many workers stay, while the others give their lanes away; 0: all."""
        return self._catalog.placement.counters[STAYING]

    @property
    def _workers(self) -> int:
        """Give how many workers there are, with those that leave."""
        return self._catalog.placement.counters[WORKERS]

    @property
    def is_moving(self) -> bool:
        """Whether lanes are to be moved, or are on their way."""
        return self.is_wanted or bool(self._under_way)

    def wish(self) -> list[Entry]:
        """Give the change that makes it durable that lanes are to be moved, in the default way."""
        self._bytes_per_s, self._moves_max = DEFAULT_BYTES_PER_S, DEFAULT_MOVES
        return self._begin()

    def leave(self, workers: int) -> list[Entry]:
        """Give the changes that make it durable that only so many workers stay, once the others have no lanes."""
        return [*self.wish(), Counter(STAYING, workers)]

    def _begin(self) -> list[Entry]:
        self._over, self._planned, self._plan, self._due = [], [], None, 0.0
        return [] if self.is_wanted else [self._turn()]

    def _turn(self) -> Counter:
        """Give the change after which lanes are to be moved, or are not any more."""
        return Counter(BALANCE, self._catalog.placement.counters[BALANCE] + 1)

    def cancel(self) -> list[Entry]:
        """Begin no move any more, and end those that are not switched; gives the changes that make it durable.

        Workers that were about to leave stay.
        """
        self._planned = []
        for move in [move for move in self._under_way if move.step in (Step.COPY, Step.SWITCH)]:
            self._end(move, Step.FAILED, "it was stopped")
        changes: list[Entry] = [Counter(STAYING, 0)] if self.staying else []
        return [*changes, self._turn()] if self.is_wanted else changes

    def _balance(self, request: arguments.BalanceArguments, asker: Asker, now: float) -> None:
        if request.dry_run:
            self._look(now, lambda plan: self._board.reply(asker, self._answer(plan, [])), asker)
            return
        if self.is_wanted:
            detail = "queues are being moved already: 'angarium worker balance --show' tells how far it is"
            raise errors.error_for(errors.OBJECT_IN_USE, detail)

        def begin(plan: Plan) -> None:
            if not plan.moves:
                self._board.reply(asker, self._answer(plan, []))
                return
            self._bytes_per_s, self._moves_max = request.bytes_per_s, request.moves_max
            changes = self._begin()
            self._take_plan(plan)
            self._changes.make(changes, asker, "", lambda: self._answer(plan, self._planned))

        self._look(now, begin, asker)

    def _show(self, _request: arguments.NoArguments, asker: Asker, _now: float) -> None:
        moves = [*self._over, *self._under_way, *self._planned]
        self._board.reply(asker, self._answer(self._plan, moves))

    def _stop(self, _request: arguments.NoArguments, asker: Asker, _now: float) -> None:
        self._changes.make(self.cancel(), asker, "", lambda: None)

    def _answer(self, plan: Plan | None, moves: list[Move]) -> dict[str, Any]:
        rows = [row for move in moves for row in move.rows()]
        if not moves and plan is not None:
            rows = [{**_row(one), "state": "planned", "copied_bytes": 0, "why": ""} for one in plan.moves]
        loads = [] if plan is None else zip(plan.before, plan.after, strict=True)
        return {
            "is_moving": self.is_moving,
            "workers": [
                {"worker": index, "load": round(before, 2), "load_after": round(after, 2)}
                for index, (before, after) in enumerate(loads)
            ],
            "moves": rows,
        }

    # -- plans -----------------------------------------------------------------------------------------------

    def _look(self, now: float, use: Callable[[Plan], None], asker: Asker | None = None) -> None:
        """Ask for the loads of all lanes, and use a plan that is made of them."""
        known = {lane.lane_id: lane for lane in self._lanes()}
        ids = list(dict.fromkeys(lane_id >> wire.LANE_BITS for lane_id in known))
        pieces = [ids[at : at + ENDPOINTS_PER_QUESTION] for at in range(0, len(ids), ENDPOINTS_PER_QUESTION)]
        questions: dict[Any, Any] = {
            ("loads", number): (ROUTER, "lane_loads", piece) for number, piece in enumerate(pieces)
        }
        questions |= self._questions()

        def finish(answers: dict[Any, Any]) -> None:
            self._is_asking = False
            if len(answers) < len(questions) or not self._is_settled(answers):
                if asker is not None:
                    detail = "a worker is not ready, or takes queues over; try again in a moment"
                    self._board.refuse(asker, errors.OBJECT_IN_USE, detail)
                self._due = now + PLAN_RETRY_S
                return
            for number in range(len(pieces)):
                for lane_id, *figures in answers["loads", number]:
                    if lane_id in known:
                        known[lane_id] = Lane(*known[lane_id][:6], *figures)
            if self.staying:
                use(plan_departures(known.values(), self._workers, self.staying))
            else:
                use(plan_moves(known.values(), self._workers, resting=self._resting(now)))

        self._is_asking = asker is None
        self._board.collect_view(None, now, questions, finish)

    def _lanes(self) -> Iterator[Lane]:
        """Give all lanes, without figures."""
        for (kind, vpn, name), attributes in self._catalog.endpoints():
            for partition, home in enumerate(attributes["homes"]):
                lane_id = int(attributes["id"]) << wire.LANE_BITS | partition
                yield Lane(lane_id, kind, vpn, name, partition, home)

    def _resting(self, now: float) -> dict[int, None]:
        """Give the lanes that stay: those that were moved of late, and temporary ones, which go with their clients."""
        self._moved_at = {lane_id: at for lane_id, at in self._moved_at.items() if now - at < REST_S}
        resting = dict.fromkeys(self._moved_at)
        for _, attributes in self._catalog.endpoints():
            if not attributes.get("durable", True):
                first = int(attributes["id"]) << wire.LANE_BITS
                resting.update(dict.fromkeys(range(first, first + len(attributes["homes"]))))
        return resting

    def _questions(self) -> dict[Any, Any]:
        """Give what tells whether everything is where it belongs."""
        workers = range(self._workers)
        asked: dict[Any, Any] = {"router": (ROUTER, "stats", None)}
        return asked | {("worker", index): ((WORKER.name, index), "stats", None) for index in workers}

    def _is_settled(self, answers: dict[Any, Any]) -> bool:
        """Tell whether no lane is on its way, and every home has confirmed its lanes."""
        spool = (answers.get("router") or {}).get("spool", {})
        if spool.get("lanes_leaving") or not self.is_node_settled():
            return False
        for index in range(self._workers):
            home = (answers.get(("worker", index)) or {}).get("home")
            if not home or index not in spool.get("homes_settled", ()):
                return False
            if home.get("lanes_importing") or home.get("lanes_parting"):
                return False
        return True

    def _take_plan(self, plan: Plan) -> None:
        self._plan = plan
        self._planned = _batches(plan.moves)

    # -- steps -----------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Go on, if it is time for that."""
        self._now = now
        if self._is_ending:
            self._end_all()
        if self._planned and not self.is_wanted:  # the store did not take it
            self._planned, self._plan = [], None
        if self._is_asking or now < self._due or not self.is_moving:
            return
        self._due = now + STEP_S
        while self._planned and len(self._under_way) < self._moves_max:
            move = self._planned.pop(0)
            move.began_at = now
            self._under_way.append(move)
        if self._under_way:
            self._advance(now)
        elif self.is_wanted:
            self._look(now, self._go_on_with)

    def _go_on_with(self, plan: Plan) -> None:
        """Carry out what is left to be done, or end."""
        if plan.moves and self.is_wanted:
            self._take_plan(plan)
        elif self.is_wanted:
            changes: list[Entry] = [self._turn()]
            after: list[Effect] = []
            if self.staying:
                # Their spools go: who starts next misses none of them.
                changes += [Counter(one, self.staying) for one in (WORKERS, SPOOLS)]
                changes.append(Counter(STAYING, 0))
                after = [ScaleNode(self.staying)]
            self._is_ending, self._due = True, self._now + PLAN_RETRY_S
            self._changes.make(changes, None, "", lambda: None, after=after)

    def _end_all(self) -> None:
        """Tell that all of it is done, unless the store did not take that: then it is tried again."""
        self._is_ending = False
        if not self.is_wanted:
            done = sum(len(move.lanes) for move in self._over if move.step is Step.DONE)
            self._board.record_system("info", "SYSTEM_BALANCED", f"{done} queues and partitions were moved")

    def _advance(self, now: float) -> None:
        questions = self._questions()
        rate = max(self._bytes_per_s // max(len(self._under_way), 1), 1)
        for move in self._under_way:
            if move.step is Step.COPY:
                for lane in _large(move):
                    content = {"lane_id": lane.lane_id, "source": move.source, "bytes_per_s": rate}
                    questions["copy", lane.lane_id] = ((WORKER.name, move.target), "lane.copy", content)

        def finish(answers: dict[Any, Any]) -> None:
            self._is_asking = False
            is_settled = self._is_settled(answers)
            for move in list(self._under_way):
                if move.step is Step.COPY:
                    self._copy(move, answers, now)
                elif move.step is Step.SWITCH and is_settled and self.is_wanted:
                    self._switch(move, now)
                    is_settled = False  # one after the other
                elif move.step is Step.TAKE:
                    self._take(move, now, is_done=is_settled)

        self._is_asking = True
        self._board.collect_view(None, now, questions, finish)

    def _copy(self, move: Move, answers: dict[Any, Any], now: float) -> None:
        assert move.began_at is not None
        told = [answers.get(("copy", lane.lane_id)) for lane in _large(move)]
        found = [one for one in told if one is not None]
        if len(found) < len(told):
            move.misses += 1
            if move.misses > MISSES_MAX:
                self._end(move, Step.FAILED, f"worker {move.target} cannot copy it now")
            return
        move.misses = 0
        move.copied_bytes = sum(one["bytes"] for one in found)
        patience_s = PATIENCE_MIN_S + PATIENCE * move.bytes * self._moves_max / self._bytes_per_s
        if all(one["is_caught_up"] for one in found):
            move.step = Step.SWITCH
        elif now - move.began_at > patience_s and self.staying:
            move.step = Step.SWITCH  # its worker leaves: consumers wait for the rest
        elif now - move.began_at > patience_s:
            self._end(move, Step.FAILED, "it gets messages faster than they may be copied")

    def _switch(self, move: Move, now: float) -> None:
        """Give the lanes of a move their new home; it is theirs when that is on disk."""
        wanted: dict[tuple[str, str, str], list[Lane]] = {}
        for lane in move.lanes:
            wanted.setdefault((lane.kind, lane.vpn, lane.name), []).append(lane)
        changes: list[Entry] = []
        for key, lanes in wanted.items():
            there = [lane for lane in lanes if self._home(lane) == move.source]
            attributes = self._catalog.get(*key)
            if not there or attributes is None:
                continue
            homes = list(attributes["homes"])
            for lane in there:
                homes[lane.partition] = move.target
                self._moved_at[lane.lane_id] = now
            changes.append(Change(*key, {**attributes, "homes": homes}))
        if not changes:
            self._end(move, Step.FAILED, "it is not there any more")
            return
        move.step = Step.TAKE
        self._changes.make(changes, None, "", lambda: None)

    def _take(self, move: Move, now: float, *, is_done: bool) -> None:
        if all(self._home(lane) == move.source for lane in move.lanes):
            self._end(move, Step.FAILED, "the config store did not take its new home")
            return
        move.rounds_done = move.rounds_done + 1 if is_done else 0
        if move.rounds_done < ROUNDS_DONE:
            return
        assert move.began_at is not None
        first = move.lanes[0]
        messages = sum(lane.messages for lane in move.lanes)
        text = (
            f"{len(move.lanes)} queues and partitions, {first.kind} {first.name!r} of Message VPN {first.vpn!r} first, "
            f"with {messages} messages went from worker {move.source} to worker {move.target} in "
            f"{now - move.began_at:.1f} s"
        )
        self._board.record_system("info", "SYSTEM_QUEUES_MOVED", text)
        self._end(move, Step.DONE, "")

    def _home(self, lane: Lane) -> int | None:
        """Give where a lane is now; None if it is not there any more."""
        attributes = self._catalog.get(lane.kind, lane.vpn, lane.name)
        if attributes is None or int(attributes["id"]) != lane.lane_id >> wire.LANE_BITS:
            return None
        homes = attributes["homes"]
        return int(homes[lane.partition]) if lane.partition < len(homes) else None

    def _end(self, move: Move, step: Step, why: str) -> None:
        was, move.step, move.why = move.step, step, why
        if move in self._under_way:
            self._under_way.remove(move)
        self._over = [*self._over, move][-SHOWN_MAX:]
        if step is Step.DONE:
            return
        first = move.lanes[0]
        text = (
            f"{first.kind} {first.name!r} of Message VPN {first.vpn!r} stays at worker {move.source}: {why}"
        )
        self._board.record_system("warning", "SYSTEM_QUEUES_NOT_MOVED", text)
        if was is Step.COPY or _large(move):
            for lane in _large(move):
                gathering = self._board.gather_view(None, self._now)
                self._board.ask(
                    (WORKER.name, move.target), "lane.copy_end", {"lane_id": lane.lane_id}, gathering
                )


def _row(planned: PlannedMove) -> dict[str, Any]:
    lane, target = planned
    return {
        "kind": lane.kind,
        "vpn": lane.vpn,
        "name": lane.name,
        "partition": lane.partition,
        "source": lane.home,
        "target": target,
        "messages": lane.messages,
        "bytes": lane.bytes,
        "messages_per_s": round(lane.messages_per_s, 1),
        "bytes_per_s": round(lane.bytes_per_s, 1),
    }


def _large(move: Move) -> list[Lane]:
    return [lane for lane in move.lanes if lane.bytes >= LARGE_BYTES]


def _batches(planned: list[PlannedMove]) -> list[Move]:
    """Put small lanes that go the same way together."""
    moves: list[Move] = []
    open_batches: dict[tuple[int, int], list[Lane]] = {}
    for lane, target in planned:
        if lane.bytes >= LARGE_BYTES:
            moves.append(Move([lane], target))
            continue
        batch = open_batches.setdefault((lane.home, target), [])
        batch.append(lane)
        if len(batch) >= BATCH_LANES or sum(one.bytes for one in batch) >= BATCH_BYTES:
            moves.append(Move(open_batches.pop((lane.home, target)), target))
    moves += [Move(batch, target) for (_, target), batch in open_batches.items()]
    return moves
