"""Consumers through the whole router: frames, objects, sessions that end, workers that restart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from cluster import objects
from router.flows.ends import AHEAD_BYTES_MAX
from router.ground.effects import AskController, Effect
from tests.unit.router.earlier_client import client_of, read_all
from tests.unit.router.wired_node import BIG, FakeClient, WiredNode, snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator


def queue_row(name: str, number: int, vpn: str = "default", **attributes: Any) -> list[Any]:
    complete = objects.complete("queue", {"id": number, "homes": [0], "owner": "default", **attributes})
    return ["queue", vpn, name, complete]


class FlowNode(WiredNode):
    """A node whose homes confirm everything and bind every flow."""

    def __init__(self, workers: int = 1, rows: list[list[Any]] | None = None, **config: Any) -> None:
        #: FLOW of all workers: (worker, verb, flow, arguments); LANES: (worker, complete, puts, deletes).
        self.flow_frames: list[tuple[int, str, int, list[Any]]] = []
        self.lanes_frames: list[tuple[int, bool, list[Any], list[int]]] = []
        self.asked: list[tuple[str, dict[str, Any]]] = []
        super().__init__(workers, rows, **config)

    def _to_worker(self, index: int, frames: list[bytes]) -> None:
        if index not in self.workers or frames[0] not in (wire.LANES, wire.FLOW):
            super()._to_worker(index, frames)
            return
        incarnation = self.workers[index].incarnation
        body = wire.unpack(frames[1])
        if frames[0] == wire.LANES:
            router, number, complete, puts, deletes, *_ = body
            self.lanes_frames.append((index, complete, puts, deletes))
            home = [incarnation, router, number, 0, [], [[], [], 0, 0, 0]]
            operation, answer = (wire.HOME, home) if complete else (wire.LANES_CONFIRM, [incarnation, number])
            self._to_router(index, [operation, wire.pack(answer)])
            return
        for flow, (verb, *arguments) in body[1]:
            self.flow_frames.append((index, verb, flow, arguments))
            if verb == "bind":
                event = [incarnation, [[flow, wire.FLOW_ACTIVE, 0, ""]]]
                self._to_router(index, [wire.FLOW_EVENT, wire.pack(event)])

    def _carry(self, effect: Effect) -> None:
        if not isinstance(effect, AskController):
            super()._carry(effect)
            return
        self.asked.append((effect.operation, effect.arguments))
        wish = effect.arguments
        if effect.operation == "endpoint.create":
            creator = {"created_by": f"client:{wish['username']}", "durable": False, "client": wish["client"]}
            _, vpn, name, complete = queue_row(wish["name"], 1000 + len(self.asked), **creator)
            self.router.operators.put_object("queue", vpn, name, complete, self.now)
        elif effect.operation == "endpoint.delete":
            self.router.operators.drop_object("queue", wish["vpn"], wish["name"], self.now)
        self.router.controller_answered(effect.ticket, True, {"created": True}, self.now)

    def messages(self, index: int, flow: int, rows: int, size: int) -> None:
        part = [0, rows, [[1, rows]], None, 1, None]
        header = [self.workers[index].incarnation, flow, [part], size]
        self._to_router(index, [wire.FLOW_MESSAGES, wire.pack(header), b"\x90" + b"x" * 10])
        self.settle()

    def verbs(self) -> list[str]:
        return [verb for _, verb, _, _ in self.flow_frames]


@pytest.fixture
def flow_node() -> Iterator[FlowNode]:
    node = make_flow_node()
    yield node
    node.validate()


def make_flow_node(workers: int = 1, *extra: list[Any], **config: Any) -> FlowNode:
    return FlowNode(workers, [*snapshot(), queue_row("q", 1), *extra], **config)


def request(client: FakeClient, operation: str, **arguments: Any) -> tuple[int, Any]:
    client.request += 1
    client.send(wire.REQUEST, [client.request, operation, arguments])
    (answer,) = [wire.unpack(f[1]) for f in client.received if f[0] == wire.ANSWER]
    client.received.clear()
    assert answer[0] == client.request
    return answer[1], answer[2]


def bind(client: FakeClient, name: str = "q", **arguments: Any) -> int:
    code, value = request(client, "flow.bind", name=name, **{"messages": 100, "bytes": BIG, **arguments})
    assert code == 0, (code, value)
    return int(value["flow"])


def test_a_client_binds_gets_messages_and_settles_them(flow_node: FlowNode) -> None:
    client = flow_node.client(client_name="c")
    flow = bind(client)
    ((_, _, number, _),) = flow_node.flow_frames
    flow_node.messages(0, number, 3, 300)
    ((operation, header, batch),) = client.received
    assert (operation, wire.unpack(header)) == (wire.MESSAGES, [flow, [[0, 3, [[1, 3]], None, 1, None]]])
    assert batch == b"\x90" + b"x" * 10, "nobody opens it"
    client.send(wire.SETTLE, [flow, wire.OUTCOME_ACCEPTED, [[0, 1, 3]]])
    client.send(wire.FLOW_CREDIT, [flow, 200, BIG])
    assert flow_node.verbs() == ["bind", "settle", "credit"]
    assert flow_node.router.stats()["flow_messages"] == 3


def test_a_client_of_0_1_0_consumes(flow_node: FlowNode) -> None:
    client = client_of(flow_node)
    flow = bind(client)
    ((_, _, number, _),) = flow_node.flow_frames
    flow_node.messages(0, number, 3, 300)
    client.send(wire.SETTLE, [flow, wire.OUTCOME_ACCEPTED, [[0, 1, 3]]])
    flow_node.router.operators.drop_object("queue", "default", "q", flow_node.now)
    flow_node.settle()
    assert read_all(client) == [wire.MESSAGES, wire.INDICATION]


def test_ranges_of_a_settle_count_towards_the_rate_of_a_client(flow_node: FlowNode) -> None:
    """A million of them keep a home busy for a fifth of a second."""
    client = flow_node.client(client_name="c")
    flow = bind(client)
    ranges = [[0, position, position] for position in range(1, wire.MAX_RANGES_PER_SETTLE + 1)]
    for _ in range(320):
        client.send(wire.SETTLE, [flow, wire.OUTCOME_ACCEPTED, ranges])
    assert 300 < flow_node.verbs().count("settle") < 310, "a second's frames, twice"
    (closed, *_) = [wire.unpack(frames[1]) for frames in client.received if frames[0] == wire.CLOSED]
    assert closed[0] == errors.CONTROL_RATE_EXCEEDED


def test_login_tells_that_there_is_guaranteed_messaging(flow_node: FlowNode) -> None:
    welcome = flow_node.connection().hello()
    assert welcome["guaranteed"] is True
    assert welcome["producer_bytes"] == 16 << 20


@pytest.mark.parametrize(
    ("operation", "header", "code"),
    [
        (wire.REQUEST, [1, "flow.bind"], errors.MALFORMED_FRAME),
        (wire.REQUEST, {}, errors.MALFORMED_FRAME),
        (wire.FLOW_CREDIT, [9, 1, 1], errors.UNKNOWN_FLOW),
        (wire.FLOW_CREDIT, [1, "a", 1], errors.MALFORMED_FRAME),
        (wire.SETTLE, [9, 0, [[0, 1, 1]]], errors.UNKNOWN_FLOW),
        (wire.SETTLE, [1, 0, [[0, 1, 1 << 63]]], errors.MALFORMED_FRAME),
        (wire.SETTLE, [1, 0, [[5000, 1, 1]]], errors.MALFORMED_FRAME),
        (wire.SETTLE, [1, 0, [[0, 1, 1]] * (wire.MAX_RANGES_PER_SETTLE + 1)], errors.MALFORMED_FRAME),
    ],
)
def test_a_malformed_frame_costs_the_session_that_sent_it(
    flow_node: FlowNode, operation: bytes, header: Any, code: int
) -> None:
    bad, good = flow_node.client(), flow_node.client()
    bind(bad)
    bind(good)
    bad.send(operation, header)
    assert bad.closed_with() == code
    assert good.closed_with() is None
    assert len(flow_node.router.flows) == 1


def test_clients_cannot_listen_in_on_what_is_sent_to_a_queue(flow_node: FlowNode) -> None:
    client = flow_node.client()
    codes = client.subscribe("#P2P/QUE/q", "#P2P/QUE/>", "#P2P/>", "#P2P/Q*/q", "#share/s/#P2P/QUE/q")
    assert [verdict[0] for verdict in codes] == [errors.RESERVED_TOPIC] * 5


@pytest.mark.requirement("R104")
def test_temporary_queues_end_with_a_goodbye_and_outlive_a_loss(flow_node: FlowNode) -> None:
    polite, lost = flow_node.client(client_name="polite"), flow_node.client(client_name="lost")
    bind(polite, "p", temporary=True)
    bind(lost, "l", temporary=True)
    polite.send(wire.BYE, [])
    assert [operation for operation, _ in flow_node.asked] == ["endpoint.create"] * 2 + ["endpoint.delete"]
    flow_node.router.unreachable(lost.routing_id, 0, flow_node.now, blocked=False)
    flow_node.settle()
    assert flow_node.router.endpoints.find("default", "queue", "l") is not None
    flow_node.advance(61)
    assert flow_node.router.endpoints.find("default", "queue", "l") is None


@pytest.mark.requirement("R104")
def test_a_resumed_session_binds_its_temporary_queue_again(flow_node: FlowNode) -> None:
    first = flow_node.connection()
    token = first.hello(client_name="c")["token"]
    bind(first, "reply", temporary=True)
    second = flow_node.connection()
    assert second.hello(client_name="c", token=token)["resumed"]
    assert first.closed_with() is not None
    bind(second, "reply", temporary=True)
    flow_node.advance(120)
    assert flow_node.router.endpoints.find("default", "queue", "reply") is not None


def test_a_worker_that_restarts_finds_lanes_and_flows_again(flow_node: FlowNode) -> None:
    client = flow_node.client()
    flow = bind(client)
    flow_node.kill_worker(0)
    client.send(wire.SETTLE, [flow, wire.OUTCOME_ACCEPTED, [[0, 1, 3]]])
    flow_node.lanes_frames.clear()
    flow_node.flow_frames.clear()
    flow_node.start_worker(0)
    ((_, complete, puts, _),) = flow_node.lanes_frames
    assert (complete, len(puts)) == (True, 1)
    assert flow_node.verbs() == ["bind", "settle"]
    assert client.closed_with() is None


def test_a_client_that_does_not_read_is_held_back_and_goes_on_when_it_reads() -> None:
    node = make_flow_node(egress_unread_bytes=1 << 20)
    client = node.client()
    bind(client, messages=BIG, bytes=BIG)
    ((_, _, number, arguments),) = node.flow_frames
    left = arguments[4]
    assert left < AHEAD_BYTES_MAX
    for _ in range(1000):
        told = [arguments[1] for _, verb, _, arguments in node.flow_frames if verb == "credit"]
        left = (told[-1] if told else arguments[4]) - node.router.flows.ends.by_id[number].used_bytes
        if left <= 0:
            break
        node.messages(0, number, 1, 10_000)
    assert left <= 0
    before = len(node.flow_frames)
    while pings := [f for f in client.received if f[0] == wire.PING]:
        client.received.clear()
        for frames in pings:
            client.send(wire.PONG, wire.unpack(frames[1]))
    assert len(node.flow_frames) > before
    assert client.closed_with() is None


# -- objects -------------------------------------------------------------------------------------------------


def test_a_snapshot_replaces_what_was_there(flow_node: FlowNode) -> None:
    client = flow_node.client()
    bind(client)
    router, now = flow_node.router, flow_node.now
    flow_node.lanes_frames.clear()
    router.operators.configure([*snapshot(), queue_row("q", 1)], now)
    flow_node.settle()
    assert flow_node.lanes_frames == [], "the same again changes nothing"
    router.operators.configure([*snapshot(), queue_row("r", 2)], now)
    flow_node.settle()
    assert [endpoint.name for endpoint in router.endpoints] == ["r"]
    assert [f[0] for f in client.received] == [wire.INDICATION]


def test_a_change_is_answered_when_it_is_in_force(flow_node: FlowNode) -> None:
    done: list[str] = []
    operators = flow_node.router.operators
    flow_node.pause(0)
    _, vpn, name, complete = queue_row("q", 1, subscriptions=["a"])
    operators.put_object("queue", vpn, name, complete, flow_node.now, lambda: done.append("filters"))
    flow_node.settle()
    assert done == []
    flow_node.unpause(0)
    assert done == ["filters"]
    operators.put_object(
        "profile",
        "default",
        "p",
        objects.complete("profile", {}),
        flow_node.now,
        lambda: done.append("at once"),
    )
    operators.drop_object("queue", "default", "q", flow_node.now, lambda: done.append("deleted"))
    assert done == ["filters", "at once"]
    flow_node.settle()
    assert done == ["filters", "at once", "deleted"]
    operators.drop_object("queue", "default", "none", flow_node.now, lambda: done.append("nothing"))
    _, vpn, name, complete = queue_row("x", 9, vpn="none")
    operators.put_object("queue", vpn, name, complete, flow_node.now, lambda: done.append("no vpn"))
    assert done[3:] == ["nothing", "no vpn"]


def test_a_message_vpn_takes_its_endpoints_along() -> None:
    rows = [*snapshot(("vpn", "", "v", {})), queue_row("q", 1), queue_row("q", 2, vpn="v")]
    node = FlowNode(1, rows)
    assert len(node.router.endpoints) == 2
    node.router.operators.drop_object("vpn", "", "v", node.now)
    node.settle()
    assert [endpoint.vpn.name for endpoint in node.router.endpoints] == ["default"]
    assert node.lanes_frames[-1][3] == [2 << wire.LANE_BITS]
    node.validate()


def test_a_relaxed_message_vpn_is_told_to_the_homes(flow_node: FlowNode) -> None:
    attributes = objects.complete("vpn", {"durability": "relaxed"})
    flow_node.router.operators.put_object("vpn", "", "default", attributes, flow_node.now)
    flow_node.settle()
    ((_, _, settings),) = flow_node.lanes_frames[-1][2]
    assert settings["durability"] == "relaxed"


def test_operators_find_endpoints_by_pattern() -> None:
    node = make_flow_node(1, queue_row("orders/a", 2), queue_row("orders/b", 3), queue_row("[x]", 4))
    endpoints = node.router.operators.endpoints

    def names(vpn: str | None, kind: str | None, name: str | None) -> list[str]:
        return [row["name"] for row in endpoints(vpn, kind, name, 1.0)]

    assert names("default", "queue", "orders/*") == ["orders/a", "orders/b"]
    assert names(None, None, "orders/?") == ["orders/a", "orders/b"]
    assert names(None, None, "[x]") == ["[x]"]
    assert names(None, "topic-endpoint", None) == []
    assert len(names(None, None, None)) == 4


def test_a_leaving_worker_that_restarts_does_not_lose_what_others_take_over() -> None:
    node = make_flow_node(2, queue_row("r", 2, homes=[1]))
    _, vpn, name, complete = queue_row("r", 2, homes=[0])
    node.router.operators.put_object("queue", vpn, name, complete, node.now)
    node.settle()
    node.pause(0)  # so that the change cannot end yet
    node.router.scaling.begin(1, node.now)
    node.lanes_frames.clear()
    node.kill_worker(1)
    node.start_worker(1)
    assert [frame for frame in node.lanes_frames if frame[0] == 1] == []
    node.unpause(0)


# -- subscriptions that come and go --------------------------------------------------------------------------


def test_edited_subscriptions_are_those_that_a_whole_object_would_have(flow_node: FlowNode) -> None:
    node = flow_node
    done: list[None] = []
    _, vpn, name, before = queue_row("q", 1, subscriptions=["a", "b"], client_subscriptions=["c", "d"])
    node.router.operators.put_object("queue", vpn, name, before, node.now)
    edits = {"subscriptions": [["x"], ["a"]], "client_subscriptions": [["c", "y"], ["d", "never"]]}
    node.router.operators.edit_object("queue", "default", "q", edits, lambda: done.append(None))
    node.settle()
    assert done == [None]
    queue = node.router.endpoints.find("default", "queue", "q")
    assert queue is not None
    assert queue.attributes == {
        **before,
        "subscriptions": dict.fromkeys(["b", "x"]),
        "client_subscriptions": dict.fromkeys(["c", "y"]),
    }
    assert [one.pattern for one in queue.filters.values()] == ["#P2P/QUE/q", "b", "c", "x", "y"]


def test_subscriptions_of_an_endpoint_that_is_not_there_are_not_edited(flow_node: FlowNode) -> None:
    edit = flow_node.router.operators.edit_object
    with pytest.raises(errors.NotFoundError, match=str(errors.UNKNOWN_ENDPOINT)):
        edit("queue", "default", "none", {"subscriptions": [["a"], []]})
