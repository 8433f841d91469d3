"""A relay between two sessions that a test plays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from angarium import wire
from angarium.client.protocol.session import Hello
from cluster.relay.session import LinkSession, Passed
from tests.welcome import welcome

if TYPE_CHECKING:
    from cluster.relay.direct import Relay

Rows = list[list[Any]]


def make_session(workers: int = 1, rounds: int = 100, **limits: Any) -> LinkSession:
    """A session that is open; what it sends is in `sent`."""
    session = LinkSession(Hello("default", "#link", "secret"), 0.0)
    given = {"client_name": "#link/x", "node": "x", "epoch": 3, "rounds": rounds, "max_batch_rows": 1_000}
    body = welcome(workers, **{**given, "max_batch_bytes": 1 << 20, **limits})
    session.receive([wire.WELCOME, wire.pack(body)], 0.0)
    sent(session)
    return session


def sent(session: LinkSession) -> list[list[bytes]]:
    """Take what a session wants to send."""
    outgoing = session.take_outgoing()
    found = list(outgoing)
    outgoing.clear()
    return found


def rows_of(*topics: str, first: int = 0) -> Rows:
    return [[first + number, topic, 0, None, None, b"x"] for number, topic in enumerate(topics)]


def deliver(session: LinkSession, *parts: Rows, unsorted: bool = False, dropped: int = 0) -> list[Any]:
    flags = (wire.DELIVER_UNSORTED if unsorted else 0) | (wire.DELIVER_DISCARD_INDICATION if dropped else 0)
    head = [flags, [[len(part), None] for part in parts], dropped]
    return session.receive([wire.DELIVER, wire.pack(head), *map(wire.pack, parts)], 0.0)


def published(session: LinkSession) -> list[tuple[Any, Rows]]:
    """Take the rounds that a session sent: header, and rows of all parts by index."""
    found = []
    for frames in sent(session):
        if frames[0] == wire.PUBLISH:
            rows = [row for batch in frames[2:] for row in wire.unpack(batch)]
            found.append((wire.unpack(frames[1]), sorted(rows)))
    return found


def take(relay: Relay, events: list[Any]) -> None:
    for event in events:
        assert isinstance(event, Passed), event
        relay.passed(event)
