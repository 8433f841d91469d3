"""Homes and routers with a fault of their own are found out within a few seeds.

Each fault is one that a change could bring in, and many are known from other brokers. Homes are broken at their
ports, by what they tell, hear and write, so that these tests know little of how they work. Faults that need one
certain story are in `test_guaranteed_stories`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from angarium_server.frames.settings import LaneSettings
from node.backlog.lifetimes import Lifetimes
from node.home.home import Home
from node.home.lanes.adoption import Placing
from node.home.spool import layout
from router.admission import allowances
from router.admission.usage import Account
from router.delivery.crowds import Crowd
from router.guaranteed.endpoints import Endpoints
from storage.spool import Table
from tests.share import some
from tests.simulation.guaranteed.mutations import is_found

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage.spool import Change


class AcknowledgesBeforeTheCommit(Home):
    """Tells the router that everything is stored as soon as it comes."""

    _newest = 0

    def handle(self, frames: list[bytes], now: float, wall_ms: int) -> None:
        if frames[0] == wire.STORE:
            self._newest = wire.unpack(frames[1])[1]
        super().handle(frames, now, wall_ms)

    def take_frames(self) -> list[list[bytes]]:
        frames = super().take_frames()
        if self._newest:
            number, self._newest = self._newest, 0
            frames.append([wire.COMMITTED, wire.pack([self.incarnation, number, 0, [], [[], [], 0, 0, 0]])])
        return frames


class ForgetsProducers(Home):
    """Has no records of producers: whoever opens one again starts over."""

    def take_frames(self) -> list[list[bytes]]:
        frames = super().take_frames()
        for frame in frames:
            if frame[0] == wire.RECORDS:
                incarnation, reference, _ = wire.unpack(frame[1])
                frame[1] = wire.pack([incarnation, reference, []])
        return frames


class KnowsPartitionsOfTodayOnly(Home):
    """Says of everything that producers stored that it was stored under the number of partitions that there is now."""

    def take_frames(self) -> list[list[bytes]]:
        frames = super().take_frames()
        for frame in frames:
            if frame[0] == wire.RECORDS:
                incarnation, reference, records = wire.unpack(frame[1])
                frame[1] = wire.pack([incarnation, reference, [self._of_today(*one) for one in records]])
        return frames

    def _of_today(self, lane_id: int, lasts: list[list[int]], refused: list[list[int]]) -> list[Any]:
        held = self.lanes.get(lane_id)
        assert held is not None
        count = max(1, held.lane.settings.partitions)
        return [lane_id, [[count, last] for _, last in sorted(lasts)[-1:]], refused]


class NeverMarksRedeliveries(Home):
    """Sends what was sent before as if it was new."""

    def take_frames(self) -> list[list[bytes]]:
        frames = super().take_frames()
        for frame in frames:
            if frame[0] == wire.FLOW_MESSAGES:
                incarnation, flow, parts, *more = wire.unpack(frame[1])
                parts = [[*part[:3], None, *part[4:]] for part in parts]
                frame[1] = wire.pack([incarnation, flow, parts, *more])
        return frames


class WritesLess(Home):
    """Leaves out some of what is to be written, and takes it for written."""

    table = Table.SEGMENTS
    #: Leaves out every so many of the changes of the table.
    every = 5
    _count = 0

    def take_write(self) -> tuple[int, Sequence[Change]] | None:
        write = super().take_write()
        return None if write is None else (write[0], [one for one in write[1] if self._is_kept(one)])

    def _is_kept(self, change: Change) -> bool:
        if change[0] is not self.table or change[2] is None:
            return True
        self._count += 1
        return self._count % self.every != 0


class LosesTheTail(WritesLess):
    """Some of what it acknowledges never gets to the disk."""


class LosesStates(WritesLess):
    """What consumers accepted is not written down."""

    table = Table.STATES
    every = 1


class LosesPurges(WritesLess):
    """A purge is in memory only."""

    table = Table.LANES
    every = 2


class ThrowsTheDeadAway(Home):
    """Tells itself that dead messages were moved, and asks nobody to do it."""

    def take_frames(self) -> list[list[bytes]]:
        kept = []
        for frame in super().take_frames():
            if frame[0] != wire.MOVE:
                kept.append(frame)
                continue
            _, lane_id, first, _, rows, *_ = wire.unpack(frame[1])
            answer = [self.pending.router, lane_id, first, first + rows - 1, []]
            self.handle([wire.MOVED, wire.pack(answer)], self._now, self._wall_ms)
        return kept


class ForgetsPublishers(Home):
    """Does not store which client published."""

    def handle(self, frames: list[bytes], now: float, wall_ms: int) -> None:
        if frames[0] == wire.STORE:
            header = wire.unpack(frames[1])
            header[7] = 0
            frames = [frames[0], wire.pack(header), *frames[2:]]
        super().handle(frames, now, wall_ms)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("home_class", "rules", "first"),
    some(
        [
            (AcknowledgesBeforeTheCommit, ["lost"], 0),
            (ForgetsProducers, ["duplicate", "sequence"], 1),
            (KnowsPartitionsOfTodayOnly, ["duplicate"], 85),
            (NeverMarksRedeliveries, ["unmarked"], 1),
            (LosesTheTail, ["lost"], 16),
            (LosesStates, ["broken: in memory, and", "resurrected"], 35),
            (LosesPurges, ["vanished", "resurrected", "position", "unmarked"], 18),
            (ThrowsTheDeadAway, ["dmq"], 10),
            (ForgetsPublishers, ["leak"], 9),
        ],
        of=3,
    ),
)
def test_a_home_with_a_fault_is_found_out(home_class: type[Home], rules: list[str], first: int) -> None:
    assert is_found(*rules, home_class=home_class, first=first)


@pytest.mark.slow
def test_positions_that_begin_anew_after_a_death_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids that are given twice after a kill."""
    monkeypatch.setattr(layout, "unpack_positions", lambda value: layout.Positions(0, 0))
    assert is_found("position", "unmarked", first=4)


@pytest.mark.slow
@pytest.mark.requirement("R221")
def test_positions_that_are_left_out_after_a_death_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all that was reserved had been given."""
    unpack = layout.unpack_positions

    def unpack_with_reserve(value: bytes) -> layout.Positions:
        row = unpack(value)
        return row._replace(given=max(row.given, row.delivered + 1))

    monkeypatch.setattr(layout, "unpack_positions", unpack_with_reserve)
    assert is_found("gap", first=6)


@pytest.mark.slow
@pytest.mark.requirement("R221")
def test_positions_that_are_left_out_when_a_lane_gets_another_home_are_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin = Placing.__init__

    def begin_too_high(self: Placing, *arguments: Any) -> None:
        begin(self, *arguments)
        self._tail += 5

    monkeypatch.setattr(Placing, "__init__", begin_too_high)
    assert is_found("gap", first=7)


@pytest.mark.slow
def test_an_exclusive_queue_that_feeds_two_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LaneSettings, "exclusive", False)
    assert is_found("owner", first=1)


@pytest.mark.slow
def test_messages_that_live_for_ever_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lifetimes, "expires_ms", lambda self, segment, i: 0)
    assert is_found("expired", first=5)


@pytest.mark.slow
def test_a_router_that_knows_no_quota_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = Account.refusal

    def refusal_but_for_quotas(self: Account, *arguments: Any) -> Any:
        reason = refusal(self, *arguments)
        return None if reason is not None and reason.code == errors.SPOOL_OVER_QUOTA else reason

    monkeypatch.setattr(Account, "refusal", refusal_but_for_quotas)
    assert is_found("broken: its quota is", first=9)


@pytest.mark.slow
@pytest.mark.requirement("R195", "R196")
def test_a_router_that_gives_away_what_a_home_still_has_out_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(allowances._Home, "counts", property(lambda self: self.allowance))
    assert is_found("broken: messages are delivered and not settled", first=42)


@pytest.mark.slow
def test_a_router_that_knows_no_exceptions_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = Endpoints.resolve

    def resolve_without(self: Endpoints, a_set: Any) -> Any:
        filters = a_set.filters
        a_set.filters = tuple(one for one in filters if one.kind != wire.KIND_EXCEPTION)
        try:
            return resolve(self, a_set)
        finally:
            a_set.filters = filters

    monkeypatch.setattr(Endpoints, "resolve", resolve_without)
    assert is_found("leak")


@pytest.mark.slow
def test_a_guaranteed_message_that_leaves_for_all_in_each_of_its_steps_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So routers with short steps have more than one for it."""
    take = Crowd.take

    def take_for_all(self: Crowd) -> Any:
        piece = take(self)
        if self.round.producer is not None:
            piece.plain = self.round.plain
        return piece

    monkeypatch.setattr(Crowd, "take", take_for_all)
    assert is_found("duplicate", first=3)
