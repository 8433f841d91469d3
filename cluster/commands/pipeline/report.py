"""`angarium pipeline report`: what a stream of messages was like, on the terminal, as a page, JSON and Parquet."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from angarium.pipeline.session import SparkSettings, open_session
from cluster.commands import output
from cluster.commands.pipeline.options import spark_options

if TYPE_CHECKING:
    from angarium.pipeline.report.job import ReportOptions

#: As in `figures.TOP`, `job.LATE_MS` and `numbering.REORDER`, which are loaded when the job runs.
_TOP: Final = 20
_LATE_S: Final = 60.0
_REORDER: Final = 1000
#: Beyond that nobody reads a table, and the driver would hold it all.
_TOP_MAX: Final = 1000
_REORDER_MAX: Final = 1_000_000


@click.command()
@click.argument("archive")
@click.option(
    "--window",
    type=click.IntRange(1),
    metavar="S",
    help="Seconds in a window.  [default: all windows fit on a page]",
)
@click.option(
    "--late-after",
    type=click.FloatRange(0),
    default=_LATE_S,
    show_default=True,
    metavar="S",
    help="A message that was spooled so many seconds after it was sent is late.",
)
@click.option(
    "--top",
    type=click.IntRange(1, _TOP_MAX),
    default=_TOP,
    show_default=True,
    help="Name so many topics and clients.",
)
@click.option("--sequence-per-topic", is_flag=True, help="Publishers number each topic on its own.")
@click.option(
    "--reorder",
    type=click.IntRange(1, _REORDER_MAX),
    default=_REORDER,
    show_default=True,
    help="A number that lies so far below the highest one begins a new numbering.",
)
@click.option("--html", metavar="FILE", help="Write the report as one HTML page with charts.")
@click.option("--title", help="Title of the page.  [default: Report on ARCHIVE]")
@click.option(
    "--output",
    "output_path",
    metavar="DIR",
    help="Write all tables as Parquet, replacing those of a report before.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@spark_options
def report(archive: str, *, spark: SparkSettings, as_json: bool, **wanted: Any) -> None:
    """Tell what the messages of an archive, or of a directory of Parquet, were like.

    Rates, sizes, latency and losses by topic and client (sender id), and gaps and duplicates in the numbering of each
    publisher.
    """
    figures = _figures(archive, spark, **wanted)
    if output.wants_json(as_json):
        output.print_json(figures)
    else:
        from cluster.commands.pipeline.report_view import view

        output.draw(view(figures))


def _figures(
    archive: str,
    spark: SparkSettings,
    *,
    html: str | None,
    title: str | None,
    output_path: str | None,
    **wanted: Any,
) -> dict[str, Any]:
    with open_session("report", spark) as session, output.progress("report", None):
        from angarium.pipeline.report import job
        from angarium.pipeline.report.figures import collect_figures
        from angarium.pipeline.report.page import render_page
        from angarium.pipeline.rows import read_rows, spark_errors

        messages = read_rows(session, archive)
        with spark_errors(archive), job.report_on(messages, _options(**wanted), read_once=False) as tables:
            figures = collect_figures(tables, wanted["top"])
            if output_path is not None:
                job.write_tables(tables, output_path)
    if html is not None:
        page = render_page(
            figures,
            title=title or f"Report on {archive}",
            source=f"Archive {archive}",
            made_ms=int(time.time() * 1000),
        )
        job.write_file(html, page)
        click.echo(f"wrote {html}", err=True)
    return figures


def _options(
    *, window: int | None, late_after: float, top: int, sequence_per_topic: bool, reorder: int
) -> ReportOptions:
    from angarium.pipeline.report.job import ReportOptions

    return ReportOptions(
        window_s=window,
        late_ms=round(late_after * 1000),
        top=top,
        by_topic=sequence_per_topic,
        reorder=reorder,
    )
