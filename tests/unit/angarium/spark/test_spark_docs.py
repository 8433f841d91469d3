"""docs/spark.md has every option and column as the code has them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from angarium.spark.options import BATCH, OPTIONS, STREAM, STREAM_WRITE, WRITE, Option
from angarium.spark.schema import COLUMNS, NAMES

pytestmark = pytest.mark.requirement("R221")

USES = (BATCH, STREAM, WRITE, STREAM_WRITE)
LINES = (Path(__file__).resolve().parents[4] / "docs" / "spark.md").read_text(encoding="utf-8").splitlines()


def shown(option: Option) -> str:
    default = option.default
    if default == NAMES:
        return "all"
    if default is None:
        return "-"
    if isinstance(default, bool):
        return f"`{default}`".lower()
    if isinstance(default, tuple):
        return f"`{','.join(default)}`"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_an_option_is_in_the_table(option: Option) -> None:
    uses = "all" if option.uses == set(USES) else ", ".join(use for use in USES if use in option.uses)
    assert f"| `{option.name}` | {uses} | {option.kind.what} | {shown(option)} | {option.what} |" in LINES


def test_columns_are_in_the_table_in_their_order() -> None:
    rows = [f"| `{one.name}` | {one.type.simpleString()} | {one.about} | {one.what} |" for one in COLUMNS]
    start = LINES.index(rows[0])
    assert LINES[start : start + len(rows)] == rows
