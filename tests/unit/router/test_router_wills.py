"""Wills of clients of gateways at a router with real workers and homes: when they are published, and as whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from angarium import errors, wire
from angarium.message import HEADER_KEYS, pack_fields, unpack_properties
from angarium.topic import slot_of
from angarium_server.costs import WILL_BYTES
from cluster import objects
from router.gateways.wills import WILLS_PER_STEP
from router.sessions.directory import guest
from tests.unit.router.publish_rig import PublishNode
from tests.unit.router.wired_gateway import IDENTITY, FakeAttached, FakeGateway
from tests.unit.router.wired_node import snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = snapshot(
    ("username", "default", "default", {}),
    ("username", "default", "alice", {}),
    ("profile", "default", "poor", {"max_memory_bytes_per_client_username": 5_000}),
    ("username", "default", "poor", {"client_profile": "poor"}),
)
TOPIC = "gone/dev"
QUEUE = "#mqtt/dev"
ANEW: dict[str, Any] = {"behalf": {"clean": True}}


@pytest.fixture
def node() -> Any:
    made = PublishNode(2, ROWS, identity=IDENTITY)
    yield made
    made.validate()


@pytest.fixture
def gateway(node: PublishNode) -> FakeGateway:
    made = FakeGateway(node)
    assert made.welcome
    return made


def will(
    payload: bytes = b"gone", *, qos: int = 0, retain: bool = False, delay_s: int = 0, topic: str = TOPIC
) -> list[Any]:
    flags = wire.MODE_PERSISTENT if qos else wire.MODE_DIRECT
    return [topic, flags | (wire.FLAG_RETAIN if retain else 0), None, None, payload, delay_s]


def attach(gateway: FakeGateway, given: list[Any] | None = None, **fields: Any) -> FakeAttached:
    behalf = {} if given is None else {"will": given}
    behalf |= fields.pop("behalf", {})
    return gateway.attach(**{"client_name": "dev", "behalf": behalf, **fields})


def keep_session(node: PublishNode, name: str = QUEUE, owner: str = "default") -> None:
    """Let the client have a session that outlives its connection."""
    node.queue(name, owner=owner)


def subscriber(node: PublishNode, topic: str = "gone/>") -> Any:
    made = node.client()
    made.subscribe(topic)
    return made


def step(node: PublishNode, seconds: float = 0.0) -> None:
    node.advance(seconds)


def leaves(client: FakeAttached, within_s: int) -> None:
    """Its connection ends without DISCONNECT, and its gateway says so."""
    client.send(wire.BYE, [within_s])


def breaks_a_rule(client: FakeAttached) -> None:
    client.send(b"nonsense", [])


def is_thrown_out(client: FakeAttached) -> None:
    client.node.router.operators.disconnect("default", "dev", client.node.now)
    client.node.settle()


def is_replaced(client: FakeAttached) -> None:
    attach(FakeGateway(client.node, index=1))


def loses_its_gateway(client: FakeAttached) -> None:
    client.gateway.die()


ENDS = pytest.mark.parametrize(
    "end", [lambda one: leaves(one, 60), breaks_a_rule, is_thrown_out, is_replaced, loses_its_gateway]
)


@ENDS
def test_it_is_published_when_the_client_ends_in_any_other_way(
    node: PublishNode, gateway: FakeGateway, end: Callable[[FakeAttached], None]
) -> None:
    node.queue("q", "gone/>")
    watcher = subscriber(node)
    end(attach(gateway, will(qos=1)))
    step(node)
    assert watcher.payloads() == [b"gone"]
    assert [(row.payload, row.flags) for row in node.stored("q")] == [(b"gone", wire.MODE_PERSISTENT)]
    step(node, 120)
    assert watcher.payloads() == []
    assert len(node.stored("q")) == 1


def test_it_is_not_published_when_the_client_is_done(node: PublishNode, gateway: FakeGateway) -> None:
    watcher = subscriber(node)
    attach(gateway, will()).bye()
    gateway.die()
    step(node, 120)
    assert watcher.payloads() == []


def test_who_has_none_leaves_none(node: PublishNode, gateway: FakeGateway) -> None:
    watcher = subscriber(node, ">")
    attach(gateway)
    gateway.die()
    step(node)
    assert watcher.payloads() == []
    assert node.router.stats()["wills_waiting"] == 0


def test_it_is_that_of_the_client_with_what_it_says(node: PublishNode, gateway: FakeGateway) -> None:
    watcher = subscriber(node)
    properties = pack_fields({HEADER_KEYS["content_type"]: "text", HEADER_KEYS["sender_id"]: "liar"})
    given = [TOPIC, 0, [5_000, 0, None, None], properties, b"x", 0]
    leaves(attach(gateway, given), 0)
    step(node)
    ((_, topic, flags, meta, packed, payload),) = watcher.rows()
    assert (topic, flags, meta, payload) == (TOPIC, 0, [5_000, 0, None, None], b"x")
    said = unpack_properties(packed)
    assert said == {HEADER_KEYS["content_type"]: "text", HEADER_KEYS["sender_id"]: "dev"}


@pytest.mark.parametrize("qos", [0, 1])
def test_a_retained_one_is_kept(node: PublishNode, gateway: FakeGateway, qos: int) -> None:
    node.queue(wire.RETAINED_QUEUE)
    leaves(attach(gateway, will(qos=qos, retain=True)), 0)
    step(node)
    assert node.payloads(wire.RETAINED_QUEUE) == [b"gone"]


def test_a_guaranteed_one_survives_the_worker_that_has_it(node: PublishNode, gateway: FakeGateway) -> None:
    node.queue("q", "gone/>", home=1)
    watcher = subscriber(node)
    for index in (0, 1):
        node.pause(index)
    leaves(attach(gateway, will(qos=1)), 0)
    step(node)
    for index in (0, 1):
        node.restart_worker(index)
    step(node, 1)
    assert node.payloads("q") == [b"gone"]
    assert watcher.payloads() == [b"gone"]


def test_a_guaranteed_one_waits_for_the_homes(node: PublishNode, gateway: FakeGateway) -> None:
    node.queue("q", "gone/>", home=1)
    client = attach(gateway, will(qos=1))
    node.silent.add(1)
    node.restart_worker(1)
    leaves(client, 0)
    step(node, 1)
    assert node.payloads("q") == []
    node.silent.clear()
    node.restart_worker(1)
    step(node, 1)
    assert node.payloads("q") == [b"gone"]


def test_one_that_a_queue_has_no_room_for_is_counted(node: PublishNode, gateway: FakeGateway) -> None:
    node.queue("q", "gone/>", max_message_bytes=1)
    leaves(attach(gateway, will(qos=1)), 0)
    step(node)
    assert node.payloads("q") == []
    assert node.router.stats()["spool"]["nacks"] == 1


# -- delay -----------------------------------------------------------------------------------------------------


def test_it_waits_for_its_delay(node: PublishNode, gateway: FakeGateway) -> None:
    keep_session(node)
    watcher = subscriber(node)
    leaves(attach(gateway, will(delay_s=30)), 60)
    step(node, 29.9)
    assert watcher.payloads() == []
    assert node.router.stats()["wills_waiting"] == 1
    step(node, 0.2)
    assert watcher.payloads() == [b"gone"]
    assert node.router.stats()["wills_waiting"] == 0


def test_it_does_not_wait_for_longer_than_the_session_is_kept(
    node: PublishNode, gateway: FakeGateway
) -> None:
    keep_session(node)
    watcher = subscriber(node)
    leaves(attach(gateway, will(delay_s=30)), 10)
    step(node, 10.1)
    assert watcher.payloads() == [b"gone"]


def test_it_does_not_wait_without_a_session(node: PublishNode, gateway: FakeGateway) -> None:
    watcher = subscriber(node)
    leaves(attach(gateway, will(delay_s=30)), 60)
    step(node)
    assert watcher.payloads() == [b"gone"]


def test_it_is_published_when_an_operator_deletes_the_session(
    node: PublishNode, gateway: FakeGateway
) -> None:
    keep_session(node)
    watcher = subscriber(node)
    leaves(attach(gateway, will(delay_s=30)), 60)
    node.drop(QUEUE)
    step(node)
    assert watcher.payloads() == [b"gone"]


@ENDS
def test_who_comes_back_cancels_it_wherever_that_is(
    node: PublishNode, gateway: FakeGateway, end: Callable[[FakeAttached], None]
) -> None:
    keep_session(node)
    watcher = subscriber(node)
    end(attach(gateway, will(delay_s=30)))
    step(node)
    if node.router.sessions.find("default", "dev") is None:
        step(node, 10)
        attach(FakeGateway(node, index=2), will(b"new", delay_s=30))
    step(node, 60)
    assert watcher.payloads() == []
    step(node, 60)
    assert node.router.memory.bytes == sum(
        one.memory_bytes for one in (*node.router.sessions, *node.router.endpoints)
    )


def test_who_begins_anew_ends_the_session_and_so_the_wait(node: PublishNode, gateway: FakeGateway) -> None:
    keep_session(node)
    watcher = subscriber(node)
    leaves(attach(gateway, will(delay_s=30)), 60)
    attach(gateway, **ANEW)
    step(node)
    assert watcher.payloads() == [b"gone"]


def test_who_takes_the_place_to_begin_anew_does_so_too(node: PublishNode, gateway: FakeGateway) -> None:
    keep_session(node)
    watcher = subscriber(node)
    attach(gateway, will(delay_s=30))
    attach(gateway, will(b"new"), **ANEW)
    step(node)
    assert watcher.payloads() == [b"gone"]
    gateway.die()
    step(node)
    assert watcher.payloads() == [b"new"]


def test_somebody_else_of_that_name_does_not_cancel_it(node: PublishNode, gateway: FakeGateway) -> None:
    keep_session(node)
    watcher = subscriber(node)
    leaves(attach(gateway, will(delay_s=30)), 60)
    attach(gateway, username="alice")
    step(node, 31)
    assert watcher.payloads() == [b"gone"]


def test_a_client_that_comes_and_goes_leaves_nothing_behind(node: PublishNode, gateway: FakeGateway) -> None:
    keep_session(node)
    for _ in range(1_100):
        leaves(attach(gateway, will(delay_s=1_000)), 2_000)
    assert node.router.stats()["wills_waiting"] == 1
    assert len(node.router.wills._times) <= 1_003


# -- order -----------------------------------------------------------------------------------------------------


def topic_at(node: PublishNode, worker: int) -> str:
    """Give a topic of a worker."""
    table = node.router.shards.table
    return next(topic for topic in map("gone/{}".format, range(100)) if table[slot_of(topic)] == worker)


def published_behind_another(node: PublishNode, gateway: FakeGateway) -> FakeAttached:
    """Have a client leave whose last message waits for one of others, at a worker that is paused."""
    client = attach(gateway, will(topic=topic_at(node, 1)))
    node.pause(0)
    gateway.publish((topic_at(node, 0), b"of others"))
    gateway.publish((topic_at(node, 1), b"before"))
    leaves(client, 0)
    step(node, 1)
    return client


def test_it_comes_behind_what_its_client_has_published(node: PublishNode, gateway: FakeGateway) -> None:
    watcher = subscriber(node)
    published_behind_another(node, gateway)
    assert watcher.payloads() == []
    node.unpause(0)
    step(node, 1)
    assert watcher.payloads() == [b"of others", b"before", b"gone"]


def test_it_does_not_wait_for_a_gateway_that_is_gone(node: PublishNode, gateway: FakeGateway) -> None:
    watcher = subscriber(node)
    published_behind_another(node, gateway)
    gateway.die()
    node.kill_worker(0)
    step(node, 1)
    assert watcher.payloads() == [b"before", b"gone"]


def test_it_comes_before_what_its_client_says_when_it_is_back(
    node: PublishNode, gateway: FakeGateway
) -> None:
    watcher = subscriber(node)
    published_behind_another(node, gateway)
    attach(FakeGateway(node, index=1))
    assert watcher.payloads() == [b"gone"]
    node.unpause(0)
    step(node, 1)
    assert watcher.payloads() == [b"of others", b"before"]


# -- rights ----------------------------------------------------------------------------------------------------


def refusal(node: PublishNode) -> int:
    """Give the code of the event about the only will that was refused."""
    found = [one for one in node.events if one["event"] == "CLIENT_WILL_REFUSED"]
    (event,) = found
    assert (event["client"], event["username"], event["vpn"]) == ("dev", "default", "default")
    counters = node.router.counters.totals
    assert (counters["wills_refused"], counters.get("wills_published", 0)) == (1, 0)
    return int(event["code"])


@pytest.mark.parametrize("qos", [0, 1])
def test_the_acl_profile_is_asked_when_it_is_published(
    node: PublishNode, gateway: FakeGateway, qos: int
) -> None:
    keep_session(node)
    node.queue("q", "gone/>")
    watcher = subscriber(node)
    leaves(attach(gateway, will(qos=qos, delay_s=30)), 60)
    node.forbid("gone/*")
    step(node, 31)
    assert watcher.payloads() == node.payloads("q") == []
    assert refusal(node) == errors.PUBLISH_DENIED
    assert node.router.counters.totals["discard.publish-topic-acl"] == 1


def test_what_was_forbidden_may_be_published_when_it_is_allowed(
    node: PublishNode, gateway: FakeGateway
) -> None:
    node.forbid("gone/*")
    watcher = subscriber(node)
    client = attach(gateway, will())
    node.forbid()
    leaves(client, 0)
    step(node)
    assert watcher.payloads() == [b"gone"]


def test_who_may_send_no_guaranteed_message_leaves_none(node: PublishNode, gateway: FakeGateway) -> None:
    client = attach(gateway, will(qos=1))
    node.change_profile(allow_guaranteed_send=False)
    leaves(client, 0)
    step(node)
    assert refusal(node) == errors.GUARANTEED_SEND_DENIED


def test_a_username_that_was_disabled_publishes_nothing(node: PublishNode, gateway: FakeGateway) -> None:
    watcher = subscriber(node)
    attach(gateway, will())
    disabled = objects.complete("username", {"enabled": False})
    node.router.operators.put_object("username", "default", "default", disabled, node.now)
    node.settle()
    step(node, 1)
    assert watcher.payloads() == []
    assert refusal(node) == errors.USERNAME_SHUTDOWN


def test_a_guest_has_the_rights_of_his_token_though_nobody_knows_him_any_more(
    node: PublishNode, gateway: FakeGateway
) -> None:
    watcher = subscriber(node)
    client = attach(gateway, will())
    session = node.router.sessions.find("default", "dev")
    assert session is not None
    session.will = msgspec.structs.replace(
        session.will, username="somebody", guest=guest("somebody", "default", "default")
    )
    leaves(client, 0)
    step(node)
    assert watcher.payloads() == [b"gone"]


def test_a_message_vpn_that_is_closed_publishes_nothing(node: PublishNode, gateway: FakeGateway) -> None:
    attach(gateway, will())
    node.change_vpn(enabled=False)
    step(node, 1)
    assert refusal(node) == errors.VPN_UNAVAILABLE


def test_a_topic_of_the_broker_is_not_published_to(node: PublishNode, gateway: FakeGateway) -> None:
    leaves(attach(gateway, will(topic="#noexport/x")), 0)
    step(node)
    assert refusal(node) == errors.RESERVED_TOPIC


# -- limits ----------------------------------------------------------------------------------------------------


def test_it_is_charged_to_the_client_and_then_to_its_username(
    node: PublishNode, gateway: FakeGateway
) -> None:
    keep_session(node)
    before = node.router.memory.bytes
    client = attach(gateway, will(bytes(1_000), delay_s=30))
    cost = node.router.memory.bytes - before
    assert cost == WILL_BYTES + len(TOPIC) + 1_000
    session = node.router.sessions.find("default", "dev")
    assert session is not None
    assert session.memory_bytes == cost
    leaves(client, 60)
    assert node.router.memory.bytes == before + cost
    step(node, 31)
    assert node.router.memory.bytes == before
    attach(gateway, will()).bye()
    assert node.router.memory.bytes == before


def test_who_would_have_too_much_is_not_let_in(node: PublishNode, gateway: FakeGateway) -> None:
    client = gateway.client()
    client.attach(username="poor", client_name="dev", behalf={"will": will(bytes(5_000))})
    assert client.closed_with() == errors.MEMORY_EXCEEDED
    assert node.router.sessions.find("default", "dev") is None
    keep_session(node, owner="poor")
    leaves(attach(gateway, will(bytes(3_000), delay_s=30), username="poor"), 60)
    other = gateway.client()
    other.attach(username="poor", client_name="other", behalf={"will": will(bytes(3_000))})
    assert other.closed_with() == errors.MEMORY_EXCEEDED


@pytest.mark.parametrize(
    "given",
    [
        [],
        [TOPIC, 1 << 9, None, None, b"", 0],
        [TOPIC, 0, None, None, b"", -1],
        [TOPIC, 0, None, None, bytes(65_536), 0],
    ],
)
def test_what_is_no_will_is_refused(gateway: FakeGateway, given: list[Any]) -> None:
    client = gateway.client()
    client.attach(behalf={"will": given})
    assert client.closed_with() == errors.MALFORMED_FRAME


def test_a_bye_that_says_too_much_is_malformed(node: PublishNode, gateway: FakeGateway) -> None:
    watcher = subscriber(node)
    client = attach(gateway, will())
    client.send(wire.BYE, [1, 2])
    assert client.closed_with() == errors.MALFORMED_FRAME
    step(node)
    assert watcher.payloads() == [b"gone"]


def test_many_that_are_due_at_once_are_published_in_steps(node: PublishNode, gateway: FakeGateway) -> None:
    watcher = subscriber(node)
    count = 2 * WILLS_PER_STEP + 1
    for number in range(count):
        attach(gateway, will(b"%d" % number), client_name=f"dev{number}")
    gateway.die()
    published = []
    while node.router.sessions.find("default", f"dev{count - 1}") or node.router.wills:
        before = node.router.counters.totals.get("wills_published", 0)
        node.router.tick(node.now)
        published.append(node.router.counters.totals["wills_published"] - before)
        node.settle()
    assert max(published) == WILLS_PER_STEP
    assert sorted(watcher.payloads(), key=int) == [b"%d" % number for number in range(count)]


def test_a_router_that_goes_down_publishes_those_that_wait(node: PublishNode, gateway: FakeGateway) -> None:
    keep_session(node)
    node.queue("q", "gone/>")
    leaves(attach(gateway, will(qos=1, delay_s=30)), 60)
    attach(gateway, will(b"here", qos=1), client_name="other")
    node.hold()
    while not node.router.drain(node.now) and node.router.wills:
        step(node)
    assert not node.router.drain(node.now)
    node.commit()
    step(node)
    assert node.router.drain(node.now)
    assert sorted(node.payloads("q")) == [b"gone", b"here"]
