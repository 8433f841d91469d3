"""Two hosts with an outside store between them: one acts at a time, whoever is killed, stopped or cut off."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec
import pytest

from cluster.configuration.standby import StandbySection
from cluster.standby.pair.member import DRIFT
from cluster.standby.pair.outside import Standing
from cluster.standby.stores import clock
from cluster.standby.stores.manual import PROMOTION_EPOCHS, note, promote
from cluster.standby.stores.opening import MANUAL_FILE
from tests.integration.etcd_servers import Etcd, needs_etcd
from tests.integration.keeper_host import HostConfig
from tests.integration.lease_server import LeaseServer
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

pytestmark = [pytest.mark.requirement("R270"), pytest.mark.slow]

ROOT: Final = Path(__file__).resolve().parents[2]
#: The lease of the pairs here.
LEASE: Final = 2
#: Between the look at the clock and the line that says so.
WRITTEN_S: Final = 0.005
END_S: Final = 20.0


class HostProcess:
    """A host, and what it wrote."""

    def __init__(self, config: HostConfig, folder: Path) -> None:
        self.config = config
        self._file = folder / f"{config.host}.json"
        self._file.write_bytes(msgspec.json.encode(config))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.integration.keeper_host", str(self._file)]
        self._process = subprocess.Popen(command, cwd=ROOT)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(END_S)
            self._process = None

    def lines(self, what: str = "") -> list[list[Any]]:
        """Give what it wrote, whole lines only."""
        path = Path(self.config.log)
        written = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return [line for line in map(msgspec.json.decode, written) if what in ("", line[0])]

    def acts(self) -> list[float]:
        return [line[1] for line in self.lines("act")]

    def wait(self, what: str, holds: Callable[[list[Any]], bool] = bool, since: float = 0.0) -> list[Any]:
        """Wait for a line that it writes after a moment."""

        def found() -> list[list[Any]]:
            return [line for line in self.lines(what) if line[1] > since and holds(line)]

        return wait_for(
            found, bool, f"{what} of host {self.config.host}", more=lambda: str(self.lines()[-5:])
        )[0]


class Pair:
    """Two hosts; use it as a context manager."""

    def __init__(self, section: StandbySection, folder: Path) -> None:
        node_id = uuid.uuid4().hex
        self.hang = folder / "hang"
        self.a, self.b = (
            HostProcess(
                HostConfig(
                    host=host,
                    other=other,
                    section=section,
                    node_id=node_id,
                    data=str(folder / host),
                    log=str(folder / f"{host}.log"),
                    may_found=host == "a",
                    hang=str(self.hang) if host == "a" else "",
                ),
                folder,
            )
            for host, other in (("a", "b"), ("b", "a"))
        )
        for host in (self.a, self.b):
            Path(host.config.data).mkdir()

    def __enter__(self) -> Self:
        """Have host a as the primary, which acts, and both in the in-sync set."""
        self.a.start()
        self.b.start()
        self.a.wait("act")
        self.b.wait("seen", lambda line: line[3] == ["a", "b"])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for host in (self.a, self.b):
            host.kill()

    def expect_one_at_a_time(self) -> None:
        """Whoever acts is the one that began last, of both."""
        begins = sorted(
            (line[1], name) for name, host in (("a", self.a), ("b", self.b)) for line in host.lines("Begin")
        )
        for name, host in (("a", self.a), ("b", self.b)):
            times = host.acts()
            assert times, f"host {name} never acted"
            wrong = [time for time in times if name not in _primaries(begins, time)]
            assert wrong == [], (name, begins)


def _primaries(begins: list[tuple[float, str]], time: float) -> set[str]:
    """Give who may act at a time: who began last, or just then."""
    before = [name for begun, name in begins if begun <= time - WRITTEN_S]
    return {*before[-1:], *(name for begun, name in begins if abs(begun - time) < WRITTEN_S)}


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    needs_etcd()
    with Etcd(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd


@pytest.fixture
def pair(etcd: Etcd, tmp_path: Path) -> Iterator[Pair]:
    with Pair(of_etcd(etcd), tmp_path) as pair:
        yield pair


def of_etcd(etcd: Etcd) -> StandbySection:
    return StandbySection(store="etcd", endpoints=etcd.urls, lease_seconds=LEASE)


@pytest.mark.long  # tests/failover/test_failover.py kills real ones, which come back
def test_a_host_that_is_killed_is_taken_over_from_and_comes_back_as_the_standby(pair: Pair) -> None:
    pair.a.kill()
    killed = clock.now()
    begun = pair.b.wait("Begin", since=killed)
    pair.b.wait("act", since=begun[1])
    pair.a.start()
    pair.b.wait("seen", lambda line: line[3] == ["a", "b"], since=begun[1])
    restarted = pair.a.wait("start", since=killed)
    seen = pair.a.wait("seen", lambda line: line[3] == ["a", "b"], since=restarted[1])
    pair.b.kill()
    pair.a.wait("act", since=seen[1])
    pair.expect_one_at_a_time()


@pytest.mark.long
def test_a_lease_of_kubernetes_is_taken_over_as_well(tmp_path: Path) -> None:
    with LeaseServer() as server:
        section = StandbySection(
            store="kubernetes", endpoints=[server.url], namespace="n", lease_seconds=LEASE
        )
        with Pair(section, tmp_path) as pair:
            pair.a.kill()
            begun = pair.b.wait("Begin", since=clock.now())
            pair.b.wait("act", since=begun[1])
            pair.expect_one_at_a_time()


@pytest.mark.long
def test_the_operator_decides_and_nothing_fails_over_by_itself(tmp_path: Path) -> None:
    files = [tmp_path / host / MANUAL_FILE for host in ("a", "b")]
    pair = Pair(StandbySection(store="manual", lease_seconds=LEASE), tmp_path)
    promote(files[0], "a")
    try:
        pair.a.start()
        pair.b.start()
        pair.a.wait("act")
        # What a primary tells its standby; here nobody else does.
        note(files[1], Standing(1, "a", frozenset("ab")))
        pair.b.wait("seen", lambda line: line[3] == ["a", "b"])
        pair.a.kill()
        killed = clock.now()
        wait_for(clock.now, lambda now: now > killed + 1.5 * LEASE, "a lease and more passes")
        assert pair.b.lines("Begin") == []
        promote(files[1], "b")
        begun = pair.b.wait("Begin", since=killed)
        assert begun[2] == 1 + PROMOTION_EPOCHS + 1
        pair.b.wait("act", since=begun[1])
    finally:
        pair.a.kill()
        pair.b.kill()


def test_a_host_that_was_stopped_does_not_act_when_it_goes_on(pair: Pair) -> None:
    """It wakes with an answer to its last renewal in its hands, and another host is the primary for long."""
    pair.a.signal(signal.SIGSTOP)
    stopped = clock.now()
    begun = pair.b.wait("Begin", since=stopped)
    pair.b.wait("act", since=begun[1])
    pair.a.signal(signal.SIGCONT)
    ended = pair.a.wait("End", since=begun[1])
    # One act may have been decided upon before it was stopped: that one is what epochs are for.
    assert len([time for time in pair.a.acts() if begun[1] < time < ended[1]]) <= 1


def test_without_the_outside_store_it_acts_until_its_lease_ends_and_no_longer(
    etcd: Etcd, tmp_path: Path
) -> None:
    with Pair(of_etcd(etcd), tmp_path) as pair:
        etcd.members[0].signal(signal.SIGSTOP)
        try:
            cut = clock.now()
            wait_for(clock.now, lambda now: now > cut + 1.5 * LEASE, "a lease and more passes")
            last = pair.a.acts()[-1]
            usable_s = LEASE * (1 - DRIFT)
            assert cut < last <= max(line[2] for line in pair.a.lines("ActUntil")) + WRITTEN_S
            assert last < cut + usable_s + WRITTEN_S
            assert pair.b.acts() == []
        finally:
            etcd.members[0].signal(signal.SIGCONT)
        pair.a.wait("End", since=cut)

        def begun() -> list[float]:
            return [line[1] for host in (pair.a, pair.b) for line in host.lines("Begin") if line[1] > cut]

        again = wait_for(begun, bool, "one begins again")[0]
        wait_for(lambda: max(pair.a.acts() + pair.b.acts()), lambda last: last > again, "one acts again")


def test_a_disk_that_hangs_makes_room_for_the_other_host(pair: Pair) -> None:
    pair.hang.touch()
    hung = clock.now()
    begun = pair.b.wait("Begin", since=hung)
    pair.b.wait("act", since=begun[1])
    assert pair.a.acts()[-1] < begun[1]
    pair.expect_one_at_a_time()
