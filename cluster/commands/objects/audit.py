"""`angarium audit`: what operators did, and who was refused."""

from __future__ import annotations

import contextlib
from typing import Any

import click

from angarium_server.visible import visible
from cluster.commands.connecting.connection import AdminOptions, admin_options
from cluster.commands.terminal.following import following_options, show_following
from cluster.commands.terminal.output import Output, output_option, to_json
from cluster.commands.terminal.table import cell


@click.command()
@following_options("entries", "number of an entry")
@click.option("--who", default="", help="Only what this operator did.")
@output_option
@admin_options
def audit(*, admin: AdminOptions, follow: bool, since: str | None, who: str, limit: int, out: Output) -> None:
    """Show the audit log of the node, oldest first: each change, each refusal and each login of operators."""
    form = to_json if out.is_json else _line
    with admin.open() as connection, contextlib.suppress(KeyboardInterrupt):

        def find(position: Any) -> Any:
            return connection.call("audit", since=position, who=who, limit=limit)

        show_following(find, "number", form, since, follow=follow)


def _line(entry: dict[str, Any]) -> str:
    """Give an entry in one line: who, from where, what, and what it changed."""
    came_from = f" ({entry['door']} {entry['address']})" if entry.get("address") else f" ({entry['door']})"
    asked = " ".join(f"{name}={cell(value)}" for name, value in entry.get("asked", {}).items())
    outcome = "" if entry["outcome"] == "done" else f": refused, {entry['outcome']}"
    changes = "".join(f"; {_change(one)}" for one in entry.get("changes", ()))
    line = f"{entry['time']} {entry['who']}{came_from} {entry['operation']} {asked}".rstrip()
    return visible(f"{line}{outcome}{changes}")


def _change(change: dict[str, Any]) -> str:
    before, after = change.get("before"), change.get("after")
    title = f"{change['kind']} {change['name']}"
    if not before and not after:
        return title
    if before is None or after is None:
        return f"{title} {'created' if before is None else 'deleted'}"
    values = (
        f"{name} {cell(before[name]) or 'nothing'} -> {cell(value) or 'nothing'}"
        for name, value in after.items()
    )
    return f"{title}: {', '.join(values)}"
