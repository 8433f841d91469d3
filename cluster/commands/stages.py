"""`angarium stage` and `angarium sink`: what was staged and not committed, and which batches of whom were committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from cluster.commands.connection import admin_options, json_option
from cluster.commands.group import SuggestingGroup
from cluster.commands.output import print_attributes, print_json, print_json_lines, print_table, wants_json

if TYPE_CHECKING:
    from cluster.commands.connection import AdminOptions

STAGE_COLUMNS: Final = ("id", "vpn", "username", "state", "sink", "last_used")
SINK_COLUMNS: Final = ("vpn", "username", "name", "batch", "last_used")

_any_vpn = click.option("--vpn", help="Message VPN.  [default: all]")
_one_vpn = click.option("--vpn", default="default", show_default=True, help="Message VPN.")


@click.group(cls=SuggestingGroup)
def stage() -> None:
    """Stages: messages that are stored, and belong to nobody until a client commits them."""


@stage.command("list")
@_any_vpn
@json_option
@admin_options
def list_stages(*, admin: AdminOptions, vpn: str | None, as_json: bool) -> None:
    """List the stages that are open, and those that are being published or dropped."""
    rows = admin.call("stages.list", vpn=vpn)
    if wants_json(as_json):
        print_json_lines(rows)
    else:
        print_table(rows, STAGE_COLUMNS, empty="nothing is staged")


@stage.command("abort")
@click.argument("ids", nargs=-1, required=True)
@_one_vpn
@json_option
@admin_options
def abort_stages(*, admin: AdminOptions, ids: tuple[str, ...], vpn: str, as_json: bool) -> None:
    """Drop the open stages with these IDS and all their messages; who commits one later is refused."""
    result = admin.call("stages.abort", names=list(ids), vpn=vpn)
    if wants_json(as_json):
        print_json(result)
    else:
        print_attributes(result)


@click.group(cls=SuggestingGroup)
def sink() -> None:
    """Sinks: who commits stages, and the newest batch of each."""


@sink.command("list")
@_any_vpn
@json_option
@admin_options
def list_sinks(*, admin: AdminOptions, vpn: str | None, as_json: bool) -> None:
    """List the sinks with the newest batch that each has committed."""
    rows = admin.call("sinks.list", vpn=vpn)
    if wants_json(as_json):
        print_json_lines(rows)
    else:
        print_table(rows, SINK_COLUMNS, empty="no sink has committed anything")


@sink.command("forget")
@click.argument("name")
@click.option("--username", default="default", show_default=True, help="Whose sink it is.")
@_one_vpn
@json_option
@admin_options
def forget_sink(*, admin: AdminOptions, name: str, username: str, vpn: str, as_json: bool) -> None:
    """Forget the sink NAME: its batches begin anew, and one that it commits again is published again."""
    admin.call("sinks.forget", name=name, username=username, vpn=vpn)
    result = {"forgotten": name, "username": username, "vpn": vpn}
    if wants_json(as_json):
        print_json(result)
    else:
        print_attributes(result)
