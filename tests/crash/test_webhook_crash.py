"""Processes are killed while a webhook posts to a target that fails at random: no message that was stored is lost.

A message that is posted twice has the same id, by which a receiver drops it.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from angarium import blocking
from angarium_server.testing import Node
from tests.integration.webhook_sink import Attempt, Sink
from tests.share import short
from tests.waiting import wait_for, wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.requirement("R254")]

MESSAGES = short(80, long=400)
#: Of requests: those that fail, and those that are taken and answered too late. So most of what a killed process holds
#: waits for its next attempt.
FAILS, SILENT = 0.3, 0.05
ANSWER_S, TOO_LATE_S = 0.02, 0.4
LIMIT_S = 90.0
#: How long the marathon takes, and how often something is killed in it; messages are published in groups of so many.
MINUTES = float(os.environ.get("ANGARIUM_WEBHOOK_MINUTES", "10"))
KILL_EACH_S = 20.0
SOME = 100


def held(node: Node) -> int:
    found = json.loads(node.run("queue", "show", "q", "--json"))
    return int(found["messages_spooled"])


def make_webhook(node: Node, sink: Sink) -> None:
    """Make a queue and its webhook."""
    node.run("queue", "create", "q", "--set", "owner=default", "--set", "subscriptions=q")
    hook = {"queue": "q", "url": sink.url("q"), "window": 20, "timeout_ms": 200}
    hook |= {"retry_delay_initial_ms": 50, "retry_delay_max_ms": 200}
    given = [word for name, value in hook.items() for word in ("--set", f"{name}={value}")]
    node.run("webhook", "create", "q", *given)


@pytest.mark.parametrize(
    "roles",
    [
        pytest.param(("webhook",), marks=pytest.mark.long),
        pytest.param(("router",), marks=pytest.mark.long),
        pytest.param(("worker",), marks=pytest.mark.long),
        ("webhook", "router", "webhook"),
    ],
)
def test_a_stored_message_is_posted_until_it_is_accepted(tmp_path: Path, roles: tuple[str, ...]) -> None:
    chance = random.Random(f"webhooks {roles}")
    taken: set[bytes] = set()
    #: The target takes no more before the next kill, however long that takes: each comes with messages left.
    takes = 0

    def answer(_n: int, came: Attempt) -> int | float:
        thrown = chance.random()
        if thrown < FAILS or (len(taken) >= takes and came.body not in taken):
            return 503
        taken.add(came.body)
        return TOO_LATE_S if thrown < FAILS + SILENT else ANSWER_S

    config = tmp_path / "node.toml"
    config.write_text('[http]\nwebhook_networks = ["127.0.0.1"]\n')
    with Sink(q=answer) as sink, Node(tmp_path / "data", workers=1, config=config) as node:
        make_webhook(node, sink)
        stored = {b"%d" % n for n in range(MESSAGES)}
        with blocking.connect(node.url) as client, client.producer() as producer:
            for body in sorted(stored):
                producer.publish("q", body)
            producer.flush()
        for at, role in enumerate(roles):
            takes = MESSAGES * (at + 1) // (len(roles) + 1)
            wait_for(lambda: len(taken), takes.__le__, f"{takes} are taken", LIMIT_S)
            wait_until(lambda role=role: node.process(role)["pid"], f"the {role} is there")  # type: ignore[misc]
            node.kill(role)
        assert len(taken) < MESSAGES, "it was killed too late"
        takes = MESSAGES
        wait_until(lambda: taken >= stored, "all are taken", LIMIT_S)
        wait_until(lambda: held(node) == 0, "the queue is empty", LIMIT_S)
        judge(sink.got["q"], stored, taken)
        before = len(sink.got["q"])
        time.sleep(0.5)
        assert len(sink.got["q"]) == before, "what was accepted is posted again"


@pytest.mark.long
@pytest.mark.timeout(60 * MINUTES + 2 * LIMIT_S)
def test_a_target_that_fails_at_random_for_minutes_gets_all_that_is_stored(tmp_path: Path) -> None:
    """Messages come all the time, and so do kills, of the webhook, the router and the worker in turn."""
    chance = random.Random("a target that fails")
    taken: set[bytes] = set()

    def answer(_n: int, came: Attempt) -> int | float:
        thrown = chance.random()
        if thrown < FAILS:
            return chance.choice((408, 429, 500, 503))
        taken.add(came.body)
        return TOO_LATE_S if thrown < FAILS + SILENT else ANSWER_S

    config = tmp_path / "node.toml"
    config.write_text('[http]\nwebhook_networks = ["127.0.0.1"]\n')
    stored: set[bytes] = set()
    with Sink(q=answer) as sink, Node(tmp_path / "data", workers=1, config=config) as node:
        make_webhook(node, sink)
        end, kill_at = time.monotonic() + 60 * MINUTES, time.monotonic() + KILL_EACH_S
        roles = itertools.cycle(("webhook", "router", "worker"))
        with (
            blocking.connect(node.url, client_name="source") as client,
            client.producer("source") as producer,
        ):
            while time.monotonic() < end:
                some = {b"%d" % n for n in range(len(stored), len(stored) + SOME)}
                for body in sorted(some):
                    producer.publish("q", body)
                producer.flush()
                stored |= some
                if time.monotonic() >= kill_at:
                    kill_at += KILL_EACH_S
                    role = next(roles)
                    wait_until(lambda role=role: node.process(role)["pid"], f"the {role} is there")  # type: ignore[misc]
                    node.kill(role)
                late = len(stored) - 4 * SOME
                wait_for(lambda: len(taken), late.__lt__, "the target keeps up", LIMIT_S)
        wait_until(lambda: taken >= stored, "all are taken", LIMIT_S)
        wait_until(lambda: held(node) == 0, "the queue is empty", LIMIT_S)
        judge(sink.got["q"], stored, taken)


def judge(got: list[Attempt], stored: set[bytes], taken: set[bytes]) -> None:
    """Compare the sets: what was stored, attempted, and accepted; and the ids of attempts."""
    ids = defaultdict(set)
    for one in got:
        ids[one.body].add(one.message_id)
    assert set(ids) == stored, "attempted is what was stored, and nothing else"
    assert taken == stored, f"lost: {len(stored - taken)}"
    assert all(len(of_one) == 1 for of_one in ids.values()), "each attempt of a message has one id"
    assert len({name for of_one in ids.values() for name in of_one}) == len(stored), (
        "and no other message has it"
    )
