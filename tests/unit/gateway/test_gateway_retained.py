"""What is retained, for clients of MQTT: what they get beside what comes live, whatever comes when."""

from __future__ import annotations

import gc
import random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium import errors, wire
from angarium.errors import error_for
from angarium.topic import matches
from gateway.egress import UNSENT_BYTES_MAX, Egress
from gateway.fanout import FanOut
from gateway.mqtt import delivering
from gateway.mqtt.codec.kinds import V3, V5, Sender
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import Subscription
from gateway.mqtt.delivering import Delivering, MqttSubscription
from gateway.mqtt.messages import row_of
from gateway.mqtt.retained import LOOK_S, PATIENCE_S, READINGS_MAX, RETRY_S, SHARE_S, STALL_S, Readings
from tests.garbage import uncollected
from tests.unit.gateway.clients_of_tests import FakeClient, FakeOutlet
from tests.unit.gateway.streams import begun

if TYPE_CHECKING:
    from angarium.client.protocol.provisioning import Send
    from angarium.errors import AngariumError
    from angarium.message import Row
    from gateway.carrier import Then

pytestmark = pytest.mark.requirement("R239")


class Asked(NamedTuple):
    """A page that was asked for."""

    filter: str
    after: str
    upto: int
    live: int
    queued: bool
    then: Then


def row(
    topic: str, payload: bytes = b"x", sender: str = "native", *, retain: bool = True, qos: int = 0
) -> Row:
    flags, meta, properties = row_of(Publish("t", retain=retain, qos=qos), sender)
    return 0, topic, flags, meta, properties, payload


class Bench:
    """A gateway that reads what a node retains, and the node: a table of topics, with positions as in a lane."""

    def __init__(self, page_rows: int = 2) -> None:
        self.now = 100.0
        self.outlet = FakeOutlet()
        self.egress = Egress(self.outlet, 1 << 30)
        self.delivering = Delivering(self.egress)
        self.readings = Readings(self.delivering, self.egress, self._ask, self._fail)
        self.page_rows = page_rows
        self.is_able = True
        self.asked: list[Asked] = []
        self.failed: list[tuple[str, int]] = []
        #: Topic -> position and row.
        self.kept: dict[str, tuple[int, Row]] = {}
        self.position = 0

    def _ask(self, send: Send, then: Then) -> bool:
        if self.is_able:
            send(_Session(self, then))  # type: ignore[arg-type]
        return self.is_able

    def _fail(self, receiver: Any, error: AngariumError, now: float) -> None:
        self.failed.append((receiver.name, error.code))

    # Clients.

    def subscribe(
        self, client: FakeClient, text: str, identifier: int | None = None, **options: Any
    ) -> MqttSubscription:
        subscription = MqttSubscription(client, Subscription(text, **options), identifier)
        self.delivering.add(subscription)
        self.readings.begin([subscription])
        self.tick()
        return subscription

    def unsubscribe(self, subscription: MqttSubscription) -> None:
        self.delivering.remove(subscription)
        self.readings.forget(subscription)
        self.tick()

    def got(self, client: FakeClient) -> list[Publish]:
        parser = begun(Sender.SERVER, client.version)
        found = parser.feed(self.outlet.sent.get(client.connection_id, b""))
        assert parser.fault is None
        return [one for one in found if isinstance(one, Publish)]

    def payloads(self, client: FakeClient) -> list[bytes]:
        return [one.payload for one in self.got(client)]

    # The node.

    def keep(self, *rows: Row) -> None:
        """Retain rows, which nobody gets live."""
        for one in rows:
            self.position += 1
            self.kept[one[wire.ROW_TOPIC]] = self.position, one
            if not one[wire.ROW_PAYLOAD]:
                del self.kept[one[wire.ROW_TOPIC]]

    def live(self, *rows: Row) -> None:
        """Bring rows live, and retain those that are to be."""
        self.keep(*[one for one in rows if one[wire.ROW_FLAGS] & wire.FLAG_RETAIN])
        self.delivering.deliver(rows, self.now)
        self.check()

    def answer(self, at: int = 0) -> None:
        """Give the page that was asked for, as the node does."""
        asked = self.asked.pop(at)
        upto = asked.upto or self.position
        found = [
            one
            for topic, (position, one) in sorted(self.kept.items())
            if matches(asked.filter, topic) and topic > asked.after and position <= upto
        ]
        page = found[: self.page_rows]
        following = page[-1][wire.ROW_TOPIC] if len(found) > len(page) else None
        batch = wire.join_rows([wire.pack(list(one)) for one in page])
        asked.then(((upto, following), [batch]), None, self.now)
        self.check()

    def refuse(self, code: int = errors.HOME_NOT_READY) -> None:
        self.asked.pop(0).then(None, error_for(code), self.now)
        self.check()

    def answer_all(self) -> None:
        while self.asked:
            self.answer()
            self.tick()

    # Time.

    def tick(self, seconds: float = 0.0) -> float:
        self.now += seconds
        wake = self.readings.tick(self.now)
        self.check()
        return wake

    def take(self) -> None:
        """Let everybody take what was sent."""
        while awaited := self.outlet.leave_all():
            for connection_id in awaited:
                self.egress.on_room(connection_id, self.now)
        self.check()

    def check(self) -> None:
        self.readings.validate()
        self.egress.validate()
        self.delivering.validate()

    def is_idle(self) -> bool:
        return not self.asked and self.tick() == float("inf") and not self.egress.bytes


class _Session:
    """What takes the request of a page."""

    def __init__(self, bench: Bench, then: Then) -> None:
        self.guaranteed = self
        self._bench, self._then = bench, then

    def ask(self, operation: str, arguments: dict[str, Any], _decode: Any, *, batches: int) -> int:
        assert (operation, batches) == ("retained.read", 1)
        self._bench.asked.append(Asked(**arguments, then=self._then))
        return 1


@pytest.mark.parametrize("version", [V3, V5])
def test_what_is_retained_comes_before_what_came_live_meanwhile(version: int) -> None:
    """[MQTT-3.3.1-8] [MQTT-3.3.1-12]; 3.1.1 [MQTT-3.3.1-6] [MQTT-3.3.1-8] [MQTT-3.3.1-9]."""
    bench, client = Bench(), FakeClient(version=version)
    bench.keep(row("a/1", b"1"), row("a/2", b"2"), row("a/3", b"3"))
    bench.subscribe(client, "a/+")
    bench.live(row("a/1", b"live", retain=False))
    bench.answer()
    bench.live(row("a/3", b"newer"))
    assert bench.payloads(client) == [b"1", b"2"]
    bench.answer_all()
    assert bench.payloads(client) == [b"1", b"2", b"live", b"newer"]
    assert [one.retain for one in bench.got(client)] == [True, True, False, False]
    assert bench.is_idle()


def test_a_topic_that_came_live_before_the_first_page_is_left_out_for_who_got_it() -> None:
    """The second one joins the reading of the first one behind that message."""
    bench, first, second = Bench(), FakeClient(1), FakeClient(2)
    bench.is_able = False
    bench.subscribe(first, "a/+")
    bench.live(row("a/1", b"1"))
    bench.subscribe(second, "a/+")
    bench.is_able = True
    bench.live(row("a/2", b"2"))
    bench.tick()
    assert len(bench.asked) == 1
    bench.answer_all()
    assert bench.payloads(first) == [b"1", b"2"]
    assert bench.payloads(second) == [b"1", b"2"]
    assert [one.retain for one in bench.got(second)] == [True, False]
    assert bench.is_idle()


def test_a_page_waits_for_the_live_messages_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn that was too long left some of them."""
    monkeypatch.setattr(delivering, "TURN_COPIES", 1)
    monkeypatch.setattr(delivering, "TURN_ROWS", 1)
    bench, client = Bench(), FakeClient()
    bench.subscribe(client, "+")
    bench.live(row("a", b"1"), row("b", b"2"))
    bench.answer()
    assert bench.payloads(client) == []
    assert bench.delivering.begin_turn(bench.now)
    assert not bench.delivering.begin_turn(bench.now)
    assert bench.payloads(client) == [b"1", b"2"]
    assert bench.is_idle()


def test_nobody_joins_a_reading_that_has_begun() -> None:
    bench, first, second = Bench(), FakeClient(1), FakeClient(2)
    bench.subscribe(first, "a")
    bench.subscribe(second, "a")
    assert len(bench.asked) == 2
    assert bench.asked[0].live != bench.asked[1].live
    bench.answer()
    bench.live(row("a", b"x"))
    assert bench.payloads(first) == [b"x"]
    bench.answer_all()
    assert bench.payloads(second) == [b"x"]


def test_a_wildcard_below_a_level_is_read_as_two_filters() -> None:
    bench, client = Bench(), FakeClient()
    bench.keep(row("a", b"1"), row("a/b/c", b"2"))
    bench.subscribe(client, "a/#")
    assert [one.filter for one in bench.asked] == ["a", "a/>"]
    bench.answer_all()
    assert bench.payloads(client) == [b"1", b"2"]


def test_who_gets_live_messages_from_a_queue_gets_all_that_is_retained() -> None:
    """What came live to the carrier may have been matched before the queue had the filter."""
    bench, direct, queued = Bench(), FakeClient(1), FakeClient(2)
    bench.is_able = False
    bench.subscribe(direct, "a")
    subscription = MqttSubscription(queued, Subscription("a", qos=1))
    bench.readings.begin([subscription])
    bench.live(row("a", b"x"))
    bench.is_able = True
    bench.tick()
    assert [one.queued for one in bench.asked] == [False, True]
    assert bench.egress.put_guaranteed(queued, b"", bench.now)
    bench.answer_all()
    assert bench.payloads(direct) == [b"x"]
    assert [(one.payload, one.retain) for one in bench.got(queued)] == [(b"x", True)]
    assert queued.retained_readings == 0


def test_a_page_with_qos_is_sent_by_its_client_and_the_next_one_waits_for_that() -> None:
    bench, client = Bench(), FakeClient()
    client.takes_slowly = True
    bench.keep(row("a", qos=1), row("b"), row("c"), row("d", qos=2), row("e"))
    subscription = MqttSubscription(client, Subscription("+", qos=1))
    bench.readings.begin([subscription])
    bench.tick()
    bench.answer()
    assert client.retained == [("+", "a"), ("+", "b")]
    bench.tick()
    assert bench.asked == []
    client.is_taking_retained = client.takes_slowly = False
    bench.tick(LOOK_S)
    bench.answer()
    assert client.retained[2:] == [("+", "c"), ("+", "d")]
    bench.answer_all()
    assert [one.topic for one in bench.got(client)] == ["e"], "one without comes with bytes that are shared"
    assert client.retained_readings == 0
    assert bench.is_idle()


def test_who_leaves_before_all_is_read_holds_back_no_more() -> None:
    bench, client = Bench(), FakeClient()
    subscription = MqttSubscription(client, Subscription("+", qos=1))
    bench.readings.begin([subscription])
    assert client.retained_readings == 1
    bench.readings.forget(subscription)
    bench.tick()
    assert client.retained_readings == 0


def test_addresses_are_not_read() -> None:
    bench = Bench()
    bench.subscribe(FakeClient(), "$P2P/INB/n/1")
    assert bench.is_idle()


def test_the_copies_of_a_client_are_its_own() -> None:
    """Identifiers, packets larger than it takes, its own messages, topics that MQTT cannot say."""
    bench = Bench(page_rows=10)
    plain, named, small, own = (FakeClient(number) for number in range(1, 5))
    small.packet_bytes_max = 50
    bench.is_able = False
    bench.subscribe(plain, "+")
    bench.subscribe(named, "+", 7)
    bench.subscribe(small, "+")
    bench.subscribe(own, "+", no_local=True)
    bench.keep(row("a", b"1"), row("b", b"2" * 100), row("c", b"3", own.name), row("d+", b"4"))
    bench.is_able = True
    bench.tick()
    bench.answer()
    assert [one.topic for one in bench.got(plain)] == ["a", "b", "c"]
    assert [one.topic for one in bench.got(small)] == ["a", "c"]
    assert [one.topic for one in bench.got(own)] == ["a", "b"]
    assert {one.properties.subscription_identifiers for one in bench.got(named)} == {(7,)}


def test_who_unsubscribes_or_leaves_gets_nothing_more_and_holds_nothing_up() -> None:
    bench, client, other = Bench(), FakeClient(1), FakeClient(2)
    bench.keep(row("a", b"1"), row("b", b"2"), row("c", b"3"))
    subscription = bench.subscribe(client, "+")
    bench.delivering.add(MqttSubscription(client, Subscription("x")))
    bench.live(row("x", b"x"))
    leaving = bench.subscribe(other, "+")
    bench.unsubscribe(subscription)
    bench.egress.forget(other.connection_id)
    bench.unsubscribe(leaving)
    assert bench.payloads(client) == [b"x"]
    bench.answer_all()
    assert bench.payloads(client) == [b"x"]
    assert bench.payloads(other) == []
    assert bench.is_idle()


@pytest.mark.parametrize("count", [1, 50])
def test_who_is_gone_is_forgotten_however_many_subscriptions_it_had(count: int) -> None:
    bench, gone, other = Bench(), FakeClient(1), FakeClient(2)
    bench.keep(row("a", b"1"))
    texts = ["+", *[f"no/{number}" for number in range(count)]]
    left = {text: MqttSubscription(gone, Subscription(text)) for text in texts}
    bench.readings.begin([left["+"]])
    for text in ("#", "a", "+"):
        bench.subscribe(other, text)
    bench.egress.forget(gone.connection_id)
    bench.readings.forget_all(gone, left.values())
    bench.answer_all()
    assert bench.payloads(gone) == []
    assert bench.payloads(other) == [b"1"] * 3
    assert bench.is_idle()


def test_so_many_are_read_at_the_same_time_and_the_others_in_turn() -> None:
    bench, clients = Bench(), [FakeClient(number) for number in range(1, READINGS_MAX + 4)]
    bench.keep(*[row(f"t{client.name}", client.name.encode()) for client in clients])
    for client in clients:
        bench.subscribe(client, f"t{client.name}")
    assert len(bench.asked) == READINGS_MAX
    bench.answer_all()
    assert all(bench.payloads(client) == [client.name.encode()] for client in clients)
    assert bench.is_idle()


def test_a_reading_that_is_refused_begins_again_and_gives_nothing_twice() -> None:
    bench, client = Bench(), FakeClient()
    bench.keep(*[row(f"a/{number}", b"%d" % number) for number in range(6)])
    bench.subscribe(client, "a/+")
    bench.answer()
    bench.refuse()
    bench.tick()
    assert bench.asked == []
    bench.live(row("a/4", b"newer"))
    bench.tick(RETRY_S)
    assert (bench.asked[0].after, bench.asked[0].upto) == ("", 0)
    bench.answer_all()
    assert bench.payloads(client) == [b"0", b"1", b"2", b"3", b"5", b"newer"]
    assert bench.is_idle()


def test_who_cannot_be_given_what_is_retained_is_told_so() -> None:
    bench, client = Bench(), FakeClient()
    bench.subscribe(client, "a")
    end = bench.now + PATIENCE_S + 2 * RETRY_S
    while bench.now < end and not bench.failed:
        if bench.asked:
            bench.refuse()
        bench.tick(RETRY_S)
    assert bench.failed == [(client.name, errors.HOME_NOT_READY)]


def large(count: int) -> list[Row]:
    return [row(f"a/{number}", b"%d" % number + bytes(UNSENT_BYTES_MAX)) for number in range(count)]


def test_the_next_page_is_asked_for_when_the_last_one_was_taken() -> None:
    bench, client = Bench(page_rows=1), FakeClient()
    bench.keep(*large(4))
    bench.subscribe(client, "a/+")
    bench.answer()
    assert len(bench.asked) == 1, "all of it is on the connection"
    bench.answer()
    bench.tick(STALL_S + 1)
    assert bench.asked == []
    bench.take()
    bench.tick()
    bench.answer()
    bench.take()
    bench.tick()
    bench.answer()
    bench.take()
    assert len(bench.got(client)) == 4
    assert bench.is_idle()


def test_who_does_not_take_a_page_holds_nobody_up_and_gets_the_rest_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, slow, fast = Bench(page_rows=1), FakeClient(1), FakeClient(2)
    bench.keep(*large(3))
    bench.is_able = False
    bench.subscribe(slow, "a/+")
    bench.subscribe(fast, "a/+")
    bench.is_able = True
    bench.tick()
    monkeypatch.setattr(bench.outlet, "unsent", lambda one: UNSENT_BYTES_MAX * (one == slow.connection_id))
    bench.answer()
    assert bench.asked == []
    bench.tick(SHARE_S)
    bench.answer_all()
    assert len(bench.got(fast)) == 3
    assert bench.payloads(slow) == []
    monkeypatch.undo()
    bench.take()
    bench.tick()
    while bench.asked:
        bench.answer()
        bench.take()
        bench.tick()
    assert [one.topic for one in bench.got(slow) if one.topic] == ["a/0", "a/1", "a/2"]


@given(st.integers(0, 1 << 30))
def test_nothing_is_missed_and_nothing_comes_twice_whatever_happens_when(seed: int) -> None:
    """The payloads of a topic count up. Whoever subscribes gets all from some state of it on, in order, each once."""
    chance, bench = random.Random(seed), Bench(page_rows=2)
    clients = [FakeClient(number, version=chance.choice([V3, V5])) for number in range(1, 6)]
    topics = ["a", "a/b", "a/c", "a/c/d", "e"]
    counts = dict.fromkeys(topics, 0)
    kept: dict[str, int] = {}
    since: dict[str, dict[str, int]] = {}

    def publish() -> None:
        topic, is_kept = chance.choice(topics), chance.random() < 0.7
        counts[topic] += 1
        bench.live(row(topic, b"%d" % counts[topic], retain=is_kept))
        if is_kept:
            kept[topic] = counts[topic]

    def subscribe() -> None:
        if clients:
            client = clients.pop()
            since[client.name] = {topic: kept.get(topic, counts[topic] + 1) for topic in topics}
            began[client.name] = dict(counts)
            bench.subscribe(client, "a/#")
            there.append(client)

    def answer() -> None:
        if bench.asked:
            chance.choice([bench.answer, bench.answer, bench.answer, bench.refuse])()

    began: dict[str, dict[str, int]] = {}
    there: list[FakeClient] = []
    for _ in range(60):
        bench.is_able = chance.random() < 0.8
        chance.choice([publish, publish, subscribe, answer, answer])()
        bench.tick(chance.choice([0.0, RETRY_S]))
    bench.is_able = True
    while bench.tick(RETRY_S) != float("inf") or bench.asked:
        if bench.asked:
            bench.answer()
    for client in there:
        for topic in topics[:4]:
            got = [int(one.payload) for one in bench.got(client) if one.topic == topic]
            before = began[client.name][topic]
            live = list(range(before + 1, counts[topic] + 1))
            first = since[client.name][topic]
            # What was retained before, unless that was replaced by one that came live; then all that came live.
            assert got in ([first, *live] if first <= before else live, live)
            if got == live and first <= before:
                assert kept[topic] > before, "what is retained was missed"
    assert bench.is_idle()


def test_of_a_message_vpn_without_subscriptions_nothing_is_kept() -> None:
    """Its process forgets what delivers there, with what is known of its topics."""
    with uncollected():
        bench = Bench()
        subscription = MqttSubscription(FakeClient(), Subscription("#"))
        bench.delivering.add(subscription)
        bench.live(*[row(f"a/{at}") for at in range(3)])
        bench.unsubscribe(subscription)
        assert bench.delivering.is_idle
        assert bench.readings.is_idle
        del bench.delivering, bench.readings
        assert not [one for one in gc.get_objects() if isinstance(one, Delivering | Readings | FanOut)]
