"""What happened in a run, as the clients saw it: the material that the checkers judge.

Times are of the simulated clock. A client's own view is all that counts: when it put a frame on the wire, and
when an answer reached it. So a subscription certainly holds between the arrival of its SUBACK and the sending
of its UNSUBSCRIBE, and certainly not before the SUBSCRIBE was sent or after the UNSUBACK arrived; a message
was certainly dispatched between the sending of its PUBLISH and the arrival of RETIRED. What lies in between
is open, and the checkers accept both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from angarium import wire
from angarium.topic import parse_filter, slot_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from angarium.topic import Filter
    from angarium_server.access import TopicRules

FOREVER = float("inf")
BROKEN_MAX = 8
#: The property that says what a message without payload is: its application message id.
WHAT_PROPERTY = 6


def what_of(row: Sequence[Any]) -> str:
    """Give what a message of the simulation carries, its mark and number: in a property if it has no payload."""
    payload, packed = row[wire.ROW_PAYLOAD], row[wire.ROW_PROPERTIES]
    if payload or packed is None:
        return bytes(payload).partition(b".")[0].decode(errors="replace")
    properties = wire.unpack(packed)
    return str(properties.get(WHAT_PROPERTY, ""))


class Message:
    """One message that a client put on the wire."""

    __slots__ = (
        "flags",
        "index",
        "is_empty",
        "number",
        "publisher",
        "retired_at",
        "round",
        "sent_at",
        "topic",
    )

    def __init__(
        self,
        number: int,
        publisher: ConnectionRecord,
        topic: str,
        flags: int,
        place: tuple[int, int],
        at: float,
    ) -> None:
        #: Unique in the run; it is in the payload.
        self.number = number
        self.publisher = publisher
        self.topic = topic
        self.flags = flags
        #: Whether it has no payload, so it ends what is retained of its topic.
        self.is_empty = False
        self.round, self.index = place
        self.sent_at = at
        #: When the publisher heard that it was dispatched; never for FOREVER.
        self.retired_at = FOREVER

    @property
    def cos(self) -> int:
        """Give the class of service, 0 to 2."""
        return (self.flags & wire.FLAG_COS) >> wire.COS_SHIFT

    @property
    def is_dto(self) -> bool:
        """Tell whether one client only may get it."""
        return bool(self.flags & wire.FLAG_DTO)

    @property
    def is_eliding(self) -> bool:
        """Tell whether a newer one may replace it."""
        return bool(self.flags & wire.FLAG_ELIDING)

    @property
    def is_retained(self) -> bool:
        """Tell whether the node is to keep it."""
        return bool(self.flags & wire.FLAG_RETAIN)

    @property
    def place(self) -> tuple[int, int]:
        """Give its place in the order of its publisher."""
        return self.round, self.index

    def __repr__(self) -> str:
        return (
            f"message {self.number} of {self.publisher} on {self.topic!r} (round {self.round}.{self.index})"
        )


class Delivery(NamedTuple):
    """One message that reached a client."""

    message: Message
    share: str | None
    at: float


class SubscriptionRecord:
    """One subscription of one connection, from the request to the answer that ended it."""

    __slots__ = (
        "asked_at",
        "asker",
        "confirmed_at",
        "connection",
        "deliver_always",
        "gone_at",
        "leaving_at",
        "parsed",
        "refused",
    )

    def __init__(
        self, connection: ConnectionRecord, text: str, at: float, *, deliver_always: bool, asker: str = ""
    ) -> None:
        self.connection = connection
        self.parsed: Filter = parse_filter(text)
        #: `>` always gets everything, whatever was asked.
        self.deliver_always = (deliver_always or self.parsed.pattern == ">") and self.parsed.share is None
        self.asked_at = at
        #: The subscription manager that asked for it, or empty.
        self.asker = asker
        self.confirmed_at = FOREVER
        self.leaving_at = FOREVER
        self.gone_at = FOREVER
        #: The code with which it was refused, or None.
        self.refused: int | None = None

    @property
    def text(self) -> str:
        """Give the filter as it was asked for."""
        return self.parsed.text

    @property
    def group(self) -> tuple[str, str, str] | None:
        """Give the share group it belongs to, or None."""
        if self.parsed.share is None:
            return None
        return self.connection.vpn, self.parsed.share, self.parsed.pattern

    def may_hold(self, start: float, end: float) -> bool:
        """Tell whether it may have been in force at some time between."""
        return self.refused is None and self.asked_at <= end and self.gone_at >= start

    def may_count(self, start: float, end: float) -> bool:
        """Tell the same of the router's view: there it also ends with its session."""
        return self.may_hold(start, end) and self.connection.ended_at >= start

    def must_hold(self, start: float, end: float) -> bool:
        """Tell whether it was in force all the time between."""
        return self.confirmed_at <= start and self.leaving_at >= end

    def __repr__(self) -> str:
        return f"{self.connection} subscribed to {self.text!r}{' DA' if self.deliver_always else ''}"


class ConnectionRecord:
    """One connection of a client, from HELLO to its end, with all that came."""

    __slots__ = (
        "answers",
        "client",
        "close_code",
        "closed_at",
        "deliveries",
        "dropped",
        "ended_at",
        "is_eliding",
        "is_prompt",
        "lost_rows",
        "network_priority",
        "no_local",
        "node",
        "number",
        "opened_at",
        "overdrafts",
        "priority",
        "proven_until",
        "refusals",
        "rounds",
        "session",
        "subscriptions",
        "username",
        "vpn",
    )

    def __init__(self, number: int, client: str, vpn: str, username: str) -> None:
        self.number = number
        self.client = client
        self.vpn = vpn
        self.username = username
        #: The router's number for the session; empty before WELCOME.
        self.session = ""
        self.opened_at = FOREVER
        self.closed_at = FOREVER
        #: When the router ended the session.
        self.ended_at = FOREVER
        #: What the router, or the client's own keepalive, said at the end; None for BYE and for no word.
        self.close_code: int | None = None
        self.no_local = False
        self.priority = 1
        self.network_priority = 1
        #: The node that it is connected to; empty in a run with one.
        self.node = ""
        #: Whether eliding was, or may have been, on at any time.
        self.is_eliding = False
        #: Whether the router never lacked credit: it consumes at once and its window is larger than the run.
        self.is_prompt = True
        self.deliveries: list[Delivery] = []
        #: Messages of which deliveries said that they were discarded before them.
        self.dropped = 0
        self.subscriptions: list[SubscriptionRecord] = []
        #: Round -> its messages, rounds rising.
        self.rounds: dict[int, list[Message]] = {}
        #: Whatever the router dispatched to this client before that time has arrived: PONG came behind it.
        self.proven_until = -FOREVER
        #: (when a PING was sent, when its PONG came), rising.
        self.answers: list[tuple[float, float]] = []
        #: Rows that the router said were lost with a worker.
        self.lost_rows = 0
        #: Code -> rows that the router refused.
        self.refusals: dict[int, int] = {}
        #: Deliveries that came although the credit was used up by those before.
        self.overdrafts: list[str] = []

    def retire(self, number: int, at: float) -> None:
        """Note that the client heard of the retirement of all rounds up to this one."""
        for a_round in list(self.rounds):
            if a_round > number:
                break
            for message in self.rounds.pop(a_round):
                message.retired_at = at

    @property
    def is_open(self) -> bool:
        """Tell whether it is open, or was at the end of the run."""
        return self.opened_at < FOREVER and self.closed_at == FOREVER

    def __repr__(self) -> str:
        return f"{self.client}#{self.number}"


class Rights(NamedTuple):
    """What an ACL profile allowed a username from a time on."""

    since: float
    publish: TopicRules
    subscribe: TopicRules


class History:
    """All records of a run."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.connections: list[ConnectionRecord] = []
        #: What was done to the node and its clients: (time, whom, what).
        self.faults: list[tuple[float, str, str]] = []
        #: What the operators were told: (time, event).
        self.events: list[tuple[float, dict[str, Any]]] = []
        #: Slot tables with the time from which they may be in force.
        self.tables: list[tuple[float, bytes]] = []
        #: Worker index -> the times during which rows for it may be lost.
        self.outages: dict[int, list[list[float]]] = {}
        #: (VPN, username) -> its rights, rising in time.
        self.rights: dict[tuple[str, str], list[Rights]] = {}
        #: Message VPNs in which somebody published what is not written down here.
        self.polluted_vpns: list[str] = []
        #: From then on nothing was disturbed, and every message counts exactly.
        self.calm_since = FOREVER
        #: Deliver-to-one messages on one topic with nothing else beside them.
        self.burst: list[Message] = []
        #: Counters of the router at that time and at the end.
        self.calm_stats: dict[str, Any] = {}
        self.end_stats: dict[str, Any] = {}
        #: Router session -> its counters at the end, for those that were open then.
        self.counters: dict[str, dict[str, int]] = {}
        #: Router session -> messages discarded at the end that no delivery has told of yet.
        self.untold: dict[str, int] = {}
        #: Router session -> the same at the beginning of the calm, and what deliveries had told of by then.
        self.calm_untold: dict[str, tuple[int, int]] = {}
        #: What broke a rule that needs no history: an exception in a process, a state that is not valid.
        self.broken: list[str] = []

    def break_rule(self, text: str) -> None:
        """Note a broken rule; the first few are enough to understand the run."""
        if len(self.broken) < BROKEN_MAX:
            self.broken.append(text)

    def connect(self, client: str, vpn: str, username: str) -> ConnectionRecord:
        """Begin the record of a connection."""
        record = ConnectionRecord(len(self.connections) + 1, client, vpn, username)
        self.connections.append(record)
        return record

    def publish(
        self, publisher: ConnectionRecord, topic: str, flags: int, place: tuple[int, int], at: float
    ) -> Message:
        """Begin the record of a message."""
        message = Message(len(self.messages), publisher, topic, flags, place, at)
        self.messages.append(message)
        publisher.rounds.setdefault(place[0], []).append(message)
        return message

    def end_session(self, client: str, vpn: str, at: float) -> None:
        """Note that the router ended a session: the oldest of that client that it had not ended yet."""
        for record in self.connections:
            if (
                record.client == client
                and record.vpn == vpn
                and record.opened_at < record.ended_at == FOREVER
            ):
                record.ended_at = at
                return

    def end_all_sessions(self, at: float) -> None:
        """Note that the router is gone, and all its sessions with it."""
        for record in self.connections:
            record.ended_at = min(record.ended_at, at)

    def fault(self, at: float, whom: str, what: str) -> None:
        """Note a disturbance."""
        self.faults.append((at, whom, what))

    def lose_worker(self, index: int, at: float) -> None:
        """From now on rows for a worker may be lost."""
        windows = self.outages.setdefault(index, [])
        if not windows or windows[-1][1] < FOREVER:
            windows.append([at, FOREVER])

    def regain_worker(self, index: int, at: float) -> None:
        """From now on rows for a worker are matched again."""
        windows = self.outages.get(index)
        if windows and windows[-1][1] == FOREVER:
            windows[-1][1] = at

    def was_out(self, topic: str, start: float, end: float) -> bool:
        """Tell whether a message on a topic may have been lost with the worker that owns it."""
        if not self.outages:
            return False
        slot = slot_of(topic)
        tables = [table for since, table in self.tables if since <= end]
        current = max((since for since, _ in self.tables if since <= start), default=-FOREVER)
        owners = {table[slot] for since, table in self.tables[: len(tables)] if since >= current}
        return any(
            since <= end and until >= start
            for owner in owners
            for since, until in self.outages.get(owner, ())
        )

    def publish_verdict(self, message: Message) -> bool | None:
        """Tell whether the publisher was allowed to, all the time that counts; None if that changed."""
        if message.topic.startswith("#P2P/INB/"):
            return True
        verdicts = {rules.allows_publish(message.topic) for rules in self._rules(message, "publish")}
        return verdicts.pop() if len(verdicts) == 1 else None

    def _rules(self, message: Message, kind: str) -> list[TopicRules]:
        publisher = message.publisher
        timeline = self.rights[publisher.vpn, publisher.username]
        current = max((one.since for one in timeline if one.since <= message.sent_at), default=0.0)
        return [getattr(one, kind) for one in timeline if current <= one.since <= message.retired_at]

    def subscribe_verdict(self, record: SubscriptionRecord, asker: tuple[str, str]) -> bool | None:
        """Tell whether a filter was allowed between request and answer; None if that changed."""
        timeline = self.rights[asker]
        current = max((one.since for one in timeline if one.since <= record.asked_at), default=0.0)
        verdicts = {
            one.subscribe.allows_subscribe(record.parsed.pattern)
            for one in timeline
            if current <= one.since <= record.confirmed_at
        }
        return verdicts.pop() if len(verdicts) == 1 else None
