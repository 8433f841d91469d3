"""Which password is compared next: whoever guesses waits, and nobody else does for long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from angarium_server.access import network_of
from cluster.security.passwords import hash_password
from router.access.password_checks import (
    DELAY_MAX_S,
    FAILURE_MEMORY_S,
    FREE_FAILURES,
    PER_NETWORK_MAX,
    PasswordChecks,
    check_of,
)
from tests.share import short
from tests.unit.router.wired_node import snapshot

if TYPE_CHECKING:
    from tests.unit.router.wired_node import WiredNode

pytestmark = pytest.mark.requirement("R280")

BOB = ("default", "bob")
COMPARISON_S = 0.05


class World:
    """The checks, and a thread that takes 50 ms for each."""

    def __init__(self, waiting_max: int = 200, wait_max_s: float = 1_000.0) -> None:
        self.checks = PasswordChecks(waiting_max, wait_max_s, 600, b"k" * 32)
        self.now = 1_000.0
        self.number = 0
        self.refused: list[int] = []

    def try_login(
        self, address: str, username: str = "bob", password: str = "wrong", vpn: str = "default"
    ) -> int:
        """Come with a password; gives its number, 0 if there is no place."""
        self.number += 1
        check = check_of(self.number, address, (vpn, username), password, "stored", self.now)
        try:
            displaced = self.checks.add(check, self.now)
        except errors.RateLimitError:
            return 0
        if displaced is not None:
            self.refused.append(displaced)
        return self.number

    def compare(self) -> int | None:
        """Compare one password, and give whose it was; None if nobody's turn is now."""
        check = self.checks.next(self.now)
        self.checks.validate()
        if check is None:
            return None
        self.now += COMPARISON_S
        self.checks.done(check.number, self.now, correct=check.password == "right")
        return check.number

    def wait_for(self, number: int) -> float:
        """Compare until this one was compared, and give how long that took."""
        began = self.now
        while self.compare() != number:
            self.now = min(max(self.now, self.checks.wake(self.now)), began + 1_000)
            assert self.now < began + 1_000, "never"
        return self.now - began


def test_addresses_count_by_64_bits_of_ipv6() -> None:
    assert network_of("2001:db8:1:2:3:4:5:6") == network_of("2001:db8:1:2::1") == "2001:db8:1:2::/64"
    assert network_of("2001:db8:1:3::1") != network_of("2001:db8:1:2::1")
    assert network_of("::ffff:192.0.2.7") == network_of("192.0.2.7") == "192.0.2.7"
    assert [network_of(text) for text in ("", "localhost:1", "::x")] == ["", "localhost:1", "::x"]


def test_nobody_waits_for_longer_than_his_connection_may() -> None:
    """From the fourth failure on each comparison waits longer; who waits too long is found at `wake`, and once."""
    world = World(wait_max_s=8.0)
    numbers = [world.try_login("192.0.2.7") for _ in range(PER_NETWORK_MAX)]
    compared: list[int] = []
    late: list[int] = []
    while len(compared) + len(late) < len(numbers):
        if (number := world.compare()) is not None:
            compared.append(number)
            continue
        world.now = world.checks.wake(world.now)
        assert world.now <= 1_008.0 + COMPARISON_S, "one of them waits for longer"
        late += world.checks.late(world.now)
    assert compared
    assert late
    assert sorted(compared + late) == numbers
    assert world.checks.wake(world.now) == float("inf")


def test_one_network_has_so_many_places() -> None:
    world = World()
    taken = [world.try_login(f"2001:db8::{number:x}") for number in range(PER_NETWORK_MAX + 4)]
    assert taken.count(0) == 4
    assert world.try_login("2001:db8:0:1::1")


def test_hundreds_of_addresses_that_guess_do_not_keep_others_out() -> None:
    """They have failed once, and come again without end; others are compared at once, or with the third turn."""
    world = World()
    addresses = [f"192.0.2.{number}" for number in range(1, 250)] + [f"198.51.100.{n}" for n in range(50)]
    for address in addresses:
        world.wait_for(world.try_login(address))
    for _ in range(short(5, long=20)):
        for address in addresses:
            world.try_login(address)
        assert world.wait_for(world.try_login("203.0.113.1", "alice", "right")) <= 3 * COMPARISON_S + 1e-9
        assert world.wait_for(world.try_login("203.0.113.2", "bob", "right")) <= 3 * COMPARISON_S + 1e-9


def test_who_fails_again_and_again_waits_longer_each_time() -> None:
    world = World()
    waits = [round(world.wait_for(world.try_login("192.0.2.1")) - COMPARISON_S, 6) for _ in range(12)]
    assert waits[: FREE_FAILURES + 5] == [0, 0, 0, 0, 0.2, 0.4, 0.8, 1.6]
    assert waits[-1] == DELAY_MAX_S
    assert world.wait_for(world.try_login("192.0.2.1", "alice", "right")) < 1.1, (
        "another username, same network"
    )
    assert world.wait_for(world.try_login("192.0.2.2", "bob", "right")) == pytest.approx(COMPARISON_S)
    world.now += FAILURE_MEMORY_S + 1
    world.checks.sweep(world.now)
    assert world.wait_for(world.try_login("192.0.2.1")) == pytest.approx(COMPARISON_S)


def test_those_that_failed_are_not_starved() -> None:
    world = World()
    for _ in range(FREE_FAILURES):
        world.wait_for(world.try_login("192.0.2.1"))
    suspect = world.try_login("192.0.2.1")
    done: list[int | None] = []
    while suspect not in done:
        world.try_login(f"203.0.113.{len(done)}", f"user-{len(done)}", "right")
        done.append(world.compare())
    assert len(done) <= 7


def test_those_that_failed_have_fewer_places_and_give_way() -> None:
    world = World(waiting_max=20)
    early = [world.try_login(f"192.0.2.{number}", "eve") for number in range(20)]
    assert all(early), "nobody has failed yet"
    assert world.try_login("203.0.113.1", "eve") == 0, "and nobody gives way to another one like it"
    world.compare()
    assert world.try_login("192.0.2.99", "eve") == 0, "its username has failed, and has its three quarters"
    twice = world.try_login("192.0.2.0", "eve")
    assert world.try_login("203.0.113.1", "alice")
    assert world.try_login("203.0.113.2", "carol")
    assert world.refused == [twice, early[-1]], "who failed more gives way first"
    assert world.try_login("192.0.2.0", "eve") == 0


def test_a_network_with_many_waiting_gives_way_to_one_with_fewer() -> None:
    """Before anybody has failed, many guesses from many addresses would keep everybody else out."""
    world = World(waiting_max=20)
    crowd = [world.try_login(f"192.0.2.{number % 4}", "eve") for number in range(20)]
    assert all(crowd)
    first = world.try_login("203.0.113.1", "alice")
    assert first
    assert world.refused == [crowd[-1]]
    assert world.try_login("192.0.2.0", "eve") == 0, "it has more than anybody else"
    assert world.try_login("203.0.113.1", "alice")


def test_a_username_and_a_message_vpn_with_more_than_their_share_give_way() -> None:
    """From so many addresses that none has more than one of them waiting."""
    world = World(waiting_max=20)
    crowd = [world.try_login(f"192.0.2.{number}", "eve") for number in range(20)]
    assert all(crowd)
    assert world.try_login("203.0.113.1", "alice")
    assert world.refused == [crowd[-1]]
    assert world.try_login("203.0.113.2", "eve") == 0
    for number in range(17):
        assert world.try_login(f"203.0.113.{10 + number}", f"user-{number}")
    assert world.try_login("203.0.113.99", "late") == 0, "eve has her share, and nobody has more"
    assert world.try_login("203.0.113.99", "late", vpn="other"), "all are of one Message VPN"


def test_a_right_password_is_known_for_a_while_and_only_with_its_hash() -> None:
    world = World()
    world.wait_for(world.try_login("192.0.2.1", "bob", "right"))
    assert world.checks.is_known("stored", "right", world.now + 599)
    assert not world.checks.is_known("stored", "wrong", world.now)
    assert not world.checks.is_known("changed", "right", world.now)
    assert not world.checks.is_known("stored", "right", world.now + 601)
    world.wait_for(world.try_login("192.0.2.1", "bob", "wrong"))
    assert not world.checks.is_known("stored", "wrong", world.now)
    assert not any(b"right" in digest for digest in world.checks._known)


@pytest.fixture
def node(make_node: Any) -> WiredNode:
    made: WiredNode = make_node(
        1, snapshot(("username", "default", "bob", {"password": hash_password("right")}))
    )
    return made


def test_a_login_that_was_right_of_late_needs_no_comparison(
    node: WiredNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert node.client(username="bob", password="right")
    monkeypatch.setattr("tests.unit.router.wired_node.password_matches", lambda *_: False)
    assert node.client(username="bob", password="right", address="2001:db8::1")
    guess = node.connection()
    guess.send(wire.HELLO, {"version": 1, "username": "bob", "password": "Right"})
    assert guess.closed_with() == errors.UNAUTHORIZED


def test_a_guess_that_waits_is_compared_when_its_time_has_come(node: WiredNode) -> None:
    for _ in range(FREE_FAILURES + 1):
        guess = node.connection("192.0.2.1")
        guess.send(wire.HELLO, {"version": 1, "username": "bob", "password": "wrong"})
        assert guess.closed_with() == errors.UNAUTHORIZED
    late = node.connection("192.0.2.1")
    late.send(wire.HELLO, {"version": 1, "username": "bob", "password": "right"})
    assert late.closed_with() is None
    assert not late.received
    assert node.router.stats()["logins_waiting"] == 1
    assert node.client(username="bob", password="right", address="203.0.113.1")
    node.advance(0.3)
    assert late.take()[0] == wire.WELCOME
    assert node.router.stats()["logins_waiting"] == 0
