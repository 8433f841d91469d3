"""Rows as people and programs read them: a table, or one JSON object per line.

Every result names the machine, the command and the versions, because a figure without them says nothing.
"""

from __future__ import annotations

import json
import platform
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.figures import Better, median_or_none

if TYPE_CHECKING:
    from benchmarks.figures import Row


@dataclass(frozen=True)
class Context:
    """What a result was measured with."""

    command: str
    versions: dict[str, str]
    #: How steady the machine was.
    conditions: str
    machine: str = field(default_factory=lambda: describe_machine())


def describe_machine() -> str:
    """Give processor, cores, memory, system and interpreter in one line."""
    processor = platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                processor = line.partition(":")[2].strip()
                break
    memory = psutil.virtual_memory().total / (1 << 30)
    return (
        f"{processor}, {psutil.cpu_count()} cores, {memory:.0f} GiB, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    )


def command_line(arguments: list[str]) -> str:
    """Give the command as it was typed."""
    return shlex.join(["scripts/bench", *arguments])


def print_json(rows: list[Row], context: Context) -> None:
    """Print one object per row; each names machine, command and versions."""
    about: dict[str, object] = {
        "machine": context.machine,
        "command": context.command,
        "versions": context.versions,
    }
    about["conditions"] = context.conditions
    for row in rows:
        print(json.dumps({**row.as_map(), **about}))


def print_table(rows: list[Row], context: Context) -> None:
    """Print a table, and below it what the rows have to say."""
    console = Console(width=None if sys.stdout.isatty() else 180)
    table = Table(title="Benchmarks: medians over interleaved repetitions")
    table.add_column("row", overflow="fold")
    for title in ("ours", "peer", "unit", "ratio", "first target", "met"):
        table.add_column(title, justify="left" if title == "unit" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row), style="red" if row.met is False or row.error else None)
    console.print(table)
    for line in _footnotes(rows):
        console.print(line, markup=False, highlight=False)
    console.print(f"machine: {context.machine}", markup=False, highlight=False)
    console.print(f"conditions: {context.conditions}", markup=False, highlight=False)
    console.print(f"command: {context.command}", markup=False, highlight=False)
    for name, version in context.versions.items():
        console.print(f"{name}: {version}", markup=False, highlight=False)


def _cells(row: Row) -> list[str]:
    sign = "" if row.first_target is None else ">= " if row.better is Better.HIGHER else "<= "
    met = {True: "yes", False: "no", None: ""}[row.met]
    return [
        row.name,
        _number(median_or_none(row.ours)),
        _number(median_or_none(row.peer)) if not row.install else "not installed",
        row.unit,
        "" if row.ratio is None else f"{row.ratio:.2f}",
        "" if row.first_target is None else f"{sign}{row.first_target:g}",
        met,
    ]


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:g}"


def _footnotes(rows: list[Row]) -> list[str]:
    """Give what is said below the table: losses, failures and what to install."""
    notes = [f"{row.name}: {row.note}" for row in rows if row.note]
    notes += [f"{row.name}: FAILED: {row.error}" for row in rows if row.error]
    installs = dict.fromkeys(f"{row.against} is not installed: {row.install}" for row in rows if row.install)
    return [*notes, *installs]
