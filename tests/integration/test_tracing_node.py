"""Spans of a node at a collector: which there are for a sampled message, whose children they are, and for whom none."""

from __future__ import annotations

import asyncio
import itertools
import json
import urllib.request
from typing import TYPE_CHECKING, Any, Final

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import angarium
from angarium import blocking
from angarium.opentelemetry import AngariumInstrumentor
from angarium_server.testing import Node
from tests.integration.collector import Collector, Seen
from tests.waiting import wait_for, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

LIMIT_S: Final = 20.0
SPAN: Final = "00f067aa0ba902b7"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("spans")
    (folder / "headers").write_text("Authorization: Bearer of-the-collector\n\nX-Team: red\n")
    (folder / "headers").chmod(0o600)
    file = folder / "node.toml"
    file.write_text(
        f'[node]\nname = "berlin"\n[tracing]\nendpoint = "{collector.url}"\nheaders_file = "headers"\n'
        'service_name = "broker"\nmessages_per_second = 1000\n'
    )
    with Node(folder / "data", workers=1, config=file) as running:
        yield running


def traced(flags: str = "01") -> tuple[str, dict[str, str]]:
    """Give a new trace and the properties of a message in it."""
    trace_id = f"{next(_numbers):032x}"
    return trace_id, {"traceparent": f"00-{trace_id}-{SPAN}-{flags}", "colour": "red"}


def make(node: Node, name: str, *settings: str) -> None:
    more = [word for one in settings for word in ("--set", one)]
    node.run("queue", "create", name, "--set", "owner=default", "--subscription", f"{name}/>", *more)


def names(spans: list[Seen]) -> list[str]:
    return [span.name for span in spans]


def come(collector: Collector, trace_id: str, *expected: str) -> list[Seen]:
    """Wait for the spans of a trace, in this order."""
    wait_for(lambda: names(collector.trace(trace_id)), lambda seen: seen == [*expected], "the spans come")
    spans = collector.trace(trace_id)
    for span in spans:
        assert span.start_ns <= span.end_ns
        assert span.attributes["messaging.system"] == "angarium"
    return spans


def test_a_message_has_a_span_for_each_stretch_of_its_way(node: Node, collector: Collector) -> None:
    make(node, "way")
    trace_id, properties = traced()
    with blocking.connect(node.url, client_name="anna") as client:
        client.publish("way/1", b"hello", mode="persistent", properties=properties)
        with client.consume("way") as flow:
            flow.receive(LIMIT_S).accept()
    enqueue, deliver, accept = come(collector, trace_id, "enqueue way", "deliver way", "accept way")
    assert (enqueue.parent_id, deliver.parent_id, accept.parent_id) == (
        SPAN,
        enqueue.span_id,
        deliver.span_id,
    )
    assert (enqueue.flags, deliver.flags, accept.flags) == (0x301, 0x101, 0x101)
    assert (enqueue.end_ns, deliver.end_ns) == (deliver.start_ns, accept.start_ns)
    assert (enqueue.kind, deliver.kind, accept.kind) == (5, 4, 1)
    told: dict[str, Any] = {
        "messaging.destination.name": "way",
        "messaging.destination_publish.name": "way/1",
    }
    told |= {"angarium.vpn": "default", "angarium.position": 1, "messaging.message.body.size": 5}
    for span, kind in ((enqueue, "receive"), (deliver, "send"), (accept, "settle")):
        assert span.attributes.items() >= {**told, "messaging.operation.type": kind}.items()
    assert deliver.attributes["messaging.client.id"] == "anna"
    assert deliver.attributes["angarium.delivery_count"] == 1
    expected = {"service.name": "broker", "service.instance.id": "berlin/worker-0"}
    assert enqueue.resource.items() >= expected.items()
    assert collector.paths[0] == "/v1/traces"
    headers = collector.headers[0]
    assert (headers["authorization"], headers["x-team"]) == ("Bearer of-the-collector", "red")
    shown = node.output() + node.run("config", "show") + node.run("events", "--json")
    assert "of-the-collector" not in shown


def test_spans_of_node_and_clients_are_one_trace(node: Node, collector: Collector) -> None:
    make(node, "both")
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async def work() -> None:
        async with angarium.connect(node.url) as client, client.producer() as producer:
            await producer.publish_many([("both/1", b"a"), ("both/2", b"b")])
            async with client.consume("both") as flow:
                for _ in range(2):
                    (await flow.receive(LIMIT_S)).accept()

    AngariumInstrumentor().instrument(tracer_provider=provider)
    try:
        asyncio.run(work())
    finally:
        AngariumInstrumentor().uninstrument()
    created = [span for span in exporter.get_finished_spans() if span.name.startswith("create")]
    assert len(created) == 2
    contexts = [span.context for span in created if span.context is not None]
    trace_id = f"{contexts[0].trace_id:032x}"
    spans = wait_for(lambda: collector.trace(trace_id), lambda seen: len(seen) == 6, "the spans come")
    enqueued = {span.parent_id: span.span_id for span in spans if span.name == "enqueue both"}
    assert enqueued.keys() == {f"{context.span_id:016x}" for context in contexts}
    delivered = {span.span_id: span.parent_id for span in spans if span.name == "deliver both"}
    assert sorted(delivered.values()) == sorted(enqueued.values())
    assert {span.parent_id for span in spans if span.name == "accept both"} == delivered.keys()


def test_a_message_that_fails_is_delivered_again_and_one_that_is_rejected_moves(
    node: Node, collector: Collector
) -> None:
    make(node, "hard")
    trace_id, properties = traced()
    with blocking.connect(node.url) as client, client.consume("hard", ack="manual") as flow:
        client.publish("hard/1", b"", mode="persistent", properties=properties, dmq_eligible=True)
        flow.receive(LIMIT_S).fail()
        flow.receive(LIMIT_S).reject()
    way = ("enqueue hard", "deliver hard", "fail hard", "deliver hard", "reject hard")
    spans = wait_for(lambda: collector.trace(trace_id), lambda seen: len(seen) == 7, "the spans come")
    assert sorted(names(spans)) == sorted((*way, "move hard", "enqueue #DEAD_MSG_QUEUE"))
    by_name = {span.name: span for span in spans}
    first, second = (span for span in spans if span.name == "deliver hard")
    assert [one.attributes["angarium.delivery_count"] for one in (first, second)] == [1, 2]
    assert {first.parent_id, second.parent_id} == {by_name["enqueue hard"].span_id}
    assert (by_name["fail hard"].parent_id, by_name["reject hard"].parent_id) == (
        first.span_id,
        second.span_id,
    )
    told = {"angarium.reason": "rejected", "angarium.dead_message_queue": "#DEAD_MSG_QUEUE"}
    assert by_name["move hard"].attributes.items() >= told.items()
    assert by_name["enqueue #DEAD_MSG_QUEUE"].parent_id == SPAN


def test_a_message_that_expires_or_is_purged_has_a_span_for_that(node: Node, collector: Collector) -> None:
    make(node, "short", "dead_message_queue=")
    expiring, purged = traced(), traced()
    with blocking.connect(node.url) as client:
        client.publish("short/1", b"", mode="persistent", properties=expiring[1], ttl_ms=50)
        enqueue, expire = come(collector, expiring[0], "enqueue short", "expire short")
        assert expire.parent_id == enqueue.span_id
        client.publish("short/2", b"", mode="persistent", properties=purged[1])
        come(collector, purged[0], "enqueue short")
        node.run("queue", "purge", "short", "--yes")
        come(collector, purged[0], "enqueue short", "delete short")


def test_a_consumer_that_leaves_loses_what_it_had(node: Node, collector: Collector) -> None:
    make(node, "left")
    trace_id, properties = traced()
    with blocking.connect(node.url) as client:
        client.publish("left/1", b"", mode="persistent", properties=properties)
        with client.browse("left") as browser:
            assert browser.receive(LIMIT_S).topic == "left/1"
        with client.consume("left", ack="manual") as flow:
            flow.receive(LIMIT_S)
        lose = come(collector, trace_id, "enqueue left", "deliver left", "lose left")[-1]
        assert lose.error == "the consumer is gone"
        with client.consume("left") as flow:
            flow.receive(LIMIT_S).accept()
    come(
        collector, trace_id, *(f"{name} left" for name in ("enqueue", "deliver", "lose", "deliver", "accept"))
    )


def test_other_messages_have_none(node: Node, collector: Collector) -> None:
    make(node, "plain")
    # What earlier tests made is counted once a second, and later than it came.
    sent = len(collector.spans)
    before = wait_for(
        lambda: metrics(node), lambda seen: seen["spans_exported_total"] >= sent, "earlier ones count"
    )
    unsampled, sampled = traced("00"), traced()
    odd = {"traceparent": f"00-{sampled[0]}-zz-01"}
    with blocking.connect(node.url) as client, client.producer() as producer:
        for properties in (unsampled[1], odd, {"a": 1}, None):
            producer.publish("plain/1", b"", properties=properties)
        producer.publish("plain/2", b"", properties=sampled[1])
        with client.consume("plain") as flow:
            for _ in range(5):
                flow.receive(LIMIT_S).accept()
    come(collector, sampled[0], "enqueue plain", "deliver plain", "accept plain")
    assert not collector.trace(unsampled[0])

    def since() -> dict[str, float]:
        now = metrics(node)
        return {name: now[name] - before[name] for name in before}

    made = wait_for(since, lambda seen: seen["spans_exported_total"] == 3, "the metrics follow")
    assert (made["traces_begun_total"], made["spans_made_total"], made["spans_dropped_total"]) == (1, 3, 0)


def metrics(node: Node) -> dict[str, float]:
    kept = json.loads((node.data / "node.json").read_text(encoding="utf-8"))
    with urllib.request.urlopen(f"{kept['health']}/metrics", timeout=LIMIT_S) as page:
        lines = page.read().decode().splitlines()
    wanted = ("spans_made_total", "spans_exported_total", "spans_dropped_total", "traces_begun_total")
    found: dict[str, Any] = {}
    for line in lines:
        name = line.partition("{")[0].removeprefix("angarium_worker_")
        if name in wanted:
            found[name] = float(line.split()[-1])
    return found


def test_a_collector_that_hangs_holds_up_nobody(node: Node, collector: Collector) -> None:
    make(node, "free")
    collector.may_answer.clear()
    collector.came.clear()
    traces = [traced() for _ in range(20)]
    try:
        with blocking.connect(node.url) as client, client.consume("free") as flow:
            client.publish("free/0", b"", mode="persistent", properties=traces[0][1])
            flow.receive(LIMIT_S).accept()
            wait_until(collector.came.is_set, "a request hangs")
            for _, properties in traces[1:]:
                client.publish("free/1", b"", mode="persistent", properties=properties)
                flow.receive(LIMIT_S).accept()
    finally:
        collector.may_answer.set()
    for trace_id, _ in traces:
        come(collector, trace_id, "enqueue free", "deliver free", "accept free")
