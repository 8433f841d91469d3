"""The registry of the nodes that run: who is in it, who is not, and whose directory it has to be."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from angarium import errors
from cluster.data import registry
from tests.unit.cluster.running_nodes import RunningNodes, running_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

not_for_root = pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
only_for_root = pytest.mark.skipif(os.getuid() != 0, reason="only root gives a directory to others")


@pytest.fixture
def nodes() -> Iterator[RunningNodes]:
    with running_nodes() as nodes:
        yield nodes


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "run").mkdir()
    return {"XDG_RUNTIME_DIR": str(tmp_path / "run")}


def test_a_registered_node_is_found_with_what_its_node_file_says(
    tmp_path: Path, nodes: RunningNodes, environment: dict[str, str]
) -> None:
    data = nodes.start(tmp_path / "a", "tcp://127.0.0.1:1", "first")
    entry = registry.Registration(data, environment)
    assert entry.keep() == ""
    assert registry.running_nodes(environment) == [("first", str(data), "tcp://127.0.0.1:1", os.getpid())]
    assert (tmp_path / "run" / "angarium").stat().st_mode & 0o777 == 0o700
    entry.end()
    assert registry.running_nodes(environment) == []
    entry.end()


@only_for_root
def test_a_runtime_directory_of_another_user_is_not_used(tmp_path: Path, environment: dict[str, str]) -> None:
    """It stays in the environment after `su`."""
    os.chown(tmp_path / "run", 12345, 12345)
    own = tmp_path / f"angarium-user-{os.getuid()}"
    assert registry.folder(environment | {"TMPDIR": str(tmp_path)}) == own
    assert registry.running_nodes(environment | {"TMPDIR": str(tmp_path)}) == []


def test_the_entry_of_a_node_that_was_killed_is_ignored_and_removed(
    tmp_path: Path, nodes: RunningNodes, environment: dict[str, str]
) -> None:
    alive = nodes.start(tmp_path / "alive", "tcp://127.0.0.1:1")
    dead = nodes.start(tmp_path / "dead", "tcp://127.0.0.1:2")
    for data in (alive, dead):
        registry.Registration(data, environment).keep()
    nodes.kill(dead)
    assert [node.data for node in registry.running_nodes(environment)] == [str(alive)]
    assert len(list(registry.folder(environment).iterdir())) == 1


def test_an_entry_that_went_with_the_last_session_is_written_again(
    tmp_path: Path, nodes: RunningNodes, environment: dict[str, str]
) -> None:
    entry = registry.Registration(nodes.start(tmp_path / "a", "tcp://127.0.0.1:1"), environment)
    entry.keep()
    (path,) = registry.folder(environment).iterdir()
    path.unlink()
    registry.folder(environment).rmdir()
    assert registry.running_nodes(environment) == []
    assert entry.keep() == ""
    assert len(registry.running_nodes(environment)) == 1


@pytest.mark.parametrize(
    "content", [b"", b"relative/path", b"/nowhere/at/all", b"\xff\xfe", b"/a\0b", b"/" + b"x" * 5000]
)
def test_an_entry_that_makes_no_sense_is_removed(content: bytes, environment: dict[str, str]) -> None:
    place = registry.folder(environment)
    place.mkdir(mode=0o700)
    (place / "x.node").write_bytes(content)
    assert registry.running_nodes(environment) == []
    assert list(place.iterdir()) == []


def test_without_a_runtime_directory_it_is_in_the_temporary_one_under_the_number_of_the_user(
    tmp_path: Path,
) -> None:
    expected = tmp_path / f"angarium-user-{os.getuid()}"
    for runtime in ("", "relative", str(tmp_path / "missing")):
        assert registry.folder({"XDG_RUNTIME_DIR": runtime, "TMPDIR": str(tmp_path)}) == expected


def refusal(environment: dict[str, str], data: Path) -> str:
    """Give why the registry is refused, for who reads and for who writes alike."""
    with pytest.raises(errors.InvalidRequestError) as caught:
        registry.running_nodes(environment)
    assert registry.Registration(data, environment).keep() == str(caught.value)
    assert str(registry.folder(environment)) in caught.value.detail
    assert "set XDG_RUNTIME_DIR" in caught.value.advice
    return caught.value.detail


def test_a_registry_that_others_may_write_to_is_refused(tmp_path: Path, environment: dict[str, str]) -> None:
    registry.folder(environment).mkdir()
    registry.folder(environment).chmod(0o777)
    assert "may be written by others (mode 0777)" in refusal(environment, tmp_path)


def test_a_link_in_place_of_the_registry_is_refused(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    registry.folder(environment).symlink_to(tmp_path / "elsewhere")
    assert "is no directory" in refusal(environment, tmp_path)


def test_a_file_in_place_of_the_registry_is_refused(tmp_path: Path, environment: dict[str, str]) -> None:
    registry.folder(environment).write_text("")
    assert "File exists" in refusal(environment, tmp_path)


@only_for_root
def test_a_registry_of_another_user_is_refused(tmp_path: Path, environment: dict[str, str]) -> None:
    registry.folder(environment).mkdir(mode=0o700)
    os.chown(registry.folder(environment), 12345, 12345)
    assert "belongs to user 12345, not to 0" in refusal(environment, tmp_path)


@not_for_root
def test_a_registry_that_cannot_be_read_is_refused(tmp_path: Path, environment: dict[str, str]) -> None:
    registry.folder(environment).mkdir(mode=0o000)
    assert "cannot be read (mode 0000)" in refusal(environment, tmp_path)
