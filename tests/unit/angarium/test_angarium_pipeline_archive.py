"""The parts of the job archive that need no Spark: its checkpoint, its names, what is merged, and clear errors."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors
from angarium.pipeline import archive
from angarium.pipeline.archive import ArchiveJob
from angarium.pipeline.dataset import checkpoint
from angarium.pipeline.dataset.checkpoint import Progress, progress_of
from angarium.pipeline.dataset.compaction import Merge, plan
from angarium.pipeline.dataset.files import Entry, LocalFiles
from angarium.pipeline.failures import clear_failure
from angarium.spark import connecting
from angarium.spark.offsets import Lane, Offset

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.requirement("R221")


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    return LocalFiles(tmp_path)


def log(files: LocalFiles, name: str, text: str) -> None:
    assert files.create(f"ck/{name}", text)


def test_a_checkpoint_that_is_not_there_is_at_its_start(files: LocalFiles) -> None:
    assert progress_of(files, "ck") == Progress(None, None, None, None)
    assert progress_of(files, "ck").is_clean


def test_the_end_of_the_newest_batch_that_is_done_counts_and_not_that_of_a_planned_one(
    files: LocalFiles,
) -> None:
    for number in (9, 10, 11):
        log(files, f"offsets/{number}", f'v1\n{{"batchWatermarkMs":0}}\n{{"at":{number}}}')
    for number in (9, 10):
        log(files, f"commits/{number}", 'v1\n{"nextBatchWatermarkMs":0}')
    log(files, "offsets/.12.3f.tmp", "half")
    found = progress_of(files, "ck")
    assert found == Progress(10, 11, '{"at":9}', '{"at":10}')
    assert not found.is_clean


def test_a_source_may_have_no_offset_yet() -> None:
    assert checkpoint.parse_offset("v1\n{}\n-", "ck/offsets/0") is None


@pytest.mark.parametrize("text", ["", "v1\n{}", "v2\n{}\n1", "v1\n{}\n1\n2"])
def test_a_log_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(errors.UnavailableError, match="ck/offsets/3 is not of the form"):
        checkpoint.parse_offset(text, "ck/offsets/3")


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"queues": ("orders",)}, "orders"),
        ({"queues": ("a/b",)}, "queues-"),
        ({"queues": ("a", "b")}, "queues-"),
        ({"topics": ("a/>",)}, "topics-"),
    ],
)
def test_a_checkpoint_has_the_name_of_its_queue_or_a_digest(values: dict[str, Any], name: str) -> None:
    assert archive.name_for(ArchiveJob(path="p", **values)).startswith(name)


def test_the_order_of_queues_does_not_matter() -> None:
    names = {archive.name_for(ArchiveJob(path="p", queues=queues)) for queues in (("a", "b"), ("b", "a"))}
    assert len(names) == 1


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, "queues or of topic filters"),
        ({"queues": ("a",), "topics": ("b",)}, "queues or of topic filters"),
        ({"queues": ("a",), "trigger": "never"}, "trigger 'never', possible are available-now"),
        ({"queues": ("a",), "levels": 9}, "9 levels of topics"),
        ({"queues": ("a",), "name": "../x/y"}, "the name '../x/y'"),
    ],
)
def test_a_job_that_cannot_be_done_says_why(values: dict[str, Any], text: str) -> None:
    with pytest.raises(errors.InvalidRequestError, match=text):
        ArchiveJob(path="p", **values).validate()


def test_a_checkpoint_keeps_its_id_and_belongs_to_its_queues(files: LocalFiles) -> None:
    job = ArchiveJob(path="p", queues=("a", "b"))
    first = archive.open_checkpoint(files, "jobs/x", job)
    assert archive.open_checkpoint(files, "jobs/x", ArchiveJob(path="p", queues=("b", "a"))) == first
    assert archive.open_checkpoint(files, "jobs/y", job) != first
    with pytest.raises(errors.ConflictError, match="is that of a, b"):
        archive.open_checkpoint(files, "jobs/x", ArchiveJob(path="p", topics=("a",)))


def test_a_stream_is_told_its_group_and_limits() -> None:
    job = ArchiveJob(
        path="p", queues=("a", "b"), batch_messages=7, batch_bytes=9, options={"url": "tcp://h:1"}
    )
    assert archive.source_options(job, "g") == {
        "group": "g",
        "queue": '["a", "b"]',
        "maxMessagesPerTrigger": "7",
        "maxBytesPerTrigger": "9",
        "url": "tcp://h:1",
    }


class FakeNode:
    """A client, and the group of its queue, which is endpoint 1 as the first queue of each node is."""

    endpoint_id = 1
    queue = "orders"
    partitions = (0,)

    def __init__(self, node: str, node_id: str) -> None:
        self.node, self.node_id = node, node_id
        self.deleted_below: dict[int, int] = {}

    def __enter__(self) -> FakeNode:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def reader_group(self, *_: object, **__: object) -> FakeNode:
        return self

    continued = True

    def positions(self) -> dict[int, Any]:
        return {0: SimpleNamespace(planned=11)}

    def acknowledge(self, ends: dict[int, int]) -> None:
        self.deleted_below |= ends


@pytest.mark.parametrize(
    ("node", "node_id", "vpn", "deleted_below"),
    [
        ("n1", "a", "default", {0: 11}),
        ("n2", "b", "default", {}),
        ("n1", "a", "test", {}),
        pytest.param("n1", "b", "default", {}, id="made-anew"),
    ],
)
def test_what_is_archived_is_deleted_at_its_own_node_only(
    node: str, node_id: str, vpn: str, deleted_below: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who names another --url has a queue of that name and number there, with other messages."""
    there = FakeNode(node, node_id)
    monkeypatch.setattr(connecting, "open_client", lambda settings: there)
    lane = Lane("orders", 0)
    end = Offset("n1", "default", "g", {"orders": 1}, {lane: 11}, {lane: 10}, {lane: 1}, node_id="a")
    source = archive.QueueSource({"queue": "orders", "group": "g", "vpn": vpn})
    source.acknowledge(None, json.dumps(end.to_json()))
    assert there.deleted_below == deleted_below


def test_what_was_acknowledged_at_the_end_of_a_run_is_not_acknowledged_by_the_next(tmp_path: Path) -> None:
    """The node may be a new one of the same name by then, with other messages in the same places."""
    files, told = LocalFiles(tmp_path), list[tuple[str | None, str]]()
    source: Any = SimpleNamespace(acknowledge=lambda start, end: told.append((start, end)))
    for progress in (
        Progress(None, 0, None, None),
        Progress(0, 0, None, "a"),
        Progress(0, 1, None, "a"),
        Progress(1, 1, "a", "b"),
        Progress(1, 1, "a", "b"),
    ):
        archive.acknowledge_once(files, "jobs/x", progress, source)
    assert told == [(None, "a"), ("a", "b")]


def entries(sizes: dict[str, int]) -> list[Entry]:
    return [Entry(path, is_directory=False, bytes=size) for path, size in sizes.items()]


def test_small_files_of_one_directory_are_merged_up_to_the_target() -> None:
    found = plan(
        entries({"a/1": 40, "a/2": 30, "a/3": 40, "a/4": 20, "a/big": 50, "b/1": 1, "c/1": 10, "c/2": 10}),
        100,
    )
    assert found == [
        Merge("a", ("a/1", "a/2")),
        Merge("a", ("a/3", "a/4")),
        Merge("c", ("c/1", "c/2")),
    ]


def test_files_of_one_checkpoint_are_merged_however_often_and_their_names_tell_which() -> None:
    one, two, merged = "0123abcd", "89ef4567", f"compaction-{'f' * 32}-00003"
    names = [f"batch-{two}-000000000001-00000", f"batch-{one}-000000000002-00007", f"{merged}-{one}", merged]
    found = plan(entries({f"d/{name}.parquet": 10 for name in [*names, merged.replace("3", "4")]}), 100)
    assert found == [
        Merge("d", (f"d/{merged}.parquet", f"d/{merged.replace('3', '4')}.parquet")),
        Merge("d", (f"d/{names[1]}.parquet", f"d/{merged}-{one}.parquet"), one),
    ]


def test_what_was_merged_is_not_merged_again_and_again() -> None:
    assert plan(entries({"a/1": 90, "a/2": 95, "a/3": 3}), 100) == []
    assert plan([], 100) == []


class PySparkError(Exception):
    __module__ = "pyspark.errors"


def test_an_error_of_ours_is_found_in_what_spark_says() -> None:
    inner = errors.error_for(errors.OBJECT_NOT_FOUND, "queue 'q'")
    text = f"[STREAM_FAILED] Query terminated\n  File x, line 3\nangarium.errors.NotFoundError: {inner}\n\tat java"
    found = clear_failure(PySparkError(text))
    assert isinstance(found, errors.NotFoundError)
    assert str(found) == str(inner)


def test_any_other_failure_of_spark_is_one_line() -> None:
    found = clear_failure(PySparkError("\nDisk is full\n\tat java.io\n\tat org.apache"))
    assert isinstance(found, errors.UnavailableError)
    assert "Disk is full" in str(found)
    assert len(str(found).splitlines()) == 1


def test_what_is_not_sparks_stays_as_it_is() -> None:
    fault = ValueError("ours")
    assert clear_failure(fault) is fault
