"""What endpoints of neighbours want: stored with the queue of the link, as its subscriptions.

Client interest is soft, it goes with the session. That of endpoints outlives it: while a link is down its queue goes
on taking what the neighbour wanted last. So it is the controller that keeps it, and IMPORTED waits for it. What came
with a snapshot stands beside what was there until the snapshot is complete; then what it did not name goes (mark and
sweep).

The queue of a link takes a limited number of them. What is above it attracts direct messages only; it is counted, and
asked for again as others make room.

One question per neighbour is under way; what comes meanwhile goes into the next one, so that a hundred thousand
subscriptions are a few changes of the queue and not a hundred.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from angarium import errors, wire
from router.asking import refusal
from router.guaranteed.endpoints import EXCEPTION_MARK, QUEUE

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.asking import Asks
    from router.effects import Outbox
    from router.guaranteed.endpoints import Endpoint, Endpoints
    from router.session import Session

#: A controller that was away is asked again after this time.
RETRY_S: Final = 0.5
_PASSING: Final = (errors.CONTROLLER_UNAVAILABLE, errors.INTERNAL)


class _Line:
    """The stored interest of one neighbour in one Message VPN, while it has a session."""

    def __init__(self, known: list[str]) -> None:
        #: What the queue subscribes to, as far as the controller answered.
        self.known = dict.fromkeys(known)
        #: What the snapshot named so far; None once it is complete.
        self.named: dict[str, None] | None = {}
        #: Pattern -> whether it is wanted; what the controller is to be asked next.
        self.changes: dict[str, bool] = {}
        #: Called when these changes are in force.
        self.waiting: list[Callable[[], None]] = []
        self.is_asking = False
        #: Not before this time.
        self.ask_at = 0.0
        #: What the queue did not take: the limit of its subscriptions is reached.
        self.dropped: dict[str, None] = {}


class StoredInterest:
    """The subscriptions of the queues of links."""

    def __init__(self, endpoints: Endpoints, asks: Asks, outbox: Outbox) -> None:
        self._endpoints = endpoints
        self._asks = asks
        self._outbox = outbox
        #: By session; those that sent imports.
        self._lines: dict[Session, _Line] = {}
        #: (Message VPN, node) whose limit the operators know to be reached.
        self._exceeded: dict[tuple[str, str], None] = {}

    def take(
        self, session: Session, node: str, kind: int, entries: list[tuple[str, int]], done: Callable[[], None]
    ) -> None:
        """Take what a neighbour imports; `done` is called when what concerns endpoints is stored and in force."""
        queue = self._queue(session, node)
        if queue is None:
            done()
            return
        line = self._lines.get(session)
        if line is None:
            line = self._lines[session] = _Line(queue.attributes["client_subscriptions"])
        for pattern, wish in entries:
            line.dropped.pop(pattern, None)
            wanted = wish & wire.WISH_ENDPOINT != 0 and not pattern.startswith(EXCEPTION_MARK)
            if wanted and line.named is not None:
                line.named[pattern] = None
            line.changes[pattern] = wanted
        if kind == wire.EXPORTS_COMPLETE and line.named is not None:
            line.changes.update((text, False) for text in line.known if text not in line.named)
            line.named = None
        line.waiting.append(done)
        self._ask(session, node, line)

    def _queue(self, session: Session, node: str) -> Endpoint | None:
        return self._endpoints.find(session.vpn.name, QUEUE, wire.LINK_NAME_PREFIX + node)

    def _ask(self, session: Session, node: str, line: _Line) -> None:
        if line.is_asking:
            return
        add = [text for text, wanted in line.changes.items() if wanted and text not in line.known]
        remove = [text for text, wanted in line.changes.items() if not wanted and text in line.known]
        line.changes = {}
        waiting, line.waiting = line.waiting, []
        if not add and not remove:
            for done in waiting:
                done()
            return
        line.is_asking = True
        question = {
            "vpn": session.vpn.name,
            "name": wire.LINK_NAME_PREFIX + node,
            "add": add,
            "remove": remove,
        }

        def answered(ok: bool, value: Any, now: float) -> None:  # noqa: FBT001 - the form of an answer
            line.is_asking = False
            if not ok and refusal(value).code in _PASSING:
                again = {**dict.fromkeys(add, True), **dict.fromkeys(remove, False)}
                line.changes = {**again, **line.changes}
                line.waiting = waiting + line.waiting
                line.ask_at = now + RETRY_S
                return
            if ok:
                self._answered(session, node, line, dict(zip(add, value["added"], strict=True)), remove)
            for done in waiting:
                done()
            if line.changes or line.waiting:
                self._ask(session, node, line)

        self._asks.ask("endpoint.subscribe", question, answered)

    def _answered(
        self, session: Session, node: str, line: _Line, added: dict[str, Any], removed: list[str]
    ) -> None:
        """Note what the queue has now, and ask again for as many as others made room for."""
        for text, verdict in added.items():
            (line.known if verdict is None else line.dropped)[text] = None
        freed = 0
        for text in removed:
            line.known.pop(text, None)
            freed += 1
        for text in list(islice(line.dropped, freed)):
            del line.dropped[text]
            line.changes.setdefault(text, True)
        key = (session.vpn.name, node)
        if not line.dropped:
            self._exceeded.pop(key, None)
        elif key not in self._exceeded:
            self._exceeded[key] = None
            self._tell_exceeded(session.vpn.name, node, len(line.known))

    def _tell_exceeded(self, vpn: str, node: str, limit: int) -> None:
        text = (
            f"the endpoints of node {node!r} have more subscriptions in Message VPN {vpn!r} than the queue of the link "
            f"takes ({limit:,}): the others attract direct messages only, which are lost while the link is down"
        )
        self._outbox.event("SYSTEM_LINK_SUBSCRIPTIONS_EXCEEDED", text, severity="warning", link=node, vpn=vpn)

    def dropped(self, session: Session) -> int:
        """Give how many subscriptions of endpoints of a neighbour the queue of its link does not take."""
        line = self._lines.get(session)
        return 0 if line is None else len(line.dropped)

    def tick(self, now: float) -> float:
        """Ask again what could not be answered; gives when to call again, infinite if nothing waits."""
        wake = float("inf")
        for session, line in self._lines.items():
            if line.ask_at and not line.is_asking and session.link is not None:
                if now >= line.ask_at:
                    line.ask_at = 0.0
                    self._ask(session, session.link.node, line)
                else:
                    wake = min(wake, line.ask_at)
        return wake

    def forget(self, session: Session) -> None:
        """A session is over; what it wanted stays."""
        self._lines.pop(session, None)
