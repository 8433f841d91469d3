"""README works as it is printed: its commands, its Python, and what it says that they print."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.acceptance.document import blocks
from tests.acceptance.installation import ROOT
from tests.share import short

if TYPE_CHECKING:
    from pathlib import Path

    from tests.acceptance.document import Desk
    from tests.acceptance.installation import Installation

README = ROOT / "README.md"


@pytest.mark.slow
@pytest.mark.timeout(300)  # on a busy machine
@pytest.mark.requirement("R274")
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.long)])
def test_everything_in_the_readme_works_as_printed(
    desk: Desk, installation: Installation, quick: Path, times: int
) -> None:
    """The node starts as usual; with --long so does each command."""
    desk.use(installation.folder / "bin", instead=short(quick, long=None))
    page = blocks(README)
    assert [block for block in page if block.language == "console"], "README has no console block"
    for _ in range(times):
        with desk.reader() as reader:
            reader.read(page)


def test_the_python_of_the_readme_is_python() -> None:
    for block in blocks(README):
        if block.language == "python":
            compile(block.text, block.place, "exec")


def test_the_readme_starts_with_one_sentence() -> None:
    opening = README.read_text(encoding="utf-8").partition("\n\n")[2].partition("\n\n")[0]
    assert opening.count(". ") == 0
    assert opening.endswith(".")
