"""What one client makes a node remember is bounded in bytes, and given back when the client goes."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from angarium import errors, wire
from tests.integration.attacked_node import AttackedNode
from tests.integration.raw_client import row
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.integration.raw_client import RawClient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MIB = 1 << 20
CONFIG = """[router]
control_frames_per_second = 100000
fast_path_bytes = 1048576
[worker]
topic_cache_bytes = 1048576
"""
#: Filters that all match the topics below, and topics that each match one filter more: as many distinct large sets.
LEVELS = 12
TOPICS = 600
#: What the sets of these would take: one place in a tuple for each filter, in the router and one worker.
UNBOUNDED_BYTES = TOPICS * 2 * 8 << LEVELS
#: The routers and workers of a node, after a minute, as a part of what they had before the client came.
GIVEN_BACK_WITHIN = 1.10
GIVEN_BACK_S = 60.0
#: A filter of so many levels takes 27 KB in each worker.
DEEP = "/".join(["*", "{}", *"abcdefghij" * 10, "*"])
DEEP_FILTERS = 6_000
#: What one client may make the node keep: a tenth of what it tries.
MEMORY_MAX = 32 * MIB
#: What three processes take for frames, and the allocator in advance: a fifth of what the client tries.
SLACK = 64 * MIB


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedNode]:
    with AttackedNode(tmp_path_factory.mktemp("memory"), CONFIG) as attacked:
        yield attacked


def memory(attacked: AttackedNode) -> int:
    return attacked.rss() + attacked.rss("worker")


def expect_given_back(attacked: AttackedNode, before: int) -> None:
    wait_for(
        lambda: memory(attacked),
        lambda now: now <= before * GIVEN_BACK_WITHIN,
        f"falling to {before} bytes",
        GIVEN_BACK_S,
    )


def subscribe(client: RawClient, filters: Sequence[str]) -> None:
    for first in range(0, len(filters), wire.MAX_FILTERS_PER_REQUEST):
        answers = client.subscribe(*filters[first : first + wire.MAX_FILTERS_PER_REQUEST])
        assert not any(answers), answers


def publish_each(client: RawClient, topics: Sequence[str]) -> None:
    """Publish one byte to each topic, alone, because small rounds teach the router too."""
    for topic in topics:
        client.publish_uncut([row(0, topic, b"x")], flush=True)
        client.answer_pings(wire.RETIRED)


def make_user(attacked: AttackedNode, name: str, **profile: int) -> None:
    """Make a username with a client profile of its own."""
    attacked.operator("objects.create", kind="profile", name=name, attributes=profile)
    attributes = {"client_profile": name}
    attacked.operator("objects.create", kind="username", name=name, attributes=attributes)


def take_much(attacked: AttackedNode, name: str) -> None:
    """Subscribe to dear filters until nothing more is allowed, and far beyond."""
    with attacked.client(username="greedy", client_name=name) as client:
        answers = []
        for first in range(0, DEEP_FILTERS, 200):
            answers += client.subscribe(*[DEEP.format(first + number) for number in range(200)])
        refused = [answer[0] for answer in answers if answer is not None]
        assert refused == [errors.MEMORY_EXCEEDED] * len(refused)
        assert len(refused) > DEEP_FILTERS // 2
        (row,) = [one for one in attacked.operator("clients.list") if one["name"] == name]
        assert MEMORY_MAX * 0.99 < row["memory_bytes"] <= MEMORY_MAX
        assert memory(attacked) > MEMORY_MAX


@pytest.mark.requirement("R279")
def test_dear_filters_are_refused_beyond_a_limit_and_go_with_their_client(attacked: AttackedNode) -> None:
    attacked.begin()
    make_user(attacked, "greedy", max_memory_bytes=MEMORY_MAX)
    with attacked.client() as client:  # what a process makes at its first use does not come back
        client.subscribe(*[DEEP.format(number) for number in range(200)])
    start = memory(attacked)
    take_much(attacked, "first")
    assert memory(attacked) - start < MEMORY_MAX + SLACK
    expect_given_back(attacked, start)
    attacked.expect_unharmed()


@pytest.mark.long
@pytest.mark.requirement("R279")
def test_large_sets_of_filters_are_bounded_and_go_with_their_client(attacked: AttackedNode) -> None:
    attacked.begin()
    make_user(attacked, "wide", max_overlapping_filters=2 << LEVELS)
    topics = ["/".join([f"a{number}"] * LEVELS) for number in range(TOPICS)]
    with attacked.client(username="wide") as client, attacked.client() as publisher:
        subscribe(client, ["/".join(levels) for levels in itertools.product(("a*", "*"), repeat=LEVELS)])
        subscribe(client, topics)
        with_filters = memory(attacked)
        publish_each(publisher, topics)
        assert memory(attacked) - with_filters < UNBOUNDED_BYTES // 2
    expect_given_back(attacked, with_filters)
    attacked.expect_unharmed()
