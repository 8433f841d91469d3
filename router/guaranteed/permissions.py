"""What a client may do with an endpoint: the layers of access control for consumers (R127 to R139).

The client profile comes first (may it receive, may it create), then the permission on the endpoint: the owner has all
of it, and so has a username with `guaranteed_endpoint_permission_override`; everybody else what the endpoint says. Each
level includes the ones before it:

    no-access  nothing
    read-only  browse, show
    consume    bind and settle
    modify-topic  change the subscriptions of a queue, the topic of a topic endpoint
    delete     delete it, if no operator created it (R132)

A temporary endpoint is for the client that made it alone (R105), and so is the queue of its session at a gateway.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from angarium import errors, wire
from angarium.errors import error_for
from angarium.topic import POINT_TO_POINT_PREFIX, parse_filter
from router.guaranteed.endpoint_filters import EXCEPTION_MARK
from router.guaranteed.endpoints import QUEUE, Endpoint
from router.sessions.directory import profiles_of
from router.sessions.session import session_queue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from router.guaranteed.endpoints import Endpoints
    from router.sessions.session import Session


class Level(IntEnum):
    """A permission; a higher one includes the lower ones."""

    NO_ACCESS = 0
    READ_ONLY = 1
    CONSUME = 2
    MODIFY_TOPIC = 3
    DELETE = 4


_LEVELS: Final = {level.name.lower().replace("_", "-"): level for level in Level}
#: What may be created by clients, by the profile's allow_endpoint_create_durability -> durable?
_CREATABLE: Final = {"all": (True, False), "durable": (True,), "non-durable": (False,)}


#: The queue for dead messages that every Message VPN has.
DEAD_MESSAGE_QUEUE: Final = "#DEAD_MSG_QUEUE"
#: Flows, and producers, of all links, or of all bridges, in one Message VPN: as many as operators make.
CARRIER_FLOWS_MAX: Final = 200_000
#: What sessions of links and bridges may do.
CARRIER_PROFILE: Final[dict[str, Any]] = {
    "allow_guaranteed_receive": True,
    "allow_guaranteed_send": True,
    "allow_endpoint_create": False,
    "allow_endpoint_create_durability": "all",
    "max_egress_flow_count": 16,
    "max_egress_flow_count_per_client_username": CARRIER_FLOWS_MAX,
    "max_ingress_flow_count": 16,
    "max_ingress_flow_count_per_client_username": CARRIER_FLOWS_MAX,
}


def profile_of(session: Session) -> dict[str, Any]:
    """Give the client profile of a session; it is there while the session is."""
    if not session.is_client:
        return CARRIER_PROFILE
    return session.vpn.profiles[session.profile_name]


def level_of(session: Session, endpoint: Endpoint) -> Level:
    """Give what a session may do with an endpoint; that of a link takes what is for its neighbour, and nothing else.

    What is retained is read by a request of its own, whoever owns what.
    """
    if endpoint.retains:
        return Level.NO_ACCESS
    if session.link is not None:
        own = endpoint.link == session.link.node and not endpoint.name.endswith(wire.LINK_DMQ_SUFFIX)
        return Level.CONSUME if own else Level.NO_ACCESS
    if not session.is_client:
        return Level.NO_ACCESS
    owner = endpoint.attributes["owner"]
    if endpoint.name.startswith(wire.SHARED_QUEUE_PREFIX):  # session.share has judged what is in it
        return Level.CONSUME if session.carrier is not None else Level.NO_ACCESS
    if endpoint.is_session:
        is_attached = session.carrier is not None and owner == session.username
        own = is_attached and endpoint.name == session_queue(session.client_name)
        return Level.CONSUME if own else Level.NO_ACCESS
    username = session.vpn.account_of(session.username)
    override = username is not None and username.attributes.get("guaranteed_endpoint_permission_override")
    return level_for(endpoint.attributes, session.username, is_overriding=bool(override))


def level_for(attributes: Mapping[str, Any], username: str, *, is_overriding: bool) -> Level:
    """Give what a username may do with an endpoint of these attributes, if it is one that clients share."""
    if is_overriding or (attributes["owner"] and attributes["owner"] == username):
        return Level.DELETE
    return _LEVELS[attributes["permission"]]


def demand(session: Session, endpoint: Endpoint, level: Level, what: str) -> None:
    """Refuse what a session may not do.

    Raises:
        ForbiddenError: its level is lower (40315).
    """
    has = level_of(session, endpoint)
    if has < level:
        has_name, needed = (one.name.lower().replace("_", "-") for one in (has, level))
        detail = f"{what} {endpoint.name} needs {needed}, {session.username} has {has_name}"
        raise error_for(errors.PERMISSION_DENIED, detail)


def demand_receive(session: Session) -> None:
    """Refuse a client whose profile does not let it receive guaranteed messages (R127).

    Raises:
        ForbiddenError: so it is (40313).
    """
    if not profile_of(session)["allow_guaranteed_receive"]:
        raise error_for(errors.GUARANTEED_RECEIVE_DENIED, f"client profile {session.profile_name}")


def demand_create(session: Session, *, durable: bool) -> None:
    """Refuse a client whose profile does not let it create endpoints (R111).

    Raises:
        ForbiddenError: so it is (40314).
    """
    profile = profile_of(session)
    if not profile["allow_endpoint_create"]:
        raise error_for(errors.ENDPOINT_CREATE_DENIED, f"client profile {session.profile_name}")
    if durable not in _CREATABLE[profile["allow_endpoint_create_durability"]]:
        detail = (
            f"client profile {session.profile_name} allows {profile['allow_endpoint_create_durability']} only"
        )
        raise error_for(errors.ENDPOINT_CREATE_DENIED, detail)


def demand_creator(session: Session, endpoint: Endpoint) -> None:
    """Refuse everybody but the client that made a temporary endpoint (R105).

    Raises:
        ForbiddenError: it is another one (40315).
    """
    if endpoint.durable:
        return
    if endpoint.client != session.client_name or endpoint.creator != session.username:
        raise error_for(
            errors.PERMISSION_DENIED, f"{endpoint.name} is a temporary endpoint of another client"
        )


def creation(
    session: Session, kind: str, name: str, attributes: dict[str, Any], *, durable: bool
) -> dict[str, Any]:
    """Give the arguments with which the controller is asked for an endpoint of a client."""
    return {
        "vpn": session.vpn.name,
        "kind": kind,
        "name": name,
        "username": session.username,
        "client": session.client_name,
        "durable": durable,
        "attributes": attributes,
        "ignore_exists": False,
    }


def check_filter(session: Session, kind: str, text: str, *, exceptions: bool) -> None:
    """Judge a filter that a client wants an endpoint to have: form, and its own right to subscribe.

    Raises:
        InvalidRequestError: it is no filter (40005, 40006), or an exception where there are none (40028, R123).
        ForbiddenError: it is a shared one (40316), names an address (40311), or the ACL forbids it (40303).
    """
    is_exception = text.startswith(EXCEPTION_MARK)
    if is_exception and not (kind == QUEUE and exceptions):
        raise error_for(errors.EXCEPTIONS_NOT_SUPPORTED, text[:300])
    parsed = parse_filter(text.removeprefix(EXCEPTION_MARK))
    if parsed.share is not None:
        raise error_for(errors.SHARED_ON_ENDPOINT, text)
    if parsed.pattern.startswith(POINT_TO_POINT_PREFIX):
        raise error_for(errors.RESERVED_TOPIC, f"{text}: addresses of clients and queues are theirs alone")
    filters = session.permissions.filters
    if not is_exception and (filters is None or not filters.allows_subscribe(parsed.pattern)):
        raise error_for(errors.SUBSCRIBE_DENIED, text)


def check_shared(session: Session, text: str) -> str:
    """Judge a filter that a client wants to share as member of a queue, and give what it matches.

    Raises:
        InvalidRequestError: it is no shared filter (40005, 40006).
        ForbiddenError: it names an address (40311), or profile or ACL forbid it (40303, 40304, 40305).
    """
    parsed = parse_filter(text)
    if parsed.share is None:
        raise error_for(errors.INVALID_FILTER, f"{text} is not shared")
    if parsed.pattern.startswith(POINT_TO_POINT_PREFIX):
        raise error_for(errors.RESERVED_TOPIC, f"{text}: addresses of clients and queues are theirs alone")
    session.permissions.check(parsed)
    return parsed.pattern


def check_dead_message_queue(session: Session, endpoints: Endpoints, attributes: dict[str, Any]) -> None:
    """Judge where the dead messages of an endpoint go that a client creates.

    Raises:
        ForbiddenError: the dead message queue is not for this client (40302).
    """
    named = attributes.get("dead_message_queue")
    if isinstance(named, str):  # what is none is the controller's to refuse
        _check_dead_message_queue(session, endpoints.find(session.vpn.name, QUEUE, named), named)


def _check_dead_message_queue(session: Session, target: Endpoint | None, name: str) -> None:
    """Refuse a dead message queue to which a client could not publish by name: its dead messages go there.

    Like for a message to a queue by name, the ACL profile decides, whatever the permission on the queue, which is about
    consuming; an owner needs no leave for its own queue. The built-in one is open to the dead of all.

    Raises:
        ForbiddenError: it may not publish there (40302).
    """
    is_own = target is not None and target.attributes["owner"] == session.username
    if name in ("", DEAD_MESSAGE_QUEUE) or is_own or not session.is_client:
        return
    username = session.vpn.account_of(session.username)
    acl = None if username is None else session.vpn.acls.get(profiles_of(username, session.grant)[1])
    address = wire.QUEUE_TOPIC_PREFIX + name
    if acl is None or not acl.publish_rules(session.username).allows_publish(address):
        raise error_for(errors.PUBLISH_DENIED, f"{address}, the dead message queue that was asked for")


def partitions_in(attributes: dict[str, Any]) -> int:
    """Give the number of lanes that attributes which a client gave ask for; what is no number is not judged here."""
    given = attributes.get("partition_count", 0)
    return min(max(given, 1), wire.MAX_PARTITIONS) if isinstance(given, int) else 1


def subscriptions_in(attributes: dict[str, Any]) -> list[str]:
    """Give the filters among attributes that a client gave.

    Raises:
        InvalidRequestError: they are no list of texts (40015).
    """
    given = attributes.get("subscriptions", [])
    if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
        raise error_for(errors.INVALID_ATTRIBUTE, "subscriptions is a list of filters")
    return given
