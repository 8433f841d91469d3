"""Operations on connected clients, which the router answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.controller.operations import arguments

if TYPE_CHECKING:
    from cluster.controller.switchboard.switchboard import Asker, Switchboard


class ClientOperations:
    """What operators ask of clients."""

    def __init__(self, board: Switchboard) -> None:
        """Use the board to ask the router."""
        self._board = board
        self.operations: arguments.Operations = {
            "clients.list": (arguments.VpnArguments, self._list),
            "clients.show": (arguments.ClientArguments, self._show),
            "clients.disconnect": (arguments.ClientArguments, self._disconnect),
            "subscriptions.list": (arguments.SubscriptionArguments, self._list_subscriptions),
        }

    def _list(self, request: arguments.VpnArguments, asker: Asker, now: float) -> None:
        self._board.forward("clients", {"vpn": request.vpn}, asker, now)

    def _show(self, request: arguments.ClientArguments, asker: Asker, now: float) -> None:
        self._board.forward("client", {"name": request.name, "vpn": request.vpn}, asker, now)

    def _disconnect(self, request: arguments.ClientArguments, asker: Asker, now: float) -> None:
        self._board.forward("disconnect", {"name": request.name, "vpn": request.vpn}, asker, now)

    def _list_subscriptions(self, request: arguments.SubscriptionArguments, asker: Asker, now: float) -> None:
        self._board.forward("subscriptions", {"client": request.client, "vpn": request.vpn}, asker, now)
