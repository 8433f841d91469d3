"""Makes workers die of what is called deadly; Python imports this at its start where a test has put it on the path."""

from __future__ import annotations

import os
import sys
from typing import Any

STATUS = 3


def _is_worker() -> bool:
    return "angarium_server.launch" in sys.orig_argv and "node" in sys.orig_argv


def _arm() -> None:
    from node.endpoints.lane import Lane
    from node.matching.worker import Worker
    from storage.spool import SpoolFailedError

    look_up, hand_out = Worker._look_up, Lane.hand_out

    def deadly_look_up(self: Worker, lookup: Any, vpn: Any) -> bool:
        if any(topic.startswith("deadly/") for topic in lookup.batch.topics):
            os._exit(STATUS)
        return look_up(self, lookup, vpn)

    def deadly_hand_out(self: Lane, *arguments: Any) -> Any:
        is_served = self.messages and self.flows and self.settings.egress_enabled
        if is_served and self.settings.name == "deadly":
            os._exit(STATUS)
        if is_served and self.settings.name == "failing":
            raise SpoolFailedError("the disk fails while the queue is read")
        return hand_out(self, *arguments)

    Worker._look_up = deadly_look_up  # type: ignore[method-assign]
    Lane.hand_out = deadly_hand_out  # type: ignore[method-assign,assignment]


if _is_worker():
    _arm()
