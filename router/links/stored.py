"""What endpoints of neighbours want: stored with the queue of the link, as its subscriptions.

Client interest is soft, it goes with the session. That of endpoints outlives it: while a link is down its queue goes
on taking what the neighbour wanted last. So it is the controller that keeps it, and IMPORTED waits for it. What came
with a snapshot stands beside what was there until the snapshot is complete; then what it did not name goes (mark and
sweep).

The queue of a link takes a limited number of them. What is above it attracts direct messages only; it is counted, and
asked for again as others make room.

What a neighbour wants is compared with what the queue has as a whole when a session begins, and from then on by what
changes of either, so that a hundred thousand subscriptions are no long step. So it does not matter
whether a question that nobody answered was heard all the same, or whose question of an earlier connection, or of an
earlier router, the controller takes late. One question per neighbour is under way; what comes meanwhile goes into the
next one, up to `QUESTION_MAX`, so that a hundred thousand subscriptions are twenty changes of the queue, not a hundred.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from angarium import wire
from router.asking.asks import refusal
from router.guaranteed.endpoint_filters import EXCEPTION_MARK
from router.guaranteed.endpoints import CLIENT_SUBSCRIPTIONS, QUEUE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from router.asking.asks import Asks
    from router.ground.ground import Outbox
    from router.guaranteed.endpoints import Endpoint, Endpoints
    from router.sessions.session import Session

#: A controller that was away, or could not do it, is asked again after this time.
RETRY_S: Final = 0.5
#: Refusals that say nothing of the queue: the families of "too slow", "too fast" and "not possible now".
_PASSING_FAMILIES: Final = (408, 429, 500, 503)
#: Subscriptions that one question names at most: 3 ms for a router that takes the change which follows.
QUESTION_MAX: Final = 5_000

_Key = tuple[str, str]


class _Line:
    """The stored interest of one neighbour in one Message VPN, and what of it differs from what the queue has."""

    def __init__(self) -> None:
        #: The session of the neighbour; None if it has none, and only the answer to a question is waited for.
        self.session: Session | None = None
        #: What its endpoints want, as far as it told on this session.
        self.wanted: dict[str, None] = {}
        #: True once that is everything: what the queue has beside it goes.
        self.is_complete = False
        #: The queue that it is compared with; None if there is none.
        self.queue: Endpoint | None = None
        #: Wanted, and not in the queue nor `dropped`; and in the queue, and not wanted.
        self.lacking: dict[str, None] = {}
        self.surplus: dict[str, None] = {}
        #: True if something changed since the controller was asked last for what differs.
        self.is_changed = True
        #: Wanted, and not taken by the queue: not asked for again before others make room.
        self.dropped: dict[str, None] = {}
        #: Called when what is wanted now is in force.
        self.waiting: list[Callable[[], None]] = []
        self.is_asking = False
        #: Not before this time.
        self.ask_at = 0.0

    def begin(self, session: Session) -> None:
        """A neighbour tells again what it wants."""
        self.session = session
        self.wanted.clear()
        self.dropped.clear()
        self.waiting.clear()
        self.is_complete = False
        self.compare(self.queue)

    def compare(self, queue: Endpoint | None) -> None:
        """Compare with all that a queue has; from here on what changes is enough."""
        stored = {} if queue is None else queue.attributes[CLIENT_SUBSCRIPTIONS]
        self.queue = queue
        self.lacking = {text: None for text in self.wanted if text not in stored and text not in self.dropped}
        self.surplus = (
            {text: None for text in stored if text not in self.wanted} if self.wanted else {**stored}
        )
        self.is_changed = True

    def take(self, kind: int, entries: list[tuple[str, int]]) -> None:
        """Take what a neighbour tells."""
        for pattern, wish in entries:
            if wish & wire.WISH_ENDPOINT and not pattern.startswith(EXCEPTION_MARK):
                self._want(pattern)
            elif pattern in self.wanted:
                self._want_no_more(pattern)
        if kind == wire.EXPORTS_COMPLETE and not self.is_complete:
            self.is_complete = self.is_changed = True

    def _want(self, text: str) -> None:
        if text in self.wanted:
            return
        self.wanted[text] = None
        self.is_changed = True
        if text in self.surplus:
            del self.surplus[text]
        else:
            self.lacking[text] = None

    def _want_no_more(self, text: str) -> None:
        del self.wanted[text]
        self.is_changed = True
        if text in self.dropped:
            del self.dropped[text]
        elif text in self.lacking:
            del self.lacking[text]
        else:
            self.surplus[text] = None

    def edited(self, added: Iterable[str], removed: Iterable[str]) -> None:
        """The queue has got some more, and lost others."""
        self.is_changed = True
        for text in removed:
            self.surplus.pop(text, None)
            if text in self.wanted and text not in self.dropped:
                self.lacking[text] = None
        for text in added:
            self.dropped.pop(text, None)
            self.lacking.pop(text, None)
            if text not in self.wanted:
                self.surplus[text] = None

    def drop(self, texts: Iterable[str]) -> None:
        """The queue does not take these."""
        for text in texts:
            if text in self.lacking:
                del self.lacking[text]
                self.dropped[text] = None

    def ask_again(self, count: int) -> None:
        """The queue has room for so many of those that it did not take."""
        for text in list(islice(self.dropped, count)):
            del self.dropped[text]
            self.lacking[text] = None
            self.is_changed = True

    def question(self) -> tuple[list[str], list[str]]:
        """Give what the queue lacks, and what it has too much, some if they are many."""
        add = list(islice(self.lacking, QUESTION_MAX))
        surplus = islice(self.surplus, QUESTION_MAX - len(add)) if self.is_complete else ()
        remove = list(surplus)
        self.is_changed = len(add) + len(remove) == QUESTION_MAX
        return add, remove


class StoredInterest:
    """The subscriptions of the queues of links."""

    def __init__(self, endpoints: Endpoints, asks: Asks, outbox: Outbox) -> None:
        self._endpoints = endpoints
        endpoints.on_subscriptions = self._edited
        self._asks = asks
        self._outbox = outbox
        #: By Message VPN and neighbour; those that sent imports on a session that lives, or wait for an answer.
        self._lines: dict[_Key, _Line] = {}
        #: Of whom the operators know that the limit is reached.
        self._exceeded: dict[_Key, None] = {}

    def take(
        self, session: Session, node: str, kind: int, entries: list[tuple[str, int]], done: Callable[[], None]
    ) -> None:
        """Take what a neighbour imports; `done` is called when what concerns endpoints is stored and in force.

        Without a queue that is at once: a queue that comes later gets what is wanted by then.
        """
        key = (session.vpn.name, node)
        queue = self._queue(key)
        line = self._lines.setdefault(key, _Line())
        if line.queue is not queue:
            line.compare(queue)
        if line.session is not session:
            line.begin(session)
        line.take(kind, entries)
        line.waiting.append(done)
        self._compare(key, line)

    def _edited(self, endpoint: Endpoint, added: Iterable[str] | None, removed: Iterable[str]) -> None:
        """The subscriptions of a queue changed."""
        line = self._lines.get((endpoint.vpn.name, endpoint.link)) if endpoint.link else None
        if line is None or line.queue is not endpoint:
            return
        if added is None:
            line.compare(endpoint)
        else:
            line.edited(added, removed)

    def _queue(self, key: _Key) -> Endpoint | None:
        return self._endpoints.find(key[0], QUEUE, wire.LINK_NAME_PREFIX + key[1])

    def _compare(self, key: _Key, line: _Line) -> None:
        """Ask for what the queue lacks; if it lacks nothing, what waited is in force."""
        if line.is_asking or line.ask_at:
            return
        queue = self._queue(key)
        if queue is not None and queue is not line.queue:
            line.compare(queue)
        if queue is not None and line.is_changed:
            add, remove = line.question()
            if add or remove:
                self._ask(key, line, add, remove)
                return
        waiting, line.waiting = line.waiting, []
        for done in waiting:
            done()

    def _ask(self, key: _Key, line: _Line, add: list[str], remove: list[str]) -> None:
        line.is_asking = True
        vpn, node = key

        def answered(ok: bool, value: Any, now: float) -> None:  # noqa: FBT001 - the form of an answer
            line.is_asking = False
            if line.session is None:
                del self._lines[key]
                return
            if ok:
                self._answered(key, line, dict(zip(add, value["added"], strict=True)), len(remove))
            elif refusal(value).code // 100 in _PASSING_FAMILIES:
                line.is_changed = True
                line.ask_at = now + RETRY_S
            else:
                line.drop(add)
            self._compare(key, line)

        question = {"vpn": vpn, "name": wire.LINK_NAME_PREFIX + node, "add": add, "remove": remove}
        self._asks.ask("endpoint.subscribe", question, answered, line.session)

    def _answered(self, key: _Key, line: _Line, added: dict[str, Any], removed: int) -> None:
        """Note what the queue did not take; as many as others made room for are asked for again."""
        line.ask_again(removed)
        line.drop([text for text, verdict in added.items() if verdict is not None])
        if not line.dropped:
            self._exceeded.pop(key, None)
        elif key not in self._exceeded:
            self._exceeded[key] = None
            self._tell_exceeded(*key, len(line.wanted) - len(line.dropped))

    def _tell_exceeded(self, vpn: str, node: str, limit: int) -> None:
        text = (
            f"the endpoints of node {node!r} have more subscriptions in Message VPN {vpn!r} than the queue of the link "
            f"takes ({limit:,}): the others attract direct messages only, which are lost while the link is down"
        )
        self._outbox.event("SYSTEM_LINK_SUBSCRIPTIONS_EXCEEDED", text, severity="warning", link=node, vpn=vpn)

    def dropped(self, session: Session) -> int:
        """Give how many subscriptions of endpoints of a neighbour the queue of its link does not take."""
        return next((len(line.dropped) for line in self._lines.values() if line.session is session), 0)

    def tick(self, now: float) -> float:
        """Look whether a queue has changed, and ask again what could not be answered; gives when to call again."""
        wake = float("inf")
        changed = []
        for key, line in self._lines.items():
            if line.ask_at > now:
                wake = min(wake, line.ask_at)
                continue
            queue = self._queue(key)
            if line.ask_at or (queue is not None and (line.is_changed or queue is not line.queue)):
                changed.append((key, line))
        for key, line in changed:
            line.ask_at = 0.0
            self._compare(key, line)
        return wake

    def forget(self, session: Session) -> None:
        """A session is over; what it wanted stays."""
        for key, line in list(self._lines.items()):
            if line.session is session:
                line.session = None
                line.waiting.clear()
                if not line.is_asking:
                    del self._lines[key]
