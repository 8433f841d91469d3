"""Events when flows or endpoints near a limit, and when they are far from it again (facts section 14).

Watched are the flows bound to an endpoint, and the flows and endpoints of a Message VPN. A limit of one says nothing by
being reached, so a topic endpoint or a temporary queue with its only consumer raises no event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from router.spool.thresholds import Alarm

if TYPE_CHECKING:
    from router.admission.directory import Vpn
    from router.effects import Outbox
    from router.guaranteed.endpoints import Endpoint

BIND_COUNT: Final = "VPN_AD_BIND_COUNT_HIGH"
EGRESS_FLOWS: Final = "VPN_AD_EGRESS_FLOWS_HIGH"
ENDPOINTS: Final = "VPN_AD_ENDPOINTS_HIGH"
#: Percent of a limit of a Message VPN, set and clear: the reference broker's defaults.
_VPN_PERCENTS: Final = (80, 60)


class _VpnAlarms:
    """What is watched of one Message VPN."""

    __slots__ = ("endpoints", "flows")

    def __init__(self, vpn: Vpn) -> None:
        fields = {"scope": "VPN", "vpn": vpn.name}
        self.flows = Alarm(EGRESS_FLOWS, f"Message VPN {vpn.name} has flows", **fields)
        self.endpoints = Alarm(ENDPOINTS, f"Message VPN {vpn.name} has endpoints", **fields)


class Alarms:
    """All alarms of consumers."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        #: Endpoint id -> its alarm; only endpoints that are there.
        self._binds: dict[int, Alarm] = {}
        #: VPN number -> its alarms; only those with endpoints.
        self._vpns: dict[int, _VpnAlarms] = {}

    def look(self, endpoint: Endpoint) -> None:
        """Flows or limits of an endpoint changed."""
        if endpoint.is_gone:
            return
        alarm = self._binds.get(endpoint.id)
        if alarm is None:
            fields = {"scope": "VPN", "vpn": endpoint.vpn.name, "endpoint": endpoint.name}
            alarm = Alarm(BIND_COUNT, f"{endpoint.kind} {endpoint.name} has flows", **fields)
            self._binds[endpoint.id] = alarm
        attributes = endpoint.attributes
        names = ("event_bind_count_set_percent", "event_bind_count_clear_percent")
        set_percent, clear_percent = (int(attributes[name]) for name in names)
        limit = _watched(attributes["max_bind_count"])
        alarm.update(len(endpoint.flows), limit, (set_percent, clear_percent), self._outbox)
        self._look_at_vpn(endpoint.vpn)

    def _look_at_vpn(self, vpn: Vpn) -> None:
        alarms = self._vpns.get(vpn.id)
        if alarms is None:
            alarms = self._vpns[vpn.id] = _VpnAlarms(vpn)
        limit = _watched(vpn.attributes["max_egress_flow_count"])
        alarms.flows.update(vpn.egress_flows, limit, _VPN_PERCENTS, self._outbox)
        limit = _watched(vpn.attributes["max_endpoint_count"])
        alarms.endpoints.update(vpn.endpoints, limit, _VPN_PERCENTS, self._outbox)

    def gone(self, endpoint: Endpoint) -> None:
        """Nobody is warned of what is gone."""
        self._binds.pop(endpoint.id, None)
        if endpoint.vpn.endpoints:
            self._look_at_vpn(endpoint.vpn)
        else:
            self._vpns.pop(endpoint.vpn.id, None)

    def __len__(self) -> int:
        return len(self._binds)


def _watched(limit: object) -> int:
    """Give a limit, or 0 for one that is not watched."""
    number = int(str(limit))
    return number if number > 1 else 0
