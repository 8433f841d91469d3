"""Who may do what: the router's view of the objects that operators created.

The controller owns the objects and pushes them here with every attribute filled in; this module keeps them
in a form in which a login or a subscription is judged with a few look-ups. It decides nothing about
connections: `login` and `router` do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from angarium import errors
from angarium.errors import error_for
from angarium_server.access import AddressRules, TopicRules, substitute
from angarium_server.shapes import Shapes

if TYPE_CHECKING:
    from angarium_server.tokens.claims import Grant
    from router.sessions.burden import Burden, WorkBucket

Attributes = dict[str, Any]

ALLOW = "allow"
_VARIABLE = "$client-username"


class Username:
    """A client username of one Message VPN."""

    __slots__ = ("attributes", "fingerprint", "generation", "granted", "name")

    def __init__(self, name: str, attributes: Attributes, generation: int) -> None:
        self.name = name
        self.attributes = attributes
        #: Changes with every change of the object, and is never used again: a resume token names it.
        self.generation = generation
        #: What stands for its state in resume tokens; empty before the first one.
        self.fingerprint = ""
        #: What its clients may, as far as it was worked out (`router.subscriptions.rights.Granted`); None before.
        self.granted: Any = None

    @property
    def is_guest(self) -> bool:
        """Tell whether no operator has made it."""
        return not self.generation

    @property
    def enabled(self) -> bool:
        """Tell whether clients may log in under this name."""
        return bool(self.attributes["enabled"])

    @property
    def password(self) -> str:
        """Give the stored hash, or nothing if none was set."""
        return str(self.attributes.get("password", ""))

    @property
    def is_manager(self) -> bool:
        """Tell whether its clients may act on the subscriptions of others (R59)."""
        return bool(self.attributes["subscription_manager"])


def guest(name: str, client_profile: str, acl_profile: str) -> Username:
    """Give a username that no operator has made, with what others have that nobody has changed."""
    attributes = {
        "enabled": True,
        "subscription_manager": False,
        "guaranteed_endpoint_permission_override": False,
        "client_profile": client_profile,
        "acl_profile": acl_profile,
    }
    return Username(name, attributes, 0)


def profiles_of(username: Username, grant: Grant | None) -> tuple[str, str]:
    """Give the names of the client profile and the ACL profile of a client: those that its token names, if it does."""
    client_profile = str(username.attributes["client_profile"])
    acl_profile = str(username.attributes["acl_profile"])
    if grant is not None:
        client_profile, acl_profile = grant.client_profile or client_profile, grant.acl_profile or acl_profile
    return client_profile, acl_profile


class AclProfile:
    """An ACL profile: four lists, each a default action and its exceptions."""

    __slots__ = ("_attributes", "connect", "name", "share_names")

    def __init__(self, name: str, attributes: Attributes) -> None:
        self.name = name
        self._attributes = attributes
        self.connect = AddressRules(
            attributes["client_connect_exceptions"],
            default_allow=attributes["client_connect_default"] == ALLOW,
        )
        self.share_names = TopicRules(
            attributes["subscribe_share_name_exceptions"],
            default_allow=attributes["subscribe_share_name_default"] == ALLOW,
        )

    def publish_list(self, username: str) -> tuple[bool, tuple[str, ...]]:
        """Give default action and exceptions for publishing, with the variables filled in for a username."""
        return self._topic_list("publish_topic", username)

    def publish_rules(self, username: str) -> TopicRules:
        """Give the rules for the topics that a username may publish to; workers judge messages by the same ones."""
        default, exceptions = self.publish_list(username)
        return TopicRules(exceptions, default_allow=default)

    def subscribe_rules(self, username: str) -> TopicRules:
        """Give the rules for the filters that a username may subscribe to."""
        default, exceptions = self._topic_list("subscribe_topic", username)
        return TopicRules(exceptions, default_allow=default)

    def _topic_list(self, kind: str, username: str) -> tuple[bool, tuple[str, ...]]:
        exceptions = [str(text) for text in self._attributes[f"{kind}_exceptions"]]
        if any(_VARIABLE in text for text in exceptions):
            exceptions = substitute(exceptions, username)
        return self._attributes[f"{kind}_default"] == ALLOW, tuple(exceptions)


class Vpn:
    """A Message VPN: its objects, and what its clients use of its limits."""

    __slots__ = (
        "acls",
        "attributes",
        "clients",
        "egress_flows",
        "endpoints",
        "guests",
        "has_neighbours",
        "id",
        "name",
        "profiles",
        "shapes",
        "spent",
        "subscriptions",
        "username_clients",
        "usernames",
        "work_bucket",
    )

    def __init__(self, vpn_id: int, name: str, attributes: Attributes) -> None:
        #: Never reused while this router lives; workers know the Message VPN by it.
        self.id = vpn_id
        self.name = name
        self.attributes = attributes
        #: Whether a neighbour has a session in it.
        self.has_neighbours = False
        self.usernames: dict[str, Username] = {}
        #: Usernames that no operator has made, of clients who are here by a token; each has a client.
        self.guests: dict[str, Username] = {}
        self.profiles: dict[str, Attributes] = {}
        self.acls: dict[str, AclProfile] = {}
        #: Client name -> session number of each connected client.
        self.clients: dict[str, int] = {}
        #: Username -> number of its connected clients; no zeros.
        self.username_clients: dict[str, int] = {}
        #: Subscriptions of all connected clients.
        self.subscriptions = 0
        #: Their shapes.
        self.shapes = Shapes()
        #: Queues and topic endpoints.
        self.endpoints = 0
        #: Flows of all connected clients.
        self.egress_flows = 0
        #: Username -> what the client that left last has cost, while that is not made up for: for the next one.
        self.spent: dict[str, Burden] = {}
        #: What matching for its clients may cost; None while that is nothing.
        self.work_bucket: WorkBucket | None = None

    def named(self) -> tuple[str, dict[str, Any]]:
        """Give how a sentence calls it, and the fields of events about it."""
        return f"Message VPN {self.name}", {"scope": "VPN", "vpn": self.name}

    def account_of(self, username: str) -> Username | None:
        """Give what counts for the clients of a username, None if it is not there any more."""
        return self.usernames.get(username) or self.guests.get(username)

    @property
    def enabled(self) -> bool:
        """Tell whether clients may use this Message VPN."""
        return bool(self.attributes["enabled"])


class Directory:
    """All objects, by Message VPN; `put` and `drop` say what they touched."""

    def __init__(self) -> None:
        self.vpns: dict[str, Vpn] = {}
        #: Name of the neighbour -> attributes of the link to it.
        self.links: dict[str, Attributes] = {}
        #: False until the first snapshot came: nobody may log in before.
        self.complete = False
        self._next_vpn_id = 1
        self._next_generation = 1

    def vpn_to_join(self, name: str) -> Vpn:
        """Give the Message VPN that somebody wants to join.

        Raises:
            AngariumError: what `vpn_of` raises; 50301 it is disabled.
        """
        vpn = self.vpn_of(name)
        if not vpn.enabled:
            raise error_for(errors.VPN_UNAVAILABLE, name)
        return vpn

    def vpn_of(self, name: str) -> Vpn:
        """Give a Message VPN, enabled or not.

        Raises:
            AngariumError: 50304 the configuration is not loaded, 40309 it is not there.
        """
        if not self.complete:
            raise error_for(errors.SHUTTING_DOWN, "the node has not loaded its configuration yet")
        vpn = self.vpns.get(name)
        if vpn is None:
            raise error_for(errors.VPN_NOT_ALLOWED, name)
        return vpn

    def object_keys(self) -> list[tuple[str, str, str]]:
        """List (kind, VPN, name) of every object; a Message VPN itself after what is in it."""
        found = []
        for vpn in self.vpns.values():
            found += [("username", vpn.name, name) for name in vpn.usernames]
            found += [("profile", vpn.name, name) for name in vpn.profiles]
            found += [("acl", vpn.name, name) for name in vpn.acls]
            found.append(("vpn", "", vpn.name))
        return found + [("link", "", name) for name in self.links]

    def put(self, kind: str, vpn_name: str, name: str, attributes: Attributes) -> Vpn | None:
        """Create or replace an object; gives the Message VPN it belongs to.

        Objects of a Message VPN that is not there are kept out (the controller sends the VPN first).
        """
        if kind == "vpn":
            return self._put_vpn(name, attributes)
        if kind == "link":
            self.links[name] = attributes
            return None
        vpn = self.vpns.get(vpn_name)
        if vpn is None:
            return None
        if kind == "username":
            vpn.usernames[name] = Username(name, attributes, self._generation())
        elif kind == "profile":
            vpn.profiles[name] = attributes
        elif kind == "acl":
            vpn.acls[name] = AclProfile(name, attributes)
        return vpn

    def drop(self, kind: str, vpn_name: str, name: str) -> Vpn | None:
        """Remove an object; gives the Message VPN it belonged to."""
        if kind == "vpn":
            return self.vpns.pop(name, None)
        if kind == "link":
            self.links.pop(name, None)
            return None
        vpn = self.vpns.get(vpn_name)
        if vpn is not None:
            tables: dict[str, dict[str, Any]] = {
                "username": vpn.usernames,
                "profile": vpn.profiles,
                "acl": vpn.acls,
            }
            if kind in tables:
                tables[kind].pop(name, None)
        return vpn

    def _put_vpn(self, name: str, attributes: Attributes) -> Vpn:
        vpn = self.vpns.get(name)
        if vpn is None:
            vpn = Vpn(self._next_vpn_id, name, attributes)
            self._next_vpn_id += 1
            self.vpns[name] = vpn
        vpn.attributes = attributes
        return vpn

    def _generation(self) -> int:
        generation = self._next_generation
        self._next_generation += 1
        return generation
