"""Clients that take too much: memory of the node stays bounded, and who keeps to the rules notices nothing."""

from __future__ import annotations

import os
import resource
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest
import zmq

from angarium import blocking, errors, wire
from tests.integration.attacked_node import RSS_GROWTH_MAX, AttackedNode
from tests.integration.numbered import Tally, payload
from tests.integration.raw_client import RawClient, hello_header, row
from tests.share import short
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

LIMIT_S = 20.0
MIB = 1 << 20
#: A session ends for its rate, or for answers that it does not read, and is not always told.
ENDS_OF_A_FLOOD = (errors.CONTROL_RATE_EXCEEDED, errors.EGRESS_BLOCKED, errors.NOT_CONNECTED)
#: A rate of control frames that a busy machine exceeds too.
LOADED = "[router]\ncontrol_frames_per_second = 1000\n[worker]\ntopic_cache_max = 20000\n"
#: Enough to see growth, little enough to be quick.
FLOOD_BYTES = short(150, long=200) * MIB
FLOOD_MESSAGE_BYTES = 50_000
STORM_CONNECTS = 200
STORM_CONNECTS_MIN = short(400, long=1_000)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedNode]:
    with AttackedNode(tmp_path_factory.mktemp("load"), LOADED) as attacked:
        yield attacked


@pytest.fixture(autouse=True)
def unharmed(request: pytest.FixtureRequest) -> Iterator[None]:
    if "attacked" not in request.fixturenames:
        yield
        return
    attacked: AttackedNode = request.getfixturevalue("attacked")
    before = attacked.rss(), attacked.rss("worker")
    attacked.begin()
    yield
    attacked.expect_unharmed()
    assert attacked.rss() - before[0] < RSS_GROWTH_MAX
    assert attacked.rss("worker") - before[1] < RSS_GROWTH_MAX


def flood(attacked: AttackedNode, topic: str, total: int = FLOOD_BYTES) -> int:
    """Publish so many bytes, and give how many messages that was."""
    count = total // FLOOD_MESSAGE_BYTES
    with blocking.connect(attacked.url) as client:
        client.publish_many(
            [(topic, n.to_bytes(4, "big") + bytes(FLOOD_MESSAGE_BYTES - 4)) for n in range(count)]
        )
        client.flush(LIMIT_S)
    return count


# Ingress.


@pytest.mark.long
def test_an_overdraft_of_ingress_credit_ends_the_session(attacked: AttackedNode) -> None:
    """Topics that nobody used before take a worker ten times as long as they take the router to read."""
    counted = attacked.errors(errors.INGRESS_CREDIT_EXCEEDED)
    with attacked.client() as client:
        deadline = time.monotonic() + LIMIT_S
        code = None
        while code is None:
            assert time.monotonic() < deadline, "it takes everything"
            client.publish_uncut([row(n, f"overdraft/{client.round}/{n}") for n in range(2_000)])
            while code is None and client.socket.poll(0):
                frame = client.receive()
                code = frame.header[0] if frame.operation == wire.CLOSED else None
    assert code == errors.INGRESS_CREDIT_EXCEEDED
    attacked.expect_errors(errors.INGRESS_CREDIT_EXCEEDED, counted + 1)


def test_a_flood_of_control_frames_ends_the_session(attacked: AttackedNode) -> None:
    with attacked.client() as client:
        packed = wire.pack([1])
        for _ in range(short(10_000, long=40_000)):
            client.socket.send_multipart([wire.PING, packed])
        assert client.ended(LIMIT_S) in ENDS_OF_A_FLOOD


@pytest.mark.long
def test_a_flood_of_filters_is_a_flood_of_control_frames(attacked: AttackedNode) -> None:
    body = wire.pack([1, [["", 0]] * wire.MAX_FILTERS_PER_REQUEST, None])
    with attacked.client() as client:
        for _ in range(2_000):
            client.socket.send_multipart([wire.SUBSCRIBE, body])
        assert client.ended(LIMIT_S) in ENDS_OF_A_FLOOD


@pytest.mark.long
def test_topics_that_nobody_uses_twice_fill_no_memory(attacked: AttackedNode) -> None:
    with blocking.connect(attacked.url) as client:
        for start in range(0, 200_000, 10_000):
            client.publish_many([(f"once/{n}/" + "x" * 200, b"") for n in range(start, start + 10_000)])
        for n in range(30_000):
            client.publish(f"once/alone/{n}/" + "x" * 200, b"")
        client.flush(LIMIT_S)


def test_logins_that_wait_for_their_password_are_bounded(attacked: AttackedNode) -> None:
    """Each password takes tens of milliseconds; the queue of them has an end, and the router does not wait."""
    attacked.create_user("slow-login", "right password")
    strangers = [attacked.stranger() for _ in range(300)]
    try:
        for number, one in enumerate(strangers):  # equal ones are compared once for all
            one.send(wire.HELLO, hello_header(username="slow-login", password=f"wrong {number}"))
        codes = [one.closed(LIMIT_S * 2) for one in strangers[-50:]]
        assert set(codes) <= {errors.CONNECT_RATE_EXCEEDED, errors.UNAUTHORIZED}
        assert errors.CONNECT_RATE_EXCEEDED in codes
    finally:
        for one in strangers:
            one.close()


def login_s(attacked: AttackedNode) -> float:
    """Give how long a login with a password takes."""
    started = time.monotonic()
    with blocking.connect(attacked.url, username="alice", password="right password") as client:
        assert client.connected
    return time.monotonic() - started


def test_wrong_passwords_from_one_address_do_not_keep_the_logins_of_others_out(
    attacked: AttackedNode,
) -> None:
    attacked.create_user("alice", "right password")
    alone_s = login_s(attacked)
    far = attacked.url.replace("tcp://", "tcp://127.0.0.2:0;")
    strangers = [attacked.stranger(url=far) for _ in range(150)]
    try:
        for one in strangers:
            one.send(wire.HELLO, hello_header(username="alice", password="wrong"))
        wait_until(lambda: any(one.socket.poll(0) for one in strangers), "they are at work")
        assert login_s(attacked) < max(2.0, 20 * alone_s)
    finally:
        for one in strangers:
            one.close()


# Egress.


@pytest.mark.requirement("R8", "R45")
def test_a_client_that_never_renews_credit_loses_its_oldest_messages_and_is_told(
    attacked: AttackedNode,
) -> None:
    granted = 10
    discarded = attacked.discards("transmit-congestion")
    with attacked.client(credit=[granted, 1 << 40]) as client:
        client.subscribe("flood/mute")
        count = flood(attacked, "flood/mute")
        attacked.wait_for("the discards are counted", lambda status: _congestion(status) > discarded)
        first = client.receive_only(wire.DELIVER)
        passed = first.header[1][0][0]
        assert first.header[2] == 0
        assert attacked.rss() < 300 * MIB
        client.send(wire.CREDIT, [1 << 40, 1 << 40])
        received, dropped, last = passed, 0, -1
        while last < count - 1:
            frame = client.answer_pings(wire.DELIVER)
            flags, parts, missing = frame.header
            numbers = [int.from_bytes(one[5][:4], "big") for one in wire.unpack(frame.batches[0])]
            assert bool(flags & wire.DELIVER_DISCARD_INDICATION) == bool(missing)
            assert (
                numbers[0] == max(last + 1, passed) + missing if last >= 0 else numbers[0] == passed + missing
            )
            received, dropped, last = received + parts[0][0], dropped + missing, numbers[-1]
        assert received + dropped == count
        assert dropped
        attacked.expect_discards("transmit-congestion", discarded + dropped)


def _congestion(status: dict[str, Any]) -> int:
    return int(status["discards"].get("transmit-congestion", 0))


@pytest.mark.parametrize(
    "credit",
    [pytest.param([1 << 40, 1 << 50], marks=pytest.mark.long), [1_000_000, 16 * MIB]],
    ids=["endless", "usual"],
)
def test_a_client_that_never_reads_keeps_only_a_bounded_part_in_memory(
    attacked: AttackedNode, credit: list[int]
) -> None:
    before = attacked.rss()
    with attacked.stranger(receive_mark=1) as client, blocking.connect(attacked.url) as healthy:
        client.send(wire.HELLO, hello_header(credit=credit, keepalive_ms=3_600_000))
        client.receive()
        client.subscribe("flood/unread")
        received: list[int] = []
        healthy.subscribe("flood/unread", callback=lambda message: received.append(len(message.payload)))
        count = flood(attacked, "flood/unread")
        wait_until(lambda: len(received) == count, "the healthy one has all", LIMIT_S)
        assert attacked.rss() - before < 120 * MIB
        assert healthy.stats["discarded_messages"] == 0


@pytest.mark.parametrize(
    "operation", ["ping", "subscribe", "publish-refused"], ids=["pings", "subscribes", "refused-messages"]
)
def test_answers_that_nobody_reads_keep_only_a_bounded_part_in_memory(
    attacked: AttackedNode, operation: str
) -> None:
    before = attacked.rss()
    with attacked.client(keepalive_ms=3_600_000) as client:
        client.close()
    with attacked.stranger(receive_mark=1) as client:
        client.send(wire.HELLO, hello_header(keepalive_ms=3_600_000))
        client.receive()
        bad = wire.pack([[n, "", 0, None, None, b""] for n in range(5)])
        for number in range(4_000):
            if operation == "ping":
                client.send(wire.PING, [number])
            elif operation == "subscribe" and number < 500:
                client.send(wire.SUBSCRIBE, [number, [["x" * 251, 0]] * 200, None])
            elif operation == "publish-refused":
                client.send(wire.PUBLISH, [number + 1, 0, False, [[0, 5]]], bad)
                time.sleep(0 if number % 50 else 0.005)  # the credit would end it otherwise
        with blocking.connect(attacked.url) as barrier:
            barrier.publish("barrier", b"")
            barrier.flush(LIMIT_S)
        assert attacked.rss() - before < 40 * MIB


def test_a_stopped_client_process_is_ended_and_others_on_its_topic_get_everything(
    attacked: AttackedNode,
) -> None:
    counted = attacked.errors(errors.KEEPALIVE_TIMEOUT)
    script = (
        "import sys, time\n"
        "from angarium import blocking\n"
        "client = blocking.connect(sys.argv[1], client_name='stopped', keepalive_ms=1000)\n"
        "client.subscribe('flood/stopped', callback=lambda message: None)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    tally = Tally()
    with attacked.python(script) as stopped, blocking.connect(attacked.url) as healthy:
        healthy.subscribe("flood/stopped", callback=lambda message: tally.take([message.payload[:8]]))
        stopped.send_signal(signal.SIGSTOP)
        with blocking.connect(attacked.url) as source:
            for start in range(0, 4_000, 500):
                source.publish_many(
                    [("flood/stopped", payload(0, n) + bytes(20_000)) for n in range(start, start + 500)]
                )
            source.flush(LIMIT_S)
        wait_until(lambda: tally.total == 4_000, "the healthy one has all", LIMIT_S)
        assert tally.not_rising == []
        attacked.wait_for(
            "its session is ended",
            lambda status: status["errors"].get(str(errors.KEEPALIVE_TIMEOUT), 0) > counted,
        )
        stopped.send_signal(signal.SIGCONT)
        attacked.wait_for_client("stopped", "it comes back when it goes on")


# Connects.


def test_a_router_without_free_files_goes_on_and_takes_clients_again(attacked: AttackedNode) -> None:
    pid = next(row["pid"] for row in attacked.node.ready["processes"] if row["role"] == "router")
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = len(os.listdir(f"/proc/{pid}/fd"))
    host, port = attacked.url.removeprefix("tcp://").split(":")
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 10, limits[1]))
    idle = [socket.create_connection((host, int(port)), timeout=LIMIT_S) for _ in range(40)]
    try:
        wait_until(lambda: len(os.listdir(f"/proc/{pid}/fd")) >= used + 9, "no file is free")
        with pytest.raises(errors.ConnectionLostError):
            blocking.connect(attacked.url, timeout_s=0.3)
        attacked.expect_unharmed()
    finally:
        for one in idle:
            one.close()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    with blocking.connect(attacked.url, timeout_s=LIMIT_S) as client:
        assert client.connected


def storm(context: zmq.Context[zmq.Socket[bytes]], url: str) -> Iterator[int]:
    """Connect many times at once, and give the code of each answer, 0 for WELCOME."""
    strangers = {one.socket: one for one in (RawClient(context, url) for _ in range(STORM_CONNECTS))}
    poller = zmq.Poller()
    for stranger in strangers.values():
        stranger.send(wire.HELLO, hello_header())
        poller.register(stranger.socket, zmq.POLLIN)
    unanswered = len(strangers)
    while unanswered:
        ready = poller.poll(int(LIMIT_S * 1000))
        assert ready, f"{unanswered} got no answer"
        for client, _ in ready:
            operation, header, *_ = client.recv_multipart()
            poller.unregister(client)
            unanswered -= 1
            yield 0 if operation == wire.WELCOME else wire.unpack(header)[0]
    for stranger in strangers.values():
        stranger.close()


def test_a_storm_of_connects_waits_for_its_turn_and_a_healthy_client_gets_in_beside_it(
    attacked: AttackedNode,
) -> None:
    """They are admitted as fast as that goes beside those who are here; no number per second refuses them."""
    answers: dict[int, int] = {}
    sent = 0
    with zmq.Context() as context:
        while sent < STORM_CONNECTS_MIN:
            sent += STORM_CONNECTS
            for code in storm(context, attacked.url):
                answers[code] = answers.get(code, 0) + 1
            with blocking.connect(attacked.url, timeout_s=LIMIT_S) as client:
                assert client.connected
    assert answers == {0: sent}


def test_a_connect_rate_that_an_operator_has_set_does_not_count_for_clients_of_this_host(
    tmp_path: Path,
) -> None:
    with AttackedNode(tmp_path, "[router]\nconnects_per_second = 1\nconnect_burst = 2\n") as attacked:
        for _ in range(20):
            with attacked.client() as client:
                assert client.is_open()
