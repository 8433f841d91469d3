"""Batches that cross a link and are not matched once more: topics that are known, and what a neighbour says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from tests.unit.router.wired_mesh import gated_node, link_hello

if TYPE_CHECKING:
    from tests.unit.router.wired_mesh import WiredMesh


def test_rounds_of_known_topics_need_no_worker_on_the_other_side(pair: WiredMesh) -> None:
    client, publisher = pair["b"].client(), pair["a"].client()
    client.subscribe("x/>")
    pair.run()
    expected = []
    for number in range(50):
        rows = [(f"x/{n % 10}", b"%d.%d" % (number, n)) for n in range(100)]
        publisher.publish(*rows)
        expected += [payload for _, payload in rows]
    pair.run()
    assert client.payloads() == expected
    assert pair["b"].router.stats()["fast_path_rounds"] >= 40


def test_a_batch_of_few_topics_is_not_opened_again(pair: WiredMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    client, publisher = pair["b"].client(), pair["a"].client()
    client.subscribe("x/>")
    pair.run()
    publisher.publish(*[f"x/{n % 10}" for n in range(100)])
    pair.run()
    monkeypatch.setattr("router.matching.fast_path._decode_heads", None)
    expected = client.payloads()
    for number in range(10):
        rows = [(f"x/{n % 10}", b"%d.%d" % (number, n)) for n in range(100)]
        publisher.publish(*rows)
        expected = [payload for _, payload in rows]
        pair.run()
        assert client.payloads() == expected


def test_classes_of_service_are_known_over_there_too(pair: WiredMesh) -> None:
    client, publisher = pair["b"].client(credit=[0, 0]), pair["a"].client()
    client.subscribe("x/>")
    pair.run()
    for _ in range(2):  # the second one is not opened
        publisher.publish(*[(f"x/{n % 3}", b"%d" % n, n % 3 << wire.COS_SHIFT) for n in range(30)])
        pair.run()
    client.send(wire.CREDIT, [1_000, 1 << 20])
    pair.run()
    got = [int(payload) % 3 for payload in client.payloads()]
    assert len(got) == 60
    assert got[:10] == [2] * 10


def test_monitors_of_deliver_to_one_messages_get_them_whoever_takes_them(pair: WiredMesh) -> None:
    monitor, publisher = pair["b"].client(), pair["a"].client()
    monitor.subscribe("x", deliver_always=True)
    pair.run()
    for _ in range(3):
        publisher.publish(*[("x", b"%d" % n, wire.FLAG_DTO) for n in range(20)])
        pair.run()
    assert len(monitor.rows()) == 60
    assert pair["a"].router.links.sessions, "the link is up"


@pytest.mark.parametrize(
    "inside",
    [
        [0, ["x"]],
        [wire.CLASS_DTO, ["x"]],
        [wire.CLASS_RETAIN | 1, ["x"]],
        [1, []],
        [1, ["x"] * 65],
        [1, [7]],
        [-1, ["x"]],
    ],
)
def test_what_no_neighbour_says_of_a_batch_ends_its_link_and_nothing_else(inside: list[Any]) -> None:
    node = gated_node()
    neighbour, client = node.connection("10.0.0.1"), node.client()
    neighbour.send(wire.HELLO, link_hello("x"))
    client.subscribe("x")
    batch = wire.pack([[0, "x", 0, None, None, b""]])
    neighbour.send(wire.PUBLISH, [1, 0, False, [[0, 1]], [], *inside], batch)
    node.advance(0.1)
    assert neighbour.closed_with() == errors.MALFORMED_FRAME
    node.client().publish("x")
    assert client.topics() == ["x"]


def test_a_client_says_nothing_of_what_is_inside(pair: WiredMesh) -> None:
    client = pair["b"].client()
    batch = wire.pack([[0, "x", 0, None, None, b""]])
    client.send(wire.PUBLISH, [1, 0, False, [[0, 1]], [], 1, ["x"]], batch)
    assert client.closed_with() == errors.MALFORMED_FRAME


def test_what_changes_is_forgotten_at_once(pair: WiredMesh) -> None:
    clients, publisher = [pair["b"].client() for _ in range(2)], pair["a"].client()
    clients[0].subscribe("x/>")
    pair.run()
    for _ in range(10):
        publisher.publish(*["x/1"] * 20)
    pair.run()
    clients[1].subscribe("x/1")
    pair.run()
    publisher.publish(*["x/1"] * 20)
    pair.run()
    assert [len(client.rows()) for client in clients] == [220, 20]


def test_rows_that_need_a_choice_or_an_endpoint_go_to_the_workers(pair: WiredMesh) -> None:
    plain, publisher = pair["b"].client(), pair["a"].client()
    members = [pair["b"].client() for _ in range(2)]
    for member in members:
        member.subscribe("#share/g/s")
    plain.subscribe("x", "s")
    pair.run()
    for _ in range(10):
        publisher.publish(*["x"] * 5, ("x", b"", wire.FLAG_DTO), "s")
    pair.run()
    assert len(plain.rows()) == 70
    assert sum(len(member.rows()) for member in members) == 10


def test_what_is_to_be_retained_is_matched_on_both_sides(pair: WiredMesh) -> None:
    client, publisher = pair["b"].client(), pair["a"].client()
    client.subscribe("x")
    pair.run()
    publisher.publish("x")
    pair.run()
    before = pair["b"].router.stats()["fast_path_rounds"]
    for _ in range(10):
        publisher.publish("x", ("x", b"", wire.FLAG_RETAIN))
        pair.run()
    assert [row[wire.ROW_FLAGS] for row in client.rows()] == [0, *[0, wire.FLAG_RETAIN] * 10]
    assert pair["b"].router.stats()["fast_path_rounds"] == before


def test_topics_that_are_always_new_are_tried_ever_less_often(pair: WiredMesh) -> None:
    client, publisher = pair["b"].client(), pair["a"].client()
    client.subscribe("x/>")
    pair.run()
    for number in range(40):
        publisher.publish(*[f"x/{number}/{n}" for n in range(80)])
    pair.run()
    assert len(client.rows()) == 3_200
    (neighbour,) = pair["b"].router.links.sessions.values()
    assert neighbour.fast_path.failures >= 3
