"""The queues that the node makes by itself in each Message VPN.

Each link has three, made and deleted with it:

    #link/NODE          what the neighbour's endpoints want; the link process consumes it and publishes it there
    #link/NODE/retry    what the neighbour refused once: it is asked again, a little later
    #link/NODE/dmq      what it refused again, and what expired on the way; operators look into it, and redrive

So a full queue on the far side holds up nothing that is behind it, and every step from one to the next is a move, which
happens once.

    #retained           the newest message of each topic that was published to be retained

This one is there while its Message VPN may retain anything (`max_retained_mb`), which is its quota.
"""

from __future__ import annotations

from typing import Final

from angarium import wire
from cluster import objects

#: How long a message waits that was refused: by then a consumer may have made room.
RETRY_DELAY_S: Final = 5
#: Subscriptions that the endpoints of one neighbour may have in one Message VPN.
MAX_LINK_SUBSCRIPTIONS: Final = 100_000
#: What operators may set of the queue for retained messages; all else follows from its Message VPN.
RETAINED_SWITCHES: Final = ("ingress_enabled", "egress_enabled")


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
