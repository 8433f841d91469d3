"""A bridge: a session with the far router, of which messages are taken, and one with the own router, which gets them.

At the far router it is a client with a username of that Message VPN; it subscribes to what the bridge names. At the own
router it publishes into the Message VPN of the bridge. How the two sessions begin and end is in `cluster.link.pair`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from angarium import errors, trail, wire
from angarium.client.events import Answered
from angarium.client.session import Hello
from angarium.errors import AngariumError, error_for
from cluster.bridge.crossing import Crossing
from cluster.bridge.relay import BridgeRelay
from cluster.link.pair import FAR, KEEPALIVE_MS, OWN, Effect, Emit, Pair, State

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from cluster.bridge.config import BridgeConfig
    from cluster.link.config import LinkRuntime
    from cluster.link.session import LinkSession

#: Attribute `remote_deliver_to_one_priority` -> priority of the session; those outside get theirs always.
_PRIORITIES: Final = {"p1": 1, "p2": 2, "p3": 3, "p4": 4}
#: Flag of a filter that is deliver-always.
_DELIVER_ALWAYS: Final = 1


class BridgeChannel(Pair):
    """One bridge at work."""

    def __init__(
        self,
        runtime: LinkRuntime,
        config: BridgeConfig,
        incarnation: int,
        own_url: str,
        read_password: Callable[[str], str],
        outbox: list[Effect],
        rng: random.Random,
        now: float,
        wall_s: Callable[[], float],
    ) -> None:
        """Wait for the first tick.

        Args:
            runtime: who this node is.
            config: of the bridge.
            incarnation: of the process.
            own_url: of the own router.
            read_password: gives the first line of a file; raises AngariumError.
            outbox: takes effects.
            rng: for jitter.
            now: monotonic, in seconds, like every `now` here.
            wall_s: gives the time of the day in seconds.
        """
        super().__init__(outbox, rng, now, wall_s)
        self._runtime = runtime
        self._config = config
        self._incarnation = incarnation
        self._own_url = own_url
        self._read_password = read_password
        #: Of the connection that is open, or was last; None before the first.
        self._crossing: Crossing | None = None
        #: Requests for subscriptions that are not answered -> their filters.
        self._asked: dict[int, list[str]] = {}

    # -- connecting ------------------------------------------------------------------------------------------

    def _far_addresses(self) -> tuple[list[str], str]:
        if not self._config.addresses:
            return [self._own_url], self._runtime.local_key
        return self._config.addresses, self._config.public_key

    def _own_address(self) -> tuple[str, str]:
        return self._own_url, self._runtime.local_key

    def _hello(self, side: int) -> Hello:
        config, identity = self._config, self._runtime.identity
        bridge = {
            "name": config.name,
            "vpn": config.vpn,
            "node": self._runtime.node,
            "node_id": identity.node_id,
            "incarnation": self._incarnation,
        }
        if side == OWN:
            return Hello(
                config.vpn,
                wire.BRIDGE_USERNAME,
                identity.local_secret,
                keepalive_ms=KEEPALIVE_MS,
                bridge=bridge,
            )
        password = self._read_password(config.remote_password_file) if config.remote_password_file else None
        priority = _PRIORITIES.get(config.remote_deliver_to_one_priority, 1)
        return Hello(
            config.remote_vpn, config.remote_username, password, keepalive_ms=KEEPALIVE_MS,
            local_priority=priority, network_priority=priority, bridge=bridge,
        )  # fmt: skip

    def _became_up(self) -> None:
        own, far = self.sessions
        assert own is not None
        assert far is not None
        assert far.welcome is not None
        config = self._config
        nodes = (self._runtime.node, *config.neighbours)
        source = trail.place(far.welcome.node, config.remote_vpn)
        self._crossing = Crossing(source, config.vpn, nodes, config.max_hops)
        relay = self.relays[FAR] = BridgeRelay(far, self._crossing)
        relay.open(own)
        self._subscribe(far)
        text = f"bridge {config.name!r} takes messages from Message VPN {config.remote_vpn!r} of {far.welcome.node!r}"
        self._tell("notice", "VPN_BRIDGE_UP", text)

    def _subscribe(self, far: LinkSession) -> None:
        config = self._config
        outside = config.remote_deliver_to_one_priority not in _PRIORITIES
        wanted = [(text, _DELIVER_ALWAYS * outside) for text in config.remote_subscriptions]
        wanted += [(text, _DELIVER_ALWAYS) for text in config.remote_deliver_always_subscriptions]
        self._asked.clear()
        for start in range(0, len(wanted), wire.MAX_FILTERS_PER_REQUEST):
            some = wanted[start : start + wire.MAX_FILTERS_PER_REQUEST]
            self._asked[far.subscribe(some)] = [text for text, _ in some]

    # -- relaying --------------------------------------------------------------------------------------------

    def _take_more(self, side: int, event: Any, now: float) -> None:
        del side
        if isinstance(event, Answered):
            filters = self._asked.pop(event.request, [])
            for text, error in zip(filters, event.results, strict=True):
                if error is not None:
                    self._refuse(error_for(error.code, f"remote subscription {text!r}: {error.detail}"), now)
                    return

    # -- telling ---------------------------------------------------------------------------------------------

    def _tell_refused(self, error: AngariumError) -> None:
        config = self._config
        text = f"bridge {config.name!r} cannot take messages from Message VPN {config.remote_vpn!r}: {error}"
        self._tell("error", "VPN_BRIDGE_REFUSED", text, error.code)

    def _tell_message_refused(self, code: int) -> None:
        config = self._config
        text = (
            f"Message VPN {config.vpn!r} refused a message of bridge {config.name!r}: {error_for(code)}; it goes to "
            f"the dead message queue of {config.remote_queue!r}"
        )
        self._tell("warning", "VPN_BRIDGE_MESSAGE_REFUSED", text, code)

    def _tell(self, severity: str, event: str, text: str, code: int = 0) -> None:
        told = {"severity": severity, "scope": "VPN", "event": event, "text": text, "vpn": self._config.vpn}
        self._outbox.append(Emit({**told, "bridge": self._config.name, "code": code}))

    def _close(self, now: float, error: AngariumError | None = None) -> None:
        if self.state is State.UP:
            why = self.error or error_for(errors.SHUTTING_DOWN, "the bridge was switched off, or changed")
            text = f"bridge {self._config.name!r} takes no messages any more: {why}"
            self._tell("warning", "VPN_BRIDGE_DOWN", text, why.code)
        super()._close(now, error)

    def describe(self, now: float) -> dict[str, Any]:
        """Give what `angarium bridge show` says of it."""
        relay, far = self.relays[FAR], self.sessions[FAR]
        dropped = {} if self._crossing is None else self._crossing.dropped
        is_up = self.state is State.UP
        return {
            "state": "up" if is_up else "down",
            "step": self.state.value,
            "remote_node": far.welcome.node if far is not None and far.welcome is not None else "",
            "uptime_s": round(now - self._up_since, 3) if is_up else None,
            "error": "" if self.error is None or is_up else str(self.error),
            "attempts": self._attempts,
            "messages": relay.messages if relay is not None else 0,
            "dropped": dict(dropped),
            "discarded": relay.discarded if relay is not None else 0,
            "rounds_waiting": relay.waiting if relay is not None else 0,
            "refused": {str(code): count for code, count in sorted(self.refused.items())},
        }
