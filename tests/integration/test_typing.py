"""The types of the SDK: mypy accepts good programs, and refuses modes, policies and attributes that do not exist.

`scripts/check` has mypy read this module: what it accepts is written as users write it, and what it has to refuse says
so with an error that is expected there. Where it finds none it says that the comment is unused, which fails the check.
"""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args, get_type_hints

import pytest

import angarium
from angarium import blocking
from angarium.client.consuming import attributes
from cluster.objects import attributes_of

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[2]


async def good() -> None:
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


def good_in_threads() -> None:
    try:
        with blocking.connect() as client:
            client.create_queue("billing", access_type="non-exclusive", durability="relaxed")
            client.publish("orders/1", b"paid", mode="persistent")
            with client.consume("billing", ack="auto") as flow:
                for message in flow:
                    print(message.topic)
    except TimeoutError as error:
        print(error)
    except angarium.NotFoundError as error:
        print(error.code)


async def bad(client: angarium.Client, threaded: blocking.Client) -> None:
    await client.publish("t", b"", mode="durable")  # type: ignore[arg-type]
    await client.publish_many([angarium.Message("t", mode="later")])  # type: ignore[arg-type]
    await client.consume("q", ack="later")  # type: ignore[arg-type]
    await client.consume("q", kind="topic")  # type: ignore[arg-type]
    await client.subscribe("t", on_full="wait")  # type: ignore[arg-type]
    await client.create_queue("q", access_type="shared")  # type: ignore[arg-type]
    await client.create_queue("q", permission="all")  # type: ignore[arg-type]
    await client.create_queue("q", max_spool_usage="1")  # type: ignore[call-arg]
    await client.create_topic_endpoint("e", partition_count=3)  # type: ignore[call-arg]
    angarium.connect(password=7)  # type: ignore[arg-type]
    threaded.publish("t", b"", mode="durable")  # type: ignore[arg-type]
    threaded.consume("q", ack="later")  # type: ignore[arg-type]
    threaded.subscribe("t", on_full="wait")  # type: ignore[arg-type]
    threaded.create_queue("q", access_type="shared")  # type: ignore[arg-type]
    threaded.create_queue("q", max_redelivery_count="3")  # type: ignore[arg-type]
    threaded.producer("p").send("t", priority="high")  # type: ignore[arg-type]
    threaded.reader_group("q", "g").plan({0: 1}, messages="all")  # type: ignore[arg-type]
    threaded.request("t", timeout="1")  # type: ignore[call-arg]
    threaded.name.decode()  # type: ignore[attr-defined]


def test_mypy_reads_this_module_and_says_where_it_does_not_refuse() -> None:
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    assert rules["strict"]  # which warns of ignores that are unused
    assert {"angarium", "tests"} <= set(rules["packages"])
    assert "warn_unused_ignores" not in rules
    assert [one["module"] for one in rules["overrides"] if one.get("warn_unused_ignores") is False] == []


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
