"""`angarium link`: the neighbours of a node, and how the links to them do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from cluster.commands.connection import AdminOptions, admin_options, json_option
from cluster.commands.group import SuggestingGroup
from cluster.commands.link_view import FIGURES, figures
from cluster.commands.objects import attributes_command, change_command, delete_command
from cluster.commands.output import (
    print_attributes,
    print_json,
    print_json_lines,
    print_part,
    print_table,
    telling,
    wants_json,
)
from cluster.visible import visible

if TYPE_CHECKING:
    from collections.abc import Iterable

LINK_COLUMNS: Final = ("name", *FIGURES, "messages in", "messages out", "error")
#: What is set of a link; the rest of it is how it does.
SET: Final = ("kind", "name", "enabled", "addresses", "initiator", "public_key", "number")
#: Figures of a link that say something even if they are 0.
ALWAYS_SHOWN: Final = (
    "state",
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
    """Links to neighbours: a link is named after the node on its other side, and exists on both."""


@link.command("list")
@click.argument("pattern", default="*")
@json_option
@admin_options
def list_links(*, admin: AdminOptions, pattern: str, as_json: bool) -> None:
    """List the links whose name matches PATTERN, with their state."""
    found = admin.call("links.list", name=pattern)
    if wants_json(as_json):
        print_json_lines(found)
    else:
        print_table(link_rows(found), LINK_COLUMNS, empty="there are no links")


def link_rows(links: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give links as they are drawn."""
    return [
        {
            "name": row["name"],
            **figures(row),
            "messages in": row["messages_in"],
            "messages out": row["messages_out"],
            "error": row["error"],
        }
        for row in links
    ]


@link.command("show")
@click.argument("name")
@json_option
@admin_options
def show_link(*, admin: AdminOptions, name: str, as_json: bool) -> None:
    """Show the link NAME: its attributes, its state, and each Message VPN that it joins."""
    found: dict[str, Any] = admin.call("links.show", name=name)
    if wants_json(as_json):
        print_json(found)
        return
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
