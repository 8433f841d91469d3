"""What a gateway process of MQTT is told, and when it looks at which client."""

from __future__ import annotations

import random
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from angarium import errors
from angarium_server.watch import Watch
from cluster.configuration.config import NodeConfig
from cluster.configuration.mqtt import MqttAddress, MqttSection, address_of, with_port
from cluster.data.node_file import NodeFile
from cluster.mqtt.crowd import NEVER, STALE_MAX, Deadlines
from cluster.mqtt.role import MqttRuntime, of_mqtt
from cluster.mqtt.server import LOOK_S, SWEEP_S, MqttServer, door_limits, settings_of
from cluster.roles.role import InForce
from gateway.mqtt.codec.subscribe import Subscription
from gateway.mqtt.delivering import MqttSubscription
from router.ground.config import Identity

if TYPE_CHECKING:
    from angarium.errors import AngariumError
    from angarium_server.process import Process
    from gateway.mqtt.clients.client import Client
    from gateway.mqtt.delivering import MqttReceiver


class Idle:
    """The process, as far as a gateway to which nobody comes needs it."""

    index, incarnation, stopping = 0, 1, False

    def __init__(self, runtime_dir: Path) -> None:
        self.runtime_dir = runtime_dir
        self._watch = Watch()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._watch, name)

    def on_request(self, handler: object) -> None:
        pass

    def ready(self, info: object) -> None:
        pass


def test_no_turn_of_an_idle_process_wants_the_next_one_at_once(tmp_path: Path) -> None:
    """It looks at the clock now and then only; what is due between two looks waits for the next one."""
    (tmp_path / "mqtt.json").write_bytes(msgspec.json.encode(told()))
    process = Idle(tmp_path)
    server = MqttServer(cast("Process", process))
    began = time.monotonic()
    waits = [server.tick(began + turn / 1000) for turn in range(3 * int(SWEEP_S * 1000))]
    server.close()
    process.close()
    assert min(waits) > 0.0
    assert max(waits) <= SWEEP_S


class Faulty:
    """A client whose time leads to a fault of the gateway."""

    def __init__(self) -> None:
        self.codes: list[int] = []

    def tick(self, _now: float) -> float:
        raise KeyError(7)

    def heard(self, _now: float) -> None:
        """It is not read."""

    def end(self, error: AngariumError, _now: float) -> None:
        self.codes.append(error.code)


def test_a_fault_in_what_is_due_of_a_client_costs_that_client_only(tmp_path: Path) -> None:
    (tmp_path / "mqtt.json").write_bytes(msgspec.json.encode(told()))
    process = Idle(tmp_path)
    server = MqttServer(cast("Process", process))
    woken, late, looking = clients = [Faulty(), Faulty(), Faulty()]
    for number, client in enumerate(clients):
        server._clients[b"%d" % number] = cast("Client", client)
    now = time.monotonic()
    server.wake(b"0", now)
    server.admitted(b"1")
    server.lookups.put_off(b"2")
    server.tick(now + LOOK_S)
    server._clients.clear()
    server.close()
    process.close()
    assert woken.codes == late.codes == looking.codes == [errors.INTERNAL]


def test_a_message_vpn_without_subscriptions_costs_no_turn_any_more(tmp_path: Path) -> None:
    """What was delivered in it stayed for as long as the process, whether the Message VPN did or not."""
    (tmp_path / "mqtt.json").write_bytes(msgspec.json.encode(told()))
    process = Idle(tmp_path)
    server = MqttServer(cast("Process", process))

    def subscribed(vpn: str) -> MqttSubscription:
        receiver = SimpleNamespace(vpn=vpn, name="c", version=5, packet_bytes_max=0)
        subscription = MqttSubscription(cast("MqttReceiver", receiver), Subscription("a/#"))
        server.add(subscription)
        return subscription

    made = [subscribed(f"v{number}") for number in range(3)]
    server._held[lambda _vpn: True, "v0"] = {}
    server.remove(made[0])
    server.forget(made[1].receiver, {"a/#": made[1]})
    now = time.monotonic()
    for turn in range(1, 4):
        server.tick(now + turn * SWEEP_S)
    assert [*server._deliveries] == [*server._readings] == ["v2"]
    assert not server._held
    subscribed("v0")
    assert [*server._deliveries] == ["v2", "v0"]
    server.close()
    process.close()


@pytest.mark.parametrize(
    ("entry", "address"),
    [
        ("tcp://127.0.0.1:1883", ("tcp://127.0.0.1:1883", "default", False)),
        ("tls://[::1]:8883/orders", ("tls://[::1]:8883", "orders", False)),
        ("ws://localhost:0/orders", ("tcp://localhost:0", "orders", True)),
        ("wss://*:8084", ("tls://*:8084", "default", True)),
    ],
)
def test_an_address_says_what_is_spoken_and_in_which_message_vpn(
    entry: str, address: tuple[str, str, bool]
) -> None:
    assert address_of(entry) == address
    assert address_of(with_port(entry, "tcp://127.0.0.1:7")).url.endswith(":7")
    assert with_port(entry, address[0]) == entry


def told(**section: object) -> MqttRuntime:
    """Give what a process is told, as it reads it."""
    config = NodeConfig()
    config = msgspec.structs.replace(
        config,
        mqtt=MqttSection(**section),  # type: ignore[arg-type]
        router=msgspec.structs.replace(config.router, max_message_bytes=50_000),
    )
    node = NodeFile(node="n", node_id="i", workers=1)
    now = InForce(config, node, Identity(local_secret="s"), 1, Path("/nowhere"), "")
    return msgspec.json.decode(msgspec.json.encode(of_mqtt(now)), type=MqttRuntime)


def test_a_process_is_told_where_it_listens_and_what_shows_that_it_is_of_the_node() -> None:
    runtime = told(listen=["tcp://127.0.0.1:1", "ws://127.0.0.1:2/orders"])
    assert runtime.addresses == [
        MqttAddress("tcp://127.0.0.1:1", "default", is_websocket=False),
        MqttAddress("tcp://127.0.0.1:2", "orders", is_websocket=True),
    ]
    assert (runtime.node, runtime.local_secret) == ("n", "s")


def test_no_packet_is_larger_than_a_message_of_the_node() -> None:
    assert settings_of(told(max_packet_bytes=20_000)).packet_bytes_max == 20_000
    runtime = told(max_packet_bytes=100_000)
    assert settings_of(runtime).packet_bytes_max == 50_000
    assert door_limits(runtime).framing == (50_000, 50_000)
    assert door_limits(runtime).unsent_bytes > 50_000, "the largest message of the node can wait for a client"


def test_clients_are_looked_at_in_the_order_of_their_deadlines() -> None:
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    here: set[bytes] = set()
    deadlines = Deadlines(here, here.__len__)
    due = {b"%d" % number: rng.uniform(0, 100) for number in range(500)}
    for one, at in due.items():
        here.add(one)
        deadlines.add(one, at)
    deadlines.add(b"patient", NEVER)
    taken: list[bytes] = []
    for now in range(0, 101, 5):
        assert deadlines.next == min(
            (time for one, time in due.items() if one not in taken), default=NEVER
        ), seed
        taken += deadlines.take(now)
        assert set(taken) == {one for one, time in due.items() if time <= now}, seed
    assert taken == sorted(due, key=due.__getitem__), seed


def test_deadlines_of_clients_that_have_gone_do_not_pile_up() -> None:
    here: set[bytes] = set()
    deadlines = Deadlines(here, here.__len__)
    for number in range(10 * STALE_MAX):
        here = here_only(here, b"%d" % number)
        deadlines.add(b"%d" % number, 1e6 + number)
    assert len(deadlines.take(1e9)) <= STALE_MAX + 3


def here_only(here: set[bytes], one: bytes) -> set[bytes]:
    """Have one client and no other."""
    here.clear()
    here.add(one)
    return here
