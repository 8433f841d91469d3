"""A collector of OpenTelemetry for tests: takes spans over HTTP as the protocol says, and refuses what breaks it."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    import ssl
    from types import TracebackType

_IDS = ("traceId", "spanId", "parentSpanId")


class Seen(NamedTuple):
    """A span that came."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    flags: int
    error: str
    attributes: dict[str, Any]
    resource: dict[str, Any]


class Collector:
    """The server, in a thread; it answers with `codes`, one after the other, and with 200 when there are none left."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.spans: list[Seen] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.codes: list[int] = []
        #: Requests wait for it before they are answered.
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.came = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                collector.take(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.scheme = "http"
        if context is not None:
            self.scheme = "https"
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(20)

    def take(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["Content-Length"]))
        self.came.set()
        self.may_answer.wait(20)
        code = self.codes.pop(0) if self.codes else 200
        self.paths.append(request.path)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if code == 200:
            assert request.headers["Content-Type"] == "application/json"
            self.spans += decode(body)
        request.send_response(code)
        request.send_header("Content-Length", "2")
        request.end_headers()
        request.wfile.write(b"{}")

    def trace(self, trace_id: str) -> list[Seen]:
        """Give the spans of a trace, in the order of their ends."""
        return sorted([one for one in self.spans if one.trace_id == trace_id], key=lambda one: one.end_ns)


def decode(body: bytes) -> list[Seen]:
    """Read a request strictly: a field that the protocol does not know, or of another type, fails."""
    message = ExportTraceServiceRequest()
    json_format.ParseDict(_with_binary_ids(json.loads(body)), message)
    return [
        Seen(
            span.name,
            span.kind,
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            span.flags,
            span.status.message if span.status.code == 2 else "",
            _values(span.attributes),
            _values(group.resource.attributes),
        )
        for group in message.resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


def _with_binary_ids(value: Any) -> Any:
    """Give a request with its ids as the JSON of protobuf has bytes: those of OTLP are hexadecimal."""
    if isinstance(value, list):
        return [_with_binary_ids(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        name: base64.b64encode(bytes.fromhex(one)).decode() if name in _IDS else _with_binary_ids(one)
        for name, one in value.items()
    }


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
