"""The shell of a gateway process of MQTT: sockets and the clock, and who gets what comes from them; it decides nothing.

A door with the connections of clients, and a connection to the router for each Message VPN that has any. What one turn
of the loop brings from all of them leaves at its end: in one round for the router, in one piece for each client.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from angarium import errors
from angarium.errors import error_for
from angarium.trace_context import CONTEXTS
from angarium_server.connections.addresses import is_tls
from angarium_server.connections.descriptors import raise_descriptors
from angarium_server.connections.door import Door, DoorLimits, Refusal
from angarium_server.connections.framing import FramingLimits
from angarium_server.connections.outgoing import to_router
from angarium_server.connections.tls import make_context
from angarium_server.memory.memory import FreedMemory, collect_rarely, in_use_bytes
from angarium_server.process import Process, at_work, load_config
from cluster.mqtt.crowd import NEVER, Crowd, Deadlines
from cluster.mqtt.role import MqttRuntime
from gateway.egress import Egress
from gateway.fanout import Lookups
from gateway.mqtt.clients.client import Client
from gateway.mqtt.clients.settings import Settings
from gateway.mqtt.codec.publish import Seen
from gateway.mqtt.delivering import Delivering
from gateway.mqtt.framing import MqttFraming
from gateway.mqtt.retained import Readings
from gateway.mqtt.sessions.credit import Credit
from gateway.mqtt.websocket import WebSocketFraming
from gateway.session import Identity
from gateway.vpn_carriers import VpnCarriers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from angarium.errors import AngariumError
    from angarium.message import Row
    from angarium_server.connections.connection import Connection
    from angarium_server.connections.framing import Speak
    from cluster.configuration.mqtt import MqttAddress
    from gateway.attached import Attached, Guest, Login
    from gateway.egress import Receiver
    from gateway.mqtt.codec import Packet, PacketError
    from gateway.mqtt.delivering import MqttReceiver, MqttSubscription

ROLE: Final = "mqtt"
#: What was sent last may take so long to leave.
LINGER_S: Final = 0.5
#: What may wait for a connection beside the largest message: acknowledgements, and messages that came before it.
UNSENT_BYTES: Final = 1 << 20
#: Descriptors that are no connections of clients.
OTHER_DESCRIPTORS: Final = 200
#: Deadlines, and whether clients read, are looked at so often.
LOOK_S: Final = 0.05
#: While sockets are read by the clock, rounds leave so far apart: one wakes the router.
ROUND_S: Final = 0.001
#: Clients that are read again in one turn, when there is room for messages again: so few that most find some.
RESUMED_PER_TURN: Final = 32
#: Topics that nobody publishes to are forgotten in steps, each after so long; memory is looked at as often, also by a
#: process that has nothing else to do.
SWEEP_S: Final = 1.0
#: A process that stops says goodbye to so many clients in a turn, and looks so often whether all have left.
GOODBYES_PER_TURN: Final = 500
GOODBYE_S: Final = 0.005

_log = logging.getLogger(ROLE)


class MqttServer:
    """One gateway process; to its clients it is what `gateway.mqtt.clients.host` describes."""

    def __init__(self, process: Process) -> None:
        """Listen where we are told.

        Raises:
            InvalidRequestError: that is not possible (40017).
        """
        runtime = load_config(process.runtime_dir, ROLE, MqttRuntime)
        pending = runtime.settings.pending_connections_max
        raise_descriptors(runtime.max_connections + pending + OTHER_DESCRIPTORS)
        self._process = process
        self._tls = runtime.tls
        self._settings = settings_of(runtime)
        #: Those that have said something, by connection.
        self._clients: dict[bytes, Client] = {}
        self._deadlines = Deadlines(self._clients, self._clients.__len__)
        self._wakes = Deadlines(self._clients, self._clients.__len__)
        #: Connections that went because they did not read.
        self._dropped: list[bytes] = []
        #: Connections that ended before a login.
        self._refused = 0
        #: Reason code -> connections that were ended for it.
        self._ended: Counter[int] = Counter()
        #: What tells whether messages find room, and its Message VPN -> connections that are paused until they do.
        self._held: dict[tuple[Callable[[str], bool], str], dict[bytes, None]] = {}
        self._look_at = self._sweep_at = self._memory_at = 0.0
        #: When time brings something: never before the next look.
        self._due_at = 0.0
        self._crowd = Crowd(process)
        self._door = Door(
            self._crowd.watch,
            door_limits(runtime),
            self._packet,
            self._lost,
            self._broken,
            self._unwanted,
            lambda _network, _now: True,
            lambda connection_id, now: self._egress.on_room(connection_id, now),
        )
        self._memory = FreedMemory()
        self._egress = Egress(self._door, runtime.settings.egress_memory_bytes)
        self._credit = Credit()
        self._lookups = Lookups()
        #: The Message VPN of each address.
        self._vpns: dict[str, str] = {}
        #: By Message VPN, and what is read for their subscriptions.
        self._deliveries: dict[str, Delivering] = {}
        self._readings: dict[str, Readings] = {}
        #: Whether some of these have begun a turn, or have to go on.
        self._is_delivering = False
        self._carriers = VpnCarriers(
            Identity(runtime.local_secret, ROLE, process.index, process.incarnation),
            to_router(process, process.runtime_dir),
            self._deliver,
            random.Random(),  # noqa: S311 - pauses are no secret
            exchanges=True,
        )
        seen = Seen()
        urls = [self._listen(address, seen) for address in runtime.addresses]
        process.on_request(self._request)
        process.ready({"urls": urls})

    def _listen(self, address: MqttAddress, seen: Seen) -> str:
        speak: Speak = partial(MqttFraming, seen=seen)
        if address.is_websocket:
            speak = partial(WebSocketFraming, speak=speak)
        context = make_context(self._tls) if is_tls(address.url) else None
        try:
            url = self._door.listen(address.url, context, speak=speak, shares_port=True)
        except OSError as error:
            detail = f"mqtt.listen: {address.url}: {error.strerror or error}"
            advice = "end what listens there, or listen elsewhere: --mqtt, or mqtt.listen in the file"
            raise error_for(errors.INVALID_CONFIGURATION, detail, advice) from None
        self._vpns[url] = address.vpn
        return url

    # -- what connections say --------------------------------------------------------------------------------

    def _packet(self, connection: Connection, packet: Packet | PacketError, now: float) -> bool:
        client = self._clients.get(connection.id) or self._make_client(connection, now)
        try:
            return client.packet(packet, now)
        except Exception:  # noqa: BLE001 - a fault of ours that one client can provoke costs that client only
            _log.exception("a packet of a client led to a fault of the gateway")
            client.end(error_for(errors.INTERNAL), now)
            return True

    def _make_client(self, connection: Connection, now: float) -> Client:
        vpn, certificate = self._vpns[connection.came_to], connection.peer.certificate
        framing = connection.framing
        made = Client(
            self,
            self._settings,
            connection.id,
            connection.address,
            certificate,
            vpn,
            now,
            is_foreign_page=isinstance(framing, WebSocketFraming) and framing.is_foreign_page,
        )
        self._clients[connection.id] = made
        return made

    def _lost(self, connection_id: bytes, reason: str, now: float) -> None:
        client = self._forget(connection_id)
        if client is not None:
            client.lost(reason, now)

    def _forget(self, connection_id: bytes) -> Client | None:
        self._egress.forget(connection_id)
        for held in self._held.values():
            held.pop(connection_id, None)
        return self._clients.pop(connection_id, None)

    def _broken(self, connection_id: bytes, reason: str, now: float) -> None:
        """End one that broke the rules of what carries MQTT, such as WebSocket: it is told in those."""
        self._door.finish(connection_id, now)
        self._lost(connection_id, reason, now)

    def _unwanted(self, reason: str, _now: float) -> None:
        """Note that a connection ended before a login."""
        self._refused += 1
        _log.debug("a connection was refused: %s", reason)

    # -- what clients want -----------------------------------------------------------------------------------

    def attach(self, guest: Guest, login: Login, vpn: str, now: float) -> Attached:
        """Log a client in at the node; what comes of it is told to the guest, later."""
        return self._carriers.attach(vpn, guest, login, now)

    def send(self, connection_id: bytes, data: bytes) -> None:
        """Send a packet that is never dropped."""
        if self._door.send_bytes(connection_id, data) is Refusal.BLOCKED:
            self._dropped.append(connection_id)

    def admitted(self, connection_id: bytes) -> None:
        """Take larger packets from now on: the client has logged in."""
        self._door.admit(connection_id)
        self._deadlines.add(connection_id, 0.0)
        self._due_at = self._look_at

    def pause(self, connection_id: bytes) -> None:
        """Read nothing more of a connection until `resume`."""
        self._door.pause(connection_id)

    def await_room(self, connection_id: bytes, qos: int) -> None:
        """Resume it when messages with this QoS find room again, if the room of all clients together is the reason."""
        has_room = self._carriers.has_room_guaranteed if qos else self._carriers.has_room
        vpn = self._clients[connection_id].vpn
        if not has_room(vpn):
            self._held.setdefault((has_room, vpn), {})[connection_id] = None

    def resume(self, connection_id: bytes) -> None:
        """Offer again what was not taken, and read further."""
        self._door.resume(connection_id)

    def _resume_held(self) -> bool:
        """Read further of some for whom there is room again; true if there are any."""
        has_resumed = False
        for (has_room, vpn), held in self._held.items():
            if held and has_room(vpn):
                has_resumed = True
                for connection_id in [*islice(held, RESUMED_PER_TURN)]:
                    del held[connection_id]
                    self._door.resume(connection_id)
        return has_resumed

    def count_end(self, reason: int) -> None:
        """Note for what reason a connection is ended."""
        self._ended[reason] += 1

    def finish(self, connection_id: bytes, farewell: bytes, reason: str, now: float) -> None:
        """Drop what waits for a connection, send the last packet, which may be none, and close it."""
        _log.debug("the connection of a client ends: %s", reason)
        self._forget(connection_id)
        if farewell:
            self._door.send_bytes(connection_id, farewell)
        self._door.finish(connection_id, now)

    @property
    def lookups(self) -> Lookups:
        """What it costs to find which subscriptions a message is for, of all sessions; `Client.tick` goes on."""
        return self._lookups

    @property
    def credit(self) -> Credit:
        """What may be on its way to all clients."""
        return self._credit

    def send_guaranteed(self, receiver: Receiver, data: bytes, now: float) -> bool:
        """Send what may not be lost, behind what waits; false if too much waits, and it is not taken."""
        return self._egress.put_guaranteed(receiver, data, now)

    def send_retained(self, receiver: Receiver, data: bytes, now: float) -> bool:
        """Send what is retained, before what is held back for that; else as `send_guaranteed`."""
        if not self._egress.is_held(receiver):
            return self._egress.put_guaranteed(receiver, data, now)
        self._egress.put_first(receiver, data, now)
        return True

    def wake(self, connection_id: bytes, at: float) -> None:
        """Call `Client.tick` then, once, besides."""
        self._wakes.add(connection_id, at)
        self._due_at = max(min(self._due_at, at), self._look_at)

    def unix_ms(self) -> int:
        """Give the time of day, in ms since 1970."""
        return time.time_ns() // 1_000_000

    def add(self, subscription: MqttSubscription) -> None:
        """Fan out to a subscription, which is not shared, from now on."""
        self._delivering(subscription.receiver.vpn).add(subscription)

    def remove(self, subscription: MqttSubscription) -> None:
        """Fan out to it no more."""
        self._delivering(subscription.receiver.vpn).remove(subscription)

    def forget(self, receiver: MqttReceiver, subscriptions: dict[str, MqttSubscription]) -> None:
        """Do so with all subscriptions of a client that is gone."""
        if subscriptions:
            self._delivering(receiver.vpn).forget(subscriptions)
            self._is_delivering = True
            self._readings[receiver.vpn].forget_all(receiver, subscriptions.values())

    def read_retained(self, subscriptions: Sequence[MqttSubscription]) -> None:
        """Send what is retained to subscriptions in force."""
        self._delivering(subscriptions[0].receiver.vpn)
        self._readings[subscriptions[0].receiver.vpn].begin(subscriptions)

    def leave_retained(self, subscription: MqttSubscription) -> None:
        """Send it to a subscription no more."""
        if readings := self._readings.get(subscription.receiver.vpn):
            readings.forget(subscription)

    def deliver(self, subscriptions: Sequence[MqttSubscription], rows: Sequence[Row], now: float) -> None:
        """Send what came for one client alone, for these of its subscriptions."""
        self._is_delivering = True
        self._delivering(subscriptions[0].receiver.vpn).deliver_to(subscriptions, rows, now)

    def _delivering(self, vpn: str) -> Delivering:
        found = self._deliveries.get(vpn)
        if found is None:
            found = self._deliveries[vpn] = Delivering(self._egress)
            ask = partial(self._carriers.ask, vpn)
            self._readings[vpn] = Readings(found, self._egress, ask, self._end_receiver)
        return found

    def _end_receiver(self, receiver: Receiver, error: AngariumError, now: float) -> None:
        if client := self._clients.get(receiver.connection_id):
            client.end(error, now)

    # -- the router ------------------------------------------------------------------------------------------

    def _deliver(self, vpn: str, rows: list[Row], now: float) -> bool:
        """Deliver what came in a Message VPN; false if some of it waits for the next turn."""
        delivering = self._deliveries.get(vpn)
        if delivering is None:
            return True
        self._is_delivering = True
        delivering.deliver(rows, now)
        return not delivering.waiting

    def _deliver_rest(self, now: float) -> bool:
        """Go on with what waits since the last turn; true if some of it still does."""
        is_behind = False
        for vpn, delivering in self._deliveries.items():
            was_behind = bool(delivering.waiting)
            is_behind = delivering.begin_turn(now) or is_behind
            if was_behind and not delivering.waiting:
                self._carriers.passed_on(vpn)
        self._is_delivering = is_behind
        return is_behind

    # -- the controller --------------------------------------------------------------------------------------

    def _request(self, operation: str, _arguments: Any) -> Any:
        match operation:
            case "stats":
                return self.stats()
            case "tls_reload":
                return self._reload_certificate()
            case _:
                raise error_for(errors.UNKNOWN_OPERATION, operation)

    def stats(self) -> dict[str, Any]:
        """Give the metrics."""
        return {
            **self._carriers.counts("discarded", "lost"),
            "connections": len(self._door),
            "unauthenticated": self._door.unauthenticated,
            "unauthenticated_put_off": self._door.put_off_total,
            "refused": self._refused,
            "sessions": sum(client.is_kept for client in self._clients.values()),
            "messages_out": self._egress.sent,
            "ended": {str(reason): count for reason, count in sorted(self._ended.items())},
            "malformed_contexts": CONTEXTS.dropped,
            "queued_bytes": self._egress.bytes,
            "in_use_bytes": in_use_bytes(),
        }

    def _reload_certificate(self) -> None:
        """Encrypt connections that come from now on with what the files hold now; a damaged file changes nothing."""
        if self._tls.cert_file:
            self._door.encrypt_with(make_context(self._tls))

    # -- life ------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> float:
        """End a turn; gives the seconds until the next call is wanted."""
        if now >= self._look_at:
            self._look(now)
        read_at = self._crowd.tick(now)
        has_more = self._door.read_rest()
        self._carriers.hand_over(now)
        is_behind = self._is_delivering and self._deliver_rest(now)
        for connection_id in self._lookups.begin_turn():
            if client := self._clients.get(connection_id):
                self._look_at_client(client, now)
        is_behind = is_behind or len(self._lookups) > 0
        wake = min(self._carriers.tick(now), self._due_at, read_at)
        for readings in self._readings.values():
            wake = min(wake, readings.tick(now))
        if self._held:
            has_more = self._resume_held() or has_more
        self._door.flush()
        if is_behind or has_more:
            return 0.0
        return GOODBYE_S if self._process.stopping else wake - now

    def _look(self, now: float) -> None:
        """Do what is not for every message."""
        self._look_at = now + LOOK_S
        self._door.tick(now)
        self._carriers.pace(ROUND_S if self._crowd.is_paced else 0.0)
        self._end_slow(now)
        for connection_id in self._wakes.take(now):
            if client := self._clients.get(connection_id):
                self._look_at_client(client, now)
        for connection_id in self._deadlines.take(now):
            if client := self._clients.get(connection_id):
                # Who is not read is not silent, nor is one whose packet takes long to come.
                is_paused = self._door.is_paused(connection_id)
                client.heard(now if is_paused else self._door.part_at(connection_id))
                self._deadlines.add(connection_id, self._look_at_client(client, now))
        if now >= self._memory_at:
            self._memory.update(self._egress.freed_bytes, now, held_bytes=in_use_bytes())
            self._memory_at = now + min(SWEEP_S, self._memory.wait_s)
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_S
            self._sweep(now)
        due = min(self._deadlines.next, self._wakes.next, self._sweep_at, self._memory_at)
        self._due_at = max(due, self._look_at)

    def _sweep(self, now: float) -> None:
        """Forget topics that nobody publishes to, and Message VPNs in which nobody has subscribed to anything."""
        for vpn, delivering in [*self._deliveries.items()]:
            delivering.sweep(now)
            if delivering.is_idle and self._readings[vpn].is_idle:
                del self._deliveries[vpn], self._readings[vpn]
        self._held = {reason: held for reason, held in self._held.items() if held}

    def _look_at_client(self, client: Client, now: float) -> float:
        """Have a client do what is due; gives its next deadline."""
        try:
            return client.tick(now)
        except Exception:  # noqa: BLE001 - as with a packet: it costs that client only
            _log.exception("what was due of a client led to a fault of the gateway")
            client.end(error_for(errors.INTERNAL), now)
            return NEVER

    def _end_slow(self, now: float) -> None:
        """End clients that do not read."""
        dropped, self._dropped = self._dropped, []
        for connection_id in dropped:
            self._lost(connection_id, Refusal.BLOCKED.value, now)
        for receiver in self._egress.tick(now):
            self._end_receiver(receiver, error_for(errors.EGRESS_BLOCKED), now)

    def drained(self) -> bool:
        """Asked while stopping: true when everybody has heard that we leave, and what they said before has left."""
        self._carriers.stop()
        now = time.monotonic()
        for client in list(islice(self._clients.values(), GOODBYES_PER_TURN)):
            client.end(error_for(errors.SHUTTING_DOWN), now)
        return not self._clients and self._carriers.is_gone

    def close(self) -> None:
        """Free what the process does not own."""
        self._door.close(LINGER_S)
        self._crowd.close()


def settings_of(runtime: MqttRuntime) -> Settings:
    """Give what clients are granted."""
    return Settings(
        packet_bytes_max=packet_bytes_max(runtime),
        receive_max=runtime.settings.receive_max,
        topic_alias_max=runtime.settings.topic_alias_max,
        session_expiry_max_s=runtime.settings.session_expiry_max_s,
        keepalive_max_s=runtime.settings.keepalive_max_s,
    )


def packet_bytes_max(runtime: MqttRuntime) -> int:
    """Give the size of the largest packet that is taken."""
    return min(runtime.settings.max_packet_bytes, runtime.max_message_bytes)


def door_limits(runtime: MqttRuntime) -> DoorLimits:
    """Give what connections may cost."""
    settings = runtime.settings
    return DoorLimits(
        framing=FramingLimits(packet_bytes_max(runtime), packet_bytes_max(runtime)),
        unsent_bytes=runtime.max_message_bytes + UNSENT_BYTES,
        login_s=settings.login_timeout_ms / 1000,
        unauthenticated=settings.pending_connections_max,
        unauthenticated_per_network=settings.pending_connections_per_address,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a gateway process until it is told to stop."""
    with at_work(ROLE, arguments) as process:
        server = MqttServer(process)
        collect_rarely()
        process.run(server.tick, server.drained)
        server.close()
