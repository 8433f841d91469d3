"""Producers, flows and endpoints written from docs/protocol.md alone, against a real node."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from angarium_server.testing import Node
from tests.integration.documented_client import WORKERS, DocumentedClient, Row, pack, row, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

PERSISTENT = 1
_names = itertools.count(1)


class GuaranteedClient(DocumentedClient):
    """What the page says of guaranteed messages, on top of what it says of direct ones."""

    def __init__(self, url: str, **hello: Any) -> None:
        #: Request -> code and value.
        self.values: dict[int, tuple[int, Any]] = {}
        #: What ACKED said: producer, upto, nacks, code, unroutable.
        self.acked: list[list[Any]] = []
        #: (flow, partition, position, count, row) in order.
        self.messages: list[tuple[int, int, int, int, Row]] = []
        self.indications: list[list[Any]] = []
        super().__init__(url, **hello)

    def take(self, operation: str, header: Any, batches: list[bytes]) -> None:
        match operation:
            case "q":
                number, code, value = header
                assert number not in self.values
                self.values[number] = (code, value)
            case "J":
                self.acked.append(header)
            case "M":
                self.take_messages(header, batches)
            case "I":
                self.indications.append(header)
            case _:
                super().take(operation, header, batches)

    def take_messages(self, header: list[Any], batches: list[bytes]) -> None:
        flow, parts = header
        assert len(parts) == len(batches)
        for (partition, count, runs, counts, stored_ms, origins), batch in zip(parts, batches, strict=True):
            rows: list[Row] = unpack(batch)
            positions = [first + i for first, n in runs for i in range(n)]
            assert len(rows) == count == len(positions)
            assert counts is None or len(counts) == count
            assert isinstance(stored_ms, int) or len(stored_ms) == count
            assert origins is None or len(origins) == count
            for i, one in enumerate(rows):
                tries = 0 if counts is None else counts[i]
                self.messages.append((flow, partition, positions[i], tries, one))

    def ask(self, operation: str, **arguments: Any) -> Any:
        code, value = self.asked(operation, **arguments)
        assert code == 0, (operation, arguments, code, value)
        return value

    def asked(self, operation: str, **arguments: Any) -> tuple[int, Any]:
        number = len(self.values) + 1
        self.send("Q", [number, operation, arguments])
        self.read_until(lambda: number in self.values)
        return self.values[number]

    def publish_guaranteed(self, producer: int, first: int, rows: list[Row]) -> None:
        self.read_until(self.may_publish)
        self.round += 1
        batch = pack(rows)
        self.unretired[self.round] = len(batch)
        self.send("P", [self.round, 0, False, [[0, len(rows)]], producer, first], batch)

    def acknowledged(self, producer: int, upto: int) -> list[list[Any]]:
        """Wait until an ACKED covers a sequence; give all nacks of the producer."""
        self.read_until(lambda: any(one[0] == producer and one[1] >= upto for one in self.acked))
        return [nack for one in self.acked if one[0] == producer for nack in one[2]]

    def consume(self, count: int) -> list[tuple[int, int, int, int, Row]]:
        """Wait until so many messages have come in all, and give those that came since the last call."""
        self.read_until(lambda: len(self.messages) >= count)
        taken, self.messages = self.messages, []
        return taken


def to_queue(queue: str, payloads: list[bytes], mode: int = PERSISTENT) -> list[Row]:
    return [row(i, f"#P2P/QUE/{queue}", payload, flags=mode) for i, payload in enumerate(payloads)]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("document") / "data", workers=WORKERS) as node:
        yield node


@pytest.fixture
def client(node: Node) -> Iterator[GuaranteedClient]:
    with GuaranteedClient(node.url) as client:
        assert client.welcome["guaranteed"] is True
        assert client.welcome["producer_bytes"] > 0
        yield client


@pytest.fixture
def queue(client: GuaranteedClient) -> str:
    name = f"queue-{next(_names)}"
    assert client.ask("endpoint.create", name=name) == {"name": name, "created": True}
    return name


@pytest.mark.requirement("R163", "R186")
def test_what_is_acknowledged_is_delivered_with_positions_until_it_is_settled(
    client: GuaranteedClient, queue: str
) -> None:
    opened = client.ask("producer.open", name=f"p-{queue}", window=10)
    assert opened == {"producer": 1, "name": f"p-{queue}", "last_sequence": 0, "window": 10}
    client.publish_guaranteed(1, 1, to_queue(queue, [b"1", b"2", b"3"]))
    client.publish_guaranteed(1, 4, to_queue(queue, [b"4", b"5"], mode=2))
    assert client.acknowledged(1, 5) == []
    bound = client.ask("flow.bind", name=queue, messages=100, bytes=1 << 20)
    assert bound.keys() >= {
        "flow",
        "name",
        "endpoint_id",
        "active",
        "partitions",
        "access_type",
        "max_unacked",
    }
    assert (bound["flow"], bound["active"], bound["partitions"]) == (1, True, [])
    first = client.consume(5)
    assert [(flow, partition, position, count) for flow, partition, position, count, _ in first] == [
        (1, 0, position, 0) for position in range(1, 6)
    ]
    assert [one[4][5] for one in first] == [b"1", b"2", b"3", b"4", b"5"]
    assert [one[4][2] & 3 for one in first] == [1, 1, 1, 2, 2]
    client.send("E", [1, 0, [[0, 4, 5], [0, 1, 2]]])
    client.ask("flow.unbind", flow=1)
    again = client.ask("flow.bind", name=queue, messages=100, bytes=1 << 20)
    assert again["flow"] == 2, "a number is never used again"
    ((_, _, position, count, _),) = client.consume(1)
    assert (position, count) == (3, 1)
    client.leave()


def test_what_is_refused_is_told_with_its_sequence_and_is_refused_again(
    client: GuaranteedClient, queue: str
) -> None:
    client.ask("endpoint.create", name=f"{queue}-small", attributes={"max_message_bytes": 10})
    client.ask("producer.open", name=f"p-{queue}")
    rows = [
        row(0, f"#P2P/QUE/{queue}-small", b"short", flags=PERSISTENT),
        row(1, f"#P2P/QUE/{queue}-small", b"much too long", flags=PERSISTENT),
        row(2, "#P2P/QUE/nobody has this", b"", flags=PERSISTENT),
        row(5, "nobody/wants/this", b"", flags=PERSISTENT),
        row(6, "#share/g/x", b"", flags=PERSISTENT),
    ]
    client.publish_guaranteed(1, 10, rows)
    nacks = client.acknowledged(1, 16)
    assert sorted((sequence, code) for sequence, code, _ in nacks) == [(11, 40007), (12, 40404), (16, 40311)]
    assert [pair for one in client.acked for pair in one[4]] == [[15, 1]]
    client.ask("producer.close", producer=1)
    opened = client.ask("producer.open", name=f"p-{queue}", resume=True)
    assert opened["last_sequence"] >= 10
    client.publish_guaranteed(2, 10, rows[:2])
    assert [(sequence, code) for sequence, code, _ in client.acknowledged(2, 11)] == [(11, 40007)]
    client.ask("flow.bind", name=f"{queue}-small", messages=10, bytes=1 << 20)
    assert [one[4][5] for one in client.consume(1)] == [b"short"]
    client.ping()
    assert client.messages == [], "what was sent again is stored once"


def test_what_was_sent_again_after_a_lost_connection_is_stored_once(node: Node, queue: str) -> None:
    with GuaranteedClient(node.url) as first:
        first.ask("producer.open", name=f"p-{queue}")
        first.publish_guaranteed(1, 1, to_queue(queue, [b"%d" % n for n in range(1, 101)]))
        token, name = first.welcome["token"], first.welcome["client_name"]
    with GuaranteedClient(node.url, token=token, client_name=name) as second:
        opened = second.ask("producer.open", name=f"p-{queue}", resume=True)
        assert 0 <= opened["last_sequence"] <= 100
        second.publish_guaranteed(opened["producer"], 1, to_queue(queue, [b"%d" % n for n in range(1, 131)]))
        assert second.acknowledged(opened["producer"], 130) == []
        second.ask("flow.bind", name=queue, messages=1_000, bytes=1 << 20)
        assert [int(one[4][5]) for one in second.consume(130)] == list(range(1, 131))
        second.leave()


def test_credit_bounds_what_comes_in_messages_and_in_bytes(client: GuaranteedClient, queue: str) -> None:
    client.ask("producer.open")
    client.publish_guaranteed(1, 1, to_queue(queue, [b"x" * 36] * 20))
    client.acknowledged(1, 20)
    client.ask("flow.bind", name=queue, messages=3, bytes=501)
    client.read_until(lambda: len(client.messages) == 3)
    client.ping()
    assert len(client.messages) == 3
    client.send("F", [1, 100, 501])
    client.read_until(lambda: len(client.messages) == 6)
    client.ping()
    assert len(client.messages) == 6, "36 bytes and 64 each; one more may exceed them"


def test_outcomes_bring_messages_back_or_away(client: GuaranteedClient, queue: str) -> None:
    client.ask("endpoint.create", name=f"{queue}-dead")
    client.ask("endpoint.create", name=f"{queue}-b", attributes={"dead_message_queue": f"{queue}-dead"})
    client.ask("producer.open")
    client.publish_guaranteed(1, 1, to_queue(f"{queue}-b", [b"a", b"b", b"c"]))
    client.acknowledged(1, 3)
    client.ask("flow.bind", name=f"{queue}-b", messages=100, bytes=1 << 20)
    assert len(client.consume(3)) == 3
    client.send("E", [1, 0, [[0, 1, 1]]])
    client.send("E", [1, 2, [[0, 2, 2]]])
    client.send("E", [1, 3, [[0, 3, 3]]])
    ((_, _, position, count, _),) = client.consume(1)
    assert (position, count) == (2, 1)
    client.send("E", [1, 0, [[0, 1, 1]]])
    client.read_until(lambda: client.indications)
    assert client.indications[0][:3] == [1, 4, 40024]
    client.ask("flow.bind", name=f"{queue}-dead", messages=100, bytes=1 << 20)
    ((_, _, _, _, corpse),) = client.consume(1)
    assert corpse[5] == b"c"


def test_flows_are_told_when_they_become_active_and_why_they_end(
    client: GuaranteedClient, queue: str
) -> None:
    client.ask("endpoint.create", name=f"{queue}-alone", attributes={"access_type": "exclusive"})
    arguments = {"name": f"{queue}-alone", "messages": 1, "bytes": 1, "active_indication": True}
    assert client.ask("flow.bind", **arguments)["active"] is True
    assert client.ask("flow.bind", **arguments)["active"] is False
    client.ask("flow.unbind", flow=1)
    client.read_until(lambda: client.indications)
    assert client.indications.pop()[:3] == [2, 1, 0]
    client.ask("endpoint.delete", name=f"{queue}-alone")
    client.read_until(lambda: client.indications)
    assert client.indications[0][:3] == [2, 0, 40404]
    client.send("E", [2, 0, [[0, 1, 1]]])
    client.send("F", [2, 100, 100])
    client.ping()
    assert client.closed is None, "what is said of a flow that is over is ignored"


@pytest.mark.requirement("R24", "R100", "R120")
def test_endpoints_are_made_changed_shown_and_deleted(client: GuaranteedClient, queue: str) -> None:
    assert client.asked("endpoint.create", name=queue)[0] == 40901
    assert client.ask("endpoint.create", name=queue, ignore_exists=True)["created"] is False
    results = client.ask("endpoint.subscribe", name=queue, filters=["a/>", "!a/b", "#share/x/y"])
    assert [None if one is None else one[0] for one in results] == [None, None, 40316]
    assert client.ask("endpoint.show", name=queue).keys() >= {
        "kind",
        "name",
        "attributes",
        "messages",
        "bytes",
    }
    client.ask("producer.open")
    topics = [row(i, topic, b"", flags=PERSISTENT) for i, topic in enumerate(("a/c", "a/b", "b"))]
    client.publish_guaranteed(1, 1, topics)
    client.acknowledged(1, 3)
    client.ask("flow.bind", name=queue, messages=9, bytes=1 << 20)
    assert [one[4][1] for one in client.consume(1)] == ["a/c"]
    assert client.ask("endpoint.unsubscribe", name=queue, filters=["a/>", "b"])[1][0] == 40402
    client.ask("endpoint.delete", name=queue)
    assert client.asked("endpoint.show", name=queue)[0] == 40404


def test_a_request_that_cannot_be_is_answered_and_ends_nothing(client: GuaranteedClient, queue: str) -> None:
    assert client.asked("endpoint.explode")[0] == 40002
    assert client.asked("endpoint.show", name=queue, colour="red")[0] == 40018
    assert client.asked("endpoint.show", name=5)[0] == 40018
    assert client.asked("producer.open", window=0)[0] == 40018
    assert client.asked("producer.open", name="x" * 161)[0] == 40018
    assert client.asked("producer.open", name=f"never-{queue}", resume=True)[0] == 40019
    assert client.asked("producer.close", producer=7)[0] == 40030
    assert client.asked("flow.bind", name="nobody has this")[0] == 40404
    assert client.asked("flow.bind", name=queue, selector="a = = 1")[0] == 40601
    assert client.asked("flow.bind", name=queue, temporary=True)[0] == 40021
    client.ping()
    assert client.closed is None


@pytest.mark.parametrize(
    ("operation", "header", "batches", "code"),
    [
        ("E", [9, 0, [[0, 1, 1]]], [], 40023),
        ("F", [9, 1, 1], [], 40023),
        ("F", [1, 1, 0], [], 40001),
        ("E", [1, 4, [[0, 1, 1]]], [], 40001),
        ("E", [1, 0, [[0, 2, 1]]], [], 40001),
        ("E", [1, 0, [[0, 0, 1]]], [], 40001),
        ("Q", [1, "endpoint.show"], [], 40001),
        ("P", [1, 0, False, [[0, 1]], 9, 1], [pack([row(0, "a", b"", flags=1)])], 40030),
        ("P", [1, 0, False, [[0, 1]], 1, 0], [pack([row(0, "a", b"", flags=1)])], 40027),
        ("P", [1, 0, False, [[0, 1]], 1, 1], [pack([row(0, "a", b"")])], 40001),
        ("P", [1, 0, False, [[0, 1]]], [pack([row(0, "a", b"", flags=1)])], 40001),
        ("P", [1, 0, False, [[0, 6]], 1, 1], [pack([row(i, "a", b"", flags=1) for i in range(6)])], 40026),
    ],
)
def test_a_frame_against_the_page_ends_the_session_with_its_code(
    client: GuaranteedClient, queue: str, operation: str, header: Any, batches: list[bytes], code: int
) -> None:
    client.ask("producer.open", window=5)
    client.ask("flow.bind", name=queue, messages=5, bytes=5)
    client.send(operation, header, *batches)
    client.read_until(lambda: client.closed is not None)
    assert client.closed is not None
    assert client.closed[0] == code, client.closed


def test_sequences_that_fall_end_the_session(client: GuaranteedClient, queue: str) -> None:
    client.ask("producer.open")
    client.publish_guaranteed(1, 100, to_queue(queue, [b"x"]))
    client.acknowledged(1, 100)
    client.publish_guaranteed(1, 100, to_queue(queue, [b"x"]))
    client.read_until(lambda: client.closed is not None)
    assert client.closed is not None
    assert client.closed[0] == 40027
