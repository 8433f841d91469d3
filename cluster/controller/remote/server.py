"""The addresses of the controller for operators on other hosts: connections, and nothing that is decided here.

Frames are those of the local way, one MessagePack array each; the first one says `hello` and is answered with the name
of the operator, or with the reason why there is none. Until then a connection is unauthenticated: it may say little,
and not for long.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec

from angarium import errors, wire
from angarium_server.connections.door import Door, DoorLimits, Refusal
from angarium_server.connections.framing import FramingLimits
from angarium_server.connections.tls import common_name_of, make_context
from cluster.controller.access.callers import Claim

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium_server.connections.connection import Connection
    from angarium_server.connections.tls import TlsFiles
    from angarium_server.process import Process
    from cluster.controller.access.callers import Callers
    from cluster.controller.remote.operators import Operators

#: The admin API takes configurations of this size, and nothing larger.
FRAME_BYTES_MAX: Final = 16 << 20
#: Answers that wait for one operator; the largest, a list of all objects, has a part of that.
UNSENT_BYTES_MAX: Final = 256 << 20
#: From connecting to `hello`.
HELLO_S: Final = 10.0
STRANGERS_MAX: Final = 100
STRANGERS_PER_NETWORK_MAX: Final = 20
#: Connections of operators; a command has one while it runs.
OPERATORS_MAX: Final = 500
#: Answers that are under way when the controller stops may take so long to leave.
LINGER_S: Final = 0.2

#: What `hello` and the requests look like.
AdminRequest = tuple[int, str, dict[str, Any]]

_log = logging.getLogger("controller")


class RemoteServer:
    """Takes requests at some addresses."""

    def __init__(
        self,
        process: Process,
        files: TlsFiles,
        operators: Operators,
        callers: Callers,
        on_request: Callable[[bytes, AdminRequest, Claim], None],
        on_refused: Callable[[str, float], None],
    ) -> None:
        """Listen nowhere yet; a request comes with the connection to answer to and what it showed."""
        self._files = files
        self._callers = callers
        self._on_request = on_request
        self._on_refused = on_refused
        limits = DoorLimits(
            FramingLimits(FRAME_BYTES_MAX, FRAME_BYTES_MAX),
            UNSENT_BYTES_MAX,
            HELLO_S,
            STRANGERS_MAX,
            STRANGERS_PER_NETWORK_MAX,
        )
        self._door = Door(
            process, limits, self._take, self._lost, self._malformed, on_refused, operators.may_come
        )
        #: Connection -> what who said hello there has shown; each is in the door.
        self._claims: dict[bytes, Claim] = {}

    def listen(self, urls: list[str]) -> None:
        """Let operators come.

        Raises:
            InvalidRequestError: an address or a file cannot be used (40017).
        """
        for url in urls:
            try:
                bound = self._door.listen(url, make_context(self._files))
            except OSError as error:
                detail = f"admin.listen: {url}: {error.strerror or error}"
                advice = "end what listens there, or name another address"
                raise errors.error_for(errors.INVALID_CONFIGURATION, detail, advice) from None
            _log.info("the admin API listens on %s", bound)

    def reload(self) -> None:
        """Encrypt connections that come from now on with what the files hold now.

        Raises:
            InvalidRequestError: they cannot be used; the certificate before stays (40017).
        """
        self._door.encrypt_with(make_context(self._files))

    def answer(self, asker: bytes, reply: list[Any]) -> bool:
        """Send an answer; tell whether it is one of ours whom it is for."""
        if asker not in self._claims:
            return False
        refusal = self._door.send(asker, [wire.pack(reply)])
        if refusal is not None:
            del self._claims[asker]
            blocked = " and does not read" if refusal is Refusal.BLOCKED else ""
            _log.info("who asked the admin API has gone%s before the answer", blocked)
        return True

    def tick(self, now: float) -> bool:
        """Go on with what came, send what was said; tell whether there is more to read."""
        has_more = self._door.read_rest()
        self._door.tick(now)
        self._door.flush()
        return has_more

    def close(self) -> None:
        """Close everything."""
        self._door.close(LINGER_S)
        self._claims.clear()

    # -- what comes ------------------------------------------------------------------------------------------

    def _take(self, connection: Connection, frames: list[bytes], now: float) -> None:
        try:
            request = msgspec.convert(wire.unpack(frames[-1]), AdminRequest)
        except (errors.AngariumError, msgspec.ValidationError) as error:
            self._end(connection.id, 0, errors.error_for(errors.MALFORMED_FRAME, f"{error}"), now)
            return
        if connection.id in self._claims:
            self._on_request(connection.id, request, self._claims[connection.id])
        else:
            self._hello(connection, request, now)

    def _hello(self, connection: Connection, request: AdminRequest, now: float) -> None:
        number, operation, _ = request
        try:
            if operation != "hello":
                raise errors.error_for(errors.UNKNOWN_OPERATION, "say hello first")
            shown = common_name_of(connection.certificate() or {})
            claim = Claim("remote", shown, connection.address)
            name = self._callers.who(claim).name
            if len(self._claims) >= OPERATORS_MAX:
                detail = f"{OPERATORS_MAX} operators are connected to the admin API"
                raise errors.error_for(errors.TOO_MANY_CONNECTIONS, detail)
        except errors.AngariumError as error:
            self._on_refused(f"{connection.address}: {error.detail}", now)
            self._end(connection.id, number, error, now)
            return
        self._claims[connection.id] = claim
        self._door.admit(connection.id)
        self._door.send(connection.id, [wire.pack([number, True, {"operator": name}])])
        _log.info("operator %r has connected from %s", name, connection.address)

    def _end(self, connection_id: bytes, number: int, error: errors.AngariumError, now: float) -> None:
        """Tell somebody why his connection ends."""
        self._claims.pop(connection_id, None)
        self._door.send(connection_id, [wire.pack([number, False, [error.code, error.detail]])])
        self._door.finish(connection_id, now)

    def _malformed(self, connection_id: bytes, reason: str, now: float) -> None:
        self._on_refused(reason, now)
        self._end(connection_id, 0, errors.error_for(errors.MALFORMED_FRAME, reason), now)

    def _lost(self, connection_id: bytes, _reason: str, _now: float) -> None:
        self._claims.pop(connection_id, None)

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert all(self._door.is_here(one) for one in self._claims)
        self._door.validate()
