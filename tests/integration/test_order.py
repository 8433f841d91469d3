"""Order per publisher over topics and shards, nothing lost and nothing twice: real processes, four ways to publish."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import pytest
import zmq

from angarium import blocking, wire
from angarium_server.testing import Node
from tests.integration.numbered import Tally, payload
from tests.integration.raw_client import RawClient, row
from tests.share import short
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from angarium.blocking.subscription import Subscription

pytestmark = [pytest.mark.slow, pytest.mark.requirement("R3", "R210", "R211")]

MESSAGES = short(3_000, long=20_000)
#: Numbers of workers, one after the other; it begins with two.
SCALES = short(("1", "3"), long=("4", "1", "3"))
#: Between rounds while the number of workers changes.
PAUSE_S = short(0.5, long=0.0)
TOPICS = 61
#: Small rounds may be answered by the router itself, large ones go to all workers.
ROUND_ROWS = (1, 2, 4, 30, 200, 500)
LIMIT_S = 60.0


@pytest.fixture(
    scope="module",
    params=[1, 2, pytest.param(4, marks=pytest.mark.long)],
    ids=lambda count: f"{count}-workers",
)
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("order") / "data", workers=request.param) as node:
        yield node


@pytest.fixture(scope="module")
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as context:
        yield context


class Reader:
    """Counts what a subscription gets, in a thread; a context manager."""

    def __init__(self, url: str, filters: list[str], **options: Any) -> None:
        self.tally = Tally()
        self._client = blocking.connect(url, **options)
        self._subscription: Subscription = self._client.subscribe(filters)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for batch in self._subscription.batches():
            self.tally.take(batch.payloads)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()


def topic(publisher: int, number: int) -> str:
    return f"order/{publisher}/{number * 7 % TOPICS}"


def publish_by_sdk(url: str, publisher: int) -> None:
    """Publish in rounds of all sizes, cut by the SDK for the workers."""
    sizes = random.Random(publisher)
    with blocking.connect(url) as client:
        start = 0
        while start < MESSAGES:
            end = min(start + sizes.choice(ROUND_ROWS), MESSAGES)
            if end - start == 1:
                client.publish(topic(publisher, start), payload(publisher, start))
            else:
                client.publish_many([(topic(publisher, n), payload(publisher, n)) for n in range(start, end)])
            start = end
        client.flush(LIMIT_S)


def publish_uncut(context: zmq.Context[zmq.Socket[bytes]], url: str, publisher: int) -> None:
    """Publish in rounds of all sizes that the router has to cut."""
    sizes = random.Random(publisher)
    with RawClient(context, url).hello() as client:
        start = retired = 0
        while start < MESSAGES:
            end = min(start + sizes.choice(ROUND_ROWS), MESSAGES)
            rows = [row(n - start, topic(publisher, n), payload(publisher, n)) for n in range(start, end)]
            client.publish_uncut(rows, flush=client.round % 16 == 15)
            start = end
            while client.round - retired >= client.welcome["rounds"] - 1:
                retired = client.receive_only(wire.RETIRED).header[0]
        client.publish_uncut([row(0, "end")], flush=True)
        while retired < client.round:
            retired = client.receive_only(wire.RETIRED).header[0]


def publish_at_once(publish: Callable[[int], None], publishers: range) -> None:
    """Run one publisher per thread, and raise what any of them raised."""
    failures: list[BaseException] = []

    def run(publisher: int) -> None:
        try:
            publish(publisher)
        except BaseException as failure:  # noqa: BLE001 - it is raised in the test's thread
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(publisher,)) for publisher in publishers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    if failures:
        raise failures[0]


def publish_both_ways(context: zmq.Context[zmq.Socket[bytes]], url: str, first: int) -> None:
    """Publish as two publishers at once, one with the SDK and one in rounds that are not cut."""

    def publish(publisher: int) -> None:
        if publisher == first:
            publish_by_sdk(url, publisher)
        else:
            publish_uncut(context, url, publisher)

    publish_at_once(publish, range(first, first + 2))


def expect_everything(reader: Reader, publishers: range) -> None:
    total = MESSAGES * len(publishers)
    wait_until(lambda: reader.tally.total >= total, f"all {total} messages", LIMIT_S)
    assert reader.tally.not_rising == []
    assert reader.tally.received == dict.fromkeys(publishers, MESSAGES)


def test_several_publishers_keep_their_order_when_the_sdk_cuts_the_rounds(node: Node) -> None:
    publishers = range(3)
    exact = [topic(publisher, number) for publisher in publishers for number in range(TOPICS)]
    with Reader(node.url, ["order/>"]) as wildcard, Reader(node.url, exact) as literal:
        publish_at_once(lambda publisher: publish_by_sdk(node.url, publisher), publishers)
        expect_everything(wildcard, publishers)
        expect_everything(literal, publishers)


def test_several_publishers_keep_their_order_when_the_router_cuts_the_rounds(
    node: Node, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    publishers = range(2)
    with Reader(node.url, ["order/>"]) as wildcard, Reader(node.url, ["order/*/*"]) as other:
        publish_at_once(lambda publisher: publish_uncut(context, node.url, publisher), publishers)
        expect_everything(wildcard, publishers)
        expect_everything(other, publishers)


def test_rounds_cut_by_a_table_that_is_gone_are_cut_again(
    node: Node, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    """What a client sends that has not heard of a change of the number of workers yet."""
    rounds, rows_each = 40, 100
    with Reader(node.url, ["order/>"]) as reader, RawClient(context, node.url).hello() as client:
        for number in range(rounds):
            rows = [
                row(n, topic(0, number * rows_each + n), payload(0, number * rows_each + n))
                for n in range(rows_each)
            ]
            halves = [rows[0::2], rows[1::2]]
            parts = [[worker, len(half)] for worker, half in enumerate(halves)]
            header = [number + 1, client.welcome["epoch"] + 1, True, parts]
            client.send(wire.PUBLISH, header, *map(wire.pack, halves))
            client.receive_only(wire.RETIRED)
        wait_until(lambda: reader.tally.total >= rounds * rows_each, "everything arrived", LIMIT_S)
        assert reader.tally.not_rising == []
        assert reader.tally.received == {0: rounds * rows_each}


@pytest.mark.requirement("R12", "R22")
def test_each_member_of_a_share_gets_its_messages_in_order_and_the_group_gets_all(node: Node) -> None:
    group = ["#share/group/order/>"]
    with (
        Reader(node.url, group) as one,
        Reader(node.url, group) as two,
        Reader(node.url, group) as three,
        Reader(node.url, ["order/>"]) as plain,
    ):
        publish_by_sdk(node.url, 0)
        members = [one.tally, two.tally, three.tally]
        wait_until(lambda: sum(member.total for member in members) >= MESSAGES, "the group has all", LIMIT_S)
        expect_everything(plain, range(1))
        assert sum(member.total for member in members) == MESSAGES
        assert [member.not_rising for member in members] == [[], [], []]
        assert all(member.total > MESSAGES / 4 for member in members)


def test_order_holds_without_the_fast_path_too(
    tmp_path: Any, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    config = tmp_path / "node.toml"
    config.write_text("[router]\nfast_path_topics_max = 0\n", encoding="utf-8")
    with Node(tmp_path / "data", workers=2, config=config) as node, Reader(node.url, ["order/>"]) as reader:
        publish_both_ways(context, node.url, 0)
        expect_everything(reader, range(2))


def test_order_holds_while_the_number_of_workers_changes(
    tmp_path: Any, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    with Node(tmp_path / "data", workers=2) as node, Reader(node.url, ["order/>"]) as reader:
        done = threading.Event()

        def scale() -> None:
            for count in SCALES:
                node.run("worker", "scale", count, "--wait")
            done.set()

        scaling = threading.Thread(target=scale)
        scaling.start()
        rounds = 0
        while not done.is_set() or rounds < 2:
            publish_both_ways(context, node.url, rounds * 2)
            rounds += 1
            done.wait(PAUSE_S)
        scaling.join(LIMIT_S)
        expect_everything(reader, range(rounds * 2))
        status = node.status()
        assert [row["role"] for row in status["processes"]].count("worker") == 3
        assert status["discards"].keys() <= {"no-subscription-match"}
