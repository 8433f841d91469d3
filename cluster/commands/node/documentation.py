"""The pages of the documentation, as they are installed with the server; `angarium docs` shows them.

A page is a Markdown file; its name is the path below `docs/` without the ending. Nothing here prints.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from angarium_server import launch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_COMMENT: Final = re.compile(r"<!--.*?-->\n*", re.DOTALL)
_LINK: Final = re.compile(r"!?\[([^\]]*)\]\([^)\s]*\)")
_SENTENCE: Final = re.compile(r"(.+?[.:])(?:\s|$)", re.DOTALL)
_HEADING: Final = re.compile(r"#{1,6} +(.+)")


class Page(NamedTuple):
    """One page."""

    name: str
    title: str
    #: Its first sentence.
    summary: str


class Hit(NamedTuple):
    """One line of a page that a word was found in."""

    page: str
    #: The heading above it.
    heading: str
    line: int
    text: str


def pages(folder: Path = launch.DOCS) -> list[Page]:
    """Give all pages, by name."""
    names = sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.md"))
    return [_describe(name, read(name, folder)) for name in names]


def read(name: str, folder: Path = launch.DOCS) -> str:
    """Give the Markdown of a page that is there, without comments."""
    return _COMMENT.sub("", (folder / f"{name}.md").read_text(encoding="utf-8"))


def search(word: str, folder: Path = launch.DOCS) -> Iterator[Hit]:
    """Give the lines that have a word in them, whatever its case; headings of a page first."""
    wanted = word.casefold()
    for page in pages(folder):
        hits = [hit for hit in _lines(page.name, read(page.name, folder)) if wanted in hit.text.casefold()]
        yield from (hit for hit in hits if hit.text == hit.heading)
        yield from (hit for hit in hits if hit.text != hit.heading)


def _lines(name: str, text: str) -> Iterator[Hit]:
    heading = ""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        is_code ^= line.startswith("```")
        found = None if is_code else _HEADING.fullmatch(line)
        heading = _plain(found[1]) if found else heading
        yield Hit(name, heading, number, heading if found else _plain(line).strip())


def _describe(name: str, text: str) -> Page:
    title, summary = name, ""
    for paragraph in text.split("\n\n"):
        block = paragraph.strip()
        if found := _HEADING.match(block):
            title = _plain(found[1]) if title == name else title
        elif block and block[0] not in "|`-*<!":
            sentence = _SENTENCE.match(_plain(" ".join(block.split())))
            summary = sentence[1].rstrip(":") if sentence else _plain(" ".join(block.split()))
            break
    return Page(name, title, summary)


def _plain(text: str) -> str:
    return _LINK.sub(r"\1", text)
