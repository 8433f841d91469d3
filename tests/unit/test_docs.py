"""The documentation names everything that can be used, and is what the code says.

Pages, and the tables of frames in others, are written by `scripts/docs`. They are compared here, and then read
as a reader would read them,
so that a fault of the script does not hide what is missing.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import tomllib
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
import pytest

from angarium import errors
from angarium.errors import DOCUMENTATION
from angarium_server.frames import gateways, homes, links, matching
from angarium_server.frames.metrics import Metrics
from cluster import objects
from cluster.commands.cli import command_tree
from cluster.commands.node import documentation
from cluster.commands.terminal.group import variable_of
from cluster.configuration import config
from cluster.controller.health import metrics as controller_metrics
from node import metrics as node_metrics
from router.ground import metrics as router_metrics
from tests.extending_page import SECTIONS, changes

if TYPE_CHECKING:
    from types import ModuleType

    from angarium_server.frames.frame import Frame

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
#: A page as commands and texts name it.
CITED = re.compile(r"angarium docs ([a-z][\w/-]*)")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def read(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    loader = SourceFileLoader("docs_script", str(ROOT / "scripts" / "docs"))
    spec = importlib.util.spec_from_loader("docs_script", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name",
    [
        "commands.md",
        "errors.md",
        "attributes.md",
        "configuration.md",
        "metrics.md",
        "node-protocol.md",
        "link-protocol.md",
    ],
)
def test_a_page_is_what_the_code_says(script: ModuleType, name: str) -> None:
    assert read(name) == script.PAGES[name](), "run scripts/docs"


@pytest.mark.parametrize(
    "frames",
    [matching.FRAMES, homes.FRAMES, links.FRAMES, gateways.FRAMES],
    ids=["matching", "homes", "links", "gateways"],
)
def test_every_field_of_every_frame_is_in_a_table(
    script: ModuleType, frames: tuple[type[Frame], ...]
) -> None:
    page = read("node-protocol.md") + read("link-protocol.md")
    tables = {name for names in re.findall(r"<!-- fields ([\w ]+) -->", page) for name in names.split()}
    described = {
        script.frame_name(kind) for kind in frames if set(kind.__struct_fields__) - {"router", "incarnation"}
    }
    assert described <= tables


def test_every_metric_that_is_declared_is_in_a_table() -> None:
    parts = vars(router_metrics) | vars(node_metrics) | vars(controller_metrics)
    tables = re.findall(r"<!-- metrics (\w+) -->", read("metrics.md"))
    elsewhere = ["BRIDGE", "CHANNEL", "ENDPOINT", "HTTP", "MANAGEMENT", "MQTT", "OBJECTS", "WEBHOOK"]
    elsewhere += [f"OBJECT_{kind}" for kind in ("LINK", "GATEWAY", "WEBHOOK", "BRIDGE", "SINK")]
    assert sorted(tables) == sorted(
        [*(name for name, value in parts.items() if isinstance(value, Metrics)), *elsewhere]
    )


def test_every_command_and_every_option_is_documented() -> None:
    sections = re.split(r"^##+ ", read("commands.md"), flags=re.MULTILINE)
    pages = {section.partition("\n")[0]: section for section in sections}
    missing = []
    for path, command in command_tree().items():
        if path == "angarium":
            continue
        page = pages.get(path, "")
        missing += [] if page else [path]
        for parameter in command.params:
            names = parameter.opts if isinstance(parameter, click.Option) else []
            missing += [f"{path} {name}" for name in names if not re.search(rf"(`|, ){name}\b", page)]
    assert missing == []


def test_examples_in_help_texts_are_lines_of_their_own() -> None:
    """click keeps lines apart behind the character that backslash-b stands for, which a raw docstring has not."""
    assert [path for path, command in command_tree().items() if "\\b" in (command.help or "")] == []


def test_every_error_code_is_documented() -> None:
    page = read("errors.md")
    rows = {line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")}
    assert [code for code in errors.ERRORS if str(code) not in rows] == []


def test_every_error_constant_has_a_text_and_every_text_a_constant() -> None:
    constants = {value for name, value in vars(errors).items() if name.isupper() and isinstance(value, int)}
    assert constants == errors.ERRORS.keys()


def test_an_error_code_belongs_to_a_family_that_has_an_exception() -> None:
    plain = [code for code in errors.ERRORS if type(errors.error_for(code)) is errors.AngariumError]
    assert plain == []


def test_every_attribute_of_every_object_is_documented() -> None:
    page = read("attributes.md")
    missing = [
        f"{kind} {attribute.name}"
        for kind in objects.KINDS
        for attribute in objects.attributes_of(kind)
        if f"`{attribute.name}`" not in page.partition(f"\n## {kind}\n")[2].partition("\n## ")[0]
    ]
    assert missing == []


def test_every_key_of_the_configuration_is_documented_with_its_default() -> None:
    block = read("configuration.md").partition("```toml\n")[2].partition("```")[0]
    table = tomllib.loads(block)
    for name, struct in config.SECTIONS.items():
        assert table[name] == msgspec.to_builtins(struct()), name


def called(call: ast.Call) -> str:
    """Give the last name of what is called, empty if it has none."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def test_every_page_that_a_text_cites_is_there_for_an_installed_user() -> None:
    """A text names a page by command and address; a path is for those who have the source."""
    cited, paths = set(), []
    for package in ("sdk", "angarium_server", "cluster", "gateway", "node", "router", "storage"):
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if not re.search("documented|docs", text):
                continue  # as of fourteen modules in fifteen
            tree = ast.parse(text)
            told = docstrings(tree)
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and called(node) == "documented":
                    cited.add(ast.literal_eval(node.args[0]))
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    cited.update(CITED.findall(node.value))
                    if node not in told and re.search(r"\bdocs/[\w-]+\.md", node.value):
                        paths.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert paths == [], "cite pages with documented(), or as 'angarium docs PAGE'"
    assert {"connecting", "selectors", "spark"} <= cited
    assert cited <= {page.name for page in documentation.pages(DOCS)}
    with (ROOT / "pyproject.toml").open("rb") as file:
        assert tomllib.load(file)["project"]["urls"]["Documentation"] == DOCUMENTATION


def test_every_variable_that_options_share_is_on_the_page_about_them() -> None:
    page = read("connecting.md")
    variables: set[str] = set()
    for path, command in command_tree().items():
        for option in command.params:
            if isinstance(option, click.Option):
                names = [option.envvar] if isinstance(option.envvar, str) else option.envvar or []
                # What a command that ran before in this process has named after itself is not shared.
                variables.update(set(names) - {variable_of(path, option)})
    assert {"ANGARIUM_URL", "ANGARIUM_PASSWORD_FILE", "ANGARIUM_LISTEN"} <= variables
    assert sorted(name for name in variables if f"`{name}`" not in page) == []


def docstrings(tree: ast.AST) -> set[ast.AST]:
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, holders) and node.body]
    return {body[0].value for body in bodies if isinstance(body[0], ast.Expr)}


def test_the_changelog_starts_with_what_is_not_released_yet() -> None:
    headings = re.findall(
        r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert headings
    assert headings[0].startswith("Unreleased")


def test_every_link_inside_the_documentation_leads_somewhere() -> None:
    broken = []
    for page in [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "deploy").rglob("*.md")]:
        for target in LINK.findall(page.read_text(encoding="utf-8")):
            place, _, anchor = target.partition("#")
            if "://" in target:
                continue
            path = (page.parent / place) if place else page
            if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_every_module_that_a_page_names_is_there() -> None:
    """Whole, or as in "`x.py` in `folder`": a module of that name is somewhere, and a folder below the root."""
    tops = [
        path for path in ROOT.iterdir() if (path / "__init__.py").is_file() or path.name in {"sdk", "scripts"}
    ]
    there = {
        f"/{path.relative_to(ROOT)}" for top in tops for path in top.rglob("*") if "." not in path.parent.name
    }
    gone = []
    for page in (ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *(DOCS / "design").glob("*.md")):
        for name in re.findall(r"`((?:\w+/)*\w+\.py|\w+(?:/\w+)+)`", page.read_text(encoding="utf-8")):
            top = name.partition("/")[0]
            is_ours = name.endswith(".py") or top in {one.name for one in tops}
            if is_ours and not any(path.endswith(f"/{name}") for path in there):
                gone.append(f"{page.relative_to(ROOT)}: {name}")
    assert gone == []


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_changes_of_the_page_of_extensions_fit_the_code() -> None:
    """Those who move or rename what the page names hear of it here; `test_extending.py` tries the result."""
    for section in SECTIONS:
        for change in changes(section):
            change.of((ROOT / change.path).read_text(encoding="utf-8"))
