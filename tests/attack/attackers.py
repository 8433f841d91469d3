"""What an ordinary client can do to harm others, as a program.

    python -m tests.attack.attackers KIND URL SEED SECONDS PASSWORD

Each kind is an account with the rights that everybody has, which does one thing as hard as it can, in sizes and shapes
that the seed chooses. What the node answers is counted and printed as JSON at the end; being refused is expected.
"""

from __future__ import annotations

import itertools
import json
import random
import socket
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import zmq

from angarium import wire
from tests.attack import http_attack, mqtt_attack
from tests.attack.gateway_attack import Attack, attack_once
from tests.integration.random_frames import OddClient, noise
from tests.integration.random_guaranteed import OddSpeaker
from tests.integration.raw_client import hello_header, row
from tests.integration.raw_guaranteed import PLENTY, RawGuaranteed, RawProducer, to_queue

if TYPE_CHECKING:
    from collections.abc import Callable

ATTACKER: Final = "attacker"
CLUSTER: Final = "attacked"
#: A neighbour that lies knows it.
CLUSTER_SECRET: Final = "the secret of a cluster under attack"
LIAR: Final = "liar"
#: How long one answer is waited for; a node that is busy with others answers later, and that is fine.
ANSWER_S: Final = 5.0
CONNECTIONS: Final = 200
#: How long a turn of an endless kind is.
TURN_S: Final = 3.0
#: Whoever was thrown out does not come back faster than logins are let in.
PAUSE_S: Final = 0.05


class Attacker:
    """An account, its connections, and what it counted."""

    def __init__(self, url: str, seed: int, password: str) -> None:
        self.url = url
        self.rng = random.Random(seed)
        self.password = password
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._opened: list[RawGuaranteed] = []
        #: Plain connections that stay over turns.
        self.held: list[socket.socket] = []
        #: What was done, and what the node said -> how often.
        self.counts: Counter[str] = Counter()

    @property
    def of_gateway(self) -> Attack:
        """Give what an attack on a gateway begins with."""
        return Attack(self.url, ATTACKER, self.password, self.rng, self.held, self.counts)

    def run(self, kind: Callable[[Attacker, int], None], seconds: float) -> None:
        """Attack turn by turn until the time is over; a session that the node ends is the end of a turn."""
        until = time.monotonic() + seconds
        for turn in itertools.count():
            if time.monotonic() >= until:
                break
            self.counts["turns"] += 1
            try:
                kind(self, turn)
            except AssertionError as ended:
                self.counts[f"ended: {str(ended)[:60]}"] += 1
                time.sleep(PAUSE_S)
            for client in self._opened:
                client.close()
            self._opened.clear()
        for one in self.held:
            one.close()
        self._context.destroy(linger=0)

    def stranger(self) -> RawGuaranteed:
        """Give a connection that has not said anything; the end of the turn closes it."""
        self._opened.append(RawGuaranteed(self._context, self.url))
        return self._opened[-1]

    def client(self, **fields: Any) -> RawGuaranteed:
        """Give a client that is logged in."""
        return self.stranger().hello(**{"username": ATTACKER, "password": self.password, **fields})

    def ask(self, client: RawGuaranteed, operation: str, **arguments: Any) -> Any:
        """Ask for something, count the code, and give the value or None."""
        code, value = client.answer(client.ask(operation, **arguments), ANSWER_S)
        self.counts[f"{operation} {code}"] += 1
        return value if code == 0 else None

    def create_queue(self, client: RawGuaranteed, name: str, **attributes: Any) -> None:
        """Make a queue, or try to."""
        self.ask(client, "endpoint.create", name=name, kind="queue", durable=True, attributes=attributes)

    def bind(self, client: RawGuaranteed, name: str) -> int | None:
        """Bind to a queue with all the credit there is, or try to; gives the flow."""
        value = self.ask(client, "flow.bind", name=name, kind="queue", messages=PLENTY[0], bytes=PLENTY[1])
        return None if value is None else int(value["flow"])

    def subscribe(self, client: RawGuaranteed, filters: list[str]) -> None:
        """Subscribe, and count what was said of each filter."""
        wanted = list(dict.fromkeys(filters))
        for at in range(0, len(wanted), wire.MAX_FILTERS_PER_REQUEST):
            some = wanted[at : at + wire.MAX_FILTERS_PER_REQUEST]
            client.send(wire.SUBSCRIBE, [1, [[text, 0] for text in some], None])
            for result in client.next(wire.SUBACK, ANSWER_S).header[1]:
                self.counts["filter " + ("taken" if result is None else str(result[0]))] += 1


def frames(attacker: Attacker, _turn: int) -> None:
    """Noise, damaged frames and good frames of odd values."""
    rng, client = attacker.rng, attacker.client()
    speakers: list[OddClient | OddSpeaker] = [OddClient(rng), OddSpeaker(rng, 0)]
    speaker = rng.choice(speakers)
    for _ in range(200):
        client.socket.send_multipart(noise(rng) if rng.random() < 0.2 else speaker.frames())
        attacker.counts["frames"] += 1
    attacker.counts[f"session ended {client.ended(ANSWER_S)}"] += 1


def filters(attacker: Attacker, turn: int) -> None:
    """Filters that overlap at every level, and batches of topics that all of them may match."""
    rng, client = attacker.rng, attacker.client()
    levels, choices = rng.randrange(6, 17), rng.sample(["a*", "*", "a", "aa*", "b*"], rng.randrange(2, 4))
    for _ in range(20):
        attacker.subscribe(client, ["/".join(rng.choices(choices, k=levels)) for _ in range(1_000)])
    for batch in range(5):
        topics = ["/".join([*["aa"] * (levels - 1), f"a{turn}.{batch}.{at}"]) for at in range(200)]
        client.publish_uncut([row(at, topic) for at, topic in enumerate(topics)])
    client.send(wire.PING, [1])
    client.next(wire.PONG, ANSWER_S)


def selectors(attacker: Attacker, turn: int) -> None:
    """Selectors that are dear for each message, over messages with long properties, browsed, bound and left behind."""
    rng, client, queue = attacker.rng, attacker.client(), f"selectors/{turn}"
    attacker.create_queue(client, queue)
    producer = RawProducer(client)
    for _ in range(10):
        properties = wire.pack({"p": "a" * rng.randrange(200, 2_000)})
        producer.publish(*[(*to_queue(at, queue)[:4], properties, b"x") for at in range(20)])
    for _ in range(5):
        likes = (f"p LIKE '%{'_' * rng.randrange(1, 90)}{rng.choice('xab')}%'" for _ in range(16))
        selector = rng.choice([" OR ", " AND "]).join(likes)
        arguments = {"selector": selector, "browse": rng.random() < 0.7, "messages": 1 << 40}
        attacker.ask(client, "flow.bind", kind="queue", name=queue, bytes=1 << 50, **arguments)
    if rng.random() < 0.5:
        attacker.ask(client, "endpoint.delete", name=queue, kind="queue")


def memory(attacker: Attacker, turn: int) -> None:
    """Deep filters, sets that are all different, topics used once, and messages that nobody reads."""
    rng, reader, client = attacker.rng, attacker.client(credit=(1, 1)), attacker.client()
    attacker.subscribe(reader, ["unread/>"])
    depth = rng.randrange(20, 125)
    for batch in range(10):
        ends = [f"{batch}.{at}" for at in range(500)]
        attacker.subscribe(client, ["/".join([f"m{turn}", end, *["x"] * (depth - 2)]) for end in ends])
    attacker.subscribe(client, ["/".join(rng.choices(["*", "unread", "u*"], k=4)) for _ in range(1_000)])
    for batch in range(50):
        topics = [f"unread/{turn}/{batch}/{at}" for at in range(200)]
        client.publish_uncut([row(at, topic, b"x") for at, topic in enumerate(topics)])
    client.send(wire.PING, [1])
    client.next(wire.PONG, ANSWER_S)


def tables(attacker: Attacker, turn: int) -> None:
    """Names of producers and sinks, endpoints, and questions, one after the other."""
    client = attacker.client()
    for at in range(50):
        name = f"{turn}.{at}.{attacker.rng.randrange(1 << 30)}"
        # Only a name that is new takes a place; to go on with one that nobody knows is refused (40019).
        is_lost = attacker.rng.random() < 0.1
        opened = attacker.ask(client, "producer.open", name=name, window=1, resume=is_lost, stage=False)
        if opened is not None and attacker.rng.random() < 0.5:
            attacker.ask(client, "producer.close", producer=opened["producer"], forget=False)
        attacker.ask(client, "stage.commit", stages=[], sink=name, batch=at)
        attacker.create_queue(client, f"t/{name}")
    client.answers_or_end(
        [client.ask("endpoint.show", name="t/x", kind="queue") for _ in range(250)], ANSWER_S
    )


def logins(attacker: Attacker, _turn: int) -> None:
    """Wrong passwords for this account and that of the innocent, from many connections."""
    strangers = [attacker.stranger() for _ in range(CONNECTIONS // 4)]
    for one in strangers:
        name = attacker.rng.choice([ATTACKER, "innocent", "nobody", "default"])
        one.send(wire.HELLO, hello_header(username=name, password="wrong"))
    for one in strangers:
        attacker.counts[f"login {one.closed(ANSWER_S)}"] += 1


def connects(attacker: Attacker, _turn: int) -> None:
    """Connections that say nothing, a part of a greeting, or noise; some are held."""
    rng, place = attacker.rng, urlsplit(attacker.url)
    try:
        one = socket.create_connection((place.hostname or "", place.port or 0), ANSWER_S)
        attacker.held.append(one)
        one.sendall(
            rng.choice([b"", b"\xff" + bytes(8) + b"\x7f", rng.randbytes(64), b"GET / HTTP/1.1\r\n\r\n"])
        )
        attacker.counts["connections"] += 1
    except OSError as error:
        attacker.counts[f"refused: {error}"] += 1
    if len(attacker.held) >= CONNECTIONS:
        attacker.held.pop(rng.randrange(len(attacker.held))).close()


def disks(attacker: Attacker, turn: int) -> None:
    """Messages and queues until nothing more is taken, and on from there."""
    client = attacker.client()
    attacker.create_queue(client, f"full/{turn}")
    producer = RawProducer(client)
    for _ in range(50):
        codes = producer.publish(to_queue(0, f"full/{turn}", bytes(200_000)))
        attacker.counts[f"stored {codes[0]}"] += 1


def neighbours(attacker: Attacker, turn: int) -> None:
    """Somebody who knows the secret of the cluster and the name of a neighbour, and lies in every frame."""
    rng = attacker.rng
    link = {"node": LIAR, "node_id": LIAR, "cluster": CLUSTER, "incarnation": turn}
    client = attacker.client(username=wire.LINK_USERNAME, link=link, password=CLUSTER_SECRET)
    for _ in range(100):
        levels = rng.choices(["a", "*", "a*", ">", "b"], k=rng.randrange(1, 20))
        entries = [["/".join(levels[:end]), rng.randrange(64)] for end in range(len(levels))]
        client.send(wire.IMPORTS, [rng.randrange(99), rng.choice([0, 1, 2, 7]), entries])
        report = [1, rng.randbytes(rng.randrange(99)), *range(rng.randrange(20))]
        client.send(wire.PEERS, [wire.pack(report)])
        if rng.random() < 0.2:
            client.socket.send_multipart(noise(rng))
        attacker.counts["frames"] += 2
    attacker.counts[f"session ended {client.ended(ANSWER_S)}"] += 1


def spread(attacker: Attacker, turn: int) -> None:
    """Many who want everything, alone and in shares, and small batches for all of them."""
    rng, client = attacker.rng, attacker.client()
    for at in range(40):
        wanted = [f"s/{turn}/>", f"#share/g{at % 7}/s/{turn}/>", *[f"s/*/{end}" for end in range(20)]]
        attacker.subscribe(attacker.client(credit=PLENTY), wanted)
    for batch in range(60):
        flags = [rng.choice([0, wire.FLAG_DTO, wire.FLAG_ELIDING]) for _ in range(100)]
        client.publish_uncut(
            [row(at, f"s/{turn}/{rng.randrange(50)}", b"x", one) for at, one in enumerate(flags)]
        )
        if batch % 10 == 9:
            client.send(wire.PING, [1])
            client.next(wire.PONG, ANSWER_S)


def groups(attacker: Attacker, turn: int) -> None:
    """Hundreds of share groups, sets and queues that want the rows of large batches, each row for itself."""
    rng, client = attacker.rng, attacker.client()
    shares = [f"#share/g{at}/g/{turn}/*" for at in range(rng.randrange(100, 900))]
    for _ in range(5):
        attacker.subscribe(
            attacker.client(credit=PLENTY), [*shares, *[f"g/{turn}/{at}" for at in range(200)]]
        )
    for at in range(20):
        attacker.create_queue(client, f"groups/{turn}/{at}")
        attacker.ask(
            client, "endpoint.subscribe", name=f"groups/{turn}/{at}", filters=[f"g/{turn}/*"], kind="queue"
        )
    for _ in range(3):
        count = rng.choice([300, 1_000, 3_000])
        client.publish_uncut([row(at, f"g/{turn}/{at % 200}", b"x") for at in range(count)])
    client.send(wire.PING, [1])
    client.next(wire.PONG, ANSWER_S)


def failures(attacker: Attacker, turn: int) -> None:
    """A consumer that fails everything at once, for as long as it is given again."""
    client, queue = attacker.client(), f"failures/{turn}"
    attacker.create_queue(client, queue, access_type="non-exclusive", respect_priority=True)
    RawProducer(client).publish(*[to_queue(at, queue, b"x", meta=[0, 0, at % 10, None]) for at in range(200)])
    flow = attacker.bind(client, queue)
    until = time.monotonic() + TURN_S
    while flow is not None and time.monotonic() < until:
        parts = client.next(wire.MESSAGES, ANSWER_S).header[1]
        ranges = [[part[0], first, first + count - 1] for part in parts for first, count in part[2]]
        client.settle(flow, ranges, wire.OUTCOME_FAILED)
        attacker.counts["failed"] += len(ranges)


def timers(attacker: Attacker, turn: int) -> None:
    """Messages that expire and come due all at once, and dead message queues that go in a circle."""
    rng, client = attacker.rng, attacker.client()
    names = [f"timers/{turn}/{at}" for at in range(3)]
    for name, dead in zip(names, [*names[1:], names[0]], strict=True):
        attacker.create_queue(client, name, dead_message_queue=dead, max_ttl_s=1)
    producer = RawProducer(client)
    for _ in range(25):
        metas = [[1 + rng.randrange(1_500), rng.randrange(500), None, None] for _ in range(200)]
        codes = producer.publish(*[to_queue(at, names[0], b"x", meta=one) for at, one in enumerate(metas)])
        attacker.counts[f"stored {codes[0]}"] += len(codes)
    attacker.ask(client, "endpoint.show", name=names[1], kind="queue")


def partitions(attacker: Attacker, turn: int) -> None:
    """Queues of many partitions that consumers bind to and leave, so that everything moves each time."""
    rng, client, name = attacker.rng, attacker.client(), f"partitions/{turn}"
    moving = {"partition_rebalance_delay_s": 0, "partition_rebalance_max_handoff_s": 0}
    count = rng.choice([10, 300, 1_000])
    attacker.create_queue(client, name, access_type="non-exclusive", partition_count=count, **moving)
    RawProducer(client).publish(
        *[to_queue(at, name, b"x", meta=[0, 0, None, str(rng.random())]) for at in range(200)]
    )
    for flow in [attacker.bind(client, name) for _ in range(20)]:
        if flow is not None:
            attacker.ask(client, "flow.unbind", flow=flow)
    if rng.random() < 0.5:
        attacker.ask(client, "endpoint.delete", name=name, kind="queue")


def mqtt(attacker: Attacker, turn: int) -> None:
    """A client of MQTT: the URL is one for those."""
    attack_once(mqtt_attack.WAYS, mqtt_attack.MqttAttack(*attacker.of_gateway), turn)


def http(attacker: Attacker, turn: int) -> None:
    """A client of HTTP: the URL is one for those."""
    attack_once(http_attack.WAYS, http_attack.HttpAttack(*attacker.of_gateway), turn)


KINDS: Final[dict[str, Callable[[Attacker, int], None]]] = {
    kind.__name__: kind
    for kind in (
        *(frames, filters, selectors, memory, tables, logins, connects, disks, neighbours),
        *(spread, groups, failures, timers, partitions, mqtt, http),
    )
}


def main(kind: str, url: str, seed: str, seconds: str, password: str) -> None:
    """Attack, and print what was counted."""
    attacker = Attacker(url, int(seed), password)
    attacker.run(KINDS[kind], float(seconds))
    print(json.dumps(dict(attacker.counts.most_common(12))))


if __name__ == "__main__":
    main(*sys.argv[1:])
