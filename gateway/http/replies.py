"""Requests of a client that wait for a reply: replies come to its inbox, and say by a correlation id to which."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final, Protocol

from angarium import errors, wire
from angarium.errors import error_for
from angarium.message import HEADER_KEYS, unpack_properties

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium.errors import AngariumError
    from angarium.message import Row

#: Requests of a client that wait for a reply.
WAITING_MAX: Final = 1_000
_CORRELATION_ID: Final = HEADER_KEYS["correlation_id"]


class Replied(Protocol):
    """Is told the reply."""

    def __call__(self, row: Row | None, error: AngariumError | None, /) -> None:
        """This is it, or there will be none."""


class Subscribes(Protocol):
    """What subscribes to the inbox, `gateway.attached.Attached`."""

    def subscribe(self, filters: Sequence[tuple[str, int]], /) -> None:
        """Ask for filters."""


class Replies:
    """Those of one client."""

    def __init__(self) -> None:
        #: Empty before the first request.
        self.inbox = ""
        self._nonce = secrets.token_hex(4)
        self._last = 0
        #: By correlation id.
        self._waiting: dict[str, Replied] = {}

    def __len__(self) -> int:
        """Count those that wait."""
        return len(self._waiting)

    def open(self, attached: Subscribes, inbox: str) -> None:
        """Have replies come to the inbox; it is in force before a request that is published behind it."""
        if not self.inbox:
            self.inbox = inbox
            attached.subscribe(self.filters)

    @property
    def filters(self) -> list[tuple[str, int]]:
        """Give the filter of the inbox."""
        return [(self.inbox, wire.SUBSCRIBE_DELIVER_ALWAYS)]

    def expect(self, done: Replied) -> str:
        """Give the correlation id for one more request.

        Raises:
            RateLimitError: too many wait (42902).
        """
        if len(self._waiting) >= WAITING_MAX:
            raise error_for(errors.CONTROL_RATE_EXCEEDED, f"{WAITING_MAX} requests wait for replies")
        self._last += 1
        correlation_id = f"{self._nonce}-{self._last}"
        self._waiting[correlation_id] = done
        return correlation_id

    def give_up(self, correlation_id: str) -> bool:
        """Wait for a reply no more; false if nobody did."""
        return self._waiting.pop(correlation_id, None) is not None

    def fail(self, correlation_id: str, error: AngariumError) -> None:
        """Take note that a request could not be published."""
        if done := self._waiting.pop(correlation_id, None):
            done(None, error)

    def take(self, rows: Sequence[Row]) -> None:
        """Hand replies to those who wait; others came too late."""
        for row in rows:
            correlation_id = unpack_properties(row[4]).get(_CORRELATION_ID)
            if isinstance(correlation_id, str) and (done := self._waiting.pop(correlation_id, None)):
                done(row, None)

    def end(self, error: AngariumError) -> None:
        """Have nobody wait any more."""
        waiting, self._waiting = self._waiting, {}
        for done in waiting.values():
            done(None, error)
