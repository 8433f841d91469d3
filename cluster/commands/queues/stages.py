"""`angarium stage` and `angarium sink`: what was staged and not committed, and which batches of whom were committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from cluster.commands.connecting.connection import admin_options
from cluster.commands.terminal.confirming import confirm, yes_option
from cluster.commands.terminal.group import SuggestingGroup
from cluster.commands.terminal.options import setting
from cluster.commands.terminal.output import Output, list_option, output_option
from cluster.commands.terminal.table import counted

if TYPE_CHECKING:
    from cluster.commands.connecting.connection import AdminOptions

STAGE_COLUMNS: Final = ("id", "vpn", "username", "state", "sink", "last_used")
SINK_COLUMNS: Final = ("name", "vpn", "username", "batch", "last_used")

_any_vpn = click.option("--vpn", help="Message VPN.  [default: all]")
_one_vpn = setting("--vpn", default="default", help="Message VPN.")


@click.group(cls=SuggestingGroup)
def stage() -> None:
    """Stages: stored messages that stay invisible until a client commits them."""


@stage.command("list")
@_any_vpn
@list_option
@admin_options
def list_stages(*, admin: AdminOptions, vpn: str | None, out: Output) -> None:
    """List the stages that are open, and those that are being published or dropped."""
    rows = admin.call("stages.list", vpn=vpn)
    out.rows(rows, STAGE_COLUMNS, name="id", empty="nothing is staged")


@stage.command("abort")
@click.argument("ids", nargs=-1, required=True)
@yes_option
@_one_vpn
@output_option
@admin_options
def abort_stages(*, admin: AdminOptions, ids: tuple[str, ...], vpn: str, yes: bool, out: Output) -> None:
    """Drop the open stages with these IDS and all their messages; a later commit is refused."""
    confirm(f"drop {counted(len(ids), 'stage')} with all messages in it", yes=yes)
    result = admin.call("stages.abort", names=list(ids), vpn=vpn)
    out.one(result)


@click.group(cls=SuggestingGroup)
def sink() -> None:
    """Sinks: writers that commit stages, and the newest batch of each."""


@sink.command("list")
@_any_vpn
@list_option
@admin_options
def list_sinks(*, admin: AdminOptions, vpn: str | None, out: Output) -> None:
    """List the sinks with the newest batch that each has committed."""
    rows = admin.call("sinks.list", vpn=vpn)
    out.rows(rows, SINK_COLUMNS, empty="no sink has committed anything")


@sink.command("forget")
@click.argument("name")
@setting("--username", default="default", help="Username of the sink.")
@yes_option
@_one_vpn
@output_option
@admin_options
def forget_sink(*, admin: AdminOptions, name: str, username: str, vpn: str, yes: bool, out: Output) -> None:
    """Forget the sink NAME: its batches start over, and a batch that it commits again is published again."""
    confirm(f"forget sink {name}, so that a batch it commits again is published twice", yes=yes)
    admin.call("sinks.forget", name=name, username=username, vpn=vpn)
    result = {"forgotten": name, "username": username, "vpn": vpn}
    out.one(result)
