"""The rules for what disks hold object to every kind of broken promise, and to nothing else.

Histories written by hand break one promise each.
"""

from __future__ import annotations

import pytest

from angarium import errors
from node.home.spool.held_lanes import PROVISIONAL
from tests.simulation.guaranteed.index import partition_of
from tests.simulation.guaranteed.records import Died, LackedRoom, Opening
from tests.simulation.guaranteed.written import FIRST_AT, WORKER, Written, place_of


@pytest.fixture
def written() -> Written:
    return Written()


def test_a_history_in_which_all_went_well_is_good(written: Written) -> None:
    one, two = written.queue("one", "t/>", "!t/9"), written.queue("two", "t/1")
    other = written.queue("one", "t/>", vpn="blue")
    written.publish("t/1", one, two)
    written.publish("t/2", one)
    written.publish("t/9")
    written.publish("#P2P/QUE/two", two)
    written.refuse("#P2P/QUE/missing", errors.UNKNOWN_ENDPOINT)
    written.consume(written.bind(one), place_of(one, 1), place_of(one, 2))
    written.consume(written.bind(two), place_of(two, 1), place_of(two, 2))
    assert other.operations == []
    assert written.rules() == []


# Acknowledged means stored.


@pytest.mark.requirement("R163")
def test_a_message_that_was_acknowledged_and_is_nowhere_is_lost(written: Written) -> None:
    written.queue("one", "t/>")
    written.publish("t/1")
    assert written.rules() == ["lost"]


@pytest.mark.requirement("R113")
def test_a_message_that_one_of_two_endpoints_has_is_lost_to_the_other(written: Written) -> None:
    one, _ = written.queue("one", "t/>"), written.queue("two", "t/1")
    written.publish("t/1", one)
    written.consume(written.bind(one), place_of(one, 1))
    assert written.rules() == ["lost"]


@pytest.mark.requirement("R163")
def test_an_acknowledgement_before_the_commit_is_found_out(written: Written) -> None:
    one = written.queue("one", "t/>")
    message = written.send("t/1")
    message.acked_at = written.now
    written.now += 0.1
    written.store(message, one)
    written.consume(written.bind(one), place_of(one, 1))
    assert written.rules() == ["lost"]


def test_a_relaxed_endpoint_may_acknowledge_before_it_writes(written: Written) -> None:
    one = written.queue("one", "t/>", durability="relaxed")
    message = written.send("t/1")
    message.acked_at = written.now
    written.now += 0.1
    written.store(message, one)
    written.consume(written.bind(one), place_of(one, 1))
    assert written.rules() == []


@pytest.mark.requirement("R170")
def test_a_relaxed_endpoint_need_not_write_what_is_consumed_by_then(written: Written) -> None:
    one = written.queue("one", "t/>", durability="relaxed", respect_ttl=False)
    message = written.publish("t/1")
    flow = written.bind(one)
    written.deliver(flow, place_of(one, 1), what=f"g{message.number}")
    written.settle(flow, place_of(one, 1))
    assert written.rules() == []


def test_a_relaxed_endpoint_loses_nothing_as_long_as_its_home_lives(written: Written) -> None:
    written.queue("one", "t/>", durability="relaxed", respect_ttl=False)
    written.publish("t/1")
    assert written.rules() == ["lost"]


def test_a_relaxed_endpoint_may_lose_what_its_home_had_not_written_when_it_died(written: Written) -> None:
    written.queue("one", "t/>", durability="relaxed", respect_ttl=False)
    written.publish("t/1")
    written.history.home_events.append(Died(written.now, WORKER))
    assert written.rules() == []


def test_an_endpoint_that_was_being_made_may_have_the_message_or_not(written: Written) -> None:
    one = written.queue("one", "t/>")
    one.changes[0] = one.changes[0]._replace(in_force_at=FIRST_AT + 5)
    written.publish("t/1")
    written.publish("t/1", one)
    written.consume(written.bind(one), place_of(one, 1))
    assert written.rules() == []


@pytest.mark.requirement("R114")
def test_an_endpoint_that_never_lets_refuse_may_leave_messages_out(written: Written) -> None:
    written.queue("one", "t/>", reject_to_sender="never")
    written.publish("t/1")
    assert written.rules() == []


def test_a_shut_endpoint_leaves_messages_out_only_if_it_may(written: Written) -> None:
    written.queue("one", "t/1", reject_to_sender="when-enabled", ingress_enabled=False)
    written.queue("two", "t/2", reject_to_sender="always", ingress_enabled=False)
    written.publish("t/1")
    assert written.rules() == []
    written.publish("t/2")
    assert written.rules() == ["lost"]


def test_a_message_that_nobody_settled_is_found_out_when_its_publisher_stayed(written: Written) -> None:
    message = written.send("t/1")
    assert written.rules() == ["unsettled"]
    message.abandoned_at = written.now
    assert written.rules() == []


# Exactly once.


def test_a_message_stored_twice_in_one_endpoint_is_a_duplicate(written: Written) -> None:
    one = written.queue("one", "t/>")
    message = written.publish("t/1", one)
    written.store(message, one)
    written.consume(written.bind(one), place_of(one, 1), place_of(one, 2))
    assert written.rules() == ["duplicate"]


def test_a_message_that_went_along_with_its_lane_is_no_duplicate(written: Written) -> None:
    one = written.queue("one", "t/>")
    message = written.publish("t/1", one)
    written.store(message, one, position=1, worker=1)
    written.gone(place_of(one, 1))
    written.consume(written.bind(one), place_of(one, 1), worker=1)
    assert written.rules() == []


def test_a_message_that_moved_from_a_closed_partition_is_no_duplicate(written: Written) -> None:
    one = written.queue("one", "t/>", access_type="non-exclusive", partition_count=4)
    message = written.send("t/1")
    message.acked_at = written.now
    old = written.store(message, one, partition=3)
    written.change(one, partition_count=1)
    written.rehome(message, old)
    new = written.store(message, one)
    written.gone(old)
    written.consume(written.bind(one), new)
    assert written.rules() == []


@pytest.mark.parametrize(("is_asked", "rules"), [(True, []), (False, ["duplicate"])])
def test_a_message_of_another_queue_goes_on_from_a_closed_partition_once(
    written: Written, *, is_asked: bool, rules: list[str]
) -> None:
    """It keeps what it came from."""
    one = written.queue("one", "t/>")
    two = written.queue("two", access_type="non-exclusive", partition_count=4)
    message = written.publish("t/1", one)
    written.operate(one, "move")
    written.now += 0.1
    old = written.store(message, two, partition=3, origin=("queue", "one", "moved"))
    written.gone(place_of(one, 1))
    written.change(two, partition_count=1)
    if is_asked:
        written.rehome(message, old)
    new = written.store(message, two, origin=("queue", "one", "moved"))
    written.gone(old)
    written.consume(written.bind(two), new)
    assert written.rules() == rules


def test_a_message_that_is_stored_in_another_partition_without_a_move_is_a_duplicate(
    written: Written,
) -> None:
    """The first one may be consumed by then."""
    one = written.queue("one", "t/>", access_type="non-exclusive", partition_count=4)
    message = written.send("t/1")
    message.acked_at = written.now
    old = written.store(message, one, partition=3)
    written.consume(written.bind(one), old)
    written.change(one, partition_count=1)
    written.consume(written.bind(one), written.store(message, one))
    assert written.rules() == ["duplicate"]


def test_a_message_that_left_one_home_before_it_was_at_the_other_is_lost(written: Written) -> None:
    one = written.queue("one", "t/>")
    message = written.publish("t/1", one)
    written.gone(place_of(one, 1))
    written.now += 0.1
    written.store(message, one, position=1, worker=1)
    written.consume(written.bind(one), place_of(one, 1), worker=1)
    assert "vanished" in written.rules()


def test_a_refused_message_is_nowhere(written: Written) -> None:
    one = written.queue("one", "t/>", "a", max_message_bytes=10)
    message = written.refuse("t/1", errors.MESSAGE_TOO_LARGE)
    assert written.rules() == []
    written.store(message, one)
    written.consume(written.bind(one), place_of(one, 1))
    assert written.rules() == ["refused"]


def test_a_refusal_that_was_lost_and_a_resend_that_is_stored_break_the_order(written: Written) -> None:
    """Number 5 refused and the refusal lost, 6 to 10 stored, 5 to 10 sent again: 5 must not be stored then."""
    one = written.queue("one", "t/>")
    late = written.send("t/1")
    written.publish("t/1", one)
    late.sends.append((written.now, written.publisher))
    written.now += 0.1
    written.store(late, one)
    late.acked_at = written.now
    written.consume(written.bind(one), place_of(one, 1), place_of(one, 2))
    assert written.rules() == ["order"]


def test_one_message_refused_and_acknowledged_is_found_out(written: Written) -> None:
    one = written.queue("one", "t/>", ingress_enabled=False)
    message = written.publish("t/1", one)
    written.consume(written.bind(one), place_of(one, 1))
    message.refused_at, message.code = message.acked_at + 0.01, errors.ENDPOINT_SHUTDOWN
    assert written.rules() == ["refused"]


def test_a_message_that_is_stored_although_it_was_called_unroutable_is_found_out(written: Written) -> None:
    one = written.queue("one", "t/>")
    message = written.publish("t/1", one)
    written.consume(written.bind(one), place_of(one, 1))
    assert written.rules() == []
    message.is_unroutable = True
    assert written.rules() == ["unroutable"]


def test_a_message_that_nobody_wanted_and_that_was_called_taken_is_found_out(written: Written) -> None:
    written.queue("one", "t/>")
    message = written.publish("x", is_unroutable=False)
    assert written.rules() == ["unroutable"]
    message.is_unroutable = True
    assert written.rules() == []


def test_who_uses_a_sequence_of_somebody_else_gets_the_verdict_of_that(written: Written) -> None:
    written.queue("one", "t/>")
    message = written.refuse("#P2P/QUE/one", errors.UNKNOWN_ENDPOINT)
    assert written.rules() == ["refused"]
    other = written.refuse("#P2P/QUE/missing", errors.UNKNOWN_ENDPOINT)
    other.sequence = message.sequence
    assert written.rules() == []


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("#P2P/QUE/one", errors.UNKNOWN_ENDPOINT),
        ("t/1", errors.NO_SUBSCRIPTION_MATCH),
        ("t/1", errors.ENDPOINT_SHUTDOWN),
        ("t/1", errors.PUBLISH_DENIED),
        ("t/1", errors.LOW_PRIORITY_CONGESTION),
        ("t/1", errors.MESSAGE_TOO_LARGE),
        ("t/1", errors.INTERNAL),
        ("t/1", errors.DISK_FULL),
        ("x", errors.SPOOL_OVER_QUOTA),
    ],
)
def test_a_refusal_without_a_cause_is_found_out(written: Written, topic: str, code: int) -> None:
    written.queue("one", "t/>")
    written.refuse(topic, code)
    assert written.rules() == ["refused"]


@pytest.mark.parametrize(("later_s", "rules"), [(6.0, []), (9.0, ["refused"])])
def test_a_worker_may_hang_before_it_tells_that_its_disk_has_room(
    written: Written, rules: list[str], *, later_s: float
) -> None:
    written.queue("one", "t/>")
    written.history.home_events.append(LackedRoom(written.now - 0.02, written.now))
    written.now += later_s
    written.refuse("t/1", errors.DISK_FULL)
    assert written.rules() == rules


@pytest.mark.requirement("R57")
def test_an_acknowledgement_against_the_acl_is_found_out(written: Written) -> None:
    written.base.allow("default", ("t/1",))
    written.publish("t/1")
    assert written.rules() == ["leak"]


def test_two_processes_with_one_name_and_the_same_sequence_cannot_be_told_apart(written: Written) -> None:
    one = written.queue("one", "t/>")
    first, second = written.publish("t/1", one), written.publish("t/1")
    second.sequence = first.sequence
    written.consume(written.bind(one), place_of(one, 1))
    assert written.rules() == []


def test_a_producer_is_told_of_everything_that_is_stored(written: Written) -> None:
    one = written.queue("one", "t/>")
    written.publish("t/1", one)
    written.consume(written.bind(one), place_of(one, 1))
    opening = Opening(written.publisher, written.now, resume=True)
    opening.answered_at, opening.code, opening.last_sequence = written.now + 0.1, 0, 1
    written.producer().opens.append(opening)
    assert written.rules() == []
    opening.last_sequence = 0
    assert written.rules() == ["sequence"]
    written.history.forget(written.producer(), opening.asked_at + 0.05)
    assert written.rules() == [], "somebody else had the name forgotten before that was answered"


# Positions, order, partitions.


def test_a_position_that_was_given_twice_is_found_out(written: Written) -> None:
    one = written.queue("one", "t/>", durability="relaxed")
    flow = written.bind(one)
    first = written.send("t/1")
    first.abandoned_at = written.now
    written.deliver(flow, place_of(one, 1), what=f"g{first.number}")
    written.history.home_events.append(Died(written.now, WORKER))
    written.publish("t/2", one)
    written.consume(flow, place_of(one, 1), count=1)
    assert written.rules() == ["position", "leak"]


def test_positions_that_do_not_rise_are_found_out(written: Written) -> None:
    one = written.queue("one", "t/>")
    written.store(written.publish("t/1"), one, position=7)
    written.store(written.publish("t/1"), one, position=3)
    written.now += 1
    message = written.history.publications
    message[0].acked_at = message[1].acked_at = written.now
    written.consume(written.bind(one), place_of(one, 3), place_of(one, 7))
    assert "position" in written.rules()


@pytest.mark.requirement("R3")
def test_messages_of_one_producer_stored_in_another_order_are_found_out(written: Written) -> None:
    one = written.queue("one", "t/>")
    first, second = written.send("t/1"), written.send("t/2")
    written.store(second, one)
    written.store(first, one)
    first.acked_at = second.acked_at = written.now
    written.consume(written.bind(one), place_of(one, 1), place_of(one, 2))
    assert written.rules() == ["order"]
    other = written.refuse("x", errors.NO_SUBSCRIPTION_MATCH)
    other.sequence = first.sequence
    assert written.rules() == [], "somebody else used that sequence under the name"


def test_a_message_in_the_partition_of_another_key_is_found_out(written: Written) -> None:
    one = written.queue("one", "t/>", access_type="non-exclusive", partition_count=4)
    message = written.send("t/1", key="k")
    right = partition_of("k", 4)
    written.store(message, one, partition=(right + 1) % 4)
    message.acked_at = written.now
    written.consume(written.bind(one), place_of(one, 1, (right + 1) % 4))
    assert written.rules() == ["partition"]


@pytest.mark.requirement("R53")
def test_a_message_of_another_vpn_or_topic_is_a_leak(written: Written) -> None:
    one, blue = written.queue("one", "t/>"), written.queue("one", ">", vpn="blue")
    written.publish("x", one)
    written.publish("y", blue)
    written.consume(written.bind(one), place_of(one, 1))
    written.consume(written.bind(blue, vpn="blue"), place_of(blue, 1))
    assert written.rules() == ["leak"]


@pytest.mark.requirement("R122", "R126")
def test_a_message_that_an_exception_keeps_out_is_a_leak(written: Written) -> None:
    one = written.queue("one", "!t/1", "t/>")
    written.publish("t/1", one)
    written.consume(written.bind(one), place_of(one, 1))
    assert written.rules() == ["leak"]


@pytest.mark.requirement("R180")
def test_messages_of_a_deleted_queue_that_appear_in_the_next_one_are_a_leak(written: Written) -> None:
    one = written.queue("one", "t/>")
    message = written.publish("t/1", one)
    written.delete(one)
    two = written.queue("one", "t/>")
    two.changes[0] = two.changes[0]._replace(at=written.now, in_force_at=written.now + 0.1)
    written.now += 0.5
    written.store(message, two)
    written.consume(written.bind(two), place_of(two, 1))
    assert written.rules() == []  # it may have been sent again: its sender did not know
    written.now += 1.0
    message.acked_at = FIRST_AT + 0.1
    written.history.home_events[-4:] = []
    assert "leak" not in written.rules()


# Positions are dense.


@pytest.mark.requirement("R221")
def test_a_position_that_nobody_ever_saw_is_found_out(written: Written) -> None:
    one = written.queue("one", "t/>")
    written.publish("t/1", one)
    message = written.send("t/1")
    place = written.store(message, one, position=3)
    message.acked_at = written.now - 0.02
    written.consume(written.bind(one), place_of(one, 1), place)
    assert written.rules() == ["gap"]


@pytest.mark.requirement("R221")
@pytest.mark.parametrize("why", ["noted", "emptied", "never written"])
def test_a_position_without_a_message_may_have_a_reason(written: Written, why: str) -> None:
    one = written.queue("one", "t/>")
    message = written.send("t/1")
    place = written.store(message, one, position=3)
    message.acked_at = written.now - 0.02
    written.consume(written.bind(one), place)
    if why == "emptied":
        written.history.emptied[place[0]] = 2
    else:
        for _ in range(2):
            written.history.note_unsynced(place[0], "hostile")
    if why == "noted":
        written.history.note_gaps(place[0], [(1, 2)])
    assert written.rules() == []


@pytest.mark.requirement("R221")
def test_a_copy_from_elsewhere_is_not_what_was_never_written(written: Written) -> None:
    one, two = written.queue("one", "t/>"), written.queue("two")
    message = written.publish("t/1", one)
    written.history.note_unsynced(place_of(two, 1)[0], f"g{message.number}")
    written.operate(one, "copy")
    place = written.store(message, two, position=2, origin=("queue", "one", "copied"))
    written.consume(written.bind(one), place_of(one, 1))
    written.consume(written.bind(two), place)
    assert written.rules() == []


@pytest.mark.requirement("R221")
def test_a_gap_that_is_noted_where_everything_is_synced_is_found_out(written: Written) -> None:
    one = written.queue("one", "t/>")
    message = written.send("t/1")
    place = written.store(message, one, position=3)
    message.acked_at = written.now - 0.02
    written.consume(written.bind(one), place)
    written.history.note_gaps(place[0], [(1, 2)])
    assert written.rules() == ["gap"]


@pytest.mark.requirement("R221")
def test_what_waits_while_its_lane_is_taken_over_is_told_under_its_true_position(written: Written) -> None:
    one = written.queue("one", "t/>")
    written.publish("t/1", one)
    message = written.send("t/1")
    lane, _ = written.store(message, one, position=PROVISIONAL + 1, worker=1)
    message.acked_at = written.now - 0.02
    written.history.place(1, lane, 1 - PROVISIONAL)
    written.consume(written.bind(one), place_of(one, 1), worker=0)
    written.consume(written.bind(one), place_of(one, 2), worker=1)
    assert written.rules() == []
