"""`angarium bridge` and `angarium webhook`: objects that a process sees to, their configuration and state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cluster.commands.connecting.completion import complete_names
from cluster.commands.connecting.connection import AdminOptions, admin_options
from cluster.commands.objects.objects import (
    any_vpn_option,
    attributes_command,
    change_command,
    delete_command,
    of_one,
)
from cluster.commands.terminal.group import SuggestingGroup
from cluster.commands.terminal.output import Output, list_option

if TYPE_CHECKING:
    from collections.abc import Callable


def _make_group(
    kind: str,
    sentence: str,
    columns: tuple[str, ...],
    wide: tuple[str, ...],
    readable: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> click.Group:
    """Make the commands of a kind; the columns are those of its list, of rows that `readable` gives."""
    group = SuggestingGroup(kind, help=sentence)

    @group.command("list", help=f"List the {kind}s whose name matches PATTERN, with their state.")
    @click.argument("pattern", shell_complete=complete_names(kind), default="*")
    @any_vpn_option(kind)
    @list_option
    @admin_options
    def list_objects(*, admin: AdminOptions, pattern: str, vpn: str | None, out: Output) -> None:
        found = admin.call(f"{kind}s.list", name=pattern, vpn=vpn)
        out.rows(found, columns, wide=wide, empty=f"there are no {kind}s", readable=readable)

    @group.command("show", help=f"Show the {kind} NAME: its attributes, its state and its metrics.")
    @of_one(kind)
    def show(*, admin: AdminOptions, name: str, vpn: str, out: Output) -> None:
        out.one(admin.call(f"{kind}s.show", name=name, vpn=vpn))

    group.add_command(change_command(kind, "create", f"Create the {kind} NAME."))
    group.add_command(change_command(kind, "update", f"Change attributes of the {kind} NAME."))
    group.add_command(delete_command(kind))
    group.add_command(attributes_command(kind))
    return group


def _bridge_row(row: dict[str, Any]) -> dict[str, Any]:
    """Give a row of the table: what was dropped as one number."""
    return {**row, "dropped": sum(row.get("dropped", {}).values())}


bridge = _make_group(
    "bridge",
    "Bridges: each takes messages from a remote Message VPN into its own.",
    ("name", "vpn", "state", "uptime_s", "messages", "queued_messages", "dropped", "error"),
    ("remote_vpn", "remote_node", "guaranteed_messages"),
    _bridge_row,
)
webhook = _make_group(
    "webhook",
    "Webhooks: each posts the messages of a queue to a URL.",
    ("name", "vpn", "queue", "state", "accepted", "failed", "rejected", "waiting", "error"),
    ("url", "window", "attempts", "under_way", "last_failure", "last_failure_s"),
)
