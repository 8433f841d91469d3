"""The guaranteed half of a session: operations, acknowledgements, flows; frames in, events out.

An `GuaranteedProtocol` belongs to one `angarium.client.protocol.session.ClientSession`, which gives it the frames,
sends what it wants to send, and closes the session when one of them breaks the protocol. What is here knows which
numbers are in use: a frame about a number that is not is a breach. A number is in use from the ANSWER that gave it to
the ANSWER that took it, or until the node said that it is over.

What goes on over connections is elsewhere: the rows of a producer in `SendWindow`, the credit of a flow in
`FlowWindow`, which are told here directly, so that what they count can be checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec

from angarium import errors, wire
from angarium.client.protocol import answers
from angarium.client.protocol.events import Acknowledged, Arrived, Event, Indicated, Replied
from angarium.client.protocol.flow_window import spool_size
from angarium.client.protocol.messages import GuaranteedDelivery
from angarium.message import unpack_rows
from angarium.wire import header, malformed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from angarium.client.protocol.flow_window import FlowWindow
    from angarium.client.protocol.messages import Range
    from angarium.client.protocol.send_window import SendWindow

#: Operations that may wait for their answer; a node takes 256.
OPERATIONS_PENDING_MAX: Final = 64
#: Ranges in one SETTLE: 22 bytes each at most. A node takes 4,096.
SETTLE_RANGES_MAX: Final = 1_000

_Natural = Annotated[int, msgspec.Meta(ge=0)]
_Number = Annotated[int, msgspec.Meta(ge=1)]
_Partition = Annotated[int, msgspec.Meta(ge=0, lt=wire.MAX_PARTITIONS)]
_Origin = tuple[str, str, str]
#: Partition, rows, runs of positions, earlier attempts, when stored (of all or of each), where from.
_Part = tuple[
    _Partition,
    _Number,
    list[tuple[_Number, _Number]],
    list[_Natural] | None,
    _Natural | list[_Natural],
    list[_Origin | None] | None,
]
_Nack = tuple[_Number, _Number, str]


class _Asked(NamedTuple):
    """An operation on its way."""

    decode: Callable[[bytes], Any]
    #: Called with the value if the operation was carried out, with None if it was refused.
    done: Callable[[Any], None]
    #: Batches behind the header of the answer.
    batches: int


class GuaranteedProtocol:
    """Operations, producers and flows of one session."""

    def __init__(self, send: Callable[[bytes, bytes], None]) -> None:
        """Know nothing; `send` takes an operation and its header."""
        self._send = send
        #: By number of the request, at most OPERATIONS_PENDING_MAX.
        self._asked: dict[int, _Asked] = {}
        self._last_request = 0
        #: Whether the node takes back what no application has seen.
        self.takes_released = False
        #: The open producers, by number.
        self._producers: dict[int, SendWindow] = {}
        #: The bound flows, by number.
        self._flows: dict[int, FlowWindow] = {}

    # Out.

    def can_ask(self) -> bool:
        """Tell whether another operation may be asked for."""
        return len(self._asked) < OPERATIONS_PENDING_MAX

    def ask(
        self,
        operation: str,
        arguments: dict[str, Any],
        decode: Callable[[bytes], Any] = answers.decode_done,
        done: Callable[[Any], None] = lambda _: None,
        batches: int = 0,
    ) -> int:
        """Ask for an operation, give the number of the request; `Replied` follows.

        Args:
            operation: its name.
            arguments: by name.
            decode: the typed decoder of the value.
            done: told the value before the event, None if it was refused.
            batches: how many the answer has; then its value is a pair of what is decoded, and the batches.

        Raises:
            InvalidRequestError: an argument is nothing that can be sent (INVALID_ARGUMENT).
        """
        assert self.can_ask(), "an operation too many"
        number = self._last_request + 1
        try:
            asked = wire.pack((number, operation, arguments))
        except (TypeError, ValueError, OverflowError) as error:
            raise errors.invalid(f"{operation}: an argument cannot be sent: {error}") from None
        self._last_request = number
        self._asked[number] = _Asked(decode, done, batches)
        self._send(wire.REQUEST, asked)
        return number

    def open_producer(self, window: SendWindow, arguments: dict[str, Any]) -> int:
        """Ask for a producer; the window is `opened` when the answer comes."""

        def opened(value: answers.ProducerOpened | None) -> None:
            if value is not None:
                if value.producer in self._producers:
                    raise malformed(f"producer {value.producer} is open already")
                self._producers[value.producer] = window
                window.opened(value.producer, value.window, value.last_sequence)

        return self.ask("producer.open", arguments, answers.decode_producer, opened)

    def close_producer(self, handle: int, *, forget: bool) -> int:
        """Ask for the end of a producer; acknowledgements may come before the answer."""
        arguments = {"producer": handle, "forget": forget}
        return self.ask("producer.close", arguments, done=lambda _: self._drop_producer(handle))

    def bind(
        self, window: FlowWindow, arguments: dict[str, Any], on_bound: Callable[[answers.FlowBound], None]
    ) -> int:
        """Ask for a flow with the credit that the window grants; `on_bound` comes before its first message."""

        def bound(value: answers.FlowBound | None) -> None:
            if value is not None:
                if value.flow in self._flows:
                    raise malformed(f"flow {value.flow} is bound already")
                self._flows[value.flow] = window
                window.flow = value.flow
                on_bound(value)

        credit = {"messages": window.granted_messages, "bytes": window.granted_bytes}
        return self.ask("flow.bind", {**arguments, **credit}, answers.decode_flow, bound)

    def unbind(self, flow: int, unseen: Sequence[Range] = ()) -> int:
        """Ask for the end of a flow; messages may come before the answer.

        What its application has not seen is given back, to a node that takes it: it was not tried.
        """
        arguments: dict[str, Any] = {"flow": flow}
        if self.takes_released and unseen:
            arguments["released"] = unseen[:SETTLE_RANGES_MAX]
        return self.ask("flow.unbind", arguments, done=lambda _: self._drop_flow(flow))

    def renew(self, window: FlowWindow) -> bool:
        """Grant what there is room for if it is half of a window; tell whether a frame is to be sent."""
        totals = window.renew() if window.flow in self._flows else None
        if totals is not None:
            self._send(wire.FLOW_CREDIT, wire.pack((window.flow, *totals)))
        return totals is not None

    def settle(self, flow: int, outcome: int, ranges: Sequence[Range]) -> None:
        """Say what became of messages of a flow that is bound."""
        assert flow in self._flows, f"flow {flow} is not bound"
        for start in range(0, len(ranges), SETTLE_RANGES_MAX):
            some = ranges[start : start + SETTLE_RANGES_MAX]
            self._send(wire.SETTLE, wire.pack((flow, outcome, some)))

    # In.

    def on_answer(self, frames: list[bytes]) -> list[Event]:
        """Take the answer to an operation."""
        number, code, value = header(_decode_answer, frames, parts=None)
        asked = self._asked.pop(number, None)
        if asked is None:
            raise malformed(f"an answer to request {number}, which does not wait for one")
        if len(frames) - 2 != (0 if code else asked.batches):
            raise malformed(f"an answer with {len(frames) - 2} batches")
        if code:
            error = errors.error_for(code, wire.decode_header(_decode_text, bytes(value)))
            asked.done(None)
            return [Replied(number, None, error)]
        decoded = wire.decode_header(asked.decode, bytes(value))
        if asked.batches:
            decoded = decoded, frames[2:]
        asked.done(decoded)
        return [Replied(number, decoded, None)]

    def on_acked(self, frames: list[bytes]) -> list[Event]:
        """Take the acknowledgement of a producer's messages."""
        acked: Acked = header(decode_acked, frames, parts=0)
        handle, code = acked.producer, acked.code
        window = self._producers.get(handle)
        if window is None:
            raise malformed(f"an acknowledgement for producer {handle}, which is not open")
        is_current = window.handle == handle
        if code:
            self._drop_producer(handle)
        if not is_current:
            return []  # It was opened a second time on this session; nothing was sent under the first number.
        unroutable = [range(first, first + count) for first, count in acked.unroutable]
        refused = window.acknowledge(acked.upto, acked.nacks, unroutable)
        error = errors.error_for(code, "another session opened the producer") if code else None
        return [Acknowledged(window, acked.upto, refused, unroutable, error)]

    def on_messages(self, frames: list[bytes]) -> list[Event]:
        """Take messages of a flow."""
        flow, parts = header(_decode_messages, frames, parts=None)
        window = self._flows.get(flow)
        if window is None:
            raise malformed(f"messages of flow {flow}, which is not bound")
        if len(parts) != len(frames) - 2:
            raise malformed(f"{len(frames) - 2} batches for {len(parts)} parts")
        deliveries = [_delivery(part, batch, window) for part, batch in zip(parts, frames[2:], strict=True)]
        messages = sum([len(delivery.rows) for delivery in deliveries])
        window.receive(messages, sum([delivery.size_bytes for delivery in deliveries]))
        return [Arrived(window, deliveries)]

    def on_indication(self, frames: list[bytes]) -> list[Event]:
        """Take what happened to a flow."""
        flow, event, code, detail = header(_decode_indication, frames, parts=0)
        window = self._flows.get(flow)
        if window is None:
            raise malformed(f"an indication for flow {flow}, which is not bound")
        is_list = isinstance(detail, list)
        if is_list != (event in (wire.FLOW_PARTITIONS, wire.FLOW_LEAVING)):
            raise malformed(f"indication {event} with the detail {detail!r:.80}")
        if event == wire.FLOW_CLOSED:
            self._drop_flow(flow)
        text, partitions = ("", detail) if is_list else (detail or "", [])
        return [Indicated(window, event, code, text, partitions)]

    def is_idle(self) -> bool:
        """Tell whether nothing is open, and no answer is waited for."""
        return not (self._asked or self._producers or self._flows)

    def clear(self) -> None:
        """Forget everything: the session is over."""
        self._asked.clear()
        for handle in list(self._producers):
            self._drop_producer(handle)
        for flow in list(self._flows):
            self._drop_flow(flow)

    def _drop_producer(self, handle: int) -> None:
        window = self._producers.pop(handle, None)
        if window is not None and window.handle == handle:
            window.lose()

    def _drop_flow(self, flow: int) -> None:
        window = self._flows.pop(flow, None)
        if window is not None:
            window.flow = 0

    def validate(self) -> None:
        """Check the sentences above."""
        assert len(self._asked) <= OPERATIONS_PENDING_MAX
        for producer in self._producers.values():
            producer.validate()
        for flow, window in self._flows.items():
            assert window.flow == flow
            window.validate()


def _delivery(part: Any, batch: bytes, window: FlowWindow) -> GuaranteedDelivery:
    """Open one part of MESSAGES.

    Raises:
        InvalidRequestError: its lists do not fit its batch (40001).
    """
    partition, count, runs, counts, stored_ms, origins = part
    rows = unpack_rows(batch)
    if len(rows) != count:
        raise malformed(f"a batch of {len(rows)} rows, announced were {count}")
    if sum([messages for _, messages in runs]) != count:
        raise malformed(f"positions {runs!r:.80} for {count} rows")
    per_row = (counts, origins, stored_ms if isinstance(stored_ms, list) else None)
    if any(one is not None and len(one) != count for one in per_row):
        raise malformed("a list of another length than the batch")
    return GuaranteedDelivery(window, partition, rows, runs, counts, stored_ms, origins, spool_size(rows))


class Acked(msgspec.Struct, frozen=True, array_like=True):
    """The header of ACKED: what became of messages of a producer."""

    producer: _Number
    #: All up to this sequence are settled: stored, but for those that are refused.
    upto: _Natural
    #: Sequence, code and detail.
    nacks: list[_Nack]
    #: Why nothing more of this producer is taken; 0: it is.
    code: _Natural
    #: First and number of those that no endpoint took; a node of 0.1.0 does not say.
    unroutable: list[tuple[_Number, _Number]] = msgspec.field(default_factory=list)


_decode_answer: Final = msgspec.msgpack.Decoder(tuple[_Natural, _Natural, msgspec.Raw]).decode
_decode_text: Final = msgspec.msgpack.Decoder(str).decode
decode_acked: Final = msgspec.msgpack.Decoder(Acked).decode
_decode_messages: Final = msgspec.msgpack.Decoder(tuple[_Number, list[_Part]]).decode
_decode_indication: Final = msgspec.msgpack.Decoder(
    tuple[
        _Number,
        Annotated[int, msgspec.Meta(ge=wire.FLOW_CLOSED, le=wire.FLOW_LEAVING)],
        _Natural,
        str | list[_Partition] | None,
    ]
).decode
