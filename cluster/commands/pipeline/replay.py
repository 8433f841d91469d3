"""`angarium pipeline replay`: messages of an archive to topics or a queue."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from angarium.pipeline.replay import Replayed, ReplayJob
from angarium.pipeline.selection import Selection, moment
from angarium.pipeline.session import SparkSettings, open_session
from cluster.commands.pipeline.options import check_target, node_options, spark_options, told_to_stop
from cluster.commands.terminal import output
from cluster.commands.terminal.output import Output, output_option
from cluster.commands.terminal.table import counted


@click.command()
@click.argument("path", metavar="ARCHIVE")
@click.option("--queue", metavar="QUEUE", help="Queue to send to.  [default: the topics of the messages]")
@click.option("--topic-prefix", default="", metavar="TEXT", help="Put this before each topic, as 'again/'.")
@click.option(
    "--since", metavar="TIME", help="Messages stored at this time or later, as 2026-03-01T12:00:00Z."
)
@click.option("--until", metavar="TIME", help="Messages stored before this time.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="FILTER",
    help="Messages that match a topic filter. Repeatable: one is enough.",
)
@click.option(
    "--from-queue",
    "queues",
    multiple=True,
    metavar="QUEUE",
    help="Messages that were archived from a queue. Repeatable.",
)
@click.option(
    "--speed",
    type=click.FloatRange(min=0.0, min_open=True),
    help="Speed: 1 keeps the original timing, 2 is twice as fast.  [default: as fast as possible]",
)
@click.option("--again", is_flag=True, help="Start another replay if this one is finished.")
@output_option
@spark_options
@node_options
def replay(path: str, *, node: dict[str, str], spark: SparkSettings, out: Output, **values: Any) -> None:
    """Publish messages of an archive again, in the order in which they were stored, each exactly once.

    The same command again goes on with a replay that was killed or stopped, and does nothing when it is finished;
    --again begins another one.

    \b
        angarium pipeline replay ./archive --queue rerun --since 2026-03-01 --until 2026-03-02
        angarium pipeline replay ./archive --topic 'orders/>' --topic-prefix again/ --speed 10
    """  # noqa: D301 - click looks for the character that \b stands for
    job = _job(path, node, **values)
    job.validate()
    check_target(node, job.queue)
    with open_session("replay", spark) as session, told_to_stop() as stop:
        from angarium.pipeline.replay import replay as run

        with output.progress("replaying", None) as show:
            done = run(session, job, show, stop)
    out.one(dataclasses.asdict(done), lambda _: _print(done))


def _job(
    path: str,
    node: dict[str, str],
    *,
    since: str | None,
    until: str | None,
    topics: tuple[str, ...],
    queues: tuple[str, ...],
    **values: Any,
) -> ReplayJob:
    selection = Selection(
        since=None if since is None else moment(since),
        until=None if until is None else moment(until),
        topics=topics,
        queues=queues,
    )
    return ReplayJob(path=path, selection=selection, options=dict(node), **values)


def _print(done: Replayed) -> None:
    if done.finished and not done.messages:
        before = counted(done.messages_before, "message")
        click.echo(f"this replay is finished, {before} were sent; --again begins another one")
        return
    before = f", {done.messages_before:,} by earlier runs" if done.messages_before else ""
    click.echo(f"{counted(done.messages, 'message')} sent in {done.seconds:.1f} s{before}")
    if not done.finished:
        click.echo("not finished: the same command goes on")
