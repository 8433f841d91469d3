"""Queues whose number of partitions changed: producers wait until everything before is on disk.

A resend is found by the records of the lane to which it belonged under each number of partitions (`memory`). That
needs an order: whatever a producer published before the change is on disk before anything that it publishes after
it. Inside one lane the stream to its home keeps that order; between lanes, which may have different homes, nobody
does. So guaranteed messages for such a queue are held back, in the line of their producer, while a STORE for it of
before the change is not on disk: mostly one write, or as long as a home is down. Other queues, direct messages and
moves go on; a move is one STORE per home that nothing of its lane overtakes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.admission.streams import Streams
    from router.guaranteed.endpoints import Endpoint


class Repartitioning:
    """The queues that wait; a listener of `Endpoints`."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        #: Queue -> home -> number of the last STORE that is waited for.
        self.waiting: dict[Endpoint, dict[int, int]] = {}

    def begin(self, endpoint: Endpoint) -> None:
        """A queue has another number of partitions from here on."""
        unstored = self._streams.unstored(endpoint)
        if unstored:
            self.waiting[endpoint] = unstored

    def concerns(self, endpoints: Iterable[Endpoint]) -> bool:
        """Tell whether what goes to these has to wait."""
        return any(endpoint in self.waiting for endpoint in endpoints)

    def end(self) -> bool:
        """Let go of the queues of which everything is on disk; true if there were any."""
        done = [
            endpoint
            for endpoint, numbers in self.waiting.items()
            if all(self._streams.has_stored(index, number) for index, number in numbers.items())
        ]
        for endpoint in done:
            del self.waiting[endpoint]
        return bool(done)

    def endpoint_gone(self, endpoint: Endpoint) -> None:
        """Nobody waits for what is gone."""
        self.waiting.pop(endpoint, None)

    def validate(self) -> None:
        """Check that there is something to wait for."""
        assert all(self.waiting.values())
        assert not any(endpoint.is_gone for endpoint in self.waiting)
