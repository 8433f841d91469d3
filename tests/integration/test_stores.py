"""The config store and the spools of a node: what is lost of one takes nothing of the other along."""

from __future__ import annotations

import contextlib
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from angarium import errors
from angarium_server.testing import NodeFailedError
from cluster.supervisor.stores import stamp
from storage.config_store import ConfigStore, Deletion
from tests.integration.attacked_spool import LoneSpool
from tests.integration.raw_guaranteed import RawProducer
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

COUNT = 40


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[LoneSpool]:
    with LoneSpool(tmp_path) as lone:
        yield lone


def fill(lone: LoneSpool, *names: str) -> None:
    """Publish to queues, and wait for the acknowledgements."""
    producer = RawProducer(lone.client())
    for name in names:
        lone.ask("objects.create", kind="queue", name=name)
        producer.fill(name, *(b"%d" % i for i in range(COUNT)))


def held(lone: LoneSpool) -> dict[str, int]:
    """Give how many messages each queue has, as soon as all homes have reported."""
    wait_until(lambda: lone.status()["spool"].get("recovered"), "all homes have reported")
    return {row["name"]: row["messages_spooled"] for row in lone.ask("endpoints.list", kind="queue")}


def forget_queue(lone: LoneSpool, name: str) -> None:
    """Have the config store be one that never knew a queue; no deletion of it was decided."""
    store = ConfigStore(lone.node.data / "config")
    store.commit([change._replace(attributes=None) for change in store.load() if change.name == name])
    store.close()


@pytest.mark.requirement("R282")
def test_a_queue_that_the_config_store_does_not_know_is_kept_aside_and_adopted(
    lone: LoneSpool, tmp_path: Path
) -> None:
    fill(lone, "q", "r")
    lone.node.stop()
    forget_queue(lone, "q")
    lone.node.start()
    wait_until(lambda: lone.status()["spool"]["lanes_kept_aside"] == 1, "a lane is kept aside")
    assert held(lone)["r"] == COUNT
    assert "1 lane that no object claims" in lone.node.run("status")
    assert "angarium spool aside list" in lone.node.run("spool", "show")
    assert "q" in lone.node.run("spool", "aside", "list")
    (row,) = lone.ask("spool.aside")
    assert (row["name"], row["messages"]) == ("q", COUNT)
    number = str(row["id"])
    file = tmp_path / "q.jsonl"
    lone.node.run("spool", "aside", "export", number, str(file))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["payload"] for line in lines] == [str(i) for i in range(COUNT)]
    lone.node.run("spool", "aside", "adopt", number, "--name", "again")
    assert held(lone)["again"] == COUNT
    client = lone.client()
    got = client.messages(client.bind("again"), COUNT)
    assert [one.payload for one in got] == [b"%d" % i for i in range(COUNT)]
    assert lone.ask("spool.aside") == []


@pytest.mark.long
@pytest.mark.requirement("R282")
def test_what_is_kept_aside_is_deleted_by_an_operator_only(lone: LoneSpool) -> None:
    fill(lone, "q")
    lone.node.stop()
    forget_queue(lone, "q")
    for _ in range(2):
        lone.node.start()
        wait_until(lambda: lone.status()["spool"]["lanes_kept_aside"] == 1, "a lane is kept aside")
        lone.node.stop()
    lone.node.start()
    wait_until(lambda: kept_aside(lone), "the lane is listed")
    (row,) = lone.ask("spool.aside")
    assert row["messages"] == COUNT
    lone.node.run("spool", "aside", "delete", str(row["id"]), "--yes")
    assert lone.ask("spool.aside") == []
    lone.node.stop()
    lone.node.start()
    assert "q" not in held(lone)
    assert lone.status()["spool"]["lanes_kept_aside"] == 0


@pytest.mark.requirement("R282")
def test_a_deletion_that_the_homes_did_not_hear_of_is_completed_at_the_next_start(lone: LoneSpool) -> None:
    """As if the node had died between the commit of the controller and its word to the router."""
    fill(lone, "q", "r")
    lone.node.stop()
    store = ConfigStore(lone.node.data / "config")
    (queue,) = [change for change in store.load() if change.name == "q"]
    assert queue.attributes is not None
    store.commit([queue._replace(attributes=None), Deletion(queue.attributes["id"], is_complete=False)])
    store.close()
    lone.node.start()
    assert held(lone)["r"] == COUNT
    assert lone.status()["spool"]["lanes_kept_aside"] == 0
    assert lone.ask("spool.aside") == []


@pytest.mark.long
def test_a_queue_that_is_deleted_leaves_nothing_aside(lone: LoneSpool) -> None:
    fill(lone, "q")
    lone.ask("objects.delete", kind="queue", name="q")
    lone.node.stop()
    lone.node.start()
    assert "q" not in held(lone)
    assert lone.status()["spool"]["lanes_kept_aside"] == 0


def flip(file: Path, text: bytes) -> None:
    """Flip a bit in every occurrence of a text in a file."""
    data = file.read_bytes()
    assert text in data
    file.write_bytes(data.replace(text, bytes([text[0] ^ 1]) + text[1:]))


def truncate(file: Path) -> None:
    file.write_bytes(
        file.read_bytes()[: 3 * 4096]
    )  # room was made ahead, so half of it may be all that is used


DAMAGE: dict[str, Callable[[Path], object]] = {
    "flipped": lambda file: flip(file, b"victim"),
    "truncated": truncate,
    "empty": lambda file: file.write_bytes(b""),
    "missing": lambda file: file.unlink(),
}


@pytest.mark.requirement("R282")
@pytest.mark.parametrize(
    "damage",
    # The others are the same to a store: tests/unit/storage/test_storage_config_files.py.
    [
        "flipped",
        pytest.param("truncated", marks=pytest.mark.long),
        pytest.param("empty", marks=pytest.mark.long),
        pytest.param("missing", marks=pytest.mark.long),
    ],
)
def test_a_damaged_config_store_is_restored_with_an_event_and_loses_nothing(
    lone: LoneSpool, damage: str
) -> None:
    fill(lone, "victim")
    lone.node.stop()
    DAMAGE[damage](lone.node.data / "config" / "data.mdb")
    with pytest.raises(NodeFailedError, match="config store"):
        lone.node.run("spool", "verify")
    lone.node.start()
    assert held(lone)["victim"] == COUNT
    assert lone.status()["spool"]["lanes_kept_aside"] == 0
    assert "SYSTEM_AD_CONFIG_STORE_RESTORED" in {event["event"] for event in lone.ask("events")}
    assert "sound" in lone.node.run("spool", "verify")


def kept_aside(lone: LoneSpool) -> Any:
    """Give what is kept aside; nothing while a worker does not answer yet."""
    with contextlib.suppress(errors.UnavailableError):
        return lone.ask("spool.aside")
    return []


def lose_config(node: Path) -> None:
    (node / "config").rename(node / "put-away")


def empty_config(node: Path) -> None:
    shutil.copytree(node / "config", node / "put-away")
    for file in (node / "config").rglob("data.mdb"):
        file.write_bytes(b"")


def another_config(node: Path) -> None:
    lose_config(node)
    store = ConfigStore(node / "config")
    store.set_data_id("f" * 32)
    store.close()


def put_config_back(node: Path) -> None:
    shutil.rmtree(node / "config", ignore_errors=True)
    (node / "put-away").rename(node / "config")


@pytest.mark.requirement("R282")
@pytest.mark.parametrize(
    "lose",
    [
        lose_config,
        pytest.param(empty_config, marks=pytest.mark.long),
        pytest.param(another_config, marks=pytest.mark.long),
    ],
)
def test_without_its_config_store_a_node_does_not_start_and_with_it_has_everything(
    lone: LoneSpool, lose: Callable[[Path], None]
) -> None:
    fill(lone, "q", "r")
    lone.node.stop()
    lose(lone.node.data)
    with pytest.raises(NodeFailedError, match=r"--accept-loss|restore"):
        lone.node.start()
    put_config_back(lone.node.data)
    lone.node.start()
    found = held(lone)
    assert (found["q"], found["r"]) == (COUNT, COUNT)
    assert lone.status()["spool"]["lanes_kept_aside"] == 0


@pytest.mark.requirement("R282")
def test_whoever_accepts_the_loss_of_the_config_store_has_the_lanes_kept_aside(lone: LoneSpool) -> None:
    fill(lone, "q")
    lone.node.stop()
    another_config(lone.node.data)
    lone.node.run("up", "-d", "--accept-loss")
    wait_until(lambda: kept_aside(lone), "lanes are kept aside")
    (row,) = [row for row in lone.ask("spool.aside") if row["name"] == "q"]
    assert row["messages"] == COUNT
    lone.ask("objects.create", kind="queue", name="new")
    assert lone.ask("objects.show", kind="queue", name="new")["id"] > row["id"]
    lone.node.run("spool", "aside", "adopt", str(row["id"]))
    assert held(lone)["q"] == COUNT
    assert len(list(lone.node.data.glob("replaced-*/config/data.mdb"))) == 1
    lone.node.run("down")


@pytest.mark.requirement("R282")
@pytest.mark.parametrize(
    "other", [False, pytest.param(True, marks=pytest.mark.long)], ids=["missing", "of another"]
)
def test_without_one_of_its_spools_a_node_does_not_start_and_with_it_has_everything(
    lone: LoneSpool, other: bool
) -> None:
    fill(lone, "q", "r", "s")
    lone.node.stop()
    spool, away = lone.node.data / "spool" / "0", lone.node.data / "put-away"
    spool.rename(away)
    if other:
        stamp(spool, "f" * 32)
    with pytest.raises(NodeFailedError, match="accept-loss"):
        lone.node.start()
    shutil.rmtree(spool, ignore_errors=True)
    away.rename(spool)
    lone.node.start()
    found = held(lone)
    assert (found["q"], found["r"], found["s"]) == (COUNT, COUNT, COUNT)
    assert lone.status()["spool"]["lanes_kept_aside"] == 0


@pytest.mark.requirement("R282")
def test_a_data_directory_of_an_earlier_version_is_taken_over_once(lone: LoneSpool) -> None:
    fill(lone, "q")
    lone.node.stop()
    node = json.loads((lone.node.data / "node.json").read_text())
    del node["data_id"]
    (lone.node.data / "node.json").write_text(json.dumps(node))
    store = ConfigStore(lone.node.data / "config")
    store.set_data_id("")
    store.close()
    for index in range(2):
        stamp(lone.node.data / "spool" / str(index), "")
    for _ in range(2):
        lone.node.start()
        assert held(lone)["q"] == COUNT
        lone.node.stop()
    assert lone.node.output().count("the config store of an earlier version is taken over") == 1
    assert lone.node.output().count("the spool of an earlier version is taken over") == 2


@pytest.mark.long
@pytest.mark.requirement("R282")
def test_workers_that_come_and_go_leave_stores_that_belong_together(lone: LoneSpool) -> None:
    fill(lone, "q", "r", "s")
    for workers in (3, 1, 2):
        lone.scale(workers)
        lone.node.stop()
        lone.node.start()
        found = held(lone)
        assert (found["q"], found["r"], found["s"]) == (COUNT, COUNT, COUNT)
