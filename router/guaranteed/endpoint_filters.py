"""What endpoints match, as filters of the workers: put in place, and taken away, in steps.

A queue may have thousands of subscriptions, and each costs tens of microseconds. So a change of many is done some at a
time, endpoints in turn, one step in each turn of the loop; others are served in between, and whoever made the change
has the answer when all of it is in force. A change of a few is done at once, whatever else there is to do.

Exceptions come before what they narrow down, and go after it: while a change is under way, a queue does not take what
it should not take before or after. An endpoint that is gone matches nothing from that moment on (`Endpoints.resolve`);
its filters leave the workers in steps.

No I/O, no clock. Called by `router.guaranteed.endpoints`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from angarium import wire
from angarium.errors import AngariumError
from angarium.topic import parse_filter
from angarium_server.costs import subscription_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from router.matching.shards import Shards
    from router.sessions.directory import Vpn
    from router.sessions.interest import Filter, Interest

#: Filters that are put in place or taken away in one step: 2 to 3 ms.
STEP_MAX: Final = 160
#: So many of one endpoint are done before another one has its turn; a change of no more is done at once.
PIECE: Final = 16


#: A filter that keeps messages out starts so.
EXCEPTION_MARK: Final = "!"
#: Stands for every topic; the queue for retained messages has it under a kind of its own.
EVERYTHING: Final = ">"

#: (kind of filter, text of the subscription, its pattern): `a` and `#noexport/a` are one filter of two names.
FilterName = tuple[int, str, str]


class HasFilters(Protocol):
    """What of an endpoint concerns its filters; `router.guaranteed.endpoints.Endpoint` says what each is."""

    vpn: Vpn
    filters: dict[FilterName, Any]
    parsed: dict[str, FilterName | None]
    holders: int
    is_gone: bool
    retains: bool

    @property
    def address(self) -> str:
        """Give the topic that is its own, or nothing."""

    @property
    def takes_exceptions(self) -> bool:
        """Tell whether a subscription may keep messages out."""

    def count(self, name: str) -> None:
        """Add one to one of its counters."""


EndpointT = TypeVar("EndpointT", bound=HasFilters)


class _Change:
    """What is left to do for an endpoint."""

    __slots__ = ("add", "done", "newest", "remove")

    def __init__(self) -> None:
        #: Subscriptions that are not parsed yet, and those that it has and is to lose; exceptions come first, and last.
        self.add: OrderedDict[str, None] = OrderedDict()
        self.remove: OrderedDict[str, None] = OrderedDict()
        #: By the worker that holds them, None for all: the newest filter that it was given.
        self.newest: dict[int | None, Filter[Any]] = {}
        #: Called when the workers have confirmed all of it.
        self.done: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self.add) + len(self.remove)


class EndpointFilters(Generic[EndpointT]):
    """The filters of all endpoints."""

    def __init__(
        self,
        interest: Interest[EndpointT],
        shards: Shards,
        on_filter: Callable[[int, str], None],
        on_cost: Callable[[EndpointT, int], None],
        *,
        exceptions: bool,
    ) -> None:
        """Begin without any.

        `on_filter` is called with (VPN number, pattern) when a filter comes or goes, `on_cost` with an endpoint and how
        much more it costs now, or less. Without `exceptions` (R125) `!filter` is a filter for topics that begin so.
        """
        self._interest = interest
        self._shards = shards
        self._on_filter = on_filter
        self._on_cost = on_cost
        self.exceptions = exceptions
        #: What is not done; who had a turn is last.
        self._changes: OrderedDict[EndpointT, _Change] = OrderedDict()
        #: What a step may cost, and what this one still may before the next one begins.
        self.step_max = self._left = STEP_MAX
        #: The number of the newest exception that was made, whether it is there still.
        self.newest_exception = 0

    def __bool__(self) -> bool:
        """Tell whether there is something left to do."""
        return bool(self._changes)

    def put(self, endpoint: EndpointT, texts: Iterable[str], done: Callable[[], None]) -> None:
        """Have an endpoint match this and nothing else; `done` is called when the workers have confirmed it.

        A filter that the workers know already counts at once, also for what they have matched; new exceptions do so by
        `late_exceptions`.
        """
        wanted = dict.fromkeys(texts)
        earlier = self._changes.get(endpoint)
        known = [*endpoint.parsed, *(earlier.add if earlier is not None else ())]
        self.edit(endpoint, wanted, [text for text in known if text not in wanted], done)

    def edit(
        self, endpoint: EndpointT, added: Iterable[str], removed: Iterable[str], done: Callable[[], None]
    ) -> None:
        """Have an endpoint match some more and others no longer, as `put` does; this costs what changes only.

        What is added and matches already, or is removed and does not match, makes no difference.
        """
        change = self._changes.pop(endpoint, None) or _Change()
        for text in added:
            if text in change.remove:
                del change.remove[text]
            elif text not in endpoint.parsed:
                change.add[text] = None
                if self._is_exception(text):
                    change.add.move_to_end(text, last=False)
        for text in removed:
            if text in change.add:
                del change.add[text]
            elif text in endpoint.parsed:
                change.remove[text] = None
                if not self._is_exception(text):
                    change.remove.move_to_end(text, last=False)
        change.done.append(done)
        self._begin(endpoint, change)

    def remove(self, endpoint: EndpointT) -> None:
        """An endpoint is gone: its filters leave the workers."""
        earlier = self._changes.pop(endpoint, None)
        change = _Change()
        change.remove.update(dict.fromkeys(endpoint.parsed))
        change.done = earlier.done if earlier is not None else []
        self._begin(endpoint, change)

    def _begin(self, endpoint: EndpointT, change: _Change) -> None:
        if len(change) <= PIECE:
            self._do_some(endpoint, change, PIECE)
            return
        self._changes[endpoint] = change
        self._go_on()

    def step(self) -> None:
        """Do the next step, in the next turn of the loop."""
        self._left = self.step_max
        self._go_on()

    def finish(self) -> None:
        """Do all that is left: nobody may come before it is done."""
        while self._changes:
            self.step()

    def _go_on(self) -> None:
        while self._changes and self._left > 0:
            endpoint, change = self._changes.popitem(last=False)
            limit = min(PIECE, self._left) if self._changes else self._left
            self._left -= limit
            if not self._do_some(endpoint, change, limit):
                self._changes[endpoint] = change

    def _do_some(self, endpoint: EndpointT, change: _Change, limit: int) -> bool:
        """Do so much of a change; true if that was the rest."""
        added: list[Any] = []
        removed: list[Any] = []
        size = 0
        for _ in range(min(limit, len(change))):
            if change.add:
                size += self._add(endpoint, change, added)
            else:
                size -= self._take_away(endpoint, change.remove.popitem(last=False)[0], removed)
        if size and not endpoint.is_gone:
            self._on_cost(endpoint, size)
        self._shards.change_filters(added, removed)
        if change:
            return False
        for done in change.done:
            self._shards.await_pending(list(change.newest.values()), done)
        return True

    def _add(self, endpoint: EndpointT, change: _Change, added: list[Any]) -> int:
        """Have an endpoint match one filter more; gives what that costs."""
        text, _ = change.add.popitem(last=False)
        name = endpoint.parsed[text] = self._name_of(endpoint, text)
        if name is None:
            return 0
        kind, plain, pattern = name
        vpn_id = endpoint.vpn.id
        found = self._interest.find_kind(vpn_id, pattern, kind)
        if found is None:
            found = self._interest.create_kind(vpn_id, pattern, kind, self._shards.table)
            if kind == wire.KIND_EXCEPTION:
                self.newest_exception = found.id
            self._on_filter(vpn_id, pattern)
            added.append(found)
        self._interest.join(found, endpoint, plain)
        endpoint.filters[name] = found
        newest = change.newest.get(found.shard)
        if newest is None or newest.id < found.id:
            change.newest[found.shard] = found
        return subscription_bytes(plain, pattern, endpoint.holders)

    def _take_away(self, endpoint: EndpointT, text: str, removed: list[Any]) -> int:
        """Have an endpoint match one filter less; gives what that cost."""
        name = endpoint.parsed.pop(text)
        if name is None:
            return 0
        gone = endpoint.filters.pop(name)
        if self._interest.leave(gone, endpoint, name[1]):
            removed.append(gone)
            self._on_filter(endpoint.vpn.id, gone.pattern)
        return subscription_bytes(name[1], name[2], endpoint.holders)

    def _name_of(self, endpoint: EndpointT, text: str) -> FilterName | None:
        if text == endpoint.address and text:
            return wire.KIND_ENDPOINT, text, text
        if endpoint.retains:
            return wire.KIND_RETAINED, text, text
        kind = wire.KIND_ENDPOINT
        if self.exceptions and text.startswith(EXCEPTION_MARK) and endpoint.takes_exceptions:
            kind, text = wire.KIND_EXCEPTION, text.removeprefix(EXCEPTION_MARK)
        try:
            return kind, text, parse_filter(text).pattern
        except AngariumError:  # the controller lets none in
            endpoint.count("invalid_subscriptions")
            return None

    def _is_exception(self, text: str) -> bool:
        return self.exceptions and text.startswith(EXCEPTION_MARK)

    def validate(self) -> None:
        """Check what the comments promise."""
        for endpoint, change in self._changes.items():
            assert change
            assert all(text not in endpoint.parsed for text in change.add)
            assert all(text in endpoint.parsed for text in change.remove)
