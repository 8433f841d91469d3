"""How commands show what they have: tables and progress on a terminal, JSON everywhere else.

Commands hand over plain dicts and never format for a terminal themselves. rich is imported only when
something is drawn, so a command in a script does not pay for it. Nothing here talks to a node.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import click
import msgspec

from cluster.visible import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rich.progress import Progress as RichProgress
    from rich.progress import ProgressColumn, Task, TaskID
    from rich.table import Table

#: Ten redraws a second look smooth; more only cost the publisher time.
PROGRESS_INTERVAL_S: Final = 0.1
#: What takes less needs no bar.
PROGRESS_DELAY_S: Final = 0.5
#: Numbers that name something and count nothing.
_IDENTIFIERS: Final = frozenset({"pid", "incarnation", "id"})
#: Time spans that people read in hours and minutes.
_DURATIONS: Final = frozenset({"uptime_s", "since_s", "heard_s"})
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


def wants_json(asked: bool) -> bool:  # noqa: FBT001 - the value of --json, not a mode of this function
    """Tell whether to print JSON: it was asked for, or nobody watches the output."""
    return asked or not sys.stdout.isatty()


def to_json(value: Any) -> str:
    """Give a value as one line of JSON; bytes inside become base64."""
    return msgspec.json.encode(value).decode()


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    click.echo(to_json(value))


def print_json_lines(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print each row as one line of JSON."""
    for row in rows:
        click.echo(to_json(row))


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, empty: str) -> None:
    """Draw the named columns of all rows, or say why there is nothing to draw."""
    if not rows:
        click.echo(empty)
        return
    draw(table(rows, columns))


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], title: str | None = None) -> Table:
    """Make a table of the named columns of all rows."""
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False, title=title, title_justify="left", header_style="bold")
    rows = list(rows)
    for column in columns:
        numeric = all(isinstance(row.get(column), int | float) for row in rows)
        drawn.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(_plain(cell(row.get(column), column)) for column in columns))
    return drawn


def print_attributes(values: Mapping[str, Any]) -> None:
    """Draw one object as two columns, names and values."""
    rows = [{"attribute": name, "value": cell(value, name)} for name, value in values.items()]
    draw(table(rows, ("attribute", "value")))


def print_exactly(values: Mapping[str, Any]) -> None:
    """Do the same with every number as it was set: who set 10,000,000 bytes does not want to read 9.5 MiB."""
    draw(table(_exact_rows(values), ("attribute", "value")))


def _exact_rows(values: Mapping[str, Any]) -> list[dict[str, str]]:
    rows = []
    for name, value in values.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        rows.append({"attribute": name, "value": f"{value:,}" if is_number else cell(value, name)})
    return rows


def print_part(title: str, values: Mapping[str, Any]) -> None:
    """Draw a part of a view that has several: an empty line, then names and values under a title."""
    click.echo()
    rows = [{title: name, "value": cell(value, name)} for name, value in values.items()]
    draw(table(rows, (title, "value")))


def telling(values: Mapping[str, Any], *, always: Iterable[str] = ()) -> dict[str, Any]:
    """Leave out what says nothing: figures of 0 but for some, and megabytes beside the same in bytes."""
    kept = {}
    for name, value in values.items():
        is_twin = name.endswith("_mb") and f"{name.removesuffix('_mb')}_bytes" in values
        if name in always or (value and not is_twin):
            kept[name] = value
    return kept


def draw(renderable: Any) -> None:
    """Draw something of rich on stdout."""
    from rich.console import Console

    Console().print(renderable)


@contextlib.contextmanager
def screen(*, plain: bool) -> Iterator[Callable[[Any, Any], None]]:
    """Show something that changes: the last state on the terminal, or each state as a line of JSON.

    Args:
        plain: whether to print JSON; the function given takes the values, and what rich draws of them.
    """
    if plain:
        yield lambda values, _drawn: print_json(values)
        return
    from rich.live import Live

    with Live(auto_refresh=False, vertical_overflow="visible") as live:
        yield lambda _values, drawn: live.update(drawn, refresh=True)


def cell(value: Any, name: str = "") -> str:
    """Give the text of one value in a table; the unit at the end of its name says how to write it.

    `None` is empty, `True` is "yes", a list is joined by commas; 2048 is "2.0 KiB" if the name ends in
    `_bytes`, 90 is "1m30s" if it is `uptime_s`, and the number of a process has no commas.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _number(value, name)
    if isinstance(value, list | tuple):
        return ", ".join(cell(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{key}={cell(item)}" for key, item in value.items())
    return str(value)


def _number(value: float, name: str) -> str:
    if name.endswith("_bytes"):
        return size(value)
    if name in _DURATIONS:
        return duration(value)
    if name.endswith("stored_ms"):
        return moment(value)
    if name in _IDENTIFIERS:
        return str(value)
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def _plain(text: str) -> Any:
    """Keep rich from reading `[...]` in a topic as markup."""
    from rich.text import Text

    return Text(visible(text))


def counted(number: int, noun: str) -> str:
    """Give a number of things: "1 message", "1,234 messages"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def moment(wall_ms: float | None) -> str:
    """Give a wall time as people read it; nothing for none, and "never" for one behind all calendars."""
    if not wall_ms:
        return ""
    try:
        found = datetime.fromtimestamp(wall_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return "never"
    return found.isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")


def size(count: float) -> str:
    """Give a number of bytes as people read it: 1536 is "1.5 KiB"."""
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count /= 1024
        unit += 1
    return f"{count:.0f} {_UNITS[unit]}" if unit == 0 else f"{count:.1f} {_UNITS[unit]}"


def duration(seconds: float) -> str:
    """Give a time span as people read it: 3725 is "1h02m"."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def write_ready_file(path: str, value: Mapping[str, Any]) -> None:
    """Write a ready file in one step: whoever sees it sees all of it."""
    partial = Path(f"{path}.{os.getpid()}.partial")
    partial.write_text(to_json(value) + "\n", encoding="utf-8")
    partial.replace(path)


class Progress(Protocol):
    """What a command tells about its progress."""

    def __call__(self, done: int, total: int | None = None) -> None:
        """Say how much is done by now; and of how much, where that is known only now."""


@contextlib.contextmanager
def progress(description: str, total: int | None) -> Iterator[Progress]:
    """Show a progress bar on stderr while the block runs, if that takes a while and stderr is a terminal."""
    if not sys.stderr.isatty():
        yield _say_nothing
        return
    bar = _Bar(description, total)
    try:
        yield bar
    finally:
        bar.close()


def _say_nothing(done: int, total: int | None = None) -> None:
    """Nobody watches: show nothing."""


class _Bar:
    """A progress bar that appears when the work takes longer than people like to wait."""

    def __init__(self, description: str, total: int | None) -> None:
        self._description = description
        self._total = total
        self._next_at = time.monotonic() + PROGRESS_DELAY_S
        #: None until the bar has appeared.
        self._drawn: tuple[RichProgress, TaskID] | None = None

    def __call__(self, done: int, total: int | None = None) -> None:
        self._total = self._total if total is None else total
        now = time.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + PROGRESS_INTERVAL_S
        self._drawn = self._drawn or self._appear()
        bar, task = self._drawn
        bar.update(task, completed=done, total=self._total)

    def close(self) -> None:
        if self._drawn is not None:
            self._drawn[0].stop()

    def _appear(self) -> tuple[RichProgress, TaskID]:
        from rich import progress as bars
        from rich.console import Console

        columns = (
            bars.TextColumn("{task.description}"),
            bars.BarColumn(),
            bars.MofNCompleteColumn(),
            _rate_column(),
            bars.TimeElapsedColumn(),
            *(() if self._total is None else (bars.TextColumn("left"), bars.TimeRemainingColumn())),
        )
        bar = bars.Progress(*columns, console=Console(stderr=True), transient=True)
        task = bar.add_task(self._description, total=self._total)
        bar.start()
        return bar, task


def _rate_column() -> ProgressColumn:
    """Make the column of a bar that says how much is done in a second."""
    from rich.progress import ProgressColumn

    class RateColumn(ProgressColumn):
        def render(self, task: Task) -> Any:
            return _plain(f"{task.speed:,.0f}/s" if task.speed else "")

    return RateColumn()
