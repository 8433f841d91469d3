"""`angarium client`, `subscription`, `flow`, `producer` and `worker`: what is connected, and what it does.

Views of the admin API, and one exception: a subscription manager adds and removes subscriptions of another
client as a client itself, under its own access rights.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import click

from angarium import errors
from angarium.errors import error_for
from cluster.commands.connecting.completion import complete
from cluster.commands.connecting.connection import AdminOptions, ConnectOptions, admin_options, client_options
from cluster.commands.terminal.confirming import confirm, yes_option
from cluster.commands.terminal.group import SuggestingGroup
from cluster.commands.terminal.options import ABOVE_0, options, setting
from cluster.commands.terminal.output import (
    Output,
    list_option,
    output_option,
    print_metrics,
    print_table,
    progress,
)

CLIENT_COLUMNS: Final = (
    "name",
    "vpn",
    "username",
    "address",
    "sdk",
    "uptime_s",
    "subscriptions",
    "slow",
    "discards",
)
SUBSCRIPTION_COLUMNS: Final = ("filter", "vpn", "client", "share", "dto_priority")
REMOTE_COLUMNS: Final = ("filter", "vpn", "node", "dto_priority", "deliver_always", "endpoint")
WORKER_COLUMNS: Final = (
    "index",
    "pid",
    "state",
    "uptime_s",
    "restarts",
    "rss_bytes",
    "cpu_percent",
    "filters",
)
FLOW_COLUMNS: Final = ("endpoint", "vpn", "client", "active", "sent_messages", "settled_messages", "selector")
PRODUCER_COLUMNS: Final = ("name", "vpn", "client", "last_sequence", "unacked_messages", "last_used")
MOVE_COLUMNS: Final = ("name", "vpn", "partition", "source", "target", "state", "messages", "messages_per_s")
#: What `-o wide` shows besides.
WIDE_CLIENT: Final = ("profile", "eliding_topics")
WIDE_SUBSCRIPTION: Final = ("noexport", "origin")
WIDE_WORKER: Final = ("topics_cached", "rows")
WIDE_MOVE: Final = ("kind", "bytes", "bytes_per_s", "copied_bytes", "why")
WIDE_FLOW: Final = ("kind", "flow", "username")
WIDE_PRODUCER: Final = ("id", "open", "username")

#: Between two looks whether the workers are there.
SCALE_POLL_S: Final = 0.1

_any_vpn = click.option("--vpn", help="Message VPN.  [default: all]")
_one_vpn = setting("--vpn", default="default", help="Message VPN of the client.")


@click.group(cls=SuggestingGroup)
def client() -> None:
    """Connected clients."""


@client.command("list")
@_any_vpn
@list_option
@admin_options
def list_clients(*, admin: AdminOptions, vpn: str | None, out: Output) -> None:
    """List the connected clients."""
    found = admin.call("clients.list", vpn=vpn)
    out.rows(found, CLIENT_COLUMNS, wide=WIDE_CLIENT, empty="no client is connected")


@client.command("show")
@click.argument("name", shell_complete=complete("clients.list"))
@_one_vpn
@output_option
@admin_options
def show_client(*, admin: AdminOptions, name: str, vpn: str, out: Output) -> None:
    """Show everything about the client NAME."""
    out.one(admin.call("clients.show", name=name, vpn=vpn), _print_client)


def _print_client(found: dict[str, Any]) -> None:
    subscriptions = found.pop("subscription_list", [])
    print_metrics(found)
    click.echo()
    print_table(subscriptions, SUBSCRIPTION_COLUMNS, empty="it has no subscriptions")


@client.command("disconnect")
@click.argument("names", shell_complete=complete("clients.list"), metavar="NAME...", nargs=-1, required=True)
@yes_option
@_one_vpn
@output_option
@admin_options
def disconnect_clients(
    *, admin: AdminOptions, names: tuple[str, ...], vpn: str, yes: bool, out: Output
) -> None:
    """End the session of each client NAME; of several only after a question, or with --yes."""
    if len(names) > 1:
        confirm(f"disconnect {len(names):,} clients", yes=yes)
    with admin.open() as connection:
        for name in names:
            connection.call("clients.disconnect", name=name, vpn=vpn)
            out.done(f"client {name} disconnected", {"client": name, "vpn": vpn, "disconnected": True})


@click.group(cls=SuggestingGroup)
def subscription() -> None:
    """Subscriptions of clients."""


@subscription.command("list")
@click.option("--client", "client_name", help="Only those of this client.")
@click.option(
    "--remote", is_flag=True, help="Those of the neighbours instead: their interest in messages of this node."
)
@_any_vpn
@list_option
@admin_options
def list_subscriptions(
    *, admin: AdminOptions, client_name: str | None, remote: bool, vpn: str | None, out: Output
) -> None:
    """List subscriptions, with the priority of each for deliver-to-one messages."""
    if remote:
        if client_name is not None:
            raise click.UsageError("--remote shows what neighbours want: they have no clients here.")
        found = admin.call("subscriptions.remote", vpn=vpn)
        out.rows(found, REMOTE_COLUMNS, name="filter", empty="no neighbour wants anything")
        return
    found = admin.call("subscriptions.list", client=client_name, vpn=vpn)
    empty = "there are no subscriptions"
    out.rows(found, SUBSCRIPTION_COLUMNS, wide=WIDE_SUBSCRIPTION, name="filter", empty=empty)


#: None
_manager_options = options(
    click.argument("filter_text", metavar="FILTER"),
    click.option("--client", "target", required=True, help="Name of the client to act for."),
    click.option(
        "--da",
        "deliver_always",
        is_flag=True,
        help="Deliver always: it gets deliver-to-one messages in any case.",
    ),
    output_option,
    client_options,
)


@subscription.command("add")
@_manager_options
def add_subscription(
    *, connect: ConnectOptions, filter_text: str, target: str, deliver_always: bool, out: Output
) -> None:
    """Add the subscription FILTER for another client; --user must be a subscription manager."""

    async def add() -> None:
        async with await connect.connect() as manager:
            await manager.subscribe_for(target, filter_text, deliver_always=deliver_always)

    asyncio.run(add())
    _print_managed("added", filter_text, target, out=out)


@subscription.command("remove")
@_manager_options
def remove_subscription(
    *, connect: ConnectOptions, filter_text: str, target: str, deliver_always: bool, out: Output
) -> None:
    """Remove the subscription FILTER of another client; --user must be a subscription manager."""

    async def remove() -> None:
        async with await connect.connect() as manager:
            await manager.unsubscribe_for(target, filter_text, deliver_always=deliver_always)

    asyncio.run(remove())
    _print_managed("removed", filter_text, target, out=out)


def _print_managed(what: str, filter_text: str, target: str, *, out: Output) -> None:
    out.done(
        f"subscription {filter_text} of {target} {what}",
        {"client": target, "filter": filter_text, what: True},
    )


@click.group(cls=SuggestingGroup)
def flow() -> None:
    """Flows: consumers that are bound to endpoints."""


@flow.command("list")
@_any_vpn
@list_option
@admin_options
def list_flows(*, admin: AdminOptions, vpn: str | None, out: Output) -> None:
    """List the flows of all endpoints; 'angarium queue show' has those of one."""
    found = admin.call("flows.list", vpn=vpn)
    out.rows(found, FLOW_COLUMNS, wide=WIDE_FLOW, name="flow", empty="no flow is bound")


@click.group(cls=SuggestingGroup)
def producer() -> None:
    """Producers: names under which clients publish guaranteed messages."""


@producer.command("list")
@_any_vpn
@list_option
@admin_options
def list_producers(*, admin: AdminOptions, vpn: str | None, out: Output) -> None:
    """List the producers that the node remembers, and which of them are open."""
    found = admin.call("producers.list", vpn=vpn)
    out.rows(found, PRODUCER_COLUMNS, wide=WIDE_PRODUCER, empty="there are no producers")


@click.group(cls=SuggestingGroup)
def worker() -> None:
    """Worker processes; topics are distributed over them."""


@worker.command("scale")
@click.argument("workers", type=click.IntRange(min=1, max=64))
@click.option("-w", "--wait", is_flag=True, help="Return when the new workers are in use.")
@click.option("--no-balance", is_flag=True, help="Leave queues that are there where they are.")
@setting("--wait-timeout", "timeout_s", type=ABOVE_0, default=60.0, help="Seconds for --wait.")
@output_option
@admin_options
def scale_workers(
    *, admin: AdminOptions, workers: int, wait: bool, no_balance: bool, timeout_s: float, out: Output
) -> None:
    """Change the number of workers; clients stay connected.

    Queues and topic endpoints of workers that leave go to the others with all that they hold. A new worker gets
    topics at once, and queues and partitions that are made from then on. Queues that are there are then moved, by
    load, while they go on: see 'angarium worker balance'.
    """
    admin.call("workers.scale", workers=workers, balance=not no_balance)
    if wait:
        deadline = time.monotonic() + timeout_s
        _wait_for_workers(admin, workers, deadline)
        _wait_for_moves(admin, deadline)
    result = {"workers": workers, "waited": wait}
    out.one(result)


def _wait_for_workers(admin: AdminOptions, workers: int, deadline: float) -> None:
    """Return when the node works with so many workers, which have all that those who left had."""
    total = 0
    with progress("messages taken over", None) as show:
        while not _has_workers(rows := admin.call("workers"), workers):
            if time.monotonic() >= deadline:
                detail = f"the node does not work with {workers} workers yet; it goes on"
                raise error_for(errors.TIMEOUT, detail, "'angarium worker list' shows it")
            left = _sum_of_homes(rows, "messages_importing")
            total = max(total, left)
            show(total - left, total or None)
            time.sleep(SCALE_POLL_S)


@worker.command("balance")
@click.option("--dry-run", is_flag=True, help="Show what would be moved, and move nothing.")
@click.option("--show", is_flag=True, help="Show what is being moved.")
@click.option("--stop", is_flag=True, help="Move no more queues; what is half done is finished.")
@click.option(
    "--rate-limit",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="MiB per second that are copied.",
)
@click.option(
    "--moves", type=click.IntRange(min=1, max=8), default=2, show_default=True, help="Moves at the same time."
)
@click.option("-w", "--wait", is_flag=True, help="Return when all is moved.")
@setting("--wait-timeout", "timeout_s", type=ABOVE_0, default=600.0, help="Seconds for --wait.")
@output_option
@admin_options
def balance_workers(
    *,
    admin: AdminOptions,
    dry_run: bool,
    show: bool,
    stop: bool,
    rate_limit: int,
    moves: int,
    wait: bool,
    timeout_s: float,
    out: Output,
) -> None:
    """Move queues to other workers, so that all have about the same load; clients stay connected.

    The load is what comes in and goes out: messages, and 1 KiB counts as one. A queue goes on while it is copied; its
    producers and consumers wait for a moment at the end, and nothing is lost or changes its order.
    """
    if stop:
        admin.call("workers.balance.stop")
    if show or stop:
        found = admin.call("workers.balance.show")
    else:
        size = rate_limit << 20
        found = admin.call("workers.balance", bytes_per_s=size, moves_max=moves, dry_run=dry_run)
        if wait and not dry_run:
            found = _wait_for_moves(admin, time.monotonic() + timeout_s)
    empty = "all workers have about the same load: nothing is to be moved"
    out.rows(found["moves"], MOVE_COLUMNS, wide=WIDE_MOVE, empty=empty)


def _wait_for_moves(admin: AdminOptions, deadline: float) -> dict[str, Any]:
    """Return when nothing is to be moved any more, with what was moved."""
    with progress("queues and partitions moved", None) as show:
        while (found := admin.call("workers.balance.show"))["is_moving"]:
            if time.monotonic() >= deadline:
                detail = "queues are still being moved; it goes on"
                raise error_for(errors.TIMEOUT, detail, "'angarium worker balance --show' shows it")
            over = sum(row["state"] in ("done", "given up") for row in found["moves"])
            show(over, len(found["moves"]) or None)
            time.sleep(SCALE_POLL_S)
    return dict(found)


def _has_workers(rows: list[dict[str, Any]], workers: int) -> bool:
    """Tell whether so many workers run, and none still takes over what one that left had."""
    is_importing = _sum_of_homes(rows, "lanes_importing") > 0
    are_ready = all(row["state"] == "ready" and row.get("home") for row in rows)
    return len(rows) == workers and are_ready and not is_importing


def _sum_of_homes(rows: list[dict[str, Any]], metric: str) -> int:
    return sum((row.get("home") or {}).get(metric, 0) for row in rows)


@worker.command("list")
@list_option
@admin_options
def list_workers(*, admin: AdminOptions, out: Output) -> None:
    """List the workers of the node."""
    found = admin.call("workers")
    out.rows(found, WORKER_COLUMNS, wide=WIDE_WORKER, name="index", empty="no worker runs")
