"""What a client reports of itself: events for `on_event`, and lines for the log `angarium.client`.

Nothing is reported for a message that goes well, and nothing that is secret is ever in a report.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from angarium.client.connection.connection import ClientEvent

if TYPE_CHECKING:
    from angarium.client.connection.connection import Connection, EventCallback
    from angarium.client.protocol.events import Welcome
    from angarium.client.subscribing.mailbox import Mailbox
    from angarium.errors import AngariumError

#: For the operators of an application; the modules here log under it.
_logger = logging.getLogger("angarium.client")


class Reports:
    """The reports of one client."""

    def __init__(self, connection: Connection, on_event: EventCallback | None) -> None:
        """Report to the log, and to `on_event` if there is one."""
        self._connection = connection
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        #: The name of the client; empty before it was connected.
        self._name = ""
        #: When the connection was lost; None before that.
        self._lost_at: float | None = None
        #: Connections after the first with everything restored.
        self.reconnects = 0

    def connected(self, welcome: Welcome) -> None:
        """The session is open; of a later one `restored` tells more."""
        if not self._name:
            self._name = welcome.client_name
            where = self._connection.url, welcome.node, welcome.vpn
            _logger.info("%r is connected to %s (node %s, Message VPN %s)", self._name, *where)
            self.emit("connected")

    def restored(self, welcome: Welcome) -> None:
        """All subscriptions are in force."""
        if self._lost_at is None:
            return
        self.reconnects += 1
        where = self._connection.url, welcome.node
        figures = self._loop.time() - self._lost_at, self._connection.lost_messages
        _logger.info(
            "%r is connected again to %s (node %s) after %.1f s; direct messages lost so far: %d",
            self._name,
            *where,
            *figures,
        )
        self.emit("reconnected")

    def lost(self, error: AngariumError) -> None:
        """The connection is gone."""
        self._lost_at = self._loop.time()
        why = f"{error.detail or error.text} (error {error.code})"
        _logger.warning("%r lost its connection: %s; %s", self._name, why, self._connection.outlook(error))
        self.emit("disconnected", error.code, error.detail)

    def failed(self, error: AngariumError) -> None:
        """The connection does not come back."""
        _logger.warning("%r is not connected any more and does not try again: %s", self._name, error)
        self.emit("failed", error.code, error.detail)

    def slow(self, mailbox: Mailbox) -> None:
        """A subscription began to drop messages; reported once until its reader has caught up."""
        limit = f"{mailbox.terms.buffer_messages:,} messages or {mailbox.terms.buffer_bytes:,} bytes wait"
        self.warn("slow", f"{mailbox} is not read fast enough: {limit}, the oldest are dropped")

    def warn(self, kind: str, detail: str) -> None:
        """Something needs the attention of the application."""
        _logger.warning("%r: %s", self._name, detail)
        self.emit(kind, detail=detail)

    def emit(self, kind: str, code: int = 0, detail: str = "", messages: int = 0) -> None:
        """Call `on_event`, whatever it raises."""
        if self._on_event is None:
            return
        try:
            self._on_event(ClientEvent(kind, code, detail, messages, self._connection.url))
        except Exception:
            _logger.exception("on_event raised for %s", kind)
