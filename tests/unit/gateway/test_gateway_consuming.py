"""Operations and flows of attached clients: what the carrier sends for them, and what it tells them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from angarium import errors, wire
from angarium.client.protocol.flow_window import FlowWindow
from angarium.errors import error_for
from gateway.asking import AT_CONTROLLER_MAX
from tests.unit.gateway.played_router import FakeGuest, Gateway

if TYPE_CHECKING:
    from gateway.attached import Attached


def open_client() -> tuple[Gateway, FakeGuest, Attached]:
    gateway = Gateway()
    client, guest = gateway.opened()
    return gateway, guest, client


class Told:
    """Writes down what became of an operation."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, int]] = []

    def __call__(self, value: Any, error: errors.AngariumError | None, now: float) -> None:
        self.told.append((value, error.code if error else 0))


def bind(gateway: Gateway, client: Attached, request: int = 1, flow: int = 7, name: str = "q") -> FlowWindow:
    """Bind a flow of a client."""
    window = FlowWindow(10, 1_000)
    client.bind(window, {"name": name}, Told())
    gateway.turn()
    ((_, operation, asked),) = gateway.sent_of()
    assert operation == wire.REQUEST
    assert asked == [request, "flow.bind", {"name": name, "messages": 10, "bytes": 1_000}]
    answer = {
        "flow": flow,
        "name": name,
        "endpoint_id": flow,
        "active": True,
        "partitions": [],
        "access_type": "exclusive",
    }
    gateway.says_to(client.number, wire.ANSWER, [request, 0, answer])
    return window


def bound() -> tuple[Gateway, FakeGuest, Attached, FlowWindow]:
    gateway, guest, client = open_client()
    return gateway, guest, client, bind(gateway, client)


def test_what_the_controller_is_asked_for_waits_until_it_has_time_and_nothing_else_does() -> None:
    """The router lets some thousand questions of a username wait, and of a larger fleet it refused the rest."""
    gateway = Gateway()
    clients = [gateway.opened(f"c{at}")[0] for at in range(AT_CONTROLLER_MAX + 3)]
    gateway.sent()
    told = Told()
    for client in clients:
        client.request("session.change", {}, told)
    clients[-3].leave()
    gateway.turn()
    asked = [number for number, operation, _ in gateway.sent_of() if operation == wire.REQUEST]
    assert asked == [client.number for client in clients[:-3]]
    other, _ = gateway.opened("other")
    other.request("session.keep", {}, Told())
    gateway.turn()
    assert gateway.sent_of() == [(other.number, wire.REQUEST, [1, "session.keep", {}])]
    gateway.says_to(clients[0].number, wire.ANSWER, [1, 0, None])
    assert [number for number, _, _ in gateway.sent_of()] == [clients[-2].number]
    clients[1].leave()
    gateway.turn()
    assert [number for number, operation, _ in gateway.sent_of() if operation == wire.REQUEST] == [
        clients[-1].number
    ]
    for client in clients[2:-3] + clients[-2:]:
        gateway.says_to(client.number, wire.ANSWER, [1, 0, None])
    assert told.told == [(None, 0)] * (len(clients) - 2)


def bring(gateway: Gateway, client: Attached, *positions: int, flow: int = 7) -> None:
    batch = wire.pack([[at, "a", 1, None, None, b""] for at in range(len(positions))])
    part = [0, len(positions), [[one, 1] for one in positions], None, 0, None]
    gateway.says_to(client.number, wire.MESSAGES, [flow, [part]], batch)


def test_operations_and_subscriptions_go_one_after_the_other_in_the_order_of_asking() -> None:
    gateway, guest, client = open_client()
    first, second = Told(), Told()
    client.request("one", {"x": 1}, first)
    client.subscribe([("a", 0)])
    client.request("two", {}, second)
    gateway.turn()
    assert gateway.sent_of() == [(client.number, wire.REQUEST, [1, "one", {"x": 1}])]
    gateway.says_to(client.number, wire.ANSWER, [1, 0, "done"])
    assert first.told == [("done", 0)]
    ((_, operation, (request, _, _)),) = gateway.sent_of()
    assert operation == wire.SUBSCRIBE
    gateway.says_to(client.number, wire.SUBACK, [request, [None]])
    assert guest.take() == [("answered", [0])]
    assert [one[1:] for one in gateway.sent_of()] == [(wire.REQUEST, [1, "two", {}])]
    gateway.says_to(client.number, wire.ANSWER, [1, errors.UNKNOWN_ENDPOINT, "q"])
    assert second.told == [(None, errors.UNKNOWN_ENDPOINT)]


def test_what_a_client_is_done_with_leaves_at_the_end_of_the_turn_in_ranges() -> None:
    gateway, guest, client, window = bound()
    bring(gateway, client, 1, 2, 3, 9)
    assert guest.take() == [("spooled", ["a"] * 4)]
    assert gateway.sent_of() == []
    for position in (1, 2, 3, 9):
        client.accept(window, position)
        window.take(1, 64)
    assert gateway.sent_of() == []
    gateway.turn()
    assert gateway.sent_of() == [(client.number, wire.SETTLE, [7, 0, [[0, 1, 3], [0, 9, 9]]])]
    bring(gateway, client, 10)
    client.accept(window, 10)
    window.take(1, 64)
    gateway.turn()
    assert [one[1] for one in gateway.sent_of()] == [wire.SETTLE, wire.FLOW_CREDIT]


def test_it_leaves_before_the_client_does() -> None:
    gateway, _, client, window = bound()
    bring(gateway, client, 1)
    client.accept(window, 1)
    client.leave([("session.close", {})])
    gateway.turn()
    assert [one[1] for one in gateway.sent_of()] == [wire.SETTLE, wire.REQUEST, wire.BYE]
    bring(gateway, client, 2)  # on its way when it left
    gateway.says_to(client.number, wire.ANSWER, [2, 0, None])


def test_nothing_is_said_of_a_flow_that_has_ended() -> None:
    gateway, guest, client, window = bound()
    bring(gateway, client, 1)
    client.accept(window, 1)
    guest.take()
    gateway.line.says(
        [wire.ATTACHED, client.number.to_bytes(8, "big"), wire.INDICATION, wire.pack([7, 0, 0, None])],
        gateway.now,
    )
    assert guest.take() == [("indicated", wire.FLOW_CLOSED, 0)]
    client.accept(window, 1)
    gateway.turn()
    assert gateway.sent_of() == []


def test_each_flow_of_a_client_is_told_what_is_done_with() -> None:
    gateway, _, client, window = bound()
    other = bind(gateway, client, request=2, flow=8, name="other")
    bring(gateway, client, 1, 2)
    bring(gateway, client, 1, 5, flow=8)
    for one, position in ((window, 1), (other, 1), (window, 2), (other, 5)):
        client.accept(one, position)
    gateway.turn()
    assert [one[2] for one in gateway.sent_of()] == [[7, 0, [[0, 1, 2]]], [8, 0, [[0, 1, 1], [0, 5, 5]]]]


def test_what_was_accepted_is_told_before_a_flow_is_unbound() -> None:
    gateway, _, client, window = bound()
    bring(gateway, client, 1, 2)
    client.accept(window, 1)
    client.unbind(window)
    gateway.turn()
    told = [one[1:] for one in gateway.sent_of()]
    assert told == [(wire.SETTLE, [7, 0, [[0, 1, 1]]]), (wire.REQUEST, [2, "flow.unbind", {"flow": 7}])]
    bring(gateway, client, 3)  # on its way
    gateway.says_to(client.number, wire.ANSWER, [2, 0, None])
    assert window.flow == 0
    client.accept(window, 2)
    gateway.turn()
    assert gateway.sent_of() == []
    bind(gateway, client, flow=9)


def test_a_flow_that_was_refused_may_be_unbound() -> None:
    gateway, guest, client = open_client()
    window, told = FlowWindow(10, 1_000), Told()
    client.bind(window, {"name": "q"}, told)
    client.unbind(window)
    gateway.turn()
    gateway.sent_of()
    gateway.says_to(client.number, wire.ANSWER, [1, errors.UNKNOWN_ENDPOINT, "q"])
    gateway.turn()
    ((_, _, asked),) = gateway.sent_of()
    assert asked == [1, "flow.unbind", {"flow": 0}]
    gateway.says_to(client.number, wire.ANSWER, [1, errors.UNKNOWN_FLOW, "0"])
    assert told.told == [(None, errors.UNKNOWN_ENDPOINT)]
    assert guest.take() == []


def test_what_came_of_a_flow_that_was_to_end_when_the_router_died_is_not_said_of_the_next_one() -> None:
    """The next router gives the same numbers again: of its flow a message would be deleted that nobody has."""
    gateway, guest, client, window = bound()
    guest.when_away = lambda: None
    bring(gateway, client, 1)
    client.unbind(window)
    gateway.turn()
    gateway.line.lose(error_for(errors.NOT_CONNECTED), gateway.now)
    gateway.turn()
    gateway.now += 1.0
    gateway.turn()
    gateway.welcome()
    gateway.turn()
    gateway.sent()
    gateway.welcome_client(client.number, "c", resumed=True)
    bind(gateway, client, name="other")
    bring(gateway, client, 1)
    client.accept(window, 1)
    gateway.turn()
    assert gateway.sent_of() == []
