"""One direction of a channel: batches that pass, are cut, or wait; wishes that are told."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import slots, wire
from angarium.topic import slot_of
from cluster.relay.direct import Relay
from cluster.relay.session import IMPORTS_PENDING_MAX, Exported, Imported, LinkSession
from tests.unit.cluster.played_relay import deliver, make_session, published, rows_of, sent, take


def joined(workers: int = 1, **limits: Any) -> tuple[LinkSession, LinkSession, Relay]:
    source, target = make_session(), make_session(workers, **limits)
    relay = Relay(source)
    relay.open(target)
    return source, target, relay


def test_a_batch_passes_unopened_to_a_router_with_one_worker() -> None:
    source, target, relay = joined()
    batch = wire.pack(rows_of("a", "b"))
    events = source.receive([wire.DELIVER, wire.pack([0, [[2, None]], 0]), batch], 0.0)
    take(relay, events)
    (frames,) = sent(target)
    assert frames == [wire.PUBLISH, wire.pack([1, 0, False, [[0, 2]]]), batch]


def test_what_is_inside_a_batch_is_said_to_the_router_that_takes_it() -> None:
    source, target, relay = joined()
    batch = wire.pack(rows_of("a", "b"))
    head = [0, [[2, None]], 0, [], wire.CLASS_COS1, ["a", "b"]]
    take(relay, source.receive([wire.DELIVER, wire.pack(head), batch], 0.0))
    (frames,) = sent(target)
    assert frames == [
        wire.PUBLISH,
        wire.pack([1, 0, False, [[0, 2]], [], wire.CLASS_COS1, ["a", "b"]]),
        batch,
    ]


def test_what_is_cut_says_nothing_of_what_is_inside() -> None:
    source, target, relay = joined(workers=2)
    head = [0, [[2, None]], 0, [], wire.CLASS_COS1, ["a", "b"]]
    take(relay, source.receive([wire.DELIVER, wire.pack(head), wire.pack(rows_of("a", "b"))], 0.0))
    assert all(len(header) == 4 for header, _ in published(target))


def test_rows_of_several_workers_are_put_in_order() -> None:
    source, target, relay = joined()
    rows = rows_of("a", "b", "c", "d")
    take(relay, deliver(source, [rows[1], rows[3], rows[0], rows[2]], unsorted=True))
    ((header, found),) = published(target)
    assert header[3] == [[0, 4]]
    assert found == rows


def test_rounds_are_cut_by_the_table_of_the_router_that_takes_them() -> None:
    source, target, relay = joined(workers=4)
    rows = rows_of(*(f"t/{number}" for number in range(40)))
    take(relay, deliver(source, rows))
    for frames in sent(target):
        _, epoch, _, parts = wire.unpack(frames[1])
        assert epoch == 3
        for (worker, count), batch in zip(parts, frames[2:], strict=True):
            part = wire.unpack(batch)
            assert len(part) == count
            owners = {slots.slot_table(4)[slot_of(row[wire.ROW_TOPIC])] for row in part}
            assert owners == {worker}
            assert part == sorted(part)


@pytest.mark.parametrize("limits", [{"max_batch_rows": 10}, {"max_batch_bytes": 1_024}])
def test_what_is_too_much_for_the_other_router_goes_in_pieces(limits: dict[str, int]) -> None:
    source, target, relay = joined(**limits)
    rows = rows_of(*(f"t/{number}" for number in range(95)))
    take(relay, deliver(source, rows))
    rounds = published(target)
    assert [row for _, found in rounds for row in found] == rows
    assert len(rounds) > 1
    assert all(len(found) <= limits.get("max_batch_rows", 95) for _, found in rounds)


def test_a_message_that_fits_into_no_batch_is_dropped_and_counted() -> None:
    source, target, relay = joined(max_batch_bytes=2_000)
    rows = [
        [0, "a", 0, None, None, b"x"],
        [1, "b", 0, None, None, bytes(3_000)],
        [2, "c", 0, None, None, b"z"],
    ]
    take(relay, deliver(source, rows))
    assert [row[1] for _, found in published(target) for row in found] == ["a", "c"]
    assert relay.discarded == 1


def test_without_credit_rounds_wait_and_so_does_the_router_they_come_from() -> None:
    source, target, relay = joined(rounds=2)
    for number in range(5):
        take(relay, deliver(source, rows_of(f"t/{number}")))
    assert len(published(target)) == 2
    assert relay.waiting == 3
    assert source.window.held_messages == 3
    target.receive([wire.RETIRED, wire.pack([2])], 0.0)
    relay.go_on()
    assert [found[0][1] for _, found in published(target)] == ["t/2", "t/3"]
    target.receive([wire.RETIRED, wire.pack([4])], 0.0)
    relay.go_on()
    assert relay.waiting == 0
    assert source.window.held_messages == source.window.held_bytes == 0


def test_what_comes_before_the_other_side_is_there_is_lost_and_counted() -> None:
    source = make_session()
    relay = Relay(source)
    take(relay, deliver(source, rows_of("a"), dropped=4))
    assert relay.discarded == 5
    assert source.window.held_messages == 0


def test_wishes_wait_for_the_other_side_and_for_its_answers() -> None:
    source, target = make_session(), make_session()
    relay = Relay(source)
    for number in range(6):
        event = Exported(wire.EXPORTS_SNAPSHOT, [(f"t/{number}", 4)])
        relay.exported(event)
    relay.exported(Exported(wire.EXPORTS_COMPLETE, []))
    assert relay.untold == 6
    relay.open(target)
    first = [wire.unpack(frames[1]) for frames in sent(target)]
    assert first == [[n + 1, wire.EXPORTS_SNAPSHOT, [[f"t/{n}", 4]]] for n in range(IMPORTS_PENDING_MAX)]
    kinds: list[bool] = []
    for number in range(7):
        (answer,) = target.receive([wire.IMPORTED, wire.pack([number + 1])], 0.0)
        assert isinstance(answer, Imported)
        kinds.append(answer.is_complete)
        relay.go_on()
    assert kinds == [False] * 6 + [True]
    assert len(sent(target)) == 3


def test_of_changes_that_wait_the_newest_of_each_pattern_is_told_in_its_place() -> None:
    """Answers wait for the controller of the target, and what is subscribed meanwhile changes all the time."""
    source, target = make_session(), make_session()
    relay = Relay(source)
    relay.exported(Exported(wire.EXPORTS_COMPLETE, []))
    for number in range(3_000):
        relay.exported(Exported(wire.EXPORTS_CHANGES, [("x", number), (f"y/{number % 1_500}", 4)]))
    assert relay.untold == 1_501
    relay.open(target)
    told = [wire.unpack(frames[1])[1:] for frames in sent(target)]
    kinds = [kind for kind, _ in told]
    assert kinds == [wire.EXPORTS_COMPLETE, wire.EXPORTS_CHANGES, wire.EXPORTS_CHANGES]
    assert [len(entries) for _, entries in told] == [0, wire.MAX_WISHES_PER_FRAME, 501]
    assert told[1][1][0] == ["x", 2_999]
    assert relay.untold == 0


def test_a_router_that_breaks_the_protocol_ends_its_session() -> None:
    for header in (wire.pack([1]), wire.pack([0, [["a"]]]), b"\xc1"):
        session = make_session()
        (closed,) = session.receive([wire.EXPORTS, header], 0.0)
        assert type(closed).__name__ == "Closed"
