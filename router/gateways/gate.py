"""Which gateways may come: HELLO of a gateway process, judged.

It has one session per Message VPN whose clients it has. It shows that a process of this node is there (`Hello.behalf`)
and is no client; clients are attached to it, and each is judged like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from angarium import errors, wire
from angarium.errors import error_for

if TYPE_CHECKING:
    from router.sessions.directory import Directory, Vpn
    from router.sessions.hello import GatewayHello, Hello
    from router.sessions.session import Session


class GatewayGate:
    """Judges gateways of this node."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def judge(self, hello: Hello, _now: float) -> tuple[Vpn, GatewayHello]:
        """Give the Message VPN that a gateway comes to, and what it says of itself.

        Raises:
            AngariumError: 40001 it says nothing, 40309 and 50301 the Message VPN is not there, or disabled.
        """
        if hello.gateway is None:
            raise error_for(errors.MALFORMED_FRAME, f"{wire.GATEWAY_USERNAME} says which gateway it is")
        return self._directory.vpn_to_join(hello.vpn), hello.gateway

    def check_successor(self, session: Session, gateway: GatewayHello, _now: float) -> None:
        """Judge a second session of a gateway while the first one is there.

        Raises:
            ConflictError: it is not the same process, or its successor (40907).
        """
        if not gateway.may_follow(session.carried_for):
            raise error_for(errors.CLIENT_NAME_IN_USE, gateway.client_name)
