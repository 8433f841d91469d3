"""Reading what is retained, and where the live messages of a subscription join it, with real homes and workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors, wire
from angarium.slots import slot_table
from angarium.topic import slot_of
from cluster import objects
from router.matching import copies
from router.sessions import splice
from router.subscriptions import retained
from tests.unit.router.publish_rig import ask
from tests.unit.router.wired_node import snapshot

if TYPE_CHECKING:
    from tests.unit.router.publish_rig import Publisher, PublishNode
    from tests.unit.router.wired_node import FakeClient

pytestmark = pytest.mark.requirement("R248")

#: Topics of the second of two workers, and of the first.
HELD = next(f"h{number}" for number in range(99) if slot_table(2)[slot_of(f"h{number}")])
FREE, *OTHERS = (f"f{number}" for number in range(99) if not slot_table(2)[slot_of(f"f{number}")])
KEPT = wire.MODE_PERSISTENT | wire.FLAG_RETAIN


@pytest.fixture
def retaining(make_publish_node: Any) -> PublishNode:
    """Give a node of two workers; the first has what is retained."""
    node: PublishNode = make_publish_node(2)
    node.queue(wire.RETAINED_QUEUE, home=0, max_spool_usage_mb=10)
    return node


@pytest.fixture
def publisher(retaining: PublishNode) -> Publisher:
    return retaining.publisher()


def keep(publisher: Publisher, **payloads: bytes) -> None:
    publisher.publish(*[(topic, payload, KEPT) for topic, payload in payloads.items()])


def page(client: FakeClient, number: int) -> tuple[int, Any, dict[str, bytes]] | None:
    """Take the answer to a reading, if it came: code, value, payload of each topic."""
    for frames in client.received:
        if frames[0] == wire.ANSWER and (body := wire.unpack(frames[1]))[0] == number:
            client.received.remove(frames)
            rows = wire.unpack(frames[2]) if not body[1] else []
            return body[1], body[2], {row[wire.ROW_TOPIC]: row[wire.ROW_PAYLOAD] for row in rows}
    return None


def read(client: FakeClient, filter_text: str = ">", **arguments: Any) -> dict[str, bytes]:
    """Read everything, page by page."""
    found: dict[str, bytes] = {}
    after, upto = "", 0
    while after is not None:
        answer = page(
            client, ask(client, "retained.read", filter=filter_text, after=after, upto=upto, **arguments)
        )
        assert answer is not None, "no answer"
        assert answer[0] == 0, answer
        (upto, after), rows = answer[1], answer[2]
        assert not rows.keys() & found.keys()
        found |= rows
    return found


def test_pages_follow_each_other_by_topics(retaining: PublishNode, publisher: Publisher) -> None:
    for number in range(10):
        keep(publisher, **{f"t{number}": bytes(100_000)})
    client = retaining.client()
    first = page(client, ask(client, "retained.read", filter=">"))
    assert first is not None
    assert list(first[2]) == ["t0", "t1"]
    assert first[1][1] == "t1"
    assert list(read(client)) == [f"t{number}" for number in range(10)]


def test_what_is_retained_after_the_first_page_is_left_out(
    retaining: PublishNode, publisher: Publisher
) -> None:
    for number in range(4):
        keep(publisher, **{f"t{number}": bytes(200_000)})
    client = retaining.client()
    first = page(client, ask(client, "retained.read", filter=">"))
    assert first is not None
    keep(publisher, t2=b"newer", t3=b"")
    upto, after = first[1]
    rest = page(client, ask(client, "retained.read", filter=">", upto=upto, after=after))
    assert rest is not None
    assert "t2" not in rest[2]
    assert read(client, "t2") == {"t2": b"newer"}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"filter": "#share/g/a"}, errors.INVALID_FILTER),
        ({"filter": ""}, errors.INVALID_FILTER),
        ({"filter": "#P2P/QUE/x"}, errors.RESERVED_TOPIC),
        ({"filter": "a", "after": "a", "live": 7}, errors.INVALID_ARGUMENT),
        ({"filter": "a", "upto": -1}, errors.INVALID_ARGUMENT),
        ({"filter": "a", "more": 1}, errors.INVALID_ARGUMENT),
        ({}, errors.INVALID_ARGUMENT),
    ],
)
def test_bad_requests_are_refused(retaining: PublishNode, arguments: dict[str, Any], code: int) -> None:
    client = retaining.client()
    answer = page(client, ask(client, "retained.read", **arguments))
    assert answer is not None
    assert answer[0] == code


def test_who_may_not_subscribe_may_not_read(retaining: PublishNode, publisher: Publisher) -> None:
    keep(publisher, a=b"secret")
    attributes = objects.complete("acl", {**ACL, "subscribe_topic_default": "disallow"})
    retaining.router.operators.put_object("acl", "default", "default", attributes, retaining.now)
    client = retaining.client()
    answer = page(client, ask(client, "retained.read", filter="a"))
    assert answer is not None
    assert answer[0] == errors.SUBSCRIBE_DENIED


def test_a_message_vpn_that_retains_nothing_has_nothing_to_read(make_publish_node: Any) -> None:
    node = make_publish_node(1)
    client = node.client()
    client.publish(("a", b"x", wire.FLAG_RETAIN))
    assert read(client) == {}


def may_be(node: PublishNode, client: FakeClient) -> bool:
    return node.router.retained.may_be(node.router.sessions.by_routing_id[client.routing_id])


def test_a_gateway_is_told_when_there_is_nothing_to_read(
    retaining: PublishNode, publisher: Publisher
) -> None:
    client = retaining.client()
    assert not may_be(retaining, client)
    queue = retaining.router.endpoints.find("default", "queue", wire.RETAINED_QUEUE)
    assert queue is not None
    queue.lanes[0].is_reported = False
    assert may_be(retaining, client), "its home has not told anything of it"
    keep(publisher, a=b"1")
    assert may_be(retaining, client)
    keep(publisher, a=b"")
    assert read(client) == {}
    retaining.homes[0].tell(queue.lanes[0].lane_id)
    retaining.settle()
    assert not may_be(retaining, client)
    publish_held(retaining, publisher, (HELD, b"2"))
    assert may_be(retaining, client), "a round is under way that was matched before"
    release(retaining)
    assert may_be(retaining, client)


def test_where_nothing_was_ever_retained_there_is_nothing_to_read(make_publish_node: Any) -> None:
    node = make_publish_node(1)
    client = node.client()
    assert not may_be(node, client)
    node.pause(0)
    client.publish(("a", b"x", wire.FLAG_RETAIN))
    assert may_be(node, client)


class TestSplice:
    """A client subscribes, is answered, and reads with a number."""

    def test_it_waits_for_a_round_that_was_matched_without_the_subscription(
        self, retaining: PublishNode, publisher: Publisher
    ) -> None:
        keep(publisher, **{FREE: b"1"})
        client = retaining.client()
        publish_held(retaining, publisher, (FREE, b"2"), (HELD, b"holds the round"))
        client.subscribe(FREE)
        number = ask(client, "retained.read", filter=FREE, live=1)
        assert page(client, number) is None, "the round is under way"
        release(retaining)
        retaining.advance(0.01)
        answer = page(client, number)
        assert answer is not None
        came = client.payloads()
        assert (answer[2], came) == ({FREE: b"2"}, [b"2"])

    def test_such_a_round_comes_in_its_order_whatever_endpoints_take_of_it(
        self, retaining: PublishNode, publisher: Publisher
    ) -> None:
        retaining.queue("q", OTHERS[0])
        client = retaining.client()
        rows = [(FREE, b"1"), (OTHERS[0], b"2"), (FREE, b"3"), (OTHERS[0], b"4"), (HELD, b"holds the round")]
        publish_held(retaining, publisher, *rows)
        client.send(wire.SUBSCRIBE, [1, [["*", 0]], None])
        release(retaining)
        assert client.payloads() == [payload for _, payload in rows]

    def test_it_waits_for_rounds_that_cannot_be_judged_before_all_homes_have_counted(
        self, retaining: PublishNode, publisher: Publisher
    ) -> None:
        """No worker has them any more, and what is behind a guaranteed one has been matched, too."""
        keep(publisher, **{FREE: b"1"})
        client, rounds = retaining.client(), retaining.router.rounds
        rounds.may_admit, may_admit = lambda _: False, rounds.may_admit
        keep(publisher, b=b"cannot be judged")
        publisher.client.publish((FREE, b"2", wire.FLAG_RETAIN))
        client.subscribe(FREE)
        number = ask(client, "retained.read", filter=FREE, live=1)
        assert page(client, number) is None
        rounds.may_admit = may_admit
        rounds.retry(retaining.now)
        retaining.settle()
        retaining.advance(0.01)
        answer = page(client, number)
        assert answer is not None
        assert (answer[2], client.payloads()) == ({FREE: b"2"}, [b"2"])

    @pytest.mark.parametrize("before", [(), (HELD,), ("*",), (FREE,)])
    def test_a_newer_round_does_not_hide_one_that_was_matched_without_the_subscription(
        self, retaining: PublishNode, publisher: Publisher, before: tuple[str, ...]
    ) -> None:
        """It is retained behind the newer one, so the topic is no reason to leave it out: it comes live, and once."""
        client, watching, other = retaining.client(), retaining.client(), retaining.publisher("other")
        for filter_text in before:
            client.subscribe(filter_text)
        watching.subscribe("*")
        publish_held(retaining, publisher, (FREE, b"retained last"), (HELD, b"holds the round"))
        client.subscribe(FREE)
        number = ask(client, "retained.read", filter=FREE, live=1)
        other_round(other, (FREE, b"comes first"))
        release(retaining)
        retaining.advance(0.01)
        answer = page(client, number)
        assert answer is not None
        assert answer[2] == {FREE: b"retained last"}
        both = [b"comes first", b"retained last"]
        assert [payload for payload in client.payloads() if payload in both] == both
        assert watching.payloads() == [*both, b"holds the round"]

    def test_nor_does_one_that_came_before_its_client_began_to_read(
        self, retaining: PublishNode, publisher: Publisher
    ) -> None:
        """A client that subscribes to several filters reads one after the other; even the first comes behind SUBACK."""
        client, other = retaining.client(), retaining.publisher("other")
        publish_held(retaining, publisher, (FREE, b"retained last"), (HELD, b"holds the round"))
        client.subscribe(OTHERS[0], FREE)
        assert retaining.router.retained.waiting
        other_round(other, (FREE, b"comes first"))
        release(retaining)
        assert client.payloads() == [b"comes first", b"retained last"]
        retaining.advance(0.01)
        assert not retaining.router.retained.waiting
        assert read(client, FREE, live=1) == {FREE: b"retained last"}

    def test_very_many_new_filters_do_not_make_a_round_dear(
        self, retaining: PublishNode, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(copies, "LATE_WORK_MAX", 5)
        clients = [retaining.client() for _ in range(5)]
        publish_held(retaining, publisher, (FREE, b"1"), (HELD, b"holds the round"))
        texts = [FREE, *[f"{FREE}/{number}" for number in range(20)]]
        for number, client in enumerate(clients):
            near = [text for text in texts[number::5] if not slot_table(2)[slot_of(text)]]
            client.subscribe(*near)
        release(retaining)
        assert clients[0].payloads() == [b"1"]
        monkeypatch.undo()
        assert read(clients[0], FREE) == {FREE: b"1"}

    def test_a_round_that_waits_before_its_endpoints_reaches_new_filters(
        self, retaining: PublishNode, publisher: Publisher
    ) -> None:
        retaining.queue("q", FREE, home=[0, 1], access_type="non-exclusive")
        retaining.hold()
        keep(publisher, **{FREE: b"before"})
        retaining.change("q", partition_count=2)
        keep(publisher, **{FREE: b"retained last"})
        client = retaining.client()
        client.subscribe(FREE)
        retaining.client().publish((FREE, b"comes first", wire.FLAG_RETAIN))
        retaining.commit()
        assert client.payloads() == [b"comes first", b"retained last"]

    def test_whatever_else_waits_before_its_endpoints(
        self, retaining: PublishNode, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(retained, "UNADMITTED_MAX", 1)
        others = [retaining.publisher(f"other{number}") for number in range(3)]
        retaining.queue("q", FREE, home=[0, 1], access_type="non-exclusive")
        retaining.hold()
        keep(publisher, **{FREE: b"before"})
        retaining.change("q", partition_count=2)
        for other in others:
            other.publish((FREE, b"is not retained"))
        keep(publisher, **{FREE: b"retained last"})
        assert retaining.router.publishing.spooling.waiting_rounds == 4
        client = retaining.client()
        client.subscribe(FREE)
        retaining.commit()
        assert client.payloads() == [b"retained last"]

    def test_new_filters_are_watched_until_no_round_can_lack_them(
        self, retaining: PublishNode, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        waiting = retaining.router.retained.waiting
        client = retaining.client()
        client.subscribe(OTHERS[0], f"#share/g/{FREE}")
        assert not waiting, "nothing is under way"
        publish_held(retaining, publisher, (HELD, b"1"))
        client.subscribe(f"#share/other/{FREE}")
        retaining.client().subscribe(OTHERS[0])
        assert not waiting, "what is shared gets nothing retained, and workers know the other one"
        monkeypatch.setattr(retained, "WAITING_MAX", 2)
        client.subscribe(OTHERS[1])
        client.subscribe(OTHERS[2])
        client.subscribe(OTHERS[3])
        assert len(waiting) == 2
        release(retaining)
        retaining.advance(0.01)
        assert not waiting

    def test_nor_does_a_direct_message_hide_one_that_waits_before_its_endpoints(
        self, retaining: PublishNode, publisher: Publisher
    ) -> None:
        retaining.queue("q", FREE, home=[0, 1], access_type="non-exclusive")
        retaining.hold()
        keep(publisher, **{FREE: b"before"})
        retaining.change("q", partition_count=2)
        keep(publisher, **{FREE: b"retained last"})
        assert retaining.router.publishing.spooling.waiting_rounds == 1
        client = retaining.client()
        client.subscribe(FREE)
        numbers = [ask(client, "retained.read", filter=FREE, live=live) for live in (1, 2)]
        retaining.client().publish((FREE, b"comes first", wire.FLAG_RETAIN))
        retaining.commit()
        retaining.advance(0.01)
        answers = [page(client, number) for number in numbers]
        assert [answer[2] for answer in answers if answer] == [{FREE: b"retained last"}] * 2
        assert client.payloads() == [b"comes first", b"retained last"]

    def test_what_came_live_was_sent_before_the_page_so_its_reader_leaves_it_out(
        self, retaining: PublishNode, publisher: Publisher
    ) -> None:
        keep(publisher, **{FREE: b"1", "b": b"1"})
        client, other = retaining.client(), retaining.publisher("other")
        client.subscribe(">")
        publish_held(retaining, publisher, (HELD, b"holds the barrier"))
        number = ask(client, "retained.read", filter=">", live=1)
        other_round(other, (FREE, b"2"))
        assert page(client, number) is None
        release(retaining)
        retaining.advance(0.01)
        operations = [frames[0] for frames in client.received]
        assert operations.index(wire.ANSWER) == len(operations) - 1
        answer = page(client, number)
        assert answer is not None
        live = {row[wire.ROW_TOPIC]: row[wire.ROW_PAYLOAD] for row in client.rows()}
        assert live == {FREE: b"2", HELD: b"holds the barrier"}
        assert {**answer[2], **live} == {**live, "b": b"1"}

    @pytest.mark.parametrize("cos", [0, 1, 2])
    def test_what_waits_for_a_slow_client_is_left_out(
        self, retaining: PublishNode, publisher: Publisher, cos: int
    ) -> None:
        slow = retaining.client(credit=[0, 0])
        slow.subscribe(">")
        publisher.publish(("a", b"1", KEPT | cos << wire.COS_SHIFT), ("b", b"2", wire.MODE_PERSISTENT))
        assert slow.rows() == []
        assert read(slow, live=1) == {}
        assert read(slow) == {"a": b"1"}
        slow.send(wire.CREDIT, [10, 1 << 20])
        assert slow.topics() == ["a", "b"] or slow.topics() == []

    def test_a_session_has_a_bounded_number_and_none_is_left_behind(
        self, retaining: PublishNode, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(retained, "PAGE_BYTES", 100)
        for number in range(3):
            keep(publisher, **{f"t{number}": b"x"})
        client = retaining.client()
        first = {
            live: page(client, ask(client, "retained.read", filter=">", live=live)) for live in range(1, 70)
        }
        session = retaining.router.sessions.by_routing_id[client.routing_id]
        assert session.splices is not None
        assert len(session.splices) == retained.SPLICES_MAX
        upto, after = first[1][1]  # type: ignore[index]
        answer = page(client, ask(client, "retained.read", filter=">", live=1, upto=upto, after=after))
        assert answer is not None
        assert answer[0] == errors.INVALID_ARGUMENT
        retaining.advance(5.0)
        for live in range(1, 70):
            read(client, live=live)
        assert session.splices is None

    def test_more_topics_than_are_noted_are_refused_for_a_moment(
        self, retaining: PublishNode, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(splice, "NOTED_MAX", 3)
        slow = retaining.client(credit=[0, 0])
        slow.subscribe(">")
        keep(publisher, a=b"1", b=b"1", c=b"1", d=b"1")
        answer = page(slow, ask(slow, "retained.read", filter=">", live=1))
        assert answer is not None
        assert answer[0] == errors.HOME_NOT_READY

    def test_it_does_not_wait_for_ever(self, retaining: PublishNode, publisher: Publisher) -> None:
        client = retaining.client()
        client.subscribe(HELD)
        publish_held(retaining, publisher, (HELD, b"2"))
        number = ask(client, "retained.read", filter=HELD, live=1)
        retaining.advance(retained.SPLICE_S + 0.1)
        answer = page(client, number)
        assert answer is not None
        assert answer[0] == errors.HOME_NOT_READY
        release(retaining)

    def test_rounds_of_another_message_vpn_hold_up_nobody(self, make_publish_node: Any) -> None:
        rows = snapshot(("vpn", "", "other", {}), ("username", "other", "default", {}))
        node: PublishNode = make_publish_node(2, rows)
        node.queue(wire.RETAINED_QUEUE, home=0, max_spool_usage_mb=10)
        node.queue(wire.RETAINED_QUEUE, home=1, max_spool_usage_mb=10, vpn="other")
        keep(node.publisher(), a=b"1")
        client, other = node.client(), node.publisher(vpn="other")
        client.subscribe("a")
        wait_before_endpoints(node, other, KEPT, vpn="other")
        assert not waits(node, client)
        publish_held(node, other, (HELD, b"is at a worker"))
        assert not waits(node, client)

    def test_nor_do_rounds_that_wait_before_endpoints_and_are_not_retained(
        self, retaining: PublishNode, publisher: Publisher
    ) -> None:
        keep(publisher, a=b"1")
        client = retaining.client()
        client.subscribe("a")
        wait_before_endpoints(retaining, publisher, wire.MODE_PERSISTENT)
        assert not waits(retaining, client)

    def test_very_many_are_looked_at_in_turns(
        self, retaining: PublishNode, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(retained, "LOOKED_AT_MAX", 4)
        client = retaining.client()
        client.subscribe(FREE)
        publish_held(retaining, publisher, (HELD, b"2"))
        numbers = [ask(client, "retained.read", filter=FREE, live=live) for live in range(1, 6)]
        retaining.advance(0.02)
        release(retaining)
        answered = 0
        for count in (2, 4, 5):
            retaining.now += retained.LOOK_S
            retaining.router.retained.tick(retaining.now)
            retaining.settle()
            answered += sum(page(client, number) is not None for number in numbers)
            assert answered == count
        assert not retaining.router.retained.waiting

    def test_one_who_leaves_while_it_waits_is_forgotten(
        self, retaining: PublishNode, publisher: Publisher
    ) -> None:
        client = retaining.client()
        client.subscribe(HELD)
        publish_held(retaining, publisher, (HELD, b"2"))
        ask(client, "retained.read", filter=HELD, live=1)
        client.send(wire.BYE, [])
        release(retaining)
        retaining.advance(0.01)
        assert read(retaining.client(), HELD) == {HELD: b"2"}


ACL = {
    "client_connect_default": "allow",
    "publish_topic_default": "allow",
    "subscribe_topic_default": "allow",
}


def publish_held(node: PublishNode, publisher: Publisher, *rows: tuple[str, bytes]) -> None:
    """Publish a round whose worker does not answer until `release`."""
    node.pause(1)
    publisher.publish(*[(topic, payload, KEPT) for topic, payload in rows])


def wait_before_endpoints(node: PublishNode, publisher: Publisher, flags: int, vpn: str = "default") -> None:
    """Publish a round that waits until the second home, which has stored nothing by then, has stored another one."""
    node.queue("q", FREE, home=[1, 1], access_type="non-exclusive", vpn=vpn)
    node.homes[1].commits = False
    publisher.publish(FREE, flags=flags)
    node.change("q", partition_count=2, vpn=vpn)
    publisher.publish(FREE, flags=flags)
    assert node.router.publishing.spooling.waiting_rounds == 1


def waits(node: PublishNode, client: FakeClient) -> bool:
    """Tell whether a reading that a subscription goes on from has to wait."""
    return page(client, ask(client, "retained.read", filter="a", live=1)) is None


def other_round(publisher: Publisher, *rows: tuple[str, bytes]) -> None:
    """Publish a round to the worker that answers."""
    publisher.publish(*[(topic, payload, KEPT) for topic, payload in rows])


def release(node: PublishNode) -> None:
    node.unpause(1)
