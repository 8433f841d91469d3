"""The data directory and the runtime directory, on a real file system."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import msgspec
import pytest

from angarium import errors
from angarium_server.connections.addresses import host_and_port
from cluster.admin.client import shut_down
from cluster.configuration.config import NodeConfig
from cluster.data.data_dir import DataDirectory, RuntimeDirectory, write_durably, write_in_turns
from cluster.data.node_file import NodeFile, node_runs, process_start, read_node_file
from cluster.supervisor.starting import UpOptions, asked_listen, effective_config, fixed_listen, plain_address

DEFAULT_LISTEN = "tcp://127.0.0.1:55555"


def test_a_first_start_makes_name_and_id_and_later_ones_keep_them(tmp_path: Path) -> None:
    with DataDirectory(tmp_path / "data", "berlin") as data:
        first = data.node
    with DataDirectory(tmp_path / "data", "") as data:
        second = data.node
    assert (first.node, first.starts) == ("berlin", 1)
    assert (second.node, second.node_id, second.starts) == ("berlin", first.node_id, 2)


def test_what_changes_nothing_is_not_written(tmp_path: Path) -> None:
    """To write is to sync twice, and who hands over waits for each start."""
    with DataDirectory(tmp_path, "berlin") as data:
        before = (tmp_path / "node.json").stat().st_ino
        data.save(node="berlin")
        assert (tmp_path / "node.json").stat().st_ino == before
        data.save(url="tcp://127.0.0.1:1")
        assert (tmp_path / "node.json").stat().st_ino != before


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
    left = _left_by_a_killed_node()
    other = tmp_path / "precious"
    other.mkdir()
    with RuntimeDirectory(str(left)), RuntimeDirectory(str(other)), RuntimeDirectory(""):
        assert not left.exists()
        assert other.exists()


def test_the_runtime_directory_of_a_node_that_runs_is_left_alone() -> None:
    with RuntimeDirectory() as first:
        with RuntimeDirectory(str(first.path)) as second:
            assert second.path != first.path
        assert first.path.exists()


def _left_by_a_killed_node() -> Path:
    return Path(tempfile.mkdtemp(prefix="angarium-"))


@pytest.mark.parametrize("kind", ["elsewhere", "name", "link", "readable", "relative"])
def test_only_what_a_node_made_is_removed_as_a_runtime_directory(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    precious = (tmp_path if kind == "elsewhere" else place) / "angarium-abcd0123"
    if kind == "name":
        precious = place / "angarium-project"
    precious.mkdir(mode=0o755 if kind == "readable" else 0o700)
    (precious / "file").touch()
    named = str(precious)
    if kind == "link":
        (place / "angarium-aaaaaaaa").symlink_to(precious)
        named = str(place / "angarium-aaaaaaaa")
    elif kind == "relative":
        monkeypatch.chdir(place)
        named = precious.name
    with RuntimeDirectory(named):
        assert (precious / "file").exists()


def test_a_runtime_directory_of_another_user_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    left = _left_by_a_killed_node()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with RuntimeDirectory(str(left)):
        assert left.exists()
    left.rmdir()


def test_a_data_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DataDirectory(tmp_path, "n"):
        pass
    _let_it_be_of_another_user(tmp_path, monkeypatch)
    for use in (lambda: DataDirectory(tmp_path, ""), lambda: shut_down(tmp_path, 1)):
        with pytest.raises(errors.InvalidRequestError, match="belongs to user") as caught:
            use()
        assert caught.value.code == errors.INVALID_CONFIGURATION


def _let_it_be_of_another_user(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = path.stat().st_uid or 4_711
    if os.getuid() == 0:
        for place in (path, *path.iterdir()):
            os.chown(place, owner, owner)
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)


def test_what_earlier_versions_let_others_read_is_made_private(tmp_path: Path) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    for folder in (data, data / "spool", data / "spool" / "0", data / "log", data / "project"):
        folder.mkdir(mode=0o755)
    (data / "spool" / "1").symlink_to(elsewhere)
    ours = ["events.jsonl", "events.jsonl.1", "ready.json", "spool/0/data.mdb", "log/node.log"]
    for name in (*ours, "project/notes"):
        (data / name).touch(0o644)
    with DataDirectory(data, "n"):
        private = [path for path in data.rglob("*") if not path.stat().st_mode & 0o077]
    made = ["spool", "spool/0", "log", "lock", "node.json"]
    assert sorted(str(path.relative_to(data)) for path in private) == sorted((*ours, *made))


@pytest.mark.parametrize("name", ["node.json", "lock"])
def test_a_link_in_a_data_directory_is_not_followed(name: str, tmp_path: Path) -> None:
    with DataDirectory(tmp_path / "one", "n"):
        pass
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / name).symlink_to(tmp_path / "one" / name)
    with pytest.raises(errors.InvalidRequestError):
        DataDirectory(tmp_path / "two", "")


def test_a_process_that_took_the_pid_of_a_supervisor_is_not_ended(tmp_path: Path) -> None:
    """Also while the directory is locked: it may have been written, or copied, by anybody."""
    other = subprocess.Popen(["sleep", "60"])
    try:
        with DataDirectory(tmp_path, "n") as data:
            started = process_start(other.pid)
            assert started is not None
            data.save(pid=other.pid, pid_start=started - 1)
            assert shut_down(tmp_path, timeout_s=1) is False
            data.save(pid_start=started)
            assert node_runs(tmp_path, data.node)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_copy_of_a_data_directory_never_names_the_supervisor_of_the_first(tmp_path: Path) -> None:
    with DataDirectory(tmp_path / "first", "n") as first:
        first.save(pid=os.getpid(), pid_start=process_start(os.getpid()), admin="ipc:///run/first/admin")
        shutil.copytree(tmp_path / "first", tmp_path / "copy")
        with DataDirectory(tmp_path / "copy", "") as copy:
            assert copy.was_killed
            assert not node_runs(tmp_path / "copy", read_node_file(tmp_path / "copy"))
            assert read_node_file(tmp_path / "copy").admin == ""
        assert node_runs(tmp_path / "first", read_node_file(tmp_path / "first"))


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
    node = NodeFile(node="n", node_id="x", workers=1)
    node.listen, node.urls = (
        ["tcp://127.0.0.1:0", "tcp://127.0.0.1:7000"],
        ["tcp://127.0.0.1:5001", "tcp://127.0.0.1:1"],
    )
    configured = ["tcp://127.0.0.1:0", "tcp://127.0.0.1:7000", "tcp://localhost:0"]
    expected = ["tcp://127.0.0.1:5001", "tcp://127.0.0.1:7000", "tcp://localhost:0"]
    assert fixed_listen(configured, node) == expected


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


def test_an_encrypted_address_of_the_last_start_needs_its_certificate_again() -> None:
    kept = ["tls://127.0.0.1:1"]
    with pytest.raises(errors.InvalidRequestError, match=r"of the last start.*it needs a certificate"):
        asked_listen(UpOptions(), NodeConfig(), kept)
    router = msgspec.structs.replace(NodeConfig().router, tls_cert_file="node.pem")
    certified = msgspec.structs.replace(NodeConfig(), router=router)
    assert asked_listen(UpOptions(), certified, kept) == kept


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


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("tcp://127.0.0.1:7000", ("127.0.0.1", 7000)),
        ("tcp://[::1]:7000", ("::1", 7000)),
        ("tcp://*:7000", ("", 7000)),
        ("tcp://127.0.0.1:0", None),
        ("tcp://127.0.0.1:*", None),
        ("ipc:///run/x", None),
    ],
)
def test_only_a_port_that_is_chosen_can_be_in_use(url: str, expected: tuple[str, int] | None) -> None:
    assert host_and_port(url) == expected


def test_what_cannot_be_saved_is_saved_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DataDirectory(tmp_path, "n") as data:
        with monkeypatch.context() as full:
            full.setattr(os, "fsync", _no_room)
            data.save(workers=7)
            assert data.fault
            data.keep()
        assert read_node_file(tmp_path).workers == 0
        data.keep()
        assert (read_node_file(tmp_path).workers, data.fault) == (7, "")


def test_a_start_that_cannot_be_counted_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", _no_room)
    with pytest.raises(errors.UnavailableError, match=r"node\.json") as caught:
        DataDirectory(tmp_path, "n")
    assert caught.value.code == errors.DISK_FULL


def _no_room(_descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_written_in_turns_takes_the_place_of_the_last_but_one(tmp_path: Path) -> None:
    file, places = tmp_path / "f", []
    for content in (b"one", b"two", b"six", b"ten"):
        write_in_turns(file, content)
        assert file.read_bytes() == content
        places.append(file.stat().st_ino)
    assert places[2:] == places[:2]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".f.spare", "f"]


def test_a_crash_between_two_turns_leaves_the_file_whole(tmp_path: Path) -> None:
    file = tmp_path / "f"
    write_in_turns(file, b"one")
    os.link(file, tmp_path / ".f.before")
    write_in_turns(file, b"two")
    assert file.read_bytes() == b"two"
    (tmp_path / ".f.spare").rename(tmp_path / ".f.before")
    write_in_turns(file, b"six")
    assert file.read_bytes() == b"six"
