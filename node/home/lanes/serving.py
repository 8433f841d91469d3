"""Serving lanes: what they hand out is sent, what they lost is written, what died in them is moved.

Something happens in a lane when it gets messages, when a consumer binds, grants or settles, or when a time has
come. Then it is *touched*, and asked once in the next tick, whatever happened how often. A tick has a budget;
lanes that have more to give wait for the next one, behind the others.

What a consumer may have seen must be known after an unclean stop. So a lane hands nothing out
above its durable reservation; mostly the write that stored a message raised it, else one is written for that.

No clock; `node.home.home` uses this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from angarium_server.black_box import DELIVER, BlackBox

if TYPE_CHECKING:
    from collections.abc import Callable

    from node.home.lanes.delivery import Damage, Delivery
    from node.home.lanes.leases import Leases
    from node.home.lanes.moves import Moves
    from node.home.spool.held_lanes import HeldLane, HeldLanes
    from node.home.spool.writing import Writing

#: Messages handed out in one tick, and lanes that are served: frames of the router must get their turn.
ROWS_PER_TICK: Final = 20_000
LANES_PER_TICK: Final = 1_000


class Serving:
    """Asks touched lanes what there is to do."""

    def __init__(
        self,
        lanes: HeldLanes,
        writing: Writing,
        delivery: Delivery,
        tell: Callable[[str, str, str], None],
    ) -> None:
        """Make it.

        Args:
            lanes: of the home.
            writing: of the home.
            delivery: of the home.
            tell: takes the severity, name and text of an event.
        """
        self._lanes = lanes
        self._writing = writing
        self._delivery = delivery
        self._tell = tell
        #: Delivered and not settled messages of all lanes, at which delivery stops: our part of the limit of the node,
        #: which the router gives and changes (R195).
        self.allowance = 0
        #: Takes up what died; set by the home, because moves collect too.
        self.moves: Moves | None = None
        #: Writes what changed of leases; set by the home.
        self.leases: Leases | None = None
        #: Lanes that have something to deliver when consumers settle something, anywhere (R196).
        self._starved: dict[HeldLane, None] = {}
        self._now = 0.0
        #: Takes which lane is served; the home gives its own.
        self.box = BlackBox()
        #: Rows that could not be read.
        self.unreadable = 0

    def forget(self, held: HeldLane) -> None:
        """Forget a lane that is deleted."""
        self._starved.pop(held, None)

    @property
    def lacks_allowance(self) -> bool:
        """Whether something would be delivered if we might."""
        return any(held.lane.more for held in self._starved)

    @property
    def wanted(self) -> int:
        """Messages that would be delivered and not settled if we might; 0 if the allowance is enough.

        Flows may want less than their lanes have. Then what is too much is of no use here, and goes to homes that lack
        something.
        """
        waiting = [held.messages - held.unacked for held in self._starved if held.lane.more]
        return self._lanes.unacked + sum(waiting) if waiting else 0

    def serve(self, now: float, wall_ms: int) -> None:
        """Serve the lanes in which something happened, as far as the budget goes."""
        lanes = self._lanes
        self._now = now
        share = self._share_among_starved() if self._starved else self.allowance
        left = ROWS_PER_TICK
        again: list[HeldLane] = []
        for held in list(lanes.touched)[:LANES_PER_TICK]:
            if left <= 0:
                break
            del lanes.touched[held]
            rows, has_more = self._serve_lane(held, min(left, share), wall_ms)
            left -= rows
            if has_more:
                again.append(held)
        lanes.touched.update(dict.fromkeys(again))

    def serve_short(self, held: HeldLane, now: float, wall_ms: int) -> None:
        """Serve a lane that waited for effort; while others wait for allowance it takes none of that."""
        self._now = now
        _, has_more = self._serve_lane(held, 0 if self._starved else ROWS_PER_TICK, wall_ms)
        if has_more:
            self._lanes.touched[held] = None

    def _serve_lane(self, held: HeldLane, rows_max: int, wall_ms: int) -> tuple[int, bool]:
        """Serve a lane; gives how many rows it handed out, and whether it could go on at once."""
        room = max(self.allowance - self._lanes.unacked, 0)
        self.box.begin(DELIVER, held.lane_id)
        handouts = held.lane.hand_out(self._now, wall_ms, min(room, rows_max), held.shown)
        rows = 0
        if handouts:
            rows = sum([len(handout.indices) for handout in handouts])
            damages = self._delivery.add(held, handouts)
            if damages:
                self._withdraw(held, damages)
        # One that waits for room is to be ready when its turn comes.
        is_waiting = held.lane.barred or (held.lane.more and not room)
        if is_waiting and held.delivered < held.accepted:
            self._reserve(held)
        self.collect(held)
        self.box.end()
        # A reader group takes no part in the limit of what consumers have.
        if held.lane.more and (room or held.lane.leasing.lease is not None):
            return rows, True
        if held.lane.more:
            self._starved[held] = None
        return rows, False

    def _share_among_starved(self) -> int:
        """Give what each lane may hand out of what was settled: who waited longest comes first, and none takes all.

        Else a consumer that settles much at once would have it again, each time, and the others never.
        """
        lanes = self._lanes
        for held in lanes.touched:  # what was settled counts at once: nothing else may happen for long
            lanes.refresh(held)
        room = self.allowance - lanes.unacked
        if room <= 0:
            return 0
        lanes.touched = {**self._starved, **lanes.touched}
        self._starved = {}
        return max(room // len(lanes.touched), 1)

    def _reserve(self, held: HeldLane) -> None:
        """Have it written at once up to where consumers may see messages; then the lane is touched again."""
        held.reserve(held.accepted)
        self._lanes.reserving[held] = None
        self._writing.is_urgent = True

    def collect(self, held: HeldLane) -> None:
        """Take up what a lane lost, tried or let die, and what changed of its figures."""
        for segment in held.lane.take_changed():
            self._writing.note(held, segment, self._now)
        assert self.moves is not None
        assert self.leases is not None
        self.moves.take_dead(held)
        self.leases.look(held)
        self._lanes.note_losses(held, self._writing.noted, self._writing.durable)
        self._lanes.refresh(held)

    def _withdraw(self, held: HeldLane, damages: list[Damage]) -> None:
        """Put messages aside whose block cannot be read, and say so: the others go on, and nothing is deleted."""
        for damage in damages:
            rows = len(damage.indices)
            for i in damage.indices:
                held.lane.withdraw(damage.segment, i)
            held.count("messages_unreadable", rows)
            self.unreadable += rows
            settings = held.lane.settings
            text = (
                f"{rows} messages of {settings.kind} {settings.name!r} cannot be delivered: {damage.detail}"
            )
            self._tell("error", "SYSTEM_AD_MESSAGES_UNREADABLE", text)
        self._lanes.touched[held] = None
