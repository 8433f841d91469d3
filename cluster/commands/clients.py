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
from cluster.commands.connection import (
    AdminOptions,
    ConnectOptions,
    admin_options,
    client_options,
    json_option,
)
from cluster.commands.group import SuggestingGroup
from cluster.commands.output import (
    print_attributes,
    print_json,
    print_json_lines,
    print_table,
    progress,
    wants_json,
)

CLIENT_COLUMNS: Final = (
    "name",
    "address",
    "vpn",
    "username",
    "profile",
    "uptime_s",
    "subscriptions",
    "eliding_topics",
    "slow",
    "discards",
)
SUBSCRIPTION_COLUMNS: Final = ("client", "filter", "share", "dto_priority", "noexport", "origin")
REMOTE_COLUMNS: Final = ("node", "vpn", "filter", "dto_priority", "deliver_always", "endpoint")
WORKER_COLUMNS: Final = (
    "index",
    "pid",
    "state",
    "uptime_s",
    "restarts",
    "filters",
    "topics_cached",
    "rows",
    "rss_bytes",
    "cpu_percent",
)

FLOW_COLUMNS: Final = (
    "vpn",
    "kind",
    "endpoint",
    "client",
    "username",
    "flow",
    "active",
    "selector",
    "sent_messages",
    "settled_messages",
)
PRODUCER_COLUMNS: Final = (
    "vpn",
    "username",
    "name",
    "id",
    "last_used",
    "open",
    "client",
    "last_sequence",
    "unacked_messages",
)

#: Between two looks whether the workers are there.
SCALE_POLL_S: Final = 0.1

_any_vpn = click.option("--vpn", help="Message VPN.  [default: all]")
_one_vpn = click.option("--vpn", default="default", show_default=True, help="Message VPN of the client.")


@click.group(cls=SuggestingGroup)
def client() -> None:
    """Clients that are connected."""


@client.command("list")
@_any_vpn
@json_option
@admin_options
def list_clients(*, admin: AdminOptions, vpn: str | None, as_json: bool) -> None:
    """List the clients that are connected."""
    _print_rows(
        admin.call("clients.list", vpn=vpn), CLIENT_COLUMNS, as_json=as_json, empty="no client is connected"
    )


@client.command("show")
@click.argument("name")
@_one_vpn
@json_option
@admin_options
def show_client(*, admin: AdminOptions, name: str, vpn: str, as_json: bool) -> None:
    """Show everything about the client NAME."""
    found = admin.call("clients.show", name=name, vpn=vpn)
    if wants_json(as_json):
        print_json(found)
        return
    subscriptions = found.pop("subscription_list", [])
    print_attributes(found)
    click.echo()
    print_table(subscriptions, SUBSCRIPTION_COLUMNS, empty="it has no subscriptions")


@client.command("disconnect")
@click.argument("name")
@_one_vpn
@json_option
@admin_options
def disconnect_client(*, admin: AdminOptions, name: str, vpn: str, as_json: bool) -> None:
    """End the session of the client NAME."""
    admin.call("clients.disconnect", name=name, vpn=vpn)
    if wants_json(as_json):
        print_json({"client": name, "vpn": vpn, "disconnected": True})
    else:
        click.echo(f"client {name} disconnected")


@click.group(cls=SuggestingGroup)
def subscription() -> None:
    """Subscriptions of clients."""


@subscription.command("list")
@click.option("--client", "client_name", help="Only those of this client.")
@click.option("--remote", is_flag=True, help="Those of the neighbours instead: what they want of this node.")
@_any_vpn
@json_option
@admin_options
def list_subscriptions(
    *, admin: AdminOptions, client_name: str | None, remote: bool, vpn: str | None, as_json: bool
) -> None:
    """List subscriptions, with the priority each has for messages that are delivered to one."""
    if remote:
        if client_name is not None:
            raise click.UsageError("--remote shows what neighbours want: they have no clients here.")
        found = admin.call("subscriptions.remote", vpn=vpn)
        _print_rows(found, REMOTE_COLUMNS, as_json=as_json, empty="no neighbour wants anything")
        return
    found = admin.call("subscriptions.list", client=client_name, vpn=vpn)
    _print_rows(found, SUBSCRIPTION_COLUMNS, as_json=as_json, empty="there are no subscriptions")


def _manager_options(function: Any) -> Any:
    for option in (
        client_options,
        json_option,
        click.option(
            "--da", "deliver_always", is_flag=True, help="Deliver always: the subscription is in no choice."
        ),
        click.option("--client", "target", required=True, help="Name of the client to act for."),
        click.argument("filter_text", metavar="FILTER"),
    ):
        function = option(function)
    return function


@subscription.command("add")
@_manager_options
def add_subscription(
    *, connect: ConnectOptions, filter_text: str, target: str, deliver_always: bool, as_json: bool
) -> None:
    """Add the subscription FILTER for another client; --user must be a subscription manager."""

    async def add() -> None:
        async with await connect.connect() as manager:
            await manager.subscribe_for(target, filter_text, deliver_always=deliver_always)

    asyncio.run(add())
    _print_managed("added", filter_text, target, as_json=as_json)


@subscription.command("remove")
@_manager_options
def remove_subscription(
    *, connect: ConnectOptions, filter_text: str, target: str, deliver_always: bool, as_json: bool
) -> None:
    """Remove the subscription FILTER of another client; --user must be a subscription manager."""

    async def remove() -> None:
        async with await connect.connect() as manager:
            await manager.unsubscribe_for(target, filter_text, deliver_always=deliver_always)

    asyncio.run(remove())
    _print_managed("removed", filter_text, target, as_json=as_json)


def _print_managed(what: str, filter_text: str, target: str, *, as_json: bool) -> None:
    if wants_json(as_json):
        print_json({"client": target, "filter": filter_text, what: True})
    else:
        click.echo(f"subscription {filter_text} of {target} {what}")


@click.group(cls=SuggestingGroup)
def flow() -> None:
    """Flows: consumers that are bound to endpoints."""


@flow.command("list")
@_any_vpn
@json_option
@admin_options
def list_flows(*, admin: AdminOptions, vpn: str | None, as_json: bool) -> None:
    """List the flows of all endpoints; 'angarium queue show' has those of one."""
    _print_rows(admin.call("flows.list", vpn=vpn), FLOW_COLUMNS, as_json=as_json, empty="no flow is bound")


@click.group(cls=SuggestingGroup)
def producer() -> None:
    """Producers: names under which clients publish guaranteed messages."""


@producer.command("list")
@_any_vpn
@json_option
@admin_options
def list_producers(*, admin: AdminOptions, vpn: str | None, as_json: bool) -> None:
    """List the producers that the node remembers, and which of them are open."""
    _print_rows(
        admin.call("producers.list", vpn=vpn),
        PRODUCER_COLUMNS,
        as_json=as_json,
        empty="there are no producers",
    )


@click.group(cls=SuggestingGroup)
def worker() -> None:
    """Worker processes, over which topics are spread."""


@worker.command("scale")
@click.argument("workers", type=click.IntRange(min=1, max=64))
@click.option("--wait", is_flag=True, help="Return when the node works with them.")
@click.option(
    "--wait-timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds for --wait.",
)
@json_option
@admin_options
def scale_workers(*, admin: AdminOptions, workers: int, wait: bool, timeout_s: float, as_json: bool) -> None:
    """Change the number of workers; clients go on meanwhile.

    Queues and topic endpoints of workers that leave go to the others with all that they hold. A new worker gets
    topics at once, and queues and partitions that are made from then on: those that are there stay where they are.
    """
    admin.call("workers.scale", workers=workers)
    if wait:
        _wait_for_workers(admin, workers, time.monotonic() + timeout_s)
    result = {"workers": workers, "waited": wait}
    if wants_json(as_json):
        print_json(result)
    else:
        print_attributes(result)


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


def _has_workers(rows: list[dict[str, Any]], workers: int) -> bool:
    """Tell whether so many workers run, and none still takes over what one that left had."""
    is_importing = _sum_of_homes(rows, "lanes_importing") > 0
    return len(rows) == workers and all(row["state"] == "ready" for row in rows) and not is_importing


def _sum_of_homes(rows: list[dict[str, Any]], figure: str) -> int:
    return sum((row.get("home") or {}).get(figure, 0) for row in rows)


@worker.command("list")
@json_option
@admin_options
def list_workers(*, admin: AdminOptions, as_json: bool) -> None:
    """List the workers of the node."""
    _print_rows(admin.call("workers"), WORKER_COLUMNS, as_json=as_json, empty="no worker runs")


def _print_rows(rows: list[dict[str, Any]], columns: tuple[str, ...], *, as_json: bool, empty: str) -> None:
    if wants_json(as_json):
        print_json_lines(rows)
    else:
        print_table(rows, columns, empty=empty)
