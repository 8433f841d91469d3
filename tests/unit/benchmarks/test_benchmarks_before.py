"""Two checkouts in turn: who is first, what a ratio is the median of, and what can be told."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pytest

from benchmarks import before
from benchmarks.__main__ import main
from benchmarks.brokers.angarium import Angarium
from benchmarks.brokers.server import ROOT, BrokerFailedError
from benchmarks.direct import WARM_UP_S, Settings
from benchmarks.figures import Better, Row, median_interval
from benchmarks.harness import Trial

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.brokers.server import Broker

ROUNDS = 20
#: What the machine does: a minute may be half as fast as the one before.
WEATHER = (1.0, 2.0, 0.7)


def trial(rate: float, cpu_s: float) -> Trial:
    return Trial(
        published=1_000_000,
        received=1_000_000,
        lost=0,
        seconds=1_000_000 / rate,
        latencies_ns=[],
        rounds=0,
        cpu_s={"router": cpu_s, "worker": cpu_s, "publisher": 9.0},
        calibration=10.0,
        stolen_s=0.0,
    )


@pytest.fixture
def nodes(tmp_path: Path) -> list[Broker]:
    return [Angarium(tmp_path, name="now"), Angarium(tmp_path, name="before")]


def test_each_is_first_in_every_second_round_and_both_are_warm(nodes: list[Broker]) -> None:
    worked: list[tuple[str, float]] = []

    def work(broker: Broker, seconds: float) -> Trial:
        worked.append((broker.name, seconds))
        return trial(len(worked), 1.0)

    pairs = before.alternate(work, nodes, 2, 0.5)
    assert worked[:2] == [("now", WARM_UP_S), ("before", WARM_UP_S)]
    assert worked[2:] == [("now", 0.5), ("before", 0.5), ("before", 0.5), ("now", 0.5)]
    assert [(now.rate, other.rate) for now, other in pairs] == [(3.0, 4.0), (6.0, 5.0)]


class Node:
    """A node that notes when it starts and stops."""

    log: ClassVar[list[str]] = []

    def __init__(self, directory: Path, checkout: Path | None = None) -> None:
        self.name = f"{directory.name} {checkout is not None}"

    def start(self) -> None:
        self.log.append(f"start {self.name}")

    def stop(self) -> None:
        self.log.append(f"stop {self.name}")


def run_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Any) -> list[Row]:
    monkeypatch.setattr(Node, "log", [])
    subject = before.Subject("direct", cast("Any", Node), {"row": work})
    monkeypatch.setattr(before, "subjects", lambda: [subject])
    settings = Settings(repetitions=2 * before.ROUNDS_OF_NODES + 1, seconds=0.5)
    return before.Beside(tmp_path, settings, ROOT).run(None)


def test_there_are_other_nodes_after_some_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rate, _ = run_beside(tmp_path, monkeypatch, lambda _node, _seconds: trial(1.0, 1.0))
    assert len(rate.ours) == len(rate.peer) == 2 * before.ROUNDS_OF_NODES + 1
    started = [one.removeprefix("start ") for one in Node.log if one.startswith("start")]
    stopped = [one.removeprefix("stop ") for one in Node.log if one.startswith("stop")]
    assert len(set(started)) == 6
    assert sorted(started) == sorted(stopped)


def test_a_node_that_fails_leaves_the_rounds_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(_node: Node, _seconds: float) -> Trial:
        if sum(one.startswith("start") for one in Node.log) > 4:
            raise BrokerFailedError("it is gone")
        return trial(1.0, 1.0)

    failed, rate, _ = run_beside(tmp_path, monkeypatch, work)
    assert failed.error == "it is gone"
    assert len(rate.ours) == 2 * before.ROUNDS_OF_NODES
    assert Node.log[-1].startswith("stop")


def test_a_ratio_is_told_whatever_the_weather_of_a_round_is() -> None:
    rates = [(98.0 * WEATHER[at % 3], 100.0 * WEATHER[at % 3]) for at in range(ROUNDS)]
    pairs = [(trial(now, 2.2), trial(other, 2.0)) for now, other in rates]
    rate, cost = before.rows("direct", pairs)
    assert rate.ratio == pytest.approx(0.98)
    assert rate.met
    assert cost.ratio == pytest.approx(1.1)
    assert cost.peer[0] == 4.0  # of router and worker, for a million messages
    assert cost.met is False
    assert "between 0.980 and 0.980" in rate.note


def test_rows_that_are_not_paired_compare_medians() -> None:
    shared: dict[str, Any] = {
        "name": "",
        "unit": "",
        "better": Better.HIGHER,
        "ours": [1.0, 5.0, 9.0],
        "peer": [2.0, 2.0, 90.0],
    }
    assert Row(**shared).ratio == 2.5
    assert Row(**shared, is_paired=True).ratio == 0.5


@pytest.mark.parametrize("count", [1, 2, 6, 30, 200])
def test_the_interval_has_the_median_of_what_was_drawn_from_in_95_of_100_cases(count: int) -> None:
    rng, cases = random.Random(count), 2_000
    found = [median_interval([rng.gauss(1.0, 0.1) for _ in range(count)]) for _ in range(cases)]
    inside = sum(least <= 1.0 <= most for least, most in found)
    few = 1 - 2 * 0.5**count  # fewer cannot be surer than that: all may be on one side
    assert inside / cases > min(few, 0.95) - 0.02
    assert all(least <= most for least, most in found)


def test_every_row_of_the_design_has_its_work() -> None:
    works = {one.name: list(one.works) for one in before.subjects()}
    assert tuple(works) == before.SUBJECTS
    assert any("fan-out" in title for title in works["direct"])
    assert any("10 clients" in title for title in works["direct"])
    assert [title for title in works["mesh"] if "over a link" in title] == works["mesh"]


@pytest.mark.parametrize("given", [["--before", "{nowhere}"], ["--before", "{ours}", "--only", "spark"]])
def test_what_cannot_be_compared_is_told_before_anything_starts(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [one.format(nowhere=tmp_path, ours=ROOT) for one in given]
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == 2
    assert (
        "git worktree add" if str(tmp_path) in given else "direct, guaranteed, mesh"
    ) in capsys.readouterr().err
