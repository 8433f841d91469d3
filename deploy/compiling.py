"""Compiles the modules on the path of a message, for a build that asks for it: mypyc makes C of them.

    ANGARIUM_COMPILE=1 python -m pip wheel --no-deps .      the wheel of the server, for this Python and this platform
    scripts/test --compiled [PATH]                          tests, on a copy of the project that is compiled in place
    python deploy/compiling.py FOLDER                       compiles a copy of the project in place

Without being asked everything stays plain Python, and the source is the same: a compiled module lies beside the one it
was made of and is found before it. `MODULES` says which are compiled, and nothing else does. All are in one library,
`LIBRARY`, because calls within it are calls of C.

What a module has to keep to, which `refusals` looks at before anything is compiled:

- No class of msgspec, and none with options behind its bases: these options and the exact types of fields would get
  lost without a word, and with them the checks of what comes from outside. Such classes have modules of their own.
- No decorated class but a dataclass.

And what no program looks at but the tests on a compiled build: fields of a NamedTuple name types that are imported when
the module runs; an index that is a slice is written as `[2:18]`.

What is compiled checks the types of arguments, and has no `__dict__`; it is somewhat less bounded in recursion, so what
follows the nesting of data of others stays as it is.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Is set to 1 by who wants a compiled build.
VARIABLE: Final = "ANGARIUM_COMPILE"
#: What a build needs besides; its versions are in deploy/lock/compiled.txt.
REQUIRES: Final = ("mypy>=2.4,<2.5", "setuptools>=65")
LIBRARY: Final = "angarium_server.compiled__mypyc"
#: Of a folder in which modules are compiled in place: what compiling and its tests need, and nothing else.
NEEDED: Final = (
    *("angarium_server", "storage", "node", "router", "gateway", "cluster", "sdk"),
    *("tests", "benchmarks", "deploy", "docs", "scripts", ".ci", "pyproject.toml", "mkdocs.yml", "LICENSE"),
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md"),
)

#: What each lone message passes in a router, and where the interpreter takes a good part of the time. Workers and homes
#: are not here: msgspec and LMDB do their work, and they gained nothing; nor did gateways, by their codec and clients.
MODULES: Final = (
    # The connections of clients.
    "angarium_server/watch.py",
    "angarium_server/connections/connection.py",
    "angarium_server/connections/door.py",
    "angarium_server/connections/turns.py",
    "angarium_server/connections/zmtp.py",
    # The router: its shell and its state machine, from a PUBLISH to a DELIVER.
    "router/server.py",
    "router/router.py",
    "router/ground/ground.py",
    "router/sessions/directory.py",
    "router/sessions/session.py",
    "router/sessions/session_table.py",
    "router/matching/accounting.py",
    "router/matching/effort.py",
    "router/matching/fast_path.py",
    "router/matching/rounds.py",
    "router/matching/shards.py",
    "router/delivery/dispatcher.py",
    "router/delivery/egress.py",
    "router/delivery/eliding.py",
)


def refusals(folder: Path, modules: Sequence[str]) -> list[str]:
    """Say what in these modules would be compiled to something else than it is."""
    found = []
    for module in modules:
        tree = ast.parse((folder / module).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                reason = _refusal(node)
                if reason:
                    found.append(f"{module}:{node.lineno}: {node.name} {reason}: give it a module of its own")
    return found


def _refusal(node: ast.ClassDef) -> str:
    bases = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]
    if "Struct" in bases:
        return "is a class of msgspec"
    if node.keywords:
        return f"has the option {node.keywords[0].arg}"
    if "NamedTuple" in bases and len(bases) > 1:
        return "is a NamedTuple with type parameters"
    decorators = [ast.unparse(one).partition("(")[0].rpartition(".")[2] for one in node.decorator_list]
    other = [name for name in decorators if name != "dataclass"]
    return f"is decorated with {other[0]}" if other else ""


def compile_into(
    folder: Path, target: Path, modules: Sequence[str] = MODULES, *, optimize: str = "2"
) -> list[Path]:
    """Compile modules of a folder with the project in it; give the libraries, each with its path below the target.

    Raises:
        SystemExit: mypyc is not installed, or cannot compile them; it says what is wrong.
    """
    if found := refusals(folder, modules):
        raise SystemExit("\n".join(found))
    try:
        # Before mypyc, which takes distutils otherwise, as far as this Python has it.
        import_module("setuptools")
        import_module("mypyc.build")
        from setuptools import Distribution
        from setuptools.command.build_ext import build_ext
    except ImportError as error:
        wanted = " ".join(f"'{one}'" for one in REQUIRES)
        raise SystemExit(f"{error.name} is needed to compile: python -m pip install {wanted}") from None
    with _inside(folder), tempfile.TemporaryDirectory(prefix="angarium-compile-") as work:
        made = to_c(folder, Path(work), modules, optimize=optimize)
        command: Any = build_ext(Distribution({"name": "angarium-server", "ext_modules": made}))
        command.build_lib, command.build_temp = str(target), f"{work}/objects"
        command.ensure_finalized()
        command.run()
        return [Path(one).relative_to(target) for one in command.get_outputs()]


def to_c(folder: Path, work: Path, modules: Sequence[str] = MODULES, *, optimize: str = "2") -> list[Any]:
    """Make C of modules of the folder that one is in; give the extensions that a compiler is to make of it.

    Raises:
        SystemExit: some cannot be compiled; what is wrong with them was printed.
    """
    from mypyc.build import mypycify

    made: list[Any] = mypycify(
        ["--config-file", str(_types(folder, work)), *modules],
        opt_level=optimize,
        debug_level="0",
        target_dir=f"{work}/c",
        group_name=LIBRARY.removesuffix("__mypyc"),
    )
    return made


def _types(folder: Path, work: Path) -> Path:
    """Write the part of our settings that says how types are found; what is strict about them is checked elsewhere."""
    settings = work / "mypy.ini"
    settings.write_text(
        f"[mypy]\nmypy_path = {folder}/sdk\nignore_missing_imports = True\ncache_dir = {work}/cache\n"
    )
    return settings


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def copy_project(project: Path, folder: Path) -> None:
    """Copy what compiling and its tests need."""
    # What is compiled comes along, but not a file that is just written.
    ignore = shutil.ignore_patterns("*.pyc.*", ".mypy_cache", ".pytest_cache", "*.so")
    for name in NEEDED:
        source = project / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=ignore, symlinks=True)
        else:
            shutil.copy2(source, folder / name)


def main(arguments: Sequence[str] | None = None) -> None:
    """Compile a copy of the project in place."""
    parser = argparse.ArgumentParser(prog="compiling.py", description=main.__doc__)
    parser.add_argument("folder", type=Path, help="where the copy is, or is to be")
    parser.add_argument(
        "--optimize", default="2", choices=("0", "1", "2", "3"), help="as the C compiler does"
    )
    options = parser.parse_args(arguments)
    if not (options.folder / "pyproject.toml").exists():
        copy_project(Path(__file__).resolve().parents[1], options.folder)
    for made in compile_into(options.folder, options.folder, optimize=options.optimize):
        print(made)


if __name__ == "__main__":
    main(sys.argv[1:])
