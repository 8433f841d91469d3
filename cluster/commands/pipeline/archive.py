"""`angarium pipeline archive`: queues to Parquet, each message once."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from angarium.pipeline.archive import (
    AVAILABLE_NOW,
    BATCH_MESSAGES,
    CONTINUOUS,
    TRIGGERS,
    Archived,
    ArchiveJob,
)
from angarium.pipeline.dataset.layout import DIRECTORIES_MAX, LEVELS_MAX
from angarium.pipeline.session import SparkSettings, open_session
from cluster.commands.pipeline.options import check_sources, node_options, spark_options, told_to_stop
from cluster.commands.terminal import output
from cluster.commands.terminal.output import Output, output_option
from cluster.commands.terminal.table import counted

if TYPE_CHECKING:
    from collections.abc import Callable


def _source_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add what is archived, and when."""
    for option in reversed(
        (
            click.option(
                "--queue", "queues", multiple=True, metavar="QUEUE", help="Queue to archive. Repeatable."
            ),
            click.option(
                "--topic",
                "topics",
                multiple=True,
                metavar="FILTER",
                help="Topic filter instead, for which a durable queue is created and kept. Repeatable.",
            ),
            click.option(
                "--trigger",
                type=click.Choice(TRIGGERS),
                default=AVAILABLE_NOW,
                show_default=True,
                help=f"Drain what is there and end; do so in one batch; or {CONTINUOUS}, until SIGINT or SIGTERM.",
            ),
            click.option(
                "--interval",
                type=click.FloatRange(min=0.0),
                default=10.0,
                show_default=True,
                help=f"Seconds between the starts of batches, for --trigger {CONTINUOUS}.",
            ),
            click.option(
                "--start",
                metavar="PLACE",
                help="Start of the first run: earliest, latest or a time such as 2026-03-01T12:00:00Z."
                "  [default: earliest]",
            ),
            click.option(
                "--accept-loss",
                is_flag=True,
                help="Continue although messages were lost before they were archived.",
            ),
        )
    ):
        function = option(function)
    return function


def _archive_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add how the archive is to look."""
    for option in reversed(
        (
            click.option(
                "--levels",
                type=click.IntRange(0, LEVELS_MAX),
                default=1,
                show_default=True,
                help="Leading levels of topics that become directories.",
            ),
            click.option(
                "--max-directories",
                type=click.IntRange(min=1),
                default=DIRECTORIES_MAX,
                show_default=True,
                help="Directories by topic; topics beyond share one.",
            ),
            click.option(
                "--batch-messages",
                type=click.IntRange(min=1),
                default=BATCH_MESSAGES,
                show_default=True,
                help="Messages in one batch at most.",
            ),
            click.option("--batch-bytes", type=click.IntRange(min=1), help="Bytes in one batch, about."),
            click.option("--compact", is_flag=True, help="Merge small files of the archive at the end."),
            click.option(
                "--name",
                default="",
                metavar="NAME",
                help="Checkpoint inside the archive, one for each set of queues.  [default: made from their names]",
            ),
        )
    ):
        function = option(function)
    return function


@click.command()
@click.argument("path", metavar="ARCHIVE")
@_source_options
@_archive_options
@output_option
@spark_options
@node_options
def archive(path: str, *, node: dict[str, str], spark: SparkSettings, out: Output, **values: Any) -> None:
    """Archive queues as Parquet, each message exactly once, and delete it from its queue.

    ARCHIVE is a directory, here or on any file system that Spark knows and that renames files in one step. The same
    command again goes on where the last one ended, however that was. While it runs the queues are leased to it: other
    consumers stand by.

    \b
        angarium pipeline archive ./archive --queue orders
        angarium pipeline archive hdfs://host/archive --topic 'orders/>' --trigger continuous --master yarn
    """  # noqa: D301 - click looks for the character that \b stands for
    job = _job(path, node, **values)
    job.validate()
    check_sources(node, job.queues)
    with open_session("archive", spark) as session, told_to_stop() as stop:
        from angarium.pipeline.archive import archive as run

        with output.progress("archiving", None) as show:
            done = run(session, job, show, stop)
    out.one(dataclasses.asdict(done), lambda _: _print(done))


def _job(
    path: str,
    node: dict[str, str],
    *,
    interval: float,
    max_directories: int,
    start: str | None,
    accept_loss: bool,
    **values: Any,
) -> ArchiveJob:
    options = dict(node)
    if start is not None:
        options["startingPosition"] = start
    if accept_loss:
        options["failOnDataLoss"] = "false"
    return ArchiveJob(
        path=path, options=options, interval_s=interval, directories_max=max_directories, **values
    )


def _print(done: Archived) -> None:
    batches = f"{done.batches:,} {'batch' if done.batches == 1 else 'batches'}"
    click.echo(f"{counted(done.messages, 'message')} in {batches}: {done.archive}")
    if done.files_before_compaction:
        after = counted(done.files_after_compaction, "file")
        click.echo(f"{counted(done.files_before_compaction, 'small file')} became {after}")
    if not done.released:
        click.echo("the queues stay leased: run the same command again to finish the batch that was cut off")
