"""Guaranteed messages of attached clients: the carrier against a router that the test plays."""

from __future__ import annotations

import pytest

from angarium import errors, wire
from gateway.attached import UNACKNOWLEDGED_BYTES_MAX
from gateway.gathering import TURN_ROWS_MAX
from gateway.producing import OPEN_PAUSE_S
from tests.unit.gateway.played_router import FakeGuest, Gateway, acked, open_producer, requests, rounds, store


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


def test_all_clients_have_one_producer_which_opens_with_the_first_message(gateway: Gateway) -> None:
    client, guest = gateway.opened("c")
    other, others = gateway.opened("o")
    gateway.turn()
    assert requests(gateway.sent()) == []
    store(client, 7, 8)
    store(other, 7)
    assert rounds(open_producer(gateway, last_sequence=90)) == [(3, 91, 3)]
    acked(gateway, 92)
    assert (guest.take(), others.take()) == ([("acknowledged", [(7, 0), (8, 0)])], [])
    store(client, 9)
    gateway.turn()
    assert rounds(gateway.sent()) == [(3, 94, 1)]
    acked(gateway, 94, [[93, errors.DISK_FULL, "full"]], 0, [[94, 1]])
    assert others.take() == [("acknowledged", [(7, errors.DISK_FULL)])]
    assert guest.take() == [("acknowledged", [(9, errors.NO_SUBSCRIPTION_MATCH)])]


def test_direct_messages_do_not_wait_for_the_producer(gateway: Gateway) -> None:
    client, _ = gateway.opened("c")
    store(client, 1)
    client.publish("direct", 0, None, None, b"x")
    gateway.turn()
    assert [one[0] for one in gateway.sent()] == [wire.REQUEST, wire.PUBLISH]


def test_in_one_turn_leaves_so_much_of_each_and_the_next_comes_at_once(gateway: Gateway) -> None:
    client, _ = gateway.opened("c")
    store(client, 1)
    open_producer(gateway)
    store(client, *range(2 * TURN_ROWS_MAX))
    for _ in range(2 * TURN_ROWS_MAX):
        client.publish("direct", 0, None, None, b"x")
    assert gateway.turn() == gateway.now
    heads = [wire.unpack(one[1]) for one in gateway.sent() if one[0] == wire.PUBLISH]
    rows = {
        kind: sum(count for head in heads if len(head) == kind for _, count in head[3]) for kind in (4, 6)
    }
    assert all(TURN_ROWS_MAX <= count < 2 * TURN_ROWS_MAX for count in rows.values())


def test_a_client_that_floods_is_held_up_and_nobody_else(gateway: Gateway) -> None:
    client, _ = gateway.opened("c")
    other, _ = gateway.opened("o")
    payload = b"x" * 500_000
    count = 0
    while client.has_room_guaranteed():
        count += 1
        store(client, count, payload=payload)
    assert count == UNACKNOWLEDGED_BYTES_MAX // len(payload) + 1
    assert other.has_room_guaranteed()
    open_producer(gateway)
    for number in range(1, 3):
        assert not client.has_room_guaranteed() or number > 1
        acked(gateway, number)
    assert client.has_room_guaranteed()


def test_all_wait_when_very_much_waits(gateway: Gateway) -> None:
    clients = [gateway.opened(f"c{number}")[0] for number in range(5)]
    for client in clients[:4]:
        while client.has_room_guaranteed():
            store(client, 1, payload=b"x" * 500_000)
    assert not clients[4].has_room_guaranteed()
    assert clients[4].has_room()


def test_what_is_refused_at_once_is_told_from_a_turn(gateway: Gateway) -> None:
    client, guest = gateway.opened("c")
    client.refuse_guaranteed(5, errors.PUBLISH_DENIED)
    assert guest.take() == []
    gateway.turn()
    assert guest.take() == [("acknowledged", [(5, errors.PUBLISH_DENIED)])]


def test_a_producer_that_cannot_be_opened_now_is_asked_for_again(gateway: Gateway) -> None:
    client, guest = gateway.opened("c")
    store(client, 1)
    gateway.turn()
    ((number, *_),) = requests(gateway.sent())
    gateway.says(wire.ANSWER, [number, errors.CONTROLLER_UNAVAILABLE, "later"])
    gateway.turn()
    assert requests(gateway.sent()) == []
    gateway.now += OPEN_PAUSE_S
    assert rounds(open_producer(gateway)) == [(3, 1, 1)]
    acked(gateway, 1)
    assert guest.take() == [("acknowledged", [(1, 0)])]


def test_who_may_not_have_one_at_all_is_told(gateway: Gateway) -> None:
    client, guest = gateway.opened("c")
    store(client, 1)
    gateway.turn()
    ((number, *_),) = requests(gateway.sent())
    gateway.says(wire.ANSWER, [number, errors.GUARANTEED_SEND_DENIED, "never"])
    gateway.turn()
    assert guest.take() == [("acknowledged", [(1, errors.GUARANTEED_SEND_DENIED)])]


def test_who_has_left_is_told_nothing_and_its_messages_leave(gateway: Gateway) -> None:
    client, guest = gateway.opened("c")
    other, others = gateway.opened("o")
    store(client, 1)
    store(other, 1)
    client.leave()
    assert rounds(open_producer(gateway)) == [(3, 1, 2)]
    acked(gateway, 2)
    assert guest.take() == []
    assert others.take() == [("acknowledged", [(1, 0)])]


def test_who_leaves_while_it_is_told_is_told_nothing_more(gateway: Gateway) -> None:
    client, guest = gateway.opened("c")
    store(client, 1, 2)
    open_producer(gateway)
    guest.then = client.leave
    acked(gateway, 1)
    acked(gateway, 2)
    assert guest.take() == [("acknowledged", [(1, 0)])]


def test_with_a_carrier_that_the_router_ends_all_is_forgotten_and_nothing_is_acknowledged(
    gateway: Gateway,
) -> None:
    client, guest = gateway.opened("c")
    store(client, 1)
    open_producer(gateway, last_sequence=5)
    gateway.says(wire.CLOSED, [errors.EGRESS_BLOCKED, ""])
    gateway.turn()
    assert guest.take() == [("ended", errors.EGRESS_BLOCKED)]
    (row,) = gateway.carriers.describe()
    assert (row["lost"], row["unacknowledged"]) == (0, 0)
    again, told = gateway.attach("c")
    gateway.now += 1.0
    gateway.turn()
    gateway.welcome()
    gateway.sent()
    gateway.welcome_client(again.number)
    told.take()
    store(again, 1)
    assert rounds(open_producer(gateway, last_sequence=6)) == [(3, 7, 1)]


@pytest.mark.parametrize(("upto", "code"), [(2, 0), (1, errors.PRODUCER_FENCED)])
def test_a_router_that_says_what_cannot_be_or_has_our_successor_ends_it(
    gateway: Gateway, upto: int, code: int
) -> None:
    client, guest = gateway.opened("c")
    store(client, 1)
    open_producer(gateway)
    acked(gateway, upto, code=code)
    assert guest.take() == [("ended", code or errors.MALFORMED_FRAME)]


def test_rows_are_cut_by_the_table_that_counts_when_they_leave(gateway: Gateway) -> None:
    client, _ = gateway.opened("c")
    store(client, 1)
    gateway.says(wire.TABLE, [9, bytes(1_024)])
    frames = open_producer(gateway)
    assert [wire.unpack(one[1])[1] for one in frames if one[0] == wire.PUBLISH] == [9]


def test_a_fault_while_one_is_told_costs_that_client_alone(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    client, guest = gateway.opened("c")
    other, others = gateway.opened("o")
    store(client, 1)
    store(other, 1)
    open_producer(gateway)

    def fail() -> None:
        guest.then = FakeGuest().then
        raise ValueError

    guest.then = fail
    acked(gateway, 2)
    gateway.turn()
    assert guest.take() == [("acknowledged", [(1, 0)]), ("ended", errors.INTERNAL)]
    assert others.take() == [("acknowledged", [(1, 0)])]
    assert "led to a fault" in caplog.text
