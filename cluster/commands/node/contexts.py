"""`angarium context`: names for nodes, and as whom to use them; the file is `cluster.commands.connecting.contexts`."""

from __future__ import annotations

import re
from typing import Any

import click
import msgspec

from angarium import errors
from cluster.commands.connecting import contexts
from cluster.commands.connecting.completion import complete_contexts
from cluster.commands.connecting.connection import check_address, check_admin_address, check_management
from cluster.commands.terminal.group import SuggestingGroup
from cluster.commands.terminal.output import Output, list_option, output_option, print_attributes

_readable = click.Path(exists=True, dir_okay=False, resolve_path=True)
_COLUMNS = ("name", "current", "url", "data", "vpn", "user", "admin_url", "management")
_EXAMPLES = """\b
angarium context add prod --url tcp://node-1.example:55555 --user alice --password-file ~/.angarium-password
angarium context use prod"""


@click.group(cls=SuggestingGroup)
def context() -> None:
    """Contexts: names for nodes and the username to use there.

    One of them can be the current one, which counts wherever no option and no variable names a node. --context NAME and
    ANGARIUM_CONTEXT choose another one for one command. They are kept in ~/.config/angarium/contexts.toml; secrets stay
    in their own files.
    """


@context.command("add", epilog=_EXAMPLES)
@click.argument("name")
@click.option("--url", callback=check_address, help="Address of the node for clients.")
@click.option(
    "--data",
    type=click.Path(file_okay=False, resolve_path=True),
    help="Data directory of the node, if it runs on this host.",
)
@click.option("--vpn", help="Message VPN to join.")
@click.option("--user", help="Username to connect as.")
@click.option("--password-file", type=_readable, help="File whose first line is the password.")
@click.option(
    "--token-file", type=_readable, help="File whose first line is a token (JWT), instead of a password."
)
@click.option(
    "--ca-file",
    type=_readable,
    help="File with the authorities that may sign the certificate of a tls:// address.",
)
@click.option("--cert-file", type=_readable, help="Certificate of this client or operator.")
@click.option("--key-file", type=_readable, help="File with the private key of --cert-file.")
@click.option("--admin-url", callback=check_admin_address, help="Address of the node for operators.")
@click.option("--management", callback=check_management, help="Address of its management API.")
@click.option("--operator", help="Operator to log in as there.")
@click.option(
    "--operator-password-file", type=_readable, help="File whose first line is the operator's password."
)
@output_option
def add_context(*, name: str, out: Output, **values: str | None) -> None:
    """Add the context NAME, or change what the options name of one that is there."""
    if not re.fullmatch(contexts.NAME_PATTERN, name):
        text = f"{name!r} is no name of a context: letters, digits, '.', '_' and '-', at most 64 of them."
        raise click.BadParameter(text, param_hint="NAME")
    given = {key: value for key, value in values.items() if value}
    if not given:
        text = "a context needs at least one option, --url for instance."
        raise click.UsageError(text)
    with contexts.edit(contexts.path()) as found:
        found.context[name] = msgspec.structs.replace(found.context.get(name, contexts.Context()), **given)
    text = f"context {name} is kept; 'angarium context use {name}' makes it the current one"
    out.done(text, {"name": name, **_as_dict(found.context[name])})


@context.command("use")
@click.argument("name", shell_complete=complete_contexts)
@output_option
def use_context(*, name: str, out: Output) -> None:
    """Make NAME the current context; '-' for none."""
    with contexts.edit(contexts.path()) as found:
        if name != "-":
            found.named(name)
        found.current = "" if name == "-" else name
    text = "no context is current" if name == "-" else f"context {name} is current"
    out.done(text, {"current": found.current})


@context.command("list")
@list_option
def list_contexts(*, out: Output) -> None:
    """List the contexts."""
    found = contexts.load(contexts.path())
    rows = [
        {"name": name, "current": name == found.current, **_as_dict(one)}
        for name, one in sorted(found.context.items())
    ]
    shown = [column for column in _COLUMNS if column == "name" or any(row[column] for row in rows)]
    out.rows(
        rows,
        shown,
        empty="there is no context: 'angarium context add NAME --url ...' makes one",
        readable=lambda row: {**row, "current": "*" if row["current"] else ""},
    )


@context.command("show")
@click.argument("name", required=False, shell_complete=complete_contexts)
@output_option
def show_context(*, name: str | None, out: Output) -> None:
    """Show the context NAME, or the current one."""
    found = contexts.load(contexts.path())
    name = name or found.current
    if not name:
        raise errors.error_for(
            errors.OBJECT_NOT_FOUND, "no context is current", "name one, or 'angarium context use NAME'"
        )
    row = {"name": name, "current": name == found.current, **_as_dict(found.named(name))}
    out.one(row, lambda row: print_attributes({key: value for key, value in row.items() if value != ""}))


@context.command("remove")
@click.argument("name", shell_complete=complete_contexts)
@output_option
def remove_context(*, name: str, out: Output) -> None:
    """Remove the context NAME."""
    with contexts.edit(contexts.path()) as found:
        found.named(name)
        del found.context[name]
        was_current = found.current == name
        found.current = "" if was_current else found.current
    more = "; no context is current" if was_current else ""
    out.done(f"context {name} is removed{more}", {"name": name, "removed": True})


def _as_dict(one: contexts.Context) -> dict[str, Any]:
    return {name: getattr(one, name) for name in contexts.Context.__struct_fields__}
