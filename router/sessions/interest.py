"""Filters and who subscribed to them: workers know filters, the router knows sessions.

A filter is known to the workers by a number that is never reused. Workers answer with *sets* of filters; a
set is resolved to sessions here when a round retires, and the answer is kept until a subscription that it
depends on changes. So one more subscriber on a known filter changes nothing in any worker, and a message
costs the same for one subscriber and for ten thousand.

What a session is does not matter here, so its type is a parameter.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec

from angarium import wire
from angarium.topic import Filter as ParsedFilter
from angarium.topic import has_wildcard, slot_of
from angarium_server.costs import RESOLVED_SESSION_BYTES, set_bytes
from angarium_server.frames.matching import FilterEntry
from angarium_server.memory.memory import give_up_room_of_few

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

S = TypeVar("S")
FilterKey = tuple[int, str, int, str | None]
#: What the sessions of resolved sets may take; more and the one that was resolved first is resolved again when it is
#: used.
RESOLVED_BYTES_MAX: Final = 64 << 20
#: Sets, and filters in them, that one step of the search for what is wrong looks at.
_SWEPT_SETS_MAX: Final = 500
_SWEPT_FILTERS_MAX: Final = 50_000
#: Of so many filters of a set the members are counted to know about what it costs; each other has one at least.
_COUNTED_FILTERS_MAX: Final = 16


class Filter(msgspec.Struct, Generic[S], eq=False):
    """One distinct filter of one Message VPN, with its subscribers."""

    id: int
    #: (VPN number, pattern, kind, share name or None).
    key: FilterKey
    #: The worker that holds it, or None for a filter with wildcards, which every worker holds.
    shard: int | None
    #: Session -> texts under which it subscribed (`a` and `#noexport/a` have one pattern); never empty. Nearly
    #: always one: a tuple takes 40 bytes less than a list, and the garbage collector looks at it once only.
    members: dict[S, tuple[str, ...]] = msgspec.field(default_factory=dict)
    #: The number of the newest change of `members`.
    changed: int = 0

    @property
    def vpn_id(self) -> int:
        """Give the number of its Message VPN."""
        return self.key[0]

    @property
    def pattern(self) -> str:
        """Give what topics are matched against."""
        return self.key[1]

    @property
    def kind(self) -> int:
        """Give the kind of filter, `wire.KIND_...`."""
        return self.key[2]

    @property
    def levels(self) -> int:
        """Give what it costs a worker to add or remove it: levels of a tree, or a place in a dict."""
        return 1 if self.shard is not None else self.key[1].count("/") + 1


class Subscription(msgspec.Struct, frozen=True, eq=False):
    """One subscription of one session."""

    text: str
    deliver_always: bool
    filter: Filter[Any]
    #: What its client was charged for it.
    bytes: int
    #: The client name of the subscription manager that added it, or empty for the client itself.
    origin: str


class FilterSet(msgspec.Struct, Generic[S], eq=False):
    """A distinct set of filters that matched a topic, resolved to sessions, or to endpoints, on demand.

    A struct, because many a new topic makes one.
    """

    filters: tuple[Filter[S], ...]
    #: Workers that use the set under some number of theirs.
    references: int = 0
    #: Topics of the fast path that lead to it.
    topics: int = 0
    #: The change number at which `sessions` was right, or -1.
    resolved_at: int = -1
    #: Of several filters; those of one filter are its members.
    sessions: dict[S, None] | None = None
    #: Instead of `sessions`, if these are filters of endpoints.
    endpoints: tuple[S, ...] = ()
    #: The deliver-to-one counter of this candidate set (R74).
    round_robin: int = 0

    @property
    def bytes(self) -> int:
        """Give what it costs, without its sessions."""
        return set_bytes(len(self.filters))


class Interest(Generic[S]):
    """The table of filters and sets of a router."""

    def __init__(self) -> None:
        #: The number of the next filter.
        self.next_id = 1
        #: Counts the changes of any filter's members.
        self.changes = 0
        #: Members of all filters together, each under each of its texts.
        self.memberships = 0
        #: Who is a member of any filter -> under how many texts.
        self.members: dict[S, int] = {}
        self.filters: dict[int, Filter[S]] = {}
        self._by_key: dict[FilterKey, Filter[S]] = {}
        #: By the filters that were there when it came, of which some may be gone.
        self._sets: dict[tuple[Filter[S], ...], FilterSet[S]] = {}
        #: Sets with sessions, those that were resolved first, or found right by a sweep, at the front.
        self._resolved: OrderedDict[FilterSet[S], None] = OrderedDict()
        #: What their sessions cost.
        self.resolved_bytes = 0
        #: So many at the front were not looked at since something changed.
        self._unswept = 0
        #: `changes` when the newest sweep began.
        self._swept_at = 0
        #: What was forgotten since the process started: sets.
        self.freed_bytes = 0
        #: Called with (filter, member, text, 1 or -1) when a subscription comes or goes; None if nobody counts them.
        self.on_member: Callable[[Filter[S], S, str, int], None] | None = None

    def __len__(self) -> int:
        return len(self.filters)

    def find(self, vpn_id: int, parsed: ParsedFilter, deliver_always: bool) -> Filter[S] | None:  # noqa: FBT001 - part of the key
        """Give the filter of a subscription if the workers know it."""
        return self._by_key.get(_key(vpn_id, parsed, deliver_always))

    def create(self, vpn_id: int, parsed: ParsedFilter, deliver_always: bool, table: bytes) -> Filter[S]:  # noqa: FBT001 - part of the key
        """Make the filter of a subscription; the caller tells the workers."""
        return self._create(_key(vpn_id, parsed, deliver_always), table, parsed.wildcard)

    def find_kind(self, vpn_id: int, pattern: str, kind: int) -> Filter[S] | None:
        """Give the filter of endpoints (KIND_ENDPOINT, KIND_EXCEPTION, KIND_RETAINED) if the workers know it."""
        return self._by_key.get((vpn_id, pattern, kind, None))

    def create_kind(self, vpn_id: int, pattern: str, kind: int, table: bytes) -> Filter[S]:
        """Make a filter of endpoints; the caller tells the workers."""
        return self._create((vpn_id, pattern, kind, None), table, has_wildcard(pattern))

    def _create(self, key: FilterKey, table: bytes, wildcard: bool) -> Filter[S]:  # noqa: FBT001 - told of a pattern
        shard = None if wildcard else table[slot_of(key[1])]
        made: Filter[S] = Filter(self.next_id, key, shard)
        self.next_id += 1
        self.filters[made.id] = made
        self._by_key[key] = made
        return made

    def join(self, a_filter: Filter[S], session: S, text: str) -> None:
        """Add a subscriber; sets that hold the filter are resolved again."""
        members = a_filter.members
        members[session] = (*members[session], text) if session in members else (text,)
        self.memberships += 1
        self.members[session] = self.members.get(session, 0) + 1
        self._touch(a_filter)
        if self.on_member is not None:
            self.on_member(a_filter, session, text, 1)

    def leave(self, a_filter: Filter[S], session: S, text: str) -> bool:
        """Remove a subscriber; true if that was the last one and the filter is gone."""
        texts = a_filter.members[session]
        if len(texts) == 1:
            del a_filter.members[session]
        else:
            at = texts.index(text)
            a_filter.members[session] = texts[:at] + texts[at + 1 :]
        self.memberships -= 1
        self.members[session] -= 1
        if not self.members[session]:
            del self.members[session]
        self._touch(a_filter)
        if self.on_member is not None:
            self.on_member(a_filter, session, text, -1)
        if a_filter.members:
            return False
        del self.filters[a_filter.id]
        del self._by_key[a_filter.key]
        give_up_room_of_few(self.filters)
        give_up_room_of_few(self._by_key)
        return True

    def _touch(self, a_filter: Filter[S]) -> None:
        self.changes += 1
        a_filter.changed = self.changes

    def rehome(self, table: bytes) -> None:
        """Give every filter without wildcards its owner under a new slot table."""
        for a_filter in self.filters.values():
            if a_filter.shard is not None:
                a_filter.shard = table[slot_of(a_filter.pattern)]

    def use_set(self, filter_ids: Sequence[int]) -> FilterSet[S]:
        """Give the set of the filters with these numbers to one worker.

        Those that are gone meanwhile count as empty.
        """
        filters = self.filters
        try:
            key = tuple(map(filters.__getitem__, filter_ids))
        except KeyError:
            key = tuple([filters[i] for i in filter_ids if i in filters])
        found = self._sets.get(key)
        if found is None:
            found = self._sets[key] = FilterSet(key)
        found.references += 1
        return found

    def drop_set(self, a_set: FilterSet[S]) -> None:
        """One worker has retired its number for this set."""
        a_set.references -= 1
        if not a_set.references:
            del self._sets[a_set.filters]
            self.freed_bytes += a_set.bytes
            self._unresolve(a_set)

    def places(self, sets: Sequence[FilterSet[S]]) -> dict[S, list[int]]:
        """Give whom some sets are of, in a stable order, each with the places of his sets among them."""
        found: dict[S, list[int]] = {}
        for place, one in enumerate(sets):  # there may be hundreds, nearly all of one filter
            filters = one.filters
            for session in filters[0].members if len(filters) == 1 else self.resolve(one):
                places = found.get(session)
                if places is None:
                    found[session] = [place]
                else:
                    places.append(place)
        return found

    def resolve(self, a_set: FilterSet[S]) -> Mapping[S, object]:
        """Give the sessions subscribed to any filter of a set, each once, in a stable order.

        They are right until a subscription changes, which none does while a round is delivered.
        """
        if len(a_set.filters) == 1:
            return a_set.filters[0].members
        changes = self.changes
        sessions, at = a_set.sessions, a_set.resolved_at
        if sessions is None or (at < changes and any(one.changed > at for one in a_set.filters)):
            self._unresolve(a_set)
            sessions = {session: None for a_filter in a_set.filters for session in a_filter.members}
            a_set.sessions = sessions
            self._resolved[a_set] = None
            self.resolved_bytes += RESOLVED_SESSION_BYTES * len(sessions)
            while self.resolved_bytes > RESOLVED_BYTES_MAX and len(self._resolved) > 1:
                self._unresolve(next(iter(self._resolved)))
        a_set.resolved_at = changes
        return sessions

    @staticmethod
    def count(a_set: FilterSet[S]) -> int:
        """Give about how many sessions, or endpoints, there are of any filter of a set, without resolving it."""
        filters = a_set.filters
        if len(filters) == 1:
            return len(filters[0].members)
        if a_set.sessions is not None:
            return len(a_set.sessions)
        if a_set.endpoints:
            return len(a_set.endpoints)
        return sum([len(one.members) for one in filters[:_COUNTED_FILTERS_MAX]]) + len(
            filters[_COUNTED_FILTERS_MAX:]
        )

    def _unresolve(self, a_set: FilterSet[S]) -> None:
        """Forget the sessions of a set. Who has them in hand keeps them."""
        if a_set.sessions is not None:
            del self._resolved[a_set]
            self.resolved_bytes -= RESOLVED_SESSION_BYTES * len(a_set.sessions)
            a_set.sessions = None

    def sweep(self) -> None:
        """Do one step of forgetting sessions that are wrong: a set that nobody uses would keep those that are gone."""
        if not self._unswept and self._swept_at < self.changes:
            self._swept_at, self._unswept = self.changes, len(self._resolved)
        looked_at = 0
        for _ in range(min(self._unswept, len(self._resolved), _SWEPT_SETS_MAX)):
            a_set = next(iter(self._resolved))
            at = a_set.resolved_at
            if any(a_filter.changed > at for a_filter in a_set.filters):
                self._unresolve(a_set)
            else:
                self._resolved.move_to_end(a_set)
            self._unswept -= 1
            looked_at += len(a_set.filters)
            if looked_at > _SWEPT_FILTERS_MAX:
                break
        self._unswept = min(self._unswept, len(self._resolved))

    def filters_of_shard(self, shard: int) -> list[Filter[S]]:
        """Give what a worker must know: its own exact filters and every filter with wildcards."""
        return [f for f in self.filters.values() if f.shard is None or f.shard == shard]

    def validate(self) -> None:
        """Check that the tables agree."""
        assert len(self.filters) == len(self._by_key)
        for a_filter in self.filters.values():
            assert self._by_key[a_filter.key] is a_filter
            assert a_filter.members
            assert all(a_filter.members.values())
        texts = (texts for a_filter in self.filters.values() for texts in a_filter.members.values())
        assert self.memberships == sum(map(len, texts)) == sum(self.members.values())
        assert self.members.keys() == {one for a_filter in self.filters.values() for one in a_filter.members}
        for key, a_set in self._sets.items():
            assert a_set.references > 0
            assert a_set.filters is key
        for a_set in self._resolved:
            assert a_set.resolved_at >= 0
            assert a_set.sessions is not None
        found = sum(len(a_set.sessions or ()) for a_set in self._resolved)
        assert self.resolved_bytes == RESOLVED_SESSION_BYTES * found


def filter_entry(a_filter: Filter[S]) -> FilterEntry:
    """Give a filter as FILTERS tells it to a worker."""
    vpn_id, pattern, kind, _ = a_filter.key
    return FilterEntry(a_filter.id, vpn_id, pattern, kind)


def _key(vpn_id: int, parsed: ParsedFilter, deliver_always: bool) -> FilterKey:  # noqa: FBT001 - part of the key
    if parsed.share is not None:
        return (vpn_id, parsed.pattern, wire.KIND_SHARED, parsed.share)
    if deliver_always or parsed.pattern == ">":  # `>` is always deliver-always (R84)
        return (vpn_id, parsed.pattern, wire.KIND_DELIVER_ALWAYS, None)
    return (vpn_id, parsed.pattern, wire.KIND_PLAIN, None)
