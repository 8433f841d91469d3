"""A node whose disk is full refuses what is new, delivers what it has, stops, starts, and goes on with room again."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import resource
import shutil
import subprocess
from typing import TYPE_CHECKING, Protocol

import pytest

import angarium
from angarium import blocking, errors
from angarium_server.testing import Node
from cluster.admin.client import Admin

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

DISK_MB = 64
#: Far more than fit into what files have ahead.
ATTEMPTS_MAX = 400
#: A publisher hears by then.
WAIT_S = 20.0
PAYLOAD = b"x" * 100_000
#: Messages, 16 MB: far more than is kept for what is under way.
WINDOW = 160
#: An object of about 100 kB.
FILTERS = [f"{'a' * 230}/{number}" for number in range(400)]


class Disk(Protocol):
    """A disk that a test fills."""

    data: Path

    def fill(self, node: Node) -> None:
        """Leave no room for what the node has not allocated; also for its next processes."""

    def free(self, node: Node) -> None:
        """Leave room again."""


class Mounted:
    """A small file system in memory, with a file that takes what is left of it."""

    def __init__(self, place: Path) -> None:
        self.data = place / "data"
        self._ballast = place / "ballast"

    def fill(self, _node: Node, left: int = 0) -> None:
        with self._ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(self._ballast.parent).free - left)
        assert shutil.disk_usage(self._ballast.parent).free == left

    def free(self, _node: Node) -> None:
        self._ballast.unlink()


class Limited:
    """Limits of the system on the size of files: no process of the node makes one longer than it is."""

    def __init__(self, place: Path) -> None:
        self.data = place / "data"

    def fill(self, node: Node) -> None:
        sizes = {
            "supervisor": 4_096,
            "controller": (self.data / "config/data.mdb").stat().st_size,
            "worker": (self.data / "spool/0/data.mdb").stat().st_size,
        }
        for row in node.status()["processes"]:
            if row["role"] in sizes:
                _limit(row["pid"], sizes[row["role"]])
        _limit(os.getpid(), max(sizes.values()))  # the node of the next start inherits it

    def free(self, node: Node) -> None:
        for pid in (os.getpid(), *(row["pid"] for row in node.status()["processes"])):
            _limit(pid, resource.RLIM_INFINITY)


def _limit(pid: int, size: int) -> None:
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.fixture(params=[pytest.param("mounted", marks=pytest.mark.long), "limited"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if request.param == "limited":
        yield Limited(tmp_path)
        _limit(os.getpid(), resource.RLIM_INFINITY)
        return
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "angarium-test", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield Mounted(tmp_path)
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=False)


@pytest.mark.requirement("R281")
def test_a_full_disk_costs_only_what_is_new(disk: Disk) -> None:
    with Node(disk.data, workers=1) as node:
        node.run("queue", "create", "q", "--subscription", "q/>")
        assert publish(node, 20) == 20
        disk.fill(node)
        before = {row["pid"] for row in node.status()["processes"]}

        sent = 20 + publish(node, ATTEMPTS_MAX)
        assert sent < ATTEMPTS_MAX, "messages were acknowledged that found no room"
        refusal = create_until_refused(node)
        assert refusal.code == errors.DISK_FULL
        status = node.status()
        assert {row["pid"] for row in status["processes"]} == before, "a process ended"
        assert status["disk_full"] == ["worker 0", "configuration and events"]
        assert "disk full" in node.run("status")
        names = [json.loads(line)["event"] for line in node.run("events", "--json").splitlines()]
        assert {"SYSTEM_DISK_FULL", "SYSTEM_AD_DISK_FULL"} <= set(names)

        assert consume(node, 10) == 10
        node.restart()
        assert consume(node, sent - 10) == sent - 10
        node.run("queue", "delete", "q")

        disk.free(node)
        node.wait_for("room", lambda status: not status["disk_full"])
        node.run("queue", "create", "q", "--subscription", "q/>")
        assert publish(node, 20) == 20


@pytest.mark.requirement("R281")
@pytest.mark.parametrize("disk", ["mounted"], indirect=True)
def test_publishing_goes_on_when_consumers_have_made_room(disk: Disk) -> None:
    """Publishers with windows of 16 MB, two homes, no room but what consumers make: each once, or refused."""
    with Node(disk.data, workers=2) as node:
        for name in ("a", "b"):
            node.run("queue", "create", name, "--subscription", "both/>", "--subscription", f"{name}/>")
        disk.fill(node)
        story = Story(node)
        asyncio.run(asyncio.wait_for(story.run(rounds=3), 180.0))
        for name, received in story.received.items():
            expected = [one for one in story.acknowledged if one.startswith((f"{name}/", "both/"))]
            assert sorted(received) == sorted(expected), "lost, doubled, or refused and there"


@pytest.mark.requirement("R281")
@pytest.mark.parametrize("disk", ["mounted"], indirect=True)
def test_more_workers_wait_for_room_for_their_spools(disk: Disk) -> None:
    """There is room for what the config store and the audit log say of it, and for no other spool."""
    assert isinstance(disk, Mounted)
    with Node(disk.data, workers=1) as node:
        disk.fill(node, left=16_384)
        node.run("worker", "scale", "2")
        node.wait_for("what it lacks", lambda status: "configuration and events" in status["disk_full"])
        assert "the node stays at 1 workers" in node.output()
        disk.free(node)
        node.wait_for("another worker", lambda status: status["workers"] == 2)


class Story:
    """Publishers that publish until they are refused, and then consumers that read all, again and again."""

    def __init__(self, node: Node) -> None:
        self._url = node.url
        self.acknowledged: list[str] = []
        self.refused: set[str] = set()
        self.received: dict[str, list[str]] = {"a": [], "b": []}
        self._numbers = itertools.count()

    async def run(self, rounds: int) -> None:
        async with angarium.connect(self._url) as client:
            for _ in range(rounds):
                before = len(self.acknowledged)
                await asyncio.gather(*(self._publish(name) for name in ("a", "b", "both")))
                assert len(self.acknowledged) > before, "nothing was published though there was room"
                await self._consume(client)
                while not await self._one(client, "both"):
                    await asyncio.sleep(0.05)
            await self._consume(client)

    async def _publish(self, name: str) -> None:
        """Publish as much at once as a window takes until messages are refused."""
        async with angarium.connect(self._url) as client:
            while all(await asyncio.gather(*(self._one(client, name) for _ in range(WINDOW)))):
                pass

    async def _one(self, client: angarium.Client, name: str) -> bool:
        """Publish one message, and tell whether there was room for it."""
        what = f"{name}/{next(self._numbers)}"
        try:
            await asyncio.wait_for(client.publish(what, PAYLOAD, mode="persistent"), WAIT_S)
        except errors.UnavailableError as error:
            if error.code != errors.DISK_FULL:
                raise
            self.refused.add(what)
            return False
        self.acknowledged.append(what)
        return True

    async def _consume(self, client: angarium.Client) -> None:
        """Take all that is there."""
        for name, received in self.received.items():
            expected = sum(one.startswith((f"{name}/", "both/")) for one in self.acknowledged)
            async with client.consume(name) as flow:
                while len(received) < expected:
                    message = await flow.receive(timeout_s=10.0)
                    received.append(message.topic)
                    message.accept()
                with pytest.raises(TimeoutError):
                    await flow.receive(timeout_s=0.2)


def publish(node: Node, count: int) -> int:
    """Publish until one message is refused for want of room, and give how many were acknowledged."""

    async def until_refused() -> int:
        async with angarium.connect(node.url) as client:
            for number in range(count):
                try:
                    await asyncio.wait_for(client.publish(f"q/{number}", PAYLOAD, mode="persistent"), WAIT_S)
                except errors.UnavailableError as error:
                    return number if error.code == errors.DISK_FULL else -1
        return count

    return asyncio.run(until_refused())


def consume(node: Node, count: int) -> int:
    """Acknowledge so many messages of the queue."""
    with blocking.connect(node.url) as client, client.consume("q") as flow:
        for _ in range(count):
            message = flow.receive(timeout_s=10.0)
            message.accept()
    return count


def create_until_refused(node: Node) -> errors.AngariumError:
    """Create objects until one is refused, and give the refusal."""
    with Admin(node.data) as admin:
        for number in range(ATTEMPTS_MAX):
            try:
                attributes = {"subscriptions": FILTERS}
                admin.call(
                    "objects.create", kind="queue", vpn="default", name=f"big/{number}", attributes=attributes
                )
            except errors.AngariumError as error:
                return error
    raise AssertionError("nothing was refused")
