"""The segments of a lane against a plain list, and the runs of states."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium_server.frames.settings import LaneSettings
from node.backlog.backlog import Backlog, SegmentList, run_end, runs_of
from node.backlog.segment import EXPIRED, HELD, MOVING, OUT, READY, REJECTED, Segment, make_segment
from tests.unit.node.lane_driver import LANE_ID, row


def segment(first: int, count: int) -> Segment:
    return make_segment(LANE_ID, first, 1, [row(i) for i in range(count)], None, 1000)


def backlog(**settings: object) -> Backlog:
    return Backlog(LaneSettings(**settings))  # type: ignore[arg-type]


# --- runs -------------------------------------------------------------------------------------------------------


@given(st.data(), st.lists(st.tuples(st.integers(0, 4), st.integers(1, 700)), min_size=1, max_size=6))
def test_runs_are_the_longest_ones_and_cover_everything(
    data: st.DataObject, parts: list[tuple[int, int]]
) -> None:
    codes = bytearray(b"".join(bytes([code]) * count for code, count in parts))
    i = data.draw(st.integers(0, len(codes)))
    j = data.draw(st.integers(i, len(codes)))
    at = i
    for start, end, code in runs_of(codes, i, j):
        assert start == at < end
        assert set(codes[start:end]) == {code}
        assert end == j or codes[end] != code
        at = end
    assert at == j


def test_a_run_ends_at_the_end_at_the_latest() -> None:
    codes = bytearray(b"\x01") * 2000
    assert run_end(codes, 3, 1700) == 1700
    codes[1536] = 0
    assert run_end(codes, 0, 2000) == 1536
    assert run_end(codes, 1536, 2000) == 1537


# --- the list ---------------------------------------------------------------------------------------------------

steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 3), st.integers(1, 4)),
        st.tuples(st.just("remove"), st.integers(0, 200), st.just(0)),
        st.tuples(st.just("merge"), st.integers(0, 200), st.just(0)),
    ),
    max_size=60,
)


@given(steps)
def test_the_list_finds_every_segment_by_position(steps: list[tuple[str, int, int]]) -> None:
    listed, model, after = SegmentList(), list[Segment](), 1
    for what, one, other in steps:
        if what == "append":
            model.append(segment(after + one, other))
            after += one + other
            listed.append(model[-1])
        elif what == "remove" and model:
            listed.remove(model.pop(one % len(model)))
        elif what == "merge" and len(model) > 1:
            at = one % (len(model) - 1)
            new = segment(model[at].first, model[at + 1].last - model[at].first + 1)
            listed.replace(model[at : at + 2], new)
            model[at : at + 2] = [new]
        listed.validate()
        assert list(listed) == model
        assert listed.oldest() == (model[0] if model else None)
    for position in range(after + 2):
        holder = next((one for one in model if one.first <= position <= one.last), None)
        assert listed.find(position) is holder
        following = next((one for one in model if one.last >= position), None)
        found = listed.next_from(listed.index(position))
        assert (found[1] if found else None) is following
        slices = [(one, max(position - one.first, 0), one.count) for one in model if one.last >= position]
        assert listed.slices(position, 10**9) == slices


def test_removing_from_the_middle_leaves_bounded_holes() -> None:
    listed = SegmentList()
    segments = [segment(1 + 2 * k, 2) for k in range(2000)]
    for one in segments:
        listed.append(one)
    for one in segments[1:-1]:
        listed.remove(one)
    assert list(listed) == [segments[0], segments[-1]]
    assert len(listed._segments) <= 2 * 2 + 64
    listed.validate()


# --- states -----------------------------------------------------------------------------------------------------


def test_counts_follow_every_change() -> None:
    messages = backlog()
    one = segment(1, 10)
    messages.add(one)
    messages.change(one, 0, 4, READY, OUT)
    messages.change(one, 6, 8, READY, HELD)
    messages.remove(one, 1, 3, OUT)
    assert (messages.messages, messages.bytes) == (8, 8 * 64)
    assert [messages.counts[state] for state in (READY, OUT, HELD)] == [4, 2, 2]
    messages.validate()


def test_a_segment_without_messages_leaves_the_list_and_the_time_index() -> None:
    messages = backlog()
    one = segment(1, 4)
    messages.add(one)
    messages.arm(one, 5000)
    messages.remove(one, 0, 3, READY)
    messages.validate()
    messages.remove(one, 3, 4, READY)
    assert (messages.segments.count, messages.timers.count) == (0, 0)
    assert list(messages.changed) == [one]
    messages.validate()


def test_dead_messages_are_given_once_and_forgotten_when_they_are_gone() -> None:
    messages = backlog(dead_message_queue="dmq")
    one = segment(1, 6)
    messages.add(one)
    assert not messages.has_dead()
    messages.kill(one, 0, 3, READY, EXPIRED)
    messages.kill(one, 4, 5, READY, REJECTED)
    assert messages.has_dead()
    messages.remove(one, 1, 2, MOVING)
    messages.validate()
    assert messages.take_dead(1) == [(one, 0, "expired")]
    assert messages.take_dead(10) == [(one, 2, "expired"), (one, 4, "rejected")]
    assert messages.take_dead(10) == []
    messages.revive(one, 4)
    assert one.dead is not None
    assert one.dead[4] == 0
    assert one.state[4] == HELD
    messages.validate()


def test_a_loaded_segment_brings_its_dead_messages() -> None:
    messages = backlog(dead_message_queue="dmq")
    one = segment(1, 3)
    one.dead = bytearray([0, REJECTED, 0])
    one.state[1] = MOVING
    messages.add(one)
    assert messages.take_dead(10) == [(one, 1, "rejected")]
    messages.validate()


def test_a_purge_leaves_nothing() -> None:
    messages = backlog(dead_message_queue="dmq")
    segments = [segment(1, 3), segment(4, 3)]
    for one in segments:
        messages.add(one)
    messages.kill(segments[0], 0, 1, READY, EXPIRED)
    assert messages.purge() == 6
    assert list(messages.changed) == segments
    assert [one.live for one in segments] == [0, 0]
    assert messages.take_dead(10) == []
    messages.validate()


@pytest.mark.parametrize("tries", [0, 1, 254, 255])
def test_counts_of_attempts_do_not_overflow(tries: int) -> None:
    messages = backlog()
    one = segment(1, 3)
    one.tries = bytearray([tries] * 3)
    messages.add(one)
    messages.add_tries(one, 1, 2)
    assert list(one.tries) == [tries, min(tries + 1, 255), tries]
