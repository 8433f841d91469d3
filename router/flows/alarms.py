"""What operators hear of flows and endpoints that near a limit (`router.ground.alarms`).

A topic endpoint or a temporary queue with its only consumer raises no event, a second one that is refused does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium import errors
from router.ground.alarms import (
    CLIENT_EGRESS_FLOWS,
    ENDPOINT_FLOWS,
    USERNAME_EGRESS_FLOWS,
    USERNAME_ENDPOINTS,
    VPN_EGRESS_FLOWS,
    VPN_ENDPOINTS,
    UsernameCounts,
)

if TYPE_CHECKING:
    from router.ground.alarms import Alarms
    from router.guaranteed.endpoints import Endpoint
    from router.sessions.directory import Vpn
    from router.sessions.session import Session


class FlowAlarms:
    """Counts what a username has, and has everything looked at that changes."""

    def __init__(self, alarms: Alarms) -> None:
        self.alarms = alarms
        #: Flows of all clients of a username.
        self.flows = UsernameCounts(USERNAME_EGRESS_FLOWS, alarms)
        self._created = UsernameCounts(USERNAME_ENDPOINTS, alarms)

    def made(self, endpoint: Endpoint) -> None:
        """An endpoint is new."""
        self._count_creator(endpoint, 1)

    def look(self, endpoint: Endpoint) -> None:
        """Flows or limits of an endpoint changed."""
        if not endpoint.is_gone:
            self.alarms.look(ENDPOINT_FLOWS, endpoint, len(endpoint.flows))
            self._look_at_vpn(endpoint.vpn)

    def gone(self, endpoint: Endpoint) -> None:
        """An endpoint was deleted."""
        self.alarms.forget(endpoint, ENDPOINT_FLOWS)
        self._count_creator(endpoint, -1)
        self._look_at_vpn(endpoint.vpn)

    def _look_at_vpn(self, vpn: Vpn) -> None:
        self.alarms.look(VPN_EGRESS_FLOWS, vpn, vpn.egress_flows)
        self.alarms.look(VPN_ENDPOINTS, vpn, vpn.endpoints)

    def _count_creator(self, endpoint: Endpoint, change: int) -> None:
        if endpoint.creator:
            limit = _created_max(endpoint.vpn, endpoint.creator)
            self._created.change(endpoint.vpn, endpoint.creator, change, limit)

    def flows_changed(self, session: Session, change: int) -> None:
        """A client has so many flows more, or fewer."""
        profile = session.vpn.profiles.get(session.profile_name)
        limit = 0
        if profile is not None:
            limit = int(profile["max_egress_flow_count_per_client_username"])
            own = int(profile["max_egress_flow_count"])
            self.alarms.client_has(CLIENT_EGRESS_FLOWS, session, len(session.flows), own)
        self.flows.change(session.vpn, session.username, change, limit)

    def endpoint_refused(self, session: Session, code: int) -> None:
        """The controller refused a new endpoint: too many in the Message VPN, or of the client's username."""
        vpn = session.vpn
        if code != errors.TOO_MANY_ENDPOINTS:
            return
        if vpn.endpoints >= int(vpn.attributes["max_endpoint_count"]):
            self.alarms.exceeded(VPN_ENDPOINTS, vpn)
        else:
            self._created.exceeded(vpn, session.username, _created_max(vpn, session.username))


def _created_max(vpn: Vpn, username: str) -> int:
    """Give how many endpoints clients of a username may create; 0 if its profile is gone."""
    user = vpn.account_of(username)
    profile = None if user is None else vpn.profiles.get(str(user.attributes["client_profile"]))
    return 0 if profile is None else int(profile["max_endpoint_count_per_username"])
