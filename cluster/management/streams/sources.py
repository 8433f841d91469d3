"""What streams say: the events of the node behind another one, and how far jobs are."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, Protocol

from angarium import errors
from angarium_server.http import sse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    Ask = Callable[[str, dict[str, Any]], Awaitable[Any]]

#: Events of one answer of the controller.
PIECE: Final = 200
#: It is looked so often whether there are new events, once for all streams.
LOOK_S: Final = 0.25
#: A stream of events asks so often at least, so that a right that was taken away ends it; one of jobs polls.
EVENTS_S: Final = 2.0
JOBS_S: Final = 0.5
#: The kind of an event that says: others were not kept.
GAP: Final = "gap"
#: The id of the last event of a stream of jobs: who comes again with it is told that there is no more.
OVER: Final = "over"
#: More digits are no id of an event.
_DIGITS_MAX: Final = 18
#: The id of no event: what the controller has is given from the oldest on, and that something is missing.
_UNKNOWN: Final = -1


class Source(Protocol):
    """Where a stream gets what it says."""

    #: How long it may wait until it is asked again; it is asked sooner when this future is done.
    wait_s: float
    changed: asyncio.Future[None] | None
    is_over: bool

    async def next(self) -> bytes:
        """Give what is new, as events; often nothing.

        Raises:
            AngariumError: the controller refuses it.
        """

    def beat(self) -> bytes:
        """Give what a quiet stream says."""


class Watch:
    """Notices that there are new events, on behalf of nobody, as long as somebody wants to know."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._watching = 0
        self._task: asyncio.Task[None] | None = None
        self._changed: asyncio.Future[None] | None = None

    @property
    def changed(self) -> asyncio.Future[None]:
        """Give what is done as soon as there are events that there are not yet."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Look for new events meanwhile."""
        self._watching += 1
        if self._task is None:
            self._task = asyncio.create_task(self._look())
        try:
            yield
        finally:
            self._watching -= 1
            if not self._watching:
                self._task.cancel()
                self._task = None

    async def _look(self) -> None:
        newest = None
        while True:
            with contextlib.suppress(errors.AngariumError):
                found = await self._ask("events.follow", {})
                if found["upto"] != newest and self._changed is not None:
                    self._changed.set_result(None)
                    self._changed = None
                newest = found["upto"]
            await asyncio.sleep(LOOK_S)


class Events:
    """The events of the node, as far as who asks may see them."""

    is_over = False

    def __init__(self, ask: Ask, watch: Watch, wanted: Mapping[str, Any], last: str) -> None:
        """Begin behind the event `last`, or `since` of `wanted`; without either only what happens from now on."""
        self._ask = ask
        self._watch = watch
        self._wanted = {name: value for name, value in wanted.items() if name != "limit"}
        if last:
            is_id = last.isascii() and last.isdigit() and len(last) <= _DIGITS_MAX
            self._wanted["since"] = int(last) if is_id else _UNKNOWN
        self.wait_s = EVENTS_S
        self.changed: asyncio.Future[None] | None = None

    async def next(self) -> bytes:
        """Give those behind the last one, and before them that some are missing."""
        self.changed = self._watch.changed
        found = await self._ask("events.follow", {**self._wanted, "limit": PIECE})
        self._wanted["since"] = found["upto"]
        self.wait_s = 0.0 if len(found["events"]) == PIECE else EVENTS_S
        return told_of(found)

    def beat(self) -> bytes:
        """Tell where it is, or who wants few events would have a gap when he comes again."""
        return b":\n" + sse.place_of(str(self._wanted["since"]))


def told_of(found: Mapping[str, Any]) -> bytes:
    """Give an answer of the controller as events."""
    gap = b"" if found["lost"] == 0 else sse.event_of({"lost": found["lost"]}, kind=GAP)
    return gap + b"".join(sse.event_of(event, str(event["id"])) for event in found["events"])


class Jobs:
    """How far jobs are together, each time that it changes, until they have ended."""

    changed: asyncio.Future[None] | None = None
    wait_s = JOBS_S

    def __init__(self, ask: Ask, wanted: Mapping[str, Any]) -> None:
        """Begin; `wanted` has the jobs."""
        self._ask = ask
        self._wanted = dict(wanted)
        self._told: Any = None
        self.is_over = False

    async def next(self) -> bytes:
        """Give how far they are, if that is new."""
        found = await self._ask("jobs.show", self._wanted)
        if found == self._told:
            return b""
        self._told = found
        self.is_over = found["state"] != "running"
        return sse.event_of(found, OVER if self.is_over else "")

    def beat(self) -> bytes:
        """Say nothing."""
        return sse.COMMENT
