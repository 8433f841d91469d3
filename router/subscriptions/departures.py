"""Takes away the subscriptions of sessions that are over, some in each step.

Nothing is sent to a session that is over, and what it was charged for is given back, in the moment in which it ends.
What is left is to take it out of the subscribers of filters, and the filters that nobody wants any more out of the
workers. A client may leave with a hundred thousand, so that is done some at a time, and others are served in between;
`subscriptions` says how many.

No I/O, no clock.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from router.subscriptions.members import Members

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from router.matching.shards import Shards
    from router.sessions.interest import Filter, Interest, Subscription
    from router.sessions.session import Session


class Departures:
    """Subscriptions of sessions that are over."""

    def __init__(
        self, interest: Interest[Session], shards: Shards, on_change: Callable[[int, str], None]
    ) -> None:
        self._members = Members(interest)
        self._shards = shards
        #: Called with (VPN number, pattern) when a filter goes.
        self._on_change = on_change
        #: Sessions and what is left of each, in the order in which they ended; nothing is empty.
        self._left: deque[tuple[Session, list[Subscription]]] = deque()

    def __len__(self) -> int:
        """Count what is left of all of them."""
        return sum(len(left) for _, left in self._left)

    def __bool__(self) -> bool:
        return bool(self._left)

    def add(self, session: Session) -> None:
        """Take over what a session subscribed to, which is over."""
        assert session.closed
        if session.subscriptions:
            self._left.append((session, list(session.subscriptions.values())))
            session.subscriptions = {}

    def held(self) -> Iterator[tuple[Session, Subscription]]:
        """Give what is left of all of them."""
        return ((session, one) for session, left in self._left for one in left)

    def step(self, limit: int) -> int:
        """Take away so many subscriptions at most; gives how many."""
        if not self._left:
            return 0
        left_before = limit
        removed: list[Filter[Session]] = []
        while self._left and limit > 0:
            session, left = self._left[0]
            some = left[-limit:]
            del left[-limit:]
            limit -= len(some)
            for one in some:
                self.leave(session, one, removed)
            if not left:
                self._left.popleft()
        self._shards.change_filters([], removed)
        return left_before - limit

    def validate(self) -> None:
        """Check what the comments promise."""
        assert all(left and session.closed for session, left in self._left)

    def leave(self, session: Session, subscription: Subscription, removed: list[Filter[Session]]) -> None:
        """Take away one subscription; its filter is added to `removed` if that was the last one."""
        if self._members.leave(session, subscription):
            removed.append(subscription.filter)
            self._on_change(subscription.filter.vpn_id, subscription.filter.pattern)
