"""The router with the homes that workers really have, over disks in memory; everything is counted at the end."""

from __future__ import annotations

import random
from typing import Any

import pytest

from angarium import errors, wire
from tests.share import short
from tests.unit.router.publish_rig import PublishNode
from tests.unit.router.wired_node import snapshot


class HomeNode(PublishNode):
    """A node whose homes live on when the router ends, and whose time goes on."""

    def end_home(self, index: int) -> None:
        """It lives on."""

    def work(self, seconds: float = 0.1) -> None:
        self.now += seconds
        for home in list(self.homes.values()):
            home.work()
        self.settle()

    def check_limits(self) -> None:
        """Homes report what they have; `Usage.validate` compares."""

    def held(self, name: str) -> list[dict[str, Any]]:
        """List what a queue holds, over all partitions."""
        found = []
        for lane in self.endpoint(name).all_lanes():
            home = self.homes[lane.home]
            for row in home.ask("endpoint.messages", lane_id=lane.lane_id, after=0, limit=1000):
                message = home.ask("endpoint.message", lane_id=lane.lane_id, position=row["position"])
                found.append({**row, **message})
        return found

    def names(self, name: str) -> list[str]:
        return [bytes(row["payload"]).decode() for row in self.held(name)]


@pytest.fixture
def make_home_node() -> Any:
    made: list[HomeNode] = []

    def make(workers: int = 1, **options: Any) -> HomeNode:
        node = HomeNode(workers, rows=snapshot(), **options)
        made.append(node)
        return node

    yield make
    for node in made:
        node.router.validate()
        for home in node.homes.values():
            home.home.validate()


@pytest.mark.requirement("R163")
def test_a_message_is_acknowledged_when_the_home_has_written_it(make_home_node: Any) -> None:
    node = make_home_node()
    node.queue("q", "a/>")
    publisher = node.publisher()
    node.homes[0].commits = False
    publisher.publish(("a/b", b"1"), ("a/c", b"2"))
    node.work()
    assert publisher.told() == []
    node.homes[0].commits = True
    node.work()
    assert publisher.acked() == (2, [])
    assert node.names("q") == ["1", "2"]
    spool = node.router.stats()["spool"]
    assert (spool["messages"], spool["usage_bytes"], spool["files"]) == (2, 130, 1)


def test_a_relaxed_message_is_acknowledged_before_it_is_written(make_home_node: Any) -> None:
    node = make_home_node()
    node.queue("q", "a", durability="relaxed")
    publisher = node.publisher()
    node.work()
    node.homes[0].commits = False
    publisher.publish(("a", b"1"))
    assert publisher.acked() == (1, [])
    node.restart_worker(0)
    node.work()
    assert node.names("q") == ["1"], "the router has kept it"


def test_the_quota_of_a_queue_holds_to_the_byte(make_home_node: Any) -> None:
    node = make_home_node()
    node.queue("q", "a", max_spool_usage_mb=1)
    publisher = node.publisher()
    body = bytes(10_000 - wire.SPOOL_OVERHEAD_BYTES)
    for _ in range(3):
        publisher.publish(*[("a", body)] * 40)
    node.work()
    assert publisher.acked() == (120, [[n, errors.SPOOL_OVER_QUOTA] for n in range(101, 121)])
    assert sum(row["size_bytes"] for row in node.held("q")) == 1_000_000
    node.restart_worker(0)
    publisher.publish(("a", b""))
    node.work()
    assert publisher.acked()[1] == [[121, errors.SPOOL_OVER_QUOTA]]


def test_operators_move_messages_once_over_deaths(make_home_node: Any) -> None:
    node = make_home_node(2)
    node.queue("source", "a", home=0)
    node.queue("target", home=1)
    publisher = node.publisher()
    publisher.publish(*[("a", b"%d" % n) for n in range(250)])
    node.work()
    home = node.homes[0]
    lane = node.lane("source")
    home.ask(
        "endpoint.move",
        lane_id=lane,
        target=["queue", "default", "target"],
        copy=False,
        selector=None,
        limit=None,
    )
    node.homes[1].commits = False
    node.work()
    node.restart_worker(0)
    node.homes[1].commits = True
    for _ in range(20):
        node.work()
    moved, left = node.names("target"), node.names("source")
    assert sorted(moved + left, key=int) == [str(n) for n in range(250)]
    assert moved, "something was under way"


@pytest.mark.requirement("R163", "R190")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("seed", range(short(2, long=8)))
def test_what_is_acknowledged_is_there_once_whatever_dies(
    make_home_node: Any, workers: int, seed: int
) -> None:
    chance = random.Random(seed)
    node = make_home_node(workers)
    for number in range(3):
        attributes = {"partition_count": 3, "access_type": "non-exclusive"} if number == 2 else {}
        node.queue(f"q{number}", f"t/{number}", "t/all", home=number % workers, **attributes)
    writer = _Writer(node, chance)
    for _ in range(60):
        chance.choice(
            [
                writer.publish,
                writer.publish,
                writer.publish,
                writer.publish,
                writer.hold,
                writer.release,
                writer.kill,
                writer.restart_router,
                writer.reconnect,
            ]
        )()
        node.work(chance.choice([0.001, 0.05]))
        node.router.validate()
    writer.finish()
    for number in range(3):
        expected = [name for name, topic in writer.sent.items() if topic in (f"t/{number}", "t/all")]
        found = node.names(f"q{number}")
        assert sorted(found) == sorted(expected)
        if number < 2:
            assert found == expected, "in order"


class _Writer:
    """One producer in trouble."""

    def __init__(self, node: HomeNode, chance: random.Random) -> None:
        self.node = node
        self.chance = chance
        #: Text of each message -> its topic, in order.
        self.sent: dict[str, str] = {}
        self.unacked: dict[int, str] = {}
        self.next = 1
        self.publisher: Any = node.publisher("w")

    def _read(self) -> None:
        if self.publisher is None:
            return
        upto, nacks = self.publisher.acked()
        assert not nacks
        self.unacked = {sequence: name for sequence, name in self.unacked.items() if sequence > upto}

    def publish(self) -> None:
        self._read()
        if self.publisher is None or len(self.unacked) > 200:
            self._open()
            return
        names = [f"m{self.next + n}" for n in range(self.chance.randint(1, 30))]
        for name in names:
            self.sent[name] = self.chance.choice(["t/0", "t/1", "t/2", "t/all"])
            self.unacked[self.next] = name
            self.next += 1
        rows = [(self.sent[name], name.encode()) for name in names]
        self.publisher.publish(*rows, first=self.next - len(names))

    def hold(self) -> None:
        for home in self.node.homes.values():
            home.commits = self.chance.random() < 0.5

    def release(self) -> None:
        for home in self.node.homes.values():
            home.commits = True

    def kill(self) -> None:
        index = self.chance.randrange(len(self.node.router.shards.shards))
        if self.chance.random() < 0.5:
            self.node.homes[index].commit_silently()
        self.node.restart_worker(index)

    def restart_router(self) -> None:
        self._read()
        self.publisher = None
        self.node.restart_router()

    def reconnect(self) -> None:
        if self.chance.random() < 0.5:
            self._read()
        self.publisher = None

    def _open(self) -> None:
        self.release()
        self.node.work()
        if self.publisher is not None:
            return
        self.publisher = self.node.publisher("w")
        assert self.publisher.last < self.next
        waiting = sorted(self.unacked)
        for start in range(0, len(waiting), 50):
            part = waiting[start : start + 50]
            rows = [(self.sent[self.unacked[one]], self.unacked[one].encode()) for one in part]
            self.publisher.publish(*rows, first=part[0], indices=[one - part[0] for one in part])

    def finish(self) -> None:
        for _ in range(10):
            self._open()
            self.node.work()
            self._read()
        assert not self.unacked
