"""Forked children: a client of the parent refuses there, and the parent's connection does not notice."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
import traceback
from typing import TYPE_CHECKING

import pytest

import angarium
from angarium import blocking, errors
from angarium_server.testing import Node
from tests.integration.scripted_router import LIMIT_S, run, running_router
from tests.integration.tls_front import tls_front

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.integration.certificates import Authority, Pair

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("forked") / "data", workers=1) as node:
        yield node


def in_a_child(work: Callable[[], None]) -> None:
    """Do something in a forked child, which is killed after a while, and fail if it raises there."""
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            work()
            status = 0
        except BaseException:  # noqa: BLE001 - nothing may leave: it would go on as a second pytest
            traceback.print_exc()
        finally:
            os._exit(status)
    deadline = time.monotonic() + LIMIT_S
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(pid, 9)
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(ended[1]) == 0


def refuses(call: Callable[[], object]) -> None:
    with pytest.raises(angarium.ConnectionLostError, match="connect after the fork") as caught:
        call()
    assert caught.value.code == errors.FORKED
    assert str(os.getppid()) in str(caught.value)


@pytest.mark.requirement("R277")
def test_a_thread_client_refuses_in_a_child_and_goes_on_in_the_parent(node: Node) -> None:
    with blocking.connect(node.url) as client:
        client.create_queue("forked", ignore_exists=True)
        subscription, flow = client.subscribe("a"), client.consume("forked")
        producer = client.producer()
        client.publish(queue="forked", payload=b"held")
        held = flow.receive(LIMIT_S)

        def child() -> None:
            calls: list[Callable[[], object]] = [
                held.fail,
                lambda: client.publish("a", b"of the child"),
                lambda: client.publish_many([("a", b"of the child")]),
                lambda: client.publish(queue="forked", payload=b"of the child"),
                lambda: client.request("a", timeout_s=LIMIT_S),
                lambda: client.subscribe("b"),
                lambda: client.create_queue("another"),
                lambda: client.flush(),
                lambda: subscription.receive(LIMIT_S),
                lambda: next(iter(subscription)),
                lambda: flow.receive(LIMIT_S),
                lambda: producer.publish("a", b"of the child"),
            ]
            for call in calls:
                refuses(call)
            assert client.closed
            client.close()
            client.close()

        in_a_child(child)
        held.accept()
        client.publish("a", b"of the parent")
        assert subscription.receive(LIMIT_S).payload == b"of the parent"
        assert producer.publish(queue="forked", payload=b"more")
        assert flow.receive(LIMIT_S).payload == b"more"
        assert (client.stats["reconnects"], client.stats["lost_messages"]) == (0, 0)


@pytest.mark.parametrize("is_idle", [True, False])
def test_a_client_of_asyncio_refuses_in_a_child_and_goes_on_in_the_parent(
    node: Node, *, is_idle: bool
) -> None:
    async def test() -> None:
        async with angarium.connect(node.url) as client:
            subscription = await client.subscribe("b")
            waiting = None if is_idle else asyncio.ensure_future(subscription.receive(LIMIT_S))
            await asyncio.sleep(0)

            def child() -> None:
                refuses(lambda: asyncio.run(client.publish("b", b"of the child")))
                refuses(lambda: asyncio.run(client.publish_many([("b", b"of the child")])))
                refuses(lambda: asyncio.run(client.publish(queue="forked", payload=b"of the child")))
                refuses(lambda: asyncio.run(client.subscribe("c")))
                refuses(lambda: asyncio.run(client.create_queue("another")))
                refuses(lambda: asyncio.run(client.flush()))
                if is_idle:
                    refuses(lambda: asyncio.run(subscription.receive(LIMIT_S)))
                asyncio.run(client.close())

                async def own() -> None:
                    async with angarium.connect(node.url) as other:
                        await other.publish("b", b"of a client of the child")
                        await other.flush()

                asyncio.run(own())

            in_a_child(child)
            message = await (waiting or subscription.receive(LIMIT_S))
            assert message.payload == b"of a client of the child"
            await client.publish("b", b"of the parent")
            assert (await subscription.receive(LIMIT_S)).payload == b"of the parent"
            assert (client.stats["reconnects"], client.stats["lost_messages"]) == (0, 0)

    run(test())


def test_what_a_child_collects_does_not_disturb_the_parent(node: Node) -> None:
    clients = [blocking.connect(node.url, client_name="collected")]
    subscription = clients[0].subscribe("c")
    clients[0].create_queue("collected", ignore_exists=True)
    flows = [clients[0].consume("collected")]

    def child() -> None:
        flows.clear()
        clients.clear()
        gc.collect()

    in_a_child(child)
    (client,) = clients
    time.sleep(0.2)
    client.publish("c", b"still here")
    assert subscription.receive(LIMIT_S).payload == b"still here"
    client.publish(queue="collected", payload=b"here, too")
    assert flows[0].receive(LIMIT_S).payload == b"here, too"
    assert client.stats["reconnects"] == 0
    client.close()


@pytest.fixture
def encrypted(authority: Authority, server_pair: Pair) -> Iterator[Callable[[], blocking.Client]]:
    """Give what connects to a router with encryption."""
    with running_router() as router, tls_front(router.port, server_pair.server_context()) as url:
        yield lambda: blocking.connect(url, ca_file=authority.cert)


def test_an_encrypted_connection_survives_a_fork_too(encrypted: Callable[[], blocking.Client]) -> None:
    clients = [encrypted()]
    subscription = clients[0].subscribe("a")

    def child() -> None:
        refuses(lambda: clients[0].publish("a", b"of the child"))
        clients[0].close()
        clients.clear()
        gc.collect()

    in_a_child(child)
    (client,) = clients
    client.publish("a", b"of the parent")
    assert subscription.receive(LIMIT_S).payload == b"of the parent"
    assert client.stats["reconnects"] == 0
    client.close()
