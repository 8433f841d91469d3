"""What clients of one gateway process publish for each other: at once, once, and in the order of who says it."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from angarium import wire
from angarium.topic import parse_filter
from angarium.trie import FilterTrie
from gateway.attached import Login
from gateway.gathering import ALONE_ROWS, ALONE_S, Exchange
from router.gateways.attached import ALONE_S as ALONE_AFTER_S
from tests.unit.gateway.played_router import FakeGuest
from tests.unit.gateway.wired_gateways import NodeOfGateways, WiredGateway
from tests.unit.router.wired_node import snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium.message import Row
    from gateway.attached import Attached

ACL = {
    "client_connect_default": "allow",
    "publish_topic_default": "allow",
    "subscribe_topic_default": "allow",
    "subscribe_share_name_default": "allow",
}
ROWS = snapshot(("acl", "default", "all", ACL), ("username", "default", "default", {"acl_profile": "all"}))
ALWAYS = wire.SUBSCRIBE_DELIVER_ALWAYS


class Listener(FakeGuest):
    """A client that writes down, beside what its process gets for all of its clients, what it gets alone."""

    def __init__(self, log: list[tuple[str, bytes]]) -> None:
        super().__init__()
        self._log = log

    def delivered(self, rows: Sequence[Row], share: str | None, now: float) -> None:
        self._log += [(row[1], row[5]) for row in rows]


class FanningOut(WiredGateway):
    """One that writes down what any of its clients gets, in order."""

    def __init__(self, node: NodeOfGateways, index: int = 0) -> None:
        super().__init__(node, index, exchanges=True)
        self.log: list[tuple[str, bytes]] = []
        self.passes_on = True
        self._trie: FilterTrie[str] = FilterTrie()

    def _take(self, vpn: str, rows: list[Row], now: float) -> bool:
        self.log += [(row[1], row[5]) for row in rows if self._trie.match(row[1])]
        return self.passes_on

    def client(self, name: str, *texts: str) -> Attached:
        guest = Listener(self.log)
        login = Login("default", None, name, "127.0.0.1", None, "mqtt 5")
        client = self.carriers.attach("default", guest, login, self.node.now)
        self.settle()
        if texts:
            client.subscribe([(text, ALWAYS) for text in texts])
            self.settle()
            assert guest.take()[-1] == ("answered", [0] * len(texts))
        for text in texts:
            if not text.startswith("#share/"):
                self._trie.add(parse_filter(text).pattern, text)
        return client

    def take(self) -> list[tuple[str, bytes]]:
        log = [*self.log]
        self.log.clear()
        return log


@pytest.fixture
def node() -> Any:
    made = NodeOfGateways(2, ROWS)
    yield made
    made.validate()


def publish(client: Attached, topic: str, payload: bytes, flags: int = 0) -> None:
    assert client.has_room()
    client.publish(topic, flags, None, None, payload)


@pytest.mark.requirement("R234")
def test_clients_of_the_process_get_it_at_once_and_all_others_by_the_router(node: NodeOfGateways) -> None:
    here, there = FanningOut(node), FanningOut(node, 1)
    publisher = here.client("p", "t/*")
    there.client("s", "t/1")
    sent = node.router.stats()["messages_out"]
    publish(publisher, "t/1", b"1")
    here.carriers.hand_over(node.now)
    assert here.take() == [("t/1", b"1")]
    here.settle()
    there.settle()
    assert here.take() == []
    assert there.take() == [("t/1", b"1")]
    assert node.router.stats()["messages_out"] == sent + 2


@pytest.mark.requirement("R3")
def test_what_is_kept_by_the_router_comes_before_what_its_publisher_says_behind_it(
    node: NodeOfGateways,
) -> None:
    here = FanningOut(node)
    publisher, other = here.client("p", "t/1"), here.client("o")
    publish(publisher, "t/1", b"1")
    publish(publisher, "t/1", b"2", wire.FLAG_RETAIN)
    publish(publisher, "t/1", b"3")
    publish(other, "t/1", b"other")
    here.carriers.hand_over(node.now)
    assert here.take() == [("t/1", b"1"), ("t/1", b"other")]
    here.settle()
    assert here.take() == [("t/1", b"2"), ("t/1", b"3")]


def test_a_publisher_is_ahead_again_when_the_node_is_done_with_what_was_kept(node: NodeOfGateways) -> None:
    here = FanningOut(node)
    publisher = here.client("p", "t/1")
    publish(publisher, "t/1", b"1", wire.FLAG_RETAIN)
    here.settle()
    publish(publisher, "t/1", b"2")
    here.carriers.hand_over(node.now)
    assert here.take() == [("t/1", b"1")]
    for number in range(20):  # the last of these ask for the end of their rounds
        publish(publisher, "t/1", b"%d" % number)
        here.settle()
    here.take()
    publish(publisher, "t/1", b"last")
    here.carriers.hand_over(node.now)
    assert here.take() == [("t/1", b"last")]


def test_what_is_for_one_client_alone_comes_by_the_router(node: NodeOfGateways) -> None:
    here = FanningOut(node)
    publisher = here.client("p")
    here.client("c", "#share/g/s", "t")
    publish(publisher, "s", b"1")
    publish(publisher, "t", b"2")
    here.carriers.hand_over(node.now)
    assert here.take() == [("t", b"2")]
    here.settle()
    assert here.take() == [("s", b"1")]
    publish(publisher, "#P2P/INB/x/c", b"3")
    publish(publisher, "t", b"4")
    here.carriers.hand_over(node.now)
    assert here.take() == []
    here.settle()
    assert here.take() == [("t", b"4")]


def test_there_is_no_room_while_what_was_handed_over_waits(node: NodeOfGateways) -> None:
    here = FanningOut(node)
    publisher = here.client("p", "t")
    here.passes_on = False
    publish(publisher, "t", b"1")
    here.carriers.hand_over(node.now)
    assert not publisher.has_room()
    assert not here.carriers.has_room("default")
    here.carriers.passed_on("default")
    assert publisher.has_room()


@pytest.mark.requirement("R3")
@pytest.mark.parametrize("seed", range(20))
def test_every_publisher_keeps_its_order_whatever_it_says(seed: int) -> None:
    rng = random.Random(seed)
    node = NodeOfGateways(rng.choice([1, 2]), ROWS)
    here, there = FanningOut(node), FanningOut(node, 1)
    publishers = [here.client(f"p{number}") for number in range(3)]
    here.client("s", "t/>")
    there.client("r", "t/>")
    said: dict[int, list[bytes]] = defaultdict(list)
    for number in range(120):
        which = rng.randrange(len(publishers))
        if publishers[which].has_room():
            said[which].append(b"%d/%d" % (which, number))
            flags = wire.FLAG_RETAIN if rng.random() < 0.1 else 0
            publish(publishers[which], f"t/{rng.randrange(4)}", said[which][-1], flags)
        if rng.random() < 0.3:
            here.carriers.hand_over(node.now)
        if rng.random() < 0.2:
            here.settle()
    here.settle()
    there.settle()
    for gateway in (here, there):
        came = [payload for _, payload in gateway.take()]
        for which, payloads in said.items():
            assert [one for one in came if one.startswith(b"%d/" % which)] == payloads
    node.validate()


def rounds_of(gateway: WiredGateway) -> int:
    retired: int = gateway.node.router.stats()["rounds"]
    return retired


def be_alone(here: FanningOut, publisher: Attached) -> None:
    """Publish until the router has seen for a while that nobody else wants it."""
    for _ in range(2):
        publish(publisher, "t", b"")
        here.settle()
        here.node.now += ALONE_AFTER_S
    publish(publisher, "t", b"")
    here.settle()
    assert here.carriers._by_vpn["default"].exchange.is_alone
    here.take()


def test_what_nobody_else_gets_leaves_together_and_soon(node: NodeOfGateways) -> None:
    here = FanningOut(node)
    publisher = here.client("p", "t")
    be_alone(here, publisher)
    before = rounds_of(here)
    for _ in range(3):
        publish(publisher, "t", b"1")
        here.settle()
    assert len(here.take()) == 3
    assert rounds_of(here) == before
    assert here.carriers.tick(node.now) <= node.now + ALONE_S
    node.now += ALONE_S
    here.settle()
    assert rounds_of(here) == before + 1
    publishers = [here.client(f"p{number}") for number in range(ALONE_ROWS)]
    for one in publishers:
        publish(one, "t", b"2")
    here.settle()
    assert rounds_of(here) == before + 2


def test_who_has_half_of_what_may_be_under_way_does_not_wait(node: NodeOfGateways) -> None:
    here = FanningOut(node)
    publisher = here.client("p", "t")
    be_alone(here, publisher)
    before = rounds_of(here)
    while publisher.has_room():
        publish(publisher, "t", b"1")
    here.settle()
    assert rounds_of(here) == before + 1
    assert publisher.has_room()


def test_what_somebody_else_gets_leaves_at_once_from_the_second_on(node: NodeOfGateways) -> None:
    here, there = FanningOut(node), FanningOut(node, 1)
    publisher = here.client("p", "t")
    be_alone(here, publisher)
    there.client("s", "t")
    publish(publisher, "t", b"1")
    node.now += ALONE_S
    here.settle()
    there.settle()
    assert there.take() == [("t", b"1")]
    publish(publisher, "t", b"2")
    here.settle()
    there.settle()
    assert there.take() == [("t", b"2")]


def test_what_the_router_keeps_does_not_wait_for_others(node: NodeOfGateways) -> None:
    here = FanningOut(node)
    publisher = here.client("p", "t")
    be_alone(here, publisher)
    publish(publisher, "t", b"1")
    publish(publisher, "t", b"2", wire.FLAG_RETAIN)
    here.settle()
    assert here.take() == [("t", b"1"), ("t", b"2")]


def test_a_round_says_which_of_its_rows_are_kept() -> None:
    exchange = Exchange(is_used=True)

    class Client:
        is_ahead, unretired = True, 0

    client = Client()
    row: Row = (0, "t", wire.FLAG_RETAIN, None, None, b"")
    for place in (1, 4, 5):
        exchange.take(client, row, place)
        client.unretired += 1
    assert exchange.leave(0, 3) == [1]
    assert exchange.leave(3, 1) == []
    assert exchange.leave(4, 2) is None
    assert exchange.leave(6, 2) == []
    exchange.validate()
