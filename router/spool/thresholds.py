"""Events when something becomes too full, and when it is empty enough again: pairs of a set and a clear value.

An event is told when the set percentage of a limit is exceeded, and its `_CLEAR` when the value falls below the clear
percentage; between the two nothing is told (R185, R197; facts sections 5, 6 and 14). Watched are the spool usage of
endpoints, Message VPNs and the node, the node's spool files and delivered messages without settlement, and how near an
endpoint is to refusing messages of low priority.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from router.admission.directory import Vpn
    from router.effects import Outbox
    from router.guaranteed.endpoints import Endpoint
    from router.spool.usage import Account, Usage

NODE_USAGE: Final = "SYSTEM_AD_MSG_SPOOL_HIGH"
NODE_FILES: Final = "SYSTEM_AD_SPOOL_FILES_HIGH"
NODE_UNACKED: Final = "SYSTEM_AD_DELIVERED_UNACKED_MSGS_HIGH"
VPN_USAGE: Final = "VPN_AD_MSG_SPOOL_HIGH"
ENDPOINT_USAGE: Final = "VPN_AD_ENDPOINT_MSG_SPOOL_HIGH"
VPN_INGRESS_FLOWS: Final = "VPN_AD_INGRESS_FLOWS_HIGH"
ENDPOINT_LOW_PRIORITY: Final = "VPN_AD_MSG_SPOOL_REJECT_LOW_PRIORITY_MSG_LIMIT_HIGH"
#: Percents of limits of a Message VPN that have no thresholds of their own: the reference broker's defaults.
_VPN_PERCENTS: Final = (80, 60)
#: Ends the name of the event that takes another one back.
CLEAR: Final = "_CLEAR"


class Alarm:
    """One thing that is watched."""

    __slots__ = ("_fields", "_name", "_what", "is_set")

    def __init__(self, name: str, what: str, **fields: Any) -> None:
        """Begin with nothing told; `what` begins the sentence that operators read."""
        self._name = name
        self._what = what
        self._fields = fields
        #: True from the event to its `_CLEAR`.
        self.is_set = False

    def update(self, value: int, limit: int, percents: tuple[int, int], outbox: Outbox) -> None:
        """Look at a new value; `percents` are the set and the clear value. A limit of 0 is none."""
        set_percent, clear_percent = percents
        if not self.is_set:
            if value * 100 > limit * set_percent and limit:
                self.is_set = True
                text = f"{self._what}: {value} of {limit}, over {set_percent} percent"
                outbox.event(self._name, text, severity="warning", **self._fields)
        elif value * 100 < limit * clear_percent or not limit:
            self.is_set = False
            text = f"{self._what}: {value} of {limit}, below {clear_percent} percent"
            outbox.event(self._name + CLEAR, text, **self._fields)


class _EndpointAlarms:
    """What is watched of one endpoint; a listener of nothing, so it goes with its entry."""

    __slots__ = ("low_priority", "usage")

    def __init__(self, endpoint: Endpoint) -> None:
        name = f"{endpoint.kind} {endpoint.name}"
        fields = {"scope": "VPN", "vpn": endpoint.vpn.name, "endpoint": endpoint.name}
        self.usage = Alarm(ENDPOINT_USAGE, f"{name} spools bytes", **fields)
        self.low_priority = Alarm(
            ENDPOINT_LOW_PRIORITY, f"{name} nears the limit for messages of low priority", **fields
        )


class Thresholds:
    """All alarms of the spool."""

    def __init__(self, usage: Usage, outbox: Outbox) -> None:
        self._usage = usage
        self._outbox = outbox
        self._node = Alarm(NODE_USAGE, "the node spools bytes")
        self._files = Alarm(NODE_FILES, "spool files are in use")
        self._unacked = Alarm(NODE_UNACKED, "messages are delivered and not acknowledged")
        #: VPN number -> its alarm, with the Message VPN that it is about.
        self._vpns: dict[int, Alarm] = {}
        #: VPN number -> its alarm about producers; those with producers.
        self._producers: dict[int, Alarm] = {}
        #: Endpoint id -> its alarms.
        self._endpoints: dict[int, _EndpointAlarms] = {}

    def look(self, changed: Iterable[Account]) -> None:
        """A home reported: look at the node, and at the accounts that changed."""
        limits, usage, outbox = self._usage.limits, self._usage, self._outbox
        percents = (limits.event_usage_set_percent, limits.event_usage_clear_percent)
        self._node.update(usage.node.bytes, usage.node.limit_bytes, percents, outbox)
        percents = (limits.event_files_set_percent, limits.event_files_clear_percent)
        self._files.update(usage.files, limits.max_files, percents, outbox)
        percents = (limits.event_delivered_unacked_set_percent, limits.event_delivered_unacked_clear_percent)
        self._unacked.update(usage.delivered_unacked, limits.max_delivered_unacked, percents, outbox)
        vpns: dict[int, Vpn] = {}
        for account in changed:
            self._look_at_endpoint(account)
            vpns[account.endpoint.vpn.id] = account.endpoint.vpn
        for vpn in vpns.values():
            self._look_at_vpn(vpn)

    def _look_at_endpoint(self, account: Account) -> None:
        endpoint = account.endpoint
        alarms = self._endpoints.get(endpoint.id)
        if alarms is None:
            alarms = self._endpoints[endpoint.id] = _EndpointAlarms(endpoint)
        attributes = endpoint.attributes
        quota = account.quota_bytes if account.takes_quota else 0
        alarms.usage.update(account.bytes, quota, _percents(attributes, "spool_usage"), self._outbox)
        alarms.low_priority.update(
            account.messages,
            account.low_priority_limit or 0,
            _percents(attributes, "reject_low_priority"),
            self._outbox,
        )

    def _look_at_vpn(self, vpn: Vpn) -> None:
        alarm = self._vpns.get(vpn.id)
        if alarm is None:
            alarm = self._vpns[vpn.id] = Alarm(
                VPN_USAGE, f"Message VPN {vpn.name} spools bytes", scope="VPN", vpn=vpn.name
            )
        pool = self._usage.vpns[vpn.id]
        alarm.update(pool.bytes, pool.limit_bytes, _percents(vpn.attributes, "spool_usage"), self._outbox)

    def producers_changed(self, vpn: Vpn, count: int, limit: int) -> None:
        """A Message VPN has so many producers, of so many that it may have."""
        alarm = self._producers.get(vpn.id)
        if alarm is None:
            alarm = self._producers[vpn.id] = Alarm(
                VPN_INGRESS_FLOWS, f"Message VPN {vpn.name} has producers", scope="VPN", vpn=vpn.name
            )
        alarm.update(count, limit, _VPN_PERCENTS, self._outbox)
        if not count:
            del self._producers[vpn.id]

    def endpoint_gone(self, endpoint: Endpoint) -> None:
        """Nobody is warned of what is gone."""
        self._endpoints.pop(endpoint.id, None)
        if endpoint.vpn.id not in self._usage.vpns:
            self._vpns.pop(endpoint.vpn.id, None)

    def validate(self) -> None:
        """Check that there are alarms for what exists only."""
        assert all(number in self._usage.accounts for number in self._endpoints)
        assert all(number in self._usage.vpns for number in self._vpns)


def _percents(attributes: dict[str, Any], name: str) -> tuple[int, int]:
    """Give the pair `event_<name>_set_percent`, `event_<name>_clear_percent`."""
    return int(attributes[f"event_{name}_set_percent"]), int(attributes[f"event_{name}_clear_percent"])
