"""Figures that pages name in their sentences and tables are those of the code, and pages do not contradict each other.

Pages that `scripts/docs` writes are compared in `test_docs.py`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from angarium import errors, wire
from cluster import objects
from cluster.configuration import config
from cluster.controller.mesh import reports
from cluster.data import data_dir
from node.backlog import segment
from storage import config_file, maintenance, spool

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
#: The changelog has values of earlier versions; the others are written from the code.
LEFT_OUT: Final = {
    "CHANGELOG.md",
    "attributes.md",
    "commands.md",
    "configuration.md",
    "errors.md",
    "metrics.md",
}
#: As in "`router.resume_ms` 60 s", "`max_hops` (8)" and "| `mqtt.receive_max` | 128"; a code of an error is no value.
FIGURE: Final = re.compile(
    r"`((?:\w+\.)?\w+)`(?:,? | \(| \| )(?!\d{5}\b)(\d[\d,]*)(?![\d.])(?: ?(KiB|MiB|GiB|MB|GB|ms|s)\b)?"
)
UNITS: Final = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "MB": 10**6, "GB": 10**9}


def defaults() -> dict[str, set[Any]]:
    """Give the defaults that a name may have: those of keys, with and without their section, and of attributes."""
    found: dict[str, set[Any]] = {}
    for section, struct in config.SECTIONS.items():
        for key, value in msgspec.to_builtins(struct()).items():
            if isinstance(value, int):
                found.setdefault(f"{section}.{key}", set()).add(value)
                found.setdefault(key, set()).add(value)
    for kind in objects.KINDS:
        for attribute in objects.attributes_of(kind):
            if isinstance(attribute.default, int):
                found.setdefault(attribute.name, set()).add(attribute.default)
    return found


def figures() -> Iterator[tuple[str, str, int]]:
    """Give the place, the name and the value of each figure that stands behind a name."""
    for page in [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "deploy").rglob("*.md")]:
        if page.name in LEFT_OUT:
            continue
        for name, number, unit in FIGURE.findall(page.read_text(encoding="utf-8")):
            seconds = 1_000 if unit == "s" and name.endswith("_ms") else 1
            value = int(number.replace(",", "")) * UNITS.get(unit, seconds)
            yield f"{page.relative_to(ROOT)}: {name} {number} {unit}".rstrip(), name, value


def test_a_figure_behind_the_name_of_a_key_or_an_attribute_is_its_default() -> None:
    known = defaults()
    compared = [(place, name, value) for place, name, value in figures() if name in known]
    assert len(compared) > 60
    assert [
        f"{place}, but {known[name]}" for place, name, value in compared if value not in known[name]
    ] == []


def test_the_formats_and_versions_of_today_are_those_of_the_code() -> None:
    page = (DOCS / "compatibility.md").read_text(encoding="utf-8")
    said = {row[0]: row[1] for row in re.findall(r"^\| ([^|]+) \|.*? (\d+) \|", page, flags=re.MULTILINE)}
    formats = {
        "`node.json`": data_dir.NODE_FORMAT,
        "config store: objects, producers, stages, sinks": int(config_file.FORMAT_VERSION),
        "spool of a worker": int(spool.FORMAT_VERSION),
        "blocks of messages in a spool": segment._FORMAT,
        "backup": maintenance.ARCHIVE_FORMAT,
        "client and node": wire.PROTOCOL_VERSION,
        "node and node (links)": wire.PROTOCOL_VERSION,
        "what nodes report of themselves": reports.VERSION,
    }
    assert {name: said.get(name) for name in formats} == {name: str(one) for name, one in formats.items()}


def test_the_earlier_formats_that_are_taken_over_are_those_of_the_code() -> None:
    page = (DOCS / "compatibility.md").read_text(encoding="utf-8")
    older = {
        row[0]: row[1] for row in re.findall(r"^\| ([^|]+) \| \d+ \| (\d[^a]+and \d) are", page, re.MULTILINE)
    }
    assert numbers(older["config store: objects, producers, stages, sinks"]) == [
        int(one) for one in config_file.UPGRADED_FORMATS
    ]
    assert numbers(older["blocks of messages in a spool"]) == sorted(
        set(segment._FORMATS) - {segment._FORMAT}
    )


def test_every_page_about_upgrades_has_nodes_before_clients() -> None:
    assert "Nodes\nfirst: clients of 0.1.0" in (DOCS / "compatibility.md").read_text(encoding="utf-8")
    assert "- Nodes first, then programs:" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    steps = (DOCS / "how-to" / "upgrade.md").read_text(encoding="utf-8")
    assert re.findall(r"^\d\. \*\*(.+?)\*\*( when all nodes are done)?", steps, flags=re.MULTILINE)[2:] == [
        ("Upgrade the nodes one after the other.", ""),
        ("Upgrade the clients", " when all nodes are done"),
    ]


def test_reasons_for_a_refused_login_are_those_that_the_router_tells() -> None:
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    section = page.partition("## The login is refused")[2].partition("\n## ")[0]
    table = section.partition("| the event says |")[2]
    said = {
        text.partition(":")[0]
        for row in re.findall(r"^\| (`.+?) \|", table, re.M)
        for text in re.findall("`(.+?)`", row)
    }
    assert len(said) > 4
    told = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "router" / "access").glob("*.py"))
    told += " ".join(f'"{reason.text}"' for reason in errors.ERRORS.values())
    assert [text for text in said if f'"{text}"' not in told] == []


def numbers(text: str) -> list[int]:
    return [int(one) for one in re.findall(r"\d+", text)]
