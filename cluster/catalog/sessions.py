"""The sessions of MQTT clients: durable queues of the node's own, opened, changed and closed by their clients.

    #mqtt/NAME          what the client of this name is subscribed to with a QoS above 0, while it is away too

The queue has the filters of the node; the session in it (`objects.Session`) has what the client subscribed to in its
own words, also with QoS 0, so that its gateway can do the same again. The filters follow from the session:

    session                             filters of the queue
    a/#     ["a", "a/>"], QoS 1         a
    a       ["a"], QoS 1                a/>
    b       [], QoS 0

    #mqtt/$share/GROUP/FILTER       what those get who share a filter, each message one of them

A session that ends with its connection has a temporary queue, which is made with the first filter; what has no filters
is not kept in it. Nothing is written if nothing changes: clients come back all the time. Pure, as all of the catalog.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec

from angarium import errors
from cluster import objects
from cluster.catalog.node_queues import SESSION_SETTINGS
from storage.config_store import Change

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cluster.catalog.catalog import Catalog, Key
    from cluster.catalog.endpoints import ClientEndpoints, Verdict
    from storage.config_store import Entry

#: How long a queue that is shared stays at least when nobody takes from it: its members may all come back at once.
SHARED_LEAST_S: Final = 60
#: The filters of the queue, subscription options, and subscription identifier of one MQTT filter.
Subscribed = tuple[list[str], int, int]


class OpenWish(msgspec.Struct):
    """What `session.open` asks for: the queue `name` of a client."""

    vpn: str
    name: str
    username: str
    client: str
    clean: bool
    expiry_s: int
    version: int = 0


class ChangeWish(msgspec.Struct):
    """What `session.change` asks for; its filters may be subscribed to by the client."""

    vpn: str
    name: str
    username: str
    client: str
    put: dict[str, Subscribed] = {}
    drop: list[str] = []
    expiry_s: Annotated[int, msgspec.Meta(ge=1)] | None = None
    #: Whether a temporary queue is to be made: what is there is of a session that is over.
    temporary: bool = False


class ShareWish(msgspec.Struct):
    """What `session.share` asks for: the queue `name` for an MQTT filter that the client may share."""

    vpn: str
    name: str
    username: str
    client: str
    filter: str
    #: What it takes.
    filters: list[str]
    expiry_s: int


class Opened(NamedTuple):
    """What a wish to open comes to."""

    changes: list[Entry]
    #: Whether a session goes on, and what it is subscribed to.
    present: bool
    filters: dict[str, Subscribed]


class Changed(NamedTuple):
    """What a wish to change comes to; a verdict for each MQTT filter that was put, in order."""

    changes: list[Entry]
    verdicts: list[Verdict]


class ClientSessions:
    """The sessions of MQTT clients, on a catalog."""

    def __init__(self, catalog: Catalog, endpoints: ClientEndpoints) -> None:
        """Work on this catalog, as `endpoints` does, which judges what all queues of clients have in common."""
        self._catalog = catalog
        self._endpoints = endpoints

    def open(self, wish: OpenWish) -> Opened:
        """Give the changes that open a session: it goes on, or a new one takes its place.

        Raises:
            ForbiddenError: it is that of another username (40315).
            UnavailableError: Message VPN or username have all the endpoints that they may have (50318).
            NotFoundError: the template that the profile names is missing (40401).
        """
        key = ("queue", wish.vpn, wish.name)
        before = self._get(key, wish.username)
        if before is not None and before["durable"] and not wish.clean:
            session = {**before["session"], "version": wish.version}
            after = {**before, "max_idle_s": max(wish.expiry_s, 1), "session": session}
            return Opened(_change(key, before, after), present=True, filters=session["filters"])
        made = None
        if wish.expiry_s:
            made = self._made(key, wish.username, wish.client, {"max_idle_s": wish.expiry_s})
            made["session"]["version"] = wish.version
        return Opened(self._in_place_of(before, key, made), present=False, filters={})

    def change(self, wish: ChangeWish) -> Changed:
        """Give the change of what a client is subscribed to in its session, and of its time.

        Raises:
            NotFoundError: there is none, and none is to be made (40404).
            AngariumError: what `open` raises.
        """
        key = ("queue", wish.vpn, wish.name)
        before = self._get(key, wish.username)
        if before is None and not wish.temporary:
            raise errors.error_for(errors.UNKNOWN_ENDPOINT, f"queue {wish.name!r}")
        base = before
        if base is None or wish.temporary:
            base = self._made(key, wish.username, wish.client, {"durable": False, "client": wish.client})
        subscribed: dict[str, Subscribed] = dict(base["session"]["filters"])
        for text in wish.drop:
            subscribed.pop(text, None)
        verdicts = self._put(wish, base, subscribed)
        after = _with_filters(base, subscribed)
        if wish.expiry_s is not None:
            after["max_idle_s"] = wish.expiry_s
        if before is not None and not wish.temporary:
            return Changed(_change(key, before, after), verdicts)
        is_needed = bool(after["client_subscriptions"])
        return Changed(self._in_place_of(before, key, after) if is_needed else [], verdicts)

    def share(self, wish: ShareWish) -> list[Entry]:
        """Give the changes by which a client shares a queue: it is there, and outlives its longest session.

        Raises:
            AngariumError: what `change` raises of a filter, and `open` of a queue.
        """
        key = ("queue", wish.vpn, wish.name)
        kept_s = max(wish.expiry_s, SHARED_LEAST_S)
        before = self._catalog.get(*key)
        if before is not None:
            return _change(key, before, {**before, "max_idle_s": max(kept_s, before["max_idle_s"])})
        for one in wish.filters:
            objects.check_queue_filter("subscription", one)
            self._catalog.check_exceptions((one,))
        given = {"access_type": "non-exclusive", "max_idle_s": kept_s}
        made = self._made(key, wish.username, "", given)
        made["owner"] = ""  # its members have various usernames
        made = _with_filters(made, {wish.filter: (wish.filters, 1, 0)})
        self._endpoints.check_limit(wish.vpn, wish.username)
        return self._catalog.new_endpoint(key, made)

    # -- parts -----------------------------------------------------------------------------------------------

    def _get(self, key: Key, username: str) -> objects.Attributes | None:
        """Give the queue of a session if it is there.

        Raises:
            ForbiddenError: it is that of another username (40315).
        """
        found = self._catalog.get(*key)
        if found is not None and found["owner"] != username:
            raise errors.error_for(errors.PERMISSION_DENIED, f"{key[2]} is a session of another username")
        return found

    def _made(self, key: Key, username: str, client: str, given: objects.Attributes) -> objects.Attributes:
        """Give a new queue for a session; what of it operators may change, the template says.

        Raises:
            AngariumError: what `open` raises.
        """
        template = self._endpoints.template_for(key, username) or {}
        settings: objects.Attributes = {name: template[name] for name in SESSION_SETTINGS if name in template}
        return objects.complete(
            "queue",
            {
                **settings,
                **given,
                "dead_message_queue": "",  # what has expired is of no use, as in MQTT
                "owner": username,
                "created_by": objects.creator(username),
                "session": {"client": client},
            },
        )

    def _in_place_of(
        self, before: objects.Attributes | None, key: Key, made: objects.Attributes | None
    ) -> list[Entry]:
        """Give the changes that delete one queue and make another, or one of these.

        Raises:
            UnavailableError: Message VPN or username have all the endpoints that they may have (50318).
        """
        changes: list[Entry] = [] if before is None else [Change(*key, None)]
        if made is not None:
            if before is None:
                self._endpoints.check_limit(key[1], made["owner"])
            changes += self._catalog.new_endpoint(key, made, replaces=before)
        return changes

    def _put(
        self, wish: ChangeWish, base: objects.Attributes, subscribed: dict[str, Subscribed]
    ) -> list[Verdict]:
        """Put what may be, and give the verdicts."""
        filters = dict.fromkeys(_filters_of(subscribed))
        more = sum(len(one[0]) for one in wish.put.values())
        overlap = self._endpoints.overlap(wish.vpn, list(filters), more)
        verdicts: list[Verdict] = []
        for text, one in wish.put.items():
            try:
                self._check(text, one, subscribed, filters)
                new = [each for each in one[0] if each not in filters]
                if overlap is not None and not all(map(overlap.add, new)):
                    detail = f"max_overlapping_filters_per_queue is {overlap.limit}"
                    raise errors.error_for(errors.OVERLAPPING_FILTERS, detail)
            except errors.AngariumError as error:
                verdicts.append([error.code, error.detail])
                continue
            verdicts.append(None)
            subscribed.pop(text, None)
            if one[0] or base["durable"]:
                subscribed[text] = one
                filters.update(dict.fromkeys(new))
        return verdicts

    def _check(
        self, text: str, one: Subscribed, subscribed: dict[str, Subscribed], filters: dict[str, None]
    ) -> None:
        """Judge one MQTT filter.

        Raises:
            AngariumError: why the session cannot have it.
        """
        for each in one[0]:
            objects.check_queue_filter("subscription", each)
            self._catalog.check_exceptions((each,))
        limit = objects.MAX_QUEUE_SUBSCRIPTIONS
        if len({*subscribed, text}) > limit or (one[0] and len({*filters, *one[0]}) > limit):
            raise errors.error_for(errors.MAX_SUBSCRIPTIONS_EXCEEDED, f"a session has at most {limit}")


def _filters_of(subscribed: dict[str, Subscribed]) -> Iterable[str]:
    return (each for one in subscribed.values() for each in one[0])


def _with_filters(base: objects.Attributes, subscribed: dict[str, Subscribed]) -> dict[str, Any]:
    """Give a queue with these subscriptions; its filters stay in their order, so that few are told the router."""
    wanted = dict.fromkeys(_filters_of(subscribed))
    kept = [each for each in base["client_subscriptions"] if each in wanted]
    filters = list(dict.fromkeys([*kept, *wanted]))
    return {**base, "client_subscriptions": filters, "session": {**base["session"], "filters": subscribed}}


def _change(key: Key, before: objects.Attributes, after: objects.Attributes) -> list[Entry]:
    return [] if after == before else [Change(*key, after)]
