"""The data directory and the runtime directory, on a real file system."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

import msgspec
import pytest

from angarium import errors
from cluster.admin import NodeFile, node_runs, read_node_file, shut_down
from cluster.config import NodeConfig
from cluster.data_dir import DataDirectory, RuntimeDirectory, write_durably
from cluster.server import UpOptions, asked_listen, effective_config, fixed_listen, plain_address

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_LISTEN = "tcp://127.0.0.1:0"


def test_a_first_start_makes_name_and_id_and_later_ones_keep_them(tmp_path: Path) -> None:
    with DataDirectory(tmp_path / "data", "berlin") as data:
        first = data.node
    with DataDirectory(tmp_path / "data", "") as data:
        second = data.node
    assert (first.node, first.starts) == ("berlin", 1)
    assert (second.node, second.node_id, second.starts) == ("berlin", first.node_id, 2)


def test_two_data_directories_have_two_ids(tmp_path: Path) -> None:
    with DataDirectory(tmp_path / "a", "n") as one, DataDirectory(tmp_path / "b", "n") as two:
        assert one.node.node_id != two.node.node_id


def test_a_data_directory_belongs_to_one_node_at_a_time(tmp_path: Path) -> None:
    with DataDirectory(tmp_path, "n"):
        with pytest.raises(errors.ConflictError, match="angarium down") as caught:
            DataDirectory(tmp_path, "n")
        assert caught.value.code == errors.OBJECT_IN_USE
    with DataDirectory(tmp_path, "n"):
        pass


def test_a_node_file_of_another_format_is_refused_and_frees_the_lock(tmp_path: Path) -> None:
    text = '{"format": 9, "node": "n", "node_id": "x", "workers": 1}'
    (tmp_path / "node.json").write_text(text, encoding="utf-8")
    for _ in range(2):
        with pytest.raises(errors.InvalidRequestError, match="format check found 9"):
            DataDirectory(tmp_path, "")


def test_a_damaged_node_file_is_refused_and_named(tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text("{", encoding="utf-8")
    with pytest.raises(errors.InvalidRequestError, match=r"node\.json"):
        DataDirectory(tmp_path, "")


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(errors.InvalidRequestError, match="data directory"):
        DataDirectory(tmp_path / "file" / "data", "")


def test_the_key_of_resume_tokens_is_kept_and_private(tmp_path: Path) -> None:
    with DataDirectory(tmp_path, "n") as data:
        key = data.token_key_hex()
        assert len(bytes.fromhex(key)) == 32
        assert data.token_key_hex() == key
    assert (tmp_path / "token.key").stat().st_mode & 0o777 == 0o600


def test_no_node_was_ever_started_on_an_empty_directory(tmp_path: Path) -> None:
    with pytest.raises(errors.UnavailableError) as caught:
        read_node_file(tmp_path)
    assert caught.value.code == errors.NODE_UNREACHABLE


def test_a_recorded_pid_alone_is_no_node(tmp_path: Path) -> None:
    """After a power cut another process may have the pid in node.json; it must not be stopped."""
    with DataDirectory(tmp_path, "n") as data:
        data.save(pid=os.getpid())
        assert node_runs(tmp_path, data.node)
    assert not node_runs(tmp_path, data.node)
    shut_down(tmp_path, timeout_s=1)


def test_the_runtime_directory_is_private_short_and_gone_afterwards() -> None:
    with RuntimeDirectory() as runtime:
        assert runtime.path.stat().st_mode & 0o777 == 0o700
        assert len(os.fsencode(runtime.path)) <= 90
        runtime.write("router.json", b"{}")
        assert (runtime.path / "router.json").stat().st_mode & 0o777 == 0o600
        assert [path.name for path in runtime.path.iterdir()] == ["router.json"]
    assert not runtime.path.exists()


def test_what_a_killed_node_left_in_the_runtime_directory_is_removed(tmp_path: Path) -> None:
    left = RuntimeDirectory().path
    other = tmp_path / "precious"
    other.mkdir()
    with RuntimeDirectory(str(left)), RuntimeDirectory(str(other)), RuntimeDirectory(""):
        assert not left.exists()
        assert other.exists()


def test_a_temporary_directory_too_long_for_sockets_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with RuntimeDirectory() as runtime:
        assert not runtime.path.is_relative_to(long)


def test_a_durable_write_leaves_the_new_file_alone(tmp_path: Path) -> None:
    write_durably(tmp_path / "f", b"old")
    write_durably(tmp_path / "f", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("f", b"new")]


def test_a_port_that_was_chosen_once_is_bound_again() -> None:
    kept = {"tcp://127.0.0.1:0": "tcp://127.0.0.1:5001", "tcp://127.0.0.1:7000": "tcp://127.0.0.1:1"}
    configured = ["tcp://127.0.0.1:0", "tcp://127.0.0.1:7000", "tcp://localhost:0"]
    expected = ["tcp://127.0.0.1:5001", "tcp://127.0.0.1:7000", "tcp://localhost:0"]
    assert fixed_listen(configured, kept) == expected


@pytest.mark.parametrize(
    ("asked", "configured", "kept", "expected"),
    [
        ((), [DEFAULT_LISTEN], [], [DEFAULT_LISTEN]),
        ((), [DEFAULT_LISTEN], ["tcp://127.0.0.1:7000"], ["tcp://127.0.0.1:7000"]),
        ((DEFAULT_LISTEN,), [DEFAULT_LISTEN], ["tcp://127.0.0.1:7000"], [DEFAULT_LISTEN]),
        ((), ["tcp://127.0.0.1:8000"], ["tcp://127.0.0.1:7000"], ["tcp://127.0.0.1:8000"]),
        ((), [DEFAULT_LISTEN], ["tcp://127.0.0.1:7000", "tcp://0.0.0.0:7000"], [DEFAULT_LISTEN]),
    ],
)
def test_a_start_that_names_no_address_takes_those_of_the_last_one_on_this_host(
    asked: tuple[str, ...], configured: list[str], kept: list[str], expected: list[str]
) -> None:
    router = msgspec.structs.replace(NodeConfig().router, listen=configured)
    config = msgspec.structs.replace(NodeConfig(), router=router)
    assert asked_listen(UpOptions(listen=asked), config, kept) == expected


def test_an_announced_address_is_one_that_people_write() -> None:
    assert plain_address("tcp://[::ffff:127.0.0.1]:5000") == "tcp://127.0.0.1:5000"
    assert plain_address("tcp://[::1]:5000") == "tcp://[::1]:5000"
    assert plain_address("ipc:///run/x") == "ipc:///run/x"


def test_the_command_line_overrides_the_file(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text("[router]\nworkers = 3\nkeepalive_ms = 500\n[log]\nlevel = 'ERROR'\n", encoding="utf-8")
    options = UpOptions(config_file=str(path), listen=("tcp://127.0.0.1:7000",), workers=2, log_level="debug")
    config = effective_config(options)
    assert config.router.listen == ["tcp://127.0.0.1:7000"]
    assert (config.router.workers, config.router.keepalive_ms, config.log.level) == (2, 500, "DEBUG")


def test_an_unsafe_address_on_the_command_line_is_refused_too() -> None:
    with pytest.raises(errors.InvalidRequestError, match="angarium keys create"):
        effective_config(UpOptions(listen=("tcp://0.0.0.0:55555",)))


def test_a_node_file_has_a_default_for_everything_but_its_identity() -> None:
    node = NodeFile(node="n", node_id="x", workers=1)
    assert (node.urls, node.pid, node.format) == ([], 0, 1)
