"""What a link process carries: a channel for each Message VPN that the controller names.

A channel has a session with each of both routers, and relays between them in both directions. The neighbour is asked
first: its WELCOME names it, and the session at the own router stands for the node that really answers. How the two
sessions begin and end is in `cluster.relay.pair`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from angarium import errors, wire
from angarium.client.protocol.session import Hello
from angarium.client.transport.address import is_encrypted
from angarium.errors import AngariumError, error_for
from angarium_server.connections.encryption import Trust
from cluster.link.role import LinkConfig
from cluster.relay.pair import FAR, KEEPALIVE_MS, OWN, Pair, State
from cluster.relay.pairs import Pairs
from cluster.relay.session import Exported, Imported, Reported
from cluster.relay.spooled import Forwarder

if TYPE_CHECKING:
    from cluster.relay.pair import Surroundings


class Channel(Pair):
    """One Message VPN of a link."""

    def __init__(self, around: Surroundings, config: LinkConfig, vpn: str, now: float) -> None:
        super().__init__(around, {"scope": "SYSTEM", "link": config.neighbour, "vpn": vpn}, now)
        self.vpn = vpn
        self._config = config

    # -- connecting ------------------------------------------------------------------------------------------

    def _far_addresses(self) -> tuple[list[str], Trust]:
        if not self._config.addresses:
            detail = f"link {self._config.neighbour!r} names no address of the neighbour"
            raise error_for(errors.CONNECT_FAILED, detail)
        config = self._config
        return config.addresses, Trust(config.server_name or config.neighbour)

    def _hello(self, side: int) -> Hello:
        identity = self._runtime.identity
        node, node_id = (self._runtime.node, identity.node_id) if side == FAR else self._who_answers()
        link = {
            "node": node,
            "node_id": node_id,
            "cluster": identity.cluster,
            "incarnation": self._incarnation,
            "encrypted": is_encrypted(self._far_url),
        }
        secret = identity.secret or None if side == FAR else None
        more = {"link": link} if side == FAR else {"link": link, "behalf": self._self_proof}
        return Hello(self.vpn, wire.LINK_USERNAME, secret, keepalive_ms=KEEPALIVE_MS, more=more)

    def _who_answers(self) -> tuple[str, str]:
        """Give name and id of the far node.

        Raises:
            AngariumError: it is not the neighbour (40322).
        """
        far = self.sessions[FAR]
        assert far is not None
        assert far.welcome is not None
        answers = str(far.welcome.link.get("node", ""))
        if answers != self._config.neighbour:
            detail = f"link {self._config.neighbour!r} leads to node {answers!r}"
            raise error_for(errors.LINK_WRONG_NODE, detail)
        return answers, str(far.welcome.link.get("node_id", ""))

    def _became_up(self) -> None:
        for source, target in ((OWN, FAR), (FAR, OWN)):
            relay, session = self.relays[source], self.sessions[target]
            assert relay is not None
            assert session is not None
            relay.open(session)
            self._carry(source)

    def _carry(self, source: int) -> None:
        """Carry the queues of the link at one side to the other."""
        here, there = self.sessions[source], self.sessions[1 - source]
        assert here is not None
        assert there is not None
        assert here.welcome is not None
        assert there.welcome is not None
        queue = f"{wire.LINK_NAME_PREFIX}{there.welcome.node}"
        offset_ms = self._offsets_ms[source]
        for name in (queue, queue + wire.LINK_RETRY_SUFFIX):
            forwarder = Forwarder(here, there, name, offset_ms)
            self.forwarders[source].append(forwarder)
            forwarder.open()

    # -- relaying --------------------------------------------------------------------------------------------

    def _take_more(self, side: int, event: Any, now: float) -> None:
        """Carry what the nodes want of each other, and what their controllers tell."""
        del now
        from_here, to_here = self.relays[side], self.relays[1 - side]
        if isinstance(event, Exported):
            assert from_here is not None
            from_here.exported(event)
        elif isinstance(event, Imported) and to_here is not None:
            to_here.is_synchronised |= event.is_complete
            to_here.go_on()
        elif isinstance(event, Reported):
            other = self.sessions[1 - side]
            if other is not None:
                other.report(event.report)

    def _tell_message_refused(self, code: int) -> None:
        text = (
            f"node {self._config.neighbour!r} or this one refused a message of the link in Message VPN "
            f"{self.vpn!r}: {error_for(code)}; it is tried once more, then it goes to the dead message queue"
        )
        self._tell("warning", "SYSTEM_LINK_MESSAGE_REFUSED", text, code)

    def _tell_refused(self, error: AngariumError) -> None:
        text = f"the link to node {self._config.neighbour!r} in Message VPN {self.vpn!r} was refused: {error}"
        self._tell("error", "SYSTEM_LINK_REFUSED", text, error.code)

    def describe(self, now: float) -> dict[str, Any]:
        """Give what `angarium link show` says of it."""
        own, far = self.relays
        session = self.sessions[FAR]
        forwarders = [forwarder for side in self.forwarders for forwarder in side]
        is_whole = self.state is State.UP and all(forwarder.producer for forwarder in forwarders)
        error = None if is_whole else self.error
        return {
            "vpn": self.vpn,
            "state": self.state.value,
            "error": "" if error is None else str(error),
            "code": 0 if error is None else error.code,
            "lag_ms": None if session is None else session.lag_ms(now),
            "attempts": self._attempts,
            "relayed_out": own.messages if own is not None else 0,
            "relayed_in": far.messages if far is not None else 0,
            "rounds_waiting": sum(relay.waiting for relay in self.relays if relay is not None),
            "wishes_waiting": sum(relay.untold for relay in self.relays if relay is not None),
            "untold_in": far.untold if far is not None else 0,
            "untold_out": own.untold if own is not None else 0,
            "discarded": sum(relay.discarded for relay in self.relays if relay is not None),
            "refused": {str(code): count for code, count in sorted(self.refused.items())},
            "queues": [forwarder.describe() for forwarder in forwarders],
        }


class Link(Pairs[LinkConfig, Channel]):
    """The channels of one link process, by Message VPN."""

    ROLE: ClassVar[str] = "link"
    CONFIG: ClassVar[type[LinkConfig]] = LinkConfig
    CHANGES: ClassVar[str] = "vpns"

    def _names(self, config: LinkConfig) -> list[str]:
        return config.vpns

    def _make(self, config: LinkConfig, name: str, now: float) -> Channel:
        return Channel(self._around, config, name, now)

    def _stats(self, now: float) -> dict[str, Any]:
        neighbour = "" if self._config is None else self._config.neighbour
        return {"neighbour": neighbour, "channels": [one.describe(now) for one in self.pairs.values()]}
