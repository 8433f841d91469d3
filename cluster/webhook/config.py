"""What the supervisor tells the process of webhooks at its start, and the controller whenever objects change."""

from __future__ import annotations

from ipaddress import ip_network
from typing import TYPE_CHECKING, Any

import msgspec

from cluster.objects.webhooks import Webhook

if TYPE_CHECKING:
    from ipaddress import IPv4Network, IPv6Network

    from cluster.catalog.catalog import Catalog
    from cluster.roles.role import InForce


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
