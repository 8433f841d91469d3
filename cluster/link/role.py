"""What a link process is among the processes of a node, and what it says of its channels."""

from __future__ import annotations

from typing import Final

from angarium_server.frames.metrics import Metrics
from cluster.link.config import links_to_run
from cluster.relay.runtime import of_relay
from cluster.roles.role import Indices, Role

CHANNEL: Final = Metrics(
    "channel",
    """
    attempts | counter | number | of the link process to connect, since it started
    relayed_in, relayed_out | counter | messages | carried by the link process since the link came up
    rounds_waiting, wishes_waiting | gauge | number | waiting in the link process for a router
    untold_in, untold_out | gauge | number | those of them that are not announced yet to this node, or to the neighbour
    discarded | counter | messages | lost on the way through the link process, or before it
    refused | counter by code | messages | refused by a router
    queues | | | of the two queues of each direction: `queue`, `open`, `waiting`, `under_way`, `acknowledged`, and
     `refused` by code; in messages, since the link came up
    """,
)

LINK: Final = Role(
    name="link",
    module="cluster.link",
    runtime=of_relay,
    stop_turn=20,
    indices=Indices.OBJECTS,
    is_needed=False,
    wanted=links_to_run,
)
