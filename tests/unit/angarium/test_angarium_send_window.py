"""The rows of a producer over any number of connections, against a node that publishes exactly once.

The node stores a sequence once, gives an old one the verdict that it had, and loses whatever was under way when the
connection goes. Whatever happens in between, every message must end stored once or refused, its claim must hear of
it once, and the node must see every sequence in order.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from angarium import errors, wire
from angarium.client.protocol.send_window import SendWindow
from angarium.client.publishing.receipts import SETTLED_AHEAD_MAX, UNSEEN_MAX, Receipt, Refusals, Tally
from angarium.message import Message, unpack_rows
from angarium.slots import slot_table


class FakeClaim:
    """Notes what it hears of one message."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def settle(self, messages: int) -> None:
        self.heard += ["stored"] * messages

    def miss(self, messages: int) -> None:
        raise AssertionError("every message of these tests finds an endpoint")

    def refuse(self, sequence: int, error: errors.AngariumError) -> None:
        self.heard.append(f"refused {sequence}")

    def fail(self, messages: int, error: errors.AngariumError) -> None:
        self.heard.append("lost")


def window(size: int = 255, **limits: int) -> SendWindow:
    made = SendWindow(size)
    made.set_table(1, slot_table(1))
    made.set_limits(
        limits.get("message_bytes", 1 << 20), limits.get("batch_bytes", 1 << 24), limits.get("bytes", 1 << 24)
    )
    made.opened(1, size, 0)
    return made


def row(payload: bytes = b"x", topic: str = "t") -> Any:
    return Message(topic, payload, mode="persistent").row


class Exchanges(RuleBasedStateMachine):
    """A producer and a node that talk over connections that break."""

    @initialize(size=st.integers(1, 12), workers=st.integers(1, 3))
    def begin(self, size: int, workers: int) -> None:
        self.size = size
        self.rows = window(size)
        self.rows.set_table(1, slot_table(workers))
        #: Sequence -> payload of what was handed over, and its claim.
        self.handed: dict[int, tuple[bytes, FakeClaim]] = {}
        #: What the node keeps: sequence -> stored (True) or refused.
        self.verdicts: dict[int, bool] = {}
        self.stored: list[tuple[int, bytes]] = []
        #: Rounds under way to the node, and verdicts under way from it.
        self.coming: deque[list[tuple[int, bytes]]] = deque()
        self.judged: deque[int] = deque()
        self.told: set[int] = set()
        self.is_open = True

    @rule(gap=st.sampled_from([0, 0, 0, 1, 1 << 33]), count=st.integers(1, 5))
    def add(self, gap: int, count: int) -> None:
        for _ in range(min(count, self.rows.room())):
            sequence = self.rows.last_sequence + 1 + gap
            payload, claim = b"%d" % sequence, FakeClaim()
            assert self.rows.add(row(payload, f"t/{sequence % 5}"), claim, sequence) == sequence
            self.handed[sequence] = payload, claim

    @precondition(lambda self: self.rows.room())
    @rule(count=st.integers(1, 9))
    def fill(self, count: int) -> None:
        first = self.rows.last_sequence + 1
        claim = FakeClaim()
        messages = ((f"t/{first + i}", b"%d" % (first + i)) for i in range(count))
        for sequence in range(first, first + self.rows.fill(messages, claim)):
            self.handed[sequence] = b"%d" % sequence, claim

    @precondition(lambda self: self.is_open)
    @rule()
    def send(self) -> None:
        while (departure := self.rows.take()) is not None:
            first, sent = departure
            assert [count for _, count in sent.parts] == [len(unpack_rows(one)) for one in sent.batches]
            together = sorted(one for batch in sent.batches for one in unpack_rows(batch))
            assert 0 < len(together) <= (self.size + 1) // 2
            self.coming.append([(first + one[0], one[5]) for one in together])

    @precondition(lambda self: self.coming)
    @rule(refuses=st.integers(0, 15))
    def store(self, refuses: int) -> None:
        """The node takes a round; an old sequence keeps its verdict, and some new ones are refused."""
        for place, (sequence, payload) in enumerate(self.coming.popleft()):
            assert self.handed[sequence][0] == payload
            if sequence not in self.verdicts:
                self.verdicts[sequence] = not refuses >> place & 1
                if self.verdicts[sequence]:
                    self.stored.append((sequence, payload))
            self.judged.append(sequence)

    @precondition(lambda self: self.judged)
    @rule(count=st.integers(1, 20))
    def acknowledge(self, count: int) -> None:
        sequences = [self.judged.popleft() for _ in range(min(count, len(self.judged)))]
        nacks = [(one, errors.SPOOL_OVER_QUOTA, "") for one in sequences if not self.verdicts[one]]
        self.rows.acknowledge(sequences[-1], nacks)
        self.told.update(sequences)

    @precondition(lambda self: len(self.judged) > 1)
    @rule()
    def refuse_early(self) -> None:
        """A refusal may come before the acknowledgement of what is before it."""
        late = [one for one in self.judged if not self.verdicts[one]]
        if late and late[-1] != self.judged[0]:
            upto = self.judged.popleft()
            nacks = [(one, errors.SPOOL_OVER_QUOTA, "") for one in (upto, late[-1]) if not self.verdicts[one]]
            self.rows.acknowledge(upto, nacks)
            self.told.update((upto, late[-1]))
            self.judged = deque(one for one in self.judged if one not in self.told)

    @rule(smaller=st.booleans())
    def reconnect(self, smaller: bool) -> None:
        self.rows.lose()
        self.coming.clear()
        self.judged.clear()
        if smaller:
            self.size = max(self.size - 1, 1)
        self.rows.opened(2, self.size, max(self.verdicts, default=0))
        assert not self.rows.foreign_sequence

    @invariant()
    def nothing_is_out_of_order_or_twice(self) -> None:
        if not hasattr(self, "rows"):
            return
        self.rows.validate()
        assert [one for one, _ in self.stored] == sorted(dict(self.stored))
        for sequence, (_, claim) in self.handed.items():
            expected = sequence in self.told
            if len({id(one) for _, one in self.handed.values()}) == len(self.handed):
                assert len(claim.heard) == expected, (sequence, claim.heard)

    def teardown(self) -> None:
        """In the end everything is told."""
        if not hasattr(self, "rows"):
            return
        self.reconnect(smaller=False)
        for _ in range(10_000):
            self.send()
            if not self.coming and not self.judged:
                break
            if self.coming:
                self.store(0)
            if self.judged:
                self.acknowledge(20)
        assert self.rows.held_messages == self.rows.held_bytes == 0
        assert self.told == set(self.handed)
        heard = [one for claim in {id(c): c for _, c in self.handed.values()}.values() for one in claim.heard]
        assert heard.count("stored") == len(self.stored) == sum(self.verdicts.values())
        assert len(heard) == len(self.handed)
        assert self.rows.stored_messages == heard.count("stored")


Exchanges.TestCase.settings = settings(stateful_step_count=40)
TestExchanges = Exchanges.TestCase


def test_what_is_held_is_bounded_by_messages_and_by_bytes() -> None:
    rows = window(10, bytes=5_000)
    count = 0
    while rows.room():
        rows.add(row(b"x" * 1_000), FakeClaim())
        count += 1
    assert count == 4, "the fourth goes beyond the limit, a fifth does not begin there"
    small = window(10)
    while small.room():
        small.add(row(b""), FakeClaim())
    assert small.held_messages == 10


def test_no_more_is_taken_from_an_iterator_than_the_bytes_of_a_window() -> None:
    rows = window(200, bytes=10_000)
    given: list[int] = []
    messages = (("t", bytes(4_000)) for n in range(50) if not given.append(n))  # type: ignore[func-returns-value]
    assert rows.fill(messages, FakeClaim()) == 3
    assert given == [0, 1, 2]
    assert rows.fill(messages, FakeClaim()) == 0, "there is no room"
    assert given == [0, 1, 2]


def test_a_round_is_bounded_by_bytes() -> None:
    rows = window(255, batch_bytes=10_000)
    claim = FakeClaim()
    assert rows.fill(iter([("t", b"x" * 3_000)] * 10), claim) == 10
    sizes = []
    while (departure := rows.take()) is not None:
        sizes.append(departure.round.size_bytes)
    assert len(sizes) == 4
    assert max(sizes) <= 10_000


def test_a_message_that_is_illegal_leaves_what_is_before_it() -> None:
    for wrong in (("", b""), ("t", "text"), ("t",), Message("t"), None, ("t", b"x" * ((1 << 20) + 1))):
        rows, claim = window(), FakeClaim()
        with pytest.raises(errors.InvalidRequestError):
            rows.fill(iter([("t", b"1"), wrong]), claim)  # type: ignore[list-item]
        rows.validate()
        assert rows.last_sequence == 1
        departure = rows.take()
        assert departure is not None
        assert departure.round.rows == 1


def test_what_is_given_up_is_told_once() -> None:
    rows = window()
    claims = [FakeClaim() for _ in range(3)]
    for claim in claims:
        rows.add(row(), claim)
    rows.take()
    rows.acknowledge(1, [(2, 50310, "")])
    rows.fail(errors.error_for(errors.CLIENT_CLOSED))
    assert [claim.heard for claim in claims] == [["stored"], ["refused 2"], ["lost"]]
    rows.validate()
    assert rows.room() == 255


def test_modes_of_tuples_are_persistent() -> None:
    rows = window()
    rows.fill(iter([("t", bytearray(b"x"))]), FakeClaim())  # type: ignore[list-item]
    departure = rows.take()
    assert departure is not None
    assert unpack_rows(departure.round.batches[0])[0][2] == wire.MODE_PERSISTENT


# Receipts without a loop.


def test_refusals_that_nobody_looks_at_are_bounded() -> None:
    refusals = Refusals()
    for sequence in range(1, UNSEEN_MAX * 3):
        refusals.add(sequence, errors.error_for(errors.SPOOL_OVER_QUOTA, "full"))
        refusals.validate()
    refusals.see(1)
    refusals.see(UNSEEN_MAX * 2)
    error = refusals.take()
    assert error is not None
    assert error.detail == f"sequence 2: full; {UNSEEN_MAX * 3 - 2} messages were refused"
    assert refusals.take() is None


def test_a_receipt_that_was_looked_at_is_no_secret() -> None:
    refusals = Refusals()
    receipt = Receipt(refusals)
    receipt.sequence = 5
    assert receipt.error is None
    assert not receipt.done
    receipt.refuse(5, errors.error_for(errors.SPOOL_OVER_QUOTA))
    assert receipt.done
    assert refusals.count == 1
    assert receipt.error is not None
    assert refusals.take() is None


def test_a_tally_forgets_what_is_settled_for_long() -> None:
    """An endless `publish_many` beside others must not remember where each of its messages was."""
    tally = Tally(None)  # type: ignore[arg-type] # nobody waits here
    for number in range(6_000):
        tally.give(number * 2, 1)
        tally.settle(1)
        if number % 50 == 0:
            tally.validate()
    assert len(tally._spans) <= SETTLED_AHEAD_MAX + 2
    tally.give(12_001, 3)
    tally.refuse(12_002, errors.error_for(errors.SPOOL_OVER_QUOTA))
    assert tally.report().refused[0][0] == 6_001
