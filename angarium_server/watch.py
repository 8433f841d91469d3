"""Waits until sockets and descriptors are readable, and asks nobody who cannot be; `process` uses it.

`zmq.Poller` asks every socket twice per wait, each time with two system calls, and a lone message waits for that. Here
one epoll of the kernel watches the descriptors of all, and whose descriptor signals is served at once.

The descriptor of a ZeroMQ socket is *edge-triggered*: whoever sends or receives may use up the signal of what came
meanwhile, and has to ask the socket before sleeping (http://api.zeromq.org/4-3:zmq-getsockopt, ZMQ_FD). A receive that
finds the socket empty has asked. So a handler receives until that happens, or says that it did not; and who sends on a
socket outside of its handler says so with a `touch`.
"""

from __future__ import annotations

import select
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import zmq

from angarium_server.parts import is_readable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Gives True unless the last that it did with its socket was to find it empty.
Handler: TypeAlias = "Callable[[], bool | None]"
Watched: TypeAlias = "zmq.Socket[bytes] | int"

#: epoll sleeps for whole milliseconds; what is to be shorter is slept by select, which takes no larger descriptors.
_EPOLL_S: Final = 0.001
_SELECT_MAX: Final = 1_024
#: How long a watch that is closed looks at nothing.
_CLOSED_S: Final = 0.01
#: Some ends are signalled for ever, whether they are wanted or not.
_END_ONCE: Final = select.EPOLLRDHUP | select.EPOLLONESHOT


class Watch:
    """Some sockets and descriptors, each with the handler that is called while it is readable."""

    def __init__(self) -> None:
        #: Descriptor -> what is called while it is readable, of exactly what is watched.
        self._handlers: dict[int, Callable[[], Any]] = {}
        #: The sockets among these, with the handler of each.
        self._sockets: dict[zmq.Socket[bytes], Handler] = {}
        #: Of exactly these descriptors and sockets.
        self._signals = select.epoll()
        #: Is readable while anything of these is, so another one can watch all of them.
        self.descriptor: Final = self._signals.fileno()
        #: Tells whether only some of them are served now; None: all are, always.
        self._is_closed: Callable[[], bool] | None = None
        self._served_always: frozenset[Watched] = frozenset()
        #: Sockets that may be readable without a signal.
        self._doubtful: dict[zmq.Socket[bytes], None] = {}

    def add(self, watched: Watched, handler: Handler) -> None:
        """Watch a socket or a descriptor; `handler` may be called although nothing has come."""
        descriptor = _descriptor(watched)
        self._signals.register(descriptor, select.EPOLLIN)
        if isinstance(watched, int):
            self._handlers[descriptor] = handler
        else:
            self._handlers[descriptor] = partial(self._signalled, watched)
            self._sockets[watched] = handler
            self.touch(watched)

    def remove(self, watched: Watched) -> None:
        """Forget what is watched, before it is closed."""
        descriptor = _descriptor(watched)
        del self._handlers[descriptor]
        self._signals.unregister(descriptor)
        if not isinstance(watched, int):
            del self._sockets[watched]
            self._doubtful.pop(watched, None)

    def await_room(self, watched: int, *, wanted: bool) -> None:
        """Call the handler of a descriptor also while it is writable, or no longer."""
        self._signals.modify(watched, select.EPOLLIN | (select.EPOLLOUT if wanted else 0))

    def pause(self, watched: int, *, is_room_wanted: bool) -> None:
        """Call the handler of a descriptor while it is writable only; or once, if the other side ends, until told more.

        `await_room` ends the pause.
        """
        self._signals.modify(watched, select.EPOLLOUT if is_room_wanted else _END_ONCE)

    def close_while(self, is_closed: Callable[[], bool], but_for: Sequence[Watched]) -> None:
        """Serve nothing but these while that is so; it is asked behind each sleep, before anything is served."""
        self._is_closed = is_closed
        self._served_always = frozenset(but_for)

    def touch(self, socket: zmq.Socket[bytes]) -> None:
        """Note that something was sent on a socket."""
        self._doubtful[socket] = None

    @property
    def is_doubtful(self) -> bool:
        """Whether something may be readable of which `descriptor` does not tell: whoever sleeps on that waits first."""
        return bool(self._doubtful)

    def wait(self, seconds: float) -> int:
        """Sleep until something is readable, so long at most; call the handler of each that is, and count them."""
        if self._is_closed is not None and self._is_closed():
            return self._wait_closed(seconds)
        if self._doubtful and self._serve_doubtful():
            seconds = 0.0
        if 0.0 < seconds < _EPOLL_S and self.descriptor < _SELECT_MAX:
            if not select.select((self.descriptor,), (), (), seconds)[0]:
                return 0  # to ask again is a system call for nothing
            seconds = 0.0
        signals = self._signals.poll(seconds)
        if self._is_closed is not None and self._is_closed():
            return self._wait_closed(0.0)
        for descriptor, _ in signals:
            handler = self._handlers.get(descriptor)
            if handler is not None:  # an earlier one of this round may have removed it
                handler()
        return len(signals)

    def _wait_closed(self, seconds: float) -> int:
        """Serve what is served always; the rest signals, so sleep a moment without looking."""
        time.sleep(min(seconds, _CLOSED_S))
        for watched in self._served_always:
            if isinstance(watched, int):
                self._handlers[watched]()
            else:
                self._serve(watched)
        return len(self._served_always)

    def close(self) -> None:
        """Let go of the epoll, when nobody waits any more."""
        self._signals.close()

    def _signalled(self, socket: zmq.Socket[bytes]) -> None:
        if socket not in self._doubtful:  # one in doubt had its turn, or has it next
            self._serve(socket)

    def _serve_doubtful(self) -> bool:
        """Call the handlers of those in doubt that are readable; tell whether there were any."""
        doubtful, self._doubtful = self._doubtful, {}
        served = False
        for socket in doubtful:
            # An earlier handler of this round may have removed it.
            if socket in self._sockets and is_readable(socket):
                self._serve(socket)
                served = True
        return served

    def _serve(self, socket: zmq.Socket[bytes]) -> None:
        if self._sockets[socket]():
            self.touch(socket)
        elif self._doubtful:
            self._doubtful.pop(socket, None)


def _descriptor(watched: Watched) -> int:
    return watched if isinstance(watched, int) else int(watched.getsockopt(zmq.FD))
