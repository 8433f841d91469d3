"""A home of one host: a queue on a disk, as the primary's or as the standby's.

The queue is as small as one can be that shows what a standby may break: messages of producers that send again, stored
once, delivered until they are settled, with a flag on what may have been delivered before.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from storage.groups import GroupLog
from storage.shipping.receiving import Finish, Fresh, Part, Receiving
from storage.shipping.shipping import Bring, Shipping
from storage.spool import Table
from tests.simulation.simulated_disk import SimulatedDisk
from tests.simulation.standby.wire import ALIVE_S, SILENT_S, Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from random import Random

    from storage.shipping.receiving import Job
    from storage.spool import Change
    from tests.simulation.standby.simulated_host import SimulatedHost

#: A consumer that has not settled by then gets a message again.
AGAIN_S: Final = 3.0
#: Keys of the simulation are forgotten so soon that copies are needed too.
KEPT_MAX: Final = 40
#: And patches are so small that parts are needed.
PATCH_BYTES_MAX: Final = 600
UNCONFIRMED_MAX: Final = 16
#: The key of what says that there are to be more homes.
GROWN: Final = b"grown"
#: Share of the looks at a disk behind which a group that is being written is there.
RACES: Final = 0.1
#: A standby owes an answer for so long before it counts as silent.
OWES_S: Final = 1.0


class Message(NamedTuple):
    """Who it is from, and its place among them."""

    producer: int
    number: int

    @property
    def key(self) -> bytes:
        """Give its key in the spool."""
        return b"%04d/%08d" % self


class Connection:
    """Of a standby's home with that of the primary."""

    def __init__(self, wire: Wire, now: float) -> None:
        """Have heard of it now."""
        self.wire = wire
        self.heard_at = self.told_at = now

    def is_over(self, now: float) -> bool:
        """Tell whether it has to be given up."""
        return self.wire.is_over or now - self.heard_at > SILENT_S


class SharedDisk(SimulatedDisk):
    """One on which a group that was begun may be there behind any look: the writer is another thread."""

    #: None: nobody else looks while it writes.
    races: Random | None = None

    def get(self, table: Table, key: bytes) -> bytes | None:
        """See `Spool.get`."""
        found = super().get(table, key)
        self._race()
        return found

    def scan(
        self, table: Table, start: bytes = b"", end: bytes | None = None, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """See `Spool.scan`."""
        found = super().scan(table, start, end, limit)
        self._race()
        return found

    def _race(self) -> None:
        if self.races is not None and self.races.random() < RACES:
            self.finish()

    def finish(self) -> None:
        """Have the group there that was begun, unless it is already."""
        if self._begun is not None:
            super().finish()


class SimulatedHome:
    """One process, and its disk, which outlives it."""

    def __init__(self, host: SimulatedHost, index: int) -> None:
        """Have an empty disk."""
        self.host = host
        self.index = index
        self.disk = SharedDisk()
        self.hangs_until = 0.0
        #: Until then nothing that is begun finds room.
        self.full_until = 0.0
        self.paused_until = 0.0
        #: Of the process: what was begun by an earlier one is not told to this one.
        self.generation = 0
        self.is_up = False
        self._reset()

    def _reset(self) -> None:
        #: What happened while the process did not run.
        self._backlog: deque[Callable[[], None]] = deque()
        self.disk_ok_at = float("-inf")
        self.acts_until = float("-inf")
        self.shipping: Shipping | None = None
        self.receiving: Receiving | None = None
        self._is_loaded = False
        self._connection: Connection | None = None
        self._is_writing = False
        #: Of the standby: what a spool that is made anew has got; None: parts go into the one that is there.
        self._fresh: list[Change] | None = None
        #: Of the primary: what the standby is being brought, and the rows that are still to be sent.
        self._bringing: tuple[Bring, Iterator[Change]] | None = None
        #: To be the primary's as soon as nothing is being written: epoch, whether a standby is needed, run.
        self._to_begin: tuple[int | None, str] | None = None
        #: What the standby had when it was last seen to have more, or to owe nothing.
        self._confirmed, self._confirmed_at = 0, 0.0
        # -- the queue, of a primary
        self._records: dict[int, int] = {}
        self._messages: dict[Message, bool] = {}
        self._maybe_delivered: set[Message] = set()
        self._delivered_at: dict[Message, float] = {}
        self._pending: list[Change] = []
        self._newest = 0
        #: What is said when a group counts, the oldest first.
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._waiting_for_next: list[Callable[[], None]] = []
        self._consumer: Callable[[Message, bool], None] | None = None

    # -- the process -----------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Give the time by the clock of this host."""
        return self.host.clock()

    def do(self, call: Callable[[], None]) -> None:
        """Let the process do something, as soon as it runs, in the order of the calls."""
        if not self.is_up:
            return
        if self._backlog or self._paused_until() > self.host.loop.now:
            self._backlog.append(call)
            self._drain_later(self.generation)
        else:
            call()

    def _paused_until(self) -> float:
        return max(self.paused_until, self.host.paused_until)

    def _drain_later(self, generation: int) -> None:
        self.host.loop.at(self._paused_until(), lambda: self._drain(generation))

    def _drain(self, generation: int) -> None:
        while self._backlog and generation == self.generation:
            if self._paused_until() > self.host.loop.now:
                self._drain_later(generation)
                return
            self._backlog.popleft()()

    def start(self) -> None:
        """Be a process again, which knows nothing."""
        self.generation += 1
        self.is_up = True
        self._reset()

    def die(self) -> None:
        """End; what the disk was given is there or not."""
        self.generation += 1
        self.is_up = False
        self.disk.crash(self.host.rng)
        self._reset()

    def tick(self) -> None:
        """Look around, ten times a second."""
        now = self.now
        if self.host.loop.now >= self.hangs_until:
            self.disk_ok_at = now
        self._tend_connection(now)
        self._bring_further()
        self._work()

    def lose_disk(self) -> None:
        """Have an empty one."""
        self.disk = SharedDisk()

    def was_brought(self) -> bool:
        """Tell whether something of a primary is on the disk."""
        return GroupLog(self.disk, KEPT_MAX, PATCH_BYTES_MAX).past.newest > 0

    # -- the disk --------------------------------------------------------------------------------------------

    def _write(
        self, changes: Sequence[Change], written: Callable[[], None], failed: Callable[[], None]
    ) -> None:
        assert not self._is_writing
        self._is_writing = True
        is_full = self.host.loop.now < self.full_until
        if not is_full:
            self.disk.begin(changes)
        generation = self.generation

        def finish() -> None:
            if generation != self.generation:
                return
            if self.host.loop.now < self.hangs_until:
                self.host.loop.at(self.hangs_until, finish)
                return
            if not is_full:
                self.disk.finish()
            self.do(done)

        def done() -> None:
            self._is_writing = False
            failed() if is_full else written()
            self._work()

        self.host.loop.after(self.host.rng.random() * self.host.write_max_s, finish)

    def _work(self) -> None:
        """Write what is to be written next, and say what may be said."""
        if not self._is_writing:
            if self._to_begin is not None:
                self._begin(*self._to_begin)
            if self.receiving is not None and self.receiving.jobs:
                self._receive(self.receiving, self.receiving.next_job())
            elif self.shipping is not None:
                self._write_next(self.shipping)
        self._speak()

    # -- a standby -------------------------------------------------------------------------------------------

    def _tend_connection(self, now: float) -> None:
        connection = self._connection
        if connection is not None and connection.is_over(now):
            self.disconnect()
        elif connection is not None and now - connection.told_at > ALIVE_S:
            connection.told_at = now
            connection.wire.send(None)
        elif connection is None and self.host.is_standby and not self._is_writing:
            self._connect()

    def disconnect(self) -> None:
        """Let go of the other side."""
        if self._connection is not None:
            self._connection.wire.is_over = True
        self._connection = self.receiving = self._bringing = None
        if self.shipping is not None:
            self.shipping.disconnected()

    def _connect(self) -> None:
        host, other = self.host, self.host.other
        if host.cuts.is_cut(host.name, other.name):
            return
        there = other.homes[self.index]
        up = Wire(host.loop, host.rng, host.cuts, (host.name, other.name))
        down = Wire(host.loop, host.rng, host.cuts, (other.name, host.name))
        connection = Connection(up, self.now)
        down.deliver = lambda one: self.do(lambda: self._heard(connection, one))
        self._connection = connection
        promised = host.promised
        host.loop.after(0.001, lambda: there.do(lambda: there.accept(up, down, promised)))

    def accept(self, up: Wire, down: Wire, promised: int) -> None:
        """Take a connection of the standby, as the primary of the epoch that it promised to follow, or a later one."""
        if self.shipping is None or self.host.epoch < promised:
            down.is_over = up.is_over = True
            return
        self.disconnect()
        connection = Connection(down, self.now)
        up.deliver = lambda one: self.do(lambda: self._heard(connection, one))
        self._connection = connection
        down.send(("epoch", self.host.epoch))

    def _heard(self, connection: Connection, message: Any) -> None:
        if connection is not self._connection:
            return
        connection.heard_at = self.now
        match message:
            case None:
                return
            case ("epoch", epoch):
                self._follow(epoch)
            case _ if self.receiving is not None:
                self.receiving.take(message)
            case _ if self.shipping is not None:
                self.shipping.take(message)
        self._work()

    def _follow(self, epoch: int) -> None:
        """Begin to write what a primary sends, unless there has been a newer one."""
        if epoch < self.host.promised:
            self.disconnect()
        else:
            self.receiving, self._fresh = Receiving(GroupLog(self.disk, KEPT_MAX, PATCH_BYTES_MAX)), None

    def _receive(self, receiving: Receiving, job: Job) -> None:
        changes: Sequence[Change] = () if isinstance(job, Fresh) else job.changes
        if isinstance(job, Fresh):
            self._fresh = []
        elif self._fresh is not None:
            changes = [*self._fresh, *changes]
            if isinstance(job, Finish):
                self._fresh, changes = None, [*self._deletions(), *changes]
            else:
                self._fresh, changes = list(changes), ()

        def written() -> None:
            if self.receiving is receiving:
                receiving.written(job)

        self._write(changes, written, self.disconnect)

    def _deletions(self) -> list[Change]:
        return [(table, key, None) for table in Table for key, _ in self.disk.scan(table)]

    # -- a primary -------------------------------------------------------------------------------------------

    def release(self) -> None:
        """No standby is needed."""
        if self._to_begin is not None:
            self._to_begin = (None, self._to_begin[1])
        if self.shipping is not None:
            self.shipping.release()
        self._work()

    def require(self, order: int) -> None:
        """A standby is needed from here on."""
        if self.shipping is not None:
            self.shipping.require(order)

    def begin(self, run: str, required_by: int | None) -> None:
        """Be the primary's."""
        self.disconnect()
        self._to_begin = (required_by, run)
        self._work()

    def _begin(self, required_by: int | None, run: str) -> None:
        self._to_begin = None
        self.shipping = Shipping(GroupLog(self.disk, KEPT_MAX, PATCH_BYTES_MAX), run, required_by)

    def _write_next(self, shipping: Shipping) -> None:
        if not self.is_acting:
            return
        if not self._is_loaded:
            self._load(shipping)
        lacks = 0 if shipping.required_by is None else shipping.log.ahead.newest - shipping.confirmed
        if self._pending and lacks < UNCONFIRMED_MAX:
            changes, self._pending = self._pending, []
            group = shipping.group(changes)
            self._newest = group.number
            self._waiting.extend((group.number, call) for call in self._waiting_for_next)
            self._waiting_for_next = []
            self._write(
                group.changes,
                lambda: shipping.written(group.number),
                lambda: self._find_no_room(shipping, changes),
            )

    def _find_no_room(self, shipping: Shipping, changes: list[Change]) -> None:
        """Have what the newest group had in the next one, with what has come since."""
        shipping.not_written(self.host.new_run())
        self.disconnect()
        failed, self._newest = self._newest, shipping.log.ahead.newest
        again = [call for number, call in self._waiting if number == failed]
        self._waiting = deque(one for one in self._waiting if one[0] != failed)
        self._pending = [*changes, *self._pending]
        self._waiting_for_next = [*again, *self._waiting_for_next]

    def _load(self, shipping: Shipping) -> None:
        """Read the queue; whatever is there may have been delivered before."""
        self._is_loaded = True
        self._newest = shipping.log.past.newest
        self._records = {int(key): int(value) for key, value in self.disk.scan(Table.RECORDS)}
        keys = [key.split(b"/") for key, _ in self.disk.scan(Table.BLOCKS)]
        found = [Message(int(producer), int(number)) for producer, number in keys]
        self._messages = dict.fromkeys(found, False)
        self._waiting.append((self._newest, lambda: self._stored(*found)))
        self._maybe_delivered = set(found)

    @property
    def is_acting(self) -> bool:
        """Tell whether this host has the lease, as far as it knows."""
        return self.now < self.acts_until

    def follows(self) -> bool:
        """Tell whether a standby is connected and owes nothing for long."""
        shipping = self.shipping
        if shipping is None or self._connection is None or not shipping.is_following:
            return False
        if not shipping.owes or shipping.confirmed != self._confirmed:
            self._confirmed, self._confirmed_at = shipping.confirmed, self.now
        return self.now - self._confirmed_at < OWES_S

    def publish(self, messages: list[tuple[Message, Callable[[], None]]]) -> None:
        """Store each message once, in their order, and say so when they count."""
        if not self._is_loaded or not self.is_acting:
            return
        for message, acknowledge in messages:
            if message.number > self._records.get(message.producer, 0):
                self._store(message)
            self._when_it_counts(acknowledge)
        self._work()

    def _store(self, message: Message) -> None:
        self._records[message.producer] = message.number
        self._messages[message] = False
        self._pending += [
            (Table.BLOCKS, message.key, b"x"),
            (Table.RECORDS, b"%d" % message.producer, b"%d" % message.number),
        ]
        self._waiting_for_next.append(lambda: self._stored(message))

    def _stored(self, *messages: Message) -> None:
        """Have messages delivered that count."""
        for message in messages:
            if message in self._messages:
                self._messages[message] = True

    @property
    def has_noted_growth(self) -> bool:
        """Tell whether the disk says that there are to be more homes."""
        return self._is_loaded and self.disk.get(Table.LANES, GROWN) is not None

    def note_growth(self, noted: Callable[[], None]) -> None:
        """Have the disk say so, and go on when it counts."""
        if self._is_loaded and self.is_acting:
            self._pending.append((Table.LANES, GROWN, b"1"))
            self._when_it_counts(noted)
            self._work()

    def settle(self, message: Message, confirm: Callable[[], None]) -> None:
        """Delete a message that a consumer has done with, and say so when it counts."""
        if not self._is_loaded or not self.is_acting:
            return
        if self._messages.pop(message, None) is not None:
            self._pending.append((Table.BLOCKS, message.key, None))
        self._when_it_counts(confirm)
        self._work()

    def _when_it_counts(self, call: Callable[[], None]) -> None:
        """Say something when all that this process knows counts."""
        if self._pending:
            self._waiting_for_next.append(call)
        else:
            self._waiting.append((self._newest, call))

    def attach(self, consumer: Callable[[Message, bool], None]) -> None:
        """Have a consumer, who says so again and again."""
        self._consumer = consumer
        self._work()

    def _speak(self) -> None:
        if self._connection is not None:
            said = self.receiving or self.shipping
            for message in said.outbox if said is not None else ():
                self._say(self._connection.wire, message)
            if said is not None:
                said.outbox.clear()
        if self.shipping is None or not self._is_loaded:
            return
        while self._waiting and self._waiting[0][0] <= self.shipping.committed and self.is_acting:
            self._waiting.popleft()[1]()
        self._deliver()

    def _say(self, wire: Wire, message: Any) -> None:
        if not isinstance(message, Bring):
            wire.send(message)
            return
        assert self.shipping is not None
        if message.parted is None:
            wire.send(Fresh())
        rows = (row for part in self.shipping.log.parts(message.parted) for row in part)
        self._bringing = message, rows

    def _bring_further(self) -> None:
        """Send some more rows, as they are now."""
        if self._connection is None or self._bringing is None or self.host.rng.random() < 0.5:
            return
        bring, rows = self._bringing
        part = list(islice(rows, self.host.rng.randrange(1, 5)))
        self._connection.wire.send(Part(part) if part else bring.brought)
        if not part:
            self._bringing = None

    def _deliver(self) -> None:
        if self._consumer is None or not self.is_acting:
            return
        for message, counts in self._messages.items():
            last = self._delivered_at.get(message)
            if counts and (last is None or self.now - last > AGAIN_S):
                is_again = message in self._maybe_delivered
                self._maybe_delivered.add(message)
                self._delivered_at[message] = self.now
                self._consumer(message, is_again)
