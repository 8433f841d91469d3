"""Filters that overlap so much that each new topic costs tens of milliseconds: only who publishes to them waits."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import pytest

from angarium import blocking, errors, wire
from tests.integration.attacked_node import AttackedNode
from tests.integration.raw_client import RawClient, row
from tests.share import short

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.requirement("R278")]

ROWS = 200
#: Filters of one request.
PIECE = wire.MAX_FILTERS_PER_REQUEST
#: What a machine that others use may make a lone message of an innocent client take; it was 12 s, and lost messages.
WAIT_S = 1.5
MESSAGES = 100
#: How long the attacker's own messages may take; they wait for each other.
OWN_S = 60.0
#: What one batch may cost, and levels of filters with which one of them costs more: by default two are missing to it.
WORK_MAX, BEYOND = short((1_000_000, 13), long=(4_000_000, 15))


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedNode]:
    config = f"[worker]\nmax_matching_work = {WORK_MAX}\n"
    with AttackedNode(tmp_path_factory.mktemp("dear"), config) as attacked:
        for kind, vpn in (("vpn", None), ("profile", "default")):
            attacked.allow(kind, vpn, max_overlapping_filters=100_000)
        yield attacked


def subscribe_overlapping(client: RawClient, levels: int) -> None:
    """Subscribe to {a*,*} at every level."""
    filters = ["/".join(parts) for parts in itertools.product(("a*", "*"), repeat=levels)]
    for start in range(0, len(filters), PIECE):
        assert client.subscribe(*filters[start : start + PIECE]) == [None] * len(
            filters[start : start + PIECE]
        )


def publish_dear(client: RawClient, levels: int, frames: int) -> None:
    """Publish batches of topics that all these filters match, each for the first time."""
    for number in range(client.round, client.round + frames):
        topics = ["/".join([f"a{number}-{one}"] * levels) for one in range(ROWS)]
        client.publish_uncut([row(index, topic) for index, topic in enumerate(topics)], flush=True)


@pytest.mark.parametrize(
    ("levels", "frames"),
    [
        pytest.param(10, 20, marks=pytest.mark.long),
        pytest.param(13, 8, marks=pytest.mark.long),
        (BEYOND, 1),
        pytest.param(15, 8, marks=pytest.mark.long),
    ],
)
def test_who_publishes_to_dear_topics_waits_and_nobody_else(
    attacked: AttackedNode, levels: int, frames: int
) -> None:
    refused = attacked.errors(errors.MATCHING_WORK_EXCEEDED)
    with (
        attacked.client() as subscriber,
        attacked.client() as publisher,
        blocking.connect(attacked.url) as innocent,
        innocent.subscribe("innocent/>") as subscription,
    ):
        subscribe_overlapping(subscriber, levels)
        attacked.begin()
        publish_dear(publisher, levels, frames)
        waits = []
        for number in range(MESSAGES):
            topic = f"innocent/{levels}/{frames}/{number}"  # new to the workers, as those of the attacker
            started = time.monotonic()
            innocent.publish(topic, b"x")
            assert subscription.receive(WAIT_S * 10).topic == topic
            waits.append(time.monotonic() - started)
            time.sleep(0.01)
        assert sorted(waits)[int(MESSAGES * 0.99) - 1] < WAIT_S, sorted(waits)[-5:]
        attacked.expect_unharmed()
        attacked.begin()
        if levels == BEYOND:
            attacked.wait_for(
                "a refusal", lambda _: attacked.errors(errors.MATCHING_WORK_EXCEEDED) > refused, OWN_S
            )
        # It goes on, at the pace that it may.
        assert publisher.receive_only(wire.RETIRED, OWN_S).header[0] > 0
    attacked.expect_unharmed()
