"""Changing what workers found for direct subscribers, row by row.

Rows of a guaranteed round that were refused, or came a second time, are left out. What is to be retained goes to a
subscription, too, that began after the round was matched, and reads what is retained (`router.sessions.splice`).
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from angarium import wire
from angarium.topic import matches
from router.sessions.interest import FilterSet
from router.sessions.round import PlainResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from router.sessions.interest import Filter
    from router.sessions.round import Round

#: Topics that are compared, and rows that are given to one more filter, for one round: 5 ms.
LATE_WORK_MAX: Final = 4_000
#: An upper bound of the classes of rows that are to be retained and need no choice.
_CLASSES: Final = wire.CLASS_COS1 | wire.CLASS_COS2 | wire.CLASS_COS3 | wire.CLASS_ELIDING | wire.CLASS_RETAIN


def direct_indices(a_round: Round[Any], *, but_neighbours: bool = False) -> dict[int, None]:
    """Give the indices of the rows that some direct subscriber gets, one that is here if `but_neighbours`."""
    found: dict[int, None] = {}
    for plain in a_round.plain:
        if but_neighbours and all(one.is_neighbour for one in _members(plain.set)):
            continue
        found.update(dict.fromkeys(row[wire.ROW_INDEX] for row in wire.unpack(plain.batch)))
    for choice in a_round.choice:
        found.update(dict.fromkeys(wire.unpack(row)[wire.ROW_INDEX] for row in wire.unpack(choice.batch)))
    return found


def _members(a_set: FilterSet[Any]) -> Iterator[Any]:
    return (session for a_filter in a_set.filters for session in a_filter.members)


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


def match_late(a_round: Round[Any], filters: Iterable[Filter[Any]]) -> None:
    """Give rows that are to be retained to more filters, for as long as a step may take.

    Workers may have matched them without these; what comes beyond is as if the filter were newer.
    """
    retained = _retained(a_round)
    work = 0
    for a_filter in filters:
        if work > LATE_WORK_MAX:
            break
        work += len(retained)
        late = {
            index: row for index, row in retained.items() if matches(a_filter.pattern, row[wire.ROW_TOPIC])
        }
        if late:
            work += a_round.rows
            _add(a_round, a_filter, late)


def _add(a_round: Round[Any], a_filter: Filter[Any], late: dict[int, list[Any]]) -> None:
    plain = []
    for result in a_round.plain:
        rows = wire.unpack(result.batch)
        found = [row for row in rows if late.pop(row[wire.ROW_INDEX], None)]
        if not found or a_filter in result.set.filters:
            plain.append(result)
            continue
        plain.append(_plain((*result.set.filters, a_filter), found))
        indices = {row[wire.ROW_INDEX] for row in found}
        rest = [row for row in rows if row[wire.ROW_INDEX] not in indices]
        if rest:
            plain.append(replace(result, rows=len(rest), batch=wire.pack(rest)))
    if late:
        plain.append(_plain((a_filter,), list(late.values())))
    a_round.plain = plain


def _retained(a_round: Round[Any]) -> dict[int, list[Any]]:
    """Give what endpoints are to get of a round and is retained, by rising indices."""
    rows = [row for result in a_round.endpoints for row in wire.unpack(result.batch)]
    rows.sort(key=itemgetter(wire.ROW_INDEX))
    return {
        row[wire.ROW_INDEX]: row
        for row in rows
        if row[wire.ROW_FLAGS] & (wire.FLAG_RETAIN | wire.FLAG_DTO) == wire.FLAG_RETAIN
        and not row[wire.ROW_TOPIC].startswith("#")
    }


def _plain(filters: tuple[Filter[Any], ...], rows: list[list[Any]]) -> PlainResult[Any]:
    return PlainResult(FilterSet(filters), len(rows), _CLASSES, wire.pack(rows))
