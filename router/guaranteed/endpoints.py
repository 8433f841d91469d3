"""Queues and topic endpoints as the router knows them: what they hold, what they match, where their lanes are.

The controller owns the objects and pushes them (`Endpoints.put`, `drop`). From each follow
- its filters at the workers: a queue's subscriptions (R112), its exceptions (`!filter`, R122) and the exact filter
  `#P2P/QUE/<name>`; the topic of a topic endpoint (R121); for the queue of retained messages one of a kind of its own;
- its lanes at their homes (`lanes`);
- what publishers are judged by and consumers bind to: `Endpoint`, shared by everything in this package.

`resolve` turns a set of filters that matched a topic into the endpoints that take the message. An exception wins
whatever the order (R126). What was spooled for a subscription stays when that goes (R179); an endpoint that goes
takes its filters and flows first, its lanes after (R180).

Attributes: docs/attributes.md; the hidden ones the router reads are `id`, `generation`,
`created_by`, `durable`, `client`, `homes` (worker of each partition), `topic`, `selector`, `client_subscriptions`.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from angarium import wire
from angarium_server.costs import ENDPOINT_BYTES, PARTITION_BYTES, subscription_bytes
from angarium_server.frames.settings import LaneSettings
from angarium_server.memory.memory import give_up_room
from router.ground.ground import nothing
from router.guaranteed.endpoint_filters import EVERYTHING, EndpointFilters
from router.guaranteed.lanes import Lane, Lanes
from router.matching.shards import Confirmation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from angarium_server.frames.homes import LaneTotals
    from router.guaranteed.endpoint_filters import FilterName
    from router.matching.shards import Shards
    from router.sessions.directory import Attributes, Vpn
    from router.sessions.interest import Filter, FilterSet, Interest
    from router.sessions.session import Session

QUEUE: Final = "queue"
TOPIC_ENDPOINT: Final = "topic-endpoint"
KINDS: Final = (QUEUE, TOPIC_ENDPOINT)
_CLIENT_PREFIX: Final = "client:"
#: What a queue is subscribed to: by operators, and by clients, or of the queue of a link by its neighbour.
SUBSCRIPTIONS: Final = "subscriptions"
CLIENT_SUBSCRIPTIONS: Final = "client_subscriptions"
_LISTS: Final = (SUBSCRIPTIONS, CLIENT_SUBSCRIPTIONS)
#: What rates are of: this span or two of them. It shows what is going on, and is calm enough to be read.
RATE_SPAN_S: Final = 5.0
NO_TRAFFIC: Final = (0, 0, 0, 0)

Counts: TypeAlias = tuple[int, int, int, int]


OnSubscriptions: TypeAlias = "Callable[[Endpoint, Iterable[str] | None, Iterable[str]], None]"


class Traffic:
    """What comes into a lane and leaves it: messages in, bytes in, messages out, bytes out.

    A home counts since it has the lane; the differences of its reports are added up. A rate needs what the counts were
    a while ago: they are noted once in a span, by the report that comes then, so a lane without traffic costs nothing.
    """

    __slots__ = ("_early", "_late", "_told", "counts")

    def __init__(self) -> None:
        #: Since this router began.
        self.counts = NO_TRAFFIC
        #: What the home told last.
        self._told = NO_TRAFFIC
        #: When the counts were noted, and what they were; the second at least a span after the first.
        self._early = self._late = (-math.inf, NO_TRAFFIC)

    def go_on(self, told: Counts) -> None:
        """Count from here on: before this, another home or another router did."""
        self._told = told

    def report(self, told: Counts, now: float) -> None:
        """Take what its home tells."""
        if now - self._late[0] >= RATE_SPAN_S:
            self._early, self._late = self._late, (now, self.counts)
        differences = map(operator.sub, told, self._told)
        self.counts = cast("Counts", tuple(map(operator.add, self.counts, differences)))
        self._told = told

    def rates(self, now: float) -> tuple[float, ...]:
        """Give what came and went each second, in the last span or two."""
        for at, counts in (self._early, self._late):
            if now - at < 2 * RATE_SPAN_S:
                passed = max(now - at, RATE_SPAN_S)
                return tuple((new - old) / passed for new, old in zip(self.counts, counts, strict=True))
        return NO_TRAFFIC


class LaneUsage:
    """One lane as the quotas see it: what its home told, what is on its way, what another home may hold.

    A lane that gets another home (`worker scale`) is there at once, and what it has is still in the spool of the worker
    before. The new home tells figures without that until it could count it; so the router goes on counting what the old
    one told. A router that was not there at the change does not know it, and admits nothing until the home does.
    """

    __slots__ = (
        "bytes",
        "home",
        "inflight_bytes",
        "inflight_messages",
        "is_complete",
        "is_known",
        "is_reported",
        "lane_id",
        "left_bytes",
        "left_messages",
        "messages",
        "oldest_stored_ms",
        "reader_group",
        "traffic",
        "unacked",
    )

    def __init__(self, lane_id: int, home: int) -> None:
        self.lane_id = lane_id
        #: Index of the worker that holds it.
        self.home = home
        #: What the home reported last, absolute; spool bytes.
        self.messages = self.bytes = self.unacked = 0
        #: Wall time in ms at which the oldest message was spooled; 0: there is none.
        self.oldest_stored_ms = 0
        #: The reader group that has leased it; empty: none has.
        self.reader_group = ""
        #: What came and went since this router began.
        self.traffic = Traffic()
        #: Admitted, and not in any report yet.
        self.inflight_messages = self.inflight_bytes = 0
        #: False until the home reported anything of it since it was told of the lane.
        self.is_reported = False
        #: False while it was not told what the home that it had before holds.
        self.is_complete = True
        #: What that is at most, if this router was there at the change; nobody knows it if not `is_known`.
        self.left_messages = self.left_bytes = 0
        self.is_known = True

    @property
    def partition(self) -> int:
        """Give the number of its partition."""
        return self.lane_id & ((1 << wire.LANE_BITS) - 1)

    @property
    def held_messages(self) -> int:
        """Give how many messages it has, with those on their way."""
        return self.messages + self.left_messages + self.inflight_messages

    @property
    def held_bytes(self) -> int:
        """Give their spool bytes."""
        return self.bytes + self.left_bytes + self.inflight_bytes

    def move_to(self, home: int) -> None:
        """Another worker is its home: it takes over what the one before has."""
        self.home = home
        self.left_messages += self.messages
        self.left_bytes += self.bytes
        self.messages = self.bytes = self.unacked = 0
        self.is_complete = self.is_reported = False

    def report(self, totals: LaneTotals, now: float) -> None:
        """Take what its home tells."""
        if totals.complete and self.is_complete:
            self.traffic.report(totals.traffic, now)
        else:
            self.traffic.go_on(totals.traffic)  # what comes from another spool is no traffic
        self.messages, self.bytes, self.unacked = totals.messages, totals.bytes, totals.unacked
        self.oldest_stored_ms = totals.oldest_ms or 0
        self.is_reported = True
        self.reader_group = totals.reader_group
        if totals.complete:
            self.left_messages = self.left_bytes = 0
            self.is_known = True
        elif self.is_complete:
            self.is_known = False
        self.is_complete = totals.complete


class Endpoint:
    """A queue or topic endpoint. Compares by identity."""

    __slots__ = (
        "attributes",
        "client",
        "counters",
        "created_by",
        "durable",
        "filters",
        "flows",
        "generation",
        "holders",
        "id",
        "is_gone",
        "is_session",
        "kind",
        "lanes",
        "link",
        "memory_bytes",
        "name",
        "parsed",
        "reader",
        "retains",
        "retiring",
        "vpn",
    )

    def __init__(self, vpn: Vpn, kind: str, name: str, attributes: Attributes) -> None:
        #: Never used for another endpoint.
        self.id = int(attributes["id"])
        self.kind = kind
        self.vpn = vpn
        self.name = name
        #: The node for which it is the queue of the link, or to whose link it belongs otherwise; empty: no link's.
        self.link = link_of(kind, name)
        #: Whether it is the queue for retained messages of its Message VPN.
        self.retains = kind == QUEUE and name == wire.RETAINED_QUEUE
        #: Whether it keeps the session of a client of a gateway.
        self.is_session = kind == QUEUE and name.startswith(wire.SESSION_QUEUE_PREFIX)
        self.durable = bool(attributes["durable"])
        #: `operator` or `client:<username>`.
        self.created_by = str(attributes["created_by"])
        #: Name of the client that made it, if it is temporary: nobody else may bind (R105).
        self.client = str(attributes.get("client") or "")
        #: Its lists of subscriptions are dicts here, text -> None, which edits change in place.
        self.attributes = attributes
        self.generation = int(attributes["generation"])
        #: The partitions that take messages, by number; one if it has no partitions.
        self.lanes: list[LaneUsage] = []
        #: Lanes above the partition count: their home moves what they hold to the others. They stay when they are
        #: empty, because they know what producers published to them, and how far their positions and moves are.
        self.retiring: list[LaneUsage] = []
        #: What it matches, as the workers know it.
        self.filters: dict[FilterName, Filter[Endpoint]] = {}
        #: Subscription -> the filter above that it names, None if it is no subscription: a change parses what is new
        #: only, however many there are.
        self.parsed: dict[str, FilterName | None] = {}
        #: What it and its filters cost, if so many workers hold each that has wildcards.
        self.memory_bytes = 0
        self.holders = 1
        #: Bound client flows (`router.flows.flow.Flow`) by their id, in the order of their binding.
        self.flows: dict[int, Any] = {}
        #: Totals for the operators, by name.
        self.counters: dict[str, int] = {}
        #: Username and client that used the lease of a reader group last; empty: nobody since the router began.
        self.reader = "", ""
        #: True once it was deleted.
        self.is_gone = False

    def named(self) -> tuple[str, dict[str, Any]]:
        """Give how a sentence calls it, and the fields of events about it."""
        return f"{self.kind} {self.name}", {"scope": "VPN", "vpn": self.vpn.name, "endpoint": self.name}

    @property
    def creator(self) -> str:
        """Give the username whose clients created it, empty if an operator did."""
        is_of_client = self.created_by.startswith(_CLIENT_PREFIX)
        return self.created_by.removeprefix(_CLIENT_PREFIX) if is_of_client else ""

    @property
    def address(self) -> str:
        """Give the topic that is its own, if it has one: to queues of the node's own nobody publishes by name."""
        is_own = self.link or self.retains or self.is_session
        return "" if self.kind != QUEUE or is_own else wire.QUEUE_TOPIC_PREFIX + self.name

    @property
    def takes_exceptions(self) -> bool:
        """Tell whether a subscription may keep messages out."""
        return self.kind == QUEUE

    @property
    def messages(self) -> int:
        """Give the messages that it holds, with those on their way to its homes."""
        return sum(lane.held_messages for lane in self.all_lanes())

    @property
    def bytes(self) -> int:
        """Give the spool bytes that it holds, with those on their way."""
        return sum(lane.held_bytes for lane in self.all_lanes())

    @property
    def unacked(self) -> int:
        """Give the messages that were delivered and not settled."""
        return sum(lane.unacked for lane in self.all_lanes())

    @property
    def partitions(self) -> int:
        """Give its partition count, 0 if it has none."""
        return int(self.attributes.get("partition_count") or 0)

    @property
    def is_exclusive(self) -> bool:
        """Tell whether one flow at a time is fed."""
        return not self.durable or bool(self.attributes["access_type"] == "exclusive")

    @property
    def is_relaxed(self) -> bool:
        """Tell whether it is acknowledged before it is on disk: by its own policy or that of its Message VPN."""
        own = self.attributes.get("durability", "synced")
        return bool(own == "relaxed" or self.vpn.attributes.get("durability") == "relaxed")

    @property
    def max_unacked(self) -> int:
        """Give how many messages a flow may have delivered and not settled (R192).

        Of a last-value queue it has one: what was replaced while it is out stays until it is settled, in no quota.
        """
        return 1 if self.is_last_value else int(self.attributes["max_delivered_unacked_per_flow"])

    @property
    def is_last_value(self) -> bool:
        """Tell whether it keeps only the newest message, which a quota of 0 means."""
        return int(self.attributes["max_spool_usage_mb"]) == 0

    def all_lanes(self) -> list[LaneUsage]:
        """Give its lanes, also those above the partition count."""
        return self.lanes + self.retiring if self.retiring else self.lanes

    def exceptions_from(self, number: int) -> list[str]:
        """Give the patterns of its exceptions whose filters have this number or a higher one."""
        return [
            one.pattern
            for one in self.filters.values()
            if one.kind == wire.KIND_EXCEPTION and one.id >= number
        ]

    def count(self, name: str) -> None:
        """Add one to one of its counters."""
        self.counters[name] = self.counters.get(name, 0) + 1

    @property
    def reader_group(self) -> str:
        """Give the reader groups that have leased its lanes."""
        return ", ".join(dict.fromkeys(lane.reader_group for lane in self.all_lanes() if lane.reader_group))


class Endpoints:
    """All endpoints of the node."""

    def __init__(
        self,
        interest: Interest[Session],
        shards: Shards,
        lanes: Lanes,
        on_filter: Callable[[int, str], None],
        *,
        exceptions: bool = True,
    ) -> None:
        """Begin without any.

        `on_filter` is called with (VPN number, pattern) when a filter comes or goes. Without `exceptions` (R125)
        `!filter` is no exception but a filter for topics that begin so.
        """
        # The same table of filters, with endpoints as the members of theirs: a set holds one sort or the other.
        self._interest = cast("Interest[Endpoint]", interest)
        self._shards = shards
        self._homes = lanes
        self.filters = EndpointFilters(self._interest, shards, on_filter, self._cost, exceptions=exceptions)
        #: The number that changes of filters had when the newest endpoint with filters went.
        self._gone_at = -1
        #: By id, in the order in which they came.
        self.by_id: dict[int, Endpoint] = {}
        #: (VPN, kind, name) -> the same.
        self._by_name: dict[tuple[str, str, str], Endpoint] = {}
        #: Lane id -> its endpoint and itself; also those above the partition count.
        self._lanes: dict[int, tuple[Endpoint, LaneUsage]] = {}
        #: Called with one that goes: it matches nothing any more; its lanes are still on it, and deleted after that.
        self.on_gone: list[Callable[[Endpoint], None]] = []
        #: Called with an endpoint and how much more it costs now, or less.
        self.on_cost: Callable[[Endpoint, int], None] = nothing
        #: How many of them are queues of links.
        self.of_links = 0
        #: How often a lane was given another home.
        self.handovers = 0
        #: Called with (endpoint, its attributes before, now) when its lanes were told; None for a new one's.
        self.on_change: Callable[[Endpoint, Attributes | None, float], None] = nothing
        #: Called with (endpoint, what clients added, and removed) when these subscriptions changed; None instead of
        #: what was added: nobody knows what changed.
        self.on_subscriptions: OnSubscriptions = nothing
        #: Called with the id of a lane and the home that is to part with it.
        self.on_part: Callable[[int, int], None] = nothing
        #: Called with an endpoint and its homes so far when the number of its lanes, or a home of one, is another.
        self.on_rearrange: Callable[[Endpoint, Iterable[int]], None] = nothing

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self.by_id.values())

    def find(self, vpn_name: str, kind: str, name: str) -> Endpoint | None:
        """Give the endpoint of that name."""
        return self._by_name.get((vpn_name, kind, name))

    def lane(self, lane_id: int) -> tuple[Endpoint, LaneUsage] | None:
        """Give a lane and its endpoint; None if they are gone."""
        return self._lanes.get(lane_id)

    def lanes(self) -> Iterator[LaneUsage]:
        """Give all lanes."""
        return (lane for _, lane in self._lanes.values())

    def keys(self) -> list[tuple[str, str, str]]:
        """List (kind, VPN, name) of all of them."""
        return [(kind, vpn, name) for vpn, kind, name in self._by_name]

    # -- objects ---------------------------------------------------------------------------------------------

    def put(
        self,
        vpn: Vpn,
        kind: str,
        name: str,
        attributes: Attributes,
        done: Callable[[], None] | None = None,
        *,
        now: float = 0.0,
    ) -> Endpoint:
        """Create or change an endpoint; `done` is called when its filters and lanes are in force everywhere."""
        endpoint = self.find(vpn.name, kind, name)
        if endpoint is not None and (endpoint.id != int(attributes["id"]) or endpoint.vpn is not vpn):
            self.lose(kind, vpn.name, name)  # it was deleted and made again
            endpoint = None
        before: Attributes | None = None
        attributes = {**attributes, **{name: dict.fromkeys(attributes.get(name) or ()) for name in _LISTS}}
        if endpoint is None:
            endpoint = Endpoint(vpn, kind, name, attributes)
            self.by_id[endpoint.id] = self._by_name[vpn.name, kind, name] = endpoint
            vpn.endpoints += 1
            endpoint.holders = len(self._shards.shards)
            self._cost(endpoint, ENDPOINT_BYTES)
            self.of_links += bool(endpoint.link)
        else:
            before, endpoint.attributes = endpoint.attributes, attributes
            endpoint.generation = int(attributes["generation"])
        confirmation = Confirmation(done or nothing)
        confirmation.waiting = 2
        self._arrange_lanes(endpoint)
        self._homes.change(_lanes_of(endpoint), [], lambda: _one_less(confirmation))
        self.on_change(endpoint, before, now)
        self.filters.put(endpoint, _wanted_filters(endpoint), lambda: _one_less(confirmation))
        self.on_subscriptions(endpoint, None, ())
        return endpoint

    def edit(
        self, endpoint: Endpoint, edits: Mapping[str, Sequence[Sequence[str]]], done: Callable[[], None]
    ) -> None:
        """Change subscriptions, {attribute: (added, removed)}; `done` is called when that is in force everywhere.

        A queue may have a hundred thousand, so this looks at those only that come or go.
        """
        come: dict[str, None] = {}
        left: dict[str, None] = {}
        for attribute, (added, removed) in edits.items():
            texts = endpoint.attributes[attribute]
            for text in removed:
                if text in texts:
                    del texts[text]
                    left[text] = None
            come.update(dict.fromkeys(added))
            texts.update(dict.fromkeys(added))
        lists = [endpoint.attributes[attribute] for attribute in _LISTS]
        self.filters.edit(
            endpoint, come, [text for text in left if not any(text in one for one in lists)], done
        )
        if CLIENT_SUBSCRIPTIONS in edits:
            self.on_subscriptions(endpoint, *edits[CLIENT_SUBSCRIPTIONS])

    def drop(
        self, vpn_name: str, kind: str, name: str, done: Callable[[], None] | None = None
    ) -> Endpoint | None:
        """Remove an endpoint that was deleted; `done` is called when its homes have deleted what it held."""
        endpoint = self._remove(vpn_name, kind, name)
        if endpoint is None:
            if done is not None:
                done()
            return None
        self._homes.deleted[endpoint.id] = None
        self._homes.change([], [lane.lane_id for lane in endpoint.all_lanes()], done)
        return endpoint

    def lose(self, kind: str, vpn_name: str, name: str) -> None:
        """Remove an endpoint that is not there any more; its homes keep what it held unless it was deleted."""
        endpoint = self.find(vpn_name, kind, name)
        if endpoint is None:
            return
        if endpoint.id in self._homes.deleted:
            self.drop(vpn_name, kind, name)
            return
        self._remove(vpn_name, kind, name)
        self._homes.lose([lane.lane_id for lane in endpoint.all_lanes()])

    def _remove(self, vpn_name: str, kind: str, name: str) -> Endpoint | None:
        endpoint = self._by_name.pop((vpn_name, kind, name), None)
        if endpoint is None:
            return None
        del self.by_id[endpoint.id]
        endpoint.vpn.endpoints -= 1
        self.of_links -= bool(endpoint.link)
        endpoint.is_gone = True
        self._interest.changes += 1  # every set is looked at again
        self._gone_at = self._interest.changes
        self.filters.remove(endpoint)
        self._cost(endpoint, -endpoint.memory_bytes)
        for gone in self.on_gone:
            gone(endpoint)
        for lane in endpoint.all_lanes():
            del self._lanes[lane.lane_id]
        give_up_room(self._lanes)
        return endpoint

    def drop_vpn(self, vpn: Vpn) -> None:
        """A Message VPN goes with everything in it."""
        for endpoint in self.of_vpn(vpn):
            self.drop(vpn.name, endpoint.kind, endpoint.name)

    def vpn_changed(self, vpn: Vpn) -> None:
        """The attributes of a Message VPN changed: lanes follow its durability."""
        self._homes.change([lane for one in self.of_vpn(vpn) for lane in _lanes_of(one)], [])

    def of_vpn(self, vpn: Vpn) -> list[Endpoint]:
        """Give the endpoints of a Message VPN."""
        return [endpoint for endpoint in self.by_id.values() if endpoint.vpn is vpn]

    # -- lanes -----------------------------------------------------------------------------------------------

    def _arrange_lanes(self, endpoint: Endpoint) -> None:
        """Give an endpoint a lane per partition; those above the count retire."""
        homes = [int(home) for home in endpoint.attributes["homes"]]
        count = max(1, endpoint.partitions)
        assert len(homes) >= count, f"{endpoint.name} has {count} partitions and homes for {len(homes)}"
        known = {lane.partition: lane for lane in endpoint.all_lanes()}
        before, homes_before = len(endpoint.lanes), dict.fromkeys(lane.home for lane in known.values())
        made, handovers = 0, self.handovers
        endpoint.lanes, endpoint.retiring = [], []
        for partition, home in enumerate(homes):
            lane = known.pop(partition, None)
            if lane is None:
                lane = LaneUsage(endpoint.id << wire.LANE_BITS | partition, home)
                made += 1
                self._lanes[lane.lane_id] = (endpoint, lane)
            if lane.home != home:
                if self._homes.part(lane.lane_id, lane.home):
                    self.on_part(lane.lane_id, lane.home)
                lane.move_to(home)
                self.handovers += 1
            (endpoint.lanes if partition < count else endpoint.retiring).append(lane)
        endpoint.retiring += known.values()
        self._cost(endpoint, PARTITION_BYTES * made)
        if before and (before != count or self.handovers != handovers):
            self.on_rearrange(endpoint, homes_before)

    def parted(self, lane_id: int, home: int) -> None:
        """A home has parted with a lane, on its disk, or is none any more."""
        self._homes.parted(lane_id, home)

    # -- filters ---------------------------------------------------------------------------------------------

    def would_cost(self, filters: Sequence[str], partitions: int = 0) -> int:
        """Give what these filters would cost, and with partitions a new endpoint that has so many of them."""
        workers = len(self._shards.shards)
        size = sum(subscription_bytes(text, text, workers) for text in filters)
        return size + (ENDPOINT_BYTES + PARTITION_BYTES * partitions if partitions else 0)

    def _cost(self, endpoint: Endpoint, size: int) -> None:
        endpoint.memory_bytes += size
        self.on_cost(endpoint, size)

    def resolve(self, a_set: FilterSet[Any]) -> tuple[Endpoint, ...]:
        """Give the endpoints that take a message which matched this set, in a stable order (R113, R126)."""
        changes = self._interest.changes
        if a_set.resolved_at == changes:
            return cast("tuple[Endpoint, ...]", a_set.endpoints)
        at = a_set.resolved_at
        if at < self._gone_at or at < 0 or any(a_filter.changed > at for a_filter in a_set.filters):
            found: dict[Endpoint, None] = {}
            for a_filter in a_set.filters:
                if a_filter.kind != wire.KIND_EXCEPTION:
                    found.update(dict.fromkeys(a_filter.members))
            for a_filter in a_set.filters:
                if a_filter.kind == wire.KIND_EXCEPTION:
                    for endpoint in a_filter.members:
                        found.pop(endpoint, None)
            a_set.endpoints = tuple([endpoint for endpoint in found if not endpoint.is_gone])
        a_set.resolved_at = changes
        return cast("tuple[Endpoint, ...]", a_set.endpoints)

    def validate(self) -> None:
        """Check that the tables agree."""
        self.filters.validate()
        assert list(self.by_id.values()) == list(self._by_name.values())
        lanes = {lane.lane_id: (one, lane) for one in self for lane in one.all_lanes()}
        assert lanes == self._lanes
        assert sorted(lanes) == sorted(self._homes.entries)
        for endpoint in self:
            assert not endpoint.is_gone
            assert len(endpoint.lanes) == max(1, endpoint.partitions)
            assert [lane.partition for lane in endpoint.lanes] == list(range(len(endpoint.lanes)))
            assert all(endpoint in one.members for one in endpoint.filters.values())
            assert len(endpoint.filters) == sum(name is not None for name in endpoint.parsed.values())
            assert all(
                lane.inflight_messages >= 0 and lane.inflight_bytes >= 0 for lane in endpoint.all_lanes()
            )


def link_of(kind: str, name: str) -> str:
    """Give the neighbour to whose link a queue belongs, empty if it is no link's."""
    if kind != QUEUE or not name.startswith(wire.LINK_NAME_PREFIX):
        return ""
    return name.removeprefix(wire.LINK_NAME_PREFIX).partition("/")[0]


def subscription_texts(endpoint: Endpoint) -> list[str]:
    """Give the subscriptions of a queue: the operators', then those that clients added."""
    attributes = endpoint.attributes
    return [*attributes[SUBSCRIPTIONS], *attributes[CLIENT_SUBSCRIPTIONS]]


def _wanted_filters(endpoint: Endpoint) -> list[str]:
    """Give what an endpoint is to match."""
    if endpoint.retains:
        return [EVERYTHING]
    if endpoint.kind == TOPIC_ENDPOINT:
        return [str(endpoint.attributes["topic"])] if endpoint.attributes.get("topic") else []
    texts = subscription_texts(endpoint)
    return [endpoint.address, *texts] if endpoint.address else texts


def lane_settings(endpoint: Endpoint) -> LaneSettings:
    """Give what the homes of its lanes must know of an endpoint: attributes as they are, but for these."""
    attributes = endpoint.attributes
    delay = None
    if attributes["redelivery_delay_enabled"]:
        names = ("initial_ms", "max_ms", "multiplier_percent")
        delay = [int(attributes[f"redelivery_delay_{name}"]) for name in names]
    told = {name: attributes[name] for name in LaneSettings.__struct_fields__ if name in attributes}
    told |= {
        "kind": endpoint.kind,
        "vpn": endpoint.vpn.name,
        "name": endpoint.name,
        "partitions": endpoint.partitions,
        "access_type": "exclusive" if endpoint.is_exclusive else "non-exclusive",
        "max_unacked": endpoint.max_unacked,
        "max_redeliveries": attributes["max_redelivery_count"],
        "redelivery_delay": delay,
        # Partitions know no priorities: a priority would break the order of a key.
        "respect_priority": attributes["respect_priority"] and not endpoint.partitions,
        "delivery_delay_ms": attributes["delivery_delay_s"] * 1000,
        "last_value": endpoint.is_last_value,
        "retains": endpoint.retains,
        "durability": "relaxed" if endpoint.is_relaxed else "synced",
        "selector": attributes.get("selector") or None,
        "temporary": not endpoint.durable,
    }
    return LaneSettings(**told)


def _lanes_of(endpoint: Endpoint) -> list[Lane]:
    settings = lane_settings(endpoint)
    return [Lane(lane.lane_id, lane.home, endpoint.generation, settings) for lane in endpoint.all_lanes()]


def _one_less(confirmation: Confirmation) -> None:
    confirmation.waiting -= 1
    if not confirmation.waiting:
        confirmation.done()
