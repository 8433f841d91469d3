"""Streams of events at a running node: topics, queues that go on where they were, and who does not read."""

from __future__ import annotations

import http.client
import json
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from angarium import blocking, errors
from angarium_server.testing import Node
from tests.integration.http_api import LIMIT_S
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("events") / "data", workers=1, http="http://127.0.0.1:0") as running:
        running.run("queue", "create", "orders")
        yield running


class Source:
    """A client that reads a stream."""

    def __init__(self, node: Node, path: str, **headers: str) -> None:
        place = urlsplit(node.http_url)
        self._line = http.client.HTTPConnection(place.hostname or "", place.port, timeout=LIMIT_S)
        self._line.request("GET", path, headers={name.replace("_", "-"): it for name, it in headers.items()})
        self.answer = self._line.getresponse()
        self.last = ""

    def next(self) -> dict[str, Any]:
        """Give the data of the next event; its id is `last`."""
        while True:
            line = self.answer.readline().decode()
            assert line, "the stream has ended"
            if line.startswith("id: "):
                self.last = line[4:].strip()
            elif line.startswith("data: "):
                return dict(json.loads(line[6:]))

    def close(self) -> None:
        self.answer.close()
        self._line.close()


def depth(node: Node) -> int:
    return int(json.loads(node.run("queue", "show", "orders", "--json"))["messages_spooled"])


def stats(node: Node) -> dict[str, Any]:
    return dict(json.loads(node.run("gateway", "show", "http.0", "--json")))


def test_every_stream_of_a_topic_gets_every_message_in_order(node: Node) -> None:
    sources = [Source(node, "/v1/events?topic=a/%3E") for _ in range(20)]
    assert {one.answer.headers["Content-Type"] for one in sources} == {"text/event-stream"}
    with blocking.connect(node.url) as client:
        for number in range(50):
            client.publish(f"a/{number % 3}", str(number).encode())
        for source in sources:
            assert [source.next()["payload"] for _ in range(50)] == [str(number) for number in range(50)]
    for source in sources:
        source.close()
    wait_until(lambda: stats(node)["streams"] == 0)


def test_a_stream_that_may_not_be_is_refused_before_it_begins(node: Node) -> None:
    for path, code in (("", errors.INVALID_ARGUMENT), (f"?topic={'a' * 300}", errors.INVALID_FILTER)):
        source = Source(node, f"/v1/events{path}")
        assert json.loads(source.answer.read())["code"] == code
        source.close()


def test_a_page_of_another_site_takes_no_messages_of_a_queue(node: Node) -> None:
    """Browsers say no Origin for an image, and messages that it got would have failed."""
    for site in ("cross-site", "same-site"):
        source = Source(node, "/v1/events?queue=orders", Sec_Fetch_Site=site)
        assert json.loads(source.answer.read())["code"] == errors.CROSS_ORIGIN
        source.close()
    for site in ("same-origin", "none"):
        source = Source(node, "/v1/events?queue=orders", Sec_Fetch_Site=site)
        assert source.answer.headers["Content-Type"] == "text/event-stream"
        source.close()


@pytest.mark.requirement("R253")
def test_a_queue_goes_on_behind_the_last_event_that_was_read(node: Node) -> None:
    with blocking.connect(node.url) as client:
        for number in range(5):
            client.publish(queue="orders", payload=str(number).encode(), mode="persistent")
    first = Source(node, "/v1/events?queue=orders")
    assert [first.next()["payload"] for _ in range(3)] == ["0", "1", "2"]
    first.close()
    beyond = f"{first.last.partition('.')[0]}.{'9' * 5_000}"
    nowhere = Source(node, "/v1/events?queue=orders", Last_Event_ID=beyond)
    second = Source(node, "/v1/events?queue=orders", Last_Event_ID=first.last)
    came = [second.next() for _ in range(2)]
    assert [(one["payload"], one["delivery_count"]) for one in came] == [("3", 1), ("4", 1)]
    third = Source(node, "/v1/events?queue=orders", Last_Event_ID=second.last)
    wait_until(lambda: depth(node) == 0)
    unknown = Source(node, "/v1/events?queue=orders", Last_Event_ID="nobody.5")
    for source in (nowhere, second, third, unknown):
        source.close()


def test_a_queue_that_is_not_there_ends_its_stream_with_the_reason(node: Node) -> None:
    source = Source(node, "/v1/events?queue=none")
    assert source.next()["code"] == errors.UNKNOWN_ENDPOINT
    source.close()


def test_who_does_not_read_is_ended_and_others_are_complete(node: Node) -> None:
    place = urlsplit(node.http_url)
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    slow.connect((place.hostname, place.port))
    slow.sendall(b"GET /v1/events?topic=load HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert slow.recv(12) == b"HTTP/1.1 200"
    fast = Source(node, "/v1/events?topic=load")
    before = stats(node)["streams_slow"]
    with blocking.connect(node.url) as client:
        for number in range(100):
            client.publish("load", b"%d" % number + b" " * 100_000)
            assert int(fast.next()["payload"]) == number
    wait_until(lambda: stats(node)["streams_slow"] == before + 1)
    slow.close()
    fast.close()
