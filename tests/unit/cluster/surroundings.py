"""Surroundings in which a command finds no node by chance: no variables, no contexts, no registry, an empty folder."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def empty(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("ANGARIUM_"):
            monkeypatch.delenv(name)
    for name, place in (("XDG_RUNTIME_DIR", "run"), ("XDG_CONFIG_HOME", "config")):
        (folder / place).mkdir()
        monkeypatch.setenv(name, str(folder / place))
    (folder / "here").mkdir()
    monkeypatch.chdir(folder / "here")
