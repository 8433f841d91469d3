"""Events when flows or endpoints near a limit, and when they are far from it again (docs/metrics.md).

Watched are the flows bound to an endpoint, the flows and endpoints of a Message VPN, and the flows of a username and
the endpoints that its clients created; of a client only that it was refused a flow. A topic endpoint or a temporary
queue with its only consumer raises no event, a second one that is refused does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from angarium import errors
from router.sessions.alarm import Alarm, UsernameCounts, client_has_room, client_is_full, percents

if TYPE_CHECKING:
    from router.ground.effects import Outbox
    from router.guaranteed.endpoints import Endpoint
    from router.sessions.directory import Vpn
    from router.sessions.session import Session

BIND_COUNT: Final = "VPN_AD_BIND_COUNT_HIGH"
EGRESS_FLOWS: Final = "VPN_AD_EGRESS_FLOWS_HIGH"
ENDPOINTS: Final = "VPN_AD_ENDPOINTS_HIGH"
USERNAME_ENDPOINTS: Final = "VPN_AD_CLIENT_USERNAME_ENDPOINTS_HIGH"
USERNAME_FLOWS: Final = "VPN_AD_CLIENT_USERNAME_EGRESS_FLOWS_HIGH"
CLIENT_EGRESS_FLOWS: Final = "CLIENT_AD_MAX_EGRESS_FLOWS_EXCEEDED"


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
        self._created = UsernameCounts(USERNAME_ENDPOINTS, "created endpoints", outbox)
        #: Flows of all clients of a username.
        self._flows = UsernameCounts(USERNAME_FLOWS, "have flows", outbox)

    def look(self, endpoint: Endpoint) -> None:
        """Flows or limits of an endpoint changed."""
        if endpoint.is_gone:
            return
        alarm = self._binds.get(endpoint.id)
        if alarm is None:
            fields = {"scope": "VPN", "vpn": endpoint.vpn.name, "endpoint": endpoint.name}
            alarm = Alarm(BIND_COUNT, f"{endpoint.kind} {endpoint.name} has flows", **fields)
            self._binds[endpoint.id] = alarm
            self._count_creator(endpoint, 1)
        limit = int(endpoint.attributes["max_bind_count"])
        share = percents(endpoint.attributes, "bind_count")
        alarm.update(len(endpoint.flows), limit, share, self._outbox)
        self._look_at_vpn(endpoint.vpn)

    def _look_at_vpn(self, vpn: Vpn) -> None:
        attributes, alarms = vpn.attributes, self._of_vpn(vpn)
        limit = int(attributes["max_egress_flow_count"])
        alarms.flows.update(vpn.egress_flows, limit, percents(attributes, "egress_flow_count"), self._outbox)
        limit = int(attributes["max_endpoint_count"])
        alarms.endpoints.update(vpn.endpoints, limit, percents(attributes, "endpoint_count"), self._outbox)
        if not vpn.endpoints:
            del self._vpns[vpn.id]

    def _of_vpn(self, vpn: Vpn) -> _VpnAlarms:
        found = self._vpns.get(vpn.id)
        if found is None:
            found = self._vpns[vpn.id] = _VpnAlarms(vpn)
        return found

    def _count_creator(self, endpoint: Endpoint, change: int) -> None:
        vpn, username = endpoint.vpn, endpoint.username
        if username:
            self._created.change(vpn, username, change, _created_max(vpn, username))

    def flows_changed(self, session: Session, change: int) -> None:
        """A client has so many flows more, or fewer."""
        profile = session.vpn.profiles.get(session.profile_name)
        if profile is not None:
            limit = int(profile["max_egress_flow_count"])
            client_has_room(session, CLIENT_EGRESS_FLOWS, len(session.flows), limit)
        limit = int(profile["max_egress_flow_count_per_client_username"]) if profile is not None else 0
        self._flows.change(session.vpn, session.username, change, limit)

    def has_room(self, session: Session, limit: int) -> bool:
        """Tell whether the username of a client may have one more flow, of so many; else operators hear of it."""
        if self._flows.get(session.vpn, session.username) < limit:
            return True
        self._flows.exceeded(session.vpn, session.username, limit)
        return False

    def gone(self, endpoint: Endpoint) -> None:
        """Nobody is warned of what is gone."""
        if self._binds.pop(endpoint.id, None) is not None:
            self._count_creator(endpoint, -1)
        self._look_at_vpn(endpoint.vpn)

    # -- refusals --------------------------------------------------------------------------------------------

    def endpoint_is_full(self, endpoint: Endpoint, limit: int) -> None:
        """A consumer was refused because an endpoint has all that it may have."""
        alarm = self._binds.get(endpoint.id)
        if alarm is not None:
            alarm.exceeded(limit, self._outbox)

    def vpn_is_full(self, vpn: Vpn, limit: int) -> None:
        """A consumer was refused because its Message VPN has all that it may have."""
        self._of_vpn(vpn).flows.exceeded(limit, self._outbox)

    def client_is_full(self, session: Session, limit: int) -> None:
        """A consumer was refused because its client has all that it may have."""
        client_is_full(session, CLIENT_EGRESS_FLOWS, "flows", limit, self._outbox)

    def endpoint_refused(self, session: Session, code: int) -> None:
        """The controller refused a new endpoint: too many in the Message VPN, or of the client's username."""
        vpn = session.vpn
        if code != errors.TOO_MANY_ENDPOINTS:
            return
        limit = int(vpn.attributes["max_endpoint_count"])
        if vpn.endpoints >= limit:
            self._of_vpn(vpn).endpoints.exceeded(limit, self._outbox)
        else:
            limit = _created_max(vpn, session.username)
            self._created.exceeded(vpn, session.username, limit)

    def __len__(self) -> int:
        return len(self._binds)


def _created_max(vpn: Vpn, username: str) -> int:
    """Give how many endpoints clients of a username may create; 0 if its profile is gone."""
    user = vpn.account_of(username)
    profile = None if user is None else vpn.profiles.get(str(user.attributes["client_profile"]))
    return 0 if profile is None else int(profile["max_endpoint_count_per_username"])
