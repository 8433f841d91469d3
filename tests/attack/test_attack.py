"""A short share of `scripts/attack`: nobody dies and nothing is lost beside a client that does its worst."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from angarium import errors
from tests.attack import attack_campaign as campaign
from tests.attack import attackers
from tests.attack.innocent import Noticed

#: What a test has time for; scripts/attack takes minutes.
ATTACK_S, QUIET_S = 2.0, 1.0
#: A machine that others use delays everybody; how much is for scripts/attack to say.
P99_RATIO = 30.0
SHARE = ("filters", "selectors", "memory", "mqtt")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "QUIET_S", QUIET_S)
    monkeypatch.setattr(campaign, "P99_RATIO", P99_RATIO)
    # Memory is given back in a minute, which is too long here.
    monkeypatch.setattr(campaign, "MEMORY_S", 0.0)
    monkeypatch.setattr(campaign, "IN_USE_RATIO", 10.0)
    monkeypatch.setattr(campaign, "RESIDENT_RATIO", 10.0)


@pytest.mark.long  # each attack has a test of its own in integration
@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.requirement("R278", "R279", "R280")
@pytest.mark.parametrize("kind", SHARE)
def test_an_attack_kills_nobody_and_costs_others_nothing(kind: str, tmp_path: Path) -> None:
    seen = campaign.Round(tmp_path, kind, random.Random(kind).randrange(1 << 30), ATTACK_S).run()
    assert "wrong" not in seen, seen
    assert seen["said"]["turns"] > 0, "nothing was attacked"


QUIET = Noticed(100, 0, 0, 0, 1.0, 20.0, 30.0)


@pytest.mark.parametrize(
    ("during", "count"),
    [
        (QUIET, 0),
        (QUIET._replace(p99_ms=59.9), 0),
        (QUIET._replace(p99_ms=60.1), 1),
        (QUIET._replace(lost=1), 1),
        (QUIET._replace(refused=1), 1),
        (QUIET._replace(reconnects=1), 1),
        (QUIET._replace(reconnects=1, p99_ms=60.1), 2),
    ],
)
def test_what_the_innocent_noticed_is_judged(during: Noticed, count: int, tmp_path: Path) -> None:
    judge = campaign.Round(tmp_path, "filters", 0, 0.0)
    assert len(judge._harm(QUIET, during, QUIET)) == count


def test_memory_that_is_not_given_back_is_judged() -> None:
    before = campaign.Memory(100, 1_000)
    assert campaign.Memory(110, 1_100).too_much(before) == []
    assert campaign.Memory(111, 1_000).too_much(before) == ["1.11 of the memory in use is left 60 s later"]
    assert campaign.Memory(90, 1_110).too_much(before) == ["1.11 of the resident memory is left 60 s later"]


class Listing:
    """An admin API that lists two queues of the attacker, of which one goes before it can be deleted."""

    def __init__(self) -> None:
        self.deleted: list[str] = []

    def call(self, operation: str, **arguments: str) -> Any:
        if operation == "objects.list":
            names = ["gone", "here"] if arguments["kind"] == "queue" else []
            return [{"name": name, "owner": attackers.ATTACKER} for name in names]
        if arguments["name"] == "gone":
            raise errors.error_for(errors.OBJECT_NOT_FOUND, "gone")
        self.deleted.append(arguments["name"])
        return None


def test_a_queue_that_goes_by_itself_does_not_end_the_campaign() -> None:
    listing = Listing()
    assert campaign._delete_endpoints(listing) == 2  # type: ignore[arg-type]
    assert listing.deleted == ["here"]


def test_who_has_no_room_may_be_refused_on_a_full_disk(tmp_path: Path) -> None:
    judge = campaign.Round(tmp_path, "disks", 0, 0.0)
    assert judge._harm(QUIET, QUIET._replace(refused=5), QUIET) == []


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="sessions have no share of their own")
def test_an_attacker_takes_of_the_cpus_what_the_node_leaves() -> None:
    """Each process of a node is a session of its own, and `nice` alone only says who comes first within one."""
    tell = "import os; print(os.nice(0), os.getsid(0) == os.getpid())"
    done = subprocess.run(
        [*campaign._POLITELY, sys.executable, "-c", tell + "; print(open('/proc/self/autogroup').read())"],
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,
    )
    niceness, leads, *autogroup = done.stdout.split()
    assert (niceness, leads) == (str(os.nice(0) + 10), "True")
    assert autogroup[-2:] == ["nice", "10"]


def test_a_kind_that_is_not_known_is_misuse() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.attack.attack_campaign", "--kinds", "spells"],
        capture_output=True,
        text=True,
        check=False,
        cwd=campaign.ROOT,
    )
    assert done.returncode == 2
    assert all(kind in done.stderr for kind in attackers.KINDS)
