"""What the fast path knows about a topic, and the rows that it opens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from angarium import wire
from angarium.topic_cache import CacheEntry

if TYPE_CHECKING:
    from router.sessions.interest import FilterSet
    from router.sessions.session import Session

_Natural = Annotated[int, msgspec.Meta(ge=0)]
_Byte = Annotated[int, msgspec.Meta(ge=0, le=255)]
_Flags = Annotated[int, msgspec.Meta(ge=0, lt=wire.FLAG_RETAIN)]


class Row(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False, eq=False):
    """A guaranteed row. Its types are the check, as in a worker."""

    index: _Natural
    topic: str
    flags: _Flags
    meta: tuple[_Natural, _Natural, _Byte | None, str | None] | None
    properties: bytes | None
    payload: bytes


class LargeRow(Row, array_like=True, forbid_unknown_fields=True, gc=False, eq=False):
    """The same, with the payload left where it came: nothing is copied of it."""

    payload: memoryview  # type: ignore[assignment]


class Head(msgspec.Struct, array_like=True, gc=False, eq=False):
    """A row whose meta, properties and payload are skipped."""

    index: _Natural
    topic: str
    flags: _Flags


class Entry(CacheEntry, eq=False):
    """What is known about one topic."""

    #: Where its rows go, or None if nobody subscribed.
    plain: FilterSet[Session] | None
    #: Which endpoints take them, or None.
    endpoints: FilterSet[Any] | None
    #: Publish rules under which it was allowed.
    rules: dict[int, None] = msgspec.field(default_factory=dict)

    def sets(self) -> list[FilterSet[Any]]:
        """Give every set that the entry refers to."""
        return [a_set for a_set in (self.plain, self.endpoints) if a_set is not None]
