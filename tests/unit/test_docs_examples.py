"""Examples in the documentation name what exists: modules, names of the SDK, commands, options.

Every page is on the site, and the API reference has every public name.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import pytest

import angarium
from cluster.commands.cli import command_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "deploy" / "README.md"]
FENCE = re.compile(r"^( *)```(\w*)[^\n`]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
#: What stands before a command: a prompt with a host or a user, or a program that runs it elsewhere.
COMMAND = re.compile(
    r"^(?:[\w-]*[$#] )?(?:.*?(?: -- | exec \S+ |&& |\|\| |-u angarium ))?(?:\S*/)?angarium (?=[a-z-])"
)
SHELL_OPERATORS = frozenset({"|", "||", "&&", "&", ";", ">", ">>", "<", "#"})
#: Modules that examples import and that are ours.
OURS = ("angarium", "angarium_server", "pyspark_angarium")


class Example(NamedTuple):
    """One fenced block of a page."""

    place: str
    language: str
    text: str


def examples() -> Iterator[Example]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            place = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}"
            lines = [line.removeprefix(match[1]) for line in match[3].splitlines()]
            yield Example(place, match[2], "\n".join(lines) + "\n")


PYTHON = [one for one in examples() if one.language == "python"]
WHOLE = [one for one in PYTHON if one.place.startswith("docs/coming-from/")]


@pytest.mark.parametrize("example", PYTHON, ids=[one.place for one in PYTHON])
def test_python_is_python_and_imports_what_exists(example: Example) -> None:
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree = compile(example.text, example.place, "exec", flags)
    for module, name in names_of_ours(tree):
        assert hasattr(importlib.import_module(module), name), f"{module} has no {name}"


@pytest.mark.parametrize("example", WHOLE, ids=[one.place for one in WHOLE])
def test_a_program_beside_that_of_another_broker_defines_what_it_uses(example: Example) -> None:
    names = [node for node in ast.walk(ast.parse(example.text)) if isinstance(node, ast.Name)]
    imported = {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(ast.parse(example.text))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    functions = {
        node.name for node in ast.walk(ast.parse(example.text)) if isinstance(node, ast.AsyncFunctionDef)
    }
    bound = imported | functions | {name.id for name in names if isinstance(name.ctx, ast.Store)}
    used = {name.id for name in names if isinstance(name.ctx, ast.Load)}
    assert used - bound - set(dir(builtins)) == set()


def names_of_ours(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Give module and name of what is imported from us, and of each `angarium.name` and `blocking.name`."""
    modules = {"angarium": "angarium", "blocking": "angarium.blocking"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in OURS:
                    importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in OURS:
            yield from ((node.module, alias.name) for alias in node.names if alias.name != "blocking")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            if module is not None and node.attr != "blocking":
                yield module, node.attr


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Give the place and the words of every `angarium` command that a block shows."""
    for example in examples():
        if example.language not in {"console", "sh", "text", ""}:
            continue
        for line in example.text.replace("\\\n", " ").splitlines():
            match = COMMAND.match(line.strip())
            if match is not None and "..." not in line:
                yield example.place, words(line.strip()[match.end() :])


def words(text: str) -> list[str]:
    """Give the words of a command, up to where the shell takes over."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found: list[str] = []
    for word in lexer:
        if word in SHELL_OPERATORS:
            break
        found.append(word)
    return found


COMMAND_LINES = list(command_lines())
#: What docs/extending.md adds; tests/integration/test_extending.py does so, and types it.
ADDED_BY_A_PAGE = {"angarium client count"}


def test_there_are_commands_to_look_at() -> None:
    assert len(COMMAND_LINES) > 100


def test_commands_and_options_exist() -> None:
    tree = command_tree()
    assert [fault for place, line in COMMAND_LINES for fault in faults_of(tree, place, line)] == []


def faults_of(tree: dict[str, click.Command], place: str, line: list[str]) -> Iterator[str]:
    path, rest = "angarium", list(line)
    while rest and isinstance(tree[path], click.Group) and not rest[0].startswith("-"):
        path = f"{path} {rest.pop(0)}"
        if path in ADDED_BY_A_PAGE and place.startswith("docs/extending.md"):
            return
        if path not in tree:
            yield f"{place}: no command {path!r}"
            return
    options = {name for one in tree[path].params for name in (*one.opts, *one.secondary_opts)} | {
        "--help",
        "-h",
    }
    for word in rest:
        name = word.partition("=")[0]
        if re.match(r"--?[a-zA-Z]", name) and name not in options:
            yield f"{place}: {path!r} has no option {name}"


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    listed = set(
        re.findall(r"[\w/.-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2])
    )
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    beside = {"ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "deploy/README.md"}
    assert pages | beside == listed, "add the page to `nav` in mkdocs.yml"


def test_every_public_name_of_the_sdk_is_in_the_api_reference() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
    shown = set(re.findall(r"^::: angarium\.(\w+)$", text, flags=re.MULTILINE))
    assert {name for name in angarium.__all__ if not name.startswith("__")} == shown - {"blocking"}
