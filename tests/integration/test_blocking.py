"""The client for threads over real sockets, against the scripted router."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import angarium
from angarium import blocking, errors, wire
from angarium.blocking import flow as threaded_flow
from angarium.blocking import portions
from angarium.blocking import producer as threaded_producer
from angarium.client import connecting
from angarium.client.consuming.flow_options import FlowOptions
from angarium.client.guaranteed_messaging import ConsumeArguments
from tests.integration.scripted_router import LIMIT_S, Router
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from angarium.client.connection.connection import ClientEvent


@pytest.fixture
def client(router: Router) -> Iterator[blocking.Client]:
    with blocking.connect(router.url) as client:
        yield client


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    wait_until(lambda: not set(threading.enumerate()) - before)


def test_a_published_message_reaches_a_subscription(client: blocking.Client) -> None:
    subscription = client.subscribe("a/>")
    client.publish("a/b", b"hello", cos=2)
    message = subscription.receive(LIMIT_S)
    assert (message.topic, message.payload, message.cos) == ("a/b", b"hello", 2)
    assert client.connected
    assert client.node == "test"
    assert client.name
    assert client.inbox.startswith("#P2P/INB/")
    assert client.url.startswith("tcp://")
    assert subscription.filters == ("a/>",)
    assert client.stats["received_messages"] == 1


@pytest.mark.requirement("R3")
def test_messages_keep_their_order_whatever_way_they_are_published(client: blocking.Client) -> None:
    subscription = client.subscribe(">")
    client.publish("t/0", b"0")
    client.publish_many((f"t/{index % 7}", b"%d" % index) for index in range(1, 5000))
    for index in range(5000, 10_000):
        client.publish("t/1", b"%d" % index)
    client.flush()
    seen: list[bytes] = []
    for batch in subscription.batches(100):
        assert len(batch) <= 100
        seen += batch.payloads
        if len(seen) == 10_000:
            break
    assert seen == [b"%d" % index for index in range(10_000)]


def test_messages_of_a_slow_iterable_leave_while_it_waits_for_the_next(
    router: Router, client: blocking.Client
) -> None:
    def messages() -> Iterator[tuple[str, bytes]]:
        for number in range(3):
            time.sleep(portions.PORTION_S * 1.1)
            yield "a", b"%d" % number
            wait_until(lambda number=number: len(router.rows) == number + 1)  # type: ignore[misc]
        raise KeyError("no more")

    with pytest.raises(KeyError, match="no more"):
        client.publish_many(messages())
    client.flush()
    assert [row[5] for row in router.rows] == [b"0", b"1", b"2"]


def test_iterating_ends_when_the_client_is_closed_after_what_came(router: Router) -> None:
    with blocking.connect(router.url) as client:
        subscription = client.subscribe("a")
        client.publish_many([("a", b"%d" % index) for index in range(10)])
    assert [message.payload for message in subscription] == [b"%d" % index for index in range(10)]
    with pytest.raises(angarium.ConnectionLostError, match="60002"):
        subscription.receive()


def test_several_threads_read_each_message_once(client: blocking.Client) -> None:
    subscription = client.subscribe("a")
    seen: list[bytes] = []

    def read() -> None:
        seen.extend(message.payload for message in subscription)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for start in range(0, 3000, 10):
        client.publish_many([("a", b"%d" % index) for index in range(start, start + 10)])
    wait_until(lambda: len(seen) == 3000)
    subscription.close()
    for reader in readers:
        reader.join(LIMIT_S)
        assert not reader.is_alive()
    assert Counter(seen) == Counter(b"%d" % index for index in range(3000))


def test_a_callback_runs_in_a_thread_of_its_own_and_may_use_the_client(client: blocking.Client) -> None:
    seen: list[tuple[bytes, str]] = []

    def callback(message: angarium.Message) -> None:
        client.publish("b", message.payload)
        client.flush()
        seen.append((message.payload, threading.current_thread().name))

    echoes = client.subscribe("b")
    client.subscribe("a", callback=callback)
    client.publish_many([("a", b"1"), ("a", b"2")])
    assert [echoes.receive(LIMIT_S).payload for _ in range(2)] == [b"1", b"2"]
    wait_until(lambda: seen == [(b"1", "angarium callback"), (b"2", "angarium callback")])


def test_a_callback_that_raises_is_logged_and_counted(
    client: blocking.Client, caplog: pytest.LogCaptureFixture
) -> None:
    def callback(message: angarium.Message) -> None:
        raise ValueError(message.payload)

    client.subscribe("a", callback=callback)
    client.publish_many([("a", b"1"), ("a", b"2")])
    wait_until(lambda: client.stats["callback_errors"] == len(caplog.records) == 2)


def test_receive_gives_up_in_time(client: blocking.Client) -> None:
    subscription = client.subscribe("a")
    with pytest.raises(angarium.TimeoutExpiredError):
        subscription.receive(0.01)
    with pytest.raises(angarium.TimeoutExpiredError):
        subscription.receive(0)


@pytest.mark.requirement("R8")
def test_a_slow_application_holds_one_window_and_loses_nothing(router: Router) -> None:
    router.honours_credit = True
    with blocking.connect(router.url, window_messages=100) as client:
        subscription = client.subscribe("a", on_full="stall")
        for index in range(1000):
            client.publish("a", b"%d" % index)
            if index % 10 == 9:
                client.flush()
        wait_until(lambda: client.stats["buffered_messages"] >= 100)
        assert client.stats["buffered_messages"] <= 120
        assert [subscription.receive(LIMIT_S).payload for _ in range(1000)] == [
            b"%d" % n for n in range(1000)
        ]


def test_unsubscribing_throws_away_what_is_unread_and_gives_its_credit_back(client: blocking.Client) -> None:
    subscription = client.subscribe("a")
    client.publish_many([("a", b"")] * 100)
    subscription.receive(LIMIT_S)
    wait_until(lambda: client.stats["received_messages"] == 100)
    subscription.close()
    wait_until(lambda: client.stats["buffered_messages"] == 0)
    assert list(subscription) == []


def test_errors_are_those_of_the_call_that_caused_them(router: Router, client: blocking.Client) -> None:
    router.filter_refusals["denied"] = errors.SUBSCRIBE_DENIED
    with pytest.raises(angarium.ForbiddenError):
        client.subscribe("denied")
    with pytest.raises(angarium.InvalidRequestError, match="40010"):
        client.subscribe("#share/g/a", local_only=True)
    with pytest.raises(angarium.InvalidRequestError, match="40004"):
        client.publish("")
    with pytest.raises(angarium.InvalidRequestError, match="40007"):
        client.publish("a", b"x" * (2 << 20))
    with pytest.raises(angarium.InvalidRequestError, match="40018"):
        client.publish("a", b"", mode="eternal")  # type: ignore[arg-type]
    with pytest.raises(angarium.InvalidRequestError, match="40004"):
        client.publish_many([("a", b""), ("", b"")])
    with pytest.raises(ZeroDivisionError):
        client.publish_many(("a", b"%d" % (1 // (3 - index))) for index in range(5))
    with pytest.raises(angarium.NotFoundError, match="40405"):
        client.subscribe_for("nobody", "a")
    with pytest.raises(angarium.NotFoundError, match="40405"):
        client.unsubscribe_for("nobody", "a")
    router.retires = False
    client.publish("a")
    with pytest.raises(angarium.TimeoutExpiredError):
        client.flush(0.01)


@pytest.mark.parametrize("how", ["publish", "publish_many", "flush"])
def test_without_credit_publishers_wait(router: Router, client: blocking.Client, how: str) -> None:
    router.retires = False
    done = threading.Event()

    def publish() -> None:
        if how == "publish_many":
            client.publish_many([("a", b"")] * 30_000)
        else:
            for _ in range(30_000):
                client.publish("a")
        if how == "flush":
            client.flush()
        done.set()

    thread = threading.Thread(target=publish)
    thread.start()
    wait_until(lambda: client.stats["published_rounds"] == router.rounds)
    assert not done.wait(0.02)
    router.retires = True
    router.send(wire.RETIRED, wire.pack([router.rounds]))
    thread.join(LIMIT_S)
    assert done.is_set()
    client.flush()
    assert len(router.rows) == 30_000


def test_a_request_gets_its_reply(client: blocking.Client) -> None:
    client.subscribe("service", callback=lambda message: client.reply(message, message.payload.upper()))
    assert client.request("service", b"hello").payload == b"HELLO"
    with pytest.raises(angarium.TimeoutExpiredError):
        client.request("nobody", timeout_s=0.01)
    with pytest.raises(angarium.InvalidRequestError):
        client.reply(angarium.Message("a"))


def test_a_closed_client_says_so(router: Router) -> None:
    client = blocking.connect(router.url)
    client.close()
    client.close()
    assert client.closed
    calls: list[Callable[[], object]] = [
        lambda: client.publish("a"),
        lambda: client.publish_many([("a", b"")]),
        lambda: client.subscribe("a"),
        lambda: client.request("a"),
        client.flush,
    ]
    for call in calls:
        with pytest.raises(angarium.ConnectionLostError, match="60002"):
            call()
    assert router.sent_operations() == b"HB"


def test_a_client_that_cannot_connect_leaves_no_thread(router: Router) -> None:
    router.hello_refusals.append(errors.UNAUTHORIZED)
    with pytest.raises(angarium.UnauthorizedError):
        blocking.connect(router.url)
    with pytest.raises(angarium.InvalidRequestError):
        blocking.connect(router.url, local_priority=9)


def test_a_connection_that_comes_back_goes_on(router: Router) -> None:
    events: list[ClientEvent] = []
    with blocking.connect(router.url, on_event=events.append) as client:
        subscription = client.subscribe("a")
        router.drop_connections()
        wait_until(lambda: events[-1].kind == "reconnected")
        client.publish("a", b"x")
        assert subscription.receive(LIMIT_S).payload == b"x"


def test_of_what_is_queued_only_what_the_next_connection_refuses_is_lost(router: Router) -> None:
    with blocking.connect(router.url) as client:
        router.do(router.unbind)
        wait_until(lambda: not client.connected)
        router.max_message_bytes = 100
        for size in (1, 101, 2, 102, 3):
            client.publish("a", bytes(size))
        router.do(router.bind)
        with pytest.raises(angarium.InvalidRequestError, match=r"40007.*101 bytes"):  # the first one
            client.flush()
        client.flush()
        assert [len(row[5]) for row in router.rows] == [1, 2, 3]


def test_a_connection_that_does_not_come_back_ends_everything(router: Router) -> None:
    with blocking.connect(router.url, reconnect=False) as client:
        subscription = client.subscribe("a")
        router.drop_connections()
        with pytest.raises(angarium.ConnectionLostError, match="60001"):
            subscription.receive(LIMIT_S)
        with pytest.raises(angarium.ConnectionLostError, match="60001"):
            client.publish("a")


def test_closing_without_a_connection_is_bounded(router: Router, caplog: pytest.LogCaptureFixture) -> None:
    client = blocking.connect(router.url)
    router.do(router.unbind)
    wait_until(lambda: not client.connected)
    for _ in range(3000):
        client.publish("a")
    client.close(0.05)
    assert "unsent" in caplog.text
    router.do(router.bind)


def test_closing_sends_what_is_queued_behind_a_message_that_was_refused(
    router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    client = blocking.connect(router.url)
    router.do(router.unbind)
    wait_until(lambda: not client.connected)
    router.max_message_bytes, router.rounds, router.retires = 100, 1, False
    for size in (101, *(3_000 * [1])):
        client.publish("a", bytes(size))
    router.do(router.bind)
    wait_until(lambda: client._fault is not None and client.stats["published_rounds"] == 1)
    with ThreadPoolExecutor() as pool:
        closing = pool.submit(client.close, LIMIT_S)
        wait_until(lambda: client._is_closing)
        router.retires = True
        router.send(wire.RETIRED, wire.pack([1]))
        closing.result(LIMIT_S)
    assert len(router.rows) == 3_000
    assert "40007" in caplog.text


@pytest.mark.parametrize("end", ["", "raise SystemExit(3)"])
def test_a_program_that_ends_without_closing_its_client_has_published(router: Router, end: str) -> None:
    program = f"""
from angarium import blocking
client = blocking.connect({router.url!r})
for number in range(1000):
    client.publish("a", b"%d" % number)
{end}
"""
    command = [sys.executable, "-W", "default", "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ended.returncode == (3 if end else 0)
    assert [row[5] for row in router.rows] == [b"%d" % number for number in range(1000)]
    assert "was not closed" in ended.stderr
    assert router.sent_operations()[-1:] == b"B"


def test_all_clients_that_a_program_leaves_open_leave_although_one_of_them_cannot(router: Router) -> None:
    """Its thread is in an `on_event` that does not return: a program that had ended was never over."""
    program = f"""
import threading
from angarium import blocking
from angarium.blocking import leaving
leaving.LEAVE_TIMEOUT_S = 1.0
blocking.connect({router.url!r})._portal.start(threading.Event().wait)
for client in [blocking.connect({router.url!r}) for _ in range(3)]:
    client.publish("a")
"""
    command = [sys.executable, "-W", "error", "-c", program]  # A warning is an error of the first one only.
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ended.returncode == 0
    assert "had no time to close" in ended.stderr
    assert len(router.rows) == router.sent_operations().count(b"B") == 3


def test_a_thread_that_closes_a_client_that_is_closing_waits_until_all_has_left(router: Router) -> None:
    router.rounds, router.retires = 1, False
    client = blocking.connect(router.url)
    for _ in range(3_000):
        client.publish("a")
    wait_until(lambda: client.stats["published_rounds"] == router.rounds)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(client.close, LIMIT_S)
        wait_until(lambda: client._is_closing)
        client.close(0.05)
        assert not first.done()
        second = pool.submit(client.close, LIMIT_S)
        time.sleep(0.05)
        assert not second.done()
        router.retires = True
        router.send(wire.RETIRED, wire.pack([1]))
        second.result(LIMIT_S)
        assert not client.connected
        first.result(LIMIT_S)
    assert len(router.rows) == 3_000


def test_a_client_cannot_be_closed_by_its_own_on_event_and_is_closed_by_others_then(router: Router) -> None:
    caught: list[BaseException] = []
    clients: list[blocking.Client] = []

    def on_event(event: ClientEvent) -> None:
        if event.kind == "notice":
            try:
                clients[0].close()
            except angarium.InvalidRequestError as error:
                caught.append(error)

    with blocking.connect(router.url, on_event=on_event) as client:
        clients.append(client)
        subscription = client.subscribe("a")
        router.send(wire.NOTICE, wire.pack([errors.PUBLISH_DENIED, "a", 1, 1]))
        wait_until(lambda: caught)
        client.publish("a", b"still here")
        assert subscription.receive(LIMIT_S).payload == b"still here"


def test_on_event_cannot_wait_for_its_own_client(router: Router) -> None:
    caught: list[BaseException] = []

    clients: list[blocking.Client] = []

    def on_event(event: ClientEvent) -> None:
        for call in (clients[0].flush, lambda: clients[0].subscribe("a")) if clients else ():
            try:
                call()
            except angarium.AngariumError as error:
                caught.append(error)

    with blocking.connect(router.url, on_event=on_event) as client:
        clients.append(client)
        router.send(wire.NOTICE, wire.pack([errors.PUBLISH_DENIED, "a", 1, 1]))
        wait_until(lambda: len(caught) == 2)
    assert all(isinstance(error, angarium.InvalidRequestError) for error in caught)


def test_both_clients_have_the_same_names() -> None:
    def names(kind: type) -> set[str]:
        classes = [one for one in kind.__mro__ if one.__module__.startswith("angarium.")]
        return {name for one in classes for name in vars(one) if not name.startswith("_")}

    only_async = {"open", "check_open", "validate", "range_reader"}
    only_blocking: set[str] = set()
    assert names(angarium.Client) - only_async == names(blocking.Client) - only_blocking
    for name in SAME_ARGUMENTS:
        ours = inspect.signature(getattr(blocking.Client, name)).parameters
        assert list(inspect.signature(getattr(angarium.Client, name)).parameters) == list(ours), name
    arguments = list(inspect.signature(angarium.connect).parameters)
    assert list(connecting.ConnectArguments.__annotations__) == arguments[1:]
    fields = {field.name for field in dataclasses.fields(FlowOptions)} - {
        "name",
        "callback",
        "browse",
        "range",
    }
    assert set(ConsumeArguments.__annotations__) == fields


def test_both_producers_and_both_flows_have_the_same_names() -> None:
    def names(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert names(threaded_producer.Producer) <= names(angarium.Producer)
    assert names(threaded_producer.Receipt) - {"wait"} <= {*names(angarium.Receipt), "done", "sequence"}
    assert names(threaded_flow.Flow) == names(angarium.Flow)
    for name in ("send", "publish", "publish_many", "flush", "close"):
        ours = inspect.signature(getattr(threaded_producer.Producer, name)).parameters
        assert list(inspect.signature(getattr(angarium.Producer, name)).parameters) == list(ours), name
    for name in ("batches", "receive", "accept", "fail", "reject", "close"):
        ours = inspect.signature(getattr(threaded_flow.Flow, name)).parameters
        assert list(inspect.signature(getattr(angarium.Flow, name)).parameters) == list(ours), name


SAME_ARGUMENTS = (
    "publish",
    "subscribe",
    "request",
    "reply",
    "flush",
    "close",
    "publish_many",
    "subscribe_for",
    "producer",
    "browse",
    "create_queue",
    "create_topic_endpoint",
    "delete_queue",
    "delete_topic_endpoint",
    "add_queue_subscription",
    "remove_queue_subscription",
    "show_queue",
    "show_topic_endpoint",
)
