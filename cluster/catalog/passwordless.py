"""Who comes in without a password: the username `default` of a node that nobody has secured yet.

A new node serves every user of its host as `default`, so that the first hour needs no account. That ends with the
first password of any username on the node, and with an address beyond loopback by which clients come, also that of a
proxy (`http.public_url`): `default` is disabled in the same change, once. From then on, or when an operator has said
whether it is enabled, nothing here changes it again.

While `default` comes in without a password, the endpoints that operators create in its Message VPN without an owner
are its own: whoever made the queue in the shell consumes it in the next one. An owner rather than a permission for
everybody, since the accounts that come later must not read what was made before them.

Pure, as all of the catalog. The state is a counter of the config store: data directories of 0.1.0 have none, and there
`default` has `guaranteed_endpoint_permission_override`, an owner's rights on every endpoint; the endpoints without an
owner take its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from angarium import wire
from cluster import objects
from storage.config_store import Change, Counter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from storage.config_store import Entry

Key = tuple[str, str, str]

#: The counter of the config store with one of these states.
COUNTER: Final = "passwordless"
UNKNOWN: Final = 0
#: `default` is as it was made, or the node has not needed to disable it.
UNDECIDED: Final = 1
#: The node has disabled it.
CLOSED: Final = 2
#: An operator has said whether it is enabled.
DECIDED: Final = 3

#: Of the usernames that are told.
USERNAMES_MAX: Final = 100
DEFAULT_USER: Final = ("username", objects.DEFAULT_NAME, objects.DEFAULT_NAME)
_DEAD_MESSAGE_QUEUE: Final = ("queue", objects.DEFAULT_NAME, objects.DEAD_MESSAGE_QUEUE)
_OVERRIDE: Final = "guaranteed_endpoint_permission_override"
#: What changes then.
CLOSED_WITH: Final = (DEFAULT_USER, _DEAD_MESSAGE_QUEUE)
#: What operators hear when the node has disabled it.
CLOSED_EVENT: Final = "SYSTEM_CLIENT_USERNAME_DISABLED"
CLOSED_TEXT: Final = (
    "username 'default' in Message VPN 'default' is disabled: a username has a password, or the node listens beyond"
    " its own host; 'angarium username update default --set enabled=true' enables it again"
)


class Catalog(Protocol):
    """What is looked at of a catalog."""

    #: One of the states above.
    passwordless: int

    def get(self, kind: str, vpn: str, name: str) -> objects.Attributes | None:
        """Give the complete attributes of an object, or None."""

    def of_kind(self, kind: str, vpn: str | None = None) -> dict[tuple[str, str], objects.Attributes]:
        """Give the objects of a kind by (Message VPN, name), those of one Message VPN or of all."""


def is_open(username: objects.Attributes | None) -> bool:
    """Tell whether clients of this host come in under a username without a password."""
    return username is not None and bool(username["enabled"]) and not username["password"]


def usernames(catalog: Catalog) -> list[dict[str, str]]:
    """Give the usernames under which clients of this host come in without a password, the first ones of many."""
    found = sorted(key for key, attributes in catalog.of_kind("username").items() if is_open(attributes))
    return [
        {"vpn": vpn, "username": name}
        for vpn, name in found
        if (catalog.get("vpn", "", vpn) or {}).get("enabled")
    ][:USERNAMES_MAX]


def give_owner(catalog: Catalog, vpn: str, given: Mapping[str, Any], attributes: dict[str, Any]) -> None:
    """Set the owner of a new endpoint, unless an operator named one."""
    if "owner" not in given:
        attributes["owner"] = owner_of_new(catalog, vpn)


def owner_of_new(catalog: Catalog, vpn: str) -> str:
    """Give the owner of an endpoint for which an operator named none."""
    default = catalog.get(*DEFAULT_USER)  # None while what is built in is made for the first time
    belongs = vpn == objects.DEFAULT_NAME and (default is None or is_open(default))
    return objects.DEFAULT_NAME if belongs else ""


def decided(catalog: Catalog, key: Key) -> objects.Attributes:
    """Give what was decided of an object here, and a node that makes it anew would decide by itself."""
    attributes = catalog.get(*key) or {}
    if key[0] in objects.ENDPOINT_KINDS and key[1] == objects.DEFAULT_NAME:
        return {"owner": attributes["owner"]}
    is_decided = key == DEFAULT_USER and catalog.passwordless in (CLOSED, DECIDED)
    return {"enabled": attributes["enabled"]} if is_decided else {}


def follow(catalog: Catalog, key: Key, given: objects.Attributes, changes: list[Entry]) -> list[Entry]:
    """Give changes of a username with what follows from them for `default`; they are not taken over yet."""
    if key[0] != "username" or catalog.passwordless in (CLOSED, DECIDED):
        return changes
    if key == DEFAULT_USER and "enabled" in given:
        return [*changes, Counter(COUNTER, DECIDED)]
    after = {change[:3]: change.attributes for change in changes if isinstance(change, Change)}
    default = after.get(DEFAULT_USER) or catalog.get(*DEFAULT_USER)
    # While `default` is open, no other username has a password: it would have been closed with that.
    others = catalog.of_kind("username").values() if key == DEFAULT_USER else ()
    if not is_open(default) or not _has_password([*after.values(), *others]):
        return changes
    return [*changes, *_closing(catalog, default)]


def at_start(catalog: Catalog, *, reached_from_elsewhere: bool) -> list[Entry]:
    """Give the changes that the state of a node asks for when it starts."""
    if catalog.passwordless in (CLOSED, DECIDED):
        return []
    default = catalog.get(*DEFAULT_USER)
    assert default is not None, "it is built in"
    has_password = _has_password(catalog.of_kind("username").values())
    if is_open(default) and (reached_from_elsewhere or has_password):
        return _closing(catalog, default)
    if catalog.passwordless == UNDECIDED:
        return []
    changes: list[Entry] = [Counter(COUNTER, UNDECIDED)]
    if default[_OVERRIDE]:
        changes.append(Change(*DEFAULT_USER, {**default, _OVERRIDE: False}))
        if default["enabled"]:
            changes += _given_to_default(catalog)
    return changes


def was_closed_by(changes: Sequence[Entry]) -> bool:
    """Tell whether the node disables `default` with these changes."""
    return Counter(COUNTER, CLOSED) in changes


def _closing(catalog: Catalog, default: objects.Attributes | None) -> list[Entry]:
    assert default is not None, "it is built in"
    changes: list[Entry] = [
        Change(*DEFAULT_USER, {**default, "enabled": False, _OVERRIDE: False}),
        Counter(COUNTER, CLOSED),
    ]
    dead = catalog.get(*_DEAD_MESSAGE_QUEUE)
    if dead is not None and dead["owner"] == objects.DEFAULT_NAME:
        # Dead messages of all others come here; an enabled `default` must not read them by and by.
        changes.append(Change(*_DEAD_MESSAGE_QUEUE, {**dead, "owner": ""}))
    return changes


def _has_password(found: Iterable[dict[str, Any] | None]) -> bool:
    return any(attributes and attributes.get("password") for attributes in found)


def _given_to_default(catalog: Catalog) -> list[Entry]:
    return [
        Change(kind, *key, {**attributes, "owner": objects.DEFAULT_NAME})
        for kind in objects.ENDPOINT_KINDS
        for key, attributes in catalog.of_kind(kind, objects.DEFAULT_NAME).items()
        if attributes["created_by"] == objects.OPERATOR
        and not attributes["owner"]
        and not key[1].startswith((wire.LINK_NAME_PREFIX, wire.RETAINED_QUEUE))
    ]
