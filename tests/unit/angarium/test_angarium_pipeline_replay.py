"""Which messages a replay sends, in which batches, and when: without Spark."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium import errors
from angarium.pipeline import replay_plan
from angarium.pipeline.dataset.files import LocalFiles
from angarium.pipeline.replay import ReplayJob, sink_options
from angarium.pipeline.replay_plan import Batch, Part, Plan
from angarium.pipeline.selection import Selection, expression_of, moment
from angarium.spark import options
from angarium.topic import matches

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

pytestmark = pytest.mark.requirement("R221")

LEVELS = ("a", "ab", "", "a.b", "*", ">", "a*", "#P2P", "$S", "ö+(", "x\n", "^$", "\\d")
TOPICS = st.lists(st.sampled_from(LEVELS), min_size=1, max_size=4).map("/".join).filter(bool)


@given(TOPICS, TOPICS)
def test_a_filter_matches_as_it_does_in_a_subscription(text: str, topic: str) -> None:
    assert bool(re.search(expression_of(text), topic)) == matches(text, topic)


@pytest.mark.parametrize(
    ("text", "topic", "does"),
    [
        ("a/>", "a/", True),
        ("a/>", "a", False),
        (">", "$S/x", False),
        ("*/x", "#P2P/x", False),
        ("$S/>", "$S/x/y", True),
        ("#share/g/a/*", "a/b", True),
    ],
)
def test_examples_of_filters(text: str, topic: str, does: bool) -> None:
    assert bool(re.search(expression_of(text), topic)) is does


def test_a_time_without_zone_is_utc() -> None:
    assert moment("2026-03-01") == datetime(2026, 3, 1, tzinfo=UTC)
    assert moment("2026-03-01T13:00:00+01:00") == datetime(2026, 3, 1, 12, tzinfo=UTC)
    with pytest.raises(errors.InvalidRequestError, match="'noon' is no time; write 2026"):
        moment("noon")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"queue": "q", "topic_prefix": "x/"}, "a queue or to topics with a prefix"),
        ({"speed": 0.0}, "speed 0; 1 is as it was"),
        ({"selection": Selection(topics=("#share/",))}, "Subscription Parse Error|Share"),
        ({"selection": Selection(moment("2026-03-02"), moment("2026-03-01"))}, "nothing is from 2026-03-02"),
        ({"topic_prefix": "x" * 251}, "Invalid Topic Name"),
    ],
)
def test_a_job_that_cannot_be_done_says_why(values: dict[str, Any], text: str) -> None:
    with pytest.raises(errors.InvalidRequestError, match=text):
        ReplayJob(path="p", **values).validate()


def test_a_job_is_the_same_if_it_sends_the_same_to_the_same_place() -> None:
    def name(**values: Any) -> str:
        return ReplayJob(path="p", **values).name

    assert name(queue="q", options={"url": "u", "password": "1"}) == name(
        queue="q", options={"url": "u", "password": "2"}
    )
    names = [name(), name(queue="q"), name(topic_prefix="q"), name(speed=1.0), name(options={"url": "v"})]
    assert len(set(names)) == len(names)


PARTS = [Part(f"part-{number}", number % 2, 10 + number, 1000 * number) for number in range(6)]


def test_parts_are_in_the_order_of_their_files_however_many_there_are() -> None:
    """Spark numbers the tasks with five digits and the files of each with three, and with more once there are more."""
    numbers = [(task, file) for task in (0, 7, 99_999, 100_000) for file in (0, 101, 999, 1000, 1001, 10_000)]
    name = "part-{:05d}-0e7a8f41-c12d-4d0c-b5c9-c00012345678-c{:03d}.snappy.parquet"
    parts = [Part(name.format(*number), slice_, 1, 0) for number in numbers for slice_ in (9, 10)]
    assert replay_plan.ordered(sorted(parts, key=lambda part: part.file)) == parts


def test_as_fast_as_possible_some_files_are_a_batch_in_their_order() -> None:
    found = replay_plan.batches_of(PARTS, paced=False)
    assert [batch.files for batch in found] == [
        ("part-0", "part-1", "part-2", "part-3"),
        ("part-4", "part-5"),
    ]
    assert [batch.rows for batch in found] == [46, 29]


def test_where_time_matters_each_slice_is_a_batch() -> None:
    found = replay_plan.batches_of(PARTS, paced=True)
    assert [(batch.files, batch.slice, batch.at) for batch in found][:2] == [
        (("part-0",), 0, 0),
        (("part-1",), 1, 1000),
    ]


def test_a_batch_waits_for_its_time_from_where_this_run_began() -> None:
    first, later = Batch(("a",), 0, 1, 5_000_000), Batch(("a",), 1, 1, 9_000_000)
    assert replay_plan.wait_s(first, first, 0.0, 1.0) == 0
    assert replay_plan.wait_s(later, first, 1.0, 1.0) == pytest.approx(3.0)
    assert replay_plan.wait_s(later, first, 1.0, 2.0) == pytest.approx(1.0)
    assert replay_plan.wait_s(later, first, 60.0, 2.0) == 0


def written(files: LocalFiles) -> LocalFiles:
    """Have the rows of PARTS where Spark has written them."""
    for name in {part.file for part in PARTS}:
        files.create(f"r/{replay_plan.ROWS}/{name}", "rows")
    return files


class NotedFiles(LocalFiles):
    """Notes what is made to last, in order."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.lasting: list[str] = []

    def create(self, path: str, text: str) -> bool:
        self.lasting.append(path)
        return super().create(path, text)

    def sync(self, paths: Iterable[str]) -> None:
        found = list(paths)
        self.lasting += found
        super().sync(found)


@pytest.mark.parametrize("paced", [False, True])
def test_the_rows_of_a_plan_last_before_it_counts(tmp_path: Path, paced: bool) -> None:
    """After a power cut it would name files that are empty or not there, and every later run would fail."""
    files = NotedFiles(tmp_path)
    written(files)
    files.lasting.clear()
    replay_plan.save(files, "r", Plan("sink", None, replay_plan.batches_of(PARTS, paced=paced)))
    assert files.lasting[-1] == f"r/{replay_plan.PLAN}"
    assert sorted(files.lasting[:-1]) == sorted({f"r/{replay_plan.ROWS}/{part.file}" for part in PARTS})


def test_a_plan_is_kept_and_says_what_is_done(tmp_path: Path) -> None:
    files = written(LocalFiles(tmp_path))
    assert replay_plan.load(files, "r") is None
    plan = Plan("sink", None, replay_plan.batches_of(PARTS, paced=False))
    replay_plan.save(files, "r", plan)
    assert replay_plan.load(files, "r") == plan
    assert (plan.messages, plan.done_before(1)) == (75, 46)
    assert replay_plan.next_batch(files, "r") == 0
    for number in range(2):
        replay_plan.mark_done(files, "r", number)
        assert replay_plan.next_batch(files, "r") == number + 1


class CutOffFiles(LocalFiles):
    """Is killed while it removes a directory, when all but the plan is gone."""

    def remove(self, path: str) -> None:
        if not (self.root / path).is_dir():
            super().remove(path)
            return
        for entry in self.entries(path):
            if entry.name != replay_plan.PLAN:
                super().remove(entry.path)
        raise InterruptedError


def test_a_replay_that_was_removed_in_part_is_begun_anew(tmp_path: Path) -> None:
    """It would send batches again, of rows that were removed when it was finished."""
    files = CutOffFiles(tmp_path)
    written(files)
    replay_plan.save(files, "r", Plan("sink", None, replay_plan.batches_of(PARTS, paced=False)))
    replay_plan.mark_done(files, "r", 1)
    with pytest.raises(InterruptedError):
        replay_plan.discard(files, "r")
    assert replay_plan.load(files, "r") is None


@pytest.mark.parametrize("queue", ["orders", "a,b", "[x]", " a ", '"q"', "q ö"])
def test_messages_go_to_the_queue_that_is_named_whatever_is_in_its_name(queue: str) -> None:
    job = ReplayJob(path="p", queue=queue, options={"url": "tcp://h:1"})
    read = options.settings(options.WRITE, sink_options(job, Plan("s", None, ()), 7))
    assert read["queue"] == (queue,)
    assert (read["sinkId"], read["batchId"], read["url"]) == ("s", 7, ("tcp://h:1",))
