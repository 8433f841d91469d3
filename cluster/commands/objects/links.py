"""`angarium link`: the neighbours of a node, and how the links to them do."""

from __future__ import annotations

from typing import Any, Final

import click

from angarium_server.visible import visible
from cluster.commands.connecting.completion import complete_names
from cluster.commands.connecting.connection import AdminOptions, admin_options
from cluster.commands.objects.link_view import METRICS, MORE_METRICS, metrics
from cluster.commands.objects.objects import attributes_command, change_command, delete_command
from cluster.commands.terminal.group import SuggestingGroup
from cluster.commands.terminal.output import (
    Output,
    list_option,
    output_option,
    print_attributes,
    print_part,
    print_table,
    telling,
)

LINK_COLUMNS: Final = ("name", *METRICS, "error")
WIDE_COLUMNS: Final = (*MORE_METRICS, "messages_in", "messages_out")
#: What is set of a link; the rest of it is how it does.
SET: Final = ("kind", "name", "enabled", "addresses", "initiator", "server_name", "number")
#: Metrics of a link that say something even if they are 0.
ALWAYS_SHOWN: Final = (
    "state",
    "encrypted",
    "progress_percent",
    "subscriptions_in",
    "subscriptions_out",
    "spooled_messages",
)
CHANNEL_COLUMNS: Final = (
    "vpn",
    "synchronised",
    "uptime_s",
    "subscriptions_in",
    "subscriptions_out",
    "untold",
    "messages_in",
    "messages_out",
    "queued_messages",
    "error",
)


@click.group(cls=SuggestingGroup)
def link() -> None:
    """Links to neighbours: a link is named after the node on its other side, and is configured on both."""


@link.command("list")
@click.argument("pattern", shell_complete=complete_names("link"), default="*")
@list_option
@admin_options
def list_links(*, admin: AdminOptions, pattern: str, out: Output) -> None:
    """List the links whose name matches PATTERN, with their state."""
    found = admin.call("links.list", name=pattern)
    out.rows(found, LINK_COLUMNS, wide=WIDE_COLUMNS, empty="there are no links", readable=link_row)


def link_row(row: dict[str, Any]) -> dict[str, Any]:
    """Give a link as it is drawn."""
    return {**row, **metrics(row)}


@link.command("show")
@click.argument("name", shell_complete=complete_names("link"))
@output_option
@admin_options
def show_link(*, admin: AdminOptions, name: str, out: Output) -> None:
    """Show the link NAME: its attributes, its state, and each Message VPN that it joins."""
    out.one(admin.call("links.show", name=name), _print_link)


def _print_link(found: dict[str, Any]) -> None:
    channels, issues = found.pop("channels", []), found.pop("issues", [])
    print_attributes({name: found.pop(name) for name in SET})
    print_part("now", telling(found, always=ALWAYS_SHOWN))
    for issue in issues:
        click.echo(visible(f"! {issue}"))
    click.echo()
    print_table(channels, CHANNEL_COLUMNS, empty="it joins no Message VPN")


link.add_command(change_command("link", "create", "Create the link to the node NAME."))
link.add_command(change_command("link", "update", "Change attributes of the link to the node NAME."))
link.add_command(delete_command("link"))
link.add_command(attributes_command("link"))
