"""`angarium webhook`: webhooks, their configuration and state."""

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

WEBHOOK_COLUMNS: Final = (
    "name",
    "vpn",
    "queue",
    "state",
    "accepted",
    "failed",
    "rejected",
    "waiting",
    "error",
)
WIDE_COLUMNS: Final = ("url", "window", "attempts", "under_way", "last_failure", "last_failure_s")


@click.group(cls=SuggestingGroup)
def webhook() -> None:
    """Webhooks: each posts the messages of a queue to a URL."""


@webhook.command("list")
@click.argument("pattern", shell_complete=complete_names("webhook"), default="*")
@any_vpn_option("webhook")
@list_option
@admin_options
def list_webhooks(*, admin: AdminOptions, pattern: str, vpn: str | None, out: Output) -> None:
    """List the webhooks whose name matches PATTERN, with their state."""
    found = admin.call("webhooks.list", name=pattern, vpn=vpn)
    out.rows(found, WEBHOOK_COLUMNS, wide=WIDE_COLUMNS, empty="there are no webhooks")


@webhook.command("show")
@click.argument("name", shell_complete=complete_names("webhook"))
@vpn_option("webhook")
@output_option
@admin_options
def show_webhook(*, admin: AdminOptions, name: str, vpn: str, out: Output) -> None:
    """Show the webhook NAME: its attributes, its state and its figures."""
    found: dict[str, Any] = admin.call("webhooks.show", name=name, vpn=vpn)
    out.one(found)


webhook.add_command(change_command("webhook", "create", "Create the webhook NAME."))
webhook.add_command(change_command("webhook", "update", "Change attributes of the webhook NAME."))
webhook.add_command(delete_command("webhook"))
webhook.add_command(attributes_command("webhook"))
