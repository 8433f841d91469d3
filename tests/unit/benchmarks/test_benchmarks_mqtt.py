"""Messages of MQTT: which rows there are, what clients say and count, and what is said of what did not come."""

from __future__ import annotations

import json
import os
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.brokers import mqtt as brokers
from benchmarks.brokers.angarium import AngariumMqtt
from benchmarks.brokers.mosquitto import Mosquitto
from benchmarks.brokers.server import Broker, BrokerFailedError
from benchmarks.direct import Settings
from benchmarks.mqtt import client, packets, plan, suite
from benchmarks.mqtt.suite import Exchange
from benchmarks.mqtt.task import PUBLISH, SUBSCRIBE, MqttTask
from gateway.mqtt.codec.connect import Connect
from gateway.mqtt.codec.kinds import V3, Sender
from gateway.mqtt.codec.parser import Parser
from gateway.mqtt.codec.publish import Publish
from gateway.mqtt.codec.subscribe import Subscribe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MANY = next(one for one in plan.SCENARIOS if one.publishers > 1)
RETAINED = next(one for one in plan.SCENARIOS if one.retained)


# -- rows ----------------------------------------------------------------------------------------------------


def test_every_figure_is_compared_with_every_peer_once() -> None:
    rows = plan.comparisons(plan.PEERS)
    assert len({row.name for row in rows}) == len(rows)
    by_peer = [{(row.scenario, row.figure) for row in rows if row.peer == peer} for peer in plan.PEERS]
    assert all(figures == by_peer[0] for figures in by_peer)
    assert "messages of MQTT, QoS 1 100->1, 128 B, window 10, acknowledged, against nats" in {
        row.name for row in rows
    }


def test_without_a_peer_that_takes_part_our_figures_stand_alone() -> None:
    rows = plan.comparisons(("redis",))
    assert {(row.peer, row.other) for row in rows} == {("", "")}
    assert not any("against" in row.name for row in rows)


def test_every_broker_that_acknowledges_says_what_that_means(tmp_path: Path) -> None:
    for scenario in plan.SCENARIOS:
        if scenario.qos:
            started = {brokers.OURS, *(scenario.broker_of(peer) for peer in plan.PEERS)}
            assert set(plan.BEHIND_PUBACK[scenario.retained]) == started
    names = {broker.name for broker in (*brokers.mqtt_brokers(tmp_path), brokers.MosquittoSaved(tmp_path))}
    assert names == {brokers.OURS, *plan.PEERS, *plan.KEEPING.values()}


def exchange_of(**changes: Any) -> Exchange:
    usual: dict[str, Any] = {
        "sent": 100,
        "acknowledged": 100,
        "received": 1_000,
        "wanted": 1_000,
        "publish_s": 0.5,
        "receive_s": 2.0,
        "cpu_s": {"router": 0.001},
    }
    return Exchange(**(usual | changes))


def test_a_rate_is_of_what_was_acknowledged_or_of_what_came() -> None:
    found = exchange_of()
    assert found.figure(plan.ACKNOWLEDGED) == found.figure(plan.SET) == 200
    assert found.figure(plan.DELIVERED) == found.figure(plan.GOT) == 500
    assert suite.cpu_us_per_message([found, exchange_of(cpu_s={"router": 0.003})]) == {"router": 20}


def test_what_did_not_come_or_came_twice_is_said() -> None:
    assert exchange_of().note(plan.DELIVERED, 1) == ""
    assert exchange_of(received=1_001).note(plan.DELIVERED, 0) == "1,001 of 1,000 messages came"
    assert exchange_of(received=0).note(plan.SET, 1) == ""
    assert exchange_of(acknowledged=99).note(plan.SET, 1) == "99 of 100 were acknowledged"
    assert exchange_of(acknowledged=0).note(plan.DELIVERED, 0) == ""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give the names of the brokers that are started; nothing is, and of all but rabbitmq everything is there."""
    names: list[str] = []
    for kind in (
        AngariumMqtt,
        Mosquitto,
        brokers.NatsMqtt,
        brokers.RabbitMqMqtt,
    ):
        monkeypatch.setattr(kind, "start", lambda self: names.append(self.name))
        monkeypatch.setattr(kind, "missing", lambda self: self.name if self.name == "rabbitmq" else "")
    monkeypatch.setattr(suite, "exchange", lambda *_: exchange_of())
    monkeypatch.setattr(suite, "calibrate", lambda: 1.0)  # how fast this machine is
    return names


def test_each_broker_is_visited_once_in_each_repetition_and_all_take_turns(
    tmp_path: Path, started: list[str]
) -> None:
    rows = suite.Exchanges(tmp_path, Settings(peers=plan.PEERS, repetitions=3)).run()
    assert {name: started.count(name) for name in started} == {
        "angarium-mqtt": 3,
        "mosquitto": 3,
        "mosquitto-saved": 3,
        "nats": 3,
    }
    assert len(set(started[::4])) == 3
    assert all(len(row.ours) == 3 for row in rows if row.against != "rabbitmq")


def test_rows_of_a_peer_that_is_not_installed_say_what_installs_it_and_start_nothing(
    tmp_path: Path, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokers.RabbitMqMqtt, "install", "apt-get install rabbitmq-server")
    rows = suite.Exchanges(tmp_path, Settings(peers=("rabbitmq",))).run()
    assert {(row.install, tuple(row.peer), row.error) for row in rows} == {
        ("apt-get install rabbitmq-server", (), "")
    }
    assert started == []


def test_a_row_says_of_both_sides_what_an_acknowledgement_means(tmp_path: Path, started: list[str]) -> None:
    settings = Settings(peers=("mosquitto",), rows="QoS 1 1->1,", repetitions=1)
    (row,) = suite.Exchanges(tmp_path, settings).run()
    assert row.note == "ours: synced commit; mosquitto: PUBACK from memory, then autosave_on_changes"
    assert started == ["angarium-mqtt", "mosquitto-saved"]


def test_a_scenario_that_fails_leaves_the_others_alone(
    tmp_path: Path, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def exchange(_broker: Broker, scenario: plan.Scenario, *_: Any) -> Exchange:
        if scenario.retained:
            raise BrokerFailedError("it ended\nbecause")
        return exchange_of()

    monkeypatch.setattr(suite, "exchange", exchange)
    rows = suite.Exchanges(tmp_path, Settings(peers=(), repetitions=1)).run()
    assert [row.error for row in rows] == [""] * 5 + ["it ended ... because"] * 2
    assert started == ["angarium-mqtt"]


def test_what_is_retained_is_set_until_it_is_there_and_all_else_for_a_time() -> None:
    subscriber = MqttTask(role=SUBSCRIBE, url="mqtt://h:1", prefix="p", qos=0, retained=True)
    setting = suite.publisher_of(subscriber, RETAINED, 1.5, 100_000)
    assert (setting.role, setting.qos, setting.topics, setting.seconds) == (
        PUBLISH,
        1,
        100_000,
        suite.SET_MAX_S,
    )
    many = suite.publisher_of(MqttTask(role=SUBSCRIBE, url="", prefix="p", qos=1), MANY, 1.5, 100_000)
    assert (many.connections, many.window, many.seconds, many.topics) == (100, 10, 1.5, 16)


# -- clients -------------------------------------------------------------------------------------------------


def test_a_node_reads_what_the_clients_say() -> None:
    said = packets.connect("name", clean=True) + packets.subscribe("p/#", 1)
    said += packets.publish_head("p/0/1", 300, 1, retain=True) + packets.IDENTIFIERS[6] + bytes(300)
    said += packets.publish_head("p/0/1", 3, 0, retain=False) + b"abc"
    parser = Parser(Sender.CLIENT)
    connect, subscribe, kept, lone = parser.feed(said)
    assert parser.fault is None
    assert isinstance(connect, Connect)
    assert (connect.client_id, connect.clean_start) == ("name", True)
    assert isinstance(subscribe, Subscribe)
    assert [(one.filter, one.qos) for one in subscribe.subscriptions] == [("p/#", 1)]
    assert isinstance(kept, Publish)
    assert (kept.topic, kept.qos, kept.retain, kept.packet_id, kept.payload) == (
        "p/0/1",
        1,
        True,
        7,
        bytes(300),
    )
    assert isinstance(lone, Publish)
    assert (lone.qos, lone.retain, lone.payload) == (0, False, b"abc")


def test_packets_come_whole_in_whatever_pieces_they_arrive() -> None:
    stream = (
        b"\x20\x02\x00\x00"
        + packets.publish_head("t", 200, 0, retain=False)
        + bytes(200)
        + b"\x40\x02\x00\x07"
    )
    whole, rest = packets.split(stream)
    assert rest == b""
    assert [first for first, _ in whole] == [0x20, 0x30, 0x40]
    found: list[tuple[int, bytes]] = []
    for byte in stream:
        some, rest = packets.split(rest + bytes((byte,)))
        found += some
    assert (found, rest) == (whole, b"")


def test_each_message_with_qos_1_is_acknowledged_by_its_identifier() -> None:
    stream = b"".join(
        packets.publish_head("some/topic", 5, 1, retain=False) + packets.IDENTIFIERS[number] + b"12345"
        for number in (6, 700)
    )
    bodies = [body for _, body in packets.split(stream)[0]]
    answered, _ = packets.split(packets.pubacks(bodies))
    assert answered == [(0x40, packets.IDENTIFIERS[6]), (0x40, packets.IDENTIFIERS[700])]


class Line:
    """A connection of a client whose other end the test holds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> None:
        ours, self.theirs = (stack.enter_context(one) for one in socket.socketpair())
        self.theirs.sendall(b"\x20\x02\x00\x00")
        monkeypatch.setattr("benchmarks.mqtt.client.socket.create_connection", lambda *_: Plain(ours))
        self._parser = Parser(Sender.CLIENT)

    def said(self) -> list[Any]:
        """Give what the client has said."""
        return self._parser.feed(self.theirs.recv(1 << 20))


class Plain:
    """A socket of which no option of TCP can be set."""

    def __init__(self, inner: socket.socket) -> None:
        self.sendall, self.recv, self.fileno, self.close = (
            inner.sendall,
            inner.recv,
            inner.fileno,
            inner.close,
        )

    def setsockopt(self, *_: int) -> None:
        """Take it, and do nothing."""


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    """Give the other end of the next connection."""
    with ExitStack() as stack:
        yield Line(monkeypatch, stack)


def task(**changes: Any) -> MqttTask:
    usual: dict[str, Any] = {"role": PUBLISH, "url": "mqtt://127.0.0.1:1", "prefix": "p", "qos": 1}
    return MqttTask(**(usual | changes))


def test_a_sender_sets_each_topic_once_and_stops(line: Line) -> None:
    sender = client.Sender(task(topics=3, retained=True), 4)
    sender.send(2)
    sender.send(2)
    sender.send(2)
    said = line.said()
    assert [(one.topic, one.retain, one.packet_id) for one in said[1:]] == [
        ("p/4/0", True, 1),
        ("p/4/1", True, 2),
        ("p/4/2", True, 3),
    ]
    line.theirs.sendall(b"\x40\x02\x00\x01\x40\x02\x00\x02")
    assert sender.take() == 2
    assert (sender.sent, sender.acknowledged) == (3, 2)


def test_a_sender_without_acknowledgements_goes_through_its_topics_again(line: Line) -> None:
    sender = client.Sender(task(topics=2), 0)
    sender.send(3)
    assert [one.topic for one in line.said()[1:]] == ["p/0/0", "p/0/1", "p/0/0"]


def test_a_subscriber_acknowledges_and_counts_until_it_has_what_it_was_told(line: Line) -> None:
    line.theirs.sendall(b"\x90\x03\x00\x01\x01")
    reading, writing = os.pipe()
    with os.fdopen(reading) as orders, os.fdopen(writing, "w") as told:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client.Connection, "_answer", lambda *_: bytes(3))
            subscriber = client.Subscriber(task(role=SUBSCRIBE), orders)
        head = packets.publish_head("p/0/1", 2, 1, retain=False)
        line.theirs.sendall(head + b"\x00\x09ab" + head + b"\x00\x0aab")
        told.write(json.dumps({"do": "take", "messages": 2}) + "\n")
        told.flush()
        figures = subscriber.run()
    assert figures["received"] == 2
    assert figures["last_ns"] >= figures["first_ns"] > 0
    connect, subscribe, *acknowledged = line.said()
    assert isinstance(connect, Connect)
    assert not connect.clean_start
    assert isinstance(subscribe, Subscribe)
    assert [one.packet_id for one in acknowledged] == [9, 10]


def test_a_subscriber_that_misses_something_gives_up_and_says_how_much_came(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "STALL_S", 0.0)
    reading, writing = os.pipe()
    with os.fdopen(reading) as orders, os.fdopen(writing, "w") as told:
        subscriber = client.Subscriber(task(role=SUBSCRIBE, qos=0, retained=True), orders)
        told.write('{"do": "take", "messages": 2}\n')
        told.flush()
        assert subscriber.run()["received"] == 0
    assert [type(one) for one in line.said()] == [Connect, Subscribe]


def test_clients_speak_the_version_that_all_brokers_know() -> None:
    parser = Parser(Sender.CLIENT)
    parser.feed(packets.connect("name", clean=False))
    assert parser.version == V3
