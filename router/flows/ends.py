"""The ends of flows at the homes: bound, told their credit, bound again when a home comes back.

This is what the router says to homes about flows (FLOW): bind, credit, settle, unbind. An end whose home is down waits,
keeps settles, and is bound under the same number when the home has its lanes again. One that goes before that leaves
its settles behind as last words: they are said when the home is back, before anybody else is bound there, so that the
next owner does not get what was settled. No I/O, no clock.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from angarium import wire
from angarium_server.frames.frame import encode
from angarium_server.frames.homes import Bind, Credit, FlowFrame, Settle, Unbind
from router.flows.flow import Flow, HomeFlow, HomeState
from router.matching.shards import ShardState

if TYPE_CHECKING:
    from router.delivery.egress import Egress
    from router.guaranteed.lane_usage import LaneUsage
    from router.guaranteed.lanes import Lanes
    from router.matching.shards import Shard, Shards
    from router.sessions.session import Session

#: Bytes that one home may be promised at once: several windows of most applications, so that it never shows.
AHEAD_BYTES_MAX: Final = 8 << 20
#: And at least, however many flows a client has.
AHEAD_BYTES_MIN: Final = 64 << 10
#: Ends whose last words wait for a home; what the oldest one beyond that settled comes again.
LAST_WORDS_MAX: Final = 1_000


class LastWords(NamedTuple):
    """What an end that is gone had settled while its home was down."""

    lane: LaneUsage
    client: str
    #: Outcome and ranges, in order.
    settles: list[tuple[int, list[tuple[int, int]]]]


class Ends:
    """All ends, by their number."""

    def __init__(self, shards: Shards, lanes: Lanes, egress: Egress, unread_bytes_max: int) -> None:
        self._shards = shards
        self._homes = lanes
        self._egress = egress
        #: Half of what a client may leave unread; the other half is what it has been sent already.
        self._ahead_bytes = unread_bytes_max // 2
        self._next_id = 1
        #: In the order in which they were made.
        self.by_id: dict[int, HomeFlow] = {}
        #: What ends that are gone have to say to homes that are down, oldest first.
        self._last_words: deque[LastWords] = deque()
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
        self._bind(flow, made)

    def detach(self, end: HomeFlow) -> None:
        """Unbind an end at once; what it has not settled is delivered to others."""
        self._keep_last_words(end)
        del self.by_id[end.id]
        del end.flow.ends[end.lane.partition]
        if end.state not in (HomeState.WAITING, HomeState.OVER):
            self._tell(end, Unbind(None))
        if end.flow.drop_held(end.lane.partition):
            self.renew(end.flow)

    def hand_off(self, end: HomeFlow, hand_off_ms: int) -> bool:
        """Have nothing more delivered to an end; its home tells when all is settled or the time is over.

        False if its home has nothing of it: then it is over already.
        """
        if end.state is HomeState.WAITING:
            self._keep_last_words(end)
            end.state = HomeState.OVER
            return False
        end.state = HomeState.LEAVING
        self._tell(end, Unbind(hand_off_ms))
        return True

    def _keep_last_words(self, end: HomeFlow) -> None:
        """Keep what an end that goes has settled, if its home may have delivered something to it."""
        settles = end.take_kept()
        if not settles or not end.is_resumed:
            return
        if len(self._last_words) >= LAST_WORDS_MAX:
            lost = self._last_words.popleft()
            self.settles_lost += sum(last - first + 1 for _, found in lost.settles for first, last in found)
        self._last_words.append(LastWords(end.lane, end.flow.session.client_name, settles))

    def _say_last_words(self, index: int) -> None:
        """Settle, on flows of their own that get nothing, for ends that are gone."""
        waiting, self._last_words = self._last_words, deque()
        for words in waiting:
            lane = words.lane
            if lane.lane_id not in self._homes.entries:
                continue
            if lane.home != index or not self._homes.is_ready(lane.lane_id, index):
                self._last_words.append(words)
                continue
            number = self.new_id()
            options = {"no_local": 0, "max_unacked": None, "resume": True, "client": words.client}
            self._send(
                index,
                number,
                Bind(lane.lane_id, browse=False, selector=None, messages=0, bytes=0, options=options),
            )
            for outcome, ranges in words.settles:
                self._send(index, number, Settle(outcome, ranges))
            self._send(index, number, Unbind(None))

    def home_ready(self, index: int) -> None:
        """A home came, or came back, and knows its lanes."""
        self._say_last_words(index)
        waiting: dict[Flow, list[HomeFlow]] = {}
        for end in self.at_home(index):
            if end.state is HomeState.WAITING:
                waiting.setdefault(end.flow, []).append(end)
        for flow, ends in waiting.items():
            self._bind(flow, ends)

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
            self._tell(end, Unbind(None))
        del self.by_id[end.id]
        end.id = self.new_id()
        self.by_id[end.id] = end
        end.home = end.lane.home
        end.is_resumed = True
        end.state = HomeState.WAITING
        end.restart()
        self._bind(end.flow, [end])

    def _bind(self, flow: Flow, ends: list[HomeFlow]) -> None:
        """Bind ends of a flow whose homes are there, all at once, so that the credit is shared by them."""
        ends = [end for end in ends if self._homes.is_ready(end.lane.lane_id, end.home)]
        for end in ends:
            end.restart()
            end.state = HomeState.BINDING
        others = [one for one in self._promise(flow) if one not in ends]
        for end in ends:
            self._tell_bind(end)
            for outcome, ranges in end.take_kept():
                self._tell(end, Settle(outcome, ranges))
        self._tell_credit(others)

    def _tell_bind(self, end: HomeFlow) -> None:
        flow = end.flow
        options = {
            "no_local": flow.session.publisher if flow.no_local else 0,
            "max_unacked": flow.max_unacked,
            "resume": end.is_resumed,
            "client": flow.session.client_name,
            "username": flow.session.username,
            "active_indication": flow.active_indication,
            "in_order": flow.in_order,
        }
        if flow.range is not None:
            options.update(group=flow.range.group, first=flow.range.first, end=flow.range.end)
        credit = (end.granted_messages, end.granted_bytes)
        self._tell(end, Bind(end.lane.lane_id, flow.browse, flow.selector, *credit, options))

    def _tell(self, end: HomeFlow, arguments: Bind | Credit | Settle | Unbind) -> None:
        self._send(end.home, end.id, arguments)

    def _send(self, index: int, number: int, arguments: Bind | Credit | Settle | Unbind) -> None:
        shards = self._shards.shards
        if index < len(shards) and shards[index].state is not ShardState.DOWN:
            packed = msgspec.Raw(encode(arguments))
            frame = FlowFrame(self._shards.incarnation, arguments.verb, number, packed)
            self._shards.send(shards[index], [wire.FLOW, encode(frame)])

    # -- credit and settles ----------------------------------------------------------------------------------

    def renew(self, flow: Flow, only: HomeFlow | None = None) -> None:
        """Tell the homes of a flow, or one of them, what they may send more."""
        self._tell_credit(self._promise(flow, only))

    def session_reads(self, session: Session) -> None:
        """A client has read what it was sent: what its flows were not promised because of that is promised now."""
        for flow in session.flows.values():
            if flow.is_capped:
                self.renew(flow)

    def _promise(self, flow: Flow, only: HomeFlow | None = None) -> list[HomeFlow]:
        session = flow.session
        if not self._egress.is_reading(session):
            flow.is_capped = True
            return []
        ends = sum(len(one.ends) for one in session.flows.values())
        ahead = max(AHEAD_BYTES_MIN, min(AHEAD_BYTES_MAX, self._ahead_bytes // max(1, ends)))
        return flow.promise(ahead, only)

    def _tell_credit(self, ends: list[HomeFlow]) -> None:
        for end in ends:
            self._tell(end, Credit(end.granted_messages, end.granted_bytes))

    def settle(self, end: HomeFlow, outcome: int, ranges: list[tuple[int, int]]) -> None:
        """Relay what a client said of messages, now or when the home is back."""
        if end.state is HomeState.WAITING:
            self.settles_lost += end.keep(outcome, ranges)
        elif end.state is not HomeState.OVER:
            self._tell(end, Settle(outcome, ranges))

    def validate(self) -> None:
        """Check that every end is where it says."""
        assert len(self._last_words) <= LAST_WORDS_MAX
        for number, end in self.by_id.items():
            assert end.id == number
            assert end.flow.ends[end.lane.partition] is end
            assert number < self._next_id
