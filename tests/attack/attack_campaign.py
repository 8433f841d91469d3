"""Attacks real nodes beside a client that does its work, and judges what it noticed: the program behind scripts/attack.

Each round has a node of its own and one kind of attack, by an account with the rights that everybody has. First the
innocent client is measured beside a process that only keeps a core busy, then beside the attack. Messages that are
stored may take memory, so the queues that the attacker made are deleted, and then the memory of the node is looked at
until it is given back: what router and workers have in use, and what is resident. No process may die, nothing of the
innocent may be lost or refused.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psutil

from angarium import errors
from angarium_server.testing import Node
from cluster.admin.client import Admin
from tests.attack.attackers import ATTACKER, CLUSTER, CLUSTER_SECRET, KINDS, LIAR
from tests.attack.innocent import Innocent, Noticed

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[2]
PASSWORD: Final = "a password of the test"
QUIET_S, ATTACK_S = 5.0, 15.0
#: An attacker has a machine of his own: where he has not, he takes what the node and the innocent leave. Linux shares
#: the CPUs among sessions first (autogroup of sched(7)), and each process of a node has one: so `nice` alone, which
#: says who comes first in a session, gave him as much as the router.
_POLITELY: Final = ("sh", "-c", '{ echo 10 >/proc/self/autogroup; } 2>/dev/null; exec nice -n 10 "$@"', "sh")
#: How much later than beside a busy process; what is below the floor nobody notices.
P99_RATIO, P99_FLOOR_MS = 3.0, 50.0
#: What a node may keep: of the memory that is in use, and of that which is resident; and when.
IN_USE_RATIO, RESIDENT_RATIO, MEMORY_S = 1.10, 1.10, 60.0
#: An attack that is over answers within the limits of its own waits.
END_S = 60.0
DISK_MB = 96
#: Kinds that come in elsewhere.
GATEWAYS: Final = {"mqtt": "tcp://127.0.0.1:0", "http": "http://127.0.0.1:0"}
#: Refusing what does not fit is the right answer when there is no room for anybody.
MAY_REFUSE: Final = frozenset({"disks"})


class Memory(NamedTuple):
    """What a node has, in bytes."""

    #: In router and workers, as they say.
    in_use: int
    #: In all processes, without the pages of files that are mapped.
    resident: int

    def too_much(self, before: Memory) -> list[str]:
        """Say what was not given back."""
        kept = [
            ("memory in use", self.in_use / before.in_use, IN_USE_RATIO),
            ("resident memory", self.resident / before.resident, RESIDENT_RATIO),
        ]
        return [
            f"{ratio:.2f} of the {what} is left {MEMORY_S:g} s later"
            for what, ratio, limit in kept
            if ratio > limit
        ]


class Round:
    """One node, one attack, and what was seen."""

    def __init__(self, folder: Path, kind: str, seed: int, attack_s: float) -> None:
        self._folder, self._kind, self._seed, self._attack_s = folder, kind, seed, attack_s
        self.node = Node(folder / "data", workers=2, config=self._configure())

    def _configure(self) -> Path:
        secret, config = self._folder / "cluster.secret", self._folder / "node.toml"
        secret.touch(mode=0o600)
        secret.write_text(CLUSTER_SECRET + "\n", encoding="utf-8")
        config.write_text(f'[cluster]\nname = "{CLUSTER}"\nsecret_file = "{secret}"\n', encoding="utf-8")
        if self._kind in GATEWAYS:
            with config.open("a", encoding="utf-8") as file:
                file.write(f'[{self._kind}]\nlisten = ["{GATEWAYS[self._kind]}"]\n')
        return config

    def run(self) -> dict[str, Any]:
        """Measure, attack and measure; gives what was seen, and under `wrong` what may not be."""
        with self.node, Admin(self.node.data) as admin:
            for name in (ATTACKER, "innocent"):
                admin.call(
                    "objects.create",
                    kind="username",
                    name=name,
                    vpn="default",
                    attributes={"password": PASSWORD},
                )
            admin.call("objects.create", kind="link", name=LIAR, vpn=None, attributes={"initiator": "remote"})
            file = self._folder / "password"
            file.write_text(PASSWORD, encoding="utf-8")
            with Innocent(self.node.url, str(file)) as innocent:
                return self._attack(innocent, admin)

    def _attack(self, innocent: Innocent, admin: Admin) -> dict[str, Any]:
        with _busy():
            time.sleep(QUIET_S)
            before = innocent.look()
        memory = self._memory(admin)
        said = self._run_attacker()
        during = innocent.look()
        stored = _delete_endpoints(admin)
        kept = self._memory_kept(admin, memory)
        after = innocent.look()
        seen = {
            "kind": self._kind,
            "seed": self._seed,
            "p99_ms": [before.p99_ms, during.p99_ms],
            "longest_ms": during.longest_ms,
            "endpoints_deleted": stored,
            "in_use_mb": [round(one.in_use / 1e6, 1) for one in (memory, kept)],
            "resident_mb": [round(one.resident / 1e6, 1) for one in (memory, kept)],
            "said": said,
        }
        wrong = [*self._deaths(), *self._harm(before, during, after), *kept.too_much(memory)]
        return {**seen, **({"wrong": wrong} if wrong else {})}

    def _run_attacker(self) -> Any:
        command = [
            *_POLITELY,
            sys.executable,
            "-m",
            "tests.attack.attackers",
            self._kind,
            self.node.ready[self._kind][0] if self._kind in GATEWAYS else self.node.url,
            str(self._seed),
            str(self._attack_s),
            PASSWORD,
        ]
        done = subprocess.run(
            command,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=self._attack_s + END_S,
            check=False,
            start_new_session=True,
        )
        if done.returncode:
            raise RuntimeError(f"the attacker failed: {done.stderr[-2_000:]}")
        return json.loads(done.stdout)

    def _memory(self, admin: Admin) -> Memory:
        told = admin.call("stats")
        pids = [row["pid"] for row in self.node.status()["processes"] if row["pid"]]
        found = [psutil.Process(pid).memory_info() for pid in pids]
        return Memory(
            sum(one["in_use_bytes"] for one in (told["router"], *told["workers"])),
            sum(one.rss - one.shared for one in found),
        )

    def _memory_kept(self, admin: Admin, before: Memory) -> Memory:
        """Wait until memory is given back; gives what is kept."""
        deadline = time.monotonic() + MEMORY_S
        while (kept := self._memory(admin)).too_much(before) and time.monotonic() < deadline:
            time.sleep(0.5)
        return kept

    def _deaths(self) -> list[str]:
        first = {(row["role"], row["index"]): row["pid"] for row in self.node.ready["processes"]}
        now = {(row["role"], row["index"]): row["pid"] for row in self.node.status()["processes"]}
        died = [
            f"{role}.{index} died" for (role, index), pid in first.items() if now.get((role, index)) != pid
        ]
        return died + (["a traceback in the log"] if "Traceback" in self.node.output() else [])

    def _harm(self, before: Noticed, during: Noticed, after: Noticed) -> list[str]:
        wrong = []
        limit_ms = P99_RATIO * max(before.p99_ms, P99_FLOOR_MS / P99_RATIO)
        for noticed in (during, after):
            if noticed.lost or noticed.reconnects or (noticed.refused and self._kind not in MAY_REFUSE):
                wrong.append(f"the innocent noticed {noticed}")
        if during.p99_ms > limit_ms:
            wrong.append(f"p99 of the innocent is {during.p99_ms} ms, more than {limit_ms:.1f} ms")
        return wrong


def _delete_endpoints(admin: Admin) -> int:
    """Delete what the attacker made and left behind; gives how many there were."""
    mine = [
        (kind, row["name"])
        for kind in ("queue", "topic-endpoint")
        for row in admin.call("objects.list", kind=kind, vpn="default", name="*")
        if row["owner"] == ATTACKER
    ]
    for kind, name in mine:
        with contextlib.suppress(errors.NotFoundError):  # that of a session of MQTT may have gone by itself
            admin.call("objects.delete", kind=kind, vpn="default", name=name)
    return len(mine)


@contextlib.contextmanager
def _busy() -> Iterator[None]:
    """Keep a core busy, as an attacker does by its own work alone; not longer than this process lives."""
    busy = "import os\nours = os.getppid()\nwhile os.getppid() == ours: pass"
    process = subprocess.Popen([*_POLITELY, sys.executable, "-c", busy], start_new_session=True)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def place_for(kind: str) -> Iterator[Path | None]:
    """Give a folder for a round: a small file system for an attack on the disk; None where that is not allowed."""
    with tempfile.TemporaryDirectory(prefix="angarium-attack-") as name:
        if kind != "disks":
            yield Path(name)
            return
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "angarium-attack", name]
        if subprocess.run(mount, check=False, capture_output=True).returncode:
            yield None
            return
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", name], check=False)


def campaign(kinds: list[str], minutes: float, seed: int, attack_s: float = ATTACK_S) -> dict[str, Any]:
    """Run a round of each kind, and on until the time is over; gives the verdict."""
    rng, deadline = random.Random(seed), time.monotonic() + minutes * 60
    rounds: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}
    while not rounds or time.monotonic() < deadline:
        for kind in kinds:
            with place_for(kind) as folder:
                if folder is None:
                    skipped[kind] = "no file system can be mounted here"
                    continue
                seen = Round(folder, kind, rng.randrange(1 << 30), attack_s).run()
            print(json.dumps(seen), file=sys.stderr, flush=True)
            rounds.append(seen)
    wrong = [one for one in rounds if "wrong" in one]
    return {
        "seed": seed,
        "rounds": len(rounds),
        "kinds": [kind for kind in kinds if kind not in skipped],
        "skipped": skipped,
        "wrong": wrong,
        "verdict": "bad" if wrong else "good",
    }


def main() -> int:
    """Run a campaign as the command line says."""
    parser = argparse.ArgumentParser(prog="scripts/attack", description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of attacks [%(default)s]")
    parser.add_argument(
        "--minutes", type=float, default=1.0, help="how long, at least a round each [%(default)s]"
    )
    parser.add_argument("--seed", type=int, default=0, help="chooses sizes and shapes [%(default)s]")
    options = parser.parse_args()
    kinds = [kind for kind in options.kinds.split(",") if kind]
    if not kinds or not set(kinds) <= KINDS.keys():
        parser.error(f"kinds are {', '.join(KINDS)}")
    verdict = campaign(kinds, options.minutes, options.seed)
    print(json.dumps(verdict), flush=True)
    return int(verdict["verdict"] != "good")


if __name__ == "__main__":
    sys.exit(main())
