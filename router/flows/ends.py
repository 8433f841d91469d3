"""The ends of flows at the homes: bound, told their credit, bound again when a home comes back; and what passes them.

No batch is opened: FLOW_MESSAGES gets another head and becomes MESSAGES, ranges of SETTLE go to the home of their
partition.

This is what the router says to homes about flows (FLOW): bind, credit, settle, unbind. An end whose home is down waits,
keeps settles, and is bound under the same number when the home has its lanes again. One that goes before that leaves
its settles pending: they are sent when the home is back, before anybody else is bound there, so that the next owner
does not get what was settled.

A flow of a queue of a thousand partitions has a thousand ends. Many are bound some at a time, flows in turn, and more
when homes have answered: what others send to these homes would wait behind them. A few are bound at once, whatever else
there is to do. No I/O, no clock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import msgspec

from angarium import errors, wire
from angarium.errors import error_for
from angarium_server.frames.frame import MalformedFrameError, encode
from angarium_server.frames.homes import Bind, Credit, Settle, Unbind
from angarium_server.frames.settings import FlowOptions
from angarium_server.memory.memory import give_up_room
from router.flows.flow import WHOLE, Flow, Held, HomeFlow, HomeState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from angarium_server.frames.homes import FlowMessagesFrame, FlowPart, FlowVerb
    from router.delivery.egress import Egress
    from router.ground.ground import Counters
    from router.guaranteed.endpoints import LaneUsage
    from router.guaranteed.lanes import Lanes
    from router.matching.shards import Shard, Shards
    from router.sessions.session import Session

#: Bytes that one home may be promised at once: several windows of most applications, so that it never shows.
AHEAD_BYTES_MAX: Final = 8 << 20
#: And at least, however many flows a client has.
AHEAD_BYTES_MIN: Final = 64 << 10
#: Ends that are gone whose settles wait for a home; what the oldest one beyond that settled comes again.
PENDING_SETTLES_MAX: Final = 1_000
#: And ranges that they have together: with both limits a home gets all of them in one step.
PENDING_RANGES_MAX: Final = 20_000
#: Ends of those many that are bound and not answered, and so in one step: about 1 ms here, 5 ms at the homes.
STEP_MAX: Final = 64
#: So many of one flow are bound before another one has its turn; no more are bound at once.
PIECE: Final = 32


_Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
_Position = Annotated[int, msgspec.Meta(ge=1, le=1 << 62)]
_Partition = Annotated[int, msgspec.Meta(ge=0, lt=wire.MAX_PARTITIONS)]
_Outcome = Literal[0, 1, 2, 3]  # wire.OUTCOME_ACCEPTED, OUTCOME_RELEASED, OUTCOME_FAILED, OUTCOME_REJECTED
_decode_credit = msgspec.msgpack.Decoder(tuple[_Number, _Number, _Number]).decode
Ranges = Annotated[
    list[tuple[_Partition, _Position, _Position]], msgspec.Meta(max_length=wire.MAX_RANGES_PER_SETTLE)
]
_decode_settle = msgspec.msgpack.Decoder(tuple[_Number, _Outcome, Ranges]).decode


class PendingSettles(NamedTuple):
    """What an end that is gone had settled while its home was down."""

    lane: LaneUsage
    client: str
    #: Outcome and ranges, in order.
    settles: list[tuple[int, list[tuple[int, int]]]]

    @property
    def ranges(self) -> int:
        """Count the ranges."""
        return sum(len(found) for _, found in self.settles)


class Ends:
    """All ends, by their number."""

    def __init__(
        self, shards: Shards, lanes: Lanes, egress: Egress, counters: Counters, unread_bytes_max: int
    ) -> None:
        self._shards = shards
        self._homes = lanes
        self._egress = egress
        self._counters = counters
        #: Half of what a client may leave unread; the other half is what it has been sent already.
        self._ahead_bytes = unread_bytes_max // 2
        self._next_id = 1
        #: In the order in which they were made.
        self.by_id: dict[int, HomeFlow] = {}
        #: Ends that are to be bound when it is their turn, some of which may be gone by then. Who had a turn is last.
        self._in_line: OrderedDict[Flow, list[HomeFlow]] = OrderedDict()
        #: Those of them that were bound last: some may be answered, or gone.
        self._bound_last: list[HomeFlow] = []
        #: What ends that are gone had settled at homes that are down, oldest first.
        self._pending_settles: deque[PendingSettles] = deque()
        #: Ranges in them.
        self._pending_ranges = 0
        #: Messages whose settles were given up because the home was away for too long.
        self.settles_lost = 0

    def new_id(self) -> int:
        """Give a number for a flow or an end; none is given twice."""
        number = self._next_id
        self._next_id += 1
        return number

    def find(self, number: int, shard: Shard) -> HomeFlow | None:
        """Give the end that a home speaks of; None if it was unbound or moved meanwhile."""
        end = self.by_id.get(number)
        return end if end is not None and end.home == shard.index else None

    def at_home(self, index: int) -> list[HomeFlow]:
        """Give the ends at one worker."""
        return [end for end in self.by_id.values() if end.home == index]

    # -- binding ---------------------------------------------------------------------------------------------

    def attach(self, flow: Flow, lanes: list[LaneUsage]) -> None:
        """Give a flow ends at these lanes."""
        made = []
        for lane in lanes:
            end = HomeFlow(self.new_id(), flow, lane)
            self.by_id[end.id] = end
            flow.ends[lane.partition] = end
            made.append(end)
        self._bind_in_turn(flow, made)

    def detach(self, end: HomeFlow) -> None:
        """Unbind an end at once; what it has not settled is delivered to others."""
        held = end.flow.take_held(end.lane.partition)
        end.released = [*end.released, *held]
        self._let_go(end)
        del end.flow.ends[end.lane.partition]
        if not end.flow.ends:
            self._in_line.pop(end.flow, None)
            give_up_room(self.by_id)
        end.restart()
        if held:
            self.renew(end.flow)

    def detach_all(self, flow: Flow) -> None:
        """Unbind the ends of a flow that is over, of which there may be a thousand."""
        unseen: dict[int, list[tuple[int, int]]] = {}
        for held in flow.held:
            unseen.setdefault(held.partition, []).extend(held.ranges)
        for partition, end in flow.ends.items():
            if partition in unseen:
                end.released = [*end.released, *unseen[partition]]
            self._let_go(end)
        flow.clear()
        self._in_line.pop(flow, None)
        give_up_room(self.by_id)

    def _let_go(self, end: HomeFlow) -> None:
        """Forget an end, and have its home forget it."""
        self._keep_pending(end)
        del self.by_id[end.id]
        if end.state not in (HomeState.WAITING, HomeState.OVER):
            self._shards.send_order(end.home, end.id, Unbind(None, end.released))

    def release(self, flow: Flow, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Take note of what a client gives back with a flow that it unbinds: partition, first and last position."""
        by_partition: dict[int, list[tuple[int, int]]] = {}
        for partition, first, last in ranges:
            by_partition.setdefault(partition, []).append((first, last))
        for partition, found in by_partition.items():
            end = flow.ends.get(partition)
            if end is not None and flow.may_settle:
                end.released = found

    def hand_off(self, end: HomeFlow, hand_off_ms: int) -> bool:
        """Have nothing more delivered to an end; its home tells when all is settled or the time is over.

        What waits for the client goes back, nobody has seen it; so does what still comes. False if its home has nothing
        of it: then it is over already.
        """
        if end.state is HomeState.WAITING:
            self._keep_pending(end)
            end.state = HomeState.OVER
            return False
        end.state = HomeState.LEAVING
        held = end.flow.take_held(end.lane.partition)
        self._shards.send_order(end.home, end.id, Unbind(hand_off_ms, held))
        if held:
            self.renew(end.flow)
        return True

    def tell_leaving(self, flow: Flow, partitions: list[int]) -> None:
        """Ask the client of a flow for what nobody has seen of partitions that are to move, if it understands that."""
        if flow.session.hears_leaving:
            self.indicate(flow, wire.FLOW_LEAVING, 0, partitions)

    def _keep_pending(self, end: HomeFlow) -> None:
        """Keep what an end that goes has settled, if its home may have delivered something to it."""
        settles = end.take_kept() if end.kept else []
        if not settles or not end.is_resumed:
            return
        pending = PendingSettles(end.lane, end.flow.session.client_name, settles)
        self._pending_settles.append(pending)
        self._pending_ranges += pending.ranges
        while len(self._pending_settles) > PENDING_SETTLES_MAX or self._pending_ranges > PENDING_RANGES_MAX:
            lost = self._pending_settles.popleft()
            self._pending_ranges -= lost.ranges
            self.settles_lost += sum(last - first + 1 for _, found in lost.settles for first, last in found)

    def _send_pending(self, index: int) -> None:
        """Settle, on flows of their own that get nothing, for ends that are gone."""
        waiting, self._pending_settles = self._pending_settles, deque()
        for pending in waiting:
            lane = pending.lane
            is_there = lane.lane_id in self._homes.entries
            if is_there and (lane.home != index or not self._homes.is_ready(lane.lane_id, index)):
                self._pending_settles.append(pending)
                continue
            self._pending_ranges -= pending.ranges
            if not is_there:
                continue
            options = FlowOptions(resume=True, client=pending.client)
            bind = Bind(lane.lane_id, browse=False, selector=None, messages=0, bytes=0, options=options)
            settles = [Settle(outcome, ranges) for outcome, ranges in pending.settles]
            number = self.new_id()
            verbs: list[FlowVerb] = [bind, *settles, Unbind(None)]
            for verb in verbs:
                self._shards.send_order(index, number, verb)

    def home_ready(self, index: int) -> None:
        """A home came, or came back, and knows its lanes."""
        self._send_pending(index)
        waiting: dict[Flow, list[HomeFlow]] = {}
        for end in self.at_home(index):
            if end.state is HomeState.WAITING:
                waiting.setdefault(end.flow, []).append(end)
        for flow, ends in waiting.items():
            self._bind_in_turn(flow, ends)

    def home_lost(self, index: int) -> list[HomeFlow]:
        """A home died: its ends wait for the next one. Gives those that were leaving, which do not."""
        leaving = []
        for end in self.at_home(index):
            if end.state is HomeState.LEAVING:
                end.state = HomeState.OVER
                leaving.append(end)
            elif end.state is HomeState.OVER:
                continue
            elif end.state is not HomeState.WAITING:
                end.state = HomeState.WAITING
                end.is_resumed = True
                end.restart()
        return leaving

    def move(self, end: HomeFlow) -> None:
        """The lane of an end is at another worker now: it is bound there, as after a restart."""
        if end.state is not HomeState.WAITING:
            self._shards.send_order(end.home, end.id, Unbind(None))
        del self.by_id[end.id]
        end.id = self.new_id()
        self.by_id[end.id] = end
        end.home = end.lane.home
        end.is_resumed = True
        end.state = HomeState.WAITING
        end.restart()
        self._bind(end.flow, [end])

    def _bind_in_turn(self, flow: Flow, wanted: list[HomeFlow]) -> None:
        if len(wanted) <= PIECE:
            self._bind(flow, wanted)
        else:
            self._in_line.setdefault(flow, []).extend(wanted)

    def step(self) -> bool:
        """Bind some of those that wait for their turn; tell whether more could be bound at once."""
        if not self._in_line:
            return False
        self._bound_last = [
            end for end in self._bound_last if end.state is HomeState.BINDING and end.id in self.by_id
        ]
        left = STEP_MAX - len(self._bound_last)
        while self._in_line and left > 0:
            flow, ends = self._in_line.popitem(last=False)
            some = ends[-PIECE:]
            del ends[-PIECE:]
            if ends:
                self._in_line[flow] = ends
            self._bind(flow, some)
            self._bound_last += some
            left -= len(some)
        return bool(self._in_line) and left > 0

    def _bind(self, flow: Flow, wanted: list[HomeFlow]) -> None:
        """Bind ends of a flow that wait for it and whose homes are there; those share what credit is free."""
        is_ready = self._homes.is_ready
        ends = [
            end
            for end in wanted
            if end.state is HomeState.WAITING
            and end.id in self.by_id
            and is_ready(end.lane.lane_id, end.home)
        ]
        for end in ends:
            end.restart()
            end.state = HomeState.BINDING
        self._promise(flow, ends)
        options = {resumed: _options(flow, resumed) for resumed in {end.is_resumed for end in ends}}
        for end in ends:
            credit = (end.granted_messages, end.granted_bytes)
            bind = Bind(end.lane.lane_id, flow.browse, flow.selector, *credit, options[end.is_resumed])
            self._shards.send_order(end.home, end.id, bind)
            for outcome, ranges in end.take_kept():
                self._shards.send_order(end.home, end.id, Settle(outcome, ranges))

    # -- credit and settles ----------------------------------------------------------------------------------

    def renew(self, flow: Flow, only: HomeFlow | None = None) -> None:
        """Tell the homes of a flow, or one of them, what they may send more."""
        for end in self._promise(flow, flow.ends.values() if only is None else (only,)):
            self._shards.send_order(end.home, end.id, Credit(end.granted_messages, end.granted_bytes))

    def session_reads(self, session: Session) -> None:
        """A client has read what it was sent: what its flows were not promised because of that is promised now."""
        for flow in session.flows.values():
            if flow.is_capped:
                self.renew(flow)

    def _promise(self, flow: Flow, to: Iterable[HomeFlow]) -> list[HomeFlow]:
        session = flow.session
        if not self._egress.is_reading(session):
            flow.is_capped = True
            return []
        ends = sum(len(one.ends) for one in session.flows.values())
        ahead = max(AHEAD_BYTES_MIN, min(AHEAD_BYTES_MAX, self._ahead_bytes // max(1, ends)))
        return flow.promise(ahead, to)

    def _relay_settle(self, end: HomeFlow, outcome: int, ranges: list[tuple[int, int]]) -> None:
        """Relay what a client said of messages, now or when the home is back."""
        if end.state is HomeState.WAITING:
            if outcome != wire.OUTCOME_RELEASED:  # The next home has it anyway.
                self.settles_lost += end.keep(outcome, ranges)
        elif end.state is not HomeState.OVER:
            self._shards.send_order(end.home, end.id, Settle(outcome, ranges))

    # -- from clients ----------------------------------------------------------------------------------------

    def credit(self, session: Session, header: bytes) -> None:
        """Take FLOW_CREDIT.

        Raises:
            InvalidRequestError: malformed, or totals that fall (40001); a flow that never was (40023).
        """
        number, messages, size = wire.decode_header(_decode_credit, header)
        flow = self.find_flow(session, number)
        if flow is None:
            return
        if messages < flow.granted_messages or size < flow.granted_bytes:
            raise error_for(errors.MALFORMED_FRAME, "FLOW_CREDIT has totals that never fall")
        flow.granted_messages, flow.granted_bytes = messages, size
        if flow.held:
            self.send_held(flow)
        self.renew(flow)

    def settle(self, session: Session, header: bytes) -> int:
        """Take SETTLE, and give how many ranges it has: only its form is judged here, the messages by their home.

        Raises:
            InvalidRequestError: malformed (40001); a flow that never was (40023).
        """
        number, outcome, ranges = wire.decode_header(_decode_settle, header)
        flow = self.find_flow(session, number)
        if flow is not None:
            self._settle(session, flow, outcome, ranges)
        return len(ranges)

    def _settle(self, session: Session, flow: Flow, outcome: int, ranges: list[tuple[int, int, int]]) -> None:
        by_partition: dict[int, list[tuple[int, int]]] = {}
        for partition, first, last in ranges:
            if last < first:
                raise error_for(errors.MALFORMED_FRAME, f"SETTLE of {first} to {last}")
            by_partition.setdefault(partition, []).append((first, last))
        if not flow.may_settle:
            detail = f"{flow.endpoint.name} is read-only for {session.username}"
            self.refuse_settle(flow, errors.PERMISSION_DENIED, detail)
            return
        for partition, found in by_partition.items():
            end = flow.ends.get(partition)
            if end is None and outcome == wire.OUTCOME_RELEASED:
                continue
            if end is None:
                code = errors.PARTITION_LOST if flow.endpoint.partitions else errors.NOT_DELIVERED
                self.refuse_settle(flow, code, f"partition {partition}")
                continue
            claimed = sum(last - first + 1 for first, last in found)
            flow.settled = min(flow.settled + claimed, flow.sent_messages)
            self._relay_settle(end, outcome, found)

    def refuse_settle(self, flow: Flow, code: int, detail: Any) -> None:
        """Tell a client that some of what it settled was not its own."""
        self._counters.errors[code] += 1
        self.indicate(flow, wire.FLOW_SETTLE_REFUSED, code, detail)

    def find_flow(self, session: Session, number: int) -> Flow | None:
        """Give a flow of a session; None for one that is over.

        Raises:
            InvalidRequestError: there never was one of that number (40023).
        """
        flow = session.flows.get(number)
        if flow is None and not 1 <= number < session.next_flow:
            raise error_for(errors.UNKNOWN_FLOW, str(number))
        return flow

    def messages(self, frame: FlowMessagesFrame, shard: Shard, batches: list[bytes], _now: float) -> None:
        """Take FLOW_MESSAGES and its batches."""
        parts, size = frame.parts, frame.bytes
        if not parts or len(parts) != len(batches):
            raise MalformedFrameError("FLOW_MESSAGES has one batch for each of its parts")
        rows = sum([part.rows for part in parts])
        end = self.find(frame.flow, shard)
        if end is None:
            self._counters.totals["flow_messages_late"] += rows
            return
        flow = end.flow
        end.used_messages += rows
        end.used_bytes += size
        flow.promised_messages -= rows
        flow.promised_bytes -= size
        if end.state is HomeState.LEAVING:  # It was on its way when its partition was to move.
            self._shards.send_order(end.home, end.id, Settle(wire.OUTCOME_RELEASED, _ranges(parts)))
            if flow.is_capped:
                self.renew(flow)
            return
        flow.taken_messages += rows
        flow.taken_bytes += size
        if flow.range is not None:
            # Another incarnation of the home goes on behind it.
            first, count = parts[-1].runs[-1]
            flow.range = flow.range._replace(first=first + count)
        frames = [wire.MESSAGES, encode((flow.number, parts)), *batches]
        if flow.answer is None and not flow.held and _has_credit(flow):
            self._pass_on(flow, frames, rows, size)
        else:
            flow.held.append(Held(end.lane.partition, _ranges(parts), frames, rows, size))
        if flow.is_capped and end.state is HomeState.BOUND:
            self.renew(flow, end)

    def _pass_on(self, flow: Flow, frames: list[bytes], rows: int, size: int) -> None:
        flow.sent_messages += rows
        flow.sent_bytes += size
        self._counters.totals["flow_messages"] += rows
        self._egress.pass_on(flow.session, frames, size)

    def send_held(self, flow: Flow) -> None:
        """Send what waits for the client, as far as it has credit."""
        while flow.held and _has_credit(flow):
            held = flow.held.popleft()
            self._pass_on(flow, held.frames, held.messages, held.bytes)

    def indicate(self, flow: Flow, event: int, code: int, detail: Any) -> None:
        """Tell a client something of a flow that it knows."""
        if not flow.session.closed and flow.answer is None:
            header = wire.pack([flow.number, event, code, detail])
            self._egress.answer(flow.session, [wire.INDICATION, header])

    def validate(self) -> None:
        """Check that every end is where it says."""
        assert len(self._pending_settles) <= PENDING_SETTLES_MAX
        assert self._pending_ranges == sum(one.ranges for one in self._pending_settles) <= PENDING_RANGES_MAX
        assert all(flow.ends and ends for flow, ends in self._in_line.items())
        for number, end in self.by_id.items():
            assert end.id == number
            assert end.flow.ends[end.lane.partition] is end
            assert number < self._next_id


def _has_credit(flow: Flow) -> bool:
    """Tell whether one more frame may go to the client; it may overdraw."""
    return flow.sent_messages < flow.granted_messages and flow.sent_bytes < flow.granted_bytes


def _ranges(parts: Iterable[FlowPart]) -> list[tuple[int, int]]:
    """Give the positions of parts of one partition."""
    return [(first, first + count - 1) for part in parts for first, count in part.runs]


def _options(flow: Flow, is_resumed: bool) -> FlowOptions:  # noqa: FBT001 - the key of a table
    """Give what a bind of a flow says beside its credit."""
    reads = flow.range or WHOLE
    return FlowOptions(
        no_local=flow.session.publisher if flow.no_local else 0,
        max_unacked=flow.max_unacked,
        resume=is_resumed,
        client=flow.session.client_name,
        username=flow.session.username,
        active_indication=flow.active_indication,
        in_order=flow.in_order,
        group=reads.group,
        first=reads.first,
        end=reads.end,
        holder=flow.holder,
    )
