"""Questions to the controller: few at a time, Message VPNs, usernames and sessions in turn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from angarium import errors
from router.asking import asks as asking
from router.asking.asks import AT_CONTROLLER_MAX, WAIT_S, Asks
from router.ground.effects import AskController
from router.ground.ground import Outbox

pytestmark = pytest.mark.requirement("R280")


class World:
    """The questions, and a controller that answers when it is told to."""

    def __init__(self) -> None:
        self.outbox = Outbox()
        self.asks = Asks(self.outbox)
        self.now = 100.0
        self.asks.tick(self.now)
        self.there: list[AskController] = []
        #: What became of each, in the order of the answers.
        self.answers: list[tuple[str, Any]] = []

    def ask(self, name: str, username: str = "", session: int = 0, vpn: str = "default") -> None:
        who: Any = SimpleNamespace(vpn=SimpleNamespace(name=vpn), username=username, number=session)
        self.asks.ask(
            name,
            {},
            lambda ok, value, _: self.answers.append((name, None if ok else value[0])),
            who if username else None,
        )
        self.look()

    def look(self) -> None:
        self.there += [effect for effect in self.outbox.take() if isinstance(effect, AskController)]
        self.asks.validate()

    def fill(self) -> None:
        """Give the controller all that it takes at once."""
        for _ in range(AT_CONTROLLER_MAX):
            self.ask("before", "greedy", 99)

    def order(self) -> list[str]:
        """Answer everything, one after the other, and give the order in which the others came."""
        while self.there:
            self.asks.answered(self.there.pop(0).ticket, True, None, self.now)
            self.look()
        return [name for name, _ in self.answers if name != "before"]


def test_message_vpns_take_turns_and_so_do_the_usernames_of_each_and_their_sessions() -> None:
    world = World()
    world.fill()
    for name in "abcd":
        world.ask(name, "alice", 1)
    for name in "ef":
        world.ask(name, "alice", 2)
    world.ask("x", "bob", 3)
    world.ask("y", "alice", 4, vpn="other")
    world.ask("z")
    assert world.order() == list("ayzxebfcd")
    assert len(world.asks) == 0


def test_few_questions_are_with_the_controller_so_an_operator_waits_for_few() -> None:
    world = World()
    for number in range(1_000):
        world.ask(f"{number}", "greedy", number % 10)
    assert len(world.there) == AT_CONTROLLER_MAX <= 16
    world.ask("of-bob", "bob", 11)
    assert world.order().index("of-bob") <= AT_CONTROLLER_MAX + 1


def test_too_many_of_one_username_are_refused_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "PER_USERNAME_MAX", 20)
    world = World()
    world.fill()
    for number in range(25):
        world.ask("many", "greedy", number)
    assert world.answers == [("many", errors.CONTROL_RATE_EXCEEDED)] * 5
    world.ask("of-bob", "bob", 77)
    assert world.answers[5:] == []
    assert world.order()[5] == "many"
    assert world.order()[6] == "of-bob"


def test_a_message_vpn_of_many_usernames_has_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "PER_VPN_MAX", 20)
    world = World()
    world.fill()
    for number in range(25):
        world.ask("many", f"guest-{number}", number)
    assert world.answers == [("many", errors.CONTROL_RATE_EXCEEDED)] * 5
    world.ask("of-bob", "bob", 77, vpn="other")
    assert world.order()[5:7] == ["many", "of-bob"], "it waits for one of that Message VPN, not for twenty"


def test_what_waits_for_too_long_is_told_that_the_controller_is_away() -> None:
    world = World()
    world.fill()
    world.ask("early", "alice", 1)
    world.asks.tick(world.now + WAIT_S)
    world.ask("late", "alice", 1)
    assert world.answers == []
    world.asks.tick(world.now + WAIT_S + 1)
    world.look()
    assert world.answers == [("early", errors.CONTROLLER_UNAVAILABLE)]
    world.now += WAIT_S + 1
    assert world.order() == ["early", "late"]


def test_an_answer_may_lead_to_the_next_question() -> None:
    world = World()
    world.fill()
    for number in range(3):
        world.asks.ask("again", {}, lambda *_, n=number: world.ask(f"then-{n}"))
    assert world.order() == ["then-0", "then-1", "then-2"]
