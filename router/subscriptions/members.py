"""Who gets what a subscription matches: its session, or the gateway that it is attached to, once for all its clients.

A gateway is among the members of a filter as long as one of its clients wants that through it. Shared subscriptions and
inboxes are those of the client itself (`Session.receives`).

No I/O, no clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.sessions.interest import Interest, Subscription
    from router.sessions.session import Session


class Members:
    """Puts those who receive among the members of filters."""

    def __init__(self, interest: Interest[Session]) -> None:
        self._interest = interest

    def join(self, session: Session, subscription: Subscription) -> None:
        """A session has subscribed."""
        receiver = session.receives(subscription.filter)
        if receiver is session or self._wish(receiver, subscription, 1) == 1:
            self._interest.join(subscription.filter, receiver, subscription.text)

    def leave(self, session: Session, subscription: Subscription) -> bool:
        """A subscription is over; true if nobody wants its filter any more."""
        receiver = session.receives(subscription.filter)
        if receiver is not session and self._wish(receiver, subscription, -1) > 0:
            return False
        return self._interest.leave(subscription.filter, receiver, subscription.text)

    def _wish(self, carrier: Session, subscription: Subscription, change: int) -> int:
        """Count a client of a gateway that wants something, or no more; gives how many do."""
        wanted = carrier.wanted
        assert wanted is not None
        key = (subscription.text, subscription.deliver_always)
        count = wanted.get(key, 0) + change
        if count:
            wanted[key] = count
        else:
            del wanted[key]
        return count


def validate_wanted(held: Iterable[tuple[Session, Subscription]], carriers: Iterable[Session]) -> None:
    """Check that gateways want what is held through them, and nothing else, and are members for that once each."""
    counts: dict[Session, dict[tuple[str, bool], int]] = {carrier: {} for carrier in carriers}
    for session, one in held:
        receiver = session.receives(one.filter)
        if receiver is not session:
            wanted, key = counts.setdefault(receiver, {}), (one.text, one.deliver_always)
            wanted[key] = wanted.get(key, 0) + 1
            assert one.text in one.filter.members[receiver]
    for carrier, wanted in counts.items():
        assert carrier.wanted == wanted
