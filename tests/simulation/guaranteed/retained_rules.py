"""What the node promises of retained messages: the newest of each topic is read, and a subscription misses none.

Of two messages that the queue `#retained` stored the one at the higher position is newer, whoever published them; its
publishers' own order must be the same. What a disk has at a time is retained from then on, until it is replaced,
removed, or expires.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from angarium.topic import matches
from tests.simulation.event_history import FOREVER
from tests.simulation.history_index import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.guaranteed.index import GuaranteedIndex
    from tests.simulation.guaranteed.records import Place
    from tests.simulation.guaranteed.retained_records import Got, Kept, Pages, Reading

#: Wall clocks of a home and of its router may be read at different moments of one step.
CLOCK_S = 0.1
#: A question that nobody knows the end of is answered by then.
ANSWERED_S = 60.0


class _Stored(NamedTuple):
    """Where and when a message was first on disk."""

    place: Place
    at: float

    @property
    def position(self) -> int:
        """Give what says which of two messages is newer."""
        return self.place[1]


class _Topics:
    """What was ever retained, by Message VPN and topic."""

    def __init__(self, index: GuaranteedIndex) -> None:
        self.index = index
        self.places: dict[str, _Stored] = {}
        for place, stored in index.stored.items():
            endpoint = index.endpoint(place)
            if endpoint is not None and endpoint.retains and stored.what not in self.places:
                self.places[stored.what] = _Stored(place, stored.at)
        self.by_topic: dict[tuple[str, str], list[Kept]] = {}
        for one in index.kept.values():
            self.by_topic.setdefault((one.vpn, one.topic), []).append(one)

    def is_older(self, one: Kept, other: Kept) -> bool:
        """Tell whether a message is certainly older than another one of its topic."""
        mine, theirs = self.places.get(one.what), self.places.get(other.what)
        if mine is not None and theirs is not None:
            return mine.position < theirs.position
        return not self.is_ambiguous(one) and not self.is_ambiguous(other) and one.precedes(other)

    def is_ambiguous(self, one: Kept) -> bool:
        """Tell whether somebody else used its sequence."""
        publication = self.index.history.publication(one.what)
        return publication is not None and publication.number in self.index.ambiguous

    def of(self, vpn: str, pattern: str) -> Iterator[list[Kept]]:
        """Give the messages of each topic that a filter matches."""
        for (its, topic), found in self.by_topic.items():
            if its == vpn and matches(pattern, topic):
                yield found

    def may_be_over(self, one: Kept, by: float) -> bool:
        """Tell whether a message may be retained no more, and nothing in its place.

        One whose sequence somebody else used may be stored once more when it is sent again, and is newer then.
        """
        return any(
            (other.is_empty or other.ttl_ms)
            and other.sent_at <= by
            and (self.is_ambiguous(other) or not self.is_older(other, one))
            for other in self.by_topic[one.vpn, one.topic]
        )


def positions(index: GuaranteedIndex) -> Iterator[Violation]:
    """The order in which publishers sent is the order in which messages replace each other."""
    topics = _Topics(index)
    for found in topics.by_topic.values():
        stored = [one for one in found if one.what in topics.places and not topics.is_ambiguous(one)]
        stored.sort(key=lambda one: topics.places[one.what].position)
        for at, later in enumerate(stored):
            for earlier in stored[:at]:
                if later.precedes(earlier):
                    text = (
                        f"{earlier.what} on {earlier.topic!r} was retained before {later.what}, and is newer"
                    )
                    yield Violation("retained-order", text, whats=(earlier.what, later.what))


def pages(index: GuaranteedIndex) -> Iterator[Violation]:
    """Who reads is given the newest of each topic that was on disk when it asked, once, by rising topics."""
    topics = _Topics(index)
    for reading in index.history.readings:
        for one in reading.pages:
            yield from _wrong_rows(topics, reading, one)
            if not reading.is_live and one.done_at < FOREVER:
                yield from _missing_rows(topics, reading, one)


def _wrong_rows(topics: _Topics, reading: Reading, read: Pages) -> Iterator[Violation]:
    names = [topic for topic, _ in read.rows]
    if names != sorted(set(names)):
        yield Violation("retained-page", f"{reading} was given {names}")
    for topic, what in read.rows:
        row = topics.index.kept.get(what)
        if row is None:
            yield Violation("retained-page", f"{reading} was given {what!r}, which is not to be retained")
            continue
        if (row.vpn, row.topic) != (reading.connection.vpn, topic) or not matches(read.pattern, topic):
            yield Violation("retained-page", f"{reading} of {read.pattern!r} was given {row}", whats=(what,))
        if row.is_empty:
            yield Violation("retained-stale", f"{reading} was given {what}, which is empty", whats=(what,))
        expires_ms = _expires_ms(topics, what)
        answered_at = min(reading.done_at, reading.ended_at, read.asked_at + ANSWERED_S)
        if topics.index.history.wall_between(read.asked_at - CLOCK_S, answered_at)[0] > expires_ms:
            text = f"{reading} was given {what} at {read.asked_at:.4f}, it had expired at wall {expires_ms}"
            yield Violation("retained-stale", text, whats=(what,))
        newer = _newer_on_disk(topics, row, read.asked_at)
        if newer is not None:
            text = f"{reading} asked at {read.asked_at:.4f}, and was given {what} on {topic!r}; {newer.what} is newer"
            yield Violation("retained-stale", text, whats=(what, newer.what))


def _expires_ms(topics: _Topics, what: str) -> float:
    stored = topics.places.get(what)
    return FOREVER if stored is None else topics.index.expiry_ms(stored.place, earliest=False)


def _newer_on_disk(topics: _Topics, row: Kept, at: float) -> Kept | None:
    for other in topics.by_topic[row.vpn, row.topic]:
        place = topics.places.get(other.what)
        if place is not None and place.at <= at and topics.is_older(row, other):
            return other
    return None


def _missing_rows(topics: _Topics, reading: Reading, read: Pages) -> Iterator[Violation]:
    given = dict(read.rows)
    for found in topics.of(reading.connection.vpn, read.pattern):
        if found[0].topic in given:
            continue
        for one in found:
            place = topics.places.get(one.what)
            if place is None or place.at > read.asked_at or one.is_empty or one.ttl_ms:
                continue
            if not topics.may_be_over(one, read.done_at):
                text = f"{reading} asked for {read.pattern!r} at {read.asked_at:.4f}, and was not given {one.what}"
                yield Violation("retained-lost", f"{text} on {one.topic!r}", whats=(one.what,))
                break


def subscriptions(index: GuaranteedIndex) -> Iterator[Violation]:
    """A subscription that begins with what is retained misses nothing, and gets nothing twice, nor out of order."""
    topics = _Topics(index)
    for reading in index.history.readings:
        if reading.is_live:
            yield from _doubled(topics, reading)
            yield from _disordered(topics, reading)
            yield from _missed(topics, reading)


def _was_sent_again(topics: _Topics, what: str) -> bool:
    publication = topics.index.history.publication(what)
    return publication is not None and (
        len(publication.sends) > 1 or publication.number in topics.index.ambiguous
    )


def _doubled(topics: _Topics, reading: Reading) -> Iterator[Violation]:
    seen: dict[str, Got] = {}
    for one in reading.got:
        before = seen.setdefault(one.what, one)
        is_ours = topics.index.origin_of(one.what) is not None
        if before is not one and is_ours and not _was_sent_again(topics, one.what):
            text = f"{reading} got {one.what} on {one.topic!r} at {before.at:.4f} and again at {one.at:.4f}"
            yield Violation("retained-twice", text, whats=(one.what,))


def _disordered(topics: _Topics, reading: Reading) -> Iterator[Violation]:
    last: dict[str, Kept] = {}
    for one in reading.got:
        row = topics.index.kept.get(one.what)
        if row is None or _was_sent_again(topics, one.what):
            continue
        before = last.get(one.topic)
        if before is not None and topics.is_older(row, before):
            text = (
                f"{reading} got {one.what} on {one.topic!r} at {one.at:.4f}, behind the newer {before.what}"
            )
            yield Violation("retained-order", text, whats=(one.what, before.what))
        last[one.topic] = row


def _missed(topics: _Topics, reading: Reading) -> Iterator[Violation]:
    connection = reading.connection
    is_cut = not connection.is_prompt and (connection.dropped or reading.ended_at < FOREVER)
    if reading.done_at == FOREVER or is_cut:
        return  # what was left out, because it waits for a slow reader, went with its connection
    got = {one.what for one in reading.got}
    first: dict[str, list[Kept]] = {}
    for given in reading.got:
        row = topics.index.kept.get(given.what)
        place = topics.places.get(given.what)
        # What waits for the credit of a slow reader comes live, and later; so does what is on its way to very many and
        # was kept when the pages were made: they leave it out.
        is_on_way = place is not None and place.at <= reading.done_at
        is_first = given.is_retained or given.at <= reading.done_at or is_on_way or not connection.is_prompt
        if row is not None and is_first:
            first.setdefault(given.topic, []).append(row)
    owed = _Owed(topics, reading)
    for pattern in reading.filters:
        for found in topics.of(reading.connection.vpn, pattern):
            for one in found:
                if one.what not in got and owed.includes(one, first.get(one.topic, [])):
                    text = f"{reading} from {reading.begun_at:.4f} to {reading.done_at:.4f}"
                    text += f" never got {one.what} on {one.topic!r}"
                    yield Violation("retained-missed", text, whats=(one.what,))


def _proven_until(topics: _Topics, reading: Reading) -> float:
    """Tell up to when everything that was dispatched to a subscriber has come to it."""
    connection = reading.connection
    if not connection.is_prompt:  # answers overtake what waits for credit
        return topics.index.history.drained_at
    proofs = [asked for asked, answered in connection.answers if answered <= reading.ended_at]
    return max(proofs, default=-FOREVER)


class _Owed:
    """What a subscriber has to get."""

    def __init__(self, topics: _Topics, reading: Reading) -> None:
        self._topics, self._reading = topics, reading
        self._proven = _proven_until(topics, reading)
        self._read = {got.what for got in reading.got if got.is_retained}
        self._asked_at: dict[str, float] = {}

    def includes(self, one: Kept, first: list[Kept]) -> bool:
        """Tell whether it had to get a message, where these of its topic came first."""
        reading, topics = self._reading, self._topics
        if one.sent_at >= reading.begun_at:
            return self._was_dispatched(one)
        place = topics.places.get(one.what)
        if one.topic in reading.early or one.is_empty or one.ttl_ms or place is None:
            return False
        if place.at > self._read_from(one.topic) and not self._was_dispatched(one):
            return False
        for row in first:
            # What is older comes live behind it if it is sent again, or was on its way for another subscription.
            is_late = row.sent_at < reading.begun_at and row.what not in self._read
            if is_late or not topics.is_older(row, one) or _was_sent_again(topics, row.what):
                return False
        return bool(first) or not topics.may_be_over(one, reading.done_at)

    def _was_dispatched(self, one: Kept) -> bool:
        return (
            one.is_sure
            and one.settled_at <= self._proven
            and not self._topics.is_ambiguous(one)
            and not self._topics.index.direct.was_out(one.topic, one.sent_at, one.settled_at)
        )

    def _read_from(self, topic: str) -> float:
        """Give when it first asked for what is retained of a topic, and was answered."""
        if topic not in self._asked_at:
            self._asked_at[topic] = min(
                read.asked_at
                for read in self._reading.pages
                if read.done_at < FOREVER and matches(read.pattern, topic)
            )
        return self._asked_at[topic]


RULES = (positions, pages, subscriptions)
