"""Commits of stages while processes are killed: each batch is published once and whole, whoever dies when."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from angarium import DeliveryMode, Message, blocking, errors
from angarium_server.testing import Node
from tests.share import some

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.slow, pytest.mark.requirement("R221")]

#: Rows of one stage to each queue: more than a window, so that a stage has several segments.
ROWS = 300
QUEUES = ("one", "two", "parts")
#: Every process is back, and everything sent again, well within this time.
PATIENCE_S = 40.0
SEED = 20260719
#: A queue that gave all that is expected, and no more for so long, is empty: everything was committed before.
SILENCE_S = 0.1


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("stages") / "data", workers=2) as node:
        yield node
        assert "Traceback" not in node.output()


def connect(node: Node) -> blocking.Client:
    return blocking.connect(node.url, timeout_s=PATIENCE_S)


def make_queues(node: Node) -> None:
    with connect(node) as client:
        for name in QUEUES:
            more: dict[str, Any] = (
                {"access_type": "non-exclusive", "partition_count": 3} if name == "parts" else {}
            )
            client.create_queue(name, ignore_exists=True, **more)


def stage(client: blocking.Client, batch: int, task: int, kill: Callable[[], None] | None = None) -> str:
    """Stage rows that name their batch, task and number; perhaps something dies in between."""
    made = client.stage()
    rows = [message(queue, batch, task, number) for number in range(ROWS) for queue in QUEUES]
    assert made.publish_many(rows[: len(rows) // 2]).refused == []
    if kill is not None:
        kill()
    assert made.publish_many(rows[len(rows) // 2 :]).refused == []
    made.close()
    return made.id


def message(queue: str, batch: int, task: int, number: int) -> Message:
    return Message(
        f"#P2P/QUE/{queue}",
        f"{batch} {task} {number}".encode(),
        mode=DeliveryMode.PERSISTENT,
        partition_key=f"k{number % 7}",
    )


def commit(node: Node, stages: list[str], batch: int, sink: str) -> list[bool]:
    """Commit until somebody answers, on a connection of its own; give what was answered."""
    until = time.monotonic() + PATIENCE_S
    while True:
        with (
            contextlib.suppress(
                errors.UnavailableError, errors.TimeoutExpiredError, errors.ConnectionLostError
            ),
            connect(node) as client,
        ):
            return [client.commit_stages(stages, sink, batch, timeout_s=5.0)]
        assert time.monotonic() < until, "nobody answered a commit"


def drain(node: Node, queue: str, count: int) -> list[tuple[int, int, int]]:
    """Take everything from a queue, so many rows, and what is there too many; gives batch, task and number of each."""
    got: list[tuple[int, int, int]] = []
    with (
        connect(node) as client,
        client.consume(queue) as flow,
        contextlib.suppress(errors.TimeoutExpiredError),
    ):
        while True:
            message = flow.receive(PATIENCE_S if len(got) < count else SILENCE_S)
            batch, task, number = map(int, message.payload.split())
            got.append((batch, task, number))
    return got


def check(node: Node, winners: dict[int, list[int]]) -> None:
    """Find exactly the rows of the tasks that won, each key of a task in order."""
    expected = [
        (batch, task, number) for batch, tasks in winners.items() for task in tasks for number in range(ROWS)
    ]
    for queue in QUEUES:
        got = drain(node, queue, len(expected))
        assert sorted(got) == sorted(expected), queue
        if queue != "parts":
            assert got == expected, queue
        for key in range(7):
            mine = [one for one in got if one[2] % 7 == key]
            assert mine == [one for one in expected if one[2] % 7 == key], (queue, key)


@pytest.mark.parametrize(
    "role",
    [
        "worker",
        # What is staged while it is killed is committed below.
        pytest.param("router", marks=pytest.mark.long),
        pytest.param("controller", marks=pytest.mark.long),
        "everything",
    ],
)
def test_a_batch_is_published_once_whoever_is_killed_while_it_is_committed(node: Node, role: str) -> None:
    rng = random.Random(f"{SEED} {role}")
    make_queues(node)
    winners: dict[int, list[int]] = {}
    for batch in range(1 if role == "everything" else 2):
        with connect(node) as client:
            stages = [stage(client, batch, task) for task in range(2)]
        answered: list[bool] = []
        driver = threading.Thread(target=lambda: answered.extend(commit(node, stages, batch, role)))  # noqa: B023 - joined below
        driver.start()
        time.sleep(rng.uniform(0.0, 0.06))
        kill(node, role, rng)
        driver.join()
        again = commit(node, stages, batch, role)
        assert again == [False]
        winners[batch] = [0, 1]
    check(node, winners)
    node.wait_for("no stage is left", lambda status: not status["spool"]["staged_messages"])


def kill(node: Node, role: str, rng: random.Random) -> None:
    if role == "everything":
        node.kill_all()
        node.start()
    else:
        node.kill(role, rng.randrange(2) if role == "worker" else 0)


@pytest.mark.parametrize("role", some(("router", "worker", "controller"), of=3))
def test_what_is_staged_while_a_process_is_killed_is_there_once(node: Node, role: str) -> None:
    def die() -> None:
        node.kill(role)

    make_queues(node)
    with connect(node) as client:
        stages = [stage(client, 0, task, die) for task in range(2)]
    assert commit(node, stages, 0, f"staged {role}") == [True]
    check(node, {0: [0, 1]})


def race(node: Node, given: list[list[str]], batch: int) -> list[int]:
    """Have several drivers commit a batch at once, each with a stage of its own; gives those that published."""
    answers: dict[int, list[bool]] = {}

    def drive(task: int) -> None:
        answers[task] = commit(node, given[task], batch, "drivers")

    drivers = [threading.Thread(target=drive, args=(task,)) for task in range(len(given))]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    return [task for task in sorted(answers) if answers[task] == [True]]


def test_of_several_drivers_of_one_batch_one_publishes(node: Node) -> None:
    make_queues(node)
    winners: dict[int, list[int]] = {}
    with connect(node) as client:
        for batch in range(2):
            winners[batch] = race(node, [[stage(client, batch, task)] for task in range(3)], batch)
            assert len(winners[batch]) == 1
    check(node, winners)
    node.wait_for("no stage is left", lambda status: not status["spool"]["staged_messages"])
