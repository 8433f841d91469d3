"""What a primary says to the processes of its node, and hears from them.

It says until when they act, and whether what they write has to be at the standby too; they say how far that follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import zmq

from angarium_server.frames.frame import MalformedFrameError, decoder, read
from angarium_server.frames.shipping import Followed, Order

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: What is heard is true for so long; a process says it five times a second.
FRESH_S: Final = 1.0
#: A process that says nothing for so long has gone.
GONE_S: Final = 5.0
ORDER_S: Final = 0.1

_decode_followed = decoder(Followed)


def address_in(directory: Path) -> str:
    """Give where the processes of a node find the desk of their host."""
    return f"ipc://{directory}/keeper"


class Desk:
    """Of one start of a primary."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], directory: Path) -> None:
        self.address = address_in(directory)
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(self.address)
        #: Who is there, and when he was heard.
        self._heard: dict[bytes, float] = {}
        #: Whether any process ever came: nothing acts before that.
        self.has_met = False
        #: By store, and when it was said.
        self.followed: dict[str, tuple[Followed, float]] = {}
        self.order: Order | None = None
        self._order_at = 0.0

    def receive(self, now: float) -> bool:
        """Take what processes say; tells whether anything came."""
        found = False
        while True:
            try:
                identity, *frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return found
            found = True
            if identity not in self._heard:
                self._order_at = 0.0  # it waits for its first order
            self._heard[identity], self.has_met = now, True
            if frames and frames[0] == Followed.operation:
                try:
                    said = read(_decode_followed, frames)
                except MalformedFrameError:
                    continue
                self.followed[said.store] = said, now

    def say(self, order: Order) -> None:
        """Have this hold from now on."""
        is_news = self.order is None or order != self.order
        self.order = order
        if is_news:
            self._order_at = 0.0

    def tick(self, now: float) -> None:
        """Say it again, so that a process that has just come hears of it."""
        if self.order is None or now < self._order_at:
            return
        self._order_at = now + ORDER_S
        for identity in [one for one, at in self._heard.items() if now - at > GONE_S]:
            del self._heard[identity]
        for identity in self._heard:
            self.socket.send_multipart([identity, *self.order.frames()], zmq.NOBLOCK)
        # To send uses up the signal of what came meanwhile; without that of any process nothing is heard again.
        self.receive(now)

    def misses(self, stores: Sequence[str], now: float) -> bool:
        """Tell whether the standby does not follow one of these, as its process says; one that is away says nothing."""
        return any(not said.follows for said in self.said(stores, now))

    def lacks_much(self, stores: Sequence[str], now: float) -> bool:
        """Tell whether the standby gets no part of one of these before it has left the in-sync set."""
        return any(said.lacks_much for said in self.said(stores, now))

    def follows(self, stores: Sequence[str], now: float) -> bool:
        """Tell whether the standby follows all of these."""
        fresh = self.said(stores, now)
        return len(fresh) == len(stores) and all(said.follows for said in fresh)

    def caught_up(self, stores: Sequence[str], now: float) -> tuple[str, int] | None:
        """Give the host that has everything in all of these, and since which order; None: none has."""
        fresh = self.said(stores, now)
        orders = {(said.host, said.caught_up) for said in fresh}
        if len(fresh) != len(stores) or len(orders) != 1:
            return None
        host, order = orders.pop()
        return None if order is None or not host else (host, order)

    def said(self, stores: Sequence[str], now: float) -> list[Followed]:
        """Give what was said of these just now; a process that is away says nothing."""
        found = [self.followed[store] for store in stores if store in self.followed]
        return [said for said, at in found if now - at < FRESH_S]

    def close(self) -> None:
        """Say nothing more."""
        self.socket.close()
