"""`python -m angarium`, where the server is installed and where it is not."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from angarium import __main__, __version__

if TYPE_CHECKING:
    from pathlib import Path


def test_without_the_server_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(__main__, "find_spec", lambda _name: None)
    with pytest.raises(SystemExit) as caught:
        __main__.main()
    assert str(caught.value).startswith("error 50330: ")
    assert "-m pip install 'angarium[server]'" in str(caught.value)


@pytest.mark.slow
def test_with_the_server_it_is_the_command_whatever_lies_in_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise SystemExit('this is not click')")
    command = [sys.executable, "-m", "angarium", "--version"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"angarium {__version__}\n"), done.stderr
