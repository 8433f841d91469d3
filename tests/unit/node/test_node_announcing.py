"""A worker that waits for its router: what it makes of an answer that is read before the news of the connection."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zmq

from angarium.slots import slot_table
from angarium_server.frames.matching import Ready, Start
from node.config import WorkerRuntime
from node.server import WorkerServer
from tests.unit.node.pretended_process import PretendedProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_MS = 20_000


@pytest.fixture
def process() -> Iterator[PretendedProcess]:
    with tempfile.TemporaryDirectory(prefix="ang-") as name:  # short, for a socket is in it
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        yield PretendedProcess(Path(name), context)
        context.destroy(linger=0)


@pytest.mark.requirement("R265")
def test_a_router_that_answers_before_the_news_of_its_connection_are_read_has_started_the_worker(
    process: PretendedProcess,
) -> None:
    assert process.context is not None
    router = process.context.socket(zmq.ROUTER)
    router.bind(f"ipc://{process.runtime_dir}/workers")
    server = WorkerServer(process, WorkerRuntime())  # type: ignore[arg-type]
    # A host that may not act reads neither the news nor the answer, and both of them at once when it may.
    assert server._monitor.poll(LIMIT_MS), "there is no connection"
    server._tick(0.0)
    assert router.poll(LIMIT_MS), "the worker says nothing"
    identity, *frames = router.recv_multipart()
    assert frames[0] == Ready.operation
    router.send_multipart([identity, *Start(1, 1, slot_table(1)).frames()])
    assert server._socket.poll(LIMIT_MS), "the answer does not come"
    server._drain()
    server._connected()
    server._tick(0.1)
    assert process.is_ready
    server.close()
    for socket in (server._monitor, server._socket, router):
        socket.close(linger=0)
