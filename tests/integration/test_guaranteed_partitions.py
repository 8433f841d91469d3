"""Partitions that change hands, come and go: nothing is lost, nothing is stored twice, what comes again says so."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from angarium import errors, wire
from tests.integration.attacked_spool import AttackedSpool, new_name
from tests.integration.raw_guaranteed import Got, RawGuaranteed, RawProducer, to_queue
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.integration.raw_client import Row

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unharmed")]

KEYS = [f"key-{number}" for number in range(30)]


def partitioned(attacked: AttackedSpool, count: int) -> str:
    """Make a queue whose partitions move at once."""
    return attacked.queue(
        access_type="non-exclusive",
        partition_count=count,
        partition_rebalance_delay_s=0,
        partition_rebalance_max_handoff_s=1,
    )


def keyed(queue: str, keys: list[str]) -> list[Row]:
    """Give a message for each key, with the key as its payload."""
    return [to_queue(n, queue, key.encode(), meta=[0, 0, None, key]) for n, key in enumerate(keys)]


def resize(attacked: AttackedSpool, queue: str, count: int) -> None:
    """Change the number of partitions, and wait until those that are too many are gone."""
    attacked.update("queue", queue, partition_count=count)
    wait_until(
        lambda: len(attacked.endpoint(queue)["lanes"]) == max(1, count), f"{queue} has {count} partitions"
    )


def ranges(messages: list[Got]) -> list[list[int]]:
    return [[one.partition, one.position, one.position] for one in messages]


@pytest.mark.requirement("R192")
def test_acknowledgements_that_come_after_a_partition_has_moved_are_refused(attacked: AttackedSpool) -> None:
    queue = attacked.queue(
        access_type="non-exclusive",
        partition_count=2,
        partition_rebalance_delay_s=0,
        partition_rebalance_max_handoff_s=1,
    )
    with attacked.client() as one, attacked.client() as other:
        producer = RawProducer(one)
        keys = [f"key-{number}" for number in range(8)]
        rows = [to_queue(n, queue, key.encode(), meta=[0, 0, None, key]) for n, key in enumerate(keys)]
        assert not any(producer.publish(*rows))
        flow = one.bind(queue)
        got = one.messages(flow, 8)
        assert {message.partition for message in got} == {0, 1}
        second = other.bind(queue)
        code, mine = one.indication(flow, wire.FLOW_PARTITIONS)
        assert (code, len(mine)) == (0, 1)
        lost = [message for message in got if message.partition not in mine]
        counted = attacked.errors(errors.PARTITION_LOST)
        one.settle(flow, [[lost[0].partition, lost[0].position, lost[0].position]])
        assert one.indication(flow, wire.FLOW_SETTLE_REFUSED)[0] == errors.PARTITION_LOST
        attacked.expect_errors(errors.PARTITION_LOST, counted + 1)
        again = other.messages(second, len(lost))
        assert [(one.payload, one.tries) for one in again] == [(one.payload, 1) for one in lost]
        one.settle(
            flow,
            [
                [message.partition, message.position, message.position]
                for message in got
                if message.partition in mine
            ],
        )
        other.settle(second, [[message.partition, message.position, message.position] for message in again])
        attacked.expect_held(queue, 0)


def test_messages_of_partitions_that_go_and_come_back_stay(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    queue = partitioned(attacked, 2)
    producer = RawProducer(client)
    for turn in range(1, 4):
        resize(attacked, queue, 3)
        assert not any(producer.publish(*keyed(queue, KEYS)))
        resize(attacked, queue, 1)
        attacked.expect_held(queue, turn * len(KEYS))
    resize(attacked, queue, 0)
    got = client.messages(client.bind(queue), 3 * len(KEYS))
    assert sorted(one.payload for one in got) == sorted(key.encode() for key in KEYS * 3)


def test_what_was_delivered_before_is_marked_after_its_partition_went(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    queue = partitioned(attacked, 3)
    assert not any(RawProducer(client).publish(*keyed(queue, KEYS)))
    flow = client.bind(queue)
    assert len(client.messages(flow, len(KEYS))) == len(KEYS)
    client.done("flow.unbind", flow=flow)
    resize(attacked, queue, 1)
    again = client.messages(client.bind(queue), len(KEYS))
    assert {one.tries for one in again} == {1}


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 7), (0, 2), (3, 1), (2, 0)])
def test_what_is_sent_again_after_the_partitions_changed_is_not_stored_twice(
    attacked: AttackedSpool, before: int, after: int
) -> None:
    queue, name = partitioned(attacked, before), new_name("producer")
    with attacked.client() as client:
        assert not any(RawProducer(client, name=name).publish(*keyed(queue, KEYS)))
    resize(attacked, queue, after)
    with attacked.client() as client:
        again = RawProducer(client, name=name)
        assert again.last == len(KEYS)
        again.last = 0
        assert not any(again.publish(*keyed(queue, KEYS)))
        attacked.expect_held(queue, len(KEYS))
        time.sleep(0.1)
        attacked.expect_held(queue, len(KEYS))


def test_a_producer_whose_only_partition_went_is_still_known(attacked: AttackedSpool) -> None:
    queue, name = partitioned(attacked, 2), new_name("producer")
    with attacked.client() as client:
        probe = RawProducer(client)
        assert not any(probe.publish(*keyed(queue, KEYS)))
        flow = client.bind(queue)
        got = client.messages(flow, len(KEYS))
        (key, *_) = [one.payload.decode() for one in got if one.partition == 1]
        client.settle(flow, ranges(got))
        client.done("flow.unbind", flow=flow)
        attacked.expect_held(queue, 0)
        assert not any(RawProducer(client, name=name).publish(*keyed(queue, [key] * 10)))
    resize(attacked, queue, 1)
    with attacked.client() as client:
        again = RawProducer(client, name=name)
        assert again.last == 10
        again.last = 0
        assert not any(again.publish(*keyed(queue, [key] * 10)))
        attacked.expect_held(queue, 10)


@pytest.mark.requirement("R144")
def test_what_a_selector_does_not_want_in_a_partition_is_skipped_and_waits_for_others(
    attacked: AttackedSpool, client: RawGuaranteed
) -> None:
    queue = partitioned(attacked, 2)
    rows = [to_queue(n, queue, key.encode(), meta=[0, 0, n % 10, key]) for n, key in enumerate(KEYS)]
    assert not any(RawProducer(client).publish(*rows))
    choosy = client.bind(queue, selector="JMSPriority >= 5")
    got = client.messages(choosy, 15)
    assert sorted(one.payload.decode() for one in got) == sorted(KEYS[n] for n in range(30) if n % 10 >= 5)
    client.settle(choosy, ranges(got))
    attacked.expect_held(queue, 15)
    client.done("flow.unbind", flow=choosy)
    assert len(client.messages(client.bind(queue), 15)) == 15


def test_many_partitions_and_few_consumers(attacked: AttackedSpool, client: RawGuaranteed) -> None:
    queue = partitioned(attacked, 300)
    producer = RawProducer(client)
    keys = [f"many-{number}" for number in range(250)]
    assert not any(producer.publish(*keyed(queue, keys)))
    flows = [client.bind(queue) for _ in range(3)]
    seen: list[str] = []
    while len(set(seen)) < 250:
        frame = client.next(wire.MESSAGES)
        client.kept.insert(0, frame)
        got = client.messages(frame.header[0], 1)
        seen += [one.payload.decode() for one in got]
        client.settle(frame.header[0], ranges(got))
    attacked.expect_held(queue, 0)
    assert len(flows) == 3
    attacked.delete("queue", queue)
