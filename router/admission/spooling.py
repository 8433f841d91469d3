"""From a round to its homes: what endpoints take of what was published.

A round comes here when its turn to be sent on has come, so everything is admitted in the publisher's order. Guaranteed
rounds: a whole frame is asked for with one check per endpoint; row by row only if that fails, if it may have been sent
before, or if rows match nothing (`judging`). What is admitted goes to the streams of its homes, direct subscribers get
their copies (R156), and the publisher is told when the homes have it. Direct rounds: endpoints that match get
promoted copies, without acknowledgement and without a way to wait (R151, R153).

A round that was sent again waits in the line of its producer while some endpoint cannot take what others have; the rows
before do not wait (`cutting`), later rounds of that producer do. So does any round while an endpoint that it is for
changes its lanes, or while an earlier one is being given to very many direct subscribers (`router.delivery.crowds`).
That is bounded by the producer's window, and ingress credit does not wait.

When the lanes of an endpoint were arranged anew, producers wait until the homes have what they were given before. A
resend is judged by the records of its lane: at or below the last sequence that is on disk there means stored
(`memory`). That needs an order: nothing that a producer published later is on disk while something earlier is not.
Inside one lane the stream to its home keeps that order; nobody does

- between lanes, when the number of partitions changed: a key belongs to another lane from then on;
- between two streams, when a lane has another home (`worker scale`): what comes next would be on disk there although
  the home before has not stored what it was given, and may die with it.

So guaranteed messages for such an endpoint are held back, in the line of their producer, until everything that its
homes were given before the change is on disk: mostly one write, or as long as a home is down. Other endpoints, direct
messages and moves go on; a move is one STORE per home that nothing of its lane overtakes.
"""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Final

from angarium import errors, wire
from angarium.errors import error_for
from angarium_server.frames.homes import StoreProducer
from router.admission.judging import Tally, find_unroutable, judge, judge_copies, without_direct
from router.admission.streams import Store, add_group, tell_nacks
from router.admission.subsets import apply_late_exceptions, cut, leave_dto_out, only_direct, spooled_for
from router.admission.verdict import Verdict
from router.matching.accounting import discard_name
from router.matching.copies import direct_indices, leave_out
from router.matching.rows import (
    Row,
    are_distinct,
    decode_rows,
    encode_rows,
    index_span,
    partition_hash,
    salt_of,
    spool_bytes,
)
from router.sessions.producer import SEQUENCE_MAX, Nack, Pending, Producer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from router.admission.publish_rights import PublishRights
    from router.admission.streams import Streams
    from router.admission.usage import Account
    from router.delivery.dispatcher import Dispatcher
    from router.ground.ground import Ground
    from router.guaranteed.endpoints import Endpoint, Endpoints, LaneUsage
    from router.sessions.round import EndpointResult, Round
    from router.sessions.session import Session
    from router.sessions.session_table import SessionTable


class Rearranging:
    """The endpoints that wait; a listener of `Endpoints`."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        #: Endpoint -> home -> number of the last STORE that is waited for.
        self.waiting: dict[Endpoint, dict[int, int]] = {}

    def begin(self, endpoint: Endpoint, homes: Iterable[int]) -> None:
        """The lanes of an endpoint, which were at these homes, are others or elsewhere from here on."""
        unstored = {home: number for home in homes if (number := self._streams.unstored(home))}
        if unstored:
            # What an earlier change waits for is waited for as well.
            self.waiting[endpoint] = {**self.waiting.get(endpoint, {}), **unstored}

    def concerns(self, endpoints: Iterable[Endpoint]) -> bool:
        """Tell whether what goes to these has to wait."""
        return any(endpoint in self.waiting for endpoint in endpoints)

    def end(self) -> bool:
        """Let go of the endpoints of which everything is on disk; true if there were any."""
        done = [
            endpoint
            for endpoint, numbers in self.waiting.items()
            if all(self._streams.has_stored(index, number) for index, number in numbers.items())
        ]
        for endpoint in done:
            del self.waiting[endpoint]
        return bool(done)

    def endpoint_gone(self, endpoint: Endpoint) -> None:
        """Nobody waits for what is gone."""
        self.waiting.pop(endpoint, None)

    def validate(self) -> None:
        """Check that there is something to wait for."""
        assert all(self.waiting.values())
        assert not any(endpoint.is_gone for endpoint in self.waiting)


Stores = dict[int, Store]
#: A frame with the endpoints that its rows match.
Frame = tuple["EndpointResult", "tuple[Endpoint, ...]"]

_CONGESTION: Final = "discard.message-promotion-congestion"
_NO_MATCH: Final = "discard.no-subscription-match"
_FENCED: Final = "discard.producer-fenced"


class Spooling:
    """Admission of rounds to endpoints."""

    def __init__(
        self,
        ground: Ground,
        sessions: SessionTable,
        endpoints: Endpoints,
        streams: Streams,
        *,
        settled: Callable[[Pending[Session]], None],
        rights: PublishRights,
        dispatcher: Dispatcher,
        break_off: Callable[[Producer[Session]], None],
    ) -> None:
        """Begin with nothing waiting; `settled` takes rounds that nobody takes, `break_off` ends a producer."""
        self._usage = streams.usage
        self._endpoints = endpoints
        self._streams = streams
        self._settled = settled
        self._counters, self._wall_ms = ground.counters, ground.wall_ms
        #: Spool bytes of promoted copies that one home may be given and has not on disk.
        self._promoted_bytes_max = ground.config.promoted_bytes_max
        self._rights = rights
        self.rearranging = Rearranging(streams)
        endpoints.on_rearrange = self.rearranging.begin
        self._deliver, self._crowds = dispatcher.deliver, dispatcher.crowds
        self._break_off = break_off
        self._sessions = sessions
        #: Producer -> its rounds that wait for room, oldest first; no empty lines.
        self._lines: dict[Producer[Session], deque[Round[Session]]] = {}
        #: Those of them that wait because a home has no room on its disk for what is on its way to it.
        self._waits_for: dict[Producer[Session], int] = {}
        #: `usage.freed` when the lines were tried last.
        self._tried_at = 0
        #: Direct rows so far that were promoted; those without a key are spread over partitions by it.
        self._promoted = 0

    # -- guaranteed rounds -----------------------------------------------------------------------------------

    def may_admit(self, a_round: Round[Session]) -> bool:
        """Tell whether a round can be judged now: as soon as all homes have reported."""
        producer = a_round.producer
        return self._streams.all_reported or a_round.broken or (producer is not None and producer.is_over)

    def take(self, a_round: Round[Session], producer: Producer[Session], now: float) -> None:
        """Take a guaranteed round whose turn has come."""
        if a_round.broken and not producer.is_over:
            self._break_off(producer)
        if producer.is_over:
            self._count_discard(a_round.session, _FENCED, a_round.rows)
            return
        line = self._lines.get(producer)
        if line is not None:
            line.append(a_round)
        elif not self._admit(a_round, producer, now):
            if a_round.session.closed and producer.id:  # its client sends it again
                self._break_off(producer)
            else:
                self._lines[producer] = deque([a_round])
                self._counters.totals["rounds_waited"] += 1

    def forget_rounds(self, producer: Producer[Session]) -> bool:
        """Drop the rounds of a producer that wait for room; true if there were any."""
        self._waits_for.pop(producer, None)
        return self._lines.pop(producer, None) is not None

    def retry(self, now: float) -> None:
        """Room may have come for rounds that wait, or the disk have what they wait for."""
        if self.rearranging.waiting and self.rearranging.end():
            self._usage.freed += 1
        if not self._lines or self._tried_at == self._usage.freed:
            return
        self._tried_at = self._usage.freed
        short: dict[int, None] = {}
        for producer, line in list(self._lines.items()):
            if self._waits_for.get(producer) in short:
                continue
            self._waits_for.pop(producer, None)
            while line and not producer.is_over and self._admit(line[0], producer, now):
                line.popleft()
            if not line:
                self._lines.pop(producer, None)
            elif producer in self._waits_for:
                short[self._waits_for[producer]] = None

    def _admit(self, a_round: Round[Session], producer: Producer[Session], now: float) -> bool:
        """Judge a round and hand it on; false if it, or its rest, has to wait for room."""
        batches = [part.batch for part in a_round.parts]
        lowest, highest = a_round.span or index_span(batches)
        first, last = a_round.first + lowest, a_round.first + highest
        is_order = a_round.span is not None or are_distinct(batches)
        if first <= producer.last or last > SEQUENCE_MAX or not is_order:
            self._break_off(producer)
            detail = f"{first} to {last} after {producer.last}"
            self._sessions.close(a_round.session, error_for(errors.INVALID_SEQUENCE, detail), now)
            return True
        if self._crowds.of and self._crowds.are_served(producer):
            return False
        memory = producer.memory
        frames = self._resolve(a_round)
        if self.rearranging.waiting and any(self.rearranging.concerns(ends) for _, ends in frames):
            return False
        stores = None if a_round.resent or _has_orphans(frames) else self._whole(frames, producer, a_round)
        verdict, is_judged = Verdict(), stores is None
        denied: dict[int, str] = {}
        if stores is None:
            rules_id = a_round.session.publish_rules_id
            denied = self._rights.denied(rules_id, batches) if a_round.resent else {}
            verdict = judge(Tally(self._usage), memory, a_round.first, _rows(frames), denied=denied)
            stores = _stores_of(verdict)
        index = self._streams.short_of(stores)
        if index is not None:
            self._waits_for[producer] = index
            return False
        if verdict.waits_from is not None:
            # What is cut off has to be admitted now, and will be: no disk is too short of room for it.
            head = cut(a_round, verdict.waits_from)
            if head is not None:
                self._admit(head, producer, now)
            return False
        if is_judged:
            self._judge_denied(a_round, frames, producer, verdict, denied)
            self._judge_orphans(a_round, frames, producer, verdict)
        self._judge_refused(a_round, producer, verdict)
        if is_judged or sum(result.rows for result, _ in frames) != a_round.rows:
            taken = [] if is_judged else [result.batch for result, _ in frames]
            verdict.unroutable = find_unroutable(a_round, taken, verdict, memory, (lowest, highest))
            if a_round.session.kind.carries_clients or a_round.session.carrier is not None:
                verdict.unroutable = without_direct(a_round, verdict.unroutable)
        self._hand_on(a_round, frames, producer, stores, verdict, last, now)
        return True

    def _hand_on(
        self,
        a_round: Round[Session],
        frames: list[Frame],
        producer: Producer[Session],
        stores: Stores,
        verdict: Verdict,
        last: int,
        now: float,
    ) -> None:
        nacks = sorted(verdict.nacks)
        self._count_discards(a_round.session, verdict)
        producer.last = last
        memory = producer.memory
        memory.take(a_round.rows, last, [(nack.sequence, nack.code) for nack in nacks])
        tell_nacks(stores, verdict.touched, memory)
        self._send_copies(a_round, frames, producer, verdict, now)
        self._counters.totals["ingress_messages"] += a_round.rows
        pending = Pending(producer, last, a_round.rows, a_round.bytes, nacks, verdict.unroutable)
        producer.unsettled.append(pending)
        head = StoreProducer(memory.id, a_round.first) if memory.id else None
        self._streams.store(
            stores,
            head,
            self._wall_ms(now),
            pending,
            relaxed=_is_relaxed(stores) and not producer.is_stage,
            publisher=a_round.session.publisher,
            stage=memory.id if producer.is_stage else 0,
        )
        if not pending.homes:
            self._settled(pending)

    # -- frames as a whole -----------------------------------------------------------------------------------

    def _resolve(self, a_round: Round[Session]) -> list[Frame]:
        frames = [(result, self._endpoints.resolve(result.set)) for result in a_round.endpoints]
        if self._endpoints.filters.newest_exception >= a_round.next_filter:
            frames = apply_late_exceptions(frames, a_round.next_filter)
        if self._endpoints.of_links and (a_round.producer is None or a_round.session.is_neighbour):
            # Direct messages cross links as such, and what came over one crosses no other.
            return [(result, tuple([one for one in ends if not one.link])) for result, ends in frames]
        return frames

    def _whole(
        self, frames: list[Frame], producer: Producer[Session] | None, a_round: Round[Session]
    ) -> Stores | None:
        """Give what the homes are to store if everything fits; one check per endpoint."""
        stores: Stores = {}
        if not frames:
            return stores
        if not self._fits(frames):
            return None
        for result, endpoints in frames:
            if any(one.partitions for one in endpoints):
                self._add_split(stores, result, endpoints, producer, a_round.first)
                continue
            targets = [(self._usage.account(one), one.lanes[0]) for one in endpoints]
            add_group(stores, targets, result.batch, result.rows, result.spool_bytes)
        return stores if self._usage.files.fit(stores) else None

    def judges_rows(self, a_round: Round[Session]) -> bool:
        """Tell whether a round does not fit as a whole, so that each row of it is judged alone."""
        frames = self._resolve(a_round)
        if a_round.resent or _has_orphans(frames) or not self._fits(frames):
            return True
        if a_round.producer is not None:
            return False
        size = sum(result.spool_bytes * len(ends) for result, ends in frames)
        return any(room < size for room in self._promoted_rooms(frames).values())

    def _promoted_rooms(self, frames: list[Frame]) -> dict[int, int]:
        """Give the bytes of promoted copies that each home may still be given."""
        limit = self._promoted_bytes_max
        return {index: self._streams.promoted_room(index, limit) for index in _homes(frames)}

    def _fits(self, frames: list[Frame]) -> bool:
        """Ask each home, and each endpoint for all that is for it; all are of one Message VPN."""
        full = self._usage.full_homes
        if full and any(index in full for index in _homes(frames)):
            return False
        wanted: dict[Account, list[int]] = {}
        for result, endpoints in frames:
            for endpoint in endpoints:
                account = self._usage.account(endpoint)
                known = wanted.get(account)
                if known is None:
                    wanted[account] = [result.rows, result.spool_bytes, result.largest, result.low_priority]
                else:
                    known[0] += result.rows
                    known[1] += result.spool_bytes
                    known[2] = max(known[2], result.largest)
                    known[3] += result.low_priority
        node = self._usage.node
        size = sum([want[1] for account, want in wanted.items() if account.takes_quota])
        for account, want in wanted.items():
            if account.refusal(*want) is not None:
                return False
            if account.vpn.bytes + size > account.vpn.limit_bytes and account.takes_quota:
                return False
        return not size or node.bytes + size <= node.limit_bytes

    def _add_split(
        self,
        stores: Stores,
        result: EndpointResult,
        endpoints: tuple[Endpoint, ...],
        producer: Producer[Session] | None,
        first: int,
    ) -> None:
        """Split rows by the partitions that they go to."""
        accounts = [self._usage.account(one) for one in endpoints]
        counted = [(one.lanes, len(one.lanes)) for one in endpoints]
        groups: dict[tuple[LaneUsage, ...], list[Row]] = {}
        for number, row in enumerate(decode_rows(result.batch), self._promoted):
            salt = number if producer is None else salt_of(producer.memory.id, first + row.index)
            hashed = partition_hash(row, salt)
            lanes = tuple([lanes[hashed % count] for lanes, count in counted])
            group = groups.get(lanes)
            if group is None:
                groups[lanes] = [row]
            else:
                group.append(row)
        for lanes, rows in groups.items():
            targets = list(zip(accounts, lanes, strict=True))
            add_group(stores, targets, encode_rows(rows), len(rows), spool_bytes(rows))

    # -- rows without an endpoint ----------------------------------------------------------------------------

    def _judge_refused(self, a_round: Round[Session], producer: Producer[Session], verdict: Verdict) -> None:
        """Take over what the workers refused."""
        for code, topic, indices in a_round.refused:
            for index in indices:
                if index not in verdict.left_out:
                    self._refuse(a_round, producer, verdict, index, code, topic)

    def _judge_denied(
        self,
        a_round: Round[Session],
        frames: list[Frame],
        producer: Producer[Session],
        verdict: Verdict,
        denied: dict[int, str],
    ) -> None:
        """Refuse what publish rules forbid and no endpoint matches; nobody gets a direct copy of the others."""
        if not denied:
            return
        matched = {row.index: None for result, ends in frames if ends for row in decode_rows(result.batch)}
        for index, topic in denied.items():
            if index not in matched and index not in verdict.left_out:
                self._refuse(a_round, producer, verdict, index, errors.PUBLISH_DENIED, topic)
            elif index in verdict.left_out and index in matched:
                self._count_discard(a_round.session, discard_name(errors.PUBLISH_DENIED), 1)
            verdict.left_out[index] = None

    def _judge_orphans(
        self, a_round: Round[Session], frames: list[Frame], producer: Producer[Session], verdict: Verdict
    ) -> None:
        """Judge rows whose endpoints are gone meanwhile, or kept out by an exception (R122).

        A neighbour is no match: one endpoint may have been the queue of the link with it, which goes with the link.
        """
        rows = [row for result, endpoints in frames if not endpoints for row in decode_rows(result.batch)]
        if not rows:
            return
        direct = direct_indices(a_round, but_neighbours=True)
        for row in rows:
            if row.index not in direct and row.index not in verdict.left_out:
                for_queue = row.topic.startswith(wire.QUEUE_TOPIC_PREFIX)
                code = errors.UNKNOWN_ENDPOINT if for_queue else errors.NO_SUBSCRIPTION_MATCH
                self._refuse(a_round, producer, verdict, row.index, code, row.topic)

    def _refuse(
        self,
        a_round: Round[Session],
        producer: Producer[Session],
        verdict: Verdict,
        index: int,
        code: int,
        topic: str,
    ) -> None:
        sequence, memory, session = a_round.first + index, producer.memory, a_round.session
        before = memory.refusal(sequence)
        self._count_discard(session, discard_name(code), 1)
        if before:
            verdict.nacks.append(Nack(sequence, before, "refused before"))
        elif not memory.may_be_held(sequence) and (
            code != errors.NO_SUBSCRIPTION_MATCH or self._rejects_no_match(session)
        ):
            verdict.nacks.append(Nack(sequence, code, topic))

    def _rejects_no_match(self, session: Session) -> bool:
        """Tell whether the client profile wants to hear of messages that match nothing."""
        profile = session.vpn.profiles.get(session.profile_name)
        return profile is not None and bool(profile["reject_no_subscription_match"])

    # -- direct subscribers ----------------------------------------------------------------------------------

    def _send_copies(
        self,
        a_round: Round[Session],
        frames: list[Frame],
        producer: Producer[Session],
        verdict: Verdict,
        now: float,
    ) -> None:
        """Demote: direct subscribers get what was not refused, and nothing twice."""
        if producer.is_stage or (not a_round.plain and not a_round.choice):
            return
        left_out, repeated = verdict.left_out, producer.repeated_upto - a_round.first
        if left_out or repeated >= 0:
            leave_out(a_round, lambda index: index in left_out or index <= repeated)
        if a_round.session.is_neighbour:
            leave_dto_out(a_round)
        elif self._endpoints.of_links:
            a_round.spooled_for = spooled_for(a_round, frames)
        rows = sum(result.rows for result in a_round.plain)
        rows += sum(result.rows for result in a_round.choice if result.plain_set is None)
        self._counters.totals["ingress_messages_demoted"] += rows
        self._deliver(a_round, now)

    # -- direct rounds ---------------------------------------------------------------------------------------

    def promote(self, a_round: Round[Session], now: float) -> None:
        """Give endpoints their copies of direct messages; what they cannot take is lost to them, and counted."""
        resolved = self._resolve(a_round)
        if not a_round.plain and not a_round.choice and _has_orphans(resolved):
            orphans = sum(result.rows for result, endpoints in resolved if not endpoints)
            self._count_discard(a_round.session, _NO_MATCH, orphans)
        frames = [frame for frame in resolved if frame[1]]
        if a_round.session.is_neighbour:
            frames = only_direct(frames)
        if not frames:
            return
        if not are_distinct([part.batch for part in a_round.parts]):
            self._sessions.close(
                a_round.session, error_for(errors.MALFORMED_FRAME, "an index of a row comes twice"), now
            )
            return
        if not self._streams.all_reported:
            self._congested(a_round.session, sum(result.rows * len(ends) for result, ends in frames))
            return
        stores = self._whole(frames, None, a_round)
        room = self._promoted_rooms(frames)
        if stores is None or any(store.size > room[index] for index, store in stores.items()):
            verdict = judge_copies(self._usage, _rows(frames), room, self._promoted)
            stores = _stores_of(verdict)
            for account, reason in verdict.discards:
                self._usage.refused(account, reason)
            self._congested(a_round.session, len(verdict.discards))
            promoted = sum(len(rows) for rows in verdict.stores.values())
        else:
            promoted = sum(result.rows for result, _ in frames)
        self._promoted += promoted
        self._counters.totals["ingress_messages_promoted"] += promoted
        self._streams.store(
            stores, None, self._wall_ms(now), relaxed=True, publisher=a_round.session.publisher
        )

    def _congested(self, session: Session, copies: int) -> None:
        if copies:
            self._count_discard(session, _CONGESTION, copies)

    # -- counting --------------------------------------------------------------------------------------------

    def _count_discards(self, session: Session, verdict: Verdict) -> None:
        for account, reason in verdict.discards:
            self._usage.refused(account, reason)
            self._count_discard(session, reason.discard, 1)

    def _count_discard(self, session: Session, name: str, rows: int) -> None:
        self._counters.totals[name] += rows
        session.count(name, rows)

    def unadmitted(self) -> Iterator[Round[Session]]:
        """Give the rounds that wait for room."""
        return chain.from_iterable(self._lines.values())

    @property
    def waiting_rounds(self) -> int:
        """Give the rounds that wait for room."""
        return sum(len(line) for line in self._lines.values())

    def validate(self) -> None:
        """Check that lines are of producers that are not over."""
        self.rearranging.validate()
        assert self._waits_for.keys() <= self._lines.keys()
        for producer, line in self._lines.items():
            assert line
            assert not producer.is_over
            assert sum(a_round.rows for a_round in line) <= producer.unacked_rows


def _rows(frames: list[Frame]) -> list[tuple[Row, tuple[Endpoint, ...]]]:
    """Open the frames of a round; rows by rising index, without those that nobody takes."""
    rows = [(row, ends) for result, ends in frames if ends for row in decode_rows(result.batch)]
    if len(frames) > 1:
        rows.sort(key=_index)
    return rows


def _index(entry: tuple[Row, tuple[Endpoint, ...]]) -> int:
    return entry[0].index


def _has_orphans(frames: list[Frame]) -> bool:
    return not all(endpoints for _, endpoints in frames)


def _homes(frames: list[Frame]) -> dict[int, None]:
    return dict.fromkeys(lane.home for _, ends in frames for one in ends for lane in one.lanes)


def _stores_of(verdict: Verdict) -> Stores:
    """Give what the homes are to store by a verdict."""
    stores: Stores = {}
    for targets, rows in verdict.stores.items():
        add_group(stores, targets, encode_rows(rows), len(rows), spool_bytes(rows))
    return stores


def _is_relaxed(stores: Stores) -> bool:
    """Tell whether all endpoints are content with less than the disk; the strongest counts."""
    for store in stores.values():
        if store.refused:
            return False
        if not all(charge.account.endpoint.is_relaxed for charge in store.charges):
            return False
    return True
