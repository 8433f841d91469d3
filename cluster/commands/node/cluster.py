"""`angarium cluster`: all nodes of the mesh and their links, as this node knows them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import click

from angarium_server.visible import visible
from cluster.commands.connecting.connection import AdminOptions, admin_options
from cluster.commands.node.joining import leave, token
from cluster.commands.objects.link_view import METRICS, metrics
from cluster.commands.terminal.group import SuggestingGroup
from cluster.commands.terminal.output import Output, output_option, print_lines, print_table
from cluster.commands.terminal.table import counted, duration

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Links of others that are up and fit a screen; with more only those that are not up are drawn, and our own.
OTHERS_SHOWN_MAX: Final = 40
NODE_COLUMNS: Final = ("node", "state", "up", "links up", "heard", "release", "vpns", "error")
LINK_COLUMNS: Final = ("from", "to", *METRICS, "error")

Row = dict[str, Any]


@click.group(cls=SuggestingGroup)
def cluster() -> None:
    """The cluster: its nodes, the links between them, and topology issues."""


cluster.add_command(token, "token")
cluster.add_command(leave)


@cluster.command("status")
@output_option
@admin_options
def cluster_status(*, admin: AdminOptions, out: Output) -> None:
    """Show all known nodes and links, and each topology issue with its remedy."""
    out.one(admin.call("cluster.status"), functools.partial(_print_status, admin))


def _print_status(admin: AdminOptions, found: Row) -> None:
    from cluster.commands.standby.standby import pair_lines

    click.echo(visible(headline(found)))
    print_lines(pair_lines(admin.call("standby.status")))
    click.echo()
    print_table(node_rows(found["nodes"]), NODE_COLUMNS, empty="")
    links, hidden = worth_showing(found)
    if links:
        click.echo()
        print_table(link_rows(links), LINK_COLUMNS, empty="")
    if hidden:
        click.echo(f"{counted(hidden, 'end')} of other links are up and not shown; --json has all")
    for line in issue_lines(found["issues"]):
        click.echo(visible(line))


def headline(found: Row) -> str:
    """Give the first line: what cluster, how much of it is up, and whether anything is wrong."""
    pairs: dict[tuple[str, ...], bool] = {}
    told: dict[tuple[str, ...], bool] = {}
    for row in found["links"]:
        pair = tuple(sorted((row["node"], row["neighbour"])))
        if row["stale"]:
            pairs.setdefault(pair, False)
        else:
            told[pair] = told.get(pair, True) and row["state"] == "up"
    pairs.update(told)
    up = sum(1 for row in found["nodes"] if row["state"] in ("this", "up"))
    name = f"cluster {found['cluster']}" if found["cluster"] else "a cluster without a name"
    issues = counted(len(found["issues"]), "topology issue") if found["issues"] else "no topology issue"
    return (
        f"{name}, seen from node {found['node']}: {up} of {counted(len(found['nodes']), 'node')} up, "
        f"{sum(pairs.values())} of {counted(len(pairs), 'link')} up, {issues}"
    )


def issue_lines(issues: Iterable[Row]) -> list[str]:
    """Give each issue as two lines after an empty one: what is wrong, and what to do."""
    return [line for one in issues for line in ("", f"! {one['text']}", f"  {one['advice']}")]


def node_rows(nodes: Iterable[Row]) -> list[Row]:
    """Give nodes as they are drawn; a state that needs a look ends in an exclamation mark."""
    return [_node(row) for row in nodes]


def link_rows(links: Iterable[Row]) -> list[Row]:
    """Give ends of links as they are drawn."""
    return [_link(row) for row in links]


def _node(row: Row) -> Row:
    state = row["state"]
    if state == "through":
        state = f"known through {', '.join(row['through'])}"
    is_own = row["state"] == "this"
    return {
        "node": row["node"],
        "state": state if row["state"] in ("this", "up") else f"{state} !",
        "release": row["release"],
        "up": "" if row["uptime_s"] is None else duration(row["uptime_s"]),
        "heard": "" if row["heard_s"] is None or is_own else f"{duration(row['heard_s'])} ago",
        "links up": "" if row["links_up"] is None else f"{row['links_up']} of {row['links']}",
        "vpns": row["vpns"],
        "error": row["error"],
    }


def _link(row: Row) -> Row:
    drawn = {"from": row["node"], "to": row["neighbour"], **metrics(row), "error": row["error"]}
    if row["stale"]:
        drawn["state"] = f"{row['state']}, said {duration(row['heard_s'])} ago !"
    return drawn


def worth_showing(found: Row) -> tuple[list[Row], int]:
    """Give the ends of links to draw, and how many are left out: in a large mesh those of others that are up."""
    links: list[Row] = found["links"]
    if len(links) <= OTHERS_SHOWN_MAX:
        return links, 0
    own = found["node"]
    kept = [row for row in links if own in (row["node"], row["neighbour"]) or row["state"] != "up"]
    return kept, len(links) - len(kept)
