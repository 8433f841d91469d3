"""The primary's end of the conversation about files: whom it calls anew, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from angarium_server.connections.names import Names
from angarium_server.frames.shipping import PastRow, ToldSynced, Whereabouts
from angarium_server.watch import Watch
from cluster.data.node_file import NODE_FILE, NodeFile
from cluster.standby.files_line import LOST_S, RETRY_S, FilesLine
from cluster.standby.pair.outside import Standing
from storage.shipping.settings import StandbySettings

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterator
    from pathlib import Path


STANDING = Standing(1, "alpha", frozenset(("alpha",)))


class PretendedConnection:
    """One that is there, and of which a standby that has gone without a word lets nothing be heard."""

    def __init__(self, received: Callable[[list[bytes], float], None]) -> None:
        self.received = received
        self.sent: list[list[bytes]] = []
        self.is_closed = self.is_gone = False

    def send(self, outgoing: deque[list[bytes]]) -> None:
        self.sent.extend(outgoing)
        outgoing.clear()

    def tick(self, _now: float) -> None:
        self.is_gone = self.is_closed

    def close(self, _outgoing: deque[list[bytes]]) -> None:
        self.is_closed = True


@pytest.fixture
def watch() -> Iterator[Watch]:
    made = Watch()
    yield made
    made.close()


def test_a_standby_that_went_without_a_word_is_called_anew(
    tmp_path: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system finds out after minutes: meanwhile it would lack files, and not be in sync, though it is back."""
    node = NodeFile(node="orders", node_id="id", data_id="data", workers=1)
    (tmp_path / NODE_FILE).write_bytes(msgspec.json.encode(node))
    settings = StandbySettings(peer="tcp://127.0.0.1:9", node="orders", data_id="data", secret="s")
    line = FilesLine(watch, Names(watch), settings, tmp_path)
    made: list[PretendedConnection] = []

    def connect(_outgoing: Any, _epoch: int, received: Any, *_: Any) -> Any:
        made.append(PretendedConnection(received))
        return made[-1]

    monkeypatch.setattr(line._calling, "connect", connect)

    def answer(now: float) -> None:
        made[-1].received(Whereabouts(PastRow([], 0, 0), "beta").frames(), now)
        line.tick(now, STANDING)
        made[-1].received(ToldSynced(line._number).frames(), now)

    line.tick(1.0, STANDING)
    answer(1.0)
    assert line.follows(1.1)
    line.tick(1.0 + LOST_S + 0.1, STANDING)
    line.tick(1.0 + LOST_S + 0.1 + RETRY_S, STANDING)
    assert [one.is_closed for one in made] == [True, False]
    assert line._calling._leaving == [], "nothing is left of the first one"
    answer(8.0)
    assert line.follows(8.1)
