"""A client of the simulation with producers and flows beside its direct messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from angarium.client.protocol.events import (
    Acknowledged,
    Arrived,
    Delivered,
    Indicated,
    Opened,
    Replied,
    TableChanged,
)
from angarium.message import Message
from tests.simulation.guaranteed.flow_rules import color_of
from tests.simulation.guaranteed.records import PUBLICATION_MARK
from tests.simulation.guaranteed.scanning import SimulatedScanner
from tests.simulation.guaranteed.simulated_flow import FlowPlan, SimulatedFlow
from tests.simulation.guaranteed.simulated_producer import SimulatedProducer
from tests.simulation.guaranteed.simulated_reader import ReaderPlan, SimulatedReader
from tests.simulation.guaranteed.simulated_writer import SimulatedWriter, WriterPlan
from tests.simulation.simulated_client import SimulatedClient

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from angarium import errors
    from angarium.client.protocol.events import Event, Welcome
    from angarium.client.protocol.flow_window import FlowWindow
    from tests.simulation.event_history import ConnectionRecord, History
    from tests.simulation.guaranteed.records import GuaranteedHistory, Publication
    from tests.simulation.guaranteed.simulated_look import SimulatedLook
    from tests.simulation.simulated_client import ClientPlan
    from tests.simulation.simulated_network import Loop
    from tests.simulation.simulated_node import SimulatedNode

    Reply = Callable[[Any, errors.AngariumError | None], None]

MODES: Final[tuple[Literal["persistent", "non-persistent"], ...]] = (
    "persistent",
    "persistent",
    "non-persistent",
)


class GuaranteedClient(SimulatedClient):
    """One client over all its connections."""

    def __init__(
        self,
        loop: Loop,
        rng: random.Random,
        node: SimulatedNode,
        history: History,
        guaranteed: GuaranteedHistory,
        plan: ClientPlan,
    ) -> None:
        super().__init__(loop, rng, node, history, plan)
        self.rng = rng
        self.history = history
        self.guaranteed = guaranteed
        self.producers: list[SimulatedProducer] = []
        self.flows: list[SimulatedFlow] = []
        self.readers: list[SimulatedReader] = []
        self.writers: list[SimulatedWriter] = []
        self.looks: list[SimulatedLook] = []
        self.scanners: list[SimulatedScanner] = []
        self._waiting: dict[int, Reply] = {}
        self.welcome: Welcome | None = None

    def add_producer(self, name: str, window: int, *, has_journal: bool) -> SimulatedProducer:
        """Give it a producer, opened on the connection that there is and on all later ones."""
        made = SimulatedProducer(self, name, window, has_journal=has_journal)
        self.producers.append(made)
        if self.is_open and self.welcome is not None:
            made.connected(self.welcome)
        return made

    def add_flow(self, plan: FlowPlan) -> SimulatedFlow:
        """Give it a consumer."""
        made = SimulatedFlow(self, plan)
        self.flows.append(made)
        if self.is_open:
            made.connected()
        return made

    def add_reader(self, plan: ReaderPlan) -> SimulatedReader:
        """Give it a reader group."""
        made = SimulatedReader(self, plan)
        self.readers.append(made)
        if self.is_open:
            made.connected()
        return made

    def add_writer(self, plan: WriterPlan) -> SimulatedWriter:
        """Give it a writer of batches."""
        made = SimulatedWriter(self, plan)
        self.writers.append(made)
        if self.is_open:
            made.connected()
        return made

    def add_look(self, look: SimulatedLook) -> None:
        """Let it read what is retained."""
        self.looks.append(look)
        if self.is_open:
            look.connected()

    def add_scanner(self, endpoints: list[tuple[str, str]]) -> SimulatedScanner:
        """Give it a reader of ranges of endpoints (kind, name)."""
        made = SimulatedScanner(self, endpoints)
        self.scanners.append(made)
        if self.is_open:
            made.connected()
        return made

    # Requests.

    def wait_for(self, request: int, reply: Reply) -> None:
        """Have a reply taken; it never comes if the connection ends before."""
        self._waiting[request] = reply

    def request(self, operation: str, arguments: dict[str, Any], reply: Reply) -> bool:
        """Ask for an operation; False if that is not possible now."""
        session = self.session
        if session is None or not session.can_ask() or self.is_paused:
            return False
        self.wait_for(session.guaranteed.ask(operation, arguments), reply)
        self.transmit()
        return True

    def transmit(self) -> None:
        """Send what the session wants to send."""
        self._transmit()

    # Events.

    def take_more(self, event: Event) -> None:
        """Act on what concerns guaranteed messages."""
        if isinstance(event, Replied):
            reply = self._waiting.pop(event.request, None)
            if reply is not None:
                reply(event.value, event.error)
        elif isinstance(event, Acknowledged):
            for producer in self.producers:
                if producer.rows is event.rows:
                    producer.acknowledged(event)
            for writer in self.writers:
                if writer.owns(event.rows):
                    writer.acknowledged(event)
        elif isinstance(event, Arrived):
            flow = self._taker(event.window)
            if flow is not None:
                flow.arrived(event.deliveries)
        elif isinstance(event, Indicated):
            flow = self._taker(event.window)
            if flow is not None:
                flow.indicated(event)

    def _taker(self, window: FlowWindow) -> SimulatedFlow | SimulatedReader | SimulatedScanner | None:
        flow = next((flow for flow in self.flows if flow.window is window), None)
        readers: list[SimulatedReader | SimulatedScanner] = [*self.readers, *self.scanners]
        return flow or next((one for one in readers if one.owns(window)), None)

    def _take(self, events: list[Event]) -> None:
        super()._take(events)
        for event in events:
            if isinstance(event, TableChanged) and not self.plan.is_stale:
                for producer in self.producers:
                    producer.rows.set_table(event.epoch, event.slots)
        for producer in self.producers:
            producer.pump()
        for writer in self.writers:
            writer.pump()
        for look in list(self.looks):
            look.pump()

    def _opened(self, record: ConnectionRecord, event: Opened) -> None:
        self.welcome = event.welcome
        super()._opened(record, event)
        for producer in self.producers:
            producer.connected(event.welcome)
        parties: list[SimulatedFlow | SimulatedReader | SimulatedWriter | SimulatedLook | SimulatedScanner]
        parties = [*self.flows, *self.readers, *self.writers, *self.looks, *self.scanners]
        for party in parties:
            party.connected()

    def _end(self, code: int | None, *, is_noticed: bool) -> None:
        if self.connection is not None:
            if self.session is not None:
                self.session.guaranteed.clear()
            self._waiting.clear()
            for producer in self.producers:
                producer.lost()
            for flow in self.flows:
                flow.lost(code)
            for reader in self.readers:
                reader.lost()
            for writer in self.writers:
                writer.lost()
            for scanner in self.scanners:
                scanner.lost()
            for look in list(self.looks):
                look.lost()
        super()._end(code, is_noticed=is_noticed)

    def crash(self, *, is_noticed: bool) -> None:
        """The process dies without BYE and comes back as a new one."""
        super().crash(is_noticed=is_noticed)
        for producer in self.producers:
            producer.crashed()
        for writer in self.writers:
            writer.crashed()

    def _resume(self) -> None:
        super()._resume()
        if not self.is_paused:
            for flow in self.flows:
                if flow.plan.is_prompt or flow.is_draining:
                    flow.settle_some(len(flow.held))

    def _delivered(self, record: ConnectionRecord, event: Delivered) -> None:
        super()._delivered(record, event)
        for delivery in event.deliveries:
            for look in list(self.looks) if delivery.share is None else ():
                look.delivered(delivery.rows, delivery.size_bytes)

    def demoted(self, record: ConnectionRecord, number: int, share: str | None) -> None:
        """A direct copy of a guaranteed message came."""
        self.guaranteed.demoted.append((record, number, share, self.loop.now))

    # Publishing.

    def publish_guaranteed(
        self, producer: SimulatedProducer, contents: list[tuple[str, dict[str, Any]]], padding: int = 0
    ) -> list[Publication]:
        """Hand messages of (topic, options) to a producer, as far as its window takes them."""
        made = []
        for topic, options in contents:
            if not producer.can_publish():
                break
            number = len(self.guaranteed.publications)
            what = f"{PUBLICATION_MARK}{number}"
            is_empty = options.pop("is_empty", False)
            payload = b"" if is_empty else what.encode() + b"." * (1 + padding)
            mode = self.rng.choice(MODES)
            if is_empty:
                options["application_message_id"] = what
            message = Message(topic, payload, mode=mode, properties={"color": color_of(what)}, **options)
            row = message.row
            size = len(payload) + len(row[4] or b"") + 64
            publication = self.guaranteed.publish(
                producer.record, producer.next_sequence, topic, row[2], size
            )
            publication.is_empty = is_empty
            publication.ttl_ms = options.get("ttl_ms", 0)
            publication.delay_ms = options.get("delay_ms", 0)
            publication.priority = options.get("priority")
            publication.key = options.get("partition_key")
            producer.publish(row, publication)
            made.append(publication)
        producer.pump()
        return made

    @property
    def is_guaranteed_settled(self) -> bool:
        """Tell whether every producer and flow is open, and nothing of theirs is under way."""
        return all(one.is_settled for one in self.producers) and all(one.is_settled for one in self.flows)

    def validate(self) -> None:
        """Let the parts check themselves."""
        super().validate()
        for producer in self.producers:
            producer.validate()
        assert not self._waiting or self.session is not None
