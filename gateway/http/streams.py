"""Streams of events (Server-Sent Events): who of the streams of a process gets a message, written once for all of them.

A message is one event, with the message as JSON; rows that came together are handed over together for each stream.
What a connection has not taken is bounded, for each stream and for all together: who reads too slowly is told so behind
what waits, and ended, and nobody else loses anything. Until it has read that, it counts; if all have too much, its
connection goes before a stream ends.

No I/O; time is a parameter.
"""

from __future__ import annotations

from collections import deque
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol

from angarium import errors
from angarium.errors import error_for
from angarium_server.http import sse
from angarium_server.http.sse import COMMENT, QUIET_S
from gateway.fanout import FanOut
from gateway.http.messages import json_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from angarium.errors import AngariumError
    from angarium.message import Row

#: So much may wait for one stream.
UNSENT_BYTES_MAX: Final = 1 << 20
#: What a plan takes, and more for each stream in it.
_PLAN_BYTES: Final = 100
_STREAM_BYTES: Final = 8


class Outlet(Protocol):
    """The connection of a stream."""

    @property
    def is_gone(self) -> bool:
        """Tell whether there is nobody any more."""

    def send(self, data: bytes, /) -> None:
        """Have bytes leave soon."""

    def unsent(self) -> int:
        """Count the bytes that have not left."""

    def drop(self) -> None:
        """End the connection at once: what has not left is lost."""


def event_of(row: Row, name: str = "", **more: Any) -> bytes:
    """Give a message as an event; one with a name says by that where to go on."""
    return sse.event_of(json_of(row) | more, name)


class Stream:
    """One of them."""

    def __init__(
        self, vpn: str, filters: Sequence[str], outlet: Outlet, ended: Callable[[AngariumError], None]
    ) -> None:
        """Send to this outlet; `ended` is told when nothing more comes, once."""
        self.vpn: Final = vpn
        self.filters: Final = tuple(filters)
        self._outlet = outlet
        self._ended: Callable[[AngariumError], None] | None = ended
        #: Since when nothing was said.
        self.quiet_since = 0.0

    def put(self, data: bytes, now: float) -> bool:
        """Send something; false if its client reads too slowly, and the stream is over."""
        if self._ended is None:
            return True
        self._outlet.send(data)
        self.quiet_since = now
        if self._outlet.unsent() <= UNSENT_BYTES_MAX:
            return True
        self.end(error_for(errors.EGRESS_BLOCKED, "the stream was not read fast enough"))
        return False

    def end(self, error: AngariumError) -> None:
        """Tell why nothing more comes."""
        if self._ended is not None:
            ended, self._ended = self._ended, None
            self._outlet.send(sse.farewell_of(error))
            ended(error)

    @property
    def is_over(self) -> bool:
        """Tell whether nothing more comes."""
        return self._ended is None

    @property
    def unsent(self) -> int:
        """Give what waits for its client."""
        return 0 if self._outlet.is_gone else self._outlet.unsent()

    def drop(self) -> None:
        """Have nothing wait for it any more."""
        self._outlet.drop()


class Streams:
    """Those of a process."""

    def __init__(self, bytes_max: int) -> None:
        """Have none; `bytes_max` is what may wait for all of them."""
        self._bytes_max = bytes_max
        self._fan_outs: dict[str, FanOut[Stream, tuple[Stream, ...]]] = {}
        self._all: dict[Stream, None] = {}
        #: Those that are not there any more, and whose clients have not read all.
        self._left: dict[Stream, None] = {}
        #: By Message VPN: rows for which a turn had no time, each iterator at its first one.
        self._waiting: dict[str, deque[Iterator[Row]]] = {}
        #: Messages that streams were given, and streams that were ended because they were slow.
        self.sent = self.slow = 0

    def __len__(self) -> int:
        """Count them."""
        return len(self._all)

    def add(self, stream: Stream, now: float) -> None:
        """Let a stream get what its filters match, from now on; without filters it gets nothing from here."""
        stream.quiet_since = now
        self._all[stream] = None
        for pattern in stream.filters:
            self._find(stream.vpn).add(pattern, stream)

    def remove(self, stream: Stream) -> None:
        """Let it get nothing more."""
        del self._all[stream]
        self._left[stream] = None
        for pattern in stream.filters:
            self._find(stream.vpn).remove(pattern, stream)

    def _find(self, vpn: str) -> FanOut[Stream, tuple[Stream, ...]]:
        found = self._fan_outs.get(vpn)
        if found is None:
            found = self._fan_outs[vpn] = FanOut(lambda _topic, streams: streams, _bytes_of)
        return found

    def deliver(self, vpn: str, rows: Iterable[Row], now: float) -> bool:
        """Send rows to all streams that want them; false if some of them wait for the next turn."""
        waiting = self._waiting.setdefault(vpn, deque())
        waiting.append(iter(rows))
        return len(waiting) == 1 and self._go_on(vpn, now)

    def begin_turn(self, now: float) -> list[str]:
        """Go on with what the last turn had no time for; gives the Message VPNs of which nothing waits any more."""
        for fan_out in self._fan_outs.values():
            fan_out.begin_turn()
        return [vpn for vpn in [*self._waiting] if self._go_on(vpn, now)]

    @property
    def is_behind(self) -> bool:
        """Tell whether rows wait for the next turn."""
        return bool(self._waiting)

    def _go_on(self, vpn: str, now: float) -> bool:
        """Send what waits in a Message VPN, as far as the turn goes; true if nothing is left."""
        fan_out, waiting = self._find(vpn), self._waiting[vpn]
        gathered: dict[Stream, list[bytes]] = {}
        while waiting and not fan_out.is_over:
            for row in waiting[0]:
                streams = fan_out.find(row[1])
                if streams is None:
                    waiting[0] = chain((row,), waiting[0])
                    break
                data = event_of(row) if streams else b""
                for stream in streams:
                    gathered.setdefault(stream, []).append(data)
            else:
                waiting.popleft()
        for stream, events in gathered.items():
            self.sent += len(events)
            self.slow += not stream.put(events[0] if len(events) == 1 else b"".join(events), now)
        if not waiting:
            del self._waiting[vpn]
        return not waiting

    def tick(self, now: float) -> None:
        """Say something to those that were quiet, and end who has most when all together have too much."""
        for stream in self._all:
            if now - stream.quiet_since >= QUIET_S:
                self.slow += not stream.put(COMMENT, now)
        self._left = {one: None for one in self._left if one.unsent}
        self._relieve()
        for fan_out in self._fan_outs.values():
            fan_out.sweep(now)

    def _relieve(self) -> None:
        """If all together have too much, drop who has been told so, and end who has most."""
        total = sum(one.unsent for one in (*self._all, *self._left))
        if total <= self._bytes_max:
            return
        left, there = (
            sorted(some, key=attrgetter("unsent"), reverse=True) for some in (self._left, self._all)
        )
        for stream in (*left, *there):
            total -= stream.unsent
            if stream in self._left:
                stream.drop()
            else:
                self.slow += not stream.is_over
                stream.end(error_for(errors.EGRESS_BLOCKED, "too much waits for all streams"))
            if total <= self._bytes_max:
                return

    def end_all(self, error: AngariumError) -> None:
        """Tell all why nothing more comes."""
        for stream in self._all:
            stream.end(error)


def _bytes_of(streams: tuple[Stream, ...]) -> int:
    return _PLAN_BYTES + _STREAM_BYTES * len(streams)
