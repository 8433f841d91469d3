"""The command behind `scripts/bench`: choose what is measured, measure it, show the rows.

Exit 0: everything was measured and no first target was missed; 1: something failed or a target was missed; 2:
misused. With `--quick` the figures mean nothing, so only failures count.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks import (
    backlog,
    before,
    direct,
    frames,
    guaranteed,
    harness,
    mesh,
    pipeline,
    plan,
    report,
    standby,
    subscriptions,
)
from benchmarks.crowd import plan as crowd_plan
from benchmarks.crowd import suite
from benchmarks.http import suite as http
from benchmarks.mqtt.suite import Exchanges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.figures import Row

#: What can be chosen with --only; `clients` and `mqtt` take as long as all others, `standby` wants an etcd: these three
#: run only if they are chosen.
SUBJECTS: Final = ("direct", "guaranteed", "mesh", "http", "spark", "clients", "mqtt", "standby")
#: Peers of any subject; each compares with those it knows.
PEERS: Final = tuple(dict.fromkeys((*plan.PEERS, *crowd_plan.PEERS)))
#: How little is measured with --quick.
QUICK_SECONDS: Final = 0.2
QUICK_LATENCY_S: Final = 1.0
QUICK_TABLE: Final = 10_000
QUICK_CROWD: Final = 100
#: A machine that does more than this by itself has none to spare.
LOAD_MAX: Final = 0.5


def parser() -> argparse.ArgumentParser:
    """Give the parser of the command line."""
    found = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measure this broker and its peers in one run. docs/benchmarks.md explains it.",
        epilog="Exit 0: measured, targets met; 1: something failed or a first target was missed; 2: misused.",
    )
    found.add_argument(
        "--only", choices=SUBJECTS, help="one subject; default: all but clients, mqtt and standby"
    )
    found.add_argument(
        "--peers",
        default=",".join(PEERS),
        metavar="LIST",
        help="peers to compare with [%(default)s]; '' for none",
    )
    found.add_argument(
        "--seconds",
        type=positive,
        metavar="S",
        help=f"publishing time of a run at full speed [{direct.SECONDS:g}; with --before {before.SECONDS:g}]",
    )
    found.add_argument(
        "--repetitions",
        type=int,
        choices=range(1, 201),
        metavar="N",
        help=f"runs of each kind [{direct.REPETITIONS}; with --before {before.ROUNDS}]",
    )
    found.add_argument(
        "--before",
        type=Path,
        metavar="FOLDER",
        help="compare with the node of another checkout of this project instead, in 30 short rounds for each row",
    )
    found.add_argument("--rows", default="", metavar="TEXT", help="only rows whose name has this text")
    found.add_argument(
        "--quick", action="store_true", help="a smoke test of a minute; its figures mean nothing"
    )
    found.add_argument("--json", action="store_true", help="one JSON object per row instead of a table")
    return found


def positive(text: str) -> float:
    """Read a number above zero.

    Raises:
        ValueError: it is none.
    """
    value = float(text)
    if not 0 < value <= 3_600:
        raise ValueError
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the command line says and give the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    commands = parser()
    options = commands.parse_args(given)
    peers = tuple(dict.fromkeys(name for name in options.peers.split(",") if name))
    unknown = [name for name in peers if name not in PEERS]
    if unknown:
        commands.error(f"unknown peer {', '.join(unknown)}; known are {', '.join(PEERS)}")
    if options.before and not (options.before / "pyproject.toml").is_file():
        commands.error(
            f"{options.before} is no checkout of this project: git worktree add FOLDER COMMIT makes one"
        )
    if options.before and options.only not in (None, *before.SUBJECTS):
        commands.error(f"--before compares {', '.join(before.SUBJECTS)}")
    settings = settings_of(options, peers)
    with tempfile.TemporaryDirectory(prefix="angarium-bench-") as name:
        warn_if_busy()
        started = time.monotonic()
        if options.before:
            beside = before.Beside(Path(name), settings, options.before.resolve())
            rows, versions, conditions = beside.run(options.only), beside.versions(), beside.conditions()
        else:
            rows, versions, conditions = measure(Path(name), settings, options.only)
    harness.say(f"all of it took {time.monotonic() - started:.0f} s")
    context = report.Context(report.command_line(given), versions, conditions)
    (report.print_json if options.json else report.print_table)(rows, context)
    failed = any(row.error for row in rows)
    missed = any(row.met is False for row in rows) and not options.quick
    return int(failed or missed or not rows)


def settings_of(options: argparse.Namespace, peers: tuple[str, ...]) -> direct.Settings:
    """Give how much is measured."""
    if options.quick:
        return direct.Settings(
            peers=peers,
            seconds=QUICK_SECONDS,
            latency_s=QUICK_LATENCY_S,
            repetitions=1,
            table=QUICK_TABLE,
            crowds=(QUICK_CROWD,),
            rows=options.rows,
        )
    usual = before if options.before else direct
    return direct.Settings(
        peers=peers,
        seconds=options.seconds or usual.SECONDS,
        repetitions=options.repetitions or (before.ROUNDS if options.before else direct.REPETITIONS),
        rows=options.rows,
    )


def measure(
    directory: Path, settings: direct.Settings, only: str | None
) -> tuple[list[Row], dict[str, str], str]:
    """Run every suite that is chosen; give the rows, who took part, and how steady the machine was."""
    found: list[Row] = []
    versions: dict[str, str] = {}
    conditions = "see the lines on standard error"
    if only in ("clients", "mqtt"):
        ours = crowd_plan.OURS_MQTT if only == "mqtt" else crowd_plan.OURS
        crowds = suite.Crowds(directory, settings, ours)
        versions |= crowds.versions()
        found += crowds.run()
        conditions = crowds.conditions()
    if only == "mqtt":
        exchanges = Exchanges(directory, settings)
        found += exchanges.run()
        conditions = f"messages: {exchanges.conditions()}; clients: {conditions}"
    if only == "standby":
        pair = standby.Standby(directory, settings)
        versions |= pair.versions()
        found += pair.run()
    settings = replace(settings, peers=tuple(name for name in settings.peers if name in plan.PEERS))
    if only in (None, "direct"):
        comparing = direct.Comparing(directory, settings)
        found += comparing.run()
        versions, conditions = comparing.versions(), comparing.conditions()
        if settings.rows in subscriptions.TITLE:
            found += subscriptions.rows(directory, settings)
        if settings.rows in frames.TITLE:
            found += frames.rows(settings)
    if only in (None, "guaranteed"):
        queues = guaranteed.Queues(directory, settings)
        versions |= queues.versions()
        found += queues.run()
        found += backlog.rows(directory, settings)
    if only in (None, "mesh"):
        links = mesh.Links(directory, settings)
        versions |= links.versions()
        found += links.run()
    if only in (None, "http") and settings.rows in http.TITLE:
        found += http.rows(directory, settings)
    if only in (None, "spark"):
        spark = pipeline.Pipeline(directory, settings)
        versions |= spark.versions()
        found += spark.run()
    return found, versions, conditions


def warn_if_busy() -> None:
    """Say so if something else keeps the machine busy."""
    load = os.getloadavg()[0]
    if load > LOAD_MAX:
        harness.say(
            f"the load of this machine is {load:.1f} before anything is measured: expect wrong figures"
        )


def end_in_order(_number: int, _frame: object) -> None:
    """Let a SIGTERM unwind everything, so that no broker stays behind."""
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end_in_order)
    sys.exit(main())
