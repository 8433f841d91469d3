"""What is committed: which stages, for which sink and batch, and what a lost connection means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import pytest

pytest.importorskip("pyspark")

from angarium import errors
from angarium.spark import sink
from angarium.spark.options import STREAM_WRITE, WRITE, Settings, settings
from angarium.spark.sink import Commitment, Written, stream_commitment, write_commitment

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.requirement("R221")

QUERY = "b4c96289-f4f5-4786-9138-d673c24cecf5"


class FakeClient:
    """A client whose node answers as it is told, the last answer again and again."""

    def __init__(self, *answers: bool | int) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Any, ...]] = []

    def __call__(self, settings: Settings) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def commit_stages(self, stages: Sequence[str], sink: str | None, batch: int | None) -> bool:
        self.asked.append((tuple(stages), sink, batch))
        return self._answer()

    def abort_stages(self, stages: Sequence[str]) -> None:
        self.asked.append(tuple(stages))
        self._answer()

    def _answer(self) -> bool:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, bool):
            return answer
        raise errors.error_for(answer, "as told")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "_RETRY_INTERVAL_S", 0.0)


def test_the_query_is_the_sink_by_default() -> None:
    """Its id is in the checkpoint, so it is the same after a restart, and another one in a new checkpoint."""
    messages = [Written(3, "a", QUERY), Written(0), Written(5, "b", QUERY)]
    found = stream_commitment(settings(STREAM_WRITE, {}), messages, 7)
    assert found == Commitment(("a", "b"), f"spark/{QUERY}", 7)


def test_a_name_for_the_sink_does_not_outlive_its_checkpoint() -> None:
    """A query that starts over begins with batch 0; with the name alone the node would drop what it has not seen."""
    found = stream_commitment(settings(STREAM_WRITE, {"sinkid": "orders"}), [Written(1, "a", QUERY)], 0)
    assert found == Commitment(("a",), f"orders/{QUERY}", 0)


def test_a_query_without_an_id_needs_a_name() -> None:
    found = stream_commitment(settings(STREAM_WRITE, {"sinkid": "orders"}), [Written(1, "a")], 0)
    assert found == Commitment(("a",), "orders", 0)
    with pytest.raises(
        errors.InvalidRequestError, match="option sinkId: Spark tells no id of the query here"
    ):
        stream_commitment(settings(STREAM_WRITE, {}), [Written(1, "a")], 0)


@pytest.mark.parametrize("messages", [[], [Written(0), None], [Written(9, None, QUERY)]])
def test_without_stages_there_is_nothing_to_commit(messages: list[Written | None]) -> None:
    assert stream_commitment(settings(STREAM_WRITE, {}), messages, 0) is None
    assert write_commitment(settings(WRITE, {}), messages) is None


def test_a_data_frame_belongs_to_no_sequence() -> None:
    assert write_commitment(settings(WRITE, {}), [Written(1, "a")]) == Commitment(("a",), None, None)


def test_a_data_frame_may_say_which_batch_it_is() -> None:
    given = settings(WRITE, {"sinkid": "orders", "batchid": "0"})
    assert write_commitment(given, [Written(1, "a")]) == Commitment(("a",), "orders", 0)
    assert write_commitment(given, [Written(1, "a", QUERY)]) == Commitment(("a",), f"orders/{QUERY}", 0)


@pytest.mark.parametrize(("given", "missing"), [({"sinkId": "a"}, "batchId"), ({"batchId": "1"}, "sinkId")])
def test_a_sequence_without_a_place_in_it_is_refused(given: dict[str, str], missing: str) -> None:
    with pytest.raises(errors.InvalidRequestError, match=f"option {missing}: sinkId and batchId"):
        sink.check_identity(settings(WRITE, given))


@pytest.mark.parametrize("answer", [True, False])
def test_a_batch_that_was_committed_before_is_no_error(answer: bool) -> None:
    client = FakeClient(answer)
    assert sink.commit(settings(WRITE, {}), Commitment(("a",), "s", 1), client) is answer
    assert client.asked == [(("a",), "s", 1)]


def test_a_commit_whose_answer_was_lost_is_tried_again() -> None:
    client = FakeClient(errors.NOT_CONNECTED, errors.TIMEOUT, False)
    assert not sink.commit(settings(WRITE, {}), Commitment(("a",), "s", 1), client)
    assert client.asked == [(("a",), "s", 1)] * 3


def test_a_commit_that_is_refused_is_not_tried_again() -> None:
    client = FakeClient(errors.OBJECT_NOT_FOUND)
    with pytest.raises(errors.NotFoundError):
        sink.commit(settings(WRITE, {}), Commitment(("a",)), client)
    assert len(client.asked) == 1


def test_tries_end_after_the_time_of_the_option() -> None:
    with pytest.raises(errors.ConnectionLostError):
        sink.commit(
            settings(WRITE, {"retryseconds": "0.05"}), Commitment(("a",)), FakeClient(errors.NOT_CONNECTED)
        )


def test_stages_that_cannot_be_dropped_are_left_to_age_out() -> None:
    """Spark is told of the error that failed the batch, not of one in cleaning up after it."""
    assert sink.drop(settings(WRITE, {}), [], FakeClient(True)) is None
    client = FakeClient(True)
    assert sink.drop(settings(WRITE, {}), ["a", "b"], client) is None
    assert client.asked == [("a", "b")]
    error = sink.drop(settings(WRITE, {}), ["a"], FakeClient(errors.CONNECT_FAILED))
    assert error is not None
    assert error.code == errors.CONNECT_FAILED
