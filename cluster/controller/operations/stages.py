"""The operations on stages and sinks: what waits for a commit, and which batches were committed.

operation       arguments                            answer
stages.list     vpn=None                             a row per stage that is not over
stages.abort    names, vpn="default"                 {"aborted": stages}
sinks.list      vpn=None, name="*"                   a row per sink, with its newest batch
sinks.forget    name, username, vpn="default"        None; its batches may be committed again
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cluster.admin import arguments
    from cluster.catalog.stages import Stages
    from cluster.controller.switchboard.changes import Changes
    from cluster.controller.switchboard.switchboard import Asker, Handlers, Switchboard


class StageOperations:
    """What operators do with stages and sinks."""

    def __init__(self, board: Switchboard, stages: Stages, changes: Changes) -> None:
        """Answer from this registry, and change it through `changes`."""
        self._board = board
        self._stages = stages
        self._changes = changes
        self.operations: Handlers = {
            "stages.list": self._list,
            "stages.abort": self._abort,
            "sinks.list": self._list_sinks,
            "sinks.forget": self._forget_sink,
        }

    def _list(self, request: arguments.VpnArguments, asker: Asker, _now: float) -> None:
        self._board.reply(asker, [_shown(row) for row in self._stages.find(request.vpn)])

    def _abort(self, request: arguments.StageArguments, asker: Asker, _now: float) -> None:
        decision = self._stages.abort_any(request.vpn, request.names, self._board.now_s())
        self._changes.make(decision.entries, asker, "aborted", lambda: {"aborted": len(decision.drop)})

    def _list_sinks(self, request: arguments.NamesArguments, asker: Asker, _now: float) -> None:
        self._board.reply(asker, [_shown(row) for row in self._stages.find_sinks(request.vpn, request.name)])

    def _forget_sink(self, request: arguments.SinkArguments, asker: Asker, _now: float) -> None:
        entries = self._stages.forget_sink(request.vpn, request.username, request.name)
        self._changes.make(entries, asker, "forgotten", lambda: None)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Give a row with its time as operators read it."""
    used = datetime.fromtimestamp(row["used_s"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {**{name: value for name, value in row.items() if name != "used_s"}, "last_used": used}
