"""The rules for reader groups object to every kind of broken promise, and a home that forgets plans is found out."""

from __future__ import annotations

import pytest

from node.endpoints.leasing import Leasing
from tests.simulation.guaranteed.mutations import is_found
from tests.simulation.guaranteed.reader_records import Plan, ReaderRecord
from tests.simulation.guaranteed.written import Written, place_of

pytestmark = pytest.mark.requirement("R221")


class Read:
    """A queue with three messages that a reader group has planned, and read, and that are gone after that."""

    def __init__(self) -> None:
        self.written = written = Written()
        self.queue = written.queue("one", "t/>")
        for _ in range(3):
            written.publish("t/1", self.queue)
        self.lane, _ = place_of(self.queue, 1)
        self.reader = ReaderRecord("group")
        written.history.readers.append(self.reader)
        self.reader.leased(self.lane, written.now)
        written.now += 0.1
        self.plan = Plan(self.lane, 1, 4, 3, written.now)
        self.reader.plans.append(self.plan)
        written.now += 0.1
        self.plan.read_at, self.plan.got = written.now, [(1, "g0"), (2, "g1"), (3, "g2")]

    def acknowledge(self) -> None:
        self.written.now += 0.1
        self.plan.acknowledged_at = self.written.now
        self.written.now += 0.1
        for position in (1, 2, 3):
            self.written.gone((self.lane, position))

    def rules(self) -> list[str]:
        return self.written.rules()


@pytest.fixture
def read() -> Read:
    return Read()


def test_a_reader_that_reads_all_and_acknowledges_it_is_good(read: Read) -> None:
    read.acknowledge()
    assert read.rules() == []


def test_a_message_of_a_range_that_was_not_read_is_found_out(read: Read) -> None:
    read.plan.got.pop(1)
    read.acknowledge()
    assert read.rules() == ["unread"]


def test_a_message_that_goes_away_before_it_is_acknowledged_is_found_out(read: Read) -> None:
    read.written.gone((read.lane, 2))
    read.acknowledge()
    assert "taken" in read.rules()


@pytest.mark.parametrize(
    "got", [[(1, "g0"), (2, "g9"), (3, "g2")], [(1, "g0"), (2, "g1"), (3, "g2"), (9, "g2")]]
)
def test_what_is_read_and_was_never_stored_there_is_found_out(read: Read, got: list[tuple[int, str]]) -> None:
    read.plan.got = got
    read.acknowledge()
    assert "misread" in read.rules()


@pytest.mark.parametrize("positions", [[1, 1, 2, 3], [2, 1, 3]])
def test_positions_that_do_not_rise_are_found_out(read: Read, positions: list[int]) -> None:
    read.plan.got = [(position, f"g{position - 1}") for position in positions]
    read.acknowledge()
    assert read.rules() == ["twice"]


def test_a_range_that_is_read_again_by_who_has_a_checkpoint_behind_it_is_found_out(read: Read) -> None:
    again = Plan(read.lane, 3, 4, 1, read.plan.planned_at)
    again.read_at, again.got = read.written.now, [(3, "g2")]
    read.reader.plans.append(again)
    read.acknowledge()
    assert "twice" in read.rules()


def test_a_consumer_that_gets_something_of_a_leased_lane_is_found_out(read: Read) -> None:
    read.written.deliver(read.written.bind(read.queue), (read.lane, 1))
    read.acknowledge()
    assert "leased" in read.rules()


@pytest.mark.slow
def test_a_plan_that_is_forgotten_by_a_restart_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Leasing, "claim", lambda self, segment: None)
    assert is_found("taken", "unread", "broken: Traceback", "broken: it ends", first=120)
