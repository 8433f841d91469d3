"""The documentation in the terminal: pages, what is found in them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from angarium_server import launch
from cluster.commands import cli
from cluster.commands.node import documentation

if TYPE_CHECKING:
    from pathlib import Path

PAGE = """# Shelves

<!-- made by
a program -->

A shelf holds [books](books.md). It has no door.

## Boards

| board | width |
|---|---|
| oak | 20 cm |

```toml
# oak = "a comment, no heading"
```
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tutorial").mkdir()
    (tmp_path / "shelves.md").write_text(PAGE)
    (tmp_path / "tutorial" / "first.md").write_text("# First steps\n\nOak first:\n\nand so on.\n")
    return tmp_path


def test_a_page_has_a_name_a_title_and_its_first_sentence(folder: Path) -> None:
    assert documentation.pages(folder) == [
        ("shelves", "Shelves", "A shelf holds books."),
        ("tutorial/first", "First steps", "Oak first"),
    ]


def test_a_word_is_found_with_page_heading_and_line(folder: Path) -> None:
    assert list(documentation.search("OAK", folder)) == [
        ("shelves", "Boards", 9, "| oak | 20 cm |"),
        ("shelves", "Boards", 12, '# oak = "a comment, no heading"'),
        ("tutorial/first", "First steps", 3, "Oak first:"),
    ]
    assert [hit.line for hit in documentation.search("boards", folder)] == [5]
    assert list(documentation.search("made by", folder)) == [], "comments are not for readers"


def test_every_page_of_the_documentation_says_what_it_is_about() -> None:
    found = documentation.pages()
    assert {page.name for page in found} >= {"topics", "errors", "commands", "guarantees"}
    assert [page.name for page in found if page.title == page.name or not page.summary] == []
    assert launch.DOCS.is_dir()


def test_the_command_lists_shows_and_searches(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["docs", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "topics" in [row["name"] for row in rows]
    assert cli.run(["docs", "topics"]) == 0
    shown = capsys.readouterr().out
    assert "Topics and filters" in shown
    assert "\x1b" not in shown
    assert cli.run(["docs", "docs/topics.md"]) == 0
    assert capsys.readouterr().out == shown
    assert cli.run(["docs", "--search", "case sensitive", "--json"]) == 0
    assert "topics" in {json.loads(line)["page"] for line in capsys.readouterr().out.splitlines()}


def test_a_page_that_is_not_there_is_told_with_those_that_look_alike(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.run(["docs", "topcs"]) == 2
    assert "there is no page 'topcs'. Did you mean 'topics'" in capsys.readouterr().err
