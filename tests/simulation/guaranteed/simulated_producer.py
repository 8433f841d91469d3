"""A producer of the simulation: the SDK's own window of unsettled rows, and an application that owns it.

It does what `angarium.client.publishing.producer` does without its event loop: opens on every connection, sends again
what is not settled with the same sequences, tries again when the node refuses for a reason that passes. Its
application may keep a journal: then what is not settled outlives the process, and is sent again by the next one
with the sequences that it had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from angarium import errors
from angarium.client.protocol.send_window import SendWindow
from angarium.client.publishing.producer import is_passing
from tests.simulation.event_history import FOREVER
from tests.simulation.guaranteed.records import Opening, Publication

if TYPE_CHECKING:
    from angarium.client.protocol.events import Acknowledged, Welcome
    from angarium.message import Row
    from tests.simulation.guaranteed.guaranteed_client import GuaranteedClient
    from tests.simulation.guaranteed.records import ProducerRecord

#: An application, or the SDK, tries again after so long at most.
RETRY_MAX_S = 0.4


class Claim:
    """Writes down what becomes of one message."""

    def __init__(self, producer: SimulatedProducer, publication: Publication) -> None:
        self._producer = producer
        self._publication = publication

    def settle(self, messages: int) -> None:
        """It is stored."""
        assert messages == 1
        self._end()
        self._publication.acked_at = self._producer.client.loop.now

    def miss(self, messages: int) -> None:
        """No endpoint took it."""
        assert messages == 1
        self._publication.is_unroutable = True

    def refuse(self, sequence: int, error: errors.AngariumError) -> None:
        """It went to no endpoint."""
        assert sequence == self._publication.sequence
        self._end()
        self._publication.refused_at = self._producer.client.loop.now
        self._publication.code = error.code

    def fail(self, messages: int, error: errors.AngariumError) -> None:
        """Nobody will know."""
        assert messages == 1
        self._producer.open_publications.pop(self._publication.sequence, None)
        self._publication.abandoned_at = self._producer.client.loop.now

    def _end(self) -> None:
        publication = self._publication
        if self._producer.open_publications.pop(publication.sequence, None) is not publication:
            self._producer.client.history.break_rule(f"{publication} was settled twice")


class SimulatedProducer:
    """One named producer of a client, over all its connections and processes."""

    def __init__(self, client: GuaranteedClient, name: str, window: int, *, has_journal: bool) -> None:
        self.client = client
        self.name = name
        self._window = window
        self._has_journal = has_journal
        self.rows = SendWindow(window)
        #: Sequence -> what was handed in and is not settled, with its row.
        self.open_publications: dict[int, Publication] = {}
        self._journal: dict[int, Row] = {}
        #: What a new process found in its journal, to be sent again with the same sequences once it is open.
        self._read_journal: dict[int, Publication] = {}
        self._was_open = False
        self._is_asking = False
        self._opening: Opening | None = None
        #: Whether it is never opened again.
        self.is_over = False

    @property
    def record(self) -> ProducerRecord:
        """Give the record of the name as the registry knows it now."""
        plan = self.client.plan
        return self.client.guaranteed.producer(plan.vpn, plan.username, self.name)

    # Life.

    def connected(self, welcome: Welcome) -> None:
        """Open on a new connection."""
        self.rows.set_table(welcome.epoch, welcome.slots)
        self.rows.set_limits(welcome.max_message_bytes, welcome.max_batch_bytes, welcome.producer_bytes)
        self._is_asking = False
        self.open()

    def lost(self) -> None:
        """The connection is gone."""
        self._is_asking = False
        self._end_opening()

    def crashed(self) -> None:
        """The process died; what is not in a journal is forgotten."""
        self.lost()
        self._renew()

    def _renew(self) -> None:
        """Begin as a new process does."""
        now = self.client.loop.now
        kept = self.open_publications if self._has_journal else {}
        for publication in self.open_publications.values():
            if not self._has_journal:
                publication.abandoned_at = now
        self.rows = SendWindow(self._window)
        self._was_open = False
        kept = {**self._read_journal, **kept}
        self.open_publications = {}
        welcome = self.client.welcome
        if welcome is not None:
            self.rows.set_table(welcome.epoch, welcome.slots)
            self.rows.set_limits(welcome.max_message_bytes, welcome.max_batch_bytes, welcome.producer_bytes)
        for publication in kept.values():
            publication.abandoned_at = FOREVER
        self._read_journal = kept
        self._journal = {sequence: self._journal[sequence] for sequence in kept}

    def _end_opening(self) -> None:
        if self._opening is not None:
            self._opening.ended_at = min(self._opening.ended_at, self.client.loop.now)
            self._opening = None

    # Opening.

    def open(self, *, resume: bool | None = None) -> None:
        """Ask for the producer on the connection that there is."""
        client = self.client
        record, session = client.record, client.session
        if self._is_asking or self.rows.handle or record is None or session is None or self.is_over:
            return
        if not session.can_ask() or client.is_paused:
            self._retry()
            return
        self._is_asking = True
        asked_resume = self._was_open if resume is None else resume
        opening = Opening(record, client.loop.now, resume=asked_resume)
        self.record.opens.append(opening)
        arguments = {"name": self.name, "window": self._window, "resume": asked_resume}
        request = session.guaranteed.open_producer(self.rows, arguments)
        client.wait_for(request, lambda value, error: self._opened(opening, value, error))
        client.transmit()

    def _opened(self, opening: Opening, value: Any, error: errors.AngariumError | None) -> None:
        self._is_asking = False
        opening.answered_at = self.client.loop.now
        opening.code = 0 if error is None else error.code
        if error is not None:
            self._refused(error, opening)
            return
        opening.last_sequence = value.last_sequence
        self._opening = opening
        self._was_open = True
        if self.rows.foreign_sequence:
            self._give_up(errors.error_for(errors.PRODUCER_FENCED, "somebody else used the name"))
            return
        kept, self._read_journal = self._read_journal, {}
        for sequence, publication in kept.items():
            self.rows.add(self._journal[sequence], Claim(self, publication), sequence)
            self.open_publications[sequence] = publication
        self.pump()

    def _refused(self, error: errors.AngariumError, opening: Opening) -> None:
        if error.code == errors.UNKNOWN_FLOW_NAME and opening.resume and not self.rows.held_messages:
            self.open(resume=False)
        elif is_passing(error.code):
            self._retry()
        else:
            self._give_up(error)

    def _retry(self) -> None:
        client = self.client
        session = client.session
        delay = 0.05 + client.rng.random() * RETRY_MAX_S

        def again() -> None:
            if client.session is session:
                self.open()

        client.loop.after(delay, again)

    def _give_up(self, error: errors.AngariumError) -> None:
        """The SDK gives the producer up; after a while the application makes a new one of that name."""
        self._end_opening()
        rows = self.rows
        if rows.handle and self.client.session is not None and self.client.session.can_ask():
            self.client.session.guaranteed.close_producer(rows.handle, forget=False)
            self.client.transmit()
        kept, self.open_publications = self.open_publications, {}
        rows.fail(error)
        self.open_publications = kept
        self._renew()
        self._retry()

    def acknowledged(self, event: Acknowledged) -> None:
        """The node settled messages."""
        for sequence in [one for one in self._journal if one not in self.open_publications]:
            if sequence not in self._read_journal:
                del self._journal[sequence]
        if event.error is not None:
            self._give_up(event.error)
        else:
            self.pump()

    def close(self, *, forget: bool) -> None:
        """Give the producer up if nothing of it is unsettled; the application opens it again later."""
        client = self.client
        session, handle = client.session, self.rows.handle
        if not handle or self.rows.held_messages or session is None or not session.can_ask():
            return
        if forget:
            client.guaranteed.forget(self.record, client.loop.now)
        request = session.guaranteed.close_producer(handle, forget=forget)
        client.wait_for(request, lambda value, error: self._closed())
        client.transmit()
        self._was_open = False
        self._is_asking = True

    def retire(self) -> None:
        """Give the name up to others who use it too; what is unsettled has an unknown fate."""
        self.is_over = True
        self._has_journal = False
        for publication in self._read_journal.values():
            publication.abandoned_at = self.client.loop.now
        self._read_journal = {}
        self._give_up(errors.error_for(errors.PRODUCER_FENCED, "others go on with the name"))

    def _closed(self) -> None:
        self._is_asking = False
        self._end_opening()
        self.rows = SendWindow(self._window)
        welcome = self.client.welcome
        if welcome is not None:
            self.rows.set_table(welcome.epoch, welcome.slots)
            self.rows.set_limits(welcome.max_message_bytes, welcome.max_batch_bytes, welcome.producer_bytes)
        self._retry()

    # Publishing.

    def can_publish(self) -> bool:
        """Tell whether the window takes another message."""
        return self._opening is not None and bool(self.rows.room()) and not self._is_asking

    def publish(self, row: Row, publication: Publication) -> None:
        """Hand a message in; the caller has asked `can_publish`."""
        sequence = self.rows.add(row, Claim(self, publication))
        assert sequence == publication.sequence, (sequence, publication)
        self.open_publications[sequence] = publication
        if self._has_journal:
            self._journal[sequence] = row

    @property
    def next_sequence(self) -> int:
        """Give the sequence of the next message."""
        return self.rows.last_sequence + 1

    def pump(self) -> None:
        """Send what the window and the ingress credit allow."""
        client, rows = self.client, self.rows
        session, record = client.session, client.record
        while rows.handle and session is not None and record is not None and session.can_publish():
            batch = rows._unsent[0] if rows._unsent else None
            sequences = [] if batch is None else [batch.first + row[0] for row in batch.rows]
            departure = rows.take()
            if departure is None:
                break
            for sequence in sequences:
                self.open_publications[sequence].sends.append((client.loop.now, record))
            session.publish_guaranteed(departure, rows.handle)
        client.transmit()

    @property
    def is_settled(self) -> bool:
        """Tell whether it is open and nothing is under way."""
        is_open = self._opening is not None or self.is_over
        under_way = self.rows.held_messages or self._read_journal or self._is_asking
        return is_open and not under_way

    def validate(self) -> None:
        """Let the window check itself, and that nothing was settled that is open."""
        self.rows.validate()
        assert self.rows.held_messages == len(self.open_publications), self.name
        assert all(one.settled_at == FOREVER for one in self.open_publications.values())
