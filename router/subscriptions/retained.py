"""Retained messages as clients read them, and what a subscription needs that begins with them.

    retained.read    filter, after, upto, live    [upto, next], and one batch of rows

A page is read from the lane of the queue `#retained` (`node.endpoints.retained`). `after` is the topic behind which it
begins, `upto` the position that the first page gave: what is retained later is left out. `live` is a number for the
pages of one reading that a subscription goes on from (`router.sessions.splice`); 0: it is read for itself. `queued`
says that the subscription gets what comes live from a queue: of what waits for the session nothing is left out.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import chain, islice
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta

from angarium import errors, wire
from angarium.errors import error_for
from angarium.topic import MAX_TOPIC_BYTES, parse_filter
from angarium_server.frames.homes import POSITION_MAX, ReadRetained
from router.guaranteed.endpoints import QUEUE
from router.matching.copies import match_late
from router.matching.rows import decode_rows, encode_rows
from router.sessions.splice import Splice, retained_topics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from angarium.errors import AngariumError
    from angarium.topic import Filter as ParsedFilter
    from router.asking.requests import Answer
    from router.delivery.crowds import Crowds
    from router.flows.lane_questions import LaneQuestions
    from router.guaranteed.endpoints import Endpoints, LaneUsage
    from router.matching.rounds import Rounds
    from router.sessions.interest import Filter, Interest
    from router.sessions.round import Round
    from router.sessions.session import Session

#: Bytes of messages in one page; a single message may be larger.
PAGE_BYTES: Final = 256 << 10
#: Readings of one session that subscriptions go on from, at the same time; the oldest is given up for one more.
SPLICES_MAX: Final = 64
#: A reading waits so long at most for rounds that were under way: as long as for a home that starts.
SPLICE_S: Final = 10.0
#: Of a Message VPN: requests with new filters that rounds may lack; what comes beyond is as if it came later. And
#: rounds that wait before their endpoints, are to be retained and are given to these.
WAITING_MAX: Final = 100
UNADMITTED_MAX: Final = 32
#: How often it is looked whether they have retired, and at how many of these at once, all readings together: 1 ms.
LOOK_S: Final = 0.005
LOOKED_AT_MAX: Final = 2_000


class ReadArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of retained.read."""

    filter: str
    after: Annotated[str, Meta(max_length=MAX_TOPIC_BYTES)] = ""
    upto: Annotated[int, Meta(ge=0, le=POSITION_MAX)] = 0
    live: Annotated[int, Meta(ge=0, le=POSITION_MAX)] = 0
    #: Of a gateway: what comes live to whom it reads for comes from queues.
    queued: bool = False

    @property
    def is_first(self) -> bool:
        """Whether a reading begins with it."""
        return not self.upto and not self.after


class _Reading:
    """One page on its way."""

    __slots__ = ("answer", "pattern", "session", "splice", "wish")

    def __init__(
        self, session: Session, wish: ReadArguments, pattern: str, splice: Splice | None, answer: Answer
    ) -> None:
        self.session = session
        self.wish = wish
        self.pattern = pattern
        self.splice = splice
        self.answer = answer

    def give(self, value: list[Any], batch: bytes, crowds: Crowds) -> None:
        """Answer with what the lane gave, without what comes live."""
        splice, session = self.splice, self.session
        if splice is not None and splice.noted is None:
            waiting = chain(_waiting_topics(session), crowds.topics_for(session))
            splice.note(() if self.wish.queued else waiting)
        if splice is not None and splice.is_overrun:
            self.answer.refuse(error_for(errors.HOME_NOT_READY, "too much waits for this client"))
            return
        if splice is not None and splice.noted:
            batch = encode_rows([row for row in decode_rows(batch) if row.topic not in splice.noted])
        if splice is not None and session.splices is not None and value[1] is None:
            session.splices.pop(self.wish.live, None)
            session.splices = session.splices or None
        self.answer.give(value, batch)


def _waiting_topics(session: Session) -> Iterator[str]:
    """Give the topics of retained messages that wait for a session."""
    for queue in session.egress.queues if session.egress is not None else ():
        for bundle in queue.entries:
            yield from retained_topics(bundle)
    if session.eliding is not None:
        yield from (topic for topic, one in session.eliding.topics.items() if one.held is not None)


def _is_empty(lane: LaneUsage) -> bool:
    """Tell whether nothing is stored in a lane, or on its way there."""
    return lane.is_known and lane.is_reported and not lane.held_messages


class Retained:
    """Reads what is retained, for sessions that may subscribe to it, and gateways, for their clients that do."""

    def __init__(
        self,
        endpoints: Endpoints,
        questions: LaneQuestions,
        rounds: Rounds,
        interest: Interest[Session],
        crowds: Crowds,
        check: Callable[[Session, ParsedFilter], None],
        unadmitted: Callable[[], Iterable[Round[Session]]],
    ) -> None:
        """Begin without readings; `check` raises if a session may not, `unadmitted` gives rounds that wait."""
        self._endpoints = endpoints
        self._questions = questions
        self._rounds = rounds
        self._interest = interest
        self._crowds = crowds
        self._check = check
        self._unadmitted = unadmitted
        #: Those that wait for rounds, with what of these waits before endpoints. Who was looked at is last.
        self.waiting: OrderedDict[Splice, list[Round[Session]]] = OrderedDict()
        self._look_at = 0.0

    def read(self, session: Session, wish: ReadArguments, answer: Answer, now: float) -> None:
        """Give a page.

        Raises:
            AngariumError: the filter is invalid or shared (40005), or a subscription to it is not allowed (40302); the
                reading was given up for others (40018).
        """
        parsed = parse_filter(wish.filter)
        if parsed.share is not None:
            raise error_for(errors.INVALID_FILTER, "a shared subscription gets nothing that is retained")
        if not session.kind.carries_clients:  # what its clients may subscribe to was judged
            self._check(session, parsed)
        splice = self._splice(session, wish, parsed, now) if wish.live else None
        reading = _Reading(session, wish, parsed.pattern, splice, answer)
        if splice is None or splice not in self.waiting:
            self._ask(reading, now)
            return

        def go_on(error: AngariumError | None) -> None:
            if error is not None:
                answer.refuse(error)
            else:
                self._ask(reading, now)

        splice.reads.append(go_on)

    def may_be(self, session: Session) -> bool:
        """Tell whether a reading that began now could give anything, or would have to wait for rounds."""
        endpoint = self._endpoints.find(session.vpn.name, QUEUE, wire.RETAINED_QUEUE)
        if endpoint is not None and not all(map(_is_empty, (*endpoint.lanes, *endpoint.retiring))):
            return True
        return bool(self._ahead(session.vpn.id)) or any(True for _ in self._unadmitted_in(session.vpn.id))

    def _splice(self, session: Session, wish: ReadArguments, parsed: ParsedFilter, now: float) -> Splice:
        if session.splices is None:
            session.splices = {}
        known = session.splices.get(wish.live)
        if not wish.is_first:
            if known is None or known.pattern != parsed.pattern:
                raise errors.invalid(f"retained.read: no reading {wish.live} of {wish.filter!r} has begun")
            return known
        while len(session.splices) >= SPLICES_MAX:
            del session.splices[next(iter(session.splices))]
        wanted = [self._interest.find(session.vpn.id, parsed, always) for always in (False, True)]
        filters = [one for one in wanted if one is not None and session in one.members]
        splice = Splice(parsed.pattern, filters, self._ahead(session.vpn.id), now + SPLICE_S)
        session.splices[wish.live] = splice
        rounds = list(self._unadmitted_in(session.vpn.id))
        for a_round in rounds:
            self._match_late(a_round, filters)
        if splice.ahead or rounds:
            self.waiting[splice] = rounds
        return splice

    def begin(self, filters: list[Filter[Session]]) -> Callable[[], None]:
        """Take note of new filters, which rounds may lack; gives what is to be called when the workers know them."""
        direct = [one for one in filters if one.kind != wire.KIND_SHARED]
        if not direct:
            return lambda: None
        vpn_id = direct[0].vpn_id
        for a_round in islice(self._unadmitted_in(vpn_id), UNADMITTED_MAX):
            self._match_late(a_round, direct)
        if sum(one.filters[0].vpn_id == vpn_id for one in self.waiting if one.filters) >= WAITING_MAX:
            return lambda: None
        splice = Splice("", direct, None, inf)
        self.waiting[splice] = []

        def known() -> None:
            splice.ahead = self._ahead(vpn_id)
            if not splice.ahead:
                self.waiting.pop(splice, None)

        return known

    def _ahead(self, vpn_id: int) -> dict[Session, int]:
        """Give the rounds of a Message VPN that are under way, by their sessions: those of others hold up nobody."""
        under_way = self._rounds.under_way()
        return {one: number for one, number in under_way.items() if one.vpn.id == vpn_id}

    def _unadmitted_in(self, vpn_id: int) -> Iterator[Round[Session]]:
        """Give the rounds of a Message VPN that wait before endpoints, and of which something is to be retained.

        Others may wait for as long as an endpoint is full.
        """
        return (one for one in self._unadmitted() if one.session.vpn.id == vpn_id and self._is_retained(one))

    def _is_retained(self, a_round: Round[Session]) -> bool:
        """Tell whether the queue for retained messages takes something of a round."""
        return any(one.retains for result in a_round.endpoints for one in self._endpoints.resolve(result.set))

    def retiring(self, a_round: Round[Session]) -> None:
        """A round retires while readings wait: workers may have matched it before they knew these subscriptions."""
        if not self._is_retained(a_round):
            return
        read_first = sorted(self.waiting, key=lambda one: not one.pattern)
        self._match_late(a_round, chain.from_iterable(one.filters for one in read_first))

    def _match_late(self, a_round: Round[Session], filters: Iterable[Filter[Session]]) -> None:
        """Give a round of which something is retained to filters that workers may not have known."""
        vpn_id, first = a_round.session.vpn.id, a_round.next_filter
        late = dict.fromkeys(one for one in filters if one.id >= first and one.vpn_id == vpn_id)
        if late:
            match_late(a_round, late)

    def _ask(self, reading: _Reading, now: float) -> None:
        wish, vpn = reading.wish, reading.session.vpn.name
        endpoint = self._endpoints.find(vpn, QUEUE, wire.RETAINED_QUEUE)
        if endpoint is None:
            reading.give([0, None], wire.array_head(0), self._crowds)
            return

        def done(page: Any, error: AngariumError | None, _now: float) -> None:
            if error is not None:
                reading.answer.refuse(error)
            else:
                value, batch = page
                reading.give(value, batch, self._crowds)

        verb = ReadRetained(reading.pattern, wish.after, wish.upto, PAGE_BYTES)
        self._questions.ask(endpoint, endpoint.lanes[0], verb, done, now)

    def tick(self, now: float) -> float:
        """See which readings may go on, some of very many; gives when to look again, infinite if none waits."""
        if not self.waiting:
            return inf
        if now < self._look_at:
            return self._look_at
        self._look_at = now + LOOK_S
        unadmitted = {id(one) for one in self._unadmitted()} if any(self.waiting.values()) else ()
        left = LOOKED_AT_MAX
        for splice, rounds in [*islice(self.waiting.items(), LOOKED_AT_MAX)]:
            if left <= 0:
                break
            left -= 1 + len(splice.ahead or ()) + len(rounds)
            self.waiting.move_to_end(splice)
            rounds[:] = [one for one in rounds if id(one) in unadmitted]
            if splice.look(self._crowds.is_served) and not rounds:
                self._end_wait(splice, None)
            elif now >= splice.until:
                self._end_wait(splice, error_for(errors.HOME_NOT_READY, "what was under way still is"))
        return self._look_at if self.waiting else inf

    def _end_wait(self, splice: Splice, error: AngariumError | None) -> None:
        del self.waiting[splice]
        reads, splice.reads = splice.reads, []
        for go_on in reads:
            go_on(error)
