"""`angarium pipeline archive`: queues to Parquet, each message once."""

from __future__ import annotations

import dataclasses
from typing import Any

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
from cluster.commands.terminal.options import AT_LEAST_1, options, setting
from cluster.commands.terminal.output import Output, output_option
from cluster.commands.terminal.table import counted

#: Add what is archived, and when.
_source_options = options(
    click.option("--queue", "queues", multiple=True, metavar="QUEUE", help="Queue to archive. Repeatable."),
    click.option(
        "--topic",
        "topics",
        multiple=True,
        metavar="FILTER",
        help="Topic filter instead, for which a durable queue is created and kept. Repeatable.",
    ),
    setting(
        "--trigger",
        type=click.Choice(TRIGGERS),
        default=AVAILABLE_NOW,
        help=f"Drain what is there and end; do so in one batch; or {CONTINUOUS}, until SIGINT or SIGTERM.",
    ),
    setting(
        "--interval",
        type=click.FloatRange(min=0.0),
        default=10.0,
        help=f"Seconds between the starts of batches, for --trigger {CONTINUOUS}.",
    ),
    click.option(
        "--start",
        metavar="PLACE",
        help="Start of the first run: earliest, latest or a time such as 2026-03-01T12:00:00Z."
        "  [default: earliest]",
    ),
    click.option(
        "--accept-loss", is_flag=True, help="Continue although messages were lost before they were archived."
    ),
)


#: Add how the archive is to look.
_archive_options = options(
    setting(
        "--levels",
        type=click.IntRange(0, LEVELS_MAX),
        default=1,
        help="Leading levels of topics that become directories.",
    ),
    setting(
        "--max-directories",
        type=AT_LEAST_1,
        default=DIRECTORIES_MAX,
        help="Directories by topic; topics beyond share one.",
    ),
    setting(
        "--batch-messages",
        type=AT_LEAST_1,
        default=BATCH_MESSAGES,
        help="Messages in one batch at most.",
    ),
    click.option("--batch-bytes", type=AT_LEAST_1, help="Bytes in one batch, about."),
    click.option("--compact", is_flag=True, help="Merge small files of the archive at the end."),
    click.option(
        "--name",
        default="",
        metavar="NAME",
        help="Checkpoint inside the archive, one for each set of queues.  [default: made from their names]",
    ),
)


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
