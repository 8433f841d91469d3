"""What the process of webhooks is among the processes of a node, what it is told, and what it shows."""

from __future__ import annotations

from ipaddress import ip_network
from typing import TYPE_CHECKING, Any, Final

import msgspec

from angarium_server.frames.metrics import Metrics
from cluster.objects.webhooks import Webhook
from cluster.roles.role import Indices, Role

if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network

    from cluster.catalog.catalog import Catalog
    from cluster.roles.role import InForce

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


class WebhookRuntime(msgspec.Struct, frozen=True, kw_only=True):
    """Which node this is, what shows the router that it is a process of it, and where webhooks may go."""

    node_id: str
    local_secret: str
    #: Beside the public ones.
    networks: list[str]
    #: What all of them may hold together.
    memory_bytes: int

    @property
    def allowed(self) -> list[IPv4Network | IPv6Network]:
        """Give these networks."""
        return [ip_network(text, strict=False) for text in self.networks]


class WebhookConfig(Webhook, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the controller tells of one webhook: its attributes, and where it is."""

    name: str
    vpn: str


def of_webhook(now: InForce) -> WebhookRuntime:
    """Give what the one process needs."""
    return WebhookRuntime(
        node_id=now.identity.node_id,
        local_secret=now.identity.local_secret,
        networks=now.config.http.webhook_networks,
        memory_bytes=now.config.http.webhook_memory_bytes,
    )


def webhooks_to_run(catalog: Catalog, _node: str) -> dict[int, dict[str, Any]]:
    """Give what the process has to do; without a webhook that is enabled, in a Message VPN that is, there is none."""
    vpns = {name for (_, name), vpn in catalog.of_kind("vpn").items() if vpn["enabled"]}
    found = [
        {**{one: webhook[one] for one in Webhook.__struct_fields__}, "name": name, "vpn": vpn}
        for (vpn, name), webhook in catalog.of_kind("webhook").items()
        if webhook["enabled"] and vpn in vpns
    ]
    return {0: {"webhooks": found}} if found else {}


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
