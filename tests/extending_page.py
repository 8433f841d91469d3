"""docs/extending.md, read: what its sections change and add, type and show.

```diff title="cluster/x.py"      lines of a file that is there; what they become is put in their place
```python title="cluster/y.py"    a file that is new
```console                        commands, and what they show in the block of `text` after it
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_PACKAGES: Final = ("angarium_server", "cluster", "gateway", "node", "router", "storage")
ROOT: Final = Path(__file__).resolve().parents[1]
_SECTION: Final = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_FENCE: Final = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block of the page."""

    language: str
    title: str
    text: str


class Change(NamedTuple):
    """What becomes of some lines of a file that is there."""

    path: str
    before: str
    after: str
    added: int

    def of(self, text: str) -> str:
        """Give the file as it is then."""
        found = text.count(self.before)
        assert found == 1, f"docs/extending.md: {self.path} has {found} x {self.before!r}"
        return text.replace(self.before, self.after)


_PAGE: Final = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
#: Title of a section -> its blocks.
SECTIONS: Final = {
    title: [Block(*found) for found in _FENCE.findall(text)] for title, text in _SECTION.findall(_PAGE)
}


def changes(section: str) -> Iterator[Change]:
    """Give the changes that a section makes to files that are there."""
    for block in SECTIONS[section]:
        if block.language == "diff":
            lines = block.text.splitlines(keepends=True)
            assert all(line[0] in " +-" for line in lines), block
            before, after = ("".join(line[1:] for line in lines if line[0] in kept) for kept in (" -", " +"))
            yield Change(block.title, before, after, sum(line[0] == "+" for line in lines))


def extend(tree: Path) -> set[str]:
    """Make a copy of the repository with all changes and all new files; gives their paths."""
    for package in _PACKAGES:
        # What is compiled comes along, but not a file that is just written.
        shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("*.pyc.*"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    (tree / "sdk").symlink_to(ROOT / "sdk")
    done = set()
    for section, blocks in SECTIONS.items():
        for change in changes(section):
            path = tree / change.path
            path.write_text(change.of(path.read_text(encoding="utf-8")), encoding="utf-8")
            done.add(change.path)
        for block in blocks:
            if block.language == "python":
                (tree / block.title).parent.mkdir(exist_ok=True)
                (tree / block.title).write_text(block.text, encoding="utf-8")
                done.add(block.title)
    return done
