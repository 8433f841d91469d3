"""Guaranteed messages with the blocking client against a real node: threads, callbacks, settling, the end."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

import angarium
from angarium import blocking
from angarium_server.testing import Node
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from angarium import Acknowledgement, GuaranteedMessage

pytestmark = pytest.mark.slow

LIMIT_S = 20.0
_names = itertools.count(1)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("blocking") / "data", workers=2) as node:
        yield node


@pytest.fixture
def client(node: Node) -> Iterator[blocking.Client]:
    with blocking.connect(node.url) as client:
        yield client


@pytest.fixture
def queue(client: blocking.Client) -> str:
    name = f"queue-{next(_names)}"
    assert client.create_queue(name, access_type="non-exclusive")
    return name


def fill(client: blocking.Client, queue: str, count: int) -> None:
    with client.producer() as producer:
        report = producer.publish_many((f"#P2P/QUE/{queue}", b"%d" % n) for n in range(count))
        assert report == (count, [], 0)


def is_empty(client: blocking.Client, queue: str) -> None:
    wait_until(lambda: client.show_queue(queue)["messages"] == 0, f"{queue} is empty")


@pytest.mark.requirement("R155", "R163")
def test_messages_go_in_and_come_out_in_order(client: blocking.Client, queue: str) -> None:
    fill(client, queue, 5_000)
    with client.consume(queue) as flow:
        received = []
        for message in flow:
            received.append(message.payload)
            if len(received) == 5_000:
                message.accept()
                break
    assert received == [b"%d" % n for n in range(5_000)]
    is_empty(client, queue)


def test_receipts_reports_and_refusals(client: blocking.Client, queue: str) -> None:
    seen: list[Acknowledgement] = []
    with client.producer(f"p-{queue}", window=20, on_ack=seen.append) as producer:
        assert (producer.name, producer.window, producer.last_sequence) == (f"p-{queue}", 20, 0)
        receipt = producer.send(payload=b"a", queue=queue)
        assert receipt.wait() == receipt.sequence == 1
        assert receipt.done
        assert receipt.error is None
        refused = producer.send(payload=b"a", queue="none of these")
        with pytest.raises(angarium.NotFoundError, match="40404"):
            refused.wait()
        assert producer.publish(payload=b"b", queue=queue) == 3
        address = f"#P2P/QUE/{queue}"
        mixed = [(address if n % 1_000 else "#P2P/QUE/none", b"") for n in range(5_000)]
        report = producer.publish_many(mixed)
        assert report.acknowledged == 4_995
        assert [place for place, _ in report.refused] == [0, 1_000, 2_000, 3_000, 4_000]
        producer.flush(LIMIT_S)
        assert producer.unacknowledged == 0
    assert producer.closed
    wait_until(lambda: seen[-1].upto == 5_003, "the last acknowledgement is told")
    with pytest.raises(angarium.ConnectionLostError, match="60002"):
        producer.send(payload=b"late", queue=queue)


def test_a_refusal_that_no_report_tells_of_is_told_by_flush(client: blocking.Client, queue: str) -> None:
    address = f"#P2P/QUE/{queue}"
    messages = [(address if n != 3 else "#P2P/QUE/none", b"") for n in range(5_000)]
    with client.producer() as producer:
        with pytest.raises(angarium.InvalidRequestError, match="neither a message"):
            producer.publish_many([*messages, None])  # type: ignore[list-item]
        with pytest.raises(angarium.NotFoundError, match="sequence 4"):
            producer.flush(LIMIT_S)
    assert client.show_queue(queue)["messages"] == 4_999


def test_an_error_in_the_middle_of_many_messages_says_how_many_of_all_are_acknowledged(
    client: blocking.Client, queue: str
) -> None:
    def messages() -> Iterator[tuple[str, bytes]]:
        for number in range(10_000):
            if number == 6_000:  # somebody else uses the name
                client.producer(f"p-{queue}").close()
            yield f"#P2P/QUE/{queue}", b""

    with client.producer(f"p-{queue}") as producer, pytest.raises(angarium.AngariumError) as caught:
        producer.publish_many(messages())
    found = re.search(r"([0-9]+) of ([0-9]+) messages are acknowledged", str(caught.value))
    assert found is not None
    acknowledged, given = map(int, found.groups())
    assert 4_000 <= acknowledged <= given <= 8_000
    assert client.show_queue(queue)["messages"] >= acknowledged


def test_publish_waits_for_a_guaranteed_message_only(client: blocking.Client, queue: str) -> None:
    client.publish(payload=b"1", queue=queue)
    client.publish(f"#P2P/QUE/{queue}", b"2", mode="non-persistent")
    with pytest.raises(angarium.NotFoundError, match="40404"):
        client.publish(payload=b"", queue="none of these")
    with client.consume(queue) as flow:
        assert [flow.receive(LIMIT_S).payload for _ in range(2)] == [b"1", b"2"]


def test_of_many_messages_one_that_is_refused_keeps_no_other_from_being_published(
    client: blocking.Client, queue: str
) -> None:
    messages = [
        angarium.Message(f"#P2P/QUE/{queue if n != 3 else 'none'}", b"", mode="persistent")
        for n in range(5_000)
    ]
    with pytest.raises(angarium.NotFoundError, match="40404"):
        client.publish_many(messages)
    assert client.show_queue(queue)["messages"] == 4_999


def test_batches_are_settled_by_hand(client: blocking.Client, queue: str) -> None:
    fill(client, queue, 1_000)
    with client.consume(queue, ack="manual", window=500) as flow:
        count = 0
        for batch in flow.batches():
            count += len(batch)
            flow.accept(batch)
            if count == 1_000:
                break
    is_empty(client, queue)


def test_each_message_of_a_batch_can_be_settled_otherwise(client: blocking.Client, queue: str) -> None:
    fill(client, queue, 10)
    with client.consume(queue, ack="manual") as flow:
        messages = [flow.receive(LIMIT_S) for _ in range(10)]
        messages[0].reject()
        flow.fail(messages[1:3])
        flow.accept(messages)
        again = [flow.receive(LIMIT_S) for _ in range(2)]
        assert [(one.payload, one.delivery_count) for one in again] == [(b"1", 2), (b"2", 2)]
        flow.accept(again)
        with pytest.raises(angarium.TimeoutExpiredError):
            flow.receive(0.1)
    is_empty(client, queue)


def test_several_threads_read_one_flow(client: blocking.Client, queue: str) -> None:
    seen: list[bytes] = []
    with client.consume(queue) as flow:

        def read() -> None:
            for message in flow:
                seen.append(message.payload)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        fill(client, queue, 4_000)
        wait_until(lambda: len(seen) == 4_000, "everything came")
        is_empty(client, queue)
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert sorted(map(int, seen)) == list(range(4_000))


def test_a_callback_is_called_in_a_thread_of_its_own(client: blocking.Client, queue: str) -> None:
    seen: list[tuple[bytes, int]] = []

    def callback(message: GuaranteedMessage) -> None:
        if message.payload == b"3" and not message.redelivered:
            raise ValueError
        seen.append((message.payload, threading.get_ident()))

    flow = client.consume(queue, callback=callback)
    fill(client, queue, 10)
    wait_until(lambda: len(seen) == 10, "everything came")
    is_empty(client, queue)
    flow.close()
    assert sorted(int(payload) for payload, _ in seen) == list(range(10))
    assert len({thread for _, thread in seen}) == 1
    assert threading.get_ident() not in {thread for _, thread in seen}
    assert flow.stats["callback_errors"] == 1
    assert client.stats["flow_callback_errors"] == 1, "flows that are over count too"


def test_a_callback_that_would_have_to_be_awaited_is_refused(client: blocking.Client, queue: str) -> None:
    """Nobody would await it, and its messages would be accepted all the same."""

    async def take(message: object) -> None:
        raise AssertionError("nobody awaits this")

    with pytest.raises(ValueError, match="an 'async def', which"):
        client.consume(queue, take)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="an 'async def', which"):
        client.subscribe("a", take)  # type: ignore[arg-type]


def test_a_browser_settles_nothing(client: blocking.Client, queue: str) -> None:
    fill(client, queue, 3)
    with client.browse(queue) as browser:
        messages = [browser.receive(LIMIT_S) for _ in range(3)]
        with pytest.raises(angarium.InvalidRequestError, match="browser"):
            messages[0].accept()
    assert client.show_queue(queue)["messages"] == 3


def test_credit_comes_back_as_messages_are_read(client: blocking.Client, queue: str) -> None:
    """A window of four is renewed hundreds of times."""
    fill(client, queue, 1_000)
    with client.consume(queue, window=4, window_bytes=1_000) as flow:
        assert [flow.receive(LIMIT_S).payload for _ in range(1_000)] == [b"%d" % n for n in range(1_000)]


def test_a_deleted_queue_ends_the_loop_with_the_reason(client: blocking.Client, queue: str) -> None:
    flow = client.consume(queue)
    client.delete_queue(queue)
    with pytest.raises(angarium.NotFoundError, match="40404"):
        list(flow)
    assert flow.closed


def test_closing_a_flow_ends_its_readers(client: blocking.Client, queue: str) -> None:
    flow = client.consume(queue)
    ended: list[Any] = []
    reader = threading.Thread(target=lambda: ended.append(list(flow)))
    reader.start()
    flow.close()
    reader.join(LIMIT_S)
    assert ended == [[]]
    with pytest.raises(angarium.ConnectionLostError, match="60002"):
        flow.receive()
    flow.close()


def test_closing_the_client_ends_everything(node: Node, queue: str) -> None:
    client = blocking.connect(node.url)
    flow = client.consume(queue)
    producer = client.producer()
    ended: list[Any] = []
    reader = threading.Thread(target=lambda: ended.append(list(flow)))
    reader.start()
    client.close()
    reader.join(LIMIT_S)
    assert ended == [[]]
    assert producer.closed
    with pytest.raises(angarium.ConnectionLostError, match="60002"):
        producer.send(payload=b"", queue=queue)


def test_a_loop_over_a_flow_with_max_messages_ends_with_the_last_of_them(
    client: blocking.Client, queue: str
) -> None:
    fill(client, queue, 9)
    with client.browse(queue, max_messages=2) as flow:
        assert [message.payload for message in flow] == [b"0", b"1"]
    with client.consume(queue, max_messages=3) as flow:
        assert [message.payload for message in flow] == [b"0", b"1", b"2"]
        with pytest.raises(angarium.TimeoutExpiredError, match="has given all 3 messages"):
            flow.receive()
    with client.consume(queue, max_messages=4) as flow:
        assert sum(len(batch) for batch in flow.batches()) == 4
    with client.consume(queue) as flow:
        assert [flow.receive(LIMIT_S).payload for _ in range(2)] == [b"7", b"8"]


@pytest.mark.parametrize("ends", ["flow", "client"])
def test_what_no_thread_has_seen_when_its_consumer_ends_was_not_tried(
    node: Node, client: blocking.Client, queue: str, ends: str
) -> None:
    def come_and_go(seen: int) -> None:
        with blocking.connect(node.url) as consumer:
            flow = consumer.consume(queue)
            flow.receive(LIMIT_S)
            wait_until(lambda: flow.buffered == 10 - seen)
            if ends == "flow":
                flow.close()

    fill(client, queue, 10)
    for seen in range(1, 4):
        come_and_go(seen)
    with client.consume(queue) as flow:
        assert [flow.receive(LIMIT_S).redelivered for _ in range(7)] == [False] * 7


def test_what_a_program_had_in_hand_when_it_ended_without_closing_comes_again(
    node: Node, client: blocking.Client, queue: str
) -> None:
    fill(client, queue, 3)
    program = f"""
from angarium import blocking
flow = blocking.connect({node.url!r}).consume({queue!r})
for _ in range(2):
    message = flow.receive(timeout_s={LIMIT_S})
raise LookupError("in the middle of the second one")
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert "LookupError: in the middle" in ended.stderr
    with client.consume(queue) as flow:
        assert [flow.receive(LIMIT_S).payload for _ in range(2)] == [b"1", b"2"]


def test_a_thread_goes_on_over_a_reconnect(tmp_path_factory: pytest.TempPathFactory) -> None:
    with (
        Node(tmp_path_factory.mktemp("again") / "data", workers=1) as node,
        blocking.connect(node.url) as client,
    ):
        client.create_queue("q")
        fill(client, "q", 5)
        flow = client.consume("q", ack="manual")
        kept = flow.receive(LIMIT_S)
        node.kill("router")
        wait_until(lambda: not flow.active or client.stats["reconnects"], "the connection is lost")
        client.publish(payload=b"5", queue="q")
        again = [flow.receive(LIMIT_S) for _ in range(6)]
        assert [one.payload for one in again] == [b"%d" % n for n in range(6)]
        assert [one.redelivered for one in again] == [True] * 5 + [False]
        kept.accept()
        wait_until(lambda: flow.stats["late_settles"] == 1, "it came too late")
        flow.accept(again)
        is_empty(client, "q")
