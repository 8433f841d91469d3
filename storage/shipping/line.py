"""The primary's end of one store's conversation with the standby: a connection, what is said over it, and the keeper.

It lives in the loop of the process that commits to the store, which asks it for each group (`group`), says when that is
on its own disk (`written`), and goes on when it counts (`committed`). What counts is decided by `Shipping`; what is
required, by the keeper of the host, which is told how far the standby follows.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from typing import TYPE_CHECKING, Final

from angarium.errors import AngariumError
from angarium_server.frames.frame import MalformedFrameError, decoder, read
from angarium_server.frames.shipping import (
    AskSynced,
    Followed,
    NotFollowed,
    Whereabouts,
)
from storage.shipping.calling import Calling, refusal_in
from storage.shipping.encoding import frames_to_standby, from_standby
from storage.shipping.receiving import Fresh, Part
from storage.shipping.shipping import Bring, Shipping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from angarium_server.connections.names import Names
    from angarium_server.connections.outgoing import Connection
    from angarium_server.frames.shipping import Order
    from angarium_server.process import Process
    from storage.groups import GroupLog
    from storage.shipping.settings import StandbySettings
    from storage.spool import Change

#: Between two attempts to connect.
RETRY_S: Final = 0.5
#: How often the standby is asked whether it is there, and how long it may say nothing before it does not follow any
#: more; and before the connection is given up: while it gets parts it may have much to write.
ASK_S: Final = 0.5
SILENT_S: Final = 1.5
LOST_S: Final = 5.0
LOST_IN_PARTS_S: Final = 60.0
#: A standby owes an answer for so long before it does not follow any more.
OWES_S: Final = 1.0
#: Bytes that wait for a standby which does not read; then it has to connect again, and is brought what it lacks.
UNSENT_MAX: Final = 64 << 20
#: How often the keeper is told how far the standby is, at least.
TELL_S: Final = 0.2

_log = logging.getLogger(__name__)
_decode_whereabouts = decoder(Whereabouts)


class ShippingLine:
    """One store, as the standby gets it."""

    def __init__(
        self, process: Process, names: Names, settings: StandbySettings, store: str, log: GroupLog
    ) -> None:
        """Wait for the first order of the keeper; `store` is `config`, or the index of a worker."""
        assert process.lease is not None, "a process with a standby has a lease"
        self._lease = process.lease
        self._settings = settings
        self._store = store
        self._log = log
        self._found = log.past.newest
        self._calling = Calling(process, names, settings, store)
        #: None before the first order.
        self.shipping: Shipping | None = None
        self._connection: Connection | None = None
        self._outgoing: deque[list[bytes]] = deque()
        self._unsent_bytes = self._sent_bytes = 0
        self._retry_at = 0.0
        self._heard_at = self._asked_at = 0.0
        #: What the standby is being brought, and the parts that are still to be sent.
        self._bringing: tuple[Bring, Iterator[list[Change]]] | None = None
        self._brought_bytes = 0
        #: What the standby had when it last had more, or owed nothing.
        self._confirmed, self._confirmed_at = 0, 0.0
        self._told: Followed | None = None
        self._told_at = 0.0
        #: Why there is no connection, as it was logged last.
        self._why = ""
        self._host = ""

    # -- the store -------------------------------------------------------------------------------------------

    @property
    def has_begun(self) -> bool:
        """Tell whether the first order has come."""
        return self.shipping is not None

    @property
    def newest(self) -> int:
        """Give the number of the newest group."""
        return self._log.ahead.newest

    @property
    def found_counts(self) -> bool:
        """Tell whether everything that was on this disk at the start counts."""
        return self.shipping is not None and self.shipping.committed >= self._found

    @property
    def committed(self) -> int:
        """Give the number of the newest group that counts; 0 before the first order."""
        return self.shipping.committed if self.shipping is not None else 0

    @property
    def counts(self) -> bool:
        """Tell whether everything that was given a number counts."""
        return self.shipping is not None and self.shipping.committed >= self._log.ahead.newest

    def group(self, changes: Sequence[Change]) -> Sequence[Change]:
        """Give changes as the next group, to be written here; it is on its way to the standby. One at a time."""
        assert self.shipping is not None, "nothing is committed before the first order"
        group = self.shipping.group(changes)
        self._carry_out()
        return group.changes

    def written(self) -> None:
        """The group is on this disk."""
        assert self.shipping is not None
        self.shipping.written(self._log.ahead.newest)

    def not_written(self) -> None:
        """The newest group is not on this disk, for want of room; the standby may have it, and is brought back."""
        if self.shipping is not None:
            self.shipping.not_written(_new_run())
            self._disconnect("a group was not written here")

    # -- the loop --------------------------------------------------------------------------------------------

    def tick(self, now: float) -> float:
        """Do what is due; gives in how many seconds there is more to do."""
        self._obey(self._lease.order)
        if self.shipping is None:
            return RETRY_S
        if self._connection is None and now >= self._retry_at:
            self._connect(now)
        self._calling.tick(now)
        self._tend(now)
        self._carry_out()
        self._bring_further()
        self._tell(now)
        if self._bringing is not None and not self._outgoing:
            return 0.0
        wake = min(
            self._connection.wake_at if self._connection is not None else self._retry_at,
            self._told_at + TELL_S,
        )
        return max(0.0, wake - now)

    def _obey(self, order: Order) -> None:
        if not order.epoch:
            return
        if self.shipping is None:
            self.shipping = Shipping(self._log, _new_run(), order.required_by)
        elif order.required_by != self.shipping.required_by:
            if order.required_by is None:
                self.shipping.release()
            else:
                self.shipping.require(order.required_by)

    def _tell(self, now: float) -> None:
        """Tell the keeper how far the standby follows, on change and from time to time."""
        shipping = self.shipping
        assert shipping is not None
        lag = shipping.log.ahead.newest - shipping.confirmed if shipping.is_following else 0
        follows = self._follows(now)
        caught_up = shipping.caught_up if follows else None
        bringing = self._brought_bytes if self._bringing is not None else 0
        told = Followed(
            self._store, self._host, follows, caught_up, lag, bringing, self._sent_bytes, shipping.lacks_much
        )
        is_news = self._told is None or (follows, caught_up) != (self._told.follows, self._told.caught_up)
        if is_news or now >= self._told_at + TELL_S:
            self._told, self._told_at = told, now
            self._lease.tell(told.frames())

    def _follows(self, now: float) -> bool:
        shipping = self.shipping
        assert shipping is not None
        if self._connection is None or not shipping.is_following:
            return False
        if not shipping.owes or shipping.confirmed != self._confirmed:
            self._confirmed, self._confirmed_at = shipping.confirmed, now
        return now - self._confirmed_at < OWES_S and now - self._heard_at < SILENT_S

    # -- the connection --------------------------------------------------------------------------------------

    def _connect(self, now: float) -> None:
        self._retry_at = now + RETRY_S
        epoch = self._lease.order.epoch
        try:
            self._connection = self._calling.connect(
                self._outgoing, epoch, self._received, self._carry_out, self._lost
            )
        except AngariumError as error:
            self._note(str(error))
            return
        self._heard_at = self._asked_at = now

    def _tend(self, now: float) -> None:
        connection = self._connection
        if connection is None:
            return
        connection.tick(now)
        if self._connection is None:  # it was lost just now
            return
        assert self.shipping is not None
        if now - self._heard_at > (LOST_S if self.shipping.is_following else LOST_IN_PARTS_S):
            self._disconnect("it says nothing")
        elif now - self._asked_at >= ASK_S:
            self._asked_at = now
            if not self._outgoing:
                self._outgoing.append(AskSynced().frames())

    def _received(self, frames: list[bytes], now: float) -> None:
        assert self.shipping is not None
        self._heard_at = now
        if frames[0] == NotFollowed.operation:
            self._disconnect(str(refusal_in(frames)))
            return
        self._why = ""
        try:
            message = from_standby(frames)
        except MalformedFrameError as error:
            self._disconnect(str(error))
            return
        if message is not None:
            self.shipping.take(message)
        if frames[0] == Whereabouts.operation:
            self._host = read(_decode_whereabouts, frames).host

    def _lost(self, why: AngariumError, _now: float) -> None:
        self._connection = None
        self._forget(str(why))

    def _disconnect(self, why: str) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._calling.let_go(connection)
        self._forget(why)

    def _forget(self, why: str) -> None:
        self._outgoing.clear()
        self._unsent_bytes, self._bringing = 0, None
        if self.shipping is not None:
            self.shipping.disconnected()
        self._note(why)

    def _note(self, why: str) -> None:
        if why != self._why:
            self._why = why
            _log.warning("the standby %s does not follow: %s", self._settings.peer, why)

    # -- what is said ----------------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        """Send what there is to say."""
        shipping = self.shipping
        if shipping is None:
            return
        said, shipping.outbox[:] = list(shipping.outbox), []
        for message in said:
            if isinstance(message, Bring):
                self._bring(message)
            else:
                self._say(frames_to_standby(message))
        connection = self._connection
        if connection is None:
            return
        connection.send(self._outgoing)
        if not self._outgoing:
            self._unsent_bytes = 0
        elif self._unsent_bytes > UNSENT_MAX:
            self._disconnect(f"it does not read: {self._unsent_bytes >> 20} MiB wait for it")

    def _say(self, frames: list[bytes]) -> None:
        size = sum(map(len, frames))
        self._outgoing.append(frames)
        self._unsent_bytes += size
        self._sent_bytes += size

    def _bring(self, bring: Bring) -> None:
        self._bringing, self._brought_bytes = (bring, self._log.parts(bring.parted)), 0
        how = "a copy" if bring.parted is None else f"{len(bring.parted):,} rows"
        _log.info("the standby %s lacks much of %s, and gets %s", self._settings.peer, self._store, how)
        if bring.parted is None:
            self._say(frames_to_standby(Fresh()))

    def _bring_further(self) -> None:
        """Send another part, unless earlier ones wait."""
        if self._bringing is None or self._outgoing or self._connection is None:
            return
        bring, parts = self._bringing
        part = next(parts, None)
        if part is None:
            self._bringing = None
            self._say(frames_to_standby(bring.brought))
        else:
            self._say(frames_to_standby(Part(part)))
            self._brought_bytes += sum(len(key) + len(value or b"") for _, key, value in part)
        self._carry_out()

    def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            self._connection.close(self._outgoing)
            self._connection = None


def found(log: GroupLog, commit: Callable[[Sequence[Change]], None]) -> GroupLog:
    """Have a first group in a store that may have had something before it had groups."""
    first = log.found(_new_run())
    if first is not None:
        commit(first.changes)
    return log


def _new_run() -> str:
    """Give a name that no run has, of whichever host."""
    return secrets.token_hex(8)
