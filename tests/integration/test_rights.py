"""Who may do what for whom, on a real node: subscription managers, owners of endpoints, operators who provision."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from angarium import blocking, errors, wire
from tests.integration.attacked_spool import LoneSpool, new_name
from tests.integration.raw_client import row
from tests.integration.raw_guaranteed import RawGuaranteed, RawProducer
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

LIMIT_S = 20.0
QUIET_S = 0.3
#: A manager may be so many times slower for another than for itself, on a machine that others use.
SLOWER_MAX = 5
#: Nothing in these tests is to wait for the rate of control frames.
CONFIG = "[router]\ncontrol_frames_per_second = 100000\n"


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneSpool]:
    with LoneSpool(tmp_path_factory.mktemp("rights"), CONFIG) as lone:
        yield lone


@pytest.fixture(autouse=True)
def _nobody_is_left(lone: LoneSpool) -> Iterator[None]:
    yield
    wait_until(lambda: lone.status()["sessions"] == 0, "everybody is gone")


def manager_of(lone: LoneSpool, **acl: Any) -> str:
    """Make a username that may subscribe for others, under an ACL profile of its own."""
    profile = lone.create(
        "acl",
        new_name("a").replace("/", "-"),
        client_connect_default="allow",
        publish_topic_default="allow",
        **acl,
    )
    name = new_name("boss").replace("/", "-")
    return lone.create("username", name, subscription_manager=True, acl_profile=profile)


def subscribe_for(client: RawGuaranteed, target: str, *filters: str) -> list[int]:
    """Subscribe for another client; gives the codes, 0 for what was done."""
    return _manage(client, wire.SUBSCRIBE, target, filters)


def unsubscribe_for(client: RawGuaranteed, target: str, *filters: str) -> list[int]:
    return _manage(client, wire.UNSUBSCRIBE, target, filters)


def _manage(
    client: RawGuaranteed, operation: bytes, target: str | None, filters: tuple[str, ...]
) -> list[int]:
    client.send(operation, [1, [[text, 0] for text in filters], target])
    return [refused[0] if refused else 0 for refused in client.next(wire.SUBACK).header[1]]


def subscriptions_of(lone: LoneSpool, name: str) -> list[str]:
    return [found["filter"] for found in lone.ask("subscriptions.list") if found["client"] == name]


# Subscription managers.


@pytest.mark.requirement("R55", "R56", "R58", "R64", "R66", "R67")
def test_a_client_announces_itself_and_is_subscribed_until_it_goes(lone: LoneSpool) -> None:
    boss = manager_of(lone, subscribe_topic_default="allow")
    with blocking.connect(lone.node.url, username=boss) as manager:
        announced = manager.subscribe("announced")
        with blocking.connect(lone.node.url, client_name="ward") as ward:
            messages = ward.subscribe("own/>")
            ward.publish("announced", b"ward")
            name = announced.receive(LIMIT_S).payload.decode()
            manager.subscribe_for(name, "orders/>")
            assert sorted(subscriptions_of(lone, name)) == ["orders/>", "own/>"]
            manager.publish("own/1", b"own")
            assert messages.receive(LIMIT_S).payload == b"own"
    with lone.client(client_name="ward") as again, blocking.connect(lone.node.url, username=boss) as manager:
        assert subscriptions_of(lone, "ward") == [], "what it had, and what it was given, went with it"
        manager.publish("orders/1", b"missed")
        manager.subscribe_for("ward", "orders/>")
        manager.publish("orders/2", b"found")
        manager.close()
        frame = again.next(wire.DELIVER)
        assert [one[5] for one in wire.unpack(frame.batches[0])] == [b"found"]
        assert subscriptions_of(lone, "ward") == ["orders/>"], "also when the manager has gone"


@pytest.mark.requirement("R61", "R62")
def test_a_manager_neither_adds_nor_removes_what_its_own_acl_denies(lone: LoneSpool) -> None:
    boss = manager_of(lone, subscribe_topic_default="disallow", subscribe_topic_exceptions=["ok/>"])
    silent = lone.create("acl", "silent", client_connect_default="allow", subscribe_topic_exceptions=["free"])
    user = lone.create("username", "silent", acl_profile=silent)
    with lone.client(username=boss) as manager, lone.client(username=user, client_name="target") as target:
        assert subscribe_for(manager, "target", "ok/1", "free") == [0, errors.SUBSCRIBE_DENIED]
        assert [refused and refused[0] for refused in target.subscribe("ok/2", "free")] == [
            errors.SUBSCRIBE_DENIED,
            None,
        ]
        assert unsubscribe_for(manager, "target", "free") == [errors.SUBSCRIBE_DENIED]
        assert sorted(subscriptions_of(lone, "target")) == ["free", "ok/1"]
        assert unsubscribe_for(manager, "target", "ok/1") == [0]
        assert subscribe_for(target, "target", "free") == [errors.SUBSCRIPTION_MANAGER_DENIED]
        with lone.client() as publisher:
            publisher.publish_uncut([row(0, "ok/1"), row(1, "free", b"came")])
        assert [one[5] for one in wire.unpack(target.next(wire.DELIVER).batches[0])] == [b"came"]


@pytest.mark.requirement("R60")
def test_a_manager_has_no_control_over_the_guaranteed_messages_of_others(lone: LoneSpool) -> None:
    boss = manager_of(lone, subscribe_topic_default="allow")
    queue = lone.queue(permission="no-access", owner="somebody")
    with lone.client(username=boss) as manager, lone.client(client_name="reader"):
        filters = (f"#P2P/QUE/{queue}", "#P2P/QUE/*", "#P2P/>")
        assert subscribe_for(manager, "reader", *filters) == [errors.RESERVED_TOPIC] * 3
        assert subscribe_for(manager, queue, "b") == [errors.UNKNOWN_CLIENT_NAME]
        for operation, wish in (
            ("endpoint.subscribe", {"name": queue, "filters": ["b"]}),
            ("flow.bind", {"name": queue, "messages": 1, "bytes": 1}),
        ):
            assert manager.refused(operation, **wish) == errors.PERMISSION_DENIED
            assert manager.refused(operation, **wish, client="reader") == errors.INVALID_ARGUMENT
    assert lone.endpoint(queue)["subscriptions"] == []


@pytest.mark.requirement("R63")
def test_subscribing_for_another_is_as_fast_as_for_oneself(lone: LoneSpool) -> None:
    boss = manager_of(lone, subscribe_topic_default="allow")
    took: dict[str | None, float] = {}
    with lone.client(username=boss) as manager, lone.client(client_name="other"):
        for turn in range(3):
            for target in (None, "other"):
                texts = tuple(f"rate/{turn}/{number}" for number in range(256))
                began = time.monotonic()
                assert _manage(manager, wire.SUBSCRIBE, target, texts) == [0] * 256
                assert _manage(manager, wire.UNSUBSCRIBE, target, texts) == [0] * 256
                took[target] = min(took.get(target, LIMIT_S), time.monotonic() - began)
    assert took["other"] < SLOWER_MAX * took[None], took


# Owners.


@pytest.mark.requirement("R129", "R130", "R132")
def test_the_owner_may_do_everything_and_is_whom_the_operator_says(lone: LoneSpool) -> None:
    alice, bob = lone.user(), lone.user()
    queue = lone.queue(permission="no-access", owner=alice)
    needs: list[tuple[str, dict[str, Any]]] = [
        ("endpoint.show", {"name": queue}),
        ("endpoint.subscribe", {"name": queue, "filters": ["a"]}),
        ("flow.bind", {"name": queue, "messages": 1, "bytes": 1}),
    ]

    def expect_rights(client: RawGuaranteed, *, are_given: bool) -> None:
        for operation, wish in needs:
            code, value = client.request(operation, **wish)
            assert code == (0 if are_given else errors.PERMISSION_DENIED), (operation, value)
            if operation == "flow.bind" and not code:
                client.done("flow.unbind", flow=value["flow"])

    with lone.client(username=alice) as first, lone.client(username=bob) as second:
        expect_rights(first, are_given=True)
        expect_rights(second, are_given=False)
        assert first.refused("endpoint.delete", name=queue) == errors.OPERATOR_ENDPOINT
        flow = first.bind(queue)
        lone.update("queue", queue, owner=bob)
        assert first.indication(flow, wire.FLOW_CLOSED)[0] == errors.PERMISSION_DENIED
        expect_rights(first, are_given=False)
        expect_rights(second, are_given=True)


@pytest.mark.requirement("R111", "R129", "R131")
def test_who_may_create_an_endpoint_owns_it_and_may_delete_it(lone: LoneSpool) -> None:
    maker, other = lone.user(), lone.user(allow_endpoint_create=False)
    name = new_name("made")
    temporary = {"name": new_name("t"), "temporary": True, "messages": 1, "bytes": 1}
    with lone.client(username=maker) as client, lone.client(username=other) as stranger:
        assert stranger.refused("endpoint.create", name=name) == errors.ENDPOINT_CREATE_DENIED
        assert stranger.refused("flow.bind", **temporary) == errors.ENDPOINT_CREATE_DENIED
        client.done("flow.bind", **temporary)
        client.done("endpoint.create", name=name)
        assert lone.endpoint(name)["owner"] == maker
        assert stranger.refused("endpoint.delete", name=name) == errors.PERMISSION_DENIED
        client.done("endpoint.delete", name=name)


# Operators.


@pytest.mark.requirement("R99", "R119", "R134")
def test_what_the_management_api_provisions_is_in_force_when_it_answers(lone: LoneSpool) -> None:
    name, user = new_name("provisioned"), lone.user()
    lone.ask(
        "objects.create",
        kind="queue",
        name=name,
        attributes={"subscriptions": ["to/provisioned"], "permission": "none"},
    )
    assert lone.ask("objects.show", kind="queue", name=name)["permission"] == "no-access"
    with lone.client(username=user) as client:
        assert client.refused("flow.bind", name=name, messages=1, bytes=1) == errors.PERMISSION_DENIED
        lone.ask("objects.update", kind="queue", name=name, attributes={"permission": "consume"})
        lone.ask("objects.subscribe", name=name, add=["more/provisioned"])
        producer = RawProducer(client)
        rows = [
            (at, topic, wire.MODE_PERSISTENT, None, None, b"")
            for at, topic in enumerate(("to/provisioned", "more/provisioned"))
        ]
        assert producer.publish(*rows) == [0, 0]
        assert len(client.messages(client.bind(name), 2)) == 2
        lone.ask("objects.delete", kind="queue", name=name)
        assert client.refused("flow.bind", name=name, messages=1, bytes=1) == errors.UNKNOWN_ENDPOINT
