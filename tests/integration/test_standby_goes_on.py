"""What goes on over a fail-over: everything is under way at one primary when that is killed, and ends at the other one.

One pair of hosts is killed once for all tests here, with a neighbour that has a link to it and a bridge from it. Both
hosts have one certificate, which names the addresses of both, and each client has these.
"""

from __future__ import annotations

import functools
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import pytest

from angarium import DeliveryMode, Message, blocking, errors
from angarium_server.testing import Node
from cluster.admin.client import Admin
from cluster.data.node_file import HOST_LOCK_FILE
from gateway.mqtt.codec.acknowledge import PubAck, PubComp, PubRec, PubRel
from gateway.mqtt.codec.connect import Will
from gateway.mqtt.codec.control import Disconnect
from gateway.mqtt.codec.properties import Properties
from gateway.mqtt.codec.publish import Publish
from tests.crash.busy import Busy, end
from tests.integration.bridged import Operator
from tests.integration.etcd_servers import needs_etcd
from tests.integration.mqtt_clients import Raw
from tests.integration.pair_hosts import CLUSTER, NAME, Host, Pair
from tests.waiting import expect_value, wait_for, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.requirement("R271"), pytest.mark.timeout(400)]

LIMIT_S: Final = 60.0
#: How long what must not come is waited for.
SILENCE_S: Final = 0.3
#: Two queues that are used all the time, and what is in them before they are moved.
BUSY: Final = ("busy-1", "busy-2")
BACKLOG: Final = 3_000
PAUSE_S: Final = 0.1
#: Of a hand-over, on a machine that others use.
SWITCH_MAX_S: Final = 30.0
KEPT: Final = Properties(session_expiry_interval=600)
PAIR: Final = """
[mqtt]
listen = ["tcp://ADDRESS:MQTT"]
[vpn.default.username.default]
enabled = true
[vpn.default.profile.bridges]
allow_bridge_connections = true
[vpn.default.username.carrier]
client_profile = "bridges"
password_file = "password"
"""


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


def persistent(topic: str, payloads: list[bytes]) -> list[Message]:
    return [Message(topic, payload, mode=DeliveryMode.PERSISTENT) for payload in payloads]


def taken(client: blocking.Client, queue: str, count: int) -> list[bytes]:
    """Take so many messages of a queue, and see that there is no more."""
    with client.consume(queue) as flow:
        found = [flow.receive(LIMIT_S) for _ in range(count)]
        with pytest.raises(errors.TimeoutExpiredError):
            flow.receive(SILENCE_S)
        for message in found:
            flow.accept(message)
    return [message.payload for message in found]


class Neighbour:
    """A node of the same cluster, which knows both addresses."""

    def __init__(self, folder: Path, pair: Pair) -> None:
        config = folder / "near.toml"
        config.write_text(
            f'[node]\nname = "near"\n[cluster]\nname = "{CLUSTER}"\n'
            f'secret_file = "{pair.folder / "secret"}"\nca_file = "{pair.ca_file}"\n'
        )
        self.node = Node(folder / "near", workers=1, config=config)

    def __enter__(self) -> Self:
        self.node.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.node.stop()

    def client(self, vpn: str = "default") -> blocking.Client:
        return blocking.connect(self.node.url, vpn=vpn, timeout_s=LIMIT_S)


class Before(NamedTuple):
    """What is under way when the primary is killed."""

    client: blocking.Client
    producer: blocking.Producer
    flow: blocking.Flow
    group: blocking.ReaderGroup
    stages: list[str]
    first_url: str


class World:
    """The pair, its neighbour, and what the tests ask for."""

    def __init__(self, pair: Pair, near: Neighbour) -> None:
        self.pair, self.near = pair, near
        self.client = pair.client()
        self.before: Before
        #: Of each host, before the primary was killed.
        self.since = {name: host.status["since"] for name, host in pair.hosts.items()}
        self.after: Host
        self.killed: Host

    def bring_back(self) -> None:
        """Have the host that was killed as the standby, once."""
        if not self.killed.status["role"]:
            self.killed.up()
        self.pair.wait_in_sync()

    def admin(self, host: Host, operation: str, **arguments: Any) -> Any:
        with Admin(host.data) as admin:
            return admin.call(operation, **arguments)

    def make(self, kind: str, name: str, **attributes: Any) -> None:
        self.admin(
            self.pair.primary, "objects.create", kind=kind, vpn="default", name=name, attributes=attributes
        )


def join(world: World) -> None:
    """Make links in both directions, and a bridge, and queues behind them."""
    pair, near = world.pair, world.near
    world.make("link", "near", addresses=[near.node.url])
    world.make("queue", "linked", subscriptions=["linked/>"], permission="consume")
    world.make("queue", "bridged", subscriptions=["bridged/>"], permission="consume")
    with Operator(near.node) as operator:
        operator.make("link", "default", NAME, addresses=pair.urls)
        operator.make("queue", "default", "back", subscriptions=["back/>"])
        operator.make_vpns("sales")
        operator.make("queue", "sales", "bridged", subscriptions=["bridged/>"])
        operator.bridge(
            "sales",
            "from-pair",
            remote_vpn="default",
            addresses=pair.urls,
            remote_username="carrier",
            remote_password_file=str(pair.folder / "password"),
            remote_queue="bridged",
        )

        def subscribed() -> Any:
            found = operator.admin.call("endpoints.show", kind="queue", vpn="default", name=f"#link/{NAME}")
            return found["client_subscriptions"]

        wait_for(subscribed, lambda found: "linked/>" in found, "the link to the pair", LIMIT_S)
    host = pair.primary
    wait_for(
        lambda: world.admin(host, "endpoints.show", kind="queue", vpn="default", name="#link/near"),
        lambda found: "back/>" in found["client_subscriptions"],
        "the link of the pair",
        LIMIT_S,
        host.output,
    )


def send_over_links(world: World, start: int, end: int) -> None:
    """Send numbers to the pair over its neighbour's link, to the neighbour over the pair's, and over the bridge."""
    with world.near.client() as near:
        near.publish_many(persistent("linked/x", numbers(start, end)))
    world.client.publish_many(persistent("back/x", numbers(start, end)))
    world.client.publish_many(persistent("bridged/x", numbers(start, end)))


def begin(world: World) -> Before:
    """Have a flow with messages that are not acknowledged, a reader group with a plan, and two stages."""
    client = world.client
    for queue in ("flowing", "read", "staged"):
        client.create_queue(queue, access_type="exclusive")
    producer = client.producer("named")
    for payload in numbers(0, 5):
        producer.send(queue="flowing", payload=payload)
    producer.flush()
    flow = client.consume("flowing", ack="manual")
    got = [flow.receive(LIMIT_S) for _ in range(5)]
    for message in got[:2]:
        flow.accept(message)
    expect_value(lambda: client.show_queue("flowing")["messages"], 3, "messages that are not accepted")
    client.publish_many(persistent("#P2P/QUE/read", numbers(0, 10)))
    group = client.reader_group("read", "readers")
    group.plan({0: 1}, messages=6)
    stages = []
    for payloads in (numbers(0, 5), numbers(5, 10)):
        stage = client.stage()
        stage.publish_many(persistent("#P2P/QUE/staged", payloads))
        stage.close()
        stages.append(stage.id)
    assert client.commit_stages([stages[0]], "sink", 1)
    return Before(client, producer, flow, group, stages, client.url)


def begin_mqtt(world: World) -> None:
    """Have a session with messages that wait, one in the middle of QoS 2, a retained message, and a will."""
    url = world.pair.mqtt_url(world.pair.primary)
    with Raw(url) as device:
        assert device.connect("device", clean_start=False, properties=KEPT).code == 0
        assert device.subscribe("m/#", qos=2) == (2,)
        device.say(Disconnect())
    with Raw(url) as sender:
        assert sender.connect("sender", clean_start=False, properties=KEPT).code == 0
        sender.say(Publish("m/1", b"once", 1, 1))
        assert isinstance(sender.next(), PubAck)
        sender.say(Publish("r/1", b"kept", 1, 2, retain=True))
        assert isinstance(sender.next(), PubAck)
        sender.say(Publish("m/2", b"twice", 2, 3))
        assert isinstance(sender.next(), PubRec)
        # It has no PUBREL yet, and so no end.


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    needs_etcd()
    folder = tmp_path_factory.mktemp("goes-on")
    pair = Pair(folder / "pair")
    pair.configure(PAIR.replace("MQTT", str(pair.ports["mqtt"])))
    with pair, Neighbour(folder, pair) as near:
        world = World(pair, near)
        try:
            join(world)
            world.before = begin(world)
            begin_mqtt(world)
            with Raw(pair.mqtt_url(pair.primary)) as doomed:
                assert doomed.connect("doomed", will=Will("wills/1", b"gone")).code == 0
                send_over_links(world, 0, 50)
                world.killed, world.after = pair.fail_over()
            send_over_links(world, 50, 100)
            yield world
        finally:
            world.client.close()


@pytest.mark.requirement("R265")
def test_a_client_with_both_addresses_is_at_the_other_host_with_the_same_certificate(world: World) -> None:
    assert world.client.connected
    assert {world.before.first_url, world.client.url} == set(world.pair.urls)


@pytest.mark.requirement("R265")
def test_a_flow_goes_on_with_what_was_not_acknowledged_and_what_is_sent_next(world: World) -> None:
    flow, producer = world.before.flow, world.before.producer
    for payload in numbers(5, 8):
        producer.send(queue="flowing", payload=payload)
    producer.flush()
    got = [flow.receive(LIMIT_S) for _ in range(6)]
    assert [message.payload for message in got] == numbers(2, 8)
    assert [message.redelivered for message in got] == [True] * 3 + [False] * 3
    for message in got:
        flow.accept(message)
    expect_value(lambda: world.client.show_queue("flowing")["messages"], 0, "messages that are left")


def test_a_reader_group_reads_what_it_has_planned_and_plans_the_rest(world: World) -> None:
    client = world.client
    group = client.reader_group("read", "readers")
    assert group.continued
    assert group.positions()[0].planned == 7

    def read(start: int, end: int) -> list[bytes]:
        batches = client.read_range("read", "readers", 0, start, end)
        return [bytes(payload) for batch in batches for payload in batch.payloads]

    assert read(1, 7) == numbers(0, 6)
    group.acknowledge({0: 7})
    planned = group.plan({0: 7})[0]
    assert (planned.start, planned.end) == (7, 11)
    assert read(7, 11) == numbers(6, 10)
    group.acknowledge({0: 11})
    group.release()


def test_a_stage_is_published_once(world: World) -> None:
    client, (first, second) = world.client, world.before.stages
    assert client.commit_stages([first], "sink", 1) is False
    assert client.commit_stages([second], "sink", 2) is True
    assert client.commit_stages([second], "sink", 2) is False
    assert taken(client, "staged", 10) == numbers(0, 10)


def test_guaranteed_messages_cross_the_links_once_and_in_order(world: World) -> None:
    expect_value(
        lambda: world.client.show_queue("linked")["messages"], 100, "over the link to the pair", LIMIT_S
    )
    assert taken(world.client, "linked", 100) == numbers(0, 100)
    with world.near.client() as near:
        expect_value(lambda: near.show_queue("back")["messages"], 100, "over the link of the pair", LIMIT_S)
        assert taken(near, "back", 100) == numbers(0, 100)


def test_guaranteed_messages_cross_a_bridge_once_and_in_order(world: World) -> None:
    with world.near.client("sales") as near:
        expect_value(lambda: near.show_queue("bridged")["messages"], 100, "over the bridge", LIMIT_S)
        assert taken(near, "bridged", 100) == numbers(0, 100)


def test_sessions_of_mqtt_go_on_where_they_were(world: World) -> None:
    url = world.pair.mqtt_url(world.after)
    with Raw(url) as sender:
        assert sender.connect("sender", clean_start=False, properties=KEPT).session_present
        # It has heard PUBREC, and might have lost that.
        sender.say(Publish("m/2", b"twice", 2, 3, dup=True))
        assert isinstance(sender.next(), PubRec)
        sender.say(PubRel(3))
        assert isinstance(sender.next(), PubComp)
        sender.say(Disconnect())
    with Raw(url) as device:
        assert device.connect("device", clean_start=False, properties=KEPT).session_present
        got = device.come(2)
        assert [(one.payload, one.qos) for one in got] == [(b"once", 1), (b"twice", 2)]
        device.say(PubAck(got[0].packet_id), PubRec(got[1].packet_id))
        assert isinstance(device.next(), PubRel)
        device.say(PubComp(got[1].packet_id))
        device.say(Publish("m/3", b"last", 1, 9))
        rest = [device.next(), device.next()]
        assert [one.payload for one in rest if isinstance(one, Publish)] == [b"last"], "nothing comes twice"
        device.say(Disconnect())


def test_what_is_retained_stays_and_a_will_is_that_of_the_next_connection(world: World) -> None:
    """The router keeps wills in memory: those of clients whose host has died are published by nobody."""
    url = world.pair.mqtt_url(world.after)
    with Raw(url) as watcher, Raw(url) as doomed:
        assert watcher.connect("watcher").code == 0
        assert watcher.subscribe("r/#", "wills/#", qos=1) == (1, 1)
        kept = watcher.next()
        assert isinstance(kept, Publish)
        assert (kept.payload, kept.retain) == (b"kept", True)
        assert doomed.connect("doomed", will=Will("wills/1", b"gone again")).code == 0
        doomed.socket.close()
        gone = watcher.next()
        assert isinstance(gone, Publish)
        assert gone.payload == b"gone again"


@pytest.mark.long
@pytest.mark.requirement("R268")
def test_the_host_that_was_killed_comes_back_as_the_standby(world: World) -> None:
    left = Path((world.killed.data / HOST_LOCK_FILE).read_text())
    assert left.is_dir(), "who is killed removes nothing"
    world.bring_back()
    assert not left.exists()
    assert world.killed.status["role"] == "standby"
    found = json.loads(world.after.run("standby", "status", "--json"))
    assert {row["store"]: row["caught_up"] for row in found["stores"]} == {"0": True, "config": True}
    why = f"nothing was heard of {world.killed.name}, and its lease was over"
    assert found["why"] == why
    assert found["since"] > world.since[world.after.name], "it was the standby before"
    expect_value(functools.partial(_why_of, world.killed), why, "what the standby says of it", LIMIT_S)
    for command in ("status",), ("cluster", "status"):
        assert f"{world.after.name} began {found['begun']}: {why}" in world.after.run(*command)


def _why_of(host: Host) -> Any:
    """Give why there is the primary that there is, as a host says."""
    return host.status["why"]


def stores_of(host: Host) -> list[str]:
    return sorted(path.name for path in (host.data / "spool").iterdir() if path.name.isdecimal())


def scale(pair: Pair, workers: int) -> None:
    """Change the number of workers, and wait until both hosts have the stores of all of them and no others."""
    primary = pair.primary
    primary.run("worker", "scale", str(workers), "--wait", "--wait-timeout", "80")
    wanted = [str(index) for index in range(workers)]

    def stores() -> dict[str, Any]:
        found = json.loads(primary.run("standby", "status", "--json"))
        return {row["store"]: row["caught_up"] for row in found["stores"]}

    expected = dict.fromkeys([*wanted, "config"], True)
    wait_for(stores, lambda found: found == expected, "the stores are at both", LIMIT_S, primary.output)
    for host in pair.hosts.values():
        wait_for(
            lambda host=host: stores_of(host),  # type: ignore[misc]
            lambda found: found == wanted,
            f"the spools of {host.name}",
            LIMIT_S,
            host.output,
        )
    pair.wait_in_sync()


def homes_of(pair: Pair) -> set[int]:
    shown = [json.loads(pair.primary.run("queue", "show", queue, "--json")) for queue in BUSY]
    return {lane["home"] for one in shown for lane in one["lanes"]}


@pytest.mark.long
@pytest.mark.requirement("R96", "R190", "R268")
def test_workers_come_and_go_on_a_pair_and_what_was_acknowledged_is_there_after_a_fail_over(
    world: World,
) -> None:
    """Two queues are used all the time: more workers, a fail-over, fewer workers, a hand-over."""
    world.bring_back()
    pair = world.pair
    for queue in BUSY:
        world.client.create_queue(queue, access_type="exclusive", subscriptions=[f"in/{queue}"])
    busy = [Busy(pair.connect, queue, PAUSE_S) for queue in BUSY]
    try:
        wait_until(lambda: all(len(one.acknowledged) >= BACKLOG for one in busy), "a backlog", LIMIT_S)
        assert homes_of(pair) == {0}
        scale(pair, 2)
        wait_until(lambda: homes_of(pair) == {0, 1}, "a queue at the new worker", LIMIT_S)
        world.killed, world.after = pair.fail_over()
        assert homes_of(pair) == {0, 1}
        world.bring_back()
        scale(pair, 1)
        assert homes_of(pair) == {0}
        pair.hand_over()
        end(busy)
    finally:
        for one in busy:
            one.stop()


@pytest.mark.requirement("R269")
def test_a_hand_over_refuses_nobody_for_long(world: World) -> None:
    """About a second where twenty processes share two cores."""
    world.bring_back()
    client, before, url = world.client, world.pair.primary, world.client.url
    client.create_queue("handed")
    producer = client.producer("handing")
    longest_s, sent, got, again = 0.0, 0, list[bytes](), list[bytes]()
    with client.consume("handed", ack="manual") as flow:
        begun = time.monotonic()
        before.run("standby", "switch")
        moved_at: int | None = None
        while moved_at is None or sent < moved_at + 20:
            assert time.monotonic() - begun < LIMIT_S, "the other host has not taken over"
            since = time.monotonic()
            producer.send(queue="handed", payload=b"%d" % sent)
            producer.flush()
            sent += 1
            while len(got) < sent:
                message = flow.receive(LIMIT_S)
                (again if message.redelivered and message.payload in got else got).append(message.payload)
                flow.accept(message)
            longest_s = max(longest_s, time.monotonic() - since)
            if moved_at is None and client.url != url:
                moved_at = sent
    print(f"hand-over: sent, acknowledged and received again after {longest_s:.2f} s at most")
    assert got == numbers(0, sent)
    assert longest_s < SWITCH_MAX_S
    expect_value(lambda: before.status["role"], "standby", "what the host says that handed over", LIMIT_S)
    why = f"{before.name} stopped in order, or handed over"
    for host in world.pair.hosts.values():
        said = functools.partial(_why_of, host)
        expect_value(said, why, f"what {host.name} says of it", LIMIT_S)
    assert world.pair.primary is not before


@pytest.mark.long
@pytest.mark.requirement("R267", "R269")
def test_a_host_that_lacks_something_takes_over_by_force_only_and_that_is_written_down(world: World) -> None:
    """This is the end of the pair: what only the host that is lost had is lost."""
    world.bring_back()
    primary = world.pair.primary
    standby = next(host for host in world.pair.hosts.values() if host is not primary)
    standby.kill()
    wait_for(
        lambda: primary.status["in_sync"], lambda found: found == [primary.name], "it goes on alone", LIMIT_S
    )
    world.client.create_queue("only-here")
    primary.kill()
    standby.up()
    wait_for(
        lambda: standby.status,
        lambda status: status["role"] == "standby" and status["in_sync"] == [primary.name],
        "the other host seeing that it lacks something",
        LIMIT_S,
        standby.output,
    )
    told = standby.run("standby", "promote", "--force")
    assert f"what only {primary.name} has is lost" in told
    world.pair.wait_primary(standby)
    entries = wait_for(
        lambda: [json.loads(line) for line in standby.run("audit", "--json").splitlines()],
        lambda found: any(entry["operation"] == "standby.promote" for entry in found),
        "the promotion being written down",
        LIMIT_S,
        standby.output,
    )
    (entry,) = [entry for entry in entries if entry["operation"] == "standby.promote"]
    assert entry["asked"] == {"name": standby.name, "reason": f"what only {primary.name} has is lost"}
    assert entry["who"]
    with pytest.raises(errors.NotFoundError):
        world.client.show_queue("only-here")
