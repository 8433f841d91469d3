"""What waits for the clients of a gateway who do not read fast enough: bounded for each, and for all together.

While little of what was said to a client is unsent, more is given to its connection at once. Beyond that it waits here,
and goes on when all has left. Messages that may be lost are, the oldest first: when more wait for their client than its
profile allows, and of whoever has most when all together take too much. So a slow client loses its own, and nobody else
loses anything before that has taken all there is. What may not be lost waits in its place among the others; those
who put it are bounded otherwise, and end a client for whom too much of it waits.

What comes for a client may be *held* while something older is fetched for it, which goes first: retained messages.

Decides and keeps; the connections are behind `Outlet`. Time is a parameter.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, Final, Protocol

from angarium_server.connections.door import Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Nothing more goes to a connection of which so much is unsent: beyond that the system is not any faster.
UNSENT_BYTES_MAX: Final = 64 << 10
#: A work unit of the client profile's queue depths, in bytes.
WORK_UNIT_BYTES: Final = 2048
#: What a message takes that waits, besides its bytes.
MESSAGE_BYTES: Final = 64
#: So much of what may not be lost may wait for one client, and one message whatever its size.
GUARANTEED_BYTES_MAX: Final = 4 << 20
#: When all together take too much, so large a part of what they may take is freed: to find who has most takes long.
FREED_PART: Final = 256
#: How often `tick` looks who has taken something.
LOOK_S: Final = 1.0


class Outlet(Protocol):
    """The connections of the process."""

    def send_bytes(self, connection_id: bytes, data: bytes) -> Refusal | None:
        """Have bytes leave soon; or say why they cannot."""

    def unsent(self, connection_id: bytes) -> int:
        """Count the bytes that have not left; 0 if the connection is gone."""

    def await_room(self, connection_id: bytes) -> None:
        """Have `Egress.on_room` called when all has left."""


class Receiver(Protocol):
    """A client."""

    #: Messages and bytes that wait for it here, as they are now.
    queued: tuple[int, int]

    @property
    def connection_id(self) -> bytes:
        """Its connection."""

    @property
    def queue_units(self) -> int:
        """What may wait for it, in work units."""

    @property
    def patience_s(self) -> float:
        """How long it may take nothing while something waits."""

    def count(self, name: str, amount: int = 1) -> None:
        """Count what happened to it."""

    def sent(self, data: bytes) -> bytes:
        """Give what messages are as bytes that leave now: whatever came before them has left or was lost."""


class _Queue:
    """What waits for one client. A queue may be empty until the connection has room: all was lost."""

    __slots__ = (
        "bytes",
        "first",
        "first_bytes",
        "gone",
        "guaranteed",
        "guaranteed_bytes",
        "held_at",
        "holds",
        "messages",
        "receiver",
        "since",
        "unsent",
    )

    def __init__(self, receiver: Receiver, now: float, unsent: int) -> None:
        self.receiver = receiver
        #: What may be lost, oldest first; and what it takes.
        self.messages: deque[bytes] = deque()
        self.bytes = 0
        #: So many of these have left or were lost.
        self.gone = 0
        #: What may not, oldest first, each with what `gone` is when its turn has come; and what it takes.
        self.guaranteed: deque[tuple[int, bytes]] = deque()
        self.guaranteed_bytes = 0
        #: How many hold back what is put from now on; what `gone` is when only that is left.
        self.holds = 0
        self.held_at = 0
        #: What goes before it, and its bytes.
        self.first: deque[bytes] = deque()
        self.first_bytes = 0
        #: Since when the client has taken nothing; and what was unsent when somebody looked last.
        self.since = now
        self.unsent = unsent

    def __len__(self) -> int:
        return len(self.first) + len(self.messages) + len(self.guaranteed)

    @property
    def has_next(self) -> bool:
        """Whether anything may leave now."""
        return self.gone < self.held_at or bool(self.first) or (not self.holds and len(self) > 0)

    @property
    def size(self) -> int:
        """Give what it takes of what all may take.

        What goes first is shared by clients, and whoever holds waits until it has left; it is charged if they do not.
        """
        return self.bytes + self.guaranteed_bytes + (0 if self.holds else self.first_bytes)

    def push(self, messages: Sequence[bytes]) -> int:
        """Have messages wait that may be lost; give the bytes that this takes."""
        self.messages.extend(messages)
        size = sum(map(len, messages)) + MESSAGE_BYTES * len(messages)
        self.bytes += size
        return size

    def push_guaranteed(self, data: bytes) -> int:
        """Have a message wait that may not be lost; give the bytes that this takes."""
        self.guaranteed.append((self.gone + len(self.messages), data))
        self.guaranteed_bytes += len(data) + MESSAGE_BYTES
        return len(data) + MESSAGE_BYTES

    def push_first(self, data: bytes) -> None:
        """Have bytes wait that go before what is held back."""
        self.first.append(data)
        self.first_bytes += len(data)

    def hold(self) -> None:
        """Hold back what is put from now on, once more."""
        if not self.holds and not self.first:
            self.held_at = self.gone + len(self.messages)
        self.holds += 1

    def lose_oldest(self) -> int:
        """Lose the oldest message that may be; give the bytes that this frees."""
        size = len(self.messages.popleft()) + MESSAGE_BYTES
        self.bytes -= size
        self.gone += 1
        return size

    def take(self, room: int) -> list[bytes]:
        """Take what comes next, as long as there is room before it."""
        taken: list[bytes] = []
        while room > 0 and self.has_next:
            data = self._take_next()
            taken.append(data)
            room -= len(data)
        return taken

    def _take_next(self) -> bytes:
        if self.first and self.gone >= self.held_at:
            data = self.first.popleft()
            self.first_bytes -= len(data)
        elif self.guaranteed and self.guaranteed[0][0] <= self.gone:
            data = self.guaranteed.popleft()[1]
            self.guaranteed_bytes -= len(data) + MESSAGE_BYTES
        else:
            data = self.messages.popleft()
            self.bytes -= len(data) + MESSAGE_BYTES
            self.gone += 1
        return data

    def report(self) -> None:
        """Note at the client what waits for it."""
        self.receiver.queued = len(self), self.first_bytes + self.bytes + self.guaranteed_bytes


class Egress:
    """The way out to all clients of a process."""

    def __init__(self, outlet: Outlet, bytes_max: int) -> None:
        """Hold nothing; `bytes_max` is what may wait of all clients."""
        self._outlet = outlet
        self._bytes_max = bytes_max
        #: By connection.
        self._queues: dict[bytes, _Queue] = {}
        #: What all queues take, and what those took that were dropped.
        self.bytes = self.freed_bytes = 0
        #: Whose connections had too much unsent and were dropped, since the last `tick`.
        self._blocked: list[Receiver] = []
        #: Messages that connections have got.
        self.sent = 0
        self._look_at = 0.0

    def put(self, receiver: Receiver, messages: Sequence[bytes], now: float) -> None:
        """Send messages in their order; if there is no room they wait, and the oldest are lost first."""
        queue = self._queues.get(receiver.connection_id)
        if queue is None:
            sent = self._send(receiver, messages)
            self.sent += sent
            if sent == len(messages):
                return
            messages = messages[sent:]
            queue = self._open(receiver, now)
        self.bytes += queue.push(messages)
        if queue.bytes > receiver.queue_units * WORK_UNIT_BYTES:
            self._trim(queue)
        queue.report()
        if self.bytes > self._bytes_max:
            self._relieve()

    def put_guaranteed(self, receiver: Receiver, data: bytes, now: float) -> bool:
        """Send a message that may not be lost, behind those that wait; false if too much waits, and it is not taken."""
        queue = self._queues.get(receiver.connection_id)
        if queue is None:
            if self._send(receiver, (data,)):
                self.sent += 1
                return True
            queue = self._open(receiver, now)
        elif queue.guaranteed and queue.guaranteed_bytes + len(data) > GUARANTEED_BYTES_MAX:
            return False
        self.bytes += queue.push_guaranteed(data)
        queue.report()
        if self.bytes > self._bytes_max:
            self._relieve()
        return True

    def _send(self, receiver: Receiver, messages: Sequence[bytes]) -> int:
        """Give messages to a connection while there is room; give how many of them nobody needs to keep."""
        connection_id, outlet = receiver.connection_id, self._outlet
        room = UNSENT_BYTES_MAX - outlet.unsent(connection_id)
        if room <= 0:
            return 0
        taken = 0
        for data in messages:
            taken += 1
            room -= len(data)
            if room <= 0:
                break
        data = messages[0] if taken == 1 else b"".join(messages[:taken])
        refusal = outlet.send_bytes(connection_id, receiver.sent(data))
        if refusal is None:
            return taken
        if refusal is Refusal.BLOCKED:
            self._blocked.append(receiver)
        return len(messages)

    def _open(self, receiver: Receiver, now: float) -> _Queue:
        """Begin to keep what comes for a client."""
        queue = _Queue(receiver, now, self._outlet.unsent(receiver.connection_id))
        self._queues[receiver.connection_id] = queue
        self._outlet.await_room(receiver.connection_id)
        return queue

    def _trim(self, queue: _Queue) -> None:
        """Lose what is more than a client may have; the newest stays, whatever its size."""
        bytes_max = queue.receiver.queue_units * WORK_UNIT_BYTES
        lost = 0
        while queue.bytes > bytes_max and len(queue.messages) > 1:
            self.bytes -= queue.lose_oldest()
            lost += 1
        if lost:
            queue.receiver.count("discard.transmit-congestion", lost)

    def _relieve(self) -> None:
        """Lose messages of whoever has most until there is room again for all."""
        target = self._bytes_max - self._bytes_max // FREED_PART
        fullest = [
            (-queue.bytes, number, queue)
            for number, queue in enumerate(self._queues.values())
            if queue.messages
        ]
        heapify(fullest)
        losers: dict[bytes, _Queue] = {}
        while self.bytes > target and fullest:
            _, number, queue = fullest[0]
            self.bytes -= queue.lose_oldest()
            queue.receiver.count("discard.transmit-congestion")
            losers[queue.receiver.connection_id] = queue
            if queue.messages:
                heapreplace(fullest, (-queue.bytes, number, queue))
            else:
                heappop(fullest)
        for queue in losers.values():
            queue.report()

    def hold(self, receiver: Receiver) -> None:
        """Hold back what is put for a client from now on; each call needs its `release`."""
        queue = self._queues.get(receiver.connection_id)
        if queue is None:
            unsent = self._outlet.unsent(receiver.connection_id)
            queue = self._queues[receiver.connection_id] = _Queue(receiver, self._look_at, unsent)
        queue.hold()

    def is_held(self, receiver: Receiver) -> bool:
        """Tell whether somebody holds back what is put for a client."""
        queue = self._queues.get(receiver.connection_id)
        return queue is not None and queue.holds > 0

    def put_first(self, receiver: Receiver, data: bytes, now: float) -> None:
        """Send what goes before all that is held back for a client; who holds waits until there is room for more."""
        queue = self._queues.get(receiver.connection_id)
        if queue is not None:
            assert queue.holds
            queue.push_first(data)
            self._go_on(queue, now)

    def has_room(self, receiver: Receiver) -> bool:
        """Tell whether all that goes first has left, as far as it waits here."""
        queue = self._queues.get(receiver.connection_id)
        return queue is None or not queue.first

    def release(self, receiver: Receiver, now: float) -> None:
        """Go on with what was held back for a client, if nobody holds it any more."""
        queue = self._queues.get(receiver.connection_id)
        if queue is None:
            return
        before = queue.size
        queue.holds -= 1
        self.bytes += queue.size - before
        if not queue.holds:
            self._go_on(queue, now)

    def on_room(self, connection_id: bytes, now: float) -> None:
        """Go on with a connection of which all has left."""
        queue = self._queues.get(connection_id)
        if queue is not None:
            self._go_on(queue, now)

    def _go_on(self, queue: _Queue, now: float) -> None:
        connection_id, before = queue.receiver.connection_id, queue.size
        taken = queue.take(UNSENT_BYTES_MAX - self._outlet.unsent(connection_id))
        self.sent += len(taken)
        data = b"".join(taken)
        self.bytes += queue.size - before
        refusal = self._outlet.send_bytes(connection_id, queue.receiver.sent(data)) if data else None
        if refusal is Refusal.BLOCKED:
            self._blocked.append(queue.receiver)
        if not len(queue) and not queue.holds:
            del self._queues[connection_id]
        elif refusal is None:
            queue.since, queue.unsent = now, self._outlet.unsent(connection_id)
            if queue.has_next:
                self._outlet.await_room(connection_id)
        queue.report()

    def forget(self, connection_id: bytes) -> None:
        """Drop what waits for a client whose connection is gone."""
        queue = self._queues.pop(connection_id, None)
        if queue is None:
            return
        self.bytes -= queue.size
        self.freed_bytes += queue.size
        if queue.messages:  # what may not be lost is elsewhere, too
            queue.receiver.count("discard.client-not-connected", len(queue.messages))
        queue.receiver.queued = 0, 0

    def tick(self, now: float) -> list[Receiver]:
        """Give the clients that have taken nothing for too long; their connections are to be ended."""
        if now < self._look_at:
            return []
        self._look_at = now + LOOK_S
        ended, self._blocked = self._blocked, []
        for connection_id, queue in self._queues.items():
            unsent = self._outlet.unsent(connection_id)
            is_held = queue.holds > 0 and not queue.has_next and not unsent
            if unsent < queue.unsent or is_held:
                queue.since = now
            queue.unsent = unsent
            if now - queue.since >= queue.receiver.patience_s:
                ended.append(queue.receiver)
        return ended

    def validate(self) -> None:
        """Check what the comments of the attributes promise."""
        assert self.bytes == sum(queue.size for queue in self._queues.values())
        assert self.bytes <= self._bytes_max or not any(queue.messages for queue in self._queues.values())
        for connection_id, queue in self._queues.items():
            assert queue.receiver.connection_id == connection_id
            assert queue.bytes == sum(len(data) + MESSAGE_BYTES for data in queue.messages)
            assert queue.guaranteed_bytes == sum(len(data) + MESSAGE_BYTES for _, data in queue.guaranteed)
            assert queue.first_bytes == sum(map(len, queue.first))
            waiting = queue.first_bytes + queue.bytes + queue.guaranteed_bytes
            assert queue.receiver.queued == (len(queue), waiting)
