"""A bridge: who it says it is, what it subscribes to, and what it does about refusals."""

from __future__ import annotations

import random
from typing import Any

import pytest

from angarium import errors, wire
from angarium.errors import error_for
from cluster.bridge.bridge import BridgeChannel
from cluster.bridge.role import METRICS, BridgeConfig
from cluster.relay.pair import FAR, OWN, Connect, Disconnect, Effect, Emit, State, Surroundings
from cluster.relay.runtime import RelayRuntime
from router.ground.config import Identity
from tests.unit.declared_metrics import differences
from tests.welcome import welcome

IDENTITY = Identity(node_id="id-a", cluster="c", secret="outside", local_secret="inside")


def config(**changes: Any) -> BridgeConfig:
    given: dict[str, Any] = {
        "name": "br",
        "vpn": "mine",
        "remote_vpn": "theirs",
        "addresses": ["tls://far:1"],
        "server_name": "them",
        "ca_pem": "pem",
        "remote_username": "u",
        "remote_password_file": "/word",
        "remote_subscriptions": ["a/>", "b"],
        "remote_deliver_always_subscriptions": ["c"],
        "remote_deliver_to_one_priority": "p2",
        "remote_queue": "",
        "max_hops": 8,
        "neighbours": [],
    }
    return BridgeConfig(**{**given, **changes})


class Bench:
    """A bridge, and what it wants."""

    def __init__(self, **changes: Any) -> None:
        self.outbox: list[Effect] = []
        self.events: list[tuple[str, int]] = []
        self.now = 100.0
        self.words = {"/word": "secret"}
        runtime = RelayRuntime(node="a", identity=IDENTITY)
        around = Surroundings(runtime, 7, "ipc:///own", self.outbox, random.Random(1), lambda: 0.0)
        self.channel = BridgeChannel(around, config(**changes), self.read, self.now)

    def read(self, path: str) -> str:
        if path not in self.words:
            raise error_for(errors.INVALID_CONFIGURATION, path)
        return self.words[path]

    def effects(self) -> list[Effect]:
        found, self.outbox[:] = list(self.outbox), []
        for effect in found:
            if isinstance(effect, Disconnect):
                self.channel.forget(effect.side)
            elif isinstance(effect, Emit):
                assert effect.event["bridge"] == "br"
                self.events.append((effect.event["event"], effect.event["code"]))
        self.channel.validate()
        return found

    def wait(self, seconds: float) -> list[Effect]:
        self.now += seconds
        self.channel.tick(self.now)
        return self.effects()

    def until_connect(self) -> Connect:
        for _ in range(1_000):
            for effect in self.wait(0.01):
                if isinstance(effect, Connect):
                    return effect
        raise AssertionError("it does not connect")

    def sent(self, side: int) -> list[tuple[bytes, Any]]:
        session = self.channel.sessions[side]
        assert session is not None
        outgoing = session.take_outgoing()
        found = [(frames[0], wire.unpack(frames[1])) for frames in outgoing]
        outgoing.clear()
        return found

    def welcome(self, side: int, node: str) -> None:
        link = {"node": node, "node_id": f"id-{node}", "wall_ms": 0}
        body = welcome(node=node, max_batch_rows=1_000, max_batch_bytes=1 << 20, link=link)
        self.receive(side, wire.WELCOME, body)

    def receive(self, side: int, operation: bytes, header: Any) -> None:
        self.channel.received(side, [operation, wire.pack(header)], self.now)

    def up(self) -> list[tuple[bytes, Any]]:
        """Come up; gives what is said to the far router then."""
        self.until_connect()
        self.sent(FAR)
        self.welcome(FAR, "b")
        self.effects()
        self.sent(OWN)
        self.welcome(OWN, "a")
        self.effects()
        assert self.channel.state is State.UP
        return self.sent(FAR)

    def state(self) -> str:
        found: str = self.channel.describe(self.now)["state"]
        return found


def test_it_comes_as_a_client_over_there_and_with_the_secret_of_the_run_here() -> None:
    bench = Bench()
    connect = bench.until_connect()
    assert (connect.side, connect.url, connect.trust) == (FAR, "tls://far:1", ("them", "pem"))
    ((operation, hello),) = bench.sent(FAR)
    assert operation == wire.HELLO
    assert (hello["vpn"], hello["username"], hello["password"]) == ("theirs", "u", "secret")
    assert hello["local_priority"] == hello["network_priority"] == 2
    who = {"name": "br", "vpn": "mine", "node": "a", "node_id": "id-a", "incarnation": 7}
    assert hello["bridge"] == who
    assert "behalf" not in hello
    bench.welcome(FAR, "b")
    (connect,) = [effect for effect in bench.effects() if isinstance(effect, Connect)]
    assert (connect.side, connect.url, connect.trust) == (OWN, "ipc:///own", ("", ""))
    ((_, hello),) = bench.sent(OWN)
    assert (hello["vpn"], hello["username"], hello.get("password")) == ("mine", "#bridge", None)
    assert hello["behalf"] == {"secret": "inside"}
    assert hello["bridge"] == who


@pytest.mark.parametrize(
    "frames",
    [
        [wire.DELIVER, wire.pack([0, [[1, None]], 0]), b"\xc1"],
        [wire.DELIVER, wire.pack([0, [[1, None]], 0]), wire.pack([[0, 7, 0, None, None, b""]])],
        [wire.MESSAGES, wire.pack([5, [[0, 1, [[1, 1]], None, 0, None]]]), b"\xc1"],
        [wire.ANSWER],
    ],
)
def test_what_no_router_sends_costs_the_connection_and_not_the_process(frames: list[bytes]) -> None:
    """Batches are opened here only; and the far router may be of another organisation, or of another version."""
    bench = Bench(remote_queue="q")
    said = bench.up()
    number = next(header[0] for operation, header in said if operation == wire.REQUEST)
    if frames[0] == wire.MESSAGES:
        bench.receive(FAR, wire.ANSWER, [number, 0, {"flow": 5, "endpoint_id": 9, "active": True}])
    elif frames[0] == wire.ANSWER:
        frames = [*frames, wire.pack([number, 0, {}])]
    bench.channel.received(FAR, frames, bench.now)
    bench.effects()
    assert bench.channel.error is not None
    assert bench.channel.error.code == errors.MALFORMED_FRAME
    assert ("VPN_BRIDGE_REFUSED", errors.MALFORMED_FRAME) in bench.events


def test_without_addresses_it_logs_in_a_client_of_this_host_at_the_own_router() -> None:
    bench = Bench(addresses=[], server_name="")
    connect = bench.until_connect()
    assert (connect.side, connect.url, connect.trust) == (FAR, "ipc:///own", ("", ""))
    ((_, hello),) = bench.sent(FAR)
    assert (hello["username"], hello["password"]) == ("u", "secret")
    assert hello["behalf"] == {"secret": "inside", "address": "127.0.0.1"}


@pytest.mark.parametrize(("priority", "flag"), [("p1", 0), ("p4", 0), ("da", 1)])
def test_it_subscribes_to_what_it_names(priority: str, flag: int) -> None:
    said = Bench(remote_deliver_to_one_priority=priority).up()
    assert said == [(wire.SUBSCRIBE, [1, [["a/>", flag], ["b", flag], ["c", 1]], None])]


def test_very_many_subscriptions_go_in_several_requests() -> None:
    said = Bench(remote_subscriptions=[f"t/{n}" for n in range(1_000)]).up()
    assert [len(body[1]) for _, body in said] == [256, 256, 256, 233]


def test_a_refused_subscription_takes_it_down_and_is_told_once() -> None:
    bench = Bench()
    for _ in range(3):
        bench.up()
        bench.receive(FAR, wire.SUBACK, [1, [None, [errors.SUBSCRIBE_DENIED, "b"], None]])
        bench.effects()
        assert bench.state() == "down"
        assert "'b'" in str(bench.channel.error)
    assert [code for event, code in bench.events if event == "VPN_BRIDGE_REFUSED"] == [
        errors.SUBSCRIBE_DENIED
    ]


def test_a_password_file_is_read_for_every_connection() -> None:
    bench = Bench(remote_password_file="/later")
    bench.wait(0.01)
    assert bench.channel.error is not None
    assert bench.channel.error.code == errors.INVALID_CONFIGURATION
    bench.words["/later"] = "known"
    bench.until_connect()
    assert bench.sent(FAR)[0][1]["password"] == "known"


def test_up_and_down_are_told_with_the_reason() -> None:
    bench = Bench()
    bench.up()
    assert bench.state() == "starting", "its subscriptions are not in force yet"
    bench.receive(FAR, wire.SUBACK, [1, [None, None, None]])
    assert bench.state() == "up"
    bench.channel.lost(OWN, error_for(errors.NOT_CONNECTED, "gone"), bench.now)
    bench.effects()
    bench.up()
    bench.channel.leave(bench.now)
    bench.effects()
    assert bench.events == [
        ("VPN_BRIDGE_UP", 0),
        ("VPN_BRIDGE_DOWN", errors.NOT_CONNECTED),
        ("VPN_BRIDGE_UP", 0),
        ("VPN_BRIDGE_DOWN", errors.SHUTTING_DOWN),
    ]


def test_a_queue_that_is_refused_is_asked_for_again_and_direct_messages_come_meanwhile() -> None:
    bench = Bench(remote_queue="q")
    said = bench.up()
    binds = [body for operation, body in said if operation == wire.REQUEST]
    bench.receive(FAR, wire.SUBACK, [1, [None, None, None]])
    assert bench.state() == "starting"
    pauses = []
    for _ in range(6):
        bench.receive(FAR, wire.ANSWER, [binds[-1][0], errors.UNKNOWN_ENDPOINT, "queue q"])
        bench.effects()
        assert bench.state() == "degraded"
        asked_at = bench.now
        binds = []
        while not binds:
            bench.wait(0.05)
            for side in (FAR, OWN):  # both are alive
                bench.receive(side, wire.PONG, [1])
            binds = [body for operation, body in bench.sent(FAR) if operation == wire.REQUEST]
        assert binds[-1][1] == "flow.bind"
        pauses.append(bench.now - asked_at)
    assert pauses == sorted(pauses)
    assert 0.4 < pauses[0] < 0.7
    assert 4.9 < pauses[-1] < 5.2
    assert [code for event, code in bench.events if event == "VPN_BRIDGE_REFUSED"] == [
        errors.UNKNOWN_ENDPOINT
    ]
    bench.receive(FAR, wire.ANSWER, [binds[-1][0], 0, {"flow": 1, "endpoint_id": 4, "active": False}])
    assert bench.state() == "standby"
    bench.receive(FAR, wire.INDICATION, [1, wire.FLOW_ACTIVE, 0, None])
    ((_, opening),) = [one for one in bench.sent(OWN) if one[0] == wire.REQUEST]
    assert opening[1:] == ["producer.open", {"name": "#bridge/id-b/4"}]
    bench.receive(OWN, wire.ANSWER, [opening[0], 0, {"producer": 2}])
    assert bench.state() == "up"


def test_a_bridge_whose_queue_is_leased_stands_by_until_that_is_over() -> None:
    bench = Bench(remote_queue="q")
    ((number, _, _),) = [body for operation, body in bench.up() if operation == wire.REQUEST]
    bench.receive(FAR, wire.SUBACK, [1, [None] * 3])
    bench.receive(FAR, wire.ANSWER, [number, 0, {"flow": 1, "endpoint_id": 4, "active": True}])
    ((_, opening),) = [one for one in bench.sent(OWN) if one[0] == wire.REQUEST]
    bench.receive(OWN, wire.ANSWER, [opening[0], 0, {"producer": 2}])
    states = []
    for event in (wire.FLOW_INACTIVE, wire.FLOW_ACTIVE):
        bench.receive(FAR, wire.INDICATION, [1, event, 0, None])
        states.append(bench.state())
    assert states == ["standby", "up"]
    assert [one for one in bench.sent(OWN) if one[0] == wire.REQUEST] == [], "its producer is open"


def test_a_link_of_the_node_changes_what_is_dropped_and_not_the_connection() -> None:
    bench = Bench()
    bench.up()
    bench.channel.join(["b"])
    assert bench.effects() == []
    assert bench.channel.state is State.UP
    row = [0, "a/1", 0, [0, 0, None, [None, "b/mine"]], None, b""]
    frames = [wire.DELIVER, wire.pack([0, [[1, None]], 0]), wire.pack([row])]
    bench.channel.received(FAR, frames, bench.now)
    assert bench.channel.describe(bench.now)["dropped"]["visited"] == 1


def test_every_figure_of_a_bridge_has_a_type_in_prometheus() -> None:
    bench = Bench(remote_queue="q")
    bench.up()
    assert differences(METRICS, bench.channel.describe(bench.now), ["up"]) == []


def test_what_the_remote_queue_holds_is_looked_at_now_and_then() -> None:
    bench = Bench(remote_queue="q")
    ((number, _, _),) = [body for operation, body in bench.up() if operation == wire.REQUEST]
    bench.receive(FAR, wire.ANSWER, [number, 0, {"flow": 1, "endpoint_id": 4, "active": False}])
    bench.wait(0.1)
    ((number, operation, arguments),) = [body for kind, body in bench.sent(FAR) if kind == wire.REQUEST]
    assert (operation, arguments) == ("endpoint.show", {"name": "q"})
    bench.receive(FAR, wire.ANSWER, [number, 0, {"messages": 17}])
    assert bench.channel.describe(bench.now)["queued_messages"] == 17
    bench.wait(0.5)
    assert [body for kind, body in bench.sent(FAR) if kind == wire.REQUEST] == []
