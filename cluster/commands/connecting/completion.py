"""`angarium completion`, and what completes the names that a node knows: queues, clients, Message VPNs and so on.

A completer asks the node that the command line so far means, for a moment. It never fails: where there is no node, or
no answer in time, there is nothing to complete.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from cluster.commands.connecting import contexts

if TYPE_CHECKING:
    from collections.abc import Callable

    _Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

SHELLS: Final = ("bash", "zsh", "fish")
_ENDPOINTS: Final = ("queue", "topic-endpoint")
#: Somebody waits at the keyboard.
ANSWER_TIMEOUT_S: Final = 0.5
#: More than anybody reads; the shell shows what fits.
NAMES_MAX: Final = 1_000
_WHERE: Final[dict[str, str]] = {
    "bash": 'add it to ~/.bashrc:  eval "$(angarium completion bash)"',
    "zsh": 'add it to ~/.zshrc, after compinit:  eval "$(angarium completion zsh)"',
    "fish": "angarium completion fish > ~/.config/fish/completions/angarium.fish",
}
#: What the script for bash does with a candidate, and what it has to do, or '#DEAD_MSG_QUEUE' begins a comment. Within
#: quotes bash inserts a candidate as it is.
_BASH_CANDIDATE: Final = "COMPREPLY+=($value)"
_BASH_QUOTED: Final = (
    '[[ ${COMP_WORDS[COMP_CWORD]} == [\\\'\\"]* ]] || printf -v value %q "$value"; COMPREPLY+=("$value")'
)
_EXAMPLES: Final = "\b\n" + "\n".join(_WHERE.values())


@click.command(epilog=_EXAMPLES)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(*, shell: str) -> None:
    """Print the completion script for SHELL."""
    kind = get_completion_class(shell)
    assert kind is not None, shell
    root = click.get_current_context().find_root().command
    source = kind(root, {}, "angarium", "_ANGARIUM_COMPLETE").source()
    click.echo(source.replace(_BASH_CANDIDATE, _BASH_QUOTED))


def complete_names(kind: str) -> _Completer:
    """Give a completer of the names of objects of one kind."""
    operation = "endpoints.list" if kind in _ENDPOINTS else "objects.list"
    return complete(operation, kind=kind, name="*")


def complete(operation: str, **arguments: Any) -> _Completer:
    """Give a completer of the names that an operation of the admin API lists for a Message VPN."""

    def completer(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        # Whatever is wrong, it is not the moment to say so: the command does when it is run.
        with contextlib.suppress(Exception):
            names = dict.fromkeys(str(row["name"]) for row in _ask(ctx, operation, arguments))
            return [CompletionItem(name) for name in names if name.startswith(incomplete)][:NAMES_MAX]
        return []

    return completer


def complete_contexts(
    _ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Give the contexts that begin so."""
    with contextlib.suppress(Exception):
        known = sorted(contexts.load(contexts.path()).context)
        return [CompletionItem(name) for name in known if name.startswith(incomplete)]
    return []


def _ask(ctx: click.Context, operation: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    from cluster.commands.connecting.connection import operator_of

    with ctx.scope(cleanup=False):
        options, vpn = operator_of(ctx.params, ANSWER_TIMEOUT_S)
        with options.open() as admin:
            found: list[dict[str, Any]] = admin.call(operation, vpn=vpn, **arguments)
            return found
