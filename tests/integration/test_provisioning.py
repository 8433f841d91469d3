"""Endpoints and producers of clients on a real node, while its controller dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

import angarium
from angarium import errors
from angarium_server.testing import Node
from cluster.admin.client import Admin
from storage.config_store import ConfigStore, Counter
from tests.waiting import wait_for, wait_until

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

pytestmark = pytest.mark.slow

#: A controller that was killed is back well within this time.
BACK_S = 20.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("node") / "data", workers=2)
    node.start()
    try:
        yield node
    finally:
        node.stop()


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60.0))


def shown(node: Node, name: str, kind: str = "queue") -> dict[str, Any]:
    with Admin(node.data) as admin:
        found: dict[str, Any] = admin.call("objects.show", kind=kind, name=name)
        return found


def kill_controller(node: Node) -> None:
    """Kill the controller, and return at once."""
    with Admin(node.data) as admin:
        (row,) = [row for row in admin.call("status")["processes"] if row["role"] == "controller"]
    os.kill(row["pid"], signal.SIGKILL)


def wait_for_controller(node: Node) -> None:
    """Wait until a controller answers that knows the router."""

    def is_back() -> bool:
        with contextlib.suppress(errors.AngariumError), Admin(node.data) as admin:
            return "router.0" in admin.call("stats", timeout_s=2.0)["controller"]["peers"]
        return False

    wait_until(is_back, "the controller coming back", BACK_S)


@pytest.mark.requirement("R95", "R96", "R100", "R131")
def test_what_a_client_created_is_there_after_the_controller_was_killed(node: Node) -> None:
    async def work() -> None:
        async with await angarium.connect(node.url) as client:
            assert await client.create_queue("kept", subscriptions=["k/>"], max_ttl_s=50)
            before = shown(node, "kept")
            kill_controller(node)
            wait_for_controller(node)
            assert shown(node, "kept") == before
            assert (before["owner"], before["created_by"]) == ("default", "client:default")
            assert not await client.create_queue("kept", ignore_exists=True, max_ttl_s=50)
            await client.delete_queue("kept")
            assert await client.create_queue("kept")
            assert shown(node, "kept")["id"] > before["id"]
            await client.delete_queue("kept")

    run(work())


def test_a_wish_that_comes_while_the_controller_is_away_is_done_when_it_is_back_or_refused(
    node: Node,
) -> None:
    async def work() -> None:
        async with await angarium.connect(node.url) as client:
            kill_controller(node)
            with contextlib.suppress(errors.UnavailableError):
                await client.create_queue("soon", ignore_exists=True)
            wait_for_controller(node)
            await client.create_queue("soon", ignore_exists=True)
            assert shown(node, "soon")["durable"] is True
            await client.delete_queue("soon")

    run(work())


@pytest.mark.requirement("R93", "R104", "R107")
def test_a_temporary_queue_outlives_the_controller_and_ends_with_its_client(node: Node) -> None:
    async def work() -> None:
        async with await angarium.connect(node.url) as client:
            flow = await client.consume("passing", temporary=True)
            assert shown(node, "passing")["durable"] is False
            kill_controller(node)
            wait_for_controller(node)
            await client.publish("", b"still here", mode="persistent", queue="passing")
            async for message in flow:
                assert message.payload == b"still here"
                break
        deadline = time.monotonic() + BACK_S
        while True:
            try:
                shown(node, "passing")
            except errors.NotFoundError:
                return
            assert time.monotonic() < deadline, "the temporary queue did not go with its client"
            await asyncio.sleep(0.05)

    run(work())


def test_a_producer_has_one_id_for_ever(node: Node) -> None:
    def ids() -> dict[str, int]:
        with Admin(node.data) as admin:
            return {row["name"]: row["id"] for row in admin.call("producers.list")}

    async def work() -> None:
        async with await angarium.connect(node.url) as client:
            await client.create_queue("target")
            producer = await client.producer("one")
            await producer.publish("#P2P/QUE/target", b"x")
            before = ids()["one"]
            kill_controller(node)
            wait_for_controller(node)
            await producer.publish("#P2P/QUE/target", b"y")
            await producer.close()
            again = await client.producer("one")
            assert ids()["one"] == before
            assert again.last_sequence == 2
            await again.close(forget=True)
            assert "one" not in ids()
            third = await client.producer("one")
            assert third.last_sequence == 0
            assert ids()["one"] > before
            await third.close(forget=True)
            await client.delete_queue("target")

    run(work())


@pytest.mark.requirement("R109", "R110")
def test_a_template_of_operators_shapes_what_clients_create(node: Node) -> None:
    with Admin(node.data) as admin:
        values = {"name_filter": "shaped/>", "max_ttl_s": 7, "permission": "consume"}
        admin.call("objects.create", kind="template", name="shape", attributes=values)

    async def work() -> None:
        async with await angarium.connect(node.url) as client:
            await client.create_queue("shaped/q", max_redelivery_count=3)
            queue = shown(node, "shaped/q")
            assert (queue["max_ttl_s"], queue["permission"], queue["max_redelivery_count"]) == (
                7,
                "consume",
                3,
            )
            await client.delete_queue("shaped/q")

    run(work())


@pytest.mark.requirement("R132")
def test_a_client_cannot_delete_what_an_operator_created(node: Node) -> None:
    with Admin(node.data) as admin:
        admin.call("objects.create", kind="queue", name="operators")

    async def work() -> None:
        async with await angarium.connect(node.url) as client:
            with pytest.raises(errors.ForbiddenError) as caught:
                await client.delete_queue("operators")
            assert caught.value.code == errors.OPERATOR_ENDPOINT

    run(work())
    with Admin(node.data) as admin:
        admin.call("objects.delete", kind="queue", name="operators")


def test_a_change_of_workers_that_the_supervisor_did_not_hear_of_is_done_by_the_next_controller(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """As if the controller had died between the commit of the new homes and its word to the supervisor."""
    node = Node(tmp_path_factory.mktemp("other") / "data", workers=2)
    node.start()
    with Admin(node.data) as admin:
        for name in ("a", "b", "c"):
            admin.call("objects.create", kind="queue", name=name)
    node.stop()
    store = ConfigStore(node.data / "config")
    store.commit([Counter("workers", 1)])
    store.close()
    node.start()
    try:
        with Admin(node.data) as admin:
            wait_for(lambda: admin.call("workers"), lambda rows: len(rows) == 1, "one worker", BACK_S)
            assert {tuple(row["homes"]) for row in admin.call("objects.list", kind="queue")} == {(0,)}
    finally:
        node.stop()
