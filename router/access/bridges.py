"""Which bridges may come, and which gateways: HELLO of such a process, judged.

A bridge process has two sessions. The one with its own router publishes into the Message VPN of the bridge: it shows
that it is a process of this node (`Hello.behalf`), and is no client. The one with the far router takes messages there:
it is a client like others, whose client profile has to allow bridges. So nobody from outside ever publishes as a
bridge, and what a message says of where it has been is true.

A gateway process has one session per Message VPN whose clients it has, and shows the same as a bridge does there; its
clients are attached to that, and each is judged like any other.

Operators are told of refusals, each once in a while: who is refused tries again and again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from angarium import errors
from angarium.errors import AngariumError, error_for
from router.sessions.hello import BridgeHello

if TYPE_CHECKING:
    from router.access.login import Ticket
    from router.ground.ground import Ground, Outbox
    from router.sessions.directory import Directory, Vpn
    from router.sessions.hello import CarriedFor, Hello
    from router.sessions.session import Session

#: A refusal that comes again, because a process tries again, is one event in this time.
REFUSAL_EVENT_S: Final = 60.0
#: Refusals that are remembered for that; more are forgotten together.
REFUSALS_MAX: Final = 1_000


class Refusals:
    """Tells operators who was refused, unless they know."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        #: (event, who, Message VPN, code) -> when the operators were told of it.
        self._told: dict[tuple[str, str, str, int], float] = {}

    def tell(self, event: str, who: str, vpn: str, error: AngariumError, now: float, **fields: Any) -> None:
        """Tell that somebody was refused in a Message VPN; `who` begins the sentence."""
        key = (event, who, vpn, error.code)
        if now - self._told.get(key, float("-inf")) < REFUSAL_EVENT_S:
            return
        if len(self._told) >= REFUSALS_MAX:
            self._told.clear()
        self._told[key] = now
        text = f"{who} was refused: {error}"
        self._outbox.event(event, text, severity="error", vpn=vpn, code=error.code, **fields)


class LocalGate:
    """Judges bridges and gateways of this node by what they say of themselves."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def judge(self, hello: Hello, _now: float) -> tuple[Vpn, CarriedFor]:
        """Give the Message VPN that such a process comes to, and what it says.

        Raises:
            AngariumError: 40001 it says nothing, 40309 and 50301 the Message VPN is not there, or disabled.
        """
        who = hello.carried_for
        if who is None:
            raise error_for(errors.MALFORMED_FRAME, f"{hello.username} says which {hello.kind.name} it is")
        return self._directory.vpn_to_join(hello.vpn), who

    def check_successor(self, session: Session, who: CarriedFor, _now: float) -> None:
        """Judge a second session of such a process while the first one is there.

        Raises:
            ConflictError: it is not the same process, or its successor (40907).
        """
        if not who.may_follow(session.carried_for):
            raise error_for(errors.CLIENT_NAME_IN_USE, who.client_name)


class BridgeGate:
    """Judges bridges that come as clients by the node that they are of, links, and the profiles of usernames."""

    def __init__(self, ground: Ground, directory: Directory) -> None:
        self._node = ground.node
        self._identity = ground.identity
        self._directory = directory
        self._refusals = Refusals(ground.out)

    def judge_far(self, ticket: Ticket, bridge: BridgeHello, now: float) -> None:
        """Judge a bridge that comes as a client.

        Raises:
            ForbiddenError: 40323 the client profile allows none, 40324 both its ends are one Message VPN.
        """
        vpn, profile = ticket.vpn, ticket.profiles[0]
        try:
            self._check_ends(vpn.name, bridge)
            _check_profile(vpn, profile)
        except AngariumError as error:
            who = f"bridge {bridge.name!r} of node {bridge.node!r}, Message VPN {bridge.vpn!r}"
            self._refusals.tell("VPN_BRIDGE_REFUSED", who, vpn.name, error, now, scope="VPN")
            raise

    def _check_ends(self, vpn: str, bridge: BridgeHello) -> None:
        same_node = bridge.node_id == self._identity.node_id
        if bridge.node == self._node and not same_node:
            raise error_for(errors.BRIDGE_TO_ITSELF, f"two nodes have the name {self._node!r}: rename one")
        link = self._directory.links.get(bridge.node)
        joined = link is not None and bool(link["enabled"])
        if bridge.vpn == vpn and (same_node or joined):
            why = "" if same_node else f", to which node {self._node!r} has a link"
            raise error_for(errors.BRIDGE_TO_ITSELF, f"Message VPN {vpn!r} of node {bridge.node!r}{why}")

    def fault_of(self, session: Session) -> AngariumError | None:
        """Judge a session again after objects have changed."""
        bridge = session.carried_for
        if not isinstance(bridge, BridgeHello) or not session.is_client:
            return None
        try:
            self._check_ends(session.vpn.name, bridge)
            _check_profile(session.vpn, session.profile_name)
        except AngariumError as error:
            return error
        return None


def _check_profile(vpn: Vpn, name: str) -> None:
    if not vpn.profiles[name]["allow_bridge_connections"]:
        detail = f"client profile {name!r} in Message VPN {vpn.name!r}"
        raise error_for(errors.BRIDGE_NOT_ALLOWED, detail)
