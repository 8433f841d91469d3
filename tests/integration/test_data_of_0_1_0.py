"""A data directory as 0.1.0 left it when all its processes were killed, and the node that goes on with it.

The config store and the spools of two workers are in `data_of_0_1_0.txt`: base64 of zlib of JSON, which is, for each of
the three databases, table -> [[key, value], ...] in hexadecimal; what has no table is in the table of no name.
"""

from __future__ import annotations

import asyncio
import base64
import json
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lmdb
import pytest

import angarium
from angarium_server.testing import Node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from angarium import Client

RECORDED = Path(__file__).with_name("data_of_0_1_0.txt")
#: The record gets older, and is not to be forgotten for that.
CONFIG = "[spool]\nproducer_idle_days = 36500\nstage_idle_hours = 87600\n"
STAGE = "3f590980eb97c341e09d5d17"
NODE = {"format": 1, "node": "vm", "node_id": "fb6a68be15e24ddab678d188ab1592ab", "workers": 2, "starts": 1}


def write_database(directory: Path, tables: dict[str, list[list[str]]]) -> None:
    directory.mkdir(parents=True)
    with lmdb.open(str(directory), map_size=1 << 24, max_dbs=len(tables)) as database:
        for name, rows in tables.items():
            table = database.open_db(name.encode() or None)
            with database.begin(table, write=True) as transaction:
                for key, value in rows:
                    transaction.put(bytes.fromhex(key), bytes.fromhex(value))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    data = tmp_path_factory.mktemp("earlier") / "data"
    for name, tables in json.loads(zlib.decompress(base64.b64decode(RECORDED.read_text()))).items():
        write_database(data / name, tables)
    (data / "node.json").write_text(json.dumps({**NODE, "urls": [], "listen": []}))
    config = data.with_name("node.toml")
    config.write_text(CONFIG)
    with Node(data, config=config) as node:
        yield node


def client_of(node: Node, password: str = "open-sesame") -> Any:
    return angarium.connect(node.url, vpn="v2", username="u1", password=password)


async def take(client: Client, name: str, count: int, **options: Any) -> list[angarium.GuaranteedMessage]:
    """Consume so many messages, and find that there are no more."""
    async with await client.consume(name, **options) as flow:
        messages = [await flow.receive(timeout_s=20) for _ in range(count)]
        with pytest.raises(angarium.TimeoutExpiredError):
            await flow.receive(timeout_s=0.2)
        for message in messages:
            message.accept()
    return messages


def numbers(messages: list[angarium.GuaranteedMessage]) -> list[int]:
    return [int(message.payload) for message in messages]


def run(node: Node, work: Any) -> None:
    async def test() -> None:
        async with asyncio.timeout(60), client_of(node) as client:
            await work(client)

    asyncio.run(test())


def test_passwords_of_0_1_0_are_good_and_others_are_not(node: Node) -> None:
    async def test() -> None:
        with pytest.raises(angarium.UnauthorizedError):
            await client_of(node, "open-barley")

    asyncio.run(test())


def test_what_queues_of_all_kinds_held_is_there_in_order(node: Node) -> None:
    async def work(client: Client) -> None:
        by_key: dict[str | None, list[int]] = {}
        for message in await take(client, "part", 20):
            by_key.setdefault(message.partition_key, []).append(int(message.payload))
        assert by_key == {f"k{key}": list(range(key, 20, 5)) for key in range(5)}
        assert numbers(await take(client, "lv", 1)) == [3]
        assert numbers(await take(client, "pri", 9)) == [2, 5, 8, 1, 4, 7, 0, 3, 6]
        (kept,) = await take(client, "te", 1, topic="t/e/x", kind="topic-endpoint")
        assert kept.payload == b"te"

    run(node, work)


def test_what_was_out_comes_again_and_what_was_rejected_is_dead(node: Node) -> None:
    async def work(client: Client) -> None:
        messages = await take(client, "rej", 6)
        assert numbers(messages) == [3, 4, 5, 7, 8, 9], "6 had been accepted"
        assert [message.properties["n"] for message in messages] == numbers(messages)
        assert {message.redelivered for message in messages} == {True}
        dead = await take(client, "dmq", 3)
        assert [(message.payload, message.correlation_id) for message in dead] == [
            (b"%d" % number, f"c{number}") for number in range(3)
        ]

    run(node, work)


def test_a_stage_is_committed_and_a_batch_of_a_sink_is_known(node: Node) -> None:
    async def work(client: Client) -> None:
        assert not await client.commit_stages(["f" * 24], sink="snk", batch=7)
        assert await client.commit_stages([STAGE], sink="snk", batch=8)
        assert numbers(await take(client, "st", 20)) == list(range(20))

    run(node, work)


def test_a_link_is_there_without_its_key_and_workers_that_leave_take_nothing_along(node: Node) -> None:
    link = json.loads(node.run("link", "show", "far", "--json"))
    assert link["addresses"] == ["tcp://127.0.0.1:28499"]
    assert "public_key" not in link
    node.run("worker", "scale", "1", "--wait")

    async def work(client: Client) -> None:
        producer = await client.producer("numbered")
        await producer.publish_many([("part/more", b"%d" % number) for number in range(10)])
        await producer.flush()
        assert sorted(numbers(await take(client, "part", 10))) == list(range(10))

    run(node, work)
