"""Publishing, subscribing and requests over real sockets, against the scripted router."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import angarium
from angarium import errors, wire
from angarium.message import Row, pack_rows
from angarium.slots import slot_table
from tests.integration.scripted_router import LIMIT_S, Router, run
from tests.waiting import until

if TYPE_CHECKING:
    from angarium.client.connection.connection import ClientEvent


# Who connects.


@pytest.mark.parametrize(
    ("who", "helps"), [({}, True), ({"username": "bob"}, False), ({"password": "x"}, False)]
)
def test_who_is_refused_and_gave_no_username_is_told_what_helps(
    router: Router, who: dict[str, Any], *, helps: bool
) -> None:
    async def test() -> None:
        router.hello_refusals.append(errors.UNAUTHORIZED)
        with pytest.raises(angarium.UnauthorizedError) as caught:
            await angarium.connect(router.url, **who)
        assert ("angarium username update default --set enabled=true" in str(caught.value)) is helps

    run(test())


# Publishing.


@pytest.mark.requirement("R1", "R2", "R219")
def test_a_published_message_reaches_a_subscription(router: Router) -> None:
    async def test() -> None:
        async with angarium.connect(router.url) as client:
            subscription = await client.subscribe("a/>")
            await client.publish("a/b", b"hello", cos=2, correlation_id="c")
            message = await subscription.receive(LIMIT_S)
            assert (message.topic, message.payload, message.mode) == ("a/b", b"hello", "direct")
            assert (message.cos, message.correlation_id) == (2, "c")
            client._validate()

    run(test())
    assert router.sent_operations() == b"HSPB"


def test_a_lone_message_leaves_at_once_and_a_burst_leaves_together(router: Router) -> None:
    async def test() -> None:
        async with angarium.connect(router.url) as client:
            for index in range(100):
                await client.publish("a", b"%d" % index)
            await client.flush()
            assert client.stats["published_messages"] == 100
            assert client.stats["published_rounds"] == 2
            await asyncio.sleep(0)
            await client.publish("a", b"100")
            assert client.stats["published_rounds"] == 3

    run(test())
    assert [row[5] for row in router.rows] == [b"%d" % index for index in range(101)]


@pytest.mark.requirement("R3")
def test_messages_keep_their_order_whatever_way_they_are_published(router: Router) -> None:
    total = 5000

    async def test() -> None:
        async with angarium.connect(router.url) as client:
            subscription = await client.subscribe(">")
            await client.publish("t/0", b"0")
            await client.publish_many((f"t/{index % 7}", b"%d" % index) for index in range(1, total - 1))
            await client.publish("t/1", b"%d" % (total - 1))
            seen: list[bytes] = []
            async for batch in subscription.batches():
                seen += batch.payloads
                if len(seen) == total:
                    break
            assert seen == [b"%d" % index for index in range(total)]

    run(test())


def test_publishing_waits_for_credit_and_goes_on_with_it(router: Router) -> None:
    router.retires = False

    async def test() -> None:
        async with angarium.connect(router.url) as client:
            publishing = asyncio.ensure_future(client.publish_many([("a", b"x" * 100)] * 20_000))
            await until(lambda: client.stats["published_rounds"] == router.rounds)
            await asyncio.sleep(0.02)
            assert not publishing.done()
            assert client.stats["published_rounds"] == router.rounds
            single = asyncio.ensure_future(client.publish("last"))
            await asyncio.sleep(0)
            router.retires = True
            router.send(wire.RETIRED, wire.pack([router.rounds]))
            await publishing
            await single
            await client.flush()

    run(test())
    assert len(router.rows) == 20_001


def test_what_was_published_before_an_illegal_message_leaves(router: Router) -> None:
    async def test() -> None:
        async with angarium.connect(router.url) as client:
            with pytest.raises(angarium.InvalidRequestError, match="40004"):
                await client.publish_many([("a", b""), ("", b""), ("c", b"")])
            with pytest.raises(angarium.InvalidRequestError, match="40007"):
                await client.publish("a", b"x" * (2 << 20))
            with pytest.raises(angarium.InvalidRequestError, match="40018"):
                await client.publish("a", b"", mode="eternal")  # type: ignore[arg-type]
            await client.flush()

    run(test())
    assert [row[1] for row in router.rows] == ["a"]


def test_a_large_message_travels_alone(router: Router) -> None:
    async def test() -> None:
        async with angarium.connect(router.url) as client:
            await client.publish_many([("a", b"x" * 1_000_000), ("a", b"y"), ("a", b"z" * 1_000_000)])
            await client.flush()
            assert client.stats["published_rounds"] >= 2

    run(test())
    assert [row[5][:1] for row in router.rows] == [b"x", b"y", b"z"]


def test_flush_gives_up_in_time(router: Router) -> None:
    router.retires = False

    async def test() -> None:
        async with angarium.connect(router.url) as client:
            await client.flush(0.01)
            await client.publish("a")
            with pytest.raises(angarium.TimeoutExpiredError):
                await client.flush(0.01)

    run(test())


def test_a_new_table_is_used_from_the_next_round_on(router: Router) -> None:
    async def test() -> None:
        async with angarium.connect(router.url) as client:
            router.send(wire.TABLE, wire.pack([9, slot_table(3)]))
            await client.subscribe("after/the/table")
            await client.publish_many([(f"t/{index}", b"") for index in range(100)])
            await client.flush()

    run(test())
    (header,) = [wire.unpack(frames[1]) for frames in router.seen if frames[0] == wire.PUBLISH and frames[2:]]
    assert header[1] == 9
    assert [worker for worker, _ in header[3]] == [0, 1, 2]


def test_what_the_router_refuses_is_told_by_an_event(router: Router) -> None:
    events: list[ClientEvent] = []

    async def test() -> None:
        async with angarium.connect(router.url, on_event=events.append) as client:
            router.send(wire.NOTICE, wire.pack([errors.PUBLISH_DENIED, "a/b", 3, 1]))
            await until(lambda: client.stats["refused_messages"] == 3)

    run(test())
    assert [(event.kind, event.code, event.messages) for event in events] == [
        ("connected", 0, 0),
        ("notice", errors.PUBLISH_DENIED, 3),
    ]


# Subscribing.


def test_subscriptions_made_together_are_asked_for_together(router: Router) -> None:
    async def test() -> None:
        async with angarium.connect(router.url) as client:
            count = wire.MAX_FILTERS_PER_REQUEST * 3
            await asyncio.gather(*(client.subscribe(f"t/{index}") for index in range(count)))
            assert client.stats["subscriptions"] == count

    run(test())
    assert router.sent_operations() == b"HSSSB"


def test_more_requests_than_may_be_under_way_wait_their_turn(router: Router) -> None:
    async def test() -> None:
        async with angarium.connect(router.url) as client:
            for name in ("x", "y") * 30:
                client._interest.ask_for(wire.SUBSCRIBE, ("a", 0), name)
            with pytest.raises(angarium.NotFoundError):
                await client.subscribe_for("x", "a")
            client._validate()

    run(test())
    assert router.sent_operations().count(b"S") == 61


def test_a_filter_is_asked_for_once_however_many_want_it(router: Router) -> None:
    async def test() -> None:
        async with angarium.connect(router.url) as client:
            one, two = await asyncio.gather(client.subscribe("a"), client.subscribe("a"))
            three = await client.subscribe("a", deliver_always=True)
            assert router.sent_operations() == b"HSS"
            await client.publish("a", b"x")
            assert [(await each.receive(LIMIT_S)).payload for each in (one, two, three)] == [b"x"] * 3
            await one.close()
            assert router.sent_operations() == b"HSSP"
            await two.close()
            await two.close()
            assert router.sent_operations() == b"HSSPU"
            (peer,) = router.peers.values()
            assert list(peer.filters) == [("a", wire.SUBSCRIBE_DELIVER_ALWAYS)]
            client._validate()

    run(test())


def test_a_refused_subscription_is_an_error_and_leaves_nothing(router: Router) -> None:
    router.filter_refusals["b"] = errors.SUBSCRIBE_DENIED

    async def test() -> None:
        async with angarium.connect(router.url) as client:
            with pytest.raises(angarium.ForbiddenError, match="40303"):
                await client.subscribe(["a", "b", "c"])
            assert client.stats["subscriptions"] == 0
            (peer,) = router.peers.values()
            await until(lambda: not peer.filters)
            client._validate()

    run(test())
    assert router.sent_operations() == b"HSUB"


def test_an_illegal_filter_never_leaves(router: Router) -> None:
    async def test() -> None:
        async with angarium.connect(router.url) as client:
            for wrong, code in (("", "40005"), ("#share/a*/b", "40006"), ([], "40018")):
                with pytest.raises(angarium.InvalidRequestError, match=code):
                    await client.subscribe(wrong)

    run(test())
    assert router.sent_operations() == b"HB"


@pytest.mark.requirement("R28")
def test_a_shared_subscription_cannot_be_local(router: Router) -> None:
    async def test() -> None:
        async with angarium.connect(router.url) as client:
            for text in ("#share/g/a", "#noexport/#share/g/a"):
                with pytest.raises(angarium.InvalidRequestError, match="40010"):
                    await client.subscribe(text, local_only=True)

    run(test())


def test_a_local_subscription_is_no_business_of_the_router(router: Router) -> None:
    async def test() -> None:
        async with angarium.connect(router.url) as client:
            wide = await client.subscribe("a/>")
            local = await client.subscribe("a/b", local_only=True)
            await client.publish_many([("a/b", b""), ("a/c", b"")])
            assert [(await wide.receive(LIMIT_S)).topic for _ in range(2)] == ["a/b", "a/c"]
            assert (await local.receive(0)).topic == "a/b"
            with pytest.raises(angarium.TimeoutExpiredError):
                await local.receive(0)
            await local.close()

    run(test())
    assert router.sent_operations().count(b"S") == 1
    assert b"U" not in router.sent_operations()


def test_shared_and_plain_messages_find_their_subscriptions(router: Router) -> None:
    async def test() -> None:
        async with angarium.connect(router.url) as client:
            shared = await client.subscribe("#share/g/a/>")
            plain = await client.subscribe("a/b")
            await client.publish_many([("a/b", b"1"), ("a/c", b"2")])
            assert [(await shared.receive(LIMIT_S)).payload for _ in range(2)] == [b"1", b"2"]
            message = await plain.receive(LIMIT_S)
            assert (message.payload, message.share) == (b"1", None)
            with pytest.raises(angarium.TimeoutExpiredError):
                await plain.receive(0.01)

    run(test())


@pytest.mark.requirement("R58", "R65")
def test_a_manager_subscribes_for_another_client_which_reads_locally(router: Router) -> None:
    async def test() -> None:
        async with (
            angarium.connect(router.url, client_name="manager") as manager,
            angarium.connect(router.url, client_name="worker") as worker,
        ):
            local = await worker.subscribe("jobs/>", local_only=True)
            await manager.subscribe_for("worker", "jobs/>")
            await manager.publish("jobs/1")
            assert (await local.receive(LIMIT_S)).topic == "jobs/1"
            await manager.unsubscribe_for("worker", "jobs/>")
            with pytest.raises(angarium.NotFoundError, match="40405"):
                await manager.subscribe_for("nobody", "jobs/>")

    run(test())


def test_callbacks_are_called_in_order_and_closing_waits_for_them(router: Router) -> None:
    seen: list[bytes] = []
    later: list[bytes] = []

    async def slow(message: angarium.Message) -> None:
        await asyncio.sleep(0)
        later.append(message.payload)

    async def test() -> None:
        async with angarium.connect(router.url) as client:
            await client.subscribe("a", callback=lambda message: seen.append(message.payload))
            await client.subscribe("a", callback=slow)
            await client.publish_many([("a", b"%d" % index) for index in range(1000)])
            await until(lambda: len(seen) == 1000)

    run(test())
    assert later == seen == [b"%d" % index for index in range(1000)]


def test_callbacks_are_called_for_all_that_came_before_the_answer_to_bye(router: Router) -> None:
    """More than are called for in a few steps of the loop, which ends when the client is closed."""
    seen: list[bytes] = []
    numbers = [b"%d" % number for number in range(20_000)]
    router.last_batches = [
        [(at, "a", 0, None, None, number) for at, number in enumerate(numbers[start : start + 500])]
        for start in range(0, 20_000, 500)
    ]

    async def test() -> None:
        async with angarium.connect(router.url) as client:
            await client.subscribe("a", callback=lambda message: seen.append(message.payload))

    run(test())
    assert seen == numbers


def test_a_callback_may_close_the_client_and_does_not_wait_for_itself(router: Router) -> None:
    async def test() -> None:
        client = await angarium.connect(router.url)
        closed = asyncio.Event()

        async def close(message: angarium.Message) -> None:
            await client.close(timeout_s=LIMIT_S)
            await asyncio.sleep(0)
            closed.set()

        await client.subscribe("a", close)
        await client.publish("a")
        async with asyncio.timeout(LIMIT_S / 2):
            await closed.wait()

    run(test())


@pytest.mark.requirement("R8")
def test_a_slow_application_holds_one_window_and_gets_everything_that_it_was_sent(router: Router) -> None:
    router.honours_credit = True
    router.rounds = 1000

    async def test() -> None:
        async with angarium.connect(router.url, window_messages=100) as client:
            subscription = await client.subscribe(">", on_full="stall")
            for index in range(1, 2001):
                await client.publish("a", b"%d" % index)
                if index % 10 == 0:
                    await asyncio.sleep(0)
            await client.flush()
            largest = 0
            for index in range(1, 2001):
                assert (await subscription.receive(LIMIT_S)).payload == b"%d" % index
                largest = max(largest, client.stats["buffered_messages"])
            assert 50 <= largest <= 100 + 20

    run(test())
    assert router.sent_operations().count(b"C") >= 10


@pytest.mark.requirement("R45")
def test_the_discard_indication_is_an_event_and_a_mark(router: Router) -> None:
    events: list[ClientEvent] = []

    async def test() -> None:
        async with angarium.connect(router.url, on_event=events.append) as client:
            subscription = await client.subscribe("a")
            rows: list[Row] = [(index, "a", 0, None, None, b"") for index in range(2)]
            header = wire.pack([wire.DELIVER_DISCARD_INDICATION, [[2, None]], 5])
            router.send(wire.DELIVER, header, pack_rows(rows))
            assert (await subscription.receive(LIMIT_S)).discard_indication
            assert not (await subscription.receive(LIMIT_S)).discard_indication
            assert client.stats["discarded_messages"] == 5

    run(test())
    assert [(event.kind, event.messages) for event in events] == [("connected", 0), ("discard", 5)]


# Requests.


def test_a_request_gets_its_reply(router: Router) -> None:
    async def test() -> None:
        async with angarium.connect(router.url) as server, angarium.connect(router.url) as client:

            async def serve(message: angarium.Message) -> None:
                await server.reply(message, message.payload.upper())

            await server.subscribe("service", callback=serve)
            replies = await asyncio.gather(*(client.request("service", b"a%d" % n) for n in range(50)))
            assert [reply.payload for reply in replies] == [b"A%d" % n for n in range(50)]
            reply = await client.request("service", b"x", correlation_id="mine")
            assert (reply.correlation_id, reply.is_reply, reply.topic) == ("mine", True, client.inbox)
            client._validate()

    run(test())


def test_a_request_that_nobody_answers_ends_in_time_and_a_late_reply_hurts_nobody(router: Router) -> None:
    async def test() -> None:
        async with angarium.connect(router.url) as client:
            requests = await client.subscribe("service")
            with pytest.raises(angarium.TimeoutExpiredError, match="service"):
                await client.request("service", timeout_s=0.05)
            await client.reply(await requests.receive(LIMIT_S), b"late")
            await until(lambda: client.stats["late_replies"] == 1)

    run(test())


def test_a_request_that_times_out_while_there_is_no_credit_leaves_nothing_behind(router: Router) -> None:
    router.retires = False

    async def test() -> None:
        async with angarium.connect(router.url) as client:
            for _ in range(router.rounds):
                await client.publish("a")
                await asyncio.sleep(0)
            await until(lambda: client.stats["published_rounds"] == router.rounds)
            with pytest.raises(angarium.TimeoutExpiredError):
                await client.request("service", timeout_s=0.05)
            assert client.stats["gathered_messages"] == 1
            router.retires = True
            router.send(wire.RETIRED, wire.pack([router.rounds]))
            await client.flush()
            assert not client._requests._sent

    run(test())


def test_what_cannot_be_a_request_or_a_reply_is_refused(router: Router) -> None:
    async def test() -> None:
        async with angarium.connect(router.url) as client:
            first = asyncio.ensure_future(client.request("s", timeout_s=0.1, correlation_id="x"))
            await asyncio.sleep(0)
            with pytest.raises(angarium.InvalidRequestError, match="waits already"):
                await client.request("s", correlation_id="x")
            with pytest.raises(angarium.TimeoutExpiredError):
                await first
            with pytest.raises(angarium.InvalidRequestError, match="reply_to"):
                await client.request("s", reply_to="elsewhere")
            with pytest.raises(angarium.InvalidRequestError, match="reply_to"):
                await client.reply(angarium.Message("a"), b"")

    run(test())
