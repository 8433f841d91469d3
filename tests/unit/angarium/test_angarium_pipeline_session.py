"""What a session on Spark needs, and what is said when it is not there."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from angarium import errors
from angarium.pipeline import session
from angarium.pipeline.session import SparkSettings

if TYPE_CHECKING:
    from pathlib import Path


def fake_java(folder: Path, text: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    java.chmod(0o755)
    return folder


def test_the_package_can_be_imported_without_pyspark() -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None; "
        "import angarium.pipeline.session, angarium.pipeline.archives; print('done')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "done", done.stderr


def test_without_pyspark_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(errors.UnavailableError, match=r"pip install 'angarium\[spark\]'") as caught:
        session.check_installed()
    assert caught.value.code == errors.NOT_INSTALLED
    assert len(str(caught.value).splitlines()) == 1


def test_without_java_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(errors.UnavailableError, match="install Java 17 or later") as caught:
        session.check_installed()
    assert caught.value.code == errors.NOT_INSTALLED


def test_a_java_that_is_too_old_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", 'java version "1.8.0_391"')))
    with pytest.raises(errors.UnavailableError, match="Java 8 is too old for Spark"):
        session.check_installed()


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('java version "1.8.0_391"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("no such command", None),
    ],
)
def test_the_version_of_java_is_read(text: str, version: int | None) -> None:
    assert session.parse_java_version(text) == version


def test_a_session_is_on_this_machine_unless_another_master_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    found = session.session_settings(SparkSettings(conf={"spark.ui.enabled": "true"}), tmp_path)
    assert found["spark.master"] == "local[*]"
    assert found["spark.driver.bindAddress"] == "127.0.0.1"
    assert found["spark.ui.enabled"] == "true"
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    far = session.session_settings(SparkSettings(master="yarn"), tmp_path)
    assert far["spark.master"] == "yarn"
    assert "spark.driver.bindAddress" not in far
    assert far["spark.sql.session.timeZone"] == "UTC"


def test_what_is_read_at_once_has_room_in_the_memory_that_spark_takes_by_default(tmp_path: Path) -> None:
    """Messages of 8 MiB, and what holds them grows by being copied into twice as much."""
    found = session.session_settings(SparkSettings(master="yarn"), tmp_path)
    assert 3 * 8 * int(found["spark.sql.parquet.columnarReaderBatchSize"]) < 1024


def test_under_spark_submit_its_master_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert "spark.master" not in session.session_settings(SparkSettings(), tmp_path)
