"""`angarium standby`: the two hosts of a node, as one of them sees it, and who of them is the primary.

`status`, `join` and `promote` are about the host on which they are typed, whatever it is; `switch` asks the controller
of the primary, which writes it down.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

import click
import msgspec

from angarium import errors
from angarium.errors import ConflictError, error_for
from angarium_server.visible import visible
from cluster.commands.connecting.connection import (
    AdminOptions,
    admin_options,
    data_option,
    own_data_directory,
)
from cluster.commands.terminal.group import SuggestingGroup
from cluster.commands.terminal.options import ABOVE_0, setting
from cluster.commands.terminal.output import Output, output_option, print_table, progress

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.admin.answers import HostStatus

STORE_COLUMNS = ("store", "follows", "caught up", "lag", "sent")
LOOK_S = 0.5
#: A standby that is waited for and has not followed for so long is pointed out.
SILENT_S = 5.0
SWITCH_LOOK_S = 0.1


@click.group(cls=SuggestingGroup)
def standby() -> None:
    """The two hosts of a node: state, hand-over, promotion."""


@standby.command("status")
@data_option
@output_option
def show_status(*, data: Path | None, out: Output) -> None:
    """Show what this host is, who has everything, and how far the standby is."""
    from cluster.standby.pair.settings import waits_because

    status = _status_of(data)
    out.one(msgspec.to_builtins(status), functools.partial(_print_status, why=waits_because(status)))


@standby.command("join")
@data_option
@setting("--wait-timeout", "timeout_s", type=ABOVE_0, default=3600.0, help="Seconds to wait at most.")
@output_option
def join(*, data: Path | None, timeout_s: float, out: Output) -> None:
    """Wait until both hosts have everything, and show how far it is; typed on either of them."""
    deadline = time.monotonic() + timeout_s
    with progress("bytes of the copy", None) as show:
        while len((status := _status_of(data)).in_sync) < 2:
            if time.monotonic() >= deadline:
                detail = f"the standby is not in sync after {timeout_s:g} s; it goes on"
                raise error_for(errors.TIMEOUT, detail, "'angarium standby status' shows it")
            show(sum(store.bringing_bytes for store in status.stores), None)
            time.sleep(LOOK_S)
    text = f"{' and '.join(status.in_sync)} have everything that was acknowledged"
    out.done(text, {"in_sync": status.in_sync, "primary": status.primary})


@standby.command("switch")
@setting(
    "--wait-timeout",
    "timeout_s",
    type=ABOVE_0,
    default=10.0,
    help="Seconds to wait at most until the standby has everything.",
)
@output_option
@admin_options
def switch(*, admin: AdminOptions, timeout_s: float, out: Output) -> None:
    """Hand the node over: it stops here in order, and the standby, which has everything, becomes the primary."""
    deadline, is_told = time.monotonic() + timeout_s, False
    while not _is_handed_over(admin, deadline):
        if not is_told:
            is_told = True
            click.echo(f"the standby lacks something; waiting for it, {timeout_s:g} s at most", err=True)
        time.sleep(SWITCH_LOOK_S)
    out.done("the node stops here, and starts on the other host", {"switching": True})


def _is_handed_over(admin: AdminOptions, deadline: float) -> bool:
    """Ask for the hand-over; false: there is a standby, and it may have everything in a moment."""
    try:
        admin.call("standby.switch")
    except ConflictError as error:
        if error.code != errors.STANDBY_REFUSED or time.monotonic() >= deadline:
            raise
        found = admin.call("standby.status")
        if found["role"] != "primary" or found["store"] == "manual":
            raise
        return False
    return True


@standby.command("promote")
@data_option
@click.option(
    "--force",
    is_flag=True,
    help="Also if this host may lack messages that were acknowledged: they are lost then.",
)
@click.option(
    "--host",
    "other",
    metavar="NAME",
    help='The other host is the primary from now on; with standby.store = "manual", on the one that was it before.',
)
@output_option
def promote(*, data: Path | None, force: bool, other: str | None, out: Output) -> None:
    """Make this host the primary, once the other one does not run.

    With standby.store = "manual" that is how a standby takes over. With another store it does so by itself, if it has
    everything; --force is for a host that has not, when the other one is lost.
    """
    from cluster.commands.standby.promoting import name_other, promote_host

    where = data or own_data_directory()
    if other is not None:
        out.done(name_other(where, other, may_lose=force), {"host": other, "forced": force})
        return
    status = _status_of(data)
    told = promote_host(where, status, may_lose=force)
    out.done(told, {"host": status.host, "forced": force})


def _status_of(data: Path | None) -> HostStatus:
    from cluster.standby.pair.settings import read_status

    where = data or own_data_directory()
    status = read_status(where)
    if status is None:
        detail = f"no host of a pair runs on {where}"
        raise error_for(errors.NODE_UNREACHABLE, detail, "write the section [standby], then 'angarium up'")
    return status


def began(found: dict[str, Any]) -> list[str]:
    """Say when the primary began, and why, if that is known."""
    return [f"{found['primary']} began {found['begun']}: {found['why']}"] if found.get("why") else []


def _waits(found: dict[str, Any], usually: str, alone: str) -> str:
    """Say whether a primary waits for its standby before it acknowledges, and whether in vain."""
    if not found["required"]:
        return alone
    silent_s = found.get("silent_s", 0.0)
    return (
        usually
        if silent_s < SILENT_S
        else f"waits for the standby, which has not followed for {silent_s:.0f} s !"
    )


def pair_lines(found: dict[str, Any]) -> list[str]:
    """Give how a pair does in a line or two, for those who look at its node; none for a node with one host."""
    if found["role"] == "alone":
        return []
    lag = max((store["lag_groups"] for store in found["stores"]), default=0)
    waits = _waits(found, f"waits for the standby, lag {lag}", "goes on without a standby !")
    in_sync = " and ".join(found["in_sync"])
    first = f"host {found['host']} is the primary, epoch {found['epoch']}, in sync: {in_sync}; it {waits}"
    return [visible(line) for line in (first, *began(found))]


def _print_status(found: dict[str, Any], *, why: str) -> None:
    in_sync = " and ".join(found["in_sync"]) or "nobody"
    lines = [
        f"host {found['host']} is the {found['role']}, epoch {found['epoch']}, since {found['since']}",
        f"in sync: {in_sync}; primary: {found['primary'] or 'nobody'}",
        *began(found),
        f"outside store: {found['store']}, {found['failure'] or 'answers'}",
    ]
    if found.get("fault"):
        lines.append(f"it takes nothing over by itself: {found['fault']} !")
    if found["role"] == "standby" and found["forced"]:
        lines.append("it takes over by force when nobody has the lease, unless the primary is back before !")
    if found["role"] == "primary":
        waits = _waits(found, "waits for the standby", "goes on alone")
        lines.append(f"it {'acts' if found['acts'] else 'has no lease and does nothing'}, and {waits}")
    elif found["follows"]:
        lines.append(f"follows: {', '.join(found['follows'])}")
        if found["refusal"]:
            lines.append(f"a store is not followed: {found['refusal']} !")
    elif why and not found.get("fault"):
        lines.append(f"it follows nobody: {why} !")
    for line in lines:
        click.echo(visible(line))
    rows = [
        {
            "store": row["store"],
            "follows": row["follows"],
            "caught up": row["caught_up"],
            "lag": row["lag_groups"],
            "sent": row["bringing_bytes"],
        }
        for row in found["stores"]
    ]
    if rows:
        print_table(rows, STORE_COLUMNS, empty="")
