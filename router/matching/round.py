"""One batch of one session on its way through matching: what it is made of and what came back.

A round knows its session only to hand it on, so the type of the session is a parameter here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from router.matching.interest import FilterSet

S = TypeVar("S")


class Part(NamedTuple):
    """The rows of a round that one worker matches."""

    worker: int
    rows: int
    batch: bytes


class PlainResult(NamedTuple, Generic[S]):
    """Rows for every session of a set."""

    set: FilterSet[S]
    rows: int
    classes: int
    batch: bytes


class ChoiceResult(NamedTuple, Generic[S]):
    """Rows of which each needs a choice; the batch is an array of packed rows."""

    set: FilterSet[S]
    plain_set: FilterSet[S] | None
    dto: bool
    rows: int
    classes: int
    batch: bytes


class Round(Generic[S]):
    """One batch under way."""

    __slots__ = (
        "bytes",
        "choice",
        "flush",
        "number",
        "parts",
        "plain",
        "rows",
        "rules_id",
        "session",
        "stamp",
        "waited",
        "waiting",
    )

    def __init__(self, session: S, number: int, parts: list[Part], rules_id: int, *, flush: bool) -> None:
        self.session = session
        self.number = number
        self.parts = parts
        self.flush = flush
        self.rows = sum(part.rows for part in parts)
        self.bytes = sum(len(part.batch) for part in parts)
        #: The publish rules under which it is judged, as the workers know them.
        self.rules_id = rules_id
        #: How many filters had changed when it came.
        self.stamp = 0
        #: Parts not answered yet; all of them before the round is dispatched.
        self.waiting = len(parts)
        #: True once it has waited in a worker's line.
        self.waited = False
        self.plain: list[PlainResult[S]] = []
        self.choice: list[ChoiceResult[S]] = []
