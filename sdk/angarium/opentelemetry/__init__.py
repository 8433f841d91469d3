"""Spans of OpenTelemetry for the messages of an application, and their context carried along.

    from angarium.opentelemetry import AngariumInstrumentor

    AngariumInstrumentor().instrument()          # all clients of this process, those of angarium.blocking too

Each message that is published has the context of its span from then on, and who consumes it goes on from there. A
callback runs in its own span; a loop over messages says itself how far the work on one of them goes:

    async for message in flow:
        with process(message):
            ...

It needs the package opentelemetry-api (`pip install 'angarium[opentelemetry]'`); what becomes of the spans is decided
by the application, with opentelemetry-sdk. The names of spans and attributes are those of OpenTelemetry's semantic
conventions for messaging.
"""

from __future__ import annotations

from angarium.opentelemetry.instrumentor import AngariumInstrumentor, context_of, process

__all__ = ["AngariumInstrumentor", "context_of", "process"]
