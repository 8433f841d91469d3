"""Starts every program of the server so that it finds its own modules, whatever lies in the working directory.

The parts of the server are packages with plain names: cluster, gateway, node, router, storage. In a source tree
they lie at the top of it, in an installation in `angarium_server/parts`, where they are in nobody's way. This module
puts that folder first in the module search path and hands over:

    angarium ARGUMENT...                                     the console script, which is `main`
    python -P -m angarium_server ARGUMENT...                 the same
    python -P -m angarium_server.launch MODULE ARGUMENT...   another program of ours; `module_command` gives this line
    python -P -m angarium_server.launch --warm MODULE        the same, which waits: `warm_command`

`-P` keeps Python from searching the working directory: somebody else's `router.py` there is never run.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from angarium_server import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

_HERE: Final = Path(__file__).resolve().parent
#: Where `cluster`, `gateway`, `node`, `router` and `storage` are.
PARTS: Final = _HERE / "parts" if (_HERE / "parts").is_dir() else _HERE.parent
#: The pages of the documentation.
DOCS: Final = _HERE / "docs" if (_HERE / "parts").is_dir() else _HERE.parent / "docs"
_EXIT_MISUSED: Final = 2
_WARM: Final = "--warm"
#: Of the line with which a program begins that was waiting.
_LINE_BYTES_MAX: Final = 65_536
#: `angarium.errors.NOT_INSTALLED`, by its number: that module may be missing, or of another version.
_NOT_INSTALLED: Final = 50330


def command(*arguments: str) -> list[str]:
    """Give the command line that runs `angarium` with arguments, safe in any working directory."""
    return [sys.executable, "-P", "-m", "angarium_server", *arguments]


def module_command(module: str, *arguments: str) -> list[str]:
    """Give the command line that runs a module of ours as a program, safe in any working directory."""
    return [sys.executable, "-P", "-m", "angarium_server.launch", module, *arguments]


def warm_command(module: str, *arguments: str) -> list[str]:
    """Give the command line of such a program that imports what it needs, and waits until `told` comes.

    That is one line on its standard input: more arguments, as a list in JSON. Without it, it ends.
    """
    return module_command(_WARM, module, *arguments)


def told(arguments: Sequence[str]) -> bytes:
    """Give the line that has a program begin that waits."""
    return json.dumps(arguments).encode() + b"\n"


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
    if not _is_installed() or _lies_beside():
        return ""
    from importlib import metadata  # a quarter of what a command takes

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


def _lies_beside() -> bool:
    """Tell whether the SDK that is imported was installed into the folder of the server, in the version of it."""
    found = find_spec("angarium")
    folder = Path(found.origin).parents[1] if found is not None and found.origin is not None else None
    return folder == _HERE.parent and (folder / f"angarium-{__version__}.dist-info").is_dir()


@cache
def is_compiled() -> bool:
    """Tell whether modules on the path of a message are compiled (`deploy/compiling.py`); plain Python otherwise."""
    return find_spec("angarium_server.compiled__mypyc") is not None


def _is_installed() -> bool:
    return PARTS.name == "parts"


def import_program(module: str) -> None:
    """Import what a program of ours imports; it is imported itself when it is run."""
    found = find_spec(module)
    assert found is not None, module
    program = module if found.submodule_search_locations is None else f"{module}.__main__"
    import_module(program)
    del sys.modules[program]


def look_at_types() -> None:
    """Have every type of ours looked at that is decoded to.

    That is done when a type is used first; it was half of what a router computed between its imports and its clients.
    """
    import msgspec  # every process of a node starts here, and few have it yet

    waiting: list[type] = [msgspec.Struct]
    while waiting:
        kinds: list[type] = waiting.pop().__subclasses__()
        waiting += kinds
        for kind in kinds:
            # Some have names that only type checkers know, or that are no types here: nothing is decoded to those.
            with contextlib.suppress(NameError, TypeError):
                msgspec.json.Decoder(kind)


def read_nothing_more() -> None:
    """Have nothing as the standard input from here on."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)


def _run_module() -> None:
    find_parts()
    is_warm = sys.argv[1] == _WARM
    module = sys.argv[2 if is_warm else 1]
    del sys.argv[1 : 3 if is_warm else 2]
    if is_warm:
        import_program(module)
        import_module("encodings.idna")  # whoever listens looks up an address
        look_at_types()
        # What is there now stays: to look for garbage later passes over it.
        gc.collect()
        gc.freeze()
        line = sys.stdin.buffer.readline(_LINE_BYTES_MAX)
        if not line.endswith(b"\n"):
            return  # nobody wants it any more
        sys.argv += json.loads(line)
        read_nothing_more()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def leave(status: int) -> NoReturn:
    """End this process, which has closed what it had, without taking the interpreter apart.

    That costs more than all else at the end of an orderly stop, and who hands over to another host waits for it.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _run_and_leave() -> NoReturn:
    status = 0
    try:
        _run_module()
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        status = end.code or 0
    leave(status)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        print("usage: python -P -m angarium_server.launch MODULE ARGUMENT...", file=sys.stderr)
        sys.exit(_EXIT_MISUSED)
    _run_and_leave()
