"""What a client is told besides messages: refusals, losses, discards, lost connections.

A command gives `Notices` to the SDK as `on_event` and asks at its end what there was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from angarium import errors
from angarium.client.connection.connection import FINAL_ENDS
from angarium_server.visible import visible
from cluster.commands.terminal.table import counted

if TYPE_CHECKING:
    from angarium.client.connection.connection import ClientEvent


class Notices:
    """Counts messages that did not get through, and tells on stderr when the connection comes and goes."""

    def __init__(self) -> None:
        #: Published messages that the node refused: they would be refused again.
        self.refused = 0
        #: Published direct messages that the node lost when one of its processes died.
        self.lost = 0
        #: Messages for this client that the node discarded.
        self.discarded = 0
        #: Why the first ones were refused.
        self._refusal: errors.AngariumError | None = None

    def __call__(self, event: ClientEvent) -> None:
        """Take an event of the client."""
        if event.kind == "notice" and event.code == errors.SHARD_UNAVAILABLE:
            self.lost += event.messages
        elif event.kind == "notice":
            self.refused += event.messages
            self._refusal = self._refusal or errors.error_for(event.code, event.detail)
        elif event.kind == "discard":
            self.discarded += event.messages
        elif event.kind == "disconnected" and event.code not in FINAL_ENDS:
            why = visible(f"{errors.error_for(event.code, event.detail)}")
            click.echo(f"connection lost, trying again: {why}", err=True)
        elif event.kind in ("slow", "stalled"):
            click.echo(visible(event.detail), err=True)
        elif event.kind == "reconnected":
            click.echo(f"connected again to {event.url}", err=True)

    def refusal(self) -> errors.AngariumError | None:
        """Give the error of the first refusal with the number of all that were refused, or None."""
        if self._refusal is None:
            return None
        detail = f"{self._refusal.detail}; {counted(self.refused, 'message')} refused".removeprefix("; ")
        return errors.error_for(self._refusal.code, detail)
