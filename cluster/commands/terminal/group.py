"""A command group that answers an unknown command with the ones that were probably meant.

It knows no command itself. `cluster.commands.cli` builds the outermost group on it, the families of commands their
own.
"""

from __future__ import annotations

import difflib
from typing import Final

import click

from cluster.commands.terminal.words import meant_by

#: More than three guesses is a list, and `--help` prints a better one.
MAX_SUGGESTIONS: Final = 3


#: Commands, and the other names for them that fingers know.
ALIASES: Final = {"list": "ls", "show": "info", "delete": "rm", "remove": "rm"}


class SuggestingGroup(click.Group):
    """A click group that knows aliases, and whose "no such command" names those that were meant."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Give the command of a name or of an alias, or None if there is none."""
        found = super().get_command(ctx, cmd_name)
        if found is not None:
            return found
        names = [name for name, alias in ALIASES.items() if alias == cmd_name]
        return next((self.commands[name] for name in names if name in self.commands), None)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, each with its alias."""
        commands = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        names = [f"{name}, {ALIASES[name]}" if name in ALIASES else name for name, _ in commands]
        limit = formatter.width - 6 - max(map(len, names), default=0)
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (shown, command.get_short_help_str(limit))
                    for shown, (_, command) in zip(names, commands, strict=True)
                ]
            )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Give the command that the arguments name.

        Raises:
            click.UsageError: there is none; the text names those that were probably meant.
        """
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing and not name.startswith("-"):
            known = self.list_commands(ctx)
            meant = meant_by(name, known, outermost=ctx.parent is None)
            ctx.fail(f"no such command '{name}'.{_question(meant) or did_you_mean(name, known)}")
        found, command, rest = super().resolve_command(ctx, args)
        assert command is not None
        # An alias is another way to type the name: errors, help and variables have the name.
        found = command.name if found in ALIASES.values() else found
        name_variables(f"{ctx.command_path} {found}", command)
        return found, command, rest


def name_variables(path: str, command: click.Command) -> None:
    """Give each option of a command its variable: --rate of `angarium pub` has ANGARIUM_PUB_RATE.

    It goes before a variable that the option shares with other commands, because it says more.
    """
    for option in command.params:
        if isinstance(option, click.Option):
            shared = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
            option.envvar = list(dict.fromkeys([variable_of(path, option), *shared]))


def variable_of(path: str, option: click.Option) -> str:
    """Give the variable of an option of the command with this full name."""
    name = max(option.opts, key=len).lstrip("-")
    return f"{path} {name}".replace("-", "_").replace(" ", "_").upper()


def did_you_mean(name: str, known: list[str]) -> str:
    """Give " Did you mean ...?" with the known names that look like a name, or nothing."""
    return _question(difflib.get_close_matches(name, known, n=MAX_SUGGESTIONS))


def _question(guesses: list[str]) -> str:
    if not guesses:
        return ""
    return f" Did you mean {' or '.join(repr(guess) for guess in guesses)}?"
