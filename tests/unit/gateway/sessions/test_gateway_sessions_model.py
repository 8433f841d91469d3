"""A client, its gateway and its queue, over lost connections and ended flows: nothing is lost, and order is kept."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from angarium import wire
from angarium.client.protocol.flow_window import FlowWindow, spool_size
from angarium.client.protocol.messages import GuaranteedDelivery
from gateway import fanout
from gateway.fanout import Lookups
from gateway.mqtt.codec import Parser, Sender, write
from gateway.mqtt.codec.connect import ConnAck
from gateway.mqtt.codec.kinds import V5
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import Subscription
from gateway.mqtt.delivering import MqttSubscription
from gateway.mqtt.sessions import unacknowledged
from gateway.mqtt.sessions.outgoing import Outgoing

if TYPE_CHECKING:
    from angarium.message import Row

#: Few, so that they meet.
IDS = 5
RECEIVE_MAX = 3
TOPIC = "a/a/a/a"
#: They match it by 31 nodes of a trie, in turns of 3.
FILTERS = ["/".join(levels) for levels in product("a+", repeat=4)]
TURN_NODES = 3


class Queue:
    """The queue at the node, with one flow at most."""

    def __init__(self) -> None:
        #: Position -> row, of what is not deleted; those that the flow was given; and how often each was.
        self.rows: dict[int, Row] = {}
        self.given: set[int] = set()
        self.counts: dict[int, int] = {}
        #: Those whose deletion is not on disk.
        self.deleted: dict[int, Row] = {}
        self.last = 0
        self.window: FlowWindow | None = None

    def put(self, flags: int) -> None:
        self.last += 1
        self.rows[self.last] = (0, TOPIC, flags, None, None, b"%d" % self.last)

    def bind(self) -> None:
        self.unbind()
        self.window = FlowWindow(RECEIVE_MAX, 1 << 16)
        self.window.flow = 1

    def unbind(self) -> None:
        """End the flow: what was given and not accepted is given again."""
        if self.window is not None:
            self.window.flow = 0
            self.window = None
        self.given.clear()

    def give(self) -> GuaranteedDelivery | None:
        """Give the next messages for which there is credit."""
        window = self.window
        if window is None:
            return None
        room = window.granted_messages - window.received_messages
        positions = [one for one in sorted(self.rows) if one not in self.given][:room]
        if not positions:
            return None
        rows = [self.rows[one] for one in positions]
        counts = [self.counts.get(one, 0) for one in positions]
        for one in positions:
            self.given.add(one)
            self.counts[one] = self.counts.get(one, 0) + 1
        size = spool_size(rows)
        window.receive(len(rows), size)
        runs = [(one, 1) for one in positions]
        return GuaranteedDelivery(window, 0, rows, runs, counts, 0, None, size)

    def accept(self, window: FlowWindow, position: int) -> None:
        if window is self.window:
            assert position in self.given, "accepted what was not given"
            self.given.discard(position)
            self.deleted[position] = self.rows.pop(position)

    def crash(self) -> None:
        """Know nothing of what was not on disk."""
        self.rows |= self.deleted
        self.unbind()


class Side:
    """The client and its gateway; what Outgoing wants of either, and of the node."""

    name, vpn, version, packet_bytes_max, connection_id = "c", "default", V5, 0, b"1"

    def __init__(self, queue: Queue, *, is_told_apart: bool = False) -> None:
        self.queue = queue
        #: Whether its subscriptions have options, so that it is looked up which of them a message is for.
        self.is_told_apart = is_told_apart
        self.lookups = Lookups()
        #: What the client has got: in order of coming, without what came again; and what it has acknowledged.
        self.got: list[int] = []
        self.acknowledged: set[int] = set()
        self.connect()

    def connect(self) -> None:
        self.outgoing = Outgoing(self, self, self, unacknowledged.InFlight(RECEIVE_MAX))  # type: ignore[arg-type]
        for at, text in enumerate(FILTERS if self.is_told_apart else ()):
            subscription = MqttSubscription(self, Subscription(text, qos=1), identifier=1 + at)  # type: ignore[arg-type]
            self.outgoing.add(subscription)
        self._heard = Parser(Sender.SERVER, version=V5)
        self._heard.feed(write(ConnAck(), V5))
        #: What the client has not acknowledged: packet identifier -> position; of this connection.
        self.unanswered: dict[int, int] = {}
        self._came: set[int] = set()
        self.queue.bind()

    # To Outgoing.

    def accept(self, window: FlowWindow, position: int) -> None:
        self.queue.accept(window, position)

    def renew(self, window: FlowWindow) -> None:
        """Every step does."""

    def count(self, name: str, amount: int = 1) -> None:
        raise AssertionError(name)

    def unix_ms(self) -> int:
        return 0

    def send_guaranteed(self, receiver: Any, data: bytes, now: float) -> bool:
        for packet in self._heard.feed(data):
            assert isinstance(packet, Publish)
            self._hear(packet)
        assert self._heard.fault is None
        return True

    def _hear(self, packet: Publish) -> None:
        position = int(packet.payload)
        assert position not in self._came, "twice on one connection"
        self._came.add(position)
        is_first = position not in self.got
        assert len(packet.properties.subscription_identifiers) == len(self.outgoing._subscriptions)
        if packet.qos:
            assert packet.packet_id not in self.unanswered, "an identifier that is in use"
            assert packet.dup == (self.queue.counts[position] > 1), "DUP says that it was delivered before"
            self.unanswered[packet.packet_id] = position
            assert len(self.unanswered) <= RECEIVE_MAX
        if is_first:
            assert not self.got or position > max(self.got), "before an older one"
            self.got.append(position)

    # What happens.

    def step(self, what: str, number: int) -> None:
        if what == "put":
            self.queue.put(wire.MODE_PERSISTENT if number else wire.MODE_DIRECT)
        elif what == "give":
            if delivery := self.queue.give():
                assert self.outgoing.take([delivery], 0.0)
        elif what == "turn":
            self.turn()
        elif what == "acknowledge" and self.unanswered:
            self.acknowledge([*self.unanswered][number % len(self.unanswered)])
        elif what == "rebind":
            self.queue.unbind()
            self.outgoing.interrupt()
            if number:
                self.queue.bind()
        elif what == "crash":
            self.queue.crash()
            self.outgoing.interrupt()
            self.queue.bind()
        elif what == "sync":
            self.queue.deleted.clear()
        elif what == "reconnect":
            self.connect()
        self.outgoing.validate()
        if window := self.queue.window:
            window.renew()
            window.validate()

    def turn(self) -> None:
        for _ in self.lookups.begin_turn():
            assert self.outgoing.go_on(0.0)

    def acknowledge(self, packet_id: int) -> None:
        self.acknowledged.add(self.unanswered.pop(packet_id))
        self.outgoing.acknowledged(packet_id)
        assert self.outgoing.go_on(0.0)

    def finish(self) -> None:
        """Have all go on until nothing is left."""
        if self.queue.window is None:
            self.queue.bind()
        for _ in range(4 * self.queue.last + 4):
            self.step("give", 0)
            for _ in range(2 * len(FILTERS)):
                self.turn()
            for packet_id in [*self.unanswered]:
                self.acknowledge(packet_id)
            if self.queue.window:
                self.queue.window.renew()


_STEPS = st.tuples(
    st.sampled_from(
        [
            *("put", "put", "give", "give", "acknowledge", "acknowledge", "rebind", "crash", "sync"),
            *("reconnect", "turn", "turn"),
        ]
    ),
    st.integers(0, 3),
)


@given(steps=st.lists(_STEPS, max_size=60), is_told_apart=st.booleans())
def test_nothing_is_lost_order_is_kept_and_no_identifier_is_used_twice_at_once(
    steps: list[tuple[str, int]], *, is_told_apart: bool
) -> None:
    queue = Queue()
    with patch.object(unacknowledged, "IDS", IDS), patch.object(fanout, "TURN_NODES", TURN_NODES):
        side = Side(queue, is_told_apart=is_told_apart)
        for what, number in steps:
            side.step(what, number)
        side.finish()
    assert side.got == [*range(1, queue.last + 1)]
    assert not queue.rows


def test_a_message_that_very_many_filters_of_a_session_match_takes_several_turns() -> None:
    """Nobody else waits for that, and what the client gives back meanwhile is not named."""
    queue = Queue()
    with patch.object(fanout, "TURN_NODES", TURN_NODES):
        side = Side(queue, is_told_apart=True)
        queue.put(wire.MODE_PERSISTENT)
        delivery = queue.give()
        assert delivery is not None
        assert side.outgoing.take([delivery], 0.0)
        side.outgoing.remove(side.outgoing._subscriptions[TOPIC])
        turns = 1
        while not side.got:
            assert turns <= 2 * len(FILTERS)
            assert side.lookups.nodes_left <= 0
            turns += 1
            side.turn()
            side.outgoing.validate()
    assert turns > 3


def test_sessions_share_the_turns_of_their_process_in_the_order_in_which_they_came() -> None:
    lookups = fanout.Lookups()
    for name in (b"1", b"2", b"1", b"3"):
        lookups.put_off(name)
    went_on = []
    for name in lookups.begin_turn():
        went_on.append(name)
        lookups.nodes_left -= fanout.TURN_NODES // 2
    assert (went_on, len(lookups)) == ([b"1", b"2"], 1)
    assert [*lookups.begin_turn()] == [b"3"]
