"""`angarium request` and `angarium reply`: ask from a shell, and answer with the output of any program.

A reply runs its command once per request, the payload on its standard input; what it prints is the answer.
Commands run beside each other up to a limit, and are ended when they take too long: one that hangs costs its
own request only. A command that fails is answered too, with what it printed and its exit status in the
property `exit_status`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shlex
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from angarium import errors
from angarium_server.visible import visible, visible_payload
from cluster.commands.connecting.connection import ConnectOptions, client_options
from cluster.commands.messages import sink, source
from cluster.commands.messages.notices import Notices
from cluster.commands.messages.receiving import announce, ready_file, receive, receiving_options
from cluster.commands.terminal.hints import filter_hint, payload_hint, print_hints
from cluster.commands.terminal.interrupt import until_signal
from cluster.commands.terminal.options import ABOVE_0, setting
from cluster.commands.terminal.output import Output, output_option, print_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from angarium.client.client import Client
    from angarium.client.subscribing.subscription import Subscription
    from angarium.message import Message

#: Answering is mostly waiting for programs; more of them at a time would rather slow each other down.
DEFAULT_PARALLEL: Final = 4
DEFAULT_EXEC_TIMEOUT_S: Final = 30.0
#: The property of a reply that holds the exit status of a command that failed.
EXIT_STATUS: Final = "exit_status"
#: The exit status that shells give for a command that was ended because it took too long.
STATUS_TIMED_OUT: Final = 124

_REPLY_EXAMPLES: Final = """\b
angarium reply text/upper --exec 'tr a-z A-Z'
angarium request text/upper hello"""


@click.command()
@click.argument("topic")
@click.argument("payload", required=False)
@source.file_option
@output_option
@client_options
def request(
    *, connect: ConnectOptions, topic: str, payload: str | None, file: str | None, out: Output
) -> None:
    """Send PAYLOAD to TOPIC and print the reply; --timeout limits the wait."""
    if payload is not None and file is not None:
        text = "a PAYLOAD and --file exclude each other."
        raise click.UsageError(text)
    print_hints([payload_hint(payload)], quiet=out.is_json)
    sent = source.payload_of(payload, file)
    started = time.monotonic()
    answer = asyncio.run(_request(connect, topic, sent))
    if out.is_json:
        print_json({**sink.as_dict(answer), "seconds": round(time.monotonic() - started, 6)})
    else:
        shown = visible_payload(answer.payload) if sys.stdout.isatty() else answer.payload
        sys.stdout.buffer.write(shown.removesuffix(b"\n") + b"\n")
        sys.stdout.buffer.flush()
    status = answer.properties.get(EXIT_STATUS)
    if status is not None:
        raise errors.error_for(errors.INTERNAL, f"the command that answered ended with exit status {status}")


async def _request(connect: ConnectOptions, topic: str, payload: bytes) -> Message:
    async with await connect.connect() as client:
        return await client.request(topic, payload, timeout_s=connect.timeout_s)


def _parse_command(_ctx: click.Context, _option: click.Parameter, value: str) -> list[str]:
    try:
        words = shlex.split(value)
    except ValueError as error:
        text = f"{value!r}: {error}"
        raise click.BadParameter(text) from None
    if not words or shutil.which(words[0]) is None:
        text = f"there is no program {words[0] if words else value!r}."
        raise click.BadParameter(text)
    return words


@click.command(epilog=_REPLY_EXAMPLES)
@click.argument("filter_text", metavar="FILTER")
@click.option(
    "--exec",
    "command",
    metavar="CMD",
    required=True,
    callback=_parse_command,
    help="Program with arguments; the payload is its standard input.",
)
@setting(
    "--exec-timeout",
    type=ABOVE_0,
    default=DEFAULT_EXEC_TIMEOUT_S,
    help="Seconds after which a program is killed.",
)
@setting(
    "--parallel",
    type=click.IntRange(1, 256),
    default=DEFAULT_PARALLEL,
    help="Programs that run at the same time.",
)
@receiving_options("request", ready_when="the subscription is in effect")
@output_option
@client_options
def reply(*, connect: ConnectOptions, out: Output, **options: Any) -> int:
    """Answer each request that matches FILTER with the output of a program.

    The program gets the topic in ANGARIUM_TOPIC and the correlation id in ANGARIUM_CORRELATION_ID.
    """
    print_hints([filter_hint(options["filter_text"])], quiet=options["quiet"])
    answering = Answering(**options, show=print_json if out.is_json else _show_line)
    with ready_file(options["ready_file"]):
        asyncio.run(answering.run(connect))
    count = answering.count
    if count is not None and answering.taken < count:
        raise errors.error_for(errors.TIMEOUT, f"{answering.taken} of {count} requests came")
    return 0


def _show_line(answered: dict[str, Any]) -> None:
    failed = "" if answered[EXIT_STATUS] == 0 else f", exit status {answered[EXIT_STATUS]}"
    click.echo(f"{visible(answered['topic'])} answered in {answered['seconds']:.3f} s{failed}")


@dataclasses.dataclass(slots=True, kw_only=True)
class Answering:
    """Answers requests with the output of a program, several at a time."""

    filter_text: str
    command: list[str]
    exec_timeout: float
    parallel: int
    count: int | None
    idle_timeout: float | None
    ready_file: str | None
    quiet: bool
    show: Any
    #: Requests that came so far.
    taken: int = 0

    async def run(self, connect: ConnectOptions) -> None:
        """Connect and answer until the end; requests that were taken are answered before it returns."""
        async with await connect.connect(on_event=Notices()) as client:
            subscription = await client.subscribe(self.filter_text)
            doing = f"answering requests to {self.filter_text}"
            announce(client, [self.filter_text], self.ready_file, doing, quiet=self.quiet)
            running: set[asyncio.Task[None]] = set()
            await until_signal(self._take(client, subscription, running))
            if running:
                await asyncio.wait(running)
            await client.flush()

    async def _take(
        self, client: Client, subscription: Subscription, running: set[asyncio.Task[None]]
    ) -> None:
        batches = receive(
            subscription.batches(max_messages=self.parallel),
            count=self.count,
            idle_timeout_s=self.idle_timeout,
            on_idle=_nothing,
        )
        async for batch in batches:
            self.taken += len(batch)
            await self._start(client, batch, running)

    async def _start(
        self, client: Client, messages: Iterable[Message], running: set[asyncio.Task[None]]
    ) -> None:
        for message in messages:
            if message.reply_to is None:
                click.echo(f"a message on {visible(message.topic)} asks for no reply", err=True)
                continue
            if len(running) >= self.parallel:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            task = asyncio.ensure_future(self._answer(client, message))
            running.add(task)
            task.add_done_callback(running.discard)

    async def _answer(self, client: Client, message: Message) -> None:
        started = time.monotonic()
        status, output = await self._execute(message)
        try:
            await client.reply(message, output, properties={EXIT_STATUS: status} if status else None)
        except errors.AngariumError as error:
            click.echo(visible(f"no reply to a message on {message.topic}: {error}"), err=True)
            return
        self.show(
            {"topic": message.topic, EXIT_STATUS: status, "seconds": round(time.monotonic() - started, 6)}
        )

    async def _execute(self, message: Message) -> tuple[int, bytes]:
        """Run the program on a message; give its exit status and what it printed."""
        about = {"ANGARIUM_TOPIC": message.topic, "ANGARIUM_CORRELATION_ID": message.correlation_id or ""}
        process = await asyncio.create_subprocess_exec(
            *self.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **about},
        )
        try:
            async with asyncio.timeout(self.exec_timeout):
                output, _ = await process.communicate(message.payload)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            return STATUS_TIMED_OUT, b""
        return process.returncode or 0, output


async def _nothing() -> None:
    """There is nothing to do while no request is there."""
