"""One run: producers and consumers beside two hosts that are killed, paused, cut off, and have disks that hang."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from cluster.standby.pair.member import Role
from storage.spool import Table
from tests.simulation.simulated_network import Loop
from tests.simulation.standby.outside_store import OutsideStore
from tests.simulation.standby.simulated_home import Message
from tests.simulation.standby.simulated_host import HOMES, SimulatedHost
from tests.simulation.standby.wire import Cuts

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.standby.simulated_home import SimulatedHome

PRODUCERS: Final = 4
#: Of a producer, not acknowledged.
WINDOW: Final = 4
PATIENCE_S: Final = 1.0
#: How often a producer gives up what it has sent: it may be stored or not.
GIVEN_UP: Final = 0.03
TROUBLE_S: Final = 40.0
#: After the last trouble, until everything has to be well again.
CALM_S: Final = 40.0
DELAY_MAX_S: Final = 0.01


class Scenario:
    """A run, and what is wrong with it."""

    def __init__(
        self, seed: str, *, grows: bool = False, fills: bool = False, is_strict: bool = False
    ) -> None:
        """Set the stage; a node that grows begins with one home, and has the others some time.

        Disks that fill are full from time to time, for a while; and they are looked at while they are written.
        """
        self.rng = Random(seed)
        self.loop = Loop()
        self.cuts = Cuts(self.rng.choice((0.02, 0.2)))
        self.store = OutsideStore(self.loop, self.rng)
        self.hosts = [SimulatedHost(name, self.loop, self.rng, self.store, self.cuts) for name in ("a", "b")]
        for host, other in zip(self.hosts, reversed(self.hosts), strict=True):
            host.other, host.is_strict = other, is_strict
            host.rate = self.rng.uniform(0.98, 1.02)
            host.on_moment = self._moment
            host.write_max_s = self.rng.choice((0.03, 0.2))
        self.calm_at = self.loop.now + TROUBLE_S
        for host in self.hosts if grows else ():
            host.grows, host.stores = True, 1
        self.is_grown = False
        self._fills = fills
        for home in (home for host in self.hosts if fills for home in host.homes):
            home.disk.races = self.rng
        self.violations: list[str] = []
        self.events: list[str] = []
        #: How often there was trouble.
        self.faults = 0
        #: How often a host got new disks.
        self.replaced = 0
        #: Of a producer: what is to be stored, and where it is sent.
        self.waiting: list[list[Message]] = [[] for _ in range(PRODUCERS)]
        self.published = [0] * PRODUCERS
        self.target = [0] * PRODUCERS
        self.heard_at = [0.0] * PRODUCERS
        self.acknowledged: set[Message] = set()
        #: How often each message came, and those of which a host said that they are gone.
        self.received: dict[Message, int] = {}
        self.confirmed: set[Message] = set()
        self.late_rate = self.rng.choice((0.0, 0.0, 0.02, 0.1))
        self.trouble_every_s = self.rng.choice((0.3, 1.0, 2.0, 5.0))
        self.moment_rate = self.rng.choice((0.0, 0.2, 0.5))

    def play(self) -> list[str]:
        """Play it to the end, and give what is wrong."""
        for host in self.hosts:
            self.loop.after(self.rng.random(), host.start)
        for producer in range(PRODUCERS):
            self.loop.after(1 + self.rng.random(), partial(self._produce, producer))
        self.loop.after(0.2, self._consume)
        self.loop.after(8.0, self._trouble)
        if self.hosts[0].grows:
            self.loop.after(self.rng.uniform(2.0, TROUBLE_S), self._grow)
        if self._fills:
            self.loop.after(self.rng.random(), self._fill)
        if self.hosts[0].is_strict:
            self.loop.after(self.rng.uniform(2.0, TROUBLE_S), self._replace_disks)
        self.loop.run_until(self.calm_at)
        self._heal()
        self.loop.run_until(self.calm_at + CALM_S)
        self._judge_end()
        return self.violations

    def note(self, text: str) -> None:
        """Write down what happened."""
        self.events.append(f"{self.loop.now - 1000:8.3f} {text}")

    def _wrong(self, rule: str, text: str) -> None:
        self.violations.append(f"{rule}: {text} at {self.loop.now - 1000:.3f}")
        self.note(f"!! {rule}: {text}")

    # -- the clients -----------------------------------------------------------------------------------------

    def _produce(self, producer: int) -> None:
        """Send what is not stored, to the host that answered, or else to the other one; sometimes give it up."""
        loop, waiting = self.loop, self.waiting[producer]
        if loop.now < self.calm_at and len(waiting) < WINDOW:
            self.published[producer] += 1
            waiting.append(Message(producer, self.published[producer]))
        if loop.now - self.heard_at[producer] > PATIENCE_S:
            self.target[producer] ^= 1
            self.heard_at[producer] = loop.now
        home = self.hosts[self.target[producer]].homes[producer % HOMES]
        sent = [(message, self._acknowledge(home, message)) for message in waiting]
        self._later(lambda: home.do(lambda: home.publish(sent)))
        if loop.now < self.calm_at and self.rng.random() < GIVEN_UP:
            waiting.clear()
        loop.after(self.rng.uniform(0.05, 0.25), partial(self._produce, producer))

    def _acknowledge(self, home: SimulatedHome, message: Message) -> Callable[[], None]:
        def acknowledge() -> None:
            self._check_acts(home.host, f"acknowledges {message}")
            self._check_stored(message)
            self._later(lambda: self._is_stored(message))

        return acknowledge

    def _is_stored(self, message: Message) -> None:
        self.heard_at[message.producer] = self.loop.now
        if message in self.waiting[message.producer]:
            self.waiting[message.producer].remove(message)
            self.acknowledged.add(message)

    def _consume(self) -> None:
        for host in self.hosts:
            for home in host.homes:
                self._attach(home)
        self.loop.after(0.5, self._consume)

    def _attach(self, home: SimulatedHome) -> None:
        def deliver(message: Message, is_again: bool) -> None:
            self._check_acts(home.host, f"delivers {message}")
            if message in self.confirmed:
                self._wrong("settled", f"{home.host.name} delivers {message}, which was settled")
            if self.rng.random() > 0.02:
                self._later(lambda: self._receive(home, message, is_again=is_again))

        self._later(lambda: home.do(lambda: home.attach(deliver)))

    def _receive(self, home: SimulatedHome, message: Message, *, is_again: bool) -> None:
        if self.received.get(message) and not is_again:
            self._wrong("doubled", f"{message} comes again without the flag")
        self.received[message] = self.received.get(message, 0) + 1

        def confirm() -> None:
            self._check_acts(home.host, f"confirms {message}")
            self._check_gone(message)
            self.confirmed.add(message)

        delay = self.rng.choice((0.01, 0.1, 1.0))
        self.loop.after(delay, lambda: home.do(lambda: home.settle(message, confirm)))

    def _later(self, call: Callable[[], None]) -> None:
        self.loop.after(self.rng.random() * DELAY_MAX_S, call)

    # -- rules -----------------------------------------------------------------------------------------------

    def _check_acts(self, host: SimulatedHost, what: str) -> None:
        """Nobody acts but who has the lease (R266)."""
        if self.store.holder != host.me:
            self._wrong("two primaries", f"{host.name} {what}, and {self.store.holder} has the lease")

    def _in_sync(self) -> list[SimulatedHost]:
        standing = self.store.standing
        return [host for host in self.hosts if standing is not None and host.name in standing.in_sync]

    def _keepers(self) -> list[SimulatedHost]:
        """Give who must have what counts: each that may be the next primary, or both hosts if nobody may be alone.

        Not one whose disks are new, whatever the store says of it.
        """
        judged = self.hosts if self.hosts[0].is_strict else self._in_sync()
        return [host for host in judged if not host.is_new]

    def _check_stored(self, message: Message) -> None:
        """What is acknowledged is on the disk of each host that must have it (PacificA: commit)."""
        for host in self._keepers():
            disk = host.homes[message.producer % HOMES].disk
            if int(disk.get(Table.RECORDS, b"%d" % message.producer) or b"0") < message.number:
                self._wrong("commit", f"{host.name} has not {message}, which is acknowledged")

    def _check_gone(self, message: Message) -> None:
        for host in self._keepers():
            if host.homes[message.producer % HOMES].disk.get(Table.BLOCKS, message.key) is not None:
                self._wrong("commit", f"{host.name} still has {message}, which is confirmed as settled")

    def _judge_end(self) -> None:
        """All is well again some time after the last trouble, and nothing that was acknowledged is missing."""
        epochs = [standing.epoch for standing in self.store.standings]
        if epochs != sorted(epochs):
            self._wrong("epochs", f"they fall: {epochs}")
        primaries = [host for host in self.hosts if host.member and host.member.role is Role.PRIMARY]
        if len(primaries) != 1 or len(self._in_sync()) != 2:
            self._wrong("calm", f"{len(primaries)} primaries, {self.store.standing}, {self.store.holder}")
            return
        if any(self.waiting):
            self._wrong("calm", f"{self.waiting} are not stored")
        for message in sorted(self.acknowledged - set(self.received)):
            self._wrong("lost", f"{message} was acknowledged and never came")
        self._judge_disks()

    def _judge_disks(self) -> None:
        for one, other in zip(self.hosts[0].homes, self.hosts[1].homes, strict=True):
            for table in (Table.BLOCKS, Table.RECORDS):
                if one.disk.scan(table) != other.disk.scan(table):
                    self._wrong("same", f"home {one.index}: {table.name} of the hosts differ")
            if one.disk.count(Table.BLOCKS):
                self._wrong("calm", f"home {one.index}: messages are left")

    def _grow(self) -> None:
        """Ask for more homes, until a primary says that this counts: one that only began them may be forgotten."""
        if self.is_grown:
            return
        for host in self.hosts:
            if host.member and host.member.role is Role.PRIMARY:
                host.grow(self._is_grown)
        self.loop.after(0.5, self._grow)

    def _is_grown(self) -> None:
        self.is_grown = True

    # -- trouble ---------------------------------------------------------------------------------------------

    def _trouble(self) -> None:
        if self.loop.now >= self.calm_at:
            return
        self._trouble_at(self.rng.choice(self.hosts))
        self.loop.after(self.rng.expovariate(1 / self.trouble_every_s), self._trouble)

    def _moment(self, host: SimulatedHost) -> None:
        """Have trouble soon after something began to change."""
        if self.loop.now < self.calm_at and self.rng.random() < self.moment_rate:
            self.loop.after(
                self.rng.random() * 0.3, lambda: self._trouble_at(self.rng.choice((host, host, host.other)))
            )

    def _trouble_at(self, host: SimulatedHost) -> None:
        if self.loop.now >= self.calm_at:
            return
        kind = self.rng.choice(
            (
                self._kills,
                self._kills_home,
                self._kills_home,
                self._pauses,
                self._pauses_home,
                self._cuts,
                self._cuts_store,
                self._hangs,
            )
        )
        duration_s = self.rng.choice((0.1, 0.1, 0.3, 1.0, 3.0, 8.0, 15.0)) * self.rng.uniform(0.8, 1.2)
        self.note(f"{kind.__name__[1:]} {host.name} for {duration_s:.2f} s")
        self.store.late_rate = self.late_rate
        self.faults += 1
        kind(host, min(duration_s, self.calm_at - self.loop.now))

    def _fill(self) -> None:
        """Have a disk full; most writes are over sooner, so some of a home find room and others do not."""
        if self.loop.now >= self.calm_at:
            return
        host = self.rng.choice(self.hosts)
        home, duration_s = self.rng.choice(host.homes), self.rng.choice((0.05, 0.05, 0.2, 3.0))
        self.note(f"fills {host.name}.{home.index} for {duration_s:.2f} s")
        home.full_until = self.loop.now + duration_s
        self.loop.after(self.rng.expovariate(1.0), self._fill)

    def _replace_disks(self) -> None:
        """Have a host die and begin with empty disks, as soon as the other one has everything too."""
        found = [host for host in self.hosts if host.is_standby and host.other in self._in_sync()]
        if not found or len(self._in_sync()) < 2:
            self.loop.after(0.1, self._replace_disks)
            return
        self.note(f"replaces the disks of {found[0].name}")
        self.replaced += 1
        found[0].lose_disks()
        self.loop.after(self.rng.uniform(0.1, 5.0), found[0].start)

    def _kills(self, host: SimulatedHost, duration_s: float) -> None:
        host.die()
        self.loop.after(duration_s, host.start)

    def _kills_home(self, host: SimulatedHost, duration_s: float) -> None:
        home = self.rng.choice(host.homes)
        if home.is_up:
            home.die()
            self.loop.after(min(duration_s, 2.0), lambda: host.restart_home(home))

    def _pauses(self, host: SimulatedHost, duration_s: float) -> None:
        host.paused_until = self.loop.now + duration_s

    def _pauses_home(self, host: SimulatedHost, duration_s: float) -> None:
        self.rng.choice(host.homes).paused_until = self.loop.now + duration_s

    def _hangs(self, host: SimulatedHost, duration_s: float) -> None:
        self.rng.choice(host.homes).hangs_until = self.loop.now + duration_s

    def _cuts(self, host: SimulatedHost, duration_s: float) -> None:
        ways = {(host.name, host.other.name)}
        if self.rng.random() < 0.5:
            ways.add((host.other.name, host.name))
        self.cuts.pairs |= ways
        self.loop.after(duration_s, lambda: self.cuts.pairs.difference_update(ways))

    def _cuts_store(self, host: SimulatedHost, duration_s: float) -> None:
        ways = [way for way in (self.store.deaf_to, self.store.mute_to) if self.rng.random() < 0.7]
        for way in ways:
            way.add(host.name)
        for way in ways:
            self.loop.after(duration_s, partial(way.discard, host.name))

    def _heal(self) -> None:
        self.note("calm")
        self.cuts.pairs.clear()
        self.store.deaf_to.clear()
        self.store.mute_to.clear()
        self.store.late_rate = 0.0
        for host in self.hosts:
            host.start()
            for home in host.homes:
                home.full_until = 0.0
                host.restart_home(home)
