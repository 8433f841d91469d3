"""The glossary and the code use the same words: folders are in it, its words are used, words that went stay away."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[2]
PRODUCT: Final = (
    "sdk/angarium",
    "sdk/pyspark_angarium",
    "angarium_server",
    "storage",
    "router",
    "node",
    "gateway",
    "cluster",
)
#: Words that have another one now, as whole words of code and pages: what comes instead.
GONE: Final = {
    r"short[ _]way|ShortWay": "fast path",
    r"long[ _]way": "slow path",
    r"Picture": "ClusterView",
    r"Carriers": "ObjectProcesses",
    r"class Later|Later\(": "DeferredReply",
    r"LastWords|last[ _]words": "PendingSettles",
    r"Doorkeeper|Decoy": "Authenticator",
    r"Intake": "GuaranteedPublishing",
    r"GAUGES": "angarium_server.frames.metrics",
}


@cache
def words() -> tuple[str, ...]:
    """Give the words of the glossary, without those in brackets, which are usual elsewhere."""
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (?!word |---)(.*?) \|", page, flags=re.MULTILINE)
    names = [name.strip() for cell in cells for name in re.sub(r"\(.*?\)", "", cell).split(",")]
    return tuple(plain(name.removeprefix("to ")) for name in names if name)


def plain(text: str) -> str:
    """Give a text in small letters, with blanks between the words of names: "fast path" for FastPath and fast_path."""
    apart = re.sub(r"([a-z])([A-Z])", r"\1 \2", text).lower()
    return " ".join(apart.replace("_", " ").replace("-", " ").split())


def whole_words(words: str, text: str) -> Iterator[re.Match[str]]:
    """Find an expression where no letter is beside it."""
    for match in re.finditer(rf"(?:{words})(?![a-z])", text):
        # To look behind at each place of each text takes eight times as long.
        if not text[max(match.start() - 1, 0) : match.start()].isalpha():
            yield match


def folders() -> dict[str, Path]:
    """Give the folders of the product by name."""
    found = {path.parent.name: path.parent for part in PRODUCT for path in (ROOT / part).rglob("*.py")}
    return {plain(name): path for name, path in found.items()}


@cache
def files() -> dict[str, str]:
    """Give code and pages by path, without the changelog, which tells of words that went, and this module."""
    paths = [path for part in (*PRODUCT, "tests", "benchmarks") for path in (ROOT / part).rglob("*.py")]
    paths += [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    left_out = {ROOT / "CHANGELOG.md", Path(__file__)}
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for path in paths
        if path not in left_out
    }


def test_every_folder_is_a_word_of_the_glossary() -> None:
    known = {form for word in words() for form in (word, f"{word}s")}
    assert sorted(str(path) for name, path in folders().items() if name not in known) == []


def test_every_word_of_the_glossary_is_used() -> None:
    used = {path: text for path, text in files().items() if path.startswith((*PRODUCT, "docs/"))}
    del used["docs/glossary.md"]
    together = plain(" ".join((*used, *used.values())))
    unused = [word for word in words() if not any(whole_words(re.escape(word), together))]
    assert unused == []


def test_no_word_of_the_glossary_has_two_meanings() -> None:
    assert sorted({word for word in words() if words().count(word) > 1}) == []


@pytest.mark.parametrize("gone", GONE)
def test_a_word_that_went_is_not_found(gone: str) -> None:
    found = [path for path, text in files().items() for _ in whole_words(gone, text)]
    assert found == [], f"say {GONE[gone]}"
