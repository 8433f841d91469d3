"""What requests take from a queue: messages on lease, each with a receipt, until they are settled or the lease is over.

A client has one flow for a queue, however many requests wait for its messages. The flow has credit for as many messages
as they ask for, so nothing is taken from other consumers that nobody here wants; what came too late for its request
waits a moment for the next one, and then fails, as what was leased and not settled does. So the rules of the queue
decide what comes of it. Without requests and leases the flow is unbound.

No I/O; time is a parameter.
"""

from __future__ import annotations

import secrets
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from angarium import errors, wire
from angarium.client.protocol.flow_window import FlowWindow, spool_size
from angarium.errors import error_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium.client.protocol.events import Arrived, Indicated
    from angarium.client.protocol.messages import Range
    from angarium.errors import AngariumError
    from angarium.message import Row
    from gateway.attached import Attached

#: Of one queue a client has so many messages on lease, in number and in bytes.
LEASED_MAX: Final = 1_000
LEASED_BYTES_MAX: Final = 8 << 20
#: Requests of a client that wait for messages of a queue.
RECEIVERS_MAX: Final = 100
#: What nobody takes who asked for it goes back after so long, as if it had never come.
HELD_S: Final = 5.0
#: A flow without requests, leases and unused credit stays bound for so long: the next request is mostly near.
LINGER_S: Final = 5.0
OUTCOMES: Final = {
    "accepted": wire.OUTCOME_ACCEPTED,
    "failed": wire.OUTCOME_FAILED,
    "rejected": wire.OUTCOME_REJECTED,
}


#: Whose a receipt is: Message VPN, username, queue.
Owner: TypeAlias = tuple[str, str, str]


class Taken(NamedTuple):
    """A message that a request has got."""

    receipt: str
    row: Row
    #: Earlier attempts to deliver it.
    attempts: int
    stored_ms: int


class Received(Protocol):
    """Is told what a request has got."""

    def __call__(self, taken: Sequence[Taken], error: AngariumError | None, /) -> None:
        """These came; or nothing will."""


class Receiver(NamedTuple):
    """A request that waits for messages."""

    most: int
    lease_s: float
    done: Received


class Lease:
    """A message on lease; or one that waits for a request."""

    __slots__ = ("attempts", "partition", "position", "reader", "receipt", "row", "stored_ms", "until")

    def __init__(self, reader: Reader, partition: int, position: int, row: Row, until: float) -> None:
        self.reader = reader
        self.partition, self.position, self.row = partition, position, row
        self.attempts = self.stored_ms = 0
        self.receipt = ""
        #: When it fails.
        self.until = until


class Receipts:
    """The leases of all clients, by receipt."""

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}

    def add(self, lease: Lease) -> str:
        """Give a new lease its receipt."""
        lease.receipt = secrets.token_urlsafe(12)
        self._leases[lease.receipt] = lease
        return lease.receipt

    def remove(self, lease: Lease) -> None:
        """Know a lease no more."""
        self._leases.pop(lease.receipt, None)

    def extend(self, receipt: str, until: float) -> bool:
        """Have a lease last until then; false if it is over."""
        if lease := self._leases.get(receipt):
            lease.until = until
        return lease is not None

    def settle(self, receipt: str, outcome: int, now: float) -> None:
        """Be done with a message, if it is on lease."""
        if lease := self._leases.get(receipt):
            lease.reader.settle(lease, outcome, now)

    def settle_all(self, receipts: Sequence[str], owner: Owner, outcome: int, now: float) -> list[str]:
        """Be done with messages of somebody; gives the receipts of those that are not, or no more, on lease to him."""
        unknown = []
        for receipt in receipts:
            lease = self._leases.get(receipt)
            if lease is None or lease.reader.owner != owner:
                unknown.append(receipt)
            else:
                lease.reader.settle(lease, outcome, now)
        return unknown

    def __len__(self) -> int:
        """Count them."""
        return len(self._leases)


class Reader:
    """One queue, as one client reads it."""

    def __init__(self, attached: Attached, owner: Owner, receipts: Receipts) -> None:
        self._attached = attached
        self._queue = owner[2]
        self._receipts = receipts
        self.owner: Final = owner
        self._window: FlowWindow | None = None
        #: Requests that wait, the oldest first; messages without one; and those on lease, by receipt.
        self._waiting: deque[Receiver] = deque()
        self._held: deque[Lease] = deque()
        self._leases: dict[str, Lease] = {}
        #: Since when nothing of that is there.
        self._idle_since = 0.0
        #: Whether the flow is unbound as soon as nothing is: the next request has another client.
        self.is_last = False

    # What requests say.

    def receive(self, receiver: Receiver, now: float) -> None:
        """Tell a request as soon as there are messages; the caller has asked `is_full`."""
        self._waiting.append(receiver)
        if self._window is None:
            self._bind()
        self._serve(now)
        self._grant()

    @property
    def is_full(self) -> bool:
        """Whether one more request is too many."""
        return len(self._waiting) >= RECEIVERS_MAX

    def give_up(self, receiver: Receiver, now: float) -> None:
        """Have a request wait no more."""
        if receiver in self._waiting:
            self._waiting.remove(receiver)
        self._note_idle(now)

    def settle(self, lease: Lease, outcome: int, now: float) -> None:
        """Be done with a message."""
        del self._leases[lease.receipt]
        self._receipts.remove(lease)
        self._say(lease, outcome)
        self._note_idle(now)

    # The flow.

    def _bind(self) -> None:
        window = self._window = FlowWindow(LEASED_MAX, LEASED_BYTES_MAX, self._wanted)

        def bound(_value: Any, error: AngariumError | None, _now: float) -> None:
            if error is not None and window is self._window:
                self.end(error)

        self._attached.bind(window, {"name": self._queue}, bound)

    @property
    def _wanted(self) -> int:
        return sum(receiver.most for receiver in self._waiting)

    def _grant(self) -> None:
        """Have credit for what requests ask for."""
        window = self._window
        if window is not None:
            more = self._wanted - (window.limit - window.received_messages)
            if more > 0:
                window.limit += more
                self._attached.renew(window)

    def take(self, event: Arrived, now: float) -> None:
        """Hand over what came."""
        if event.window is not self._window:
            return
        for delivery in event.deliveries:
            counts = delivery.counts
            for at, (position, row) in enumerate(zip(delivery.positions, delivery.rows, strict=True)):
                lease = Lease(self, delivery.partition, position, row, now + HELD_S)
                lease.attempts = 0 if counts is None else counts[at]
                lease.stored_ms = delivery.stored_ms(at)
                self._held.append(lease)
        self._serve(now)

    def _serve(self, now: float) -> None:
        while self._waiting and self._held:
            receiver = self._waiting.popleft()
            taken: list[Taken] = []
            while self._held and len(taken) < receiver.most:
                lease = self._held.popleft()
                lease.until = now + receiver.lease_s
                self._leases[self._receipts.add(lease)] = lease
                taken.append(Taken(lease.receipt, lease.row, lease.attempts, lease.stored_ms))
            receiver.done(taken, None)

    def _say(self, lease: Lease, outcome: int) -> None:
        window = self._window
        assert window is not None
        self._attached.settle(window, lease.partition, lease.position, outcome)
        window.take(1, spool_size((lease.row,)))
        self._attached.renew(window)

    def indicated(self, event: Indicated, now: float) -> None:
        """Take note that the flow is over, or has other partitions."""
        if event.window is not self._window:
            return
        if event.event == wire.FLOW_CLOSED:
            self.end(error_for(event.code or errors.HOME_NOT_READY, event.detail))
        elif event.event == wire.FLOW_PARTITIONS:
            self._forget({*event.partitions}, now)
        elif event.event == wire.FLOW_LEAVING:
            leaving = [one for one in self._held if one.partition in event.partitions]
            self._held = deque(one for one in self._held if one.partition not in event.partitions)
            for one in leaving:
                self._say(one, wire.OUTCOME_RELEASED)
            self._note_idle(now)

    def _forget(self, partitions: set[int], now: float) -> None:
        """Drop what is of other partitions than these: it is delivered elsewhere."""
        window = self._window
        assert window is not None
        for lease in [
            one for one in (*self._held, *self._leases.values()) if one.partition not in partitions
        ]:
            self._leases.pop(lease.receipt, None)
            self._receipts.remove(lease)
            window.take(1, spool_size((lease.row,)))
        self._held = deque(one for one in self._held if one.partition in partitions)
        self._attached.renew(window)
        self._note_idle(now)

    def end(self, error: AngariumError) -> None:
        """Be without a flow: what was on lease is the queue's again."""
        self._window = None
        for lease in self._leases.values():
            self._receipts.remove(lease)
        self._leases.clear()
        self._held.clear()
        self.wait_no_more(error)

    def wait_no_more(self, error: AngariumError) -> None:
        """Tell the requests that wait why nothing comes."""
        waiting, self._waiting = self._waiting, deque()
        for receiver in waiting:
            receiver.done((), error)

    # Time.

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits, and nothing is on lease."""
        return not (self._waiting or self._leases or self._held)

    @property
    def is_bound(self) -> bool:
        """Whether it has a flow, or is about to."""
        return self._window is not None

    def _note_idle(self, now: float) -> None:
        if self.is_idle:
            self._idle_since = now

    def tick(self, now: float) -> None:
        """Have fail what nobody settles, and unbind the flow if nobody needs it."""
        for lease in [one for one in self._leases.values() if now >= one.until]:
            self.settle(lease, wire.OUTCOME_FAILED, now)
        window = self._window
        if window is None:
            return
        if self._held and now >= self._held[0].until and not self._leases:
            self._attached.unbind(window, [_place(one) for one in self._held])
            self._held.clear()
            self._window = None
            return
        while self._held and now >= self._held[0].until:
            self._say(self._held.popleft(), wire.OUTCOME_RELEASED)
            self._note_idle(now)
        if not self.is_idle:
            return
        is_granted = window.limit > window.received_messages
        if is_granted or self.is_last or now - self._idle_since >= LINGER_S:
            self._attached.unbind(window)
            self._window = None

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert self._window is not None or self.is_idle
        assert not (self._waiting and self._held)
        assert all(receipt == lease.receipt for receipt, lease in self._leases.items())
        if self._window is not None:
            self._window.validate()
            assert self._window.held_messages == len(self._leases) + len(self._held)


def _place(lease: Lease) -> Range:
    return lease.partition, lease.position, lease.position
