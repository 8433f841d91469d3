"""The thread of a blocking client, and what shows its objects to other threads."""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors
from angarium.blocking.portal import Closing, Facade, Mirrored, Portal, opens, waits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAIT_S = 10.0


@pytest.fixture
def portal() -> Iterator[Portal]:
    made = Portal()
    yield made
    made.stop()


class Lamp:
    """Lives in the thread."""

    def __init__(self) -> None:
        self.lit = False

    async def switch(self, *, on: bool = True) -> int:
        """Switch it, and tell in which thread that was."""
        self.lit = on
        return threading.get_ident()

    async def copy(self) -> Lamp:
        """Give another one like it."""
        made = type(self)()
        made.lit = self.lit
        return made

    async def close(self) -> None:
        """Switch it off."""
        self.lit = False


class Lantern(Lamp):
    """Does one thing in another way."""

    async def switch(self, *, on: bool = True) -> int:
        await super().switch(on=not on)
        return -1


class LampFacade(Facade, Closing):
    """What other threads see of it."""

    lit = Mirrored[bool]()
    switch = waits(Lamp.switch)
    close = waits(Lamp.close)


def test_a_method_runs_in_the_thread_and_an_attribute_is_read_as_it_is(portal: Portal) -> None:
    with LampFacade(portal, Lamp()) as lamp:
        assert not lamp.lit
        assert lamp.switch() not in (threading.get_ident(), -1)
        assert lamp.lit
        lamp.switch(on=False)
        assert not lamp.lit
        lamp.switch()
    assert not lamp.lit


def test_the_method_is_that_of_the_object_which_may_have_its_own(portal: Portal) -> None:
    lantern = LampFacade(portal, Lantern())
    assert lantern.switch() == -1
    assert not lantern.lit


def test_what_is_opened_is_shown_by_a_facade_too(portal: Portal) -> None:
    class Shop(Facade):
        copy = opens(Lamp.copy, LampFacade)

    original = Lamp()
    original.lit = True
    copied = Shop(portal, original).copy()
    assert (type(copied), copied.lit) == (LampFacade, True)
    copied.close()
    assert original.lit


def test_help_shows_signature_and_text_of_the_object() -> None:
    assert list(inspect.signature(LampFacade.switch).parameters) == ["self", "on"]
    assert inspect.getdoc(LampFacade.switch) == "Switch it, and tell in which thread that was."
    assert isinstance(LampFacade.lit, Mirrored)


def test_the_thread_does_not_wait_for_itself(portal: Portal) -> None:
    async def call_again() -> int:
        work = asyncio.sleep(0)
        try:
            portal.call(work)
        except errors.InvalidRequestError as error:
            return error.code
        return 0

    assert portal.call(call_again()) == errors.INVALID_ARGUMENT


def test_who_waits_gives_up_in_time_and_the_work_is_cancelled(portal: Portal) -> None:
    nothing: Future[None] = Future()
    with pytest.raises(errors.TimeoutExpiredError):
        portal.wait(nothing, 0.01)
    assert nothing.cancelled()


def test_after_its_end_nobody_waits_for_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("angarium.blocking.portal.LOOK_INTERVAL_S", 0.01)
    portal = Portal()
    portal.stop()
    told: list[Any] = []
    asks: list[Callable[[], None]] = [
        lambda: portal.call(asyncio.sleep(0)),
        lambda: portal.start(told.append, 0),
    ]
    for ask in asks:
        with pytest.raises(errors.ConnectionLostError) as caught:
            ask()
        assert caught.value.code == errors.CLIENT_CLOSED
    portal.post(told.append, 1)
    assert told == []
    with pytest.raises(errors.ConnectionLostError):
        portal.wait(Future(), WAIT_S)


def test_who_waits_when_the_thread_ends_is_told_so() -> None:
    """As one who waits before the next try to open something, when another thread closes the client."""
    portal = Portal()
    begun = threading.Event()

    async def last() -> None:
        begun.set()
        await asyncio.sleep(WAIT_S)

    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(portal.call, last())
        assert begun.wait(WAIT_S)
        portal.stop()
        with pytest.raises(errors.ConnectionLostError, match="60002"):
            waiting.result(WAIT_S)


def test_an_error_of_the_work_is_the_callers(portal: Portal) -> None:
    async def fail() -> None:
        raise KeyError("lamp")

    with pytest.raises(KeyError, match="lamp"):
        portal.call(fail())
