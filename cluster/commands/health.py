"""`angarium health`: what the health endpoint tells, for people, and for probes that run commands.

What is looked at is decided in `cluster/health/checks.py`.
"""

from __future__ import annotations

from typing import Final

import click

from cluster.commands.connection import AdminOptions, admin_options, json_option
from cluster.commands.output import print_json, print_table, wants_json

CHECK_COLUMNS: Final = ("check", "ok", "text")


@click.command()
@click.option(
    "--for",
    "purpose",
    type=click.Choice(("live", "started", "ready")),
    default="ready",
    show_default=True,
    help="What decides about the exit code: the node is alive, was ready once, or is ready.",
)
@json_option
@admin_options
def health(*, admin: AdminOptions, purpose: str, as_json: bool) -> int:
    """Tell what of the node is well and what is not; exit 1 unless it is ready."""
    found = admin.call("health")
    if wants_json(as_json):
        print_json(found)
    else:
        rows = [{**row, "check": row["name"]} for row in found["checks"]]
        rows += [{**row, "check": f"link {row['name']}"} for row in found["links"]]
        print_table(rows, CHECK_COLUMNS, empty="nothing was looked at")
    return 0 if found[purpose] else 1
