"""What functions of the simulation say in another process, where hashes of texts are others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).resolve().parents[2]


def said_elsewhere(module: str, expression: str, arguments: Sequence[object]) -> list[str]:
    """Give the value of an expression of `one`, for each argument as text, where `t` is the module."""
    program = f"import importlib, sys; t = importlib.import_module({module!r}); " + (
        f"print(*({expression} for one in sys.argv[1:]))"
    )
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "4711",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'sdk'}",
    }
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
