"""Takes messages through the whole pipeline while processes are killed: the program behind scripts/pipeline-demo.

start a node, make two queues
──► publish rows to several topics, which the first queue attracts
──► archive the first queue to Parquet
──► replay that archive to its topics, which only the second queue attracts now
──► archive the second queue
──► compare the two archives, and report on the first

At random instants the job that runs, one of its Python processes, or a process of the node is killed; a job that
died is started again with the same command, as an operator would.
"""

from __future__ import annotations

import argparse
import contextlib
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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

import angarium.blocking
from angarium_server.testing import Node, NodeFailedError
from tests.spark.demo_messages import FILTER, messages

if TYPE_CHECKING:
    from collections.abc import Sequence

FIRST, SECOND = "demo", "demo-again"
#: What can be killed: the job with everything that it started, a Python process of Spark, processes of the node.
JOB, PYTHON_WORKER, WORKER, ROUTER, CONTROLLER = "job", "python worker", "worker", "router", "controller"
KINDS: Final = (JOB, PYTHON_WORKER, WORKER, ROUTER, CONTROLLER)
#: Spark is starting before, and a kill would show little.
EARLIEST_S: Final = 6.0
#: Rows that a job handles in a second here, roughly: kills are to come while it works.
ROWS_PER_S: Final = 60_000
#: A job that takes longer hangs.
JOB_TIMEOUT_S: Final = 900.0
#: Starts of one job; each kill needs one more.
STARTS_MAX: Final = 20


class DemoFailedError(Exception):
    """A step did not do what it must."""


class Killer(threading.Thread):
    """Kills one thing after the other while a job runs, until the job itself is dead."""

    def __init__(self, demo: Demo, job: subprocess.Popen[bytes]) -> None:
        super().__init__(daemon=True)
        self._demo, self._job = demo, job
        #: Whether something was killed that the job may die of.
        self.has_killed = False

    def run(self) -> None:
        earliest_s = EARLIEST_S
        while (kill := self._demo.next_kill(earliest_s)) is not None:
            kind, after_s = kill
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._job.wait(after_s)
                return
            self.has_killed |= self._demo.kill(kind, self._job)
            earliest_s = 0.0


class Demo:
    """One run."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._folder = folder
        self._rows: int = options.rows
        self._rng = random.Random(options.seed)
        #: What is still to be killed, in order; the job itself is always among it.
        self._kills = [JOB, *self._rng.choices(KINDS, k=max(options.kills - 1, 0))][: options.kills]
        self._rng.shuffle(self._kills)
        self._started = time.monotonic()
        self.node = Node(folder / "node", workers=options.workers)
        self.figures: dict[str, Any] = {"rows": self._rows, "kills": []}

    def say(self, text: str) -> None:
        """Tell what goes on."""
        print(f"{time.monotonic() - self._started:6.1f} s  {text}", file=sys.stderr, flush=True)

    def run(self) -> int:
        """Do it all; give the status of compare.

        Raises:
            DemoFailedError: a step failed.
        """
        with self.node:
            self.say(f"the node {self.node.url} is up; everything is in {self._folder}")
            self._make_queues()
            self._publish()
            self._job("archive", "--queue", FIRST, str(self._folder / "archive"))
            self._move_subscription()
            self._job("replay", str(self._folder / "archive"))
            self._job("archive", "--queue", SECOND, str(self._folder / "archive-again"))
            self._report()
            if self._kills:
                self.say(f"{len(self._kills)} kills came too late: everything was over")
            return self._compare()

    # -- steps -----------------------------------------------------------------------------------------------

    def _make_queues(self) -> None:
        partitioned = ("--set", "access_type=non-exclusive", "--set", "partition_count=4")
        self.node.run("queue", "create", FIRST, "--subscription", FILTER, *partitioned)
        self.node.run("queue", "create", SECOND, *partitioned)

    def _move_subscription(self) -> None:
        self.node.run("queue", "update", FIRST, "--remove-subscription", FILTER)
        self.node.run("queue", "update", SECOND, "--subscription", FILTER)

    def _publish(self) -> None:
        started = time.monotonic()
        with angarium.blocking.connect(self.node.url) as client, client.producer("demo") as producer:
            report = producer.publish_many(messages(self._rows, self._rng.random()))
        if report.acknowledged != self._rows:
            raise DemoFailedError(f"{report.acknowledged:,} of {self._rows:,} rows are acknowledged")
        self._tell("publish", started)

    def _job(self, name: str, *arguments: str) -> None:
        """Run a job until it ends well, starting it again as often as it is killed."""
        started = time.monotonic()
        for _ in range(STARTS_MAX):
            if self._start_job(name, *arguments):
                self._tell(name, started)
                return
        raise DemoFailedError(f"{name} did not end well in {STARTS_MAX} starts")

    def _start_job(self, name: str, *arguments: str) -> bool:
        """Run a job once; tells whether it ended well, and was not killed."""
        log = self._folder / f"{name}.log"
        command = [
            sys.executable,
            "-P",
            "-m",
            "angarium_server",
            "pipeline",
            name,
            "--url",
            self.node.url,
            *arguments,
        ]
        with log.open("ab") as output:
            job = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        killer = Killer(self, job)
        killer.start()
        try:
            status = job.wait(JOB_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            raise DemoFailedError(f"{name} takes longer than {JOB_TIMEOUT_S:g} s\n{_tail(log)}") from None
        killer.join()
        if status and not killer.has_killed:
            raise DemoFailedError(f"{name} ended with status {status}\n{_tail(log)}")
        return not status

    def next_kill(self, earliest_s: float) -> tuple[str, float] | None:
        """Give what is killed next, and in how many seconds; None if nothing is left."""
        if not self._kills:
            return None
        return self._kills[0], self._rng.uniform(earliest_s, earliest_s + self._rows / ROWS_PER_S)

    def kill(self, kind: str, job: subprocess.Popen[bytes]) -> bool:
        """Kill something; False if it is not there."""
        if kind == JOB:
            os.killpg(job.pid, signal.SIGKILL)
        elif kind == PYTHON_WORKER:
            victims = _python_workers(job.pid)
            if not victims:
                return False
            self._rng.choice(victims).kill()
        else:
            self.node.kill(kind)
        del self._kills[0]
        self.figures["kills"].append(kind)
        self.say(f"killed: {kind}")
        return True

    def _report(self) -> None:
        page = self._folder / "report.html"
        self._run_once("report", str(self._folder / "archive"), "--html", str(page))
        self.say(f"the report is {page}")

    def _compare(self) -> int:
        archives = [str(self._folder / name) for name in ("archive", "archive-again")]
        status, found = self._run_once("compare", *archives, allowed=(0, 1))
        self.figures["equal"] = status == 0
        self.figures["compared"] = {name: found[name] for name in ("left_rows", "right_rows", "samples")}
        return status

    def _run_once(self, name: str, *arguments: str, allowed: Sequence[int] = (0,)) -> tuple[int, Any]:
        """Run a command that needs no node; gives its status and what it printed."""
        started = time.monotonic()
        command = [sys.executable, "-P", "-m", "angarium_server", "pipeline", name, "--json", *arguments]
        done = subprocess.run(command, timeout=JOB_TIMEOUT_S, check=False, capture_output=True, text=True)
        if done.returncode not in allowed:
            raise DemoFailedError(f"{name} ended with status {done.returncode}\n{done.stderr[-4_000:]}")
        self._tell(name, started)
        return done.returncode, json.loads(done.stdout)

    def _tell(self, step: str, started: float) -> None:
        took = time.monotonic() - started
        self.figures.setdefault("seconds", {}).setdefault(step, []).append(round(took, 1))
        self.say(f"{step}: {took:.1f} s, {self._rows / took:,.0f} rows/s")


def _python_workers(pid: int) -> list[psutil.Process]:
    """Give the Python processes that Spark started under a job: children of its JVM."""
    with contextlib.suppress(psutil.NoSuchProcess):
        under = psutil.Process(pid).children(recursive=True)
        return [one for one in under if "pyspark" in " ".join(one.cmdline()) and "python" in one.name()]
    return []


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-4_000:]


def parser() -> argparse.ArgumentParser:
    """Give the parser of the command line."""
    found = argparse.ArgumentParser(
        prog="scripts/pipeline-demo",
        description="Publish, archive, replay, archive again, compare and report, with kills on the way.",
        epilog="Exit 0: the archives are equal; 1: they differ; 2: a step failed, or misused.",
    )
    found.add_argument("--rows", type=int, default=100_000, metavar="N", help="messages [%(default)s]")
    found.add_argument("--kills", type=int, default=0, metavar="K", help="how often something is killed [0]")
    found.add_argument("--seed", type=int, default=None, metavar="S", help="of what is killed, and when")
    found.add_argument("--workers", type=int, default=2, metavar="W", help="workers of the node [2]")
    found.add_argument("--keep", type=Path, metavar="DIR", help="keep archives, logs and report there")
    found.add_argument("--json", action="store_true", help="print the figures as JSON")
    return found


def main() -> int:
    """Run the demonstration and give the exit code."""
    options = parser().parse_args()
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(10**6)
    folder = options.keep or Path(tempfile.mkdtemp(prefix="angarium-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    demo = Demo(folder.resolve(), options)
    demo.say(f"{options.rows:,} rows, {options.kills} kills, seed {options.seed}")
    try:
        status = demo.run()
    except (DemoFailedError, NodeFailedError) as error:
        print(f"{error}\neverything is in {folder}", file=sys.stderr)
        return 2
    demo.say("equal" if status == 0 else f"the archives differ; everything is in {folder}")
    if options.json:
        print(json.dumps(demo.figures))
    if status == 0 and options.keep is None:
        shutil.rmtree(folder)
    return status


if __name__ == "__main__":
    sys.exit(main())
