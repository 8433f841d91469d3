"""What applications call: spans on, spans off, and the span of their own work on a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from angarium import tracing
from angarium.opentelemetry.spans import SpanMaker, extract

if TYPE_CHECKING:
    from collections.abc import Collection
    from contextlib import AbstractContextManager

    from opentelemetry.context import Context
    from opentelemetry.trace import TracerProvider

    from angarium.message import Message

#: Of who is not consuming.
_NOWHERE = tracing.Place("", is_endpoint=False, client="", url="")


class AngariumInstrumentor:
    """Makes spans for all clients of this process, those that are there already too.

    It has the methods of the instrumentors of OpenTelemetry, and is found by `opentelemetry-instrument`.
    """

    def instrument(self, *, tracer_provider: TracerProvider | None = None, **_others: Any) -> None:
        """Make spans from now on; nothing happens if they are made already.

        Args:
            tracer_provider: whose tracer makes them, by default the global one; nothing is done before there is one.
            **_others: what other instrumentors know; ignored.
        """
        if not self.is_instrumented_by_opentelemetry:
            tracing.active = SpanMaker(tracer_provider)

    def uninstrument(self, **_others: Any) -> None:
        """Make no more spans; those that are open end as they would have."""
        if self.is_instrumented_by_opentelemetry:
            tracing.active = None

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        """Whether spans are made."""
        return isinstance(tracing.active, SpanMaker)

    def instrumentation_dependencies(self) -> Collection[str]:
        """Name the packages that this is for; this one, so there is nothing to compare."""
        return ()


def context_of(message: Message) -> Context:
    """Give the context that a message was published in, for spans and links of one's own; empty if there is none."""
    return extract(message._row)


def process(message: Message) -> AbstractContextManager[None]:
    """Give the span of an application's work on a message: the block runs in it, and its exception is recorded.

    Its parent is the span that the message was published in, and it is linked to the current one. Callbacks have it
    already. Without `instrument` there is no span.
    """
    tracer = tracing.active
    return SpanMaker.nothing() if tracer is None else tracer.process(message, place_of(message))


def place_of(message: Message) -> tracing.Place:
    """Give where a message came from, as far as it knows."""
    delivery = getattr(message, "_delivery", None)
    settler = getattr(delivery, "settler", None)
    binding = getattr(settler, "binding", settler)
    place = getattr(binding, "place", None)
    return place if isinstance(place, tracing.Place) else _NOWHERE
