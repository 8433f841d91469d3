"""The catalog: which objects exist, which refer to which, and what may be created, changed and deleted.

Pure and in memory: a wish is turned into a list of changes, or refused; the controller makes the changes
durable and then takes them over with `take`. A wish never changes anything itself, so a dry run and a refusal
leave no trace. What clients wish of endpoints is in `cluster/catalog/endpoints.py`.

An endpoint gets its identity here: an id that no other ever had, and a home for each of its lanes. A backup that is
applied leaves the identity of endpoints that exist as it is, so nothing that they hold is lost by it (R97).
"""

from __future__ import annotations

import copy
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from angarium import errors, wire
from cluster import objects
from cluster.catalog import node_queues, passwordless
from cluster.catalog.placement import STAYING, WORKERS, Placement
from cluster.security import passwords
from gateway.http.webhooks.addresses import may_name
from storage.config_store import Change, Counter, Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

#: Objects of a node; each is pushed to the router at its start.
MAX_OBJECTS: Final = 100_000
#: The counter of the ids of endpoints in the config store.
COUNTER: Final = "endpoint"
_HIDDEN: Final = "(hidden)"
#: Attributes of other objects that name this kind, and keep it from going.
_REFERENCES: Final = {"acl": "acl_profile", "profile": "client_profile"}
#: Kinds that others refer to.
_REFERRED: Final = (*_REFERENCES, "vpn")

#: Each of their objects has a process.
NUMBERED_KINDS: Final = ("link", "bridge")

Key = tuple[str, str, str]
#: A queue that the node makes by itself: Message VPN, name, and attributes without id and homes.
_Queue = tuple[str, str, objects.Attributes]


class Applied(NamedTuple):
    """What applying declared objects comes to."""

    changes: list[Entry]
    report: list[dict[str, Any]]


class Catalog:
    """All objects of the node, by (kind, Message VPN, name); a Message VPN itself has the VPN ""."""

    def __init__(
        self,
        stored: Iterable[Change],
        hash_password: Callable[[str], str] = passwords.hash_password,
        *,
        next_endpoint_id: int = 1,
        workers: int = 1,
        subscription_exceptions: bool = True,
        node: str = "",
        passwordless_state: int = passwordless.UNKNOWN,
        webhook_networks: Iterable[str] = (),
    ) -> None:
        """Begin with what the store holds.

        Args:
            stored: every object.
            hash_password: makes what is kept of a password.
            next_endpoint_id: the counter of the store; 1 if it never had one.
            workers: among whom homes are chosen.
            subscription_exceptions: whether a filter may be an exception (R125).
            node: what this node is called.
            passwordless_state: the counter of the store.
            webhook_networks: that webhooks may reach beside public addresses.

        Raises:
            InvalidRequestError: a stored object does not fit its kind (40015).
        """
        self._hash_password = hash_password
        self._node = node
        #: What was decided about `default`, a state of `cluster.catalog.passwordless`.
        self.passwordless = passwordless_state
        self._subscription_exceptions = subscription_exceptions
        self._webhook_networks = [ip_network(text, strict=False) for text in webhook_networks]
        #: Attributes are complete and checked. Who an object refers to exists; who it belongs to exists.
        self._objects: dict[Key, objects.Attributes] = {}
        #: The same by kind, so that a few templates are found among very many endpoints.
        self._of_kind: dict[str, dict[tuple[str, str], objects.Attributes]] = {
            kind: {} for kind in objects.KINDS
        }
        #: In step with the endpoints among the objects.
        self.placement = Placement(workers)
        #: Rises with every change.
        self.revision = 0
        #: Message VPNs: one that is made again under its name is another one.
        self.vpns_deleted = 0
        #: Called for each object that is applied, and in the middle of what follows: very many take seconds.
        self.on_step: Callable[[], None] = lambda: None
        #: Above the id of every endpoint that ever was.
        self._next_endpoint_id = next_endpoint_id
        for kind, vpn, name, attributes in stored:
            assert attributes is not None, "the store gives objects, no removals"
            self._put((kind, vpn, name), objects.load(kind, attributes))

    def __len__(self) -> int:
        return len(self._objects)

    # -- looking ---------------------------------------------------------------------------------------------

    def snapshot(self) -> list[list[Any]]:
        """Give every object as [kind, vpn, name, attributes], what is referred to first."""
        order = list(objects.KINDS)
        keys = sorted(self._objects, key=lambda key: (order.index(key[0]), key))
        return [[*key, self._objects[key]] for key in keys]

    def export(self) -> list[list[Any]]:
        """Give every object but temporary ones with the attributes that differ from the defaults: a backup.

        What the node that reads it would decide otherwise is named too (`passwordless.decided`). The queue for retained
        messages follows from its Message VPN, and those of a link from that, unless operators changed them.
        """
        return [
            [
                kind,
                vpn,
                name,
                objects.differing(kind, attributes) | passwordless.decided(self, (kind, vpn, name)),
            ]
            for kind, vpn, name, attributes in self.snapshot()
            if attributes.get("durable", True)
            and not node_queues.is_retained(kind, name)
            and not (kind == "queue" and node_queues.is_as_made(name, attributes))
        ]

    def show(self, kind: str, vpn: str, name: str) -> dict[str, Any]:
        """Give one object as operators see it.

        Raises:
            NotFoundError: there is none (40401).
        """
        key = self._key(kind, vpn, name)
        return objects.shown(*key, self._get(key))

    def find(
        self,
        kind: str,
        vpn: str | None,
        pattern: str,
        fields: Collection[str] = (),
        these: Collection[tuple[str, str]] = (),
    ) -> list[dict[str, Any]]:
        """Give the objects of a kind whose name matches; vpn None means those of all Message VPNs.

        In the pattern * and ? stand for characters, and nothing else does. With `fields` only these attributes are
        given, beside what tells an object from others: copies of all of them are most of the cost of a long list. With
        `these`, Message VPNs and names, it is about those alone.
        """
        found = self.of_kind(kind, vpn if objects.kind_of(kind).in_vpn else None)
        if these:
            found = {key: found[key] for key in these if key in found}
        keys = sorted(key for key in found if objects.is_like(key[1], pattern))
        return [objects.shown(kind, *key, _those(found[key], fields)) for key in keys]

    def get(self, kind: str, vpn: str, name: str) -> objects.Attributes | None:
        """Give the complete attributes of an object, or None."""
        return self._objects.get((kind, vpn, name))

    def of_kind(self, kind: str, vpn: str | None = None) -> dict[tuple[str, str], objects.Attributes]:
        """Give the objects of a kind by (Message VPN, name), those of one Message VPN or of all."""
        found = self._of_kind[kind]
        return {key: attributes for key, attributes in found.items() if vpn in (None, key[0])}

    # -- wishes ----------------------------------------------------------------------------------------------

    def missing_built_ins(self) -> list[Entry]:
        """Give what every node and every Message VPN has by itself, and this one lacks.

        The dead message queue of a Message VPN comes with it and may be deleted, so it is made again only on a node
        that never had an endpoint.
        """
        vpns = {name: attributes for (_, name), attributes in self._of_kind["vpn"].items()}
        changes: list[Entry] = []
        if objects.DEFAULT_NAME not in vpns:
            made = vpns[objects.DEFAULT_NAME] = objects.complete("vpn", {})
            changes.append(Change("vpn", "", objects.DEFAULT_NAME, made))
        for vpn in vpns:
            changes += [change for change in _built_ins(vpn) if change[:3] not in self._objects]
        wanted: list[_Queue] = []
        if self._next_endpoint_id == 1 or not self._objects:
            wanted += [self._dead_message_queue(vpn) for vpn in vpns]
        wanted += [queue for vpn, attributes in vpns.items() for queue in _retained_queue(vpn, attributes)]
        return changes + self._new_queues(wanted)

    def create(self, kind: str, vpn: str, name: str, values: dict[str, Any]) -> list[Entry]:
        """Give the changes that create an object; a Message VPN comes with its built-in profiles and its DMQ.

        Raises:
            InvalidRequestError: name or attributes do not fit (40018, 40022, 40015).
            ConflictError: it exists (40901).
            NotFoundError: its Message VPN, or what it refers to, does not exist (40401).
            UnavailableError: its Message VPN has all the endpoints that it may have (50318).
        """
        key = self._key(kind, vpn, name)
        given = self._given(key, values, objects.convert)
        return passwordless.follow(self, key, given, self._created(key, given))

    def _created(self, key: Key, given: objects.Attributes) -> list[Entry]:
        kind, _, name = key
        node_queues.check_name(kind, name, given)
        attributes = objects.complete(kind, given)
        self._check(key, attributes)
        if kind == "link" and name == self._node:
            raise errors.error_for(errors.LINK_TO_OWN_NODE, f"{name!r} is this node")
        if kind in objects.ENDPOINT_KINDS:
            passwordless.give_owner(self, key[1], given, attributes)
            return self.new_endpoint(key, attributes)
        self.check_new(key)
        if kind in NUMBERED_KINDS:
            attributes["number"] = self._free_number(kind)
        changes: list[Entry] = [Change(*key, attributes)]
        if kind == "vpn":
            changes += _built_ins(name)
            links = [queue for _, link in self._of_kind["link"] for queue in _link_queues(name, link)]
            changes += self._new_queues(
                [self._dead_message_queue(name), *_retained_queue(name, attributes), *links]
            )
        elif kind == "link":
            vpns = [vpn for _, vpn in self._of_kind["vpn"]]
            changes += self._new_queues([queue for vpn in vpns for queue in _link_queues(vpn, name)])
        return changes

    def _new_queues(self, wanted: Iterable[_Queue]) -> list[Entry]:
        """Give the changes that make queues of the node's own where they are missing; each gets id and home."""
        changes: list[Entry] = []
        homes = self.placement.copy()
        for vpn, name, attributes in wanted:
            if ("queue", vpn, name) not in self._objects:
                number = self._next_endpoint_id + len(changes)
                made = {**attributes, "id": number, "homes": homes.homes(1)}
                homes.add(vpn, made)
                changes.append(Change("queue", vpn, name, made))
        return [*changes, Counter(COUNTER, self._next_endpoint_id + len(changes))] if changes else []

    def new_endpoint(
        self, key: Key, attributes: objects.Attributes, *, replaces: objects.Attributes | None = None
    ) -> list[Entry]:
        """Give the changes that create an endpoint with these complete attributes; it gets an id and homes.

        With `replaces` it takes the place of the one of its name, which changes before these delete.

        Raises:
            ConflictError: it exists (40901).
            UnavailableError: its Message VPN has all the endpoints that it may have (50318).
        """
        vpn, number = key[1], self._next_endpoint_id
        if replaces is None:
            self.check_new(key)
        limit = self._objects["vpn", "", vpn]["max_endpoint_count"]
        if replaces is None and self.placement.in_vpn[vpn] >= limit:
            detail = f"Message VPN {vpn!r} has {limit}, its max_endpoint_count"
            raise errors.error_for(errors.TOO_MANY_ENDPOINTS, detail)
        homes = self.placement.homes(_lanes(attributes))
        made = {**attributes, "id": number, "generation": 1, "homes": homes}
        return [Change(*key, made), Counter(COUNTER, number + 1)]

    def skip_ids(self, newest: int) -> list[Entry]:
        """Give what keeps new endpoints from ids up to one that a spool knows; nothing if they are above it."""
        return [] if newest < self._next_endpoint_id else [Counter(COUNTER, newest + 1)]

    def adopt(
        self, vpn: str, name: str, values: dict[str, Any], number: int, generation: int, homes: dict[int, int]
    ) -> list[Entry]:
        """Give the changes that create a queue of which the spools have lanes already.

        Args:
            vpn: its Message VPN.
            name: its name.
            values: attributes.
            number: the id that the lanes were made with.
            generation: that of the lanes.
            homes: partition -> the worker whose spool has its lane.

        Raises:
            AngariumError: as `create`.
            ConflictError: an endpoint has this id (40901).
        """
        key = self._key("queue", vpn, name)
        if any(attributes.get("id") == number for attributes in self._objects.values()):
            raise errors.error_for(errors.OBJECT_EXISTS, f"an endpoint with the id {number}")
        objects.check_name(objects.kind_of("queue"), name)
        given = self._given(key, values, objects.convert)
        attributes = objects.complete("queue", given)
        passwordless.give_owner(self, vpn, given, attributes)
        self._check(key, attributes)
        (made, _) = self.new_endpoint(key, attributes)
        assert isinstance(made, Change)
        assert made.attributes is not None
        lanes = max(_lanes(attributes), 1 + max(homes))
        placed = [homes.get(i, home) for i, home in enumerate(self.placement.homes(lanes))]
        identity = {"id": number, "generation": generation, "homes": placed}
        return [
            Change(*key, {**made.attributes, **identity}),
            Counter(COUNTER, max(self._next_endpoint_id, number + 1)),
        ]

    def _free_number(self, kind: str) -> int:
        """Give the lowest index that no process of a kind has."""
        taken = {attributes["number"] for attributes in self._of_kind[kind].values()}
        return next(number for number in range(len(taken) + 1) if number not in taken)

    def check_new(self, key: Key) -> None:
        """Refuse a key that is taken, or one too many.

        Raises:
            ConflictError: the object exists (40901).
            InvalidRequestError: the node has all the objects that it can hold (40018).
        """
        if key in self._objects:
            raise errors.error_for(errors.OBJECT_EXISTS, _title(key))
        if len(self._objects) >= MAX_OBJECTS:
            raise errors.invalid(f"there are {MAX_OBJECTS} objects, the most a node holds")

    def update(self, kind: str, vpn: str, name: str, values: dict[str, Any]) -> list[Entry]:
        """Give the change that sets attributes of an object; nothing if it has these values already.

        Raises:
            InvalidRequestError: the attributes do not fit (40015).
            NotFoundError: there is no such object, or what it refers to does not exist (40401).
        """
        key = self._key(kind, vpn, name)
        self._get(key)
        given = self._given(key, values, objects.convert)
        return passwordless.follow(self, key, given, self.updated(key, given))

    def updated(self, key: Key, given: objects.Attributes) -> list[Entry]:
        """Give the change that sets checked attributes of an object that exists.

        Raises:
            AngariumError: what `update` raises.
        """
        before = self._get(key)
        attributes = {**before, **given}
        node_queues.check_switches(key[0], key[2], given)
        if "homes" in before:
            # Homes of partitions that are no more are kept: their messages have to be moved from there.
            attributes["homes"] = self.placement.homes(_lanes(attributes), attributes["homes"])
            operators = attributes.get("subscriptions", ())
            added = [text for text in attributes["client_subscriptions"] if text not in operators]
            attributes["client_subscriptions"] = added
        if attributes == before:
            return []
        self._check(key, attributes)
        more = self._retaining(key[2], attributes) if key[0] == "vpn" else []
        return [Change(*key, attributes), *more]

    def _retaining(self, vpn: str, attributes: objects.Attributes) -> list[Entry]:
        """Give the changes that let a Message VPN with these attributes retain as much as it may."""
        key = ("queue", vpn, wire.RETAINED_QUEUE)
        before, wanted = self._objects.get(key), node_queues.retained_queue(attributes)
        if before is None:
            return self._new_queues(_retained_queue(vpn, attributes))
        quota = None if wanted is None else wanted["max_spool_usage_mb"]
        if quota == before["max_spool_usage_mb"]:
            return []
        return [Change(*key, None if quota is None else {**before, "max_spool_usage_mb": quota})]

    def delete(self, kind: str, vpn: str, name: str) -> list[Entry]:
        """Give the changes that remove an object; a Message VPN takes along what is in it (R118).

        Raises:
            NotFoundError: there is no such object (40401).
            ConflictError: it is built in, or others use it (40902).
        """
        key = self._key(kind, vpn, name)
        self._get(key)
        if key == ("vpn", "", objects.DEFAULT_NAME) or _is_built_in(key):
            detail = f"{_title(key)} is built in: update it instead"
            raise errors.error_for(errors.OBJECT_IN_USE, detail)
        if kind == "queue" and ("link", "", node_queues.node_of(name)) in self._objects:
            raise errors.error_for(errors.OBJECT_IN_USE, f"{_title(key)} belongs to a link: delete that")
        if node_queues.is_retained(kind, name):
            detail = f"{_title(key)} belongs to its Message VPN: set max_retained_mb=0 of that"
            raise errors.error_for(errors.OBJECT_IN_USE, detail)
        self._check_unused(key)
        inside = [other for other in sorted(self._objects) if other[1] == name] if kind == "vpn" else []
        if kind == "link":
            # It goes first: without its queue what is acknowledged would be sent over it as direct messages are.
            queues = node_queues.names_of(name)
            after = [other for other in sorted(self._objects) if other[0] == "queue" and other[2] in queues]
            return [Change(*removed, None) for removed in [key, *after]]
        return [Change(*removed, None) for removed in [*inside, key]]

    def endpoints(self) -> Iterator[tuple[Key, objects.Attributes]]:
        """Give every endpoint with its attributes."""
        return ((key, one) for key, one in self._objects.items() if "homes" in one)

    def leave_homes(self, workers: int) -> list[Entry]:
        """Give the changes that move every lane from workers that will be gone; `workers` stay."""
        trial = self.placement.copy()
        trial.counters |= {WORKERS: workers, STAYING: 0}
        changes: list[Entry] = []
        for key, attributes in self._objects.items():
            homes = attributes.get("homes", ())
            if not any(home >= workers for home in homes):
                continue
            moved = {**attributes, "homes": trial.moved(homes)}
            trial.remove(key[1], attributes)
            trial.add(key[1], moved)
            changes.append(Change(*key, moved))
        return changes

    def apply(self, declared: list[list[Any]], undeclared: Sequence[Key] = ()) -> Applied:
        """Give the changes that make all declared objects so, and a report; one fault refuses them all.

        A link to this node is left out with its queues, so that all nodes of a cluster can have the same file.

        Args:
            declared: objects as [kind, vpn, name, attributes]; attributes that are not named stay as they are.
            undeclared: what is deleted, of what `undeclared` gives for the same objects, in that order.

        Raises:
            AngariumError: what `create`, `update` and `delete` raise.
        """
        trial = self._trial()
        changes: list[Entry] = []
        report: list[dict[str, Any]] = []
        # What nothing refers to goes first, for what is declared may need its room.
        trial._remove([key for key in undeclared if key[0] not in _REFERRED], changes, report)
        for kind, vpn, name, values in sorted(declared, key=_declared_order):
            self.on_step()
            key = trial._key(kind, vpn, name)
            if key == ("link", "", self._node) or name in node_queues.names_of(self._node):
                continue
            before = trial._objects.get(key)
            given = trial._given(key, values, objects.convert_declared)
            if before is None:
                made = trial._created(key, given)
            else:
                made = trial.updated(key, node_queues.without_fixed(kind, name, given))
            made = passwordless.follow(trial, key, given, made)
            default = trial._objects.get(passwordless.DEFAULT_USER)
            trial.take(made)
            changes += made
            report.append(_reported(key, before, trial._objects[key]))
            if passwordless.was_closed_by(made):
                user = passwordless.DEFAULT_USER
                report.append(_reported(user, default, trial._objects[user]))
        trial._remove([key for key in undeclared if key[0] in _REFERRED], changes, report)
        return Applied(changes, report)

    def undeclared(self, declared: list[list[Any]]) -> list[Key]:
        """Give what operators made and none of these names, in the order in which it can go.

        What begins with # is the node's own, what clients created is theirs, and a Message VPN stays while something in
        it is named.
        """
        named = {self._key(kind, vpn, name) for kind, vpn, name, _ in declared}
        named |= {("vpn", "", vpn) for _, vpn, _ in named} | {("vpn", "", objects.DEFAULT_NAME)}
        return [
            key
            for *place, attributes in reversed(self.snapshot())
            if (key := (place[0], place[1], place[2])) not in named
            and not (_is_built_in(key) or key[2].startswith("#"))
            and attributes.get("created_by", objects.OPERATOR) == objects.OPERATOR
        ]

    def _remove(self, keys: list[Key], changes: list[Entry], report: list[dict[str, Any]]) -> None:
        """Remove objects, and note how; of two, one may have gone with the other."""
        for key in keys:
            gone = self.delete(*key) if key in self._objects else []
            report += [_removed(change[:3]) for change in gone if isinstance(change, Change)]
            self.take(gone)
            changes += gone

    def _trial(self) -> Catalog:
        """Give a catalog with the same objects, on which wishes can be tried."""
        trial = copy.copy(self)
        trial._objects = dict(self._objects)
        trial._of_kind = {kind: dict(found) for kind, found in self._of_kind.items()}
        trial.placement = self.placement.copy()
        return trial

    def take(self, changes: Sequence[Entry]) -> None:
        """Take over changes; entries that are no objects are others' business."""
        self.revision += 1
        for change in changes:
            if isinstance(change, Counter) and change.name == COUNTER:
                self._next_endpoint_id = change.value
            elif isinstance(change, Counter) and change.name == passwordless.COUNTER:
                self.passwordless = change.value
            elif isinstance(change, Counter) and change.name in self.placement.counters:
                self.placement.counters[change.name] = change.value
            elif isinstance(change, Change):
                self._put(change[:3], change.attributes)

    def undoing(self, changes: Iterable[Entry]) -> list[Entry]:
        """Give the changes that bring back what there is now, once these are taken over."""
        counters = {COUNTER: self._next_endpoint_id, passwordless.COUNTER: self.passwordless}
        counters |= self.placement.counters
        undoing: list[Entry] = []
        for change in changes:
            if isinstance(change, Counter) and change.name in counters:
                undoing.append(Counter(change.name, counters[change.name]))
            elif isinstance(change, Change):
                undoing.append(Change(*change[:3], self._objects.get(change[:3])))
        return undoing

    def _put(self, key: Key, attributes: objects.Attributes | None) -> None:
        before = self._objects.pop(key, None) if attributes is None else self._objects.get(key)
        if before is not None and "homes" in before:
            self.placement.remove(key[1], before)
        if attributes is None:
            self._of_kind[key[0]].pop(key[1:], None)
            self.vpns_deleted += key[0] == "vpn"
            return
        self._objects[key] = self._of_kind[key[0]][key[1:]] = attributes
        if "homes" in attributes:
            self.placement.add(key[1], attributes)
            self._next_endpoint_id = max(self._next_endpoint_id, attributes["id"] + 1)

    def validate(self) -> None:
        """Assert what the attribute comments say."""
        for key, attributes in self._objects.items():
            assert attributes == objects.complete(key[0], attributes), f"{_title(key)} is incomplete"
            self._check_references(key, attributes)
        by_kind = {(kind, *key): one for kind, found in self._of_kind.items() for key, one in found.items()}
        assert by_kind == self._objects, "the objects by kind are others"
        assert not self.missing_built_ins(), "something built in is missing"
        endpoints = [one for one in self._objects.values() if "homes" in one]
        ids = {one["id"] for one in endpoints}
        assert len(ids) == len(endpoints), "two endpoints have one id"
        assert all(0 < number < self._next_endpoint_id for number in ids), "an id would be given twice"
        assert all(len(one["homes"]) >= _lanes(one) for one in endpoints), "a lane has no home"
        assert self.placement.lanes.total() == sum(len(one["homes"]) for one in endpoints), (
            "lanes are miscounted"
        )
        assert self.placement.in_vpn.total() == len(endpoints), "endpoints are miscounted"

    # -- parts -----------------------------------------------------------------------------------------------

    def _key(self, kind: str, vpn: str | None, name: str) -> Key:
        return (kind, (vpn or "") if objects.kind_of(kind).in_vpn else "", name)

    def _get(self, key: Key) -> objects.Attributes:
        try:
            return self._objects[key]
        except KeyError:
            raise errors.error_for(errors.OBJECT_NOT_FOUND, _title(key)) from None

    def _given(
        self,
        key: Key,
        values: dict[str, Any],
        convert: Callable[[str, dict[str, Any]], objects.Attributes],
    ) -> objects.Attributes:
        """Give checked attributes, with a password as its hash: the stored one if it is the same password."""
        attributes, before = convert(key[0], values), self._objects.get(key, {})
        self.check_exceptions(attributes.get("subscriptions", ()))
        if key[0] == "webhook" and (url := attributes.get("url")) != before.get("url") and url:
            self._check_target(url)
        password = attributes.get("password")
        if password and passwords.is_hash(password) and not passwords.is_affordable(password):
            detail = f"{key[0]} attribute password: the cost of the hash is too high, or is none of scrypt"
            raise errors.error_for(errors.INVALID_ATTRIBUTE, detail)
        if password and not passwords.is_hash(password):
            stored = before.get("password", "")
            same = passwords.fits(stored, password)
            attributes["password"] = stored if same else self._hash_password(password)
        return attributes

    def check_exceptions(self, filters: Iterable[str]) -> None:
        """Refuse exceptions if the node does without them (R125).

        Raises:
            InvalidRequestError: with the first one (40028).
        """
        for text in () if self._subscription_exceptions else filters:
            if text.startswith("!"):
                raise errors.error_for(errors.EXCEPTIONS_NOT_SUPPORTED, repr(text))

    def _check_target(self, url: str) -> None:
        """Refuse a URL to which a webhook would never post; one of a node that allowed it stays.

        Raises:
            InvalidRequestError: so it is (40015).
        """
        if not may_name(urlsplit(url).hostname or "", self._webhook_networks):
            detail = f"webhook: {url!r}: its address is not public: http.webhook_networks allows others"
            raise errors.error_for(errors.INVALID_ATTRIBUTE, detail)

    def _check(self, key: Key, attributes: objects.Attributes) -> None:
        self._check_references(key, attributes)
        objects.check_together(key[0], attributes)

    def _check_references(self, key: Key, attributes: objects.Attributes) -> None:
        kind, vpn, _ = key
        if objects.kind_of(kind).in_vpn:
            self._get(("vpn", "", vpn))
        if kind == "username":
            self._get(("acl", vpn, attributes["acl_profile"]))
            self._get(("profile", vpn, attributes["client_profile"]))
        elif kind == "operator":
            self._check_operator(key, attributes)

    def _check_operator(self, key: Key, attributes: objects.Attributes) -> None:
        if attributes["vpn"]:
            self._get(("vpn", "", attributes["vpn"]))
        for other, found in self._of_kind["operator"].items():
            for name in objects.LOGIN_NAMES:
                if attributes[name] and attributes[name] == found[name] and other != key[1:]:
                    detail = f"operator {other[1]!r}, which has {name} = {found[name]!r}"
                    raise errors.error_for(errors.OBJECT_EXISTS, detail)

    def _check_unused(self, key: Key) -> None:
        kind, vpn, name = key
        if kind not in _REFERRED:
            return
        where = name if kind == "vpn" else vpn
        usernames = [
            username
            for (_, username), attributes in self.of_kind("username", where).items()
            if kind == "vpn" or attributes[_REFERENCES[kind]] == name
        ]
        operators = [
            operator
            for (_, operator), attributes in self._of_kind["operator"].items()
            if kind == "vpn" and attributes["vpn"] == name
        ]
        for what, users in (("usernames", usernames), ("operators", operators)):
            if users:
                detail = f"{_title(key)} by {len(users)} {what}, {users[0]!r} for instance"
                raise errors.error_for(errors.OBJECT_IN_USE, detail)

    def _dead_message_queue(self, vpn: str) -> _Queue:
        """Give the queue for dead messages that a Message VPN comes with: what is there has expired once."""
        owner = passwordless.owner_of_new(self, vpn)
        given = {"respect_ttl": False, "dead_message_queue": "", "owner": owner}
        return vpn, objects.DEAD_MESSAGE_QUEUE, objects.complete("queue", given)


def _link_queues(vpn: str, link: str) -> list[_Queue]:
    """Give the queues of a link in a Message VPN."""
    return [(vpn, name, attributes) for name, attributes in node_queues.queues_of(link).items()]


def _retained_queue(vpn: str, attributes: objects.Attributes) -> list[_Queue]:
    """Give the queue for retained messages of a Message VPN, if it retains any."""
    made = node_queues.retained_queue(attributes)
    return [] if made is None else [(vpn, wire.RETAINED_QUEUE, made)]


def _lanes(endpoint: objects.Attributes) -> int:
    """Give how many lanes an endpoint has: one per partition, or one."""
    return max(1, int(endpoint.get("partition_count", 0)))


def _those(attributes: objects.Attributes, fields: Collection[str]) -> objects.Attributes:
    """Give some of the attributes, or all of them without fields."""
    return {name: attributes[name] for name in fields if name in attributes} if fields else attributes


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


def _removed(key: Key) -> dict[str, Any]:
    return {"action": "delete", "kind": key[0], "vpn": key[1], "name": key[2], "changes": {}}


def _title(key: Key) -> str:
    kind, vpn, name = key
    return f"{kind} {name!r}" + (f" in Message VPN {vpn!r}" if vpn else "")
