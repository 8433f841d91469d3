"""Messages that a client publishes with QoS 2, without connection and node: order, and what is remembered when."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from angarium import errors
from gateway.mqtt.codec.kinds import PacketType
from gateway.mqtt.sessions.received import PATIENCE_S, Answer, Received

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from angarium.message import Row
    from gateway.mqtt.sessions.storing import Message

pytestmark = pytest.mark.requirement("R236")

REC, COMP = PacketType.PUBREC, PacketType.PUBCOMP
NOW = 1_000.0


class Side:
    """What is remembered, the way to the node, and the client, all played by the test."""

    deletes = True

    def __init__(self, next_sequence: int = 1, known: dict[int, int] | None = None) -> None:
        self.last_sequence = 0
        self.is_open = self.is_free = True
        self.sent: list[tuple[int, int]] = []
        self.told: list[Answer] = []
        self.waiting: list[Callable[[float], None]] = []
        self.received = Received(self, self, lambda answers, _now: self.told.extend(answers))
        self.look_at = self.received.load(next_sequence, known or {}, NOW)

    def after(self, then: Callable[[float], None], _now: float) -> None:
        self.waiting.append(then)

    later = after

    def hurry(self) -> None:
        """Nothing is in no haste."""

    def open(self) -> None:
        """It is."""

    def send(self, messages: Sequence[Message]) -> int:
        self.is_free = False
        self.sent += [(one.packet_id, one.sequence) for one in messages]
        return len(messages)

    # What the test says.

    def says(self, *packet_ids: int) -> None:
        for one in packet_ids:
            if not self.received.again(one, NOW):
                self.received.take(one, row(one), NOW)
            self.received.validate()

    def remembers(self) -> None:
        while self.waiting:
            self.waiting.pop(0)(NOW)
            self.received.validate()
        self.received.remembered(NOW)

    def stores(self, **codes: int) -> None:
        sent, self.sent, self.is_free = self.sent, [], True
        self.received.settled([(one, codes.get(f"p{one}", 0)) for one, _ in sent], NOW)
        self.received.validate()


def row(number: int) -> Row:
    return (0, "t", 0, None, None, b"%d" % number)


def test_a_message_leaves_when_its_sequence_is_remembered_and_is_answered_when_it_is_stored() -> None:
    side = Side()
    side.says(7, 9)
    assert (side.sent, side.received.sequences) == ([], {7: 1, 9: 2})
    side.remembers()
    assert (side.sent, side.told) == ([(7, 1), (9, 2)], [])
    side.stores()
    assert side.told == [Answer(REC, 7), Answer(REC, 9)]
    assert side.received.sequences == {7: 1, 9: 2}


def test_an_identifier_is_free_when_that_is_remembered() -> None:
    side = Side()
    side.says(7)
    side.remembers()
    side.stores()
    side.told.clear()
    assert side.received.release(7, NOW)
    assert (side.received.sequences, side.told) == ({}, [])
    side.remembers()
    assert side.told == [Answer(COMP, 7)]
    side.says(7)
    assert side.received.sequences == {7: 2}


def test_what_comes_twice_is_taken_once() -> None:
    side = Side()
    side.says(7, 7)
    side.remembers()
    side.says(7)
    assert side.sent == [(7, 1)]
    side.stores()
    side.says(7)
    assert side.told == [Answer(REC, 7)] * 2


def test_a_message_that_comes_again_on_another_connection_has_the_sequence_that_it_had() -> None:
    side = Side(5, {7: 3, 8: 2})
    side.says(7)
    assert side.received.release(8, NOW)
    assert side.sent == [(7, 3)]
    assert side.received.unfinished == 1, "only what this connection has brought"


def test_nothing_leaves_before_all_that_is_known_and_by_rising_sequences() -> None:
    """One that was refused comes before one that was stored: its PUBREC was lost."""
    side = Side(5, {7: 3, 8: 4, 9: 2})
    side.says(6, 8)
    side.remembers()
    assert side.sent == []
    side.says(7)
    assert side.sent == []
    assert side.received.release(9, NOW)
    side.remembers()
    assert side.sent[:2] == [(7, 3), (8, 4)]
    side.stores()
    side.remembers()
    assert (6, 5) in side.sent
    side.stores()
    assert [one.packet_id for one in side.told if one.kind is REC] == [6, 8, 7], (
        "in the order of the messages"
    )


def test_what_a_client_has_forgotten_is_forgotten_after_a_while() -> None:
    side = Side(5, {7: 3})
    side.says(8)
    side.remembers()
    assert (side.look_at, side.sent) == (NOW + PATIENCE_S, [])
    side.received.tick(NOW + PATIENCE_S)
    side.remembers()
    assert (side.sent, side.received.sequences) == ([(8, 5)], {8: 5})


def test_a_refusal_is_told_when_it_is_remembered_that_the_message_is_over_and_in_its_turn() -> None:
    side = Side()
    side.says(7, 8)
    side.remembers()
    assert side.sent == [(7, 1), (8, 2)]
    side.stores(p7=errors.SPOOL_OVER_QUOTA)
    assert (side.told, side.received.sequences) == ([], {8: 2})
    side.remembers()
    assert side.told == [Answer(REC, 7, errors.SPOOL_OVER_QUOTA), Answer(REC, 8)]
    assert side.received.release(8, NOW)


def test_an_identifier_that_is_known_and_comes_with_what_is_refused_is_free_when_that_is_remembered() -> None:
    """Else the next connection would take a new message for the one that was stored."""
    side = Side(5, {7: 3})
    side.says(8)
    side.received.refuse(7, errors.INVALID_TOPIC, NOW)
    side.received.validate()
    assert (side.told, side.received.sequences) == ([], {8: 5})
    side.remembers()
    assert side.sent == [(8, 5)], "nothing is waited for any more"
    side.stores()
    assert side.told == [Answer(REC, 8), Answer(REC, 7, errors.INVALID_TOPIC)]
    assert side.received.tick(NOW + PATIENCE_S) > NOW + PATIENCE_S
    side.says(7)
    assert side.received.sequences == {8: 5, 7: 6}


def test_pubrel_before_pubrec_is_refused_and_of_what_is_unknown_answered() -> None:
    side = Side()
    side.says(7)
    assert not side.received.release(7, NOW)
    assert side.received.release(8, NOW)
    assert side.told == [Answer(COMP, 8, errors.NOT_DELIVERED)]


def test_what_can_never_be_stored_is_refused_unless_it_may_be_stored_already() -> None:
    side = Side()
    side.is_open = False
    side.says(7)
    assert side.received.fail(errors.GUARANTEED_SEND_DENIED, NOW)
    assert side.told == [Answer(REC, 7, errors.GUARANTEED_SEND_DENIED)]
    known = Side(2, {7: 1})
    known.is_open = False
    known.says(7)
    assert not known.received.fail(errors.GUARANTEED_SEND_DENIED, NOW)
