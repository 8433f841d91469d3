"""How a primary calls its standby: a connection for each conversation, which begins with who calls, and about what."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from angarium.errors import error_for
from angarium_server.connections.encryption import Encryption, LinkFiles, Trust
from angarium_server.connections.outgoing import Connection
from angarium_server.frames.frame import decoder, read
from angarium_server.frames.shipping import VERSION, Meet, NotFollowed

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium.errors import AngariumError
    from angarium_server.connections.door import Watcher
    from angarium_server.connections.names import Names
    from storage.shipping.settings import StandbySettings

_decode_refusal = decoder(NotFollowed)


class Calling:
    """Connects to the standby for one conversation, again and again."""

    def __init__(self, watch: Watcher, names: Names, settings: StandbySettings, store: str) -> None:
        """Connect to nothing yet; `store` is its name at the standby."""
        self._watch, self._names, self._settings, self._store = watch, names, settings, store
        self._encryption = Encryption(LinkFiles(**settings.tls_files))
        #: Connections that were let go of: a standby that does not read does not end them.
        self._leaving: list[Connection] = []

    def connect(
        self,
        outgoing: deque[list[bytes]],
        epoch: int,
        received: Callable[[list[bytes], float], None],
        drained: Callable[[], None],
        lost: Callable[[AngariumError, float], None],
    ) -> Connection:
        """Begin a connection, and say who calls with the first of what goes out.

        Args:
            outgoing: what goes out.
            epoch: of this primary.
            received: takes what the standby says, and when.
            drained: called when there is room for more.
            lost: called once when the connection is gone.

        Raises:
            AngariumError: the address, or a file for TLS, cannot be used.
        """
        settings = self._settings
        tls = self._encryption.for_address(settings.peer, Trust(settings.server_name))
        connection = Connection(self._watch, self._names, settings.peer, tls, received, drained, lost)
        meet = Meet(VERSION, settings.node, settings.data_id, settings.secret, self._store, epoch)
        outgoing.append(meet.frames())
        return connection

    def let_go(self, connection: Connection) -> None:
        """Close a connection, over which nothing more is said."""
        connection.close(deque())
        self._leaving.append(connection)

    def tick(self, now: float) -> None:
        """See to it that connections that were let go of end."""
        for connection in self._leaving:
            connection.tick(now)
        self._leaving = [connection for connection in self._leaving if not connection.is_gone]


def refusal_in(frames: list[bytes]) -> AngariumError:
    """Give why the standby follows nobody who calls like this.

    Raises:
        MalformedFrameError: it does not say.
    """
    refusal = read(_decode_refusal, frames)
    return error_for(refusal.code, refusal.detail)
