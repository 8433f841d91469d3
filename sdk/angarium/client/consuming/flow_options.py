"""What an application asks of a flow, checked, and what of it the node is told."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from angarium import errors
from angarium.client.protocol.provisioning import filters_of
from angarium.client.subscribing.callbacks import check_concurrency

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from angarium.client.consuming.attributes import AckPolicy, EndpointKind
    from angarium.client.protocol.messages import GuaranteedMessage

#: Called with each message; an `async def` is awaited.
MessageCallback: TypeAlias = (
    "Callable[[GuaranteedMessage], None] | Callable[[GuaranteedMessage], Awaitable[None]]"
)

QUEUE: Final = "queue"
TOPIC_ENDPOINT: Final = "topic-endpoint"

#: Messages that the node may send ahead of the application.
FLOW_WINDOW: Final = 255
FLOW_WINDOW_MAX: Final = 1_000_000
#: Bytes that it may send ahead.
FLOW_WINDOW_BYTES: Final = 4 << 20
#: Accepted messages are told when so much of a window is together.
ACK_THRESHOLD_PERCENT: Final = 60
#: ... or when the first of them has waited for so long. The node deletes what it is told within 20 ms; this is
#: short beside it, and 100 frames per second are nothing to it.
ACK_DELAY_MS: Final = 10
ACK_DELAY_MS_MAX: Final = 60_000
FLOW_WINDOW_BYTES_MAX: Final = 1 << 40
MAX_UNACKED_MAX: Final = 1 << 31
MAX_MESSAGES_MAX: Final = 1 << 62
POSITION_MAX: Final = 1 << 62


#: What other clients call arguments of `consume`.
_OTHER_WORDS: Final = {
    "auto_ack": "ack",
    "no_ack": "ack",
    "filter": "selector",
    "max_in_flight": "window",
    "prefetch": "window",
    "prefetch_count": "window",
    "timeout": "timeout_s",
}


class RangeOptions(NamedTuple):
    """What is read for a reader group: planned positions of one partition, from `first` to before `end`."""

    group: str
    partition: int
    first: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowOptions:
    """The arguments of `Client.consume`, which explains each."""

    name: str
    kind: EndpointKind = QUEUE
    browse: bool = False
    range: RangeOptions | None = None
    window: int = FLOW_WINDOW
    window_bytes: int = FLOW_WINDOW_BYTES
    ack: AckPolicy = "auto"
    ack_threshold_percent: int = ACK_THRESHOLD_PERCENT
    ack_delay_ms: int = ACK_DELAY_MS
    selector: str | None = None
    no_local: bool = False
    topic: str | None = None
    temporary: bool = False
    max_unacked: int | None = None
    max_messages: int | None = None
    subscriptions: str | Sequence[str] = ()
    attributes: Mapping[str, Any] | None = None
    callback: MessageCallback | None = None
    concurrency: int = 1
    on_active: Callable[[bool], None] | None = None
    timeout_s: float

    def __post_init__(self) -> None:
        """Check the arguments.

        Raises:
            InvalidRequestError: one is out of range, or does not go with another (INVALID_ARGUMENT).
        """
        check_concurrency(self.callback, self.concurrency)
        fault = next(self._faults(), None)
        if fault is not None:
            raise errors.invalid(f"consume: {fault}")

    def _faults(self) -> Iterator[str]:
        for name, value, least, most in (
            ("window", self.window, 1, FLOW_WINDOW_MAX),
            ("window_bytes", self.window_bytes, 1, FLOW_WINDOW_BYTES_MAX),
            ("ack_threshold_percent", self.ack_threshold_percent, 1, 100),
            ("ack_delay_ms", self.ack_delay_ms, 0, ACK_DELAY_MS_MAX),
            ("max_unacked", 1 if self.max_unacked is None else self.max_unacked, 1, MAX_UNACKED_MAX),
            ("max_messages", 1 if self.max_messages is None else self.max_messages, 1, MAX_MESSAGES_MAX),
        ):
            if type(value) is not int or not least <= value <= most:
                yield f"{name} is {value!r}, from {least} to {most} is possible"
        if not isinstance(self.name, str) or not (self.name or self.temporary):
            yield f"queue is {self.name!r}, not a name"
        if self.range is not None and not all(
            type(one) is int and 0 <= one <= POSITION_MAX for one in self.range[1:]
        ):
            yield f"the range is {self.range!r}, positions and partitions are numbers from 0"
        if self.kind not in (QUEUE, TOPIC_ENDPOINT):
            yield f"kind is {self.kind!r}, not {QUEUE!r} or {TOPIC_ENDPOINT!r}"
        if self.ack not in ("auto", "manual"):
            yield f"ack is {self.ack!r}, not 'auto' or 'manual'"
        if self.topic is not None and self.kind != TOPIC_ENDPOINT:
            yield "topic is for kind='topic-endpoint'; add_queue_subscription gives a queue its topics"
        if self.subscriptions and (self.kind != QUEUE or not self.temporary):
            yield "subscriptions are for temporary=True; add_queue_subscription gives them to other queues"
        if self.attributes and not self.temporary:
            yield "attributes are for temporary=True; create_queue and create_topic_endpoint take those of others"

    @property
    def is_auto(self) -> bool:
        """Whether the flow accepts messages by itself."""
        return self.ack == "auto" and not self.browse

    @property
    def ack_delay_s(self) -> float:
        """How long an accepted message may wait until the node is told."""
        return self.ack_delay_ms / 1000

    def threshold(self, max_unacked: int | None) -> int:
        """Give how many accepted messages are told at once, with the limit of the node if it is known."""
        limits = [limit for limit in (self.window, self.max_unacked, max_unacked) if limit is not None]
        return max(min(limits) * self.ack_threshold_percent // 100, 1)

    def arguments(self, name: str) -> dict[str, Any]:
        """Give the arguments of `flow.bind` but for the credit."""
        attributes = dict(self.attributes or {})
        if self.subscriptions:
            attributes["subscriptions"] = list(filters_of(self.subscriptions))
        wanted = {} if self.range is None else {"range": self.range._asdict()}
        return {
            **wanted,
            "kind": self.kind,
            "name": name,
            "browse": self.browse,
            "selector": self.selector,
            "topic": self.topic,
            "temporary": self.temporary,
            "attributes": attributes,
            "active_indication": True,
            "no_local": self.no_local,
            "max_unacked": self.max_unacked,
        }


def consume_options(
    queue: str, callback: MessageCallback | None, arguments: Mapping[str, Any]
) -> FlowOptions:
    """Give the options of `consume`, which are refused by the names that it has.

    Raises:
        TypeError: there is no such argument; the text says which one may be meant.
        InvalidRequestError: one is illegal (INVALID_ARGUMENT).
    """
    for name in arguments:
        if name not in _ARGUMENTS:
            raise errors.unexpected("consume", name, _ARGUMENTS, _OTHER_WORDS)
    return FlowOptions(name=queue, callback=callback, **arguments)


#: The names of what `consume` takes besides queue and callback.
_ARGUMENTS: Final = [
    field.name for field in fields(FlowOptions) if field.name not in ("name", "callback", "browse", "range")
]
