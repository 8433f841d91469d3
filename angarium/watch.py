"""Waits until sockets and descriptors are readable, and asks little of those that rarely are; `process` uses it.

`zmq.Poller` asks every socket twice per wait, each time with two system calls. A process has a few sockets that carry
messages and several that say something now and then; here the latter cost a lone message nothing, because one epoll
of the kernel watches the descriptors of them all.

The descriptor of a ZeroMQ socket is *edge-triggered*: whoever sends or receives may use up the signal of what came
meanwhile, and has to ask the socket before sleeping (http://api.zeromq.org/4-3:zmq-getsockopt, ZMQ_FD). So all rare
ones are asked when one of them has signalled, after their handlers, and after a `touch`.
"""

from __future__ import annotations

import math
import select
from collections.abc import Callable
from typing import Any, TypeAlias

import zmq

Handler: TypeAlias = Callable[[], None]
Watched: TypeAlias = "zmq.Socket[bytes] | int"


class Watch:
    """Some sockets and descriptors, each with the handler that is called while it is readable."""

    def __init__(self) -> None:
        """Watch nothing."""
        #: Exactly what is watched; each is in one of the pollers.
        self._handlers: dict[Any, Handler] = {}
        #: Sockets that anybody sends on at any time, and the epoll.
        self._often = zmq.Poller()
        self._rare = zmq.Poller()
        #: Holds the descriptors of exactly the rare ones.
        self._signals = select.epoll()
        self._often.register(self._signals.fileno(), zmq.POLLIN)
        #: Whether a rare one may be readable without a signal.
        self._is_touched = False

    def add(self, socket: Watched, handler: Handler) -> None:
        """Watch a descriptor that is readable often, or a socket that anybody sends on at any time."""
        self._handlers[socket] = handler
        self._often.register(socket, zmq.POLLIN)

    def add_rare(self, watched: Watched, handler: Handler) -> None:
        """Watch a descriptor, or a socket that nobody but its handler sends on without a `touch`."""
        self._handlers[watched] = handler
        self._rare.register(watched, zmq.POLLIN)
        self._signals.register(_descriptor(watched), select.EPOLLIN)
        self._is_touched = True

    def remove(self, watched: Watched) -> None:
        """Forget what is watched, before it is closed."""
        del self._handlers[watched]
        if watched in self._rare:
            self._rare.unregister(watched)
            self._signals.unregister(_descriptor(watched))
        else:
            self._often.unregister(watched)

    def touch(self) -> None:
        """Note that something was sent on a rare socket."""
        self._is_touched = True

    def wait(self, seconds: float) -> None:
        """Sleep until something is readable, so long at most, and call the handler of each that is."""
        if self._is_touched and self._serve_rare():
            seconds = 0.0
        handlers = self._handlers
        for watched, _ in self._often.poll(math.ceil(seconds * 1000.0)):
            handler = handlers.get(watched, self._serve_rare)
            handler()

    def close(self) -> None:
        """Let go of the epoll, when nobody waits any more."""
        self._signals.close()

    def _serve_rare(self) -> bool:
        """Call the handlers of the rare ones that are readable; tell whether there were any."""
        readable = self._rare.poll(0)
        self._is_touched = bool(readable)
        for watched, _ in readable:
            handler = self._handlers.get(watched)
            if handler is not None:  # an earlier handler of this round may have removed it
                handler()
        return bool(readable)


def _descriptor(watched: Watched) -> int:
    return watched if isinstance(watched, int) else int(watched.getsockopt(zmq.FD))
