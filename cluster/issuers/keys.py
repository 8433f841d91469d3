"""The keys of issuers as the controller knows them: it tells the router, which has none of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cluster.controller.switchboard import ROUTER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cluster.controller.effects import Effect
    from cluster.controller.switchboard import Switchboard


class IssuerKeys:
    """What is known of the keys of all issuers."""

    def __init__(self, board: Switchboard) -> None:
        """Begin with none."""
        self._board = board
        #: Name of the issuer -> its keys, as `router.tokens.keys` gives them.
        self._keys: dict[str, list[Any]] = {}

    def put(self, keys: Mapping[str, list[Any]], faults: Sequence[str], now: float) -> list[Effect]:
        """Keys were read; those with a fault keep the ones that they had."""
        self._keys.update(keys)
        for fault in faults:
            text = f"keys of an issuer cannot be used, and those before stay: {fault}"
            self._board.record_system("error", "SYSTEM_ISSUER_KEYS_UNUSABLE", text)
        self.tell(now)
        return self._board.taken()

    def tell(self, now: float) -> None:
        """Tell the router all keys."""
        if self._keys:
            gathering = self._board.gather(None, now)
            self._board.ask(ROUTER, "token_keys", self._keys, gathering)
            self._board.end_if_complete(gathering)
