"""Alarms: events when usage nears a limit, when the limit refuses something, and when usage is low again.

    value  0 ........ clear ........ set ........ limit
                                       ---> NAME_HIGH        once
                                                 ---> NAME_EXCEEDED    once: something was refused at the limit
             <------ NAME_HIGH_CLEAR                         once; from here on all of them may come again

Between the set and the clear value there are no events, so a value that swings around a limit costs a few lines and not
one per message or client (R185, R197). What is watched is a row of the table below; whoever counts calls `look` and
`exceeded` with it and with the owner of the limit. Nothing is kept of what is far from its limit. No I/O, no clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from router.ground.config import RouterConfig, SpoolLimits

#: Set and clear percent of limits that have no thresholds of their own: the reference broker's defaults.
DEFAULT_PERCENTS: Final = (80, 60)
HIGH: Final = "_HIGH"
#: Ends the name of the event that takes another one back.
CLEAR: Final = "_CLEAR"
EXCEEDED: Final = "_EXCEEDED"


class Watched(NamedTuple):
    """Something that has a limit."""

    #: The first event, `..._HIGH`; for a limit of a single client the only one, `..._EXCEEDED`.
    event: str
    #: Goes on with a sentence that begins with the owner.
    has: str
    #: Attribute of the owner with the limit; empty: whoever counts knows it.
    limit: str = ""
    #: The attributes of the owner with the set and the clear value are `event_<percents>_...`; empty: the default.
    percents: str = ""


NODE_CONNECTIONS: Final = Watched(
    "SYSTEM_CLIENT_CONNECTIONS_HIGH", "has clients", "max_connections", "connections"
)
NODE_USAGE: Final = Watched("SYSTEM_AD_MSG_SPOOL_HIGH", "spools bytes", percents="usage")
NODE_FILES: Final = Watched("SYSTEM_AD_SPOOL_FILES_HIGH", "has spool files in use", "max_files", "files")
NODE_UNACKED: Final = Watched(
    "SYSTEM_AD_DELIVERED_UNACKED_MSGS_HIGH",
    "has messages delivered and not settled",
    "max_delivered_unacked",
    "delivered_unacked",
)

VPN_CONNECTIONS: Final = Watched(
    "VPN_CONNECTIONS_HIGH", "has clients", "max_connection_count", "connection_count"
)
VPN_SUBSCRIPTIONS: Final = Watched(
    "VPN_SUBSCRIPTIONS_HIGH", "has subscriptions of clients", "max_subscription_count", "subscription_count"
)
VPN_OVERLAPPING: Final = Watched(
    "VPN_OVERLAPPING_FILTERS_HIGH", "has kinds of filters that may overlap", "max_overlapping_filters"
)
VPN_MEMORY: Final = Watched("VPN_MEMORY_HIGH", "takes bytes of memory", "max_memory_bytes")
VPN_USAGE: Final = Watched("VPN_AD_MSG_SPOOL_HIGH", "spools bytes", percents="spool_usage")
VPN_ENDPOINTS: Final = Watched(
    "VPN_AD_ENDPOINTS_HIGH", "has endpoints", "max_endpoint_count", "endpoint_count"
)
VPN_EGRESS_FLOWS: Final = Watched(
    "VPN_AD_EGRESS_FLOWS_HIGH", "has flows", "max_egress_flow_count", "egress_flow_count"
)
VPN_INGRESS_FLOWS: Final = Watched(
    "VPN_AD_INGRESS_FLOWS_HIGH", "has producers", "max_ingress_flow_count", "ingress_flow_count"
)

ENDPOINT_FLOWS: Final = Watched("VPN_AD_BIND_COUNT_HIGH", "has flows", "max_bind_count", "bind_count")
ENDPOINT_USAGE: Final = Watched("VPN_AD_ENDPOINT_MSG_SPOOL_HIGH", "spools bytes", percents="spool_usage")
ENDPOINT_LOW_PRIORITY: Final = Watched(
    "VPN_AD_MSG_SPOOL_REJECT_LOW_PRIORITY_MSG_LIMIT_HIGH",
    "takes low priority up to a limit of messages",
    percents="reject_low_priority",
)

USERNAME_CONNECTIONS: Final = Watched("VPN_CLIENT_USERNAME_CONNECTIONS_HIGH", "has clients")
USERNAME_MEMORY: Final = Watched("VPN_CLIENT_USERNAME_MEMORY_HIGH", "takes bytes of memory")
USERNAME_ENDPOINTS: Final = Watched("VPN_AD_CLIENT_USERNAME_ENDPOINTS_HIGH", "has created endpoints")
USERNAME_EGRESS_FLOWS: Final = Watched("VPN_AD_CLIENT_USERNAME_EGRESS_FLOWS_HIGH", "has flows")
USERNAME_INGRESS_FLOWS: Final = Watched("VPN_AD_CLIENT_USERNAME_INGRESS_FLOWS_HIGH", "has producers")

CLIENT_SUBSCRIPTIONS: Final = Watched("CLIENT_MAX_SUBSCRIPTIONS_EXCEEDED", "subscriptions")
CLIENT_OVERLAPPING: Final = Watched("CLIENT_OVERLAPPING_FILTERS_EXCEEDED", "kinds of overlapping filters")
CLIENT_MEMORY: Final = Watched("CLIENT_MAX_MEMORY_EXCEEDED", "bytes of memory")
CLIENT_EGRESS_FLOWS: Final = Watched("CLIENT_AD_MAX_EGRESS_FLOWS_EXCEEDED", "flows")
CLIENT_INGRESS_FLOWS: Final = Watched("CLIENT_AD_MAX_INGRESS_FLOWS_EXCEEDED", "producers")


class Named(Protocol):
    """What events can be about."""

    def named(self) -> tuple[str, dict[str, Any]]:
        """Give how a sentence calls it, and the fields of events about it."""


class Owner(Named, Protocol):
    """Whose limit it is: the node, a Message VPN, a username or an endpoint."""

    @property
    def id(self) -> Hashable:
        """What no other of its kind ever has."""

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Its limits and thresholds, among others."""


class Client(Named, Protocol):
    """A client, with limits of its own."""

    #: Events that operators were told and that are not over.
    full: tuple[str, ...]


class _VpnName(Protocol):
    id: int
    name: str


class _Node(NamedTuple):
    attributes: Mapping[str, Any]
    id: int = 0

    def named(self) -> tuple[str, dict[str, Any]]:
        return "the node", {}


class UsernameOf(NamedTuple):
    """A client username of a Message VPN, as an owner; its limits are those of a profile."""

    vpn: _VpnName
    name: str
    attributes: Mapping[str, Any] = {}

    @property
    def id(self) -> tuple[int, str]:
        """Which one it is."""
        return self.vpn.id, self.name

    def named(self) -> tuple[str, dict[str, Any]]:
        """Give how a sentence calls it, and the fields of events about it."""
        return f"username {self.name}", {"scope": "VPN", "vpn": self.vpn.name, "username": self.name}


class _Told:
    """What operators were told of one thing, and is not over."""

    __slots__ = ("is_exceeded", "is_high")

    def __init__(self) -> None:
        self.is_high = self.is_exceeded = False


class Alarms:
    """Everything that is watched."""

    def __init__(self, config: RouterConfig, spool: SpoolLimits, event: Callable[..., None]) -> None:
        """Begin with nothing told; `event` is that of the outbox."""
        self._event = event
        self.node = _Node({**msgspec.structs.asdict(config), **msgspec.structs.asdict(spool)})
        #: (event, id of the owner) -> what was told; only what is not over.
        self._told: dict[tuple[str, Hashable], _Told] = {}

    def look(self, watched: Watched, owner: Owner, value: int, limit: int | None = None) -> None:
        """Look at a new value.

        A limit of 0 is none, and one of 1 says nothing by being reached.
        """
        if limit is None:
            limit = int(owner.attributes[watched.limit])
        set_percent, clear_percent = _percents(watched, owner)
        key = watched.event, owner.id
        told = self._told.get(key)
        if limit > 1 and value * 100 > limit * set_percent and (told is None or not told.is_high):
            self._told.setdefault(key, _Told()).is_high = True
            self._say(
                watched.event, watched, owner, f"{value} of {limit}, over {set_percent} percent", "warning"
            )
        elif told is not None and (value * 100 < limit * clear_percent or not limit):
            del self._told[key]
            if told.is_high:
                text = f"{value} of {limit}, below {clear_percent} percent"
                self._say(watched.event + CLEAR, watched, owner, text, "info")

    def exceeded(self, watched: Watched, owner: Owner, limit: int | None = None) -> None:
        """Something was refused because of the limit; told once until the value is below the clear value."""
        told = self._told.setdefault((watched.event, owner.id), _Told())
        if not told.is_exceeded:
            told.is_exceeded = True
            limit = int(owner.attributes[watched.limit]) if limit is None else limit
            text = f"the limit of {limit} is reached, more is refused"
            self._say(exceeded_name(watched.event), watched, owner, text, "warning")

    def forget(self, owner: Owner, *gone: Watched) -> None:
        """Nobody is warned of what is gone."""
        for watched in gone:
            self._told.pop((watched.event, owner.id), None)

    def _say(self, event: str, watched: Watched, owner: Owner, text: str, severity: str) -> None:
        name, fields = owner.named()
        self._event(event, f"{name} {watched.has}: {text}", severity=severity, **fields)

    def validate(self) -> None:
        """Check that only what is not over is kept."""
        assert all(told.is_high or told.is_exceeded for told in self._told.values())

    # -- limits of single clients ----------------------------------------------------------------------------

    def client_is_full(self, watched: Watched, client: Client, limit: int) -> None:
        """A client was refused something because of a limit of its own; told once until it has few of them."""
        if watched.event not in client.full:
            client.full += (watched.event,)
            name, fields = client.named()
            text = f"{name} has {limit} {watched.has}, all that its client profile allows"
            self._event(watched.event, text, severity="warning", **fields)

    def client_has(self, watched: Watched, client: Client, value: int, limit: int) -> None:
        """A client has so many now: below the clear value its limit may be told again."""
        if watched.event in client.full and value * 100 < limit * DEFAULT_PERCENTS[1]:
            client.full = tuple([event for event in client.full if event != watched.event])


class UsernameCounts:
    """How many of something the clients of each username have together; watched."""

    def __init__(self, watched: Watched, alarms: Alarms) -> None:
        self._watched = watched
        self._alarms = alarms
        #: (VPN number, username) -> what it has; no zeros.
        self._of: dict[tuple[int, str], int] = {}

    def change(self, vpn: _VpnName, username: str, change: int, limit: int) -> None:
        """Note that a username has so many more, or fewer, of so many that it may have; a limit of 0 is none."""
        owner = UsernameOf(vpn, username)
        count = self._of[owner.id] = self._of.get(owner.id, 0) + change
        if not count:
            del self._of[owner.id]
        self._alarms.look(self._watched, owner, count, limit)

    def has_room(self, vpn: _VpnName, username: str, limit: int) -> bool:
        """Tell whether a username may have one more, of so many; else operators hear of it."""
        if self._of.get((vpn.id, username), 0) < limit:
            return True
        self.exceeded(vpn, username, limit)
        return False

    def exceeded(self, vpn: _VpnName, username: str, limit: int) -> None:
        """A client was refused because its username has all that it may have."""
        self._alarms.exceeded(self._watched, UsernameOf(vpn, username), limit)


def exceeded_name(name: str) -> str:
    """Give the name of the event that a limit was reached; it begins like the one that it is near."""
    return name.removesuffix(HIGH) + EXCEEDED


def _percents(watched: Watched, owner: Owner) -> tuple[int, int]:
    """Give the set and the clear value."""
    if not watched.percents:
        return DEFAULT_PERCENTS
    attributes, name = owner.attributes, f"event_{watched.percents}"
    return int(attributes[f"{name}_set_percent"]), int(attributes[f"{name}_clear_percent"])
