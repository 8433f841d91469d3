"""Which numbered requirements no test shows: a list that may only become shorter.

`docs/requirements.md` numbers what the system must do; a test says what it shows with
`@pytest.mark.requirement`. The marks are read from the source of the tests, so nothing has to run for it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"\| (R\d+) \| (.+?) \| (.+?) \| (.*?) ?\|")
#: The areas whose requirements tests have to show by now.
AREAS = frozenset({"direct", "guaranteed", "mesh"})
NOTHING_TO_TEST = "nothing to test here"

#: Requirements of these areas that no test shows yet. Take a number out when a test shows it; never put one in.
OWED: frozenset[str] = frozenset()


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


def marks(tree: ast.AST) -> Iterator[str]:
    """Give the numbers in all `requirement(...)` calls of a module, in decorators or in a `pytestmark`."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "requirement"
        ):
            for argument in node.args:
                assert isinstance(argument, ast.Constant), "a requirement is named by a literal"
                assert isinstance(argument.value, str), "a requirement is named by its text, as 'R19'"
                yield argument.value


def shown() -> dict[str, set[str]]:
    """Give the files that show each requirement."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for number in marks(ast.parse(path.read_text(encoding="utf-8"))):
            found.setdefault(number, set()).add(str(path.relative_to(ROOT)))
    return found


def number_of(name: str) -> int:
    return int(name[1:])


def test_the_requirements_of_these_areas_are_all_numbered() -> None:
    expected = set(range(1, 221))
    assert expected - {number_of(name) for name in requirements()} == set()


def test_a_test_names_only_requirements_that_exist() -> None:
    known = requirements()
    # Numbers beyond those listed belong to areas that this list does not hold yet; a typing error is still an
    # error.
    strange = {
        name: files
        for name, files in shown().items()
        if name not in known and not re.fullmatch(r"R([1-9]|[1-9]\d|1\d\d|2[01]\d|22[01])", name)
    }
    assert strange == {}


def test_every_requirement_of_the_area_is_shown_by_a_test_or_still_owed() -> None:
    known = shown()
    missing = [
        f"{requirement.number}: {requirement.text}"
        for requirement in requirements().values()
        if AREAS & set(requirement.areas)
        and requirement.note != NOTHING_TO_TEST
        and requirement.number not in known
        and requirement.number not in OWED
    ]
    assert missing == [], "a requirement is shown by no test"


def test_what_is_owed_only_becomes_less() -> None:
    paid = sorted(OWED & shown().keys(), key=number_of)
    assert paid == [], "a test shows these now: take them out of OWED"
    assert requirements().keys() >= OWED
