"""Which files with secrets others may read, and paths that no file can have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from angarium import errors
from angarium_server import launch
from angarium_server.testing import Node
from cluster.admin.client import shut_down
from cluster.configuration.config import check_config, load_config, read_password_file
from cluster.configuration.secret_files import exposed
from cluster.security.certificates import read_certificates

if TYPE_CHECKING:
    from tests.command_server import CommandServer

NUL = "a\\u0000b"


def configuration(path: Path, mode: int) -> Path:
    secret, file = path / "secret", path / "node.toml"
    secret.write_text("0123456789abcdef0123\n", encoding="utf-8")
    secret.chmod(mode)
    text = "[cluster]\nsecret_file = 'secret'\n[vpn.default.username.alice]\npassword_file = 'secret'\n"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("mode", "is_exposed"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True)]
)
def test_a_file_with_a_secret_that_others_may_read_is_named_once(
    mode: int, is_exposed: bool, tmp_path: Path
) -> None:
    found = exposed(load_config(configuration(tmp_path, mode)))
    assert [f"mode {mode:04o}" in text and "chmod 600" in text for text in found] == [True] * is_exposed


@pytest.mark.parametrize("key", ["secret_file", "password_file"])
def test_the_secrets_of_a_pair_are_among_them(key: str, tmp_path: Path) -> None:
    other = {"secret_file": "password_file", "password_file": "secret_file"}[key]
    for name, mode in ((key, 0o644), (other, 0o600)):
        (tmp_path / name).write_text("0123456789abcdef0123\n", encoding="utf-8")
        (tmp_path / name).chmod(mode)
    (tmp_path / "node.toml").write_text(
        '[standby]\nstore = "etcd"\nendpoints = ["http://127.0.0.1:1"]\nlisten = "tcp://127.0.0.1:2"\n'
        'peer = "tcp://127.0.0.1:3"\nusername = "u"\nsecret_file = "secret_file"\npassword_file = "password_file"\n'
    )
    (told,) = exposed(load_config(tmp_path / "node.toml"))
    assert str(tmp_path / key) in told


def test_a_file_with_a_secret_of_another_user_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(configuration(tmp_path, 0o600))
    if os.getuid() == 0:
        os.chown(tmp_path / "secret", 4_711, 4_711)
    monkeypatch.setattr(os, "geteuid", lambda: 4_712)
    assert ["belongs to user" in text for text in exposed(config)] == [True]


@pytest.mark.slow
def test_a_start_in_the_background_warns_and_starts(tmp_path: Path, commands: CommandServer) -> None:
    node = Node(tmp_path / "data")
    try:
        config = str(configuration(tmp_path, 0o644))
        more = ("--config", config, "--listen", "tcp://127.0.0.1:0", "--workers", "1")
        up = ["up", "-d", "--data", str(node.data), *more]
        done = commands.run(up, environment=launch.environment(), timeout_s=90)
        assert done.returncode == 0
        assert "warning: " in (told := done.stderr.decode())
        assert "mode 0644" in told
        assert "mode 0644" in (node.data / "log" / "node.log").read_text(encoding="utf-8")
    finally:
        shut_down(node.data)


@pytest.mark.parametrize(
    "text",
    [
        f'[cluster]\nsecret_file = "{NUL}"',
        f'[router]\ntls_cert_file = "{NUL}"',
        f'[router]\nlisten = ["ipc:///tmp/{NUL}"]',
        f'[events]\nsyslog = "unix:///{NUL}"',
        f'[vpn.default.username.alice]\npassword_file = "{NUL}"',
        f'[[bridges]]\nname = "b"\nremote_password_file = "{NUL}"',
    ],
)
def test_a_path_with_a_nul_is_a_fault_that_names_the_key(text: str, tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(text, encoding="utf-8")
    (fault,) = check_config(file)
    key = text.rpartition("\n")[2].partition(" =")[0]
    assert fault.endswith(f".{key}: it holds a NUL character")


def test_a_path_with_a_nul_that_comes_otherwise_is_a_plain_error() -> None:
    for read in (read_password_file, lambda path: read_certificates(Path(path))):
        with pytest.raises(errors.InvalidRequestError) as caught:
            read("a\0b")
        assert caught.value.code == errors.INVALID_CONFIGURATION
