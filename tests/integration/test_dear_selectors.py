"""A user whose selectors cost as much as they can, beside another one who publishes: only the first one waits.

One worker, so that both have the same one.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

import angarium
from angarium import Message
from tests.integration.attacked_spool import LoneSpool
from tests.share import short

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

#: Sixteen patterns of which each walks the whole text: 2 ms for a message, and 200 with a loop for each character.
SELECTOR = " OR ".join([f"p LIKE '%{'a_' * 49}b%'"] * 16)
TEXT = "a" * 2_000
MESSAGES = short(100, long=400)
#: What the innocent publisher may wait for an acknowledgement, nearly always and once, beyond what it waits on this
#: machine anyway, of which nobody knows what else it does. Each attack would take the worker for twice as long as the
#: publisher goes on.
NEARLY_ALWAYS_S = 0.3
ONCE_S = 3.0
USUALLY = 10
#: How long it publishes before the attack, and beside it.
BEFORE_S, BESIDE_S = short((0.5, 1.0), long=(1.0, 4.0))
LIMIT_S = 60.0


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[LoneSpool]:
    # So little that a worker spends it also on a tenth of a core.
    with LoneSpool(tmp_path, "[worker]\nselector_ms_per_s = 100\n", workers=1) as lone:
        for user in ("mallory", "alice"):
            lone.create("username", user, guaranteed_endpoint_permission_override=True)
        yield lone


def run(test: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(test, LIMIT_S * 2)

    asyncio.run(limited())


async def publish_dear(client: angarium.Client, topic: str) -> None:
    producer = await client.producer()
    rows = [Message(topic, b"", mode="persistent", properties={"p": TEXT}) for _ in range(MESSAGES)]
    report = await producer.publish_many(rows)
    assert report.acknowledged == MESSAGES


async def waits(lone: LoneSpool, seconds: float) -> list[float]:
    """Publish as another user for a while; give how long each acknowledgement took, the shortest first."""
    took = []
    async with angarium.connect(lone.node.url, username="alice") as client:
        await client.create_queue("innocent", ignore_exists=True)
        producer = await client.producer()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            began = time.monotonic()
            await producer.publish("#P2P/QUE/innocent", b"x")
            took.append(time.monotonic() - began)
            await asyncio.sleep(0.01)
    return sorted(took)


async def expect_undisturbed(lone: LoneSpool, usual: list[float]) -> None:
    """Fail if the worker died, or if another publisher had to wait longer than it usually does."""
    took = await waits(lone, BESIDE_S)
    worker = await asyncio.to_thread(lone.node.process, "worker")
    assert worker["restarts"] == 0, worker
    assert took[len(took) * 99 // 100] < NEARLY_ALWAYS_S + USUALLY * usual[-1], (took[-20:], usual[-5:])
    assert took[-1] < ONCE_S + USUALLY * usual[-1], (took[-20:], usual[-5:])


def examined(lone: LoneSpool, name: str, kind: str = "queue") -> int:
    return int(lone.endpoint(name, kind)["selector_examined"])


@pytest.mark.requirement("R278")
def test_browsers_with_dear_selectors_disturb_nobody(lone: LoneSpool) -> None:
    async def attack() -> None:
        usual = await waits(lone, BEFORE_S)
        async with angarium.connect(lone.node.url, username="mallory") as mallory:
            await mallory.create_queue("own")
            await publish_dear(mallory, "#P2P/QUE/own")
            flows = [await mallory.browse("own", selector=SELECTOR) for _ in range(10)]
            await expect_undisturbed(lone, usual)
            count = await asyncio.to_thread(examined, lone, "own")
            assert MESSAGES // 4 < count < 10 * MESSAGES, "they were examined, and slowed down"
            await asyncio.to_thread(lone.expect_events, "SYSTEM_AD_SELECTORS_SLOWED", 1)
            for flow in flows:
                await flow.close()

    run(attack())


@pytest.mark.long
@pytest.mark.requirement("R278")
def test_a_topic_endpoint_with_a_dear_selector_disturbs_nobody_also_after_a_start(lone: LoneSpool) -> None:
    async def attack() -> None:
        usual = await waits(lone, BEFORE_S)
        async with angarium.connect(lone.node.url, username="mallory") as mallory:
            await mallory.create_topic_endpoint("own")
            async with mallory.consume("own", kind="topic-endpoint", topic="dear/>", selector=SELECTOR):
                for _ in range(2):
                    await publish_dear(mallory, "dear/x")
        await expect_undisturbed(lone, usual)
        assert await asyncio.to_thread(lone.held, "own", "topic-endpoint") > 0, "it goes on, slowly"
        await asyncio.to_thread(lone.node.restart)
        await expect_undisturbed(lone, usual)
        deadline = time.monotonic() + LIMIT_S
        while await asyncio.to_thread(lone.held, "own", "topic-endpoint"):
            assert time.monotonic() < deadline, "it gets through"
            await asyncio.sleep(0.1)

    run(attack())
