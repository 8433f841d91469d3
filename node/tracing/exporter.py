"""Brings spans to a collector, in a thread beside the worker: OTLP over HTTP, as JSON.

The loop of the worker puts spans into a bounded queue and never waits. A collector that hangs, refuses or is gone holds
up this thread alone; what then finds no room in the queue is dropped and counted, and so is what was tried in vain.
"""

from __future__ import annotations

import http.client
import logging
import random
import ssl
import threading
from collections import deque
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import angarium
from node.tracing.config import read_headers
from node.tracing.spans import encode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from node.tracing.config import TracingConfig
    from node.tracing.spans import Span

#: Spans that wait for the collector, about 1 kB each.
QUEUE_MAX: Final = 10_000
#: Spans in one request: to encode them takes a third of a millisecond, for which the loop may have to wait.
BATCH_MAX: Final = 100
#: How often the queue is looked at, and how long a request may be silent.
INTERVAL_S: Final = 1.0
TIMEOUT_S: Final = 5.0
#: Attempts to bring a batch, and the pauses between them: the first, doubled each time, half of it random.
ATTEMPTS_MAX: Final = 5
PAUSE_S: Final = 0.5
#: What is left when the worker ends has so long.
CLOSE_S: Final = 1.0
#: Of an answer so much is read.
ANSWER_BYTES_MAX: Final = 65_536
#: Answers that ask to come again (OTLP over HTTP).
_PASSING: Final = frozenset((429, 502, 503, 504))

_log = logging.getLogger(__name__)


class Exporter:
    """The queue and its thread."""

    def __init__(self, config: TracingConfig, node: str, index: int) -> None:
        """Begin; `index` is that of the worker.

        Raises:
            OSError: the file of authorities cannot be used.
        """
        self._config = config
        self._resource: Mapping[str, str | int] = {
            "service.name": config.service_name,
            "service.instance.id": f"{node}/worker-{index}",
            "service.version": angarium.__version__,
            "angarium.node": node,
        }
        self._url = urlsplit(config.url)
        self._context = None
        if self._url.scheme == "https":
            self._context = ssl.create_default_context(cafile=config.ca_file or None)
        self._line: http.client.HTTPConnection | None = None
        #: Only its ends are touched, which is safe from any thread.
        self._queue: deque[Span] = deque()
        self._stop = threading.Event()
        #: Spans for which there was no room: of the loop.
        self._without_room = 0
        #: Spans that the collector took, and that it was tried in vain with: of the thread.
        self._exported = self._in_vain = 0
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    # In the loop.

    def put(self, spans: Sequence[Span]) -> None:
        """Have spans brought to the collector soon, as far as there is room."""
        room = max(QUEUE_MAX - len(self._queue), 0)
        self._queue.extend(spans[:room])
        self._without_room += max(len(spans) - room, 0)

    def stats(self) -> dict[str, int]:
        """Give what became of spans since the start."""
        return {
            "spans_waiting": len(self._queue),
            "spans_exported": self._exported,
            "spans_dropped": self._without_room + self._in_vain,
        }

    def close(self) -> None:
        """End, with one more attempt for what is left if that is quick."""
        self._stop.set()
        self._thread.join(CLOSE_S)

    # In the thread.

    def _run(self) -> None:
        while True:
            is_last = self._stop.wait(INTERVAL_S)
            while self._queue:
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH_MAX))]
                self._bring(batch)
            # The next request may be far, and its connection would be over by then.
            self._hang_up()
            if is_last:
                return

    def _bring(self, batch: Sequence[Span]) -> None:
        """Bring a batch, in some attempts."""
        body = encode(batch, self._resource, angarium.__version__)
        pause_s = PAUSE_S
        for attempt in range(ATTEMPTS_MAX):
            fault, may_pass = self._post(body)
            if not fault:
                self._exported += len(batch)
                self._note("")
                return
            self._note(fault)
            if not may_pass or attempt == ATTEMPTS_MAX - 1:
                break
            if self._stop.wait(pause_s * (1 + random.random()) / 2):  # noqa: S311 - jitter is no secret
                break
            pause_s *= 2
        self._in_vain += len(batch)

    def _post(self, body: bytes) -> tuple[str, bool]:
        """Make one attempt; gives what went wrong, and whether it may pass."""
        try:
            headers = read_headers(self._config.headers_file)
        except ValueError as error:
            return str(error), True
        line, self._line = self._line, None
        try:
            line = line or self._connect()
            path = f"{self._url.path}?{self._url.query}" if self._url.query else self._url.path
            line.request("POST", path, body, {**headers, "Content-Type": "application/json"})
            answer = line.getresponse()
            rest = answer.read(ANSWER_BYTES_MAX)
            if len(rest) < ANSWER_BYTES_MAX and not answer.will_close:
                self._line = line
            else:
                line.close()
        except (OSError, http.client.HTTPException) as error:
            if line is not None:
                line.close()
            return f"{type(error).__name__}", True
        if 200 <= answer.status < 300:
            return "", False
        return f"it answered {answer.status}", answer.status in _PASSING

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        if self._context is not None:
            return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=self._context)
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)

    def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def _note(self, fault: str) -> None:
        """Log when it begins to fail, and when it works again; an answer is never logged."""
        if fault and not self._is_failing:
            _log.warning("the collector of spans does not take them: %s", fault)
        elif not fault and self._is_failing:
            _log.info("the collector of spans takes them again")
        self._is_failing = bool(fault)
