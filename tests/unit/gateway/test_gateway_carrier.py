"""The carrier of a gateway against a router that the test plays: attaching, asking, publishing, and every end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium import errors, slots, wire
from angarium.errors import error_for
from gateway.attached import FILTERS_WAITING_MAX
from gateway.carrier import (
    ENDINGS_PER_TURN,
    IDLE_S,
    LEAVE_S,
    OUTGOING_FULL,
    WAIT_S,
    WILL_MAX_S,
)
from gateway.gathering import GATHERED_BYTES_MAX, TURN_ROWS_MAX
from tests.unit.gateway.played_router import Gateway

if TYPE_CHECKING:
    from gateway.attached import Attached


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


def filters(*texts: str) -> list[tuple[str, int]]:
    return [(text, wire.SUBSCRIBE_DELIVER_ALWAYS) for text in texts]


def publish(client: Any, *topics: str, payload: bytes = b"x") -> None:
    for topic in topics:
        client.publish(topic, 0, None, None, payload)


# Attaching.


def test_the_first_client_opens_the_carrier_which_says_who_it_is(gateway: Gateway) -> None:
    gateway.attach("c")
    gateway.turn()
    ((operation, header),) = gateway.sent()
    hello = wire.unpack(header)
    assert operation == wire.HELLO
    assert (hello["vpn"], hello["username"]) == ("default", wire.GATEWAY_USERNAME)
    assert hello["behalf"] == {"secret": "inside"}
    assert hello["gateway"] == {"name": "mqtt", "index": 0, "incarnation": 7}
    assert hello["credit"][1] == 32 << 20


def test_a_client_is_attached_with_hello_on_its_behalf(gateway: Gateway) -> None:
    client, guest = gateway.attach("c")
    gateway.turn()
    gateway.sent()
    gateway.welcome()
    ((number, operation, hello),) = gateway.sent_of()
    assert (number, operation, hello["client_name"], hello["sdk"]) == (1, wire.HELLO, "c", "mqtt 5")
    assert hello["behalf"] == {
        "secret": "inside",
        "address": "127.0.0.1",
        "certificate": None,
        "takes_over": True,
        "password_may_be_token": True,
        "needs_password": True,
        "is_foreign_page": False,
        "will": None,
        "clean": False,
    }
    gateway.welcome_client(1, "n/default/1")
    assert guest.take() == [("welcomed", "n/default/1")]
    assert client.name == "n/default/1"
    assert client.rights.queue_units == 100


def test_a_refused_client_is_told_why_and_others_stay(gateway: Gateway) -> None:
    gateway.opened("a")
    other, guest = gateway.attach("b")
    gateway.turn()
    gateway.says_to(other.number, wire.CLOSED, (errors.UNAUTHORIZED, ""))
    assert guest.take() == [("refused", errors.UNAUTHORIZED)]
    assert gateway.carrier.describe()["clients"] == 1


def test_numbers_rise_and_are_used_once_over_all_carriers(gateway: Gateway) -> None:
    first, _ = gateway.opened()
    gateway.line.lose(error_for(errors.NOT_CONNECTED), gateway.now)
    gateway.turn()
    gateway.advance(1.0)
    second, _ = gateway.opened()
    assert second.number > first.number


def test_who_leaves_before_the_welcome_is_dismissed_when_that_comes(gateway: Gateway) -> None:
    gateway.opened("a")
    client, guest = gateway.attach("b")
    gateway.turn()
    client.leave()
    gateway.turn()
    assert [operation for _, operation, _ in gateway.sent_of()] == [wire.HELLO]
    gateway.welcome_client(client.number, "b")
    assert gateway.sent_of() == [(client.number, wire.BYE, [])]
    assert guest.take() == []


def test_who_leaves_while_it_waits_is_not_heard_of(gateway: Gateway) -> None:
    client, guest = gateway.attach()
    gateway.turn()
    client.leave()
    gateway.welcome()
    assert gateway.sent_of() == []
    assert guest.take() == []


def test_no_carrier_within_the_wait_refuses_the_client(gateway: Gateway) -> None:
    _, guest = gateway.attach()
    gateway.turn()
    gateway.line.lose(error_for(errors.NOT_CONNECTED, "nobody answers"), gateway.now)
    tries = len(gateway.lines)
    for _ in range(1_010):  # the clock is looked at now and then
        gateway.now += WAIT_S / 1_000
        gateway.turn()
        if not gateway.line.closed:
            gateway.line.lose(error_for(errors.NOT_CONNECTED, "nobody answers"), gateway.now)
    assert guest.take() == [("refused", errors.VPN_UNAVAILABLE)]
    assert 5 <= len(gateway.lines) - tries <= 15
    before = len(gateway.lines)
    gateway.now += 10.0
    gateway.turn()
    assert len(gateway.lines) == before, "nobody waits, so nobody connects"


@pytest.mark.parametrize("code", [errors.VPN_NOT_ALLOWED, errors.VPN_UNAVAILABLE])
def test_a_message_vpn_that_cannot_be_joined_refuses_at_once(gateway: Gateway, code: int) -> None:
    _, guest = gateway.attach()
    gateway.turn()
    gateway.says(wire.CLOSED, (code, ""))
    assert guest.take() == [("refused", code)]


def test_a_node_that_starts_is_waited_for(gateway: Gateway) -> None:
    client, guest = gateway.attach()
    gateway.turn()
    gateway.says(wire.CLOSED, (errors.SHUTTING_DOWN, "not configured yet"))
    assert guest.take() == []
    gateway.advance(0.2)
    gateway.welcome()
    gateway.welcome_client(client.number)
    assert guest.take() == [("welcomed", "c")]


def test_hellos_wait_while_the_socket_is_full(gateway: Gateway) -> None:
    gateway.opened()
    gateway.line.is_full = True
    clients = [gateway.attach(str(number)) for number in range(OUTGOING_FULL + 100)]
    gateway.turn()
    assert len(gateway.carrier._waiting) == 100
    gateway.line.drain()
    gateway.turn()
    assert len(gateway.sent_of()) == len(clients)


def test_whose_token_names_another_message_vpn_is_attached_there_once_more(gateway: Gateway) -> None:
    gateway.opened("other")
    client, guest = gateway.attach("c")
    gateway.turn()
    first = client.number
    gateway.line.says(
        [wire.ATTACHED, first.to_bytes(8, "big"), wire.CLOSED, wire.pack((errors.OTHER_VPN, "b"))], 100.0
    )
    assert gateway.carriers.tick(gateway.now) <= gateway.now + 1.5
    there = gateway.lines[1]
    assert wire.unpack(there.sent[0][1])["vpn"] == "b"
    assert client.vpn == "b"
    there.says([wire.WELCOME, wire.pack(gateway._welcome)], gateway.now)
    gateway.carriers.tick(gateway.now)
    hello = there.sent[-1]
    assert (wire.unpack(hello[3])["vpn"], hello[1]) == ("b", client.number.to_bytes(8, "big"))
    assert client.number > first
    assert guest.take() == []
    there.says([wire.ATTACHED, hello[1], wire.CLOSED, wire.pack((errors.OTHER_VPN, "c"))], gateway.now)
    assert guest.take() == [("refused", errors.OTHER_VPN)]


# Asking.


def test_answers_come_for_each_filter(gateway: Gateway) -> None:
    client, guest = gateway.opened()
    client.subscribe(filters("a", "b/>", "c"))
    gateway.turn()
    ((number, operation, (request, asked, name)),) = gateway.sent_of()
    assert (number, operation, name) == (client.number, wire.SUBSCRIBE, None)
    assert asked == [["a", 1], ["b/>", 1], ["c", 1]]
    gateway.says_to(number, wire.SUBACK, (request, [None, (errors.SUBSCRIBE_DENIED, "b"), None]))
    assert guest.take() == [("answered", [0, errors.SUBSCRIBE_DENIED, 0])]


def test_many_filters_leave_in_pieces_one_at_a_time(gateway: Gateway) -> None:
    client, guest = gateway.opened()
    client.subscribe(filters(*(f"t/{number}" for number in range(40))))
    client.unsubscribe(filters("x"))
    pieces = []
    for _ in range(4):
        gateway.turn()
        ((_, operation, (request, asked, _)),) = gateway.sent_of()
        pieces.append((operation, len(asked)))
        gateway.says_to(client.number, wire.SUBACK, (request, [None] * len(asked)))
    assert pieces == [(wire.SUBSCRIBE, 16), (wire.SUBSCRIBE, 16), (wire.SUBSCRIBE, 8), (wire.UNSUBSCRIBE, 1)]
    assert guest.take() == [("answered", [0] * 40), ("answered", [0])]


def test_who_asks_for_too_much_without_waiting_is_ended(gateway: Gateway) -> None:
    client, guest = gateway.opened()
    client.subscribe(filters(*map(str, range(FILTERS_WAITING_MAX))))
    gateway.turn()
    gateway.sent()
    client.subscribe(filters("one more"))
    assert guest.take() == [], "nothing is told while it calls"
    gateway.turn()
    assert guest.take() == [("ended", errors.CONTROL_RATE_EXCEEDED)]
    assert gateway.sent_of() == [(client.number, wire.BYE, [WILL_MAX_S])]


def test_an_answer_to_something_else_ends_the_carrier(gateway: Gateway) -> None:
    client, guest = gateway.opened()
    client.subscribe(filters("a"))
    gateway.turn()
    gateway.says_to(client.number, wire.SUBACK, (99, [None]))
    assert guest.take() == [("ended", errors.MALFORMED_FRAME)]


def test_a_guest_may_call_whatever_it_likes_while_it_is_told(gateway: Gateway) -> None:
    client, guest = gateway.opened()
    others: list[Any] = []

    def again() -> None:
        if len(guest.told) == 1:
            client.subscribe(filters("b"))
            publish(client, "t")
            others.append(gateway.attach("other"))
        else:
            client.leave()

    guest.then = again
    client.subscribe(filters("a"))
    for _ in range(2):
        gateway.turn()
        asked = [frames for frames in gateway.sent_of() if frames[1] == wire.SUBSCRIBE]
        gateway.says_to(client.number, wire.SUBACK, (asked[0][2][0], [None]))
    assert guest.take() == [("answered", [0]), ("answered", [0])]
    assert (client.number, wire.BYE, []) in gateway.sent_of()
    gateway.welcome_client(others[0][0].number, "other")
    assert others[0][1].take() == [("welcomed", "other")]


@pytest.mark.parametrize("at", ["welcomed", "answered", "ended"])
def test_a_fault_of_ours_costs_the_client_that_provoked_it_only(gateway: Gateway, at: str) -> None:
    _, other = gateway.opened("other")
    client, guest = gateway.attach("c")

    def fail() -> None:
        if guest.told[-1][0] == at:
            raise RuntimeError

    guest.then = fail
    gateway.turn()
    gateway.welcome_client(client.number)
    client.subscribe(filters("a"))
    gateway.turn()
    for number, operation, head in gateway.sent_of():
        if operation == wire.SUBSCRIBE:
            gateway.says_to(number, wire.SUBACK, (head[0], [None]))
    if at == "ended":
        gateway.says_to(client.number, wire.CLOSED, (errors.TAKEN_OVER, ""))
    gateway.turn()
    assert guest.take()[-1] == ("ended", errors.TAKEN_OVER if at == "ended" else errors.INTERNAL)
    assert other.take() == []
    assert gateway.carrier.describe()["clients"] == 1


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("subscribe"), st.integers(0, 2), st.integers(1, 40)),
        st.tuples(st.just("unsubscribe"), st.integers(0, 2), st.integers(1, 40)),
        st.tuples(st.just("answer"), st.integers(0, 2), st.integers(0, 3)),
        st.tuples(st.just("leave"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("turn"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@given(_STEPS)
def test_one_request_of_a_client_is_under_way_and_answers_come_in_order(
    steps: list[tuple[str, int, int]],
) -> None:
    """Whatever is asked and answered when, and whoever leaves: each code tells of which filter it is."""
    gateway = Gateway()
    clients = [gateway.opened(str(number)) for number in range(3)]
    places = {client.number: place for place, (client, _) in enumerate(clients)}
    expected: list[list[list[int]]] = [[], [], []]
    under_way: list[Any] = [None, None, None]
    next_filter = 0

    def look() -> None:
        gateway.turn()
        for number, operation, header in gateway.sent_of():
            place = places[number]
            if operation == wire.BYE:
                under_way[place] = None
                places.pop(number)
            else:
                assert under_way[place] is None, "two requests of one client"
                assert 0 < len(header[1]) <= 16
                under_way[place] = header

    def answer(client: Attached) -> None:
        place = places[client.number]
        request, asked, _ = under_way[place]
        under_way[place] = None
        gateway.says_to(client.number, wire.SUBACK, (request, [(40000 + int(text), "") for text, _ in asked]))

    for step, place, count in steps:
        client, _ = clients[place]
        if step == "answer" and under_way[place] is not None and client.number in places:
            request, asked, _ = under_way[place]
            under_way[place] = None
            gateway.says_to(
                client.number, wire.SUBACK, (request, [(40000 + int(text), "") for text, _ in asked])
            )
        elif step in ("subscribe", "unsubscribe"):
            texts = range(next_filter, next_filter + count)
            next_filter += count
            getattr(client, step)(filters(*map(str, texts)))
            if client.state.name == "OPEN":
                expected[place].append([40000 + text for text in texts])
        elif step == "leave":
            client.leave()
        if step in ("turn", "answer"):
            look()
    look()
    while any(under_way):
        for (client, _), asked in zip(clients, [*under_way], strict=True):
            if asked is not None:
                answer(client)
        look()
    for (client, guest), codes in zip(clients, expected, strict=True):
        told = [what[1] for what in guest.take()]
        assert told == codes[: len(told)]
        assert len(told) == len(codes) or client.number not in places


# Publishing.


def test_a_turn_of_many_clients_leaves_in_one_round_in_order(gateway: Gateway) -> None:
    a, _ = gateway.opened("a")
    b, _ = gateway.opened("b")
    gateway.sent()
    publish(a, "1")
    publish(b, "2", "3")
    publish(a, "4")
    gateway.turn()
    assert gateway.carrier.describe()["published"] == 4
    assert gateway.published() == [["1", "2", "3", "4"]]


def test_a_lone_message_leaves_in_the_turn_that_brought_it_even_if_its_client_left(gateway: Gateway) -> None:
    client, _ = gateway.opened()
    gateway.sent()
    publish(client, "goodbye")
    client.leave()
    gateway.turn()
    assert [frames[0] for frames in gateway.sent()] == [wire.PUBLISH, wire.ATTACHED]


def test_what_a_client_published_goes_before_what_it_then_asks_for(gateway: Gateway) -> None:
    client, _ = gateway.opened()
    gateway.sent()
    publish(client, "own")
    client.subscribe(filters("own"))
    gateway.turn()
    assert [frames[0] for frames in gateway.sent()] == [wire.PUBLISH, wire.ATTACHED]


def test_one_turn_sends_a_bounded_number_of_rows_and_wants_the_next_at_once(gateway: Gateway) -> None:
    client, _ = gateway.opened()
    gateway.sent()
    publish(client, *map(str, range(5_000)))
    found: list[str] = []
    while gateway.carrier.gathering.rows:
        wake = gateway.turn()
        rows = [topic for topics in gateway.published() for topic in topics]
        assert len(rows) < TURN_ROWS_MAX + 600
        assert not gateway.carrier.gathering.rows or wake <= gateway.now
        found += rows
    assert found == [*map(str, range(5_000))]


def test_who_leaves_does_so_behind_what_he_has_published() -> None:
    """His will is published then, and is not to come before it."""
    gateway = Gateway(rounds=1)
    (client, _), (other, _) = gateway.opened(), gateway.opened("other")
    gateway.sent()
    publish(other, "0")
    gateway.turn()
    publish(client, "1")
    client.leave(will_within_s=0)
    publish(other, "2")
    assert gateway.turn() > gateway.now, "nobody waits for nothing"
    assert [frames[0] for frames in gateway.sent()] == [wire.PUBLISH]
    gateway.says(wire.RETIRED, (1,))
    gateway.turn()
    assert [frames[0] for frames in gateway.sent()] == [wire.PUBLISH, wire.ATTACHED]


def test_without_credit_rows_wait_and_beyond_the_limit_none_is_taken() -> None:
    gateway = Gateway(rounds=1)
    client, _ = gateway.opened()
    gateway.sent()
    publish(client, "1")
    gateway.turn()
    publish(client, "2")
    assert gateway.turn() > gateway.now
    assert gateway.published() == [["1"]]
    count = 0
    while client.has_room():
        publish(client, f"{count}", payload=bytes(10_000))
        count += 1
    assert count * 10_000 <= GATHERED_BYTES_MAX + 10_000
    gateway.says(wire.RETIRED, (1,))
    gateway.turn()
    assert gateway.published()[0][0] == "2"


def test_rows_are_cut_by_the_table_that_came_last() -> None:
    gateway = Gateway(workers=1)
    client, _ = gateway.opened()
    gateway.sent()
    topics = [*map(str, range(2_000))]
    publish(client, *topics)
    gateway.says(wire.TABLE, (4, slots.slot_table(4)))
    gateway.turn()
    heads = [wire.unpack(frames[1]) for frames in gateway.line.sent if frames[0] == wire.PUBLISH]
    assert heads
    assert {head[1] for head in heads} == {4}
    assert len(heads[0][3]) == 4
    found = [topic for some in gateway.published() for topic in some]
    assert found == topics[: len(found)]


def test_rows_for_plain_subscriptions_are_passed_on_and_credit_is_given_back(gateway: Gateway) -> None:
    gateway.opened()
    gateway.sent()
    batch = wire.pack([[0, "a", 0, None, None, bytes(20 << 20)]])
    gateway.says(wire.DELIVER, (wire.DELIVER_DISCARD_INDICATION, [(1, None)], 5), batch)
    gateway.turn()
    ((vpn, rows),) = gateway.rows
    assert (vpn, [row[1] for row in rows]) == ("default", ["a"])
    ((operation, header),) = gateway.sent()
    assert operation == wire.CREDIT
    assert wire.unpack(header)[1] == (32 << 20) + len(batch)
    assert gateway.carrier.describe()["discarded"] == 5


def test_credit_is_given_back_when_the_last_row_has_been_passed_on(gateway: Gateway) -> None:
    gateway.opened()
    gateway.sent()
    gateway.passes_on = False
    batch = wire.pack([[0, "a", 0, None, None, bytes(12 << 20)]])
    for _ in range(2):
        gateway.says(wire.DELIVER, (0, [(1, None)], 0), batch)
        gateway.turn()
    assert gateway.sent() == []
    gateway.carriers.passed_on("default")
    gateway.turn()
    ((operation, header),) = gateway.sent()
    assert operation == wire.CREDIT
    assert wire.unpack(header)[1] == (32 << 20) + 2 * len(batch)


def test_rows_of_a_share_go_to_their_client_in_order_of_the_round(gateway: Gateway) -> None:
    client, guest = gateway.opened()
    batches = [wire.pack([[index, f"{index}", 0, None, None, b""]]) for index in (1, 0)]
    head = (wire.DELIVER_UNSORTED, [(1, "g"), (1, "g")], 0)
    gateway.says_to(client.number, wire.DELIVER, head, *batches)
    assert guest.take() == [("delivered", ["0", "1"], "g")]
    assert gateway.rows == []


def test_notices_are_counted_for_the_process(gateway: Gateway) -> None:
    gateway.opened()
    gateway.says(wire.NOTICE, (errors.SHARD_UNAVAILABLE, "", 3, 0))
    assert gateway.carrier.describe()["refused"] == {str(errors.SHARD_UNAVAILABLE): 3}


def test_who_asked_about_a_message_is_told_why_it_reaches_nobody(gateway: Gateway) -> None:
    """It was told that nobody had subscribed to the topic, whatever the router had said."""
    client, _ = gateway.opened()
    told: list[int] = []
    client.report("t", told.append)
    client.publish("t", 0, None, None, b"")
    gateway.turn()
    gateway.says(wire.NOTICE, (errors.MATCHING_WORK_EXCEEDED, "t", 1, 1))
    assert told == [errors.MATCHING_WORK_EXCEEDED]


def test_pings_of_a_client_are_answered(gateway: Gateway) -> None:
    client, _ = gateway.opened()
    gateway.sent()
    gateway.says_to(client.number, wire.PING, (42,))
    assert gateway.sent_of() == [(client.number, wire.PONG, [42])]


# Rights.


def test_a_publish_is_judged_like_by_a_worker(gateway: Gateway) -> None:
    client, _ = gateway.opened(rights=[True, ["no/>"], 100, True, True, True])
    judged = {
        "yes": 0,
        "no/way": errors.PUBLISH_DENIED,
        "#P2P/INB/n/x": 0,
        "#share/g/x": errors.RESERVED_TOPIC,
        "": errors.INVALID_TOPIC,
        "x" * 251: errors.INVALID_TOPIC,
    }
    assert {topic: client.refusal_of(topic, 10) for topic in judged} == judged
    assert client.refusal_of("yes", (1 << 20) + 1) == errors.MESSAGE_TOO_LARGE


def test_changed_rights_count_at_once_and_are_one_object_for_all(gateway: Gateway) -> None:
    a, _ = gateway.opened("a")
    b, _ = gateway.opened("b")
    c, _ = gateway.opened("c")
    assert a.rights is b.rights is c.rights
    gateway.says(wire.RIGHTS, ([False, ["may"], 7, False, False, False], [a.number, c.number, 999]))
    assert a.rights is c.rights is not b.rights
    assert [a.refusal_of(topic, 1) for topic in ("may", "not")] == [0, errors.PUBLISH_DENIED]
    assert b.refusal_of("not", 1) == 0
    assert a.rights.queue_units == 7


# Counting.


def counted(gateway: Gateway) -> list[list[Any]]:
    return [wire.unpack(frames[1])[0] for frames in gateway.sent() if frames[0] == wire.COUNTED]


def test_what_changed_is_told_every_two_seconds_in_bounded_frames(gateway: Gateway) -> None:
    clients = [gateway.opened(str(number))[0] for number in range(501)]
    for client in clients:
        client.count("received")
    gateway.advance(0.1)
    assert sorted(map(len, counted(gateway))) == [1, 500]
    clients[0].count("received", 2)
    clients[0].queued = (3, 400)
    gateway.advance(1.0)
    assert counted(gateway) == []
    gateway.advance(1.0)
    assert counted(gateway) == [[[clients[0].number, {"received": 3}, 3, 400]]]
    clients[0].queued = (3, 400)
    gateway.advance(3.0)
    assert counted(gateway) == [], "nothing has changed"


def test_the_last_counters_of_a_client_come_before_its_bye(gateway: Gateway) -> None:
    client, _ = gateway.opened()
    client.count("discard.x", 5)
    gateway.advance(0.1)
    gateway.sent()
    client.count("discard.x")
    client.leave()
    gateway.turn()
    tell, bye = gateway.sent()
    assert (tell[0], wire.unpack(tell[1])) == (wire.COUNTED, [[[client.number, {"discard.x": 6}, 0, 0]]])
    assert (bye[0], bye[2]) == (wire.ATTACHED, wire.BYE)


# Ends.


@pytest.mark.parametrize(("code", "told"), [(errors.TAKEN_OVER, errors.TAKEN_OVER), (0, 0)])
def test_a_client_that_the_node_ends_is_told_why(gateway: Gateway, code: int, told: int) -> None:
    client, guest = gateway.opened()
    client.subscribe(filters("a"))
    gateway.turn()
    gateway.says_to(client.number, wire.CLOSED, (code, ""))
    assert guest.take() == [("ended", told)]
    client.subscribe(filters("b"))
    publish(client, "c")
    client.leave()
    gateway.sent()
    gateway.turn()
    assert gateway.sent() == []


def test_all_are_told_when_the_carrier_is_lost_and_some_in_each_turn(gateway: Gateway) -> None:
    clients = [gateway.opened(str(number)) for number in range(ENDINGS_PER_TURN + 1)]
    gateway.line.lose(error_for(errors.NOT_CONNECTED), gateway.now)
    assert not clients[0][0].has_room()
    gateway.turn()
    assert [len(guest.take()) for _, guest in clients] == [1] * ENDINGS_PER_TURN + [0]
    clients[-1][0].leave()
    gateway.turn()
    assert clients[-1][1].take() == [], "it has left before it was told"


def test_who_has_not_been_let_in_is_tried_again_when_the_carrier_is_lost(gateway: Gateway) -> None:
    gateway.opened("a")
    client, guest = gateway.attach("b")
    gateway.turn()
    first = client.number
    gateway.line.lose(error_for(errors.NOT_CONNECTED), gateway.now)
    gateway.advance(0.2)
    gateway.welcome()
    assert client.number > first
    gateway.welcome_client(client.number, "b")
    assert guest.take() == [("welcomed", "b")]


def test_messages_under_way_when_it_is_lost_are_counted(gateway: Gateway) -> None:
    client, _ = gateway.opened()
    publish(client, "a", "b")
    gateway.turn()
    publish(client, "c")
    gateway.line.lose(error_for(errors.NOT_CONNECTED), gateway.now)
    assert gateway.carrier.describe()["lost"] == 3


def test_a_router_that_is_silent_is_given_up(gateway: Gateway) -> None:
    _, guest = gateway.opened()
    for _ in range(10):
        gateway.now += 1.0
        gateway.turn()
    assert guest.take() == [("ended", errors.KEEPALIVE_TIMEOUT)]
    assert gateway.line.closed


def test_a_router_that_says_what_no_router_says_is_given_up(gateway: Gateway) -> None:
    _, guest = gateway.opened()
    gateway.line.says([wire.ATTACHED, b"\0", wire.WELCOME, b""], gateway.now)
    gateway.turn()
    assert guest.take() == [("ended", errors.MALFORMED_FRAME)]


def test_it_closes_a_while_after_its_last_client_and_opens_again_for_the_next(gateway: Gateway) -> None:
    client, _ = gateway.opened()
    gateway.advance(2 * IDLE_S)
    client.leave()
    gateway.advance(IDLE_S - 1)
    assert wire.BYE not in [frames[0] for frames in gateway.sent()]
    gateway.advance(2)
    assert wire.BYE in [frames[0] for frames in gateway.sent()]
    gateway.says(wire.CLOSED, (0, "bye"))
    assert gateway.line.closed
    gateway.opened("next")
    assert len(gateway.lines) == 2


def test_a_bye_without_an_answer_is_not_waited_for(gateway: Gateway) -> None:
    client, _ = gateway.opened()
    client.leave()
    gateway.advance(IDLE_S + 1)
    gateway.advance(LEAVE_S)
    assert gateway.carriers.is_gone


def test_stopping_lets_nobody_in_and_leaves_behind_what_was_published(gateway: Gateway) -> None:
    client, guest = gateway.opened()
    gateway.sent()
    publish(client, "last")
    client.leave()
    gateway.carriers.stop()
    gateway.turn()
    _, late = gateway.attach("late")
    gateway.advance(0.1)
    assert [frames[0] for frames in gateway.sent()] == [wire.PUBLISH, wire.ATTACHED, wire.BYE]
    assert late.take() == [("refused", errors.SHUTTING_DOWN)]
    assert guest.take() == []
    assert not gateway.carriers.is_gone
    gateway.says(wire.CLOSED, (0, "bye"))
    gateway.advance(0.1)
    assert gateway.carriers.is_gone


def test_each_message_vpn_has_a_carrier_of_its_own(gateway: Gateway) -> None:
    gateway.attach()
    gateway.attach(vpn="a")
    gateway.carriers.tick(gateway.now)
    vpns = [wire.unpack(line.sent[0][1])["vpn"] for line in gateway.lines]
    assert vpns == ["default", "a"]
