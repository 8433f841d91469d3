"""What a session may do, taken from its client profile and ACL profile.

And renewed when an operator changes them.

Publish rules are checked by the workers, which know them by a number; the same list of rules has one number
however many clients publish under it. Gateways check them for the clients that are attached to them, and are told what
those may. Everything else is checked here and in `subscriptions`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from angarium.errors import AngariumError
from angarium_server.frames import gateways
from angarium_server.frames.frame import encode
from angarium_server.frames.gateways import RightsFrame
from router.ground.ground import nothing
from router.sessions.directory import profiles_of
from router.sessions.queues import EgressQueue
from router.sessions.session import Permissions

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium_server.access import TopicRules
    from angarium_server.tokens.claims import Grant
    from router.delivery.egress import Egress
    from router.delivery.eliding import Eliding
    from router.matching.shards import Shards
    from router.sessions.directory import AclProfile, Username, Vpn
    from router.sessions.queues import QueueLimits
    from router.sessions.session import Session

RulesKey = tuple[bool, tuple[str, ...]]
Attributes = dict[str, Any]
_CLASSES = (1, 2, 3)


@dataclass(frozen=True, eq=False)
class Granted:
    """What the clients of a username may, and the objects that say so."""

    acl: AclProfile
    profile: Attributes
    permissions: Permissions
    publish: RulesKey
    queues: QueueLimits

    @cached_property
    def for_gateway(self) -> gateways.Rights:
        """What the gateway of such a client has to know: one object for all of them."""
        return gateways.Rights(
            publish_allowed=self.publish[0],
            publish_exceptions=list(self.publish[1]),
            queue_units=self.queues[0][0],
            may_share=self.permissions.shared_allowed,
            may_send_guaranteed=bool(self.profile["allow_guaranteed_send"]),
            may_receive_guaranteed=bool(self.profile["allow_guaranteed_receive"]),
        )


class Rights:
    """Gives sessions their rights and keeps the numbers of publish rules."""

    def __init__(self, shards: Shards, eliding: Eliding, egress: Egress) -> None:
        self.shards = shards
        self._eliding = eliding
        self._egress = egress
        #: Called with a session that may something else now, perhaps, and the time.
        self.on_granted: Callable[[Session, float], None] = nothing
        #: Attached clients that may something else than their gateways know.
        self._changed: dict[Session, gateways.Rights] = {}
        self._next_id = 1
        #: Rules -> [number, sessions that publish under them]; never zero sessions.
        self._numbers: dict[RulesKey, list[int]] = {}

    def grant(self, session: Session, now: float) -> bool:
        """Give a session what its profiles say now; false if they are not there or do not fit it."""
        vpn = session.vpn
        username = vpn.account_of(session.username)
        if username is None:
            return False
        granted = self.find(vpn, username, session.grant)
        if granted is None:
            return False
        session.profile_name = profiles_of(username, session.grant)[0]
        session.permissions = granted.permissions
        if session.egress is None:
            session.egress = EgressQueue(granted.queues)
        else:
            session.egress.limit(granted.queues)
        self._set_eliding(session, granted.profile, now)
        number = self._take(granted.publish)
        self.revoke(session)
        session.publish_rules_id = number
        if session.carrier is not None:
            if session.rights not in (None, granted.for_gateway):
                self._changed[session] = granted.for_gateway
            session.rights = granted.for_gateway
        self.on_granted(session, now)
        return True

    def tell_gateways(self) -> None:
        """Tell gateways what their clients may from now on: together those who may the same."""
        changed, self._changed = self._changed, {}
        packed = {id(rights): encode(rights) for rights in changed.values()}
        told: dict[tuple[Session, bytes], RightsFrame] = {}
        for session, rights in changed.items():
            carrier = session.carrier
            if not session.closed and carrier is not None and not carrier.closed:
                frame = told.setdefault((carrier, packed[id(rights)]), RightsFrame(rights, []))
                frame.numbers.append(session.attached_number)
        for (carrier, _), frame in told.items():
            self._egress.answer(carrier, frame.frames())

    def find(self, vpn: Vpn, username: Username, grant: Grant | None) -> Granted | None:
        """Give what a client of a username may, with its token; None if its profiles are not there or do not fit.

        It is the same for all clients but those whose tokens name other profiles, and worked out again when one of the
        objects was replaced.
        """
        client_profile, acl_profile = profiles_of(username, grant)
        acl, profile = vpn.acls.get(acl_profile), vpn.profiles.get(client_profile)
        if acl is None or profile is None:
            return None
        known: Granted | None = username.granted
        if known is not None and known.acl is acl and known.profile is profile:
            return known
        try:
            publish, subscribe = acl.publish_list(username.name), acl.subscribe_rules(username.name)
        except AngariumError:  # the variables of the profile cannot take this username in
            return None
        permissions = _permissions(profile, acl, subscribe)
        known = username.granted = Granted(acl, profile, permissions, publish, _queues(profile))
        return known

    def session_ended(self, session: Session, _error: object, _now: float) -> None:
        """Its rules go with its last round."""
        if not session.open_rounds:
            self.revoke(session)

    def revoke(self, session: Session) -> None:
        """A session does not publish under its rules any more."""
        number = session.publish_rules_id
        session.publish_rules_id = 0
        if not number:
            return
        key = self.shards.rules[number]
        entry = self._numbers[key]
        entry[1] -= 1
        if not entry[1]:
            del self._numbers[key]
            self.shards.drop_rules(number)

    def _take(self, key: RulesKey) -> int:
        if key == (True, ()):
            return 0  # everything is allowed
        entry = self._numbers.get(key)
        if entry is None:
            entry = self._numbers[key] = [self._next_id, 0]
            self._next_id += 1
            self.shards.put_rules(entry[0], *key)
        entry[1] += 1
        return entry[0]

    def _set_eliding(self, session: Session, profile: Attributes, now: float) -> None:
        # A gateway cannot hold back what is for one of its clients: it gets it for all of them.
        if not profile["eliding"] or session.carrier is not None:
            self._eliding.stop(session, now)
            return
        delay_ms, topics_max = int(str(profile["eliding_delay_ms"])), int(str(profile["eliding_max_topics"]))
        self._eliding.allow(session, delay_ms, topics_max, now)


def _permissions(profile: Attributes, acl: AclProfile, subscribe: TopicRules) -> Permissions:
    return Permissions(
        shared_allowed=bool(profile["allow_shared_subscriptions"]),
        subscriptions_max=int(profile["max_subscription_count"]),
        memory_max=int(profile["max_memory_bytes"]),
        username_memory_max=int(profile["max_memory_bytes_per_client_username"]),
        filters=subscribe,
        share_names=acl.share_names,
        matching_work_per_s=int(profile["max_matching_work_per_s"]),
        overlapping_max=int(profile["max_overlapping_filters"]),
    )


def _queues(profile: Attributes) -> QueueLimits:
    return tuple(
        (int(profile[f"queue_direct_{n}_max_depth"]), int(profile[f"queue_direct_{n}_min_msg_burst"]))
        for n in _CLASSES
    )
