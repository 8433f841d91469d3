"""Changes of an archive that happen whole or not at all, on the files of this machine."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import pytest

from angarium import errors
from angarium.pipeline.dataset import files as files_module
from angarium.pipeline.dataset import journal
from angarium.pipeline.dataset.files import LocalFiles, walk
from angarium.pipeline.dataset.journal import Change
from angarium.pipeline.dataset.layout import topic_directory

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.requirement("R221")


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    return LocalFiles(tmp_path)


def stage(files: LocalFiles, name: str, removals: tuple[str, ...] = ()) -> Change:
    """Write two files aside."""
    staging = f"{journal.STAGING}/{name}-1"
    for part in ("1", "2"):
        path = files.root / staging / f"{part}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    moves = tuple((f"{staging}/{part}.parquet", f"d/{name}-{part}.parquet") for part in ("1", "2"))
    return Change(name, staging, moves, removals, 2)


def found(files: LocalFiles) -> list[str]:
    return [entry.path for entry in walk(files)]


def test_what_is_staged_is_seen_by_nobody_until_the_change_is_finished(files: LocalFiles) -> None:
    change = stage(files, "a")
    assert found(files) == []
    assert journal.decide(files, change)
    assert found(files) == []
    journal.finish(files, change)
    assert found(files) == ["d/a-1.parquet", "d/a-2.parquet"]
    assert journal.is_done(files, change)


def test_a_name_is_decided_once(files: LocalFiles) -> None:
    first = stage(files, "a")
    assert journal.decide(files, first)
    assert not journal.decide(files, Change("a", "elsewhere", first.moves, (), 7))
    assert journal.decided(files, "a") == first
    assert journal.decided(files, "b") is None


def test_a_change_that_was_cut_off_is_finished_and_finishing_twice_changes_nothing(files: LocalFiles) -> None:
    old = files.root / "d" / "old.parquet"
    old.parent.mkdir()
    old.write_text("old")
    change = stage(files, "a", ("d/old.parquet",))
    journal.decide(files, change)
    files.move(*change.moves[0])
    assert journal.recover(files) == [change]
    assert found(files) == ["d/a-1.parquet", "d/a-2.parquet"]
    assert journal.recover(files) == []
    journal.finish(files, change)
    assert found(files) == ["d/a-1.parquet", "d/a-2.parquet"]


def test_nothing_is_removed_when_what_replaces_it_is_missing(files: LocalFiles) -> None:
    old = files.root / "d" / "old.parquet"
    old.parent.mkdir()
    old.write_text("old")
    change = stage(files, "a", ("d/old.parquet",))
    journal.decide(files, change)
    (files.root / change.moves[1][0]).unlink()
    with pytest.raises(errors.UnavailableError, match=r"a-2\.parquet is missing"):
        journal.finish(files, change)
    assert old.exists()


def test_what_was_staged_and_not_decided_is_swept_for_its_own_job_only(files: LocalFiles) -> None:
    decided, lost, other = (stage(files, name) for name in ("batch-x-1", "batch-x-2", "batch-y-1"))
    journal.decide(files, decided)
    journal.sweep(files, "batch-x-")
    assert files.exists(decided.staging)
    assert not files.exists(lost.staging)
    assert files.exists(other.staging)


def test_where_another_run_may_be_at_work_what_it_may_still_decide_is_not_swept(files: LocalFiles) -> None:
    late, decided, coming = (stage(files, f"batch-x-{number}") for number in (1, 2, 3))
    journal.decide(files, decided)
    journal.sweep(files, "batch-x-", is_alone=False)
    assert [files.exists(one.staging) for one in (late, decided, coming)] == [False, True, True]


def test_a_file_is_held_by_one_run_and_by_the_next_when_that_has_ended(files: LocalFiles) -> None:
    with files.hold("jobs/q/running") as is_alone:
        assert is_alone
        with (
            pytest.raises(errors.ConflictError, match=r"another run of this job is at work in .*jobs/q"),
            files.hold("jobs/q/running"),
        ):
            pass
        with files.hold("jobs/other/running") as is_alone:
            assert is_alone
    with files.hold("jobs/q/running") as is_alone:
        assert is_alone


def test_a_reader_sees_each_message_once_in_every_state_of_a_change() -> None:
    change = Change("c", "s", (("s/1", "d/new1"), ("s/2", "d/new2")), ("d/old1", "d/old2"), 0)
    unmoved = journal.visible(["d/old1", "d/old2", "d/x"], [change], {"s/1", "s/2"})
    assert unmoved == ["d/x", "s/1", "s/2"]
    moved_one = journal.visible(["d/new1", "d/old1", "d/old2", "d/x"], [change], {"s/2"})
    assert moved_one == ["d/new1", "d/x", "s/2"]
    removed_one = journal.visible(["d/new1", "d/new2", "d/old2", "d/x"], [change], set())
    assert removed_one == ["d/new1", "d/new2", "d/x"]


def test_a_file_is_created_whole_and_once(files: LocalFiles) -> None:
    assert files.create("a/b.json", "one")
    assert not files.create("a/b.json", "two")
    assert files.read("a/b.json") == "one"
    assert [entry.name for entry in files.entries("a")] == ["b.json"]


@pytest.mark.parametrize("level", ["x.crc", ".crc", ".x.parquet.crc"])
def test_a_topic_may_be_called_like_a_check_sum(files: LocalFiles, level: str) -> None:
    """A batch moves what is found in its staging, and removes the rest of it."""
    folder = files.root / "date=2026-03-01" / topic_directory(f"{level}/7", 1)
    folder.mkdir(parents=True)
    for name in ("1.parquet", ".1.parquet.crc"):
        (folder / name).write_text("x")
    assert found(files) == [f"date=2026-03-01/topic_1={level}/1.parquet"]


def test_what_a_decision_rests_on_outlasts_a_power_cut(
    files: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is on disk once the directory is that it is in; without its staging a change would count as done."""
    lasting: list[Path] = []
    monkeypatch.setattr(files_module, "_sync", lasting.append)
    change = stage(files, "a")
    journal.decide(files, change)
    wanted = [f"{journal.JOURNAL}/a.json", *(source for source, _ in change.moves)]
    folders = {files.root / parent for path in wanted for parent in PurePosixPath(path).parents}
    assert folders <= set(lasting)


def test_what_goes_while_a_directory_is_listed_takes_nothing_else_with_it(files: LocalFiles) -> None:
    """Another job makes and removes files in the journal all the time; a link to nothing looks as if it had gone."""
    (files.root / "d").mkdir()
    (files.root / "d" / "1.parquet").write_text("x")
    (files.root / "d" / "2.parquet").symlink_to("nowhere")
    assert found(files) == ["d/1.parquet"]


class ForgettingFiles(LocalFiles):
    """Another job forgets each change after it was listed and before it is read."""

    def read(self, path: str) -> str:
        self.remove(path)
        return super().read(path)


def test_a_change_that_its_job_forgets_is_none_that_has_to_be_finished(files: LocalFiles) -> None:
    change = stage(files, "a")
    journal.decide(files, change)
    journal.finish(files, change)
    assert journal.changes(files) == [change]
    assert journal.changes(ForgettingFiles(files.root)) == []


def test_a_change_that_cannot_be_read_is_not_passed_over(files: LocalFiles) -> None:
    files.create(f"{journal.JOURNAL}/a.json", "{")
    with pytest.raises(ValueError, match="Expecting"):
        journal.changes(files)
