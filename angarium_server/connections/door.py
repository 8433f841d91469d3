"""All connections of a process: it listens, accepts, and knows who has logged in.

An *unauthenticated* connection, whose peer has not logged in, costs little: it may send a few small frames,
his login has a deadline, one network has a share of them, when there are too many the oldest goes, and all of them
together have a part of the loop's time (`turns`). `admit` says that he has logged in, so that larger messages may come.

A listener speaks the protocol of a `framing`, ZMTP if no other is named; the owner gets its messages as they are.

The owner is told of messages (`on_message`); one that he does not take he is offered again, and nothing more is read of
that peer meanwhile, who waits in the end. That is in the next turn, since he works on what is in the way; or after
`resume`, if he has said `pause` because he waits for others: a pause costs nothing. He is told of ends (`on_lost`,
once, and not of those that he brought about himself) and of connections that had to go before he knew them
(`on_refused`). What he sends leaves with `flush`, so that all that one step decided for a peer is one system call. One
who would rather keep what a slow peer does not take looks at `unsent`, and is told by `on_room` when all has left.

Ids are numbers of this process; a peer cannot choose one, nor guess which is next.
"""

from __future__ import annotations

import contextlib
import enum
import os
import secrets
import socket
import stat
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from angarium_server.access import network_of
from angarium_server.connections.connection import Connection, ConnectionOverError
from angarium_server.connections.descriptors import NO_DESCRIPTORS, REST_S
from angarium_server.connections.framing import (
    STRANGER_BYTES_MAX,
    FramingError,
    FramingLimits,
    PeerEndedError,
)
from angarium_server.connections.turns import LoginTurns
from angarium_server.connections.zmtp import ZmtpFraming

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from angarium_server.connections.framing import Speak

#: Connections accepted before others get their turn.
ACCEPT_MAX: Final = 64
#: Connections that wait in the system to be accepted.
BACKLOG: Final = 4_096
#: A connection that was finished is closed at the latest then, whether the peer has read all or not.
FINISH_S: Final = 2.0
#: How often the owner hears of a message that is on its way.
PART_S: Final = 1.0
#: How often deadlines are looked after.
SWEEP_S: Final = 0.25
#: What a peer that vanished shows after: the system asks it, so often.
TCP_IDLE_S, TCP_INTERVAL_S, TCP_PROBES = 15, 5, 3
_STRANGER: Final = FramingLimits(STRANGER_BYTES_MAX, STRANGER_BYTES_MAX)


class Watcher(Protocol):
    """The loop of a process, as far as a door needs it."""

    def add(self, watched: int, handler: Callable[[], bool | None]) -> None:
        """Call a handler while a descriptor is readable."""

    def remove(self, watched: int) -> None:
        """Forget a descriptor before it is closed."""

    def await_room(self, watched: int, *, wanted: bool) -> None:
        """Call the handler also while the descriptor is writable, or no longer."""

    def pause(self, watched: int, *, is_room_wanted: bool) -> None:
        """Call the handler while the descriptor is writable only, or once at its end; `await_room` ends that."""


class DoorLimits(NamedTuple):
    """How much unauthenticated connections, and a peer that does not read, may cost."""

    #: What one who has logged in may send.
    framing: FramingLimits
    #: Bytes that wait for one peer.
    unsent_bytes: int
    login_s: float
    unauthenticated: int
    unauthenticated_per_network: int


class Refusal(enum.Enum):
    """Why a message cannot be sent."""

    GONE = "the connection is gone"
    BLOCKED = "the peer does not read"


class Door:
    """The connections of one process."""

    def __init__(
        self,
        watcher: Watcher,
        limits: DoorLimits,
        on_message: Callable[[Connection, Any, float], bool | None],
        on_lost: Callable[[bytes, str, float], None],
        on_fault: Callable[[bytes, str, float], None],
        on_refused: Callable[[str, float], None],
        may_come: Callable[[str, float], bool],
        on_room: Callable[[bytes, float], None] = lambda _id, _now: None,
    ) -> None:
        """Listen nowhere yet.

        Args:
            watcher: calls us when a socket can be read.
            limits: see there.
            on_message: takes each message, with its connection and the time; false if he does not take it yet.
            on_lost: told of the end of a connection that has said something, by its id, with the reason.
            on_fault: told that one does not keep to the framing, by his id, with the reason: he is heard no more, and
                to be told and finished.
            on_refused: told why an unauthenticated connection had to go.
            may_come: asked for each new connection, by its network.
            on_room: told that all has left for a connection, by its id, after its socket took no more or `await_room`.
        """
        self._watcher = watcher
        #: `_serve`, one object for all connections.
        self._signalled: Final = self._serve
        self._limits = limits
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_fault = on_fault
        self._on_refused = on_refused
        self._may_come = may_come
        self._on_room = on_room
        #: Told by its id, each `PART_S`, of a connection of which a message is longer than that on its way.
        self.on_part: Callable[[bytes, float], None] = lambda _id, _now: None
        self._connections: dict[bytes, Connection] = {}
        #: Those that have not logged in, the oldest first, with the deadline of each; some are in `_deaf` too.
        self._unauthenticated: dict[Connection, float] = {}
        #: Network -> how many unauthenticated connections it has.
        self._networks: dict[str, int] = {}
        #: Which of them are served, and when.
        self._turns: LoginTurns[Connection] = LoginTurns()
        #: Whether some came in this turn of the loop or the one before; nothing is measured otherwise.
        self._has_unauthenticated = False
        #: CPU time of this thread when the turn of the loop began; None if they sent nothing in the one before.
        self._turn_began: float | None = None
        #: Those of whom nothing more is taken, with the time at which they are closed anyway.
        self._deaf: dict[Connection, float] = {}
        #: Those to which something was said since the last `flush`.
        self._unflushed: dict[Connection, None] = {}
        #: Those of which more can be read without a signal; none is paused.
        self._unread: dict[Connection, None] = {}
        self._listeners: dict[int, _Listener] = {}
        #: Listeners that rest, until when.
        self._resting: dict[int, float] = {}
        self._next_id = secrets.randbits(48)
        self._next_sweep = 0.0

    def __len__(self) -> int:
        """Count the connections."""
        return len(self._connections)

    @property
    def unauthenticated(self) -> int:
        """Count the connections whose peers have not logged in."""
        return len(self._unauthenticated)

    @property
    def put_off_total(self) -> int:
        """Count how often somebody who had not logged in waited for time of the loop."""
        return self._turns.put_off_total

    # -- listening -------------------------------------------------------------------------------------------

    def listen(
        self,
        url: str,
        context: ssl.SSLContext | None = None,
        *,
        speak: Speak = ZmtpFraming,
        shares_port: bool = False,
    ) -> str:
        """Listen on `ipc://PATH` or `tcp://HOST:PORT`, or with another scheme; give the address with the port it got.

        Args:
            url: where; the scheme is only looked at to tell a path from a host.
            context: encrypts the connections; None for plain ones.
            speak: makes the framing of each connection.
            shares_port: whether other processes of this user may listen there too; the system spreads who comes.

        Raises:
            OSError: that is not possible.
        """
        scheme, _, place = url.partition("://")
        made = _listen_ipc(place) if scheme == "ipc" else _listen_tcp(place, shares_port=shares_port)
        bound = url if scheme == "ipc" else f"{scheme}://{_place_of(made)}"
        listener = _Listener(made, bound, context, speak)
        self._listeners[made.fileno()] = listener
        self._watcher.add(made.fileno(), lambda: self._accept(listener))
        return bound

    def encrypt_with(self, context: ssl.SSLContext) -> None:
        """Encrypt otherwise from now on, where it is encrypted; connections that are there stay as they are."""
        for listener in self._listeners.values():
            if listener.context is not None:
                listener.context = context

    def _accept(self, listener: _Listener) -> None:
        turns = self._turns
        if not turns.may_accept:
            return
        self._has_unauthenticated = True
        now, began = time.monotonic(), time.thread_time()
        for _ in range(ACCEPT_MAX):
            somebody_came = self._accept_one(listener, now)
            ended = time.thread_time()
            turns.spend(ended - began)
            began = ended
            if not (somebody_came and turns.may_accept):
                return

    def _accept_one(self, listener: _Listener, now: float) -> bool:
        try:
            sock, place = listener.socket.accept()
        except OSError as error:
            if error.errno in NO_DESCRIPTORS:
                self._rest(listener, error, now)
            return False
        self._welcome(sock, place[0] if isinstance(place, tuple) else "", listener, now)
        return True

    def _rest(self, listener: _Listener, error: OSError, now: float) -> None:
        """Let others come later: the listener would signal for ever."""
        self._watcher.remove(listener.socket.fileno())
        self._resting[listener.socket.fileno()] = now + REST_S
        self._on_refused(f"no connection can be accepted: {error.strerror}", now)

    def _welcome(self, sock: socket.socket, address: str, listener: _Listener, now: float) -> None:
        network = network_of(address)
        if not self._may_come(network, now):
            sock.close()
            return
        if self._networks.get(network, 0) >= self._limits.unauthenticated_per_network:
            sock.close()
            self._on_refused(
                f"{network or 'this host'} has too many connections that have not logged in", now
            )
            return
        if len(self._unauthenticated) >= self._limits.unauthenticated:
            self._dismiss(next(iter(self._unauthenticated)), "too many connections have not logged in", now)
        sock.setblocking(False)  # noqa: FBT003 - the form of the library
        if listener.context is not None:
            try:
                sock.getpeername()  # without a peer `ssl` raises whatever the system has to say of that
                sock = listener.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            except OSError as error:  # he has reset the connection since
                sock.close()
                self._on_refused(f"TLS: {error.strerror or error}", now)
                return
        self._next_id += 1
        framing = listener.speak(_STRANGER)
        connection = Connection(sock, self._next_id.to_bytes(8, "big"), address, framing)
        connection.came_to = listener.url
        self._connections[connection.id] = connection
        self._unauthenticated[connection] = now + self._limits.login_s
        self._networks[network] = self._networks.get(network, 0) + 1
        self._unflushed[connection] = None
        self._watcher.add(connection.descriptor, partial(self._signalled, connection))
        if self._turns.may_serve:  # most have sent their login with their first bytes
            self._read(connection, connection.read)

    # -- those who are here ----------------------------------------------------------------------------------

    def admit(self, connection_id: bytes) -> None:
        """Note that a peer has logged in."""
        connection = self._connections.get(connection_id)
        if connection is not None:
            connection.framing.trust(self._limits.framing)
            self._forget_unauthenticated(connection)
            self._read_on(connection)  # it may have waited for the turn of an unauthenticated one

    def pause(self, connection_id: bytes) -> None:
        """Read nothing more of a peer, and offer nothing of his again, until `resume`.

        What was read already is offered until a message is not taken. One who has not logged in and ends meanwhile is
        lost at once; what others said before their end has to be taken first.
        """
        connection = self._connections.get(connection_id)
        if connection is not None and not (connection.is_paused or connection.is_deaf):
            connection.is_paused = connection.is_read_later = True
            self._unread.pop(connection, None)
            self._turns.forget(connection)
            self._await_signals(connection)

    def resume(self, connection_id: bytes) -> None:
        """Go on with a peer that was paused."""
        connection = self._connections.get(connection_id)
        if connection is not None and connection.is_paused:
            self._end_pause(connection)
            self._read_on(connection)

    def _end_pause(self, connection: Connection) -> None:
        connection.is_paused = connection.is_read_later = False
        self._await_signals(connection)

    def is_paused(self, connection_id: bytes) -> bool:
        """Tell whether nothing is read of a peer."""
        connection = self._connections.get(connection_id)
        return connection is not None and connection.is_paused

    def part_at(self, connection_id: bytes) -> float:
        """Give when something came last of a peer that is no whole message yet; 0 if nothing has."""
        connection = self._connections.get(connection_id)
        return 0.0 if connection is None else connection.part_at

    def _await_signals(self, connection: Connection) -> None:
        if connection.is_paused:
            self._watcher.pause(connection.descriptor, is_room_wanted=connection.is_waiting)
        else:
            self._watcher.await_room(connection.descriptor, wanted=connection.is_waiting)

    def is_here(self, connection_id: bytes) -> bool:
        """Tell whether a connection is there."""
        return connection_id in self._connections

    def unsent(self, connection_id: bytes) -> int:
        """Count the bytes for a connection that its socket has not taken; 0 if it is gone."""
        connection = self._connections.get(connection_id)
        return 0 if connection is None else connection.unsent_bytes

    def await_room(self, connection_id: bytes) -> None:
        """Have `on_room` called when all that was said to a connection has left; soon, if it has already."""
        connection = self._connections.get(connection_id)
        if connection is not None and not connection.is_waiting:
            connection.is_waiting = True
            self._await_signals(connection)

    def send_bytes(self, connection_id: bytes, data: bytes) -> Refusal | None:
        """Have bytes as the peer understands them leave with the next `flush`; or say why they cannot."""
        connection = self._connections.get(connection_id)
        if connection is None or connection.is_finished:
            return Refusal.GONE
        connection.queue_bytes(data)
        self._unflushed[connection] = None
        if connection.unsent_bytes > self._limits.unsent_bytes:
            self._drop(connection)
            return Refusal.BLOCKED
        return None

    def send(self, connection_id: bytes, frames: list[bytes]) -> Refusal | None:
        """Have a message of ZMTP leave with the next `flush`; or say why it cannot."""
        connection = self._connections.get(connection_id)
        if connection is None or connection.is_finished:
            return Refusal.GONE
        connection.queue(frames)
        self._unflushed[connection] = None
        if connection.unsent_bytes > self._limits.unsent_bytes:
            self._drop(connection)
            return Refusal.BLOCKED
        return None

    def finish(self, connection_id: bytes, now: float) -> None:
        """Close a connection when what waits for it has left; its peer is heard no more."""
        connection = self._connections.get(connection_id)
        if connection is not None and not connection.is_finished:
            connection.is_finished = True
            connection.queue_end()
            self._deafen(connection, now)
            self._unflushed[connection] = None

    def _deafen(self, connection: Connection, now: float) -> None:
        """Take nothing more of a peer; he may still be told something."""
        connection.is_deaf = True
        self._unread.pop(connection, None)
        self._end_pause(connection)
        self._deaf[connection] = now + FINISH_S

    def flush(self) -> None:
        """Send what was said."""
        unflushed, self._unflushed = self._unflushed, {}
        for connection in unflushed:
            if connection.is_waiting or connection.id not in self._connections:
                continue
            try:
                connection.flush()
            except ConnectionOverError as over:
                self._cannot_send(connection, over)
            else:
                if connection.unsent_bytes or connection.is_finished:
                    self._flushed(connection)

    def _flush(self, connection: Connection) -> None:
        try:
            connection.flush()
        except ConnectionOverError as over:
            self._cannot_send(connection, over)
        else:
            self._flushed(connection)

    def _cannot_send(self, connection: Connection, over: ConnectionOverError) -> None:
        """Forget what waits for a peer who is gone; what he said before, and then his end, has yet to be read."""
        if connection.is_deaf or connection in self._unauthenticated:
            self._lose(connection, str(over), time.monotonic())
            return
        connection.cut_off()
        if connection.is_waiting:
            connection.is_waiting = False
            self._await_signals(connection)

    def _flushed(self, connection: Connection) -> None:
        """Watch for room if the socket has not taken all, and no longer if it has."""
        waits = connection.unsent_bytes > 0 and not connection.is_encrypting
        if waits != connection.is_waiting:
            connection.is_waiting = waits
            self._await_signals(connection)
            if not waits and not connection.is_finished:
                self._on_room(connection.id, time.monotonic())
        if connection.is_finished and not connection.unsent_bytes:
            connection.finish()

    # -- reading ---------------------------------------------------------------------------------------------

    def _serve(self, connection: Connection) -> None:
        """Read what came of a connection, and send further if that was waited for."""
        if connection.is_waiting:
            self._flush(connection)
            if connection.is_paused or connection.id not in self._connections:
                return
        if connection.is_read_later:
            if connection.is_paused and connection in self._unauthenticated:
                self._lose(connection, "the connection was closed before the login", time.monotonic())
            return
        if connection not in self._unauthenticated:
            self._read(connection, connection.read)
            return
        self._has_unauthenticated = True
        if self._turns.may_serve:
            self._read_unauthenticated(connection)
        else:
            self._turns.put_off(connection)

    def _read_unauthenticated(self, connection: Connection) -> None:
        """Read of one who has not logged in; what that leads to, up to his login, is charged to all of them."""
        began = time.thread_time()
        self._read(connection, connection.read_rest)
        self._turns.spend(time.thread_time() - began)

    def read_rest(self) -> bool:
        """End a turn of the loop: go on with those of which more is here; tell whether there is still more."""
        if self._unread:
            unread, self._unread = self._unread, {}
            for connection in unread:
                connection.is_read_later = False
                if connection.id in self._connections:
                    self._read(connection, connection.read_rest)
        return (self._has_unauthenticated and self._end_turn()) or bool(self._unread)

    def _end_turn(self) -> bool:
        """Go on with connections that were put off, and find how much they may take next; tell whether some wait."""
        while (waiting := self._turns.next()) is not None:
            self._read_unauthenticated(waiting)
        if self._turns.is_calm:
            self._has_unauthenticated, self._turn_began = False, None
            return False
        now = time.thread_time()
        self._turns.end(now - self._turn_began if self._turn_began is not None else 0.0)
        self._turn_began = now
        return len(self._turns) > 0

    def _read(self, connection: Connection, read: Callable[[], Sequence[Any]]) -> None:
        now = time.monotonic()
        was_encrypting = connection.is_encrypting
        try:
            messages = read()
        except (ConnectionOverError, PeerEndedError) as over:
            self._lose(connection, str(over), now)
            return
        except FramingError as error:
            self._refuse(connection, str(error), now)
            return
        if was_encrypting or connection.unsent_bytes:
            self._unflushed[connection] = None
            if connection.unsent_bytes > self._limits.unsent_bytes:  # he asks for replies, and takes none
                self._lose(connection, Refusal.BLOCKED.value, now)
                return
        if connection.part_from and connection.part_at - connection.part_from >= PART_S:
            connection.part_from = connection.part_at
            self.on_part(connection.id, now)
        for at, message in enumerate(messages):
            is_taken = self._on_message(connection, message, now)
            if connection.is_deaf:
                return
            if is_taken is False:
                connection.untaken = messages[at:]
                break
        if (
            connection.framing.has_more or connection.untaken or connection.is_secure
        ) and connection.has_more():
            self._read_on(connection)

    def _read_on(self, connection: Connection) -> None:
        """Read further of a connection when it is its turn, if there is more and it is not paused."""
        if connection.is_paused or not connection.has_more():
            return
        if connection in self._unauthenticated:
            self._turns.put_off(connection)
        else:
            self._unread[connection] = None
            connection.is_read_later = True

    # -- ends ------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Look after deadlines, now and then."""
        if now < self._next_sweep:
            return
        self._next_sweep = now + SWEEP_S
        for connection in [one for one, deadline in self._deaf.items() if deadline <= now]:
            self._drop(connection)
        for connection in [one for one, deadline in self._unauthenticated.items() if deadline <= now]:
            self._dismiss(connection, f"no login within {self._limits.login_s:g} s", now)
        for descriptor in [one for one, until in self._resting.items() if until <= now]:
            del self._resting[descriptor]
            listener = self._listeners[descriptor]
            self._watcher.add(descriptor, lambda listener=listener: self._accept(listener))  # type: ignore[misc]

    def _refuse(self, connection: Connection, reason: str, now: float) -> None:
        """End one who does not keep to the framing, with a word to him if he has shown that he understands us."""
        if not connection.framing.is_open:
            self._dismiss(connection, reason, now)
            return
        self._deafen(connection, now)
        self._on_fault(connection.id, reason, now)

    def _dismiss(self, connection: Connection, reason: str, now: float) -> None:
        """End an unauthenticated connection; operators hear of it."""
        self._on_refused(reason, now)
        self._lose(connection, reason, now)

    def _lose(self, connection: Connection, reason: str, now: float) -> None:
        with contextlib.suppress(ConnectionOverError):
            connection.flush()  # our greeting tells a stranger what he has reached, such as a listener without TLS
        was_finished, was_open = connection.is_finished, connection.framing.is_open
        self._drop(connection)
        if was_open and not was_finished:
            self._on_lost(connection.id, reason, now)

    def _drop(self, connection: Connection) -> None:
        if self._connections.pop(connection.id, None) is None:
            return
        connection.is_deaf = connection.is_finished = True
        self._forget_unauthenticated(connection)
        for waiting in (self._deaf, self._unflushed, self._unread):
            waiting.pop(connection, None)
        self._watcher.remove(connection.descriptor)
        connection.close()

    def _forget_unauthenticated(self, connection: Connection) -> None:
        if self._unauthenticated.pop(connection, None) is None:
            return
        self._turns.forget(connection)
        network = network_of(connection.address)
        self._networks[network] -= 1
        if not self._networks[network]:
            del self._networks[network]

    def stop_listening(self) -> None:
        """Let nobody come any more: who has another address tries that one."""
        for descriptor, listener in self._listeners.items():
            if descriptor not in self._resting:
                self._watcher.remove(descriptor)
            listener.close()
        self._listeners.clear()
        self._resting.clear()

    def close(self, linger_s: float) -> None:
        """Close everything, after what waits had so much time to leave."""
        self.stop_listening()
        until = time.monotonic() + linger_s
        while any(map(_may_leave, self._connections.values())) and time.monotonic() < until:
            for connection in list(self._connections.values()):
                self._flush(connection)
            time.sleep(0.005)
        for connection in list(self._connections.values()):
            self._drop(connection)

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert sum(self._networks.values()) == len(self._unauthenticated)
        assert all(count > 0 for count in self._networks.values())
        for connection in (*self._unauthenticated, *self._deaf, *self._unread):
            assert self._connections.get(connection.id) is connection
        self._turns.validate()
        for connection in self._connections.values():
            is_read_later = connection in self._unread or connection.is_paused
            assert connection.is_read_later == is_read_later
            assert not (connection.is_paused and (connection in self._unread or connection in self._turns))
            assert not connection.untaken or connection.is_deaf or is_read_later or connection in self._turns
            connection.validate()


def _may_leave(connection: Connection) -> bool:
    """Tell whether something waits that leaves without anything being read: a handshake of TLS does not end so."""
    return connection.unsent_bytes > 0 and not connection.is_encrypting


class _Listener:
    """A socket that listens, what encrypts its connections, and what is spoken on them."""

    def __init__(
        self, listening: socket.socket, url: str, context: ssl.SSLContext | None, speak: Speak
    ) -> None:
        self.socket = listening
        #: With the port that it got.
        self.url = url
        #: None for plain connections.
        self.context = context
        self.speak = speak

    def close(self) -> None:
        """Let go of the socket, and of its place in the file system."""
        place = self.socket.getsockname() if self.socket.family == socket.AF_UNIX else None
        self.socket.close()
        if place:
            _remove_socket(place)


def _listen_tcp(place: str, *, shares_port: bool) -> socket.socket:
    host, _, port = place.rpartition(":")
    host = host.strip("[]")
    number = 0 if port == "*" else int(port)
    family, _, _, _, address = socket.getaddrinfo(
        None if host == "*" else host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shares_port))
        # Accepted sockets have these options of their listener.
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, TCP_IDLE_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, TCP_INTERVAL_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, TCP_PROBES)
    except BaseException:
        made.close()
        raise
    return _listening(made, address)


def _listen_ipc(path: str) -> socket.socket:
    _remove_socket(path)
    return _listening(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), path)


def _listening(made: socket.socket, address: Any) -> socket.socket:
    """Have a socket listen without waiting; it is closed if it cannot."""
    try:
        made.bind(address)
        made.listen(BACKLOG)
        made.setblocking(False)  # noqa: FBT003 - the form of the library
    except BaseException:
        made.close()
        raise
    return made


def _remove_socket(path: str) -> None:
    """Remove what an earlier process left, if it is a socket."""
    try:
        if stat.S_ISSOCK(os.stat(path).st_mode):
            os.unlink(path)
    except FileNotFoundError:
        pass


def _place_of(made: socket.socket) -> str:
    host, port = made.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
