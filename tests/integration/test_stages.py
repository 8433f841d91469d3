"""Staged publishing against a node of several processes: nobody sees what is staged; a commit publishes it once."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from angarium import DeliveryMode, Message, blocking, errors
from angarium_server.testing import NodeFailedError
from tests.integration.attacked_spool import LoneSpool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.requirement("R221")]

#: How long what must not come is waited for.
SILENCE_S = 0.1


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneSpool]:
    with LoneSpool(tmp_path_factory.mktemp("stages"), workers=2) as lone:
        yield lone


@pytest.fixture
def client(lone: LoneSpool) -> Iterator[blocking.Client]:
    with blocking.connect(lone.node.url, timeout_s=20.0) as client:
        yield client


def staged(client: blocking.Client, *rows: tuple[str, bytes]) -> str:
    """Stage messages, and give the id of their stage."""
    stage = client.stage()
    messages = [Message(topic, payload, mode=DeliveryMode.PERSISTENT) for topic, payload in rows]
    report = stage.publish_many(messages)
    assert report.refused == []
    stage.close()
    return stage.id


def read(client: blocking.Client, queue: str, count: int) -> list[bytes]:
    """Take so many messages from a queue, and see that there is no more."""
    flow = client.consume(queue)
    got = [flow.receive(20.0).payload for _ in range(count)]
    with pytest.raises(errors.TimeoutExpiredError):
        flow.receive(SILENCE_S)
    flow.close()
    return got


def to(queue: str, *payloads: bytes) -> list[tuple[str, bytes]]:
    return [(f"#P2P/QUE/{queue}", payload) for payload in payloads]


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def test_what_is_staged_is_seen_when_it_is_committed_and_not_before(
    lone: LoneSpool, client: blocking.Client
) -> None:
    queues = [lone.queue(subscriptions=[f"stages/{n}/>"]) for n in range(4)]
    rows = [(f"stages/{n % 4}/x", b"%d" % n) for n in range(1_000)]
    watcher = client.subscribe("stages/>")
    one = staged(client, *rows)
    for queue in queues:
        assert lone.held(queue) == 250
        assert read(client, queue, 0) == []
    assert client.commit_stages([one], "s", 0) is True
    for n, queue in enumerate(queues):
        assert read(client, queue, 250) == [b"%d" % i for i in range(n, 1_000, 4)]
    with pytest.raises(errors.TimeoutExpiredError):
        watcher.receive(SILENCE_S)


def test_a_stage_has_a_larger_window_than_a_producer(lone: LoneSpool, client: blocking.Client) -> None:
    queue = lone.queue()
    with pytest.raises(errors.InvalidRequestError):
        client.stage(window=4_097)
    stage = client.stage()
    assert stage.window == 4_096
    report = stage.publish_many([*to(queue, *numbers(6_000)), ("#P2P/QUE/nowhere", b""), *to(queue, b"end")])
    assert [place for place, _ in report.refused] == [6_000]
    client.abort_stages([stage.id])


def test_a_batch_of_a_sink_is_published_once(lone: LoneSpool, client: blocking.Client) -> None:
    queue = lone.queue()
    first = staged(client, *to(queue, b"first"))
    again = staged(client, *to(queue, b"again"))
    assert client.commit_stages([first], "once", 7) is True
    assert client.commit_stages([first], "once", 7) is False
    assert client.commit_stages([again], "once", 7) is False
    assert read(client, queue, 1) == [b"first"]
    lone.expect_held(queue, 0)
    late = staged(client, *to(queue, b"late"))
    assert client.commit_stages([late], "once", 6) is False
    following = staged(client, *to(queue, b"next"))
    assert client.commit_stages([following], "other", 6) is True
    assert read(client, queue, 1) == [b"next"]
    with pytest.raises(errors.NotFoundError) as caught:
        client.commit_stages([late], "once", 8)
    assert caught.value.code == errors.UNKNOWN_STAGE
    assert late in caught.value.detail


def test_a_commit_without_a_sink_may_be_repeated(lone: LoneSpool, client: blocking.Client) -> None:
    queue = lone.queue()
    stages = [staged(client, *to(queue, *numbers(300, start))) for start in (300, 0)]
    assert client.commit_stages([stages[1], stages[0]]) is True
    assert client.commit_stages([stages[1], stages[0]]) is False
    assert read(client, queue, 600) == numbers(600)


def test_what_is_aborted_gives_its_room_back(lone: LoneSpool, client: blocking.Client) -> None:
    queue = lone.queue(max_spool_usage_mb=1)
    one = staged(client, *to(queue, bytes(900_000)))
    stage = client.stage()
    with pytest.raises(errors.UnavailableError) as caught:
        stage.publish(queue=queue, payload=bytes(900_000))
    assert caught.value.code == errors.SPOOL_OVER_QUOTA
    client.abort_stages([one, "nothing", one])
    lone.expect_held(queue, 0)
    stage.publish(queue=queue, payload=bytes(900_000))
    stage.close()
    with pytest.raises(errors.NotFoundError):
        client.commit_stages([stage.id, one])
    assert client.commit_stages([stage.id]) is True
    assert read(client, queue, 1) == [bytes(900_000)]


def test_partitions_get_their_rows_in_order(lone: LoneSpool, client: blocking.Client) -> None:
    queue = lone.queue(access_type="non-exclusive", partition_count=3)
    stage = client.stage()
    for n in range(600):
        stage.send(queue=queue, payload=b"%d" % n, partition_key=f"k{n % 10}")
    stage.close()
    assert client.commit_stages([stage.id], "parts", 1) is True
    got = [int(one) for one in read(client, queue, 600)]
    assert sorted(got) == list(range(600))
    for key in range(10):
        mine = [one for one in got if one % 10 == key]
        assert mine == sorted(mine)


def test_errors_come_while_staging(lone: LoneSpool, client: blocking.Client) -> None:
    small = lone.queue(max_message_bytes=10)
    stage = client.stage()
    stage.send(queue="not-there", payload=b"x")
    with pytest.raises(errors.AngariumError, match="not-there"):
        stage.close()
    stage = client.stage()
    stage.send(queue=small, payload=bytes(11))
    with pytest.raises(errors.AngariumError) as caught:
        stage.close()
    assert caught.value.code == errors.MESSAGE_TOO_LARGE


def row_of(lone: LoneSpool, *command: str, **fields: str) -> dict[str, Any]:
    """Give the row that a list of the command line has of something."""
    rows = [json.loads(line) for line in lone.node.run(*command, "--json").splitlines()]
    (found,) = [row for row in rows if all(row[name] == value for name, value in fields.items())]
    return found  # type: ignore[no-any-return]


def test_operators_see_stages_and_sinks_and_can_end_them(lone: LoneSpool, client: blocking.Client) -> None:
    queue = lone.queue()
    one, two = (staged(client, *to(queue, b"x")) for _ in range(2))
    assert row_of(lone, "stage", "list", id=one)["state"] == "open"
    metrics = json.loads(lone.node.run("queue", "show", queue, "--json"))
    assert (metrics["messages_staged"], metrics["messages_ready"]) == (2, 0)
    assert lone.status()["spool"]["staged_messages"] >= 2
    assert json.loads(lone.node.run("stage", "abort", one, "--json")) == {"aborted": 1}
    lone.expect_held(queue, 1)
    with pytest.raises(NodeFailedError, match="40403"):
        lone.node.run("stage", "abort", one, two)
    with pytest.raises(errors.NotFoundError):
        client.commit_stages([one])
    assert client.commit_stages([two], "shown", 5) is True
    sink = row_of(lone, "sink", "list", name="shown")
    assert (sink["username"], sink["batch"]) == ("default", 5)
    lone.node.run("sink", "forget", "shown")
    again = staged(client, *to(queue, b"again"))
    assert client.commit_stages([again], "shown", 0) is True
    with pytest.raises(NodeFailedError, match="40401"):
        lone.node.run("sink", "forget", "nobody")
    assert read(client, queue, 2) == [b"x", b"again"]


def test_what_others_stage_is_theirs(lone: LoneSpool, client: blocking.Client) -> None:
    queue = lone.queue()
    mine = staged(client, *to(queue, b"mine"))
    user = lone.user()
    with blocking.connect(lone.node.url, username=user, password="") as other:
        with pytest.raises(errors.NotFoundError):
            other.commit_stages([mine])
        other.abort_stages([mine])
    assert client.commit_stages([mine]) is True
    assert read(client, queue, 1) == [b"mine"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"stages": "abc"},
        {"stages": ["x" * 65]},
        {"stages": [""]},
        {"stages": [7]},
        {"stages": ["x"] * 10_001},
        {"stages": [], "sink": "s"},
        {"stages": [], "batch": 1},
        {"stages": [], "sink": "s", "batch": -1},
        {"stages": [], "sink": "s", "batch": 1 << 62},
        {"stages": [], "sink": "s" * 161, "batch": 1},
        {"stages": [], "sink": "", "batch": 1},
        {"stages": [], "sink": "s", "batch": 1, "more": 1},
        {},
    ],
)
def test_a_commit_that_makes_no_sense_is_refused_and_the_session_goes_on(
    lone: LoneSpool, arguments: dict[str, object]
) -> None:
    raw = lone.client()
    assert raw.refused("stage.commit", **arguments) == errors.INVALID_ARGUMENT
    assert "committed" in raw.done("stage.commit", stages=[], sink="sense", batch=0)
    raw.close()


def test_a_stage_that_is_committed_while_it_is_open_takes_nothing_more(
    lone: LoneSpool, client: blocking.Client
) -> None:
    queue = lone.queue()
    stage = client.stage()
    stage.publish(queue=queue, payload=b"before")
    assert client.commit_stages([stage.id], "open", 1) is True
    with pytest.raises(errors.AngariumError):
        stage.publish(queue=queue, payload=b"after")
    with pytest.raises(errors.AngariumError):
        stage.close()
    assert read(client, queue, 1) == [b"before"]


@pytest.mark.long
def test_thousands_of_stages_are_one_commit(lone: LoneSpool, client: blocking.Client) -> None:
    queue = lone.queue()
    made = [client.stage() for _ in range(300)]
    for number, stage in enumerate(made):
        stage.send(queue=queue, payload=b"%d" % number)
    for stage in made:
        stage.close()
    ids = [stage.id for stage in made] * 30
    assert client.commit_stages(ids, "many", 1) is True
    assert read(client, queue, 300) == numbers(300)


def test_an_endpoint_that_is_deleted_takes_its_staged_messages_along(
    lone: LoneSpool, client: blocking.Client
) -> None:
    gone, left = lone.queue(), lone.queue()
    stage = staged(client, *to(gone, b"gone"), *to(left, b"left"))
    lone.delete("queue", gone)
    assert client.commit_stages([stage]) is True
    assert read(client, left, 1) == [b"left"]


def test_partitions_that_are_closed_hand_over_what_was_staged_for_them(
    lone: LoneSpool, client: blocking.Client
) -> None:
    queue = lone.queue(access_type="non-exclusive", partition_count=4)
    stage = staged(client, *to(queue, *numbers(200)))
    lone.update("queue", queue, partition_count=2)
    assert client.commit_stages([stage]) is True
    assert sorted(read(client, queue, 200), key=int) == numbers(200)


def test_a_last_value_queue_keeps_the_last_committed(lone: LoneSpool, client: blocking.Client) -> None:
    queue = lone.queue(max_spool_usage_mb=0)
    client.publish(queue=queue, payload=b"before")
    stage = staged(client, *to(queue, b"1", b"2"))
    browser = client.browse(queue)
    assert browser.receive(20.0).payload == b"before"
    browser.close()
    assert client.commit_stages([stage]) is True
    assert read(client, queue, 1) == [b"2"]


def test_a_change_of_the_number_of_workers_takes_stages_along(
    lone: LoneSpool, client: blocking.Client
) -> None:
    queues = [lone.queue() for _ in range(4)]
    stage = staged(client, *[row for queue in queues for row in to(queue, *numbers(50))])
    lone.scale(1)
    assert client.commit_stages([stage], "scaled", 1) is True
    for queue in queues:
        assert read(client, queue, 50) == numbers(50)
    lone.scale(2)


@pytest.mark.long
def test_a_node_that_starts_again_has_what_was_staged(lone: LoneSpool) -> None:
    queue = lone.queue()
    with blocking.connect(lone.node.url, timeout_s=20.0) as client:
        stage = staged(client, *to(queue, *numbers(50)))
    lone.node.restart()
    with blocking.connect(lone.node.url, timeout_s=20.0) as client:
        assert client.commit_stages([stage], "restarted", 1) is True
        assert client.commit_stages([stage], "restarted", 1) is False
        assert read(client, queue, 50) == numbers(50)


def test_a_backup_has_what_is_staged_and_what_was_committed(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    with LoneSpool(tmp_path / "node", workers=2) as lone:
        queues = [lone.queue() for _ in range(2)]
        with blocking.connect(lone.node.url, timeout_s=20.0) as client:
            done = staged(client, *[row for queue in queues for row in to(queue, b"done")])
            assert client.commit_stages([done], "kept", 1) is True
            waits = staged(client, *[row for queue in queues for row in to(queue, b"waits")])
            lone.node.run("spool", "backup", str(tmp_path / "backup"))
            late = staged(client, *to(queues[0], b"late"))
            lone.node.stop()
            lone.node.run("spool", "restore", str(tmp_path / "backup"))
            lone.node.start()
        with blocking.connect(lone.node.url, timeout_s=20.0) as client:
            with pytest.raises(errors.NotFoundError):
                client.commit_stages([late])
            assert client.commit_stages([done], "kept", 1) is False
            assert client.commit_stages([waits], "kept", 2) is True
            for queue in queues:
                assert read(client, queue, 2) == [b"done", b"waits"]


@pytest.mark.long
def test_commits_while_the_number_of_workers_changes_are_whole(lone: LoneSpool) -> None:
    def scale() -> None:
        for number in (1, 2, 1):
            lone.scale(number)

    queues = [lone.queue() for _ in range(4)]
    rows = [row for queue in queues for row in to(queue, *numbers(20))]
    with blocking.connect(lone.node.url, timeout_s=30.0) as client:
        stages = [staged(client, *rows) for _ in range(12)]
        scaling = threading.Thread(target=scale)
        scaling.start()
        for batch, stage in enumerate(stages):
            assert client.commit_stages([stage], "scaling", batch) is True
        scaling.join()
        for queue in queues:
            assert read(client, queue, 240) == numbers(20) * 12
    lone.scale(2)
