"""How rows are given to a node, told by nodes that are not there: refusals name rows, and what failed is dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

from angarium import errors
from angarium.client.connection.connection import ClientEvent
from angarium.client.publishing.receipts import PublishReport
from angarium.spark import sending, sink
from angarium.spark.options import WRITE, settings
from angarium.spark.rows import Place, Target
from angarium.spark.sending import DirectDelivery, GuaranteedDelivery, Opened

if TYPE_CHECKING:
    from collections.abc import Iterable

    from angarium.message import Message

pytestmark = pytest.mark.requirement("R221")

ROW = (0, "a/b", 1, None, None, b"x")
BILLING = Place(Target("#P2P/QUE/billing", shown="queue 'billing'"), 11, 2)


class FakeStage:
    """A stage whose node refuses some of what it is given."""

    id = "stage-1"

    def __init__(self, **refused: int) -> None:
        self.refused = {int(place.removeprefix("at")): code for place, code in refused.items()}
        self.given: list[Message] = []
        self.closed = 0

    def publish_many(self, messages: Iterable[Message]) -> PublishReport:
        first = len(self.given)
        self.given += messages
        refused = [
            (place - first, errors.error_for(code, "why"))
            for place, code in self.refused.items()
            if first <= place < len(self.given)
        ]
        return PublishReport(len(self.given) - first - len(refused), refused)

    def close(self, *, timeout_s: float | None = None) -> None:
        self.closed += 1
        if timeout_s is not None:
            raise errors.error_for(errors.TIMEOUT)


class FakeClient:
    max_message_bytes = 100

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def publish_many(self, messages: Iterable[Message]) -> None:
        self.calls += [message.topic for message in messages]

    def flush(self) -> None:
        self.calls.append("flush")

    def abort_stages(self, stages: list[str]) -> None:
        self.calls.append(("abort", *stages))

    def close(self) -> None:
        self.calls.append("close")


def open_fake(monkeypatch: pytest.MonkeyPatch, stage: FakeStage) -> FakeClient:
    client = FakeClient()
    opened = Opened(GuaranteedDelivery(stage, 100), client, stage)  # type: ignore[arg-type] # what is used of them
    monkeypatch.setattr(sending, "open_delivery", lambda _: opened)
    return client


def batch(*topics: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"topic": pa.array(topics, pa.string())})


def test_the_first_row_that_is_refused_is_named_with_its_destination() -> None:
    delivery = GuaranteedDelivery(FakeStage(at1=errors.SPOOL_OVER_QUOTA, at2=errors.SPOOL_OVER_QUOTA), 100)
    with pytest.raises(errors.UnavailableError) as caught:
        delivery.send([ROW] * 3, BILLING)
    assert caught.value.code == errors.SPOOL_OVER_QUOTA
    assert caught.value.detail == "row 12 of task 2 (queue 'billing'): why; 2 rows of the batch were refused"


def test_what_the_node_refuses_of_direct_rows_fails_the_task() -> None:
    notices: list[ClientEvent] = []
    client = FakeClient()
    delivery = DirectDelivery(client, notices)  # type: ignore[arg-type] # what is used of it
    delivery.send([ROW] * 2, BILLING)
    notices.append(ClientEvent("notice", errors.PUBLISH_DENIED, "a/b", 2))
    with pytest.raises(errors.ForbiddenError, match="2 rows of task 2: a/b"):
        delivery.finish(BILLING)
    assert client.calls == ["a/b", "a/b", "flush"]


def test_a_task_tells_its_stage_when_everything_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = FakeStage()
    client = open_fake(monkeypatch, stage)
    written = sink.publish(settings(WRITE, {}), Target(None), iter([batch("a", "b"), batch("c")]), 4, "query")
    assert (written.rows, written.stage, written.query) == (3, "stage-1", "query")
    assert [message.topic for message in stage.given] == ["a", "b", "c"]
    assert (stage.closed, client.calls) == (1, ["close"])


def test_a_task_that_fails_drops_its_stage_even_if_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = FakeStage(at2=errors.UNKNOWN_ENDPOINT)
    client = open_fake(monkeypatch, stage)
    with pytest.raises(errors.NotFoundError, match=r"row 3 of task 4 \(topic 'c'\)"):
        sink.publish(settings(WRITE, {}), Target(None), iter([batch("a", "b"), batch("c")]), 4)
    assert (stage.closed, client.calls) == (1, [("abort", "stage-1"), "close"])


def test_an_error_of_the_query_itself_drops_the_stage_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def batches() -> Iterable[pa.RecordBatch]:
        yield batch("a")
        raise ZeroDivisionError

    client = open_fake(monkeypatch, FakeStage())
    with pytest.raises(ZeroDivisionError):
        sink.publish(settings(WRITE, {}), Target(None), iter(batches()), 0)
    assert client.calls == [("abort", "stage-1"), "close"]
