"""The processes of a node that waits for the word to begin, at a host that may become the primary at any moment.

Four fifths of a start go into imports, which touch none of the node's data. So each of these processes has imported
what it needs, and is the one that its place gets when the node begins. What is missing then, or is asked for again, is
started as usual.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING, Self

from angarium_server import launch
from angarium_server.process import KEEPER_WORD
from cluster.roster.table import ROLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

Place = tuple[str, int]


def await_word() -> bool:
    """Wait until the keeper lets this node begin; false: nobody wants it any more."""
    is_let = sys.stdin.buffer.readline(len(KEEPER_WORD)) == KEEPER_WORD
    launch.read_nothing_more()
    return is_let


class WarmProcesses:
    """One for each place with which the node starts, until it is taken; a context manager that ends the others."""

    def __init__(self, start: Callable[[str, list[str], str, int], subprocess.Popen[bytes]]) -> None:
        """Have none yet; `start` gets a role, a command line, a level for the log, and what is the standard input."""
        self._start = start
        self._level = ""
        self._waiting: dict[Place, subprocess.Popen[bytes]] = {}

    def fill(self, places: Iterable[Place], level: str) -> None:
        """Start one for each place, with a level for its log; what cannot be started now is missing."""
        self._level = level
        for role, index in places:
            command = launch.warm_command(ROLES[role].module, "--index", f"{index}")
            with contextlib.suppress(OSError):
                self._waiting[role, index] = self._start(role, command, level, subprocess.PIPE)

    def take(self, place: Place, arguments: Sequence[str], level: str) -> subprocess.Popen[bytes] | None:
        """Have the one of a place begin; None: there is none that lives, or its log has another level."""
        if level != self._level or (process := self._waiting.pop(place, None)) is None:
            return None
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as told:
            told.write(launch.told(arguments))
        return process if process.poll() is None else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._waiting.values():
            with process:
                process.kill()
        self._waiting.clear()
