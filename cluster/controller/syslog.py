"""Events to syslog: each as one datagram in the form of RFC 5424, to a socket of this host or over UDP (R42).

    <134>1 2031-05-04T10:11:12.345Z berlin angarium - VPN_CONNECTIONS_HIGH [angarium@0 id="7" vpn="default"] text

Syslog is a courtesy: an event that cannot be sent is counted and lost there, never here, where the file has it; nothing
waits. The time is that of the event. `format_event` is pure; `Syslog` owns the socket; the controller's shell calls it.
"""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from angarium_server.visible import visible
from cluster.configuration.config import SYSLOG_PORT, SYSLOG_UDP, SYSLOG_UNIX

if TYPE_CHECKING:
    from cluster.controller.switchboard.events import Event

#: Facility local0, as most brokers have it by default.
_FACILITY: Final = 16
_SEVERITIES: Final = {"critical": 2, "error": 3, "warning": 4, "notice": 5, "info": 6}
_INFO: Final = 6
#: RFC 5424, 6.1: every receiver takes 480 bytes, and should take 2,048.
MESSAGE_BYTES_MAX: Final = 2_048
_NAME_MAX: Final = 32
_HOST_MAX: Final = 255
#: The name of a host that is not known is looked up again after so long, in a thread: it may take seconds.
LOOKUP_S: Final = 30.0
#: What may stand in a field of the header.
_NO_FIELD: Final = re.compile(r"[^!-~]")
#: Parts of an event that have a place of their own.
_OWN_PLACE: Final = frozenset({"time", "severity", "event", "text"})

_log = logging.getLogger(__name__)


def format_event(event: Event, node: str) -> bytes:
    """Give an event as a message of syslog, cut where receivers may cut it."""
    priority = _FACILITY * 8 + _SEVERITIES.get(str(event.get("severity")), _INFO)
    host = _field(node, _HOST_MAX)
    name = _field(str(event["event"]), _NAME_MAX)
    data = " ".join(_parameter(key, value) for key, value in event.items() if key not in _OWN_PLACE)
    text = visible(str(event["text"]))
    if len(str(event["event"])) > _NAME_MAX:
        text = f"{event['event']}: {text}"
    message = f"<{priority}>1 {event['time']} {host} angarium - {name} [angarium@0 {data}] {text}"
    return message.encode()[:MESSAGE_BYTES_MAX]


def _field(text: str, length: int) -> str:
    return _NO_FIELD.sub("_", text)[:length] or "-"


def _parameter(name: str, value: Any) -> str:
    """Give one part of an event as structured data; three characters are escaped (RFC 5424, 6.3.3)."""
    text = re.sub(r'(["\\\]])', r"\\\1", visible(str(value)))
    return f'{_field(name, _NAME_MAX)}="{text}"'


class Syslog:
    """The way to one target; without a target it takes events and does nothing."""

    def __init__(self, target: str, node: str) -> None:
        """Open the way; that it cannot be opened is logged, and tried again with events that come."""
        self._target = target
        self._node = node
        self._socket: socket.socket | None = None
        #: Events that could not be sent.
        self.lost = 0
        self._lookup_due = 0.0
        if target:
            self._open()

    def send(self, event: Event) -> None:
        """Send an event, if there is a target that takes it."""
        if not self._target:
            return
        message = format_event(event, self._node)
        # What is wrong with the first may be of before: whoever listens has been restarted, perhaps.
        if not (self._is_sent(message) or self._is_sent(message)):
            self.lost += 1

    def _is_sent(self, message: bytes) -> bool:
        if self._socket is None:
            self._open_again()
        if self._socket is None:
            return False
        try:
            self._socket.send(message)
        except OSError:
            if self._is_local:
                self.close()
            return False
        return True

    def _open_again(self) -> None:
        if self._is_local:
            self._open()
        elif time.monotonic() >= self._lookup_due:
            self._lookup_due = time.monotonic() + LOOKUP_S
            threading.Thread(target=self._open, daemon=True).start()

    @property
    def _is_local(self) -> bool:
        return self._target.startswith("unix:")

    def _open(self) -> None:
        try:
            self._socket = _connected(self._target)
        except OSError as error:
            if not self.lost:
                _log.warning("events do not reach %s: %s", self._target, error)

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _connected(target: str) -> socket.socket:
    """Give a socket that sends there and never waits.

    Raises:
        OSError: the host is unknown, or nobody listens at the path.
    """
    local = SYSLOG_UNIX.fullmatch(target)
    if local is not None:
        return _opened(socket.AF_UNIX, local["path"])
    udp = SYSLOG_UDP.fullmatch(target)
    assert udp is not None, "the configuration was checked"
    port = int(udp["port"] or SYSLOG_PORT)
    family, _, _, _, address = socket.getaddrinfo(udp["v6"] or udp["host"], port, type=socket.SOCK_DGRAM)[0]
    return _opened(family, address)


def _opened(family: int, address: Any) -> socket.socket:
    made = socket.socket(family, socket.SOCK_DGRAM)
    try:
        made.settimeout(0)
        made.connect(address)
    except OSError:
        made.close()
        raise
    return made
