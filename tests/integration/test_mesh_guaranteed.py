"""Guaranteed messages over links: once, through any break, with what is refused out of the way."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from angarium import Message, blocking, errors
from tests.integration.mesh_messages import has_one, publish_until, receive_all
from tests.integration.mesh_nodes import Mesh
from tests.integration.mesh_queues import add_queue, drain, numbers, persistent, queue
from tests.mesh.delay_proxy import DelayProxy
from tests.share import short
from tests.waiting import wait_for, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from angarium.message import Mode

pytestmark = pytest.mark.slow

#: Messages of one call while processes die.
ROUND = short(20, long=100)
#: Of a path that carries a large message for longer than a link may be silent.
NARROW_BYTES_PER_S = 150_000


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Two joined nodes, shared by tests that use names of their own."""
    with Mesh(tmp_path_factory.mktemp("pair"), 2) as mesh:
        mesh.join()
        yield mesh


def narrow(folder: Path, cross: Callable[[Mesh], None]) -> None:
    """Have something cross a link whose path is narrow, with room for much on it; the link stays up."""

    def run(mesh: Mesh, url: str) -> None:
        mesh.create("a", "b")
        mesh.nodes["b"].run("link", "create", "a", "--set", f"addresses={url}")
        for here, there in (("a", "b"), ("b", "a")):
            mesh.wait_up(here, there)
        cross(mesh)
        assert not mesh.events("a", "SYSTEM_LINK_DOWN")
        assert not mesh.events("b", "SYSTEM_LINK_DOWN")

    async def test() -> None:
        with Mesh(folder, 2) as mesh:
            async with DelayProxy(mesh["a"].url) as path:
                path.bytes_per_s = NARROW_BYTES_PER_S
                await asyncio.to_thread(run, mesh, path.url)

    asyncio.run(test())


def test_a_message_crosses_whose_bytes_are_longer_on_the_way_than_a_link_may_be_silent(
    tmp_path: Path,
) -> None:
    """In both directions at once; a link is silent when nothing comes, not when no whole message does."""

    def cross(mesh: Mesh) -> None:
        for here, there in (("a", "b"), ("b", "a")):
            add_queue(mesh, there, "wide", f"to/{there}")
            with blocking.connect(mesh[here].url) as client:
                client.publish(f"to/{there}", bytes(NARROW_BYTES_PER_S * 5), mode="persistent")
        for name in ("a", "b"):
            wait_until(lambda name=name: queue(mesh[name], "wide")["messages_spooled"] == 1)  # type: ignore[misc]

    narrow(tmp_path, cross)


def test_direct_messages_that_are_long_behind_others_on_the_way_all_come(tmp_path: Path) -> None:
    """What is asked, to know that the other side is there, is behind them as well; reports come every 5 s only."""
    count = 240

    def cross(mesh: Mesh) -> None:
        with blocking.connect(mesh["b"].url) as client, blocking.connect(mesh["a"].url) as other:
            watcher = other.subscribe("many")
            publish_until(client, "many", has_one(watcher))
            receive_all(watcher)
            for _ in range(count):
                client.publish("many", bytes(NARROW_BYTES_PER_S // 20))
                client.flush()
            assert len(receive_all(watcher, 3)) == count

    narrow(tmp_path, cross)


@pytest.mark.requirement("R167", "R89")
def test_a_guaranteed_message_reaches_the_queue_of_a_neighbour_once_and_in_order(pair: Mesh) -> None:
    add_queue(pair, "b", "first", "first/>")
    with blocking.connect(pair["a"].url) as here, blocking.connect(pair["b"].url) as there:
        watcher = there.subscribe("first/>")
        here.publish_many([persistent(f"first/{n % 3}", b"%d" % n) for n in range(2_000)])
        wait_until(lambda: queue(pair["b"], "first")["messages_spooled"] == 2_000)
        got = []
        with contextlib.suppress(errors.TimeoutExpiredError):
            while True:
                got.append(watcher.receive(0.5).payload)
        assert got == numbers(2_000), "who subscribed over there gets one copy of each"
    assert drain(pair["b"], "first") == numbers(2_000)
    wait_until(lambda: queue(pair["a"], "#link/b")["messages_spooled"] == 0)


def test_both_sides_of_a_link_count_what_crossed_it(pair: Mesh) -> None:
    add_queue(pair, "b", "counted", "counted/queue")

    def figures() -> tuple[int, int, int]:
        out = pair.link("a", "b")
        (channel,) = out["channels"]
        return out["messages_out"], pair.link("b", "a")["messages_in"], channel["bytes_out"]

    before = figures()
    with blocking.connect(pair["a"].url) as here, blocking.connect(pair["b"].url) as there:
        watcher = there.subscribe("counted/direct")
        publish_until(here, "counted/direct", has_one(watcher))
        receive_all(watcher)
        here.publish_many([persistent("counted/queue", bytes(1_000)) for _ in range(20)])
        here.publish_many([Message("counted/direct", bytes(1_000)) for _ in range(10)])
        here.flush()
        assert len(receive_all(watcher, 2)) == 10
    wait_until(lambda: queue(pair["b"], "counted")["messages_spooled"] == 20)
    messages_out, messages_in, bytes_out = [now - then for now, then in zip(figures(), before, strict=True)]
    assert messages_out == messages_in > 30
    assert bytes_out > 30_000


def test_a_delay_is_waited_for_over_there_and_what_is_behind_goes_on(pair: Mesh) -> None:
    """Sequences are positions, so the queue of the link keeps their order, whatever the delays."""
    add_queue(pair, "b", "delayed", "delayed/>")
    with blocking.connect(pair["a"].url) as here:
        here.publish_many([persistent("delayed/x", b"late", delay_ms=2_000)])
        here.publish_many([persistent("delayed/x", one) for one in numbers(5)])
        wait_until(lambda: queue(pair["b"], "delayed")["messages_spooled"] == 6)
    got: list[bytes] = []
    wait_until(lambda: got.extend(drain(pair["b"], "delayed")) or len(got) == 6)  # type: ignore[func-returns-value]
    assert sorted(got) == [*numbers(5), b"late"]
    wait_until(lambda: queue(pair["a"], "#link/b")["messages_spooled"] == 0)


def test_a_direct_message_crosses_as_one_and_is_spooled_there(pair: Mesh) -> None:
    add_queue(pair, "b", "direct", "direct/>")
    before = queue(pair["a"], "#link/b")["total_messages_spooled"]
    with blocking.connect(pair["a"].url) as here:
        here.publish("direct/1", b"x")
        here.flush()
        wait_until(lambda: queue(pair["b"], "direct")["messages_spooled"] == 1)
    assert queue(pair["a"], "#link/b")["total_messages_spooled"] == before


@pytest.mark.requirement("R248")
@pytest.mark.parametrize("mode", ["direct", "persistent"])
def test_a_node_keeps_what_is_to_be_retained_and_crosses_a_link(pair: Mesh, mode: Mode) -> None:
    with blocking.connect(pair["a"].url) as here, blocking.connect(pair["b"].url) as there:
        here.publish(f"retained/{mode}/a", b"alone", retain=True, mode=mode)
        here.flush()
        with there.subscribe(f"retained/{mode}/*", retained=True) as subscription:
            publish_until(here, f"retained/{mode}/probe", has_one(subscription))
            receive_all(subscription)
            here.publish(f"retained/{mode}/b", b"crossed", retain=True, mode=mode)
            here.flush()
            message = subscription.receive(5.0)
            assert (message.payload, message.retain, message.retained) == (b"crossed", True, False)
            wait_until(lambda: payloads(there, f"retained/{mode}/*") == [b"crossed"])
            assert payloads(here, f"retained/{mode}/*") == [b"alone", b"crossed"]
            here.publish(f"retained/{mode}/b", b"", retain=True, mode=mode)
            here.flush()
            assert subscription.receive(5.0).payload == b""
            wait_until(lambda: payloads(there, f"retained/{mode}/*") == [])


@pytest.mark.requirement("R248")
def test_what_a_queue_of_a_neighbour_attracts_is_retained_there(pair: Mesh) -> None:
    add_queue(pair, "b", "attracts", "attracts/>")
    with blocking.connect(pair["a"].url) as here, blocking.connect(pair["b"].url) as there:
        here.publish_many([persistent(f"attracts/{n % 3}", b"%d" % n, retain=True) for n in range(30)])
        wait_until(lambda: queue(pair["b"], "attracts")["messages_spooled"] == 30)
        wait_until(lambda: payloads(there, "attracts/>") == [b"27", b"28", b"29"])


def payloads(client: blocking.Client, filter_text: str) -> list[bytes]:
    return [message.payload for message in client.retained(filter_text)]


@pytest.mark.requirement("R91")
def test_queues_of_one_name_on_two_nodes_are_two(pair: Mesh) -> None:
    add_queue(pair, "a", "same", "same/>")
    add_queue(pair, "b", "same", "same/>")
    with blocking.connect(pair["a"].url) as here:
        here.publish_many([persistent("same/x", b"%d" % n) for n in range(10)])
    for name in "ab":
        wait_for(partial(queue, pair[name], "same"), lambda shown: shown["messages_spooled"] == 10)
    assert drain(pair["a"], "same") == drain(pair["b"], "same") == numbers(10)


def test_while_a_link_is_down_its_queue_fills_and_then_empties(pair: Mesh) -> None:
    add_queue(pair, "b", "later", "later/>")
    pair["b"].run("link", "update", "a", "--set", "enabled=false")
    pair.wait_for("b", "a", lambda row: row["state"] == "disabled")
    with blocking.connect(pair["a"].url) as here:
        here.publish_many([persistent("later/x", b"%d" % n) for n in range(300)])
    assert queue(pair["a"], "#link/b")["messages_spooled"] == 300
    pair["b"].run("link", "update", "a", "--set", "enabled=true")
    wait_until(lambda: queue(pair["b"], "later")["messages_spooled"] == 300)
    pair.wait_up("b", "a")
    assert drain(pair["b"], "later") == numbers(300)


@pytest.mark.requirement("R199")
def test_time_to_live_goes_on_while_a_message_waits_for_the_link(pair: Mesh) -> None:
    add_queue(pair, "b", "ttl", "ttl/>")
    pair["b"].run("link", "update", "a", "--set", "enabled=false")
    pair.wait_for("b", "a", lambda row: row["state"] == "disabled")
    with blocking.connect(pair["a"].url) as here:
        here.publish_many([persistent("ttl/x", b"x", ttl_ms=60_000)])
    time.sleep(1.5)  # this is the time that counts
    pair["b"].run("link", "update", "a", "--set", "enabled=true")
    wait_until(lambda: queue(pair["b"], "ttl")["messages_spooled"] == 1)
    with blocking.connect(pair["b"].url) as there, there.consume("ttl") as flow:
        message = flow.receive(5.0)
        assert 20_000 < message.ttl_ms < 58_600
        flow.accept(message)
    pair.wait_up("b", "a")


@pytest.mark.long
def test_what_the_neighbour_refuses_goes_aside_and_the_rest_goes_on(pair: Mesh) -> None:
    add_queue(pair, "b", "small", "small/>", "max_message_bytes=100")
    add_queue(pair, "b", "behind", "behind/>")
    with blocking.connect(pair["a"].url) as here:
        here.publish_many([persistent("small/x", bytes(200))])
        here.publish_many([persistent("behind/x", b"%d" % n) for n in range(50)])
    wait_until(lambda: queue(pair["b"], "behind")["messages_spooled"] == 50)
    wait_until(lambda: queue(pair["a"], "#link/b/dmq")["messages_spooled"] == 1)
    assert queue(pair["b"], "small")["messages_spooled"] == 0
    events = pair.events("b", "SYSTEM_LINK_MESSAGE_REFUSED")
    assert [event["code"] for event in events][:1] == [errors.MESSAGE_TOO_LARGE]


def test_the_queue_of_a_link_goes_with_it_only(pair: Mesh) -> None:
    with pytest.raises(AssertionError, match=str(errors.OBJECT_IN_USE)):
        pair["a"].run("queue", "delete", "#link/b")
    with blocking.connect(pair["a"].url) as client, pytest.raises(errors.AngariumError):
        client.publish_many([persistent("#P2P/QUE/#link/b", b"not by its name")])


@pytest.mark.parametrize(
    "victim",
    # The others die at each step of a link in tests/simulation/mesh.
    [
        "link",
        pytest.param("near router", marks=pytest.mark.long),
        pytest.param("far router", marks=pytest.mark.long),
        pytest.param("near worker", marks=pytest.mark.long),
        pytest.param("far worker", marks=pytest.mark.long),
    ],
)
def test_messages_cross_exactly_once_whatever_process_dies(pair: Mesh, victim: str) -> None:
    name = f"deaths/{victim.replace(' ', '-')}"
    add_queue(pair, "b", name, f"{name}/>")
    total = 60 * ROUND
    done = threading.Event()
    ends = len(ends_of_links(pair))

    def publish() -> None:
        with blocking.connect(pair["a"].url, timeout_s=60.0) as client:
            producer = client.producer(f"p-{victim}")
            for start in range(0, total, ROUND):
                rows = [persistent(f"{name}/{n % 5}", b"%d" % n) for n in range(start, start + ROUND)]
                producer.publish_many(rows)
                time.sleep(0.01)
        done.set()

    thread = threading.Thread(target=publish)
    thread.start()
    for _ in range(3):
        time.sleep(0.4)
        kill(pair, victim)
    thread.join(90.0)
    assert done.is_set()
    wait_until(lambda: queue(pair["b"], name)["messages_spooled"] >= total)
    wait_until(lambda: queue(pair["a"], "#link/b")["messages_spooled"] == 0)
    got = drain(pair["b"], name)
    assert len(got) == total
    assert sorted(got, key=int) == numbers(total)
    assert got == numbers(total), "in the order of the publisher"
    pair.wait_up("b", "a")
    if victim.endswith("worker"):
        assert ends_of_links(pair)[ends:] == [], "a worker takes no link with it"


def ends_of_links(mesh: Mesh) -> list[str]:
    return [event["text"] for name in "ab" for event in mesh.events(name, "SYSTEM_LINK_DOWN")]


def kill(mesh: Mesh, victim: str) -> None:
    """Kill a process as it is now, if it is there."""
    node = mesh["b" if victim in ("link", "far router", "far worker") else "a"]
    role = victim.rpartition(" ")[2]
    for row in node.status()["processes"]:
        if row["role"] == role and row["pid"]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(row["pid"], signal.SIGKILL)
