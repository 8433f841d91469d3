"""Which endpoints were deleted: a home purges these, and keeps aside what else nobody claims.

A deletion is recorded in the transaction that removes the object, so an interrupted one is completed at the next start.
The record goes when every home has confirmed that it has nothing of the endpoint. Records are bounded: beyond the limit
the oldest is given up, and what a home still has of that endpoint is then kept aside instead.

Pure: methods give the entries to make durable, `take` takes them over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cluster import objects
from storage.config_store import Change, Deletion, Entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cluster.catalog.catalog import Catalog

#: Records; a worker that is down for long keeps them, and each is named to every home that starts.
DELETIONS_MAX: Final = 100_000
#: From so many on the router is asked which are complete, without waiting for the hour.
DELETIONS_TIDY: Final = 1_000


class Deletions:
    """The ids of endpoints whose deletion is not known to be complete."""

    def __init__(self, stored: Iterable[Deletion] = ()) -> None:
        #: In the order in which they were deleted; those of before the start by id.
        self._ids: dict[int, None] = {entry.endpoint_id: None for entry in stored}

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> list[int]:
        """Give them all."""
        return list(self._ids)

    def of(self, changes: Sequence[Entry], catalog: Catalog) -> list[Entry]:
        """Give the records that belong to changes which are not made yet."""
        removed = [entry for entry in changes if isinstance(entry, Change) and entry.attributes is None]
        found = [catalog.get(*entry[:3]) for entry in removed if entry.kind in objects.ENDPOINT_KINDS]
        made: list[Entry] = [Deletion(one["id"], is_complete=False) for one in found if one is not None]
        superfluous = max(len(self._ids) + len(made) - DELETIONS_MAX, 0)
        return made + self.completed(list(self._ids)[:superfluous])

    def completed(self, endpoint_ids: Iterable[int]) -> list[Entry]:
        """Give what removes the records of these."""
        return [Deletion(number, is_complete=True) for number in endpoint_ids if number in self._ids]

    def take(self, entries: Sequence[Entry]) -> None:
        """Take over entries; others are others' business."""
        for entry in entries:
            if not isinstance(entry, Deletion):
                continue
            if entry.is_complete:
                self._ids.pop(entry.endpoint_id, None)
            else:
                self._ids[entry.endpoint_id] = None

    def undoing(self, entries: Iterable[Entry]) -> list[Entry]:
        """Give the entries that bring back what there is now, once these are taken over."""
        return [
            Deletion(entry.endpoint_id, is_complete=entry.endpoint_id not in self._ids)
            for entry in entries
            if isinstance(entry, Deletion)
        ]
