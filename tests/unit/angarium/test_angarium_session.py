"""The client's half of the protocol, frame by frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium import errors, wire
from angarium.client.protocol import session
from angarium.client.protocol.events import (
    Answered,
    Closed,
    Delivered,
    Noticed,
    Opened,
    Retired,
    TableChanged,
    Welcome,
)
from angarium.client.protocol.session import ClientSession, EgressWindow, Hello, State
from angarium.message import Row, pack_rows
from angarium.slots import Round, slot_table
from tests.welcome import welcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from angarium.client.protocol.events import Event

WELCOME = welcome(2, token=b"t", epoch=3, rounds=4, bytes=1000, keepalive_ms=3000, inbox="#P2P/INB/x")


class Client:
    """A session with the frames it sent, checked after every step."""

    def __init__(self, hello: Hello | None = None, window: EgressWindow | None = None) -> None:
        self.window = window or EgressWindow(100, 10_000)
        self.session = ClientSession(hello or Hello(), self.window, 0.0)
        self.now = 0.0

    def sent(self) -> list[tuple[bytes, Any]]:
        """Give what was sent since the last call: operation and header."""
        outgoing = self.session.take_outgoing()
        frames = [(frames[0], wire.unpack(frames[1])) for frames in outgoing]
        outgoing.clear()
        return frames

    def hear(self, operation: bytes, header: Any, *batches: bytes) -> list[Event]:
        return self.hear_frames([operation, wire.pack(header), *batches])

    def hear_frames(self, frames: list[bytes]) -> list[Event]:
        events = self.session.receive(frames, self.now)
        self.session.validate()
        return events

    def publish(self, size: int = 10, *, flush: bool = False, rows: int = 1) -> int:
        return self.session.publish(Round(3, [(0, rows)], [b"b" * size], rows, size), flush=flush)

    def open(self, **changes: Any) -> Client:
        assert type(self.hear(wire.WELCOME, {**WELCOME, **changes})[0]) is Opened
        self.sent()
        return self


def rows(*indices: int, topic: str = "a") -> list[Row]:
    return [(index, topic, 0, None, None, b"%d" % index) for index in indices]


def deliver(
    client: Client, *parts: tuple[list[Row], str | None], flags: int = 0, dropped: int = 0
) -> Delivered:
    header = [flags, [[len(some), share] for some, share in parts], dropped]
    (event,) = client.hear(wire.DELIVER, header, *(pack_rows(some) for some, _ in parts))
    assert type(event) is Delivered, event
    return event


def error_of(events: list[Event]) -> int:
    """Give the code of the one Closed."""
    (event,) = events
    assert type(event) is Closed, event
    assert event.error is not None
    return event.error.code


@pytest.fixture
def client() -> Iterator[Client]:
    client = Client().open()
    yield client
    client.session.validate()


# Greeting.


def test_hello_says_who_comes_and_grants_the_window() -> None:
    client = Client(Hello(username="u", password="p", local_priority=2, no_local=True), EgressWindow(7, 70))
    ((operation, header),) = client.sent()
    assert operation == wire.HELLO
    assert header == {
        "version": 1,
        "sdk": session.SDK_NAME,
        "leaving": True,
        "vpn": "default",
        "username": "u",
        "password": "p",
        "client_name": "",
        "keepalive_ms": 3000,
        "local_priority": 2,
        "network_priority": 1,
        "no_local": True,
        "unroutable": True,
        "credit": [7, 70],
    }


def test_a_token_travels_in_hello_and_a_missing_password_does_not() -> None:
    ((_, header),) = Client(Hello(token=b"t", client_name="me")).sent()
    assert header["token"] == b"t"
    assert header["client_name"] == "me"
    assert "password" not in header


def test_welcome_opens_the_session() -> None:
    client = Client()
    (event,) = client.hear(wire.WELCOME, WELCOME)
    assert isinstance(event, Opened)
    assert isinstance(event.welcome, Welcome)
    assert (event.welcome.client_name, event.welcome.round_bytes) == ("me", 1000)
    assert client.session.state is State.OPEN


def test_a_welcome_with_fields_of_a_later_version_is_fine() -> None:
    Client().open(colour="red")


def test_a_refusal_closes_with_the_code_of_the_router() -> None:
    assert error_of(Client().hear(wire.CLOSED, [errors.UNAUTHORIZED, "x"])) == errors.UNAUTHORIZED


@pytest.mark.parametrize(
    "change",
    [
        {"slots": b"short"},
        {"slots": "x" * 1024},
        {"epoch": 0},
        {"rounds": 0},
        {"bytes": 0},
        {"keepalive_ms": 0},
        {"token": None},
        {"inbox": 5},
        {"max_batch_bytes": -1},
    ],
)
def test_a_welcome_with_a_fault_closes(change: dict[str, Any]) -> None:
    assert error_of(Client().hear(wire.WELCOME, {**WELCOME, **change})) == errors.MALFORMED_FRAME


@pytest.mark.parametrize(
    "operation", [wire.DELIVER, wire.RETIRED, wire.SUBACK, wire.TABLE, wire.NOTICE, b"?", b""]
)
def test_before_welcome_nothing_else_is_understood(operation: bytes) -> None:
    assert error_of(Client().hear(operation, [])) == errors.UNKNOWN_OPERATION


def test_a_second_welcome_is_not_understood(client: Client) -> None:
    assert error_of(client.hear(wire.WELCOME, WELCOME)) == errors.UNKNOWN_OPERATION


# Publishing.


def test_rounds_are_numbered_and_carry_epoch_parts_and_batches(client: Client) -> None:
    batch = Round(3, [(0, 2), (1, 1)], [b"first", b"second"], 3, 11)
    assert client.session.publish(batch, flush=True) == 1
    assert client.publish() == 2
    first = client.session.take_outgoing()[0]
    assert first[0] == wire.PUBLISH
    assert wire.unpack(first[1]) == [1, 3, True, [[0, 2], [1, 1]]]
    assert first[2:] == [b"first", b"second"]


def test_there_is_no_publishing_before_welcome_and_after_the_end() -> None:
    client = Client()
    assert not client.session.can_publish()
    client.open()
    assert client.session.can_publish()
    client.hear(wire.CLOSED, [errors.SHUTTING_DOWN, ""])
    assert not client.session.can_publish()


def test_rounds_in_flight_are_bounded_by_number(client: Client) -> None:
    for _ in range(4):
        assert client.session.can_publish()
        client.publish()
    assert not client.session.can_publish()
    with pytest.raises(AssertionError):
        client.publish()
    assert client.hear(wire.RETIRED, [1]) == [Retired(1)]
    assert client.session.can_publish()


def test_rounds_in_flight_are_bounded_by_bytes_with_one_overdraft(client: Client) -> None:
    client.publish(999)
    assert client.session.can_publish()
    client.publish(5000)
    assert not client.session.can_publish()
    client.hear(wire.RETIRED, [1])
    assert not client.session.can_publish()
    client.hear(wire.RETIRED, [2])
    assert client.session.can_publish()


def test_retirement_is_cumulative_and_may_come_twice(client: Client) -> None:
    for _ in range(3):
        client.publish(rows=5)
    assert client.session.unretired_rows() == 15
    client.hear(wire.RETIRED, [2])
    client.hear(wire.RETIRED, [2])
    client.hear(wire.RETIRED, [1])
    assert client.session.unretired_rows() == 5
    assert client.session.is_retired(2)
    assert not client.session.is_retired(3)
    client.hear(wire.RETIRED, [3])
    assert client.session.is_retired(3)


def test_retirement_of_a_round_that_was_never_sent_closes(client: Client) -> None:
    client.publish()
    assert error_of(client.hear(wire.RETIRED, [2])) == errors.MALFORMED_FRAME


def flushes(client: Client) -> list[bool]:
    return [header[2] for operation, header in client.sent() if operation == wire.PUBLISH]


def test_a_publisher_asks_to_be_told_at_half_of_the_rounds(client: Client) -> None:
    for _ in range(4):
        client.publish(1)
    assert flushes(client) == [False, True, False, True]


def test_a_publisher_asks_to_be_told_at_half_of_the_bytes() -> None:
    client = Client().open(rounds=100)
    for _ in range(5):
        client.publish(199)
    assert flushes(client) == [False, False, True, False, False]


def test_a_window_of_one_round_always_asks() -> None:
    client = Client().open(rounds=1)
    client.publish()
    assert flushes(client) == [True]


# Receiving.


def test_a_delivery_brings_its_rows(client: Client) -> None:
    event = deliver(client, (rows(0, 1), None), (rows(1, 5), "#share/g/a"))
    assert [(one.rows, one.share) for one in event.deliveries] == [
        (rows(0, 1), None),
        (rows(1, 5), "#share/g/a"),
    ]
    assert event.deliveries[0].size_bytes == len(pack_rows(rows(0, 1)))
    assert event.dropped == 0
    assert (client.window.held_messages, client.window.held_bytes) == (
        4,
        len(pack_rows(rows(0, 1))) + len(pack_rows(rows(1, 5))),
    )


@pytest.mark.requirement("R3")
def test_rows_of_several_workers_are_merged_by_index(client: Client) -> None:
    parts = [(rows(1, 4, 6, topic="x"), None), (rows(0, 5, topic="y"), None), (rows(2, 3, topic="z"), None)]
    event = deliver(client, *parts, flags=wire.DELIVER_UNSORTED)
    (delivery,) = event.deliveries
    assert [row[0] for row in delivery.rows] == list(range(7))
    assert delivery.size_bytes == sum(len(pack_rows(some)) for some, _ in parts)


@pytest.mark.requirement("R3")
@given(st.lists(st.sampled_from([None, "#share/a/>", "#share/b/>"]), max_size=60), st.data())
def test_merging_keeps_every_row_of_every_share_in_order(
    shares: list[str | None], data: st.DataObject
) -> None:
    client = Client().open()
    parts: dict[tuple[int, str | None], list[Row]] = {}
    for index, share in enumerate(shares):
        parts.setdefault((data.draw(st.integers(0, 3)), share), []).extend(rows(index))
    event = deliver(
        client, *((some, share) for (_, share), some in parts.items()), flags=wire.DELIVER_UNSORTED
    )
    assert len({one.share for one in event.deliveries}) == len(event.deliveries)
    for one in event.deliveries:
        assert [row[0] for row in one.rows] == [i for i, share in enumerate(shares) if share == one.share]


@pytest.mark.requirement("R45")
def test_the_discard_indication_marks_the_first_row_of_all(client: Client) -> None:
    flags = wire.DELIVER_DISCARD_INDICATION | wire.DELIVER_UNSORTED
    event = deliver(
        client, (rows(3, 4), "#share/g/a"), (rows(2), None), (rows(1), None), flags=flags, dropped=17
    )
    assert event.dropped == 17
    heads = [one.head for one in event.deliveries]
    assert heads == [None, (1, "a", 0, None, None, b"1")]
    assert heads[1] is event.deliveries[1].rows[0]


def test_a_delivery_of_nothing_is_nothing(client: Client) -> None:
    event = deliver(client, ([], None), flags=wire.DELIVER_DISCARD_INDICATION, dropped=3)
    assert (event.deliveries, event.dropped) == ([], 3)


@pytest.mark.parametrize(
    ("header", "batches"),
    [
        ([0, [[1, None]], 0], []),
        ([0, [[1, None]], 0], [pack_rows(rows(0)), pack_rows(rows(1))]),
        ([0, [[2, None]], 0], [pack_rows(rows(0))]),
        ([0, [[1, 5]], 0], [pack_rows(rows(0))]),
        ([0, [[1, None]], -1], [pack_rows(rows(0))]),
        ([0, [[-1, None]], 0], [pack_rows(rows(0))]),
        ([0, [[1, None]]], [pack_rows(rows(0))]),
        ([0, [[1, None]], 0], [b"\xc1"]),
        ([0, [[1, None]], 0], [b""]),
        ([0, [[1, None]], 0], [wire.pack([[0, "a", 0, None, None]])]),
        ([0, None, 0], []),
        (None, []),
    ],
)
def test_a_delivery_with_a_fault_closes(client: Client, header: Any, batches: list[bytes]) -> None:
    assert error_of(client.hear(wire.DELIVER, header, *batches)) == errors.MALFORMED_FRAME


# Egress credit.


def test_credit_is_renewed_when_half_of_the_window_was_consumed(client: Client) -> None:
    deliver(client, (rows(*range(60)), None))
    client.window.release(49, 0)
    assert not client.session.renew_credit()
    client.window.release(1, 0)
    assert client.session.renew_credit()
    assert client.sent() == [(wire.CREDIT, [150, 10_000])]
    assert not client.session.renew_credit()


def test_credit_in_bytes_is_renewed_too(client: Client) -> None:
    big: list[Row] = [(0, "a", 0, None, None, b"x" * 6000)]
    deliver(client, (big, None))
    size = len(pack_rows(big))
    client.window.release(1, size)
    assert client.session.renew_credit()
    assert client.sent() == [(wire.CREDIT, [101, 10_000 + size])]


def test_a_slow_application_gets_no_more_than_its_window_and_all_that_it_was_sent(client: Client) -> None:
    granted, sent, consumed = 100, 0, 0
    while consumed < 1000:
        while sent < granted:
            deliver(client, (rows(*range(7)), None))
            sent += 7
        assert client.window.held_messages < 100 + 7
        client.window.release(1, client.window.held_bytes // client.window.held_messages)
        consumed += 1
        client.session.renew_credit()
        for operation, header in client.sent():
            assert operation == wire.CREDIT
            assert header[0] > granted
            granted = header[0]
        assert granted <= consumed + 100 + 7


def test_what_an_earlier_connection_brought_counts_against_the_window() -> None:
    window = EgressWindow(100, 10_000)
    deliver(Client(window=window).open(), (rows(*range(80)), None))
    held_bytes = window.held_bytes
    client = Client(window=window)
    ((_, hello),) = client.sent()
    assert hello["credit"] == [20, 10_000 - held_bytes]
    client.open()
    window.release(80, held_bytes)
    assert client.session.renew_credit()
    assert client.sent() == [(wire.CREDIT, [100, 10_000])]


def test_a_window_that_is_full_grants_nothing_and_recovers() -> None:
    window = EgressWindow(10, 10_000)
    window.hold(25, 0)
    client = Client(window=window)
    assert client.sent()[0][1]["credit"][0] == 0
    client.open()
    window.release(20, 0)
    assert client.session.renew_credit()
    assert client.sent() == [(wire.CREDIT, [5, 10_000])]


def test_a_router_that_sends_far_beyond_the_credit_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_BATCH_ROWS", 50)
    client = Client().open()
    events: list[Event] = []
    delivered = 0
    while not (events and type(events[0]) is Closed):
        assert delivered <= 100 + 100 + 50 + 10
        events = client.hear(wire.DELIVER, [0, [[10, None]], 0], pack_rows(rows(*range(10))))
        delivered += 10
    assert error_of(events) == errors.MALFORMED_FRAME


# Subscribing.


def test_requests_are_numbered_and_answered_in_the_order_asked(client: Client) -> None:
    first = client.session.subscribe([("a", 0), ("b/>", 1)])
    second = client.session.unsubscribe([("a", 0)], "other")
    assert client.sent() == [
        (wire.SUBSCRIBE, [first, [["a", 0], ["b/>", 1]], None]),
        (wire.UNSUBSCRIBE, [second, [["a", 0]], "other"]),
    ]
    (event,) = client.hear(wire.SUBACK, [second, [[errors.UNKNOWN_CLIENT_NAME, "other"]]])
    assert isinstance(event, Answered)
    assert event.request == second
    assert isinstance(event.results[0], errors.NotFoundError)
    assert client.hear(wire.SUBACK, [first, [None, None]]) == [Answered(first, [None, None])]


@pytest.mark.parametrize(
    "answer", [[1, []], [1, [None, None]], [2, [None]], [1, [5]], [1, [["x", 5]]], [1, None], [-1, []]]
)
def test_an_answer_that_fits_no_request_closes(client: Client, answer: Any) -> None:
    client.session.subscribe([("a", 0)])
    assert error_of(client.hear(wire.SUBACK, answer)) == errors.MALFORMED_FRAME


def test_requests_in_flight_are_bounded(client: Client) -> None:
    while client.session.can_request():
        client.session.subscribe([("a", 0)])
    assert len(client.sent()) == session.REQUESTS_PENDING_MAX
    client.hear(wire.SUBACK, [1, [None]])
    assert client.session.can_request()


# What the router tells.


def test_a_notice_tells_what_was_refused(client: Client) -> None:
    assert client.hear(wire.NOTICE, [errors.PUBLISH_DENIED, "a/b", 3, 1]) == [
        Noticed(errors.PUBLISH_DENIED, "a/b", 3, 1)
    ]


def test_a_new_table_is_told(client: Client) -> None:
    assert client.hear(wire.TABLE, [4, slot_table(3)]) == [TableChanged(4, slot_table(3))]


# Keepalive.


def test_a_ping_is_answered(client: Client) -> None:
    assert client.hear(wire.PING, [7]) == []
    assert client.sent() == [(wire.PONG, [7])]


def test_a_silent_session_pings_every_interval(client: Client) -> None:
    pings = []
    for step in range(1, 13):
        client.now = step * 1.0
        client.hear(wire.PONG, [0])
        client.session.tick(client.now)
        pings += [header[0] for operation, header in client.sent() if operation == wire.PING]
    assert pings == [1, 2, 3, 4]


def test_a_silent_router_is_given_up_after_three_intervals(client: Client) -> None:
    step = client.session.tick_interval_s
    assert step <= 1.5
    now = 0.0
    while now + step <= 9.0:
        now += step
        assert client.session.tick(now) == []
    assert error_of(client.session.tick(now + step)) == errors.KEEPALIVE_TIMEOUT


def test_a_router_of_which_a_large_message_comes_is_not_silent(client: Client) -> None:
    step = client.session.tick_interval_s
    for count in range(1, 20):
        client.session.heard((count - 1) * step)
        assert client.session.tick(count * step) == []
    client.session.heard(0.0)  # what came before is no news
    assert client.session.tick(20 * step) == []
    for count in range(21, 26):
        closed = client.session.tick(count * step)
    assert error_of(closed) == errors.KEEPALIVE_TIMEOUT


def test_the_interval_is_what_the_router_says() -> None:
    client = Client().open(keepalive_ms=100)
    client.session.tick(0.1)
    assert client.sent() == [(wire.PING, [1])]
    for now in (0.15, 0.2, 0.25, 0.3):
        assert client.session.tick(now) == []
    assert error_of(client.session.tick(0.35)) == errors.KEEPALIVE_TIMEOUT


def test_an_application_that_slept_itself_does_not_blame_the_router(client: Client) -> None:
    assert client.session.tick(1.0) == []
    assert client.session.tick(60.0) == []
    assert client.session.tick(61.5) == []


def test_whoever_greets_waits_for_its_caller_to_give_up() -> None:
    client = Client()
    client.sent()
    client.session.tick(3.0)
    assert client.sent() == []


def test_a_router_that_asks_and_does_not_listen_is_given_up(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "OUTGOING_MAX", 10)
    for _ in range(10):
        assert client.hear(wire.PING, [1]) == []
    assert error_of(client.hear(wire.PING, [1])) == errors.KEEPALIVE_TIMEOUT


# The end.


def test_bye_is_answered_by_the_end_without_error(client: Client) -> None:
    client.session.leave()
    assert client.sent() == [(wire.BYE, [])]
    assert not client.session.can_publish()
    deliver(client, (rows(0), None))
    assert client.hear(wire.CLOSED, [0, "bye"]) == [Closed(None)]
    assert client.hear(wire.CLOSED, [0, "bye"]) == []


def test_a_leaving_session_still_renews_credit_so_that_everything_comes(client: Client) -> None:
    deliver(client, (rows(*range(60)), None))
    client.session.leave()
    client.window.release(60, client.window.held_bytes)
    assert client.session.renew_credit()


def test_after_the_end_nothing_is_said_or_heard(client: Client) -> None:
    client.publish()
    assert (
        error_of(client.hear(wire.CLOSED, [errors.DISCONNECTED_BY_OPERATOR, ""]))
        == errors.DISCONNECTED_BY_OPERATOR
    )
    assert client.sent() == []
    client.window.hold(90, 0)
    client.window.release(90, 0)
    assert not client.session.renew_credit()
    client.session.leave()
    assert client.session.tick(100.0) == []
    assert client.session.lose(errors.error_for(errors.NOT_CONNECTED)) == []
    assert client.hear(wire.PING, [1]) == []
    assert client.sent() == []


def test_a_lost_connection_is_an_end_with_its_reason(client: Client) -> None:
    assert (
        error_of(client.session.lose(errors.error_for(errors.NOT_CONNECTED, "gone"))) == errors.NOT_CONNECTED
    )


# Whatever comes.


@pytest.mark.parametrize(
    "frames", [[], [wire.PING], [b""], [b"", b""], [wire.PING, b"", b""], [wire.CLOSED, b"x" * (1 << 21)]]
)
def test_odd_numbers_and_sizes_of_frames_close(client: Client, frames: list[bytes]) -> None:
    assert error_of(client.hear_frames(frames)) in (errors.MALFORMED_FRAME, errors.UNKNOWN_OPERATION)


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats()
    | st.text(max_size=3)
    | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
).map(wire.pack)
OPERATIONS = st.sampled_from([wire.WELCOME, *(bytes((byte,)) for byte in b"kKADRNTXHPS?")])


@given(
    st.lists(
        st.tuples(OPERATIONS, ANYTHING | st.binary(max_size=20), st.lists(st.binary(max_size=9), max_size=2))
    )
)
def test_whatever_a_router_sends_gives_events_or_one_end(
    messages: list[tuple[bytes, bytes, list[bytes]]],
) -> None:
    client = Client().open()
    client.publish()
    client.session.subscribe([("a", 0)])
    ended = False
    for operation, header, batches in messages:
        for event in client.hear_frames([operation, header, *batches]):
            assert not ended
            ended = type(event) is Closed
