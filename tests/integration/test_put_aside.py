"""What workers die of is put aside with its owner at the second death; the others go on.

`deadly_worker/sitecustomize.py` makes the only worker die in the middle of a step.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import angarium
from angarium import errors
from tests.integration.attacked_spool import LoneSpool

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.requirement("R278")]

DEADLY = Path(__file__).with_name("deadly_worker")
LIMIT_S = 60.0
#: Far longer than a worker takes to start and to be sent again what it died of.
QUIET_S = 3.0


@pytest.fixture
def lone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoneSpool]:
    paths = [str(DEADLY), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    with LoneSpool(tmp_path, workers=1) as lone:
        for user in ("mallory", "alice"):
            lone.create("username", user, guaranteed_endpoint_permission_override=True)
        yield lone


def run(test: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(test, LIMIT_S)

    asyncio.run(limited())


async def restarts(lone: LoneSpool) -> int:
    return int((await asyncio.to_thread(lone.node.process, "worker"))["restarts"])


async def wait_for_restarts(lone: LoneSpool, count: int) -> None:
    def is_back(status: dict[str, Any]) -> bool:
        (worker,) = [row for row in status["processes"] if row["role"] == "worker"]
        return bool(worker["restarts"] == count and worker["state"] == "ready")

    await asyncio.to_thread(lone.node.wait_for, f"{count} restarts", is_back)


async def expect_peace(lone: LoneSpool, innocent: angarium.Client) -> None:
    """Fail if the worker dies once more, or an innocent publisher is not served."""
    await wait_for_restarts(lone, 2)
    producer = await innocent.producer()
    until = asyncio.get_running_loop().time() + QUIET_S
    while asyncio.get_running_loop().time() < until:
        await producer.publish("#P2P/QUE/innocent", b"x")
        await asyncio.sleep(0.1)
    assert await restarts(lone) == 2
    assert innocent.stats["reconnects"] == 0


async def expect_told(lone: LoneSpool, what: str) -> None:
    deaths = await asyncio.to_thread(lone.expect_events, "SYSTEM_WORKER_DIED_AT_WORK", 2)
    (aside,) = await asyncio.to_thread(lone.expect_events, "SYSTEM_PUT_ASIDE", 1)
    assert all(
        what in event["text"] and event["index"] == 0 for event in [*deaths, aside] if "index" in event
    )
    assert aside["vpn"] == "default"
    assert what in aside["text"]


async def expect_shut_down(client: angarium.Client, queue: str) -> None:
    """Consume what workers die of until that is refused."""

    async def consume() -> None:
        async with client.consume(queue) as flow:
            async for _ in flow:
                pass

    with pytest.raises(angarium.AngariumError) as refused:
        await consume()
    assert refused.value.code == errors.ENDPOINT_SHUTDOWN


@pytest.mark.long
def test_a_client_whose_direct_messages_kill_workers_is_disconnected(lone: LoneSpool) -> None:
    async def attack() -> None:
        ends: list[angarium.ClientEvent] = []
        async with (
            angarium.connect(lone.node.url, username="alice") as alice,
            angarium.connect(lone.node.url, username="mallory", on_event=ends.append) as mallory,
        ):
            await alice.create_queue("innocent")
            for death in (1, 2):
                await mallory.publish("deadly/x", b"")
                await wait_for_restarts(lone, death)
            await expect_peace(lone, alice)
            await expect_told(lone, "mallory")
            assert [one.code for one in ends if one.kind == "disconnected"] == [errors.PUT_ASIDE]
            with pytest.raises(angarium.AngariumError) as refused:
                await mallory.publish("deadly/x", b"")
            assert refused.value.code == errors.PUT_ASIDE

    run(attack())


@pytest.mark.long
def test_a_guaranteed_message_that_kills_workers_fails_its_producer(lone: LoneSpool) -> None:
    async def attack() -> None:
        async with (
            angarium.connect(lone.node.url, username="alice") as alice,
            angarium.connect(lone.node.url, username="mallory") as mallory,
        ):
            await alice.create_queue("innocent")
            producer = await mallory.producer()
            with pytest.raises(angarium.AngariumError) as refused:
                await producer.publish("deadly/x", b"")
            assert refused.value.code == errors.PUT_ASIDE
            await expect_peace(lone, alice)
            await expect_told(lone, "mallory")

    run(attack())


def test_a_queue_of_which_workers_die_delivers_nothing_until_an_operator_says_so(lone: LoneSpool) -> None:
    async def attack() -> None:
        async with (
            angarium.connect(lone.node.url, username="alice") as alice,
            angarium.connect(lone.node.url, username="mallory") as mallory,
        ):
            await alice.create_queue("innocent")
            await mallory.create_queue("deadly")
            await (await mallory.producer()).publish("#P2P/QUE/deadly", b"kept")
            await expect_shut_down(mallory, "deadly")
            await expect_peace(lone, alice)
            await expect_told(lone, "'deadly'")
            shown = await asyncio.to_thread(lone.endpoint, "deadly")
            assert (shown["egress_enabled"], shown["messages_spooled"]) == (False, 1), shown
            lone.update("queue", "deadly", egress_enabled=True)
            await expect_shut_down(mallory, "deadly")
            await wait_for_restarts(lone, 4)

    run(attack())


@pytest.mark.long  # unit/cluster/test_cluster_blame.py, and test_home_process.py for the disk
def test_a_disk_that_fails_is_not_blamed_on_the_queue_that_was_served(lone: LoneSpool) -> None:
    async def fail() -> None:
        async with angarium.connect(lone.node.url, username="mallory") as mallory:
            await mallory.create_queue("failing")
            await (await mallory.producer()).publish("#P2P/QUE/failing", b"kept")
            consumer = asyncio.create_task(expect_shut_down(mallory, "failing"))
            while await restarts(lone) < 3:
                await asyncio.sleep(0.1)
            assert not consumer.done(), "it goes on trying"
            consumer.cancel()
            await asyncio.gather(consumer, return_exceptions=True)
            assert await asyncio.to_thread(lone.events, "SYSTEM_WORKER_DIED_AT_WORK") == []

    run(fail())
