"""A reader of what is retained, in the simulation: for itself, or for a subscription that goes on from it.

A subscription has the SDK's own mailbox, and does with it what `angarium.client.subscribing.retained` does without its
event loop: holds back what comes live, reads each filter page by page, begins again when the node refuses for a reason
that passes, and on every new connection.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from angarium import wire
from angarium.client.connection.operations import STARTING
from angarium.client.protocol.provisioning import read_retained
from angarium.client.subscribing.mailbox import Chunk, Mailbox, Terms
from angarium.message import Delivery, unpack_rows
from angarium.topic import matches, parse_filter
from tests.simulation.event_history import FOREVER, what_of
from tests.simulation.guaranteed.retained_records import Got, Pages, Reading

if TYPE_CHECKING:
    from angarium import errors
    from angarium.message import Row
    from tests.simulation.guaranteed.guaranteed_client import GuaranteedClient

RETRY_MAX_S = 0.3


class SimulatedLook:
    """One reader of a client, over all its connections."""

    def __init__(self, client: GuaranteedClient, filters: tuple[str, ...], *, is_live: bool) -> None:
        self.client = client
        self.filters = filters
        self._mailbox: Mailbox | None = None
        if is_live:
            parsed = tuple(parse_filter(text) for text in filters)
            self._mailbox = Mailbox(parsed, Terms(retained=True), lambda _: None)
        self._reading: Reading | None = None
        #: Of the connection: topics that were given, and whether reading has begun.
        self._given: set[str] = set()
        self._has_begun = False
        self._numbers = itertools.count(1)
        #: Rises when what was asked for is of no interest any more.
        self._attempt = 0

    @property
    def is_over(self) -> bool:
        """Whether it has read everything, and will never read more."""
        return self not in self.client.looks

    @property
    def is_live(self) -> bool:
        """Whether it is a subscription."""
        return self._mailbox is not None

    # Life.

    def connected(self) -> None:
        """Begin on a new connection."""
        client = self.client
        assert client.record is not None
        self._reading = Reading(client.record, self.filters, is_live=self.is_live)
        client.guaranteed.readings.append(self._reading)
        self._given = set()
        self._has_begun = False
        # A client's readings have numbers of their own.
        self._numbers = itertools.count(1 + 1_000 * client.looks.index(self))
        if self.is_live:
            client.ask([(text, False) for text in self.filters])
        self.pump()

    def lost(self) -> None:
        """The connection is over, and what was asked on it."""
        self._attempt += 1
        if self._mailbox is not None:
            self._mailbox.hold()
            self._take()
        if self._reading is not None:
            self._reading.ended_at = self.client.loop.now
        self._reading = None

    def leave(self) -> None:
        """The application unsubscribes."""
        client = self.client
        self._give_up()
        wanted = {text for look in client.looks if look.is_live for text in look.filters}
        client.give_back([(text, False) for text in self.filters if text not in wanted])

    def pump(self) -> None:
        """Begin to read once the subscription is in force."""
        reading = self._reading
        if reading is None or self._has_begun:
            return
        if self._mailbox is not None:
            held = [self.client.interest.held.get((text, False)) for text in self.filters]
            found = [one for one in held if one is not None]
            if len(found) < len(held):
                self._give_up()  # one is refused
                return
            if any(one.confirmed_at == FOREVER for one in found):
                return
        self._has_begun = True
        reading.begun_at = self.client.loop.now
        self._read_all()

    def delivered(self, rows: list[Row], size_bytes: int) -> None:
        """Messages came live."""
        if self._mailbox is None or self._reading is None:
            return
        mine = [row for row in rows if any(matches(text, row[wire.ROW_TOPIC]) for text in self.filters)]
        if mine:
            if not self._has_begun:
                self._reading.early.update((row[wire.ROW_TOPIC], None) for row in mine)
            self._mailbox.push(Chunk(mine, Delivery(mine, None, size_bytes), size_bytes))
            self._take()

    def _take(self) -> None:
        """The application takes what the mailbox gives."""
        assert self._mailbox is not None
        while (chunk := self._mailbox.take()) is not None:
            for row in chunk.rows if self._reading is not None else ():
                is_retained = bool(row[wire.ROW_FLAGS] & wire.FLAG_RETAINED)
                self._reading.got.append(  # type: ignore[union-attr]
                    Got(row[wire.ROW_TOPIC], what_of(row), self.client.loop.now, is_retained)
                )

    # Reading.

    def _read_all(self) -> None:
        self._attempt += 1
        self._read(list(self.filters))

    def _read(self, left: list[str]) -> None:
        """Read the first of these filters, and then the others."""
        reading = self._reading
        assert reading is not None
        if not left:
            reading.done_at = self.client.loop.now
            if self._mailbox is None:
                self.client.looks.remove(self)
            else:
                self._mailbox.let_go()
                self._take()
            return
        pages = Pages(left[0], self.client.loop.now)
        live = next(self._numbers) if self._mailbox is not None else 0
        self._ask(pages, left, "", 0, live)

    def _ask(self, pages: Pages, left: list[str], after: str, upto: int, live: int) -> None:
        client, session, attempt, reading = self.client, self.client.session, self._attempt, self._reading
        if session is None or not session.is_open or reading is None:
            return
        if not session.can_ask() or client.is_paused:
            self._later()
            return
        if not after:
            pages.asked_at = client.loop.now
            reading.pages.append(pages)

        def answered(value: Any, error: errors.AngariumError | None) -> None:
            if self._attempt != attempt:
                return
            if error is not None:
                self._refused(error)
                return
            (first, following), (batch,) = value
            self._got(pages, unpack_rows(batch), len(batch))
            if following is None:
                pages.done_at = client.loop.now
                self._read(left[1:])
            else:
                self._ask(pages, left, following, first if live else 0, live)

        client.wait_for(read_retained(pages.pattern, after, upto, live)(session), answered)
        client.transmit()

    def _got(self, pages: Pages, rows: list[Row], size_bytes: int) -> None:
        pages.rows += [(row[wire.ROW_TOPIC], what_of(row)) for row in rows]
        if self._mailbox is None:
            return
        new = [(*row[:2], row[2] | wire.FLAG_RETAINED, *row[3:]) for row in rows if row[1] not in self._given]
        self._given.update(row[1] for row in new)
        self._mailbox.push_retained(new, size_bytes)
        self._take()

    def _refused(self, error: errors.AngariumError) -> None:
        assert self._reading is not None
        self._reading.refusals.append(error.code)
        if error.code in STARTING:
            self._later()
        else:
            self._give_up()

    def _give_up(self) -> None:
        self.client.looks.remove(self)
        self.lost()

    def _later(self) -> None:
        self._attempt += 1
        attempt = self._attempt

        def again() -> None:
            if self._attempt == attempt:
                self._read_all()

        self.client.loop.after(0.02 + self.client.rng.random() * RETRY_MAX_S, again)
