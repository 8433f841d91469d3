"""Reading a planned range: each message once, whenever the node says that it is the end."""

from __future__ import annotations

import asyncio

import pytest

from angarium import wire
from angarium.client.consuming.flow_options import FlowOptions, RangeOptions
from tests.unit.angarium.spoken_node import SpokenNode, bound, run


@pytest.mark.requirement("R221")
def test_a_range_that_comes_together_with_the_answer_to_its_bind_is_read_once() -> None:
    """The node has sent everything before the caller's task goes on: it must not bind again."""

    async def test() -> None:
        node = SpokenNode()
        options = FlowOptions(name="q", browse=True, range=RangeOptions("g", 0, 1, 4), timeout_s=5.0)
        task = asyncio.ensure_future(node.guaranteed.range_reader(options))
        requests: list[int] = []
        while not requests:
            await asyncio.sleep(0)
            requests += [frame.header[0] for frame in node.sent(wire.REQUEST)]
        node.answer(requests[0], bound(1))
        node.messages(1, 1, [b"1", b"2", b"3"])
        node.hear(wire.INDICATION, [1, wire.FLOW_CLOSED, 0, None])
        reader = await task
        (batch,) = await reader.read()
        assert batch.payloads == [b"1", b"2", b"3"]
        await node.steps()
        assert await reader.read() == []
        assert node.sent(wire.REQUEST) == []

    run(test())
