"""A bridge: a session with the far router, of which messages are taken, and one with the own router, which gets them.

At the far router it is a client with a username of that Message VPN; it subscribes to what the bridge names. At the own
router it publishes into the Message VPN of the bridge. How the two sessions begin and end is in `cluster.relay.pair`.

Guaranteed messages are carried exactly once, as those of a link are. The queue is one of the remote Message VPN, which
others may use too. So the bridge may have to stand by until it is the active consumer, and what the queue holds is not
made for it: direct messages that it attracted, messages that have been here before. A message

    that has been in this Message VPN               is accepted there: it is here already
    that has crossed too many bridges               is rejected: it goes to the dead message queue of the queue
    that an endpoint here refuses                   is rejected too; redriven it is tried again
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from angarium import errors, trail, wire
from angarium.client.protocol.events import Answered
from angarium.client.protocol.session import Hello
from angarium.client.transport.address import is_encrypted
from angarium.errors import AngariumError, error_for
from angarium_server.connections.encryption import Trust
from cluster.bridge.crossing import VISITED, Crossing
from cluster.bridge.role import BridgeConfig
from cluster.configuration.config import read_password_file
from cluster.relay.direct import Relay
from cluster.relay.pair import BACKOFF_MAX_S, FAR, KEEPALIVE_MS, OPEN_AGAIN_S, OWN, Pair, State
from cluster.relay.pairs import Pairs
from cluster.relay.session import Told
from cluster.relay.spooled import Forwarder, aged

if TYPE_CHECKING:
    from collections.abc import Callable

    from cluster.relay.frames import Row
    from cluster.relay.pair import Surroundings
    from cluster.relay.session import LinkSession


class BridgeForwarder(Forwarder):
    """Carries the messages of the remote queue of a bridge."""

    PRODUCER_PREFIX: ClassVar[str] = wire.BRIDGE_NAME_PREFIX
    MORE_WISHES: ClassVar[dict[str, Any]] = {"active_indication": True}

    def __init__(
        self, source: LinkSession, target: LinkSession, queue: str, clock_offset_ms: int, crossing: Crossing
    ) -> None:
        """Begin as a forwarder does; `crossing` judges the messages."""
        super().__init__(source, target, queue, clock_offset_ms)
        self._crossing = crossing
        #: True while another consumer has the queue and this one never had it; and while it has it no more.
        self.is_standing_by = self.is_passed_over = False

    def _bound(self, value: dict[str, Any]) -> None:
        self.is_standing_by = not value["active"]
        if not self.is_standing_by:
            super()._bound(value)
        else:
            self.flow, self._endpoint_id = int(value["flow"]), int(value["endpoint_id"])

    def activated(self, flow: int) -> None:
        """The flow is the active one; only then a producer is opened, which would fence that of another bridge."""
        if flow != self.flow:
            return
        self.is_passed_over = False
        if self.is_standing_by:
            self.is_standing_by = False
            self.open()

    def deactivated(self, flow: int) -> None:
        """The flow gets nothing for a while: a reader group has leased the queue."""
        self.is_passed_over = self.is_passed_over or flow == self.flow

    def _admit(self, position: int, row: Row, age_ms: int, origin: tuple[str, str, str] | None) -> None:
        del origin
        ttl_ms, delay_ms, priority, route = (0, 0, None, None) if row[3] is None else aged(row[3], age_ms)
        goes_on = self._crossing.cross(route)
        if isinstance(goes_on, str):
            outcome = wire.OUTCOME_ACCEPTED if goes_on == VISITED else wire.OUTCOME_REJECTED
            self._drop(position, outcome)
            return
        flags = row[2] if row[2] & wire.FLAG_MODE else row[2] | wire.MODE_NON_PERSISTENT
        self._add(position, (row[0], row[1], flags, (ttl_ms, delay_ms, priority, goes_on), row[4], row[5]))


#: Attribute `remote_deliver_to_one_priority` -> priority of the session; those outside get theirs always.
_PRIORITIES: Final = {"p1": 1, "p2": 2, "p3": 3, "p4": 4}
#: Where the client of the own router is that a bridge between two of its Message VPNs logs in.
THIS_HOST: Final = "127.0.0.1"
#: How often the remote queue is asked what it holds.
LOOK_INTERVAL_S: Final = 2.0
#: Flag of a filter that is deliver-always.
_DELIVER_ALWAYS: Final = 1


class BridgeChannel(Pair):
    """One bridge at work."""

    def __init__(
        self, around: Surroundings, config: BridgeConfig, read_password: Callable[[str], str], now: float
    ) -> None:
        """Wait for the first tick; `read_password` gives the first line of a file, or raises AngariumError."""
        super().__init__(around, {"scope": "VPN", "bridge": config.name, "vpn": config.vpn}, now)
        self._config = config
        self._read_password = read_password
        #: Of the connection that is open, or was last; None before the first.
        self._crossing: Crossing | None = None
        #: Requests for subscriptions that are not answered -> their filters.
        self._asked: dict[int, list[str]] = {}
        #: Of the remote queue, if there is one; None before the first connection.
        self._forwarder: BridgeForwarder | None = None
        #: How long a refused flow or producer is not asked for.
        self._open_pause_s = OPEN_AGAIN_S
        #: When the remote queue is looked at again, and what it held then; None if that is not known.
        self._look_at = now
        self._queued: int | None = None

    def join(self, neighbours: list[str]) -> None:
        """Take note of the nodes to which this one has links now; that needs no new connection."""
        self._config = msgspec.structs.replace(self._config, neighbours=neighbours)
        if self._crossing is not None:
            self._crossing.join(self._nodes())

    def _nodes(self) -> tuple[str, ...]:
        return (self._runtime.node, *self._config.neighbours)

    # -- connecting ------------------------------------------------------------------------------------------

    def _far_addresses(self) -> tuple[list[str], Trust]:
        if not self._config.addresses:
            return [self._own_url], Trust()
        return self._config.addresses, Trust(self._config.server_name, self._config.ca_pem)

    def _hello(self, side: int) -> Hello:
        config, identity = self._config, self._runtime.identity
        bridge = {
            "name": config.name,
            "vpn": config.vpn,
            "node": self._runtime.node,
            "node_id": identity.node_id,
            "incarnation": self._incarnation,
        }
        more: dict[str, Any] = {"bridge": bridge}
        if side == OWN:
            more["behalf"] = self._self_proof
            return Hello(config.vpn, wire.BRIDGE_USERNAME, keepalive_ms=KEEPALIVE_MS, more=more)
        if not config.addresses:
            more["behalf"] = {**self._self_proof, "address": THIS_HOST}
        password = self._read_password(config.remote_password_file) if config.remote_password_file else None
        priority = _PRIORITIES.get(config.remote_deliver_to_one_priority, 1)
        return Hello(
            config.remote_vpn,
            config.remote_username,
            password,
            keepalive_ms=KEEPALIVE_MS,
            local_priority=priority,
            network_priority=priority,
            more=more,
        )

    def _became_up(self) -> None:
        own, far = self.sessions
        assert own is not None
        assert far is not None
        assert far.welcome is not None
        config = self._config
        source = trail.place(far.welcome.node, config.remote_vpn)
        self._crossing = Crossing(source, config.vpn, self._nodes(), config.max_hops)
        relay = self.relays[FAR] = Relay(far, self._crossing.admit)
        relay.open(own)
        self._subscribe(far)
        self._open_pause_s = OPEN_AGAIN_S
        self._forwarder = None
        if config.remote_queue:
            forwarder = BridgeForwarder(far, own, config.remote_queue, self._offsets_ms[FAR], self._crossing)
            self._forwarder = forwarder
            self.forwarders[FAR].append(forwarder)
            forwarder.open()
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
        if isinstance(event, Told) and side == FAR and self._forwarder is not None:
            if event.event == wire.FLOW_ACTIVE:
                self._forwarder.activated(event.flow)
            elif event.event == wire.FLOW_INACTIVE:
                self._forwarder.deactivated(event.flow)
        elif isinstance(event, Answered):
            filters = self._asked.pop(event.request, [])
            for text, error in zip(filters, event.results, strict=True):
                if error is not None:
                    self._refuse(error_for(error.code, f"remote subscription {text!r}: {error.detail}"), now)
                    return

    def _not_opened(self, error: AngariumError, now: float) -> None:
        """The remote queue cannot be bound, or the producer not be opened: tell, and ask again later and later."""
        if self._forwarder is None or not self._forwarder.is_refused:
            return  # what it holds may not be asked
        self.error = error
        self._tell_once(error, now)
        self._open_at = now + self._open_pause_s
        self._open_pause_s = min(self._open_pause_s * 2, BACKOFF_MAX_S)

    def tick(self, now: float) -> float:
        """Do what is due; gives when to call again."""
        wake = super().tick(now)
        far = self.sessions[FAR]
        if self.state is not State.UP or far is None or self._forwarder is None or not self._forwarder.flow:
            self._queued = None
            return wake
        if now >= self._look_at and far.can_ask():
            self._look_at = now + LOOK_INTERVAL_S
            far.ask("endpoint.show", {"name": self._config.remote_queue}, self._looked, self._not_looked)
        return min(wake, self._look_at)

    def _looked(self, value: dict[str, Any]) -> None:
        self._queued = int(value["messages"])

    def _not_looked(self) -> None:
        self._queued = None

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

    def _close(self, now: float, error: AngariumError | None = None) -> None:
        if self.state is State.UP:
            why = error or error_for(errors.SHUTTING_DOWN, "the bridge was switched off, or changed")
            text = f"bridge {self._config.name!r} takes no messages any more: {why}"
            self._tell("warning", "VPN_BRIDGE_DOWN", text, why.code)
        super()._close(now, error)

    def describe(self, now: float) -> dict[str, Any]:
        """Give what `angarium bridge show` says of it."""
        relay, far = self.relays[FAR], self.sessions[FAR]
        forwarder = self._forwarder if self.state is State.UP else None
        state = self._state()
        return {
            "state": state,
            "step": self.state.value,
            "remote_node": far.welcome.node if far is not None and far.welcome is not None else "",
            "encrypted": is_encrypted(self._far_url) if self.state is State.UP else None,
            "uptime_s": round(now - self._up_since, 3) if self.state is State.UP else None,
            "error": "" if self.error is None or state in ("up", "standby") else str(self.error),
            "attempts": self._attempts,
            "messages": relay.messages if relay is not None else 0,
            "guaranteed_messages": 0 if forwarder is None else forwarder.acknowledged,
            "dropped": {} if self._crossing is None else dict(self._crossing.dropped),
            "discarded": relay.discarded if relay is not None else 0,
            "queued_messages": self._queued,
            "under_way": 0 if forwarder is None else forwarder.held,
            "rounds_waiting": relay.waiting if relay is not None else 0,
            "lag_ms": None if far is None else far.lag_ms(now),
            "refused": {str(code): count for code, count in sorted(self._all_refused().items())},
        }

    def _state(self) -> str:
        forwarder = self._forwarder
        if self.state is not State.UP:
            return "down"
        if self._asked:
            return "starting"
        if forwarder is not None and (forwarder.is_standing_by or forwarder.is_passed_over):
            return "standby"
        if forwarder is None or forwarder.producer:
            return "up"
        if self.error is None:
            return "starting"
        takes_direct = self._config.remote_subscriptions or self._config.remote_deliver_always_subscriptions
        return "degraded" if takes_direct else "down"

    def _all_refused(self) -> dict[int, int]:
        """Give the messages that the own router refused, by code."""
        return Counter(self.refused) + Counter({} if self._forwarder is None else self._forwarder.refused)


class Bridge(Pairs[BridgeConfig, BridgeChannel]):
    """The only channel of one bridge process."""

    ROLE: ClassVar[str] = "bridge"
    CONFIG: ClassVar[type[BridgeConfig]] = BridgeConfig
    CHANGES: ClassVar[str] = "neighbours"

    def _names(self, config: BridgeConfig) -> list[str]:
        return [config.name]

    def _make(self, config: BridgeConfig, _name: str, now: float) -> BridgeChannel:
        return BridgeChannel(self._around, config, read_password_file, now)

    def _configure(self, config: BridgeConfig, now: float) -> None:
        super()._configure(config, now)
        self.pairs[config.name].join(config.neighbours)

    def _stats(self, now: float) -> dict[str, Any]:
        return next((channel.describe(now) for channel in self.pairs.values()), {})
