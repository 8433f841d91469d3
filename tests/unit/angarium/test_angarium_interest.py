"""What a client wants, over connections that come and go."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from angarium.client.protocol.session import REQUESTS_PENDING_MAX, ClientSession, EgressWindow, Hello
from angarium.client.subscribing.interest import Interest, Wish
from tests.welcome import welcome

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

WELCOME = welcome(token=b"t", rounds=4, bytes=1000, keepalive_ms=3000, inbox="#P2P/INB/x")
DENIED = errors.error_for(errors.SUBSCRIBE_DENIED)


class Bench:
    """An interest and the connection that it has, if any."""

    def __init__(self) -> None:
        self.refused: list[Wish] = []
        self.restored = 0
        self.interest = Interest(lambda wish, _: self.refused.append(wish), self._restored)
        self.session: ClientSession | None = None

    def _restored(self) -> None:
        self.restored += 1

    def connect(self) -> None:
        self.session = ClientSession(Hello(), EgressWindow(1, 1), 0.0)
        self.session.receive([wire.WELCOME, wire.pack(WELCOME)], 0.0)
        self.session.take_outgoing().clear()
        self.interest.go_online()

    def lose(self) -> None:
        self.session = None
        self.interest.go_offline()
        self.interest.validate()

    def asked(self) -> list[tuple[bytes, list[Any]]]:
        """Send what is queued, and give what was asked since the last call."""
        assert self.session is not None
        self.interest.send(self.session)
        self.interest.validate()
        outgoing = self.session.take_outgoing()
        frames = [(frames[0], wire.unpack(frames[1])) for frames in outgoing]
        outgoing.clear()
        return frames

    def answer(self, request: int, *results: errors.AngariumError | None) -> None:
        assert self.session is not None
        coded = [None if error is None else [error.code, error.detail] for error in results]
        self.session.receive([wire.SUBACK, wire.pack([request, coded])], 0.0)
        self.interest.answered(request, list(results))
        self.interest.validate()


def run(test: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(Bench()), 20)

    asyncio.run(bounded())


def test_like_requests_travel_together_and_their_order_is_kept() -> None:
    async def test(bench: Bench) -> None:
        bench.connect()
        for text in ("a", "b"):
            bench.interest.add((text, 0))
        bench.interest.remove(("a", 0))
        bench.interest.add(("c", 1))
        bench.interest.ask_for(wire.SUBSCRIBE, ("d", 0), "other")
        assert bench.asked() == [
            (wire.SUBSCRIBE, [1, [["a", 0], ["b", 0]], None]),
            (wire.UNSUBSCRIBE, [2, [["a", 0]], None]),
            (wire.SUBSCRIBE, [3, [["c", 1]], None]),
            (wire.SUBSCRIBE, [4, [["d", 0]], "other"]),
        ]

    run(test)


def test_answers_reach_whoever_asked() -> None:
    async def test(bench: Bench) -> None:
        bench.connect()
        one, two = bench.interest.add(("a", 0)), bench.interest.add(("b", 0))
        again = bench.interest.add(("a", 0))
        bench.asked()
        bench.answer(1, None, DENIED)
        assert (one.result(), two.result(), again.result()) == (None, DENIED, None)
        assert bench.interest.add(("a", 0)).done()
        assert len(bench.interest) == 2

    run(test)


def test_the_last_who_leaves_asks_and_a_refused_filter_is_not_asked_to_go() -> None:
    async def test(bench: Bench) -> None:
        bench.connect()
        for text in ("a", "a", "b"):
            bench.interest.add((text, 0))
        bench.asked()
        bench.answer(1, None, DENIED)
        assert bench.interest.remove(("a", 0)).done()
        assert bench.interest.remove(("b", 0)).done()
        assert bench.asked() == []
        answer = bench.interest.remove(("a", 0))
        assert not answer.done()
        assert bench.asked() == [(wire.UNSUBSCRIBE, [2, [["a", 0]], None])]
        bench.answer(2, None)
        assert answer.result() is None
        assert len(bench.interest) == 0
        assert bench.interest.remove(("a", 0)).done()

    run(test)


def test_many_requests_wait_for_answers_to_those_before() -> None:
    async def test(bench: Bench) -> None:
        bench.connect()
        for number in range(100):
            bench.interest.ask_for(wire.SUBSCRIBE, ("a", 0), f"client{number}")
        assert len(bench.asked()) == REQUESTS_PENDING_MAX
        bench.answer(1, None)
        assert len(bench.asked()) == 1

    run(test)


def test_a_new_connection_is_asked_for_everything_that_is_wanted() -> None:
    async def test(bench: Bench) -> None:
        bench.connect()
        assert bench.restored == 1
        accepted, pending = bench.interest.add(("a", 0)), bench.interest.add(("b", 1))
        bench.asked()
        bench.lose()
        later = bench.interest.add(("c", 0))
        assert not pending.done()
        bench.connect()
        assert bench.asked() == [(wire.SUBSCRIBE, [1, [["a", 0], ["b", 1], ["c", 0]], None])]
        bench.answer(1, None, DENIED, None)
        assert (accepted.result(), pending.result(), later.result()) == (None, DENIED, None)
        assert bench.restored == 2
        assert bench.refused == [], "who waits for the answer learns it from there"

    run(test)


def test_what_was_accepted_once_and_is_refused_now_is_told() -> None:
    async def test(bench: Bench) -> None:
        bench.connect()
        bench.interest.add(("a", 0))
        bench.asked()
        bench.answer(1, None)
        bench.lose()
        bench.connect()
        bench.asked()
        bench.answer(1, DENIED)
        assert bench.refused == [("a", 0)]
        bench.interest.remove(("a", 0))
        assert bench.asked() == []

    run(test)


@pytest.mark.requirement("R56")
def test_a_lost_connection_has_unsubscribed_from_everything() -> None:
    async def test(bench: Bench) -> None:
        bench.connect()
        bench.interest.add(("a", 0))
        bench.asked()
        bench.answer(1, None)
        leaving = bench.interest.remove(("a", 0))
        bench.asked()
        managed = bench.interest.ask_for(wire.SUBSCRIBE, ("b", 0), "other")
        bench.lose()
        assert leaving.result() is None
        error = managed.result()
        assert error is not None
        assert error.code == errors.NOT_CONNECTED
        late = bench.interest.ask_for(wire.SUBSCRIBE, ("b", 0), "other").result()
        assert late is not None
        assert late.code == errors.NOT_CONNECTED
        bench.connect()
        assert bench.asked() == []

    run(test)


def test_closing_answers_everybody() -> None:
    async def test(bench: Bench) -> None:
        waiting = bench.interest.add(("a", 0))
        bench.interest.close(DENIED)
        assert waiting.result() is DENIED
        assert len(bench.interest) == 0
        bench.interest.validate()

    run(test)
