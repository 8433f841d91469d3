"""Runs a pair of hosts under load and makes trouble for some minutes, then judges: the program behind scripts/failover.

Each round has two hosts, an etcd of three members, and clients that send and take all the time. Trouble comes in a
random order from a seed. At the end of a round everything is healed: both hosts have to be in sync again and to have
the same on their disks; then both are started once more, and what was acknowledged has to be there.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from angarium_server import launch
from tests.failover import cables, compare, etcd, pair
from tests.failover.cables import HOSTS, OUTSIDE, Cables
from tests.failover.disks import Disk
from tests.failover.etcd import Etcd
from tests.failover.pair import Host
from tests.failover.troubles import Troubles, World, in_sync
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.failover.lines import Lines
    from tests.failover.troubles import Done

LEASE_S: Final = 6
MEMBERS: Final = 3
ROUND_MINUTES: Final = 5.0
#: Between two troubles, in leases; sometimes it is waited until both hosts are in sync.
PAUSE: Final = (0.05, 2.0)
SYNC_SHARE: Final = 0.4
#: Longer than any outage on a busy machine.
PATIENCE_S: Final = 120.0
#: A host that ended is started again after so long.
RESTART_S: Final = 1.0
LOOK_S: Final = 0.1
OUTPUT_CHARACTERS: Final = 6_000
#: What makes a clock wrong, compiled, and what tells it by how much.
CLOCK: Final = "clock.so"
CLOCK_VARIABLE: Final = "ANGARIUM_FAILOVER_CLOCK"


class LoadProcess:
    """The clients, in a program of their own."""

    def __init__(self, command: list[str], log: Path) -> None:
        """Start it."""
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=launch.environment(),
                text=True,
            )

    def ask(self, what: str, timeout_s: float = 4 * PATIENCE_S) -> dict[str, Any]:
        """Tell it something, and give what it answers.

        Raises:
            TimeoutError: it does not answer.
        """
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: PT018 - one thing
        if what:
            self._process.stdin.write(f"{what}\n")
            self._process.stdin.flush()
        killer = threading.Timer(timeout_s, self._process.kill)
        killer.start()
        line = self._process.stdout.readline()
        killer.cancel()
        if not line:
            raise TimeoutError(f"the load does not answer to {what!r}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        """End it."""
        with self._process:
            self._process.kill()


class Round:
    """One pair, from its first start to the verdict."""

    def __init__(
        self,
        folder: Path,
        lease_s: int,
        *,
        has_spaces: bool,
        members: int = MEMBERS,
        workers: int = pair.WORKERS,
    ) -> None:
        """Make the places; nothing runs yet.

        Args:
            folder: for everything.
            lease_s: of the primary.
            has_spaces: hosts are namespaces; else they are on loopback, with disks that cannot hang.
            members: of etcd, on loopback.
            workers: of the node, on loopback.
        """
        self._folder = folder
        self._lease_s = lease_s
        self._members, self._workers = members, workers
        self._lines: Lines | None = None
        self._cables = Cables() if has_spaces else None
        self.failures: list[str] = []
        self.figures: dict[str, Any] = {}

    @contextlib.contextmanager
    def world(self) -> Iterator[World]:
        """Start the outside store and both hosts, and remove all of it at the end."""
        with contextlib.ExitStack() as stack:
            if self._cables is not None:
                stack.callback(self._cables.remove)
                self._cables.build()
            can_hang = self._cables is not None
            disks = {host: Disk(self._folder / host, can_hang=can_hang) for host in HOSTS}
            for disk in disks.values():
                stack.callback(disk.remove)
            store = self._write(stack)
            stack.callback(store.stop)
            store.start()
            clocks = self._clocks()
            hosts = {name: self._host(name, clocks) for name in HOSTS}
            for host in hosts.values():
                stack.callback(host.kill)
            for disk in disks.values():
                stack.callback(disk.thaw)
            ca_file = self._ca_file if self._cables is not None else None
            cut = self._cables or self._lines
            assert cut is not None
            world = World(hosts, store, self._lease_s, cut, self._cables, disks, clocks, ca_file)
            wait_until(lambda: world.etcd_leader() is not None, "etcd has a leader")
            for host in hosts.values():
                host.start()
            yield world

    @property
    def _ca_file(self) -> Path:
        return self._folder / "authority.pem"

    def _write(self, stack: contextlib.ExitStack) -> Etcd:
        if self._cables is not None:
            space = self._cables
            self._urls = pair.in_spaces(self._folder, self._lease_s)
            self._stores = [f"https://127.0.0.1:{port}" for port in pair.ETCD_PORTS[::2]]
            inside = lambda command: space.command(OUTSIDE, command)  # noqa: E731 - one place
            return Etcd(self._folder, pair.ETCD_PORTS, inside, self._folder / "outside")
        loopback = pair.Loopback(free_ports(4 + 2 * self._members))
        self._lines = stack.enter_context(loopback.lines)
        self._urls = loopback.write(self._folder, self._lease_s, self._workers)
        self._stores = loopback.stores
        return Etcd(self._folder, loopback.etcd)

    def _clocks(self) -> dict[str, Path]:
        """Give a file for each host that sets its clock, where that is possible."""
        if self._cables is None or shutil.which("cc") is None:
            return {}
        source = Path(__file__).with_name("clock.c")
        command = ["cc", "-O1", "-shared", "-fPIC", "-o", str(self._folder / CLOCK), str(source)]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            return {}
        places = {host: self._folder / f"{host}.clock" for host in HOSTS}
        for place in places.values():
            place.write_text("0\n", encoding="ascii")
        return places

    def _host(self, name: str, clocks: dict[str, Path]) -> Host:
        data = self._folder / name / "data"
        environment = {pair.MARK: str(data)}
        if clocks:
            environment |= {"LD_PRELOAD": str(self._folder / CLOCK), CLOCK_VARIABLE: str(clocks[name])}
        command = (lambda one: one) if self._cables is None else (lambda one: self._inside(name, one))
        return Host(name, self._folder, data, command, environment)

    def _inside(self, name: str, command: list[str]) -> list[str]:
        assert self._cables is not None
        return self._cables.command(name, command)

    def load(self, *more: str) -> LoadProcess:
        """Start the clients, with more options, and give them when they send."""
        command = [sys.executable, "-P", "-m", "tests.failover.load", *more]
        for name, url in self._urls.items():
            command += ["--url", f"{name}={url}"]
        for url in self._stores:
            command += ["--store", url]
        if self._cables is not None:
            command = self._cables.command(OUTSIDE, [*command, "--ca-file", str(self._ca_file)])
        load = LoadProcess(command, self._folder / "load.log")
        load.ask("")
        return load

    # -- the round ---------------------------------------------------------------------------------------------

    def run(self, rng: random.Random, kinds: list[str] | None, until: float) -> dict[str, Any]:
        """Make trouble until a time, heal, and give the verdict."""
        with self.world() as world, contextlib.ExitStack() as stack:
            wait_until(lambda: in_sync(world), "the pair is in sync")
            load = self.load()
            stack.callback(load.end)
            troubles = Troubles(world, rng, kinds)
            try:
                while time.monotonic() < until:
                    self._trouble(world, troubles, rng)
                self._finish(world, load, troubles)
            except (TimeoutError, AssertionError, OSError) as error:
                self.failures.append(f"{type(error).__name__}: {error}")
            self.figures["troubles"] = dict(Counter(one.kind for one in troubles.done))
            self.figures["skipped"] = troubles.skipped
            self.figures["deaths"] = {host.name: host.deaths for host in world.hosts.values() if host.deaths}
        return self.figures

    def _trouble(self, world: World, troubles: Troubles, rng: random.Random) -> None:
        done = troubles.make()
        say(f"{done.since:.1f} {done.text}{' (the primary)' if done.hit_primary else ''}")
        pause_s = rng.uniform(*PAUSE) * self._lease_s
        if rng.random() < SYNC_SHARE:
            self._tend_until(world, lambda: in_sync(world), PATIENCE_S, f"in sync after {done.text}")
        self._tend_until(world, lambda: False, pause_s)

    def _tend_until(self, world: World, condition: Any, timeout_s: float, what: str = "") -> None:
        """Wait, and start hosts again that have ended meanwhile."""
        give_up_at = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > give_up_at:
                if what:
                    states = {name: host.status for name, host in world.hosts.items()}
                    raise TimeoutError(f"not {what}: {states}")
                return
            for host in world.hosts.values():
                if not host.pid:
                    time.sleep(RESTART_S)
                    host.start()
            time.sleep(LOOK_S)

    def _finish(self, world: World, load: LoadProcess, troubles: Troubles) -> None:
        self._tend_until(world, lambda: in_sync(world), PATIENCE_S, "in sync at the end")
        quiet = load.ask("quiet")
        if quiet["hangs"]:
            self.failures += quiet["hangs"]
        self._tend_until(world, lambda: in_sync(world) and is_even(world), PATIENCE_S, "even at the end")
        for host in world.hosts.values():
            host.kill()
        if different := compare.differences(*(host.data for host in world.hosts.values())):
            self.figures["different"] = different
            self.failures.append("the hosts differ")
        for host in world.hosts.values():
            host.start()
        found = load.ask("check")
        acknowledged_at = found.pop("acknowledged_at")
        self.failures += found.pop("failures")
        if found["wrong"]:
            self.failures.append("sets")
        self.figures |= found
        outages(troubles.done, self.figures, acknowledged_at, self._lease_s)


def free_ports(count: int) -> list[int]:
    """Give some ports of loopback, all different."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return sorted(found)


def outages(done: list[Done], found: dict[str, Any], acknowledged_at: list[float], lease_s: int) -> None:
    """Say how long nothing was acknowledged around each trouble of the primary, and when another one took over."""
    ends = sorted(acknowledged_at)
    outage: dict[str, list[float]] = {}
    for one in done:
        window = (one.since, one.until + 2 * lease_s)
        inside = [window[0], *(end for end in ends if window[0] < end < window[1]), window[1]]
        longest_s = max(later - earlier for earlier, later in itertools.pairwise(inside))
        is_takeover = any(
            window[0] < since < window[1] and primary != before[1]
            for before, (_, primary, since) in itertools.pairwise(found["epochs"])
        )
        if one.hit_primary or is_takeover:
            kind = f"{one.kind}{' (takeover)' if is_takeover else ''}"
            outage.setdefault(kind, []).append(round(longest_s, 2))
    found["outages"] = outage


def is_even(world: World) -> bool:
    """Tell whether the standby lacks nothing."""
    primary = world.primary()
    rows = primary.status["stores"] if primary is not None else []
    return bool(rows) and all(row["caught_up"] and not row["lag_groups"] for row in rows)


def wait_until(condition: Any, what: str, timeout_s: float = PATIENCE_S) -> None:
    """Wait.

    Raises:
        TimeoutError: it did not happen.
    """
    give_up_at = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"{what}: not within {timeout_s:g} s")
        time.sleep(LOOK_S)


def say(text: str) -> None:
    """Tell what goes on, on standard error."""
    print(text, file=sys.stderr, flush=True)


def percentile(values: list[float], share: float) -> float:
    """Give the value below which a share of them is."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def campaign(
    minutes: float,
    seed: int,
    kinds: list[str] | None,
    lease_s: int,
    round_minutes: float,
    keep: Path | None,
    *,
    loopback: bool = False,
) -> dict[str, Any]:
    """Run rounds until the time is over, at least one; gives the verdict."""
    why = cables.missing() if not loopback else "as it was asked for"
    if why:
        say(f"all on loopback, and no disk hangs: {why}")
    deadline = time.monotonic() + minutes * 60
    rounds: list[dict[str, Any]] = []
    broken: list[Any] = []
    while not rounds or time.monotonic() < deadline:
        # Each round may be repeated alone, as the first one of its own seed.
        rng = random.Random(seed + len(rounds))
        folder = Path(tempfile.mkdtemp(prefix="failover-"))
        one = Round(folder, lease_s, has_spaces=not why)
        until = min(deadline, time.monotonic() + round_minutes * 60)
        try:
            figures = one.run(rng, kinds, until)
        except (TimeoutError, OSError, subprocess.SubprocessError) as error:
            figures, one.failures = one.figures, [*one.failures, repr(error)]
        except KeyboardInterrupt:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        rounds.append(figures)
        if one.failures:
            broken.append({"seed": seed + len(rounds) - 1, "failures": one.failures, **figures})
            say(f"round {len(rounds)} broken: {one.failures}\n{json.dumps(figures)[:OUTPUT_CHARACTERS]}")
            if keep is not None:
                _keep(folder, keep / f"seed-{seed + len(rounds) - 1}")
        else:
            say(f"round {len(rounds)}: {figures['acknowledged']:,} acknowledged, kept")
        shutil.rmtree(folder, ignore_errors=True)
    return verdict_of(seed, rounds, broken)


def _keep(folder: Path, place: Path) -> None:
    """Keep what was logged."""
    place.mkdir(parents=True, exist_ok=True)
    for log in folder.glob("*.log"):
        shutil.copy(log, place)


def verdict_of(seed: int, rounds: list[dict[str, Any]], broken: list[Any]) -> dict[str, Any]:
    """Give the sums of all rounds."""
    outs = [
        value
        for one in rounds
        for kind, values in one.get("outages", {}).items()
        for value in values
        if kind.endswith("(takeover)")
    ]
    wrongs = [
        kind
        for one in rounds
        for wrong in one.get("wrong", {}).values()
        if isinstance(wrong, dict)
        for kind in wrong
    ]
    troubles: Counter[str] = Counter()
    queues: Counter[str] = Counter()
    for one in rounds:
        troubles.update(one.get("troubles", {}))
        for figures in one.get("queues", {}).values():
            queues.update(figures)
    return {
        "seed": seed,
        "rounds": len(rounds),
        "troubles": dict(sorted(troubles.items())),
        "skipped": sorted({kind for one in rounds for kind in one.get("skipped", [])}),
        "attempted": sum(one.get("attempted", 0) for one in rounds),
        "acknowledged": sum(one.get("acknowledged", 0) for one in rounds),
        **queues,
        "lost": wrongs.count("lost"),
        "doubled_without_flag": wrongs.count("doubled"),
        "two_primaries": sum("two_primaries" in one.get("wrong", {}) for one in rounds),
        "epochs": sum(len(one.get("epochs", [])) for one in rounds),
        "takeover_s": {
            "count": len(outs),
            "p50": percentile(outs, 0.5),
            "p99": percentile(outs, 0.99),
            "max": max(outs, default=0.0),
        },
        "deaths": [one["deaths"] for one in rounds if one.get("deaths")],
        "broken": broken,
        "verdict": "bad" if broken else "good",
    }


def main() -> int:
    """Run a campaign as the command line says."""
    parser = argparse.ArgumentParser(prog="scripts/failover", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="how long [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="chooses the troubles [%(default)s]")
    parser.add_argument("--troubles", default="", help="kinds of them, with commas [all that are possible]")
    parser.add_argument(
        "--lease", type=int, default=LEASE_S, help="lease of the primary, in seconds [%(default)s]"
    )
    parser.add_argument(
        "--round-minutes", type=float, default=ROUND_MINUTES, help="a new pair after so long [%(default)s]"
    )
    parser.add_argument("--loopback", action="store_true", help="no namespaces, also where there may be some")
    parser.add_argument("--keep", type=Path, help="where to keep the logs of rounds that were broken")
    options = parser.parse_args()
    if etcd.is_missing():
        parser.error("there is no etcd here: install etcd-server")
    kinds = [kind for kind in options.troubles.split(",") if kind] or None
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Namespaces and disks are removed also then.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    verdict = campaign(
        *(options.minutes, options.seed, kinds, options.lease, options.round_minutes, options.keep),
        loopback=options.loopback,
    )
    print(json.dumps(verdict), flush=True)
    return int(verdict["verdict"] != "good")


if __name__ == "__main__":
    sys.exit(main())
