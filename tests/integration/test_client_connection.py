"""Connecting, losing the connection and closing, over real sockets, against the scripted router."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest

import angarium
from angarium import errors, wire
from angarium.client.connection import connection
from angarium.client.connection.connection import BACKOFF_SEVERAL_S
from angarium.message import pack_rows
from tests.integration.scripted_router import LIMIT_S, Router, run
from tests.waiting import until
from tests.welcome import welcome

if TYPE_CHECKING:
    from angarium.client.connection.connection import ClientEvent


# Connecting.


def test_connect_may_be_awaited_and_the_client_entered(router: Router) -> None:
    async def test() -> None:
        client = await angarium.connect([router.url], client_name="me")
        async with client as same:
            assert same is client
            assert (client.name, client.url, client.node) == ("me", router.url, "test")
            assert client.connected
        assert not client.connected
        assert client.closed
        await client.close()

    run(test())


def test_a_client_without_a_name_gets_one(router: Router) -> None:
    async def test() -> None:
        async with angarium.connect(router.url) as client:
            assert client.name.startswith("made-up-")
            assert client.inbox.startswith("#P2P/INB/")

    run(test())


@pytest.mark.parametrize("code", [errors.UNAUTHORIZED, errors.CLIENT_NAME_IN_USE, errors.TOO_MANY_CLIENTS])
def test_a_refusal_is_the_error_of_connect_at_once(router: Router, code: int) -> None:
    async def test() -> None:
        router.hello_refusals.append(code)
        with pytest.raises(angarium.AngariumError) as caught:
            await angarium.connect(router.url)
        assert caught.value.code == code

    run(test())
    assert router.sent_operations() == b"H"


def test_a_router_that_is_still_starting_is_asked_again(router: Router) -> None:
    async def test() -> None:
        router.hello_refusals.extend([errors.SHUTTING_DOWN, errors.CONNECT_RATE_EXCEEDED])
        async with angarium.connect(router.url):
            assert router.sent_operations() == b"HHH"

    run(test())


def test_connect_waits_for_a_router_that_comes_later(router: Router) -> None:
    async def test() -> None:
        router.do(router.unbind)
        connecting = asyncio.ensure_future(_client(router.url))
        await asyncio.sleep(0.1)
        assert not connecting.done()
        router.do(router.bind)
        await (await connecting).close()

    run(test())


async def _client(url: str) -> angarium.Client:
    return await angarium.connect(url)


@pytest.mark.slow
def test_connect_gives_up_when_nobody_answers(router: Router) -> None:
    async def test() -> None:
        with pytest.raises(angarium.ConnectionLostError, match="60003"):
            await angarium.connect("tcp://127.0.0.1:1", timeout_s=0.2)
        router.hello_refusals.append(0)
        with pytest.raises(angarium.ConnectionLostError, match="no answer"):
            await angarium.connect(router.url, timeout_s=0.2)

    run(test())


def test_a_connect_that_is_cancelled_leaves_nothing(router: Router) -> None:
    async def test() -> None:
        tasks = asyncio.all_tasks()
        router.hello_refusals.append(0)
        connecting = asyncio.ensure_future(_client(router.url))
        await until(lambda: router.sent_operations() == b"H")
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        assert asyncio.all_tasks() == tasks

    run(test())


@pytest.mark.parametrize("answer", ["welcome", "refusal", "end"])
def test_a_connect_that_is_cancelled_just_when_it_is_answered_leaves_nothing(
    router: Router, answer: str
) -> None:
    router.hello_refusals.append(0)  # silence: the test answers, in the step of the loop in which it cancels

    async def test() -> None:
        client = angarium.Client(angarium.connect(router.url)._options)
        connection = client._connection
        connecting = asyncio.ensure_future(client._connect())
        await until(lambda: router.sent_operations() == b"H")
        connecting.cancel()
        if answer == "end":
            connection._on_lost("the connection was closed")
        elif answer == "refusal":
            connection._on_message([wire.CLOSED, wire.pack([errors.UNAUTHORIZED, ""])])
        else:
            connection._on_message([wire.WELCOME, wire.pack(welcome())])
        with pytest.raises(asyncio.CancelledError):
            await connecting
        assert not client.connected
        assert connection._transport is None
        connection.validate()

    run(test())


def test_an_address_that_cannot_be_is_an_error() -> None:
    with pytest.raises(angarium.InvalidArgumentError, match="nonsense"):
        angarium.connect("nonsense")


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": []},
        {"local_priority": 0},
        {"network_priority": 5},
        {"timeout_s": 0},
        {"window_messages": 0},
        {"window_bytes": -1},
    ],
)
def test_arguments_out_of_range_are_refused_before_anything_happens(wrong: dict[str, Any]) -> None:
    with pytest.raises(angarium.InvalidRequestError, match="40018"):
        angarium.connect(**{"url": "tcp://127.0.0.1:1", **wrong})


@pytest.mark.requirement("R265")
def test_a_client_of_two_hosts_does_not_wait_for_the_one_from_which_nothing_comes(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listener whose backlog is full answers no SYN, as a host without power does."""
    monkeypatch.setattr(connection, "ATTEMPT_TIMEOUT_S", 10 * LIMIT_S)

    async def test() -> None:
        with contextlib.ExitStack() as stack:
            silent = stack.enter_context(socket.socket())
            silent.bind(("127.0.0.1", 0))
            address = silent.getsockname()
            events: list[ClientEvent] = []
            urls = [f"tcp://127.0.0.1:{address[1]}", router.url]
            async with angarium.connect(urls, timeout_s=LIMIT_S, on_event=events.append) as client:
                assert client.url == router.url
                silent.listen(0)
                for _ in range(2):  # one that is taken, and one more than that waits for
                    filler = stack.enter_context(socket.socket())
                    filler.setblocking(False)
                    filler.connect_ex(address)
                router.drop_connections()
                await until(lambda: [event.kind for event in events][-1:] == ["reconnected"], "being back")
                assert client.url == router.url

    run(test())


def test_of_several_addresses_the_first_that_answers_is_used(router: Router) -> None:
    async def test() -> None:
        async with angarium.connect(["tcp://127.0.0.1:1", router.url]) as client:
            assert client.url == router.url

    run(test())


def test_with_several_addresses_the_next_try_is_never_far_behind_what_it_took_so_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A host that takes over is there after half a second: nobody waits as long again to see that."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def test() -> None:
        with pytest.raises(errors.AngariumError):
            await angarium.connect(["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"], timeout_s=0.5)

    monkeypatch.setattr("angarium.client.connection.connection.asyncio.sleep", sleep)
    run(test())
    assert max(waits) <= BACKOFF_SEVERAL_S
    for number, wait_s in enumerate(waits[:12]):
        assert wait_s <= 0.07 + sum(waits[:number]) / 2, waits[:12]


def test_hello_carries_what_connect_was_given(router: Router) -> None:
    said: dict[str, Any] = {
        "vpn": "v",
        "username": "u",
        "password": "p",
        "client_name": "me",
        "local_priority": 2,
        "network_priority": 3,
        "no_local": True,
        "keepalive_ms": 2000,
    }

    async def test() -> None:
        async with angarium.connect(router.url, window_messages=5, window_bytes=500, **said):
            hello = router.last_hello()
            assert {name: hello[name] for name in said} == said
            assert hello["credit"] == [5, 500]

    run(test())


def test_a_loop_that_cannot_watch_sockets_is_refused_with_one_that_can() -> None:
    """The default loop of Windows is of this kind."""

    class Proactor(asyncio.SelectorEventLoop):
        add_reader = asyncio.AbstractEventLoop.add_reader

    async def test() -> None:
        with pytest.raises(
            ValueError, match=r"Proactor cannot watch sockets \(use asyncio.SelectorEventLoop"
        ):
            await angarium.connect()

    with asyncio.Runner(loop_factory=Proactor) as runner:
        runner.run(test())


# Losing the connection.


@pytest.mark.requirement("R6")
def test_a_lost_connection_comes_back_with_its_name_and_all_subscriptions(router: Router) -> None:
    events: list[ClientEvent] = []

    async def test() -> None:
        async with angarium.connect(router.url, client_name="me", on_event=events.append) as client:
            one = await client.subscribe("a/>")
            two = await client.subscribe(["#share/g/b", "c"], deliver_always=True)
            await client.subscribe("local", local_only=True)
            await client.subscribe_for("me", "managed")
            router.drop_connections()
            await until(lambda: events[-1].kind == "reconnected")
            hello = router.last_hello()
            assert (hello["token"], hello["client_name"]) == (b"token of me", "me")
            (peer,) = router.peers.values()
            assert list(peer.filters) == [("a/>", 0), ("#share/g/b", 1), ("c", 1)]
            await client.publish_many([("a/1", b"1"), ("c", b"2")])
            assert (await one.receive(LIMIT_S)).payload == b"1"
            assert (await two.receive(LIMIT_S)).payload == b"2"
            assert client.stats["reconnects"] == 1
            client._validate()

    run(test())
    assert [event.kind for event in events] == ["connected", "disconnected", "reconnected"]


def test_what_is_asked_of_a_client_without_connection_waits_for_the_next(router: Router) -> None:
    async def test() -> None:
        async with angarium.connect(router.url) as client:
            kept = await client.subscribe("kept")
            router.hello_refusals.append(errors.TOO_MANY_CLIENTS)
            router.do(router.unbind)
            await until(lambda: not client.connected)
            subscribing = asyncio.ensure_future(client.subscribe("a"))
            publishing = asyncio.ensure_future(client.publish_many([("b", b"")] * 10_000))
            with pytest.raises(angarium.ConnectionLostError, match="60001"):
                await client.subscribe_for("x", "a")
            router.do(router.bind)
            await kept.close()
            await subscribing
            await publishing
            await client.flush()
            (peer,) = router.peers.values()
            assert list(peer.filters) == [("a", 0)]

    run(test())
    assert len(router.rows) == 10_000


def test_messages_in_flight_when_the_connection_is_lost_are_counted_and_told_to_flush(router: Router) -> None:
    router.retires = False

    async def test() -> None:
        async with angarium.connect(router.url) as client:
            await client.publish_many([("a", b"")] * 10)
            flushing = asyncio.ensure_future(client.flush())
            await until(lambda: len(router.rows) == 10)
            router.drop_connections()
            with pytest.raises(angarium.ConnectionLostError, match="10 messages"):
                await flushing
            assert client.stats["lost_messages"] == 10
            await until(lambda: client.connected)
            await client.publish("a")
            await until(lambda: len(router.rows) == 11)
            router.drop_connections()
            await until(lambda: client.stats["reconnects"] == 2)
            router.retires = True
            await client.publish("a")
            with pytest.raises(angarium.ConnectionLostError, match="1 messages"):
                await client.flush()
            await client.flush()

    run(test())


@pytest.mark.slow
def test_a_silent_router_is_left(router: Router) -> None:
    router.answers_pings = False
    events: list[ClientEvent] = []

    async def test() -> None:
        async with angarium.connect(router.url, keepalive_ms=100, on_event=events.append):
            await until(lambda: len(events) >= 3)

    run(test())
    assert [event.kind for event in events[:3]] == ["connected", "disconnected", "reconnected"]
    assert events[1].code == errors.KEEPALIVE_TIMEOUT


@pytest.mark.slow
def test_an_idle_connection_stays(router: Router) -> None:
    events: list[ClientEvent] = []

    async def test() -> None:
        async with angarium.connect(router.url, keepalive_ms=500, on_event=events.append):
            await until(lambda: [frames[0] for frames in router.seen].count(wire.PING) >= 5)

    run(test())
    assert [event.kind for event in events] == ["connected"]


def test_a_client_that_an_operator_disconnected_stays_away(router: Router) -> None:
    events: list[ClientEvent] = []

    async def test() -> None:
        async with angarium.connect(router.url, on_event=events.append) as client:
            subscription = await client.subscribe("a")
            router.retires = False
            calls = [
                asyncio.ensure_future(client.publish_many([("b", b"")] * 100_000)),
                asyncio.ensure_future(client.request("nobody")),
                asyncio.ensure_future(subscription.receive()),
            ]
            await until(lambda: client.stats["published_rounds"] == router.rounds)
            router.send(wire.CLOSED, wire.pack([errors.DISCONNECTED_BY_OPERATOR, "go"]))
            for call in (*calls, client.publish("a"), client.subscribe("c"), client.flush()):
                with pytest.raises(angarium.AngariumError, match="50306"):
                    await call
            assert client.closed

    run(test())
    assert [event.kind for event in events] == ["connected", "disconnected", "failed"]


def test_a_node_that_ends_each_session_at_once_is_left_alone_for_longer_and_longer(router: Router) -> None:
    """It may be a frame that this client cannot read: it came again hundreds of times in some seconds."""

    async def test() -> None:
        async with angarium.connect(router.url) as client:
            began = time.monotonic()
            for _ in range(5):
                await until(lambda: client.connected)
                router.send(wire.RETIRED, wire.pack(["x"]))
                await until(lambda: not client.connected)
            await until(lambda: client.connected)
            assert time.monotonic() - began > 0.025 + 0.05 + 0.1 + 0.2 + 0.4

    run(test())


def test_a_pause_after_sessions_that_ended_at_once_is_no_part_of_retry_for(router: Router) -> None:
    """Its pauses are longer than that soon, and it gave up without asking anybody."""

    async def test() -> None:
        async with angarium.connect(router.url, retry_for_s=0.1) as client:
            for _ in range(4):
                router.send(wire.RETIRED, wire.pack(["x"]))
                await until(lambda: not client.connected)
                await until(lambda: client.connected or client.closed)
            assert client.connected

    run(test())


def test_without_reconnect_a_lost_connection_is_the_end(router: Router) -> None:
    async def test() -> None:
        async with angarium.connect(router.url, reconnect=False) as client:
            reading = await client.subscribe("b")
            router.drop_connections()
            with pytest.raises(angarium.ConnectionLostError, match="60001"):
                await reading.receive()
            assert client.closed

    run(test())


def test_a_refused_reconnect_is_the_end(router: Router) -> None:
    events: list[ClientEvent] = []

    async def test() -> None:
        async with angarium.connect(router.url, on_event=events.append) as client:
            router.hello_refusals.extend([errors.CLIENT_NAME_IN_USE, errors.UNAUTHORIZED])
            router.drop_connections()
            await until(lambda: client.closed)

    run(test())
    assert [(event.kind, event.code) for event in events][-1] == ("failed", errors.UNAUTHORIZED)


def test_a_subscription_that_is_refused_after_a_reconnect_ends_with_the_error(router: Router) -> None:
    async def test() -> None:
        async with angarium.connect(router.url) as client:
            denied, kept = await client.subscribe(["a", "b"]), await client.subscribe("b")
            router.filter_refusals["a"] = errors.SUBSCRIBE_DENIED
            router.drop_connections()
            with pytest.raises(angarium.ForbiddenError):
                await denied.receive()
            await client.publish("b", b"x")
            assert (await kept.receive(LIMIT_S)).payload == b"x"
            assert client.stats["subscriptions"] == 1
            client._validate()

    run(test())


def test_closing_a_stalled_subscription_that_was_refused_gives_its_window_back(router: Router) -> None:
    router.honours_credit = True

    async def test() -> None:
        async with angarium.connect(router.url, window_messages=10) as client:
            denied = await client.subscribe("a", on_full="stall")
            kept = await client.subscribe("b")
            await client.publish_many([("a", b"")] * 10)
            await until(lambda: denied.buffered == 10)
            router.filter_refusals["a"] = errors.SUBSCRIBE_DENIED
            router.drop_connections()
            await until(lambda: client.stats["subscriptions"] == 1)
            await denied.close()
            assert denied.buffered == 0
            await client.publish("b", b"x")
            assert (await kept.receive(LIMIT_S)).payload == b"x"

    run(test())


def test_a_subscription_that_does_not_get_what_is_retained_ends_gives_its_window_back_and_is_told(
    router: Router,
) -> None:
    router.honours_credit = True
    events: list[ClientEvent] = []

    async def test() -> None:
        async with angarium.connect(router.url, window_messages=10, on_event=events.append) as client:
            beginning = await client.subscribe("a", retained=True, on_full="stall")
            other = await client.subscribe("b")
            await until(lambda: wire.REQUEST in router.sent_operations())
            await client.publish_many([("a", b"%d" % index) for index in range(10)])
            await until(lambda: client.stats["received_messages"] == 10)
            router.send(wire.ANSWER, wire.pack([1, errors.SPOOL_DAMAGED, "a page is torn"]))
            assert [(await beginning.receive(LIMIT_S)).payload for _ in range(10)] == [
                b"%d" % n for n in range(10)
            ]
            with pytest.raises(angarium.UnavailableError, match="a page is torn"):
                await beginning.receive(LIMIT_S)
            assert [(one.kind, one.code) for one in events[1:]] == [("notice", errors.SPOOL_DAMAGED)]
            await client.publish_many([("a", b"")] * 20)
            await client.publish("b", b"x")
            assert (await other.receive(LIMIT_S)).payload == b"x"
            assert client.stats["subscriptions"] == 1
            client._validate()

    run(test())


def test_a_subscription_that_waited_for_a_connection_reads_what_is_retained_once(router: Router) -> None:
    async def test() -> None:
        async with angarium.connect(router.url) as client:
            router.do(router.unbind)
            await until(lambda: not client.connected)
            subscribing = asyncio.ensure_future(client.subscribe("a", retained=True))
            await asyncio.sleep(0)
            router.do(router.bind)
            subscription = await subscribing
            page = pack_rows([(0, "a", wire.FLAG_RETAIN, None, None, b"kept")])
            await until(lambda: wire.REQUEST in router.sent_operations())
            router.send(wire.ANSWER, wire.pack([1, 0, [1, None]]), page)
            assert (await subscription.receive(LIMIT_S)).payload == b"kept"
            await client.publish("a", b"live")
            assert (await subscription.receive(LIMIT_S)).payload == b"live"
            assert router.sent_operations().count(wire.REQUEST) == 1

    run(test())


def test_a_request_under_way_fails_with_its_connection_and_the_next_one_works(router: Router) -> None:
    async def test() -> None:
        async with angarium.connect(router.url) as client:

            async def serve(message: angarium.Message) -> None:
                if message.payload:
                    await client.reply(message, b"ok")

            await client.subscribe("service", callback=serve)
            assert (await client.request("service", b"x")).payload == b"ok"
            waiting = asyncio.ensure_future(client.request("service", timeout_s=LIMIT_S))
            await until(lambda: len(router.rows) == 3)
            router.inbox_serial += 1
            router.drop_connections()
            with pytest.raises(angarium.ConnectionLostError, match="60001"):
                await waiting
            assert (await client.request("service", b"x")).payload == b"ok"
            client._validate()

    run(test())


def test_what_an_application_holds_counts_after_a_reconnect_too(router: Router) -> None:
    router.honours_credit = True

    async def test() -> None:
        async with angarium.connect(router.url, window_messages=50) as client:
            subscription = await client.subscribe("a", on_full="stall")
            await client.publish_many([("a", b"1")] * 40)
            await until(lambda: client.stats["buffered_messages"] == 40)
            router.drop_connections()
            await until(lambda: client.stats["reconnects"] == 1)
            assert router.last_hello()["credit"][0] == 10
            for _ in range(40):
                await subscription.receive(0)
            await client.publish_many([("a", b"2")] * 100)
            for _ in range(100):
                assert (await subscription.receive(LIMIT_S)).payload == b"2"

    run(test())


def test_a_table_that_changed_meanwhile_cuts_what_waits(router: Router) -> None:
    async def test() -> None:
        async with angarium.connect(router.url) as client:
            router.retires, router.rounds = False, 1
            router.drop_connections()
            await until(lambda: client.stats["reconnects"] == 1)
            await client.publish_many([(f"t/{index}", b"") for index in range(50)])
            await client.publish_many([(f"t/{index}", b"") for index in range(50)])
            await until(lambda: client.stats["published_rounds"] == 1)
            router.do(router.unbind)
            await until(lambda: not client.connected)
            router.workers, router.retires = 3, True
            router.seen.clear()
            router.do(router.bind)
            with pytest.raises(angarium.ConnectionLostError, match="50 messages"):
                await client.flush()

    run(test())
    (head,) = [wire.unpack(frames[1]) for frames in router.seen if frames[0] == wire.PUBLISH and frames[2:]]
    assert [worker for worker, _ in head[3]] == [0, 1, 2]


@pytest.mark.parametrize(
    "frames", [[b"?", b""], [wire.DELIVER, b"\xc1"], [wire.RETIRED, wire.pack([99])], [b"x"]]
)
def test_a_router_that_talks_nonsense_is_left_and_tried_again(router: Router, frames: list[bytes]) -> None:
    events: list[ClientEvent] = []

    async def test() -> None:
        async with angarium.connect(router.url, on_event=events.append):
            router.send(*frames)
            await until(lambda: events[-1].kind == "reconnected")

    run(test())
    assert events[1].code // 100 == 400


# Closing.


def test_closing_sends_what_is_gathered_and_reads_what_comes(router: Router) -> None:
    async def test() -> None:
        client = await angarium.connect(router.url)
        subscription = await client.subscribe("a")
        for index in range(10):
            await client.publish("a", b"%d" % index)
        await client.close()
        assert [message.payload async for message in subscription] == [b"%d" % index for index in range(10)]
        with pytest.raises(angarium.ConnectionLostError, match="60002"):
            await client.publish("a")
        with pytest.raises(angarium.ConnectionLostError, match="60002"):
            await client.subscribe("a")
        with pytest.raises(angarium.ConnectionLostError, match="60002"):
            await client.request("a")

    run(test())
    assert len(router.rows) == 10


def test_who_closes_a_client_that_is_closing_waits_until_all_has_left(router: Router) -> None:
    """As at the end of `async with`, when another task closes the client already."""
    router.retires = False

    async def test() -> None:
        async with angarium.connect(router.url) as client:
            stuck = asyncio.ensure_future(client.publish_many([("a", b"")] * 100_000))
            await until(lambda: client.stats["published_rounds"] == router.rounds)
            first = asyncio.ensure_future(client.close(LIMIT_S))
            await until(lambda: client.closed)
            with pytest.raises(angarium.ConnectionLostError, match="60002"):
                await stuck
            second = asyncio.ensure_future(client.close(LIMIT_S))
            await asyncio.sleep(0.05)
            assert not first.done()
            assert not second.done()
            await client.close(0.05)
            assert not first.done()
            router.send(wire.RETIRED, wire.pack([router.rounds]))
            router.retires = True
            await second
            assert not client.connected
            await first

    run(test())


def test_closing_is_bounded_and_says_what_it_could_not_do(
    router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    """What was lost with an earlier connection was told then."""
    router.retires = False

    async def test() -> None:
        client = await angarium.connect(router.url)
        await client.publish_many([("a", b"")] * 10)
        await until(lambda: len(router.rows) == 10)
        router.drop_connections()
        await until(lambda: client.stats["reconnects"] == 1)
        before = router.rounds
        stuck = asyncio.ensure_future(client.publish_many([("a", b"")] * 100_000))
        await until(lambda: client.stats["published_rounds"] > before)
        await client.close(0.05)
        with pytest.raises(angarium.ConnectionLostError, match="60002"):
            await stuck
        assert client.stats["lost_messages"] == 9226

    run(test())
    assert "closed before the node had it all: 9216 direct messages may be lost, 0 guaranteed" in caplog.text


def test_closing_while_there_is_no_connection_ends_the_reconnect(router: Router) -> None:
    async def test() -> None:
        tasks = asyncio.all_tasks()
        client = await angarium.connect(router.url)
        router.do(router.unbind)
        await until(lambda: asyncio.all_tasks() != tasks)
        await client.close()
        await until(lambda: asyncio.all_tasks() == tasks)
        router.do(router.bind)

    run(test())


def test_an_event_callback_that_raises_does_no_harm(router: Router, caplog: pytest.LogCaptureFixture) -> None:
    def raising(event: ClientEvent) -> None:
        raise ValueError(event.kind)

    async def test() -> None:
        async with angarium.connect(router.url, on_event=raising) as client:
            await client.publish("a")

    run(test())
    assert "on_event raised" in caplog.text
