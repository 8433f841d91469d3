"""`angarium docs`: the documentation in the terminal."""

from __future__ import annotations

import contextlib
import os
import sys

import click
from click.shell_completion import CompletionItem

from cluster.commands.node import documentation
from cluster.commands.terminal.group import did_you_mean
from cluster.commands.terminal.output import Output, list_option, width

#: Lines that are longer are hard to read, however wide the terminal is.
_WIDTH_MAX = 100
_HITS_MAX = 500


def _complete_pages(
    _ctx: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    with contextlib.suppress(OSError):
        found = documentation.pages()
        return [CompletionItem(one.name, help=one.title) for one in found if one.name.startswith(incomplete)]
    return []


@click.command()
@click.argument("page", required=False, shell_complete=_complete_pages)
@click.option(
    "--search", metavar="WORD", help="List the lines of all pages, or of PAGE, that have WORD in them."
)
@list_option
def docs(*, page: str | None, search: str | None, out: Output) -> None:
    """Show a PAGE of the documentation, or list the pages."""
    known = [one.name for one in documentation.pages()]
    name = None if page is None else _whole_name(page.removeprefix("docs/").removesuffix(".md"), known)
    if name is not None and name not in known:
        text = f"there is no page '{page}'.{did_you_mean(name, known)} 'angarium docs' lists them."
        raise click.BadParameter(text, param_hint="PAGE")
    if search is not None:
        _print_hits(search, name, out)
    elif name is None:
        _print_pages(out)
    else:
        out.one({"name": name, "text": documentation.read(name)}, lambda found: _show(found["text"]))


def _whole_name(name: str, known: list[str]) -> str:
    """Give the name of the only page whose last part is so: "monitor" is "how-to/monitor"."""
    found = [one for one in known if one.rpartition("/")[2] == name]
    return found[0] if len(found) == 1 and name not in known else name


def _print_pages(out: Output) -> None:
    found = documentation.pages()
    room = _room() - max(len(one.name) for one in found) - 2
    out.rows(
        [one._asdict() for one in found],
        ("name", "summary"),
        empty="there are no pages",
        readable=lambda row: {
            "name": row["name"],
            "summary": _shortened(row["summary"] or row["title"], room),
        },
    )


def _print_hits(word: str, page: str | None, out: Output) -> None:
    hits = [hit for hit in documentation.search(word) if page is None or hit.page == page][:_HITS_MAX]
    if out.is_json or not hits:
        out.rows([hit._asdict() for hit in hits], ("page",), empty=f"no page has '{word}' in it", name="page")
        return
    above = ("", "")
    for hit in hits:
        if (hit.page, hit.heading) != above:
            click.echo(f"{hit.page}: {hit.heading}")
            above = hit.page, hit.heading
        if hit.text != hit.heading:
            click.echo(f"  {_shortened(hit.text, _room() - 2)}")


def _show(text: str) -> None:
    """Print Markdown as people read it, in their pager if this is a terminal."""
    from rich.console import Console
    from rich.markdown import Markdown

    is_terminal = sys.stdout.isatty()
    console = Console(width=_room(), force_terminal=is_terminal, no_color=not is_terminal, highlight=False)
    with console.capture() as capture:
        console.print(Markdown(text))
    lines = "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"
    if is_terminal:
        # As git has it: colours, and no pager for what fits the screen.
        os.environ.setdefault("LESS", "FRX")
        click.echo_via_pager(lines, color=True)
    else:
        click.echo(lines, nl=False)


def _room() -> int:
    return min(width(), _WIDTH_MAX)


def _shortened(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 1].rstrip()}…"
