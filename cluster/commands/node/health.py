"""`angarium health`: what the health endpoint tells, for people, and for probes that run commands.

What is looked at is decided in `cluster/controller/health/checks.py`.
"""

from __future__ import annotations

from typing import Any, Final

import click

from cluster.commands.connecting.connection import AdminOptions, admin_options
from cluster.commands.terminal.options import setting
from cluster.commands.terminal.output import Output, output_option, print_table

CHECK_COLUMNS: Final = ("check", "ok", "text")


@click.command()
@setting(
    "--for",
    "purpose",
    type=click.Choice(("live", "started", "ready")),
    default="ready",
    help="The check that decides the exit code: the node is alive, has been ready once, or is ready.",
)
@output_option
@admin_options
def health(*, admin: AdminOptions, purpose: str, out: Output) -> int:
    """Check the health of the node; exit 1 unless it is ready."""
    found = admin.call("health")
    out.one(found, _print_checks)
    return 0 if found[purpose] else 1


def _print_checks(found: dict[str, Any]) -> None:
    rows = [{**row, "check": row["name"]} for row in found["checks"]]
    rows += [{**row, "check": f"link {row['name']}"} for row in found["links"]]
    print_table(rows, CHECK_COLUMNS, empty="nothing was looked at")
