"""Many quiet clients: which rows there are, how messages are paced and counted, and what a raw client says."""

from __future__ import annotations

import asyncio
import io
import json
import os
import resource
import sys
from typing import TYPE_CHECKING, Any

import pytest

from angarium import wire
from angarium.slots import slot_table
from benchmarks.brokers.angarium import Angarium
from benchmarks.brokers.server import Broker, BrokerFailedError
from benchmarks.crowd import group as group_module
from benchmarks.crowd import plan, raw, suite
from benchmarks.crowd.group import Arrivals, Group, Wish, due_ns, stamped
from benchmarks.crowd.people import BACK_TIMEOUT_S, Back, Loaded, back_after
from benchmarks.crowd.task import PAIRWISE, PATTERNS, TO_COLLECTOR, GroupTask, partner
from benchmarks.direct import Settings

if TYPE_CHECKING:
    from pathlib import Path

SIZES = (1_000, 5_000)
#: Larger than any that the kernel gives.
PID_OF_NOBODY = 1 << 30


def task(**changes: Any) -> GroupTask:
    usual: dict[str, Any] = {"role": "clients", "module": "", "url": "tcp://127.0.0.1:1", "prefix": "p"}
    return GroupTask(**(usual | changes))


# -- rows ----------------------------------------------------------------------------------------------------


def test_every_figure_is_compared_with_every_peer_once() -> None:
    rows = plan.comparisons(plan.PEERS, SIZES)
    assert len({row.name for row in rows}) == len(rows)
    by_peer = [{(row.size, row.ours, row.figure) for row in rows if row.peer == peer} for peer in plan.PEERS]
    assert all(figures == by_peer[0] for figures in by_peer)
    assert len(rows) == len(plan.PEERS) * len(by_peer[0])
    assert {row.figure for row in rows} >= {
        plan.figure_of(load, what) for load in plan.LOADS for what in ("p50", "p99")
    }


def test_a_row_names_the_client_of_the_peer() -> None:
    names = [row.name for row in plan.comparisons(("mosquitto",), SIZES)]
    assert "1,000 clients, 5,000/s to one collector, p50, against mosquitto (gmqtt)" in names
    assert "5,000 clients, connects/s, against mosquitto (gmqtt)" in names


def test_clients_of_mqtt_are_compared_with_brokers_of_mqtt() -> None:
    rows = plan.comparisons(("nats", "mosquitto"), SIZES, plan.OURS_MQTT)
    assert {row.peer for row in rows} == {"nats", "mosquitto"}
    assert rows[0].name.endswith("clients of MQTT, connects/s, against nats (gmqtt)")
    assert {plan.module_of(plan.OURS_MQTT, name) for row in rows for name in (row.ours, row.peer)} == {"mqtt"}


def test_every_broker_has_the_clients_of_its_own_protocol_otherwise() -> None:
    modules = {name: plan.module_of(plan.OURS, name) for name in (plan.OURS, *plan.PEERS)}
    assert modules == {"angarium": "angarium", "nats": "nats", "mosquitto": "mqtt", "rabbitmq": "rabbitmq"}


@pytest.mark.parametrize("ours", [plan.OURS, plan.OURS_MQTT])
def test_all_who_take_part_can_be_started(ours: str, tmp_path: Path) -> None:
    assert {broker.name for broker in suite.brokers_of(tmp_path, ours)} == {ours, *plan.PEERS}


@pytest.mark.parametrize("peers", [(), ("redis",)])
def test_without_a_peer_that_takes_part_our_figures_stand_alone(peers: tuple[str, ...]) -> None:
    rows = plan.comparisons(peers, SIZES)
    assert len(rows) == len(plan.comparisons(("nats",), SIZES))
    assert not any("against" in row.name for row in rows)


def test_rows_of_a_peer_that_is_not_installed_say_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.brokers.mosquitto.shutil.which", lambda *_, **__: None)
    monkeypatch.setattr(suite.Crowds, "_visit", lambda *_: None)
    settings = Settings(peers=("mosquitto",), rows="1,000 clients, connects/s, against")
    (row,) = suite.Crowds(tmp_path, settings).run()
    assert row.install.endswith("mosquitto")
    assert (row.ours, row.peer, row.error) == ([], [], "")


def test_a_size_for_which_the_shell_has_no_descriptors_is_not_begun_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1_024))
    monkeypatch.setattr(Broker, "launch", lambda *_: pytest.fail("a broker was started"))
    rows = suite.Crowds(tmp_path, Settings(peers=(), rows="5,000 clients, memory")).run()
    assert [row.error for row in rows] == [
        "5,500 open files are needed, the hard limit of this shell (ulimit -Hn) is 1,024"
    ]


def test_a_process_of_a_node_that_ended_by_itself_spoils_the_visit_and_not_the_figures(
    tmp_path: Path,
) -> None:
    node = Angarium(tmp_path, 1, "node")
    node.directory.mkdir()
    node.log_file.write_text("the last that it said")
    node._pids = {"supervisor": [os.getpid()]}
    assert [process.pid for process in node.roles()["supervisor"]] == [os.getpid()]
    node._pids["router"] = [PID_OF_NOBODY]
    with pytest.raises(BrokerFailedError, match="its router ended by itself\nthe last that it said"):
        node.cpu_s()


def load_of(**changes: Any) -> Loaded:
    usual: dict[str, Any] = {
        "due": 100,
        "sent": 100,
        "received": 100,
        "back": 0,
        "late_ms": 3.0,
        "seconds": 1.0,
        "latencies_ns": [],
        "cpu_s": {},
        "broker_cpu_s": 0.01,
        "busiest_part": 0.2,
    }
    return Loaded(**(usual | changes))


def test_cpu_time_per_message_is_the_median_of_each_process() -> None:
    loads = [load_of(cpu_s={"router": spent, "clients": 2 * spent}) for spent in (0.03, 0.01, 0.02)]
    assert suite.cpu_us_per_message(loads) == {"router": 200, "clients": 400}
    assert suite.cpu_us_per_message([]) == {}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ""),
        ({"received": 90}, "90 of 100 messages came"),
        ({"late_ms": 700.0, "due": 200}, "100 of 200 left, up to 700 ms late"),
        ({"back": 2}, "2 clients lost their connection"),
        ({"busiest_part": 0.97}, "a client process used 97% of a core"),
    ],
)
def test_what_makes_a_figure_doubtful_is_said(changes: dict[str, Any], expected: str) -> None:
    loaded = load_of(**changes)
    assert suite._note_of(loaded) == expected
    assert loaded.us_per_message(0.01) == pytest.approx(10_000 / loaded.received)


def test_a_return_that_was_not_complete_counts_as_long_as_it_was_waited_for() -> None:
    answers = [
        {"back": 3, "last_ns": 4_000_000_000, "gone": {}},
        {"back": 1, "last_ns": 2_500_000_000, "gone": {"40101 no": 1}},
    ]
    assert back_after(answers, 4, 1_000_000_000) == Back(3.0, "")
    late = back_after(answers, 5, 1_000_000_000)
    assert late.seconds == BACK_TIMEOUT_S
    assert late.note == "4 of 5 were back after 120 s, the last of them after 3.0 s, 1 gave up: 40101 no"


# -- processes with many clients -----------------------------------------------------------------------------


def test_each_client_is_in_one_process_and_its_partner_in_another() -> None:
    tasks = [task(clients=999, group=number, groups=4) for number in range(4)]
    homes = {number: one.group for one in tasks for number in one.numbers}
    assert sorted(homes) == list(range(999))
    assert sorted(partner(number, 999) for number in homes) == list(range(999))
    assert all(homes[partner(number, 999)] != home for number, home in homes.items())


def test_messages_of_all_processes_together_are_due_at_even_intervals() -> None:
    due = sorted(due_ns(7, 2_000, sent, group, 4) for group in range(4) for sent in range(100))
    assert due == [7 + number * 500_000 for number in range(400)]


def test_a_message_of_an_earlier_run_does_not_count() -> None:
    arrivals = Arrivals()
    arrivals.begin(2)
    arrivals.take(stamped(1))
    assert arrivals.first_ns == 0
    arrivals.take(stamped(2))
    assert len(arrivals.latencies_ns) == 1
    assert arrivals.latencies_ns[0] >= 0
    assert arrivals.last_ns >= arrivals.first_ns > 0


class FakeBroker:
    """Delivers at once; refuses each client's first connect."""

    def __init__(self) -> None:
        self.clients: dict[str, Wish] = {}
        self.refused: set[str] = set()
        self.collected: list[str] = []
        #: A topic whose publisher has no connection.
        self.broken = ""

    async def connect(self, wish: Wish) -> group_module.Publish:
        if wish.name not in self.refused:
            self.refused.add(wish.name)
            raise ConnectionRefusedError("come again")
        self.clients[wish.subscription] = wish
        return self.publish

    async def publish(self, topic: str, payload: bytes) -> None:
        if topic == self.broken:
            raise ConnectionResetError
        if topic in self.clients:
            self.clients[topic].take(payload)
        else:
            self.collected.append(topic)


def serve(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    broker: FakeBroker,
    *orders: dict[str, Any],
) -> list[dict[str, Any]]:
    """Give what a process with three clients answers to orders."""
    lines = "".join(json.dumps(order) + "\n" for order in orders)
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    monkeypatch.setattr(group_module, "RETRY_S", 0)
    asyncio.run(Group(task(clients=3), broker.connect, lambda topic: topic.replace("/", ".")).serve())
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_process_connects_all_its_clients_however_often_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = FakeBroker()
    (answer,) = serve(monkeypatch, capsys, broker, {"do": "connect", "timeout_s": 5})
    assert (answer["connected"], answer["failed_attempts"]) == (3, 3)
    assert answer["failures"] == ["ConnectionRefusedError: come again"]
    assert sorted(broker.clients) == ["p.c.0", "p.c.1", "p.c.2"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_clients_of_a_process_publish_in_turn(
    pattern: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = FakeBroker()
    publish = {"run": 1, "rate": 10_000, "messages": 6, "start_ns": 0, "pattern": pattern}
    monkeypatch.setattr(group_module, "LATE_MAX_S", float("inf"))
    answers = serve(
        monkeypatch,
        capsys,
        broker,
        {"do": "connect", "timeout_s": 5},
        {"do": "count", "run": 1},
        {"do": "publish", **publish},
        {"do": "take"},
    )
    assert answers[2]["sent"] == 6
    if pattern == PAIRWISE:
        assert len(answers[3]["latencies_ns"]) == 6
    else:
        assert pattern == TO_COLLECTOR
        assert broker.collected == ["p.t.0", "p.t.1", "p.t.2"] * 2


def test_a_process_that_falls_behind_gives_up_and_says_how_far_it_came(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    publish = {"run": 1, "rate": 10_000, "messages": 6, "start_ns": 0, "pattern": PAIRWISE}
    orders = {"do": "connect", "timeout_s": 5}, {"do": "publish", **publish}
    _, answer = serve(monkeypatch, capsys, FakeBroker(), *orders)
    assert answer["sent"] == 0
    assert answer["late_ms"] > group_module.LATE_MAX_S * 1_000


def test_a_message_that_did_not_leave_is_not_counted_and_stops_nobody_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = FakeBroker()
    broker.broken = "p.t.1"
    publish = {"run": 1, "rate": 10_000, "messages": 6, "start_ns": 0, "pattern": TO_COLLECTOR}
    monkeypatch.setattr(group_module, "LATE_MAX_S", float("inf"))
    orders = {"do": "connect", "timeout_s": 5}, {"do": "publish", **publish}
    _, answer = serve(monkeypatch, capsys, broker, *orders)
    assert answer["sent"] == 4
    assert broker.collected == ["p.t.0", "p.t.2"] * 2


# -- raw clients ---------------------------------------------------------------------------------------------


class FakeConnection:
    """Gives what the node says, and keeps what the client says."""

    def __init__(self, *said: list[bytes]) -> None:
        self.said = list(said)
        self.sent: list[bytes] = []

    def fileno(self) -> int:
        return -1

    def send(self, message: bytes) -> None:
        self.sent.append(message)

    def receive(self) -> list[list[bytes]]:
        return [self.said.pop(0)]


WELCOME = [wire.WELCOME, wire.pack({"epoch": 3, "slots": slot_table(2)})]


def client_of(monkeypatch: pytest.MonkeyPatch, connection: FakeConnection) -> raw.RawClient:
    monkeypatch.setattr(raw, "RawConnection", lambda _url: connection)
    return raw.RawClient("tcp://127.0.0.1:1")


def test_a_raw_client_numbers_its_rounds_and_names_the_worker_of_its_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection = FakeConnection(WELCOME)
    client = client_of(monkeypatch, connection)
    row = wire.pack([0, "orders/line/0", 0, None, None, b"x"])
    worker = client.worker_of("orders/line/0")
    client.publish(worker, row)
    client.publish(worker, row)
    assert worker == slot_table(2)[894]
    for number, message in enumerate(connection.sent[1:], 1):
        header = wire.pack([number, 3, False, [[worker, 1]]])
        assert message == raw.packed(wire.PUBLISH, header, wire.pack([wire.unpack(row)]))


def test_a_raw_client_answers_heartbeats_and_raises_when_it_is_told_to_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ping, closed = [wire.PING, wire.pack([9])], [wire.CLOSED, wire.pack([40802, "elsewhere"])]
    connection = FakeConnection(WELCOME, ping, closed)
    client = client_of(monkeypatch, connection)
    assert list(client.receive()) == []
    assert connection.sent[-1] == raw.packed(wire.PONG, wire.pack([9]))
    with pytest.raises(ConnectionError, match="elsewhere"):
        list(client.receive())
