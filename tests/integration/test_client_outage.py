"""What direct messages become while there is no connection: they wait, bounded, and meet the client's subscriptions."""

from __future__ import annotations

import asyncio
import itertools
import logging
from functools import partial
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

import angarium
from angarium import blocking, errors, wire
from angarium.client.publishing import publisher
from angarium.slots import slot_table
from angarium_server.testing import Node
from tests.integration.scripted_router import LIMIT_S, Router, run
from tests.waiting import until, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from angarium import Client


async def cut_off(router: Router, client: Client) -> None:
    router.do(router.unbind)
    await until(lambda: not client.connected)


def waiting(client: Client) -> int:
    return client._publisher._waiting_messages


@pytest.mark.requirement("R277")
def test_what_waits_for_a_connection_leaves_after_the_subscriptions_are_in_force(router: Router) -> None:
    async def test() -> None:
        async with angarium.connect(router.url) as client:
            subscription = await client.subscribe("a")
            await cut_off(router, client)
            router.seen.clear()
            router.held_subacks = []
            publishing = [asyncio.ensure_future(client.publish("a", b"%d" % index)) for index in range(80)]
            await until(lambda: waiting(client) == 80)
            router.do(router.bind)
            await until(lambda: router.held_subacks)
            assert router.sent_operations() == b"HS"
            router.do(router.let_subscribe)
            await asyncio.gather(*publishing)
            payloads = [(await subscription.receive(LIMIT_S)).payload for _ in range(80)]
            assert payloads == [b"%d" % index for index in range(80)]
            assert client.stats["lost_messages"] == 0
            client._validate()

    run(test())


@pytest.mark.requirement("R277")
def test_a_request_waits_for_the_connection_and_takes_its_inbox(router: Router) -> None:
    async def test() -> None:
        async with angarium.connect(router.url) as client:

            async def serve(message: angarium.Message) -> None:
                await client.reply(message, message.payload)

            await client.subscribe("service", serve)
            assert (await client.request("service", b"1")).payload == b"1"
            await cut_off(router, client)
            request = asyncio.ensure_future(client.request("service", b"2", timeout_s=LIMIT_S))
            await until(lambda: waiting(client) == 1)
            router.inbox_serial += 1
            router.do(router.bind)
            assert (await request).payload == b"2"
            await cut_off(router, client)
            with pytest.raises(TimeoutError, match="no connection within"):
                await client.request("service", timeout_s=0.05)
            client._validate()

    run(test())


def test_a_request_that_had_not_left_goes_with_the_next_connection_once(router: Router) -> None:
    """The connection was lost while the client subscribed to its inbox, for its first request."""

    async def test() -> None:
        async with angarium.connect(router.url) as client:

            async def serve(message: angarium.Message) -> None:
                await client.reply(message, b"done")

            await client.subscribe("service", serve)
            router.held_subacks = []
            request = asyncio.ensure_future(client.request("service", b"1", timeout_s=LIMIT_S))
            await until(lambda: router.held_subacks)
            await cut_off(router, client)
            router.inbox_serial += 1
            router.held_subacks = None
            router.do(router.bind)
            assert (await request).payload == b"done"
            assert [row[1] for row in router.rows] == ["service", client.inbox]
            client._validate()

    run(test())


def test_requests_that_waited_for_credit_leave_with_the_inbox_of_the_next_connection(router: Router) -> None:
    """Some were gathered, others found no room there."""

    async def test() -> None:
        router.rounds = 1
        async with angarium.connect(router.url) as client:

            async def serve(message: angarium.Message) -> None:
                await client.reply(message, message.payload)

            await client.subscribe("service", serve)
            assert (await client.request("service", b"first")).payload == b"first"
            router.retires = False
            await client.publish("other")
            client._publisher._gatherer._rows_max = 3
            await client.publish("news", b"before")
            asked = [asyncio.ensure_future(client.request("service", b"%d" % i)) for i in range(4)]
            await until(lambda: len(client._publisher._waiters) == 2)
            client._validate()
            router.retires = True
            router.rows.clear()
            await cut_off(router, client)
            client._validate()
            router.inbox_serial += 1
            router.rounds = 8
            router.do(router.bind)
            assert [(await one).payload for one in asked] == [b"0", b"1", b"2", b"3"]
            left = sorted(row[5] for row in router.rows if row[1] in ("news", "service"))
            assert left == [b"0", b"1", b"2", b"3", b"before"]
            client._validate()

    run(test())


def test_a_table_that_changes_while_subscriptions_are_restored_is_in_force_for_producers(
    router: Router,
) -> None:
    async def test() -> None:
        async with angarium.connect(router.url) as client:
            await client.subscribe("a")
            await cut_off(router, client)
            router.held_subacks = []
            router.do(router.bind)
            await until(lambda: router.held_subacks)
            router.send(wire.TABLE, wire.pack([2, slot_table(3)]))
            router.do(router.let_subscribe)
            await until(lambda: client.stats["reconnects"] == 1)
            assert client._guaranteed._welcome is not None
            assert client._guaranteed._welcome.epoch == 2

    run(test())


def test_a_message_waits_so_long_and_is_not_sent_later(router: Router) -> None:
    async def test() -> None:
        async with angarium.connect(router.url) as client:
            await cut_off(router, client)
            client._publisher._timeout_s = 0.05
            with pytest.raises(TimeoutError, match=r"no connection within 0\.05 s; the message was not sent"):
                await client.publish("a", b"late")
            with pytest.raises(angarium.TimeoutExpiredError):
                await client.publish_many([("a", b"late")], timeout_s=0.01)
            router.do(router.bind)
            await client.publish_many([("a", b"in time")], timeout_s=LIMIT_S)
            await client.flush()

    run(test())
    assert [row[5] for row in router.rows] == [b"in time"]


def test_no_more_than_so_much_waits_for_a_connection(router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "WAITING_MESSAGES_MAX", 3)
    monkeypatch.setattr(publisher, "WAITING_BYTES_MAX", 1_000)

    async def test() -> None:
        async with angarium.connect(router.url) as client:
            await cut_off(router, client)
            publishing = [asyncio.ensure_future(client.publish("a", bytes(400))) for _ in range(2)]
            await until(lambda: waiting(client) == 2)
            with pytest.raises(ConnectionError, match="2 messages of 800 bytes wait already") as caught:
                await client.publish("a", bytes(201))
            assert isinstance(caught.value, angarium.ConnectionLostError)
            assert caught.value.code == errors.TOO_MUCH_WAITS
            publishing.append(asyncio.ensure_future(client.publish("a", bytes(200))))
            await until(lambda: waiting(client) == 3)
            with pytest.raises(angarium.ConnectionLostError, match="60004"):
                await client.publish("a")
            client._validate()
            router.do(router.bind)
            await asyncio.gather(*publishing)
            await client.flush()
            assert waiting(client) == 0

    run(test())
    assert [len(row[5]) for row in router.rows] == [400, 400, 200]


def test_nothing_is_taken_from_an_iterable_without_a_connection(router: Router) -> None:
    async def test() -> None:
        async with angarium.connect(router.url) as client:
            await cut_off(router, client)
            numbers = itertools.count()
            publishing = asyncio.ensure_future(
                client.publish_many(("a", b"%d" % number) for number in itertools.islice(numbers, 5_000))
            )
            await until(lambda: waiting(client) == 1)
            assert next(numbers) == 0
            router.do(router.bind)
            await publishing
            await client.flush()

    run(test())
    assert [row[5] for row in router.rows] == [b"%d" % number for number in range(1, 5_001)]


def test_closing_refuses_what_waits(router: Router) -> None:
    async def test() -> None:
        client = await angarium.connect(router.url)
        await cut_off(router, client)
        publishing = asyncio.ensure_future(client.publish("a"))
        await until(lambda: waiting(client) == 1)
        await client.close()
        await client.close()
        with pytest.raises(angarium.ConnectionLostError, match="60002"):
            await publishing
        assert client.stats["lost_messages"] == 0

    run(test())
    assert not router.rows


def test_what_never_left_a_client_that_is_lost_for_good_counts_as_lost(router: Router) -> None:
    router.retires, router.rounds = False, 1

    async def test() -> None:
        client = await angarium.connect(router.url, reconnect=False)
        await client.publish("a", b"on its way")
        await client.publish_many([("a", b"gathered")] * 7)
        await until(lambda: len(router.rows) == 1)
        assert (client.stats["gathered_messages"], client.stats["lost_messages"]) == (7, 0)
        router.drop_connections()
        await until(lambda: client.closed)
        assert (client.stats["gathered_messages"], client.stats["lost_messages"]) == (0, 8)
        with pytest.raises(angarium.ConnectionLostError, match="60001"):
            await client.publish("a")

    run(test())


def test_a_client_that_lost_its_connection_while_it_closes_waits_for_the_answer_to_bye(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        client = await angarium.connect(router.url)
        settled = asyncio.Event()
        leave, answered_before = client._connection.leave, []

        def noted() -> bool:
            answered_before.append(client._left.done())
            return leave()

        monkeypatch.setattr(client._guaranteed, "drain", settled.wait)
        monkeypatch.setattr(client._connection, "leave", noted)
        closing = asyncio.ensure_future(client.close(LIMIT_S))
        await asyncio.sleep(0)
        router.do(router.unbind)
        await until(lambda: not client.connected)
        router.do(router.bind)
        await until(lambda: client.connected)
        settled.set()
        await closing
        assert answered_before == [False]
        assert client._left.done()

    run(test())


def test_who_waits_for_credit_when_the_client_is_closed_is_told(router: Router) -> None:
    async def test() -> None:
        async with angarium.connect(router.url) as client:
            client._publisher._gatherer._rows_max = 1
            router.retires = False
            for number in range(router.rounds + 1):
                await client.publish("a", b"%d" % number)
                await asyncio.sleep(0)
            publishing = asyncio.ensure_future(client.publish("a", b"late"))
            await until(lambda: client._publisher._waiters)
            # In one step: there is credit again, and the application closes the client.
            client._connection._on_message([wire.RETIRED, wire.pack([router.rounds])])
            await client.close()
            with pytest.raises(errors.ConnectionLostError):
                await publishing
            assert [row[5] for row in router.rows] == [b"%d" % n for n in range(router.rounds + 1)]
            assert client.stats["lost_messages"] == 0

    run(test())


def test_a_function_for_tokens_that_waits_for_what_was_cancelled_is_asked_again(router: Router) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        calls = itertools.count(1)

        async def token() -> str:
            if next(calls) == 2:
                cancelled = loop.create_future()
                cancelled.cancel()
                await cancelled
            return "a token"

        async with angarium.connect(router.url, token=token) as client:
            router.drop_connections()
            await until(lambda: client.stats["reconnects"] == 1)

    run(test())


@pytest.mark.parametrize("is_many", [False, True])
def test_a_thread_waits_so_long_for_a_connection_behind_what_is_queued(router: Router, is_many: bool) -> None:
    with blocking.connect(router.url, timeout_s=0.2) as client:
        router.do(router.unbind)
        wait_until(lambda: not client.connected, "the loss")
        client.publish("a", b"1")
        work = partial(client.publish_many, [("a", b"2")]) if is_many else client.flush
        with pytest.raises(angarium.TimeoutExpiredError):
            work()
        router.do(router.bind)
        client.flush(LIMIT_S)
    assert [row[5] for row in router.rows] == [b"1"]


def test_a_thread_that_is_interrupted_while_it_publishes_can_go_on_publishing(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook, whose user stops a loop and begins another one with the same client."""
    with blocking.connect(router.url) as client:
        with monkeypatch.context() as patch:
            patch.setattr(client._portal, "start", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                client.publish("a", b"1")
        client.publish("a", b"2")
        client.flush(LIMIT_S)
    assert [row[5] for row in router.rows] == [b"1", b"2"]


def publish_until_refused(client: blocking.Client, payloads: list[bytes]) -> int:
    """Publish until there is no room and no connection in time; give how many were queued."""
    for number, payload in enumerate(payloads):
        try:
            client.publish("a", payload)
        except angarium.TimeoutExpiredError as error:
            assert "wait for a connection; this one was not queued" in str(error)  # noqa: PT017 - of all, this one
            return number
    pytest.fail("everything was queued")


def test_a_thread_waits_for_a_connection_when_much_is_queued(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("angarium.blocking.client.QUEUED_MAX", 10)
    with blocking.connect(router.url) as client:
        router.do(router.unbind)
        wait_until(lambda: not client.connected, "the loss")
        client._timeout_s = 0.05
        queued = publish_until_refused(client, [b"%d" % number for number in range(10_000)])
        assert 10 <= queued < 100
        router.do(router.bind)
        client.flush(LIMIT_S)
    assert [row[5] for row in router.rows] == [b"%d" % number for number in range(queued)]


def test_large_messages_of_a_thread_are_bounded_by_their_bytes(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("angarium.blocking.client.QUEUED_BYTES_MAX", 10_000)
    with blocking.connect(router.url) as client:
        router.do(router.unbind)
        client._timeout_s = 0.05
        publish_until_refused(client, [bytes(1_000)] * 10_000)
        assert len(client._queue) <= 12
        router.do(router.bind)


@pytest.mark.requirement("R277")
def test_the_log_tells_of_connections_and_of_nothing_else(
    router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "angarium")

    async def test() -> None:
        connecting = angarium.connect(router.url, client_name="till-7", password="hunter2", vpn="shop")
        async with connecting as client:
            subscription = await client.subscribe("a")
            router.do(router.unbind)
            await until(lambda: "trying again in" in caplog.text)
            router.do(router.bind)
            await until(lambda: client.stats["reconnects"] == 1)
            for _ in range(100):
                await client.publish("a", b"the payload")
                await subscription.receive(LIMIT_S)

    run(test())
    told = [(one.levelname, one.getMessage()) for one in caplog.records if one.name == "angarium.client"]
    assert [level for level, _ in told] == ["INFO", "WARNING", "INFO"]
    assert told[0][1] == f"'till-7' is connected to {router.url} (node test, Message VPN shop)"
    assert told[1][1].startswith(f"'till-7' lost its connection: {router.url}: the connection was closed")
    assert told[1][1].endswith(" (error 60001); trying again")
    assert told[2][1].startswith(f"'till-7' is connected again to {router.url} (node test) after ")
    assert told[2][1].endswith("; direct messages lost so far: 0")
    assert {one.levelname for one in caplog.records if one.name != "angarium.client"} <= {"DEBUG"}
    assert len(caplog.records) < 20
    assert "hunter2" not in caplog.text
    assert "payload" not in caplog.text


def test_closing_while_the_node_does_not_answer_loses_nothing_that_it_has(
    router: Router, caplog: pytest.LogCaptureFixture
) -> None:
    router.answers_bye = False

    async def test() -> None:
        client = await angarium.connect(router.url)
        await client.publish("a")
        await client.flush()
        await client.close(0.05)

    run(test())
    assert "closed before the node answered, which has all that was published" in caplog.text


def test_the_log_tells_that_a_client_gives_up(router: Router, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        client = await angarium.connect(router.url, reconnect=False)
        router.drop_connections()
        await until(lambda: client.closed)

    run(test())
    assert "(error 60001); it is not tried again" in caplog.text
    assert "is not connected any more and does not try again: error 60001" in caplog.text


@pytest.mark.slow
@pytest.mark.requirement("R277")
def test_a_client_gets_what_it_publishes_itself_over_the_crash_of_a_router(tmp_path: Path) -> None:
    """Messages are published all the time; what is missing at the end was on its way when the router was killed."""
    count = 400

    async def test(node: Node) -> None:
        async with angarium.connect(node.url) as client:
            subscription = await client.subscribe("own/>")

            async def publish() -> None:
                for number in range(count):
                    await client.publish(f"own/{number % 16}", b"%d" % number)
                    if number == count // 4:
                        node.kill("router")
                    await asyncio.sleep(0.002)

            publishing = asyncio.ensure_future(publish())
            got: list[int] = []
            while not got or got[-1] < count - 1:
                got.append(int((await subscription.receive(LIMIT_S)).payload))
            await publishing
            lost = client.stats["lost_messages"]
            assert got == sorted(set(got))
            assert count - lost <= len(got)
            assert lost < count // 4
            assert client.stats["reconnects"] == 1
            # Everything that was published without a connection is there.
            assert set(range(count // 4 + lost + 1, count)) <= set(got)

    with Node(tmp_path / "data", workers=2) as node:
        run(test(node))
