"""Spans of the SDK at a real node: which there are, whose children they are, what they link to and say."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import angarium
from angarium import Message, blocking, errors, tracing
from angarium.opentelemetry import AngariumInstrumentor, context_of, process
from angarium.opentelemetry.spans import SpanMaker
from angarium.trace_context import parse
from angarium_server.testing import Node
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from opentelemetry.sdk.trace import ReadableSpan

pytestmark = pytest.mark.slow

LIMIT_S = 20.0
OLD = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Node(tmp_path_factory.mktemp("spans") / "data", workers=1) as running:
        running.run("queue", "create", "work", "--set", "owner=default", "--subscription", "work/*")
        yield running


class Spans:
    """What was recorded."""

    def __init__(self, exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
        self.exporter = exporter
        self.tracer = provider.get_tracer("test")

    def named(self, text: str) -> list[ReadableSpan]:
        """Give those with this name, or with this operation and destination: no topic is in a name."""
        return [span for span in self.exporter.get_finished_spans() if text in (span.name, _titled(span))]

    def one(self, name: str) -> ReadableSpan:
        found: list[ReadableSpan] = wait_until(lambda: self.named(name), f"there is a span {name!r}")
        assert len(found) == 1, found
        return found[0]

    def names(self) -> list[str]:
        return sorted(span.name for span in self.exporter.get_finished_spans())


def _titled(span: ReadableSpan) -> str:
    return f"{span.name} {said(span).get('destination.name', '')}"


@pytest.fixture
def spans() -> Iterator[Spans]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor = AngariumInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    try:
        yield Spans(exporter, provider)
    finally:
        instrumentor.uninstrument()
        assert tracing.active is None


def ids(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def context_in(message: Message) -> tuple[int, int]:
    found = parse(message.properties.get("traceparent"))
    assert found is not None, message.properties
    return int(found.trace_id, 16), int(found.span_id, 16)


def said(span: ReadableSpan) -> dict[str, Any]:
    return {name.removeprefix("messaging."): value for name, value in (span.attributes or {}).items()}


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, LIMIT_S))


def test_a_callback_runs_as_a_child_of_who_published(node: Node, spans: Spans) -> None:
    async def work() -> None:
        seen: asyncio.Future[tuple[Message, trace.SpanContext]] = asyncio.get_running_loop().create_future()

        async def callback(message: Message) -> None:
            seen.set_result((message, trace.get_current_span().get_span_context()))

        async with (
            angarium.connect(node.url, client_name="anna") as client,
            client.subscribe("a/*", callback),
        ):
            with spans.tracer.start_as_current_span("around") as around:
                await client.publish(
                    "a/7",
                    b"hello",
                    properties={"colour": "red"},
                    application_message_id="m7",
                    correlation_id="c7",
                )
            message, inside = await seen
        sent = spans.one("send a/7")
        assert parent(sent) == (around.get_span_context().trace_id, around.get_span_context().span_id)
        assert sent.kind is SpanKind.PRODUCER
        assert message.properties.keys() == {"colour", "traceparent"}
        assert context_in(message) == ids(sent)
        handled = spans.one("process a/*")
        assert (parent(handled), handled.kind) == (ids(sent), SpanKind.CONSUMER)
        assert (inside.trace_id, inside.span_id) == ids(handled)
        common = {
            "system": "angarium",
            "destination.name": "a/7",
            "client.id": "anna",
            "message.body.size": 5,
        }
        common |= {"message.id": "m7", "message.conversation_id": "c7", "server.address": "127.0.0.1"}
        assert said(sent).items() >= {**common, "operation.name": "send", "operation.type": "send"}.items()
        assert isinstance(said(sent)["server.port"], int)
        told = {**common, "operation.type": "process", "destination.template": "a/*"}
        assert said(handled).items() >= told.items()
        assert spans.names() == ["around", "process a/*", "send"], (
            "there are as many topics as there are orders"
        )

    run(work())


def test_a_guaranteed_message_is_sent_received_processed_and_accepted(node: Node, spans: Spans) -> None:
    async def work() -> None:
        async with angarium.connect(node.url) as client, client.producer() as producer:
            await (await producer.send("work/1", b"one"))
            sent = spans.one("send work/1")
            assert sent.status.status_code is StatusCode.UNSET
            async with client.consume("work", ack="manual") as flow:
                with spans.tracer.start_as_current_span("loop") as loop:
                    message = await flow.receive(LIMIT_S)
                    assert context_in(message) == ids(sent)
                    with process(message):
                        await client.publish("next/1", b"")
                        message.accept()
                    message.accept()  # It is settled already.
        received, handled = spans.one("receive work"), spans.one("process work")
        around = (loop.get_span_context().trace_id, loop.get_span_context().span_id)
        assert (parent(received), links(received), received.kind) == (around, [ids(sent)], SpanKind.CLIENT)
        assert (parent(handled), links(handled)) == (ids(sent), [around])
        assert parent(spans.one("send next/1")) == ids(handled)
        accepted = spans.one("accept work")
        assert (parent(accepted), links(accepted)) == (ids(handled), [ids(sent)])
        told = {"operation.name": "accept", "operation.type": "settle", "destination.name": "work"}
        told |= {"destination.partition.id": "0", "destination_publish.name": "work/1"}
        assert said(accepted).items() >= told.items()

    run(work())


def test_many_messages_have_a_span_each_and_one_for_all(node: Node, spans: Spans) -> None:
    async def work() -> None:
        async with angarium.connect(node.url) as client, client.producer() as producer:
            report = await producer.publish_many(
                [("work/1", b"a"), Message("work/2", b"b", mode="persistent")]
            )
            assert report.acknowledged == 2
            async with client.consume("work") as flow:
                async for batch in flow.batches():
                    contexts = [context_in(message) for message in batch]
                    batch.accept()
                    break
        created = [spans.one("create work/1"), spans.one("create work/2")]
        assert contexts == [ids(span) for span in created]
        (sent,) = spans.named("send")
        assert [parent(span) for span in created] == [ids(sent)] * 2
        assert (links(sent), sent.kind) == (contexts, SpanKind.CLIENT)
        assert said(sent)["batch.message_count"] == 2
        for name in ("receive work", "accept work"):
            told = spans.one(name)
            assert (links(told), said(told)["batch.message_count"]) == (contexts, 2)

    run(work())


def test_many_direct_messages_keep_their_order_and_have_contexts(node: Node, spans: Spans) -> None:
    async def work() -> None:
        async with angarium.connect(node.url) as client, client.subscribe("many") as subscription:
            await client.publish_many([("many", b"%d" % i) for i in range(300)])
            got = [await subscription.receive(LIMIT_S) for _ in range(300)]
        assert [int(message.payload) for message in got] == list(range(300))
        created = spans.named("create many")
        assert [context_in(message) for message in got] == [ids(span) for span in created]
        (sent,) = spans.named("send")
        assert len(sent.links) == 128
        assert len(spans.named("receive many")) == 300

    run(work())


def test_a_context_that_a_message_has_already_is_passed_on(node: Node, spans: Spans) -> None:
    async def work() -> None:
        async with angarium.connect(node.url) as client, client.subscribe("old/*") as subscription:
            await client.publish("old/1", b"", properties={"traceparent": OLD})
            first = await subscription.receive(LIMIT_S)
            await client.publish_many([Message("old/2", b"", properties=first.properties)])
            second = await subscription.receive(LIMIT_S)
        assert [one.properties["traceparent"] for one in (first, second)] == [OLD, OLD]
        sent = spans.one("send old/1")
        assert (sent.kind, links(sent)) == (SpanKind.CLIENT, [context_in(first)])
        (many,) = (span for span in spans.named("send") if "batch.message_count" in said(span))
        assert links(many) == [context_in(first)]
        assert not spans.named("create old/2")
        assert trace.get_current_span(context_of(second)).get_span_context().is_remote

    run(work())


def test_what_is_no_context_breaks_nothing(node: Node, spans: Spans) -> None:
    async def work() -> None:
        async with angarium.connect(node.url) as client, client.subscribe("odd") as subscription:
            for odd in ("00-1-2-3", 7, [OLD]):
                await client.publish("odd", b"", properties={"traceparent": odd, "a": 1})
                message = await subscription.receive(LIMIT_S)
                assert message.properties["a"] == 1
                assert context_in(message) == ids(spans.named("send odd")[-1])
            AngariumInstrumentor().uninstrument()
            await client.publish("odd", b"", properties={"traceparent": "?"})
            message = await subscription.receive(LIMIT_S)
            assert message.properties == {"traceparent": "?"}
            assert not context_of(message)

    run(work())


def test_a_refusal_is_the_error_of_its_span(node: Node, spans: Spans) -> None:
    async def work() -> None:
        async with angarium.connect(node.url) as client, client.producer() as producer:
            receipt = await producer.send(queue="none")
            with pytest.raises(angarium.NotFoundError):
                await receipt
            with pytest.raises(angarium.NotFoundError):
                await client.publish(queue="none")
            await producer.flush()
            with pytest.raises(errors.InvalidRequestError):
                await client.publish("late/wildcard", b"", mode="persistent", ttl_ms=-1)
        refused = spans.named("send none")
        assert [span.status.status_code for span in refused] == [StatusCode.ERROR] * 2
        assert [said(span)["error.type"] for span in refused] == [str(errors.UNKNOWN_ENDPOINT)] * 2

    run(work())


def test_a_callback_that_raises_fails_its_message_and_its_span(node: Node, spans: Spans) -> None:
    async def work() -> None:
        done = asyncio.Event()

        def callback(message: Message) -> None:
            if not getattr(message, "redelivered", False):
                raise ValueError("not this time")
            done.set()

        async with (
            angarium.connect(node.url) as client,
            client.consume("work", callback=callback),
        ):
            await client.publish("work/9", b"", mode="persistent")
            await done.wait()
        first, second = spans.named("process work")
        assert (first.status.status_code, said(first)["error.type"]) == (StatusCode.ERROR, "ValueError")
        assert [event.name for event in first.events] == ["exception"]
        assert second.status.status_code is StatusCode.UNSET
        assert parent(first) == parent(second) == ids(spans.one("send work/9"))
        assert links(spans.one("fail work")) == links(spans.one("accept work")) == [parent(first)]

    run(work())


def test_a_request_and_its_reply_are_one_trace(node: Node, spans: Spans) -> None:
    async def work() -> None:
        async with angarium.connect(node.url) as client:

            async def responder(request: Message) -> None:
                await client.reply(request, b"bright")

            async with client.subscribe("lights", responder):
                with spans.tracer.start_as_current_span("asking"):
                    reply = await client.request("lights", b"?")
            assert reply.payload == b"bright"
        sent, handled, replied = (
            spans.one(name) for name in ("send lights", "process lights", "send (temporary)")
        )
        assert parent(handled) == ids(sent)
        assert parent(replied) == ids(handled)
        assert said(replied)["destination.temporary"] is True
        assert {span.context.trace_id for span in spans.exporter.get_finished_spans() if span.context} == {
            ids(sent)[0]
        }

    run(work())


def test_the_blocking_client_makes_the_same_spans_in_the_threads_of_the_application(
    node: Node, spans: Spans
) -> None:
    with (
        blocking.connect(node.url) as client,
        client.subscribe("b/*") as subscription,
        client.producer() as producer,
    ):
        with spans.tracer.start_as_current_span("around") as around:
            client.publish("b/1", b"one")
            client.publish_many([("b/2", b"two"), ("b/3", b"three")])
            producer.publish("work/1", b"four")
            producer.publish_many([("work/2", b"five")])
        got = [subscription.receive(LIMIT_S) for _ in range(3)]
        assert [message.payload for message in got] == [b"one", b"two", b"three"]
        trace_id = around.get_span_context().trace_id
        assert {context_in(message)[0] for message in got} == {trace_id}
        assert context_in(got[0]) == ids(spans.one("send b/1"))
        with client.consume("work", ack="manual") as flow:
            message = flow.receive(LIMIT_S)
            with process(message):
                message.accept()
            other = next(iter(flow))
            other.reject()
        assert context_in(message) == ids(spans.one("send work/1"))
        assert parent(spans.one("accept work")) == ids(spans.one("process work"))
        assert links(spans.one("reject work")) == [ids(spans.one("create work/2"))]
        sends = spans.named("send")
        assert {parent(span) for span in sends} == {(trace_id, around.get_span_context().span_id)}
        handled = []
        with client.subscribe("c", lambda message: handled.append(trace.get_current_span())):
            client.publish("c", b"")
            assert parent(spans.one("process c")) == ids(spans.one("send c"))
        (inside,) = handled
        assert inside.get_span_context().span_id == ids(spans.one("process c"))[1]


def test_without_a_provider_nothing_is_recorded_or_added(node: Node) -> None:
    async def work() -> None:
        async with angarium.connect(node.url) as client, client.subscribe("plain") as subscription:
            await client.publish("plain", b"1")
            await client.publish_many([("plain", b"2")])
            for _ in range(2):
                message = await subscription.receive(LIMIT_S)
                assert message.row[4] is None
                with process(message):
                    assert not trace.get_current_span().get_span_context().is_valid

    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    AngariumInstrumentor().instrument()
    try:
        run(work())
    finally:
        AngariumInstrumentor().uninstrument()
    run(work())


def test_who_lacks_the_package_is_told_what_to_install() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None\nimport angarium.blocking, angarium.client.client\n"
        "try:\n    import angarium.opentelemetry\nexcept ImportError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert (
        done.stdout
        == "angarium.opentelemetry needs opentelemetry-api: pip install 'angarium[opentelemetry]'\n"
    )


def test_a_provider_that_is_switched_off_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SpanMaker(TracerProvider()).is_on
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert not SpanMaker(TracerProvider()).is_on
