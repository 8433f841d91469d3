"""`angarium top`: what a node does now, continuously, by process, queue or client.

What is shown is decided in `top_view`; here the node is asked and keys are read.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from angarium import errors
from cluster.commands.connecting.connection import AdminOptions, admin_options
from cluster.commands.node.top_view import CLIENTS, PROCESSES, QUEUES, VIEWS, Top
from cluster.commands.terminal import screen
from cluster.commands.terminal.following import Patient
from cluster.commands.terminal.options import AT_LEAST_1, setting
from cluster.commands.terminal.output import (
    Output,
    output_option,
    print_json,
    print_json_lines,
    print_lines,
    width,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.admin.client import Admin
    from cluster.commands.node.top_view import Row

#: Fast enough to watch, slow enough that the node does not notice.
DEFAULT_INTERVAL_S: Final = 1.0
#: Endpoints whose totals are asked for, one by one: those that hold most. More than a screen shows.
ENDPOINTS_MAX: Final = 50
#: Lines of a page that nobody scrolls.
PAGE_LINES: Final = 1_000
_KINDS: Final = ("queue", "topic-endpoint")
#: What names one of them.
_NAMING: Final = ("kind", "vpn", "name")


@click.command()
@click.argument("view", type=click.Choice(tuple(VIEWS)), default=PROCESSES)
@setting(
    "--interval", type=click.FloatRange(min=0.1), default=DEFAULT_INTERVAL_S, help="Seconds between updates."
)
@click.option("-n", "--count", type=AT_LEAST_1, help="End after N updates.  [default: 1 without a terminal]")
@output_option
@admin_options
def top(*, admin: AdminOptions, view: str, interval: float, count: int | None, out: Output) -> None:
    """Show what the node does now, by VIEW: processes, queues or clients, with the rate of each.

    In a terminal keys change the view and the order, h lists them, q quits.
    """
    if count is None and not sys.stdout.isatty():
        count = 1
    with admin.open() as connection, contextlib.suppress(KeyboardInterrupt):
        if out.is_json:
            _print_rows(connection, view, interval, count)
        elif sys.stdin.isatty() and sys.stdout.isatty():
            _watch(connection, view, interval, count)
        else:
            _print_pages(connection, view, interval, count or 1)


def _print_rows(connection: Admin, view: str, interval_s: float, count: int | None) -> None:
    """Print the status, or the rows of a view with their rates, as JSON at each look."""
    state = Top(view)
    looking = _patient(connection, lambda text: click.echo(text, err=True))
    if view != PROCESSES:
        looking.find(state)
        time.sleep(interval_s)
    for look in _looks(count):
        if look:
            time.sleep(interval_s)
        status = looking.find(state)
        if status is None:
            continue
        if view == PROCESSES:
            print_json(status)
        else:
            print_json_lines(state.sorted_rows())


def _print_pages(connection: Admin, view: str, interval_s: float, count: int) -> None:
    """Print each look below the one before; the first one comes when there are rates."""
    state = Top(view)
    looking = _patient(connection, lambda text: click.echo(text, err=True))
    looking.find(state)
    for look in _looks(count):
        time.sleep(interval_s)
        if looking.find(state) is None:
            continue
        *lines, _keys = state.lines(width(), PAGE_LINES)
        print_lines([*([""] if look else []), *lines])


def _looks(count: int | None) -> Any:
    """Give 0, 1, 2 and so on: so many numbers, or without an end."""
    number = 0
    while count is None or number < count:
        yield number
        number += 1


def _watch(connection: Admin, view: str, interval_s: float, count: int | None) -> None:
    """Show the view on the whole terminal until a key ends it."""
    state = Top(view)
    looking = _patient(connection, state.note)
    looks, next_at = 0, 0.0
    with screen.Full() as shown:
        while count is None or looks < count:
            if time.monotonic() >= next_at:
                looking.find(state)
                looks += 1
                next_at = time.monotonic() + interval_s
            shown.draw(state.lines(*screen.size()))
            key = shown.key(next_at - time.monotonic())
            if key == "q":
                return
            if state.press(key):
                next_at = 0.0


def _patient(connection: Admin, say: Callable[[str], None]) -> Patient[Row]:
    """Give what looks at the node, and goes on when nobody answers for a while: who restarts is what one looks at."""
    return Patient(lambda state: _look(connection, state), say)


def _look(connection: Admin, state: Top) -> Row:
    """Ask the node for what the view shows; gives its status."""
    status: Row = connection.call("status")
    rows, left_out = status["processes"], 0
    if state.view == QUEUES:
        rows, left_out = _endpoints(connection)
    elif state.view == CLIENTS:
        rows = connection.call("clients.list", vpn=None)
    state.look(status, rows, time.monotonic(), left_out=left_out)
    return status


def _endpoints(connection: Admin) -> tuple[list[Row], int]:
    """Give the endpoints that hold most, each with its totals, and how many there are besides."""
    found = [
        row for kind in _KINDS for row in connection.call("endpoints.list", kind=kind, vpn=None, name="*")
    ]
    found.sort(key=lambda row: (row["messages_spooled"] or 0, row["bind_count"] or 0), reverse=True)
    chosen = found[:ENDPOINTS_MAX]
    shown = []
    for row in chosen:
        with contextlib.suppress(errors.NotFoundError):  # it was deleted meanwhile
            shown.append(connection.call("endpoints.show", **{name: row[name] for name in _NAMING}))
    return shown, len(found) - len(chosen)
