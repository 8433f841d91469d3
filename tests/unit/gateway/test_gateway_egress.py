"""Clients that do not read fast enough: each loses its own, the oldest first, and nothing that may not be lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium_server.connections.door import Refusal
from gateway import egress
from gateway.egress import FREED_PART, MESSAGE_BYTES, UNSENT_BYTES_MAX, WORK_UNIT_BYTES, Egress
from tests.unit.gateway.clients_of_tests import FakeClient, FakeOutlet

LOST = "discard.transmit-congestion"
#: Fills a connection, so that all that comes later waits.
FULL = b"f" * UNSENT_BYTES_MAX


class Bench:
    """An egress, its connections and some clients."""

    def __init__(self, *clients: FakeClient, bytes_max: int = 1 << 20) -> None:
        self.outlet = FakeOutlet()
        self.egress = Egress(self.outlet, bytes_max)
        self.clients = clients

    def fill(self) -> None:
        for client in self.clients:
            self.egress.put(client, [FULL], 0.0)

    def room(self, now: float = 0.0) -> None:
        for connection_id in self.outlet.leave_all():
            self.egress.on_room(connection_id, now)
        self.egress.validate()

    def got(self, client: FakeClient) -> bytes:
        return self.outlet.sent.get(client.connection_id, b"").removeprefix(FULL)

    def drain(self) -> None:
        while self.outlet.awaited:
            self.room()


def test_messages_leave_at_once_while_there_is_room() -> None:
    client = FakeClient()
    bench = Bench(client)
    bench.egress.put(client, [b"a", b"b"], 0.0)
    bench.egress.put(client, [b"c"], 0.0)
    assert bench.got(client) == b"abc"
    assert bench.egress.sent == 3
    assert client.queued == (0, 0)
    assert bench.outlet.awaited == set()


def test_what_has_no_room_waits_and_goes_on_in_its_order_when_all_has_left() -> None:
    client = FakeClient()
    bench = Bench(client)
    bench.egress.put(client, [FULL[:-1], b"a", b"b"], 0.0)
    bench.egress.put(client, [b"c"], 0.0)
    assert bench.outlet.sent[client.connection_id] == FULL[:-1] + b"a"
    assert client.queued == (2, 2 + 2 * MESSAGE_BYTES)
    assert bench.egress.sent == 2, "what waits is not sent yet"
    bench.egress.validate()
    bench.room()
    assert bench.egress.sent == 4
    assert bench.outlet.sent[client.connection_id] == FULL[:-1] + b"abc"
    assert client.queued == (0, 0)


def test_no_more_than_a_connection_takes_is_given_to_it_at_once() -> None:
    client = FakeClient(queue_units=1_000_000)
    bench = Bench(client, bytes_max=1 << 30)
    piece = b"p" * (UNSENT_BYTES_MAX // 2)
    bench.egress.put(client, [piece] * 9, 0.0)
    for sent in (2, 4, 6, 8, 9):
        assert len(bench.outlet.sent[client.connection_id]) == sent * len(piece)
        bench.room()
    assert client.counts == {}


def test_who_is_behind_loses_his_oldest_and_another_loses_nothing() -> None:
    slow, fast = FakeClient(1, queue_units=1), FakeClient(2, queue_units=1)
    bench = Bench(slow, fast)
    bench.egress.put(slow, [FULL], 0.0)
    messages = [bytes([65 + number]) * 500 for number in range(10)]
    for data in messages:
        bench.egress.put(slow, [data], 0.0)
        bench.egress.put(fast, [data], 0.0)
    kept = WORK_UNIT_BYTES // (500 + MESSAGE_BYTES)
    assert slow.counts == {LOST: len(messages) - kept}
    assert fast.counts == {}
    bench.drain()
    assert bench.got(slow) == b"".join(messages[-kept:])
    assert bench.got(fast) == b"".join(messages)


def test_the_newest_waits_whatever_its_size() -> None:
    client = FakeClient(queue_units=1)
    bench = Bench(client)
    bench.fill()
    bench.egress.put(client, [b"a", b"b" * 10_000], 0.0)
    bench.drain()
    assert bench.got(client) == b"b" * 10_000
    assert client.counts == {LOST: 1}


def test_a_lower_limit_is_in_force_from_the_next_message_on() -> None:
    client = FakeClient(queue_units=10)
    bench = Bench(client)
    bench.fill()
    bench.egress.put(client, [b"a" * 1_000] * 10, 0.0)
    client.queue_units = 1
    assert client.queued[0] == 10
    bench.egress.put(client, [b"b" * 1_000], 0.0)
    assert client.queued == (1, 1_000 + MESSAGE_BYTES)


def test_what_may_not_be_lost_keeps_its_place() -> None:
    client = FakeClient(queue_units=1)
    bench = Bench(client)
    bench.fill()
    bench.egress.put(client, [b"a" * 1_500], 0.0)
    assert bench.egress.put_guaranteed(client, b"1", 0.0)
    bench.egress.put(client, [b"b" * 100], 0.0)
    assert bench.egress.put_guaranteed(client, b"2", 0.0)
    bench.egress.put(client, [b"c" * 1_000], 0.0)
    bench.egress.validate()
    bench.drain()
    assert bench.got(client) == b"1" + b"b" * 100 + b"2" + b"c" * 1_000
    assert client.counts == {LOST: 1}


def test_too_much_that_may_not_be_lost_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress, "GUARANTEED_BYTES_MAX", 1_000)
    client = FakeClient()
    bench = Bench(client)
    bench.fill()
    assert bench.egress.put_guaranteed(client, b"a" * 2_000, 0.0), "one waits whatever its size"
    assert not bench.egress.put_guaranteed(client, b"b", 0.0)
    bench.egress.validate()
    bench.drain()
    assert bench.got(client) == b"a" * 2_000
    assert bench.egress.put_guaranteed(client, b"b", 0.0)


def test_when_all_together_have_too_much_whoever_has_most_loses() -> None:
    much, little = FakeClient(1), FakeClient(2)
    bench = Bench(much, little, bytes_max=20_000)
    bench.fill()
    bench.egress.put(much, [b"m" * 1_000] * 12, 0.0)
    bench.egress.put(little, [b"l" * 1_000] * 8, 0.0)
    assert much.counts[LOST] == 2
    assert little.counts == {}
    assert bench.egress.bytes <= 20_000
    bench.egress.validate()


def test_who_takes_nothing_is_told_of_when_his_patience_is_over() -> None:
    client = FakeClient()
    bench = Bench(client)
    bench.egress.put(client, [FULL, b"a"], 100.0)
    assert bench.egress.tick(159.0) == []
    assert bench.egress.tick(160.5) == [client]
    assert bench.egress.tick(160.6) == [], "not more often than once a second"
    assert bench.egress.tick(162.0) == [client], "again, until he is forgotten"
    bench.egress.forget(client.connection_id)
    assert bench.egress.tick(164.0) == []
    assert client.counts == {"discard.client-not-connected": 1}
    assert client.queued == (0, 0)
    bench.egress.validate()


def test_who_takes_a_little_is_slow_and_stays() -> None:
    client = FakeClient()
    bench = Bench(client)
    bench.egress.put(client, [FULL, b"a"], 0.0)
    for step in range(1, 10):
        bench.outlet.leave(client.connection_id, 1)
        assert bench.egress.tick(step * 50.0) == []
    assert bench.egress.tick(511.0) == [client]


def test_who_takes_all_at_once_has_all_his_patience_again() -> None:
    client = FakeClient()
    bench = Bench(client)
    bench.egress.put(client, [FULL, FULL, b"a"], 0.0)
    bench.room(50.0)
    assert client.queued[0] == 1
    assert bench.egress.tick(109.0) == []
    assert bench.egress.tick(110.5) == [client]


def test_that_more_is_said_to_him_does_not_look_as_if_he_took_something() -> None:
    client = FakeClient()
    bench = Bench(client)
    bench.egress.put(client, [FULL, b"a"], 0.0)
    for step in range(1, 6):
        bench.outlet.send_bytes(client.connection_id, b"answers to PINGREQ")
        assert bench.egress.tick(step * 10.0) == []
    assert bench.egress.tick(60.0) == [client]


def test_a_connection_that_had_to_go_is_told_of_once() -> None:
    client, other = FakeClient(1), FakeClient(2)
    bench = Bench(client, other)
    bench.outlet.refusals[client.connection_id] = Refusal.BLOCKED
    bench.outlet.refusals[other.connection_id] = Refusal.GONE
    bench.egress.put(client, [b"a"], 0.0)
    bench.egress.put(other, [b"a"], 0.0)
    assert bench.egress.tick(1.0) == [client]
    assert bench.egress.tick(3.0) == []
    assert client.queued == other.queued == (0, 0)


@pytest.mark.parametrize("refusal", list(Refusal))
def test_a_connection_that_goes_while_something_waits_is_forgotten_by_whoever_ends_it(
    refusal: Refusal,
) -> None:
    client = FakeClient(queue_units=1_000)
    bench = Bench(client)
    bench.fill()
    bench.egress.put(client, [FULL, b"a"], 0.0)
    bench.outlet.refusals[client.connection_id] = refusal
    bench.egress.on_room(client.connection_id, 1.0)
    bench.egress.validate()
    assert bench.egress.tick(1.0) == ([client] if refusal is Refusal.BLOCKED else [])
    bench.egress.forget(client.connection_id)
    assert bench.egress.bytes == 0
    bench.egress.on_room(client.connection_id, 2.0)


class Model:
    """The same by brute force: lists of (whether it may be lost, message) behind connections that are full."""

    def __init__(self, clients: list[FakeClient], bytes_max: int) -> None:
        self.clients = clients
        self.bytes_max = bytes_max
        self.waiting: list[list[tuple[bool, bytes]]] = [[] for _ in clients]
        #: Clients in the order in which they began to wait.
        self.order: list[int] = []
        self.lost = [0] * len(clients)

    def droppable(self, who: int) -> list[tuple[bool, bytes]]:
        return [one for one in self.waiting[who] if one[0]]

    def size(self, who: int) -> int:
        return sum(len(data) + MESSAGE_BYTES for _, data in self.droppable(who))

    def total(self) -> int:
        return sum(len(data) + MESSAGE_BYTES for waiting in self.waiting for _, data in waiting)

    def lose_oldest(self, who: int) -> None:
        self.waiting[who].remove(self.droppable(who)[0])
        self.lost[who] += 1

    def put(self, who: int, messages: list[bytes], may_be_lost: bool) -> None:
        if who not in self.order:
            self.order.append(who)
        self.waiting[who] += [(may_be_lost, data) for data in messages]
        while (
            may_be_lost
            and self.size(who) > self.clients[who].queue_units * WORK_UNIT_BYTES
            and len(self.droppable(who)) > 1
        ):
            self.lose_oldest(who)
        if self.total() <= self.bytes_max:
            return
        while self.total() > self.bytes_max - self.bytes_max // FREED_PART:
            candidates = [one for one in self.order if self.droppable(one)]
            if not candidates:
                return
            self.lose_oldest(max(candidates, key=self.size))


puts = st.tuples(st.integers(0, 2), st.lists(st.integers(0, 900), min_size=1, max_size=4), st.booleans())


@pytest.mark.slow
@given(puts=st.lists(puts, max_size=25), units=st.lists(st.integers(0, 3), min_size=3, max_size=3))
def test_who_loses_what_is_as_by_brute_force(
    puts: list[tuple[int, list[int], bool]], units: list[int]
) -> None:
    clients = [FakeClient(number, queue_units=unit) for number, unit in enumerate(units)]
    bench = Bench(*clients, bytes_max=8_000)
    bench.fill()
    model = Model(clients, 8_000)
    number = 0
    for who, sizes, may_be_lost in puts:
        messages = []
        for size in sizes if may_be_lost else sizes[:1]:
            number += 1
            messages.append(number.to_bytes(2, "big") + b"." * size)
        model.put(who, messages, may_be_lost)
        if may_be_lost:
            bench.egress.put(clients[who], messages, 0.0)
        else:
            assert bench.egress.put_guaranteed(clients[who], messages[0], 0.0)
        bench.egress.validate()
    for who, client in enumerate(clients):
        assert client.counts[LOST] == model.lost[who]
    bench.drain()
    for who, client in enumerate(clients):
        assert bench.got(client) == b"".join(data for _, data in model.waiting[who])
    assert bench.egress.bytes == 0


def test_what_is_held_waits_until_nobody_holds_it_and_what_goes_first_goes_before() -> None:
    client = FakeClient()
    bench = Bench(client)
    bench.egress.hold(client)
    bench.egress.hold(client)
    bench.egress.put(client, [b"c"], 0.0)
    assert bench.egress.put_guaranteed(client, b"d", 0.0)
    bench.egress.put_first(client, b"a", 0.0)
    bench.egress.put_first(client, b"b", 0.0)
    bench.egress.release(client, 0.0)
    bench.egress.validate()
    assert bench.got(client) == b"ab"
    bench.egress.release(client, 0.0)
    assert bench.got(client) == b"abcd"
    bench.egress.put(client, [b"e"], 0.0)
    assert bench.got(client) == b"abcde"
    assert client.queued == (0, 0)
    assert bench.egress.bytes == 0


def test_what_waited_before_a_hold_goes_before_all_that_goes_first() -> None:
    client = FakeClient()
    bench = Bench(client)
    bench.fill()
    bench.egress.put(client, [b"1", b"2"], 0.0)
    bench.egress.hold(client)
    bench.egress.put(client, [b"5"], 0.0)
    bench.egress.put_first(client, b"3", 0.0)
    bench.egress.put_first(client, b"4", 0.0)
    assert not bench.egress.has_room(client)
    bench.drain()
    assert bench.egress.has_room(client)
    assert bench.got(client) == b"1234"
    bench.egress.release(client, 0.0)
    assert bench.got(client) == b"12345"


def test_who_is_held_loses_his_oldest_like_others_and_nothing_of_what_goes_first() -> None:
    client = FakeClient(queue_units=1)
    bench = Bench(client)
    bench.fill()
    bench.egress.hold(client)
    bench.egress.put_first(client, b"f" * 5_000, 0.0)
    for number in range(10):
        bench.egress.put(client, [b"%d" % number * 1_000], 0.0)
    bench.egress.validate()
    assert client.counts == {LOST: 9}
    assert bench.egress.bytes == 1_000 + MESSAGE_BYTES
    bench.egress.release(client, 0.0)
    assert bench.egress.bytes == 6_000 + MESSAGE_BYTES
    bench.drain()
    assert bench.got(client) == b"f" * 5_000 + b"9" * 1_000
    assert bench.egress.bytes == 0


def test_who_waits_for_what_goes_first_is_not_taken_for_one_who_does_not_read() -> None:
    client = FakeClient()
    bench = Bench(client)
    bench.egress.hold(client)
    bench.egress.put(client, [b"x"], 0.0)
    assert bench.egress.tick(1_000.0) == []
    assert bench.egress.tick(2_000.0) == []
    bench.egress.put_first(client, FULL + FULL, 2_000.0)
    bench.egress.put_first(client, b"y", 2_000.0)
    assert bench.egress.tick(2_001.0) == []
    assert bench.egress.tick(2_100.0) == [client]


def test_who_is_held_while_something_leaves_has_the_time_that_others_have() -> None:
    client = FakeClient()
    bench = Bench(client)
    assert bench.egress.tick(1_000.0) == []
    bench.fill()
    bench.egress.hold(client)
    assert bench.egress.tick(1_002.0) == []
    assert bench.egress.tick(1_100.0) == [client]


def test_who_is_gone_is_not_held_any_more() -> None:
    client = FakeClient()
    bench = Bench(client)
    bench.egress.hold(client)
    bench.egress.put(client, [b"x"], 0.0)
    bench.egress.forget(client.connection_id)
    assert client.counts == {"discard.client-not-connected": 1}
    bench.egress.put_first(client, b"y", 0.0)
    bench.egress.release(client, 0.0)
    bench.egress.validate()
    assert bench.got(client) == b""
    assert bench.egress.bytes == 0
