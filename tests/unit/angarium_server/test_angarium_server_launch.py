"""The start of the command where the SDK and the server of an installation do not belong together."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING

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
