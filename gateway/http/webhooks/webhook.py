"""One webhook: a client at the node that consumes a queue, and what becomes of each message.

It logs in as any client does, binds a flow with credit for its window, and has each message posted; what failed keeps
its place in the window until it is due again, so with a window of 1 the order is that of the queue. What is not settled
when its flow ends is the queue's again, and comes with the same id. It is not posted again if this process knows that
it was accepted, or is about to hear of it; else a receiver sees it twice, and can tell.

    no client ──due──► logging in ──welcomed──► binding ──► bound
        ▲                  └──refused─┐            └─refused, flow over─► due again
        └─────────────────────────────┴── ended

No I/O; time, wall clock and chance are parameters, and who carries an attempt out says what came of it.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from angarium import errors, wire
from angarium.client.protocol.flow_window import FlowWindow, spool_size
from gateway.attached import AttachState, Login
from gateway.http.webhooks.attempts import Answer, Rules, Verdict, delay_of, verdict_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium.client.protocol.answers import FlowBound
    from angarium.client.protocol.events import Arrived, Indicated
    from angarium.errors import AngariumError
    from angarium.message import Row
    from gateway.attached import Attached, Guest
    from gateway.http.webhooks.room import Room
    from gateway.session import Acknowledged, AttachedWelcome

#: Why it does not consume, although it could.
NO_ROOM: Final = "all webhooks together hold what they may: raise http.webhook_memory_bytes"
#: Pauses before it logs in or binds again, the first and the longest.
PAUSE_FIRST_S: Final = 0.5
PAUSE_MAX_S: Final = 10.0
#: A change of its state is told when the last one was so long ago: a target that fails now and then is no flood.
TELL_S: Final = 5.0
#: So many messages are remembered that were accepted last: with a router or a worker that dies their settlements may be
#: lost, and they come again.
ACCEPTED_MAX: Final = 1_000
#: What `angarium client list` shows as its software, and what the name of its client begins with.
SOFTWARE: Final = "webhook"
CLIENT_PREFIX: Final = "#webhook/"


class Settings(NamedTuple):
    """What it is configured with, of what matters here."""

    vpn: str
    name: str
    queue: str
    username: str
    window: int
    rules: Rules


class Held:
    """A message that is taken and not settled."""

    __slots__ = (
        "again",
        "attempts",
        "is_lost",
        "message_id",
        "partition",
        "position",
        "row",
        "size",
        "window",
    )

    def __init__(self, window: FlowWindow, partition: int, position: int, row: Row, message_id: str) -> None:
        self.window, self.partition, self.position, self.row = window, partition, position, row
        self.size = spool_size((row,))
        #: That were made since it came: what the queue counts is deliveries, and some of them are of no attempt.
        self.attempts = 0
        #: Whether its partition was given to somebody else while an attempt was under way.
        self.is_lost = False
        #: The same message, if it came again while an attempt was under way: it gets what comes of that.
        self.again: Held | None = None
        #: The same in each attempt, and of no other message of any queue and node.
        self.message_id = message_id


class Hands(Protocol):
    """What a webhook has done by others."""

    def attach(self, guest: Guest, login: Login, vpn: str, now: float, /) -> Attached:
        """Log a client in; what comes of it is told to the guest, later."""

    def post(self, held: Held, /) -> None:
        """Make an attempt; `Webhook.posted` follows, later."""

    def chance(self) -> float:
        """Give a number from 0 to 1."""


class Webhook:
    """One of them; `gateway.attached.Guest` describes what it is told by the node."""

    def __init__(self, settings: Settings, node_id: str, hands: Hands, room: Room, share: int) -> None:
        """Begin with the next tick; it consumes with a share of the room of all webhooks."""
        self.settings: Final = settings
        self._room = room
        #: What it borrows while it consumes, and has borrowed; and what its messages take.
        self.share: Final = share
        self._borrowed = 0
        self._held_bytes = 0
        self._node_id = node_id
        self._hands = hands
        self._attached: Attached | None = None
        #: Of the flow; None before it is asked for. And whether messages may come.
        self._window: FlowWindow | None = None
        self._is_bound = False
        #: Whether it is its turn: of an exclusive queue one consumer has it, others stand by.
        self._is_active = False
        self._endpoint_id = 0
        #: When it may log in or bind next, and the pause after the next failure.
        self._begin_at = 0.0
        self._pause_s = PAUSE_FIRST_S
        #: Messages to post now; those to post later, by time; and those with an attempt under way, at most the window.
        self._ready: deque[Held] = deque()
        self._later: list[tuple[float, int, Held]] = []
        self._numbers = itertools.count()
        self._under_way: dict[str, Held] = {}
        #: The ids of those that were accepted last.
        self._accepted: dict[str, None] = {}
        self._is_stopping = False
        #: Why it does not consume; empty while it does. And why the last attempt failed; empty after a 2xx.
        self._trouble = "it has not begun yet"
        self._failure = ""
        self._last_failure = ""
        self._failed_at: float | None = None
        #: What was told of its state last, and when.
        self._told: tuple[bool, float] = (False, -inf)
        self._counts: Counter[str] = Counter()

    # Time.

    def tick(self, now: float) -> float:
        """Do what is due; gives when to call again."""
        if self._is_stopping:
            self._leave()
            return inf
        self._begin(now)
        while self._later and self._later[0][0] <= now:
            self._ready.append(heapq.heappop(self._later)[2])
        while self._ready and len(self._under_way) < self.settings.window:
            held = self._ready.popleft()
            self._under_way[held.message_id] = held
            self._counts["attempts"] += 1
            self._hands.post(held)
        wake = self._later[0][0] if self._later else inf
        return wake if self._window is not None else min(wake, max(self._begin_at, now + PAUSE_FIRST_S))

    def _begin(self, now: float) -> None:
        """Log in, or bind, if neither is done and it is time."""
        if now < self._begin_at:
            return
        settings = self.settings
        if self._attached is None:
            login = Login(
                username=settings.username,
                password=None,
                client_name=f"{CLIENT_PREFIX}{settings.name}",
                address="127.0.0.1",
                certificate=None,
                sdk=SOFTWARE,
                needs_password=False,
            )
            self._attached = self._hands.attach(self, login, settings.vpn, now)
        elif self._attached.state is AttachState.OPEN and self._window is None:
            self._bind(self._attached, now)

    def _bind(self, attached: Attached, now: float) -> None:
        if not self._room.borrow(self.share):
            self._end_flow(NO_ROOM, now)
            return
        self._borrowed = self.share
        window = self._window = FlowWindow(self.settings.window, self.share)

        def bound(value: FlowBound | None, error: AngariumError | None, then: float) -> None:
            if window is not self._window:
                return
            if error is not None or value is None:
                self._end_flow(str(error), then)
            else:
                self._is_bound, self._endpoint_id = True, value.endpoint_id
                self._is_active = value.active or bool(value.partitions)
                self._trouble, self._pause_s = "", PAUSE_FIRST_S

        attached.bind(window, {"name": self.settings.queue, "active_indication": True}, bound)
        self._begin_at = now

    def stop(self) -> None:
        """Begin nothing more, and leave when what is under way has its answer; see `is_over`."""
        self._is_stopping = True

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is left."""
        return self._is_stopping and not self._under_way and self._attached is None

    def _leave(self) -> None:
        if not self._under_way and self._attached is not None:
            self._attached.leave()
            self._attached = None
        if self._attached is None:
            self._window, self._is_bound, self._trouble = None, False, "it has ended"
            self._give_back()

    # Attempts.

    def posted(self, held: Held, answer: Answer, now: float, wall: float) -> None:
        """Take what came of an attempt."""
        del self._under_way[held.message_id]
        held.attempts += 1
        rules = self.settings.rules
        verdict = verdict_of(rules, answer, held.attempts)
        self._note(verdict, answer, now)
        if verdict is Verdict.ACCEPT:
            self._remember(held.message_id)
        if (again := held.again) is not None:
            self._let_go(held)
            again.attempts, held = held.attempts, again
        is_retried = verdict is Verdict.RETRY
        if held.window is not self._window or (is_retried and held.is_lost):
            self._let_go(held)  # It is the queue's again, or somebody else's.
        elif is_retried:
            delay_s = delay_of(rules, held.attempts, answer, wall, self._hands.chance())
            heapq.heappush(self._later, (now + delay_s, next(self._numbers), held))
        else:
            accepted = verdict is Verdict.ACCEPT
            self._settle(held, wire.OUTCOME_ACCEPTED if accepted else wire.OUTCOME_REJECTED)

    def _remember(self, message_id: str) -> None:
        self._accepted[message_id] = None
        if len(self._accepted) > ACCEPTED_MAX:
            del self._accepted[next(iter(self._accepted))]

    def _note(self, verdict: Verdict, answer: Answer, now: float) -> None:
        if verdict is Verdict.ACCEPT:
            self._counts["accepted"] += 1
            self._failure = ""
            return
        self._counts["rejected" if verdict is Verdict.REJECT else "failed"] += 1
        self._failure = self._last_failure = str(answer)
        self._failed_at = now

    def _settle(self, held: Held, outcome: int) -> None:
        if self._attached is not None:
            self._attached.settle(held.window, held.partition, held.position, outcome)
        self._put_back(held)

    def _let_go(self, held: Held) -> None:
        """Hold a message no more of which nothing is said."""
        if held.window is self._window:
            self._put_back(held)
        else:
            self._drop(held)

    def _drop(self, held: Held) -> None:
        """Hold a message no more."""
        self._held_bytes -= held.size
        self._room.drop(held.size)

    def _put_back(self, held: Held) -> None:
        """Hold a message no more, and have credit for another one."""
        self._drop(held)
        held.window.take(1, held.size)
        if self._attached is not None:
            self._attached.renew(held.window)

    # What the node says.

    def welcomed(self, _welcome: AttachedWelcome, now: float) -> None:
        """It is let in."""
        self._begin_at = now

    def refused(self, error: AngariumError, now: float) -> None:
        """It is not."""
        self._attached = None
        self._end_flow(str(error), now)

    def ended(self, error: AngariumError | None, now: float) -> None:
        """It is over, and begins again."""
        self._attached = None
        self._end_flow(str(error or errors.error_for(errors.SESSION_UNKNOWN)), now)

    def away(self, now: float) -> bool:
        """Wait for the next router, where it binds again."""
        self._end_flow("the router was lost", now)
        return not self._is_stopping

    def may_go_on(self, now: float) -> None:
        """It is attached again."""
        self._begin_at = min(self._begin_at, now)

    def spooled(self, event: Arrived, now: float) -> None:
        """Messages came."""
        if event.window is not self._window:
            return
        for one in event.deliveries:
            for position, row in zip(one.positions, one.rows, strict=True):
                message_id = f"{self._node_id}-{self._endpoint_id}-{one.partition}-{position}"
                self._take(Held(event.window, one.partition, position, row, message_id))
        if self._room.is_over(self._held_bytes) and self._attached is not None:
            self._room.given_back += len(self._ready) + len(self._later)
            self._attached.unbind(event.window)
            self._end_flow(NO_ROOM, now)

    def _take(self, held: Held) -> None:
        """Have a message posted, unless that has been done."""
        self._held_bytes += held.size
        self._room.hold(held.size)
        under_way = self._under_way.get(held.message_id)
        if under_way is not None:
            under_way.again = held
        elif held.message_id in self._accepted:
            self._settle(held, wire.OUTCOME_ACCEPTED)
        else:
            self._ready.append(held)

    def indicated(self, event: Indicated, now: float) -> None:
        """The flow is over, or has other partitions."""
        if event.window is not self._window:
            return
        if event.event == wire.FLOW_CLOSED:
            self._end_flow(str(errors.error_for(event.code or errors.HOME_NOT_READY, event.detail)), now)
        elif event.event == wire.FLOW_PARTITIONS:
            self._is_active = bool(event.partitions)
            self._forget({*event.partitions})
        elif event.event == wire.FLOW_LEAVING:
            self._release({*event.partitions})
        elif event.event in (wire.FLOW_ACTIVE, wire.FLOW_INACTIVE):
            self._is_active = event.event == wire.FLOW_ACTIVE

    def _forget(self, partitions: set[int]) -> None:
        """Drop what waits of other partitions than these: it is delivered elsewhere."""
        lost = [one for one in self._ready if one.partition not in partitions]
        lost += [one for _, _, one in self._later if one.partition not in partitions]
        self._ready = deque(one for one in self._ready if one.partition in partitions)
        self._later = [entry for entry in self._later if entry[2].partition in partitions]
        heapq.heapify(self._later)
        for one in self._under_way.values():
            if one.partition not in partitions:
                one.is_lost = True
                lost += [] if one.again is None else [one.again]
                one.again = None
        for one in lost:
            self._put_back(one)

    def _release(self, partitions: set[int]) -> None:
        """Give back what waits of partitions that are to move and was not posted: others post it the sooner."""
        unseen = [one for one in self._ready if one.partition in partitions and not one.attempts]
        self._ready = deque(one for one in self._ready if one.partition not in partitions or one.attempts)
        for one in unseen:
            self._settle(one, wire.OUTCOME_RELEASED)

    def _end_flow(self, why: str, now: float) -> None:
        """Be without a flow, and bind again after a pause: what was not settled is the queue's."""
        self._window, self._is_bound = None, False
        self._give_back()
        self._trouble = why
        self._begin_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)

    def _give_back(self) -> None:
        """Hold nothing that is not under way, and have no share."""
        waiting = [one.again for one in self._under_way.values() if one.again is not None]
        for held in (*waiting, *self._ready, *(entry[2] for entry in self._later)):
            self._drop(held)
        for held in self._under_way.values():
            held.again = None
        self._ready.clear()
        self._later.clear()
        self._room.give_back(self._borrowed)
        self._borrowed = 0

    # It has no subscriptions, and publishes nothing.

    def answered(self, codes: Sequence[int], now: float) -> None:
        """It asks for none."""

    def acknowledged(self, answers: Sequence[tuple[int, int]], now: float) -> None:
        """It publishes nothing."""

    def stored(self, event: Acknowledged, now: float) -> None:
        """It has no producer."""

    def delivered(self, rows: Sequence[Row], share: str | None, now: float) -> None:
        """What comes to its inbox is for nobody."""

    # What operators see.

    @property
    def is_up(self) -> bool:
        """Whether it consumes, and its last attempt was taken; or stands by."""
        return self._is_bound and not (self._is_active and self._failure)

    @property
    def state(self) -> str:
        """Give it as operators see it."""
        if self._is_bound and not self._is_active:
            return "standby"
        return "up" if self.is_up else "down"

    @property
    def error(self) -> str:
        """Give why it is not up."""
        return "" if self.is_up else self._trouble or self._failure

    def news(self, now: float) -> bool:
        """Tell whether its state is another one than was told last, and is to be told now."""
        was_up, told_at = self._told
        if self.is_up == was_up or now - told_at < TELL_S:
            return False
        self._told = self.is_up, now
        return True

    def describe(self, now: float) -> dict[str, Any]:
        """Give what `angarium webhook show` says of it."""
        return {
            "state": self.state,
            "error": self.error,
            "last_failure": self._last_failure,
            "last_failure_s": None if self._failed_at is None else round(now - self._failed_at, 3),
            **{name: self._counts[name] for name in ("attempts", "accepted", "failed", "rejected")},
            "under_way": len(self._under_way),
            "waiting": len(self._later) + len(self._ready),
            "held_bytes": self._held_bytes,
        }

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert len(self._under_way) <= self.settings.window
        assert self._window is not None or not (self._is_bound or self._ready or self._later)
        assert self._is_bound == (not self._trouble)
        assert self._borrowed == (0 if self._window is None else self.share)
        assert self._held_bytes >= sum(one.size for one in self._ready)
        again = [one.again for one in self._under_way.values() if one.again is not None]
        assert all(one.window is self._window for one in again)
        assert len(self._accepted) <= ACCEPTED_MAX
        if self._window is not None:
            self._window.validate()
