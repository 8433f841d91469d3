"""The types of the SDK: mypy accepts good programs, and refuses modes, policies and attributes that do not exist."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args, get_type_hints

import pytest

from angarium.client.consuming import attributes
from cluster.objects import attributes_of

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300

GOOD = """
import asyncio
import logging

import angarium
from angarium import blocking


async def main() -> None:
    async with angarium.connect("tcp://127.0.0.1:55555", client_name="typed") as client:
        await client.create_queue("billing", subscriptions=["orders/>"], access_type="exclusive", max_ttl_s=3)
        await client.create_topic_endpoint("audit", permission="consume", reject_to_sender="never")
        await client.publish("orders/1", b"paid", mode="persistent", cos=2, properties={"euros": 12})
        await client.publish("orders/2", b"paid", mode=angarium.DeliveryMode.DIRECT)
        async with client.producer("till") as producer:
            receipt = await producer.send("orders/3", b"paid", mode="non-persistent")
            sequence: int = await receipt
            if receipt.unroutable:
                logging.warning("message %d went to no queue", sequence)
        async with client.subscribe("orders/>", on_full="stall") as subscription:
            print((await subscription.receive(timeout_s=1)).payload)
        async with client.consume("billing", ack="manual", kind="queue") as flow:
            async for message in flow:
                message.accept()
                break


def threads() -> None:
    with blocking.connect() as client:
        client.create_queue("billing", access_type="non-exclusive", durability="relaxed")
        client.publish("orders/1", b"paid", mode="persistent")
        with client.consume("billing", ack="auto") as flow:
            for message in flow:
                print(message.topic)


try:
    asyncio.run(main())
except TimeoutError as error:
    print(error)
except angarium.NotFoundError as error:
    print(error.code)
"""

BAD = """
import angarium
from angarium import blocking


async def main(client: angarium.Client, threaded: blocking.Client) -> None:
    await client.publish("t", b"", mode="durable")  # refused
    await client.publish_many([angarium.Message("t", mode="later")])  # refused
    await client.consume("q", ack="later")  # refused
    await client.consume("q", kind="topic")  # refused
    await client.subscribe("t", on_full="wait")  # refused
    await client.create_queue("q", access_type="shared")  # refused
    await client.create_queue("q", permission="all")  # refused
    await client.create_queue("q", max_spool_usage="1")  # refused
    await client.create_topic_endpoint("e", partition_count=3)  # refused
    angarium.connect(password=7)  # refused
    threaded.publish("t", b"", mode="durable")  # refused
    threaded.consume("q", ack="later")  # refused
    threaded.subscribe("t", on_full="wait")  # refused
    threaded.create_queue("q", access_type="shared")  # refused
    threaded.create_queue("q", max_redelivery_count="3")  # refused
    threaded.producer("p").send("t", priority="high")  # refused
    threaded.reader_group("q", "g").plan({0: 1}, messages="all")  # refused
    threaded.request("t", timeout="1")  # refused
    threaded.name.decode()  # refused
"""


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.requirement("R277")
def test_mypy_accepts_what_is_right_and_refuses_every_line_that_is_not(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "bad.py").write_text(BAD)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-color-output", "--hide-error-context"]
    found = subprocess.run(
        [*command, "--cache-dir", str(tmp_path / "cache"), "good.py", "bad.py"],
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT / "sdk"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    said = found.stdout.splitlines()
    assert [line for line in said if not line.startswith(("bad.py:", "Found "))] == [], found.stdout
    refused = {int(line.split(":")[1]) for line in said if ": error: " in line}
    marked = {number for number, line in enumerate(BAD.splitlines(), 1) if line.endswith("# refused")}
    assert refused == marked, found.stdout


@pytest.mark.parametrize(
    ("kind", "typed", "besides"),
    [
        ("queue", attributes.QueueAttributes, {"subscriptions"}),
        ("topic-endpoint", attributes.EndpointAttributes, set()),
    ],
)
def test_the_types_name_the_attributes_and_choices_of_the_node(
    kind: str, typed: type, besides: set[str]
) -> None:
    hints: Mapping[str, object] = get_type_hints(typed)
    known = {one.name: one for one in attributes_of(kind)}
    assert hints.keys() == known.keys() - besides
    plain = {"int": int, "bool": bool, "string": str}
    for name, hint in hints.items():
        if known[name].type_name == "choice":
            choices = set(get_args(hint))
            assert hint == Literal[tuple(get_args(hint))]
            assert choices == set(known[name].range_text.split(" or ")), name
        else:
            assert hint is plain[known[name].type_name], name
