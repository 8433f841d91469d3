"""Connections that CURVE encrypts: a ROUTER socket of libzmq, for the addresses of a node that has keys.

Others come through `angarium_server.connections.door`. Called by the shell (`router.server`); a send that fails and a
message that comes look like those of a door.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections import deque
from typing import TYPE_CHECKING

import zmq

from angarium import errors, wire
from angarium.errors import error_for
from angarium_server.connections.door import Refusal
from angarium_server.connections.tls import Peer
from angarium_server.monitor import next_event

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium_server.process import Process
    from router.admission.zap import ZapHandler
    from router.router import Router

_LAST_FRAME = int(zmq.NOBLOCK)
_MORE_FRAMES = int(zmq.NOBLOCK | zmq.SNDMORE)
#: Frames taken before others get their turn, and so long at most.
DRAIN_MAX = 200
DRAIN_S = 0.003
#: At most one look at everybody in this time, however many connections close.
PROBE_INTERVAL_S = 0.25
#: With very many clients the looks are rarer, so that they cost little.
PROBES_PER_SECOND = 5_000
#: Automatic routing ids of ZeroMQ are a zero byte and a number of four.
_ROUTING_ID_BYTES = 5
#: What one client may send while a request of it is done: a client of ours keeps to half of it.
UNTAKEN_MAX = 1_000
UNTAKEN_BYTES_MAX = 64 << 20
#: Messages that wait for one client.
SEND_QUEUE_FRAMES = 100_000
#: Why a handshake failed, as far as libzmq tells.
_HANDSHAKE_FAULTS: dict[int, str] = {
    zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC: "the peer has a wrong public key of this node",
    zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH: "one side encrypts and the other does not",
}


class _Untaken:
    """Messages of one client that were not taken yet, the oldest first."""

    __slots__ = ("address", "bytes", "messages")

    def __init__(self, address: str) -> None:
        self.address = address
        self.messages: deque[list[bytes]] = deque()
        #: What all that came to be in here has.
        self.bytes = 0

    def add(self, frames: list[bytes]) -> bool:
        """Keep one more; false if they are too many."""
        self.messages.append(frames)
        self.bytes += sum(map(len, frames))
        return len(self.messages) <= UNTAKEN_MAX and self.bytes <= UNTAKEN_BYTES_MAX


class CurveListener:
    """The encrypted addresses of a node."""

    def __init__(
        self,
        process: Process,
        router: Router,
        zap: ZapHandler,
        on_message: Callable[[bytes, list[bytes], float, Peer], bool],
        on_drained: Callable[[], None],
    ) -> None:
        """Listen nowhere yet.

        Args:
            process: whose loop watches the sockets.
            router: told of handshakes that fail and of connections that end.
            zap: decides who may finish a handshake, and has the key.
            on_message: takes the id of a connection, what it said, the time, and its address; false if it is not
                taken yet.
            on_drained: called after one or some of them.
        """
        self._process = process
        self._router = router
        self._zap = zap
        self._on_message = on_message
        self._on_drained = on_drained
        self._probe_at: float | None = None
        #: By routing id; none is empty. libzmq reads on, whoever is busy.
        self._untaken: dict[bytes, _Untaken] = {}
        self._clients = self._make_socket()
        self._monitor = self._clients.get_monitor_socket(
            zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        )
        process.add(self._clients, self._read)
        process.add(self._zap.socket, self._zap.serve)
        process.add(self._monitor, self._read_monitor)

    def _make_socket(self) -> zmq.Socket[bytes]:
        socket = self._process.context.socket(zmq.ROUTER)
        _seed_routing_ids()
        config = self._router.config
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.RCVHWM, 0)  # ingress credit bounds it
        socket.setsockopt(zmq.SNDHWM, SEND_QUEUE_FRAMES)
        socket.setsockopt(zmq.MAXMSGSIZE, config.max_batch_bytes + 1024)
        socket.setsockopt(zmq.LINGER, 500)
        socket.setsockopt(zmq.BACKLOG, 1024)
        socket.setsockopt(zmq.HANDSHAKE_IVL, 5000)
        # A peer that vanished, with or without a session, gives its descriptor back.
        socket.setsockopt(zmq.HEARTBEAT_IVL, 10_000)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 30_000)
        socket.setsockopt(zmq.IPV6, int(any("[" in url for url in config.listen)))
        socket.setsockopt_string(zmq.ZAP_DOMAIN, "angarium")
        self._zap.secure(socket)
        return socket

    def _read(self) -> bool:
        receive = self._clients.recv
        until = time.monotonic() + DRAIN_S
        for _ in range(DRAIN_MAX):
            now = time.monotonic()
            if now >= until:
                break
            try:
                routing_id = receive(zmq.NOBLOCK)
            except zmq.Again:
                return False
            self._read_client(routing_id, now)
            # At once: to find that nothing else has come takes a lone message longer than to leave.
            self._on_drained()
        return True

    def _read_client(self, routing_id: bytes, now: float) -> None:
        """Take the frames of one client that are there."""
        frames: list[bytes]
        if routing_id in self._router.sessions.by_routing_id:
            frames, address = self._clients.recv_multipart(), ""
        else:
            parts = self._clients.recv_multipart(copy=False)
            frames, address = [part.bytes for part in parts], _peer_address(parts[0])
        if len(routing_id) != _ROUTING_ID_BYTES or routing_id[0]:
            self._router.reception.refuse(routing_id, error_for(errors.ROUTING_ID_REFUSED))
        elif routing_id in self._untaken or not self._on_message(routing_id, frames, now, Peer(address)):
            self._keep(routing_id, frames, now)

    def _keep(self, routing_id: bytes, frames: list[bytes], now: float) -> None:
        """Keep a message for later; whoever sends too many meanwhile is too fast."""
        untaken = self._untaken.get(routing_id)
        if untaken is None:
            session = self._router.sessions.by_routing_id[routing_id]
            untaken = self._untaken[routing_id] = _Untaken(session.address)
        if not untaken.add(frames):
            del self._untaken[routing_id]
            detail = f"{len(untaken.messages)} messages, {untaken.bytes} bytes, came while a request was done"
            self._router.fail(routing_id, error_for(errors.CONTROL_RATE_EXCEEDED, detail), now)

    def _offer_again(self, now: float) -> None:
        for routing_id, untaken in list(self._untaken.items()):
            messages = untaken.messages
            while messages and self._on_message(routing_id, messages[0], now, Peer(untaken.address)):
                messages.popleft()
            if not messages:
                del self._untaken[routing_id]

    def _read_monitor(self) -> None:
        try:
            while True:
                event, value = next_event(self._monitor)
                if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                    reason = _HANDSHAKE_FAULTS.get(value, f"protocol error {value:#x}")
                    self._router.reception.handshake_failed(reason, time.monotonic())
                elif self._probe_at is None:
                    interval = max(PROBE_INTERVAL_S, len(self._router.sessions) / PROBES_PER_SECOND)
                    self._probe_at = time.monotonic() + interval
        except zmq.Again:
            self._on_drained()

    def listen(self, url: str) -> str:
        """Listen on an address; give it with the port it got.

        Raises:
            OSError: that is not possible.
        """
        try:
            self._clients.bind(url)
        except zmq.ZMQError as error:
            raise OSError(error.errno, zmq.strerror(error.errno or 0)) from None
        return self._clients.getsockopt_string(zmq.LAST_ENDPOINT)

    def send(self, routing_id: bytes, frames: list[bytes]) -> Refusal | None:
        """Send a message without waiting, or say why that cannot be."""
        self._process.touch(self._clients)
        parts = [routing_id, *frames]
        last = len(frames)
        try:
            # A full socket and a peer that is gone show with the first part.
            for number, part in enumerate(parts):
                self._clients.send(part, _LAST_FRAME if number == last else _MORE_FRAMES)
        except zmq.Again:
            return Refusal.BLOCKED
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return Refusal.GONE
        return None

    def tick(self, now: float) -> float:
        """Offer again what was not taken; look at everybody if connections have ended; give when to call again."""
        if self._untaken:
            self._offer_again(now)
        if self._probe_at is not None and now >= self._probe_at:
            self._probe_at = None
            # Whose connection it was shows when we try to reach everybody.
            frames = [wire.PING, wire.pack([0])]
            for session in self._router.sessions:
                self._router.out.send(session, frames)
        if self._untaken:
            return now
        return float("inf") if self._probe_at is None else self._probe_at

    def close(self) -> None:
        """Close the sockets."""
        self._clients.disable_monitor()
        for socket in (self._monitor, self._clients, self._zap.socket):
            self._process.remove(socket)
            socket.close()


def _peer_address(frame: zmq.Frame) -> str:
    """Give the IP address that a frame came from, empty over ipc, where it is localhost:UID:GID:PID."""
    try:
        address = str(frame.get("Peer-Address"))
    except zmq.ZMQError:
        return ""
    return "" if address.startswith("localhost:") else address


def _seed_routing_ids() -> None:
    """Make automatic routing ids unpredictable: libzmq numbers them from rand().

    And who can announce the next one
    would abort the process. To be called with a context that has a socket already, before the socket it is
    for.
    """
    if sys.platform != "win32":
        ctypes.CDLL(None).srand(int.from_bytes(os.urandom(4), "little"))
