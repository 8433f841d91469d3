"""How flows share the frames that a client may say: nobody is ended for consuming fast."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from angarium import wire
from angarium.client.consuming import outcomes
from angarium.client.consuming.outcomes import Pace
from tests.unit.angarium.spoken_node import SpokenNode, open_flow, run

if TYPE_CHECKING:
    import pytest


def test_after_a_silence_a_burst_may_be_said_and_then_the_rate() -> None:
    async def test() -> None:
        bucket, now = Pace(), asyncio.get_running_loop().time
        said, began = 0, now()
        while bucket.take():
            said, began = said + 1, now()  # before the look that finds it empty: it fills from then on
            assert said < 3 * outcomes.FRAMES_BURST
        assert said >= outcomes.FRAMES_BURST
        await asyncio.sleep(0.05)
        said = 0
        while bucket.take():
            said += 1
        passed = now() - began
        assert said <= passed * outcomes.FRAMES_PER_SECOND + 1
        bucket.validate()

    run(test())


def test_who_waits_is_called_once_and_soon() -> None:
    async def test() -> None:
        bucket, called = Pace(), []

        def speak() -> None:
            called.append(1)

        for _ in range(3):
            bucket.wait(speak)
        assert bucket.waits == 1
        while not called:
            await asyncio.sleep(0.001)
        await asyncio.sleep(outcomes.WAIT_S * 3)
        assert called == [1]

    run(test())


def test_what_a_flow_may_not_say_now_it_says_together_later() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, window=2, ack="manual")
        bucket = node.guaranteed._pace
        bucket._frames = -1e6  # minutes, however slow the machine is
        node.messages(1, 1, [b"1", b"2"])
        for _ in range(2):
            flow.accept(await flow.receive())
        await node.steps()
        assert node.sent() == []
        assert bucket.waits >= 2, "one for credit, one for outcomes"
        bucket._frames = float(outcomes.FRAMES_BURST)
        frames: list[tuple[bytes, Any]] = []
        while len(frames) < 2:
            await asyncio.sleep(0.001)
            frames += [(frame.operation, frame.header[:2]) for frame in node.sent()]
        assert sorted(frames) == [(wire.SETTLE, [1, 0]), (wire.FLOW_CREDIT, [1, 4])]
        assert node.guaranteed.stats["paced_flows"] >= 2

    run(test())


def test_what_waits_is_told_when_the_flow_is_closed() -> None:
    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, ack="manual", ack_delay_ms=0)
        node.guaranteed._pace._frames = -1e6
        node.messages(1, 1, [b"1"])
        (await flow.receive()).reject()
        await node.steps()
        assert node.sent() == []
        await flow.close(timeout_s=0)
        assert [frame.operation for frame in node.sent()] == [wire.SETTLE, wire.REQUEST]

    run(test())


def test_many_ranges_of_outcomes_cost_more_than_one_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def take(frames: int = 1) -> bool:
        taken.append(frames)
        return True

    async def test() -> None:
        node = SpokenNode()
        flow = await open_flow(node, ack="manual", window=10_000)
        monkeypatch.setattr(node.guaranteed._pace, "take", take)
        node.messages(1, 1, [b"%d" % number for number in range(1_280)])
        batch = await anext(flow.batches())
        flow.reject(batch[number] for number in range(0, 1_280, 2))
        await node.steps()
        assert 1 + 640 // outcomes.RANGES_PER_FRAME in taken

    run(test())
