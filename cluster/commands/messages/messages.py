"""`angarium pub` and `angarium sub`: messages in from a shell, messages out to a shell.

Both are clients of the SDK like any other and work in batches, so that a pipe through them is limited by the
node and not by them. Where messages come from is in `source`, how they are printed in `sink`, how guaranteed
ones are published in `guaranteed.producing`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from angarium import errors, wire
from angarium.message import DeliveryMode, Message, MessageBatch
from cluster.commands.connecting.connection import ConnectOptions, client_options
from cluster.commands.messages import sink, source
from cluster.commands.messages.notices import Notices
from cluster.commands.messages.producing import Produced, Production, produce
from cluster.commands.messages.receiving import Received, announce, ready_file, receive, receiving_options
from cluster.commands.terminal.hints import (
    filter_hint,
    payload_hint,
    print_hints,
    quiet_option,
    topic_hint,
    unread_hint,
)
from cluster.commands.terminal.interrupt import until_signal
from cluster.commands.terminal.options import ABOVE_0, AT_LEAST_0, AT_LEAST_1, setting
from cluster.commands.terminal.output import Output, output_option, print_json, progress
from cluster.commands.terminal.table import counted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from angarium.client.client import Client
    from angarium.slots import Publishable
    from cluster.commands.terminal.output import Progress

#: Messages handed to the SDK in one step: enough that the step costs nothing per message.
BATCH_MESSAGES: Final = 1_000

_PUB_EXAMPLES: Final = """\b
angarium pub news/today 'good morning'
angarium pub sensors/1/state on --retain
angarium pub cameras/3 --file picture.jpg
angarium pub 'rows/{line%8}' --lines rows.csv --rate 5000
angarium pub orders --queue --lines orders.jsonl --producer import --retry-for 600 --acked-file done"""
_SUB_EXAMPLES: Final = """\b
angarium sub 'orders/>' --count 10
angarium sub '#share/workers/jobs/*' --json
angarium sub 'sensors/>' --retained-only"""


@dataclasses.dataclass(slots=True)
class Published:
    """What `pub` reports at its end."""

    published: int = 0
    acknowledged: int = 0
    #: As for guaranteed messages, and always 0.
    unroutable: int = 0
    nacked: int = 0
    #: Direct messages that did not get through a failure; the others did.
    lost: int = 0
    seconds: float = 0.0


def _parse_properties(
    _ctx: click.Context, _option: click.Parameter, values: tuple[str, ...]
) -> dict[str, Any]:
    try:
        return dict(source.parse_property(value) for value in values)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _check_topic(_ctx: click.Context, _argument: click.Parameter, value: str) -> str:
    try:
        source.topic_maker(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return value


def _parse_template(
    _ctx: click.Context, _option: click.Parameter, value: str | None
) -> Callable[[range], Any] | None:
    try:
        return None if value is None else source.topic_maker(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command(epilog=_PUB_EXAMPLES)
@click.argument("topic", callback=_check_topic)
@click.argument("payload", required=False)
@source.file_option
@click.option(
    "--lines",
    metavar="FILE|-",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="Publish each line of a file (- is stdin), as bytes.",
)
@click.option(
    "-n", "--count", type=AT_LEAST_1, help="Publish the payload N times; of --lines the first N lines."
)
@click.option("--rate", type=ABOVE_0, help="Messages per second.  [default: full speed]")
@click.option(
    "--mode",
    type=click.Choice(["direct", "persistent", "non-persistent"]),
    help="Delivery mode.  [default: direct; persistent with --queue, --producer or --acked-file]",
)
@click.option("--queue", is_flag=True, help="TOPIC is the name of a queue.")
@click.option(
    "--dto", is_flag=True, help="Deliver to one: only one of the matching clients gets the message."
)
@click.option("--eliding", is_flag=True, help="A slow client may get only the newest message of the topic.")
@click.option(
    "-r",
    "--retain",
    is_flag=True,
    help="Have the node keep it for later subscribers, until the next one on its topic; without PAYLOAD, remove that.",
)
@setting("--cos", type=click.IntRange(1, 3), default=1, help="Class of service.")
@click.option("--priority", type=click.IntRange(0, 255), help="Message priority.")
@click.option("--ttl-ms", type=AT_LEAST_0, default=0, help="Time to live.  [default: for ever]")
@click.option(
    "--delay-ms", type=AT_LEAST_0, default=0, help="Delay before a queue delivers it.  [default: none]"
)
@click.option(
    "--dmq-eligible/--no-dmq-eligible",
    default=False,
    help="It may move to the dead message queue of an endpoint with respect_dmq_eligible.",
)
@click.option(
    "--partition-key",
    metavar="K",
    callback=_parse_template,
    help="Key that chooses the partition of a queue; it may hold {line} and {line%N}.",
)
@click.option(
    "--property",
    "properties",
    metavar="K=V",
    multiple=True,
    callback=_parse_properties,
    help="User property; V that reads as a JSON number, true or false has that type, a JSON string is text.",
)
@click.option("--reply-to", metavar="TOPIC", help="Topic for replies.")
@click.option("--correlation-id", metavar="ID", help="Correlation id that a reply repeats.")
@click.option(
    "--producer",
    metavar="NAME",
    help="Name of the producer: line K has the sequence that the node knows of it, plus K + 1.",
)
@click.option(
    "--retry-for",
    type=ABOVE_0,
    metavar="S",
    help="Retry with the same sequences until nothing was acknowledged for S seconds.  [default: --timeout]",
)
@click.option(
    "--acked-file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="File to which the number of each acknowledged line is appended; its content is kept, so that an"
    " interrupted publication can be resumed.",
)
@quiet_option
@output_option
@client_options
def pub(
    *,
    connect: ConnectOptions,
    topic: str,
    payload: str | None,
    file: str | None,
    lines: str | None,
    count: int | None,
    rate: float | None,
    mode: str | None,
    queue: bool,
    producer: str | None,
    retry_for: float | None,
    acked_file: str | None,
    quiet: bool,
    out: Output,
    **message: Any,
) -> int:
    """Publish PAYLOAD (default: nothing) to TOPIC.

    TOPIC may hold {line} and {line%N}: the number of the message, counted from 0, and that number modulo N.
    The command fails if the node refuses messages (nacked). Direct messages are delivered at most once: those lost
    in a failure of the node or of the connection are reported and counted. Persistent and non-persistent messages
    are acknowledged when they are stored, and sent again until they are. Unroutable ones are acknowledged too, but
    matched no queue; with reject_no_subscription_match of the client profile they are refused instead.
    """
    if (lines, file, payload).count(None) < 2:
        text = "a PAYLOAD, --file and --lines exclude each other."
        raise click.UsageError(text)
    is_guaranteed = _is_guaranteed(mode, wants=queue or producer is not None or acked_file is not None)
    if not is_guaranteed and (producer is not None or acked_file is not None):
        text = "--producer and --acked-file need --mode persistent or non-persistent."
        raise click.UsageError(text)
    if not queue:
        print_hints([topic_hint(topic)], quiet=quiet)
    hint = unread_hint(0) if payload == file == lines is None else payload_hint(payload)
    print_hints([hint], quiet=quiet)
    origin = _make_source(_open_lines(lines), source.payload_of(payload, file), count)
    keys = message.pop("partition_key")
    options = {name: value for name, value in message.items() if value != _DEFAULTS[name]}
    topics = source.topic_maker(wire.QUEUE_TOPIC_PREFIX + topic if queue else topic)
    publication = _Publication(origin, topics, options, rate, count, keys)
    if is_guaranteed:
        if mode == DeliveryMode.NON_PERSISTENT or options or keys:
            options["mode"] = mode or DeliveryMode.PERSISTENT
        production = Production(producer or "", retry_for, acked_file)
        return _report(out, *asyncio.run(_produce(connect, publication, production)))
    return _report(out, *asyncio.run(_publish(connect, publication, retry_for)))


def _is_guaranteed(mode: str | None, *, wants: bool) -> bool:
    return wants if mode is None else mode != DeliveryMode.DIRECT


def _report(out: Output, result: Published | Produced, failure: Exception | None) -> int:
    """Print the figures, and raise what went wrong."""
    if out.is_json:
        print_json(dataclasses.asdict(result))
    elif isinstance(result, Published):
        click.echo(f"published {counted(result.published, 'message')} in {result.seconds:.3f} s")
    else:
        known = f"{result.acknowledged:,} acknowledged, {result.nacked:,} refused"
        click.echo(f"published {counted(result.published, 'message')} in {result.seconds:.3f} s: {known}")
    if result.unroutable:
        it = "it" if result.unroutable == 1 else "them"
        text = f"{result.unroutable:,} acknowledged, but no queue took {it}: none subscribes to the topic"
        click.echo(f"unroutable: {text}", err=True)
    if isinstance(result, Published) and result.lost:
        lost = counted(result.lost, "message")
        click.echo(f"{lost} lost in a failure of the node or the connection", err=True)
    if failure is not None:
        raise failure
    return 0


def _open_lines(lines: str | None) -> int | None:
    if lines is None:
        return None
    return sys.stdin.fileno() if lines == "-" else os.open(lines, os.O_RDONLY)


def _make_source(descriptor: int | None, payload: bytes, count: int | None) -> source.Source:
    if descriptor is not None:
        return source.LineSource(descriptor, count)
    return source.RepeatSource(payload, 1 if count is None else count)


@dataclasses.dataclass(frozen=True, slots=True)
class _Publication:
    """What to publish, and how fast."""

    origin: source.Source
    topics: Callable[[range], Any]
    #: Arguments of `Message` besides topic and payload, those that are not the default.
    options: dict[str, Any]
    rate: float | None
    total: int | None
    #: Gives the partition keys; None for none.
    keys: Callable[[range], Any] | None = None

    def messages(self, first: int, payloads: list[bytes]) -> Any:
        """Give the messages of some payloads, the first of which has the number `first`."""
        numbers = range(first, first + len(payloads))
        rows = zip(self.topics(numbers), payloads, strict=True)
        if self.keys is not None:
            keyed = zip(rows, self.keys(numbers), strict=True)
            return [Message(*row, partition_key=key, **self.options) for row, key in keyed]
        if not self.options:
            return rows
        return [Message(topic, payload, **self.options) for topic, payload in rows]


_DEFAULTS: Final[dict[str, Any]] = {
    "dto": False,
    "eliding": False,
    "retain": False,
    "cos": 1,
    "priority": None,
    "ttl_ms": 0,
    "delay_ms": 0,
    "dmq_eligible": False,
    "properties": {},
    "reply_to": None,
    "correlation_id": None,
}


async def _produce(
    connect: ConnectOptions, publication: _Publication, production: Production
) -> tuple[Produced, Exception | None]:
    """Publish everything as guaranteed messages; give the figures, and what went wrong if something did."""
    pace = source.Pace(publication.rate, time.monotonic()) if publication.rate else None

    async def next_batch(published: int) -> list[Publishable]:
        wanted = BATCH_MESSAGES if pace is None else await _due(pace, published)
        payloads = await publication.origin.take(wanted)
        return list(publication.messages(published, payloads)) if payloads else []

    return await produce(connect, production, next_batch, publication.total)


async def _publish(
    connect: ConnectOptions, publication: _Publication, retry_for_s: float | None
) -> tuple[Published, Exception | None]:
    """Publish everything; give the figures, and what went wrong if something did."""
    result = Published()
    notices = Notices()
    failure: Exception | None = None
    async with await connect.connect(on_event=notices, retry_for_s=retry_for_s) as client:
        started = time.monotonic()
        try:
            with progress("publishing", publication.total) as show:
                limit_s = retry_for_s or connect.timeout_s
                if not await until_signal(_pump(client, publication, result, show, limit_s)):
                    failure = click.Abort()
            await _flush(client, connect.timeout_s)
        except errors.AngariumError as error:
            failure = error
        result.seconds = round(time.monotonic() - started, 6)
        stats = client.stats
        result.published = stats["published_messages"]
        result.lost = notices.lost + stats["lost_messages"]
    result.nacked = notices.refused
    return result, failure or notices.refusal()


async def _flush(client: Client, timeout_s: float) -> None:
    """Wait until everything is through, or lost with its connection, which is counted and no failure."""
    try:
        await client.flush(timeout_s=timeout_s)
    except errors.ConnectionLostError:
        if not client.connected:
            raise


async def _pump(
    client: Client, publication: _Publication, result: Published, show: Progress, timeout_s: float
) -> None:
    pace = source.Pace(publication.rate, time.monotonic()) if publication.rate else None
    while True:
        wanted = BATCH_MESSAGES if pace is None else await _due(pace, result.published)
        payloads = await publication.origin.take(wanted)
        if not payloads:
            return
        await _publish_batch(client, publication.messages(result.published, payloads), timeout_s)
        result.published += len(payloads)
        show(result.published)


async def _publish_batch(client: Client, messages: Any, timeout_s: float) -> None:
    """Publish a batch; a node that takes none of it for so long is not worth waiting for."""
    try:
        async with asyncio.timeout(timeout_s):
            await client.publish_many(messages, timeout_s=timeout_s)
    except errors.AngariumError:
        raise
    except TimeoutError:
        detail = f"the node took no messages for {timeout_s:g} s"
        raise errors.error_for(errors.TIMEOUT, detail) from None


async def _due(pace: source.Pace, sent: int) -> int:
    """Wait until messages are due and give how many, at most one batch."""
    while not (due := pace.due(time.monotonic(), sent)):
        await asyncio.sleep(pace.wait_s(time.monotonic(), sent))
    return min(due, BATCH_MESSAGES)


@click.command(epilog=_SUB_EXAMPLES)
@click.argument("filters", metavar="FILTER...", nargs=-1, required=True)
@receiving_options("message", ready_when="the subscriptions are in effect")
@sink.raw_option
@setting(
    "--priority",
    type=click.IntRange(1, 4),
    default=1,
    help="Local priority for deliver-to-one messages (--dto) of this node; 1 is highest.",
)
@setting(
    "--network-priority",
    type=click.IntRange(1, 4),
    default=1,
    help="Network priority, for deliver-to-one messages of other nodes.",
)
@click.option(
    "--da", "deliver_always", is_flag=True, help="Deliver always: get deliver-to-one messages in any case."
)
@click.option("--no-local", is_flag=True, help="Do not get messages that this client publishes.")
@click.option("--retained", is_flag=True, help="First print what the node retains of each FILTER.")
@click.option("--retained-only", is_flag=True, help="Print what the node retains of each FILTER, and end.")
@output_option
@client_options
def sub(*, connect: ConnectOptions, raw: bool, out: Output, count: int | None, **options: Any) -> int:
    """Subscribe to each FILTER and print messages as they arrive, by default as 'TOPIC PAYLOAD'."""
    print_hints(map(filter_hint, options["filters"]), quiet=options["quiet"])
    form = sink.choose_format(raw=raw, as_json=out.is_json)
    with ready_file(options["ready_file"]):
        received = asyncio.run(_subscribe(connect, _Reception(form=form, count=count, **options)))
    if received.discarded:
        text = f"{received.discarded:,} messages were discarded on the way to this client: it was too slow."
        click.echo(text, err=True)
    received.conclude("received", count, quiet=options["quiet"])
    return 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Reception:
    """What to subscribe to, and until when."""

    filters: tuple[str, ...]
    form: sink.Format
    count: int | None
    idle_timeout: float | None
    ready_file: str | None
    priority: int
    network_priority: int
    deliver_always: bool
    no_local: bool
    retained: bool
    retained_only: bool
    quiet: bool


async def _subscribe(connect: ConnectOptions, reception: _Reception) -> Received:
    received = Received()
    notices = Notices()
    async with await connect.connect(
        local_priority=reception.priority,
        network_priority=reception.network_priority,
        no_local=reception.no_local,
        on_event=notices,
    ) as client:
        batches: AsyncIterator[Any]
        if reception.retained_only:
            batches, doing = _retained(client, reception.filters), "reading"
        else:
            subscription = await client.subscribe(
                reception.filters, deliver_always=reception.deliver_always, retained=reception.retained
            )
            batches, doing = subscription.batches(), f"subscribed to {' '.join(reception.filters)}"
        started = time.monotonic()
        announce(client, reception.filters, reception.ready_file, doing, quiet=reception.quiet)
        output = sink.Output(sys.stdout.fileno(), reception.form)
        try:
            finished = await until_signal(
                _print_all(batches, reception, output, received), output=sys.stdout.fileno()
            )
        finally:
            await output.flush()
        received.interrupted = not finished
        received.seconds = time.monotonic() - started
        received.discarded = notices.discarded
    return received


async def _retained(client: Client, filters: tuple[str, ...]) -> AsyncIterator[MessageBatch]:
    """Give what the node retains, for one filter after the other."""
    for text in dict.fromkeys(filters):
        async for batch in client.retained_batches(text):
            yield batch


async def _print_all(
    batches: AsyncIterator[Any], reception: _Reception, output: sink.Output, received: Received
) -> None:
    batches = receive(
        batches,
        count=reception.count,
        idle_timeout_s=reception.idle_timeout,
        on_idle=output.flush,
    )
    async for batch in batches:
        await output.add(batch)
        received.messages += len(batch)
