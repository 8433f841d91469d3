"""What clients wish of endpoints: create, delete, subscribe, set the topic; turned into changes, or refused.

The router has judged by then whether the client may wish it (profile, permission, owner). Here it is judged whether
it can be: names, limits, attributes, templates, and who created what. An operator's endpoint is deleted by operators
only (R132), and the subscriptions that operators added are not removed by clients, so those that
clients added are kept apart.

An endpoint that a client creates takes what the client gives (R108), else what a template says (R110), else the
defaults (R109), but that it is non-exclusive; its owner is the client's username (R131). Pure, as all of the catalog.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from angarium import errors
from angarium.topic import parse_filter
from angarium_server.shapes import Shapes, shape_of
from cluster import objects
from cluster.catalog import templates
from cluster.catalog.node_queues import MAX_LINK_SUBSCRIPTIONS, node_of
from cluster.objects.attributes import DEFAULT_NAME
from cluster.objects.endpoints import EXCEPTION_MARK
from node.selectors import compile_selector
from storage.config_store import Change

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cluster.catalog.catalog import Catalog, Key
    from storage.config_store import Entry

#: Attributes that operators set and clients do not.
OPERATORS_ONLY: Final = ("owner", "ingress_enabled", "egress_enabled")

#: What a durable endpoint is that a client creates, if neither the client nor a template says: applications that
#: consume with several processes expect each to get its share.
CLIENTS_ACCESS_TYPE: Final = "non-exclusive"

#: Nothing, or the code and the detail of a refusal.
Verdict = list[Any] | None


class CreateWish(msgspec.Struct):
    """What `endpoint.create` asks for."""

    vpn: str
    kind: str
    name: str
    username: str
    client: str = ""
    durable: bool = True
    attributes: dict[str, Any] = {}
    ignore_exists: bool = False


class Created(NamedTuple):
    """What a wish to create comes to."""

    changes: list[Entry]
    #: False if it exists already.
    created: bool


class Subscribed(NamedTuple):
    """What a wish to change subscriptions comes to; a verdict for each filter, in order."""

    changes: list[Entry]
    added: list[Verdict]
    removed: list[Verdict]


class ClientEndpoints:
    """The wishes of clients, on a catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def create(self, wish: CreateWish) -> Created:
        """Give the changes that create an endpoint for a client.

        Raises:
            InvalidRequestError: name (40022), attributes (40015) or durability (40021) do not fit.
            UnauthorizedError: it exists with other properties (40102).
            ConflictError: it exists, and `ignore_exists` is not set (40901).
            NotFoundError: the template that the profile names is missing (40401).
            UnavailableError: Message VPN or username have all the endpoints that they may have (50318).
        """
        key = _key(wish.vpn, wish.kind, wish.name)
        given = self._given(wish)
        existing = self._catalog.get(*key)
        if existing is not None:
            return self._existing(key, existing, given, wish)
        template = self.template_for(key, wish.username)
        attributes, durable = _combined(wish, given, template)
        if durable:
            objects.check_name(objects.kind_of(wish.kind), wish.name)
        else:
            objects.check_temporary_name(objects.kind_of(wish.kind), wish.name)
        objects.check_together(wish.kind, attributes)
        self.check_limit(wish.vpn, wish.username)
        return Created(self._catalog.new_endpoint(key, attributes), created=True)

    def delete(self, vpn: str, kind: str, name: str, endpoint: int | None = None) -> list[Entry]:
        """Give the changes that delete an endpoint for a client; nothing if it is another one by now.

        Raises:
            NotFoundError: there is none (40404).
            ForbiddenError: an operator created it (40317).
        """
        key = _key(vpn, kind, name)
        attributes = self._get(key)
        if endpoint is not None and attributes["id"] != endpoint:
            return []
        if attributes["created_by"] == objects.OPERATOR:
            raise errors.error_for(errors.OPERATOR_ENDPOINT, f"{kind} {name!r}")
        return [Change(*key, None)]

    def expire(self, vpn: str, kind: str, name: str, endpoint: int) -> list[Entry]:
        """Give the changes that delete an endpoint that had no flow for long; nothing if it may stay, or is gone."""
        key = _key(vpn, kind, name)
        attributes = self._catalog.get(*key)
        if attributes is None or attributes["id"] != endpoint or not attributes.get("max_idle_s"):
            return []
        return [Change(*key, None)]

    def subscribe(self, vpn: str, name: str, add: list[str], remove: list[str]) -> Subscribed:
        """Give the change of what a client added to a queue, with a verdict for each filter.

        A filter that is there already is accepted: who subscribes again after a reconnect means the same.

        Raises:
            NotFoundError: there is no such queue (40404).
        """
        key = _key(vpn, "queue", name)
        before = self._get(key)
        operators: list[str] = before["subscriptions"]
        clients: dict[str, None] = dict.fromkeys(before["client_subscriptions"])
        limit = MAX_LINK_SUBSCRIPTIONS if node_of(name) else objects.MAX_QUEUE_SUBSCRIPTIONS
        overlap = None if node_of(name) else self.overlap(vpn, [*operators, *clients], len(add))
        added = [self._add(text, operators, clients, limit, overlap) for text in add]
        removed = [_remove(text, operators, clients) for text in remove]
        after = {**before, "client_subscriptions": list(clients)}
        return Subscribed([] if after == before else [Change(*key, after)], added, removed)

    def set_topic(self, vpn: str, name: str, topic: str | None, selector: str | None) -> list[Entry]:
        """Give the change of topic and selector of a topic endpoint, which empties it (R149); nothing if it has them.

        Raises:
            InvalidRequestError: no topic (40005), an exception (40028), or no selector (40601).
            ForbiddenError: a shared subscription (40316).
            NotFoundError: there is no such topic endpoint (40404).
        """
        key = _key(vpn, "topic-endpoint", name)
        before = self._get(key)
        where = f"topic of topic endpoint {name!r}"
        if topic is not None:
            objects.check_topic(where, topic)
        if selector is not None:
            compile_selector(selector)  # a home could do nothing with one that does not compile
        if (before["topic"], before["selector"]) == (topic, selector):
            return []
        changed = {"topic": topic, "selector": selector, "generation": before["generation"] + 1}
        return [Change(*key, {**before, **changed})]

    # -- parts -----------------------------------------------------------------------------------------------

    def _given(self, wish: CreateWish) -> objects.Attributes:
        refused = [name for name in OPERATORS_ONLY if name in wish.attributes]
        if refused:
            detail = f"{wish.kind} attribute {refused[0]} is set by operators only"
            raise errors.error_for(errors.INVALID_ATTRIBUTE, detail)
        given = objects.convert(wish.kind, wish.attributes)
        texts = given.get("subscriptions", ())
        self._catalog.check_exceptions(texts)
        overlap = self.overlap(wish.vpn, [], len(texts))
        if overlap is not None and not all(map(overlap.add, texts)):
            detail = f"max_overlapping_filters_per_queue is {overlap.limit}"
            raise errors.error_for(errors.OVERLAPPING_FILTERS, detail)
        return given

    def _existing(
        self, key: Key, existing: objects.Attributes, given: objects.Attributes, wish: CreateWish
    ) -> Created:
        title = f"{wish.kind} {wish.name!r}"
        if existing["durable"] != wish.durable:
            detail = f"{title} is {'durable' if existing['durable'] else 'temporary'}"
            raise errors.error_for(errors.INVALID_DURABILITY, detail)
        other = [name for name in given if name != "subscriptions" and existing[name] != given[name]]
        if other:
            detail = f"{title} has {other[0]} = {existing[other[0]]!r}"
            raise errors.error_for(errors.ENDPOINT_PROPERTY_MISMATCH, detail)
        if not wish.ignore_exists:
            raise errors.error_for(errors.OBJECT_EXISTS, f"{title} in Message VPN {key[1]!r}")
        return Created([], created=False)

    def _profile(self, vpn: str, username: str) -> objects.Attributes:
        """Give the client profile of a username; the default one if it was deleted under its client."""
        user = self._catalog.get("username", vpn, username)
        name = DEFAULT_NAME if user is None else user["client_profile"]
        profile = self._catalog.get("profile", vpn, name)
        if profile is None:
            raise errors.error_for(errors.VPN_UNAVAILABLE, vpn)
        return profile

    def template_for(self, key: Key, username: str) -> objects.Attributes | None:
        """Give the template from which an endpoint of a client is made.

        Raises:
            NotFoundError: its profile names one that is missing (40401).
        """
        kind, vpn, name = key
        profile = self._profile(vpn, username)
        known = {one: attributes for (_, one), attributes in self._catalog.of_kind("template", vpn).items()}
        return templates.choose(known, kind, name, profile)

    def check_limit(self, vpn: str, username: str) -> None:
        """Refuse one endpoint more than clients of a username may create.

        Raises:
            UnavailableError: so it is (50318).
        """
        limit = self._profile(vpn, username)["max_endpoint_count_per_username"]
        if self._catalog.placement.of_creator[vpn, objects.creator(username)] >= limit:
            detail = f"clients of username {username!r} created {limit}, max_endpoint_count_per_username"
            raise errors.error_for(errors.TOO_MANY_ENDPOINTS, detail)

    def _get(self, key: Key) -> objects.Attributes:
        attributes = self._catalog.get(*key)
        if attributes is None:
            raise errors.error_for(errors.UNKNOWN_ENDPOINT, f"{key[0]} {key[2]!r}")
        return attributes

    def overlap(self, vpn: str, texts: list[str], more: int) -> Overlap | None:
        """Give the kinds of filters that a queue has; None if some more cannot be too many."""
        limits = self._catalog.get("vpn", "", vpn)
        limit = limits["max_overlapping_filters_per_queue"] if limits else 0
        return Overlap(limit, texts) if limits and len(texts) + more > limit else None

    def _add(
        self,
        text: str,
        operators: Iterable[str],
        clients: dict[str, None],
        limit: int,
        overlap: Overlap | None,
    ) -> Verdict:
        if text in operators or text in clients:
            return None
        try:
            objects.check_queue_filter("subscription", text)
            self._catalog.check_exceptions((text,))
        except errors.AngariumError as error:
            return [error.code, error.detail]
        if len(clients) >= limit:
            return [errors.MAX_SUBSCRIPTIONS_EXCEEDED, f"clients added {limit} to this queue"]
        if overlap is not None and not overlap.add(text):
            return [errors.OVERLAPPING_FILTERS, f"max_overlapping_filters_per_queue is {overlap.limit}"]
        clients[text] = None
        return None


class Overlap:
    """The kinds of filters that a queue has, and how many it may have."""

    def __init__(self, limit: int, texts: Iterable[str]) -> None:
        self.limit = limit
        self._shapes = Shapes()
        for text in texts:
            self._take(_shape(text))

    def _take(self, shape: str | None) -> None:
        if shape is not None:
            self._shapes.add(shape)

    def add(self, text: str) -> bool:
        """Take one more filter; false if it is of a kind too many."""
        shape = _shape(text)
        if shape is not None and shape not in self._shapes and len(self._shapes) >= self.limit:
            return False
        self._take(shape)
        return True


def _shape(text: str) -> str | None:
    return shape_of(parse_filter(text.removeprefix(EXCEPTION_MARK)).pattern)


def _key(vpn: str, kind: str, name: str) -> Key:
    if kind not in objects.ENDPOINT_KINDS:
        detail = f"{kind!r} is no kind of endpoint; there are {', '.join(objects.ENDPOINT_KINDS)}"
        raise errors.invalid(detail)
    return kind, vpn, name


def _remove(text: str, operators: Iterable[str], clients: dict[str, None]) -> Verdict:
    if text in clients:
        del clients[text]
        return None
    if text in operators:
        return [errors.OPERATOR_ENDPOINT, f"subscription {text!r}"]
    return [errors.SUBSCRIPTION_NOT_FOUND, repr(text)]


def _combined(
    wish: CreateWish, given: objects.Attributes, template: objects.Attributes | None
) -> tuple[objects.Attributes, bool]:
    """Give the attributes of a new endpoint, and whether it is durable (R94, R105)."""
    base = templates.endpoint_attributes(template) if template is not None else {}
    durable = wish.durable and (template is None or template["durability_override"] == "none")
    own = {name: value for name, value in given.items() if name != "subscriptions"}
    attributes = objects.complete(wish.kind, {"access_type": CLIENTS_ACCESS_TYPE, **base, **own})
    attributes |= {
        "owner": wish.username,
        "created_by": objects.creator(wish.username),
        "durable": durable,
        "client": "" if durable else wish.client,
    }
    if wish.kind == "queue":
        attributes["client_subscriptions"] = given.get("subscriptions", [])
    if not durable:
        _check_temporary(wish, given)
        attributes |= {"access_type": "exclusive"}
    return attributes, durable


def _check_temporary(wish: CreateWish, given: objects.Attributes) -> None:
    """Refuse what a temporary endpoint cannot be.

    Raises:
        InvalidRequestError: partitioned (R94) or non-exclusive (R105) (40021).
    """
    if given.get("partition_count") or given.get("access_type") == "non-exclusive":
        detail = (
            f"{wish.kind} {wish.name!r} is temporary: only durable ones have partitions or are non-exclusive"
        )
        raise errors.error_for(errors.INVALID_DURABILITY, detail)
