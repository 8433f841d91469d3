"""The figures of `angarium bench`, from what its clients measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from angarium.message import Delivery, Message, MessageBatch
from cluster.commands.bench.bench import Run, percentile
from cluster.commands.bench.client import Tally
from cluster.commands.bench.task import STAMP_BYTES, Task
from cluster.commands.connecting.connection import ConnectOptions

if TYPE_CHECKING:
    import pytest

CONNECT = ConnectOptions(
    find_url=lambda: "tcp://127.0.0.1:1",
    vpn="default",
    username="default",
    password=None,
    timeout_s=1,
    client_name="",
)


def task(**changes: object) -> Task:
    usual = {
        "role": "subscribe",
        "connect": {},
        "prefix": "b",
        "messages": 3,
        "size_bytes": 8,
        "topics": 1,
        "batch": 1,
        "publishers": 2,
    }
    return Task(**(usual | changes))  # type: ignore[arg-type]


def batch(*topics: str) -> MessageBatch:
    rows = [(index, *Message(topic, bytes(STAMP_BYTES)).row[1:]) for index, topic in enumerate(topics)]
    return MessageBatch(rows, Delivery(rows, None, 0))


def test_a_subscriber_counts_rows_and_waits_for_the_end_of_each_publisher() -> None:
    tally = Tally(task())
    assert not tally.add(batch("b/0", "b/0"), 1.0)
    assert not tally.add(batch("b/0", "b/end"), 2.0)
    assert tally.add(batch("b/end"), 3.0)
    figures = tally.figures()
    assert figures["received"] == 3
    assert (figures["first"], figures["last"], figures["ended"]) == (1.0, 3.0, True)
    assert figures["latencies_ns"] == []


def test_a_subscriber_of_a_latency_run_measures_each_row_but_the_end() -> None:
    tally = Tally(task(rate=100.0, publishers=1))
    assert tally.add(batch("b/0", "b/0", "b/end"), 1.0)
    assert len(tally.figures()["latencies_ns"]) == 2


@given(
    st.lists(st.integers(0, 10**9), min_size=1, max_size=50), st.sampled_from([0.5, 0.9, 0.99, 0.999, 1.0])
)
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(values: list[int], part: float) -> None:
    ordered = sorted(values)
    found = percentile(ordered, part)
    assert found in ordered
    assert sum(value <= found for value in ordered) >= part * len(ordered)
    assert sum(value < found for value in ordered) < part * len(ordered)


def test_a_percentile_of_nothing_is_0() -> None:
    assert percentile([], 0.5) == 0.0


def test_rates_are_those_of_all_clients_together(monkeypatch: pytest.MonkeyPatch) -> None:
    published = [
        {"published": 100, "started": 10.0, "ended": 11.0},
        {"published": 100, "started": 10.5, "ended": 12.0},
    ]
    received = [{"received": 200, "last": 14.0}, {"received": 190, "last": 13.0}]
    monkeypatch.setattr(Run, "_measure", lambda _self, _subscribers: (published, received))
    run = Run(CONNECT, messages=100, size_bytes=128, topics=1, batch=10, publishers=2, quiet=True)
    figures = run.rates(subscribers=2)
    assert figures["published"] == 200
    assert figures["received"] == 390
    assert figures["lost"] == 10
    assert figures["published_rows_per_s"] == 100
    assert figures["rows_per_s"] == round(390 / 4)
