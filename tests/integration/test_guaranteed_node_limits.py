"""The limits of a whole node, which everybody feels: quota, spool files, unsettled messages, names of producers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from angarium import errors, wire
from tests.integration.attacked_spool import LoneSpool, new_name
from tests.integration.raw_guaranteed import RawGuaranteed, RawProducer, kept, to_queue
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

MB = 1_000_000
TENTH = bytes(MB // 10 - wire.SPOOL_OVERHEAD_BYTES)
WHOLE = bytes(MB - wire.SPOOL_OVERHEAD_BYTES)
QUIET_S = 0.3
#: Delivered and not settled, over both workers.
UNACKED_MAX = 20
FILES_MAX = 3
WINDOW_BYTES = 65_536

CONFIG = f"""
[router]
producer_window_bytes = {WINDOW_BYTES}
[spool]
max_usage_mb = 1
max_delivered_unacked = {UNACKED_MAX}
subscription_exceptions = false
"""
CONFIG_OF_PRODUCERS = """
[spool]
producers_max = 5
vpn_share_percent = 100
username_share_percent = 100
"""
CONFIG_OF_SHARES = """
[spool]
producers_max = 8
vpn_share_percent = 75
username_share_percent = 50
"""
CONFIG_OF_FILES = f"""
[spool]
max_files = {FILES_MAX}
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneSpool]:
    with LoneSpool(tmp_path_factory.mktemp("small"), CONFIG) as small:
        yield small


@pytest.fixture
def client(small: LoneSpool) -> Iterator[RawGuaranteed]:
    with small.client() as client:
        yield client
    wait_until(lambda: small.status()["sessions"] == 0, "everybody is gone")
    for row in small.ask("endpoints.list"):
        if row["name"] != wire.RETAINED_QUEUE:
            small.delete("queue", row["name"])


def queues_apart(small: LoneSpool) -> tuple[list[str], list[list[int]]]:
    """Make two queues at different homes, and give them and their homes."""
    by_home: dict[int, str] = {}
    while len(by_home) < 2:
        queue = small.queue()
        by_home.setdefault(small.endpoint(queue)["homes"][0], queue)
    return list(by_home.values()), [[home] for home in by_home]


def unsettled(small: LoneSpool) -> int:
    return int(small.status()["spool"]["delivered_unacked"])


@pytest.mark.requirement("R171", "R178")
def test_the_node_holds_its_quota_to_the_byte_over_all_message_vpns(
    small: LoneSpool, client: RawGuaranteed
) -> None:
    vpn = small.vpn()
    queue, far = small.queue(), small.queue(vpn=vpn)
    producer = RawProducer(client)
    with small.client(vpn=vpn) as stranger:
        other = RawProducer(stranger)
        assert other.fill(far, *[TENTH] * 4) == [0] * 4
        assert producer.fill(queue, *[TENTH] * 6) == [0] * 6
        small.expect_spool(usage_bytes=MB)
        assert other.fill(far, b"") == [errors.SPOOL_OVER_QUOTA]
        assert producer.fill(queue, b"") == [errors.SPOOL_OVER_QUOTA]
        small.expect_discards("spool-usage-exceeded", 2)
        small.expect_counters(queue, node_spool_usage_exceeded=1)
        assert small.ask("endpoints.purge", name=far, vpn=vpn) == {"purged": 4}
        small.expect_held(far, 0, vpn=vpn)
        assert producer.fill(queue, TENTH) == [0]
    (event,) = small.expect_events("SYSTEM_AD_MSG_SPOOL_HIGH", 1)
    assert event["severity"] == "warning"


@pytest.mark.requirement("R171")
def test_dead_messages_that_fill_the_node_move_to_their_queue(
    small: LoneSpool, client: RawGuaranteed
) -> None:
    dead = small.queue()
    queue = small.queue(dead_message_queue=dead, respect_dmq_eligible=False)
    producer = RawProducer(client)
    assert producer.fill(queue, *[TENTH] * 10) == [0] * 10
    flow = client.bind(queue)
    assert len(client.messages(flow, 10)) == 10
    client.settle(flow, [[0, 1, 10]], wire.OUTCOME_REJECTED)
    small.expect_held(dead, 10)
    small.expect_held(queue, 0)
    small.expect_spool(usage_bytes=MB)
    assert producer.fill(queue, b"") == [errors.SPOOL_OVER_QUOTA]
    assert small.ask("endpoints.purge", name=dead) == {"purged": 10}
    small.expect_held(dead, 0)
    assert producer.fill(queue, TENTH) == [0]


@pytest.mark.requirement("R195", "R196", "R197")
def test_one_queue_may_have_all_that_the_node_may_deliver_unsettled_and_shares_it_as_it_settles(
    small: LoneSpool, client: RawGuaranteed
) -> None:
    (greedy, modest), _ = queues_apart(small)
    producer = RawProducer(client)
    assert not any(producer.fill(greedy, *[b""] * (3 * UNACKED_MAX)))
    flow = client.bind(greedy)
    assert [one.position for one in client.messages(flow, UNACKED_MAX)] == [*range(1, UNACKED_MAX + 1)]
    client.none_within(wire.MESSAGES, QUIET_S)
    wait_until(lambda: unsettled(small) == UNACKED_MAX, "the node knows")
    for name in ("HIGH", "EXCEEDED"):
        small.expect_events(f"SYSTEM_AD_DELIVERED_UNACKED_MSGS_{name}", 1)
    with small.client() as other:
        RawProducer(other).fill(modest, *[b""] * 3)
        second = other.bind(modest)
        other.none_within(wire.MESSAGES, QUIET_S)
        client.settle(flow, [[0, 1, 2]])
        assert len(other.messages(second, 2)) == 2, "what is settled goes to the worker that has less"
        assert unsettled(small) <= UNACKED_MAX
        client.settle(flow, [[0, 3, UNACKED_MAX]])
        assert len(other.messages(second, 1)) == 1
        assert len(client.messages(flow, UNACKED_MAX - 3)) == UNACKED_MAX - 3, "and the rest is in use"
        client.none_within(wire.MESSAGES, QUIET_S)
        assert unsettled(small) == UNACKED_MAX

    def is_clear() -> bool:
        client.settle(flow, [[0, 1, 3 * UNACKED_MAX]])  # For what is settled the next ones come.
        return bool(small.events("SYSTEM_AD_DELIVERED_UNACKED_MSGS_HIGH_CLEAR"))

    wait_until(is_clear, "operators hear of it")


@pytest.mark.requirement("R195", "R196")
def test_what_a_killed_worker_had_delivered_is_free_when_it_is_back(
    small: LoneSpool, client: RawGuaranteed
) -> None:
    """It had all of the limit; its messages come again, within the limit, and others are not left out."""
    (greedy, modest), ((home,), _) = queues_apart(small)
    producer = RawProducer(client)
    assert not any(producer.fill(greedy, *[b""] * (2 * UNACKED_MAX)))
    flow = client.bind(greedy)
    assert len(client.messages(flow, UNACKED_MAX)) == UNACKED_MAX
    with small.client() as other:
        RawProducer(other).fill(modest, b"")
        second = other.bind(modest)
        other.none_within(wire.MESSAGES, QUIET_S)
        small.node.kill("worker", home)
        assert len(other.messages(second, 1)) == 1
        again = client.messages(flow, UNACKED_MAX - 1)
        assert [(one.position, one.tries) for one in again] == [(n, 1) for n in range(1, UNACKED_MAX)]
        client.none_within(wire.MESSAGES, QUIET_S)
        wait_until(lambda: unsettled(small) == UNACKED_MAX, "the node knows")


@pytest.mark.requirement("R196")
def test_a_consumer_that_goes_gives_its_part_of_the_unsettled_messages_back(
    small: LoneSpool, client: RawGuaranteed
) -> None:
    queues, _ = queues_apart(small)
    for queue in queues:
        RawProducer(client).fill(queue, *[b""] * UNACKED_MAX)
    with small.client() as dying:
        assert len(dying.messages(dying.bind(queues[0]), UNACKED_MAX)) == UNACKED_MAX
        flow = client.bind(queues[1])
        client.none_within(wire.MESSAGES, QUIET_S)
    assert len(client.messages(flow, UNACKED_MAX)) == UNACKED_MAX


def test_bytes_of_a_producer_may_be_overdrawn_by_one_round(small: LoneSpool) -> None:
    queue = small.queue()
    half = bytes(WINDOW_BYTES // 2)
    with small.client() as client:
        handle = client.producer()
        with small.stopped("worker", 0), small.stopped("worker", 1):
            client.publish(handle, 1, [to_queue(0, queue, half[:-200])])
            client.publish(handle, 2, [to_queue(0, queue, half), to_queue(1, queue, half)])
            assert client.is_open()
            client.publish(handle, 4, [to_queue(0, queue)])
            assert client.closed() == errors.PRODUCER_WINDOW_EXCEEDED
    assert small.held(queue) in (0, 1, 3)


def test_the_node_remembers_so_many_producers_and_says_when_it_forgot_one(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("producers")
    with LoneSpool(folder, CONFIG_OF_PRODUCERS, workers=1) as node, node.client() as client:
        handles = {number: client.producer(name=f"many/{number}") for number in range(5)}
        assert client.refused("producer.open", name="many/5") == errors.TOO_MANY_FLOWS, "all are in use"
        node.expect_errors(errors.TOO_MANY_FLOWS, 1)
        client.done("producer.close", producer=handles[3])
        client.producer(name="many/5")
        assert client.refused("producer.open", name="many/3", resume=True) == errors.UNKNOWN_FLOW_NAME
        assert client.refused("producer.open", name="many/3") == errors.TOO_MANY_FLOWS


@pytest.mark.requirement("R280")
def test_names_of_one_username_never_displace_those_of_another(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Another Message VPN opens names without end: what a producer stored exactly once is remembered."""
    folder = tmp_path_factory.mktemp("shares")
    with LoneSpool(folder, CONFIG_OF_SHARES, workers=1) as node:
        node.create("vpn", "other", None)
        node.create("username", "greedy", "other")
        queue = node.queue()
        with node.client() as client:
            handle = client.producer(name="exactly-once")
            client.publish(handle, 1, [to_queue(0, queue)])
            client.done("producer.close", producer=handle)
        with node.client(vpn="other", username="greedy") as greedy:
            for number in range(20):
                greedy.done("producer.close", producer=greedy.producer(name=f"many/{number}"))
            opened = [greedy.producer(name=f"used/{number}") for number in range(4)]
            assert greedy.refused("producer.open", name="used/4") == errors.SHARE_EXCEEDED
            node.expect_errors(errors.SHARE_EXCEEDED, 1)
            greedy.done("producer.close", producer=opened[0])
            greedy.producer(name="used/4")
            for number in range(4):
                greedy.refused("producer.open", name=f"more/{number}")
        with node.client() as client:
            found = client.done("producer.open", name="exactly-once", resume=True)
            assert found["last_sequence"] == 1
        assert any(row["event"] == "SYSTEM_AD_SHARE_EXCEEDED" for row in node.ask("events"))


@pytest.mark.requirement("R280")
def test_a_user_who_asks_without_end_keeps_neither_another_one_nor_an_operator_waiting(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Hundreds of new queues are asked for; the one of another Message VPN is among the first to be made."""
    folder = tmp_path_factory.mktemp("turns")
    with LoneSpool(folder, CONFIG_OF_SHARES, workers=1) as node:
        node.create("vpn", "other", None)
        node.create("username", "greedy", "other")
        crowd = [node.client(vpn="other", username="greedy") for _ in range(4)]
        with node.client() as modest:
            asked = [[one.ask("endpoint.create", name=new_name()) for _ in range(150)] for one in crowd]
            began = time.monotonic()
            assert modest.done("endpoint.create", name="modest")["created"]
            took_s = time.monotonic() - began
            made = len(node.ask("endpoints.list", vpn="other"))
            operator_s = time.monotonic() - began - took_s
        for one, numbers in zip(crowd, asked, strict=True):
            codes = {one.answer(number)[0] for number in numbers}
            assert codes <= {0, errors.CONTROLLER_UNAVAILABLE}, "the machine may be too slow for all"
        assert made < 300, f"the crowd was served first: {made}, {took_s:.2f} s, operator {operator_s:.2f} s"
        print(
            f"{made} of 600; {took_s:.3f} s; operator {operator_s:.3f} s; all {time.monotonic() - began:.2f} s"
        )


@pytest.mark.requirement("R280")
def test_by_default_one_client_cannot_take_all_producers_of_its_message_vpn(
    small: LoneSpool, client: RawGuaranteed
) -> None:
    with small.client() as greedy:
        codes = {0}
        while codes == {0}:  # a hundred at a time, which the controller writes together
            asked = [greedy.ask("producer.open") for _ in range(100)]
            codes = {greedy.answer(number)[0] for number in asked}
        assert codes <= {0, errors.TOO_MANY_FLOWS}
        assert greedy.request("producer.open")[0] == errors.TOO_MANY_FLOWS
        assert RawProducer(client).fill(small.queue(), b"") == [0]


def test_clients_that_name_no_producer_do_not_use_up_the_names(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("producers")
    with LoneSpool(folder, CONFIG_OF_PRODUCERS, workers=1) as node:
        queue = node.queue()
        for _ in range(12):
            with node.client() as client:
                assert RawProducer(client).fill(queue, b"") == [0]
            wait_until(lambda: not node.status()["sessions"], "it is gone")


@pytest.mark.requirement("R125")
def test_exceptions_are_refused_where_they_are_switched_off(small: LoneSpool, client: RawGuaranteed) -> None:
    queue = small.queue()
    refused = client.done("endpoint.subscribe", name=queue, filters=["a/>", "!a/b"])
    assert [verdict and verdict[0] for verdict in refused] == [None, errors.EXCEPTIONS_NOT_SUPPORTED]
    name = new_name()
    wish = {"name": name, "attributes": {"subscriptions": ["!a/b"]}}
    assert client.refused("endpoint.create", **wish) == errors.EXCEPTIONS_NOT_SUPPORTED
    with pytest.raises(errors.InvalidRequestError, match=str(errors.EXCEPTIONS_NOT_SUPPORTED)):
        small.queue(subscriptions=["!a/b"])
    with pytest.raises(errors.InvalidRequestError, match=str(errors.EXCEPTIONS_NOT_SUPPORTED)):
        small.ask("objects.subscribe", name=queue, add=["!a/b"])
    assert RawProducer(client).publish(kept(0, "a/b")) == [0]
    small.expect_held(queue, 1)


@pytest.mark.requirement("R181", "R182", "R183", "R184", "R185")
def test_at_the_limit_of_spool_files_everybody_is_refused_until_one_is_free(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A file takes 8 MB; of three two belong to the worker of the first queue, the third to the other one's."""
    with LoneSpool(tmp_path_factory.mktemp("files"), CONFIG_OF_FILES) as node, node.client() as client:
        queues = [node.queue(reject_to_sender="never") for _ in range(2)]
        producer = RawProducer(client)
        for _ in range(2):
            assert producer.fill(queues[0], *[WHOLE] * 8) == [0] * 8
        assert producer.fill(queues[1], b"") == [0]
        wait_until(lambda: node.status()["spool"]["files"] == FILES_MAX, "three files are in use")
        assert producer.fill(queues[0], b"") == [errors.SPOOL_FILES_EXCEEDED], "also if it is not to be told"
        node.expect_discards("spool-file-limit-exceeded", 1)
        assert producer.fill(queues[1], b"") == [0], "the third file is open"
        (event,) = node.expect_events("SYSTEM_AD_SPOOL_FILES_HIGH", 1)
        assert event["severity"] == "warning"
        assert node.events("SYSTEM_AD_SPOOL_FILES_HIGH_CLEAR") == []
        flow = client.bind(queues[0])
        first = client.messages(flow, 16)
        client.settle(flow, [[0, 1, 7]])
        assert producer.fill(queues[0], b"") == [errors.SPOOL_FILES_EXCEEDED], "the eighth is still there"
        client.settle(flow, [[0, 8, 8]])
        wait_until(lambda: node.status()["spool"]["files"] == FILES_MAX - 1, "a file is free")
        assert producer.fill(queues[0], b"") == [0]
        client.settle(flow, [[0, 9, 100]])
        wait_until(lambda: node.events("SYSTEM_AD_SPOOL_FILES_HIGH_CLEAR"), "operators hear that it is over")
        assert len(first) == 16
