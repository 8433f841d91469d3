"""A page of a list: which rows of all that an operation gave, in which order, and what leads to the next page.

    name=ord*                     the rows with such a name; * and ? as in the command line
    filter=messages_spooled>100   only these; = != < <= > >=, and = takes a pattern; may be given several times
    sort=-messages_spooled        in this order, the largest first; rows that do not have it come last
    fields=name,bind_count        these columns only
    limit=50                      so many rows
    after=CURSOR                  those behind the last row of a page, as its header Link says

Pure. A cursor is the place of a row in the order, not its number: rows that come and go move no other page.
"""

from __future__ import annotations

import base64
import heapq
import operator
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from angarium import errors
from cluster.objects import is_like

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Row = dict[str, Any]
#: A value in an order that has all values: numbers, texts, the rest.
_Place = tuple[int, Any]
#: A row with its place.
_Placed = tuple[_Place, Row]

LIMIT_DEFAULT: Final = 100
LIMIT_MAX: Final = 1_000
#: Characters of a text by which rows are ordered: a cursor has them, in a line of which many take no more than 8 KiB.
ORDERED_BY: Final = 200
#: Filters of one list; each row is held against all of them.
FILTERS_MAX: Final = 20
#: What may be said of a list beside the arguments of its operation.
NAMES: Final = ("limit", "after", "sort", "filter", "fields", "name")

#: Of a filter; `[\s\S]` is what a dot is with DOTALL, in every dialect.
FILTER_PATTERN: Final = r"^([a-z0-9_.]+)(!=|<=|>=|=|<|>)([\s\S]*)$"
_FILTER: Final = re.compile(FILTER_PATTERN)
_LIMIT: Final = re.compile(r"[0-9]{1,6}")
_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Filter(NamedTuple):
    """What one filter says."""

    column: str
    sign: str
    text: str


class Wanted(NamedTuple):
    """Which page somebody wants."""

    limit: int = LIMIT_DEFAULT
    after: str = ""
    column: str = ""
    is_descending: bool = False
    filters: tuple[Filter, ...] = ()
    fields: tuple[str, ...] = ()
    name: str = "*"

    @property
    def deciding(self) -> list[str]:
        """Give the columns that decide which rows are on the page, and in which order."""
        named = [self.column, *(one.column for one in self.filters)]
        return sorted({"vpn", "name", *(name.partition(".")[0] for name in named if name)})

    @property
    def shown(self) -> list[str]:
        """Give the columns that the page shows, beside those that tell its rows from others."""
        return sorted({"vpn", "name", *(name.partition(".")[0] for name in self.fields)})


class Page(NamedTuple):
    """A page, and what there is beside it."""

    rows: list[Row]
    #: Of all rows that the filters let through.
    total: int
    #: What `after` is for the next page; empty: there is none.
    cursor: str


def wanted_of(query: Mapping[str, Sequence[str]]) -> Wanted:
    """Give which page a query wants.

    Raises:
        InvalidRequestError: it says something twice, or what cannot be (40018).
    """
    one = {name: single(name, query[name]) for name in NAMES if name in query and name != "filter"}
    filters = query.get("filter", ())
    if len(filters) > FILTERS_MAX:
        raise errors.invalid(f"filter is given {len(filters)} times: {FILTERS_MAX} are the most")
    sort = one.get("sort", "")
    limit = one.get("limit", str(LIMIT_DEFAULT))
    if not (_LIMIT.fullmatch(limit) and 1 <= int(limit) <= LIMIT_MAX):
        raise errors.invalid(f"limit = {limit[:20]!r}: write 1 to {LIMIT_MAX}")
    return Wanted(
        limit=int(limit),
        after=one.get("after", ""),
        column=sort.removeprefix("-"),
        is_descending=sort.startswith("-"),
        filters=tuple(_filter(text) for text in filters),
        fields=tuple(filter(None, one.get("fields", "").split(","))),
        name=one.get("name", "*"),
    )


def single(name: str, values: Sequence[str]) -> str:
    """Give a value that may be given once.

    Raises:
        InvalidRequestError: it is given twice (40018).
    """
    if len(values) != 1:
        raise errors.invalid(f"{name} is given {len(values)} times")
    return values[0]


def _filter(text: str) -> Filter:
    match = _FILTER.fullmatch(text)
    if match is None:
        raise errors.invalid(
            f"filter = {text[:100]!r}: write ATTRIBUTE=VALUE, or !=, <, <=, >, >= between them"
        )
    return Filter(*match.groups())


def page_of(rows: Sequence[Row], wanted: Wanted) -> Page:
    """Give a page of rows.

    Raises:
        InvalidRequestError: its cursor is none, or is of another order (40018).
    """
    fitting = rows
    if wanted.name != "*" or wanted.filters:
        fitting = [row for row in rows if _fits(row, wanted)]
    placed = [(_comparable(value_of(row, wanted.column) if wanted.column else None), row) for row in fitting]
    if wanted.after:
        last = _place_of_cursor(wanted.after, wanted)
        placed = [one for one in placed if _is_behind(one, last, wanted)]
    chosen = _in_order(_foremost(placed, wanted), wanted)[: wanted.limit]
    cursor = _cursor(chosen[-1], wanted) if len(chosen) < len(placed) else ""
    return Page([with_fields(row, wanted.fields) for _, row in chosen], len(fitting), cursor)


def _foremost(placed: list[_Placed], wanted: Wanted) -> list[_Placed]:
    """Give the rows that may be on the page, in any order: to put all of many in order takes far longer."""
    there = [place for place, _ in placed if place[0] != _MISSING]
    if len(there) <= wanted.limit:
        return placed
    if wanted.is_descending:
        edge = heapq.nlargest(wanted.limit, there)[-1]
        return [one for one in placed if one[0] >= edge and one[0][0] != _MISSING]
    edge = heapq.nsmallest(wanted.limit, there)[-1]
    return [one for one in placed if one[0] <= edge]


def _in_order(placed: list[_Placed], wanted: Wanted) -> list[_Placed]:
    """Give rows by their places, those of one place by what tells them from others, and last those without."""
    placed.sort(key=lambda one: identity_of(one[1]))
    placed.sort(key=operator.itemgetter(0), reverse=wanted.is_descending)
    there = [one for one in placed if one[0][0] != _MISSING]
    return there + [one for one in placed if one[0][0] == _MISSING]


def _is_behind(placed: _Placed, last: tuple[_Place, str], wanted: Wanted) -> bool:
    """Tell whether a row stands behind the last one of a page."""
    (place, row), (before, identity) = placed, last
    if place == before:
        return identity_of(row) > identity
    if _MISSING in (place[0], before[0]):
        return place[0] == _MISSING
    return place < before if wanted.is_descending else place > before


def _fits(row: Row, wanted: Wanted) -> bool:
    if not is_like(str(row.get("name", "")), wanted.name):
        return False
    return all(_passes(value_of(row, one.column), one) for one in wanted.filters)


def _passes(value: Any, wanted: Filter) -> bool:
    """Tell whether a value is what a filter wants; one that is not there is unlike everything."""
    if value is None:
        return wanted.sign == "!="
    if isinstance(value, bool):
        value = "true" if value else "false"
    if isinstance(value, int | float):
        try:
            return _OPERATORS[wanted.sign](value, float(wanted.text))
        except ValueError:
            return wanted.sign == "!="
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if wanted.sign in ("=", "!="):
        return is_like(text, wanted.text) == (wanted.sign == "=")
    return _OPERATORS[wanted.sign](text, wanted.text)


def value_of(row: Row, column: str) -> Any:
    """Give what is in a column; counters.refused is within a map. None: it is not there."""
    if "." not in column:
        return row.get(column)
    value: Any = row
    for name in column.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


_MISSING: Final = 2


def _comparable(value: Any) -> _Place:
    if isinstance(value, int | float):
        return 0, int(value) if isinstance(value, bool) else value  # a cursor has no bool
    if value is None:
        return _MISSING, ""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return 1, text[:ORDERED_BY]


#: Columns that tell rows without a name from each other: of flows, subscriptions, publishers, join tokens.
_TELLING: Final = ("vpn", "client", "endpoint", "kind", "flow", "filter", "share", "origin", "id")


def identity_of(row: Row) -> str:
    """Give what tells a row from every other one, and stays while its figures change.

    Message VPN and name, and of producers and sinks the username whose they are; its number in a log; else what it
    says.
    """
    if "name" in row:
        return f"{row.get('vpn', '')}\0{row['name']}\0{row.get('username', '')}"
    if "number" in row:
        return f"{row['number']:020}"
    return "\0".join(str(row.get(column, "")) for column in _TELLING)


def _cursor(placed: _Placed, wanted: Wanted) -> str:
    place, row = placed
    told = [wanted.column, wanted.is_descending, *place, identity_of(row)]
    return base64.urlsafe_b64encode(msgspec.json.encode(told)).decode().rstrip("=")


def _place_of_cursor(text: str, wanted: Wanted) -> tuple[_Place, str]:
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        column, is_descending, rank, value, identity = msgspec.json.decode(
            data, type=tuple[str, bool, int, float | int | str, str]
        )
    except (ValueError, msgspec.DecodeError):
        raise errors.invalid(f"after = {text[:50]!r} is no cursor: take that of the header Link") from None
    fits_kind = isinstance(value, int | float) if rank == 0 else isinstance(value, str)
    if (column, is_descending) != (wanted.column, wanted.is_descending) or rank > _MISSING or not fits_kind:
        raise errors.invalid("after is the cursor of a page in another order")
    return (rank, value), identity


def with_fields(row: Row, fields: Sequence[str]) -> Row:
    """Give these columns of a row; none: all of them."""
    return {name: value_of(row, name) for name in fields} if fields else row
