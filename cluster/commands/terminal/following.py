"""What is appended to and read on: rows from a time on, and those that come, as `events` and `audit` show them."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import click

from angarium import errors
from angarium_server.visible import visible
from cluster.commands.terminal.options import AT_LEAST_1, options, setting

if TYPE_CHECKING:
    from collections.abc import Callable

    Row = dict[str, Any]

Found = TypeVar("Found")

#: `--limit` gives more.
DEFAULT_LIMIT: Final = 1_000
#: Between two looks at what is new.
INTERVAL_S: Final = 0.5
#: What passes: whoever answers is started again, or is slow, or the way there is interrupted.
_PASSING: Final = (
    errors.CONTROLLER_UNAVAILABLE,
    errors.TIMEOUT,
    errors.CONNECT_FAILED,
    errors.CONTROL_RATE_EXCEEDED,
)
_AGO: Final = re.compile(r"(\d+)([smhd])")
_AGO_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def following_options(what: str, number: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--follow`, `--since` and `--limit`; rows are called `what`, and one is named by its `number`."""
    return options(
        click.option(
            "-f", "--follow", is_flag=True, help=f"Wait for new {what} and show them, until interrupted."
        ),
        click.option("--since", help=f"ISO time, {number}, or how long ago: 30s, 10m, 2h, 1d."),
        setting("-n", "--limit", type=AT_LEAST_1, default=DEFAULT_LIMIT, help=f"At most N {what} at once."),
    )


def show_following(
    find: Callable[[Any], list[Row] | None],
    number: str,
    form: Callable[[Row], str],
    since: str | None,
    *,
    follow: bool,
) -> None:
    """Print rows, and those that come if they are to be followed, until somebody interrupts.

    Args:
        find: gives the rows behind a position.
        number: the field of a row that is its position.
        form: makes a line of a row.
        since: the option.
        follow: whether to wait for more.
    """
    position: Any = None if since is None else since_of(since)
    find = Patient(find, lambda text: click.echo(text, err=True)).find if follow else find
    while True:
        for row in find(position) or ():
            click.echo(form(row))
            position = row[number]
        if not follow:
            return
        time.sleep(INTERVAL_S)


class Patient(Generic[Found]):
    """Asks again where an answer was had before, and says so."""

    def __init__(self, find: Callable[[Any], Found], say: Callable[[str], None]) -> None:
        self._find = find
        self._say = say
        #: Whether the last question was answered; None before the first one.
        self._is_answered: bool | None = None

    def find(self, position: Any) -> Found | None:
        """Give what is found; None: there was no answer, which passes.

        Raises:
            AngariumError: there never was an answer, or it is a refusal.
        """
        try:
            found = self._find(position)
        except errors.AngariumError as error:
            if self._is_answered is None or error.code not in _PASSING:
                raise
            if self._is_answered:
                self._say(f"no answer, asking again: {visible(str(error))}")
            self._is_answered = False
            return None
        if self._is_answered is False:
            self._say("there are answers again")
        self._is_answered = True
        return found


def since_of(text: str) -> str | int:
    """Read `--since`: a number, how long ago, or an ISO time as it is.

    Raises:
        click.BadParameter: it is none of these, or longer ago than there are years.
    """
    if text.isdecimal():
        return int(text)
    ago = _AGO.fullmatch(text)
    try:
        if ago is not None:
            span = timedelta(**{_AGO_UNITS[ago.group(2)]: int(ago.group(1))})
            return (datetime.now(UTC) - span).isoformat()
        datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        message = f"--since {text!r}: write how long ago (30s, 10m, 2h, 1d), a time (2031-05-04T10:11:12Z) or a number."
        raise click.BadParameter(message) from None
    return text
