"""Rows of a round that must not go to direct subscribers: leaving them out of what the workers found.

Only needed when rows of a guaranteed round were refused, or came a second time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from angarium import wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.sessions.round import Round


def direct_indices(a_round: Round[Any]) -> dict[int, None]:
    """Give the indices of the rows that some direct subscriber gets."""
    found: dict[int, None] = {}
    for plain in a_round.plain:
        found.update(dict.fromkeys(row[wire.ROW_INDEX] for row in wire.unpack(plain.batch)))
    for choice in a_round.choice:
        found.update(dict.fromkeys(wire.unpack(row)[wire.ROW_INDEX] for row in wire.unpack(choice.batch)))
    return found


def leave_out(a_round: Round[Any], unwanted: Callable[[int], bool]) -> None:
    """Take the rows with unwanted indices out; classes stay an upper bound."""
    plain = []
    for result in a_round.plain:
        rows = [row for row in wire.unpack(result.batch) if not unwanted(row[wire.ROW_INDEX])]
        if len(rows) == result.rows:
            plain.append(result)
        elif rows:
            plain.append(replace(result, rows=len(rows), batch=wire.pack(rows)))
    choices = []
    for choice in a_round.choice:
        packed = [row for row in wire.unpack(choice.batch) if not unwanted(wire.unpack(row)[wire.ROW_INDEX])]
        if packed:
            choices.append(replace(choice, rows=len(packed), batch=wire.pack(packed)))
    a_round.plain, a_round.choice = plain, choices
