"""How commands print what they have, and how they show their progress.

Commands hand over plain dicts. What is printed is the same on a terminal and in a pipe: a table for people, or what
`-o` and ANGARIUM_OUTPUT ask for. rich is imported only when a bar is drawn. Nothing here talks to a node.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import click
import msgspec
from click.core import ParameterSource

from angarium_server.visible import visible, visible_json
from cluster.commands.terminal.options import setting
from cluster.commands.terminal.table import WIDTH, cell, pairs, table, titles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rich.progress import Progress as RichProgress
    from rich.progress import ProgressColumn, Task, TaskID

TABLE: Final = "table"
WIDE: Final = "wide"
JSON: Final = "json"
NAME: Final = "name"
FORMS: Final = (TABLE, WIDE, JSON, NAME)
#: Ten redraws a second look smooth; more only cost the publisher time.
PROGRESS_INTERVAL_S: Final = 0.1
#: What takes less needs no bar.
PROGRESS_DELAY_S: Final = 0.5


class Output:
    """How one command prints what it has found or done; commands get it as `out` from `output_option`."""

    def __init__(self, form: str) -> None:
        #: One of `FORMS`.
        self.form = form

    @property
    def is_json(self) -> bool:
        """Whether every line is a JSON object."""
        return self.form == JSON

    def rows(
        self,
        rows: Iterable[Mapping[str, Any]],
        columns: Sequence[str],
        *,
        empty: str,
        wide: Sequence[str] = (),
        name: str = "name",
        readable: Callable[[Any], Mapping[str, Any]] | None = None,
    ) -> None:
        """Print a list.

        Args:
            rows: what JSON shows of each; read only as far as needed.
            columns: what a table shows, the most important first, as the last ones go where room is short.
            empty: what is said when there is nothing.
            wide: columns that only `-o wide` has.
            name: the key whose value `-o name` prints.
            readable: gives of each row what a table shows, if that is another one.
        """
        if self.form == JSON:
            print_json_lines(rows)
        elif self.form == NAME:
            for row in rows:
                click.echo(visible(cell(row[name], "id")))
        else:
            shown = list(rows) if readable is None else [readable(row) for row in rows]
            is_wide = self.form == WIDE
            print_table(shown, (*columns, *wide) if is_wide else columns, empty=empty, is_wide=is_wide)

    def one(self, found: Any, draw: Callable[[Any], None] | None = None) -> None:
        """Print one thing: all of it as JSON, or as `draw` prints it, which is names and values as a rule."""
        if self.is_json:
            print_json(found)
        else:
            (draw or print_attributes)(found)

    def done(self, text: str, result: Any) -> None:
        """Print what was done: a sentence, or its metrics as JSON."""
        if self.is_json:
            print_json(result)
        else:
            click.echo(visible(text))


class _Form(click.ParamType[str]):
    """One of the forms that a command has."""

    name = "form"

    def __init__(self, forms: Sequence[str]) -> None:
        self._forms = forms

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:  # noqa: ARG002 - click's
        """Give what `--help` shows."""
        return f"[{'|'.join(self._forms)}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Give the form; the variable stands for all commands, so one without that form prints its table."""
        if value in self._forms:
            return str(value)
        source = ctx.get_parameter_source(param.name) if ctx and param and param.name else None
        if value in FORMS and source is ParameterSource.ENVIRONMENT:
            return TABLE
        known = self._forms if source is not ParameterSource.ENVIRONMENT else FORMS
        text = f"'{value}' is none of {', '.join(known)}."
        raise click.BadParameter(text, ctx, param)


def output_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `-o` and `--json` to a command that shows one thing; the function gets `out: Output`."""
    return _with_output(function, (TABLE, JSON))


def view_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Do the same for a command that shows one screen, and more with `-o wide`."""
    return _with_output(function, (TABLE, WIDE, JSON))


def list_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `-o` and `--json` to a command that lists things; the function gets `out: Output`."""
    return _with_output(function, FORMS)


def _with_output(function: Callable[..., Any], forms: Sequence[str]) -> Callable[..., Any]:
    def command(*, form: str, as_json: bool, **values: Any) -> Any:
        return function(out=Output(JSON if as_json else form), **values)

    wrapped: Callable[..., Any] = functools.update_wrapper(command, function)
    wrapped = click.option("--json", "as_json", is_flag=True, help="The same as -o json.")(wrapped)
    return setting(
        "-o",
        "--output",
        "form",
        type=_Form(forms),
        envvar="ANGARIUM_OUTPUT",
        default=TABLE,
        help="How to print (ANGARIUM_OUTPUT).",
    )(wrapped)


def to_json(value: Any) -> str:
    """Give a value as one line of JSON; bytes inside become base64."""
    return visible_json(msgspec.json.encode(value).decode())


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    click.echo(to_json(value))


def print_json_lines(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print each row as one line of JSON."""
    for row in rows:
        click.echo(to_json(row))


def print_table(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, empty: str, is_wide: bool = False
) -> None:
    """Print the named columns of all rows, or say why there is nothing to print."""
    if not rows:
        click.echo(empty)
        return
    lines = table(rows, columns, None if is_wide else width())
    click.secho(lines.header, bold=True)
    for line in lines.body:
        click.echo(line)
    if lines.left_out and sys.stderr.isatty():
        click.secho(f"(no room for {', '.join(lines.left_out)}: -o wide or --json)", dim=True, err=True)


def width() -> int:
    """Give the columns that lines may have: those of the terminal, or what every terminal has."""
    return shutil.get_terminal_size((WIDTH, 24)).columns


def print_attributes(values: Mapping[str, Any]) -> None:
    """Print one object as two columns, names and values."""
    print_lines(pairs(values, width()))


def print_exactly(values: Mapping[str, Any]) -> None:
    """Do the same with every number as it was set: who set 10,000,000 bytes does not want to read 9.5 MiB."""
    print_lines(pairs({name: _exact(value) for name, value in values.items()}, width()))


def print_part(name: str, values: Mapping[str, Any]) -> None:
    """Print a part of a view that has several: an empty line, a title, and titles with values below it."""
    click.echo()
    click.secho(name.upper(), bold=True)
    print_metrics(values)


def print_metrics(values: Mapping[str, Any]) -> None:
    """Print metrics as two columns, each title without the unit that its value has."""
    shown = titles(values)
    print_lines(pairs({shown[name]: cell(value, name) for name, value in values.items()}, width()))


def _exact(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:,}" if is_number else value


def print_lines(lines: Iterable[str]) -> None:
    """Print lines."""
    for line in lines:
        click.echo(line)


def telling(values: Mapping[str, Any], *, always: Iterable[str] = ()) -> dict[str, Any]:
    """Leave out what says nothing: metrics of 0 but for some, and megabytes beside the same in bytes."""
    kept = {}
    for name, value in values.items():
        is_twin = name.endswith("_mb") and f"{name.removesuffix('_mb')}_bytes" in values
        if name in always or (value and not is_twin):
            kept[name] = value
    return kept


def write_ready_file(path: str, value: Mapping[str, Any]) -> None:
    """Write a ready file atomically."""
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
    from rich.text import Text

    class RateColumn(ProgressColumn):
        def render(self, task: Task) -> Any:
            return Text(f"{task.speed:,.0f}/s" if task.speed else "")

    return RateColumn()
