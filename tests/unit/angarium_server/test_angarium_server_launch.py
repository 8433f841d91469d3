"""The start of the command where SDK and server do not belong together; and programs that wait for their arguments."""

from __future__ import annotations

import subprocess
import sys
import types
from importlib import metadata
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING

import msgspec
import pytest

from angarium import errors
from angarium_server import __version__, launch

if TYPE_CHECKING:
    from pathlib import Path


def test_a_source_tree_needs_no_installed_versions() -> None:
    assert launch.version_fault() == ""


@pytest.mark.parametrize("found", ["0.0.1", "no version of it"])
def test_an_sdk_of_another_version_is_refused_with_a_documented_code_and_what_to_install(
    found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(_name: str) -> str:
        if found[0].isdecimal():
            return found
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(launch, "PARTS", tmp_path / "parts")
    monkeypatch.setattr(metadata, "version", version)
    told = launch.version_fault()
    start = (
        f"error {errors.NOT_INSTALLED}: {errors.ERRORS[errors.NOT_INSTALLED].text}: angarium {__version__}, "
    )
    assert told.startswith(start)
    assert f"; {found} is installed (" in told
    assert f"'angarium=={__version__}'" in told
    monkeypatch.setattr(metadata, "version", lambda _name: __version__)
    assert launch.version_fault() == ""


def test_an_sdk_that_was_installed_beside_is_known_by_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ModuleSpec("angarium", None, origin=str(tmp_path / "angarium" / "__init__.py"))
    monkeypatch.setattr(launch, "PARTS", tmp_path / "angarium_server" / "parts")
    monkeypatch.setattr(launch, "_HERE", tmp_path / "angarium_server")
    monkeypatch.setattr(launch, "find_spec", lambda _name: spec)
    monkeypatch.setattr(metadata, "version", lambda _name: "0.0.1")
    assert "; 0.0.1 is installed (" in launch.version_fault()
    (tmp_path / f"angarium-{__version__}.dist-info").mkdir()
    assert launch.version_fault() == ""
    spec.origin = str(tmp_path / "elsewhere" / "angarium" / "__init__.py")
    assert "; 0.0.1 is installed (" in launch.version_fault()


def warm(tmp_path: Path) -> subprocess.Popen[bytes]:
    """Start a program that waits, and says what it imported, what it was told, and what else it can read."""
    (tmp_path / "imported.py").write_text("print('imported', flush=True)\n")
    (tmp_path / "program.py").write_text(
        "import sys\nimport imported\n"
        "if __name__ == '__main__':\n    print(sys.argv[1:], repr(sys.stdin.read()), flush=True)\n"
    )
    environment = launch.environment()
    environment["PYTHONPATH"] += f":{tmp_path}"
    command = launch.warm_command("program", "--index", "1")
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


@pytest.mark.slow
@pytest.mark.requirement("R265")
def test_a_program_that_waits_has_imported_what_it_needs_and_begins_with_what_it_is_told(
    tmp_path: Path,
) -> None:
    with warm(tmp_path) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"imported\n"
        process.stdin.write(launch.told(["--incarnation", "7"]))
        process.stdin.flush()
        assert process.stdout.readline() == b"['--index', '1', '--incarnation', '7'] ''\n"
        assert process.wait(60.0) == 0


def test_a_type_is_looked_at_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []

    def note(name: str) -> type[int]:
        looked_at.append(name)
        return int

    module = types.ModuleType("types_of_a_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(module).update(Struct=msgspec.Struct, note=note)
    exec("class Known(Struct):\n    one: 'note(\"one\")'\n", vars(module))
    exec("class Unknown(Struct):\n    one: 'OfATypeChecker'\n", vars(module))
    exec("class Other(Struct):\n    one: 'note | None'\n", vars(module))
    launch.look_at_types()
    assert looked_at == ["one"]
    assert msgspec.json.decode(b'{"one": 1}', type=module.Known).one == 1
    assert looked_at == ["one"], "and not again"


@pytest.mark.slow
@pytest.mark.requirement("R265")
def test_a_program_that_nobody_wants_any_more_ends_and_does_nothing(tmp_path: Path) -> None:
    with warm(tmp_path) as process:
        out, _ = process.communicate(timeout=60.0)
        assert (out, process.returncode) == (b"imported\n", 0)
