"""What a session is in the middle of, kept at the node: a note in the lane of its queue.

It is written as a whole, one write at a time: what changes meanwhile is in the next one. Messages that the client will
not get again are deleted by the same write, so after a crash either is as it was, or both are new. Sessions that end
with their connections need none of that: `NoNote`. No I/O, no clock.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from angarium.client.protocol.flow_window import is_passing
from gateway.attached import nothing

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium.errors import AngariumError
    from gateway.attached import Attached

#: Pause before a note is written again that could not be.
AGAIN_S: Final = 0.5
#: So much without haste is written all the same.
LATER_MAX: Final = 64


class State(msgspec.Struct, frozen=True, array_like=True):
    """What a note says; it changes only if all who read notes of older processes know both forms."""

    #: The sequence of the next message that the client publishes with QoS 2.
    next_sequence: int = 1
    #: Packet identifier -> sequence of those that it has published, until its PUBREL.
    received: dict[int, int] = {}
    #: Positions in the queue of those whose PUBREC came, until PUBCOMP.
    released: list[int] = []
    #: Queues that it shares no more, and of which it still holds something.
    left: list[str] = []
    #: What comes again, up to this position, comes with QoS 2 if it was published so, whatever is subscribed to since.
    exact: int = 0


_decode_state: Final = msgspec.msgpack.Decoder(State).decode


def pack(state: State) -> bytes:
    """Give a note; empty if there is nothing to remember."""
    return b"" if state == State() else msgspec.msgpack.encode(state)


def unpack(note: bytes) -> State:
    """Undo `pack`."""
    return _decode_state(note) if note else State()


class Keeping(Protocol):
    """Remembers for a session."""

    #: Whether messages that are over are deleted by the write that remembers it, and must not be before.
    deletes: bool

    def after(self, then: Callable[[float], None], now: float, /) -> None:
        """Call this, with the time, when what is true now is remembered."""

    def later(self, then: Callable[[float], None], now: float, /) -> None:
        """Do the same, but with no haste: something else may change before."""

    def hurry(self) -> None:
        """Somebody waits for what had no haste."""


class NoNote:
    """A session that ends with its connection, whose gateway remembers enough."""

    __slots__ = ()

    deletes = False

    def after(self, then: Callable[[float], None], now: float, /) -> None:
        """Go on at once."""
        then(now)

    later = after

    def hurry(self) -> None:
        """Nobody waits."""


class Note:
    """The note of a session that outlives its connections, in the lane of its queue or of one that it shares."""

    deletes = True

    __slots__ = (
        "_again_at",
        "_attached",
        "_fail",
        "_heard",
        "_is_hasty",
        "_is_over",
        "_known",
        "_under_way",
        "_waiting",
        "_wake",
        "_wish",
        "on_written",
    )

    def __init__(
        self,
        attached: Attached,
        wish: Callable[[], dict[str, Any]],
        heard: Callable[[Any, float], None],
        wake: Callable[[float], None],
        fail: Callable[[AngariumError, float], None],
        note: bytes = b"",
    ) -> None:
        """Write nothing yet.

        Args:
            attached: the client at the node.
            wish: gives the arguments of session.keep for what is true now.
            heard: is told its answer, before those who wait.
            wake: has `tick` called then.
            fail: is told why it cannot be written.
            note: as it is at the node.
        """
        self._attached = attached
        self._wish = wish
        self._heard = heard
        #: Is told of a write when all are that waited for it.
        self.on_written: Callable[[float], None] = nothing
        self._wake = wake
        self._fail = fail
        #: Who waits for the write that is under way, in their order; and for the next one.
        self._under_way: list[Callable[[float], None]] = []
        self._waiting: list[Callable[[float], None]] = []
        #: What the node has for it: the last that was written, or what was asked since, if that came to it.
        self._known = [note]
        #: When it is tried again; nothing is under way until then.
        self._again_at = math.inf
        #: Whether somebody waits for the next write.
        self._is_hasty = False
        self._is_over = False

    def after(self, then: Callable[[float], None], now: float, /) -> None:  # noqa: ARG002 - as NoNote
        """Have what is true now written, with whatever else waits."""
        self._waiting.append(then)
        self.hurry()

    def later(self, then: Callable[[float], None], now: float, /) -> None:  # noqa: ARG002 - as NoNote
        """Have it written with the next thing that has haste, or when there is much of it."""
        self._waiting.append(then)
        if len(self._waiting) >= LATER_MAX:
            self.hurry()

    def again(self) -> None:
        """Have it written, though nobody waits."""
        self._waiting.append(nothing)
        self.hurry()

    def hurry(self) -> None:
        """Write what waits, when nothing is under way."""
        self._is_hasty = bool(self._waiting)
        if not self._under_way and self._again_at == math.inf:
            self._write()

    def _write(self) -> None:
        if self._is_over or not self._waiting:
            return
        self._under_way, self._waiting, self._is_hasty = self._waiting, [], False
        wish = self._wish()
        self._known.append(wish["note"])
        self._attached.request("session.keep", wish, self._kept)

    def _kept(self, value: Any, error: AngariumError | None, now: float) -> None:
        if self._is_over:
            return
        if error is None:
            del self._known[:-1]
            self._heard(value, now)
            for then in self._under_way:
                then(now)
            self._under_way = []
            if not self._is_over:
                self.on_written(now)
            if self._is_hasty and not self._under_way:
                self._write()
        elif is_passing(error.code):
            self._waiting, self._under_way, self._is_hasty = self._under_way + self._waiting, [], True
            self._again_at = now + AGAIN_S
            self._wake(self._again_at)
        else:
            self._fail(error, now)

    def may_be(self, note: bytes) -> bool:
        """Tell whether nobody else has written since: the node may have this."""
        return note in self._known

    def tick(self, now: float) -> None:
        """Try again if it is time for that."""
        if self._again_at <= now:
            self._again_at = math.inf
            self._write()

    def stop(self) -> dict[str, Any] | None:
        """Write no more: the connection is over. Gives what had no haste, to be asked last; None if there is none."""
        self._is_over = True
        last = self._wish() if self._waiting else None
        # What it calls knows it: that would be a cycle, and the process hardly ever collects those.
        self._waiting, self._under_way = [], []
        self._wish = dict
        self._heard = self.on_written = self._wake = self._fail = nothing
        return last
