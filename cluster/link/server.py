"""The link process: has a channel for each Message VPN that its link joins.

Started by the supervisor as `python -m cluster.link --runtime DIR --index I --incarnation K`; I is the number of the
link object. What it is to do it is told by the controller (`link_config`), again whenever that changes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from cluster.link.link import Link
from cluster.relay.shell import Shell, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium_server.process import Process

ROLE: Final = "link"


class LinkServer(Shell):
    """One link process at work."""

    def __init__(self, process: Process) -> None:
        """Wait to be told what to do."""
        super().__init__(process, ROLE)
        self._link = Link(self.around)
        process.on_request(self._request)

    def _request(self, operation: str, arguments: Any) -> Any:
        now = time.monotonic()
        before = list(self._link.channels.values())
        answer = self._link.request(operation, arguments, now)
        channels = list(self._link.channels.values())
        for channel in before:
            if channel not in channels:
                self.remove(channel, now)
        for channel in channels:
            self.add(channel)
        return answer


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a link process until it is told to stop."""
    run(ROLE, LinkServer, arguments)
