"""Every numbered requirement is shown by a test, or has a note that says why there is nothing to test.

`docs/requirements.md` numbers what the system must do; a test says what it shows with
`@pytest.mark.requirement`. The marks are read from the source of the tests, so nothing has to run for it.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"\| (R\d+) \| (.+?) \| (.+?) \| (.*?) ?\|")
LAST: Final = 285
#: What advises only, and what this project does not build.
NO_AREA: Final = "-"
#: A note that begins so gives the reason.
NOTHING_TO_TEST: Final = "nothing to test here: "


class Requirement(NamedTuple):
    """One line of docs/requirements.md."""

    number: str
    text: str
    areas: tuple[str, ...]
    note: str


def requirements() -> dict[str, Requirement]:
    text = (ROOT / "docs" / "requirements.md").read_text(encoding="utf-8")
    found = [
        Requirement(match[1], match[2], tuple(match[3].split(", ")), match[4]) for match in ROW.finditer(text)
    ]
    return {requirement.number: requirement for requirement in found}


def is_marathon(module: ast.Module) -> bool:
    """Tell whether no test of a module runs by default."""
    marks_of_all = [
        one
        for one in module.body
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "pytestmark"
    ]
    return any(
        ast.unparse(part) == "pytest.mark.long" for one in marks_of_all for part in ast.walk(one.value)
    )


def without_marathons(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a module without the tests that do not run by default, and of the others what decorates them."""
    children = ast.iter_child_nodes(node)
    if isinstance(node, ast.Module) and is_marathon(node):
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        if any(ast.unparse(one) == "pytest.mark.long" for one in node.decorator_list):
            return
        children = iter(node.decorator_list)
    yield node
    for child in children:
        yield from without_marathons(child)


def marks(tree: ast.AST) -> Iterator[str]:
    """Give the numbers in all `requirement(...)` calls of a module, in decorators or in a `pytestmark`."""
    for node in without_marathons(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "requirement"
        ):
            for argument in node.args:
                assert isinstance(argument, ast.Constant), "a requirement is named by a literal"
                assert isinstance(argument.value, str), "a requirement is named by its text, as 'R19'"
                yield argument.value


@functools.cache
def shown() -> dict[str, set[str]]:
    """Give the files that show each requirement."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        for number in marks(ast.parse(text)) if "requirement(" in text else ():
            found.setdefault(number, set()).add(str(path.relative_to(ROOT)))
    return found


def number_of(name: str) -> int:
    return int(name[1:])


def test_every_number_has_one_line_in_order() -> None:
    text = (ROOT / "docs" / "requirements.md").read_text(encoding="utf-8")
    assert [match[1] for match in ROW.finditer(text)] == [f"R{number}" for number in range(1, LAST + 1)]


def test_every_area_is_explained_and_used() -> None:
    text = (ROOT / "docs" / "requirements.md").read_text(encoding="utf-8")
    explained = re.findall(r"^\| `(.+?)` \|", text, re.MULTILINE)
    used = {area for requirement in requirements().values() for area in requirement.areas}
    assert sorted(explained) == sorted(used)


def test_a_test_names_only_requirements_that_exist() -> None:
    known = requirements()
    assert {name: files for name, files in shown().items() if name not in known} == {}


def test_every_requirement_is_shown_by_a_test() -> None:
    known = shown()
    missing = [
        f"{requirement.number}: {requirement.text}"
        for requirement in requirements().values()
        if not requirement.note.startswith(NOTHING_TO_TEST) and requirement.number not in known
    ]
    assert missing == [], "a requirement is shown by no test"


def test_nothing_is_left_untested_without_a_reason() -> None:
    for requirement in requirements().values():
        if requirement.areas == (NO_AREA,) and requirement.number not in shown():
            assert len(requirement.note) > len(NOTHING_TO_TEST), requirement.number


def test_every_module_about_spark_says_so() -> None:
    """Its one requirement is a long one: no part of it may drop out without a word."""
    modules = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests" / "spark").glob("test_*.py")
        if not is_marathon(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert modules - shown()["R221"] == set()
