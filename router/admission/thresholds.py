"""Events when the spool becomes too full, is full, and is empty enough again (R185, R197).

Watched are the spool usage of endpoints, Message VPNs and the node, the node's spool files and delivered messages
without settlement, how near an endpoint is to refusing messages of low priority, and the producers of a Message VPN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from router.admission.usage import ENDPOINT_QUOTA, FILES, LOW_PRIORITY, NODE_QUOTA, VPN_QUOTA
from router.sessions.alarm import (
    DEFAULT_PERCENTS,
    Alarm,
    UsernameCounts,
    client_has_room,
    client_is_full,
    percents,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.admission.usage import Account, Reason, Usage
    from router.ground.effects import Outbox
    from router.guaranteed.endpoints import Endpoint
    from router.sessions.directory import Vpn
    from router.sessions.session import Session

NODE_USAGE: Final = "SYSTEM_AD_MSG_SPOOL_HIGH"
NODE_FILES: Final = "SYSTEM_AD_SPOOL_FILES_HIGH"
NODE_UNACKED: Final = "SYSTEM_AD_DELIVERED_UNACKED_MSGS_HIGH"
VPN_USAGE: Final = "VPN_AD_MSG_SPOOL_HIGH"
ENDPOINT_USAGE: Final = "VPN_AD_ENDPOINT_MSG_SPOOL_HIGH"
VPN_INGRESS_FLOWS: Final = "VPN_AD_INGRESS_FLOWS_HIGH"
USERNAME_INGRESS_FLOWS: Final = "VPN_AD_CLIENT_USERNAME_INGRESS_FLOWS_HIGH"
CLIENT_INGRESS_FLOWS: Final = "CLIENT_AD_MAX_INGRESS_FLOWS_EXCEEDED"
ENDPOINT_LOW_PRIORITY: Final = "VPN_AD_MSG_SPOOL_REJECT_LOW_PRIORITY_MSG_LIMIT_HIGH"


class _EndpointAlarms:
    """What is watched of one endpoint; a listener of nothing, so it goes with its entry."""

    __slots__ = ("low_priority", "usage")

    def __init__(self, endpoint: Endpoint) -> None:
        name = f"{endpoint.kind} {endpoint.name}"
        fields = {"scope": "VPN", "vpn": endpoint.vpn.name, "endpoint": endpoint.name}
        self.usage = Alarm(ENDPOINT_USAGE, f"{name} spools bytes", **fields)
        self.low_priority = Alarm(
            ENDPOINT_LOW_PRIORITY, f"{name} takes low priority up to a limit of messages", **fields
        )


class Thresholds:
    """All alarms of the spool."""

    def __init__(self, usage: Usage, outbox: Outbox) -> None:
        self._usage = usage
        usage.on_refused = self.refused
        self._outbox = outbox
        self._node = Alarm(NODE_USAGE, "the node spools bytes")
        self._files = Alarm(NODE_FILES, "spool files are in use")
        self._unacked = Alarm(NODE_UNACKED, "messages are delivered and not acknowledged")
        #: VPN number -> its alarm, with the Message VPN that it is about.
        self._vpns: dict[int, Alarm] = {}
        #: VPN number -> its alarm about producers; those with producers.
        self._producers: dict[int, Alarm] = {}
        #: Producers of all clients of a username.
        self._of_usernames = UsernameCounts(USERNAME_INGRESS_FLOWS, "have producers", outbox)
        #: Endpoint id -> its alarms.
        self._endpoints: dict[int, _EndpointAlarms] = {}

    def look(self, changed: Iterable[Account]) -> None:
        """A home reported: look at the node, and at the accounts that changed."""
        limits, usage, outbox = self._usage.limits, self._usage, self._outbox
        share = (limits.event_usage_set_percent, limits.event_usage_clear_percent)
        self._node.update(usage.node.bytes, usage.node.limit_bytes, share, outbox)
        share = (limits.event_files_set_percent, limits.event_files_clear_percent)
        self._files.update(len(usage.files), limits.max_files, share, outbox)
        self._look_at_unacked()
        vpns: dict[int, Vpn] = {}
        for account in changed:
            self._look_at_endpoint(account)
            vpns[account.endpoint.vpn.id] = account.endpoint.vpn
        for vpn in vpns.values():
            self._look_at_vpn(vpn)

    def _look_at_unacked(self) -> None:
        limits, value = self._usage.limits, self._usage.delivered_unacked
        limit = limits.max_delivered_unacked
        share = (limits.event_delivered_unacked_set_percent, limits.event_delivered_unacked_clear_percent)
        self._unacked.update(value, limit, share, self._outbox)
        if value >= limit:
            self._unacked.exceeded(limit, self._outbox)

    def refused(self, account: Account, reason: Reason) -> None:
        """An endpoint did not take a message."""
        limits, usage, outbox = self._usage.limits, self._usage, self._outbox
        if reason is ENDPOINT_QUOTA:
            self._of_endpoint(account).usage.exceeded(account.quota_bytes, outbox)
        elif reason is LOW_PRIORITY:
            self._of_endpoint(account).low_priority.exceeded(account.low_priority_limit or 0, outbox)
        elif reason is VPN_QUOTA:
            self._of_vpn(account.endpoint.vpn).exceeded(account.vpn.limit_bytes, outbox)
        elif reason is NODE_QUOTA:
            self._node.exceeded(usage.node.limit_bytes, outbox)
        elif reason is FILES:
            self._files.exceeded(limits.max_files, outbox)

    def _of_endpoint(self, account: Account) -> _EndpointAlarms:
        alarms = self._endpoints.get(account.endpoint.id)
        if alarms is None:
            alarms = self._endpoints[account.endpoint.id] = _EndpointAlarms(account.endpoint)
        return alarms

    def _of_vpn(self, vpn: Vpn) -> Alarm:
        alarm = self._vpns.get(vpn.id)
        if alarm is None:
            alarm = self._vpns[vpn.id] = Alarm(
                VPN_USAGE, f"Message VPN {vpn.name} spools bytes", scope="VPN", vpn=vpn.name
            )
        return alarm

    def _look_at_endpoint(self, account: Account) -> None:
        alarms = self._of_endpoint(account)
        attributes = account.endpoint.attributes
        quota = account.quota_bytes if account.takes_quota else 0
        alarms.usage.update(account.bytes, quota, percents(attributes, "spool_usage"), self._outbox)
        alarms.low_priority.update(
            account.messages,
            account.low_priority_limit or 0,
            percents(attributes, "reject_low_priority"),
            self._outbox,
        )

    def _look_at_vpn(self, vpn: Vpn) -> None:
        pool = self._usage.vpns[vpn.id]
        share = percents(vpn.attributes, "spool_usage")
        self._of_vpn(vpn).update(pool.bytes, pool.limit_bytes, share, self._outbox)

    def producers_changed(self, session: Session, change: int, count: int, limit: int) -> None:
        """A client has so many producers more; its Message VPN has `count` now, of so many that it may have."""
        vpn = session.vpn
        share = percents(vpn.attributes, "ingress_flow_count")
        self._of_producers(vpn).update(count, limit, share, self._outbox)
        if not count:
            del self._producers[vpn.id]
        profile = vpn.profiles.get(session.profile_name)
        own = int(profile["max_ingress_flow_count_per_client_username"]) if profile is not None else 0
        self._of_usernames.change(vpn, session.username, change, own)
        if profile is not None:
            own = int(profile["max_ingress_flow_count"])
            client_has_room(session, CLIENT_INGRESS_FLOWS, len(session.producers), own)

    def client_is_full(self, session: Session, limit: int) -> None:
        """A client was refused a producer because it has all that it may have."""
        client_is_full(session, CLIENT_INGRESS_FLOWS, "producers", limit, self._outbox)

    def has_room(self, session: Session, limit: int) -> bool:
        """Tell whether the username of a client may have one more producer, of so many; else operators hear of it."""
        if self._of_usernames.get(session.vpn, session.username) < limit:
            return True
        self._of_usernames.exceeded(session.vpn, session.username, limit)
        return False

    def producers_are_full(self, vpn: Vpn, limit: int) -> None:
        """A client was refused a producer because its Message VPN has all that it may have."""
        self._of_producers(vpn).exceeded(limit, self._outbox)

    def _of_producers(self, vpn: Vpn) -> Alarm:
        alarm = self._producers.get(vpn.id)
        if alarm is None:
            alarm = self._producers[vpn.id] = Alarm(
                VPN_INGRESS_FLOWS, f"Message VPN {vpn.name} has producers", scope="VPN", vpn=vpn.name
            )
        return alarm

    def endpoint_gone(self, endpoint: Endpoint) -> None:
        """Nobody is warned of what is gone."""
        self._endpoints.pop(endpoint.id, None)
        self.look(())
        if endpoint.vpn.id in self._usage.vpns:
            self._look_at_vpn(endpoint.vpn)
        elif endpoint.vpn.id in self._vpns:
            self._vpns.pop(endpoint.vpn.id).update(0, 0, DEFAULT_PERCENTS, self._outbox)

    def validate(self) -> None:
        """Check that there are alarms for what exists only."""
        assert all(number in self._usage.accounts for number in self._endpoints)
        assert all(number in self._usage.vpns for number in self._vpns)
