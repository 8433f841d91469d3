"""The rules for stages object to every kind of broken promise, and a controller that forgets sinks is found out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cluster.catalog.stages import Stages
from tests.simulation.guaranteed.mutations import is_found
from tests.simulation.guaranteed.writer_records import WriterRecord
from tests.simulation.guaranteed.written import Written
from tests.simulation.written_history import VPN

if TYPE_CHECKING:
    from cluster.catalog.stages import Decision

pytestmark = pytest.mark.requirement("R221")


class Wrote:
    """A queue, and a sink with one batch of two rows that is committed and answered."""

    def __init__(self) -> None:
        self.written = written = Written()
        self.queue = written.queue("one", "t/>")
        self.writer = WriterRecord(VPN, "sink")
        written.history.writers.append(self.writer)
        self.batch = self.writer.begin()
        self.attempt = self.batch.begin()
        self.rows = [self.writer.name_row(self.attempt, "one") for _ in range(2)]
        self.attempt.committed_at = written.now
        written.now += 0.1

    def publish(self, *whats: str) -> None:
        places = [self.written.store(what, self.queue, at=self.written.now) for what in whats]
        self.written.now += 0.1
        self.batch.answered_at = self.written.now
        self.batch.answers.append(True)
        self.written.consume(self.written.bind(self.queue), *places)

    def rules(self) -> list[str]:
        return self.written.rules()


@pytest.fixture
def wrote() -> Wrote:
    return Wrote()


def test_a_batch_that_is_published_whole_and_once_is_good(wrote: Wrote) -> None:
    wrote.batch.begin().rows["never"] = "one"
    wrote.publish(*wrote.rows)
    assert wrote.rules() == []


def test_half_a_batch_is_found_out(wrote: Wrote) -> None:
    wrote.publish(wrote.rows[0])
    assert wrote.rules() == ["staged"]


def test_a_batch_that_is_nowhere_is_found_out(wrote: Wrote) -> None:
    wrote.publish()
    assert wrote.rules() == ["staged"]


def test_a_row_that_is_published_twice_is_found_out(wrote: Wrote) -> None:
    wrote.publish(*wrote.rows, wrote.rows[0])
    assert wrote.rules() == ["staged"]


def test_a_batch_that_two_attempts_published_is_found_out(wrote: Wrote) -> None:
    again = wrote.batch.begin()
    again.committed_at = wrote.attempt.committed_at
    wrote.publish(*wrote.rows, wrote.writer.name_row(again, "one"))
    assert wrote.rules() == ["staged"]


def test_rows_that_nobody_committed_are_found_out(wrote: Wrote) -> None:
    wrote.attempt.committed_at = wrote.written.now + 10
    wrote.publish(*wrote.rows)
    assert wrote.rules() == ["staged"]


@pytest.mark.slow
def test_a_controller_that_forgets_what_sinks_committed_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = Stages.commit

    def commit_and_forget(self: Stages, *arguments: Any) -> Decision:
        self._sinks.clear()
        return commit(self, *arguments)

    monkeypatch.setattr(Stages, "commit", commit_and_forget)
    assert is_found("staged", first=4)
