"""What is retained, for clients that subscribe: read page by page on the carrier, one reading for all who wait for it.

The live messages of a client are held (`Egress.hold`) from its SUBACK until it has got what is retained, so each topic
is in order. Nothing comes twice: a topic of which a retained message came live is left out of what is read, and the
node leaves out what still waits for the carrier (docs/protocol.md, retained.read). Subscriptions with QoS 1 get what
comes live from queues, and not from the carrier: for them nothing is left out, so a message may come both ways.
A page with messages that have QoS is sent by their client (`sessions.retained`); the bytes of others are shared as
those for QoS 0.

Who does not take a page in time leaves the others and is read for alone; what it has already is not sent again.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from angarium.client.protocol import answers
from angarium.message import unpack_rows
from angarium.trie import FilterTrie
from gateway.mqtt.delivering import retained_frame
from gateway.mqtt.messages import qos_of
from gateway.mqtt.topics import filters_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from angarium.client.protocol.provisioning import Send
    from angarium.client.protocol.session import ClientSession
    from angarium.errors import AngariumError
    from angarium.message import Row
    from gateway.carrier import Then
    from gateway.egress import Egress, Receiver
    from gateway.mqtt.delivering import Delivering, MqttReceiver, MqttSubscription

#: Readings of a Message VPN at the same time; the router takes 64 of a session.
READINGS_MAX: Final = 32
#: Subscriptions that one reading is for: giving them a page is one step.
READERS_MAX: Final = 1_000
#: Topics that are noted by one reading; of more that come live while it begins, messages may come twice.
NOTED_MAX: Final = 10_000
#: Who takes a page waits so long at most for those who do not.
SHARE_S: Final = 0.5
#: Nobody has taken a page for so long: others get their turn.
STALL_S: Final = 10.0
#: How often it is looked whether a page was taken, and whether a reading that failed goes.
LOOK_S: Final = 0.01
RETRY_S: Final = 0.2
#: Readings are tried for so long; then their clients are told that they do not get what they are to get.
PATIENCE_S: Final = 30.0

_NEVER: Final = float("inf")
#: Ends a client.
_Fail: TypeAlias = "Callable[[Receiver, AngariumError, float], None]"


class _Reader(NamedTuple):
    """A subscription that is read for."""

    subscription: MqttSubscription
    #: How many had joined its reading with it.
    joined: int

    def has_got(self, noted: int) -> bool:
        """Tell whether a topic came live to it that was noted when so many had joined."""
        return noted >= self.joined


class _Reading:
    """One filter of the node, read for those who wait for it."""

    __slots__ = (
        "after",
        "done",
        "is_asked",
        "is_begun",
        "is_queued",
        "joins",
        "live",
        "noted",
        "pattern",
        "readers",
        "since",
        "try_at",
        "trying_since",
        "upto",
    )

    def __init__(self, pattern: str, *, is_queued: bool) -> None:
        self.pattern: Final = pattern
        #: Whether what comes live comes from queues.
        self.is_queued: Final = is_queued
        self.readers: dict[MqttSubscription, _Reader] = {}
        #: How many have joined; and by topic how many had when a retained message of it came live last.
        self.joins = 0
        self.noted: dict[str, int] = {}
        #: Whether the first page was asked for once: nobody joins any more.
        self.is_begun = False
        #: Up to this topic all have got it.
        self.done = ""
        #: Since when it has been tried without success; None if it was not. And when it may be again.
        self.trying_since: float | None = None
        self.try_at = 0.0
        self.restart(0)

    def restart(self, live: int) -> None:
        """Begin with the first page; `live` is the number of the reading at the node."""
        self.live = live
        #: Where the next page begins, None behind the last one, and up to which position it goes.
        self.after: str | None = ""
        self.upto = 0
        self.is_asked = False
        #: When a page was given last.
        self.since = 0.0

    def join(self, subscription: MqttSubscription) -> None:
        """Read for one more."""
        assert not self.is_begun
        self.joins += 1
        self.readers[subscription] = _Reader(subscription, self.joins)

    def note(self, topic: str) -> None:
        """Take note that a retained message came live."""
        if not self.is_queued and (len(self.noted) < NOTED_MAX or topic in self.noted):
            self.noted[topic] = self.joins

    def wish(self) -> Send:
        """Give the request of the next page."""
        arguments = {
            "filter": self.pattern,
            "after": self.after,
            "upto": self.upto,
            "live": self.live,
            "queued": self.is_queued,
        }

        def send(session: ClientSession) -> int:
            return session.guaranteed.ask("retained.read", arguments, answers.decode_page, batches=1)

        return send

    def split(self, subscriptions: Iterable[MqttSubscription]) -> _Reading:
        """Take some out, who go on from where they are in a reading of their own."""
        made = _Reading(self.pattern, is_queued=self.is_queued)
        made.joins, made.noted, made.done, made.is_begun = self.joins, dict(self.noted), self.done, True
        made.readers = {one: self.readers.pop(one) for one in subscriptions}
        return made


class Readings:
    """What is read for the subscriptions of one Message VPN."""

    def __init__(
        self, delivering: Delivering, egress: Egress, ask: Callable[[Send, Then], bool], fail: _Fail
    ) -> None:
        """Read nothing.

        Args:
            delivering: gives live messages.
            egress: the way to the clients.
            ask: asks the router on the carrier; false if that cannot be now.
            fail: ends a client that cannot be given what is retained.
        """
        self._delivering = delivering
        self._egress = egress
        self._ask = ask
        self._fail = fail
        self._numbers = itertools.count(1)
        #: Those that wait for their turn, the oldest first, and those that have theirs; in both none without readers.
        self._line: dict[_Reading, None] = {}
        self._active: dict[_Reading, None] = {}
        #: Those in the line that others may join, by their pattern, and whether they are for queues.
        self._open: dict[tuple[str, bool], _Reading] = {}
        #: All of them by what they read, to note what comes live.
        self._noting: FilterTrie[_Reading] = FilterTrie()
        #: Subscription -> its readings; two at most.
        self._of: dict[MqttSubscription, list[_Reading]] = {}
        #: Those who are held no more, which the next tick does.
        self._released: list[MqttSubscription] = []
        # What calls a method of ours would be a cycle with us, and those are hardly ever collected.
        delivering.on_retained = partial(_note, self._noting)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is read for anybody."""
        return not (self._of or self._released)

    def begin(self, subscriptions: Sequence[MqttSubscription]) -> None:
        """Read for subscriptions that have just come into force."""
        for subscription in subscriptions:
            for pattern in filters_of(subscription.options.filter):
                if not pattern.startswith("#"):  # addresses: nothing is retained there
                    self._join(pattern, subscription)

    def _join(self, pattern: str, subscription: MqttSubscription) -> None:
        is_queued = subscription.options.qos > 0
        reading = self._open.get((pattern, is_queued))
        if reading is None or len(reading.readers) >= READERS_MAX:
            reading = self._open[pattern, is_queued] = _Reading(pattern, is_queued=is_queued)
            self._line[reading] = None
            self._noting.add(pattern, reading)
        reading.join(subscription)
        self._of.setdefault(subscription, []).append(reading)
        self._egress.hold(subscription.receiver)
        if is_queued:
            subscription.receiver.begin_retained()

    def forget(self, subscription: MqttSubscription) -> None:
        """Read no more for a subscription."""
        for reading in self._of.pop(subscription, ()):
            del reading.readers[subscription]
            self._released.append(subscription)
            if not reading.readers:
                self._drop(reading)

    def forget_all(self, receiver: MqttReceiver, subscriptions: Collection[MqttSubscription]) -> None:
        """Read no more for all subscriptions of a client; the work grows with those for which something is read."""
        some: Iterable[MqttSubscription] = subscriptions
        if len(self._of) < len(subscriptions):
            some = [one for one in self._of if one.receiver is receiver]
        for one in some:
            self.forget(one)

    def _drop(self, reading: _Reading) -> None:
        """Have done with a reading that nobody waits for; an answer that comes finds it so."""
        del (self._line if reading in self._line else self._active)[reading]
        self._close(reading)
        self._noting.remove(reading.pattern, reading)

    def _close(self, reading: _Reading) -> None:
        """Let nobody join any more."""
        if self._open.get((reading.pattern, reading.is_queued)) is reading:
            del self._open[reading.pattern, reading.is_queued]

    # -- turns -----------------------------------------------------------------------------------------------

    def tick(self, now: float) -> float:
        """Do what is due; gives when to come again."""
        if not self._of and not self._released:
            return _NEVER
        released, self._released = self._released, []
        for subscription in released:
            self._release(subscription, now)
        for reading in [*self._active]:
            if not reading.is_asked and reading.readers:
                self._go_on(reading, now)
        self._start(now)
        is_waiting = any(not reading.is_asked for reading in self._active)
        return now + LOOK_S if is_waiting or self._line else _NEVER

    def _start(self, now: float) -> None:
        """Give those their turn who wait for it, but for those whose clients take nothing."""
        for reading in [*self._line] if len(self._active) < READINGS_MAX else ():
            if len(self._active) >= READINGS_MAX:
                return
            if reading.try_at <= now and any(map(self._has_room, reading.readers)):
                reading.restart(next(self._numbers))
                if not self._ask_page(reading):
                    return
                del self._line[reading]
                self._active[reading] = None

    def _ask_page(self, reading: _Reading) -> bool:
        assert reading.after is not None
        reading.is_asked = self._ask(reading.wish(), partial(self._answered, reading))
        if reading.is_asked:
            reading.is_begun = True
            self._close(reading)
        return reading.is_asked

    def _answered(self, reading: _Reading, page: Any, error: AngariumError | None, now: float) -> None:
        if not reading.readers:
            return
        if error is not None:
            self._failed(reading, error, now)
            return
        (reading.upto, reading.after), (batch,) = page
        self._delivering.behind(partial(self._give, reading, unpack_rows(batch)), now)

    def _failed(self, reading: _Reading, error: AngariumError, now: float) -> None:
        """Try it again soon, from the beginning, or give it up."""
        if reading.trying_since is None:
            reading.trying_since = now
        if now - reading.trying_since < PATIENCE_S:
            self._put_back(reading, now + RETRY_S)
            return
        for subscription in [*reading.readers]:
            self._fail(subscription.receiver, error, now)

    def _put_back(self, reading: _Reading, try_at: float) -> None:
        reading.is_asked, reading.try_at = False, try_at
        del self._active[reading]
        self._line[reading] = None

    def _give(self, reading: _Reading, rows: list[Row], now: float) -> None:
        """Give a page to all."""
        reading.is_asked, reading.since, reading.trying_since = False, now, None
        rows = [row for row in rows if row[1] > reading.done]
        noted = {row[1]: reading.noted[row[1]] for row in rows if row[1] in reading.noted}
        pages = _Pages(rows)
        has_qos = reading.is_queued and any(map(qos_of, rows))
        for reader in [*reading.readers.values()]:
            subscription = reader.subscription
            left_out = frozenset([topic for topic, number in noted.items() if reader.has_got(number)])
            if has_qos:
                subscription.receiver.take_retained(subscription, rows, now)
            elif data := pages.of(subscription, left_out):
                self._egress.put_first(subscription.receiver, data, now)
        if rows:
            reading.done = rows[-1][1]
        if reading.readers:
            self._go_on(reading, now)

    def _has_room(self, subscription: MqttSubscription) -> bool:
        receiver = subscription.receiver
        return self._egress.has_room(receiver) and not receiver.is_taking_retained

    def _go_on(self, reading: _Reading, now: float) -> None:
        """Ask for the next page when the last one was taken; who takes nothing holds up others for a moment only."""
        slow = [one for one in reading.readers if not self._has_room(one)]
        waited_s = now - reading.since
        if reading.after is None:
            done = set(reading.readers) - set(slow) if waited_s < STALL_S else [*reading.readers]
            self._finish(reading, done, now)
        elif not slow or (len(slow) < len(reading.readers) and waited_s >= SHARE_S):
            if slow:
                self._split(reading, slow)
            self._ask_page(reading)
        elif len(slow) == len(reading.readers) and waited_s >= STALL_S and self._line:
            self._put_back(reading, now)

    def _finish(self, reading: _Reading, subscriptions: Iterable[MqttSubscription], now: float) -> None:
        """Let go what was held for some, who have all; that may end a client."""
        done = [*subscriptions]
        for one in done:
            del reading.readers[one]
            self._of[one].remove(reading)
            if not self._of[one]:
                del self._of[one]
        if not reading.readers:
            self._drop(reading)
        for one in done:
            self._release(one, now)

    def _release(self, subscription: MqttSubscription, now: float) -> None:
        self._egress.release(subscription.receiver, now)
        if subscription.options.qos:
            subscription.receiver.end_retained(now)

    def _split(self, reading: _Reading, slow: list[MqttSubscription]) -> None:
        made = reading.split(slow)
        self._line[made] = None
        self._noting.add(made.pattern, made)
        for one in slow:
            self._of[one] = [made if other is reading else other for other in self._of[one]]

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        readings = [*self._line, *self._active]
        assert all(reading.readers for reading in readings)
        assert len(self._active) <= READINGS_MAX
        assert all(not reading.is_begun and reading in self._line for reading in self._open.values())
        assert len(self._noting) == len(readings)
        pairs = [(one, reading) for reading in readings for one in reading.readers]
        assert len(pairs) == sum(map(len, self._of.values()))
        assert all(reading in self._of[one] for one, reading in pairs)


def _note(noting: FilterTrie[_Reading], topic: str) -> None:
    """Take note that a retained message came live."""
    for reading in noting.match(topic) if noting else ():
        reading.note(topic)


class _Pages:
    """One page as bytes, once for all who get the same."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows
        self._made: dict[tuple[Any, ...], bytes] = {}

    def of(self, subscription: MqttSubscription, left_out: frozenset[str]) -> bytes:
        """Give the page for a subscription, without some topics."""
        receiver, options = subscription.receiver, subscription.options
        own = receiver.name if options.no_local else None
        key = (receiver.version, subscription.identifier, receiver.packet_bytes_max, own, left_out)
        made = self._made.get(key)
        if made is None:
            frames = [retained_frame(row, subscription, 0) for row in self._rows if row[1] not in left_out]
            made = self._made[key] = b"".join([part for frame in frames for part in frame or ()])
        return made
