"""`angarium consume`: guaranteed messages of a queue or topic endpoint, printed and settled.

A message is settled when it has been written, so one that was printed halfway comes again. How messages are
printed is in `cluster.commands.messages.sink`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from angarium import wire
from angarium_server.visible import visible
from cluster.commands.connecting.completion import complete_names
from cluster.commands.connecting.connection import ConnectOptions, client_options
from cluster.commands.messages import sink
from cluster.commands.messages.notices import Notices
from cluster.commands.messages.receiving import Received, announce, ready_file, receive, receiving_options
from cluster.commands.terminal.hints import filter_hint, print_hints
from cluster.commands.terminal.interrupt import until_signal
from cluster.commands.terminal.options import setting
from cluster.commands.terminal.output import Output, output_option, progress

if TYPE_CHECKING:
    from angarium import Client, Flow
    from angarium.client.consuming.attributes import EndpointKind
    from cluster.commands.terminal.output import Progress

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
    kind: EndpointKind
    topic: str | None
    quiet: bool


@click.command(epilog=_EXAMPLES)
@click.argument("queue", shell_complete=complete_names("queue"))
@receiving_options("message", ready_when="the queue is bound")
@sink.raw_option
@click.option("--selector", metavar="S", help="Get only messages that match this condition.")
@click.option("--browse", is_flag=True, help="Browse: the messages stay in the queue.")
@setting(
    "--settle",
    type=click.Choice(list(_OUTCOMES)),
    default="accept",
    help="How to settle each message: delete it, have it redelivered, or give it up.",
)
@click.option("--no-ack", is_flag=True, help="Do not settle the messages: they are redelivered later.")
@setting(
    "--window",
    type=click.IntRange(1, 1_000_000),
    default=255,
    help="Messages in flight: delivered and not yet printed.",
)
@click.option("--topic-endpoint", is_flag=True, help="QUEUE is the name of a topic endpoint.")
@click.option("--topic", metavar="FILTER", help="Topic of the topic endpoint.")
@output_option
@client_options
def consume(
    *,
    connect: ConnectOptions,
    raw: bool,
    out: Output,
    settle: str,
    no_ack: bool,
    topic_endpoint: bool,
    **options: Any,
) -> int:
    """Take messages from QUEUE and print them, by default as 'TOPIC PAYLOAD'."""
    if options["topic"] is not None and not topic_endpoint:
        text = "--topic needs --topic-endpoint."
        raise click.UsageError(text)
    print_hints([filter_hint(options["topic"] or "")], quiet=options["quiet"])
    consumption = _Consumption(
        form=sink.choose_format(raw=raw, as_json=out.is_json),
        outcome=None if no_ack or options["browse"] else _OUTCOMES[settle],
        kind="topic-endpoint" if topic_endpoint else "queue",
        **options,
    )
    with ready_file(consumption.ready_file):
        consumed = asyncio.run(_consume(connect, consumption))
    consumed.conclude("consumed", consumption.count, quiet=consumption.quiet)
    return 0


async def _consume(connect: ConnectOptions, consumption: _Consumption) -> Received:
    consumed = Received()
    standby = _Standby(consumption)
    async with (
        await connect.connect(on_event=Notices()) as client,
        await _bind(client, consumption, standby) as flow,
    ):
        standby.bound(flow)
        started = time.monotonic()
        doing = f"{'browsing' if consumption.browse else 'consuming'} {consumption.queue}"
        announce(client, [consumption.queue], consumption.ready_file, doing, quiet=consumption.quiet)
        with progress("consuming", consumption.count) as show:
            finished = await until_signal(
                _print_all(flow, consumption, consumed, show), output=sys.stdout.fileno()
            )
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


async def _print_all(flow: Flow, consumption: _Consumption, consumed: Received, show: Progress) -> None:
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
