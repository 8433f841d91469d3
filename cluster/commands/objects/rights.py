"""`angarium username may`: what a client username may do, and which rule says so."""

from __future__ import annotations

from typing import Any, Final

import click

from angarium_server.visible import visible
from cluster.commands.connecting.completion import complete_names
from cluster.commands.connecting.connection import AdminOptions, admin_options
from cluster.commands.terminal.options import setting
from cluster.commands.terminal.output import Output, output_option

VERBS: Final = ("publish", "subscribe", "consume")
#: The exit code of a command whose answer is no.
NO: Final = 1

_EPILOG: Final = (
    "\b\nangarium username may alice publish orders/new\n"
    "angarium username may alice publish '#P2P/QUE/orders' --guaranteed    # to the queue orders\n"
    "angarium username may alice subscribe '#share/team/orders/>'\n"
    "angarium username may alice consume orders"
)


@click.command("may", epilog=_EPILOG)
@click.argument("name", shell_complete=complete_names("username"))
@click.argument("verb", type=click.Choice(VERBS))
@click.argument("target")
@setting("--vpn", default="default", help="Message VPN of the username.")
@click.option("--guaranteed", is_flag=True, help="Publish guaranteed messages.")
@output_option
@admin_options
def may(
    *, admin: AdminOptions, name: str, verb: str, target: str, vpn: str, guaranteed: bool, out: Output
) -> None:
    """Tell whether NAME may publish to the topic TARGET, subscribe to the filter, or consume the queue.

    Each rule that has a say is shown. The exit code is 0 if it may, 1 if not.
    """
    asked: dict[str, Any] = {
        "name": name,
        "verb": verb,
        "target": target,
        "vpn": vpn,
        "guaranteed": guaranteed,
    }
    found = admin.call("access.check", **asked)

    def draw(found: dict[str, Any]) -> None:
        click.echo(visible(f"{name} {'may' if found['allowed'] else 'may not'} {verb} {target}"))
        for one in found["checks"]:
            click.echo(visible(f"  {'yes' if one['ok'] else 'no ':3}  {one['name']}: {one['text']}"))

    out.one(found, draw)
    if not found["allowed"]:
        click.get_current_context().exit(NO)
