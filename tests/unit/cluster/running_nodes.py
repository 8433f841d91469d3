"""Data directories that look as if a node ran on them: this process holds the lock."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class RunningNodes:
    """Makes such directories, and lets go of them."""

    def __init__(self) -> None:
        self._locks: dict[Path, int] = {}

    def start(self, folder: Path, url: str, name: str = "n") -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        node = {
            "node": name,
            "node_id": "1",
            "workers": 1,
            "url": url,
            "pid": os.getpid(),
            "admin": "ipc:///nowhere",
        }
        (folder / "node.json").write_text(json.dumps(node))
        self._locks[folder] = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(self._locks[folder], fcntl.LOCK_EX)
        return folder

    def kill(self, folder: Path) -> None:
        """Let it look as after kill -9: node.json says that it runs, and the lock is free."""
        os.close(self._locks.pop(folder))


@contextlib.contextmanager
def running_nodes() -> Iterator[RunningNodes]:
    nodes = RunningNodes()
    try:
        yield nodes
    finally:
        for folder in list(nodes._locks):
            nodes.kill(folder)
