"""What the Java process of a session writes to stderr, without the lines that every such process writes.

A user reads them as warnings about the job, and can do nothing about them. Everything else passes as it is.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_STDERR: Final = 2
#: How such lines begin: the JVM's about a module that Spark wants, and that of the library of the sketches.
_NOISE: Final = (
    b"WARNING: Using incubator modules:",
    b"Warning: Java versions > Java 11 can only operate in restricted mode",
)


@contextlib.contextmanager
def less_noise() -> Iterator[None]:
    """Have a process that is started inside write to stderr through a filter, for as long as it lives."""
    kept = os.dup(_STDERR)
    source, sink = os.pipe()
    os.dup2(sink, _STDERR)
    os.close(sink)
    threading.Thread(
        target=_forward, args=(source, os.dup(kept)), name="angarium-stderr", daemon=True
    ).start()
    try:
        yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)


def _forward(source: int, target: int) -> None:
    """Copy lines until the last process that writes them has ended; a target that is gone must not block it."""
    with open(source, "rb") as lines, open(target, "wb", buffering=0) as out:
        for line in lines:
            if not line.startswith(_NOISE):
                with contextlib.suppress(OSError):
                    out.write(line)
