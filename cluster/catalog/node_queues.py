"""The queues that the node makes by itself in each Message VPN.

Each link has three, made and deleted with it:

    #link/NODE          what the neighbour's endpoints want; the link process consumes it and publishes it there
    #link/NODE/retry    what the neighbour refused once: it is asked again, a little later
    #link/NODE/dmq      what it refused again, and what expired on the way; operators look into it, and redrive

So a full queue on the far side holds up nothing that is behind it, and every step from one to the next is a move, which
happens once.

    #retained           the newest message of each topic that was published to be retained

This one is there while its Message VPN may retain anything (`max_retained_mb`), which is its quota.

    #mqtt/NAME                      the session of an MQTT client (`cluster.catalog.sessions`)
    #mqtt/$share/GROUP/FILTER       what those get who share a filter of MQTT
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from angarium import errors, wire
from cluster import objects

if TYPE_CHECKING:
    from collections.abc import Iterable

#: How long a message waits that was refused: by then a consumer may have made room.
RETRY_DELAY_S: Final = 5
#: Subscriptions that the endpoints of one neighbour may have in one Message VPN.
MAX_LINK_SUBSCRIPTIONS: Final = 100_000
#: What operators may set of the queue for retained messages; all else follows from its Message VPN.
SWITCHES: Final = ("ingress_enabled", "egress_enabled")

#: What operators may set of the queue of a session, but for the switches above; templates say it of new ones.
SESSION_SETTINGS: Final = (
    "durability",
    "max_message_bytes",
    "max_spool_usage_mb",
    "max_ttl_s",
    "reject_to_sender",
)


def names_of(node: str) -> tuple[str, str, str]:
    """Give the names of the queues of a link: the queue, the one for another try, and the one for dead messages."""
    name = wire.LINK_NAME_PREFIX + node
    return name, name + wire.LINK_RETRY_SUFFIX, name + wire.LINK_DMQ_SUFFIX


def queues_of(node: str) -> dict[str, objects.Attributes]:
    """Give name -> attributes of the queues of a link, without id and homes."""
    name, retry, dmq = names_of(node)
    common = {"max_delivered_unacked_per_flow": wire.LINK_WINDOW}
    return {
        name: objects.complete("queue", {**common, "dead_message_queue": retry}),
        retry: objects.complete(
            "queue", {**common, "dead_message_queue": dmq, "delivery_delay_s": RETRY_DELAY_S}
        ),
        dmq: objects.complete("queue", {"dead_message_queue": "", "respect_ttl": False}),
    }


def node_of(name: str) -> str:
    """Give the neighbour to whose link a queue belongs, empty if it is no link's."""
    if not name.startswith(wire.LINK_NAME_PREFIX):
        return ""
    return name.removeprefix(wire.LINK_NAME_PREFIX).partition("/")[0]


def is_carried(name: str) -> bool:
    """Tell whether a link consumes a queue: the one for the neighbour, and the one for another try."""
    return bool(node_of(name)) and not name.endswith(wire.LINK_DMQ_SUFFIX)


def is_as_made(name: str, attributes: objects.Attributes) -> bool:
    """Tell whether a queue is one of a link, and as the link made it; what the neighbour wants of it is no change."""
    made = queues_of(node_of(name)).get(name)
    fixed = {attribute.name for attribute in objects.identity_of("queue")}
    return made is not None and all(attributes[one] == made[one] for one in made.keys() - fixed)


def retained_queue(vpn: objects.Attributes) -> objects.Attributes | None:
    """Give the attributes of the queue for retained messages, without id and homes; None: the Message VPN has none."""
    quota = vpn["max_retained_mb"]
    if not quota:
        return None
    given = {"access_type": "non-exclusive", "dead_message_queue": "", "max_spool_usage_mb": quota}
    return objects.complete("queue", given)


def is_retained(kind: str, name: str) -> bool:
    """Tell whether an object is the queue for retained messages of its Message VPN."""
    return kind == "queue" and name == wire.RETAINED_QUEUE


def check_switches(kind: str, name: str, given: Iterable[str]) -> None:
    """Refuse to change what of a queue of the node's own follows from something else.

    Raises:
        ConflictError: it does (40902).
    """
    if is_retained(kind, name) and not {*given} <= {*SWITCHES}:
        detail = f"queue {name!r} follows from max_retained_mb of its Message VPN: update that"
        raise errors.error_for(errors.OBJECT_IN_USE, detail)
    other = [one for one in given if one not in (*SWITCHES, *SESSION_SETTINGS)]
    if is_session(kind, name) and other:
        settings = ", ".join(sorted((*SWITCHES, *SESSION_SETTINGS)))
        detail = (
            f"queue {name!r} is the session of an MQTT client, which sets {other[0]}; you may set {settings}"
        )
        raise errors.error_for(errors.OBJECT_IN_USE, detail)


def without_fixed(kind: str, name: str, given: objects.Attributes) -> objects.Attributes:
    """Give what a backup may change of an object that is there: no identity, and of a session what operators may."""
    fixed = {attribute.name for attribute in objects.identity_of(kind)}
    if is_session(kind, name):
        fixed |= given.keys() - {*SWITCHES, *SESSION_SETTINGS}
    return {one: value for one, value in given.items() if one not in fixed}


def is_session(kind: str, name: str) -> bool:
    """Tell whether an object is the queue of the session of an MQTT client."""
    return kind == "queue" and name.startswith(wire.SESSION_QUEUE_PREFIX)


def check_declared_name(kind: str, name: str, given: objects.Attributes) -> None:
    """Refuse a name that no object of a backup has: it may also name a queue of a link.

    Raises:
        InvalidRequestError: the same as `check_name`.
    """
    if kind != "queue" or name not in names_of(node_of(name)):
        check_name(kind, name, given)


def check_name(kind: str, name: str, given: objects.Attributes) -> None:
    """Refuse a name that operators cannot give an object; a session of a backup keeps its own.

    Raises:
        InvalidRequestError: the kind does not allow it (40018, 40022), or the queue of a session has another (40015).
    """
    if given.get("session") is None:
        objects.check_name(objects.kind_of(kind), name)
        return
    is_shared = name.startswith(wire.SHARED_QUEUE_PREFIX)
    own = name.removeprefix(wire.SHARED_QUEUE_PREFIX if is_shared else wire.SESSION_QUEUE_PREFIX)
    if not is_session(kind, name) or ("/" in own and not is_shared):
        detail = f"{kind} {name!r} has a session: its name is {wire.SESSION_QUEUE_PREFIX}CLIENT"
        raise errors.error_for(errors.INVALID_ATTRIBUTE, detail)
    objects.check_name(objects.kind_of(kind), own)
