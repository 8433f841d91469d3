"""Prints the path of a message; `scripts/message-path` is its front door."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.simulation.message_path.ways import WAYS, walk_ways

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.message_path.tracer import Function, Walk
    from tests.simulation.message_path.ways import Way

#: Way -> side -> the most files and functions that it may have.
CEILINGS: Final = Path(__file__).with_name("ceilings.json")
#: Who walks: the processes of nodes, or the SDK without its transport.
SIDES: Final = {"node": False, "client": True}


def figures(way: Way) -> dict[str, list[int]]:
    """Give the number of files and functions of a way, by side."""
    return {side: [len(walk.files), len(walk.functions)] for side, walk in sides(way).items()}


def sides(way: Way) -> dict[str, Walk]:
    """Give the walk of each side that has one."""
    walks = {side: way.walk.of(client=client) for side, client in SIDES.items()}
    return {side: walk for side, walk in walks.items() if walk.calls}


def table(ways: dict[str, Way]) -> Iterator[str]:
    """Give a line for each way and side, and what its figures mean."""
    yield f"{'':26}{'':8}{'files':>8}{'functions':>12}{'lines':>8}{'turns back':>13}{'idle':>6}"
    for name, way in ways.items():
        for side, walk in sides(way).items():
            idle = len(set(way.whole.of(client=SIDES[side]).files) - set(walk.files))
            counts = f"{len(walk.files):8}{len(walk.functions):12}{walk.lines:8,}{len(walk.turns):13}{idle:6}"
            yield f"{name:26}{side:8}{counts}"
    yield ""
    yield "lines: of these files. turns back: calls into a file that waits for the one which calls."
    yield "idle: more files, which loops enter at each turn, whether there is a message or not; they do not count."


def files(walk: Walk) -> Iterator[str]:
    """Give the files with their functions, in the order in which they are entered first."""
    for file in walk.files:
        names = [one.name for one in walk.functions if one.file == file]
        yield f"  {file}: {', '.join(names)}"


@dataclass
class _Branch:
    """Calls of one function by one other."""

    calls: int = 0
    turns_back: bool = False
    below: dict[Function, _Branch] = field(default_factory=dict)

    def lines(self, function: Function, file: str, depth: int) -> Iterator[str]:
        """Give what is printed of it; `file` is that of the caller."""
        where = "" if function.file == file else f"  [{function.file}]"
        often = f" x{self.calls}" if self.calls > 1 else ""
        turn = "  << turns back" if self.turns_back else ""
        yield f"{'  ' * depth}{function.name}{often}{where}{turn}"
        for one, branch in self.below.items():
            yield from branch.lines(one, function.file, depth + 1)


def tree(walk: Walk) -> Iterator[str]:
    """Give the calls of a walk by part, indented; calls of one function by one other are one line."""
    before: tuple[str, str] | None = None
    shown: set[tuple[str, ...]] = set()
    for part, operation, entry, branch in _entries(walk):
        lines = tuple(branch.lines(entry, "", 1))
        if (part, *lines) in shown:
            continue
        shown.add((part, *lines))
        if before != (part, operation):
            yield part + (f"  <- {operation}" if operation else "")
        before = (part, operation)
        yield from lines


def _entries(walk: Walk) -> Iterator[tuple[str, str, Function, _Branch]]:
    branches: list[_Branch] = []
    entries: list[tuple[str, str, Function, _Branch]] = []
    for at, call in enumerate(walk.calls):
        if call.caller < 0:
            branch = _Branch()
            entries.append((call.part, call.operation, call.function, branch))
        else:
            branch = branches[call.caller].below.setdefault(call.function, _Branch())
        branch.calls += 1
        branch.turns_back |= walk.turns_back(at)
        branches.append(branch)
    return iter(entries)


def lower(ways: dict[str, Way]) -> list[str]:
    """Lower the ceilings to what is there; give what was lowered."""
    ceilings = read_ceilings()
    lowered = []
    for name, way in ways.items():
        for side, found in figures(way).items():
            before = ceilings.setdefault(name, {}).get(side, found)
            after = [min(pair) for pair in zip(before, found, strict=True)]
            if after != ceilings[name].get(side):
                lowered.append(f"{name}, {side}: {before} -> {after}")
            ceilings[name][side] = after
    rows = (f'  "{name}": {json.dumps(sides)}' for name, sides in ceilings.items())
    CEILINGS.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    return lowered


def read_ceilings() -> dict[str, dict[str, list[int]]]:
    """Give the ceilings."""
    ceilings: dict[str, dict[str, list[int]]] = json.loads(CEILINGS.read_text(encoding="utf-8"))
    return ceilings


def main(arguments: list[str] | None = None) -> int:
    """Print what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="scripts/message-path", description="Shows which code a message passes."
    )
    parser.add_argument(
        "way", nargs="?", default="", help="only ways whose name has this text: 'fast', 'guaranteed'"
    )
    parser.add_argument(
        "--files", action="store_true", help="the files and functions, in the order of first entry"
    )
    parser.add_argument("--list", action="store_true", help="the calls as a tree, by part")
    parser.add_argument(
        "--lower", action="store_true", help="lower the ceilings of the test to what is there"
    )
    options = parser.parse_args(arguments)
    names = [name for name in WAYS if options.way in name]
    if not names:
        parser.error(f"no way is called so; there are: {'; '.join(WAYS)}")
    ways = walk_ways(names)
    for name, way in ways.items():
        if options.list:
            print(f"{name}\n", *tree(way.walk), "", sep="\n")
        elif options.files:
            print(
                *(
                    line
                    for side, walk in sides(way).items()
                    for line in (f"{name}, {side}", *files(walk), "")
                ),
                sep="\n",
            )
    print(*table(ways), sep="\n")
    if options.lower:
        print(*lower(ways), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
