"""What happened to guaranteed messages in a run: the material that the rules judge.

Three sources write here. Clients: what they published, what was acknowledged or refused, what their flows got
and how they settled it. The controller: which endpoints there were, with which attributes, and when the node
was told. Homes, seen from outside: what each commit put on their disks and took away, which frames went in
and out. Nobody writes down what a state machine believes; that is looked at at the end only.

Times are of the simulated clock, in seconds. A lane is `endpoint id << 10 | partition`; a place is (lane,
position).
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from angarium import wire
from angarium.topic import matches, parse_filter
from node.home.spool.held_lanes import PROVISIONAL
from tests.simulation.event_history import FOREVER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.simulation.event_history import ConnectionRecord
    from tests.simulation.guaranteed.home_observer import DiskObserver
    from tests.simulation.guaranteed.reader_records import ReaderRecord
    from tests.simulation.guaranteed.retained_records import Reading
    from tests.simulation.guaranteed.scan_records import Scan
    from tests.simulation.guaranteed.writer_records import WriterRecord

Place = tuple[int, int]
Attributes = dict[str, Any]

#: What a message carries in its payload: the number of a publication behind this letter, or that of a direct message.
PUBLICATION_MARK = "g"


class ProducerRecord:
    """One name of one (Message VPN, username)."""

    __slots__ = ("forgotten_at", "name", "opens", "username", "vpn")

    def __init__(self, vpn: str, username: str, name: str) -> None:
        self.vpn = vpn
        self.username = username
        self.name = name
        #: When somebody asked the node to forget it.
        self.forgotten_at = FOREVER
        #: When it was opened, for whom, and what the node said of it.
        self.opens: list[Opening] = []

    def __repr__(self) -> str:
        return f"producer {self.name!r} of {self.username} in {self.vpn}"


class Opening:
    """One `producer.open` and its answer."""

    __slots__ = ("answered_at", "asked_at", "code", "connection", "ended_at", "last_sequence", "resume")

    def __init__(self, connection: ConnectionRecord, at: float, *, resume: bool) -> None:
        self.connection = connection
        self.asked_at = at
        self.resume = resume
        self.answered_at = FOREVER
        #: 0 if it was opened, else why not; None before the answer.
        self.code: int | None = None
        self.last_sequence = 0
        #: When the client heard that it is over: fenced, closed, or its connection ended.
        self.ended_at = FOREVER


class Publication:
    """One message that a client handed to a producer."""

    __slots__ = (
        "abandoned_at",
        "acked_at",
        "code",
        "delay_ms",
        "flags",
        "is_empty",
        "is_unroutable",
        "key",
        "number",
        "priority",
        "producer",
        "refused_at",
        "sends",
        "sequence",
        "size",
        "topic",
        "ttl_ms",
    )

    def __init__(
        self, number: int, producer: ProducerRecord, sequence: int, topic: str, flags: int, size: int
    ) -> None:
        #: Unique in the run; it is in the payload, behind the mark.
        self.number = number
        self.producer = producer
        self.sequence = sequence
        self.topic = topic
        self.flags = flags
        #: Spool bytes: payload, properties and the overhead.
        self.size = size
        #: Whether it has no payload, so it ends what is retained of its topic.
        self.is_empty = False
        self.ttl_ms = 0
        self.delay_ms = 0
        self.priority: int | None = None
        self.key: str | None = None
        #: Each time it was put on a wire: when, and on which connection. Resends have the same sequence.
        self.sends: list[tuple[float, ConnectionRecord]] = []
        self.acked_at = FOREVER
        #: Whether the acknowledgement said that no endpoint took it.
        self.is_unroutable = False
        self.refused_at = FOREVER
        #: The code with which it was refused.
        self.code = 0
        #: From then on nobody resends it: its process died, or its producer was given up.
        self.abandoned_at = FOREVER

    @property
    def vpn(self) -> str:
        """Give the Message VPN in which it was published."""
        return self.producer.vpn

    @property
    def sent_at(self) -> float:
        """Tell when it was first on a wire."""
        return self.sends[0][0] if self.sends else FOREVER

    @property
    def senders(self) -> frozenset[str]:
        """Name the clients that sent it: more than one if they share the producer."""
        return frozenset(connection.client for _, connection in self.sends)

    @property
    def settled_at(self) -> float:
        """Tell when its publisher knew what became of it."""
        return min(self.acked_at, self.refused_at)

    @property
    def is_acked(self) -> bool:
        """Tell whether it was acknowledged."""
        return self.acked_at < FOREVER

    @property
    def is_retained(self) -> bool:
        """Tell whether the node is to keep it."""
        return bool(self.flags & wire.FLAG_RETAIN)

    @property
    def is_dmq_eligible(self) -> bool:
        """Tell whether it asks for the dead message queue."""
        return bool(self.flags & wire.FLAG_DMQ_ELIGIBLE)

    def __repr__(self) -> str:
        return f"publication {self.number} on {self.topic!r} (sequence {self.sequence} of {self.producer.name!r})"


class Change(NamedTuple):
    """The attributes of an endpoint from a time on."""

    #: When the controller made it durable.
    at: float
    #: When the router had told everybody; FOREVER if it never did.
    in_force_at: float
    attributes: Attributes


class EndpointRecord:
    """One endpoint from its creation to its deletion; another one of the same name is another record."""

    __slots__ = ("changes", "deleted_at", "gone_at", "id", "kind", "name", "operations", "vpn")

    def __init__(self, endpoint_id: int, vpn: str, kind: str, name: str) -> None:
        self.id = endpoint_id
        self.vpn = vpn
        self.kind = kind
        self.name = name
        #: In the order in which they were made.
        self.changes: list[Change] = []
        #: When its deletion was durable, and when it was in force.
        self.deleted_at = FOREVER
        self.gone_at = FOREVER
        #: What operators did to its messages.
        self.operations: list[Operation] = []

    def possible(self, start: float, end: float) -> list[Attributes]:
        """Give all attributes that may have been in force at some time between."""
        changes = self.changes
        found = []
        for number, change in enumerate(changes):
            later = changes[number + 1].in_force_at if number + 1 < len(changes) else self.gone_at
            if change.at <= end and later >= start:
                found.append(change.attributes)
        return found

    def existed(self, start: float, end: float) -> bool:
        """Tell whether it was certainly there all the time between."""
        return bool(self.changes) and self.changes[0].in_force_at <= start and self.deleted_at >= end

    @property
    def retains(self) -> bool:
        """Tell whether it is the queue for retained messages of its Message VPN."""
        return self.kind == "queue" and self.name == wire.RETAINED_QUEUE

    @property
    def is_repartitioned(self) -> bool:
        """Tell whether its number of partitions ever changed."""
        return len({max(1, one.attributes.get("partition_count", 0)) for one in self.changes}) > 1

    def always(self, name: str, value: Any, start: float = 0.0, end: float = FOREVER) -> bool:
        """Tell whether an attribute had a value all the time between."""
        return all(attributes.get(name) == value for attributes in self.possible(start, end))

    def __repr__(self) -> str:
        return f"{self.kind} {self.name!r} ({self.id}) in {self.vpn}"


class Operation:
    """A purge, deletion, move or copy of messages by an operator."""

    __slots__ = ("answered_at", "asked_at", "is_done", "kind", "partition", "positions", "target")

    def __init__(self, kind: str, at: float, partition: int, positions: list[int] | None = None) -> None:
        #: purge, delete, move, copy or redrive.
        self.kind = kind
        self.asked_at = at
        self.partition = partition
        #: None: all that were there.
        self.positions = positions
        self.target = ""
        self.answered_at = FOREVER
        #: Whether the answer said that it was done.
        self.is_done = False


class FlowRecord:
    """One bind of one client."""

    __slots__ = (
        "access_type",
        "asked_at",
        "bound_at",
        "closed_at",
        "code",
        "connection",
        "deliveries",
        "endpoint_id",
        "faults",
        "is_browser",
        "name",
        "no_local",
        "selector",
        "settles",
    )

    def __init__(self, connection: ConnectionRecord, name: str, at: float) -> None:
        self.connection = connection
        #: Of the endpoint.
        self.name = name
        self.endpoint_id = 0
        self.asked_at = at
        self.bound_at = FOREVER
        #: When the client knew that it is over.
        self.closed_at = FOREVER
        #: Why it was refused or closed; None for unbound.
        self.code: int | None = None
        self.is_browser = False
        self.selector: str | None = None
        #: It is to get nothing that its own client published.
        self.no_local = False
        self.access_type = ""
        self.deliveries: list[FlowDelivery] = []
        self.settles: list[Settle] = []
        #: What the client itself found wrong: overdrawn credit, a frame for a partition that it does not have.
        self.faults: list[str] = []

    def __repr__(self) -> str:
        return f"flow of {self.connection} on {self.name!r}"


class FlowDelivery(NamedTuple):
    """One message that a flow got."""

    place: Place
    #: What is in its payload, see `PUBLICATION_MARK`.
    what: str
    #: Earlier delivery attempts; more than 0 is "redelivered".
    tries: int
    at: float
    origin: tuple[str, str, str] | None


class Settle(NamedTuple):
    """What a client said of messages."""

    outcome: int
    places: list[Place]
    at: float


# What homes and their disks did, in the order of time.


class Stored(NamedTuple):
    """A commit put a message on disk."""

    at: float
    place: Place
    what: str
    worker: int
    #: Wall ms from which its time to live counts.
    stored_ms: int
    origin: tuple[str, str, str] | None
    #: Time to live as it was stored, 0 for none.
    ttl_ms: int = 0


class Gone(NamedTuple):
    """A commit took a message from disk."""

    at: float
    place: Place
    #: Whether a whole lane, or everything up to a position, went at once.
    is_purge: bool
    worker: int = 0


class Bound(NamedTuple):
    """A home was told to bind a flow to a lane."""

    at: float
    worker: int
    flow: int
    lane: int
    is_browser: bool
    #: It passes over messages: it has a selector, or no_local.
    is_choosy: bool
    #: Messages that the flow may have unsettled by its own wish, 0 if it has none.
    max_unacked: int = 0


class Emitted(NamedTuple):
    """A home sent messages of a lane to a flow."""

    at: float
    worker: int
    flow: int
    lane: int
    positions: list[int]
    #: Earlier attempts of each.
    counts: list[int]
    is_browser: bool = False


class HomeSettled(NamedTuple):
    """A home was told what became of messages."""

    at: float
    worker: int
    flow: int
    lane: int
    outcome: int
    positions: list[int]


class Unbound(NamedTuple):
    """A flow is over at a home."""

    at: float
    worker: int
    flow: int
    lane: int


class Rehomed(NamedTuple):
    """A home asked the router to move a message of a closed partition to the others."""

    at: float
    lane: int
    #: Of the move; the same one may be asked for again.
    sequence: int
    what: str


class Died(NamedTuple):
    """A process of a home died, and what it had only in memory with it."""

    at: float
    worker: int


class Wrote(NamedTuple):
    """A commit of a home is durable."""

    at: float
    worker: int
    #: When it was handed to the disk: it has everything that the home had to write by then.
    begun_at: float


class WasFull(NamedTuple):
    """A disk had no room for a commit of a home, which tries again what was in it after a while."""

    at: float
    worker: int


class LackedRoom(NamedTuple):
    """A disk had no room for anything new for a while."""

    at: float
    until: float


HomeEvent = (
    Stored | Gone | Bound | Emitted | HomeSettled | Unbound | Rehomed | Died | Wrote | WasFull | LackedRoom
)


class GuaranteedHistory:
    """All records of guaranteed messaging in a run."""

    def __init__(self) -> None:
        self.producers: dict[tuple[str, str, str], ProducerRecord] = {}
        #: Records of names that were given up.
        self.forgotten: list[ProducerRecord] = []
        self.publications: list[Publication] = []
        #: By id; ids are never used twice.
        self.endpoints: dict[int, EndpointRecord] = {}
        self.flows: list[FlowRecord] = []
        self.readers: list[ReaderRecord] = []
        self.writers: list[WriterRecord] = []
        self.readings: list[Reading] = []
        #: Ranges that were bound, in that order.
        self.scans: list[Scan] = []
        #: What the homes did, times rising.
        self.home_events: list[HomeEvent] = []
        #: Lane -> what it was given to show before it is on disk: direct messages, and those of relaxed endpoints.
        self.unsynced: dict[int, Counter[str]] = {}
        #: Lane -> the gaps that its home noted, and the highest position below which it was emptied at once.
        self.gaps: dict[int, dict[tuple[int, int], None]] = {}
        self.emptied: dict[int, int] = {}
        #: Worker -> who watches its disk.
        self.observers: dict[int, DiskObserver] = {}
        #: Attributes of each Message VPN: (time, attributes), rising.
        self.vpns: dict[str, list[tuple[float, Attributes]]] = {}
        #: Publications whose copies reached direct subscribers: (connection, number, share, time).
        self.demoted: list[tuple[ConnectionRecord, int, str | None, float]] = []
        #: Wall ms - 1000 x simulated seconds, as long as nobody sets the clock.
        self.wall_offset_ms = 0
        #: (time, by how many ms in all) of each time that somebody did.
        self.clock_sets: list[tuple[float, int]] = []
        #: Settled messages are written after so long at the latest.
        self.ack_delay_s = 0.02
        #: Whether the limits of the node are never reached in the run.
        self.is_node_wide = True
        #: From then on nothing was disturbed.
        self.calm_since = FOREVER
        #: When consumers had taken everything; FOREVER if the run never came there.
        self.drained_at = FOREVER
        #: Endpoints that consumers drained to the last message.
        self.drained: dict[int, None] = {}

    def producer(self, vpn: str, username: str, name: str) -> ProducerRecord:
        """Give the record of a name."""
        key = (vpn, username, name)
        if key not in self.producers:
            self.producers[key] = ProducerRecord(*key)
        return self.producers[key]

    def forget(self, producer: ProducerRecord, at: float) -> None:
        """A name is about to be given up: whoever opens it after that starts over."""
        producer.forgotten_at = at
        key = (producer.vpn, producer.username, producer.name)
        if self.producers.get(key) is producer:
            del self.producers[key]
            self.forgotten.append(producer)

    def publish(
        self, producer: ProducerRecord, sequence: int, topic: str, flags: int, size: int
    ) -> Publication:
        """Begin the record of a publication."""
        made = Publication(len(self.publications), producer, sequence, topic, flags, size)
        self.publications.append(made)
        return made

    def publication(self, what: str) -> Publication | None:
        """Give the publication of a payload, None if that is of a direct message or of somebody else."""
        mark, number = what[:1], what[1:]
        if mark != PUBLICATION_MARK or not number.isdigit():
            return None
        return self.publications[int(number)]

    def is_relaxed(self, endpoint: EndpointRecord, start: float = 0.0, end: float = FOREVER) -> bool:
        """Tell whether an endpoint may have acknowledged before it wrote, by itself or by its Message VPN."""
        own = any(one.get("durability") == "relaxed" for one in endpoint.possible(start, end))
        timeline = self.vpns.get(endpoint.vpn, [])
        return own or any(one.get("durability") == "relaxed" for _, one in timeline)

    def note_unsynced(self, lane: int, what: str) -> None:
        """Note a message that a home may show before it is on disk."""
        self.unsynced.setdefault(lane, Counter())[what] += 1

    def note_gaps(self, lane: int, gaps: Iterable[tuple[int, int]]) -> None:
        """Note positions whose messages a home calls lost."""
        for gap in gaps:
            self.gaps.setdefault(lane, {})[gap] = None

    def place(self, worker: int, lane: int, by: int) -> None:
        """What a worker stored under provisional positions has its true ones: it is told as if it always had them."""
        for at, event in enumerate(self.home_events):
            if not isinstance(event, (Stored, Gone)) or (event.worker, event.place[0]) != (worker, lane):
                continue
            if event.place[1] > PROVISIONAL:
                self.home_events[at] = event._replace(place=(lane, event.place[1] + by))

    def wall_ms(self, at: float) -> int:
        """Give the wall time of a moment."""
        shift = next((shift for since, shift in reversed(self.clock_sets) if since <= at), 0)
        return int(at * 1000) + self.wall_offset_ms + shift

    def wall_between(self, start: float, end: float) -> tuple[int, int]:
        """Give the earliest and the latest wall time that anybody could read between two moments."""
        sets = [since for since, _ in self.clock_sets if start < since <= end]
        moments = [start, *sets, *(math.nextafter(since, 0) for since in sets), end]
        read = [self.wall_ms(moment) for moment in moments]
        return min(read), max(read)


def endpoint_of(lane: int) -> int:
    """Give the id of the endpoint that a lane is of."""
    return lane >> wire.LANE_BITS


def filters_of(kind: str, attributes: Attributes) -> tuple[list[str], list[str]]:
    """Give what an endpoint with these attributes takes, and what it leaves out: patterns."""
    if kind != "queue":
        topic = attributes.get("topic")
        return ([parse_filter(topic).pattern] if topic else []), []
    texts = [*(attributes.get("subscriptions") or ()), *(attributes.get("client_subscriptions") or ())]
    exceptions = [text[1:] for text in texts if text.startswith("!")]
    return [parse_filter(text).pattern for text in texts if not text.startswith("!")], exceptions


def takes(endpoint: EndpointRecord, attributes: Attributes, topic: str, *, is_retained: bool = False) -> bool:
    """Tell whether an endpoint with these attributes takes a topic."""
    if endpoint.retains:
        return is_retained and not topic.startswith("#")
    if topic == f"{wire.QUEUE_TOPIC_PREFIX}{endpoint.name}":
        return endpoint.kind == "queue"
    if topic.startswith(wire.QUEUE_TOPIC_PREFIX):
        return False
    wanted, unwanted = filters_of(endpoint.kind, attributes)
    return any(matches(one, topic) for one in wanted) and not any(matches(one, topic) for one in unwanted)
