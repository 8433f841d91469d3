"""`angarium consume`: guaranteed messages of a queue or topic endpoint, printed and settled.

A message is settled when it has been written, so one that was printed halfway comes again. How messages are
printed is in `cluster.commands.sink`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from angarium import errors, wire
from cluster.commands import sink
from cluster.commands.connection import ConnectOptions, client_options
from cluster.commands.interrupt import until_signal
from cluster.commands.notices import Notices
from cluster.commands.output import counted, progress
from cluster.commands.receiving import announce, receive, withdraw
from cluster.visible import visible

if TYPE_CHECKING:
    from angarium import Client, Flow
    from cluster.commands.output import Progress

_EXAMPLES: Final = """\b
angarium consume orders --count 10
angarium consume orders --browse --selector "region = 'eu'" --idle-timeout 1 --json
angarium consume news --topic-endpoint --topic 'news/>'"""

_EXCLUSIVE: Final = "exclusive"
_OUTCOMES: Final = {
    "accept": wire.OUTCOME_ACCEPTED,
    "fail": wire.OUTCOME_FAILED,
    "reject": wire.OUTCOME_REJECTED,
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Consumption:
    """What to consume, how, and until when."""

    queue: str
    form: sink.Format
    count: int | None
    idle_timeout: float | None
    ready_file: str | None
    selector: str | None
    browse: bool
    #: One of `wire.OUTCOME_...`; None to settle nothing.
    outcome: int | None
    window: int
    kind: str
    topic: str | None


@dataclasses.dataclass(slots=True)
class _Consumed:
    """What came, and why it ended."""

    messages: int = 0
    seconds: float = 0.0
    interrupted: bool = False


@click.command(epilog=_EXAMPLES)
@click.argument("queue")
@click.option("--count", type=click.IntRange(min=1), help="End after so many messages.")
@click.option(
    "--idle-timeout",
    type=click.FloatRange(min=0, min_open=True),
    help="End when no message came for so many seconds, counted from ready and from each message.",
)
@click.option("--ready-file", type=click.Path(dir_okay=False), help="File to write when the queue is bound.")
@click.option("--raw", is_flag=True, help="Print payloads only, each with a line feed.")
@click.option("--selector", metavar="S", help="Get only messages that this condition holds for.")
@click.option("--browse", is_flag=True, help="Look only: the messages stay where they are.")
@click.option(
    "--settle",
    type=click.Choice(list(_OUTCOMES)),
    default="accept",
    show_default=True,
    help="What to say of each message: delete it, deliver it again, or give it up.",
)
@click.option("--no-ack", is_flag=True, help="Say nothing of the messages: they are delivered again later.")
@click.option(
    "--window",
    type=click.IntRange(1, 1_000_000),
    default=255,
    show_default=True,
    help="Messages that may come ahead of being printed.",
)
@click.option("--topic-endpoint", is_flag=True, help="QUEUE is the name of a topic endpoint.")
@click.option("--topic", metavar="FILTER", help="The topic that the topic endpoint attracts.")
@click.option("--json", "as_json", is_flag=True, help="Print each message as one JSON object.")
@client_options
def consume(
    *,
    connect: ConnectOptions,
    raw: bool,
    as_json: bool,
    settle: str,
    no_ack: bool,
    topic_endpoint: bool,
    **options: Any,
) -> int:
    """Take messages from QUEUE and print them, as 'TOPIC PAYLOAD' unless told otherwise."""
    if raw and as_json:
        text = "--raw and --json exclude each other."
        raise click.UsageError(text)
    if options["topic"] is not None and not topic_endpoint:
        text = "--topic needs --topic-endpoint."
        raise click.UsageError(text)
    withdraw(options["ready_file"])
    consumption = _Consumption(
        form=sink.choose_format(raw=raw, as_json=as_json),
        outcome=None if no_ack or options["browse"] else _OUTCOMES[settle],
        kind="topic-endpoint" if topic_endpoint else "queue",
        **options,
    )
    consumed = asyncio.run(_consume(connect, consumption))
    if consumed.interrupted or sys.stderr.isatty():
        click.echo(f"consumed {counted(consumed.messages, 'message')} in {consumed.seconds:.3f} s", err=True)
    count = consumption.count
    if count is not None and consumed.messages < count:
        raise errors.error_for(errors.TIMEOUT, f"{consumed.messages} of {count} messages came")
    return 0


async def _consume(connect: ConnectOptions, consumption: _Consumption) -> _Consumed:
    consumed = _Consumed()
    standby = _Standby(consumption)
    async with (
        await connect.connect(on_event=Notices()) as client,
        await _bind(client, consumption, standby) as flow,
    ):
        standby.bound(flow)
        started = time.monotonic()
        announce(client, [consumption.queue], consumption.ready_file)
        with progress("consuming", consumption.count) as show:
            finished = await until_signal(_print_all(flow, consumption, consumed, show))
        consumed.interrupted = not finished
        consumed.seconds = time.monotonic() - started
    return consumed


class _Standby:
    """Tells on stderr that others get the messages of an endpoint, and when that is over.

    Another consumer of an exclusive endpoint, or a reader group that has leased the queue.
    """

    def __init__(self, consumption: _Consumption) -> None:
        self._consumption = consumption
        self._is_told = False

    def bound(self, flow: Flow) -> None:
        is_exclusive = flow.access_type == _EXCLUSIVE and not self._consumption.browse
        if is_exclusive and not flow.active:
            self._is_told = True
            name = visible(self._consumption.queue)
            click.echo(
                f"standing by: another consumer, or a reader group, gets the messages of {name}", err=True
            )

    def __call__(self, active: bool) -> None:  # noqa: FBT001 - how the SDK calls it
        if active and self._is_told:
            self._is_told = False
            click.echo(f"active: messages of {visible(self._consumption.queue)} come here now", err=True)


async def _bind(client: Client, consumption: _Consumption, on_active: _Standby) -> Flow:
    kind, window, count = consumption.kind, consumption.window, consumption.count
    if consumption.browse:
        return await client.browse(
            consumption.queue, consumption.selector, kind=kind, window=window, max_messages=count
        )
    return await client.consume(
        consumption.queue,
        kind=kind,
        window=window,
        max_messages=count,
        ack="manual",
        selector=consumption.selector,
        topic=consumption.topic,
        on_active=on_active,
    )


async def _print_all(flow: Flow, consumption: _Consumption, consumed: _Consumed, show: Progress) -> None:
    output = sink.Output(sys.stdout.fileno(), consumption.form)
    batches = receive(
        flow.batches(),
        count=consumption.count,
        idle_timeout_s=consumption.idle_timeout,
        on_idle=output.flush,
    )
    async for batch in batches:
        await output.add(batch)
        await output.flush()
        if consumption.outcome is not None:
            batch.settle(consumption.outcome)
        consumed.messages += len(batch)
        show(consumed.messages)
