"""One run: everything takes steps in an order that a seed chooses, and dies in between."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

from angarium import wire
from gateway.mqtt.codec.kinds import V3, V5
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.messages import row_of
from gateway.mqtt.sessions import unacknowledged
from gateway.mqtt.sessions.note import unpack
from tests.simulation.exactly_once.device import Device
from tests.simulation.exactly_once.modelled_node import ModelledNode
from tests.simulation.exactly_once.simulated_gateway import Connection, SimulatedGateway

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS: Final = 1_500
#: Few packet identifiers for what the client gets, so that they meet.
IDS_OUT: Final = 5
#: Steps until all is over, when nothing dies any more.
CALM_STEPS: Final = 4_000


class Scenario:
    """A device, two gateways and a node."""

    def __init__(self, seed: str) -> None:
        self.random = Random(seed)
        self.now = 1_000.0
        self.node = ModelledNode(self.random)
        self.gateways = [SimulatedGateway(lambda: self.now, f"g{number}") for number in range(2)]
        self.device = Device(self.random.choice((V3, V5)), self.random.choice((1, 2, 5)))
        #: Connections of which their gateway does not know that they are gone.
        self.dangling: list[Connection] = []
        #: How many messages were put for the device, and those that may come more than once.
        self.put = 0
        self.at_least_once: set[bytes] = set()
        self.is_calm = False
        self.death_rate = self.random.choice((0.003, 0.01, 0.03))
        self.deaths: dict[str, int] = {}

    # -- steps -----------------------------------------------------------------------------------------------

    def play(self) -> list[str]:
        """Play to the end; gives what is wrong."""
        with patch.object(unacknowledged, "IDS", IDS_OUT):
            for _ in range(STEPS):
                self._step()
            self.is_calm, self.node.refuses = True, False
            for _ in range(CALM_STEPS):
                self._calm_step()
                if self._is_over():
                    break
            return self._judge()

    def _step(self) -> None:
        if self.random.random() < self.death_rate:
            self.random.choice(self._deaths())()
        else:
            self.random.choice([self._publishes, self._publishes_1, self._puts, *self._moves()])()

    def _moves(self) -> list[Callable[[], object]]:
        return [
            self._device_hears,
            self._device_says,
            self._gateway_says,
            self._gateway_hears,
            lambda: self._home_takes(0),
            lambda: self._home_takes(1),
            lambda: self._home_writes(0),
            lambda: self._home_writes(1),
            lambda: self._home_answers(0),
            lambda: self._home_answers(1),
            self.node.deliver,
            self._connects,
            self._time_passes,
        ]

    def _deaths(self) -> list[Callable[[], object]]:
        return [self._connection_dies, self._gateway_dies, self._router_dies, self._home_dies]

    def _calm_step(self) -> None:
        for move in self._moves():
            move()
        for gateway in self.gateways:
            while gateway.to_router:
                gateway.to_router.popleft()(self.node)
        self.node.flush()

    def _publishes(self) -> None:
        self.device.publish()

    def _publishes_1(self) -> None:
        self.device.publish_1()

    def _puts(self) -> None:
        if self.device.is_subscribed and not self.is_calm:
            self.put += 1
            topic, payload, qos = "in/a", b"%d" % self.put, self.random.choice((1, 2))
            if qos == 1:
                self.at_least_once.add(payload)
            flags, meta, properties = row_of(Publish(topic, payload, qos=qos, packet_id=1), "other")
            assert flags & wire.FLAG_MODE
            self.node.put((0, topic, flags, meta, properties, payload))

    def _device_hears(self) -> None:
        self.device.hear()
        connection = self.device.connection
        if connection is not None and not connection.is_held and not connection.to_device:
            self.device.disconnect()

    def _device_says(self) -> None:
        if self.device.connection is not None:
            self.device.connection.pass_on()
        if self.dangling:
            self.random.choice(self.dangling).pass_on()

    def _gateway_says(self) -> None:
        gateway = self.random.choice(self.gateways)
        if gateway.to_router:
            gateway.to_router.popleft()(self.node)

    def _gateway_hears(self) -> None:
        for gateway in self.gateways:
            gateway.hear()

    def _home_takes(self, home: int) -> None:
        if self.node.to_homes[home]:
            self.node.homes[home].pending.append(self.node.to_homes[home].popleft())

    def _home_writes(self, home: int) -> None:
        if self.node.homes[home].pending:
            self.node.from_homes[home].extend(self.node.homes[home].write())

    def _home_answers(self, home: int) -> None:
        if self.node.from_homes[home]:
            self.node.from_homes[home].popleft()()

    def _connects(self) -> None:
        if self.device.connection is None:
            self.device.connect(Connection(self.random.choice(self.gateways), self.device.version))

    def _time_passes(self) -> None:
        self.now += 0.3
        for gateway in self.gateways:
            gateway.tick()
        if self.dangling and (self.is_calm or self.random.random() < 0.3):
            self.dangling.pop(0).lose()

    # -- deaths ----------------------------------------------------------------------------------------------

    def _count(self, name: str) -> None:
        self.deaths[name] = self.deaths.get(name, 0) + 1

    def _connection_dies(self) -> None:
        """The device notices; its gateway does now or later, and reads what had come."""
        connection = self.device.connection
        if connection is not None:
            self._count("connection")
            self.device.disconnect()
            if self.random.random() < 0.5:
                connection.lose()
            else:
                self.dangling.append(connection)

    def _gateway_dies(self) -> None:
        gateway = self.random.choice(self.gateways)
        self._count("gateway")
        while gateway.to_router and self.random.random() < 0.7:
            gateway.to_router.popleft()(self.node)
        connection = self.device.connection
        for attached in gateway.die():
            if attached.is_known:
                self.node.end(attached, 0)
        gateway.from_router.clear()
        self.dangling = [one for one in self.dangling if one.gateway is not gateway]
        if connection is not None and connection.gateway is gateway:
            self.device.disconnect()

    def _router_dies(self) -> None:
        self._count("router")
        self.node.kill_router()
        for gateway in self.gateways:
            gateway.router_lost()

    def _home_dies(self) -> None:
        self._count("home")
        self.node.kill_home(self.random.randrange(2))

    # -- the end ---------------------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        device, state = self.device, unpack(self.node.homes[0].disk.note)
        is_quiet = not (
            device.out or device.out_1 or device.held or state.received or self.node.homes[0].disk.queue
        )
        return is_quiet and device.is_here

    def _judge(self) -> list[str]:
        device = self.device
        found: list[str] = []
        if not self._is_over():
            state = unpack(self.node.homes[0].disk.note)
            found.append(f"stuck: {device.out=} {device.held=} {state=} {[*self.node.homes[0].disk.queue]}")
        wanted = sorted({b"%d" % number for number in range(1, device.published + 1)} - device.refused)
        wanted_1 = [b"1 %d" % number for number in range(1, device.published_1 + 1)]
        for number, home in enumerate(self.node.homes):
            stored = [one for one in home.disk.stored if not one.startswith(b"1 ")]
            stored_1 = list(dict.fromkeys(one for one in home.disk.stored if one.startswith(b"1 ")))
            if sorted(stored) != wanted:
                found.append(f"home {number}: {_difference(stored, wanted)}")
            if stored_1 != wanted_1:
                found.append(f"home {number}, QoS 1: {_difference(stored_1, wanted_1)}, or not in order")
        came = list(dict.fromkeys(device.got))
        once = [one for one in device.got if one not in self.at_least_once]
        wanted = [b"%d" % number for number in range(1, self.put + 1)]
        if came != wanted or len(once) != len(set(once)):
            found.append(f"device: {_difference(device.got, wanted)}, or not in order")
        found += device.wrong
        if device.acknowledged - set(self.node.homes[0].disk.stored):
            found.append("something acknowledged is lost")
        return found


def _difference(found: list[bytes], wanted: list[bytes]) -> str:
    lost = sorted(set(wanted) - set(found))
    more = sorted(set(found) - set(wanted))
    doubled = sorted({one for one in found if found.count(one) > 1})
    return f"lost {lost}, doubled {doubled}, not wanted {more}"
