"""Rows on their way to the router: none is lost, none passes another, whatever table cuts them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from angarium import slots, wire
from angarium.client.protocol.events import Welcome
from angarium.topic import slot_of
from gateway.gathering import GATHERED_BYTES_MAX, Gathering


def welcome(workers: int = 1, message: int = 1 << 20, batch: int = 16 << 20) -> Welcome:
    return Welcome(
        session="1",
        client_name="g",
        vpn="v",
        node="n",
        token=b"",
        resumed=False,
        epoch=1,
        slots=slots.slot_table(workers),
        workers=workers,
        rounds=64,
        round_bytes=1 << 20,
        keepalive_ms=1_000,
        max_message_bytes=message,
        max_batch_rows=10_000,
        max_batch_bytes=batch,
        inbox="",
    )


def topics_of(batch: slots.Round) -> list[str]:
    rows: list[Any] = sorted(row for one in batch.batches for row in wire.unpack(one))
    assert [row[0] for row in rows] == list(range(batch.rows))
    return [row[1] for row in rows]


def is_cut_by(batch: slots.Round, workers: int) -> bool:
    table = slots.slot_table(workers)
    return all(
        {table[slot_of(row[1])] for row in wire.unpack(rows)} == {worker}
        for (worker, _), rows in zip(batch.parts, batch.batches, strict=True)
    )


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from([0, 1_000, 200_000])),
        st.tuples(st.just("many"), st.integers(1, 900)),
        st.tuples(st.just("take"), st.just(0)),
        st.tuples(st.just("table"), st.integers(1, 5)),
    ),
    max_size=30,
)


@given(_STEPS)
def test_rows_leave_in_the_order_in_which_they_came(steps: list[tuple[str, int]]) -> None:
    gathering = Gathering()
    gathering.open(welcome())
    came: list[str] = []
    left: list[str] = []
    epoch = workers = 1
    for step, value in steps:
        if step == "table":
            epoch, workers = epoch + 1, value
            gathering.cut_by(epoch, slots.slot_table(value))
        elif step == "take":
            batch = gathering.take()
            assert batch.epoch == epoch
            assert is_cut_by(batch, workers)
            left += topics_of(batch)
        else:
            for _ in range(value if step == "many" else 1):
                topic = f"t/{len(came)}"
                came.append(topic)
                gathering.add((0, topic, 0, None, None, bytes(value if step == "add" else 1)))
        gathering.validate()
    while gathering.rows:
        left += topics_of(gathering.take())
        gathering.validate()
    assert left == came


def test_there_is_room_until_a_few_rounds_wait() -> None:
    gathering = Gathering()
    gathering.open(welcome())
    count = 0
    while gathering.has_room():
        gathering.add((0, "t", 0, None, None, bytes(100_000)))
        count += 1
    assert GATHERED_BYTES_MAX < count * 100_320 <= GATHERED_BYTES_MAX + 100_320
    gathering.take()
    assert gathering.has_room()


def test_a_message_is_not_larger_than_a_batch_may_be() -> None:
    gathering = Gathering()
    gathering.open(welcome(message=10_000_000, batch=1 << 20))
    assert gathering.message_bytes_max == (1 << 20) - slots.ROW_OVERHEAD_BYTES
    gathering.add((0, "t", 0, None, None, bytes(gathering.message_bytes_max)))
    assert gathering.take().size_bytes <= 1 << 20
