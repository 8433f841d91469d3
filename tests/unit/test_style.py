"""The rules of the project that a program can check: who imports whom, how long things are, what is
documented.

Each rule is one test that names every place where it is broken, so that one run is enough to mend them all.
"""

from __future__ import annotations

import ast
import functools
import gc
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import angarium

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]

#: Which of our packages each may import, besides itself. Imports run one way; type-only imports count.
MAY_IMPORT = {
    "angarium": set(),
    "angarium_server": {"angarium"},
    "storage": {"angarium", "angarium_server"},
    "router": {"angarium", "angarium_server"},
    "node": {"angarium", "angarium_server", "storage"},
    "gateway": {"angarium", "angarium_server"},
    "cluster": {"angarium", "angarium_server", "storage", "router", "node", "gateway"},
}
#: Where the SDK is, a distribution of its own; everything else is at the top.
SDK = ROOT / "sdk"
MAX_FUNCTION_LINES = 60
#: Most modules end far below; one concept that is whole at this length stays whole.
MAX_MODULE_LINES = 700
#: What one can take in of a folder at a glance, and of what an object works with.
MAX_MODULES_OF_A_FOLDER = 12
MAX_PARAMETERS = 8
#: State machines and codecs live here, which know neither sockets nor threads nor clocks.
WITHOUT_IO = ("angarium.client.protocol", "gateway.mqtt.clients", "gateway.mqtt.codec")
IO = {"asyncio", "os", "select", "selectors", "socket", "ssl", "threading", "time"}
#: A module with such a name has no single purpose.
NAMELESS = {"utils", "util", "helpers", "helper", "common", "core", "base", "misc"}
#: Modules that nobody imports because they are where a process starts.
STARTS = {"__main__", "__init__"}

Function = ast.FunctionDef | ast.AsyncFunctionDef
#: Where a statement holds others.
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


class Module(NamedTuple):
    """A source file of ours."""

    path: Path
    name: str
    tree: ast.Module
    #: Every statement of it, wherever it stands; most rules look at no expression.
    statements: tuple[ast.AST, ...]
    lines: int

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]

    def place(self, line: int) -> str:
        return f"{self.path.relative_to(ROOT)}:{line}"


def folder_of(package: str) -> Path:
    return SDK / package if (SDK / package).is_dir() else ROOT / package


@functools.cache
def load(package: str) -> list[Module]:
    """Give the modules of a package; reading all of the project takes seconds, and most tests here ask for it."""
    modules = []
    folder = folder_of(package)
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        parts = path.relative_to(folder.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        tree = ast.parse(text)
        modules.append(Module(path, name, tree, tuple(statements(tree)), len(text.splitlines())))
        gc.freeze()  # to look for garbage among millions of nodes that stay took a third of the time
    return modules


def statements(holder: ast.AST) -> Iterator[ast.AST]:
    """Give every statement within another one; neither an import nor a definition stands in an expression."""
    for block in BLOCKS:
        for statement in getattr(holder, block, ()):
            yield statement
            yield from statements(statement)


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    return [module for package in MAY_IMPORT for module in load(package)]


@pytest.fixture(scope="module")
def modules_and_tests(modules: list[Module]) -> list[Module]:
    return modules + load("tests") + load("benchmarks")


def imported_names(module: Module) -> Iterator[tuple[int, str]]:
    """Give each name that a module imports, wherever in the module, absolute."""
    for node in module.statements:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                is_package = module.path.name == "__init__.py"
                parts = module.name.split(".")
                kept = len(parts) - node.level + is_package
                base = ".".join([*parts[:kept], *([base] if base else [])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def functions(module: Module) -> Iterator[Function]:
    for node in module.statements:
        if isinstance(node, Function):
            yield node


def texts() -> Iterator[tuple[Path, str]]:
    """Give every text of the project, with where it is; what others made is as they made it, and pictures are none."""
    for folder in (*MAY_IMPORT, "tests", "docs", "scripts", "deploy", "benchmarks", ".ci"):
        for path in sorted(folder_of(folder).rglob("*")):
            if path.is_file() and path.suffix != ".png" and not {"__pycache__", "vendor"} & {*path.parts}:
                yield path, path.read_text(encoding="utf-8", errors="replace")
    for path in sorted(ROOT.iterdir()):
        if path.suffix in {".md", ".toml"}:
            yield path, path.read_text(encoding="utf-8")


@pytest.mark.requirement("R209")
def test_the_packages_that_operators_know_are_top_folders() -> None:
    expected = ["cluster", "gateway", "node", "router", "storage", "tests", "deploy", "scripts", "sdk"]
    assert [name for name in expected if not (ROOT / name).is_dir()] == []
    assert [name for name in ("pyproject.toml", "README.md") if not (ROOT / name).is_file()] == []


def test_imports_run_one_way(modules: list[Module]) -> None:
    wrong = [
        f"{module.place(line)} {module.package} imports {name}"
        for module in modules
        for line, name in imported_names(module)
        if (package := name.partition(".")[0]) in MAY_IMPORT
        and package != module.package
        and package not in MAY_IMPORT[module.package]
    ]
    assert wrong == []


def test_nothing_that_is_installed_imports_tests_or_test_tools(modules: list[Module]) -> None:
    allowed = {"angarium_server.pytest_plugin"}
    wrong = [
        f"{module.place(line)} imports {name}"
        for module in modules
        if module.name not in allowed
        for line, name in imported_names(module)
        if name.partition(".")[0] in {"tests", "benchmarks", "pytest", "hypothesis", "_pytest"}
    ]
    assert wrong == []


def test_tests_import_each_other_by_full_names() -> None:
    """As `tests.unit.router.wired_node`: a bare name depends on how pytest was started, and mypy knows one name."""
    tests = load("tests")
    folders = {module.path.parent for module in tests}
    assert sorted(str(folder) for folder in folders if not (folder / "__init__.py").exists()) == []
    bare = {module.path.stem for module in tests} | {folder.name for folder in folders}
    bare -= {*MAY_IMPORT, "benchmarks", "tests"}
    wrong = [
        f"{module.place(line)} imports {name}"
        for module in tests + load("benchmarks")
        for line, name in imported_names(module)
        if name.partition(".")[0] in bare
    ]
    assert wrong == []


def test_no_module_imports_a_module_of_tests() -> None:
    """What two of them share is a module of its own: who looks for a helper does not look among tests."""
    tests = load("tests")
    known = {module.name for module in tests}
    wrong = [
        f"{module.place(line)} imports {name}"
        for module in tests + load("benchmarks")
        for line, name in imported_names(module)
        if resolve(name, known).rpartition(".")[2].startswith("test_")
    ]
    assert wrong == []


def test_no_module_imports_in_a_circle(modules: list[Module]) -> None:
    known = {module.name for module in modules}
    graph = {
        module.name: {resolve(name, known) for _, name in imported_names(module)} & known - {module.name}
        for module in modules
    }
    assert circles(graph) == []


def test_no_folders_of_a_part_import_each_other_in_a_circle(modules: list[Module]) -> None:
    """A part is a house with floors: its subfolders, and what lies directly in it, import one way, types included.

    The `__init__` of a part is its front door, above all floors: it re-exports, and nothing inside imports it.
    """
    known = {module.name for module in modules}
    folder = {module.name: folder_in(module) for module in modules}
    graph: dict[str, set[str]] = {name: set() for name in folder.values()}
    for module in modules:
        imported = {resolve(name, known) for _, name in imported_names(module)} & known
        graph[folder_in(module)] |= {folder[name] for name in imported} - {folder_in(module)}
    assert circles(graph) == []


@pytest.mark.parametrize("package", WITHOUT_IO)
def test_what_a_client_says_and_hears_is_decided_without_io(modules: list[Module], package: str) -> None:
    inside = [module for module in modules if module.name.startswith(package)]
    wrong = [
        f"{module.place(line)} imports {name}"
        for module in inside
        for line, name in imported_names(module)
        if name.partition(".")[0] in IO
    ]
    assert len(inside) > 1
    assert wrong == []


def folder_in(module: Module) -> str:
    """Give the folder of a module, as in router/flows; the front door of a part is by itself."""
    if module.name == module.package:
        return f"{module.package}/__init__"
    return str(module.path.parent.relative_to(folder_of(module.package).parent))


def test_no_folder_is_crowded(modules: list[Module]) -> None:
    rooms = Counter(folder_in(module) for module in modules if module.path.stem not in STARTS)
    crowded = {folder for folder, number in rooms.items() if number > MAX_MODULES_OF_A_FOLDER}
    assert sorted(crowded) == []


def test_no_constructor_asks_for_more_than_one_can_keep_in_mind(modules: list[Module]) -> None:
    """Options that users of the SDK may leave out do not count: each is one thing to say of a value, and documented."""
    demanding = {
        node.name
        for module in modules
        for node in module.statements
        if isinstance(node, ast.ClassDef)
        for function in node.body
        if isinstance(function, ast.FunctionDef) and function.name == "__init__"
        if asked_for(function, is_public=module.package == "angarium" and node.name in angarium.__all__)
        > MAX_PARAMETERS
    }
    assert sorted(demanding) == []


def asked_for(constructor: ast.FunctionDef, *, is_public: bool) -> int:
    """Count the parameters of a constructor, without keyword-only ones that have a default if it is public."""
    named = constructor.args.kw_defaults
    return len(constructor.args.args) - 1 + sum(not is_public or default is None for default in named)


def test_the_formatter_is_never_switched_off() -> None:
    """What it makes longer than a limit is too long."""
    mark = "# " + "fmt:"
    found = [f"{path.relative_to(ROOT)}" for path, text in texts() if path.suffix == ".py" and mark in text]
    assert found == []


def resolve(name: str, known: set[str]) -> str:
    """Give the module that an imported name belongs to."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Give each group of modules that reach each other."""
    reached = {name: reachable(name, graph) for name in graph}
    groups = {frozenset(other for other in reached[name] if name in reached[other]) for name in graph}
    return sorted(sorted(group) for group in groups if group)


def reachable(start: str, graph: dict[str, set[str]]) -> set[str]:
    """Give what a module imports, directly or through others."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for target in graph.get(waiting.pop(), set()) - found:
            found.add(target)
            waiting.append(target)
    return found


def test_every_module_is_used(modules: list[Module]) -> None:
    known = {module.name for module in modules}
    project = "".join(folder.joinpath("pyproject.toml").read_text(encoding="utf-8") for folder in (ROOT, SDK))
    texts = {module.name: module.path.read_text(encoding="utf-8") for module in modules}
    used = {resolve(name, known) for module in modules for _, name in imported_names(module)}
    dead = [
        module.name
        for module in modules
        if module.name not in used
        and module.path.stem not in STARTS
        and module.name not in project
        and not any(module.name in text for name, text in texts.items() if name != module.name)
    ]
    assert dead == []


def test_no_function_is_longer_than_one_can_keep_in_mind(modules_and_tests: list[Module]) -> None:
    long = [
        f"{module.place(function.lineno)} {function.name}: {length} lines"
        for module in modules_and_tests
        for function in functions(module)
        if (length := (function.end_lineno or 0) - function.lineno + 1) > MAX_FUNCTION_LINES
    ]
    assert long == []


def test_no_module_is_longer_than_one_can_read_at_a_time(modules_and_tests: list[Module]) -> None:
    long = [
        f"{module.place(1)}: {module.lines} lines"
        for module in modules_and_tests
        if module.lines > MAX_MODULE_LINES
    ]
    assert long == []


def test_every_module_says_what_it_is_for(modules_and_tests: list[Module]) -> None:
    assert [module.place(1) for module in modules_and_tests if not ast.get_docstring(module.tree)] == []


def test_a_package_says_what_it_is_and_re_exports_and_no_more(modules: list[Module]) -> None:
    allowed = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Expr, ast.If)
    wrong = [
        module.place(statement.lineno)
        for module in modules
        if module.path.name == "__init__.py"
        for statement in module.tree.body
        if not isinstance(statement, allowed)
    ]
    assert wrong == []


def test_every_module_is_named_after_what_it_does(modules_and_tests: list[Module]) -> None:
    assert [module.place(1) for module in modules_and_tests if module.path.stem in NAMELESS] == []
    folders = {folder for module in modules_and_tests for folder in module.path.relative_to(ROOT).parts[:-1]}
    assert sorted(folders & NAMELESS) == []


def test_no_text_names_a_path_of_one_machine_or_leaves_work_behind() -> None:
    marks = ["TO" + "DO", "FIX" + "ME"]
    if len(ROOT.parts) > 2:  # A root like /app is a word that a text may hold for good reason.
        marks.append(f"{ROOT}/")
    found = [
        f"{path.relative_to(ROOT)}:{number} {mark}"
        for path, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        for mark in marks
        if mark in line
    ]
    assert found == []


def test_no_text_refers_to_a_document_that_readers_do_not_have() -> None:
    """What is cited by section is a standard; our own rules have a page in docs/ or a number in requirements.md."""
    reference = re.compile(r"\b(?:design|facts)[\s#:]+(?:sections?\b|\d)|\bseed\s+00\d|\u00a7", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{len(text[: match.end()].splitlines())} {match.group()!r}"
        for path, text in texts()
        if any(word in lower for lower in [text.lower()] for word in ("design", "facts", "seed", "\u00a7"))
        for match in reference.finditer(text)
    ]
    assert found == []


def test_an_ignored_rule_says_why() -> None:
    """A `noqa` or `type: ignore` names its rule; a `noqa` has its reason behind a dash."""
    wrong = []
    for folder in MAY_IMPORT:
        for path in sorted(folder_of(folder).rglob("*.py")):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                _, mark, rest = line.partition("# noqa")
                if mark and (not rest.startswith(": ") or " - " not in rest):
                    wrong.append(f"{path.relative_to(ROOT)}:{number}")
                _, mark, rest = line.partition("# type: ignore")
                if mark and not rest.startswith("["):
                    wrong.append(f"{path.relative_to(ROOT)}:{number}")
    assert wrong == []
