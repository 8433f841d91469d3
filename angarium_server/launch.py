"""Starts every program of the server so that it finds its own modules, whatever lies in the working directory.

The parts of the server are packages with plain names: cluster, gateway, node, router, storage. In a source tree
they lie at the top of it, in an installation in `angarium_server/parts`, where they are in nobody's way. This module
puts that folder first in the module search path and hands over:

    angarium ARGUMENT...                                     the console script, which is `main`
    python -P -m angarium_server ARGUMENT...                 the same
    python -P -m angarium_server.launch MODULE ARGUMENT...   another program of ours; `command` gives this line

`-P` keeps Python from searching the working directory: somebody else's `router.py` there is never run.
"""

from __future__ import annotations

import os
import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

from angarium_server import __version__

_HERE: Final = Path(__file__).resolve().parent
#: Where `cluster`, `gateway`, `node`, `router` and `storage` are.
PARTS: Final = _HERE / "parts" if (_HERE / "parts").is_dir() else _HERE.parent
#: The pages of the documentation.
DOCS: Final = _HERE / "docs" if (_HERE / "parts").is_dir() else _HERE.parent / "docs"
_EXIT_MISUSED: Final = 2
#: `angarium.errors.NOT_INSTALLED`, by its number: that module may be missing, or of another version.
_NOT_INSTALLED: Final = 50330


def command(*arguments: str) -> list[str]:
    """Give the command line that runs `angarium` with arguments, safe in any working directory."""
    return [sys.executable, "-P", "-m", "angarium_server", *arguments]


def module_command(module: str, *arguments: str) -> list[str]:
    """Give the command line that runs a module of ours as a program, safe in any working directory."""
    return [sys.executable, "-P", "-m", "angarium_server.launch", module, *arguments]


def environment() -> dict[str, str]:
    """Give our environment for such a process, which then imports this code also where it is not installed."""
    if _is_installed():
        return dict(os.environ)
    paths = [str(PARTS), str(PARTS / "sdk"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def find_parts() -> None:
    """Put the parts of the server first in the module search path."""
    if str(PARTS) not in sys.path[:1]:
        sys.path.insert(0, str(PARTS))


def main() -> None:
    """Run the `angarium` command and end the process with its exit code."""
    find_parts()
    if fault := version_fault():
        sys.exit(fault)
    import_module("cluster.commands.cli").main()


def version_fault() -> str:
    """Say what is wrong with the versions of the two distributions; nothing if they fit.

    The SDK and the server of one installation are released together and have the same version; what may differ
    between machines is in docs/compatibility.md.
    """
    if not _is_installed():
        return ""
    from importlib import metadata  # every process of a node starts here, and few look

    try:
        found = metadata.version("angarium")
    except metadata.PackageNotFoundError:
        found = "no version of it"
    if found == __version__:
        return ""
    return (
        f"error {_NOT_INSTALLED}: Not Installed: angarium {__version__}, which angarium-server {__version__} needs; "
        f"{found} is installed ({sys.executable} -m pip install 'angarium-server=={__version__}'"
        f" 'angarium=={__version__}')"
    )


def _is_installed() -> bool:
    return PARTS.name == "parts"


def _run_module() -> None:
    find_parts()
    module = sys.argv[1]
    del sys.argv[1]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print("usage: python -P -m angarium_server.launch MODULE ARGUMENT...", file=sys.stderr)
        sys.exit(_EXIT_MISUSED)
    _run_module()
