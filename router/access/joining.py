"""Hosts that wish to join the cluster, or to leave it: the controller judges them, here is what bounds that.

Whoever comes is an unauthenticated connection with one frame, which the router does not look into. A few wait for the
controller at a time; the others are refused at once and try again. The limits of such connections hold for it: how
many, how many of one network, and for how long. Who shows what is wrong is slowed down like one with a wrong
password, and counts with them: from the fourth failure on his network waits before the next try.

The answer has the secret of the cluster in it, so both go through TLS, or stay on this host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from angarium import errors, wire
from angarium.errors import error_for
from angarium_server.access import is_this_host, network_of
from router.asking.asks import refusal
from router.ground.effects import SendClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from angarium.errors import AngariumError
    from angarium_server.connections.tls import Peer
    from router.access.password_checks import PasswordChecks
    from router.asking.asks import Asks
    from router.ground.ground import Outbox

#: Wishes that are with the controller at a time: each may cost it a signature and two writes to disk.
WISHES_MAX: Final = 4
OPERATION: Final = "cluster.join"
#: What is told to those who may be guessing.
WRONG: Final = (errors.JOIN_REFUSED, errors.LINK_UNAUTHORIZED)


class Joining:
    """Asks the controller."""

    def __init__(
        self,
        asks: Asks,
        outbox: Outbox,
        refuse: Callable[[bytes, AngariumError], None],
        checks: PasswordChecks,
    ) -> None:
        self._asks = asks
        #: Knows which networks failed of late.
        self._checks = checks
        self._outbox = outbox
        self._refuse = refuse
        #: Connections whose wish is with the controller; at most WISHES_MAX.
        self._waiting: set[bytes] = set()

    def take(self, routing_id: bytes, wish: bytes, peer: Peer, now: float) -> None:
        """Somebody wishes something.

        Raises:
            AngariumError: he comes over the network in plain text (40106), too many do or his network has to wait
                (42901), or this connection has a wish already (40016).
        """
        if not (peer.is_encrypted or is_this_host(peer.address)):
            raise error_for(errors.JOIN_REFUSED, "JOIN comes over TLS: tls://HOST:PORT")
        if routing_id in self._waiting:
            raise error_for(errors.ALREADY_LOGGED_IN)
        network = network_of(peer.address)
        wait_s = self._checks.wait_s(network, now)
        if wait_s:
            detail = f"joins from {peer.address or 'this host'} failed; try again in {wait_s:.1f} s"
            raise error_for(errors.CONNECT_RATE_EXCEEDED, detail)
        if len(self._waiting) >= WISHES_MAX:
            raise error_for(errors.CONNECT_RATE_EXCEEDED, "too many hosts join at once")
        self._waiting.add(routing_id)

        def answered(ok: bool, value: Any, now: float) -> None:  # noqa: FBT001 - the form of every answer
            self._waiting.discard(routing_id)
            if ok:
                self._outbox.effects.append(SendClient(routing_id, [wire.JOINED, value], 0))
                return
            refused = refusal(value)
            if refused.code in WRONG:
                self._checks.failed(network, now)
            self._refuse(routing_id, refused)

        self._asks.ask(OPERATION, {"wish": wish, "address": peer.address}, answered)
