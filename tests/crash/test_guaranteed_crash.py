"""A short campaign against a real node under guaranteed load; `scripts/crash` runs longer ones.

Every line that was acknowledged is in both queues, in the drained one once and in order, whatever died, hung or
failed meanwhile.
"""

from __future__ import annotations

import os

import pytest

from tests.crash.accounts import Account
from tests.crash.campaign import campaign
from tests.share import short

pytestmark = pytest.mark.slow

#: Of each campaign; the publisher needs lines / rate = 8 s, and what was broken has to come back.
LINES, RATE = short((400, 50), long=(16_000, 2_000))
SEED = int(os.environ.get("ANGARIUM_CRASH_SEED", "1"))


@pytest.mark.requirement("R163", "R164", "R190", "R96")
@pytest.mark.timeout(240)
def test_kills_lose_and_double_nothing_that_was_acknowledged() -> None:
    verdict = campaign(["kill"], minutes=0.0, seed=SEED, lines=LINES, rate=RATE, faults_min=5)
    assert verdict["broken"] == []
    assert verdict["acknowledged"] == LINES
    assert sum(verdict["faults"].values()) >= 3


@pytest.mark.long  # test_worker_crash.py hangs one; disks: integration/test_full_disk.py, test_home_process.py
@pytest.mark.timeout(240)
def test_hangs_full_disks_and_failing_syncs_lose_and_double_nothing() -> None:
    """What cannot be done here (no right to mount, no strace) is skipped by the campaign and said in its verdict."""
    kinds = ["stop", "enospc", "eio"]
    verdict = campaign(kinds, minutes=0.0, seed=SEED, lines=LINES, rate=RATE, faults_min=5)
    assert verdict["broken"] == []
    assert verdict["acknowledged"] + verdict["refused"] == LINES
    assert sum(verdict["faults"].values()) >= 2


def account_of(*lines: tuple[int, bool], redelivers: bool = False) -> Account:
    account = Account("q", redelivers=redelivers)
    for line, redelivered in lines:
        account.take(line, redelivered=redelivered)
    return account


def test_the_account_finds_what_is_lost_doubled_unexpected_and_late() -> None:
    account = account_of((0, False), (2, False), (1, False), (2, False), (9, False))
    assert account.judge(5, {0, 1, 2, 3}) == {
        "lost": [3],
        "duplicated": [2],
        "unexpected": [9],
        "out_of_order": [1],
    }


def test_a_repetition_is_fine_where_consumers_live_through_faults_and_if_it_says_so() -> None:
    assert account_of((0, False), (0, True), redelivers=True).judge(1, {0}) == {}
    assert account_of((0, False), (0, False), redelivers=True).judge(1, {0}) == {"duplicated": [0]}
    assert account_of((0, False), (0, True)).judge(1, {0}) == {"duplicated": [0]}


def test_the_account_finds_what_was_refused_and_is_there() -> None:
    assert account_of((0, False), (2, False)).judge(3, {0}, frozenset({1, 2})) == {"refused": [2]}
