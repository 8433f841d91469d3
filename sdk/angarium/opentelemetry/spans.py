"""Spans of what a client does with messages, and the context in their properties.

| what | span | kind | parent | links |
|---|---|---|---|---|
| one message is published | send | producer | the current one | the creation context, if the message had one already |
| many are | create for each, send for all | producer, client | the current one, for all | of send: each message |
| messages are handed out | receive | client | the current one | the context of each |
| a callback, `process` | process | consumer | the context of the message | the current one |
| messages are settled | accept, fail, reject | client | the current one | the context of each |

A message that has a context keeps it: it was made elsewhere, and this process passes it on.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

try:
    from opentelemetry import trace
except ImportError as error:
    detail = "angarium.opentelemetry needs opentelemetry-api: pip install 'angarium[opentelemetry]'"
    raise ImportError(detail) from error
from opentelemetry.context import Context
from opentelemetry.propagate import extract as extract_from
from opentelemetry.propagate import inject
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import Link, NoOpTracer, ProxyTracerProvider, Span, SpanKind, Status, StatusCode

import angarium
from angarium.errors import AngariumError
from angarium.message import Message, message_of, user_properties_of, with_properties
from angarium.opentelemetry.attributes import (
    CREATE,
    OUTCOMES,
    PROCESS,
    RECEIVE,
    SEND,
    SETTLE,
    Described,
    describe,
)
from angarium.trace_context import TRACEPARENT, parse
from angarium.tracing import Sent, SentMany

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from opentelemetry.trace import Tracer, TracerProvider

    from angarium.message import Mode, Row
    from angarium.slots import Publishable
    from angarium.tracing import Place

SCOPE: Final = "angarium.opentelemetry"
#: Of a span for many messages; OpenTelemetry keeps no more by default.
LINKS_MAX: Final = 128
_EMPTY: Final = Context()


class _Properties(Getter["Mapping[Any, Any]"]):
    """Reads the user properties of a message, which may be of any type."""

    def get(self, carrier: Mapping[Any, Any], key: str) -> list[str] | None:
        value = carrier.get(key)
        return [value] if isinstance(value, str) else None

    def keys(self, carrier: Mapping[Any, Any]) -> list[str]:
        return [name for name in carrier if isinstance(name, str)]


_properties: Final = _Properties()


def extract(row: Row) -> Context:
    """Give the context in a row; an empty one if there is none."""
    if row[4] is None:
        return _EMPTY
    return extract_from(user_properties_of(row), _EMPTY, _properties)


def _links(rows: Iterable[Row]) -> list[Link]:
    """Give links to the contexts of messages, each once."""
    found: dict[tuple[int, int], Link] = {}
    for row in rows:
        context = trace.get_current_span(extract(row)).get_span_context()
        if context.is_valid:
            found.setdefault((context.trace_id, context.span_id), Link(context))
            if len(found) == LINKS_MAX:
                break
    return list(found.values())


def _is_created(row: Row) -> bool:
    """Tell whether a message has a context already."""
    return row[4] is not None and parse(user_properties_of(row).get(TRACEPARENT)) is not None


def _injected(row: Row, context: Context) -> Row:
    """Give a message with a context; without one as it was."""
    carrier: dict[str, str] = {}
    inject(carrier, context)
    return with_properties(row, carrier) if carrier else row


def _end(span: Span, error: BaseException | None) -> None:
    if error is not None:
        span.set_attribute("error.type", _type_of(error))
        span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()


def _type_of(error: BaseException) -> str:
    return str(error.code) if isinstance(error, AngariumError) else type(error).__qualname__


def _nothing(_error: BaseException | None) -> None:
    """Nothing was begun."""


class SpanMaker:
    """Makes the spans; see `angarium.tracing.Tracer`."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        """Make them with a provider, or the global one, once there is one."""
        self._provider = provider
        #: Of the provider that was there last; the global one may come later.
        self._made: tuple[TracerProvider, Tracer | None] | None = None

    @property
    def is_on(self) -> bool:
        """Whether a provider is set up, and not switched off (OTEL_SDK_DISABLED)."""
        return self._tracer() is not None

    def _tracer(self) -> Tracer | None:
        """Give what makes spans; None as long as nobody has set it up."""
        provider = self._provider or trace.get_tracer_provider()
        made = self._made
        if made is None or made[0] is not provider:
            made = self._made = provider, self._tracer_of(provider)
        return made[1]

    @staticmethod
    def _tracer_of(provider: TracerProvider) -> Tracer | None:
        if isinstance(provider, ProxyTracerProvider):
            return None
        tracer = provider.get_tracer(SCOPE, angarium.__version__)
        return None if isinstance(tracer, NoOpTracer) else tracer

    # Publishing.

    def send(self, row: Row, place: Place, /) -> Sent:
        """Make the span of a message that is published."""
        tracer = self._tracer()
        if tracer is None:
            return Sent(row, _nothing)
        name, attributes = describe(SEND, SEND, (row,), place)
        is_created = _is_created(row)
        span = tracer.start_span(
            name,
            kind=SpanKind.CLIENT if is_created else SpanKind.PRODUCER,
            attributes=attributes,
            links=_links((row,)) if is_created else None,
        )
        if not is_created:
            row = _injected(row, trace.set_span_in_context(span))
        return Sent(row, lambda error: _end(span, error))

    def send_many(self, messages: Iterable[Publishable], place: Place, mode: Mode, /) -> SentMany:
        """Make the spans of messages that are published together."""
        tracer = self._tracer()
        if tracer is None:
            return SentMany(iter(messages), _nothing)
        name, attributes = describe(SEND, SEND, (), place)
        span = tracer.start_span(name, kind=SpanKind.CLIENT, attributes=attributes)
        batch = _Batch(tracer, span, place)
        return SentMany(batch.created(messages, mode), batch.end)

    # Consuming.

    def receive(self, messages: Sequence[Message], place: Place, started_ns: int = 0, /) -> None:
        """Make the span of messages that are handed out."""
        tracer = self._tracer()
        if tracer is not None:
            rows = [message._row for message in messages]
            partition = getattr(messages[0], "partition", None)
            described = _of_several(describe(RECEIVE, RECEIVE, rows, place, partition), messages)
            self._make(tracer, described, _links(rows), started_ns or None)

    def process(self, message: Message, place: Place, /) -> AbstractContextManager[None]:
        """Make the span of the work on a message."""
        tracer = self._tracer()
        return nullcontext() if tracer is None else _processing(tracer, message, place)

    def settle(self, rows: Sequence[Row], partition: int, outcome: int, place: Place, /) -> None:
        """Make the span of an outcome."""
        tracer = self._tracer()
        if tracer is not None:
            described = describe(OUTCOMES[outcome], SETTLE, rows, place, partition)
            if len(rows) > 1:
                described.attributes["messaging.batch.message_count"] = len(rows)
            self._make(tracer, described, _links(rows))

    @staticmethod
    def _make(tracer: Tracer, described: Described, links: list[Link], started_ns: int | None = None) -> None:
        """Make a span of what has been done."""
        name, attributes = described
        tracer.start_span(
            name, kind=SpanKind.CLIENT, attributes=attributes, links=links, start_time=started_ns
        ).end()

    @staticmethod
    def nothing() -> AbstractContextManager[None]:
        """Give what makes no span."""
        return nullcontext()


def _of_several(described: Described, messages: Sequence[Message]) -> Described:
    """Say how many messages came together; one alone is no batch, unless it was asked for as one."""
    if not isinstance(messages, tuple):
        described.attributes["messaging.batch.message_count"] = len(messages)
    return described


class _Batch:
    """Messages that are published together: a span for each, made as it is taken, and one for all."""

    def __init__(self, tracer: Tracer, span: Span, place: Place) -> None:
        self._tracer = tracer
        self._span = span
        self._context = trace.set_span_in_context(span)
        self._place = place
        self._count = self._linked = 0

    def created(self, messages: Iterable[Publishable], mode: Mode) -> Iterator[Publishable]:
        """Give the messages with their contexts."""
        for one in messages:
            if isinstance(one, Message):
                row = one.row
            elif type(one) is tuple and len(one) == 2:
                row = Message(*one, mode=mode).row
            else:
                yield one  # Is refused by who takes it.
                continue
            self._count += 1
            yield message_of(self._create(row))

    def _create(self, row: Row) -> Row:
        if not _is_created(row):
            name, attributes = describe(CREATE, CREATE, (row,), self._place)
            span = self._tracer.start_span(name, self._context, kind=SpanKind.PRODUCER, attributes=attributes)
            span.end()
            row = _injected(row, trace.set_span_in_context(span))
        if self._linked < LINKS_MAX:
            for link in _links((row,)):
                self._linked += 1
                self._span.add_link(link.context)
        return row

    def end(self, error: BaseException | None) -> None:
        """All of them are published, or one was refused."""
        self._span.set_attribute("messaging.batch.message_count", self._count)
        _end(self._span, error)


@contextmanager
def _processing(tracer: Tracer, message: Message, place: Place) -> Iterator[None]:
    partition = getattr(message, "partition", None)
    name, attributes = describe(PROCESS, PROCESS, (message._row,), place, partition)
    around = trace.get_current_span().get_span_context()
    with tracer.start_as_current_span(
        name,
        extract(message._row),
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        links=[Link(around)] if around.is_valid else None,
    ) as span:
        try:
            yield
        except BaseException as error:
            span.set_attribute("error.type", _type_of(error))
            raise
