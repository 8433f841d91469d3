"""Rounds that take long to send on leave in pieces: others have their turn, and everybody's order stays."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from angarium import wire
from angarium.topic import slot_of
from router.matching.pieces import OPENING_WORK
from router.sessions.interest import FilterSet
from router.sessions.round import Part, PlainResult, Round
from tests.share import short
from tests.unit.router.wired_gateway import IDENTITY, FakeGateway
from tests.unit.router.wired_mesh import CLUSTER, SECRET, identity_of, link_object
from tests.unit.router.wired_node import FakeClient, WiredNode, snapshot

if TYPE_CHECKING:
    from router.sessions.session import Session
    from tests.unit.router.publish_rig import PublishNode

pytestmark = pytest.mark.requirement("R278")

GROUPS = 20
#: Five rows for 20 groups each.
STEP_US = 310


def _session(node: WiredNode, client: FakeClient) -> Session:
    return node.router.sessions.by_routing_id[client.routing_id]


def _crowd(node: WiredNode, members: int = 2) -> list[FakeClient]:
    """Let some clients share each of many groups."""
    clients = [node.client() for _ in range(members)]
    for client in clients:
        client.subscribe(*[f"#share/g{number}/dear" for number in range(GROUPS)])
    return clients


@pytest.fixture
def node(make_node: Any) -> WiredNode:
    made: WiredNode = make_node(1, delivery_step_us=STEP_US)
    return made


def _received(clients: list[FakeClient]) -> list[list[int]]:
    return [[row[wire.ROW_INDEX] for row in client.rows()] for client in clients]


def test_a_round_with_many_receivers_for_each_row_leaves_in_pieces(node: WiredNode) -> None:
    crowd, publisher = _crowd(node), node.client()
    publisher.publish(*["dear"] * 20, flush=True)
    counts = []
    for _ in range(6):
        counts.append(sum(len(found) for found in _received(crowd)))
        node.router.tick(node.now)
        node.settle()
    assert counts == [0, *[5 * GROUPS] * 4, 0]
    assert node.router.stats()["rounds_cut"] == 1


def test_the_publisher_hears_of_it_behind_the_last_piece(node: WiredNode) -> None:
    _crowd(node)
    publisher = node.client()
    publisher.publish(*["dear"] * 20, flush=True)
    for _ in range(4):
        assert publisher.retired() == 0
        assert len(_session(node, publisher).open_rounds) == 1
        node.validate()
        node.router.tick(node.now)
        node.settle()
    assert publisher.retired() == 1
    assert _session(node, publisher).messages_in == 20


def test_every_subscriber_gets_all_rows_in_their_order_once(node: WiredNode) -> None:
    crowd, plain, publisher = _crowd(node), node.client(), node.client()
    crowd[0].subscribe("dear")  # beside its groups
    plain.subscribe("de*")
    publisher.publish(*[("dear", b"%d" % number) for number in range(20)])
    publisher.publish(("dear", b"last"))
    node.advance(1)
    expected = [b"%d" % number for number in range(20)] + [b"last"]
    assert plain.payloads() == expected
    found = [client.payloads() for client in crowd]
    for payloads in found:
        assert [payloads.index(one) for one in expected if one in payloads] == sorted(
            payloads.index(one) for one in expected if one in payloads
        )
    assert found[0] == expected, "who has the plain copy gets none for its groups"
    assert len(found[1]) > len(expected)


def test_between_two_pieces_others_are_served(node: WiredNode) -> None:
    _crowd(node)
    dear, quick, listener = node.client(), node.client(), node.client()
    listener.subscribe("quick")
    dear.publish(*["dear"] * 20)
    quick.publish("quick")
    assert listener.topics() == ["quick"]
    assert len(_session(node, dear).open_rounds) == 1


def test_those_with_dear_rounds_take_turns_by_message_vpn(make_node: Any) -> None:
    rows = snapshot(("vpn", "", "blue", {}), ("username", "blue", "default", {}))
    node: WiredNode = make_node(1, rows, delivery_step_us=STEP_US)
    crowd = _crowd(node)
    others = [node.client(vpn="blue")]
    others[0].subscribe(*[f"#share/g{number}/dear" for number in range(GROUPS)])
    greedy = [node.client() for _ in range(10)]
    for client in greedy:
        client.publish(*["dear"] * 20)
    modest = node.client(vpn="blue")
    modest.publish(*["dear"] * 20)
    while len(_session(node, modest).open_rounds):
        node.router.tick(node.now)
        node.settle()
    assert sum(len(found) for found in _received(crowd)) < 2 * 20 * GROUPS + 10 * 5 * GROUPS


def test_who_leaves_between_two_pieces_gets_no_more(node: WiredNode) -> None:
    crowd, publisher = _crowd(node, 1), node.client()
    publisher.publish(*["dear"] * 20)
    node.router.tick(node.now)
    node.settle()
    (client,) = crowd
    assert len(client.rows()) == 5 * GROUPS
    client.unsubscribe(*[f"#share/g{number}/dear" for number in range(GROUPS)])
    node.advance(1)
    assert client.rows() == []
    assert not _session(node, publisher).open_rounds


def test_what_a_publisher_left_that_ended_meanwhile_is_sent_on(node: WiredNode) -> None:
    crowd, publisher = _crowd(node), node.client()
    publisher.publish(*["dear"] * 20)
    node.router.unreachable(publisher.routing_id, 0, node.now, blocked=False)
    node.advance(1)
    assert sum(len(found) for found in _received(crowd)) == 20 * GROUPS
    assert not node.router.rounds.turns


@pytest.mark.parametrize("is_crowd", [False, True])
def test_what_a_neighbour_left_that_is_gone_is_dropped_and_counted_once(*, is_crowd: bool) -> None:
    rows = snapshot(link_object("x"))
    node = WiredNode(1, rows, name="n", identity=identity_of("n"), delivery_step_us=STEP_US)
    if is_crowd:
        crowd = [node.client() for _ in range(200)]
        for client in crowd:
            client.subscribe("dear", "other")
    else:
        crowd = _crowd(node)
    neighbour = node.connection("10.0.0.1")
    link = {"node": "x", "node_id": "id-x", "cluster": CLUSTER, "incarnation": 1}
    neighbour.hello(username=wire.LINK_USERNAME, password=SECRET, link=link)
    neighbour.publish(*["dear", "other"] * 10 if is_crowd else ["dear"] * 20)
    while not (left := sum(map(len, _received(crowd)))):
        node.router.tick(node.now)
        node.settle()
    session = _session(node, neighbour)
    assert session.has_turns
    node.router.unreachable(neighbour.routing_id, 0, node.now, blocked=False)
    while node.router.rounds.turns:
        node.router.tick(node.now)
        node.settle()
    assert not sum(map(len, _received(crowd)))
    gone = node.router.stats()["discards"]["client-not-connected"]
    assert gone == (20 if is_crowd else 20 - left // GROUPS)
    node.validate()


def test_a_gateway_is_told_which_of_its_rounds_is_dear() -> None:
    rows = snapshot(("username", "default", "default", {}))
    node = WiredNode(1, rows, identity=IDENTITY, delivery_step_us=STEP_US)
    gateway = FakeGateway(node)
    _crowd(node)
    gateway.publish("cheap")
    gateway.publish(*["dear"] * 20)
    told = [wire.unpack(frames[1]) for frames in gateway.received if frames[0] == wire.COSTLY]
    assert told == [[2]]
    node.advance(1)
    node.validate()


def test_what_nobody_gets_any_more_takes_no_turns(node: WiredNode) -> None:
    crowd, publisher = _crowd(node), node.client()
    publisher.publish(*["dear"] * 1_000)
    for client in crowd:
        node.router.unreachable(client.routing_id, 0, node.now, blocked=False)
    for _ in range(8):
        node.router.tick(node.now)
        node.settle()
    assert not node.router.rounds.turns
    opened = 1_000 * OPENING_WORK
    assert node.router.stats()["matching_work"] <= opened + 5 * STEP_US


def test_the_work_is_charged_to_the_publisher(make_node: Any) -> None:
    rows = snapshot(("profile", "default", "default", {"max_matching_work_per_s": 400}))
    node: WiredNode = make_node(1, rows, delivery_step_us=STEP_US)
    _crowd(node)
    dear, other = node.client(client_name="dear"), node.client()
    dear.publish(*["dear"] * 20)
    node.advance(0.01)
    dear.publish("next", flush=True)
    other.publish("dear", flush=True)
    assert (dear.retired(), other.retired()) == (0, 1)
    assert node.router.stats()["publishers_waiting"] == 1
    assert node.router.stats()["matching_work"] == 4 * 309, "5 rows for groups at 61 us each, one result"
    node.advance(2.1)
    assert dear.retired() == 2


def test_who_owes_work_waits_with_known_topics_too(make_node: Any) -> None:
    """The router answers their rounds itself, and what these cost it is charged like that of others."""
    rows = snapshot(
        ("profile", "default", "default", {"eliding": True, "max_matching_work_per_s": 1_000}),
    )
    node: WiredNode = make_node(1, rows, delivery_step_us=STEP_US)
    for client in [node.client() for _ in range(40)]:
        client.subscribe("known")
    node.client().publish(("known", b"", wire.FLAG_ELIDING))
    publisher = node.client()
    session = _session(node, publisher)
    for number in range(1, 4):
        publisher.publish(*[("known", b"", wire.FLAG_ELIDING)] * 4)
        node.advance(0.1)
        assert session.retired_round == node.router.fast_path.rounds == min(number, 2)
    assert (session.round_number, len(session.pending)) == (3, 1)
    node.advance(1)
    assert session.retired_round == 3


def test_many_subscribers_of_the_same_rows_are_no_reason_to_cut(node: WiredNode) -> None:
    for _ in range(30):
        node.client().subscribe("all")
    node.client().publish(*["all"] * 50)
    assert node.router.stats()["rounds_cut"] == 0
    assert not node.router.rounds.turns


def test_rounds_that_waited_for_one_leave_in_turns(make_node: Any) -> None:
    node: WiredNode = make_node(1, delivery_step_us=100)
    listeners = [node.client() for _ in range(10)]
    for client in listeners:
        client.subscribe("known", "new")
    publisher = node.client()
    publisher.publish("known")
    node.pause(0)
    publisher.publish("new")
    for _ in range(10):
        publisher.publish("known")  # answered without the worker, behind the one that waits
    before = [len(found) for found in _received(listeners)]
    assert before == [1] * 10
    worker = node.paused.pop(0)
    for frames in worker:
        node._to_worker(0, frames)
    node.settle()
    first = [len(found) for found in _received(listeners)]
    assert first == [1] * 10, "each round is a step of 100 us here"
    node.advance(1)
    assert [len(found) for found in _received(listeners)] == [10] * 10


def test_many_sets_that_go_to_few_are_no_many_batches(make_node: Any) -> None:
    """Each session gets what it has of a round in one batch, whatever set a row has."""
    node: WiredNode = make_node(2, delivery_step_us=STEP_US)
    table, names = node.router.shards.table, [f"known/{number}" for number in range(200)]
    first, second = ([one for one in names if table[slot_of(one)] == worker][:50] for worker in (0, 1))
    listener, publisher = node.client(), node.client()
    listener.subscribe(*names)
    node.pause(0)
    for worker, topics in ((0, first), *[(1, second)] * 9):
        publisher.round += 1
        rows = [[index, topic, 0, None, None, b""] for index, topic in enumerate(topics)]
        header = [publisher.round, node.router.shards.epoch, False, [[worker, len(rows)]]]
        publisher.send(wire.PUBLISH, header, wire.pack(rows))
    assert not listener.rows()
    for frames in node.paused.pop(0):
        node._to_worker(0, frames)
    node.settle()
    assert len(listener.rows()) == 4 * 50, "each round is 90 us of a step of 310"


def test_topics_elided_for_many_are_cut(make_node: Any) -> None:
    rows = snapshot(("profile", "default", "default", {"eliding": True, "eliding_delay_ms": 1_000}))
    node: WiredNode = make_node(1, rows, delivery_step_us=STEP_US)
    listeners = [node.client() for _ in range(10)]
    for client in listeners:
        client.subscribe("price/>")
    publisher = node.client()
    publisher.publish(*[(f"price/{number}", b"x", wire.FLAG_ELIDING) for number in range(20)])
    node.router.tick(node.now)
    node.settle()
    assert [len(found) for found in _received(listeners)] == [3] * 10
    node.advance(0.1)
    assert [len(found) for found in _received(listeners)] == [17] * 10


def _listeners(node: WiredNode, *filters: str, count: int = 100) -> list[FakeClient]:
    listeners = [node.client() for _ in range(count)]
    for client in listeners:
        client.subscribe(*filters)
    return listeners


def _step(node: WiredNode) -> None:
    node.router.tick(node.now)
    node.settle()


def test_a_row_for_very_many_sessions_leaves_for_some_at_a_time(node: WiredNode) -> None:
    listeners, publisher, other = _listeners(node, "all"), node.client(), node.client()
    other.subscribe("quick")
    publisher.publish("all", "all", flush=True)
    other.publish("quick")
    assert other.topics() == ["quick"], "others have their turn"
    got = []
    while node.router.rounds.turns:
        assert publisher.retired() == 0
        node.validate()
        _step(node)
        got.append([len(found) for found in _received(listeners)])
    assert got == [[2] * 62 + [0] * 38, [0] * 62 + [2] * 38]
    assert publisher.retired() == 1
    stats = node.router.stats()
    assert (stats["rounds_cut"], stats["matching_work"], stats["messages_in"]) == (1, 0, 3)


def test_a_crowd_gets_what_one_published_in_its_order(node: WiredNode) -> None:
    listeners, publisher = _listeners(node, "a", "*"), node.client()
    publisher.publish("a", "b")
    publisher.publish("b", "a")
    node.advance(1)
    assert [client.topics() for client in listeners] == [["a", "b", "b", "a"]] * 100


def test_who_leaves_or_comes_while_a_crowd_is_served_gets_nothing(node: WiredNode) -> None:
    listeners, publisher, late = _listeners(node, "all", "al*"), node.client(), node.client()
    publisher.publish("all")
    _step(node)
    listeners[98].unsubscribe("all", "al*")
    listeners[97].unsubscribe("all")
    node.router.unreachable(listeners[99].routing_id, 0, node.now, blocked=False)
    late.subscribe("all")
    node.advance(1)
    assert [len(found) for found in _received([*listeners[96:99], late])] == [1, 1, 0, 0]
    node.validate()


def test_a_crowd_for_which_rows_are_elided_is_served_at_the_same_rate(make_node: Any) -> None:
    rows = snapshot(("profile", "default", "default", {"eliding": True, "eliding_delay_ms": 1_000}))
    node: WiredNode = make_node(1, rows, delivery_step_us=STEP_US)
    listeners, publisher = _listeners(node, "price/>"), node.client()
    publisher.publish(*[(f"price/{number}", b"x", wire.FLAG_ELIDING) for number in range(20)])
    _step(node)
    got = [len(found) for found in _received(listeners)]
    assert got == [20] * 3 + [0] * 97, "3 cost 510 us, and 620 is what a piece may cost"
    node.advance(1)
    assert [len(found) for found in _received(listeners)] == [0] * 3 + [20] * 97


def test_copies_for_endpoints_of_each_row_are_made_in_pieces(make_publish_node: Any) -> None:
    node: PublishNode = make_publish_node(delivery_step_us=STEP_US)
    for number in range(40):
        node.queue(f"q{number}", f"dear/{number % 20}", "dear/*")
    publisher = node.client()
    publisher.publish(*[f"dear/{number}" for number in range(20)])
    assert node.router.stats()["rounds_cut"] == 1
    node.advance(1)
    assert node.router.stats()["spool"]["ingress_messages_promoted"] == 20


def test_what_nobody_has_looked_into_does_no_harm(make_publish_node: Any) -> None:
    """Of a round with two parts one is no batch, and its worker dies with it."""
    node: PublishNode = make_publish_node(2)
    node.queue("q", "t/>")
    table = node.router.shards.table
    topic = next(f"t/{number}" for number in range(99) if table[slot_of(f"t/{number}")] == 0)
    publisher = node.client()
    node.pause(1)
    header = [1, node.router.shards.epoch, True, [[0, 1], [1, 1]]]
    publisher.send(wire.PUBLISH, header, wire.pack([[0, topic, 0, None, None, b"x"]]), b"\xc1")
    node.kill_worker(1)
    assert publisher.retired() == 1
    assert node.payloads("q") == [b"x"]


def test_a_round_that_cannot_be_opened_is_not_cut(make_node: Any) -> None:
    """A neighbour says what is inside its batches, so nobody opened them."""
    node: WiredNode = make_node(1, delivery_step_us=1)
    for client in [node.client() for _ in range(3)]:
        client.subscribe("a", "b")
    session = _session(node, node.client())
    sets = [FilterSet((one,)) for one in node.router.interest.filters.values()]
    batches = [wire.pack([[0, "a", 0, None, None, b""], [1, "a", 0, None, None, b""]]), b"\x92\xc1"]
    parts = [Part(0, 2, batch) for batch in batches]
    a_round: Round[Any] = Round(session, 1, parts, 0, 7, 9, 0, flush=False)  # more rows than sessions
    a_round.plain = [
        PlainResult(one, 2, wire.CLASS_COS1, batch) for one, batch in zip(sets, batches, strict=False)
    ]
    pieces = node.router.fan_out.cut(a_round)
    assert pieces is not None
    assert pieces.take() is a_round
    assert not pieces
    a_round.plain = a_round.plain[:1] * 2
    pieces = node.router.fan_out.cut(a_round)
    assert pieces is not None
    assert pieces.take() not in (None, a_round)


@pytest.mark.parametrize(("rows", "clients", "is_cut"), [(250, 2, False), (250, 40, True)])
def test_rows_of_many_sets_are_cut_if_many_get_them(
    make_node: Any, rows: int, clients: int, is_cut: bool
) -> None:
    """What they cost at most is known from how many subscribe at all."""
    node: WiredNode = make_node(1, delivery_step_us=1_000)
    topics = [f"t/{number}" for number in range(rows)]
    for client in (crowd := [node.client() for _ in range(clients)]):
        client.subscribe(*topics)
    node.client().publish(*topics)
    assert node.router.stats()["rounds_cut"] == is_cut
    node.advance(10)
    assert [len(client.rows()) for client in crowd] == [rows] * clients


def test_batches_of_very_many_rows_are_opened_some_at_a_time(node: WiredNode) -> None:
    crowd, plain, publisher = _crowd(node, 1), node.client(), node.client()
    plain.subscribe("*")
    publisher.publish(*["dear", "other"] * 1_500)
    before = []
    while not (got := len(plain.rows())):
        before.append(node.router.stats()["matching_work"])
        _step(node)
    assert before == [number * 1_000 for number in range(10)], "all of 4,500 rows, 500 in each"
    assert got == 9, "4 for groups, at 61 us each, and those between and behind; 8 us for two results"
    node.advance(10)
    assert got + len(plain.rows()) == 3_000
    assert len(crowd[0].rows()) == 1_500 * GROUPS


def test_no_step_takes_long_with_a_thousand_rows_for_a_thousand_groups(make_node: Any) -> None:
    node: WiredNode = make_node(1)
    clients = [node.client() for _ in range(2)]
    for client in clients:
        for first in range(0, 800, 100):
            client.subscribe(*[f"#share/g{number}/dear" for number in range(first, first + 100)])
    publisher = node.client()
    rows = short(200, long=400)
    publisher.publish(*["dear"] * rows)
    steps = []
    while node.router.rounds.turns:
        began = time.thread_time()
        node.router.tick(node.now)
        steps.append(time.thread_time() - began)
        node.settle()
    assert len(steps) >= rows * 800 / node.config.delivery_step_us / 2
    # The whole takes fifty times as long.
    assert sorted(steps)[len(steps) // 2] < sum(steps) / 20
    assert sum(len(found) for found in _received(clients)) == rows * 800
