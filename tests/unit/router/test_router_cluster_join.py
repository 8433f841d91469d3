"""Strangers that wish to join: a few are with the controller at a time."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors, wire
from angarium.errors import AngariumError
from router.access.joining import WISHES_MAX, Joining
from router.asking.asks import Asks
from router.ground.effects import AskController, Outbox, SendClient


class Rig:
    def __init__(self) -> None:
        self.outbox = Outbox()
        self.asks = Asks(self.outbox)
        self.refused: list[tuple[bytes, int]] = []
        self.joining = Joining(self.asks, self.outbox, self._refuse)

    def _refuse(self, routing_id: bytes, error: AngariumError) -> None:
        self.refused.append((routing_id, error.code))

    def take(self, name: bytes) -> None:
        self.joining.take(name, b"wish of " + name, "10.0.0.2")

    def questions(self) -> list[AskController]:
        return [one for one in self.outbox.effects if isinstance(one, AskController)]

    def answer(self, ticket: int, *, ok: bool, value: Any) -> None:
        self.asks.answered(ticket, ok, value, 1.0)


def test_a_wish_goes_to_the_controller_unopened_and_so_does_the_answer() -> None:
    rig = Rig()
    rig.take(b"x")
    (asked,) = rig.questions()
    assert (asked.operation, asked.arguments) == (
        "cluster.join",
        {"wish": b"wish of x", "address": "10.0.0.2"},
    )
    rig.answer(asked.ticket, ok=True, value=b"admission")
    assert rig.outbox.effects[-1] == SendClient(b"x", [wire.JOINED, b"admission"], 0)


def test_a_refusal_ends_the_connection_with_its_code() -> None:
    rig = Rig()
    rig.take(b"x")
    rig.answer(rig.questions()[0].ticket, ok=False, value=[errors.JOIN_REFUSED, "used"])
    assert rig.refused == [(b"x", errors.JOIN_REFUSED)]


def test_wishes_at_a_time_are_bounded_and_one_connection_has_one() -> None:
    rig = Rig()
    rig.take(b"0")
    with pytest.raises(AngariumError) as caught:
        rig.take(b"0")
    assert caught.value.code == errors.ALREADY_LOGGED_IN
    for number in range(1, WISHES_MAX):
        rig.take(b"%d" % number)
    with pytest.raises(AngariumError) as caught:
        rig.take(b"more")
    assert caught.value.code == errors.CONNECT_RATE_EXCEEDED
    rig.answer(rig.questions()[0].ticket, ok=True, value=b"")
    rig.take(b"more")
