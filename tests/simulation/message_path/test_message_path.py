"""The path of a message does not get longer, and ARCHITECTURE.md tells of it as it is.

`scripts/message-path` shows the paths, and lowers the ceilings.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.simulation.message_path import report
from tests.simulation.message_path.tracer import ENTRIES, ROOT, Call, Function, Walk
from tests.simulation.message_path.ways import WAYS, Way, walk_ways

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

NAMES = tuple(WAYS)
DIRECT, GUARANTEED = NAMES[:3], NAMES[3:]
#: I/O, which the simulation stands in for.
SHELLS = {"storage/writer.py"}


@pytest.fixture(scope="module")
def ways() -> dict[str, Way]:
    return walk_ways()


@pytest.mark.parametrize(
    ("name", "side"), [(name, side) for name, sides in report.read_ceilings().items() for side in sides]
)
def test_the_path_of_a_message_is_not_longer_than_its_ceiling(
    ways: dict[str, Way], name: str, side: str
) -> None:
    """A ceiling only falls. After a change that makes a path shorter, `scripts/message-path --lower` lowers it."""
    ceiling, found = report.read_ceilings()[name][side], report.figures(ways[name])[side]
    walk = ways[name].walk.of(client=report.SIDES[side])
    assert all(one <= most for one, most in zip(found, ceiling, strict=True)), (
        f"{name}, {side}: {found[0]} files and {found[1]} functions, at most {ceiling[0]} and {ceiling[1]}. "
        f"Compare `scripts/message-path '{name}' --files` with that of the commit before, and shorten the path; "
        f"ceilings are in {report.CEILINGS.relative_to(ROOT)}, and are only ever lowered:\n"
        + "\n".join(report.files(walk))
    )


def test_each_way_has_its_ceilings(ways: dict[str, Way]) -> None:
    ceilings = {name: set(sides) for name, sides in report.read_ceilings().items()}
    assert ceilings == {name: set(report.sides(way)) for name, way in ways.items()}


def test_each_way_is_the_one_that_it_is_called(ways: dict[str, Way]) -> None:
    parts = {name: set(way.walk.parts) for name, way in ways.items()}
    assert parts == {
        "direct, fast path": {"client", "router"},
        "direct, slow path": {"client", "router", "worker"},
        "direct, over a link": {"client", "router", "worker", "link"},
        "guaranteed, up to STORE": {"router", "home"},
        "guaranteed": {"client", "router", "home"},
    }


def test_each_way_ends_where_it_should(ways: dict[str, Way]) -> None:
    came = {name: [call.operation for call in way.walk.calls if call.operation] for name, way in ways.items()}
    assert came["direct, fast path"] == ["PUBLISH", "DELIVER"]
    first, *between, last = came["direct, slow path"]  # which of two workers is the faster one is chance
    assert (first, sorted(between), last) == ("PUBLISH", ["MATCH"] * 2 + ["RESULT"] * 2, "DELIVER")
    assert came["guaranteed, up to STORE"] == ["PUBLISH", "STORE"]
    assert came["guaranteed"][:2] == ["PUBLISH", "STORE"]
    assert {"COMMITTED", "ACKED", "SETTLE", "FLOW"} <= set(came["guaranteed"])


def test_each_entry_is_one(ways: dict[str, Way]) -> None:
    """One that is called otherwise now would be left out, with all that it calls."""
    calls = [call for way in ways.values() for call in way.whole.calls if call.caller < 0]
    for part, names in ENTRIES.items():
        assert names - {call.function.name for call in calls if call.part == part} == set()


# -- ARCHITECTURE.md -----------------------------------------------------------------------------------------


def walk_of_the_page() -> str:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    return text.split("\n## The path of a message\n")[1].split("\n## ")[0]


def named_files(text: str) -> Iterator[str]:
    """Give the files that brackets name: with their folder, with that of the one before, or with one that follows."""
    for bracket in re.findall(r"\(([^()]*`[^()]*)\)", text):
        folder, bare = "", list[str]()
        for follows, name in re.findall(r"(\bin\s+)?`([^`]+)`", bracket):
            if follows or (ROOT / name).exists():
                yield from (f"{name if follows else folder}/{one}" for one in bare)
                bare = []
                is_folder = bool(follows) or (ROOT / name).is_dir()
                folder = name if is_folder else name.rpartition("/")[0]
                if not follows:
                    yield name
            else:
                bare.append(name)
        yield from (f"{folder}/{one}" for one in bare)


def test_named_files_are_found() -> None:
    text = "One (`node/server.py`, `c.py`), two (`d.py`\nand `x/e.py` in `f/g`; `node/home`), three (`x/y`)."
    assert list(named_files(text)) == [
        "node/server.py",
        "node/c.py",
        "f/g/d.py",
        "f/g/x/e.py",
        "node/home",
        "/x/y",
    ]


def test_a_message_passes_each_file_that_the_architecture_names(ways: dict[str, Way]) -> None:
    direct, guaranteed = walk_of_the_page().split("\nA guaranteed message takes")
    for text, names, least in ((direct, DIRECT, 12), (guaranteed, GUARANTEED, 12)):
        passed = {file for name in names for file in ways[name].walk.files}
        named = [file for file in named_files(text) if file not in SHELLS]
        assert len(named) >= least
        assert [
            one for one in named if not any(file == one or file.startswith(f"{one}/") for file in passed)
        ] == []


# -- the measure ---------------------------------------------------------------------------------------------

A, B, C = Function("a.py", "A.a"), Function("b.py", "B.b"), Function("a.py", "A.c")
TURN = Function("router/router.py", "Router.tick")


def walk_of(*calls: tuple[Function, int], part: str = "router") -> Walk:
    return Walk([Call(function, part, caller, "") for function, caller in calls])


def test_a_call_into_a_file_that_waits_turns_back() -> None:
    walk = walk_of((A, -1), (B, 0), (C, 1), (C, 0))
    assert [walk.turns_back(at) for at in range(4)] == [False, False, True, False]
    assert walk.turns == [(B, C)]
    assert walk.files == ["a.py", "b.py"]


def test_what_an_idle_turn_calls_too_does_not_count_unless_it_leads_on() -> None:
    idle = walk_of((TURN, -1), (A, 0), (B, 0))
    walk = walk_of((TURN, -1), (A, 0), (B, 0), (C, 2))
    assert walk.beyond(idle).functions == [TURN, B, C]
    assert walk_of((TURN, -1), (A, 0)).beyond(idle).functions == []
    assert walk_of((A, -1)).beyond(idle).functions == [A]


def test_ceilings_are_lowered_and_never_raised(
    ways: dict[str, Way], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = {NAMES[0]: ways[NAMES[0]]}
    found = report.figures(some[NAMES[0]])
    low, high = {side: [1, 1] for side in found}, {side: [999, 999] for side in found}
    monkeypatch.setattr(report, "CEILINGS", tmp_path / "ceilings.json")
    for before, after in ((low, low), (high, found)):
        report.CEILINGS.write_text(json.dumps({NAMES[0]: before}), encoding="utf-8")
        report.lower(some)
        assert report.read_ceilings() == {NAMES[0]: after}


def test_the_command_prints_figures_files_and_trees(capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(["fast", "--list"]) == 0
    tree = capsys.readouterr().out
    assert "router  <- PUBLISH\n  Router.client_frames  [router/router.py]\n    Router._publish" in tree
    assert "<< turns back" in tree
    assert report.main(["fast", "--files"]) == 0
    assert "  router/router.py: Router.client_frames, " in capsys.readouterr().out
