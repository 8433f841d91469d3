"""Things that change or end under those who use them: queues, rights, topics, producers, sessions.

Nothing that was acknowledged is lost but with the queue that it was in, and everybody is told what happened.
"""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors, wire
from tests.integration.attacked_spool import AttackedSpool, new_name
from tests.integration.raw_guaranteed import PLENTY, Acked, RawGuaranteed, RawProducer, kept, to_queue
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unharmed")]

QUIET_S = 0.3


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def payloads(messages: list[Any]) -> list[bytes]:
    return [message.payload for message in messages]


# Queues that end, or are shut, under their users.


@pytest.mark.requirement("R118", "R180")
def test_a_queue_that_is_deleted_while_it_is_used_ends_its_flows_and_refuses_the_rest(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    queue = attacked.queue(subscriptions=["deleted/>"])
    with attacked.client() as consumer:
        flow = consumer.bind(queue)
        handle = client.producer()
        for number in range(40):
            client.publish(handle, number * 50 + 1, [to_queue(n, queue, b"%d" % n) for n in range(50)])
            if number == 20:
                attacked.delete("queue", queue)
            refused = client.acked(handle, number * 50 + 50)
            assert set(refused.values()) <= {errors.UNKNOWN_ENDPOINT}
            assert number < 20 or refused or number == 20
        assert consumer.indication(flow, wire.FLOW_CLOSED)[0] == errors.UNKNOWN_ENDPOINT
        consumer.settle(flow, [[0, 1, 50]])
        consumer.send(wire.FLOW_CREDIT, [flow, *PLENTY])
        assert consumer.is_open()
        assert RawProducer(client).publish(kept(0, "deleted/x")) == [0], "nobody takes it, so it is dropped"
        attacked.queue(queue)
        attacked.expect_held(queue, 0)
        again = consumer.bind(queue)
        assert RawProducer(client).fill(queue, b"new") == [0]
        assert [(one.position, one.payload) for one in consumer.messages(again, 1)] == [(1, b"new")]


def test_a_purge_takes_what_is_out_too_and_positions_are_never_used_again(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    queue = attacked.queue()
    producer = RawProducer(client)
    producer.fill(queue, *numbers(200))
    flow = client.bind(queue, credit=(100, 1 << 30))
    client.messages(flow, 100)
    assert attacked.ask("endpoints.purge", name=queue) == {"purged": 200}
    client.settle(flow, [[0, 1, 100]])
    assert client.indication(flow, wire.FLOW_SETTLE_REFUSED)[0] == errors.NOT_DELIVERED
    attacked.expect_held(queue, 0)
    client.send(wire.FLOW_CREDIT, [flow, *PLENTY])
    producer.fill(queue, b"after")
    assert [(one.position, one.payload) for one in client.messages(flow, 1)] == [(201, b"after")]
    attacked.expect_counters(queue, purged_messages=200)


def test_a_purge_during_delivery_loses_nothing_that_comes_after_it(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    queue = attacked.queue()
    with attacked.client() as consumer:
        flow = consumer.bind(queue)
        handle = client.producer()
        for number in range(10):
            client.publish(handle, number * 200 + 1, [to_queue(n, queue) for n in range(200)])
            if number in (3, 6):
                attacked.ask("endpoints.purge", name=queue)
            client.acked(handle, number * 200 + 200)
        attacked.ask("endpoints.purge", name=queue)
        attacked.expect_held(queue, 0)
        assert RawProducer(client).fill(queue, b"last") == [0]
        while (got := consumer.messages(flow, 1))[-1].payload != b"last":
            pass
        assert got[-1].position == 2_001


@pytest.mark.requirement("R175")
def test_a_shut_endpoint_takes_or_gives_nothing_and_says_so(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    queue = attacked.queue()
    producer = RawProducer(client)
    producer.fill(queue, *numbers(3))
    flow = client.bind(queue)
    client.messages(flow, 3)
    counted = attacked.errors(errors.ENDPOINT_SHUTDOWN)
    attacked.update("queue", queue, egress_enabled=False)
    assert client.indication(flow, wire.FLOW_CLOSED)[0] == errors.ENDPOINT_SHUTDOWN
    for browse in (False, True):
        bind = {"name": queue, "browse": browse, "messages": 1, "bytes": 1}
        assert client.refused("flow.bind", **bind) == errors.ENDPOINT_SHUTDOWN
    attacked.expect_errors(errors.ENDPOINT_SHUTDOWN, counted + 3)
    attacked.expect_counters(queue, bind_disabled=2)
    assert producer.fill(queue, b"3") == [0]
    attacked.update("queue", queue, egress_enabled=True, ingress_enabled=False)
    discarded = attacked.discards("endpoint-disabled")
    assert producer.fill(queue, b"no") == [errors.ENDPOINT_SHUTDOWN]
    attacked.expect_discards("endpoint-disabled", discarded + 1)
    got = client.messages(client.bind(queue), 4)
    assert [(one.payload, one.tries) for one in got] == [(b"0", 1), (b"1", 1), (b"2", 1), (b"3", 0)]


@pytest.mark.parametrize(
    ("policy", "verdict", "held"),
    [("always", errors.ENDPOINT_SHUTDOWN, 0), ("when-enabled", 0, 1), ("never", 0, 1)],
)
@pytest.mark.requirement("R114", "R115", "R177")
def test_a_shut_queue_speaks_for_all_as_it_is_told(
    attacked: AttackedSpool, client: RawGuaranteed, policy: str, verdict: int, held: int
) -> None:
    topic = new_name("policy")
    shut = attacked.queue(subscriptions=[topic], ingress_enabled=False, reject_to_sender=policy)
    other = attacked.queue(subscriptions=[topic])
    producer = RawProducer(client)
    assert producer.publish(kept(0, topic)) == [verdict]
    attacked.expect_held(shut, 0)
    attacked.expect_held(other, held)
    assert producer.fill(shut, b"") == [verdict], "the same whether it is named or matched"


def test_rights_that_are_taken_away_end_the_flows_that_lived_by_them(attacked: AttackedSpool) -> None:
    queue = attacked.queue(permission="consume", access_type="non-exclusive")
    with attacked.client() as operator, attacked.client(username=attacked.user()) as client:
        RawProducer(operator).fill(queue, *numbers(3))
        consumer, browser = client.bind(queue), client.bind(queue, browse=True)
        got = client.messages(consumer, 3)
        client.messages(browser, 3)
        attacked.update("queue", queue, permission="read-only")
        assert client.indication(consumer, wire.FLOW_CLOSED)[0] == errors.PERMISSION_DENIED
        client.settle(browser, [[0, got[0].position, got[0].position]])
        code, _ = client.indication(browser, wire.FLOW_SETTLE_REFUSED)
        assert code == errors.PERMISSION_DENIED
        attacked.update("queue", queue, permission="no-access")
        assert client.indication(browser, wire.FLOW_CLOSED)[0] == errors.PERMISSION_DENIED
        assert client.is_open()
        attacked.expect_held(queue, 3)


# Who may.


@pytest.mark.requirement("R128", "R133", "R135", "R136", "R137", "R138", "R139")
def test_each_permission_allows_what_it_says_and_no_more(attacked: AttackedSpool) -> None:
    queue = attacked.queue(permission="no-access", access_type="non-exclusive")
    needs: dict[str, tuple[str, dict[str, Any]]] = {
        "read-only": ("endpoint.show", {"name": queue}),
        "consume": ("flow.bind", {"name": queue, "messages": 1, "bytes": 1}),
        "modify-topic": ("endpoint.subscribe", {"name": queue, "filters": ["a"]}),
        "delete": ("endpoint.delete", {"name": queue}),
    }
    with attacked.client(username=attacked.user()) as client:
        for level in ("no-access", *needs):
            attacked.update("queue", queue, permission=level)
            allowed = list(needs)[: list(needs).index(level) + 1] if level in needs else []
            for needed, (operation, arguments) in needs.items():
                counted = attacked.errors(errors.PERMISSION_DENIED)
                code, value = client.request(operation, **arguments)
                if needed not in allowed:
                    assert code == errors.PERMISSION_DENIED, (level, needed)
                    attacked.expect_errors(errors.PERMISSION_DENIED, counted + 1)
                elif needed == "delete":
                    assert code == errors.OPERATOR_ENDPOINT
                else:
                    assert code == 0, (level, needed, value)


@pytest.mark.requirement("R111", "R127")
@pytest.mark.parametrize(
    ("right", "operation", "arguments", "code"),
    [
        ("allow_guaranteed_send", "producer.open", {}, errors.GUARANTEED_SEND_DENIED),
        ("allow_guaranteed_receive", "flow.bind", {"name": "steady/queue"}, errors.GUARANTEED_RECEIVE_DENIED),
        ("allow_endpoint_create", "endpoint.create", {"name": "mine"}, errors.ENDPOINT_CREATE_DENIED),
        (
            "allow_endpoint_create",
            "flow.bind",
            {"name": "my", "temporary": True},
            errors.ENDPOINT_CREATE_DENIED,
        ),
    ],
)
def test_a_right_that_the_profile_does_not_give_is_refused(
    attacked: AttackedSpool, right: str, operation: str, arguments: dict[str, Any], code: int
) -> None:
    counted = attacked.errors(code)
    with attacked.client(username=attacked.user(**{right: False})) as client:
        assert client.refused(operation, **arguments) == code
        assert client.is_open()
    attacked.expect_errors(code, counted + 1)


def test_the_durability_that_a_profile_allows_is_the_one_that_is_created(attacked: AttackedSpool) -> None:
    temporary = {"name": new_name(), "temporary": True, "messages": 1, "bytes": 1}
    with attacked.client(username=attacked.user(allow_endpoint_create_durability="durable")) as client:
        assert client.refused("flow.bind", **temporary) == errors.ENDPOINT_CREATE_DENIED
        client.done("endpoint.create", name=new_name())
    with attacked.client(username=attacked.user(allow_endpoint_create_durability="non-durable")) as client:
        assert client.refused("endpoint.create", name=new_name()) == errors.ENDPOINT_CREATE_DENIED
        client.done("flow.bind", **temporary)


def test_an_acl_keeps_publishers_from_queues_and_subscribers_from_what_is_sent_to_queues(
    attacked: AttackedSpool,
) -> None:
    queue, open_one = attacked.queue(), attacked.queue()
    acl = attacked.create(
        "acl",
        "acl-of-queues",
        client_connect_default="allow",
        publish_topic_default="allow",
        publish_topic_exceptions=[f"#P2P/QUE/{queue}", "denied/>"],
        subscribe_topic_default="allow",
        subscribe_topic_exceptions=["denied/>"],
    )
    user = attacked.create("username", "of-acl", acl_profile=acl)
    denied = attacked.discards("publish-topic-acl")
    with attacked.client(username=user) as client:
        producer = RawProducer(client)
        assert producer.fill(queue, b"") == [errors.PUBLISH_DENIED]
        assert producer.publish(kept(0, "denied/x"), to_queue(1, open_one), to_queue(2, queue)) == [
            errors.PUBLISH_DENIED,
            0,
            errors.PUBLISH_DENIED,
        ]
        attacked.expect_discards("publish-topic-acl", denied + 3)
        own = new_name()
        client.done("endpoint.create", name=own)
        assert client.done("endpoint.subscribe", name=own, filters=["denied/a", "denied/>", "fine"]) == [
            [errors.SUBSCRIBE_DENIED, "denied/a"],
            [errors.SUBSCRIBE_DENIED, "denied/>"],
            None,
        ]
        for text in (f"#P2P/QUE/{queue}", "#P2P/QUE/>", "#P2P/>", f"#noexport/#P2P/QUE/{queue}"):
            assert client.subscribe(text)[0][0] == errors.RESERVED_TOPIC
        client.subscribe(">", "*/>")
        RawProducer(client).fill(open_one, b"for one")
        client.none_within(wire.DELIVER, QUIET_S)
    attacked.expect_held(open_one, 2)
    attacked.expect_held(queue, 0)


def test_endpoints_of_another_message_vpn_are_not_there(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    vpn = attacked.vpn()
    queue, name = attacked.queue(vpn=vpn, subscriptions=["over/>"]), new_name()
    assert client.refused("endpoint.show", name=queue) == errors.UNKNOWN_ENDPOINT
    assert client.refused("flow.bind", name=queue) == errors.UNKNOWN_ENDPOINT
    producer = RawProducer(client)
    assert producer.fill(queue, b"") == [errors.UNKNOWN_ENDPOINT]
    assert producer.publish(kept(0, "over/there")) == [0]
    with attacked.client(vpn=vpn) as other:
        assert RawProducer(other, name=name).fill(queue, b"") == [0]
        # A name of a producer is one of its Message VPN.
        assert client.refused("producer.open", name=name, resume=True) == errors.UNKNOWN_FLOW_NAME
        RawProducer(client, name=name)
        assert other.is_open()
    attacked.expect_held(queue, 1, vpn=vpn)


def test_what_is_bound_but_not_the_owners_may_be_deleted_by_who_may(attacked: AttackedSpool) -> None:
    name = new_name()
    with (
        attacked.client(username=attacked.user()) as owner,
        attacked.client(username=attacked.user()) as other,
    ):
        owner.done("endpoint.create", name=name, attributes={"permission": "modify-topic"})
        assert other.refused("endpoint.delete", name=name) == errors.PERMISSION_DENIED
        flow = other.bind(name)
        attacked.ask("objects.subscribe", name=name, add=["by/operator"])
        removed = owner.done("endpoint.unsubscribe", name=name, filters=["by/operator", "by/nobody"])
        assert [one and one[0] for one in removed] == [
            errors.OPERATOR_ENDPOINT,
            errors.SUBSCRIPTION_NOT_FOUND,
        ]
        owner.done("endpoint.delete", name=name)
        assert other.indication(flow, wire.FLOW_CLOSED)[0] == errors.UNKNOWN_ENDPOINT


# Producers.


def test_the_second_session_of_a_producer_fences_the_first_and_nothing_is_twice(
    attacked: AttackedSpool,
) -> None:
    queue, name = attacked.queue(), new_name("producer")
    with attacked.client() as one, attacked.client() as other:
        first = RawProducer(one, name=name)
        assert first.fill(queue, *numbers(5)) == [0] * 5
        with attacked.stopped("worker", 0), attacked.stopped("worker", 1):
            one.publish(first.handle, 6, [to_queue(n, queue, b"%d" % (5 + n)) for n in range(5)])
            asked = other.ask("producer.open", name=name)
            one.send(wire.PING, [1])
            one.next(wire.PONG)  # which keeps the end of its producer, if that is told before
        code, opened = other.answer(asked)
        assert code == 0
        fenced = Acked(*one.next(wire.ACKED, fits=lambda frame: frame.header[3]).header)
        assert (fenced.producer, fenced.code) == (first.handle, errors.PRODUCER_FENCED)
        one.publish(first.handle, 11, [to_queue(0, queue, b"never")])
        assert one.is_open()
        last = opened["last_sequence"]
        assert last in (5, 10)
        # Everything is sent again by who has it now: what is there already is not stored twice.
        other.publish(opened["producer"], 1, [to_queue(n, queue, b"%d" % n) for n in range(12)])
        assert other.acked(opened["producer"], 12) == {}
        assert payloads(other.messages(other.bind(queue), 12)) == numbers(12)
        late = {"name": name, "resume": True}
        assert one.refused("producer.open", **late) == errors.PRODUCER_FENCED, (
            "it does not throw the other one out"
        )
        assert other.is_open()


def test_two_clients_that_fence_each_other_lose_nothing_that_was_acknowledged(
    attacked: AttackedSpool,
) -> None:
    queue, name = attacked.queue(), new_name("producer")
    acknowledged: list[bytes] = []
    with attacked.client() as one, attacked.client() as other:
        for number in range(20):
            client = (one, other)[number % 2]
            producer = RawProducer(client, name=name)
            assert producer.last == number
            assert producer.fill(queue, b"%d" % number) == [0]
            acknowledged.append(b"%d" % number)
        flow = one.bind(queue)
        assert payloads(one.messages(flow, 20)) == acknowledged


def test_a_refused_sequence_stays_refused_and_a_stored_one_stored(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    queue, name = attacked.queue(max_message_bytes=10), new_name("producer")
    assert RawProducer(client, name=name).fill(queue, b"1", bytes(11), b"3") == [
        0,
        errors.MESSAGE_TOO_LARGE,
        0,
    ]
    attacked.update("queue", queue, max_message_bytes=1_000)
    again = RawProducer(client, name=name)
    assert again.last == 3
    again.last = 0
    assert again.fill(queue, b"1", bytes(11), b"3", b"4") == [0, errors.MESSAGE_TOO_LARGE, 0, 0]
    assert payloads(client.messages(client.bind(queue), 3)) == [b"1", b"3", b"4"]
    attacked.expect_held(queue, 3)


# Sessions.


@pytest.mark.requirement("R190", "R168")
def test_what_a_consumer_that_died_had_goes_to_the_next_one_in_order(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    queue = attacked.queue()
    RawProducer(client).fill(queue, *numbers(10))
    standby = client.bind(queue, active_indication=True)
    with attacked.client() as other:
        waiting = other.bind(queue)
        got = client.messages(standby, 10)
        client.settle(standby, [[0, 2, 3], [0, 9, 9]])
        attacked.expect_held(queue, 7)
        client.close()
        again = other.messages(waiting, 7, timeout_s=10.0)
    assert payloads(again) == [b"0", b"3", b"4", b"5", b"6", b"7", b"9"]
    assert {one.tries for one in again} == {1}
    assert len(got) == 10


@pytest.mark.requirement("R104", "R105", "R106", "R107")
def test_a_temporary_queue_stays_for_a_client_that_comes_back_and_for_nobody_else(
    attacked: AttackedSpool,
) -> None:
    name = new_name("temporary")
    with attacked.client() as first, attacked.client() as stranger:
        flow = first.bind(name, temporary=True)
        assert first.refused("flow.bind", name=name, temporary=True) == errors.ALREADY_BOUND
        assert stranger.refused("flow.bind", name=name, temporary=True) == errors.PERMISSION_DENIED
        assert stranger.refused("flow.bind", name=name) == errors.INVALID_DURABILITY
        assert stranger.refused("endpoint.delete", name=name) == errors.PERMISSION_DENIED
        producer = RawProducer(stranger)
        assert producer.fill(name, b"1") == [0]
        first.messages(flow, 1)
        welcome = first.welcome
        with attacked.stranger() as back:
            back.hello(token=welcome["token"], client_name=welcome["client_name"])
            assert back.welcome["resumed"]
            assert producer.fill(name, b"2") == [0], "it takes messages meanwhile"
            flow = back.bind(name, temporary=True)
            assert [(one.payload, one.tries) for one in back.messages(flow, 2)] == [(b"1", 1), (b"2", 0)]
            back.done("flow.unbind", flow=flow)
            wait_until(lambda: producer.fill(name, b"3") == [errors.UNKNOWN_ENDPOINT], "it is gone")
            assert stranger.bind(name, temporary=True)


def test_a_temporary_queue_goes_with_a_client_that_says_bye(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    name = new_name("temporary")
    with attacked.client() as leaving:
        leaving.bind(name, temporary=True)
        leaving.send(wire.BYE, [])
        assert leaving.closed() == 0
    wait_until(lambda: client.request("endpoint.show", name=name)[0] == errors.UNKNOWN_ENDPOINT, "it is gone")


# Topic endpoints.


@pytest.mark.requirement("R121", "R149")
def test_another_topic_empties_a_topic_endpoint_and_not_while_others_use_it(attacked: AttackedSpool) -> None:
    name = attacked.create(
        "topic-endpoint", new_name("te"), permission="delete", max_bind_count=5, access_type="non-exclusive"
    )
    of_te: dict[str, Any] = {"kind": "topic-endpoint"}
    with attacked.client() as one, attacked.client() as other:
        flow = one.bind(name, topic="old/>", **of_te)
        producer = RawProducer(one)
        assert producer.publish(kept(0, "old/1"), kept(1, "new/1")) == [0, 0]
        assert payloads(one.messages(flow, 1)) == [b""]
        bind = {"name": name, "messages": 1, "bytes": 1, **of_te}
        assert other.refused("flow.bind", topic="new/>", **bind) == errors.SUBSCRIPTION_DOES_NOT_MATCH
        assert (
            other.refused("flow.bind", topic="old/>", selector="a = 1", **bind)
            == errors.SELECTOR_DOES_NOT_MATCH
        )
        same = other.bind(name, topic="old/>", **of_te)
        one.done("flow.unbind", flow=flow)
        other.done("flow.unbind", flow=same)
        attacked.expect_held(name, 1, "topic-endpoint")
        renewed = other.bind(name, topic="new/>", **of_te)
        attacked.expect_held(name, 0, "topic-endpoint")
        assert producer.publish(kept(0, "old/2"), kept(1, "new/2", b"2")) == [0, 0]
        assert payloads(other.messages(renewed, 1)) == [b"2"]
        other.done("flow.unbind", flow=renewed)
        assert other.refused("flow.bind", topic="new/>", selector="a = =", **bind) == errors.INVALID_SELECTOR
        attacked.expect_held(name, 1, "topic-endpoint")


# Both kinds of messages.


def test_direct_and_guaranteed_rounds_of_one_client_do_not_disturb_each_other(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    queue = attacked.queue(subscriptions=["mixed/>"])
    handle = client.producer()
    client.subscribe("mixed/>")
    first = 1
    for number in range(30):
        client.publish_uncut([(0, "mixed/direct", 0, None, None, b"d%d" % number)])
        client.publish(handle, first, [kept(0, "mixed/kept", b"k%d" % number)])
        first += 1
    assert client.acked(handle, first - 1) == {}
    attacked.expect_held(queue, 60)
    delivered: list[bytes] = []
    while len(delivered) < 60:
        delivered += [row[5] for batch in client.next(wire.DELIVER).batches for row in wire.unpack(batch)]
    expected = [payload for number in range(30) for payload in (b"d%d" % number, b"k%d" % number)]
    assert delivered == expected
    assert payloads(client.messages(client.bind(queue), 60)) == expected
