"""The page of conformance names tests that there are, and leaves out no statement of the specifications."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[3]
PAGE: Final = (ROOT / "docs" / "mqtt-conformance.md").read_text(encoding="utf-8")
#: The last statement of each section; all before it are there but for those named.
OF_5: Final = """
    1.5.4-3 1.5.5-1 1.5.7-1 2.1.3-1 2.2.1-6 2.2.2-1 3.1.0-2 3.1.2-30 3.1.3-12 3.1.4-6 3.2.0-2 3.2.2-22
    3.3.1-13 3.3.2-20 3.3.4-10 3.4.2-3 3.5.2-3 3.6.1-1 3.6.2-3 3.7.2-3 3.8.1-1 3.8.3-5 3.8.4-8 3.9.2-2
    3.9.3-2 3.10.1-1 3.10.3-2 3.10.4-6 3.11.2-2 3.11.3-2 3.12.4-1 3.14.0-1 3.14.1-1 3.14.2-4 3.14.4-3
    3.15.1-1 3.15.2-3 4.1.0-2 4.2.0-1 4.3.1-1 4.3.2-5 4.3.3-13 4.4.0-2 4.5.0-2 4.6.0-6 4.7.0-1 4.7.1-2
    4.7.2-1 4.7.3-4 4.8.2-6 4.9.0-3 4.12.0-7 4.12.1-2 4.13.1-1 4.13.2-1 6.0.0-4
"""
OF_3: Final = """
    1.5.3-3 2.2.2-2 2.3.1-7 3.1.0-2 3.1.2-24 3.1.3-11 3.1.4-5 3.2.0-1 3.2.2-6 3.3.1-12 3.3.2-3 3.3.4-1
    3.3.5-2 3.6.1-1 3.8.1-1 3.8.3-4 3.8.4-6 3.9.3-2 3.10.1-1 3.10.3-2 3.10.4-6 3.12.4-1 3.14.1-1 3.14.4-3
    4.1.0-2 4.3.1-1 4.3.2-2 4.3.3-2 4.4.0-1 4.5.0-2 4.6.0-6 4.7.1-3 4.7.2-1 4.7.3-4 4.8.0-2 6.0.0-4 7.0.0-2
    7.1.1-1 7.1.2-1
"""
LAST: Final = {"5.0": OF_5, "3.1.1": OF_3}
NOT_THERE: Final = {"5.0": {"2.2.1-1"}, "3.1.1": set[str]()}


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.splitlines() if re.match(r"\| (\d\S*-\d|\|)", line)]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


def statements(cell: str) -> list[str]:
    """Give `3.1.2-4, -5` as two."""
    found: list[str] = []
    for one in filter(None, cell.split(", ")):
        assert re.fullmatch(r"(\d+\.\d+\.\d+)?-\d+", one), cell
        found.append(found[-1].partition("-")[0] + one if one.startswith("-") else one)
    return found


def test_each_test_that_the_page_names_is_there() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    there = {name for source in sources for name in re.findall(r"def (test_\w+)\(", source)}
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 100
    assert named <= there, named - there


def test_each_row_of_what_is_met_names_a_test() -> None:
    assert [row for row in rows() if len(row) == 4 and "`test_" not in row[3]] == []


@pytest.mark.parametrize("version", LAST)
def test_each_statement_of_the_specification_is_on_the_page(version: str) -> None:
    column = list(LAST).index(version)
    found = {one for row in rows() for one in statements(row[column])}
    wanted = {
        f"{section}-{number + 1}"
        for section, _, last in (one.partition("-") for one in LAST[version].split())
        for number in range(int(last))
    }
    assert found == wanted - NOT_THERE[version]


def test_no_statement_is_met_twice() -> None:
    met = [row for row in rows() if len(row) != 3]
    for column in (0, 1):
        found = [one for row in met for one in statements(row[column])]
        assert sorted(found) == sorted(set(found))
