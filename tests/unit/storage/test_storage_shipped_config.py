"""A config store that is shipped: groups of its records, read under the numbers of the tables of a spool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.config_file import COMMITS_KEY
from storage.config_store import Change, ConfigStore, Counter
from storage.groups import KEY_PAST, Brought, GroupLog
from storage.spool import Table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from storage.spool import Change as StoreChange

QUEUE = Change("queue", "default", "orders", {"access_type": "exclusive"})


def test_a_store_is_copied_while_it_goes_on(tmp_path: Path) -> None:
    ours, theirs = ConfigStore(tmp_path / "a"), ConfigStore(tmp_path / "b")
    ours.commit([QUEUE, Counter("endpoint", 7)])
    log = ours.begin_groups()
    for number, part in enumerate(log.parts(None)):
        theirs.write_changes(part)
        if not number:
            ours.commit([QUEUE._replace(name="later")])
    there = GroupLog(theirs.spool())
    theirs.write_changes(there.brought(log_brought(log)))
    parted = log.parted(there.past.newest, ())
    assert parted is not None
    patch = log.patch(there.past.newest, parted)
    assert patch is not None
    theirs.write_changes(there.patched(patch))
    assert theirs.load() == ours.load()
    assert theirs.load_counters() == ours.load_counters() == {"endpoint": 7}
    assert there.past == log.past
    for store in (ours, theirs):
        store.close()


def log_brought(log: GroupLog) -> Brought:
    past = log.past
    return Brought(None, past._replace(newest=past.newest - 1), ())


def test_a_store_with_groups_goes_on_with_them_whoever_opens_it(tmp_path: Path) -> None:
    store = ConfigStore(tmp_path)
    assert store.log is None
    assert store.begin_groups().past.newest == 1
    store.commit([QUEUE])
    store.close()
    store = ConfigStore(tmp_path)
    store.commit([Counter("endpoint", 8)])
    assert store.log is not None
    assert store.begin_groups() is store.log
    assert store.log.past.newest == 3
    assert len(store.log.past.begun) == 3, "each process is a run of its own"
    rows = [row[0] for row in store.spool().scan(Table.META)]
    assert KEY_PAST in rows
    assert COMMITS_KEY not in rows, "each file counts for itself"
    store.close()


def test_groups_are_made_by_who_ships_them(tmp_path: Path) -> None:
    store = ConfigStore(tmp_path)
    log = store.begin_groups()
    shipped: list[int] = []
    written: list[int] = []

    def group(changes: Sequence[StoreChange]) -> Sequence[StoreChange]:
        made = log.group("run", changes)
        shipped.append(made.number)
        return made.changes

    store.ship(group, lambda: written.append(log.past.newest))
    store.commit([QUEUE])
    store.commit([Counter("endpoint", 9)])
    assert shipped == written == [2, 3]
    store.close()
