"""A home that takes lanes over from others."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.simulation.simulated_disk import SimulatedDisk
from tests.unit.node.driven_home import LANE, OTHER, ROUTER, DrivenHome, settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator


LANES = {LANE: settings_of("q"), OTHER: settings_of("other")}


class Folder:
    """The spools of a node, and one worker's way to the others."""

    def __init__(self, own: str, disks: dict[str, SimulatedDisk]) -> None:
        self.own = own
        self.disks = disks
        self.running: set[str] = set()
        self.claims: dict[tuple[str, int], None] = {}
        self.taken: dict[tuple[str, int, int], None] = {}
        self.opened: str | None = None

    def names(self) -> list[str]:
        return sorted(name for name in self.disks if name != self.own)

    @contextmanager
    def view(self, name: str) -> Iterator[SimulatedDisk]:
        yield self.disks[name]

    def read(self, name: str) -> SimulatedDisk:
        return self.disks[name]

    def stop_reading(self, name: str) -> None:
        """Nothing is kept open."""

    def open(self, name: str) -> SimulatedDisk | None:
        assert self.opened is None
        if name in self.running:
            return None
        self.opened = name
        return self.disks[name]

    def close(self) -> None:
        self.opened = None

    def remove(self, name: str) -> None:
        assert self.opened != name
        del self.disks[name]

    def is_running(self, name: str) -> bool:
        return name in self.running

    def claim(self, name: str, lane_id: int) -> None:
        self.claims[name, lane_id] = None

    def unclaim(self, name: str, lane_id: int) -> None:
        self.claims.pop((name, lane_id), None)

    def is_claimed(self, lane_id: int) -> bool:
        return (self.own, lane_id) in self.claims

    def tell_taken(self, name: str, lane_id: int, handovers: int) -> None:
        self.taken[name, lane_id, handovers] = None

    def is_taken(self, lane_id: int, handovers: int) -> bool:
        return (self.own, lane_id, handovers) in self.taken

    def forget_taken(self, lane_id: int) -> None:
        self.claims.pop((self.own, lane_id), None)
        for key in [key for key in self.taken if key[:2] == (self.own, lane_id)]:
            del self.taken[key]


def new_home(disk: SimulatedDisk, *, runs: bool = False) -> tuple[DrivenHome, Folder]:
    own = SimulatedDisk()
    folder = Folder("0", {"0": own, "1": disk})
    if runs:
        folder.running.add("1")
    driven = DrivenHome(own, neighbours=folder)
    driven.start(ROUTER, {})
    return driven, folder
