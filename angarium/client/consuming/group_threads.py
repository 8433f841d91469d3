"""Reader groups for threads: the names of `angarium.client.consuming.reader_group`, without `await`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping
    from types import TracebackType

    from angarium.client.consuming import reader_group as asynchronous
    from angarium.client.consuming.reader_group import Planned, ReaderPosition

_T = TypeVar("_T")


class Caller(Protocol):
    """What a reader group needs of its client."""

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the client's thread and wait for it."""


class ReaderGroup:
    """A reader group that has leased a queue; see `angarium.client.consuming.reader_group.ReaderGroup`."""

    def __init__(self, client: Caller, inner: asynchronous.ReaderGroup) -> None:
        """Belong to a client; only `Client.reader_group` opens groups."""
        self._client = client
        self._inner = inner

    @property
    def queue(self) -> str:
        """The name of the queue."""
        return self._inner.queue

    @property
    def name(self) -> str:
        """The name of the group."""
        return self._inner.name

    @property
    def endpoint_id(self) -> int:
        """Of the queue: another queue of the same name has another one."""
        return self._inner.endpoint_id

    @property
    def partitions(self) -> list[int]:
        """The partitions of the queue when it was opened."""
        return self._inner.partitions

    @property
    def continued(self) -> bool:
        """Whether the group had the lease of every partition already when it was opened here."""
        return self._inner.continued

    def positions(self, *, timeout_s: float | None = None) -> dict[int, ReaderPosition]:
        """Give what there is, by partition.

        Raises:
            AngariumError: as for the group of `angarium.client.Client`; so do the others.
        """
        return self._client.call(self._inner.positions(timeout_s=timeout_s))

    def count(self, starts: Mapping[int, int], *, timeout_s: float | None = None) -> dict[int, int]:
        """Give how many messages there are at these positions and above them, by partition."""
        return self._client.call(self._inner.count(starts, timeout_s=timeout_s))

    def find_time(self, times_ms: Mapping[int, int], *, timeout_s: float | None = None) -> dict[int, int]:
        """Give the first position that was spooled at a time (ms since 1970) or later, by partition."""
        return self._client.call(self._inner.find_time(times_ms, timeout_s=timeout_s))

    def plan(
        self,
        starts: Mapping[int, int],
        messages: int | None = None,
        bytes: int | None = None,  # noqa: A002 - the name of the limit everywhere
        *,
        ends: Mapping[int, int] | None = None,
        timeout_s: float | None = None,
    ) -> dict[int, Planned]:
        """Make what comes next the group's own; gives the range of each partition."""
        return self._client.call(self._inner.plan(starts, messages, bytes, ends=ends, timeout_s=timeout_s))

    def acknowledge(self, ends: Mapping[int, int], *, timeout_s: float | None = None) -> None:
        """Delete what is planned below these positions; it is gone for good when this returns."""
        self._client.call(self._inner.acknowledge(ends, timeout_s=timeout_s))

    def release(self, *, timeout_s: float | None = None) -> None:
        """End the lease: consumers get what is not acknowledged."""
        self._client.call(self._inner.release(timeout_s=timeout_s))

    def close(self) -> None:
        """Let go of this object; the lease stays, for whoever opens the group again."""
        self._client.call(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._inner)
