"""The catalog: which objects exist, which refer to which, and what may be created, changed and deleted.

Pure and in memory: a wish is turned into a list of changes, or refused; the controller makes the changes
durable and then takes them over with `take`. A wish never changes anything itself, so a dry run and a refusal
leave no trace.
"""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium import errors
from cluster import objects, passwords
from storage.config_store import Change

if TYPE_CHECKING:
    from collections.abc import Callable

#: Objects of a node; each is pushed to the router at its start.
MAX_OBJECTS: Final = 100_000
_HIDDEN: Final = "(hidden)"

Key = tuple[str, str, str]


class Applied(NamedTuple):
    """What applying declared objects comes to."""

    changes: list[Change]
    report: list[dict[str, Any]]


class Catalog:
    """All objects of the node, by (kind, Message VPN, name); a Message VPN itself has the VPN ""."""

    def __init__(
        self, stored: list[Change], hash_password: Callable[[str], str] = passwords.hash_password
    ) -> None:
        """Begin with what the store holds.

        Raises:
            InvalidRequestError: a stored object does not fit its kind (40015).
        """
        self._hash_password = hash_password
        #: Attributes are complete and checked. Who an object refers to exists; who it belongs to exists.
        self._objects: dict[Key, objects.Attributes] = {}
        for kind, vpn, name, attributes in stored:
            assert attributes is not None, "the store gives objects, no removals"
            self._objects[kind, vpn, name] = objects.complete(kind, objects.convert(kind, attributes))

    def __len__(self) -> int:
        return len(self._objects)

    # -- looking ---------------------------------------------------------------------------------------------

    def snapshot(self) -> list[list[Any]]:
        """Give every object as [kind, vpn, name, attributes], what is referred to first."""
        order = list(objects.KINDS)
        keys = sorted(self._objects, key=lambda key: (order.index(key[0]), key))
        return [[*key, self._objects[key]] for key in keys]

    def export(self) -> list[list[Any]]:
        """Give every object with the attributes that differ from the defaults: a backup."""
        return [
            [kind, vpn, name, objects.differing(kind, attributes)]
            for kind, vpn, name, attributes in self.snapshot()
        ]

    def show(self, kind: str, vpn: str, name: str) -> dict[str, Any]:
        """Give one object as operators see it.

        Raises:
            NotFoundError: there is none (40401).
        """
        key = self._key(kind, vpn, name)
        return objects.shown(*key, self._get(key))

    def find(self, kind: str, vpn: str | None, pattern: str) -> list[dict[str, Any]]:
        """Give the objects of a kind whose name matches; vpn None means those of all Message VPNs."""
        in_vpn = objects.kind_of(kind).in_vpn
        return [
            objects.shown(*key, self._objects[key])
            for key in sorted(self._objects)
            if key[0] == kind
            and (vpn is None or not in_vpn or key[1] == vpn)
            and fnmatch.fnmatchcase(key[2], pattern)
        ]

    # -- wishes ----------------------------------------------------------------------------------------------

    def missing_built_ins(self) -> list[Change]:
        """Give what every node and every Message VPN has by itself, and this one lacks."""
        vpns = [name for kind, _, name in self._objects if kind == "vpn"]
        changes = []
        if objects.DEFAULT_NAME not in vpns:
            vpns.append(objects.DEFAULT_NAME)
            changes.append(Change("vpn", "", objects.DEFAULT_NAME, objects.complete("vpn", {})))
        for vpn in vpns:
            changes += [change for change in _built_ins(vpn) if change[:3] not in self._objects]
        return changes

    def create(self, kind: str, vpn: str, name: str, values: dict[str, Any]) -> list[Change]:
        """Give the changes that create an object; a Message VPN comes with its built-in profiles.

        Raises:
            InvalidRequestError: name or attributes do not fit (40018, 40015).
            ConflictError: it exists (40901).
            NotFoundError: its Message VPN, or what it refers to, does not exist (40401).
        """
        key = self._key(kind, vpn, name)
        objects.check_name(objects.kind_of(kind), name)
        if key in self._objects:
            raise errors.error_for(errors.OBJECT_EXISTS, _title(key))
        if len(self._objects) >= MAX_OBJECTS:
            detail = f"there are {MAX_OBJECTS} objects, the most a node holds"
            raise errors.error_for(errors.INVALID_ARGUMENT, detail)
        attributes = objects.complete(kind, self._given(key, values))
        self._check_references(key, attributes)
        changes = [Change(*key, attributes)]
        return changes + (_built_ins(name) if kind == "vpn" else [])

    def update(self, kind: str, vpn: str, name: str, values: dict[str, Any]) -> list[Change]:
        """Give the change that sets attributes of an object; nothing if it has these values already.

        Raises:
            InvalidRequestError: the attributes do not fit (40015).
            NotFoundError: there is no such object, or what it refers to does not exist (40401).
        """
        key = self._key(kind, vpn, name)
        before = self._get(key)
        attributes = {**before, **self._given(key, values)}
        self._check_references(key, attributes)
        return [] if attributes == before else [Change(*key, attributes)]

    def delete(self, kind: str, vpn: str, name: str) -> list[Change]:
        """Give the changes that remove an object; a Message VPN takes its profiles along.

        Raises:
            NotFoundError: there is no such object (40401).
            ConflictError: it is built in, or others use it (40902).
        """
        key = self._key(kind, vpn, name)
        self._get(key)
        if key == ("vpn", "", objects.DEFAULT_NAME) or _is_built_in(key):
            detail = f"{_title(key)} is built in: update it instead"
            raise errors.error_for(errors.OBJECT_IN_USE, detail)
        users = self._users_of(key)
        if users:
            detail = f"{_title(key)} by {len(users)} usernames, {users[0]!r} for instance"
            raise errors.error_for(errors.OBJECT_IN_USE, detail)
        inside = [other for other in sorted(self._objects) if kind == "vpn" and other[1] == name]
        return [Change(*removed, None) for removed in [*inside, key]]

    def apply(self, declared: list[list[Any]]) -> Applied:
        """Give the changes that make all declared objects so, and a report; one fault refuses them all.

        Raises:
            AngariumError: what `create` and `update` raise.
        """
        trial = Catalog([], self._hash_password)
        trial._objects = dict(self._objects)
        changes: list[Change] = []
        report = []
        for kind, vpn, name, values in sorted(declared, key=_declared_order):
            key = trial._key(kind, vpn, name)
            before = trial._objects.get(key)
            made = (trial.create if before is None else trial.update)(kind, vpn, name, values)
            trial.take(made)
            changes += made
            report.append(_reported(key, before, trial._objects[key]))
        return Applied(changes, report)

    def take(self, changes: list[Change]) -> None:
        """Take over changes that are durable."""
        for kind, vpn, name, attributes in changes:
            if attributes is None:
                self._objects.pop((kind, vpn, name))
            else:
                self._objects[kind, vpn, name] = attributes

    def validate(self) -> None:
        """Assert what the attribute comments say."""
        for key, attributes in self._objects.items():
            assert attributes == objects.complete(key[0], attributes), f"{_title(key)} is incomplete"
            self._check_references(key, attributes)
        assert not self.missing_built_ins(), "something built in is missing"

    # -- parts -----------------------------------------------------------------------------------------------

    def _key(self, kind: str, vpn: str | None, name: str) -> Key:
        return (kind, (vpn or "") if objects.kind_of(kind).in_vpn else "", name)

    def _get(self, key: Key) -> objects.Attributes:
        try:
            return self._objects[key]
        except KeyError:
            raise errors.error_for(errors.OBJECT_NOT_FOUND, _title(key)) from None

    def _given(self, key: Key, values: dict[str, Any]) -> objects.Attributes:
        """Give checked attributes, with a password as its hash: the stored one if it is the same password."""
        attributes = objects.convert(key[0], values)
        password = attributes.get("password")
        if password and not passwords.is_hash(password):
            stored = self._objects.get(key, {}).get("password", "")
            same = passwords.fits(stored, password)
            attributes["password"] = stored if same else self._hash_password(password)
        return attributes

    def _check_references(self, key: Key, attributes: objects.Attributes) -> None:
        kind, vpn, _ = key
        if objects.kind_of(kind).in_vpn:
            self._get(("vpn", "", vpn))
        if kind == "username":
            self._get(("acl", vpn, attributes["acl_profile"]))
            self._get(("profile", vpn, attributes["client_profile"]))

    def _users_of(self, key: Key) -> list[str]:
        """Give the usernames that keep an object from going."""
        kind, vpn, name = key
        attribute = {"acl": "acl_profile", "profile": "client_profile"}.get(kind)
        return [
            other_name
            for (other, other_vpn, other_name), attributes in self._objects.items()
            if other == "username"
            and (
                (kind == "vpn" and other_vpn == name)
                or (attribute is not None and other_vpn == vpn and attributes[attribute] == name)
            )
        ]


def _built_ins(vpn: str) -> list[Change]:
    return [
        Change(kind, vpn, name, objects.complete(kind, attributes))
        for kind, name, attributes in objects.built_in(vpn)
    ]


def _is_built_in(key: Key) -> bool:
    return any(key == change[:3] for change in _built_ins(key[1]))


def _declared_order(entry: list[Any]) -> int:
    return list(objects.KINDS).index(objects.kind_of(entry[0]).name)


def _reported(key: Key, before: objects.Attributes | None, after: objects.Attributes) -> dict[str, Any]:
    earlier = before or {}
    changed = {
        name: [_HIDDEN, _HIDDEN] if name == "password" else [earlier.get(name), value]
        for name, value in after.items()
        if name not in earlier or earlier[name] != value
    }
    action = "create" if before is None else ("update" if changed else "unchanged")
    return {"action": action, "kind": key[0], "vpn": key[1], "name": key[2], "changes": changed}


def _title(key: Key) -> str:
    kind, vpn, name = key
    return f"{kind} {name!r}" + (f" in Message VPN {vpn!r}" if vpn else "")
