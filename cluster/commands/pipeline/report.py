"""`angarium pipeline report`: what a stream of messages was like, on the terminal, as a page, JSON and Parquet."""

from __future__ import annotations

import functools
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from angarium.pipeline.session import SparkSettings, open_session
from cluster.commands.pipeline.options import check_sources, node_options, spark_options, told_to_stop
from cluster.commands.terminal import output, screen
from cluster.commands.terminal.options import options, setting
from cluster.commands.terminal.output import Output, output_option

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Event

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from angarium.pipeline.report.figures import Tables
    from angarium.pipeline.report.job import ReportOptions
    from angarium.pipeline.report.live import LiveReport

#: As in `figures.TOP`, `job.LATE_MS` and `numbering.REORDER`, which are loaded when the job runs.
_TOP: Final = 20
_LATE_S: Final = 60.0
_REORDER: Final = 1000
_INTERVAL_S: Final = 10.0
_WATERMARK_S: Final = 600.0
#: Beyond that nobody reads a table, and the driver would hold it all.
_TOP_MAX: Final = 1000
_REORDER_MAX: Final = 1_000_000
#: So often the command looks whether it was told to stop, and then whether Spark is between two batches.
_LOOK_S: Final = 1
_LOOK_BETWEEN_S: Final = 0.02
#: A batch that takes longer is done again by the next run.
_LAST_BATCH_S: Final = 120.0


#: Add what the report is to be like.
_wanted_options = options(
    click.option(
        "--window",
        type=click.IntRange(1),
        metavar="S",
        help="Seconds in a window.  [default: all windows fit on a page; 60 with --follow]",
    ),
    setting(
        "--late-after",
        type=click.FloatRange(0),
        default=_LATE_S,
        metavar="S",
        help="A message that was spooled so many seconds after it was sent is late.",
    ),
    setting(
        "--top",
        type=click.IntRange(1, _TOP_MAX),
        default=_TOP,
        help="Name so many topics and clients.",
    ),
    click.option("--sequence-per-topic", is_flag=True, help="Publishers number each topic on its own."),
    setting(
        "--reorder",
        type=click.IntRange(1, _REORDER_MAX),
        default=_REORDER,
        help="A number this far below the highest one starts a new numbering.",
    ),
)


#: Add when a live report is updated.
_follow_options = options(
    click.option(
        "-f", "--follow", is_flag=True, help="Update the report with new messages, until SIGINT or SIGTERM."
    ),
    click.option("--consume", is_flag=True, help="With --follow: remove counted messages from the queues."),
    setting(
        "--interval",
        type=click.FloatRange(min=0.0),
        default=_INTERVAL_S,
        metavar="S",
        help="With --follow: seconds between updates.",
    ),
    setting(
        "--watermark",
        type=click.FloatRange(min=0.0),
        default=_WATERMARK_S,
        metavar="S",
        help="With --follow: seconds that a window waits for late messages.",
    ),
    click.option(
        "--checkpoint",
        metavar="DIR",
        help="With --follow: continue the report in this directory.  [default: begin a new one]",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sinks:
    """Where a report goes besides the terminal."""

    html: str | None
    title: str | None
    output_path: str | None
    #: What the figures are of.
    source: str
    refresh_s: float | None = None

    def write(self, tables: Tables, figures: dict[str, Any]) -> None:
        from angarium.pipeline.report import job
        from angarium.pipeline.report.page import render_page

        if self.output_path is not None:
            job.write_tables(tables, self.output_path)
        if self.html is not None:
            page = render_page(
                figures,
                title=self.title or f"Report on {self.source}",
                source=self.source,
                made_ms=int(time.time() * 1000),
                refresh_s=self.refresh_s,
            )
            job.write_file(self.html, page)


@click.command()
@click.argument("archive", required=False)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="QUEUE",
    help="Queue or dead message queue instead. Repeatable.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="FILTER",
    help="With --follow: topic filter instead, for which a durable queue is made and kept. Repeatable.",
)
@_wanted_options
@_follow_options
@click.option("--html", metavar="FILE", help="Write the report as one HTML page with charts.")
@click.option("--title", help="Title of the page.  [default: what the report is on]")
@click.option(
    "--tables",
    "output_path",
    metavar="DIR",
    help="Write all tables as Parquet, replacing those of a report before.",
)
@output_option
@spark_options
@node_options
def report(
    archive: str | None,
    *,
    queues: tuple[str, ...],
    topics: tuple[str, ...],
    follow: bool,
    consume: bool,
    **values: Any,
) -> None:
    """Analyse the messages of an archive, a queue or a stream.

    Rates, sizes, latency and losses by topic and client (sender id), and gaps and duplicates in the numbering of each
    publisher. ARCHIVE may be any directory of Parquet with the columns of an archive. A queue is looked through and
    keeps its messages, but for --follow, which counts each message once and so takes it.

    \b
        angarium pipeline report ./archive --html report.html
        angarium pipeline report --queue orders --queue '#DEAD_MSG_QUEUE'
        angarium pipeline report --topic 'orders/>' --follow --html live.html
    """  # noqa: D301 - click looks for the character that \b stands for
    _check(archive, queues, topics, follow=follow, consume=consume)
    sources = [f"archive {archive}"] if archive else [f"queue {name}" for name in queues]
    source = ", ".join(sources or [f"topics {' '.join(topics)}"])
    if not archive:
        check_sources(values["node"], queues)
    if follow:
        _follow(queues, topics, source, **values)
    else:
        _report(archive, queues, source, **values)


def _check(
    archive: str | None, queues: tuple[str, ...], topics: tuple[str, ...], *, follow: bool, consume: bool
) -> None:
    if sum(map(bool, (archive, queues, topics))) != 1:
        raise click.UsageError(
            "name an ARCHIVE, or queues by --queue, or topic filters by --topic; one of the three"
        )
    if topics and not follow:
        raise click.UsageError(
            "--topic is for --follow: what was published before is in no queue of the report"
        )
    if archive and follow:
        raise click.UsageError(
            "--follow is for --queue and --topic; an archive is complete when its job says so"
        )
    if queues and follow and not consume:
        raise click.UsageError(
            "--follow takes messages out of the queues; say --consume, or use --topic instead"
        )


def _report(
    archive: str | None,
    queues: tuple[str, ...],
    source: str,
    *,
    node: dict[str, str],
    spark: SparkSettings,
    out: Output,
    **values: Any,
) -> None:
    sinks, options = _taken_apart(source, values)
    with open_session("report", spark) as session, output.progress("report", None):
        from angarium.pipeline.failures import spark_errors
        from angarium.pipeline.report.figures import collect_figures
        from angarium.pipeline.report.job import report_on

        with spark_errors(source):
            messages = _messages(session, archive, queues, node)
            with report_on(messages, options, read_once=archive is None) as tables:
                figures = collect_figures(tables, options.top)
                sinks.write(tables, figures)
    out.one(figures, _print_metrics)


def _print_metrics(figures: dict[str, Any]) -> None:
    from cluster.commands.pipeline.report_view import view

    for line in view(figures, output.width()):
        click.echo(line)


def _messages(
    session: SparkSession, archive: str | None, queues: tuple[str, ...], node: dict[str, str]
) -> DataFrame:
    if archive is not None:
        from angarium.pipeline.archives import read_rows

        return read_rows(session, archive)
    import angarium.spark
    from angarium.spark.options import list_text

    angarium.spark.register(session)
    return session.read.format("angarium").options(**node).option("queue", list_text(queues)).load()


def _follow(
    queues: tuple[str, ...],
    topics: tuple[str, ...],
    source: str,
    *,
    node: dict[str, str],
    spark: SparkSettings,
    out: Output,
    interval: float,
    watermark: float,
    checkpoint: str | None,
    **values: Any,
) -> None:
    sinks, options = _taken_apart(source, values, refresh_s=interval)
    with (
        tempfile.TemporaryDirectory(prefix="angarium-report-") as folder,
        open_session("report", spark) as session,
        told_to_stop() as stop,
        screen.live() as draw,
    ):
        import angarium.spark
        from angarium.pipeline.dataset.files import files_of
        from angarium.pipeline.failures import spark_errors
        from angarium.pipeline.report.live import LiveOptions, LiveReport, follow
        from angarium.spark.options import list_text

        angarium.spark.register(session)
        wanted = {"queue": list_text(queues)} if queues else {"topics": list_text(topics)}
        live = LiveOptions(checkpoint=checkpoint or folder, trigger_s=interval, watermark_s=watermark)
        stream = session.readStream.format("angarium").options(**node, **wanted).load()
        show = output.print_json if out.is_json else functools.partial(_draw, draw)
        take = functools.partial(_update, sinks, options, show)
        # Two runs would write the state of the same batch into the same files.
        with spark_errors(source), files_of(session, live.checkpoint).hold("running"):
            kept = LiveReport(session, options, live)
            _wait(follow(stream, kept, live, take), kept, stop)


def _update(
    sinks: _Sinks,
    options: ReportOptions,
    show: Callable[[dict[str, Any]], None],
    tables: Tables,
    behind: int,
) -> None:
    from angarium.pipeline.report.figures import collect_figures

    figures = collect_figures(tables, options.top) | {"behind_watermark": behind}
    sinks.write(tables, figures)
    show(figures)


def _draw(draw: Callable[[list[str]], None], figures: dict[str, Any]) -> None:
    from cluster.commands.pipeline.report_view import view

    draw(view(figures, output.width()))


def _wait(query: StreamingQuery, live: LiveReport, stop: Event) -> None:
    """Wait for the end of a query; told to stop, end it when its batch is shown."""
    while query.isActive and not stop.is_set():
        query.awaitTermination(_LOOK_S)
    until = time.monotonic() + _LAST_BATCH_S
    while query.isActive and live.is_busy and time.monotonic() < until:
        time.sleep(_LOOK_BETWEEN_S)
    query.stop()
    if not stop.is_set():
        query.awaitTermination()  # Raises what it failed with.


def _taken_apart(
    source: str, values: dict[str, Any], refresh_s: float | None = None
) -> tuple[_Sinks, ReportOptions]:
    from angarium.pipeline.report.job import ReportOptions

    sinks = _Sinks(
        html=values["html"],
        title=values["title"],
        output_path=values["output_path"],
        source=source,
        refresh_s=refresh_s,
    )
    options = ReportOptions(
        window_s=values["window"],
        late_ms=round(values["late_after"] * 1000),
        top=values["top"],
        by_topic=values["sequence_per_topic"],
        reorder=values["reorder"],
    )
    return sinks, options
