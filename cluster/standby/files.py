"""What a node has beside its stores and both hosts have alike: secrets, certificates of a joined cluster, its identity.

They change hardly ever, so all of them are sent whenever one has.
"""

from __future__ import annotations

import contextlib
import uuid
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import msgspec

from angarium.errors import UnavailableError
from angarium_server.frames.shipping import ShipFiles
from cluster.data.data_dir import (
    CONFIG_FOLDER,
    ISSUERS_FOLDER,
    JOIN_TOKENS_FILE,
    JOINED_FOLDER,
    SECRET_FILE,
    TOKEN_KEY_FILE,
    write_durably,
)
from cluster.data.node_file import NODE_FILE, NodeFile, read_node_file
from cluster.join.stored import JOINED_FILE
from cluster.standby.pair.outside import Standing
from cluster.standby.promotion import BEGUN_FILE
from cluster.standby.stores.manual import note
from cluster.standby.stores.opening import MANUAL_FILE
from storage.sync import sync_path

if TYPE_CHECKING:
    from collections.abc import Container
    from pathlib import Path

#: How the conversation about them is called, among those about stores.
STORE: Final = "files"
_SINGLE: Final = (TOKEN_KEY_FILE, SECRET_FILE, JOIN_TOKENS_FILE, BEGUN_FILE)
_FOLDERS: Final = (JOINED_FOLDER, ISSUERS_FOLDER)
#: Of `node.json`: what is true on both hosts. `starts` too: no incarnation is given twice.
_ALIKE: Final = ("node", "node_id", "data_id", "workers", "starts")


def collect(data: Path, number: int, standing: Standing | None = None) -> ShipFiles | None:
    """Give what there is, and who is who; None: the node has not begun."""
    try:
        node = read_node_file(data)
    except UnavailableError:
        return None
    if not node.data_id:
        return None
    places = [data / name for name in _SINGLE]
    for folder in _FOLDERS:
        places += sorted(path for path in (data / folder).glob("*") if not path.name.startswith("."))
    found = {}
    for path in (one for one in places if one.is_file()):
        with contextlib.suppress(FileNotFoundError):  # it went just now
            found[str(path.relative_to(data))] = path.read_bytes()
    alike = {name: getattr(node, name) for name in _ALIKE}
    if standing is None:
        return ShipFiles(number, alike, found)
    return ShipFiles(number, alike, found, standing.epoch, standing.primary, sorted(standing.in_sync))


def write(data: Path, shipped: ShipFiles) -> list[str]:
    """Have what the primary has, durably; names that no primary sends are passed over. Gives the stores that went.

    Raises:
        OSError: it cannot be written.
        NoAnswerError: the file of the operator is damaged.
    """
    for name, content in shipped.files.items():
        if _is_known(name):
            place = data / name
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not place.exists() or place.read_bytes() != content:
                write_durably(place, content)
    _forget(data, shipped.files)
    before, after = _write_node(data, shipped.node)
    if shipped.primary and (data / MANUAL_FILE).exists():
        # The operator's file of this host knows nothing but what the primary says.
        note(data / MANUAL_FILE, Standing(shipped.epoch, shipped.primary, frozenset(shipped.in_sync)))
    return [str(index) for index in range(after.workers, before.workers)]


def _forget(data: Path, kept: Container[str]) -> None:
    """Remove what the primary has no more: links that it made, a cluster that it left; of that first that it joined."""
    there = [path for folder in _FOLDERS for path in (data / folder).glob("*") if path.is_file()]
    for path in sorted(there, key=lambda path: path.name != JOINED_FILE):
        if str(path.relative_to(data)) not in kept:
            path.unlink()
            sync_path(path.parent)


class Stores:
    """Which stores a node has, as its supervisor has written down last; it does before it starts a worker."""

    def __init__(self, data: Path) -> None:
        """Read nothing yet."""
        self._data = data
        self._names: list[str] = []
        #: What the file looked like when it was read.
        self._seen: tuple[int, int] | None = None

    def names(self) -> list[str]:
        """Give them; none before the node has begun."""
        try:
            found = (self._data / NODE_FILE).stat()
            looks = found.st_mtime_ns, found.st_ino
            if looks != self._seen:
                node = read_node_file(self._data)
                self._names = [CONFIG_FOLDER, *map(str, range(node.workers))] if node.data_id else []
                self._seen = looks
        except (OSError, UnavailableError):
            self._names, self._seen = [], None
        return self._names


def renew_node_id(data: Path) -> None:
    """Have the node be another one for its neighbours, which know by its id what they have got from it.

    What it lacks had positions in its queues, which are given again.

    Raises:
        OSError: it cannot be written.
    """
    with contextlib.suppress(UnavailableError):
        _write(data, msgspec.structs.replace(read_node_file(data), node_id=uuid.uuid4().hex))


def data_id_of(data: Path) -> str:
    """Give the id of a data directory; empty: it has none, because no node was ever here."""
    try:
        return read_node_file(data).data_id
    except UnavailableError:
        return ""


def _write_node(data: Path, alike: dict[str, Any]) -> tuple[NodeFile, NodeFile]:
    try:
        before = read_node_file(data)
    except UnavailableError:
        before = NodeFile(node="", node_id="", workers=0)
    given = {name: value for name, value in alike.items() if name in _ALIKE}
    given["starts"] = max(before.starts, given.get("starts", 0))
    after = msgspec.structs.replace(before, **given)
    if after != before:
        _write(data, after)
    return before, after


def _write(data: Path, node: NodeFile) -> None:
    write_durably(data / NODE_FILE, msgspec.json.format(msgspec.json.encode(node)) + b"\n")


def _is_known(name: str) -> bool:
    path = PurePosixPath(name)
    is_in_folder = len(path.parts) == 2 and path.parts[0] in _FOLDERS and path.name not in ("", ".", "..")
    return name in _SINGLE or is_in_folder
