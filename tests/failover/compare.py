"""Whether two stopped hosts have the same on their disks."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from cluster.data.data_dir import CONFIG_FOLDER, SPOOL_FOLDER
from cluster.standby import files
from storage.config_store import ConfigStore
from storage.groups import KEYS_OF, GroupLog
from storage.spool import Table, open_spool
from tests.failover.sets import SHOWN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from storage.spool import Spool


def differences(one: Path, other: Path) -> dict[str, Any]:
    """Give where two data directories differ, by store; nothing runs on them."""
    ours, theirs = (files.collect(data, 0) for data in (one, other))
    if ours is None or theirs is None:
        return {"node.json": "missing"}
    found: dict[str, Any] = {} if ours == theirs else {"files": [str(ours)[:300], str(theirs)[:300]]}
    for store in (CONFIG_FOLDER, *map(str, range(ours.node["workers"]))):
        with _opened(one, store) as here, _opened(other, store) as there:
            if different := _different(here, there):
                found[store] = different
    return found


@contextlib.contextmanager
def _opened(data: Path, name: str) -> Iterator[Spool]:
    if name == CONFIG_FOLDER:
        store = ConfigStore(data / CONFIG_FOLDER)
        try:
            yield store.spool()
        finally:
            store.close()
        return
    spool = open_spool(data / SPOOL_FOLDER / name)
    try:
        yield spool
    finally:
        spool.close()


def _different(here: Spool, there: Spool) -> dict[str, Any]:
    """Compare all rows, but for those that say which keys which group has touched."""
    found: dict[str, Any] = {}
    pasts = [GroupLog(spool).past for spool in (here, there)]
    if (pasts[0].begun, pasts[0].newest) != (pasts[1].begun, pasts[1].newest):
        found["past"] = [str(past) for past in pasts]
    for table in Table:
        ours, theirs = (dict(spool.scan(table)) for spool in (here, there))
        keys = [
            key
            for key in sorted(ours.keys() | theirs.keys())
            if ours.get(key) != theirs.get(key)
            and not (table is Table.META and (key.startswith(KEYS_OF) or key == b"groups"))
        ]
        if keys:
            found[table.name] = [len(keys), *(_shown(key, ours, theirs) for key in keys[:SHOWN])]
    return found


def _shown(key: bytes, ours: dict[bytes, bytes], theirs: dict[bytes, bytes]) -> list[str]:
    return [repr(key), *(repr(rows.get(key))[:80] for rows in (ours, theirs))]
