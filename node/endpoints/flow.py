"""A flow: one consumer or browser bound to a lane, its credit and what it has not settled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from node.backlog.positions import PositionSet

if TYPE_CHECKING:
    from collections.abc import Callable

    from node.backlog.segment import Segment
    from node.endpoints.effort import Payer
    from node.endpoints.reader import Reader


class FlowEvent(NamedTuple):
    """Something to tell about a flow: its number, `wire.FLOW_...`, an error code or 0, and what happened."""

    flow: int
    event: int
    code: int
    detail: str


class FlowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a bind may ask for besides selector and credit."""

    #: Number of the client whose messages are not for this flow (`Segment.publishers`); 0: all are.
    no_local: int = 0
    #: Lowers the limit of the endpoint (R192); never raises it.
    max_unacked: int | None = None
    #: The flow existed before its home was restarted, so it may settle what it got then.
    resume: bool = False
    #: Name of the client, and its username.
    client: str = ""
    username: str = ""
    #: Messages come by rising positions, whatever their priorities and delays.
    in_order: bool = False
    #: Whether the client wants to know that it is active; lanes always tell, the router filters.
    active_indication: bool = False
    #: Of a browser that reads a range: the positions from `first` to before `end`, and the reader group whose they
    #: are; without a group it sees what is there.
    group: str = ""
    first: int = 0
    end: int = -1


def options_from(value: dict[str, Any]) -> FlowOptions:
    """Give the options of a bind; what is of another type counts as not given."""
    known: dict[str, Any] = {}
    for field in msgspec.structs.fields(FlowOptions):
        given = value.get(field.name)
        if isinstance(given, type(field.default)) or (field.name == "max_unacked" and type(given) is int):
            known[field.name] = given
    return FlowOptions(**known)


class Flow:
    """One consumer or browser of a lane. Credits are totals since the bind."""

    __slots__ = (
        "active",
        "bytes_granted",
        "bytes_sent",
        "closing_at",
        "cursor",
        "end",
        "id",
        "is_browser",
        "is_willing",
        "matches",
        "messages_granted",
        "messages_sent",
        "options",
        "out",
        "payer",
        "reader",
        "selector",
        "unacked_max",
    )

    def __init__(
        self,
        flow_id: int,
        *,
        is_browser: bool,
        selector: str | None,
        matches: Callable[[Segment, int], bool] | None,
        options: FlowOptions,
        payer: Payer | None = None,
    ) -> None:
        self.id = flow_id
        self.is_browser = is_browser
        #: Text of the selector; None for all messages.
        self.selector = selector
        #: Tells whether a message is for this flow; None: every one is.
        self.matches = matches
        self.options = options
        #: Who pays for what its selector examines; None: it has none.
        self.payer = payer
        #: It never gets more messages than granted.
        self.messages_granted = 0
        self.messages_sent = 0
        #: It gets more bytes than granted by one message at most.
        self.bytes_granted = 0
        self.bytes_sent = 0
        #: Delivered messages that are not settled; at most `unacked_max`, none of a browser.
        self.out = PositionSet()
        #: At so many delivery stops (R192).
        self.unacked_max = 0
        #: Whether it is its turn; of an exclusive lane only one consumer is active.
        self.active = False
        #: Set while it is handed off: it gets nothing more, and is over at this monotonic time at the latest.
        self.closing_at: float | None = None
        #: Of an active consumer.
        self.reader: Reader[Flow] | None = None
        #: Whether it is in `reader.willing`; every active consumer with room is.
        self.is_willing = False
        #: Of a browser: everything below it was shown.
        self.cursor = 0
        #: Of a browser that reads a range: it is over when everything below this position was shown.
        self.end: int | None = None

    def grant(self, messages: int, bytes_: int) -> None:
        """Raise the credit to new totals; they never fall."""
        self.messages_granted = max(self.messages_granted, messages)
        self.bytes_granted = max(self.bytes_granted, bytes_)

    def room(self) -> int:
        """Give how many messages it may get now."""
        if self.bytes_sent >= self.bytes_granted or self.closing_at is not None:
            return 0
        granted = self.messages_granted - self.messages_sent
        return granted if self.is_browser else max(min(granted, self.unacked_max - self.out.count), 0)

    def room_bytes(self) -> int:
        """Give how many bytes it may get now; the last message may be larger than the rest of them."""
        return self.bytes_granted - self.bytes_sent

    def sent(self, messages: int, size: int) -> None:
        """Take note of what was handed out."""
        self.messages_sent += messages
        self.bytes_sent += size

    def limit_unacked(self, endpoint_max: int) -> None:
        """Apply the limit of the endpoint."""
        own = self.options.max_unacked
        self.unacked_max = endpoint_max if own is None or own < 1 else min(endpoint_max, own)

    def stats(self) -> dict[str, Any]:
        """Give what operators see of it."""
        return {
            "flow": self.id,
            "client": self.options.client,
            "browser": self.is_browser,
            "active": self.active,
            "closing": self.closing_at is not None,
            "selector": self.selector,
            "messages_sent": self.messages_sent,
            "bytes_sent": self.bytes_sent,
            "messages_room": self.room(),
            "unacked": self.out.count,
            "max_unacked": self.unacked_max,
        }

    def validate(self) -> None:
        """Check what the comments on the attributes say."""
        self.out.validate()
        assert 0 <= self.messages_sent <= self.messages_granted or not self.messages_sent
        assert not (self.is_browser and self.out.count)
        assert (self.reader is not None) == (self.active and not self.is_browser)
        if self.reader is not None:
            assert self.is_willing == (self in self.reader.willing)
            assert self.is_willing or not self.room()
