"""What operators hear of a spool that becomes too full, is full, and is empty enough again (`router.ground.alarms`).

Watched are the spool usage of endpoints, Message VPNs and the node, the node's spool files and delivered messages
without settlement, and how near an endpoint is to refusing messages of low priority.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.admission.usage import ENDPOINT_QUOTA, FILES, LOW_PRIORITY, NODE_QUOTA, VPN_QUOTA
from router.ground.alarms import (
    ENDPOINT_LOW_PRIORITY,
    ENDPOINT_USAGE,
    NODE_FILES,
    NODE_UNACKED,
    NODE_USAGE,
    VPN_USAGE,
)

if TYPE_CHECKING:
    from router.admission.usage import Account, Reason, Usage
    from router.ground.alarms import Alarms
    from router.guaranteed.endpoints import Endpoint
    from router.sessions.directory import Vpn


class Thresholds:
    """Has everything looked at that changes in the spool."""

    def __init__(self, usage: Usage, alarms: Alarms) -> None:
        """Listen to what `usage` refuses."""
        self._usage = usage
        self._alarms = alarms
        usage.on_refused = self.refused
        #: Accounts that changed since they were looked at.
        self.changed: dict[Account, None] = {}

    def look(self) -> None:
        """Look at the node, and at the accounts that changed: now and then, and before something is said to be full."""
        changed, self.changed = self.changed, {}
        usage, alarms = self._usage, self._alarms
        alarms.look(NODE_USAGE, alarms.node, usage.node.bytes, usage.node.limit_bytes)
        alarms.look(NODE_FILES, alarms.node, len(usage.files))
        unacked = usage.delivered_unacked
        alarms.look(NODE_UNACKED, alarms.node, unacked)
        if unacked >= usage.limits.max_delivered_unacked:
            alarms.exceeded(NODE_UNACKED, alarms.node)
        vpns: dict[int, Vpn] = {}
        for account in [one for one in changed if not one.is_gone]:
            endpoint = account.endpoint
            quota = account.quota_bytes if account.takes_quota else 0
            alarms.look(ENDPOINT_USAGE, endpoint, account.bytes, quota)
            alarms.look(ENDPOINT_LOW_PRIORITY, endpoint, account.messages, account.low_priority_limit or 0)
            vpns[endpoint.vpn.id] = endpoint.vpn
        for vpn in vpns.values():
            self._look_at_vpn(vpn)

    def _look_at_vpn(self, vpn: Vpn) -> None:
        pool = self._usage.vpns[vpn.id]
        self._alarms.look(VPN_USAGE, vpn, pool.bytes, pool.limit_bytes)

    def refused(self, account: Account, reason: Reason) -> None:
        """An endpoint did not take a message."""
        if self.changed:
            self.look()
        alarms, endpoint = self._alarms, account.endpoint
        if reason is ENDPOINT_QUOTA:
            alarms.exceeded(ENDPOINT_USAGE, endpoint, account.quota_bytes)
        elif reason is LOW_PRIORITY:
            alarms.exceeded(ENDPOINT_LOW_PRIORITY, endpoint, account.low_priority_limit or 0)
        elif reason is VPN_QUOTA:
            alarms.exceeded(VPN_USAGE, endpoint.vpn, account.vpn.limit_bytes)
        elif reason is NODE_QUOTA:
            alarms.exceeded(NODE_USAGE, alarms.node, self._usage.node.limit_bytes)
        elif reason is FILES:
            alarms.exceeded(NODE_FILES, alarms.node)

    def endpoint_gone(self, endpoint: Endpoint) -> None:
        """Nobody is warned of what is gone."""
        self._alarms.forget(endpoint, ENDPOINT_USAGE, ENDPOINT_LOW_PRIORITY)
        self.look()
        if endpoint.vpn.id in self._usage.vpns:
            self._look_at_vpn(endpoint.vpn)
        else:
            self._alarms.look(VPN_USAGE, endpoint.vpn, 0, 0)
