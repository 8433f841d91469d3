"""What the config store holds, as the controller has it in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cluster.catalog.catalog import Catalog
    from cluster.catalog.deletions import Deletions
    from cluster.catalog.producers import Producers
    from cluster.catalog.stages import Stages
    from storage.config_store import Entry


class Registries(NamedTuple):
    """All that outlives a controller, but for its events."""

    #: Complete with what is built in.
    catalog: Catalog
    producers: Producers
    stages: Stages
    #: Of endpoints, that are not known to be complete.
    deletions: Deletions

    def take(self, entries: list[Entry]) -> None:
        """Take over entries; each registry passes over those of others."""
        for registry in self:
            registry.take(entries)

    def undoing(self, entries: list[Entry]) -> list[Entry]:
        """Give the entries that bring back what there is now, once these are taken over."""
        newest_first = entries[::-1]
        return [entry for registry in self for entry in registry.undoing(newest_first)]

    def validate(self) -> None:
        """Assert what the attribute comments of each say."""
        self.catalog.validate()
        self.producers.validate()
        self.stages.validate()
