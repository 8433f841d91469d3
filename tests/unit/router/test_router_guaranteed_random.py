"""Publishers, queues, homes and routers in random trouble; what was promised is counted at the end.

Each client behaves as the protocol asks: it sends what is unacknowledged again after a reconnect, with the same
sequences, and nothing else twice. Homes, in `publish_rig`, refuse to store a sequence twice.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from angarium import errors, wire
from tests.share import short
from tests.unit.router.publish_rig import Publisher, PublishNode

QUEUES = 4
STEPS = short(80, long=160)


class Author:
    """One producer with its messages: sequence -> topic."""

    def __init__(self, node: PublishNode, name: str, chance: random.Random) -> None:
        self.node = node
        self.name = name
        self.chance = chance
        self.sent: dict[int, str] = {}
        self.unacked: dict[int, str] = {}
        self.refused: dict[int, int] = {}
        self.publisher: Publisher | None = Publisher(node, node.client(), name, window=20)
        self.next = 1
        self.opening = 0

    def read(self) -> None:
        """Take what was told; a session that is over is noticed."""
        if self.publisher is None:
            return
        for _, upto, nacks, code, unroutable in self.publisher.told():
            assert not unroutable, "some queue wants every topic"
            for sequence, reason, _ in nacks:
                self.refused[sequence] = reason
            for sequence in [one for one in self.unacked if one <= upto]:
                del self.unacked[sequence]
            if code:
                self.publisher = None
                return
        if self.publisher.client.closed_with() is not None:
            self.publisher = None

    def publish(self) -> None:
        if self.publisher is None:
            self.open()
            return
        room = 20 - len(self.unacked)
        if room < 1:
            return
        count = self.chance.randint(1, min(6, room))
        rows = [
            f"t/{self.chance.randrange(QUEUES)}" + self.chance.choice(["", "/both"]) for _ in range(count)
        ]
        gap = self.chance.choice([0, 0, 0, 3])
        for number, topic in enumerate(rows):
            self.sent[self.next + gap + number] = self.unacked[self.next + gap + number] = topic
        self.next += gap
        packed = [self.row(topic, self.next + number) for number, topic in enumerate(rows)]
        self.publisher.publish(*packed, first=self.next)
        self.next += count

    def row(self, topic: str, sequence: int) -> tuple[Any, ...]:
        meta = None if sequence % 3 == 0 else [0, 0, None, f"key-{sequence % 11}"]
        return topic, bytes(self.chance.choice([10, 3_000, 60_000])), wire.MODE_PERSISTENT, meta

    def drop(self) -> None:
        """The connection breaks; what was on its way to the client may be lost."""
        if self.publisher is None:
            return
        if self.chance.random() < 0.5:
            self.read()
        for session in list(self.node.router.sessions):
            if self.publisher is not None and session.routing_id == self.publisher.client.routing_id:
                self.node.router.sessions.close(session, errors.error_for(errors.INTERNAL), self.node.now)
        self.node.settle()
        self.publisher = None

    def open(self) -> None:
        """Open again if all homes are there to be asked, and send again what was not acknowledged."""
        if (
            self.node.paused
            or len(self.node.homes) < len(self.node.router.shards.shards)
            or any(home.waiting for home in self.node.homes.values())
        ):
            return
        self.publisher = Publisher(self.node, self.node.client(), self.name, window=20)
        self.next = max(self.next, self.publisher.last + 1)
        self.resend()

    def resend(self) -> None:
        assert self.publisher is not None
        waiting = sorted(self.unacked)
        while waiting and self.publisher is not None:
            count = self.chance.randint(1, len(waiting))
            now, waiting = waiting[:count], waiting[count:]
            rows = [self.row(self.unacked[sequence], sequence) for sequence in now]
            self.publisher.publish(*rows, first=now[0], indices=[one - now[0] for one in now])
            if self.chance.random() < 0.3:
                break
        if waiting:  # a later message must not come before these
            self.drop()


class Trouble:
    """The node and everything that happens to it."""

    def __init__(self, node: PublishNode, chance: random.Random) -> None:
        self.node = node
        self.chance = chance
        self.workers = len(node.workers)
        for number in range(QUEUES):
            node.queue(
                f"q{number}", f"t/{number}", "t/*/both", home=number % self.workers, max_spool_usage_mb=1
            )
        self.authors = [Author(node, f"a{n}", chance) for n in range(3)]
        self.acts = {
            self.publish: 40,
            self.read: 20,
            self.commit: 20,
            self.consume: 10,
            self.limits: 5,
            self.worker: 4,
            self.break_: 4,
            self.match: 6,
            self.router: 1,
            self.time: 4,
        }

    def step(self) -> None:
        self.chance.choices(list(self.acts), list(self.acts.values()))[0]()
        self.node.router.validate()

    def repartition(self) -> None:
        """A queue gets another number of partitions; what the closed ones have stays there in this test."""
        name = f"q{self.chance.randrange(QUEUES)}"
        count = self.chance.randint(0, 4)
        homes = list(self.node.endpoint(name).attributes["homes"])
        while len(homes) < count:
            homes.append(self.chance.randrange(self.workers))
        self.node.change(name, partition_count=count, homes=homes, access_type="non-exclusive")

    def publish(self) -> None:
        self.chance.choice(self.authors).publish()

    def read(self) -> None:
        self.chance.choice(self.authors).read()

    def commit(self) -> None:
        for home in list(self.node.homes.values()):
            home.commits = self.chance.random() < 0.5
            if home.commits:
                home.commit()

    def consume(self) -> None:
        name = f"q{self.chance.randrange(QUEUES)}"
        if self.node.endpoint(name).lanes[0].home in self.node.homes:
            self.node.consume(name, self.chance.randint(0, len(self.node.stored(name))))

    def limits(self) -> None:
        name = f"q{self.chance.randrange(QUEUES)}"
        quota = self.chance.choice([1, 1, 5]) if len(self.node.stored(name)) < 3 else 5
        self.node.change(name, ingress_enabled=self.chance.random() < 0.8, max_spool_usage_mb=quota)

    def worker(self) -> None:
        index = self.chance.randrange(self.workers)
        if index in self.node.homes:
            if self.chance.random() < 0.5:
                self.node.homes[index].commit_silently()
            self.node.kill_worker(index)
        if self.chance.random() < 0.7:
            self.node.start_worker(index)

    def break_(self) -> None:
        self.chance.choice(self.authors).drop()

    def match(self) -> None:
        index = self.chance.randrange(self.workers)
        if index in self.node.paused:
            self.node.unpause(index)
        elif index in self.node.workers:
            # Only matching may be late here: a home that is late is `commit`.
            self.node.pause(index)
            self.chance.choice(self.authors).publish()
            self.chance.choice(self.authors).publish()
            if index in self.node.paused:
                self.node.unpause(index)

    def router(self) -> None:
        for author in self.authors:
            if self.chance.random() < 0.5:
                author.read()
            author.publisher = None
        for index in range(self.workers):
            if index not in self.node.homes:
                self.node.start_worker(index)
        self.node.restart_router()

    def time(self) -> None:
        self.node.advance(0.6)

    def finish(self) -> None:
        """Everything works again: every message gets its verdict."""
        node = self.node
        for index in list(node.paused):
            node.unpause(index)
        for index in range(self.workers):
            if index not in node.homes:
                node.start_worker(index)
        for number in range(QUEUES):
            node.change(f"q{number}", ingress_enabled=True, max_spool_usage_mb=5000)
        for _ in range(50):
            node.commit()
            node.advance(0.6)
            for author in self.authors:
                author.read()
                if author.publisher is None:
                    author.open()
            if not any(author.unacked for author in self.authors):
                return
        raise AssertionError([author.unacked for author in self.authors])


def stored_where(node: PublishNode) -> dict[tuple[int, int], list[int]]:
    """Give (producer, sequence) -> lanes."""
    found: dict[tuple[int, int], list[int]] = {}
    for disk in node.disks.values():
        for lane_id, producer, sequence in disk.log:
            assert producer is not None
            found.setdefault((producer, sequence), []).append(lane_id)
    return found


def wanted(node: PublishNode, topic: str) -> list[int]:
    """Give the endpoints that take a topic."""
    return sorted(node.endpoint(f"q{n}").id for n in range(QUEUES) if "/both" in topic or topic == f"t/{n}")


def check(node: PublishNode, trouble: Trouble) -> None:
    """Every message is stored once in every endpoint that takes it, or refused and nowhere."""
    lanes = stored_where(node)
    for author in trouble.authors:
        producer = node.registry["default", "default", author.name]
        for sequence, topic in author.sent.items():
            found = sorted(lane >> wire.LANE_BITS for lane in lanes.pop((producer, sequence), []))
            expected = [] if sequence in author.refused else wanted(node, topic)
            assert found == expected, (author.name, sequence, topic, author.refused.get(sequence))
    assert lanes == {}, "nothing that nobody sent"
    assert any(author.sent for author in trouble.authors)


@pytest.mark.requirement("R114", "R163", "R177", "R190")
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("seed", range(short(1, long=6)))
def test_what_is_acknowledged_is_stored_once_everywhere_and_what_is_refused_nowhere(
    make_publish_node: Any, workers: int, seed: int
) -> None:
    chance = random.Random(seed * 10 + workers)
    node = make_publish_node(workers)
    trouble = Trouble(node, chance)
    for _ in range(STEPS):
        trouble.step()
    trouble.finish()
    check(node, trouble)
    order = [
        (lane, producer, sequence) for disk in node.disks.values() for lane, producer, sequence in disk.log
    ]
    for lane in dict.fromkeys(lane for lane, _, _ in order):
        for author in trouble.authors:
            producer = node.registry["default", "default", author.name]
            mine = [sequence for one, other, sequence in order if (one, other) == (lane, producer)]
            assert mine == sorted(mine), "the publisher's order"


@pytest.mark.requirement("R163", "R190")
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("seed", range(short(1, long=6)))
def test_so_it_is_while_queues_change_their_number_of_partitions(
    make_publish_node: Any, workers: int, seed: int
) -> None:
    chance = random.Random(f"{seed} {workers}")
    node = make_publish_node(workers)
    node.check_limits = lambda: None  # it asks the open partitions only
    trouble = Trouble(node, chance)
    trouble.acts |= {trouble.repartition: 12, trouble.break_: 8, trouble.router: 3}
    for _ in range(STEPS):
        trouble.step()
    trouble.finish()
    check(node, trouble)
