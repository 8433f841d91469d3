"""What a home has on disk, and what it delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.spool import Table

if TYPE_CHECKING:
    from tests.unit.node.driven_home import (
        DrivenHome,
    )


def payloads(driven: DrivenHome, flow: int) -> list[bytes]:
    seen = driven.delivered[flow]
    return [seen.rows[position][5] for position in seen.order]


def on_disk(driven: DrivenHome) -> dict[str, int]:
    tables = (Table.BLOCKS, Table.SEGMENTS, Table.STATES)
    return {table.name.lower(): driven.disk.count(table) for table in tables}
