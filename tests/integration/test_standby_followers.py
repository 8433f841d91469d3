"""What a standby makes of a primary that is none of its own, says what nobody says, or sends what finds no room."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest
import zmq

from angarium import errors
from angarium_server.frames.frame import decoder, read
from angarium_server.frames.shipping import VERSION, LeaseGiven, Meet, NotFollowed, ShipFiles, Whereabouts
from angarium_server.watch import Watch
from cluster.data.data_dir import CONFIG_FOLDER
from cluster.data.node_file import NODE_FILE, NodeFile
from cluster.standby import files
from cluster.standby.followers import Followers, Terms
from cluster.standby.places import SpoolPlace
from cluster.standby.stores.opening import MANUAL_FILE
from storage.config_store import COPY_FOLDER
from storage.groups import GroupLog
from storage.shipping.encoding import frames_to_standby
from storage.shipping.receiving import Fresh
from storage.spool import DATA_FILE, SpoolFullError, Table, remove_spool
from tests.simulation.simulated_disk import SimulatedDisk
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.requirement("R264")]

LIMIT_S: Final = 60.0
MEET: Final = Meet(VERSION, "orders", "data", "a secret of both hosts", "0", 5)
MEET_FILES: Final = msgspec.structs.replace(MEET, store=files.STORE)
_decode_refusal = decoder(NotFollowed)
_decode_whereabouts = decoder(Whereabouts)


class Standby:
    """One that has promised to follow nobody before epoch 5, and a primary that talks to it by hand."""

    def __init__(self, data: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.data = data
        self._watch = Watch()
        terms = Terms("orders", "beta", MEET.secret, data, 1 << 26)
        #: How often a primary has given its lease back.
        self.partings = 0
        #: Whether it may be the primary by now; and how often it was found to lack a store.
        self.may_begin, self.lacks = False, 0
        self.followers = Followers(self._watch, terms, lambda: MEET.epoch, self._parted, self._lacks)
        self._url = self.followers.listen("tcp://127.0.0.1:0", None)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        loop.add_reader(self._watch.descriptor, self._watch.wait, 0.0)
        self._ticking = loop.create_task(self._tick())
        self._sockets: list[zmq.Socket[bytes]] = []

    def _parted(self) -> None:
        self.partings += 1

    def _lacks(self) -> bool:
        self.lacks += 1
        return not self.may_begin

    async def _tick(self) -> None:
        while True:
            self.followers.tick(asyncio.get_running_loop().time())
            await asyncio.sleep(0.01)

    def connect(self, meet: Meet | None = None) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(self._url)
        self._sockets.append(socket)
        socket.send_multipart((meet or MEET).frames())
        return socket

    async def hears(self, socket: zmq.Socket[bytes]) -> list[bytes]:
        said: list[list[bytes]] = []

        def look() -> bool:
            with contextlib.suppress(zmq.Again):
                said.append(socket.recv_multipart(zmq.NOBLOCK))
            return bool(said)

        await until(look, "an answer of the standby", LIMIT_S)
        return said[0]

    async def refused(self, socket: zmq.Socket[bytes]) -> NotFollowed:
        frames = await self.hears(socket)
        assert frames[0] == NotFollowed.operation, frames
        return read(_decode_refusal, frames)

    async def follows(self, meet: Meet | None = None) -> tuple[zmq.Socket[bytes], int]:
        """Give a connection that is followed, and the number of the newest group over there."""
        followers = self.followers
        await until(lambda: not (followers.stores or followers._ending), "the store being closed", LIMIT_S)
        socket = self.connect(meet)
        frames = await self.hears(socket)
        assert frames[0] == Whereabouts.operation, frames
        return socket, read(_decode_whereabouts, frames).past.newest

    async def write(self, socket: zmq.Socket[bytes], store: str) -> None:
        """Have a group written to a store that is followed."""
        (follower,) = (one for one in self.followers._followers.values() if one.name == store)
        assert follower._receiving is not None
        socket.send_multipart(group(follower._receiving.log, b"first"))
        await self.hears(socket)
        await until(lambda: store in self.followers.brought, "a store that is brought", LIMIT_S)

    async def bring(self, meet: Meet = MEET) -> None:
        """Have a store here that once was where that of the primary is, which is away now."""
        socket, _ = await self.follows(meet)
        await self.write(socket, meet.store)
        socket.close()
        await until(lambda: not self.followers.stores, "the end of the connection", LIMIT_S)
        await until(lambda: not self.followers._ending, "the end of the store", LIMIT_S)

    async def close(self) -> None:
        self._ticking.cancel()
        await self.followers.close()
        asyncio.get_running_loop().remove_reader(self._watch.descriptor)
        self._context.destroy(linger=0)
        self._watch.close()


@contextlib.asynccontextmanager
async def standby(data: Path) -> AsyncIterator[Standby]:
    made = Standby(data, asyncio.get_running_loop())
    try:
        yield made
    finally:
        await made.close()


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 2 * LIMIT_S))


def group(log: GroupLog, key: bytes) -> list[bytes]:
    """Give a group of a primary that begins where this log is."""
    return frames_to_standby(log.group("a run", [(Table.BLOCKS, key, b"value")]))


def test_a_primary_of_another_kind_is_told_so_and_gets_nothing(tmp_path: Path) -> None:
    wrong: dict[int, list[dict[str, Any]]] = {
        errors.STANDBY_UNAUTHORIZED: [{"secret": "another secret"}],
        errors.STANDBY_REFUSED: [{"version": VERSION + 1}, {"node": "invoices"}, {"epoch": MEET.epoch - 1}],
        errors.INVALID_ARGUMENT: [{"store": "../config"}],
    }

    async def test() -> None:
        async with standby(tmp_path) as host:
            for code, changes in wrong.items():
                for change in changes:
                    told = await host.refused(host.connect(msgspec.structs.replace(MEET, **change)))
                    assert told.code == code, (change, told)
            assert host.followers.stores == []
        assert not any(path.is_dir() for path in tmp_path.rglob("*")), "nothing is made for it"

    run(test())


def test_a_host_hears_that_the_lease_was_given_back(tmp_path: Path) -> None:
    """That a connection is gone says nothing: whoever had it may be back in a moment."""

    async def test() -> None:
        async with standby(tmp_path) as there:
            for partings in range(2):
                host = there.connect(MEET_FILES)
                await there.hears(host)
                assert there.partings == 0
                if partings:
                    host.send_multipart(LeaseGiven().frames())
                    await until(lambda: there.partings == 1, "the word of the primary", LIMIT_S)
                host.close()
                await until(lambda: not there.followers._filing, "the end of the connection", LIMIT_S)

    run(test())


def test_the_data_of_another_node_are_not_overwritten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = NodeFile(node="orders", node_id="id", data_id="of another one", workers=1)
    (tmp_path / NODE_FILE).write_bytes(msgspec.json.encode(node))

    async def test() -> None:
        async with standby(tmp_path) as host:
            for _ in range(3):
                told = await host.refused(host.connect())
                assert (told.code, "not overwritten" in told.detail) == (errors.STANDBY_REFUSED, True)
            now = time.monotonic()
            assert "not overwritten" in host.followers.refusals.newest(now)
            assert host.followers.refusals.newest(now + 60.0) == "", "it calls no more"

    run(test())
    assert caplog.text.count("not overwritten") == 1, (
        "it tries again twice a second, as long as nobody sees to it"
    )


@pytest.mark.parametrize(
    "damage", [[b"\xff"], [b"GROUP", b"\xc1"], []], ids=["operation", "content", "short"]
)
def test_a_damaged_group_ends_the_conversation_and_harms_nothing_that_is_there(
    tmp_path: Path, damage: list[bytes]
) -> None:
    async def test() -> None:
        async with standby(tmp_path) as host:
            socket, newest = await host.follows()
            assert newest == 0
            spool_log = host.followers._followers[next(iter(host.followers._followers))]._receiving
            assert spool_log is not None
            whole = group(spool_log.log, b"first")
            socket.send_multipart(whole)
            await host.hears(socket)
            broken = group(spool_log.log, b"second")
            socket.send_multipart(damage or broken[:1])
            assert (await host.refused(socket)).code == errors.MALFORMED_FRAME
            _, newest = await host.follows()
            assert newest == 1, "what was whole is there, and nothing of the rest"

    run(test())


@pytest.mark.parametrize("step", ["open", "begin_anew", "write", "close"])
def test_whatever_keeps_a_store_from_being_followed_is_told_and_it_is_followed_when_that_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A primary that hears nothing of it would be answered as by a standby that is about to have everything."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    async def test() -> None:
        async with standby(tmp_path) as host:
            before = threading.active_count()
            with monkeypatch.context() as full:
                full.setattr(SpoolPlace, step if step != "close" else "write", refuse)
                if step == "close":
                    full.setattr(SpoolPlace, "close", refuse)
                socket = host.connect()
                if step != "open":
                    assert (await host.hears(socket))[0] == Whereabouts.operation
                    log = GroupLog(SimulatedDisk())
                    said = frames_to_standby(Fresh()) if step == "begin_anew" else group(log, b"first")
                    socket.send_multipart(said)
                assert (await host.refused(socket)).code == errors.DISK_FULL
                await until(lambda: threading.active_count() <= before, "the end of its thread", LIMIT_S)
            if step != "close":
                await host.follows()

    run(test())


def test_a_store_that_cannot_be_opened_is_not_said_to_be_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its primary tries again twice a second."""

    def refuse(*_: object) -> None:
        raise errors.error_for(errors.HOME_NOT_READY, "data.mdb")

    async def test() -> None:
        async with standby(tmp_path) as host:
            with monkeypatch.context() as damaged:
                damaged.setattr(SpoolPlace, "open", refuse)
                for _ in range(2):
                    assert (await host.refused(host.connect())).code == errors.HOME_NOT_READY
                    await until(lambda: not host.followers._ending, "the end of the store", LIMIT_S)
            assert "is followed" not in caplog.text
            await host.follows()
            assert "store 0 of the primary is followed" in caplog.text

    with caplog.at_level(logging.INFO):
        run(test())


@pytest.mark.parametrize("may_begin", [False, True])
def test_a_damaged_spool_is_brought_anew_unless_this_host_may_be_the_primary_by_now(
    tmp_path: Path, may_begin: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with standby(tmp_path) as host:
            await host.bring()
            file = tmp_path / "spool" / "0" / DATA_FILE
            damage = b"?" * file.stat().st_size
            file.write_bytes(damage)
            host.may_begin = may_begin
            if may_begin:
                assert (await host.refused(host.connect())).code == errors.SPOOL_DAMAGED
                assert file.read_bytes() == damage
            else:
                _, newest = await host.follows()
                assert newest == 0
                assert host.followers.brought == set()
                assert (tmp_path / "spool" / "damaged-0" / DATA_FILE).read_bytes() == damage
                assert f"spool {file}: " in caplog.text
                assert "angarium spool restore" not in caplog.text, "that is for a node that is alone"
            assert host.lacks == 1

    run(test())


def test_a_config_store_is_brought_anew_if_neither_of_its_files_can_be_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    meet = msgspec.structs.replace(MEET, store=CONFIG_FOLDER)

    async def test() -> None:
        async with standby(tmp_path) as host:
            await host.bring(meet)
            damage = b"?" * 20_000
            for folder in (CONFIG_FOLDER, f"{CONFIG_FOLDER}/{COPY_FOLDER}"):
                (tmp_path / folder / DATA_FILE).write_bytes(damage)
            _, newest = await host.follows(meet)
            assert newest == 0
            assert host.followers.brought == set()
            assert host.lacks == 1
            assert (tmp_path / "damaged-config" / DATA_FILE).read_bytes() == damage
            assert (
                "The primary brings store config anew, and damaged-config keeps what was here" in caplog.text
            )

    run(test())


@pytest.mark.parametrize("may_begin", [False, True])
def test_a_store_that_vanished_is_brought_anew_unless_this_host_may_be_the_primary_by_now(
    tmp_path: Path, may_begin: bool
) -> None:
    """Made anew in silence, this host would be taken for one that has everything, and lose it as the primary."""

    async def test() -> None:
        async with standby(tmp_path) as host:
            await host.bring()
            remove_spool(tmp_path / "spool" / "0")
            host.may_begin = may_begin
            if may_begin:
                assert (await host.refused(host.connect())).code == errors.HOME_NOT_READY
                assert not (tmp_path / "spool" / "0").exists()
            else:
                _, newest = await host.follows()
                assert newest == 0
                assert host.followers.brought == set()
            assert host.lacks == 1

    run(test())


def test_a_full_disk_is_told_and_the_store_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise SpoolFullError("no space left on device")

    async def test() -> None:
        async with standby(tmp_path) as host:
            socket, _ = await host.follows()
            receiving = host.followers._followers[next(iter(host.followers._followers))]._receiving
            assert receiving is not None
            with monkeypatch.context() as full:
                full.setattr(SpoolPlace, "write", refuse)
                socket.send_multipart(group(receiving.log, b"first"))
                assert (await host.refused(socket)).code == errors.DISK_FULL
                _, newest = await host.follows()
                assert newest == 0

    run(test())


def test_a_damaged_file_of_the_operator_is_told_to_the_primary(tmp_path: Path) -> None:
    (tmp_path / MANUAL_FILE).write_text('{"host"')
    alike = {"node": "orders", "node_id": "id", "data_id": MEET.data, "workers": 1}

    async def test() -> None:
        async with standby(tmp_path) as host:
            files, _ = await host.follows(MEET_FILES)
            files.send_multipart(ShipFiles(1, alike, {}, 5, "alpha", ["alpha"]).frames())
            assert (await host.refused(files)).code == errors.HOME_NOT_READY

    run(test())


@pytest.mark.requirement("R268")
def test_the_store_of_a_worker_that_left_is_dropped_when_nothing_is_written_to_it(tmp_path: Path) -> None:
    def files_of(number: int, workers: int) -> list[bytes]:
        alike = {"node": "orders", "node_id": "id", "data_id": MEET.data, "workers": workers}
        return ShipFiles(number, alike, {}).frames()

    async def test() -> None:
        async with standby(tmp_path) as host:
            files, _ = await host.follows(msgspec.structs.replace(MEET, store="files"))
            files.send_multipart(files_of(1, 2))
            store = host.connect(msgspec.structs.replace(MEET, store="1"))
            await host.hears(store)
            await host.write(store, "1")
            place = tmp_path / "spool" / "1"
            assert place.exists()
            await host.hears(files)
            files.send_multipart(files_of(2, 1))
            await host.hears(files)
            assert host.followers.stores == ["1"]
            assert place.exists(), "its worker may have something to say"
            store.close()
            await until(lambda: not place.exists(), "the store being dropped", LIMIT_S)
            await until(lambda: not host.followers.brought, "it being forgotten", LIMIT_S)
            await host.follows(msgspec.structs.replace(MEET, store="1"))  # of the next worker
            assert host.lacks == 0

    run(test())
