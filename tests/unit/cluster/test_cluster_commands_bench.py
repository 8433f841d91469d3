"""The figures of `angarium bench`, from what its clients measured."""

from __future__ import annotations

import ast
import gc
import json
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from cluster.commands.bench import process, queueing
from cluster.commands.bench.bench import Run
from cluster.commands.bench.process import STAMP_BYTES, Tally, Task, percentile
from cluster.commands.bench.queues import part_rates
from cluster.commands.connecting.connection import ConnectOptions, Found

if TYPE_CHECKING:
    import pytest

#: Nanoseconds of a second.
S = 1_000_000_000
CONNECT = ConnectOptions(
    find=lambda: Found("tcp://127.0.0.1:1"),
    vpn="default",
    username="default",
    password=None,
    timeout_s=1,
    client_name="",
)


MESSAGE = bytes(STAMP_BYTES)
END = b""


def task(**changes: object) -> Task:
    return Task(**({"role": "subscribe", "url": "", "prefix": "b", "publishers": 2} | changes))  # type: ignore[arg-type]


def counted(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    figures: dict[str, object] = json.loads(capsys.readouterr().out)
    return figures


def test_a_subscriber_counts_messages_and_waits_for_the_end_of_each_publisher(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended: list[bool] = []
    tally = Tally(task(), lambda: ended.append(True))
    tally.count_many([MESSAGE, MESSAGE])
    tally.count_many([MESSAGE, END, MESSAGE])
    assert not ended
    assert capsys.readouterr().out == ""
    tally.count_many([END])
    assert ended
    figures = counted(capsys)
    assert (figures["received"], figures["complete"], figures["latencies_ns"]) == (4, True, [])


def test_the_ends_of_all_publishers_may_come_together(capsys: pytest.CaptureFixture[str]) -> None:
    Tally(task(), lambda: None).count_many([MESSAGE, END, END])
    assert counted(capsys)["received"] == 1


def test_a_subscriber_that_stays_counts_each_run_from_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    ended: list[bool] = []
    tally = Tally(task(publishers=1, runs=2), lambda: ended.append(True))
    tally.count_many([MESSAGE, MESSAGE, END])
    assert not ended
    assert counted(capsys)["received"] == 2
    tally.count_many([MESSAGE, END])
    assert ended
    assert counted(capsys)["received"] == 1


def test_a_subscriber_of_a_latency_run_measures_each_message_but_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tally = Tally(task(rate=100.0, publishers=1), lambda: None)
    for payload in (MESSAGE, MESSAGE, END):
        tally.clock(payload)
    figures = counted(capsys)
    assert isinstance(figures["latencies_ns"], list)
    assert len(figures["latencies_ns"]) == 2


def test_a_publisher_with_a_count_sends_so_many_in_batches(capsys: pytest.CaptureFixture[str]) -> None:
    source = process.Source(task(count=5, batch=2, topic_count=3))
    assert list(source.chunks()) == [["b/0", "b/1"], ["b/2", "b/0"], ["b/1"]]
    assert source.figures()["published"] == 5
    assert capsys.readouterr().out == ""


def test_a_client_that_is_watched_says_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    list(process.Source(task(count=4, batch=2, is_watched=True)).chunks())
    assert capsys.readouterr().out.splitlines()[0] == "DONE 2"


class Left:
    """Something that the start of a client leaves behind, in a cycle."""

    def __init__(self) -> None:
        self.itself = self


def test_what_the_start_left_behind_is_collected_before_a_client_is_ready(
    capsys: pytest.CaptureFixture[str],
) -> None:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        left = weakref.ref(Left())
        assert left() is not None
        process.ready()
        assert left() is None
        assert gc.get_count()[1:] == (0, 0)
    finally:
        if was_enabled:
            gc.enable()
    assert capsys.readouterr().out == "READY\n"


def test_what_clients_of_other_brokers_import_needs_the_standard_library_only() -> None:
    """They run in an environment of their own, without the SDK."""
    allowed = {*sys.stdlib_module_names, "cluster.commands.bench.process"}
    for module in (process, queueing):
        for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.module in allowed or str(node.module).split(".")[0] in allowed
            elif isinstance(node, ast.Import):
                assert {name.name for name in node.names} <= allowed


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
        {"published": 100, "first_ns": 10 * S, "last_ns": 11 * S},
        {"published": 100, "first_ns": 10.5 * S, "last_ns": 12 * S},
    ]
    received = [{"received": 200, "last_ns": 14 * S}, {"received": 190, "last_ns": 13 * S}]
    monkeypatch.setattr(Run, "_measure", lambda _self, _subscribers: (published, received))
    run = Run(CONNECT, quiet=True, count=100, payload_bytes=128, batch=10, publishers=2)
    figures = run.rates(subscribers=2)
    assert figures["published"] == 200
    assert figures["received"] == 390
    assert figures["lost"] == 10
    assert figures["published_rows_per_s"] == 100
    assert figures["rows_per_s"] == round(390 / 4)


def test_each_part_of_a_backlog_has_a_rate_of_its_own() -> None:
    assert part_rates({"first_ns": 0, "parts": [(100, S), (100, 3 * S)]}) == [100, 50]
