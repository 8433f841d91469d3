"""The real SDK with asyncio, joined to a simulated node: all of it but the sockets below its transport."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

import angarium
from angarium.client.client import Client
from tests.simulation.simulated_network import Endpoint

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Coroutine

    from tests.simulation.simulated_network import Frames, Loop
    from tests.simulation.simulated_node import SimulatedNode

T = TypeVar("T")

#: No heartbeats: nobody takes part in the event loop while a rig lets time pass.
KEEPALIVE_MS: Final = 3_600_000
#: How far time goes at once, and how often: much longer than any path takes.
STEP_S: Final = 0.0005
STEPS_MAX: Final = 40_000


class SimulatedTransport:
    """Implements what `angarium.client.connection` wants of a transport."""

    def __init__(self, client: Client, node: SimulatedNode) -> None:
        """Connect."""
        self._connection = client._connection
        self._wire = node.accept(Endpoint(self._arrived, lambda: None), "127.0.0.1")

    def send(self, outgoing: deque[list[bytes]]) -> None:
        """Send what is queued."""
        while outgoing:
            self._wire.up.send(outgoing.popleft())

    def close(self) -> None:
        """Close."""
        self._wire.close_near(is_noticed=True)

    def _arrived(self, frames: Frames) -> None:
        self._connection._on_message(frames)
        self._connection._drained()


class ClockedLoop(asyncio.SelectorEventLoop):
    """An event loop whose timers follow the clock of the nodes, which `Simulation.do` lets go on."""

    def __init__(self, loop: Loop) -> None:
        """Take the clock."""
        self._clock = loop
        super().__init__()

    def time(self) -> float:
        """Give the simulated time."""
        return self._clock.now


class Simulation:
    """Lets simulated time pass while an application waits for something."""

    def __init__(self, loop: Loop) -> None:
        """Take the clock of the nodes."""
        self._loop = loop

    def run(self, application: Coroutine[Any, Any, T]) -> T:
        """Give what an application gives."""
        with asyncio.Runner(loop_factory=lambda: ClockedLoop(self._loop)) as runner:
            return runner.run(application)

    async def do(self, wanted: Coroutine[Any, Any, Any]) -> Any:
        """Give what a coroutine gives."""
        task = asyncio.ensure_future(wanted)
        for _ in range(STEPS_MAX):
            await asyncio.sleep(0)
            if task.done():
                break
            self._loop.run_until(self._loop.now + STEP_S)
        else:
            task.cancel()
        return await task

    async def connect(self, node: SimulatedNode) -> Client:
        """Connect a client."""
        client = Client(angarium.connect(keepalive_ms=KEEPALIVE_MS)._options)
        client._connection._make_transport = lambda url: SimulatedTransport(client, node)  # type: ignore[method-assign, assignment, return-value]
        await self.do(client._connect())
        return client
