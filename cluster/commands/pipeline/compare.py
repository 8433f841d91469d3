"""`angarium pipeline compare`: whether two archives hold the same messages, as an exit code and on the screen.

It ends as `diff` does: 0 equal, 1 different, 2 it could not be told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from angarium.errors import AngariumError
from angarium.pipeline.session import SparkSettings, open_session
from angarium_server.visible import visible
from cluster.commands.pipeline.options import spark_options
from cluster.commands.terminal import output
from cluster.commands.terminal.options import setting
from cluster.commands.terminal.output import Output, output_option
from cluster.commands.terminal.table import cell, counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium.pipeline.compare import Comparison

EXIT_EQUAL: Final = 0
EXIT_DIFFERENT: Final = 1
EXIT_UNKNOWN: Final = 2
_SAMPLES: Final = 10
_SAMPLES_MAX: Final = 1000
#: A value of a sample that is longer is cut in a table; --json has all of it.
_SHOWN_CHARACTERS: Final = 60


@click.command()
@click.argument("left")
@click.argument("right")
@click.option("--ignore", multiple=True, metavar="COLUMN", help="Leave out a column. Repeatable.")
@click.option(
    "--arrival", is_flag=True, help="Compare the columns of the arrival too: queue, position and so on."
)
@click.option("--missing-as-null", is_flag=True, help="Treat a column that one side lacks as NULLs.")
@setting("--samples", type=click.IntRange(0, _SAMPLES_MAX), default=_SAMPLES, help="Show N rows that differ.")
@output_option
@spark_options
def compare(left: str, right: str, *, out: Output, spark: SparkSettings, **wanted: Any) -> int:
    """Compare two archives, or directories of Parquet, row for row.

    The order of rows does not matter, the number of equal rows does. Exit code 0 if they are equal, 1 if they differ, 2
    if that could not be told.
    """
    try:
        with output.progress("comparing", None):
            found = _compared(left, right, spark, **wanted)
    except AngariumError as error:
        click.echo("\n".join(visible(line) for line in str(error).splitlines()), err=True)
        return EXIT_UNKNOWN
    out.one({"left": left, "right": right} | found.to_dict(), lambda _: _show(found))
    return EXIT_EQUAL if found.equal else EXIT_DIFFERENT


def _compared(
    left: str,
    right: str,
    spark: SparkSettings,
    *,
    ignore: Sequence[str],
    arrival: bool,
    missing_as_null: bool,
    samples: int,
) -> Comparison:
    with open_session("compare", spark) as session:
        from angarium.pipeline import compare as job
        from angarium.pipeline.archives import read_rows
        from angarium.pipeline.failures import spark_errors
        from angarium.spark.schema import ARRIVAL

        sides = [read_rows(session, path) for path in (left, right)]
        job.check_ignored(ignore, sides[0].schema, sides[1].schema)
        if missing_as_null:
            sides = [
                job.fill_missing(side, other.schema) for side, other in zip(sides, sides[::-1], strict=True)
            ]
        ignored = {*ignore, *(() if arrival else ARRIVAL)}
        with spark_errors(f"comparing {left} with {right}"):
            return job.compare(sides[0], sides[1], ignored=ignored, samples=samples)


def _show(found: Comparison) -> None:
    columns = found.columns
    rows = f"{counted(found.left_rows, 'row')} left, {counted(found.right_rows, 'row')} right"
    click.echo(f"{'equal' if found.equal else 'different'}: {rows}")
    for side, names in (("left", columns.only_left), ("right", columns.only_right)):
        if names:
            click.echo(f"columns only {side}: {', '.join(visible(name) for name in names)}")
    for name, left, right in columns.retyped:
        click.echo(f"column {visible(name)} is {left} left and {right} right; not compared")
    click.echo(f"left out: {', '.join(visible(name) for name in columns.ignored) or 'nothing'}")
    if not found.only_left and not found.only_right:
        return
    click.echo(
        f"{counted(found.only_left, 'row')} only left, {counted(found.only_right, 'row')} only right; "
        f"of them {counted(found.counted_differently, 'distinct row')} on both sides, but not as often"
    )
    click.echo()
    output.print_table(found.groups, ("topic", "day", "only_left", "only_right"), empty="")
    click.echo()
    shown = [{name: _cut(value) for name, value in row.items()} for row in found.samples]
    for row in shown:
        side = "left " if row["left"] > row["right"] else "right"
        values = (f"{name}={value}" for name, value in row.items() if name not in ("left", "right"))
        click.echo(f"{side} {row['left']}:{row['right']}  {visible('  '.join(values))}")


def _cut(value: Any) -> Any:
    if isinstance(value, int):
        return value
    text = cell(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
