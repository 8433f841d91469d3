"""The worker and broken bytes: a client's cost that client, a router's are counted; nothing raises."""

from __future__ import annotations

import random
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium import errors, wire
from angarium.topic import SLOTS
from tests.unit.node.fake_router import ALWAYS, PLAIN, ROUTER, SHARED, VPN, Router, Row, row_of, rows_of


@pytest.fixture
def router() -> Any:
    router = Router()
    yield router
    router.worker.validate()


_GOOD = row_of(0, "a")


def _with(position: int, value: Any) -> list[Row]:
    return [[*_GOOD[:position], value, *_GOOD[position + 1 :]]]


@pytest.mark.parametrize(
    "rows",
    [
        _with(0, True),
        _with(0, -1),
        _with(0, 1.0),
        _with(0, None),
        _with(0, "0"),
        _with(1, b"a"),
        _with(1, 1),
        _with(1, None),
        _with(1, ["a"]),
        _with(2, True),
        _with(2, -1),
        _with(2, wire.FLAGS_MAX + 1),
        _with(2, wire.FLAG_RETAIN | 0b11),
        _with(2, 0b11),
        _with(2, 0b1100),
        _with(2, None),
        _with(3, 0),
        _with(3, []),
        _with(3, [0, 0, None]),
        _with(3, [0, 0, None, None, None]),
        _with(3, [0, 0, 256, None]),
        _with(3, [0, 0, -1, None]),
        _with(3, [0, 0, True, None]),
        _with(3, [-1, 0, None, None]),
        _with(3, [0, -1, None, None]),
        _with(3, [None, 0, None, None]),
        _with(3, [0, 0, None, 7]),
        _with(4, "p"),
        _with(4, {}),
        _with(4, 0),
        _with(5, None),
        _with(5, "payload"),
        _with(5, 1),
        [_GOOD[:5]],
        [[*_GOOD, None]],
        [[]],
        [None],
        ["sixsix"],
        [{0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5}],
        [7],
        [row_of(0, "a"), row_of(0, "a")],
        [row_of(1, "a"), row_of(0, "a")],
        [row_of(0, "a"), row_of(2, "b"), row_of(1, "a")],
        [row_of(0, "a"), *_with(1, 5)],
    ],
)
@pytest.mark.parametrize("size", [0, 10_000])
def test_a_row_that_is_not_as_it_must_be_makes_the_frame_malformed(
    router: Router, rows: list[Any], size: int
) -> None:
    """The payloads of large rows are opened otherwise."""
    router.filters((1, "a", PLAIN))
    rows = [*rows, row_of(9, "a", 0, bytes(size))]
    answer = router.match(rows)
    assert list(answer.refused) == [errors.MALFORMED_FRAME]
    assert answer.refused[errors.MALFORMED_FRAME][0] == len(rows)
    assert (answer.plain, answer.choice, answer.unmatched) == ({}, {}, 0)
    assert router.match(rows_of("a")).whole


_BATCH = wire.pack(rows_of("a", "a", "b"))


@pytest.mark.parametrize(
    "batch",
    [
        b"",
        b"\xc1",
        b"\xc0",
        b"\x80",
        b"\x93",
        _BATCH[:-1],
        _BATCH + b"\x00",
        wire.pack(rows_of("a", "a")),
        wire.pack(rows_of("a", "a", "b", "c")),
        wire.pack({1: 1, 2: 2, 3: 3}),
        b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff" + _BATCH,
        b"\x93\x96\x00\xdb\xff\xff\xff\xff",
        b"\x93\x96\x00\xa1\xff\x00\xc0\xc0\xc4\x00",
        b"\x93\x96\x00\xa3\xed\xa0\x80\x00\xc0\xc0\xc4\x00",
        b"\x93\xc7\x00\xff",
    ],
)
def test_bytes_that_are_no_batch_of_so_many_rows_make_the_frame_malformed(
    router: Router, batch: bytes
) -> None:
    answer = router.match(rows_of("a", "a", "b"), batch=batch)
    assert list(answer.refused) == [errors.MALFORMED_FRAME]
    assert answer.refused[errors.MALFORMED_FRAME][0] == 3
    assert router.match(rows_of("a")).unmatched == 1


def test_a_match_without_its_batch_is_malformed(router: Router) -> None:
    router.reference += 1
    (frames,) = router.send(wire.MATCH, ROUTER, router.reference, VPN, 0, 0, 1, 0, 1)
    assert list(router.read(frames, b"").refused) == [errors.MALFORMED_FRAME]


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"m"],
        [b"?", b"\x90"],
        [wire.START, b""],
        [wire.START, wire.pack([ROUTER + 1, 1, bytes(5)])],
        [wire.START, wire.pack([0, 1, bytes(SLOTS)])],
        [wire.START, wire.pack([-4, 1, bytes(SLOTS)])],
        [wire.START, wire.pack([ROUTER + 1, 1, "x" * SLOTS])],
        [wire.FILTERS, wire.pack([ROUTER, 1, [[1, VPN, "a", 6]], []])],
        [wire.FILTERS, wire.pack([ROUTER, 1, [[0, VPN, "a", 0]], []])],
        [wire.FILTERS, wire.pack([ROUTER, 1, [[1, VPN, b"a", 0]], []])],
        [wire.FILTERS, wire.pack([ROUTER, 1, [[1, VPN, "a", 0, 0]], []])],
        [wire.FILTERS, wire.pack([ROUTER, 1, [], None])],
        [wire.FILTERS, b"\x91" * 50_000],
        [wire.RULES, wire.pack([ROUTER, 0, None])],
        [wire.RULES, wire.pack([ROUTER, 1, [1, []]])],
        [wire.RULES, wire.pack([ROUTER, 1, [True, [1]]])],
        [wire.MATCH, wire.pack([ROUTER, 1, VPN, 0, 0]), _BATCH],
        [wire.MATCH, wire.pack([ROUTER, 1, VPN, 0, False, 3, 0, 1]), _BATCH],
        [wire.MATCH, wire.pack([ROUTER, 1, VPN, 0, 0, -3, 0, 1]), _BATCH],
        [wire.MATCH, wire.pack({}), _BATCH],
    ],
)
def test_a_frame_that_no_router_sends_is_counted_and_changes_nothing(
    router: Router, frames: list[bytes]
) -> None:
    router.filters((1, "a", PLAIN))
    assert router.worker.handle(frames, 0.0) == []
    assert router.worker.faults == 1
    assert router.match(rows_of("a")).whole


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=7) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)
_OPERATIONS = st.sampled_from([wire.START, wire.FILTERS, wire.RULES, wire.MATCH, b"z"])


@pytest.mark.slow
@given(st.lists(st.tuples(_OPERATIONS, _VALUES, st.binary(max_size=40)), max_size=4))
def test_no_sequence_of_strange_frames_makes_it_raise(frames: list[tuple[bytes, Any, bytes]]) -> None:
    router = Router()
    for operation, body, batch in frames:
        router.worker.handle([operation, msgpack.packb(body), batch], 0.0)
        router.worker.handle([operation, batch], 0.0)
    router.worker.validate()


@pytest.mark.slow
@given(st.lists(_VALUES, max_size=4), st.integers(0, 5))
def test_strange_rows_are_refused_with_one_answer(rows: list[Any], count: int) -> None:
    router = Router()
    router.filters((1, ">", PLAIN))
    router.match([[]] * count, batch=msgpack.packb(rows))
    router.match(rows)
    assert router.match(rows_of("a")).whole
    router.worker.validate()


def _mutated(data: bytes, chance: random.Random) -> bytes:
    """Change some bytes: another value, gone, twice, or all behind them cut off."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(changed)) if changed else 0
        what = chance.randrange(4)
        if what == 0 and changed:
            changed[place] = chance.randrange(256)
        elif what == 1 and changed:
            del changed[place]
        elif what == 2:
            changed[place:place] = changed[place : place + chance.randint(1, 9)]
        else:
            del changed[place:]
    return bytes(changed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_mutations_of_valid_frames_never_make_it_raise(seed: int) -> None:
    """Batches are a client's: after each the worker works on. Headers are a router's: they may change all."""
    chance = random.Random(f"worker {seed}")
    rows = [
        row_of(0, "a/b", wire.FLAG_DTO, b"payload", [100, 0, 5, "key"], b"\x81\x01\xa1x"),
        row_of(1, "c/d", 4),
        row_of(9, "#share/x"),
        row_of(300, "é/ü", 8, bytes(300)),
    ]
    batch = wire.pack(rows)
    router = Router()
    router.filters((1, "a/>", PLAIN), (2, "*/d", SHARED), (3, ">", ALWAYS))
    for _ in range(1_500):
        router.match(rows, batch=_mutated(batch, chance))
        assert router.match(rows).refused == {errors.RESERVED_TOPIC: (1, "#share/x")}
    router.worker.validate()
    headers = [
        (wire.START, [ROUTER, 1, bytes(SLOTS)]),
        (wire.FILTERS, [ROUTER, 2, [[4, VPN, "a/*/b*", PLAIN], [5, VPN, "x", SHARED]], [1, 2]]),
        (wire.RULES, [ROUTER, 5, [False, ["a/>", "b*/c"]]]),
        (wire.MATCH, [ROUTER, 7, VPN, 5, 1, len(rows), 0, 1]),
    ]
    for _ in range(1_500):
        operation, header = chance.choice(headers)
        router.worker.handle([operation, _mutated(wire.pack(header), chance), batch], 0.0)
    router.worker.validate()


def test_a_fault_in_a_bundle_costs_nothing_else_of_it(router: Router) -> None:
    good = [wire.MATCH, wire.pack([ROUTER, 7, VPN, 0, 0, 1, 0, 1]), _BATCH]
    bundle = [good, [], [b"?"], [wire.MATCH, wire.pack({}), _BATCH], good]
    faults = router.worker.faults
    ((operation, packed),) = router.worker.handle([wire.BUNDLE, wire.pack([bundle])], 0.0)
    assert operation == wire.BUNDLE
    assert [one[0] for one in wire.unpack(packed)[0]] == [wire.RESULT, wire.RESULT]
    assert router.worker.faults == faults + 3
    assert router.worker.handle([wire.BUNDLE, b"?"], 0.0) == []
