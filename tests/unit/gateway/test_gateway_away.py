"""Clients whose router is lost and replaced, and that stay: the carrier against routers that the test plays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from angarium.errors import error_for
from gateway.carrier import WAIT_S
from tests.unit.gateway.played_router import FakeGuest, Gateway, acked, open_producer, requests, rounds, store

if TYPE_CHECKING:
    from angarium.message import Row
    from gateway.attached import Attached

ALWAYS = wire.SUBSCRIBE_DELIVER_ALWAYS


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


def lose(gateway: Gateway) -> None:
    """The router dies, and a new one is there a moment later."""
    gateway.line.lose(error_for(errors.NOT_CONNECTED), gateway.now)
    gateway.turn()
    gateway.now += 1.0
    gateway.turn()


def come_back(gateway: Gateway) -> None:
    gateway.welcome()
    gateway.turn()


def welcome_again(gateway: Gateway, client: Attached, name: str, *, resumed: bool = True) -> None:
    gateway.welcome_client(client.number, name, resumed=resumed)


def staying(gateway: Gateway, name: str = "c") -> tuple[Attached, FakeGuest]:
    client, guest = gateway.opened(name)
    guest.when_away = lambda: None
    return client, guest


def test_who_stays_is_attached_again_by_its_token_and_in_nobodys_place(gateway: Gateway) -> None:
    client, guest = staying(gateway)
    first = client.number
    lose(gateway)
    assert guest.take() == [("away",)]
    assert not client.has_room()
    assert not client.has_room_guaranteed()
    come_back(gateway)
    ((number, operation, hello),) = gateway.sent_of()
    assert (operation, hello["token"], hello["client_name"]) == (wire.HELLO, b"t%d" % first, "c")
    assert "password" not in hello
    assert hello["behalf"]["takes_over"] is False
    assert hello["behalf"]["clean"] is False
    assert number > first
    welcome_again(gateway, client, "c")
    assert guest.take() == [("may_go_on",)]
    assert client.has_room()
    lose(gateway)
    come_back(gateway)
    assert gateway.sent_of()[0][2]["token"] == b"t%d" % number


@pytest.mark.parametrize(("password", "again"), [("secret", None), ("eyJhbGciOi.e30.x", "eyJhbGciOi.e30.x")])
def test_a_token_in_place_of_a_password_is_shown_again(
    gateway: Gateway, password: str, again: str | None
) -> None:
    client, _ = gateway.attach("c")
    client.login = client.login._replace(password=password)
    gateway.turn()
    come_back(gateway)
    gateway.sent()
    welcome_again(gateway, client, "c")
    assert client.login.password == again


def test_what_it_had_is_asked_first_and_then_what_had_no_answer(gateway: Gateway) -> None:
    client, guest = staying(gateway)
    codes: list[Any] = []
    told: list[Any] = []

    def ask() -> None:
        client.subscribe_again([("mine", ALWAYS)], lambda got, _now: codes.append(got))

    guest.when_away = ask
    client.subscribe([("new", ALWAYS)])
    client.request("session.keep", {}, lambda *answer: told.append(answer[:2]))
    gateway.turn()
    gateway.sent()
    for _ in range(2):  # the second one dies before it has answered anything
        lose(gateway)
        come_back(gateway)
        gateway.sent()
        welcome_again(gateway, client, "c")
    ((number, operation, asked),) = gateway.sent_of()
    assert (operation, asked[1]) == (wire.SUBSCRIBE, [["mine", ALWAYS]])
    guest.take()
    gateway.says_to(number, wire.SUBACK, [asked[0], [None]])
    assert (codes, guest.take()) == ([[0]], [])
    ((_, operation, asked),) = gateway.sent_of()
    assert (operation, asked[1]) == (wire.SUBSCRIBE, [["new", ALWAYS]])
    gateway.says_to(number, wire.SUBACK, [asked[0], [[errors.SUBSCRIBE_DENIED, ""]]])
    assert guest.take() == [("answered", [errors.SUBSCRIBE_DENIED])]
    ((_, operation, asked),) = gateway.sent_of()
    assert (operation, asked[1]) == (wire.REQUEST, "session.keep")
    gateway.says_to(number, wire.ANSWER, [asked[0], 0, None])
    assert told == [(None, None)]
    assert gateway.sent_of() == []


def test_rounds_of_its_own_begin_anew(gateway: Gateway) -> None:
    client, _ = staying(gateway)
    row: Row = (0, "t", wire.MODE_PERSISTENT, None, None, b"x")
    for _ in range(2):
        client.publish_own(7, 5, [row])
        gateway.turn()
        ((_, operation, head),) = gateway.sent_of()
        assert (operation, head[0], head[4:]) == (wire.PUBLISH, 1, [7, 5])
        lose(gateway)
        come_back(gateway)
        gateway.sent()
        welcome_again(gateway, client, "c")


def test_what_was_to_be_in_force_no_more_is_not(gateway: Gateway) -> None:
    """The new router does not know of it."""
    client, guest = staying(gateway)
    client.unsubscribe([("a", ALWAYS), ("b", ALWAYS)])
    gateway.turn()
    lose(gateway)
    assert guest.take() == [("away",), ("answered", [0, 0])]
    come_back(gateway)
    gateway.sent()
    welcome_again(gateway, client, "c")
    assert gateway.sent_of() == []


def test_what_is_not_acknowledged_leaves_again_with_its_sequences_before_anything_newer(
    gateway: Gateway,
) -> None:
    client, guest = staying(gateway)
    other, _ = gateway.opened("other")  # it does not stay
    store(client, 1, 2)
    store(other, 9)
    assert rounds(open_producer(gateway, last_sequence=5)) == [(3, 6, 3)]
    acked(gateway, 6)
    assert guest.take() == [("acknowledged", [(1, 0)])]
    store(client, 3)
    lose(gateway)
    assert guest.take() == [("away",)]
    come_back(gateway)
    (again,) = [one for one in gateway.sent() if one[0] == wire.REQUEST]
    assert wire.unpack(again[1])[1] == "producer.open"
    value = {"producer": 3, "name": "#mqtt/n/0", "last_sequence": 8, "window": 65_536}
    gateway.says(wire.ANSWER, [wire.unpack(again[1])[0], 0, value])
    gateway.turn()
    assert rounds(gateway.sent()) == [(3, 7, 3)]
    welcome_again(gateway, client, "c")
    guest.take()
    store(client, 4)
    gateway.turn()
    assert rounds(gateway.sent()) == [(3, 10, 1)]
    acked(gateway, 10, nacks=[[10, errors.SPOOL_OVER_QUOTA, ""]])
    assert guest.take() == [("acknowledged", [(2, 0), (3, 0), (4, errors.SPOOL_OVER_QUOTA)])]


def test_if_somebody_else_has_published_by_it_meanwhile_all_end(gateway: Gateway) -> None:
    """A sequence then stands for another message: what is in doubt cannot be sent again."""
    client, guest = staying(gateway)
    store(client, 1)
    open_producer(gateway)
    lose(gateway)
    come_back(gateway)
    guest.take()
    welcome_again(gateway, client, "c")
    (request,) = requests(gateway.sent())
    value = {"producer": 3, "name": "#mqtt/n/0", "last_sequence": 2, "window": 65_536}
    gateway.says(wire.ANSWER, [request[0], 0, value])
    gateway.turn()
    assert guest.take() == [("may_go_on",), ("ended", errors.PRODUCER_FENCED)]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (errors.CLIENT_NAME_IN_USE, errors.TAKEN_OVER),
        (errors.UNAUTHORIZED, errors.NOT_CONNECTED),
        (errors.USERNAME_SHUTDOWN, errors.USERNAME_SHUTDOWN),
        (errors.TOO_MANY_CLIENTS, errors.TOO_MANY_CLIENTS),
    ],
)
def test_who_is_not_let_in_again_is_told_why(gateway: Gateway, code: int, told: int) -> None:
    client, guest = staying(gateway)
    lose(gateway)
    come_back(gateway)
    guest.take()
    gateway.says_to(client.number, wire.CLOSED, [code, ""])
    assert guest.take() == [("ended", told)]


def test_whose_token_is_not_good_any_more_is_taken_over(gateway: Gateway) -> None:
    """Without a password the router lets in whoever says its name."""
    client, guest = staying(gateway)
    lose(gateway)
    come_back(gateway)
    guest.take()
    gateway.sent()
    welcome_again(gateway, client, "c", resumed=False)
    assert guest.take() == [("ended", errors.TAKEN_OVER)]
    assert [operation for _, operation, _ in gateway.sent_of()] == [wire.BYE]


def test_without_a_router_in_time_all_end_and_what_they_have_published_is_forgotten(gateway: Gateway) -> None:
    client, guest = staying(gateway)
    store(client, 1)
    open_producer(gateway)
    end = gateway.now + WAIT_S
    lose(gateway)
    assert guest.take() == [("away",)]
    while gateway.now < end + 1.0:
        gateway.turn()
        gateway.line.lose(error_for(errors.HANDSHAKE_FAILED), gateway.now)
        gateway.now += 0.5
    assert guest.take() == [("ended", errors.NOT_CONNECTED)]
    (row,) = gateway.carriers.describe()
    assert (row["waiting"], row["unacknowledged"]) == (0, 0)


def test_a_router_that_says_goodbye_ends_them(gateway: Gateway) -> None:
    _, guest = staying(gateway)
    gateway.says(wire.CLOSED, [errors.SHUTTING_DOWN, ""])
    gateway.turn()
    assert guest.take() == [("ended", errors.SHUTTING_DOWN)]


def test_a_process_that_stops_keeps_nobody(gateway: Gateway) -> None:
    _, guest = staying(gateway)
    gateway.carriers.stop()
    gateway.line.lose(error_for(errors.NOT_CONNECTED), gateway.now)
    gateway.turn()
    assert guest.take() == [("ended", errors.NOT_CONNECTED)]


def test_who_leaves_while_it_waits_is_not_attached(gateway: Gateway) -> None:
    client, guest = staying(gateway)
    stays, _ = staying(gateway, "stays")
    lose(gateway)
    guest.take()
    client.leave()
    come_back(gateway)
    assert [(one, hello["client_name"]) for one, _, hello in gateway.sent_of()] == [(stays.number, "stays")]


def test_who_goes_while_it_is_attached_again_has_its_will_published(gateway: Gateway) -> None:
    client, guest = staying(gateway)
    lose(gateway)
    come_back(gateway)
    gateway.sent()
    guest.take()
    client.leave(will_within_s=7)
    welcome_again(gateway, client, "c")
    assert gateway.sent_of() == [(client.number, wire.BYE, [7])]
    assert guest.take() == []


def test_a_fault_of_a_guest_that_is_away_costs_it_alone(gateway: Gateway) -> None:
    _, guest = staying(gateway)
    _, other = staying(gateway, "other")

    def fail() -> None:
        raise ZeroDivisionError

    guest.when_away = fail
    lose(gateway)
    assert guest.take() == [("away",), ("ended", errors.INTERNAL)]
    assert other.take() == [("away",)]
