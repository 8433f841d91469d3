"""`angarium bridge`: bridges between Message VPNs, their configuration and state."""

from __future__ import annotations

from typing import Any, Final

import click

from cluster.commands.connecting.completion import complete_names
from cluster.commands.connecting.connection import AdminOptions, admin_options
from cluster.commands.objects.objects import (
    any_vpn_option,
    attributes_command,
    change_command,
    delete_command,
    vpn_option,
)
from cluster.commands.terminal.group import SuggestingGroup
from cluster.commands.terminal.output import Output, list_option, output_option

BRIDGE_COLUMNS: Final = (
    "name",
    "vpn",
    "state",
    "uptime_s",
    "messages",
    "queued_messages",
    "dropped",
    "error",
)
WIDE_COLUMNS: Final = ("remote_vpn", "remote_node", "guaranteed_messages")


@click.group(cls=SuggestingGroup)
def bridge() -> None:
    """Bridges: each takes messages from a remote Message VPN into its own."""


@bridge.command("list")
@click.argument("pattern", shell_complete=complete_names("bridge"), default="*")
@any_vpn_option("bridge")
@list_option
@admin_options
def list_bridges(*, admin: AdminOptions, pattern: str, vpn: str | None, out: Output) -> None:
    """List the bridges whose name matches PATTERN, with their state."""
    found = admin.call("bridges.list", name=pattern, vpn=vpn)
    out.rows(found, BRIDGE_COLUMNS, wide=WIDE_COLUMNS, empty="there are no bridges", readable=_shown)


@bridge.command("show")
@click.argument("name", shell_complete=complete_names("bridge"))
@vpn_option("bridge")
@output_option
@admin_options
def show_bridge(*, admin: AdminOptions, name: str, vpn: str, out: Output) -> None:
    """Show the bridge NAME: its attributes, its state and its metrics."""
    found: dict[str, Any] = admin.call("bridges.show", name=name, vpn=vpn)
    out.one(found)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Give a row of the table: what was dropped as one number."""
    return {**row, "dropped": sum(row.get("dropped", {}).values())}


bridge.add_command(change_command("bridge", "create", "Create the bridge NAME."))
bridge.add_command(change_command("bridge", "update", "Change attributes of the bridge NAME."))
bridge.add_command(delete_command("bridge"))
bridge.add_command(attributes_command("bridge"))
