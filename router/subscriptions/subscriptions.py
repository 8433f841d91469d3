"""SUBSCRIBE and UNSUBSCRIBE: checked one filter at a time, some in each step, answered as a whole.

A SUBSCRIBE is answered when every worker has confirmed. A subscription takes effect between rounds; after the answer to
UNSUBSCRIBE nothing more is queued for it. A subscription manager acts on another client of its Message VPN, under its
own ACL (R58 to R62).

Work is done in steps, one for each turn of the loop: what those who are here ask for, and what those who left leave
behind. Whoever asks while a step has something left is served at once.

Nothing is sent to a session that is over, and what it was charged for is given back, in the moment in which it ends.
What is left is to take it out of the subscribers of filters, and the filters that nobody wants any more out of the
workers. A client may leave with a hundred thousand, so that is done some at a time, and others are served in between.

No I/O, no clock.
"""

from __future__ import annotations

import math
from collections import deque
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import msgspec

from angarium import errors, wire
from angarium.errors import AngariumError, error_for
from angarium.topic import NOEXPORT_PREFIX, overlaps, parse_filter
from angarium.topic import Filter as ParsedFilter
from angarium_server.costs import subscription_bytes
from angarium_server.shapes import shape_of, shape_of_filter
from router.ground.alarms import CLIENT_OVERLAPPING, CLIENT_SUBSCRIPTIONS, VPN_OVERLAPPING, VPN_SUBSCRIPTIONS
from router.sessions.interest import Subscription
from router.subscriptions.members import Members, validate_wanted
from router.subscriptions.subscribing import PIECE, Request, RequestLine, units_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from router.asking.work import Work
    from router.delivery.egress import Egress
    from router.ground.alarms import Alarms
    from router.guaranteed.memory_accounts import MemoryAccounts
    from router.matching.shards import Shards
    from router.sessions.interest import Filter, Interest
    from router.sessions.session import Session


class Departures:
    """Subscriptions of sessions that are over."""

    def __init__(
        self, interest: Interest[Session], shards: Shards, on_change: Callable[[int, str], None]
    ) -> None:
        self._members = Members(interest)
        self._shards = shards
        #: Called with (VPN number, pattern) when a filter goes.
        self._on_change = on_change
        #: Sessions and what is left of each, in the order in which they ended; nothing is empty.
        self._left: deque[tuple[Session, list[Subscription]]] = deque()

    def __len__(self) -> int:
        """Count what is left of all of them."""
        return sum(len(left) for _, left in self._left)

    def __bool__(self) -> bool:
        return bool(self._left)

    def add(self, session: Session) -> None:
        """Take over what a session subscribed to, which is over."""
        assert session.closed
        if session.subscriptions:
            self._left.append((session, list(session.subscriptions.values())))
            session.subscriptions = {}

    def held(self) -> Iterator[tuple[Session, Subscription]]:
        """Give what is left of all of them."""
        return ((session, one) for session, left in self._left for one in left)

    def step(self, limit: int) -> int:
        """Take away so many subscriptions at most; gives how many."""
        if not self._left:
            return 0
        left_before = limit
        removed: list[Filter[Session]] = []
        while self._left and limit > 0:
            session, left = self._left[0]
            some = left[-limit:]
            del left[-limit:]
            limit -= len(some)
            for one in some:
                self.leave(session, one, removed)
            if not left:
                self._left.popleft()
        self._shards.change_filters([], removed)
        return left_before - limit

    def validate(self) -> None:
        """Check what the comments promise."""
        assert all(left and session.closed for session, left in self._left)

    def leave(self, session: Session, subscription: Subscription, removed: list[Filter[Session]]) -> None:
        """Take away one subscription; its filter is added to `removed` if that was the last one."""
        if self._members.leave(session, subscription):
            removed.append(subscription.filter)
            self._on_change(subscription.filter.vpn_id, subscription.filter.pattern)


#: What the router gives clients as addresses for replies; each client may subscribe to its own only.
INBOX_PREFIX = "#P2P/INB/"
#: Filters that are added or taken away in one step, of which a turn has one: 2 ms.
STEP_MAX: Final = 128
#: Gives the number that it is given, of equal ones the same object: a number of its own takes 32 bytes, and a million
#: subscriptions have a few sizes.
_shared: Final = lru_cache(maxsize=1_000)(int)


_Flags = Annotated[int, msgspec.Meta(ge=0, le=wire.SUBSCRIBE_DELIVER_ALWAYS)]
_Entries = Annotated[
    list[tuple[str, _Flags]], msgspec.Meta(min_length=1, max_length=wire.MAX_FILTERS_PER_REQUEST)
]
#: Request number, filters with their flags, and the client that a subscription manager acts for.
_decode_request = msgspec.msgpack.Decoder(tuple[int, _Entries, str | None]).decode


class Change:
    """What a piece of a request changes."""

    __slots__ = ("added", "bytes", "freed", "joined", "removed", "room")

    def __init__(self, room: int) -> None:
        #: Filters that the workers do not know, and those that nobody wants any more.
        self.added: list[Filter[Session]] = []
        self.removed: list[Filter[Session]] = []
        #: Those of the subscriptions that are there now, whether others had them before or not.
        self.joined: list[Filter[Session]] = []
        #: What the new subscriptions cost, which is charged at the end of the piece, and how much that may be.
        self.bytes, self.room = 0, room
        #: What the subscriptions cost that are gone, which is given back then.
        self.freed = 0


#: Adds or removes one subscription: (who acts, for whom, filter, flags, what changes) -> None or [code, detail].
_Act: TypeAlias = "Callable[[Session, Session, str, int, Change], list[Any] | None]"


class Subscriptions:
    """Adds and removes subscriptions; every change passes here."""

    #: Tells whether a client of a gateway has to ask for what is retained; who reads that sets it.
    may_be_retained: Callable[[Session], bool]
    #: Called with new filters; gives what is called when the workers know them. Who reads what is retained sets it.
    on_new: Callable[[list[Filter[Session]]], Callable[[], None]]

    def __init__(
        self,
        interest: Interest[Session],
        shards: Shards,
        egress: Egress,
        *,
        on_change: Callable[[int, str], None],
        find_client: Callable[[str, str], Session | None],
        alarms: Alarms,
        memory: MemoryAccounts,
    ) -> None:
        self._interest = interest
        self._shards = shards
        self._egress = egress
        #: Called with (VPN number, pattern) when a filter comes or goes.
        self._on_change = on_change
        #: Gives the connected client of (VPN name, client name).
        self._find_client = find_client
        self._alarms = alarms
        self._memory = memory
        #: Requests that are not done.
        self._line = RequestLine()
        #: What a step may cost, and what this one still may before the next one begins.
        self.step_max = self._left = STEP_MAX
        #: Whose request is being done; None between two.
        self.served: Session | None = None
        self._members = Members(interest)
        #: What sessions leave behind.
        self.departures = Departures(interest, shards, on_change)
        #: Subscriptions of all sessions.
        self.count = 0
        #: Refusals by code.
        self.refused: dict[int, int] = {}

    def begin(self, actor: Session, operation: bytes, header: bytes) -> int:
        """Begin with a SUBSCRIBE or UNSUBSCRIBE; gives the number of filters.

        Raises:
            InvalidRequestError: the frame itself is malformed (40001).
        """
        number, entries, target = self._read(actor, header)
        if isinstance(target, AngariumError):
            self._answer(actor, number, [self._refusal(target) for _ in entries])
        else:
            self.begin_work(Request(operation, number, actor, target, entries, self._do_some, self._finish))
        return len(entries)

    def begin_work(self, work: Work) -> None:
        """Begin with what takes several steps: its session is busy until then."""
        self._line.push(work)
        self._go_on()

    def _go_on(self) -> None:
        """Do what is left of the step: requests, and then what others left behind."""
        line = self._line
        while line and self._left > 0:
            request = line.next()
            if not request.actor.closed:
                self._left -= request.do(PIECE if line.is_contended else self._left)
            if request.is_done or request.actor.closed:
                line.remove(request)
                request.finish()
        if self._left > 0:
            self._left -= self.departures.step(self._left)

    def _do_some(self, request: Request, limit: int) -> int:
        """Do the next filters of a request; gives what that cost."""
        actor, target = request.actor, request.target
        if target.closed:
            error = error_for(errors.UNKNOWN_CLIENT_NAME, target.client_name[:200])
            request.answers += [self._refusal(error) for _ in request.entries[len(request.answers) :]]
            return 1
        act: _Act = self._add if request.operation == wire.SUBSCRIBE else self._remove
        self.served = actor
        change = Change(self._memory.room(target))
        cost = 0
        for text, flags in islice(request.entries, len(request.answers), None):
            request.answers.append(act(actor, target, text, flags, change))
            cost += units_of(text)
            if cost >= limit:
                break
        self._memory.charge(target, change.bytes)
        self._memory.refund(target, change.freed)
        self._look(target)
        self._shards.change_filters(change.added, change.removed)
        if change.added:
            request.on_known.append(self.on_new(change.added))
        request.joined += change.joined
        self.served = None
        # Those who come and go faster than steps are done would leave more and more behind.
        return cost + self.departures.step(cost)

    def _look(self, session: Session) -> None:
        """A client has other subscriptions than before."""
        vpn, permissions, alarms = session.vpn, session.permissions, self._alarms
        alarms.look(VPN_SUBSCRIPTIONS, vpn, vpn.subscriptions)
        alarms.look(VPN_OVERLAPPING, vpn, len(vpn.shapes))
        alarms.client_has(
            CLIENT_SUBSCRIPTIONS, session, len(session.subscriptions), permissions.subscriptions_max
        )
        alarms.client_has(CLIENT_OVERLAPPING, session, len(session.shapes), permissions.overlapping_max)

    def _finish(self, request: Request) -> None:
        def answer() -> None:
            for known in request.on_known:
                known()
            self._answer(request.actor, request.number, request.answers)

        self._shards.await_pending(request.joined, answer)

    def session_ended(self, session: Session, _error: object, _now: float) -> None:
        """If a client is gone nothing is for it any more (R56, R64), and its limits are free."""
        if not session.is_client:
            return
        vpn, count = session.vpn, len(session.subscriptions)
        vpn.subscriptions -= count
        vpn.shapes.remove_all(session.shapes)
        self.count -= count
        self.departures.add(session)
        self._go_on()
        self._look(session)

    @property
    def is_busy(self) -> bool:
        """Whether something is left to do."""
        return bool(self._line or self.departures)

    def tick(self, now: float) -> float:
        """End a step, of which something may be left to do, and have another one begin; gives when to come again."""
        if self.is_busy:
            self._go_on()
        self._left = self.step_max
        return now if self.is_busy else math.inf

    def validate(self, sessions: Iterable[Session]) -> None:
        """Check the sums, given all sessions."""
        sessions = list(sessions)
        assert self.count == sum(len(one.subscriptions) for one in sessions)
        held = [(session, one) for session in sessions for one in session.subscriptions.values()]
        carriers = [session for session in sessions if session.wanted is not None]
        validate_wanted([*held, *self.departures.held()], carriers)
        self.departures.validate()
        self._line.validate()

    def _read(
        self, session: Session, header: bytes
    ) -> tuple[int, list[tuple[str, int]], Session | AngariumError]:
        request, entries, name = wire.decode_header(_decode_request, header)
        return request, entries, session if name is None else self._managed(session, name)

    def _managed(self, manager: Session, name: str) -> Session | AngariumError:
        """Find the client that a subscription manager acts on (R58, R59)."""
        username = manager.vpn.account_of(manager.username)
        if username is None or not username.is_manager:
            return error_for(errors.SUBSCRIPTION_MANAGER_DENIED, manager.username)
        target = self._find_client(manager.vpn.name, name)
        if target is None:
            return error_for(errors.UNKNOWN_CLIENT_NAME, name[:200])
        if target.carrier is not None:
            return error_for(
                errors.SUBSCRIPTION_MANAGER_DENIED, "its gateway knows what it subscribed to itself"
            )
        return target

    def _add(
        self, actor: Session, session: Session, text: str, flags: int, change: Change
    ) -> list[Any] | None:
        deliver_always = bool(flags & wire.SUBSCRIBE_DELIVER_ALWAYS)
        try:
            parsed = parse_filter(text)
            self.check(actor, parsed)
            if (text, deliver_always) in session.subscriptions:
                change.joined.append(session.subscriptions[text, deliver_always].filter)
                return None
            self._check_limits(session)
            shape = shape_of_filter(parsed)
            if shape is not None:
                self._check_shapes(session, shape)
            # That of a share group says more than the levels.
            known = shape if parsed.share is None else None
            size = subscription_bytes(text, parsed.pattern, len(self._shards.shards), known)
            if change.bytes + size > change.room:
                self._memory.refuse(session, change.bytes + size)
            change.bytes += size
        except AngariumError as error:
            return self._refusal(error)
        a_filter, is_new = self._filter_of(session, parsed, deliver_always=deliver_always)
        if is_new:
            change.added.append(a_filter)
        change.joined.append(a_filter)
        origin = "" if actor is session else actor.client_name
        made = Subscription(text, deliver_always, a_filter, _shared(size), origin)
        session.subscriptions[text, deliver_always] = made
        self._members.join(session, made)
        session.vpn.subscriptions += 1
        if shape is not None:
            session.shapes.add(shape)
            session.vpn.shapes.add(shape)
        self.count += 1
        return None

    def _filter_of(
        self, session: Session, parsed: ParsedFilter, *, deliver_always: bool
    ) -> tuple[Filter[Session], bool]:
        found = self._interest.find(session.vpn.id, parsed, deliver_always)
        if found is not None:
            return found, False
        made = self._interest.create(session.vpn.id, parsed, deliver_always, self._shards.table)
        self._on_change(session.vpn.id, parsed.pattern)
        return made, True

    def check(self, actor: Session, parsed: ParsedFilter) -> None:
        """Check a filter by the rights of the acting client: for a manager its own ACL, not the target's.

        (R61, R62).
        """
        if parsed.pattern.startswith("#P2P"):
            if overlaps(parsed.pattern, wire.QUEUE_TOPIC_PREFIX + ">"):
                raise error_for(errors.RESERVED_TOPIC, "what is sent to a queue is for its consumers")
            if overlaps(parsed.pattern, INBOX_PREFIX + ">"):
                if parsed.pattern != actor.inbox or parsed.share is not None:
                    raise error_for(errors.RESERVED_TOPIC, "the inbox of another client")
                return
        actor.permissions.check(parsed)

    def _check_limits(self, session: Session) -> None:
        own = session.permissions.subscriptions_max
        if len(session.subscriptions) >= own:
            self._alarms.client_is_full(CLIENT_SUBSCRIPTIONS, session, own)
            raise error_for(errors.MAX_SUBSCRIPTIONS_EXCEEDED, f"the client profile allows {own}")
        limit = int(session.vpn.attributes["max_subscription_count"])
        if session.vpn.subscriptions >= limit:
            self._alarms.exceeded(VPN_SUBSCRIPTIONS, session.vpn)
            raise error_for(
                errors.MAX_SUBSCRIPTIONS_EXCEEDED, f"Message VPN {session.vpn.name} allows {limit}"
            )

    def _check_shapes(self, session: Session, shape: str) -> None:
        """Refuse a filter with which too many could match one topic: such topics would be dear to match."""
        own = session.permissions.overlapping_max
        shapes = session.shapes.known
        if shape not in shapes and len(shapes) >= own:
            self._alarms.client_is_full(CLIENT_OVERLAPPING, session, own)
            raise error_for(errors.OVERLAPPING_FILTERS, f"the client profile allows {own}")
        vpn = session.vpn
        shapes = vpn.shapes.known
        if shape not in shapes and len(shapes) >= (limit := int(vpn.attributes["max_overlapping_filters"])):
            self._alarms.exceeded(VPN_OVERLAPPING, vpn)
            raise error_for(errors.OVERLAPPING_FILTERS, f"Message VPN {vpn.name} allows {limit}")

    def _remove(
        self, actor: Session, session: Session, text: str, flags: int, change: Change
    ) -> list[Any] | None:
        deliver_always = bool(flags & wire.SUBSCRIBE_DELIVER_ALWAYS)
        try:
            if actor is not session:
                self.check(actor, parse_filter(text))
            subscription = session.subscriptions.get((text, deliver_always))
            if subscription is None:
                raise error_for(errors.SUBSCRIPTION_NOT_FOUND, text[:300])
        except AngariumError as error:
            return self._refusal(error)
        self._take_away(session, subscription, change)
        return None

    def _take_away(self, session: Session, subscription: Subscription, change: Change) -> None:
        del session.subscriptions[subscription.text, subscription.deliver_always]
        session.vpn.subscriptions -= 1
        shape = shape_of(subscription.filter.pattern, subscription.filter.key[3])
        if shape is not None:
            session.shapes.remove(shape)
            session.vpn.shapes.remove(shape)
        self.count -= 1
        change.freed += subscription.bytes
        self.departures.leave(session, subscription, change.removed)

    def _refusal(self, error: AngariumError) -> list[Any]:
        self.refused[error.code] = self.refused.get(error.code, 0) + 1
        return [error.code, error.detail]

    def _answer(self, session: Session, request: int, codes: list[Any]) -> None:
        if not session.closed:
            more = () if session.carrier is None else (self.may_be_retained(session),)
            self._egress.answer(session, [wire.SUBACK, wire.pack([request, codes, *more])])


def describe_subscription(session: Session, subscription: Subscription) -> dict[str, Any]:
    """Give what `angarium subscription list` shows (R87)."""
    share = subscription.filter.key[3]
    always = subscription.filter.kind == wire.KIND_DELIVER_ALWAYS
    return {
        "client": session.client_name,
        "vpn": session.vpn.name,
        "filter": subscription.text,
        "share": share,
        "dto_priority": "DA" if always else f"P{session.local_priority}",
        "noexport": subscription.text.startswith(NOEXPORT_PREFIX),
        "origin": f"manager {subscription.origin}" if subscription.origin else "client",
    }
