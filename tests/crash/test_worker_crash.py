"""A worker dies or hangs under load: it comes back, and what it cost is counted and is local."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from angarium import blocking
from angarium_server.testing import Node
from cluster.admin.client import Admin
from tests.crash.watched_node import events, figure, is_replaced, look_until, state_of, topics_of_worker
from tests.integration.machine import back_within_s
from tests.integration.numbered import Tally, payload
from tests.integration.steady_pair import SteadyPair
from tests.waiting import expect_value, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

WORKERS = 2
#: The default of `shard_grace_ms`, and what a machine that others use may add (alone the pause is 14 to 43 ms). A
#: stall would last as long as the hang is unnoticed: five seconds.
SHARD_GRACE_MS = 250
MARGIN_MS = 3_500
#: Rows of a round: enough that no round is answered without the workers.
ROUND = 20
HUNG_AFTER_S = 5.0
LIMIT_S = 30.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("worker") / "data", workers=WORKERS) as node:
        yield node


@pytest.fixture
def before(node: Node) -> dict[str, int]:
    """What earlier tests cost."""
    return discards(node)


class Load:
    """A publisher at more than a thousand messages a second and its subscriber; a context manager."""

    def __init__(self, url: str, topics: list[str]) -> None:
        self.topics = topics
        self.tally = Tally()
        self.published = 0
        self.refused: list[Any] = []
        self._stop = threading.Event()
        self._source = blocking.connect(url, on_event=self.refused.append)
        self._sink = blocking.connect(url)
        self._subscription = self._sink.subscribe("load/>")
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._read, self._publish)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        for batch in self._subscription.batches():
            self.tally.take(batch.payloads)

    def _publish(self) -> None:
        while not self._stop.is_set():
            numbers = range(self.published, self.published + ROUND)
            self._source.publish_many([(self.topics[n % len(self.topics)], payload(0, n)) for n in numbers])
            self.published += ROUND
            time.sleep(0.012)  # the rate, some 1,500 a second
        self._source.flush(LIMIT_S)

    def finish(self) -> int:
        """Publish no more but a last message, and give how many were lost when it has come."""
        self._stop.set()
        self._threads[1].join(LIMIT_S)
        last = self.published
        self.published += 1
        self._source.publish(self.topics[0], payload(0, last))
        self._source.flush(LIMIT_S)
        wait_until(lambda: self.tally.newest.get(0) == last, "the last message arrived", LIMIT_S)
        return self.published - self.tally.total

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._source.close()
        self._sink.close()
        for thread in self._threads:
            thread.join(LIMIT_S)


def discards(node: Node) -> dict[str, int]:
    """Give the discards by reason, without what the ends of publishers and subscribers cost."""
    with Admin(node.data) as admin:
        found: dict[str, int] = admin.call("status")["discards"]
    return {
        reason: count
        for reason, count in found.items()
        if reason not in ("client-not-connected", "no-subscription-match")
    }


def expect_discards(node: Node, wanted: dict[str, int]) -> None:
    """Wait until the discards are these."""
    expect_value(lambda: discards(node), wanted, "discards")


def cost(lost: int, before: dict[str, int]) -> dict[str, int]:
    """Give the discards after a loss that was counted as it should be."""
    total = before.get("shard-unavailable", 0) + lost
    return {**before, "shard-unavailable": total} if total else before


def last_of_workers(node: Node, count: int) -> list[tuple[str, int]]:
    """Give name and index of the last events of workers."""
    return [(one["event"], one["index"]) for one in events(node) if one["role"] == "worker"][-count:]


def both_shards() -> list[str]:
    return [
        topic
        for worker in range(WORKERS)
        for topic in topics_of_worker(worker, WORKERS, 20, f"load/{worker}")
    ]


@pytest.mark.requirement("R3", "R9")
def test_a_killed_worker_is_back_in_time_and_costs_only_what_is_counted(
    node: Node, before: dict[str, int]
) -> None:
    with Load(node.url, both_shards()) as load:
        wait_until(lambda: load.tally.total > 2_000, "the load runs")
        pid = node.kill("worker", 1)
        back_s = look_until(node, "the worker is back", is_replaced("worker", 1, pid))
        seen = load.tally.total
        wait_until(lambda: load.tally.total > seen + 2_000, "the load goes on")
        lost = load.finish()
        assert back_s < back_within_s()
        assert load.tally.not_rising == []
        expect_discards(node, cost(lost, before))
        expect_value(
            lambda: sum(event.messages for event in load.refused if event.kind == "notice"),
            lost,
            "messages that the publisher heard of",
        )
    figure("back_s", round(back_s, 3))
    figure("lost", lost)


@pytest.mark.requirement("R9")
def test_the_other_shards_do_not_wait_for_a_killed_worker(node: Node, before: dict[str, int]) -> None:
    with (
        Load(node.url, topics_of_worker(1, WORKERS, 20, "load")) as load,
        SteadyPair(node.url, topics_of_worker(0, WORKERS, 20, "steady")) as pair,
    ):
        wait_until(lambda: load.tally.total > 1_000, "the load runs")
        pair.look()
        pid = node.kill("worker", 1)
        look_until(node, "the worker is back", is_replaced("worker", 1, pid))
        noticed = pair.finish()
        assert (noticed.not_rising, noticed.missing, noticed.reconnects) == (0, 0, 0)
        assert noticed.longest_pause_ms < SHARD_GRACE_MS + MARGIN_MS
        figure("longest_pause_ms", noticed.longest_pause_ms)
        expect_discards(node, cost(load.finish(), before))


def test_subscriptions_made_and_dropped_while_a_worker_is_away_are_in_force_when_it_is_back(
    node: Node, before: dict[str, int]
) -> None:
    topics = topics_of_worker(1, WORKERS, 3, "away")
    with blocking.connect(node.url) as client:
        kept, dropped = client.subscribe([topics[0]]), client.subscribe([topics[1]])
        pid = node.kill("worker", 1)
        added = client.subscribe([topics[2], "away/*"], timeout_s=LIMIT_S)
        dropped.close()
        look_until(node, "the worker is back", is_replaced("worker", 1, pid))
        client.publish_many([(topic, topic.encode()) for topic in topics for _ in range(ROUND)])
        client.flush(LIMIT_S)
        assert {kept.receive(LIMIT_S).topic for _ in range(ROUND)} == {topics[0]}
        assert [added.receive(LIMIT_S).topic for _ in range(3 * ROUND)] == [
            topic for topic in topics for _ in range(ROUND)
        ]
        expect_discards(node, before)


def test_a_hung_worker_is_told_from_a_dead_one_and_replaced(node: Node, before: dict[str, int]) -> None:
    with (
        Load(node.url, both_shards()) as load,
        SteadyPair(node.url, topics_of_worker(0, WORKERS, 20, "steady")) as pair,
    ):
        wait_until(lambda: load.tally.total > 1_000, "the load runs")
        pid = node.kill("worker", 1, signal.SIGSTOP)
        hung_s = look_until(
            node,
            "the worker is called hung",
            lambda status: state_of(status, "worker", 1)["state"] != "ready",
        )
        back_s = look_until(node, "the worker is back", is_replaced("worker", 1, pid))
        noticed = pair.finish()
        lost = load.finish()
        assert HUNG_AFTER_S - 0.6 < hung_s < HUNG_AFTER_S + back_within_s()
        assert back_s < back_within_s()
        assert (noticed.not_rising, noticed.missing, noticed.reconnects) == (0, 0, 0)
        assert noticed.longest_pause_ms < SHARD_GRACE_MS + MARGIN_MS
        assert load.tally.not_rising == []
        expect_discards(node, cost(lost, before))
        told = ["SYSTEM_PROCESS_HUNG", "SYSTEM_PROCESS_KILLED", "SYSTEM_PROCESS_DOWN", "SYSTEM_PROCESS_UP"]
        expect_value(lambda: last_of_workers(node, 4), [(name, 1) for name in told], "events")
        figure("hung_told_after_s", round(hung_s, 2))
        figure("longest_pause_ms", noticed.longest_pause_ms)


def test_a_worker_that_is_killed_again_and_again_comes_back_each_time(
    node: Node, before: dict[str, int]
) -> None:
    with Load(node.url, both_shards()) as load:
        wait_until(lambda: load.tally.total > 500, "the load runs")
        for _ in range(3):
            pid = node.kill("worker", 0)
            look_until(node, "the worker is back", is_replaced("worker", 0, pid))
        seen = load.tally.total
        wait_until(lambda: load.tally.total > seen + 500, "the load goes on")
        lost = load.finish()
        assert load.tally.not_rising == []
        expect_discards(node, cost(lost, before))
