"""The process around a worker and its home, as far as they ask for it: no loop, and the test calls the handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import zmq


class PretendedProcess:
    """What a worker and a home ask of their process."""

    index = 0
    incarnation = 1

    def __init__(self, runtime_dir: Path, context: zmq.Context[zmq.Socket[bytes]] | None = None) -> None:
        """Pretend to be one; a home needs no context."""
        self.context = context
        self.runtime_dir = runtime_dir
        self.is_ready = False

    def ready(self, _info: dict[str, Any]) -> None:
        self.is_ready = True

    def add(self, *_: Any) -> None:
        """Watch nothing: the test calls the handlers."""

    remove = touch = on_request = progress = emit_event = reply = add
