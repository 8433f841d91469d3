"""One run: everything takes steps in an order that a seed chooses, and dies in between."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

from gateway.mqtt.codec.kinds import V3, V5
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.messages import row_of
from gateway.mqtt.sessions import session, shares
from gateway.mqtt.sessions.unacknowledged import IDS
from node.matching.batch import Row
from tests.simulation.exactly_once.simulated_gateway import Connection, SimulatedGateway
from tests.simulation.shared_once.group_node import GROUP, NOTES, GroupNode
from tests.simulation.shared_once.member import RECEIVE_MAX, Member

if TYPE_CHECKING:
    from collections.abc import Callable

#: A run is several times trouble and calm: what is stuck shows in a calm, and the next death would hide it.
TROUBLES: Final = 10
STEPS: Final = 400
#: Few packet identifiers, so that they meet; some wait until it is remembered that they are free.
IDS_SHARED: Final = 20
HOLDINGS_MAX: Final = 11
#: Steps until all is over, when nothing dies.
CALM_STEPS: Final = 3_000
MEMBERS_MAX: Final = 3


class Scenario:
    """Members of a group, two gateways and a node."""

    def __init__(self, seed: str) -> None:
        self.random = Random(seed)
        self.now = 1_000.0
        self.node = GroupNode()
        self.gateways = [SimulatedGateway(lambda: self.now) for _ in range(2)]
        names = [f"m{number}" for number in range(self.random.randint(1, MEMBERS_MAX))]
        self.members = [Member(name, self.random.choice((V3, V5)), self.random) for name in names]
        #: Connections of which their gateway does not know that they are gone.
        self.dangling: list[Connection] = []
        self.put: list[bytes] = []
        self.death_rate = self.random.choice((0.003, 0.01, 0.03))
        #: How many kinds of what may die do not in this run.
        self.spared = self.random.choice((0, 0, 3))
        self.change_rate = self.random.choice((0.0, 0.003, 0.02))
        #: Of a slow disk much is under way.
        self.write_rate = self.random.choice((0.1, 0.3, 1.0))
        self.is_calm = False

    # -- steps -----------------------------------------------------------------------------------------------

    def play(self) -> list[str]:
        """Play to the end; gives what is wrong."""
        limits = patch.multiple(
            shares, IDS_OF_SHARES=range(IDS + 1, IDS + 1 + IDS_SHARED), HOLDINGS_MAX=HOLDINGS_MAX
        )
        with limits, patch.object(session, "IN_FLIGHT_MAX", RECEIVE_MAX):
            for _ in range(TROUBLES):
                self._trouble()
                self._calm()
                if found := self._judge():
                    return found
        return []

    def _trouble(self) -> None:
        self.is_calm = False
        for number in range(STEPS):
            self._step()
            if number % 100 == 0:
                self.node.homes[GROUP].driver.lane.validate()

    def _calm(self) -> None:
        self.is_calm = True
        for _ in range(CALM_STEPS):
            self._calm_step()
            if self._is_over():
                break

    def _step(self) -> None:
        chance = self.random.random()
        if chance < self.death_rate:
            self.random.choice(self._deaths()[self.spared :])()
        elif chance < self.death_rate + self.change_rate:
            self.random.choice((self._unsubscribes, self._ends))(self.random.choice(self.members))
        else:
            self.random.choice([self._puts, *self._moves()])()

    def _moves(self) -> list[Callable[[], object]]:
        moves: list[Callable[[], object]] = [
            self._members_hear,
            self._members_say,
            self._gateways_say,
            self._gateways_hear,
            self.node.deliver,
            self._connect,
            self._subscribe,
            self._time_passes,
            lambda: self.node.holders.tick(self.now),
        ]
        for home in (NOTES, GROUP):
            moves += [
                lambda home=home: self.node.home_takes(home),  # type: ignore[misc]
                lambda home=home: self._home_writes(home),  # type: ignore[misc]
                lambda home=home: self.node.home_answers(home),  # type: ignore[misc]
            ]
        return moves

    def _home_writes(self, home: int) -> None:
        if self.is_calm or self.random.random() < self.write_rate:
            self.node.home_writes(home)

    def _calm_step(self) -> None:
        for move in self._moves():
            move()
        for gateway in self.gateways:
            while gateway.to_router:
                gateway.to_router.popleft()(self.node)
        self.node.flush()

    def _puts(self) -> None:
        if any(member.is_subscribed for member in self.members):
            qos = self.random.choice((1, 2, 2))
            payload = b"%d of %d" % (qos, len(self.put))
            self.put.append(payload)
            flags, meta, properties = row_of(Publish("in/a", payload, qos=qos, packet_id=1), "other")
            self.node.put(Row(0, "in/a", flags, meta, properties, payload))

    def _members_hear(self) -> None:
        for member in self.members:
            member.hear()
            connection = member.connection
            if connection is not None and not connection.is_held and not connection.to_device:
                member.disconnect()

    def _members_say(self) -> None:
        for member in self.members:
            if member.connection is not None and (self.is_calm or self.random.random() < 0.7):
                member.connection.pass_on()
        if self.dangling:
            self.random.choice(self.dangling).pass_on()

    def _gateways_say(self) -> None:
        gateway = self.random.choice(self.gateways)
        if gateway.to_router:
            gateway.to_router.popleft()(self.node)

    def _gateways_hear(self) -> None:
        for gateway in self.gateways:
            gateway.hear()

    def _connect(self) -> None:
        for member in self.members:
            if member.connection is None and (self.is_calm or self.random.random() < 0.5):
                member.connect(Connection(self.random.choice(self.gateways), member.version))

    def _subscribe(self) -> None:
        for member in self.members:
            member.subscribe()

    def _time_passes(self) -> None:
        self.now += 0.3
        for gateway in self.gateways:
            gateway.tick()
        if self.dangling and (self.is_calm or self.random.random() < 0.3):
            self.dangling.pop(0).lose()

    # -- changes and deaths ----------------------------------------------------------------------------------

    def _unsubscribes(self, member: Member) -> None:
        member.unsubscribe()

    def _ends(self, member: Member) -> None:
        """End the session of a member: it expires, or the next connection is a new one."""
        self._lose(member)
        if self.random.random() < 0.5:
            member.is_clean = True
        elif self.node.expire(member.name):
            member.begin_anew()  # its own clock says so, too

    def _deaths(self) -> list[Callable[[], object]]:
        return [
            lambda: self._lose(self.random.choice(self.members)),
            self._gateway_dies,
            self._router_dies,
            lambda: self.node.kill_home(self.random.choice((NOTES, GROUP, GROUP))),
        ]

    def _lose(self, member: Member) -> None:
        """The member notices; its gateway does now or later, and reads what had come."""
        connection = member.connection
        if connection is not None:
            member.disconnect()
            if self.random.random() < 0.5:
                connection.lose()
            else:
                self.dangling.append(connection)

    def _gateway_dies(self) -> None:
        gateway = self.random.choice(self.gateways)
        while gateway.to_router and self.random.random() < 0.7:
            gateway.to_router.popleft()(self.node)
        gateway.die()
        for attached in [one for one in self.node.attached.values() if one.gateway is gateway]:
            self.node.end(attached, 0)
        gateway.from_router.clear()
        self.dangling = [one for one in self.dangling if one.gateway is not gateway]
        for member in self.members:
            if member.connection is not None and member.connection.gateway is gateway:
                member.disconnect()

    def _router_dies(self) -> None:
        self.node.kill_router()
        for gateway in self.gateways:
            gateway.router_lost()

    # -- the end ---------------------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        driver = self.node.homes[GROUP].driver
        is_quiet = not (driver.lane.messages or any(member.held for member in self.members))
        return is_quiet and all(one.is_here and one.is_subscribed for one in self.members)

    def _judge(self) -> list[str]:
        found = [text for member in self.members for text in member.wrong]
        if not self._is_over():
            driver = self.node.homes[GROUP].driver
            state = [(one.is_here, one.is_subscribed, one.held) for one in self.members]
            found.append(f"stuck: {state} {driver.states()} {driver.lane.holdings.rows()}")
        got = Counter(payload for member in self.members for payload in member.got)
        unfinished = Counter(payload for member in self.members for payload in member.unfinished)
        refused = {payload for member in self.members for payload in member.refused}
        found += [
            f"{payload!r} is lost" for payload in self.put if not got[payload] and payload not in refused
        ]
        found += [
            f"{payload!r} came {count} times"
            for payload, count in got.items()
            if payload.startswith(b"2") and count > 1 + unfinished[payload]
        ]
        return found
