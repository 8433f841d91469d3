"""One connected client as the router sees it: who it is, what it may do.

And its credit in both directions.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium import errors, wire
from angarium.errors import error_for
from angarium_server.access import TopicRules  # noqa: TC001 - a field of a NamedTuple, whose class a compiler makes with its types
from angarium_server.shapes import Shapes
from router.ground.ground import SEALED
from router.sessions.kinds import CLIENT, SessionKind

if TYPE_CHECKING:
    from collections import Counter

    from angarium.errors import AngariumError
    from angarium.topic import Filter as ParsedFilter
    from angarium_server.frames.gateways import Counts, Rights
    from angarium_server.tokens.claims import Grant
    from router.ground.ground import TokenBucket
    from router.sessions.burden import Burden
    from router.sessions.directory import Vpn
    from router.sessions.hello import CarriedFor
    from router.sessions.interest import Filter, Subscription
    from router.sessions.neighbour import Neighbour
    from router.sessions.producer import Producer
    from router.sessions.queues import EgressQueue, ElidingTable
    from router.sessions.round import Round
    from router.sessions.splice import Splice


class Permissions(NamedTuple):
    """What a session may subscribe to, from its client profile and its ACL profile."""

    shared_allowed: bool
    subscriptions_max: int
    #: Bytes that it, and all clients of its username together, may make the node keep.
    memory_max: int
    username_memory_max: int
    filters: TopicRules | None
    share_names: TopicRules | None
    #: Work of matching that its messages may cost; 0 is no limit.
    matching_work_per_s: int = 0
    #: Shapes that its filters may have.
    overlapping_max: int = 0

    def check(self, parsed: ParsedFilter) -> None:
        """Judge a filter that is no address, shared or not.

        Raises:
            ForbiddenError: the client profile allows no shared ones (40305), or the ACL profile not its share name
                (40304) or what it matches (40303).
        """
        if parsed.share is not None:
            if not self.shared_allowed:
                raise error_for(errors.SHARED_SUBSCRIPTION_DENIED, parsed.text)
            if self.share_names is None or not self.share_names.allows_name(parsed.share):
                raise error_for(errors.SHARE_NAME_DENIED, parsed.share)
        if self.filters is None or not self.filters.allows_subscribe(parsed.pattern):
            raise error_for(errors.SUBSCRIBE_DENIED, parsed.text)


#: Nothing is ever put into it.
_NOTHING_COUNTED: Final[dict[str, int]] = {}
NOTHING_ALLOWED: Final = Permissions(
    shared_allowed=False,
    subscriptions_max=0,
    memory_max=0,
    username_memory_max=0,
    filters=None,
    share_names=None,
)


def publisher_number(client_name: str) -> int:
    """Give the number that stands for a client beside what it published: positive, the same in every process.

    A hash, so that it needs no table: it stays in the spool for longer than sessions and routers live. Of 2^62
    numbers two clients of a node do not share one.
    """
    digest = blake2b(client_name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2 or 1


def session_queue(client_name: str) -> str:
    """Give the name of the queue that keeps the session of a client of a gateway; no two clients have one.

    What names of queues cannot have, and `#` and `%`, is written as %XX; of a name that gets too long it is a hash.
    """
    name = _UNNAMEABLE.sub(_quoted, client_name)
    if len((wire.SESSION_QUEUE_PREFIX + name).encode()) > QUEUE_NAME_BYTES_MAX:
        name = f"%~{blake2b(client_name.encode(), digest_size=24).hexdigest()}"
    return wire.SESSION_QUEUE_PREFIX + name


def share_queue(text: str) -> str:
    """Give the name of the queue from which those take who share a filter of MQTT; no two filters have one.

        $share/crew/a/+     #mqtt/$share/crew/a/+
        $share/crew/a//b*   #mqtt/$share/crew/a/%/b%2A

    Of a name that gets too long it is a hash.
    """
    prefix, share = wire.SHARED_QUEUE_PREFIX, text.partition("/")[2]
    name = "/".join([_SHARE_UNNAMEABLE.sub(_quoted, level) or "%" for level in share.split("/")])
    if len((prefix + name).encode()) > QUEUE_NAME_BYTES_MAX:
        name = f"%~{blake2b(text.encode(), digest_size=24).hexdigest()}"
    return prefix + name


def _quoted(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02X}"


#: Characters that the name of a queue, or one level of it, cannot have, and those with a meaning here.
_UNNAMEABLE: Final = re.compile(r"[%#/*?'<>&;\x00-\x1f\x7f]")
_SHARE_UNNAMEABLE: Final = re.compile(r"[%*?'<>&;\x00-\x1f\x7f]")
#: Bytes of the name of a durable queue.
QUEUE_NAME_BYTES_MAX: Final = 200
#: Counters that are kept per session while it lives and added to the totals at its end.
SESSION_COUNTERS = (
    "discard.transmit-congestion",
    "discard.message-elided",
    "discard.no-local",
    "discard.client-not-connected",
)
#: So many filters that a client adds or removes, or partitions that it asks, count as one frame towards its rate.
FILTERS_PER_FRAME = 16


def is_attached(routing_id: bytes) -> bool:
    """Tell whether a client has no connection of its own, but a number behind the routing id of its gateway."""
    return len(routing_id) > wire.ATTACHED_NUMBER_BYTES


class Session:
    """The state of one connected client.

    Sessions compare by identity and are numbered in the order of their login, so that everything that walks
    over them does it in the same order in every run.
    """

    __slots__ = (
        "address",
        "assured_at",
        "bucket",
        "burden",
        "bye_at",
        "bytes_max",
        "carried_for",
        "carrier",
        "client_name",
        "closed",
        "connected_at",
        "counted",
        "counters",
        "counts_for",
        "egress",
        "eliding",
        "flow_out_bytes",
        "flow_read_bytes",
        "flows",
        "full",
        "grant",
        "granted_bytes",
        "granted_messages",
        "has_turns",
        "hears_leaving",
        "hears_unroutable",
        "inbox",
        "is_aside",
        "is_busy",
        "is_client",
        "is_neighbour",
        "keepalive_s",
        "kept_ranges",
        "kind",
        "last_heard",
        "link",
        "local_priority",
        "memory_bytes",
        "messages_in",
        "network_priority",
        "next_flow",
        "next_producer",
        "no_local",
        "number",
        "open_frame",
        "open_rounds",
        "out_bytes",
        "parked",
        "pending",
        "permissions",
        "probe_at",
        "probes",
        "producers",
        "profile_name",
        "publish_rules_id",
        "publisher",
        "read_bytes",
        "requests",
        "resumed_inbox",
        "retired_round",
        "retired_told",
        "rights",
        "round_number",
        "rounds_max",
        "routing_id",
        "sdk",
        "sent_bytes",
        "sent_messages",
        "shapes",
        "splices",
        "subscriptions",
        "unretired_bytes",
        "untold_bytes",
        "username",
        "vpn",
        "wanted",
        "will",
    )

    def __init__(
        self,
        number: int,
        routing_id: bytes,
        vpn: Vpn,
        username: str,
        client_name: str,
        now: float,
        kind: SessionKind = CLIENT,
    ) -> None:
        #: What it is, and two answers of that which are asked for with each message.
        self.kind = kind
        self.is_client, self.is_neighbour = kind.is_client, kind.is_neighbour
        self.number = number
        self.routing_id = routing_id
        self.vpn = vpn
        self.username = username
        self.client_name = client_name
        #: What says in the spool that a message is its own: the same for every session of this name in its VPN.
        self.publisher = publisher_number(client_name)
        self.profile_name = ""
        #: `assured_at`: when it was told last that we are there, by the answer to its PING or by one of ours.
        self.connected_at = self.last_heard = self.assured_at = now
        self.keepalive_s = 3.0
        self.local_priority = 1
        self.network_priority = 1
        self.no_local = False
        #: Whether ACKED tells it what no endpoint took, and INDICATION which partitions of its flows are to move.
        self.hears_unroutable = self.hears_leaving = False
        #: True from the moment in which nothing may be sent to it any more.
        self.closed = False
        #: True once workers died of its frames: it is closed, and no worker gets more of it.
        self.is_aside = False
        #: True while a request of it is being done: what it sent behind that is not taken yet.
        self.is_busy = False
        #: When it said BYE, None before: it closes when its rounds have retired, what it published is stored, and its
        #: queues are empty or without credit.
        self.bye_at: float | None = None
        self.bucket: TokenBucket | None = None
        #: What there is about the neighbour that it stands for; None for every other kind.
        self.link: Neighbour | None = None
        #: Replaced as a whole when its client profile or ACL profile changes.
        self.permissions = NOTHING_ALLOWED
        self.publish_rules_id = 0

        #: (text, deliver_always) -> subscription, in the order in which they were added.
        self.subscriptions: dict[tuple[str, bool], Subscription] = {}
        #: Their shapes.
        self.shapes = Shapes()
        #: Number -> each reading of what is retained that a subscription goes on from; None instead of none.
        self.splices: dict[int, Splice] | None = None
        #: What it was charged for what it makes the node keep.
        self.memory_bytes = 0
        #: Events about limits of its own that operators were told and that are not over.
        self.full: tuple[str, ...] = ()
        self._begin_attached()
        self._begin_login()
        self._begin_credit()
        self._begin_guaranteed()

    def _begin_attached(self) -> None:
        #: What it says of its process if that is a bridge or a gateway.
        self.carried_for: CarriedFor | None = None
        #: The session of its gateway if it is attached to one: its frames travel there, inside of others.
        self.carrier: Session | None = None
        #: What its gateway was told of its rights.
        self.rights: Rights | None = None
        #: What its gateway counted of it, as far as that was told.
        self.counted: Counts | None = None
        #: What is published when it ends without a word (`router.gateways.wills.Will`), or None.
        self.will: Any = None
        #: Of a gateway: (text, deliver_always) -> how many of its clients want that through it; no zeros.
        self.wanted: dict[tuple[str, bool], int] | None = {} if self.kind.carries_clients else None

    def _begin_login(self) -> None:
        #: What the token grants that it logged in with; None for a password.
        self.grant: Grant | None = None
        self.address = ""
        self.sdk = ""
        #: Its resume token names it, so it is that of one session.
        self.inbox = ""
        #: That of the session that it goes on with; empty if it is a new one.
        self.resumed_inbox = ""
        #: Totals for the operators, by name; one dict for all of whom nothing was counted.
        self.counters = _NOTHING_COUNTED
        #: The totals of the node, once it is over and those of its own are in them: what is dropped later goes there.
        self.counts_for: Counter[str] | None = None

    def _begin_credit(self) -> None:
        # What waits here is in lists, though it leaves in its order: an empty deque takes 700 bytes, and most sessions
        # have nothing waiting.
        # Ingress: rounds are numbered from 1 without gaps. What may be unretired; one round may overdraw the bytes.
        self.rounds_max = self.bytes_max = 0
        self.round_number = self.retired_round = self.retired_told = 0
        self.unretired_bytes = 0
        #: Messages of it that retired.
        self.messages_in = 0
        #: Bytes of rounds that retired since the client was last told.
        self.untold_bytes = 0
        #: Accepted and not retired, in order of their numbers; the first ones may be at workers.
        self.open_rounds: list[Round[Session]] = []
        #: The tail of open_rounds that has not been handed to workers.
        self.pending: list[Round[Session]] = []
        #: True while it stands in the waiting line of exactly one shard, or is held back.
        self.parked = False
        #: True while its answered rounds wait for a turn to be sent on.
        self.has_turns = False
        #: What it costs the workers; None while that is nothing.
        self.burden: Burden | None = None

        # Egress: totals since login; credit is granted - sent.
        self.granted_messages = self.granted_bytes = 0
        self.sent_messages = self.sent_bytes = 0
        #: The number of the effect that sends it a DELIVER to which more may be added (`router.ground.effects`).
        self.open_frame = SEALED
        #: PINGs that are not answered yet, the oldest first: number, and how much had been sent, of that on flows.
        self.probes: tuple[tuple[int, int, int], ...] = ()
        #: When so much was sent the next one leaves; 0 before anything was.
        self.probe_at = 0
        #: Everything sent to it, answers included, and how much of that it has shown to have read. Credit
        #: alone could be a lie.
        self.out_bytes = 0
        self.read_bytes = 0
        #: The part of these two that went out on flows.
        self.flow_out_bytes = self.flow_read_bytes = 0
        self.egress: EgressQueue | None = None
        self.eliding: ElidingTable | None = None

    def _begin_guaranteed(self) -> None:
        #: Its number -> each bound flow (`router.flows.flow.Flow`), in the order of their binding.
        self.flows: dict[int, Any] = {}
        #: Its handle -> each producer that is open, or was fenced and not closed.
        self.producers: dict[int, Producer[Session]] = {}
        #: The handle of the next producer; none is used twice in a session.
        self.next_producer = 1
        #: The number of the next flow; one is never used twice in a session.
        self.next_flow = 1
        #: Ranges that its flows have settled at homes that are down.
        self.kept_ranges = 0
        #: Requests that are not answered yet.
        self.requests = 0

    def count(self, name: str, amount: int = 1) -> None:
        """Add to one of the session's own counters."""
        if self.counts_for is not None and name in SESSION_COUNTERS:
            self.counts_for[name] += amount
        if self.counters is _NOTHING_COUNTED:
            self.counters = {}
        self.counters[name] = self.counters.get(name, 0) + amount

    def charge(self, count: int, what: str, now: float) -> None:
        """Count filters, or partitions, of a request towards the rate of the client.

        Raises:
            RateLimitError: it may not change, or ask, more at the moment (42902).
        """
        assert self.bucket is not None
        if not self.bucket.take(now, count / FILTERS_PER_FRAME):
            detail = f"{count} {what} are more than the rate of control frames allows now; try again soon"
            raise error_for(errors.CONTROL_RATE_EXCEEDED, detail)

    def beyond_credit(self, number: int) -> AngariumError:
        """Say why it may not publish a round of this number now."""
        if number != self.round_number + 1:
            return error_for(errors.MALFORMED_FRAME, f"round {number} after round {self.round_number}")
        if len(self.open_rounds) >= self.rounds_max:
            return error_for(errors.INGRESS_CREDIT_EXCEEDED, f"{self.rounds_max} rounds are under way")
        return error_for(errors.INGRESS_CREDIT_EXCEEDED, f"{self.bytes_max} bytes are under way")

    @property
    def is_sent_on(self) -> bool:
        """Tell whether all that it published has left for who is to get it."""
        return not (self.open_rounds or self.has_turns)

    @property
    def is_stored(self) -> bool:
        """Tell whether nothing that it published is on its way to a home."""
        return not any(producer.unsettled for producer in self.producers.values())

    @property
    def attached_number(self) -> int:
        """Give the number by which the gateway knows it that it is attached to."""
        return int.from_bytes(self.routing_id[-wire.ATTACHED_NUMBER_BYTES :], "big")

    def receives(self, a_filter: Filter[Session]) -> Session:
        """Give the session that gets what one of its filters matches: that of its gateway, which gives it to all.

        What is chosen for one receiver, and what only this one may have, it gets itself.
        """
        carrier = self.carrier
        if carrier is None or a_filter.kind == wire.KIND_SHARED or a_filter.pattern == self.inbox:
            return self
        return carrier

    def named(self) -> tuple[str, dict[str, Any]]:
        """Give how a sentence calls it, and the fields of events about it."""
        fields = {"scope": "CLIENT", "vpn": self.vpn.name, "client": self.client_name}
        return f"client {self.client_name}", {**fields, "username": self.username}

    def describe(self, now: float) -> dict[str, Any]:
        """Give what `angarium client list` shows of it."""
        egress, counted = self.egress, self.counted
        return {
            "name": self.client_name,
            "address": self.address,
            "vpn": self.vpn.name,
            "username": self.username,
            "profile": self.profile_name,
            "sdk": self.sdk,
            "uptime_s": round(now - self.connected_at, 3),
            "subscriptions": len(self.subscriptions),
            "flows": len(self.flows),
            "producers": len(self.producers),
            "eliding": self.eliding is not None,
            "eliding_topics": len(self.eliding) if self.eliding is not None else 0,
            "slow": egress is not None and egress.is_slow(now),
            "queued_messages": (egress.messages if egress else 0)
            + (counted.queued_messages if counted else 0),
            "queued_bytes": (egress.bytes if egress else 0) + (counted.queued_bytes if counted else 0),
            "memory_bytes": self.memory_bytes,
            "local_priority": self.local_priority,
            "network_priority": self.network_priority,
            "no_local": self.no_local,
            "discards": {name: value for name, value in self.counters.items() if name.startswith("discard.")},
            "counters": {"messages_in": self.messages_in, **self.counters},
        }

    def validate(self) -> None:
        """Check the sentences above."""
        assert 0 <= self.retired_told <= self.retired_round <= self.round_number
        assert len(self.open_rounds) == self.round_number - self.retired_round
        assert self.unretired_bytes == sum(a_round.bytes for a_round in self.open_rounds)
        assert len(self.pending) <= len(self.open_rounds)
        assert self.carrier is None or (self.carrier.vpn is self.vpn and self.carrier.kind.carries_clients)
        assert all(count > 0 for count in (self.wanted or {}).values())
        if self.egress is not None:
            self.egress.validate()
        if self.eliding is not None:
            self.eliding.validate()
