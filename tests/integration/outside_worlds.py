"""Each outside store in a world of its own, so that one suite of tests asks them all the same.

A world has one pair at a time. It can let the lease end, in the way in which it ends there, and give no answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import signal
import uuid
from typing import TYPE_CHECKING, Final, Protocol

from cluster.configuration.standby import StandbySection
from cluster.standby.pair.member import LEASE_S
from cluster.standby.pair.outside import Answer, Holder, Read, Request
from cluster.standby.stores.manual import promote
from cluster.standby.stores.opening import MANUAL_FILE, open_store
from cluster.standby.stores.store import NoAnswerError, Store
from tests.simulation.simulated_network import Loop
from tests.simulation.standby.outside_store import OutsideStore
from tests.waiting import TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.api_server import ApiServer
    from tests.integration.etcd_servers import Etcd
    from tests.integration.lease_server import LeaseServer

#: Enough for an answer on a machine that others use as well.
ANSWER_S: Final = 15.0
#: Between two looks.
LOOK_S: Final = 0.1


class World(Protocol):
    """One outside store and its pair."""

    #: Whoever was so late cannot expect to have its lease still.
    late_s: float

    def open(self, host: str, incarnation: str = "1") -> Store:
        """Give the store of one holder; within a loop."""

    async def wait(self, share: float) -> None:
        """Let such a share of a lease pass."""

    async def end_lease(self, store: Store, host: str) -> None:
        """Let the lease end in the eyes of this host, whose store it is."""

    def silence(self) -> contextlib.AbstractContextManager[None]:
        """Give no answers meanwhile."""


async def seen_until_over(store: Store) -> None:
    """Read until nobody has the lease."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + TIMEOUT_S
    while (await store.ask(0, Read(), ANSWER_S)).seen.holder is not None:
        assert loop.time() < deadline, "the lease does not end"
        await asyncio.sleep(LOOK_S)


class SimulatedWorld:
    """The store in which the pair was tried first."""

    late_s = float("inf")

    def __init__(self, seed: int) -> None:
        self._loop = Loop()
        self._store = OutsideStore(self._loop, random.Random(seed))

    def open(self, host: str, incarnation: str = "1") -> Store:
        return _SimulatedStore(Holder(host, incarnation), self._loop, self._store)

    async def wait(self, share: float) -> None:
        self._loop.run_until(self._loop.now + share * LEASE_S)

    async def end_lease(self, store: Store, host: str) -> None:
        await self.wait(1.0)

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        self._store.deaf_to |= {"a", "b"}
        yield
        self._store.deaf_to.clear()


class _SimulatedStore:
    """Asks it, while time passes in small steps."""

    def __init__(self, me: Holder, loop: Loop, store: OutsideStore) -> None:
        self._me, self._loop, self._store = me, loop, store

    async def ask(self, number: int, request: Request, timeout_s: float) -> Answer:
        answers: list[Answer] = []
        self._store.ask(self._me, number, request, answers.append)
        deadline = self._loop.now + min(timeout_s, LEASE_S / 10)
        while not answers and self._loop.now < deadline:
            self._loop.run_until(self._loop.now + 0.001)
        if not answers:
            raise NoAnswerError("no answer in time")
        return answers[0]

    async def close(self) -> None:
        pass


class EtcdWorld:
    """A real etcd of one member."""

    late_s = 1.8

    def __init__(self, etcd: Etcd, folder: Path) -> None:
        self._etcd = etcd
        self._folder = folder
        self._node_id = uuid.uuid4().hex
        self._section = StandbySection(store="etcd", endpoints=etcd.urls, lease_seconds=2)

    def open(self, host: str, incarnation: str = "1") -> Store:
        return open_store(self._section, self._node_id, Holder(host, incarnation), self._folder)

    async def wait(self, share: float) -> None:
        await asyncio.sleep(share * self._section.lease_seconds)

    async def end_lease(self, store: Store, host: str) -> None:
        await seen_until_over(store)

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        self._etcd.members[0].signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._etcd.members[0].signal(signal.SIGCONT)


class LeaseWorld:
    """A Lease at an API server, or at a server that does what it does."""

    late_s = 1.8

    def __init__(self, server: LeaseServer | ApiServer, folder: Path) -> None:
        self._server = server
        self._folder = folder
        self._node_id = uuid.uuid4().hex
        self._section = StandbySection(
            store="kubernetes", endpoints=[server.url], namespace="n", lease_seconds=2
        )

    def open(self, host: str, incarnation: str = "1") -> Store:
        me, account = Holder(host, incarnation), self._server.account_folder
        return open_store(self._section, self._node_id, me, self._folder, account)

    async def wait(self, share: float) -> None:
        await asyncio.sleep(share * self._section.lease_seconds)

    async def end_lease(self, store: Store, host: str) -> None:
        await seen_until_over(store)

    def silence(self) -> contextlib.AbstractContextManager[None]:
        return self._server.silence()


class ManualWorld:
    """The file of the operator; here both hosts have the same one, so that they contend for it."""

    late_s = float("inf")

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / MANUAL_FILE
        promote(self._file, "a")

    def open(self, host: str, incarnation: str = "1") -> Store:
        return open_store(StandbySection(store="manual"), "", Holder(host, incarnation), self._folder)

    async def wait(self, share: float) -> None:
        await asyncio.sleep(share * 0.1)

    async def end_lease(self, store: Store, host: str) -> None:
        promote(self._file, host)

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        """Hold the lock of the file: whoever asks waits for it, as for a disk that hangs."""
        descriptor = os.open(f"{self._file}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            os.close(descriptor)
