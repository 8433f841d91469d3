"""What a simulated client is subscribed to, and what it asked for on behalf of others.

It sends requests through the SDK's session and writes down when each was asked, confirmed and given back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium import errors
from tests.simulation.event_history import FOREVER, ConnectionRecord, SubscriptionRecord

if TYPE_CHECKING:
    from angarium.client.protocol.events import Answered
    from angarium.client.protocol.session import ClientSession
    from tests.simulation.event_history import History
    from tests.simulation.simulated_network import Loop

#: (filter, deliver always).
Wish = tuple[str, bool]
#: (record, whether it is asked for rather than given back).
Asked = list[tuple[SubscriptionRecord, bool]]


class ClientInterest:
    """Subscriptions of one client over all its connections."""

    def __init__(self, loop: Loop, history: History, username: str) -> None:
        self._loop = loop
        self._history = history
        self._username = username
        #: What it wants to be subscribed to, by itself.
        self.wishes: dict[Wish, None] = {}
        #: What it asked the router for on this connection.
        self.held: dict[Wish, SubscriptionRecord] = {}
        self._requests: dict[int, Asked] = {}
        #: Request -> whose managed subscription shall go, which one, and when that was asked.
        self._removals: dict[int, tuple[ConnectionRecord, str, float]] = {}

    def close(self) -> None:
        """The connection is over, and what was asked on it."""
        self.held.clear()
        self._requests.clear()
        self._removals.clear()

    @property
    def is_settled(self) -> bool:
        """Tell whether everything that is wanted is in force."""
        return all(wish in self.held for wish in self.wishes) and all(
            one.confirmed_at < FOREVER for one in self.held.values()
        )

    def ask(self, record: ConnectionRecord, session: ClientSession, wishes: list[Wish]) -> None:
        """Subscribe to what is not asked for yet."""
        new = [wish for wish in wishes if wish not in self.held]
        if not session.can_request() or not new:
            return
        asked: Asked = []
        for text, always in new:
            one = SubscriptionRecord(record, text, self._loop.now, deliver_always=always)
            record.subscriptions.append(one)
            self.held[text, always] = one
            asked.append((one, True))
        self._requests[session.subscribe([(text, int(always)) for text, always in new])] = asked

    def give_back(self, session: ClientSession, wishes: list[Wish]) -> None:
        """Unsubscribe."""
        known = [wish for wish in wishes if wish in self.held]
        if not session.can_request() or not known:
            return
        asked: Asked = []
        for wish in known:
            self.wishes.pop(wish, None)
            one = self.held.pop(wish)
            one.leaving_at = self._loop.now
            asked.append((one, False))
        self._requests[session.unsubscribe([(text, int(always)) for text, always in known])] = asked

    def add_for(self, session: ClientSession, theirs: ConnectionRecord, text: str) -> None:
        """Subscribe for another client, as a subscription manager."""
        if not session.can_request():
            return
        one = SubscriptionRecord(theirs, text, self._loop.now, deliver_always=False, asker=self._username)
        theirs.subscriptions.append(one)
        self._requests[session.subscribe([(text, 0)], theirs.client)] = [(one, True)]

    def remove_for(self, session: ClientSession, theirs: ConnectionRecord, text: str) -> None:
        """Unsubscribe for another client; who added it does not matter."""
        if not session.can_request():
            return
        managed = [one for one in theirs.subscriptions if one.asker and one.text == text]
        for one in managed:
            one.leaving_at = min(one.leaving_at, self._loop.now)
        number = session.unsubscribe([(text, 0)], theirs.client)
        # Of others that are asked for meanwhile, nobody but the router knows whether they came first.
        self._requests[number] = [(one, False) for one in managed if one.confirmed_at < FOREVER]
        self._removals[number] = (theirs, text, self._loop.now)

    def answered(self, event: Answered) -> None:
        """Write down what the router said."""
        asked = self._requests.pop(event.request)
        theirs, text, since = self._removals.pop(event.request, (None, "", 0.0))
        for one in theirs.subscriptions if theirs is not None else ():
            if one.asker and one.text == text and one.confirmed_at >= since:
                one.leaving_at = min(one.leaving_at, since)
        for (one, is_wanted), error in zip(asked, event.results * len(asked), strict=False):
            if is_wanted:
                self._confirmed(one, None if error is None else error.code)
            elif error is None or error.code == errors.SUBSCRIPTION_NOT_FOUND:
                one.gone_at = min(one.gone_at, self._loop.now)

    def _confirmed(self, one: SubscriptionRecord, refused: int | None) -> None:
        one.confirmed_at = self._loop.now
        one.refused = refused
        if refused is not None:
            for wish in [wish for wish, held in self.held.items() if held is one]:
                del self.held[wish]
                self.wishes.pop(wish, None)
        elif one.asker:
            self._note_successors(one)

    def _note_successors(self, one: SubscriptionRecord) -> None:
        """The target may have come back meanwhile; then its new connection may have the subscription."""
        theirs = one.connection
        for record in self._history.connections[theirs.number :]:
            if record.client == theirs.client:
                other = SubscriptionRecord(
                    record, one.text, one.asked_at, deliver_always=False, asker=one.asker
                )
                record.subscriptions.append(other)
