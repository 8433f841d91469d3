"""What the process of webhooks is among the processes of a node, and what it shows."""

from __future__ import annotations

from typing import Final

from angarium_server.frames.metrics import Metrics
from cluster.roles.role import Indices, Role
from cluster.webhook.config import of_webhook, webhooks_to_run

METRICS: Final = Metrics(
    "webhook",
    """
    up | gauge by webhook | 0, 1 | whether it consumes its queue, and its last attempt was accepted; or stands by
    standby | gauge by webhook | 0, 1 | whether another consumer of its exclusive queue has its turn
    attempts | counter by webhook | number | requests that were begun
    accepted | counter by webhook | number | of them, answered with 2xx
    failed | counter by webhook | number | of them, without an answer or with another code: tried again
    rejected | counter by webhook | number | of them, the last ones of a message: it is rejected, by its queue's rules
    under_way | gauge by webhook | number | requests without an answer yet
    waiting | gauge by webhook | messages | taken, and posted later
    malformed_contexts | counter | messages | of which a malformed traceparent or tracestate was left out
    held_bytes, held_bytes_max | gauge | bytes | of messages that all of them have taken and not settled; what they may
     hold, `http.webhook_memory_bytes`
    room_waits | counter | number | times that one found no share of that, and tried again later
    given_back | counter | messages | given back to their queues because it was too much for all
    in_use_bytes | gauge | bytes | memory that objects of the process have
    """,
)

WEBHOOK: Final = Role(
    name="webhook",
    module="cluster.webhook",
    runtime=of_webhook,
    stop_turn=14,
    indices=Indices.OBJECTS,
    is_needed=False,
    wanted=webhooks_to_run,
    metrics=METRICS,
)
