"""Endpoints whose lanes were arranged anew: producers wait until the homes have what they were given before.

A resend is judged by the records of its lane: at or below the last sequence that is on disk there means stored
(`memory`). That needs an order: nothing that a producer published later is on disk while something earlier is not.
Inside one lane the stream to its home keeps that order; nobody does

- between lanes, when the number of partitions changed: a key belongs to another lane from then on;
- between two streams, when a lane has another home (`worker scale`): what comes next would be on disk there although
  the home before has not stored what it was given, and may die with it.

So guaranteed messages for such an endpoint are held back, in the line of their producer, until everything that its
homes were given before the change is on disk: mostly one write, or as long as a home is down. Other endpoints, direct
messages and moves go on; a move is one STORE per home that nothing of its lane overtakes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.admission.streams import Streams
    from router.guaranteed.endpoints import Endpoint


class Rearranging:
    """The endpoints that wait; a listener of `Endpoints`."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        #: Endpoint -> home -> number of the last STORE that is waited for.
        self.waiting: dict[Endpoint, dict[int, int]] = {}

    def begin(self, endpoint: Endpoint, homes: Iterable[int]) -> None:
        """The lanes of an endpoint, which were at these homes, are others or elsewhere from here on."""
        unstored = {home: number for home in homes if (number := self._streams.unstored(home))}
        if unstored:
            # What an earlier change waits for is waited for as well.
            self.waiting[endpoint] = {**self.waiting.get(endpoint, {}), **unstored}

    def concerns(self, endpoints: Iterable[Endpoint]) -> bool:
        """Tell whether what goes to these has to wait."""
        return any(endpoint in self.waiting for endpoint in endpoints)

    def end(self) -> bool:
        """Let go of the endpoints of which everything is on disk; true if there were any."""
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
