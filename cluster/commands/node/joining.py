"""`angarium cluster token` and `angarium cluster leave`, and what `angarium up --join` needs of its options."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from angarium_server.visible import visible
from cluster.commands.connecting.connection import (
    AdminOptions,
    admin_options,
    check_address,
    data_option,
    own_data_directory,
)
from cluster.commands.terminal.group import SuggestingGroup
from cluster.commands.terminal.options import FILE, options, setting
from cluster.commands.terminal.output import Output, list_option, output_option
from cluster.commands.terminal.table import duration

_SPAN: Final = re.compile(r"(\d+)([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
#: More than any token has.
_TOKEN_CHARACTERS: Final = 1_000


def _span(_ctx: click.Context, _option: click.Parameter, value: str) -> int:
    found = _SPAN.fullmatch(value)
    if found is None:
        raise click.BadParameter(f"{value!r} is no time: write 30m, 12h or 2d")
    return int(found[1]) * _SECONDS[found[2]]


@click.group(cls=SuggestingGroup, invoke_without_command=True)
@setting("--expires", default="1h", callback=_span, help="How long it can be used: 30m, 12h, 2d.")
@setting("--uses", type=click.IntRange(1, 1_000), default=1, help="How many hosts may join with it.")
@click.option(
    "--address",
    multiple=True,
    callback=lambda ctx, given, value: tuple(check_address(ctx, given, url) for url in value),
    help="tls:// address by which the other host reaches this node.  [default: where the node listens]",
)
@click.option(
    "--authority",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the authority that signs the certificate of the host, on the host of the node.  "
    "[default: that of cluster.ca_file]",
)
@output_option
@admin_options
@click.pass_context
def token(
    ctx: click.Context,
    *,
    admin: AdminOptions,
    expires: int,
    uses: int,
    address: tuple[str, ...],
    authority: Path | None,
    out: Output,
) -> None:
    """Make a join token, and print the command that joins another host to the cluster.

    Whoever has the token can join until it has ended or was used. 'angarium cluster token list' shows those that there
    are, 'angarium cluster token delete' ends one.
    """
    if ctx.invoked_subcommand is not None:
        return
    made = admin.call(
        "cluster.token.create",
        expires_s=expires,
        uses=uses,
        addresses=list(address),
        authority="" if authority is None else str(authority.absolute()),
    )
    out.done(f"angarium up --join {made['addresses'][0]} --token {made['token']}", made)


@token.command("list")
@list_option
@admin_options
def list_tokens(*, admin: AdminOptions, out: Output) -> None:
    """List the join tokens that have not ended, and who used them."""
    out.rows(
        admin.call("cluster.token.list"),
        ("id", "expires_in_s", "uses", "uses_max", "nodes"),
        empty="there are no join tokens",
        readable=lambda row: {
            **row,
            "expires_in_s": duration(row["expires_in_s"]),
            "nodes": ", ".join(row["nodes"]),
        },
    )


@token.command("delete")
@click.argument("id")
@output_option
@admin_options
def delete_token(*, admin: AdminOptions, id: str, out: Output) -> None:  # noqa: A002 - the name of the argument
    """End a join token."""
    admin.call("cluster.token.delete", id=id)
    out.done(f"join token {id} is of no use any more", {"id": id})


@click.command("leave")
@click.option(
    "--force",
    is_flag=True,
    help="Give up messages that wait for the way over links, and dead ones of links.",
)
@data_option
@output_option
def leave(*, data: Path | None, force: bool, out: Output) -> None:
    """Take the node out of the cluster that it joined with 'angarium up --join'.

    What waits for the way over its links is carried over. Then they are deleted on both sides, and what it got from the
    cluster is put aside. If a link has dead messages, or some do not cross, the node stays.
    """
    from cluster.admin.client import Admin
    from cluster.join.client import leave as leave_cluster

    where = data or own_data_directory()
    with Admin(where) as admin:
        done = leave_cluster(where, admin, force=force, on_warning=warn)
    again = f"'angarium down --data {where}' and 'angarium up --data {where}' start it alone"
    out.done(
        f"the node left cluster {done['cluster']}: {again}; {done['kept']} has what it got from it", done
    )


def warn(text: str) -> None:
    """Say what is left to do."""
    click.echo(visible(f"warning: {text}"), err=True)


@dataclass(frozen=True, slots=True)
class JoinChoice:
    """Of `angarium up`: what to join, and with which token."""

    url: str
    token: str
    addresses: tuple[str, ...]


#: Add `--join` and what goes with it.
join_options = options(
    click.option(
        "--join",
        callback=check_address,
        help="Join the cluster of the node at this address first: tls://host:port, as 'angarium cluster token'"
        " there printed it. Once is enough: later starts need none of this.",
    ),
    click.option("--token", help="Join token; - reads it from the standard input."),
    click.option("--token-file", type=FILE, help="File whose first line is the join token."),
    click.option(
        "--address",
        multiple=True,
        help="tls:// address by which the other nodes reach this one.  [default: where it listens]",
    ),
)


def join_choice(
    url: str | None, token_text: str | None, token_file: Path | None, addresses: tuple[str, ...]
) -> JoinChoice | None:
    """Give what is to be joined; None: nothing.

    Raises:
        click.UsageError: options are missing, or of no use.
    """
    if url is None:
        context = click.get_current_context()
        for name in ("token", "token_file", "address"):
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"--{name.replace('_', '-')} is for --join.")
        return None
    if token_file is not None:
        with token_file.open(encoding="utf-8", errors="replace") as file:
            token_text = file.readline(_TOKEN_CHARACTERS)
    elif token_text == "-":  # noqa: S105 - what stands for the standard input
        token_text = sys.stdin.readline(_TOKEN_CHARACTERS)
    if not token_text or not token_text.strip():
        raise click.UsageError(
            "--join needs a token: 'angarium cluster token' on a node of the cluster prints it."
        )
    return JoinChoice(url, token_text.strip(), addresses)


def join_cluster(choice: JoinChoice, options: Any, out: Output) -> None:
    """Join before the node of these options (`UpOptions`) starts.

    Raises:
        AngariumError: why not.
    """
    from cluster.join.client import JoinOptions, join

    joined = join(
        JoinOptions(
            url=choice.url,
            token=choice.token,
            data_dir=Path(options.data_dir),
            config_file=options.config_file,
            listen=options.listen,
            addresses=choice.addresses,
            cert_file=options.cert_file,
            key_file=options.key_file,
            on_warning=warn,
        )
    )
    if not out.is_json:
        text = f"node {joined.node} is in cluster {joined.cluster}, through node {joined.through}"
        click.echo(visible(text), err=True)
