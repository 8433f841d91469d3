"""What a link process asks of a node that a test plays, and its answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from angarium import wire
from tests.unit.cluster.played_relay import sent

if TYPE_CHECKING:
    from cluster.relay.session import LinkSession

NOW_MS = 1_000_000


def requests(session: LinkSession) -> list[Any]:
    return [wire.unpack(frames[1]) for frames in sent(session) if frames[0] == wire.REQUEST]


def answer(session: LinkSession, number: int, value: dict[str, Any]) -> None:
    session.receive([wire.ANSWER, wire.pack([number, 0, value])], 0.0)
