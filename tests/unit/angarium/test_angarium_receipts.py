"""What receipts, reports and callbacks of a producer tell of messages that were acknowledged."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from angarium import errors
from tests.unit.angarium.spoken_node import SpokenNode, open_producer, run


@pytest.mark.requirement("R277")
def test_receipts_reports_and_callbacks_tell_what_no_endpoint_took() -> None:
    async def test() -> None:
        node = SpokenNode()
        heard: list[Any] = []
        producer = await open_producer(node, on_ack=heard.append)
        receipts = [await producer.send("t") for _ in range(4)]
        await node.steps()
        node.acked(1, 3, (3, errors.SPOOL_OVER_QUOTA, ""), unroutable=[(1, 1), (3, 1)])
        assert [receipt.unroutable for receipt in receipts] == [True, False, False, False], "3 was refused"
        assert "unroutable" in repr(receipts[0])
        assert "stored" in repr(receipts[1])
        assert await receipts[0] == 1
        assert heard[0].unroutable == [range(1, 2), range(3, 4)]
        node.acked(1, 4)
        publishing = asyncio.ensure_future(producer.publish_many([("t", b"")] * 6))
        await node.steps()
        node.acked(1, 7, unroutable=[(6, 2)])
        node.acked(1, 10, unroutable=[(8, 1), (10, 1)])
        report = await publishing
        assert (report.acknowledged, report.refused, report.unroutable) == (6, [], 4)
        assert producer.stats["unroutable_messages"] == node.guaranteed.stats["unroutable_messages"] == 5

    run(test())


@pytest.mark.parametrize("is_told_before", [False, True])
def test_a_refusal_is_told_by_flush_if_who_waited_for_it_gave_up(is_told_before: bool) -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        receipt = await producer.send("t")
        many = asyncio.ensure_future(producer.publish_many([("t", b"")] * 3))
        waiting = asyncio.ensure_future(_wait(receipt))
        await node.steps()
        if is_told_before:
            node.acked(1, 1, (1, errors.SPOOL_OVER_QUOTA, ""), (3, errors.SPOOL_OVER_QUOTA, ""))
        waiting.cancel()
        many.cancel()
        await node.steps()
        assert waiting.cancelled()
        assert many.cancelled()
        if not is_told_before:
            node.acked(1, 1, (1, errors.SPOOL_OVER_QUOTA, ""), (3, errors.SPOOL_OVER_QUOTA, ""))
        node.acked(1, 4)
        with pytest.raises(errors.AngariumError, match="2 messages were refused"):
            await producer.flush()
        await producer.flush()

    run(test())


def test_a_refusal_is_told_by_flush_if_who_gave_the_messages_gets_no_report() -> None:
    async def test() -> None:
        node = SpokenNode()
        producer = await open_producer(node)
        many = asyncio.ensure_future(producer.publish_many([("t", b""), ("", b"")]))
        await node.steps()
        node.acked(1, 1, (1, errors.SPOOL_OVER_QUOTA, ""))
        await node.steps()
        assert isinstance(many.exception(), errors.InvalidRequestError)
        with pytest.raises(errors.AngariumError, match="sequence 1"):
            await producer.flush()

    run(test())


async def _wait(receipt: Any) -> None:
    await receipt
