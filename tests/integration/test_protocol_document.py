"""A client written from docs/protocol.md alone, against a real node; and what that page states in bytes.

Nothing of ours is imported but the helper that starts a node, so whatever the page leaves out or gets wrong
fails here first.
"""

from __future__ import annotations

import ast
import contextlib
import os
import random
import re
import signal
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from angarium_server.testing import Node
from tests.integration.documented_client import (
    WORKERS,
    DocumentedClient,
    pack,
    row,
    unpack,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("document") / "data", workers=WORKERS) as node:
        yield node


def examples() -> list[tuple[str, str]]:
    """Give the examples of the page: a value as it is written, and its bytes."""
    return re.findall(r"^(.*\S) += ((?:[0-9a-f]{2} ?)+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_bytes_of_every_example_are_what_messagepack_makes_of_it() -> None:
    words = {"nil": "None", "true": "True", "false": "False"}
    wrong = []
    for text, written in examples():
        value = ast.literal_eval(re.sub(r"\b(nil|true|false)\b", lambda match: words[match[1]], text))
        if pack(value) != bytes.fromhex(written):
            wrong.append(f"{text} = {pack(value).hex(' ')}")
    assert wrong == []
    assert len(examples()) > 10


def test_the_slot_of_every_topic_in_the_table_is_its_crc32() -> None:
    rows = re.findall(
        r"^\| `(.*)` \| ([0-9a-f]{8}) \| (\d+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    crcs = {topic: zlib.crc32(topic.encode()) for topic, _, _ in rows}
    assert rows == [(topic, f"{crc:08x}", str(crc % 1024)) for topic, crc in crcs.items()]
    assert len(rows) > 3


@pytest.mark.slow
@pytest.mark.requirement("R219")
def test_a_session_opens_with_every_key_that_is_listed_and_ends_with_bye(node: Node) -> None:
    table = PAGE.read_text(encoding="utf-8").partition("The answer is WELCOME")[2].partition("Wait for")[0]
    listed = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    with DocumentedClient(node.url, client_name="from the page") as client:
        assert sorted(client.welcome) == sorted(listed)
        assert client.welcome["client_name"] == "from the page"
        assert client.welcome["workers"] == WORKERS == len(set(client.welcome["slots"]))
        assert len(client.welcome["slots"]) == 1024
        client.leave()


@pytest.mark.slow
@pytest.mark.requirement("R3")
def test_rounds_cut_or_not_come_in_order_while_credit_is_renewed(node: Node) -> None:
    """The window is a tenth of what is published, so hardly anything comes without a CREDIT."""
    randomness = random.Random(7)
    payloads = [b"%d" % number for number in range(1_000)]
    with DocumentedClient(node.url) as subscriber, DocumentedClient(node.url) as publisher:
        assert subscriber.subscribe("order/>") == [None]
        sent = 0
        while sent < len(payloads):
            some = payloads[sent : sent + randomness.randint(1, 40)]
            rows = [row(i, f"order/{randomness.randrange(50)}", payload) for i, payload in enumerate(some)]
            publish = randomness.choice([publisher.publish, publisher.publish_cut])
            publish(rows, flush=randomness.random() < 0.5)
            sent += len(some)
        publisher.flush()
        subscriber.receive(len(payloads))
        assert [one[5] for _, one in subscriber.rows] == payloads
        assert subscriber.dropped == []
        publisher.leave()
        subscriber.leave()


@pytest.mark.slow
def test_what_exceeds_the_credit_waits_until_it_is_renewed(node: Node) -> None:
    with DocumentedClient(node.url, window=(4, 65_536)) as client:
        client.subscribe("orders/>")
        for count in (2, 3, 1):
            client.publish([row(i, f"orders/{i}", b"x") for i in range(count)], flush=True)
        client.flush()
        client.ping()
        assert len(client.rows) == 5, "the second round overdraws, the third waits"
        client.send("C", [8, 131_072])
        client.read_until(lambda: len(client.rows) == 6)
        client.leave()


@pytest.mark.slow
@pytest.mark.requirement("R45")
def test_a_client_that_was_too_slow_is_told_how_many_messages_it_missed(node: Node) -> None:
    """The queue of a class of service has 39 MiB by default, and 26 messages of 2 MiB are more."""
    with DocumentedClient(node.url, window=(1, 1)) as subscriber, DocumentedClient(node.url) as publisher:
        subscriber.subscribe("large")
        for number in range(26):
            publisher.publish([row(0, "large", b"%2d" % number + bytes(2 << 20))], flush=True)
        publisher.flush()
        subscriber.send("C", [1_000, 1 << 30])
        subscriber.read_until(lambda: bool(subscriber.rows) and subscriber.rows[-1][1][5][:2] == b"25")
        numbers = [int(one[5][:2]) for _, one in subscriber.rows]
        (dropped,) = subscriber.dropped
        assert numbers == [0, *range(1 + dropped, 26)], (
            "the first came, then the oldest of the queue were dropped"
        )


@pytest.mark.slow
def test_a_refused_row_is_told_before_its_round_retires_and_costs_nothing_else(node: Node) -> None:
    with DocumentedClient(node.url) as client:
        client.subscribe("fine/*")
        client.publish(
            [row(0, "fine/a", b"1"), row(1, "#share/g/a", b""), row(2, "", b""), row(3, "fine/b", b"2")]
        )
        client.flush()
        assert sorted(client.notices) == [[40004, "", 1, 1], [40311, "#share/g/a", 1, 1]]
        assert [one[5] for _, one in client.rows] == [b"1", b"2"]
        client.leave()


@pytest.mark.slow
def test_filters_are_answered_one_by_one(node: Node) -> None:
    with DocumentedClient(node.url) as client:
        answers = client.subscribe(
            "a/b", "a/b", "#share/*/a", "#P2P/>", client.welcome["inbox"], "#noexport/a/b"
        )
        assert [None if one is None else one[0] for one in answers] == [None, None, 40006, 40311, None, None]
        client.publish([row(0, "a/b", b"once")])
        client.flush()
        assert [one[5] for _, one in client.rows] == [b"once"], "one copy, however many subscriptions match"
        assert client.subscribe("a/b", "#noexport/a/b", operation="U") == [None, None]
        (again,) = client.subscribe("a/b", operation="U")
        assert again[0] == 40402
        client.leave()


@pytest.mark.slow
def test_shared_rows_name_their_subscription_and_go_to_one_member(node: Node) -> None:
    with DocumentedClient(node.url) as one, DocumentedClient(node.url) as other:
        for member in (one, other):
            assert member.subscribe("#share/page/jobs/>") == [None]
        one.publish([row(i, f"jobs/{i}", b"%d" % i) for i in range(60)])
        one.flush()
        other.ping()
        shares = {share for member in (one, other) for share, _ in member.rows}
        assert shares == {"#share/page/jobs/>"}
        got = [int(each[5]) for member in (one, other) for _, each in member.rows]
        assert sorted(got) == list(range(60))
        assert one.rows
        assert other.rows


@pytest.mark.slow
def test_a_reply_finds_its_request_through_the_inbox(node: Node) -> None:
    with DocumentedClient(node.url) as asker, DocumentedClient(node.url) as replier:
        asker.subscribe(asker.welcome["inbox"])
        replier.subscribe("questions")
        properties = pack({1: "c-17", 2: asker.welcome["inbox"], 10: {"colour": "red"}})
        asker.publish([row(0, "questions", b"why", properties=properties)])
        replier.receive(1)
        asked = unpack(replier.rows[0][1][4])
        assert asked[10] == {"colour": "red"}
        replier.publish([row(0, asked[2], b"because", flags=0x80, properties=pack({1: asked[1]}))])
        asker.receive(1)
        _, (_, topic, flags, _, packed, payload) = asker.rows[0]
        assert (topic, flags, unpack(packed), payload) == (
            asker.welcome["inbox"],
            0x80,
            {1: "c-17"},
            b"because",
        )


@pytest.mark.slow
def test_a_token_brings_the_name_back_and_no_subscriptions(node: Node) -> None:
    with DocumentedClient(node.url, client_name="comes back") as first:
        first.subscribe("gone/>")
        token = first.welcome["token"]
        with DocumentedClient(node.url, client_name="comes back") as stranger:
            assert stranger.closed is not None
            assert stranger.closed[0] == 40907
        with DocumentedClient(node.url, client_name="comes back", token=token) as second:
            assert second.welcome["resumed"] is True
            assert second.welcome["inbox"] != first.welcome["inbox"]
            first.read_until(lambda: first.closed is not None)
            assert first.closed is not None
            assert first.closed[0] == 40802
            second.publish([row(0, "gone/x", b"")])
            second.flush()
            assert second.rows == []
            second.leave()


@pytest.mark.slow
def test_a_round_cut_by_a_table_that_the_node_does_not_know_is_cut_again(node: Node) -> None:
    with DocumentedClient(node.url) as client:
        client.subscribe("old/*")
        rows = [row(i, f"old/{i}", b"%d" % i) for i in range(20)]
        client.publish_parts(client.welcome["epoch"] + 7, {0: rows[::2], 1: rows[1::2]}, flush=True)
        client.flush()
        assert [one[5] for _, one in client.rows] == [b"%d" % i for i in range(20)]
        client.leave()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operation", "header", "batches", "code"),
    [
        ("Z", [], [], 40002),
        ("H", {"version": 1}, [], 40016),
        ("C", [1, 1], [], 40001),
        ("S", [1, [], None], [], 40001),
        ("S", [1, [["a", 0]] * 257, None], [], 40001),
        ("P", [2, 0, False, [[0, 1]]], [pack([row(0, "a", b"")])], 40001),
        ("P", [1, 0, False, [[0, 2]]], [pack([row(0, "a", b"")])], 40001),
        ("P", [1, 0, False, [[0, True]]], [pack([row(0, "a", b"")])], 40001),
        ("P", [1, 0, False, [[0, 1], [1, 1]]], [pack([row(0, "a", b"")]), pack([row(1, "b", b"")])], 40001),
        ("P", [1, 0, False, [[0, 2]]], [pack([row(1, "a", b""), row(1, "a", b"")])], 40001),
        ("P", [1, 0, False, [[0, 1]]], [pack([row(0, "a", b"", flags=0x03)])], 40001),
        ("P", [1, 0, False, [[0, 1]]], [pack([row(0, "a", b"", flags=0x0C)])], 40001),
        ("P", [1, 0, False, [[0, 1]]], [pack([[0, "a", 0, None, None, "text"]])], 40001),
        ("P", [1, 0, False, [[0, 10_001]]], [pack([row(i, "a", b"") for i in range(10_001)])], 40008),
    ],
)
def test_a_frame_against_the_page_ends_the_session_with_its_code(
    node: Node, operation: str, header: Any, batches: list[bytes], code: int
) -> None:
    with DocumentedClient(node.url) as client:
        client.send(operation, header, *batches)
        client.read_until(lambda: client.closed is not None)
        assert client.closed is not None
        assert client.closed[0] == code


@pytest.mark.slow
def test_a_topic_of_another_worker_ends_the_session(node: Node) -> None:
    with DocumentedClient(node.url) as client:
        topic = "orders/never/seen/before"
        owner = client.welcome["slots"][zlib.crc32(topic.encode()) % 1024]
        wrong = (owner + 1) % WORKERS
        client.publish_parts(client.welcome["epoch"], {wrong: [row(0, topic, b"")]}, flush=True)
        client.read_until(lambda: client.closed is not None)
        assert client.closed is not None
        assert client.closed[0] == 40001


@contextlib.contextmanager
def standing_still(node: Node, worker: int) -> Iterator[None]:
    """Stop a worker, for less than the five seconds after which it is replaced."""
    pid = node.kill("worker", worker, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
def test_more_rounds_than_the_credit_allows_end_the_session(node: Node) -> None:
    """While the worker of their topics stands still, none of them can retire."""
    with DocumentedClient(node.url) as client, standing_still(node, 0):
        slots, limit = client.welcome["slots"], client.welcome["rounds"]
        topics = (
            topic for n in range(10**9) if slots[zlib.crc32((topic := f"busy/{n}").encode()) % 1024] == 0
        )
        batches = [pack([row(i, next(topics), b"") for i in range(300)]) for _ in range(limit + 1)]
        for number, batch in enumerate(batches, 1):
            client.send("P", [number, client.welcome["epoch"], False, [[0, 300]]], batch)
        client.read_until(lambda: client.closed is not None)
        assert client.closed is not None
        assert client.closed[0] == 40009


@pytest.mark.slow
@pytest.mark.requirement("R210")
def test_a_new_table_is_told_and_cut_rounds_go_on_in_order(node: Node) -> None:
    with DocumentedClient(node.url) as client:
        client.subscribe("scaled/>")
        before = client.welcome["epoch"]
        node.run("worker", "scale", str(WORKERS - 1))
        client.read_until(lambda: client.welcome["epoch"] > before)
        assert set(client.welcome["slots"]) == set(range(WORKERS - 1))
        payloads = [b"%d" % number for number in range(90)]
        for start in range(0, len(payloads), 9):
            some = payloads[start : start + 9]
            client.publish_cut([row(i, f"scaled/{payload!r}", payload) for i, payload in enumerate(some)])
        client.receive(len(payloads))
        assert [one[5] for _, one in client.rows] == payloads
        client.leave()
