"""What befalls a pair: each trouble is one real thing done to real processes, cables or disks, and undone in time.

A seed says which, to whom, and for how long. Only processes that the campaign started are touched.
"""

from __future__ import annotations

import signal
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium.errors import ConflictError
from tests.failover.cables import CABLES, OUTSIDE, ways
from tests.failover.etcd import status_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.failover.cables import Cables
    from tests.failover.disks import Disk
    from tests.failover.etcd import Etcd, Member
    from tests.failover.lines import Lines
    from tests.failover.pair import Host

#: Single processes, by how often they are hit.
ROLES: Final = ("router", "worker", "worker", "controller", "supervisor", "keeper", "keeper")
#: Of leases: a trouble lasts from a part of one to some.
SHORTEST: Final = 0.1
LONGEST: Final = 3.0
#: A clock is set by so much; set back by more, certificates are not valid yet, and nobody may talk to anybody.
CLOCK_S: Final = (-3_000.0, 7_200.0)
#: Longer than anything takes on a busy machine.
PATIENCE_S: Final = 120.0
#: A host that hangs or is cut off is the primary so often.
PRIMARY_SHARE: Final = 0.65


class World(NamedTuple):
    """Everything that can be broken."""

    hosts: dict[str, Host]
    etcd: Etcd
    lease_s: int
    #: What can be cut.
    cables: Cables | Lines
    #: None: there are no namespaces.
    spaces: Cables | None = None
    disks: Mapping[str, Disk] = MappingProxyType({})
    #: Files that say by how much the clock of a host is wrong; empty: clocks cannot be set.
    clocks: Mapping[str, Path] = MappingProxyType({})
    #: Of the certificates, those of etcd too; None: nothing is encrypted.
    ca_file: Path | None = None

    def etcd_leader(self) -> Member | None:
        """Give the leader of the outside store."""

        def ask() -> Member | None:
            return self.etcd.leader(lambda one: status_of(one.port, ca_file=self.ca_file))

        return ask() if self.spaces is None else self.spaces.within(OUTSIDE, ask)

    def primary(self) -> Host | None:
        """Give the host that says that it is the primary; one that hangs may have said so long ago."""
        found = [host for host in self.hosts.values() if host.is_primary]
        return max(found, key=lambda host: host.status.get("epoch", 0), default=None)


def _hands_over(primary: Host) -> bool:
    """Ask for it; a store may just have begun to be shipped again, and then it is refused."""
    try:
        primary.ask("standby.switch")
    except ConflictError:
        return False
    return True


def in_sync(world: World) -> bool:
    """Tell whether one host is the primary, and both say that both have all."""
    statuses = [host.status for host in world.hosts.values()]
    roles = sorted(status.get("role", "") for status in statuses)
    primary = world.primary()
    return (
        roles == ["primary", "standby"]
        and primary is not None
        and all(status["in_sync"] == sorted(world.hosts) for status in statuses)
    )


class Done(NamedTuple):
    """A trouble, when it began and ended, and whether it was the primary's."""

    kind: str
    text: str
    since: float
    until: float
    hit_primary: bool


class Troubles:
    """Makes trouble of the kinds that are possible here."""

    def __init__(self, world: World, rng: random.Random, kinds: list[str] | None = None) -> None:
        """Choose by `rng` only; `kinds` are all if they are not given."""
        self._world = world
        self._rng = rng
        #: Kind -> (how often, what it does).
        self.making: dict[str, tuple[int, Callable[[], str]]] = {
            "kill-host": (4, self._kill_host),
            "kill-process": (5, self._kill_process),
            "hang-host": (4, self._hang_host),
            "hang-process": (2, self._hang_process),
            "stop-host": (2, self._stop_host),
            "down": (1, self._down),
            "kill-both": (1, self._kill_both),
            "kill-etcd-leader": (2, self._kill_etcd_leader),
            "etcd-majority": (1, self._stop_etcd),
            "isolate": (3, self._isolate),
            "one-way": (4, self._one_way),
            "split": (4, self._split),
            "cut-pair": (3, self._cut_pair),
            "cut-store": (2, self._cut_store),
            "cut-clients": (1, self._cut_clients),
            "unplug": (2, self._unplug),
            "take-over": (2, self._take_over),
            "switch": (2, self._switch),
        }
        if any(disk.is_own for disk in world.disks.values()):
            self.making["freeze-disk"] = (3, self._freeze)
        if world.clocks:
            self.making["set-clock"] = (2, self._set_clock)
        #: Of all kinds, what cannot be done here.
        self.skipped = sorted(set(kinds or ()) - self.making.keys())
        if kinds:
            self.making = {kind: made for kind, made in self.making.items() if kind in kinds}
        self._hit_primary = False
        self.done: list[Done] = []

    def make(self, kind: str | None = None) -> Done:
        """Make one trouble, wait, and undo it."""
        kinds = sorted(self.making)
        kind = kind or self._rng.choices(kinds, [self.making[one][0] for one in kinds])[0]
        self._hit_primary = False
        since = time.monotonic()
        try:
            text = self.making[kind][1]()
        finally:
            self.heal()
        done = Done(kind, text, since, time.monotonic(), self._hit_primary)
        self.done.append(done)
        return done

    def heal(self) -> None:
        """Undo everything: all hosts run, nothing is cut, no disk hangs."""
        world = self._world
        world.cables.heal()
        for disk in world.disks.values():
            disk.thaw()
        for one in world.etcd.members:
            world.etcd.signal(one, signal.SIGCONT)
        world.etcd.start()
        for host in world.hosts.values():
            host.signal(signal.SIGCONT)
            host.start()

    # -- choices -----------------------------------------------------------------------------------------------

    def _host(self) -> Host:
        """Choose a host, the primary rather."""
        primary = self._world.primary()
        hosts = [self._world.hosts[name] for name in sorted(self._world.hosts)]
        is_primary = self._rng.random() < PRIMARY_SHARE
        chosen = self._rng.choice(hosts)
        if primary is not None:
            chosen = primary if is_primary else next(host for host in hosts if host is not primary)
        self._hit_primary = chosen is primary
        return chosen

    def _wait(self) -> str:
        """Wait for a part of a lease, or some leases."""
        seconds = self._world.lease_s * SHORTEST * (LONGEST / SHORTEST) ** self._rng.random()
        time.sleep(seconds)
        return f"for {seconds:.1f} s"

    # -- processes ---------------------------------------------------------------------------------------------

    def _kill_host(self) -> str:
        host = self._host()
        host.kill()
        return f"host {host.name} killed {self._wait()}"

    def _kill_both(self) -> str:
        hosts = list(self._world.hosts.values())
        self._rng.shuffle(hosts)
        for host in hosts:
            host.kill()
        waited = self._wait()
        for host in hosts:
            host.start()
            time.sleep(self._rng.choice((0.0, 1.0)))
        self._hit_primary = True
        return f"both hosts killed {waited}, {hosts[0].name} started first"

    def _kill_process(self) -> str:
        host, role = self._host(), self._rng.choice(ROLES)
        pids = sorted(host.pids_of(role))
        if not pids:
            return f"no {role} of {host.name} to kill"
        host.signal(signal.SIGKILL, [self._rng.choice(pids)])
        if role == "keeper":
            time.sleep(self._rng.choice((0.0, 0.5, 3.0)))
            host.note_death(is_meant=True)
        return f"{role} of {host.name} killed"

    def _hang_host(self) -> str:
        host = self._host()
        host.signal(signal.SIGSTOP)
        return f"host {host.name} stopped {self._wait()}"

    def _hang_process(self) -> str:
        host, role = self._host(), self._rng.choice(ROLES)
        pids = sorted(host.pids_of(role))
        if not pids:
            return f"no {role} of {host.name} to stop"
        host.signal(signal.SIGSTOP, [self._rng.choice(pids)])
        return f"{role} of {host.name} stopped {self._wait()}"

    def _stop_host(self) -> str:
        host = self._host()
        status = host.stop()
        if status is None:
            host.kill()
        return f"host {host.name} asked to end: status {status} {self._wait()}"

    def _down(self) -> str:
        host = self._host()
        status = host.ask_down()
        waited = self._wait()
        host.note_death(is_meant=True)
        return f"angarium down at {host.name}: status {status} {waited}"

    def _take_over(self) -> str:
        """Kill the primary, which stays away until the other one has taken over."""
        primary = self._primary_with_standby()
        self._hit_primary = True
        began = time.monotonic()
        primary.kill()
        other = self._other_primary(primary)
        return f"host {primary.name} killed, {other} after {time.monotonic() - began:.2f} s"

    def _switch(self) -> str:
        """Hand over, as an operator does."""
        primary = self._primary_with_standby()
        self._hit_primary = True
        wait_until(lambda: _hands_over(primary), f"{primary.name} being ready to hand over", PATIENCE_S)
        began = time.monotonic()
        other = self._other_primary(primary)
        return f"host {primary.name} hands over, {other} after {time.monotonic() - began:.2f} s"

    def _primary_with_standby(self) -> Host:
        wait_until(lambda: in_sync(self._world), "both hosts being in sync", PATIENCE_S)
        primary = self._world.primary()
        assert primary is not None
        return primary

    def _other_primary(self, before: Host) -> str:
        def found() -> str:
            primary = self._world.primary()
            return primary.name if primary is not None and primary is not before else ""

        return f"{wait_until(found, f'another primary than {before.name}', PATIENCE_S)} acts"

    # -- cables ------------------------------------------------------------------------------------------------

    def _cut(self, name: str, cut: list[Any]) -> str:
        self._world.cables.cut(cut)
        return f"{name} {self._wait()}"

    def _isolate(self) -> str:
        host = self._host()
        return self._cut(f"host {host.name} cut off", ways(host.name))

    def _one_way(self) -> str:
        host = self._host()
        both = ways(host.name)
        is_out = self._rng.random() < 0.5
        cut = [way for way in both if (way.sender == host.name) == is_out]
        if self._rng.random() < 0.5:
            cut = [self._rng.choice(cut)]
        named = ", ".join(f"{CABLES[way.cable].name} from {way.sender}" for way in cut)
        return self._cut(f"one way cut ({named})", cut)

    def _split(self) -> str:
        """Leave a host its clients only, who would not notice that there is another primary."""
        host = self._host()
        return self._cut(
            f"host {host.name} cut off from all but its clients", ways(host.name, ("pair", "store"))
        )

    def _cut_pair(self) -> str:
        return self._cut("a and b cut from each other", ways("a", ("pair",)))

    def _cut_store(self) -> str:
        host = self._host()
        return self._cut(f"{host.name} cut from the outside store", ways(host.name, ("store",)))

    def _cut_clients(self) -> str:
        host = self._host()
        return self._cut(f"{host.name} cut from its clients", ways(host.name, ("clients",)))

    def _unplug(self) -> str:
        host = self._host()
        own = [index for index, cable in enumerate(CABLES) if host.name in cable.ends]
        self._world.cables.unplug(own)
        return f"host {host.name} unplugged {self._wait()}"

    # -- disks, clocks, the outside store ----------------------------------------------------------------------

    def _freeze(self) -> str:
        host = self._host()
        self._world.disks[host.name].freeze()
        return f"disk of {host.name} hangs {self._wait()}"

    def _set_clock(self) -> str:
        host = self._host()
        seconds = self._rng.uniform(*CLOCK_S)
        self._world.clocks[host.name].write_text(f"{seconds:.0f}\n", encoding="ascii")
        return f"clock of {host.name} set by {seconds:+.0f} s"

    def _kill_etcd_leader(self) -> str:
        etcd = self._world.etcd
        leader = self._world.etcd_leader()
        if leader is None:
            return "etcd has no leader to kill"
        etcd.kill(leader)
        return f"leader {leader.name} of etcd killed {self._wait()}"

    def _stop_etcd(self) -> str:
        etcd = self._world.etcd
        several = self._rng.sample(etcd.members, len(etcd.members) // 2 + 1)
        for one in several:
            if self._rng.random() < 0.5:
                etcd.kill(one)
            else:
                etcd.signal(one, signal.SIGSTOP)
        self._hit_primary = True
        return f"majority of etcd gone {self._wait()}"
