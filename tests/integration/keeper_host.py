"""One host of a pair as a process: a keeper with a real store, that writes down each moment in which it acts.

    python -m tests.integration.keeper_host CONFIG

It stands for a node whose other half follows at once: whenever it begins as the primary and the other host is not in
the in-sync set, it lets it in. Each line that it writes is one JSON list: what, time by the clock of leases, and more.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from cluster.configuration.standby import StandbySection  # noqa: TC001 - msgspec reads the types of fields
from cluster.standby.pair.member import Begin, Member, Require, Role
from cluster.standby.pair.outside import Holder
from cluster.standby.stores import clock, disk
from cluster.standby.stores.keeper import Keeper
from cluster.standby.stores.opening import open_store

if TYPE_CHECKING:
    from cluster.standby.stores.keeper import Told

#: Between two moments that are written down.
ACT_S: Final = 0.01


class HostConfig(msgspec.Struct, frozen=True):
    """What a host is told."""

    host: str
    other: str
    section: StandbySection
    node_id: str
    data: str
    log: str
    may_found: bool = False
    #: While this file exists, writes to the disk hang.
    hang: str = ""


class Host:
    """It acts while it may, and says so."""

    def __init__(self, config: HostConfig, log: IO[bytes]) -> None:
        self._config = config
        self._log = log
        self._starts = 0
        self._keeper: Keeper | None = None

    def write(self, what: str, *more: Any) -> None:
        self._log.write(msgspec.json.encode([what, clock.now(), *more]) + b"\n")
        self._log.flush()

    def disk_write(self, content: bytes) -> None:
        while self._config.hang and Path(self._config.hang).exists():
            time.sleep(0.01)
        disk.file_in(Path(self._config.data))(content)

    async def run(self) -> None:
        acting = asyncio.create_task(self._act())
        with disk.Probe(self.disk_write, interval_s=0.1) as probe:
            while not acting.done():
                await self._start(probe)
        await acting

    async def _start(self, probe: disk.Probe) -> None:
        """Be a candidate until its time as the primary is over."""
        self._starts += 1
        config = self._config
        me = Holder(config.host, f"{time.time_ns():x}")
        store = open_store(config.section, config.node_id, me, Path(config.data))
        member = Member(me, may_found=config.may_found, may_be_alone=not config.section.required)
        self._keeper = Keeper(member, store, probe, self._told, config.section.lease_seconds)
        self.write("start", me.incarnation)
        try:
            async with asyncio.TaskGroup() as tasks:
                following = tasks.create_task(self._follow(member))
                await self._keeper.run()
                following.cancel()
        finally:
            self.write("over", dict(self._keeper.counts))
            await store.close()

    def _told(self, effect: Told) -> None:
        self.write(type(effect).__name__, *effect)
        if isinstance(effect, Require | Begin):
            order = effect.order if isinstance(effect, Require) else effect.required_by
            if order is not None and self._keeper is not None:
                self._keeper.standby_has_all(self._config.other, order)

    async def _follow(self, member: Member) -> None:
        """Say what a standby that is there would have one say."""
        while True:
            if member.role is Role.PRIMARY and self._keeper is not None and self._keeper.may_act:
                self._keeper.standby_follows()
            standing = member.seen.standing
            self.write("seen", member.seen.revision, sorted(standing.in_sync) if standing else [])
            await asyncio.sleep(0.1)

    async def _act(self) -> None:
        """Do what only a primary does: the clock is read before, and nothing lies between that and the act."""
        while True:
            if self._keeper is not None and self._keeper.may_act:
                self.write("act")
            await asyncio.sleep(ACT_S)


def main() -> None:
    config = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=HostConfig)
    with open(config.log, "ab") as log, contextlib.suppress(KeyboardInterrupt):
        asyncio.run(Host(config, log).run())


if __name__ == "__main__":
    main()
