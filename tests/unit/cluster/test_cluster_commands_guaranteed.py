"""The commands for endpoints, messages and the spool: what they ask, and how they say what came of it."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from angarium import errors
from angarium.message import Message
from cluster.commands import cli
from cluster.commands.connecting.connection import AdminOptions
from cluster.commands.objects import clients
from cluster.commands.queues import jobs
from cluster.commands.standby import standby
from cluster.data.node_file import NODE_FILE, NodeFile
from storage.config_store import ConfigStore
from storage.spool import DATA_FILE, open_spool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import TracebackType


class FakeAdmin:
    """A controller that notes what it is asked and answers from a table."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        #: Operation -> the answer, or a function of the arguments that gives it.
        self.answers: dict[str, Any] = {}

    def call(self, operation: str, **arguments: Any) -> Any:
        self.calls.append((operation, arguments))
        answer = self.answers.get(operation, {})
        return answer(**arguments) if callable(answer) else answer

    def __enter__(self) -> FakeAdmin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is open."""


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    fake = FakeAdmin()
    monkeypatch.setattr(AdminOptions, "open", lambda _self: fake)
    monkeypatch.setattr(jobs, "POLL_S", 0.0)
    monkeypatch.setenv("ANGARIUM_OUTPUT", "json")
    monkeypatch.setenv("ANGARIUM_YES", "1")
    return fake


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[Any]]:
    """Give what was printed as JSON, line by line."""
    return lambda: [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.requirement("R98", "R119", "R122")
def test_a_queue_is_created_with_its_subscriptions(admin: FakeAdmin) -> None:
    arguments = ["--subscription", "a/f*", "--subscription", "!a/fox", "--set", "access_type=exclusive"]
    assert cli.run(["queue", "create", "Q", *arguments, "--set", "max_spool_usage_mb=10"]) == 0
    attributes = {"access_type": "exclusive", "max_spool_usage_mb": "10", "subscriptions": ["a/f*", "!a/fox"]}
    assert admin.calls == [
        ("objects.create", {"kind": "queue", "vpn": "default", "name": "Q", "attributes": attributes})
    ]


@pytest.mark.requirement("R134")
def test_a_permission_is_given_at_creation_and_changed_later(admin: FakeAdmin) -> None:
    assert cli.run(["topic-endpoint", "create", "T", "--set", "permission=consume"]) == 0
    assert cli.run(["topic-endpoint", "update", "T", "--set", "permission=delete", "--vpn", "v"]) == 0
    assert [(operation, given["vpn"], given["attributes"]) for operation, given in admin.calls] == [
        ("objects.create", "default", {"permission": "consume"}),
        ("objects.update", "v", {"permission": "delete"}),
    ]


def test_subscriptions_are_added_and_removed_one_by_one(admin: FakeAdmin) -> None:
    assert cli.run(["queue", "update", "Q", "--subscription", "a", "--remove-subscription", "b"]) == 0
    assert admin.calls[1] == (
        "objects.subscribe",
        {"vpn": "default", "name": "Q", "add": ["a"], "remove": ["b"]},
    )


def test_a_topic_endpoint_takes_no_subscriptions(admin: FakeAdmin) -> None:
    assert cli.run(["topic-endpoint", "create", "T", "--subscription", "a"]) == cli.EXIT_MISUSED
    assert admin.calls == []


def test_lists_and_views_have_the_metrics(admin: FakeAdmin, printed: Callable[[], list[Any]]) -> None:
    admin.answers["endpoints.list"] = [{"name": "Q", "messages_spooled": 3}]
    admin.answers["endpoints.show"] = {"name": "Q", "flows": [], "counters": {}}
    assert cli.run(["queue", "list", "Q*"]) == 0
    assert cli.run(["queue", "show", "Q"]) == 0
    assert printed() == [{"name": "Q", "messages_spooled": 3}, {"name": "Q", "flows": [], "counters": {}}]
    assert admin.calls[0] == ("endpoints.list", {"kind": "queue", "vpn": None, "name": "Q*"})


def test_a_queue_that_is_deleted_while_it_is_looked_at_does_not_end_top(
    admin: FakeAdmin, printed: Callable[[], list[Any]]
) -> None:
    rows = [
        {"kind": "queue", "vpn": "default", "name": name, "messages_spooled": 1, "bind_count": 0}
        for name in ("gone", "stays")
    ]

    def show(name: str, **_more: Any) -> dict[str, Any]:
        if name == "gone":
            raise errors.error_for(errors.OBJECT_NOT_FOUND, "queue 'gone'")
        return rows[1]

    admin.answers["status"] = {"processes": []}
    admin.answers["endpoints.list"] = lambda kind, **_: list(rows) if kind == "queue" else []
    admin.answers["endpoints.show"] = show
    assert cli.run(["top", "queues", "--interval", "0.1", "-n", "1", "--json"]) == 0
    assert [row["name"] for row in printed()] == ["stays"]


def test_a_purge_says_how_many(admin: FakeAdmin, printed: Callable[[], list[Any]]) -> None:
    admin.answers["endpoints.purge"] = {"purged": 4}
    assert cli.run(["queue", "purge", "Q"]) == 0
    assert printed() == [{"kind": "queue", "name": "Q", "purged": 4}]


def job_of(*states: dict[str, Any]) -> Callable[..., dict[str, Any]]:
    """Give a job that tells these, one after the other."""
    left = [
        {"state": "running", "done": 0, "total": 9, "refused": 0, "kept": 0, "error": None, **state}
        for state in states
    ]
    return lambda **_: left.pop(0) if len(left) > 1 else left[0]


@pytest.mark.parametrize("verb", ["copy", "move"])
def test_a_job_is_waited_for(admin: FakeAdmin, printed: Callable[[], list[Any]], verb: str) -> None:
    admin.answers[f"endpoints.{verb}"] = {"jobs": [[0, 7]]}
    admin.answers["jobs.show"] = job_of({}, {"done": 5}, {"state": "done", "done": 9})
    arguments = ["--to", "R", "--selector", "x = 1", "--limit", "9", "--partition", "2"]
    assert cli.run(["queue", verb, "Q", *arguments]) == 0
    assert printed() == [{"done": 9, "refused": 0, "kept": 0}]
    asked = {"target": "R", "target_kind": "queue", "selector": "x = 1", "limit": 9, "partition": 2}
    asked["positions"] = None
    assert admin.calls[0] == (f"endpoints.{verb}", {"kind": "queue", "vpn": "default", "name": "Q", **asked})
    assert admin.calls[1:] == [("jobs.show", {"jobs": [[0, 7]]})] * 3


@pytest.mark.parametrize("verb", ["move", "redrive"])
def test_who_interrupts_a_job_reads_that_it_goes_on(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    admin.answers[f"endpoints.{verb}"] = {"jobs": [[0, 7]]}
    admin.answers["jobs.show"] = {"state": "running", "done": 1, "total": 9, "refused": 0, "error": None}
    to = ["--to", "T"] if verb == "move" else []
    assert cli.run(["queue", verb, "Q", *to]) == cli.EXIT_FAILED
    told = capsys.readouterr().err
    assert f"the node goes on: {verb} Q; 'angarium queue show Q' tells what it holds" in told
    assert "interrupted" in told


def test_messages_that_were_refused_are_a_failure_with_its_reason(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.answers["endpoints.redrive"] = {"jobs": [[0, 7]]}
    refused = {"state": "done", "done": 3, "refused": 2, "error": [errors.SPOOL_OVER_QUOTA, "queue 'R'"]}
    admin.answers["jobs.show"] = job_of(refused)
    assert cli.run(["queue", "redrive", "#DEAD_MSG_QUEUE"]) == 1
    told = capsys.readouterr()
    assert json.loads(told.out) == {"done": 3, "refused": 2, "kept": 0}
    assert told.err.startswith(f"error {errors.SPOOL_OVER_QUOTA}:")
    assert "2 messages left in place" in told.err


def test_a_failed_job_is_told_with_its_code(admin: FakeAdmin, capsys: pytest.CaptureFixture[str]) -> None:
    admin.answers["endpoints.move"] = {"jobs": [[0, 7]]}
    admin.answers["jobs.show"] = job_of(
        {}, {"state": "failed", "error": [errors.UNKNOWN_ENDPOINT, "queue 'R'"]}
    )
    assert cli.run(["queue", "move", "Q", "--to", "R"]) == 1
    assert capsys.readouterr().err.startswith(f"error {errors.UNKNOWN_ENDPOINT}:")


# -- messages ------------------------------------------------------------------------------------------------


def lanes_of(*counts: int) -> Callable[..., dict[str, Any]]:
    """Give an endpoint with so many messages in each partition."""

    def answer(partition: int, after: int, limit: int, **_: Any) -> dict[str, Any]:
        rows = [{"position": position} for position in range(after + 1, counts[partition] + 1)]
        return {"messages": rows[:limit], "partitions": len(counts) if len(counts) > 1 else 0}

    return answer


def test_messages_of_all_partitions_are_listed_page_by_page(
    admin: FakeAdmin, printed: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.commands.queues.messages._PAGE", 2)
    admin.answers["messages.list"] = lanes_of(5, 0, 2)
    assert cli.run(["queue", "messages", "Q", "--limit", "0"]) == 0
    rows = [(row["partition"], row["position"]) for row in printed()]
    assert rows == [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (2, 1), (2, 2)]


def test_so_many_messages_are_listed_and_no_more(admin: FakeAdmin, printed: Callable[[], list[Any]]) -> None:
    admin.answers["messages.list"] = lanes_of(2, 2)
    assert cli.run(["queue", "messages", "Q", "--limit", "3"]) == 0
    assert len(printed()) == 3
    assert cli.run(["queue", "messages", "Q", "--partition", "1", "--after", "1", "--selector", "x = 1"]) == 0
    assert printed() == [{"partition": 1, "position": 2}]
    assert admin.calls[-1][1]["selector"] == "x = 1"


@pytest.mark.requirement("R202")
def test_a_table_of_messages_tells_where_dead_ones_come_from(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"topic": "a/b", "size_bytes": 7, "stored_ms": 1, "state": "queued", "redeliveries": 3}
    rows = [
        {**row, "position": 1, "origin": ["queue", "orders", "expired"]},
        {**row, "position": 2, "origin": ["topic-endpoint", "T", "rejected"]},
        {**row, "position": 3, "origin": None},
    ]
    admin.answers["messages.list"] = {"messages": rows, "partitions": 0}
    assert cli.run(["queue", "messages", "D", "-o", "table"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split()[:5] == ["POSITION", "TOPIC", "FROM", "REASON", "REDELIVERIES"]
    assert lines[0].split()[2:5] == ["orders", "expired", "3"]
    assert "topic-endpoint T  rejected" in lines[1]
    assert lines[2].split()[2:4] == ["-", "-"]
    admin.answers["messages.list"] = {"messages": rows[2:], "partitions": 0}
    assert cli.run(["queue", "messages", "D", "-o", "table"]) == 0
    assert "FROM" not in capsys.readouterr().out


def test_who_creates_an_exclusive_queue_without_a_word_about_it_reads_so(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.answers["objects.create"] = {"kind": "queue", "name": "Q", "access_type": "exclusive"}
    told = []
    for more in (
        ["-o", "table"],
        ["-o", "table", "-q"],
        [],
        ["-o", "table", "--set", "access_type=exclusive"],
    ):
        assert cli.run(["queue", "create", "Q", *more]) == 0
        told.append(capsys.readouterr().err)
    assert "one consumer at a time; --set access_type=non-exclusive shares it" in told[0]
    assert told[1:] == ["", "", ""]


def test_a_message_is_shown_with_its_payload(admin: FakeAdmin, printed: Callable[[], list[Any]]) -> None:
    row = Message("a/b", b"h\xc3\xa4", mode="persistent", correlation_id="c", properties={"price": 7}).row
    admin.answers["messages.show"] = {
        "position": 4,
        "topic": row[1],
        "size_bytes": 70,
        "flags": row[2],
        "properties": row[4],
        "payload": row[5],
    }
    assert cli.run(["message", "show", "Q", "4", "--partition", "1"]) == 0
    (shown,) = printed()
    assert (shown["position"], shown["topic"], shown["payload"]) == (4, "a/b", "hä")
    assert (shown["mode"], shown["correlation_id"], shown["properties"]) == ("persistent", "c", {"price": 7})
    asked = {"kind": "queue", "vpn": "default", "name": "Q", "partition": 1, "position": 4}
    assert admin.calls == [("messages.show", asked)]


def test_messages_are_deleted_by_their_positions(admin: FakeAdmin, printed: Callable[[], list[Any]]) -> None:
    admin.answers["messages.delete"] = {"deleted": 1}
    assert cli.run(["message", "delete", "T", "4", "5", "--kind", "topic-endpoint"]) == 0
    assert printed() == [{"kind": "topic-endpoint", "name": "T", "deleted": 1}]
    assert admin.calls[0][1]["positions"] == [4, 5]
    assert cli.run(["message", "delete", "T"]) == cli.EXIT_MISUSED


# -- the spool -----------------------------------------------------------------------------------------------


def test_the_spool_is_shown(admin: FakeAdmin, printed: Callable[[], list[Any]]) -> None:
    admin.answers["spool.show"] = {"messages": 4, "workers": []}
    assert cli.run(["spool", "show"]) == 0
    assert printed() == [{"messages": 4, "workers": []}]


def test_a_damaged_spool_is_a_failure_that_says_what_to_do(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.answers["spool.verify"] = {"jobs": [[0, 1]], "faults": []}
    admin.answers["jobs.show"] = job_of({}, {"state": "failed", "error": [errors.SPOOL_DAMAGED, "block 7"]})
    assert cli.run(["spool", "verify", "--admin-url", "tls://far:1"]) == 1
    told = capsys.readouterr()
    assert json.loads(told.out) == {"good": False, "faults": ["block 7"]}
    assert told.err.startswith(f"error {errors.SPOOL_DAMAGED}:")
    assert "backup" in told.err


def test_a_spool_that_cannot_be_opened_is_a_fault_and_the_others_are_verified_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for worker in ("0", "2"):
        (tmp_path / "spool" / worker).mkdir(parents=True)
        (tmp_path / "spool" / worker / DATA_FILE).write_bytes(b"noise" * 5_000)
    open_spool(tmp_path / "spool" / "1", 1 << 24).close()
    ConfigStore(tmp_path / "config").close()
    (tmp_path / NODE_FILE).write_bytes(msgspec.json.encode(NodeFile(node="n", node_id="0", workers=3)))
    assert cli.run(["spool", "verify", "--data", str(tmp_path), "--json"]) == 1
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert not found["good"]
    first, second = found["faults"]
    assert "spool/0/" in first
    assert "spool/2/" in second
    assert told.err.count(f"error {errors.SPOOL_DAMAGED}:") == 2


def test_a_sound_spool_is_good(admin: FakeAdmin, printed: Callable[[], list[Any]]) -> None:
    admin.answers["spool.verify"] = {"jobs": [[0, 1]], "faults": []}
    admin.answers["jobs.show"] = job_of({"state": "done"})
    assert cli.run(["spool", "verify", "--admin-url", "tls://far:1"]) == 0
    assert printed() == [{"good": True, "faults": []}]


def test_backups_are_restored_on_the_host_of_the_node(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    file = tmp_path / "b"
    file.write_bytes(b"x")
    assert cli.run(["spool", "restore", str(file), "--admin-url", "tls://far:1"]) == 1
    assert "on the host of the node" in capsys.readouterr().err
    assert admin.calls == []


# -- workers -------------------------------------------------------------------------------------------------


def workers_of(*importing: int) -> list[dict[str, Any]]:
    """Rows of workers that are ready, and how many messages each still has to take over."""
    homes = [{"lanes_importing": int(left > 0), "messages_importing": left} for left in importing]
    return [{"index": index, "state": "ready", "home": home} for index, home in enumerate(homes)]


def test_a_change_of_the_number_of_workers_tells_how_far_it_is(
    admin: FakeAdmin, printed: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int | None]] = []

    @contextlib.contextmanager
    def noting(_description: str, _total: int | None) -> Iterator[Callable[..., None]]:
        yield lambda done, total: told.append((done, total))

    steps = [workers_of(0, 0), workers_of(50), workers_of(80), workers_of(20), workers_of(0)]
    admin.answers["workers"] = lambda: steps.pop(0)
    admin.answers["workers.balance.show"] = {"is_moving": False}
    monkeypatch.setattr(clients, "progress", noting)
    monkeypatch.setattr(clients, "SCALE_POLL_S", 0.0)
    assert cli.run(["worker", "scale", "1", "--wait"]) == 0
    assert printed() == [{"workers": 1, "waited": True}]
    assert told == [(0, None), (0, 50), (0, 80), (60, 80)]


def test_a_change_of_the_number_of_workers_that_takes_too_long_says_that_it_goes_on(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.answers["workers"] = workers_of(7)
    assert cli.run(["worker", "scale", "1", "--wait", "--wait-timeout", "0.001"]) == 1
    assert "angarium worker list" in capsys.readouterr().err


# -- a hand-over ---------------------------------------------------------------------------------------------


def refuse_first(times: int) -> Callable[[], None]:
    """Give what refuses a hand-over so many times, as while a standby lacks something."""
    left = iter(range(times))

    def answer() -> None:
        if next(left, None) is not None:
            raise errors.error_for(errors.STANDBY_REFUSED, "no standby has everything")

    return answer


@pytest.mark.requirement("R269")
def test_a_hand_over_waits_for_a_standby_that_lacks_something(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "SWITCH_LOOK_S", 0.0)
    admin.answers["standby.switch"] = refuse_first(3)
    admin.answers["standby.status"] = {"role": "primary", "store": "etcd"}
    assert cli.run(["standby", "switch"]) == 0
    assert [operation for operation, _ in admin.calls].count("standby.switch") == 4
    assert capsys.readouterr().err.count("waiting for it") == 1


@pytest.mark.requirement("R269")
@pytest.mark.parametrize("status", [{"role": "alone", "store": ""}, {"role": "primary", "store": "manual"}])
def test_a_hand_over_that_is_never_possible_is_refused_at_once(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str], status: dict[str, str]
) -> None:
    admin.answers["standby.switch"] = refuse_first(1)
    admin.answers["standby.status"] = status
    assert cli.run(["standby", "switch"]) == 1
    assert str(errors.STANDBY_REFUSED) in capsys.readouterr().err


@pytest.mark.requirement("R269")
def test_a_hand_over_is_waited_for_so_long_only(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "SWITCH_LOOK_S", 0.0)
    admin.answers["standby.switch"] = refuse_first(1_000_000)
    admin.answers["standby.status"] = {"role": "primary", "store": "etcd"}
    assert cli.run(["standby", "switch", "--wait-timeout", "0.05"]) == 1
    assert str(errors.STANDBY_REFUSED) in capsys.readouterr().err
