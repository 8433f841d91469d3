"""What a client of MQTT can do to harm others: packets that break rules, and those that keep to them and cost much.

`WAYS` are turns of the kind `mqtt` of `tests.attack.attackers`.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Final

from gateway.mqtt.codec import V3, V5, write
from gateway.mqtt.codec.connect import Connect
from gateway.mqtt.codec.control import PingReq
from gateway.mqtt.codec.properties import Properties
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import Subscribe, Subscription, Unsubscribe
from tests.attack.gateway_attack import ANSWER_S, LOOK_S, Attack
from tests.integration.mqtt_clients import Raw, place_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from gateway.mqtt.codec import Packet

#: Connections that come at once, and that are held without a login.
STORM: Final = 50
#: What somebody is sent who does not read.
UNREAD_BYTES: Final = 10 << 20


class MqttAttack(Attack):
    """A client of MQTT."""

    __slots__ = ()

    def connect(self, name: str, version: int = V5) -> Connect:
        """Give a CONNECT that is let in."""
        return Connect(
            version=version, client_id=name, username=self.username, password=self.password.encode()
        )

    def stranger(self, version: int = V5, receive_bytes: int = 0) -> Raw:
        """Give a connection that has not said anything."""
        made = Raw(self.url, version, receive_bytes)
        made.socket.settimeout(ANSWER_S)
        return made

    def client(self, name: str, version: int = V5, receive_bytes: int = 0) -> Raw:
        """Give a client that is logged in."""
        made = self.stranger(version, receive_bytes)
        made.say(self.connect(name, version))
        self.counts[f"answer {type(made.next()).__name__}"] += 1
        return made


def damaged(attack: MqttAttack, _turn: int) -> None:
    """Good packets with some bytes that are others, before the login and after it, cut anywhere."""
    rng = attack.rng
    for at in range(20):
        version = rng.choice([V3, V5])
        packets = [_some_packet(rng) for _ in range(rng.randrange(1, 20))]
        stream = bytearray(b"".join(write(packet, version) for packet in packets))
        is_in = rng.random() < 0.8
        if not is_in:
            stream = bytearray(write(attack.connect(f"damaged-{at}", version), version)) + stream
        for _ in range(rng.randrange(4)):
            stream[rng.randrange(len(stream))] = rng.randrange(256)
        with attack.client(f"damaged-{at}", version) if is_in else attack.stranger(version) as one:
            one.socket.sendall(stream[: rng.randrange(len(stream)) if rng.random() < 0.3 else None])
            one.socket.settimeout(LOOK_S)
            with contextlib.suppress(TimeoutError):
                one.next()
            attack.counts["damaged streams"] += 1


def _some_packet(rng: random.Random) -> Packet:
    number, qos = rng.randrange(1, 9), rng.randrange(2)
    alias = Properties(topic_alias=rng.randrange(1, 40)) if rng.random() < 0.1 else Properties()
    filters = rng.choices(["noise/+", "$share/g/noise/#", "+/#", "noise/1"], k=rng.randrange(1, 9))
    packets: list[Packet] = [
        Publish(f"noise/{number}", rng.randbytes(99), qos=qos, packet_id=qos * number, properties=alias),
        Subscribe(number, tuple(Subscription(text, qos) for text in filters)),
        Unsubscribe(number, tuple(filters)),
        PingReq(),
    ]
    return rng.choice(packets)


def starts(attack: MqttAttack, _turn: int) -> None:
    """Connections that say noise or a part of a CONNECT, and stay."""
    whole = write(attack.connect("starts"), V5)
    for _ in range(STORM):
        said = attack.rng.choice([b"", whole[: attack.rng.randrange(len(whole))], attack.rng.randbytes(200)])
        attack.held.append(socket.create_connection(place_of(attack.url), ANSWER_S))
        attack.held[-1].sendall(said)
        attack.counts["starts"] += 1
    while len(attack.held) > 4 * STORM:
        attack.held.pop(attack.rng.randrange(len(attack.held))).close()


def storm(attack: MqttAttack, _turn: int) -> None:
    """Clients that come at once and take each other's names."""
    clients = [attack.stranger() for _ in range(STORM)]
    for one in clients:
        one.say(attack.connect(f"storm-{attack.rng.randrange(STORM // 2)}"))
    for one in clients:
        with one:
            attack.counts[f"storm {type(one.next()).__name__}"] += 1


def unread(attack: MqttAttack, turn: int) -> None:
    """Clients that read nothing of what comes for them, answers or messages."""
    data = write(Publish(f"unread/{turn}", bytes(10_000)), V5) * 100
    with attack.client("publisher") as publisher, attack.client("pings", V3, 4_096) as pings:
        readers = [attack.client(f"unread-{at}", receive_bytes=4_096) for at in range(10)]
        for one in readers:
            one.subscribe("unread/#")
        for _ in range(UNREAD_BYTES // len(data)):
            publisher.socket.sendall(data)
        publisher.say(PingReq())
        attack.counts[f"unread {type(publisher.next()).__name__}"] += 1
        for one in readers:
            one.socket.close()
        pings.socket.settimeout(1.0)
        for _ in range(100):
            pings.socket.sendall(write(PingReq(), V3) * 10_000)


def filters(attack: MqttAttack, turn: int) -> None:
    """Filters that overlap at every level, as many as are taken, and topics that all of them match."""
    rng, name = attack.rng, f"filters-{turn}"
    levels = rng.randrange(6, 13)
    with attack.client(name) as one:
        for _ in range(5):
            wanted = {"/".join(rng.choices("a+", k=levels)) for _ in range(1_000)}
            one.say(Subscribe(7, tuple(Subscription(text, rng.randrange(2)) for text in sorted(wanted))))
            answer = one.next()
            attack.counts.update(f"filter {code}" for code in getattr(answer, "codes", ()))
        topics = ["/".join([*["a"] * (levels - 1), f"{turn}.{at}"]) for at in range(500)]
        one.socket.sendall(b"".join(write(Publish(topic), V5) for topic in topics))
        attack.counts["filters matched"] += sum(isinstance(one.next(), Publish) for _ in topics)


WAYS: Final[tuple[Callable[[MqttAttack, int], None], ...]] = (damaged, starts, storm, unread, filters)
