"""Tokens that wait to be looked at: a crowd finds room, and who guesses is behind it."""

from __future__ import annotations

import pytest

from angarium import errors
from router.access.password_checks import Check
from router.access.token_checks import FAILED_PAUSE_S, NETWORK_BYTES_MAX, WAITING_BYTES_MAX, TokenChecks
from tests.share import short

WAIT_S = 8.0
TOKEN = "x" * 1_000


class Line:
    """Tokens that wait, and their numbers."""

    def __init__(self) -> None:
        self.checks = TokenChecks(WAIT_S)
        self.number = 0

    def add(self, network: str, *, now: float = 0.0, has_failed: bool = False, token: str = TOKEN) -> int:
        self.number += 1
        check = Check(self.number, network, ("default", "alice"), token, "", now)
        self.checks.add(check, has_failed=has_failed)
        self.checks.validate()
        return self.number

    def fill(self, network: str, token: str = TOKEN) -> int:
        """Add tokens until no more are taken, and give how many were."""
        for count in range(100_000):
            try:
                self.add(network, token=token)
            except errors.RateLimitError:
                return count
        raise AssertionError("there is no limit")

    def take(self, now: float = 0.0) -> int | None:
        check = self.checks.next(now)
        if check is None:
            return None
        assert self.checks.next(now + 1.0) is None, "one at a time"
        self.checks.done()
        self.checks.validate()
        return check.number


@pytest.mark.requirement("R224", "R230")
def test_a_crowd_of_one_address_waits_and_comes_in_its_order() -> None:
    line = Line()
    crowd = [line.add("10.0.0.1") for _ in range(short(500, long=3_000))]
    assert [line.take() for _ in crowd] == crowd
    assert line.take() is None


@pytest.mark.requirement("R228")
def test_what_waits_is_bounded_in_bytes_with_a_share_for_a_network() -> None:
    line = Line()
    large = "x" * 16_000
    assert line.fill("10.0.0.1", large) * len(large) < NETWORK_BYTES_MAX
    line.fill("10.0.0.2", large)
    kept = line.fill("10.0.0.3", large)
    assert line.number * len(large) < WAITING_BYTES_MAX
    assert line.take() == 1
    line.add("10.0.0.3", token=large)
    assert kept < 10


def test_networks_that_failed_have_one_turn_in_a_while() -> None:
    line = Line()
    failed = [line.add("10.6.6.6", has_failed=True) for _ in range(3)]
    others = [line.add("10.0.0.1") for _ in range(4)]
    assert [line.take(1.0) for _ in range(3)] == [failed[0], *others[:2]]
    later = 1.0 + FAILED_PAUSE_S
    assert line.checks.wake() == later
    assert [line.take(later) for _ in range(4)] == [failed[1], *others[2:], None]
    assert line.take(line.checks.wake()) == failed[2]
    assert line.checks.wake() == float("inf")


def test_who_waits_too_long_is_told_so() -> None:
    line = Line()
    line.add("10.0.0.1", now=1.0, has_failed=True)
    line.add("10.0.0.1", now=2.0)
    assert line.take(1.0) == 1
    line.add("10.0.0.1", now=1.0, has_failed=True)
    assert line.checks.wake() == 1.0 + FAILED_PAUSE_S
    assert line.checks.late(1.0 + WAIT_S) == [3]
    line.checks.validate()
    assert line.checks.late(2.0 + WAIT_S) == [2]
    assert line.checks.wake() == float("inf")
    assert line.take() is None
