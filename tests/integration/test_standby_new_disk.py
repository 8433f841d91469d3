"""A host of a pair whose disk was replaced has nothing, whatever the outside store knows of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from typing import TYPE_CHECKING, Final

import pytest

from cluster.standby.noted import NEW_FILE
from cluster.standby.promotion import FORCE_FILE
from cluster.standby.stores.lease_words import ANNOTATION
from cluster.standby.stores.written import read_standing
from storage.groups import PATCH_BYTES_MAX
from storage.spool import DATA_FILE
from tests.integration.lease_server import LeaseServer
from tests.integration.manual_pair import LIMIT_S, acts_with, pair_of
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

BOTH: Final = ["alpha", "beta"]


def in_sync(server: LeaseServer) -> list[str]:
    """Give who is in the in-sync set, as the outside store has it."""
    (lease,) = server.leases.values()
    return read_standing(lease["metadata"]["annotations"][ANNOTATION]).in_sync


@pytest.mark.long
@pytest.mark.requirement("R264")
@pytest.mark.timeout(400)
def test_a_host_with_a_new_disk_takes_nothing_over_from_one_that_has_everything(tmp_path: Path) -> None:
    with LeaseServer() as server:
        store = f'store = "kubernetes"\nendpoints = ["{server.url}"]\nnamespace = "n"'
        with pair_of(tmp_path, store) as (alpha, beta):
            alpha.up()
            alpha.wait(acts_with(["alpha"]), "the first primary")
            beta.up()
            alpha.wait(acts_with(BOTH), "the primary, with its standby")
            alpha.run("queue", "create", "q")
            alpha.run("pub", "q", "kept", "--queue")
            alpha.kill()
            beta.kill()
            shutil.rmtree(beta.data)
            beta.up()
            beta.wait_log("its data directory was empty")
            assert beta.status()["role"] == "standby"
            beta.wait(lambda status: bool(status["fault"]), "what keeps it from taking over")
            assert "data directory was empty" in beta.run("standby", "promote", is_done=False)
            alpha.up()
            wait_for(
                (beta.data / NEW_FILE).exists,
                lambda there: not there,
                "beta having everything again",
                LIMIT_S,
            )
            alpha.wait(acts_with(BOTH), "the primary, with a copy at its standby")
            alpha.kill()
            beta.wait(acts_with(["beta"]), "the standby, which has everything by now")
            beta.wait_ready()
            assert "kept" in beta.run("consume", "q", "--count", "1")


@pytest.mark.slow
@pytest.mark.requirement("R264")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_a_host_with_a_damaged_spool_takes_nothing_over_from_one_that_has_everything(
    tmp_path: Path, how: str
) -> None:
    """Both were off, and it is back first: its worker would not start, and the other host would be let go."""
    with LeaseServer() as server:
        store = f'store = "kubernetes"\nendpoints = ["{server.url}"]\nnamespace = "n"'
        with pair_of(tmp_path, store) as (alpha, beta):
            alpha.up()
            alpha.wait(acts_with(["alpha"]), "the first primary")
            beta.up()
            alpha.wait(acts_with(BOTH), "the primary, with its standby")
            alpha.run("queue", "create", "q")
            alpha.run("pub", "q", "kept", "--queue")
            alpha.kill()
            beta.kill()
            spool = beta.data / "spool" / "0" / DATA_FILE
            if how == "damaged":
                spool.write_bytes(b"?" * spool.stat().st_size)
            else:
                shutil.rmtree(spool.parent)
            beta.up()
            beta.wait(lambda status: "damaged" in status["fault"], "what keeps it from taking over")
            alpha.up()
            wait_for(
                (beta.data / NEW_FILE).exists,
                lambda there: not there,
                "a store that is brought anew",
                LIMIT_S,
            )
            alpha.wait(acts_with(BOTH), "the primary, with everything at its standby")
            alpha.kill()
            beta.wait(acts_with(["beta"]), "the standby, which has everything by now")
            beta.wait_ready()
            assert "kept" in beta.run("consume", "q", "--count", "1", "--idle-timeout", "10")


@pytest.mark.long
@pytest.mark.requirement("R264")
@pytest.mark.timeout(300)
def test_a_primary_with_a_damaged_spool_hands_over_and_gets_a_copy(tmp_path: Path) -> None:
    with LeaseServer() as server:
        store = f'store = "kubernetes"\nendpoints = ["{server.url}"]\nnamespace = "n"'
        with pair_of(tmp_path, store) as (alpha, beta):
            alpha.up()
            alpha.wait(acts_with(["alpha"]), "the first primary")
            beta.up()
            alpha.wait(acts_with(BOTH), "the primary, with its standby")
            alpha.run("queue", "create", "q")
            alpha.run("pub", "q", "kept", "--queue")
            rows = json.loads(alpha.run("status", "--json"))["processes"]
            os.kill(next(row["pid"] for row in rows if row["role"] == "worker"), signal.SIGKILL)
            spool = alpha.data / "spool" / "0" / DATA_FILE
            with spool.open("r+b") as file:
                file.write(b"?" * spool.stat().st_size)
            alpha.wait_log("Spool Damaged")
            alpha.run("standby", "switch")
            beta.wait(acts_with(BOTH), "the other host, with this one as its standby")
            assert "kept" in beta.run("consume", "q", "--count", "1", "--idle-timeout", "10")


@pytest.mark.long
@pytest.mark.requirement("R267")
@pytest.mark.timeout(400)
def test_a_standby_with_a_new_disk_gets_a_copy_also_if_nothing_is_acknowledged_without_it(
    tmp_path: Path,
) -> None:
    with LeaseServer() as server:
        store = f'store = "kubernetes"\nendpoints = ["{server.url}"]\nnamespace = "n"\nrequired = true'
        with pair_of(tmp_path, store) as (alpha, beta):
            alpha.up()
            alpha.wait(acts_with(["alpha"]), "the first primary")
            beta.up()
            alpha.wait(acts_with(BOTH), "the primary, with its standby")
            alpha.run("queue", "create", "q")
            (tmp_path / "large").write_bytes(bytes(1_000_000))
            count = str(PATCH_BYTES_MAX // 1_000_000 + 2)
            alpha.run("pub", "q", "--file", str(tmp_path / "large"), "--queue", "--count", count)
            beta.kill()
            shutil.rmtree(beta.data)
            beta.up()
            alpha.wait_log("the standby lacks much")
            # What the primary says of itself is a moment old, and the standby is put out of the set in that.
            wait_for(
                lambda: in_sync(server), lambda found: found == BOTH, "the standby with its copy", LIMIT_S
            )
            alpha.run("pub", "q", "kept", "--queue")
            alpha.kill()
            beta.wait(acts_with(["beta"]), "the standby, which has everything by now")


@pytest.mark.slow
@pytest.mark.requirement("R269")
@pytest.mark.timeout(300)
def test_a_host_that_was_promoted_by_force_takes_over_also_if_it_is_started_again_before(
    tmp_path: Path,
) -> None:
    """Nobody has the lease, and the outside store, which could say so, is away."""
    with LeaseServer() as server:
        store = f'store = "kubernetes"\nendpoints = ["{server.url}"]\nnamespace = "n"'
        with pair_of(tmp_path, store) as (alpha, beta):
            alpha.up()
            alpha.wait(acts_with(["alpha"]), "the first primary")
            alpha.kill()
            with server.silence():
                beta.up()
                beta.wait(lambda status: bool(status["failure"]), "an outside store that is away")
                beta.run("standby", "promote", "--force")
                beta.wait(lambda status: bool(status["forced"]), "what the operator said")
                assert "takes over by force" in beta.run("standby", "status")
                beta.kill()
                beta.up()
                beta.wait(lambda status: bool(status["forced"]), "what the operator said before")
            beta.wait(acts_with(["beta"]), "the host that was promoted")
            wait_for((beta.data / FORCE_FILE).exists, lambda there: not there, "that it was done", LIMIT_S)


@pytest.mark.slow
@pytest.mark.requirement("R264")
@pytest.mark.timeout(300)
def test_what_a_host_kept_while_it_was_none_of_a_pair_is_brought_to_its_standby(tmp_path: Path) -> None:
    """Its section was taken out for a while, as one does when the other host is broken."""
    with LeaseServer() as server:
        store = f'store = "kubernetes"\nendpoints = ["{server.url}"]\nnamespace = "n"'
        with pair_of(tmp_path, store) as (alpha, beta):
            alpha.up()
            alpha.wait(acts_with(["alpha"]), "the first primary")
            beta.up()
            alpha.wait(acts_with(BOTH), "the primary, with its standby")
            assert "promote --force" not in alpha.log(), "it began with nothing, and has everything"
            alpha.run("queue", "create", "q")
            beta.kill()
            alpha.wait(acts_with(["alpha"]), "the primary alone")
            alpha.kill()
            with alpha.without_section():
                alpha.run("up", "--detach", *alpha.where)
                alpha.run("pub", "q", "meanwhile", "--queue")
                alpha.run("down")
            alpha.up()
            alpha.wait(acts_with(["alpha"]), "the primary again")
            beta.up()
            wait_for(lambda: in_sync(server), lambda found: found == BOTH, "the standby again", LIMIT_S)
            alpha.kill()
            beta.wait(acts_with(["beta"]), "the standby, which has everything")
            beta.wait_ready()
            assert "meanwhile" in beta.run("consume", "q", "--count", "1", "--idle-timeout", "10")
