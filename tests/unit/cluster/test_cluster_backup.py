"""A backup of a node in one file, and what a data directory holds after it was restored."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import textwrap
import zlib
from typing import TYPE_CHECKING, Any, cast

import pytest

from angarium import errors
from cluster.commands.queues import backup
from cluster.data.data_dir import DataDirectory
from cluster.data.node_file import HOST_LOCK_FILE, NodeFile, read_node_file
from storage.config_store import Change, ConfigStore
from storage.spool import Table, open_readonly, open_spool

if TYPE_CHECKING:
    from pathlib import Path

    from cluster.admin.client import Admin

NODE = NodeFile(node="berlin", node_id="1" * 32, workers=2)
BLOCK = b"rows of a block"


def make_copies(folder: Path, value: bytes = BLOCK) -> None:
    """Do what controller and workers do for a backup."""
    (folder / "config").mkdir(parents=True)
    store = ConfigStore(folder / "config")
    store.commit([Change("vpn", "", "default", {})])
    store.close()
    for index in range(2):
        spool = open_spool(folder / "spool" / str(index), 1 << 20)
        block = zlib.crc32(BLOCK).to_bytes(4, "big") + value
        spool.commit([(Table.BLOCKS, (index + 1).to_bytes(8, "big"), block)])
        spool.close()


def make_backup(tmp_path: Path, value: bytes = BLOCK) -> Path:
    file = tmp_path / "node.backup"
    with backup.parts_folder(file) as folder:
        make_copies(folder, value)
        backup.pack(folder, file, NODE.node, NODE.node_id, 2, lambda _done, _total: None)
    return file


def restore(file: Path, data_dir: Path) -> backup.Restored:
    return backup.restore(file, data_dir, lambda _what, _done, _total: None)


def test_the_copies_go_when_the_file_is_made(tmp_path: Path) -> None:
    file = make_backup(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [file.name]
    manifest = backup.read_manifest(file)
    assert (manifest.node, manifest.workers) == ("berlin", 2)


def test_a_backup_is_never_written_over(tmp_path: Path) -> None:
    file = make_backup(tmp_path)
    with pytest.raises(errors.ConflictError, match="never written over"), backup.parts_folder(file):
        pass


class FarNode:
    """Copies at another host, given in pieces; it says that they are larger than they are by `missing` bytes."""

    def __init__(self, place: Path, missing: int = 0) -> None:
        self.place = place
        self.missing = missing
        self.pieces = 0

    def call(self, operation: str, *, copy: str, part: str, offset: int) -> Any:
        assert (operation, copy) == ("spool.fetch", "17")
        self.pieces += 1
        with (self.place / part / "data.mdb").open("rb") as file:
            file.seek(offset)
            return {"data": file.read(1000), "size": os.fstat(file.fileno()).st_size + self.missing}


def test_the_copies_of_a_node_at_another_host_come_in_pieces(tmp_path: Path) -> None:
    make_copies(tmp_path / "far")
    node, parts = FarNode(tmp_path / "far"), ["config", "spool/0", "spool/1"]
    told: list[int] = []
    backup.fetch(cast("Admin", node), "17", parts, tmp_path / "here", told.append)
    sizes = 0
    for part in parts:
        content = (tmp_path / "here" / part / "data.mdb").read_bytes()
        assert content == (tmp_path / "far" / part / "data.mdb").read_bytes()
        sizes += len(content)
    assert told[-1] == sizes
    assert node.pieces >= sizes // 1000


def test_a_copy_that_ends_early_is_no_backup(tmp_path: Path) -> None:
    make_copies(tmp_path / "far")
    node = cast("Admin", FarNode(tmp_path / "far", missing=1))
    with pytest.raises(errors.UnavailableError, match="ends at"):
        backup.fetch(node, "17", ["config"], tmp_path / "here", lambda _done: None)


@pytest.mark.parametrize(
    "parts", [["../out"], ["config/../../out"], ["/out"], ["spool"], [".."], ["config", "config"], ["x"]]
)
def test_a_node_at_another_host_names_no_other_place_here(parts: list[str], tmp_path: Path) -> None:
    node = FarNode(tmp_path / "far")
    with pytest.raises(errors.UnavailableError) as caught:
        backup.fetch(cast("Admin", node), "17", parts, tmp_path / "folder" / "here", lambda _done: None)
    assert caught.value.code == errors.SPOOL_DAMAGED
    assert (node.pieces, list(tmp_path.iterdir())) == (0, [])


def test_a_link_in_the_place_of_the_staging_directory_is_not_followed(tmp_path: Path) -> None:
    make_copies(tmp_path / "far")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "here").symlink_to(tmp_path / "elsewhere")
    node = cast("Admin", FarNode(tmp_path / "far"))
    with pytest.raises(errors.InvalidRequestError):
        backup.fetch(node, "17", ["config"], tmp_path / "here", lambda _done: None)
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.requirement("R96", "R97")
def test_a_fresh_data_directory_gets_everything_and_an_id_of_its_own(tmp_path: Path) -> None:
    done = restore(make_backup(tmp_path), tmp_path / "data")
    assert done.replaced is None
    node = read_node_file(tmp_path / "data")
    assert (node.node, node.workers) == ("berlin", 2)
    assert node.node_id != NODE.node_id
    store = ConfigStore(tmp_path / "data" / "config")
    assert [change.name for change in store.load()] == ["default"]
    store.close()
    for directory in backup.spools_of(tmp_path / "data"):
        spool = open_readonly(directory)
        assert spool.count(Table.BLOCKS) == 1
        spool.close()


@pytest.mark.parametrize("is_trial", [False, True])
def test_a_trial_connects_to_nobody(tmp_path: Path, is_trial: bool) -> None:
    """Its webhooks would post again what the node has posted since."""
    file = tmp_path / "node.backup"
    with backup.parts_folder(file) as folder:
        make_copies(folder)
        store = ConfigStore(folder / "config")
        for kind in ("link", "bridge", "webhook", "queue"):
            store.commit([Change(kind, "default", name, {"enabled": name == "on"}) for name in ("on", "off")])
        store.close()
        backup.pack(folder, file, NODE.node, NODE.node_id, 2, lambda _done, _total: None)
    done = backup.restore(file, tmp_path / "data", lambda *_: None, is_trial=is_trial)
    assert done.switched_off == (3 if is_trial else 0)
    store = ConfigStore(tmp_path / "data" / "config")
    enabled = {change.kind for change in store.load() if (change.attributes or {}).get("enabled")}
    store.close()
    assert enabled == ({"queue"} if is_trial else {"link", "bridge", "webhook", "queue"})


def test_what_was_there_is_put_aside_and_kept(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "spool" / "7").mkdir(parents=True)
    (data / "spool" / "7" / "data.mdb").write_bytes(b"precious")
    done = restore(make_backup(tmp_path), data)
    assert done.replaced is not None
    assert (done.replaced / "spool" / "7" / "data.mdb").read_bytes() == b"precious"
    assert [path.name for path in backup.spools_of(data)] == ["0", "1"]


def test_a_restore_that_was_killed_leaves_nothing_to_the_next_one(tmp_path: Path) -> None:
    """All of a backup may have been unpacked by then."""
    data, file = tmp_path / "data", make_backup(tmp_path)
    code = """
        import os, signal, sys
        from pathlib import Path
        from cluster.commands.queues import backup
        die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        backup._put_aside = die
        backup.restore(Path(sys.argv[1]), Path(sys.argv[2]), lambda *_: None)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(file), str(data)]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL
    assert list(data.glob(".restore*")), "it was killed in the middle"
    restore(file, data)
    assert not list(data.glob(".restore*"))


def test_a_node_that_has_a_name_keeps_it(tmp_path: Path) -> None:
    with DataDirectory(tmp_path / "data", "paris"):
        pass
    restore(make_backup(tmp_path), tmp_path / "data")
    assert read_node_file(tmp_path / "data").node == "paris"


def test_a_running_node_is_not_restored_over(tmp_path: Path) -> None:
    file = make_backup(tmp_path)
    with DataDirectory(tmp_path / "data", "n"), pytest.raises(errors.ConflictError, match="angarium down"):
        restore(file, tmp_path / "data")


def test_what_a_host_of_a_pair_follows_with_is_not_restored_over(tmp_path: Path) -> None:
    """No node runs on it, and its stores are written all the time; the outside store says that they have everything."""
    data = tmp_path / "data"
    restore(make_backup(tmp_path), data)
    before = read_node_file(data)
    with (data / HOST_LOCK_FILE).open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(errors.ConflictError):
            restore(tmp_path / "node.backup", data)
    assert read_node_file(data) == before


def test_a_backup_with_a_damaged_block_changes_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "spool" / "0").mkdir(parents=True)
    with pytest.raises(errors.UnavailableError, match="spool of worker 0") as caught:
        restore(make_backup(tmp_path, b"other bytes"), data)
    assert caught.value.code == errors.SPOOL_DAMAGED
    assert [path.name for path in backup.spools_of(data)] == ["0"]
    assert not list(data.glob(".restore*"))
    assert not list(data.glob("replaced*"))


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    file = make_backup(tmp_path)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    with pytest.raises(errors.AngariumError) as caught:
        restore(file, tmp_path / "data")
    assert caught.value.code == errors.SPOOL_DAMAGED
    file.write_bytes(b"no archive")
    with pytest.raises(errors.AngariumError, match="no backup"):
        backup.read_manifest(file)


def test_numbers_that_were_given_while_the_backup_was_made_are_not_given_again(tmp_path: Path) -> None:
    restore(make_backup(tmp_path), tmp_path / "data")
    store = ConfigStore(tmp_path / "data" / "config")
    assert store.load_counters()["producer"] > backup.NUMBERS_SKIPPED
    store.close()
