"""A connection of a link or bridge process to one router: a socket of the system, watched by the loop of the process.

It connects once and never again by itself. What is said over it is `angarium.client.transport.zmtp`, inside of
`angarium.client.transport.tls` where the address demands it; neither has a socket. This class reads what came, hands it
on in steps that leave others their turn, keeps what the socket does not take, and notices the end after everything that
came before it. It decides nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from angarium import errors
from angarium.client.transport.address import parse
from angarium.client.transport.zmtp import Zmtp, ZmtpError, pack
from angarium.errors import AngariumError, error_for
from angarium_server.connections.encryption import ADVICE
from angarium_server.connections.names import Names, Place, places_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from angarium.client.transport.tls import Tls
    from angarium_server.connections.door import Watcher

#: Messages handed on before others get their turn, and so long at most.
DRAIN_MAX: Final = 200
DRAIN_S: Final = 0.003
#: A large message comes in pieces; so many are read before others get their turn, which costs more than a read.
READS_MAX: Final = 8
#: Sent with one system call: so many bytes, unless the last message makes it more, and so many pieces; the system
#: takes 1,024.
SEND_BYTES: Final = 256 * 1024
SEND_PIECES: Final = 1_000
#: Less than this is copied into one piece, which takes the system less time than many.
JOIN_BYTES: Final = 16 * 1024
#: All addresses of a host together are tried for so long.
CONNECT_S: Final = 4.0
#: So long the other side may take to read what it was sent, after we have closed.
LINGER_S: Final = 1.0

_NEVER: Final = float("inf")
_LATER: Final = (BlockingIOError, InterruptedError)


class Connection:
    """One connection of a link."""

    def __init__(
        self,
        watcher: Watcher,
        names: Names,
        url: str,
        tls: Tls | None,
        on_message: Callable[[list[bytes], float], None],
        on_drained: Callable[[], None],
        on_lost: Callable[[AngariumError, float], None],
    ) -> None:
        """Begin to connect.

        Args:
            watcher: the loop; it calls `tick` too, when `wake_at` has come.
            names: looks up host names.
            url: of the router.
            tls: of a `tls://` address; None for the others.
            on_message: takes each multipart that came, with the time.
            on_drained: called after some of them, and when there may be room to send more.
            on_lost: called once when the connection is gone; nothing is called after it.

        Raises:
            InvalidRequestError: it is no address (INVALID_ARGUMENT).
        """
        self._watcher = watcher
        self._url = url
        self._on_message = on_message
        self._on_drained = on_drained
        self._on_lost = on_lost
        self._tls = tls
        self._protocol = tls or Zmtp()
        #: Nothing more is told; what was sent may still be leaving.
        self.closed = False
        #: None before there is an address, and in the end.
        self._socket: socket.socket | None = None
        self._is_connected = False
        #: Whether anything came from the other side.
        self._is_answered = False
        #: Addresses that were not tried, the next one first, how long each is tried, and until when this one is.
        self._places: list[Place] = []
        self._patience_s = CONNECT_S
        self._give_up_at = _NEVER
        #: What came and was not handed on; nothing more is read before it is.
        self._messages: deque[list[bytes]] = deque()
        #: When something came last that is no whole message yet.
        self.part_at = 0.0
        #: What the socket did not take; the loop tells when it may go on.
        self._unsent: list[bytes | memoryview] = []
        #: A send failed: nothing more leaves, but what came before the end is still read.
        self._is_broken = False
        #: Why there is nothing more to read; told when everything was handed on.
        self._end: AngariumError | None = None
        self._begin(names)

    @property
    def wake_at(self) -> float:
        """Give when `tick` is wanted, whatever the socket signals."""
        if not self.closed and (self._messages or self._end is not None):
            return 0.0
        return self._give_up_at

    @property
    def is_gone(self) -> bool:
        """Tell whether nothing is left of it."""
        return self.closed and self._socket is None

    # -- connecting ------------------------------------------------------------------------------------------

    def _begin(self, names: Names) -> None:
        address = parse(self._url)
        if isinstance(address, str):
            self._try([(socket.AF_UNIX, address)])
            return
        host, port = address
        try:
            places = places_of(host, port, socket.AI_NUMERICHOST)
        except (OSError, ValueError):
            names.find(host, port, self._found)
        else:
            self._try(places)

    def _found(self, places: list[Place], fault: str) -> None:
        if self.closed:
            return
        if places:
            self._try(places)
        else:
            self._fail(f"the host is not known: {fault}")

    def _try(self, places: list[Place]) -> None:
        self._places = places
        self._patience_s = CONNECT_S / len(places)
        self._try_next()

    def _try_next(self, why: str = "") -> None:
        """Connect to the first address that can be tried."""
        self._release()
        while self._places:
            family, place = self._places.pop(0)
            try:
                self._open(family, place)
            except (OSError, ValueError) as error:  # the latter: there cannot be such a path
                why = str(getattr(error, "strerror", None) or error)
                self._release()
            else:
                return
        self._fail(f"nobody answers: {why}")

    def _open(self, family: int, place: str | tuple[Any, ...]) -> None:
        made = self._socket = socket.socket(family, socket.SOCK_STREAM)
        made.setblocking(False)  # noqa: FBT003 - the form of the library
        if family != socket.AF_UNIX:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        with contextlib.suppress(
            *(() if family == socket.AF_UNIX else _LATER)
        ):  # a full backlog is a refusal
            made.connect(place)
        self._watcher.add(made.fileno(), self._serve)
        self._watcher.await_room(made.fileno(), wanted=True)
        self._give_up_at = time.monotonic() + self._patience_s

    def _connected(self) -> None:
        """See how it went."""
        assert self._socket is not None
        fault = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if fault:
            self._try_next(os.strerror(fault))
            return
        self._is_connected = True
        self._give_up_at = _NEVER
        self._watcher.await_room(self._socket.fileno(), wanted=False)
        self._write([self._protocol.start()])

    def _fail(self, why: str) -> None:
        self._end = error_for(errors.CONNECT_FAILED, f"{self._url}: {why}")

    # -- the loop --------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Go on with what no signal of the socket announces."""
        if now >= self._give_up_at:
            if self.closed:
                self._release()
            else:
                self._try_next("no answer in time")
        elif not self.closed and (self._messages or self._end is not None):
            self._hand_on()

    def _serve(self) -> None:
        """Do what the socket is ready for."""
        if self.closed:
            self._leave()
            return
        if not self._is_connected:
            self._connected()
            return
        if self._unsent:
            self._write_further()
        for _ in range(READS_MAX):
            if self._messages or self._end is not None or not self._read():
                break
        self._hand_on()

    def _read(self) -> bool:
        """Take in what came, a bounded number of bytes; false if nothing did."""
        assert self._socket is not None
        try:
            count = self._socket.recv_into(self._protocol.room())
        except _LATER:
            return False
        except OSError as error:
            self._cut(error)
            return True
        if not count:
            self._over(self._protocol.at_end())
            return True
        self._is_answered = True
        messages: list[list[bytes]] = []
        try:
            self._protocol.received(count, messages)
        except ZmtpError as error:
            self._over(str(error))
        except AngariumError as error:
            advice = error.advice if self._tls is None else ADVICE
            self._end = error_for(error.code, f"{self._url}: {error.detail}", advice)
        if not messages:
            self.part_at = time.monotonic()
        self._messages.extend(messages)
        if replies := self._protocol.take_replies():
            self._write([replies])
        return True

    def _cut(self, error: OSError) -> None:
        """The connection broke, as that of those does who wait at the door of a node which hangs and is ended."""
        if self._is_answered:
            self._over(self._protocol.at_end())
        else:
            self._fail(f"nobody answers: {error.strerror or error}")

    def _over(self, why: str) -> None:
        code = errors.NOT_CONNECTED if self._protocol.is_open else errors.HANDSHAKE_FAILED
        self._end = error_for(code, f"{self._url}: {why}")

    def _hand_on(self) -> None:
        """Hand on what came, as much as others can wait for, and the end behind all of it."""
        messages = self._messages
        now = time.monotonic()
        until = now + DRAIN_S
        count = 0
        while messages and not self.closed and count < DRAIN_MAX and now < until:
            self._on_message(messages.popleft(), now)
            count += 1
            now = time.monotonic()
        if not self.closed:
            self._on_drained()
        if self._end is not None and not messages and not self.closed:
            self.closed = True
            self._release()
            self._on_lost(self._end, now)

    # -- sending ---------------------------------------------------------------------------------------------

    def send(self, outgoing: deque[list[bytes]]) -> None:
        """Send what is queued, as far as the socket takes it; the rest stays in the queue."""
        while outgoing and self._protocol.is_open and not (self._unsent or self._is_broken or self.closed):
            pieces = pack(outgoing.popleft())
            size = sum(map(len, pieces))
            while outgoing and size < SEND_BYTES and len(pieces) < SEND_PIECES // 2:
                more = pack(outgoing.popleft())
                size += sum(map(len, more))
                pieces += more
            self._write(pieces if self._tls is None else self._tls.seal(pieces))

    def _write(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Send, or keep for later what the socket does not take."""
        assert self._socket is not None
        if self._unsent:
            self._unsent += pieces
            return
        size = sum(map(len, pieces))
        try:
            joins = len(pieces) > 1 and size <= JOIN_BYTES
            sent = (
                self._socket.send(b"".join(pieces)) if joins else self._socket.sendmsg(pieces[:SEND_PIECES])
            )
        except _LATER:
            sent = 0
        except OSError:
            self._is_broken = True
            return
        if sent < size:
            self._unsent = _behind(pieces, sent)
            self._watcher.await_room(self._socket.fileno(), wanted=True)

    def _write_further(self) -> None:
        assert self._socket is not None
        unsent, self._unsent = self._unsent, []
        self._write(unsent)
        if not self._unsent:
            self._watcher.await_room(self._socket.fileno(), wanted=False)

    # -- the end ---------------------------------------------------------------------------------------------

    def close(self, outgoing: deque[list[bytes]]) -> None:
        """Tell nothing more, and close when what was sent and what is queued has left, or `LINGER_S` later."""
        if self.closed:
            return
        while outgoing and self._protocol.is_open and not self._is_broken:
            pieces = pack(outgoing.popleft())
            self._write(pieces if self._tls is None else self._tls.seal(pieces))
        self.closed = True
        if not self._is_connected:
            self._release()
            return
        if self._tls is not None and not self._is_broken:
            self._write([self._tls.farewell()])
        self._give_up_at = time.monotonic() + LINGER_S
        self._leave()

    def _leave(self) -> None:
        """Send the rest and wait for the other side to end: to close while more comes takes back what is under way."""
        sock = self._socket
        if sock is None:
            return
        if self._unsent:
            self._write_further()
        try:
            if not self._unsent:
                sock.shutdown(socket.SHUT_WR)
            ended = self._is_broken or not sock.recv_into(self._protocol.room())
        except _LATER:
            return
        except OSError:
            ended = True
        if ended:
            self._release()

    def _release(self) -> None:
        """Let go of the socket."""
        self._give_up_at = _NEVER
        self._unsent = []
        sock, self._socket = self._socket, None
        if sock is not None:
            with contextlib.suppress(KeyError):  # it could not be watched yet
                self._watcher.remove(sock.fileno())
            sock.close()

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert self._socket is not None or not (self._is_connected and self._end is None and not self.closed)
        assert not self.is_gone or self.wake_at == _NEVER
        if not self.closed and self._is_connected:
            self._protocol.validate()


def _behind(pieces: Sequence[bytes | memoryview], sent: int) -> list[bytes | memoryview]:
    """Give what is left of pieces behind so many bytes."""
    for at, piece in enumerate(pieces):
        if sent < len(piece):
            return [memoryview(piece)[sent:] if sent else piece, *pieces[at + 1 :]]
        sent -= len(piece)
    return []


def to_router(watcher: Watcher, runtime_dir: Path) -> partial[Connection]:
    """Give what connects a process to the router of its node: a `Connection` that only has to hear whom it tells."""
    return partial(Connection, watcher, Names(watcher), f"ipc://{runtime_dir}/links", None)
