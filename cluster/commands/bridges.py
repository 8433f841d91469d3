"""`angarium bridge`: bridges between Message VPNs, and how they do."""

from __future__ import annotations

from typing import Any, Final

import click

from cluster.commands.connection import AdminOptions, admin_options, json_option
from cluster.commands.group import SuggestingGroup
from cluster.commands.objects import (
    any_vpn_option,
    attributes_command,
    change_command,
    delete_command,
    vpn_option,
)
from cluster.commands.output import print_attributes, print_json, print_json_lines, print_table, wants_json

BRIDGE_COLUMNS: Final = (
    "vpn",
    "name",
    "state",
    "uptime_s",
    "remote_vpn",
    "remote_node",
    "messages",
    "guaranteed_messages",
    "queued_messages",
    "dropped",
    "error",
)


@click.group(cls=SuggestingGroup)
def bridge() -> None:
    """Bridges: each takes messages from a remote Message VPN into the one that it belongs to."""


@bridge.command("list")
@click.argument("pattern", default="*")
@any_vpn_option("bridge")
@json_option
@admin_options
def list_bridges(*, admin: AdminOptions, pattern: str, vpn: str | None, as_json: bool) -> None:
    """List the bridges whose name matches PATTERN, with their state."""
    found = admin.call("bridges.list", name=pattern, vpn=vpn)
    if wants_json(as_json):
        print_json_lines(found)
    else:
        print_table([_shown(row) for row in found], BRIDGE_COLUMNS, empty="there are no bridges")


@bridge.command("show")
@click.argument("name")
@vpn_option("bridge")
@json_option
@admin_options
def show_bridge(*, admin: AdminOptions, name: str, vpn: str, as_json: bool) -> None:
    """Show the bridge NAME: its attributes, its state and its figures."""
    found: dict[str, Any] = admin.call("bridges.show", name=name, vpn=vpn)
    if wants_json(as_json):
        print_json(found)
    else:
        print_attributes(found)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Give a row of the table: what was dropped as one number."""
    return {**row, "dropped": sum(row.get("dropped", {}).values())}


bridge.add_command(change_command("bridge", "create", "Create the bridge NAME."))
bridge.add_command(change_command("bridge", "update", "Change attributes of the bridge NAME."))
bridge.add_command(delete_command("bridge"))
bridge.add_command(attributes_command("bridge"))
