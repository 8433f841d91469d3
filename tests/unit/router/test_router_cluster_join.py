"""Strangers that wish to join: a few are with the controller at a time."""

from __future__ import annotations

from typing import Any

import pytest

from angarium import errors, wire
from angarium.errors import AngariumError
from angarium_server.connections.tls import Peer
from router.access.joining import WISHES_MAX, Joining
from router.access.password_checks import PasswordChecks
from router.asking.asks import Asks
from router.ground.effects import AskController, SendClient
from router.ground.ground import Outbox

FAR = Peer("10.0.0.2", is_encrypted=True)


class Rig:
    def __init__(self) -> None:
        self.outbox = Outbox()
        self.asks = Asks(self.outbox)
        self.refused: list[tuple[bytes, int]] = []
        checks = PasswordChecks(waiting_max=10, wait_max_s=8.0, memory_s=0, key=b"k")
        self.joining = Joining(self.asks, self.outbox, self._refuse, checks)

    def _refuse(self, routing_id: bytes, error: AngariumError) -> None:
        self.refused.append((routing_id, error.code))

    def take(self, name: bytes, peer: Peer = FAR, now: float = 1.0) -> None:
        self.joining.take(name, b"wish of " + name, peer, now)

    def questions(self) -> list[AskController]:
        return [one for one in self.outbox.effects if isinstance(one, AskController)]

    def answer(self, ticket: int, *, ok: bool, value: Any) -> None:
        self.asks.answered(ticket, ok, value, 1.0)

    def fail(self, name: bytes, peer: Peer = FAR, code: int = errors.JOIN_REFUSED, now: float = 1.0) -> None:
        self.take(name, peer, now)
        self.asks.answered(self.questions()[-1].ticket, False, [code, ""], now)


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


@pytest.mark.parametrize("peer", [Peer("10.0.0.2"), Peer("2001:db8::7")])
def test_a_wish_in_plain_text_from_another_host_is_not_heard(peer: Peer) -> None:
    """The answer would have the secret of the cluster in it."""
    rig = Rig()
    with pytest.raises(AngariumError) as caught:
        rig.take(b"x", peer)
    assert caught.value.code == errors.JOIN_REFUSED
    assert rig.questions() == []


@pytest.mark.parametrize("peer", [FAR, Peer("127.0.0.1"), Peer("::1"), Peer()])
def test_a_wish_through_tls_or_of_this_host_is_heard(peer: Peer) -> None:
    rig = Rig()
    rig.take(b"x", peer)
    assert len(rig.questions()) == 1


@pytest.mark.parametrize("code", [errors.JOIN_REFUSED, errors.LINK_UNAUTHORIZED])
def test_a_network_whose_tokens_are_wrong_waits_before_the_next_and_no_other_does(code: int) -> None:
    rig = Rig()
    for name in (b"1", b"2", b"3", b"4"):
        rig.fail(name, code=code)
    with pytest.raises(AngariumError) as caught:
        rig.take(b"5", now=1.1)
    assert caught.value.code == errors.CONNECT_RATE_EXCEEDED
    rig.take(b"other", Peer("10.0.0.3", is_encrypted=True), now=1.1)
    rig.fail(b"5", now=1.21)
    with pytest.raises(AngariumError):
        rig.take(b"6", now=1.6)
    rig.take(b"6", now=1.62)


def test_a_wish_that_was_refused_for_what_is_no_guess_slows_nobody_down() -> None:
    rig = Rig()
    for number in range(10):
        rig.fail(b"%d" % number, code=errors.OBJECT_EXISTS)
    rig.take(b"more")
