"""Events when clients or their subscriptions near a limit, reach it, and are far from it again (docs/metrics.md).

Watched are the clients of the node, of a Message VPN and of a username, and the subscriptions of a Message VPN; of a
client only that it was refused one. What is empty is not watched, so there is nothing to forget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from router.sessions.alarm import DEFAULT_PERCENTS, Alarm, client_has_room, client_is_full, percents

if TYPE_CHECKING:
    from router.ground.config import RouterConfig
    from router.ground.effects import Outbox
    from router.sessions.directory import Vpn
    from router.sessions.session import Session

NODE_CONNECTIONS: Final = "SYSTEM_CLIENT_CONNECTIONS_HIGH"
VPN_CONNECTIONS: Final = "VPN_CONNECTIONS_HIGH"
USERNAME_CONNECTIONS: Final = "VPN_CLIENT_USERNAME_CONNECTIONS_HIGH"
VPN_SUBSCRIPTIONS: Final = "VPN_SUBSCRIPTIONS_HIGH"
VPN_OVERLAPPING: Final = "VPN_OVERLAPPING_FILTERS_HIGH"
CLIENT_OVERLAPPING: Final = "CLIENT_OVERLAPPING_FILTERS_EXCEEDED"
CLIENT_SUBSCRIPTIONS: Final = "CLIENT_MAX_SUBSCRIPTIONS_EXCEEDED"


class _VpnAlarms:
    """What is watched of one Message VPN."""

    __slots__ = ("connections", "overlapping", "subscriptions")

    def __init__(self, vpn: Vpn) -> None:
        fields = {"scope": "VPN", "vpn": vpn.name}
        self.connections = Alarm(VPN_CONNECTIONS, f"Message VPN {vpn.name} has clients", **fields)
        self.overlapping = Alarm(
            VPN_OVERLAPPING, f"Message VPN {vpn.name} has kinds of filters that may overlap", **fields
        )
        self.subscriptions = Alarm(
            VPN_SUBSCRIPTIONS, f"Message VPN {vpn.name} has subscriptions of clients", **fields
        )


class ClientAlarms:
    """All alarms of connected clients."""

    def __init__(self, config: RouterConfig, outbox: Outbox) -> None:
        self._limit = config.max_connections
        self._percents = (config.event_connections_set_percent, config.event_connections_clear_percent)
        self._outbox = outbox
        self._node = Alarm(NODE_CONNECTIONS, "the node has clients")
        #: VPN number -> its alarms; those with clients.
        self._vpns: dict[int, _VpnAlarms] = {}
        #: (VPN number, username) -> its alarm; those with clients.
        self._usernames: dict[tuple[int, str], Alarm] = {}

    def connections_changed(self, session: Session, connected: int) -> None:
        """A client came or went; there are so many on the node."""
        vpn, outbox = session.vpn, self._outbox
        self._node.update(connected, self._limit, self._percents, outbox)
        alarms = self._of_vpn(vpn)
        limit = int(vpn.attributes["max_connection_count"])
        alarms.connections.update(
            len(vpn.clients), limit, percents(vpn.attributes, "connection_count"), outbox
        )
        profile = vpn.profiles.get(session.profile_name)
        if profile is not None:
            limit = int(profile["max_connection_count_per_client_username"])
            count = vpn.username_clients.get(session.username, 0)
            self._of_username(vpn, session.username).update(count, limit, DEFAULT_PERCENTS, outbox)
        self._forget_empty(session)

    def _forget_empty(self, session: Session) -> None:
        vpn = session.vpn
        if session.username not in vpn.username_clients:
            self._usernames.pop((vpn.id, session.username), None)
        if not vpn.clients:
            self._vpns.pop(vpn.id, None)

    def subscriptions_changed(self, session: Session) -> None:
        """A client has other subscriptions than before."""
        vpn = session.vpn
        limit = int(vpn.attributes["max_subscription_count"])
        share = percents(vpn.attributes, "subscription_count")
        self._of_vpn(vpn).subscriptions.update(vpn.subscriptions, limit, share, self._outbox)
        limit = int(vpn.attributes["max_overlapping_filters"])
        self._of_vpn(vpn).overlapping.update(len(vpn.shapes), limit, DEFAULT_PERCENTS, self._outbox)
        limit = session.permissions.subscriptions_max
        client_has_room(session, CLIENT_SUBSCRIPTIONS, len(session.subscriptions), limit)
        client_has_room(session, CLIENT_OVERLAPPING, len(session.shapes), session.permissions.overlapping_max)

    # -- refusals --------------------------------------------------------------------------------------------

    def node_is_full(self) -> None:
        """A client was refused because the node has all that it may have."""
        self._node.exceeded(self._limit, self._outbox)

    def vpn_is_full(self, vpn: Vpn, limit: int) -> None:
        """A client was refused because its Message VPN has all that it may have."""
        self._of_vpn(vpn).connections.exceeded(limit, self._outbox)

    def username_is_full(self, vpn: Vpn, username: str, limit: int) -> None:
        """A client was refused because its username has all that it may have."""
        self._of_username(vpn, username).exceeded(limit, self._outbox)

    def subscriptions_are_full(self, session: Session, limit: int) -> None:
        """A client was refused a subscription because its Message VPN has all that it may have."""
        self._of_vpn(session.vpn).subscriptions.exceeded(limit, self._outbox)

    def client_is_full(self, session: Session, limit: int) -> None:
        """A client was refused a subscription because it has all that it may have."""
        client_is_full(session, CLIENT_SUBSCRIPTIONS, "subscriptions", limit, self._outbox)

    def vpn_overlaps(self, session: Session, limit: int) -> None:
        """A client was refused a filter because too many of its Message VPN could match one topic."""
        self._of_vpn(session.vpn).overlapping.exceeded(limit, self._outbox)

    def client_overlaps(self, session: Session, limit: int) -> None:
        """A client was refused a filter because too many of its own could match one topic."""
        client_is_full(session, CLIENT_OVERLAPPING, "kinds of overlapping filters", limit, self._outbox)

    def _of_vpn(self, vpn: Vpn) -> _VpnAlarms:
        found = self._vpns.get(vpn.id)
        if found is None:
            found = self._vpns[vpn.id] = _VpnAlarms(vpn)
        return found

    def _of_username(self, vpn: Vpn, username: str) -> Alarm:
        found = self._usernames.get((vpn.id, username))
        if found is None:
            fields = {"scope": "VPN", "vpn": vpn.name, "username": username}
            found = Alarm(USERNAME_CONNECTIONS, f"username {username} has clients", **fields)
            self._usernames[vpn.id, username] = found
        return found
