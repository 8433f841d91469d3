"""Where the live messages of a subscription join the retained ones that its client reads.

A client subscribes, and then reads what is retained. A message may be in both, and one that workers matched without the
filter is in neither unless it is retained before it is read. So reading waits until all rounds have retired that were
under way when it began (`ahead`): what is retained later comes live. These come live as well (`filters`), since one may
be retained behind a newer round of its topic, which its client has got and takes for the newest. From the moment in
which a filter is new on this happens to rounds that are under way, for its client reads only when it is subscribed.

What has come live before the first page its client leaves out by itself. What is in the pages, too, and still waits for
the session then, or is on its way to very many, the node leaves out: when the first page is there the topics of such
messages are noted. Those of later ones are behind the position up to which pages go.

No I/O, no clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from angarium import wire
from angarium.topic import matches
from router.sessions.queues import open_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from angarium.errors import AngariumError
    from router.sessions.interest import Filter
    from router.sessions.queues import Bundle

#: Topics that one splice notes: more wait only for a reader that is far too slow.
NOTED_MAX: Final = 4_000


class Splice:
    """One reading of what is retained."""

    __slots__ = ("ahead", "filters", "noted", "pattern", "reads", "until")

    def __init__(
        self, pattern: str, filters: Sequence[Filter[Any]], ahead: Mapping[Any, int] | None, until: float
    ) -> None:
        #: The filter that is read, and what its session is subscribed to by it. Of filters that nobody reads yet: none,
        #: and these.
        self.pattern = pattern
        self.filters = filters
        #: Session -> the number of its newest round that was under way; those that have retired are left out. None:
        #: workers do not know the filters yet, so it may be any round.
        self.ahead = ahead
        #: Topics that come live; None: nobody has looked yet.
        self.noted: dict[str, None] | None = None
        #: Pages that wait; called with the reason if it takes too long.
        self.reads: list[Callable[[AngariumError | None], None]] = []
        #: When that is.
        self.until = until

    @property
    def is_overrun(self) -> bool:
        """Whether more topics came than are noted."""
        return self.noted is not None and len(self.noted) > NOTED_MAX

    def note(self, topics: Iterable[str]) -> None:
        """Take note of topics of retained messages that wait for its session."""
        self.noted = {}
        for topic in topics:
            if not self.is_overrun and matches(self.pattern, topic):
                self.noted[topic] = None

    def look(self, is_served: Callable[[Any, int], bool]) -> bool:
        """See which rounds have retired; tells whether all have.

        Who reads waits until all have got them, too: `is_served` tells whether some have yet to.
        """
        if self.ahead is None:
            return False
        self.ahead = {
            one: number
            for one, number in self.ahead.items()
            if (one.open_rounds and one.retired_round < number) or (self.pattern and is_served(one, number))
        }
        return not self.ahead


def retained_topics(bundle: Bundle) -> list[str]:
    """Give the topics of the messages in a bundle that are retained; it is opened only if there are some."""
    if bundle.share is not None or not bundle.classes & wire.CLASS_RETAIN:
        return []
    rows = open_rows(bundle)
    return [row[wire.ROW_TOPIC] for row in rows if row[wire.ROW_FLAGS] & wire.FLAG_RETAIN]
