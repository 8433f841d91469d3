"""A client in a process of its own, as its parent sees it; `process` says what both say to each other."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
from typing import IO, TYPE_CHECKING, Any, Final, Self

from angarium import errors
from cluster.commands.bench.process import DONE, ERROR, GO, READY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

#: Output of a client that failed.
_OUTPUT_BYTES_MAX: Final = 2_000


class ClientProcess:
    """One client; a context manager that ends it. What it raises is made by `error`."""

    #: How long it may say nothing.
    answer_timeout_s = threading.TIMEOUT_MAX

    def __init__(self, name: str, command: list[str], task: bytes, **popen: Any) -> None:
        """Start it and give it its task; it has a name for messages."""
        self._name = name
        #: Called with how many messages a client that is watched has handled so far.
        self.on_progress: Callable[[int], None] = lambda _: None
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, **popen
        )
        self._write(task)

    def wait_ready(self) -> Self:
        """Wait for READY."""
        line = self._answer()
        if line != READY:
            raise self._failure(f"said {line!r} instead of {READY}")
        return self

    def go(self) -> None:
        """Let it begin."""
        self._write(GO.encode() + b"\n")

    def order(self, what: str, **arguments: Any) -> None:
        """Tell one that takes orders what to do next."""
        self._write(json.dumps({"do": what, **arguments}).encode() + b"\n")

    def result(self) -> dict[str, Any]:
        """Wait for the figures of its next run."""
        figures: dict[str, Any] = json.loads(self._answer())
        return figures

    def freeze(self) -> None:
        """Stop it without telling anybody (SIGSTOP)."""
        self._process.send_signal(signal.SIGSTOP)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def error(self, code: int, text: str, output: str = "") -> Exception:
        """Give what is raised when the client failed, with what it printed."""
        last = output.strip().splitlines()[-1:]
        return errors.error_for(code, ": ".join([text, *last]))

    def _answer(self) -> str:
        """Wait for the next line that is not a word on how far it is."""
        while True:
            line = self._read()
            word, _, rest = line.partition(" ")
            if word == ERROR:
                raise self.error(*json.loads(rest))
            if word != DONE:
                return line
            self.on_progress(int(rest))

    def _read(self) -> str:
        assert self._process.stdout is not None
        with ending_after(self.answer_timeout_s, self._process):
            line: bytes = self._process.stdout.readline()
        if not line:
            raise self._failure("ended")
        return line.decode().removesuffix("\n")

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure("ended") from None

    def _failure(self, what: str) -> Exception:
        self._process.kill()
        self._process.wait()
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _OUTPUT_BYTES_MAX))
        output = self._log.read().decode(errors="replace")
        return self.error(errors.INTERNAL, f"{self._name} {what}", output)


@contextlib.contextmanager
def ending_after(seconds: float, process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill a process if the block takes too long, so that waiting for its answer ends."""
    timer = threading.Timer(seconds, process.kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
