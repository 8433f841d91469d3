"""How `angarium pub` counts acknowledgements, writes them down and loses its patience, without a connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from angarium import Acknowledgement, errors
from cluster.commands.messages import producing
from cluster.commands.messages.producing import Acknowledgements, Produced

if TYPE_CHECKING:
    from pathlib import Path


def refused(*sequences: int) -> list[tuple[int, errors.AngariumError]]:
    return [(sequence, errors.error_for(errors.SPOOL_OVER_QUOTA, f"{sequence}")) for sequence in sequences]


def test_lines_count_from_the_sequence_that_the_node_knew(tmp_path: Path) -> None:
    acks = Acknowledgements(str(tmp_path / "acked"))
    acks.begin(100)
    acks(Acknowledgement(102, [], []))
    acks(Acknowledgement(105, [], [range(104, 106)]))
    assert acks.unroutable == 2
    acks.close()
    assert (tmp_path / "acked").read_text() == "0\n1\n2\n3\n4\n"
    assert (acks.acknowledged, acks.nacked) == (5, 0)
    assert acks.refusal() is None


def test_what_is_written_is_there_at_once_and_behind_what_was(tmp_path: Path) -> None:
    path = tmp_path / "acked"
    path.write_text("old\n")
    acks = Acknowledgements(str(path))
    acks.begin(0)
    acks(Acknowledgement(1, [], []))
    assert path.read_text() == "old\n0\n"
    acks.close()


def test_refused_lines_are_counted_and_not_written_whenever_they_are_told(tmp_path: Path) -> None:
    acks = Acknowledgements(str(tmp_path / "acked"))
    acks.begin(0)
    acks(Acknowledgement(0, refused(3), []))
    acks(Acknowledgement(2, [], []))
    acks(Acknowledgement(5, refused(5), []))
    acks.close()
    assert (tmp_path / "acked").read_text() == "0\n1\n3\n"
    assert (acks.acknowledged, acks.nacked) == (3, 2)
    error = acks.refusal()
    assert error is not None
    assert (error.code, error.detail) == (50310, "3; 2 messages refused")


def test_an_acknowledgement_that_says_nothing_new_counts_nothing() -> None:
    acks = Acknowledgements(None)
    acks.begin(10)
    for upto in (0, 10, 12, 12, 11):
        acks(Acknowledgement(upto, [], []))
    assert acks.acknowledged == 2


class FakeProducer:
    """Takes messages and is acknowledged by the test."""

    def __init__(self) -> None:
        self.unacknowledged = 0
        self.sent: list[Any] = []

    async def send(self, *message: Any) -> None:
        self.sent.append(message)

    async def send_message(self, message: Any) -> None:
        self.sent.append(message)

    async def flush(self) -> None:
        while self.unacknowledged:
            await asyncio.sleep(0.001)


def test_everything_is_sent_in_order_and_waited_for() -> None:
    batches = iter([[("a", b"1"), ("b", b"2")], [("c", b"3")], []])
    producer, produced = FakeProducer(), Produced()
    told: list[int] = []

    async def next_batch(published: int) -> Any:
        told.append(published)
        return next(batches)

    asyncio.run(producing._send_all(cast("Any", producer), next_batch, produced))
    assert producer.sent == [("a", b"1"), ("b", b"2"), ("c", b"3")]
    assert told == [0, 2, 3]
    assert produced.published == 3


def patience(producer: FakeProducer, acks: Acknowledgements, work: Any, limit_s: float) -> None:
    def show(done: int, total: int | None = None) -> None:
        pass

    asyncio.run(producing._with_patience(work, cast("Any", producer), acks, limit_s, show))


def test_a_node_that_acknowledges_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producing, "LOOK_INTERVAL_S", 0.005)
    producer, acks = FakeProducer(), Acknowledgements(None)
    producer.unacknowledged = 7
    with pytest.raises(errors.TimeoutExpiredError, match="7 messages wait"):
        patience(producer, acks, producer.flush(), 0.05)


def test_a_node_that_acknowledges_now_and_then_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producing, "LOOK_INTERVAL_S", 0.005)
    producer, acks = FakeProducer(), Acknowledgements(None)
    producer.unacknowledged = 10

    async def work() -> None:
        for upto in range(1, 11):
            await asyncio.sleep(0.03)
            acks(Acknowledgement(upto, [], []))
            producer.unacknowledged -= 1

    patience(producer, acks, work(), 0.2)
    assert acks.acknowledged == 10


def test_waiting_for_input_costs_no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producing, "LOOK_INTERVAL_S", 0.005)
    patience(FakeProducer(), Acknowledgements(None), asyncio.sleep(0.15), 0.05)


def test_a_failure_of_the_work_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producing, "LOOK_INTERVAL_S", 0.005)

    async def work() -> None:
        raise errors.error_for(errors.PRODUCER_FENCED)

    with pytest.raises(errors.ConflictError):
        patience(FakeProducer(), Acknowledgements(None), work(), 1.0)
