"""The shell of a gateway process of MQTT: the connections of its clients, and the clock; it decides nothing."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from angarium import errors
from angarium_server.connections.addresses import is_tls
from angarium_server.connections.descriptors import raise_descriptors
from angarium_server.connections.door import Door, DoorLimits
from angarium_server.connections.framing import FramingLimits
from angarium_server.connections.tls import make_context
from angarium_server.memory import collect_rarely, in_use_bytes
from angarium_server.process import Process, load_config
from cluster.mqtt.config import MqttRuntime
from gateway.mqtt.codec import V3, ReasonCode, write
from gateway.mqtt.codec.connect import ConnAck, Connect
from gateway.mqtt.codec.errors import RETURN_CODES
from gateway.mqtt.codec.publish import Seen
from gateway.mqtt.framing import MqttFraming

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium_server.connections.connection import Connection
    from cluster.configuration.mqtt import MqttAddress
    from gateway.mqtt.codec import Packet, PacketError

ROLE: Final = "mqtt"
#: What was sent last may take so long to leave.
LINGER_S: Final = 0.5
#: What may wait for a connection beside the largest message.
UNSENT_BYTES: Final = 1 << 20
#: Descriptors that are no connections of clients.
OTHER_DESCRIPTORS: Final = 200

_log = logging.getLogger(ROLE)


class MqttServer:
    """One gateway process."""

    def __init__(self, process: Process) -> None:
        """Listen where we are told.

        Raises:
            InvalidRequestError: that is not possible (40017).
        """
        runtime = load_config(process.runtime_dir, ROLE, MqttRuntime)
        raise_descriptors(
            runtime.max_connections + runtime.settings.pending_connections_max + OTHER_DESCRIPTORS
        )
        self._process = process
        self._tls = runtime.tls
        #: Connections that ended before a login.
        self._refused = 0
        self._door = Door(
            process,
            door_limits(runtime),
            self._packet,
            lambda _id, _reason, _now: None,
            lambda connection_id, _reason, now: self._door.finish(connection_id, now),
            self._unwanted,
            lambda _network, _now: True,
        )
        seen = Seen()
        self._urls = [self._listen(address, seen) for address in runtime.addresses]
        process.on_request(self._request)
        process.ready({"urls": self._urls})

    def _listen(self, address: MqttAddress, seen: Seen) -> str:
        speak = partial(MqttFraming, seen=seen)
        try:
            context = make_context(self._tls) if is_tls(address.url) else None
            return self._door.listen(address.url, context, speak=speak, shares_port=True)
        except OSError as error:
            detail = f"mqtt.listen: {address.url}: {error.strerror or error}"
            advice = "end what listens there, or listen elsewhere: --mqtt, or mqtt.listen in the file"
            raise errors.error_for(errors.INVALID_CONFIGURATION, detail, advice) from None

    # -- clients ---------------------------------------------------------------------------------------------

    def _packet(self, connection: Connection, packet: Packet | PacketError, now: float) -> None:
        if isinstance(packet, Connect):
            reason = ReasonCode.SERVER_UNAVAILABLE
            code = RETURN_CODES[reason] if packet.version == V3 else reason
            self._door.send_bytes(connection.id, write(ConnAck(code), packet.version))
        self._door.finish(connection.id, now)

    def _unwanted(self, reason: str, _now: float) -> None:
        """Note that a connection ended before a login."""
        self._refused += 1
        _log.debug("a connection was refused: %s", reason)

    # -- the controller --------------------------------------------------------------------------------------

    def _request(self, operation: str, _arguments: Any) -> Any:
        match operation:
            case "stats":
                return self.stats()
            case "tls_reload":
                return self._reload_certificate()
            case _:
                raise errors.error_for(errors.UNKNOWN_OPERATION, operation)

    def stats(self) -> dict[str, Any]:
        """Give the metrics."""
        return {
            "connections": len(self._door),
            "unauthenticated": self._door.unauthenticated,
            "unauthenticated_put_off": self._door.put_off_total,
            "refused": self._refused,
            "in_use_bytes": in_use_bytes(),
        }

    def _reload_certificate(self) -> None:
        """Encrypt connections that come from now on with what the files hold now; a damaged file changes nothing."""
        if self._tls.cert_file:
            self._door.encrypt_with(make_context(self._tls))

    # -- life ------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> float | None:
        """Let time pass; gives the seconds until the next call is wanted, nothing if there is no hurry."""
        self._door.tick(now)
        has_more = self._door.read_rest()
        self._door.flush()
        return 0.0 if has_more else None

    def drained(self) -> bool:
        """Asked while stopping: true when nobody is owed anything."""
        return True

    def close(self) -> None:
        """Free what the process does not own."""
        self._door.close(LINGER_S)


def door_limits(runtime: MqttRuntime) -> DoorLimits:
    """Give what connections may cost."""
    settings = runtime.settings
    packet_bytes = min(settings.max_packet_bytes, runtime.max_message_bytes)
    return DoorLimits(
        framing=FramingLimits(packet_bytes, packet_bytes),
        unsent_bytes=runtime.max_message_bytes + UNSENT_BYTES,
        login_s=settings.login_timeout_ms / 1000,
        unauthenticated=settings.pending_connections_max,
        unauthenticated_per_network=settings.pending_connections_per_address,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a gateway process until it is told to stop."""
    process = Process.from_command_line(ROLE, arguments)
    try:
        server = MqttServer(process)
        collect_rarely()
        process.run(server.tick, server.drained)
        server.close()
    except errors.AngariumError as error:
        _log.critical("this gateway process cannot work: %s", error)
        # 'angarium status' shows it until the next start.
        process.progress(f"cannot work: {error}")
        raise SystemExit(1) from None
    finally:
        process.close()
