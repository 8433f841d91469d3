"""`angarium gateway`: the processes in which clients of other protocols are, where they listen, and what they do."""

from __future__ import annotations

from typing import Any, Final

import click

from cluster.commands.connecting.completion import complete
from cluster.commands.connecting.connection import AdminOptions, admin_options
from cluster.commands.terminal.group import SuggestingGroup
from cluster.commands.terminal.output import Output, list_option, output_option

GATEWAY_COLUMNS: Final = (
    "name",
    "state",
    "uptime_s",
    "clients",
    "sessions",
    "messages_in",
    "messages_out",
    "discarded",
    "listen",
)
WIDE_COLUMNS: Final = ("pid", "restarts", "connections", "queued_bytes", "rss_bytes", "cpu_percent")


@click.group(cls=SuggestingGroup)
def gateway() -> None:
    """Gateways: the processes in which clients of MQTT and of HTTP are."""


@gateway.command("list")
@list_option
@admin_options
def list_gateways(*, admin: AdminOptions, out: Output) -> None:
    """List the gateways with their state, their clients and the messages of these."""
    out.rows(
        admin.call("gateways.list"),
        GATEWAY_COLUMNS,
        wide=WIDE_COLUMNS,
        empty="there are no gateways: 'angarium up --mqtt ADDRESS' starts one, and --http ADDRESS",
        readable=_shown,
    )


@gateway.command("show")
@click.argument("name", shell_complete=complete("gateways.list"))
@output_option
@admin_options
def show_gateway(*, admin: AdminOptions, name: str, out: Output) -> None:
    """Show the gateway NAME, as in mqtt.0: where it listens, its state and its metrics."""
    out.one(admin.call("gateways.show", name=name))


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Give a row of the table: addresses as one text."""
    return {**row, "listen": " ".join(row["listen"])}
