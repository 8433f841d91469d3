"""scripts/java finds Java, installs it where it may, and says in one line what to do where it may not."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.requirement("R221")

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "java"
TOOLS = ("bash", "env", "sed", "head", "cat", "chmod", "cp")
#: Installs Java by putting a script there, if it is asked for this package.
APT = """#!/bin/sh
echo "$@" >> {folder}/asked
case "$*" in *install*{package}) cp {folder}/java.new {folder}/java;; *install*) exit 100;; esac
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Give a folder that is the whole PATH, with nothing but the tools of the script."""
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found
        (tmp_path / tool).symlink_to(found)
    return tmp_path


def program(path: Path, name: str, text: str) -> None:
    (path / name).write_text(text)
    (path / name).chmod(0o755)


def java(version: str) -> str:
    return f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n"


def missing(path: Path, **environment: str) -> str:
    command = f'set -euo pipefail; source "{SCRIPT}"; echo "[$java_missing]"'
    done = subprocess.run(
        [path / "bash", "-c", command],
        env={"PATH": str(path), **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.1"])
def test_java_that_is_new_enough_is_used(path: Path, version: str) -> None:
    program(path, "java", java(version))
    assert missing(path) == "[]"


@pytest.mark.parametrize("version", ["1.8.0_412", "11.0.2"])
def test_old_java_is_told_in_one_line(path: Path, version: str) -> None:
    program(path, "java", java(version))
    line = missing(path)
    assert line.startswith("[Spark needs Java 17 or later: install openjdk-17-jre-headless")
    assert "\n" not in line


def test_no_java_is_told_in_one_line(path: Path) -> None:
    assert missing(path).startswith("[Spark needs Java 17 or later")


def test_java_home_comes_before_the_path(path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.mktemp("jdk")
    (home / "bin").mkdir()
    program(home / "bin", "java", java("17.0.1"))
    program(path, "java", java("11"))
    assert missing(path, JAVA_HOME=str(home)) == "[]"


@pytest.mark.parametrize("package", ["openjdk-17-jre-headless", "openjdk-21-jre-headless"])
def test_root_installs_what_the_distribution_has(path: Path, package: str) -> None:
    program(path, "id", "#!/bin/sh\necho 0\n")
    program(path, "java.new", java("21.0.1"))
    program(path, "apt-get", APT.format(folder=path, package=package))
    assert missing(path) == "[]"


def test_sudo_without_password_installs(path: Path) -> None:
    program(path, "id", "#!/bin/sh\necho 1000\n")
    program(path, "sudo", '#!/bin/sh\nshift\n[ "$1" = true ] || exec "$@"\n')
    program(path, "java.new", java("17.0.1"))
    program(path, "apt-get", APT.format(folder=path, package="openjdk-17-jre-headless"))
    assert missing(path) == "[]"


@pytest.mark.parametrize(
    ("files", "environment"),
    [
        ({"id": "#!/bin/sh\necho 1000\n"}, {}),
        ({"id": "#!/bin/sh\necho 1000\n", "sudo": "#!/bin/sh\nexit 1\n"}, {}),
        ({"id": "#!/bin/sh\necho 0\n"}, {"ANGARIUM_JAVA": "as-is"}),
    ],
    ids=["no sudo", "sudo with password", "as it is"],
)
def test_nothing_is_installed_where_it_may_not(
    path: Path, files: dict[str, str], environment: dict[str, str]
) -> None:
    for name, text in files.items():
        program(path, name, text)
    program(path, "apt-get", APT.format(folder=path, package="openjdk-17-jre-headless"))
    assert missing(path, **environment).startswith("[Spark needs Java")
    assert not (path / "asked").exists()
