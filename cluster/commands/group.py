"""A command group that answers an unknown command with the ones that were probably meant.

It knows no command itself. `cluster.cli` builds the outermost group on it, the families of commands their
own.
"""

from __future__ import annotations

import difflib
from typing import Final

import click

#: More than three guesses is a list, and `--help` prints a better one.
MAX_SUGGESTIONS: Final = 3


class SuggestingGroup(click.Group):
    """A click group whose "no such command" names the commands that look alike."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Give the command that the arguments name.

        Raises:
            click.UsageError: there is none; the text names those that look alike.
        """
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing and not name.startswith("-"):
            ctx.fail(f"no such command '{name}'.{did_you_mean(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


def did_you_mean(name: str, known: list[str]) -> str:
    """Give " Did you mean ...?" with the known names that look like a name, or nothing."""
    close = difflib.get_close_matches(name, known, n=MAX_SUGGESTIONS)
    if not close:
        return ""
    return f" Did you mean {' or '.join(repr(guess) for guess in close)}?"
