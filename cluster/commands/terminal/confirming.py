"""Questions before what destroys: on a terminal a command asks, elsewhere it wants `--yes`."""

from __future__ import annotations

import sys

import click

#: Add `-y`; the function gets `yes: bool` and hands it to `confirm`.
yes_option = click.option(
    "-y", "--yes", is_flag=True, envvar="ANGARIUM_YES", help="Do not ask for confirmation (ANGARIUM_YES=1)."
)


def asks(*, yes: bool) -> bool:
    """Say whether somebody will be asked, so that it is worth finding out what would be lost."""
    return not yes and sys.stdin.isatty()


def confirm(loss: str, *, yes: bool) -> None:
    """Return if something may be done: it was said so before, or is now.

    Args:
        loss: what is done, and what is lost by it: "delete 5 messages of queue orders".
        yes: the value of `--yes`.

    Raises:
        click.UsageError: there is no terminal to ask on.
        click.exceptions.Exit: the answer was no.
    """
    if yes:
        return
    if not asks(yes=yes):
        text = f"there is no terminal to ask whether to {loss}: confirm it with --yes (or ANGARIUM_YES=1)."
        raise click.UsageError(text)
    if not click.confirm(f"{loss[:1].upper()}{loss[1:]}?", err=True):
        click.echo("nothing was changed", err=True)
        raise click.exceptions.Exit(1)
