"""The exporter of spans at a real collector: what it brings, tries again, and drops, and that nobody waits for it."""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from node.tracing import exporter as exporting
from node.tracing.config import TracingConfig
from node.tracing.exporter import Exporter
from node.tracing.spans import INTERNAL, Span
from tests.integration.certificates import Authority
from tests.integration.collector import Collector
from tests.waiting import wait_for, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "INTERVAL_S", 0.01)
    monkeypatch.setattr(exporting, "PAUSE_S", 0.01)


def spans(count: int, first: int = 0) -> list[Span]:
    told: dict[str, str | int | bool] = {"text": "ü", "number": 1 << 60, "flag": True}
    return [
        Span(
            f"span {i}", INTERNAL, "ab" * 16, f"{i + 1:016x}", "cd" * 8, 1, 2, told, "lost" if i == 3 else ""
        )
        for i in range(first, first + count)
    ]


@contextmanager
def exporter(endpoint: str, **settings: Any) -> Iterator[Exporter]:
    made = Exporter(TracingConfig(endpoint=endpoint, **settings), "berlin", 2)
    try:
        yield made
    finally:
        made.close()


def test_spans_come_as_they_are() -> None:
    with Collector() as collector, exporter(collector.url) as made:
        made.put(spans(250))
        wait_until(lambda: len(collector.spans) == 250, "they come")
        assert [one.name for one in collector.spans] == [f"span {i}" for i in range(250)]
        assert collector.spans[0].attributes == {"text": "ü", "number": 1 << 60, "flag": True}
        assert [one.error for one in collector.spans[2:5]] == ["", "lost", ""]
        assert collector.spans[0].resource["service.instance.id"] == "berlin/worker-2"
        wait_for(made.stats, lambda seen: seen["spans_exported"] == 250)
        assert made.stats() == {"spans_waiting": 0, "spans_exported": 250, "spans_dropped": 0}
        assert len(collector.paths) == 3


def is_done(made: Exporter, count: int) -> bool:
    stats = made.stats()
    return stats["spans_exported"] + stats["spans_dropped"] == count


def test_what_may_pass_is_tried_again_and_what_may_not_is_dropped() -> None:
    with Collector() as collector, exporter(collector.url) as made:
        collector.codes = [503, 429, 200, 400, 200]
        for first in range(3):
            made.put(spans(1, first))
            wait_until(partial(is_done, made, first + 1))
        assert [one.name for one in collector.spans] == ["span 0", "span 2"]
        assert made.stats() == {"spans_waiting": 0, "spans_exported": 2, "spans_dropped": 1}


def test_a_collector_that_is_gone_costs_the_spans_and_nothing_else() -> None:
    with Collector() as collector:
        url = collector.url
    with exporter(url) as made:
        made.put(spans(1))
        wait_for(made.stats, lambda seen: seen["spans_dropped"] == 1)


def test_who_puts_spans_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "QUEUE_MAX", 10)
    with Collector() as collector, exporter(collector.url) as made:
        collector.may_answer.clear()
        made.put(spans(1))
        wait_until(collector.came.is_set, "it hangs")
        made.put(spans(8, 1))
        made.put(spans(5, 9))
        assert made.stats() == {"spans_waiting": 10, "spans_exported": 0, "spans_dropped": 3}
        collector.may_answer.set()
        wait_for(made.stats, lambda seen: seen["spans_exported"] == 11)


def test_the_end_waits_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "CLOSE_S", 0.1)
    with Collector() as collector:
        made = Exporter(TracingConfig(endpoint=collector.url), "berlin", 0)
        made.put(spans(1))
        made.close()
        assert len(collector.spans) == 1
        hanging = Exporter(TracingConfig(endpoint=collector.url), "berlin", 0)
        collector.may_answer.clear()
        hanging.put(spans(1))
        begun = time.monotonic()
        hanging.close()
        assert time.monotonic() - begun < 10


def test_a_collector_with_tls_is_trusted_by_its_authority_alone(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path / "one"), Authority(tmp_path / "two")
    with Collector(authority.issue("collector").server_context()) as collector:
        with exporter(collector.url, ca_file=str(other.cert)) as made:
            made.put(spans(1))
            wait_for(made.stats, lambda seen: seen["spans_dropped"] == 1)
        with exporter(collector.url, ca_file=str(authority.cert)) as made:
            made.put(spans(1))
            wait_for(made.stats, lambda seen: seen["spans_exported"] == 1)


def test_a_key_that_changed_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("Key: one")
    with Collector() as collector, exporter(collector.url, headers_file=str(file)) as made:
        made.put(spans(1))
        wait_until(lambda: len(collector.headers) == 1)
        file.write_text("Key: two")
        made.put(spans(1))
        wait_until(lambda: len(collector.headers) == 2)
        assert [one["key"] for one in collector.headers] == ["one", "two"]
        file.write_text("none")
        made.put(spans(1))
        wait_for(made.stats, lambda seen: seen["spans_dropped"] == 1)
