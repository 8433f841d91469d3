"""One session of a link with a router: like that of a client, but batches stay unopened, and interest travels on it.

Everything that keeps a session alive and within its credit is the client's (`angarium.client.protocol.session`). What
differs: DELIVER gives the batches as they came, EXPORTS gives what the router's node wants, and `tell` sends IMPORTS,
of which a few may wait for the word that they are in force.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, cast

import msgspec

from angarium import wire
from angarium.client.protocol.guaranteed import Acked, decode_acked
from angarium.client.protocol.session import ClientSession, EgressWindow, Hello, State, read_deliver
from angarium.wire import header, malformed
from angarium_server.frames import links
from angarium_server.frames.frame import decoder, encode
from cluster.relay.frames import read_messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium.client.protocol.events import Event
    from angarium.errors import AngariumError
    from angarium.slots import Round

#: Messages that a router may send ahead: only their bytes matter.
WINDOW_MESSAGES: Final = 1 << 40
#: Characters of the reason in a BYE.
REASON_MAX: Final = 200
#: IMPORTS without an answer: enough to keep router and workers busy, few enough not to keep others waiting.
IMPORTS_PENDING_MAX: Final = 4

_Natural = Annotated[int, msgspec.Meta(ge=0)]
Entries = list[tuple[str, int]]
_decode_exports: Final = decoder(links.ExportsFrame)
_decode_open_deliver: Final = msgspec.msgpack.Decoder(
    tuple[_Natural, list[tuple[_Natural, str | None]], _Natural, list[_Natural]]
).decode
_decode_described_deliver: Final = msgspec.msgpack.Decoder(
    tuple[_Natural, list[tuple[_Natural, str | None]], _Natural, list[_Natural], _Natural, list[str]]
).decode
_decode_answer: Final = msgspec.msgpack.Decoder(dict[str, Any]).decode
_decode_told: Final = msgspec.msgpack.Decoder(tuple[_Natural, _Natural, _Natural, Any]).decode
_FOUR_FIELDS: Final = wire.array_head(4)
_SIX_FIELDS: Final = wire.array_head(6)
_decode_number: Final = msgspec.msgpack.Decoder(tuple[_Natural]).decode
_decode_imported: Final = decoder(links.ImportedFrame)
_decode_peers: Final = decoder(links.PeersFrame)


class Inside(NamedTuple):
    """What is in the only batch of messages that are carried over unopened (`wire.CLASS_...`)."""

    classes: int
    #: All of them, and perhaps some more.
    topics: list[str]


class Passed(NamedTuple):
    """Messages to carry over: rows and batch of each part, as they came; before them `dropped` were discarded."""

    parts: list[tuple[int, bytes]]
    rows: int
    size_bytes: int
    is_unsorted: bool
    dropped: int
    #: Indices of deliver-to-one rows for which the other node has to choose a client.
    opened: list[int]
    #: Classes and topics of the rows, if the router said them.
    inside: Inside | None = None


class Exported(NamedTuple):
    """What the node wants: a piece of the snapshot, its end, or changes (`wire.EXPORTS_...`)."""

    kind: int
    entries: Entries


class Imported(NamedTuple):
    """What was told is in force; `is_complete` once a whole snapshot is."""

    is_complete: bool


class Spooled(NamedTuple):
    """Messages of a flow, unopened: what the parts are, and their batches."""

    flow: int
    parts: list[Any]
    batches: list[bytes]


class Settled(NamedTuple):
    """What became of messages of a producer; with a code it is over."""

    producer: int
    upto: int
    nacks: list[tuple[int, int, str]]
    code: int


class Told(NamedTuple):
    """Something happened to a flow (`wire.FLOW_...`)."""

    flow: int
    event: int
    code: int


class Reported(NamedTuple):
    """The report of the controller of the node, for that of the other one."""

    report: bytes


class LinkSession(ClientSession):
    """One connection of a link, without the connection."""

    window_pieces = 8

    def __init__(self, hello: Hello, now: float) -> None:
        self.window: Final = EgressWindow(WINDOW_MESSAGES, wire.LINK_BYTES)
        super().__init__(hello, self.window, now)
        #: Kinds of the IMPORTS that are not answered, the oldest first; at most IMPORTS_PENDING_MAX.
        self._pending: deque[int] = deque()
        self._next_import = 1
        #: How long the PING took that was answered last; None before the first.
        self._lag_s: float | None = None
        #: The PING whose answer is waited for, and when it was sent; those behind it, sent meanwhile, are not measured.
        self._measured: tuple[int, float] | None = None

    def lag_ms(self, now: float) -> float | None:
        """Give how long an answer of the router takes, behind all that is on its way; one that is missing grows."""
        waiting_s = 0.0 if self._measured is None else now - self._measured[1]
        lag_s = waiting_s if self._lag_s is None else max(waiting_s, self._lag_s)
        return round(lag_s * 1000, 3) if lag_s else None

    def tick(self, now: float) -> list[Event]:
        """Keep the connection alive, as a client does, and measure what a PING takes."""
        before = self._last_ping
        events = super().tick(now)
        if self._last_ping > before and self._measured is None:
            self._measured = self._last_ping, now
        return events

    def leave_for(self, error: AngariumError | None) -> None:
        """Say BYE, with the reason if there is one."""
        if self.state is State.OPEN and error is not None:
            self._enter(State.LEAVING)
            self._send(wire.BYE, wire.pack((error.code, error.detail[:REASON_MAX])))
        else:
            self.leave()

    def report(self, report: bytes) -> None:
        """Hand over what the controller of the other node tells."""
        if self.state is State.OPEN:
            self._send(wire.PEERS, encode(links.PeersFrame(report)))

    def can_tell(self) -> bool:
        """Tell whether another IMPORTS may be sent."""
        return self.state is State.OPEN and len(self._pending) < IMPORTS_PENDING_MAX

    def tell(self, kind: int, entries: Entries) -> None:
        """Tell the router what the other side wants; the caller has asked `can_tell`."""
        assert self.can_tell(), "too many imports"
        self._pending.append(kind)
        self._send(wire.IMPORTS, encode(links.ImportsFrame(self._next_import, kind, entries)))
        self._next_import += 1

    def passed_on(self, rows: int, size_bytes: int) -> None:
        """Messages have left for the other side: there is room for more."""
        self.window.release(rows, size_bytes)
        self.renew_credit()

    def ask(
        self,
        operation: str,
        arguments: dict[str, Any],
        done: Callable[[dict[str, Any]], None],
        refused: Callable[[], None],
    ) -> None:
        """Ask for an operation; `done` is told its value."""

        def answered(value: dict[str, Any] | None) -> None:
            if value is None:
                refused()
            else:
                done(value)

        self.guaranteed.ask(operation, arguments, _decode_answer, answered)

    def publish_spooled(self, batch: Round, producer: int, first: int) -> None:
        """Send a round of a producer; row index `i` has the sequence `first + i`."""
        self._publish(batch, 0, flush=False, tail=(producer, first))

    def settle(self, flow: int, outcome: int, ranges: list[tuple[int, int, int]]) -> None:
        """Say what became of messages of a flow."""
        if self.state is State.OPEN and ranges:
            self._send(wire.SETTLE, wire.pack((flow, outcome, ranges)))

    def grant(self, flow: int, messages: int, size_bytes: int) -> None:
        """Grant totals to a flow."""
        self._send(wire.FLOW_CREDIT, wire.pack((flow, messages, size_bytes)))

    def _on_spooled(self, frames: list[bytes]) -> list[Event]:
        flow, parts = read_messages(frames)
        return _events(Spooled(flow, parts, frames[2:]))

    def _on_settled(self, frames: list[bytes]) -> list[Event]:
        acked: Acked = header(decode_acked, frames, parts=0)
        return _events(Settled(acked.producer, acked.upto, acked.nacks, acked.code))

    def _on_told(self, frames: list[bytes]) -> list[Event]:
        flow, event, code, _ = header(_decode_told, frames, parts=0)
        return _events(Told(flow, event, code))

    def publish_open(self, batch: Round, opened: list[int], inside: Inside | None = None) -> None:
        """Send a round, with the indices of rows for which the router has to choose; as `publish` otherwise.

        Args:
            batch: the round.
            opened: these indices.
            inside: what is in its only batch, if that is known.
        """
        tail: tuple[Any, ...] = (opened,) if opened else ()
        self._publish(batch, batch.rows, flush=False, tail=tail if inside is None else (opened, *inside))

    def _on_raw_deliver(self, frames: list[bytes]) -> list[Event]:
        opened: list[int] = []
        inside: Inside | None = None
        if frames[1].startswith(_SIX_FIELDS):
            flags, heads, dropped, opened, *described = header(_decode_described_deliver, frames, parts=1)
            inside = Inside(*described)
        elif frames[1].startswith(_FOUR_FIELDS):
            flags, heads, dropped, opened = header(_decode_open_deliver, frames, parts=None)
            if len(heads) != len(frames) - 2:
                raise malformed(f"{len(frames) - 2} batches for {len(heads)} parts")
        else:
            flags, heads, dropped = read_deliver(frames)
        parts = [(count, batch) for (count, _), batch in zip(heads, frames[2:], strict=True)]
        rows = sum(count for count, _ in parts)
        size_bytes = sum(len(batch) for _, batch in parts)
        self.count_received(rows, size_bytes)
        is_unsorted = flags & wire.DELIVER_UNSORTED != 0
        return _events(Passed(parts, rows, size_bytes, is_unsorted, dropped, opened, inside))

    def _on_exports(self, frames: list[bytes]) -> list[Event]:
        exports = header(_decode_exports, frames, parts=0)
        return _events(Exported(exports.kind, exports.entries))

    def _on_report(self, frames: list[bytes]) -> list[Event]:
        return _events(Reported(header(_decode_peers, frames, parts=0).report))

    def _on_pong(self, frames: list[bytes]) -> list[Event]:
        (number,) = header(_decode_number, frames, parts=0)
        if self._measured is not None and number == self._measured[0]:
            self._lag_s = self._received_at - self._measured[1]
            self._measured = None
        return []

    def _on_imported(self, frames: list[bytes]) -> list[Event]:
        header(_decode_imported, frames, parts=0)
        kind = self._pending.popleft() if self._pending else wire.EXPORTS_CHANGES
        return _events(Imported(kind == wire.EXPORTS_COMPLETE))


def _events(event: Passed | Exported | Imported | Spooled | Settled | Told | Reported) -> list[Event]:
    """Give an event among those of a client: the channel, which reads them, knows more kinds."""
    return cast("list[Event]", [event])


_MORE: Final[dict[bytes, Any]] = {
    wire.DELIVER: LinkSession._on_raw_deliver,
    wire.EXPORTS: LinkSession._on_exports,
    wire.IMPORTED: LinkSession._on_imported,
    wire.MESSAGES: LinkSession._on_spooled,
    wire.ACKED: LinkSession._on_settled,
    wire.INDICATION: LinkSession._on_told,
    wire.PEERS: LinkSession._on_report,
    wire.PONG: LinkSession._on_pong,
}
LinkSession.handlers = {
    state: {**known, **_MORE} if state is not State.GREETING else known
    for state, known in ClientSession.handlers.items()
}
