"""The `angarium` command: finds the command that was asked for, runs it, and tells every failure in one line.

Each command lives in a module of `cluster.commands`, which is imported when the command is called: `angarium
--help` loads click and this module only. Other packages add commands by an entry point in the group
`angarium.commands`. The exit codes and the form of errors are defined here and nowhere else: 0 done, 1
failed, 2 misused, and `error <code>: <text>` on stderr.
"""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import click

from cluster.commands.terminal.group import SuggestingGroup
from cluster.commands.terminal.words import option_meant_by

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib import metadata

    from angarium.errors import AngariumError

EXIT_FAILED: Final = 1
EXIT_MISUSED: Final = 2
#: Packages that bring commands of their own name them in this group of entry points.
ENTRY_POINT_GROUP: Final = "angarium.commands"
_LINE_ENDS: Final = re.compile(r"\s*\n\s*")
#: An attribute among the arguments of which Click knows nothing.
_LONE_ATTRIBUTE: Final = re.compile(r"extra arguments? \([^)]*?(\w+=[^ )]*)")


class Entry(NamedTuple):
    """Where a command is, and the line that `angarium --help` prints for it without importing it."""

    module: str
    summary: str
    #: What it is called there; empty: as the command.
    attribute: str = ""


SECTIONS: Final[dict[str, dict[str, Entry]]] = {
    "Node": {
        "up": Entry("cluster.commands.node.node", "Start the node of a data directory."),
        "down": Entry("cluster.commands.node.node", "Stop the node in order."),
        "status": Entry(
            "cluster.commands.node.node", "Show processes, sessions, rates and discards on one screen."
        ),
        "health": Entry("cluster.commands.node.health", "Tell whether the node is well, and what is not."),
        "top": Entry(
            "cluster.commands.node.top", "Watch processes, queues or clients, with the rate of each."
        ),
        "events": Entry("cluster.commands.node.node", "Show what happened on the node."),
        "audit": Entry("cluster.commands.objects.audit", "Show what operators changed, and who was refused."),
        "config": Entry(
            "cluster.commands.node.configuring", "Show, check, export, plan and apply configuration."
        ),
        "cluster": Entry(
            "cluster.commands.node.cluster", "Show the nodes of the cluster, their links, and what is wrong."
        ),
        "standby": Entry(
            "cluster.commands.standby.standby", "The two hosts of a node: state, hand-over, promotion."
        ),
        "keys": Entry("cluster.commands.node.node", "Make the keys of encrypted connections."),
        "gateway": Entry(
            "cluster.commands.objects.gateways", "The processes of clients of MQTT and HTTP: state and load."
        ),
        "worker": Entry("cluster.commands.objects.clients", "List the workers and change their number."),
        "spool": Entry("cluster.commands.queues.spool", "Show, verify, back up and restore what is stored."),
    },
    "Messages": {
        "pub": Entry("cluster.commands.messages.messages", "Publish messages."),
        "sub": Entry("cluster.commands.messages.messages", "Subscribe, and print what arrives."),
        "consume": Entry("cluster.commands.messages.consume", "Take messages from a queue, and print them."),
        "request": Entry("cluster.commands.messages.requests", "Send a request and print the reply."),
        "reply": Entry("cluster.commands.messages.requests", "Answer requests with the output of a command."),
        "bench": Entry(
            "cluster.commands.bench.queues", "Measure rate and latency with real client processes."
        ),
    },
    "Pipeline": {
        "pipeline": Entry(
            "cluster.commands.pipeline.group", "Archive queues as Parquet, replay, report, compare."
        ),
    },
    "Objects": {
        "vpn": Entry(
            "cluster.commands.objects.objects", "Message VPNs: separate worlds of topics and users."
        ),
        "username": Entry("cluster.commands.objects.objects", "Who may connect, and with which profiles."),
        "profile": Entry(
            "cluster.commands.objects.objects", "Client profiles: rights and limits of clients."
        ),
        "acl": Entry(
            "cluster.commands.objects.objects", "ACL profiles: addresses, topics and share names to use."
        ),
        "queue": Entry(
            "cluster.commands.queues.endpoints", "Queues: what they hold, and what goes in and out."
        ),
        "topic-endpoint": Entry(
            "cluster.commands.queues.endpoints", "Topic endpoints: messages of one topic for a consumer."
        ),
        "template": Entry(
            "cluster.commands.objects.objects", "Templates of the endpoints that clients create."
        ),
        "link": Entry(
            "cluster.commands.objects.links", "Links to neighbour nodes: configuration, state and lag."
        ),
        "bridge": Entry(
            "cluster.commands.objects.bridges", "Bridges between Message VPNs: configuration and state."
        ),
        "webhook": Entry(
            "cluster.commands.objects.bridges", "Webhooks: queues whose messages are posted to a URL."
        ),
        "operator": Entry("cluster.commands.objects.objects", "Who manages the node, and what they may do."),
        "message": Entry(
            "cluster.commands.queues.messages", "Show and delete single messages of an endpoint."
        ),
    },
    "Clients": {
        "client": Entry("cluster.commands.objects.clients", "List, show and disconnect clients."),
        "subscription": Entry(
            "cluster.commands.objects.clients", "List subscriptions; add and remove them for a client."
        ),
        "flow": Entry("cluster.commands.objects.clients", "List the consumers that are bound to endpoints."),
        "producer": Entry("cluster.commands.objects.clients", "List the names under which clients publish."),
        "stage": Entry("cluster.commands.queues.stages", "List and abort what was staged and not committed."),
        "sink": Entry("cluster.commands.queues.stages", "List and forget who commits stages."),
    },
    "This command": {
        "context": Entry("cluster.commands.node.contexts", "Names for nodes, with the user to connect as."),
        "docs": Entry("cluster.commands.node.docs", "Show the documentation, page by page."),
        "completion": Entry(
            "cluster.commands.connecting.completion", "Print the completion script of a shell."
        ),
        "help": Entry("cluster.commands.node.about", "Show how a command is used.", "show_help"),
        "version": Entry("cluster.commands.node.about", "Print the versions of everything."),
    },
}


class LazyGroup(SuggestingGroup):
    """The outermost group: knows name and summary of each command, and imports a command only to run it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take what stands before the command.

        Raises:
            click.UsageError: it is an option of the command; the text says where it belongs.
        """
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            place = next((at for at, word in enumerate(given) if word in self.list_commands(ctx)), 0)
            if not place:
                raise
            words = " ".join([given[place], "...", *given[:place]])
            text = f"options come after the command. Did you mean 'angarium {words}'?"
            raise click.UsageError(text, error.ctx) from None

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Give the names of all commands, those of other packages last."""
        own = [name for entries in SECTIONS.values() for name in entries]
        return own + [name for name in _plugins() if name not in own]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        """Import and give a command, or None if there is none of that name."""
        for entries in SECTIONS.values():
            if cmd_name in entries:
                entry = entries[cmd_name]
                attribute = entry.attribute or cmd_name.replace("-", "_")
                command = getattr(import_module(entry.module), attribute)
                assert isinstance(command, click.Command), entry
                return command
        plugin = _plugins().get(cmd_name)
        if plugin is None:
            return None
        command = plugin.load()
        assert isinstance(command, click.Command), plugin
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        """Write the commands section by section, without importing one."""
        sections = {
            title: [(name, entry.summary) for name, entry in entries.items()]
            for title, entries in SECTIONS.items()
        }
        sections["More"] = [
            (name, f"(of {plugin.dist.name})" if plugin.dist else "") for name, plugin in _plugins().items()
        ]
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _plugins() -> dict[str, metadata.EntryPoint]:
    from importlib import metadata  # as long as all else that a command imports

    found = metadata.entry_points(group=ENTRY_POINT_GROUP)
    return {point.name: point for point in sorted(found, key=lambda point: point.name)}


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("angarium")
    except metadata.PackageNotFoundError:
        return "unknown (not installed)"


def _print_version(ctx: click.Context, _option: click.Parameter, asked: bool) -> None:  # noqa: FBT001 - click's signature
    if asked and not ctx.resilient_parsing:
        click.echo(f"angarium {_version()}")
        ctx.exit()


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version.",
)
def cli() -> None:
    """Angarium: an event broker cluster.

    `angarium up` starts a node, `angarium pub` and `angarium sub` use it, `angarium status` shows it.
    Every command explains itself with --help; lists and views take --json. Options have variables:
    --rate of `angarium pub` has ANGARIUM_PUB_RATE.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and end the process with its exit code."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and give its exit code; a failure has been told on stderr."""
    try:
        result = cli.main(args=list(arguments) or ["--help"], prog_name="angarium", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return EXIT_MISUSED
    except click.UsageError as error:
        _report(_argument_code(), _usage_text(error))
        return EXIT_MISUSED
    except click.ClickException as error:
        _report(_argument_code(), error.format_message())
        return EXIT_FAILED
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return EXIT_FAILED
    except BrokenPipeError:
        return _reader_went_away()
    except _angarium_error() as error:
        click.echo(_visible(str(error)), err=True)
        return EXIT_FAILED
    except OSError as error:
        if error.filename is None:
            raise
        _report(_argument_code(), f"{error.filename}: {error.strerror}. Check the path and its permissions.")
        return EXIT_FAILED
    return result if isinstance(result, int) else 0


def _visible(text: str) -> str:
    from angarium_server.visible import visible

    return "\n".join(visible(line) for line in text.splitlines())


def _report(code: int, text: str) -> None:
    click.echo(_visible(f"error {code}: {text}"), err=True)


def _usage_text(error: click.UsageError) -> str:
    path = error.ctx.command_path if error.ctx else "angarium"
    meant = ""
    if isinstance(error, click.NoSuchOption) and (
        meant := option_meant_by(error.option_name, _options(error))
    ):
        error = click.NoSuchOption(error.option_name, ctx=error.ctx)  # Not what looks alike, too.
    if (lone := _LONE_ATTRIBUTE.search(error.message)) and "--set" in _options(error):
        meant = f"--set {lone[1]}"
    # Click lists the choices of an argument on lines of their own.
    text = _LINE_ENDS.sub(" ", error.format_message())
    if not text.endswith((".", "?", "?)")):
        text += "."
    text += f" Did you mean '{meant}'?" if meant else _where_hint(error)
    return f"{text[:1].lower()}{text[1:]} '{path} --help' shows what is possible."


def _where_hint(error: click.UsageError) -> str:
    """Say how a command finds its node, to who gave it the option of the other kind of command."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return ""
    known = _options(error)
    if error.option_name in ("--url", "--user", "--password-file") and "--admin-url" in known:
        return " Operator commands use --data, or --admin-url for a remote node: 'angarium docs connecting'."
    if error.option_name in ("--admin-url", "--key-file") and "--url" in known:
        return " Client commands use --url: 'angarium docs connecting'."
    return ""


def _options(error: click.UsageError) -> set[str]:
    """Give the options of the command that was used."""
    return {name for one in error.ctx.command.params for name in one.opts} if error.ctx else set()


def _reader_went_away() -> int:
    """End quietly when the reader of our output has gone, as in `angarium sub '>' | head`."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_FAILED


def _angarium_error() -> type[AngariumError]:
    """Give the base of our errors; loaded on the first failure, because it brings the whole SDK with it."""
    from angarium.errors import AngariumError

    return AngariumError


def _argument_code() -> int:
    from angarium.errors import INVALID_ARGUMENT

    return INVALID_ARGUMENT


def command_tree() -> dict[str, Any]:
    """Give every command and group by its full name, imported; for the documentation and its tests."""
    tree: dict[str, Any] = {}
    _collect(cli, click.Context(cli, info_name="angarium"), tree)
    return tree


def _collect(command: click.Command, ctx: click.Context, tree: dict[str, Any]) -> None:
    tree[ctx.command_path] = command
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            child = command.get_command(ctx, name)
            assert child is not None, name
            _collect(child, click.Context(child, info_name=name, parent=ctx), tree)


if __name__ == "__main__":
    main()
