"""The carriers of a gateway process, one for each Message VPN that has clients of it.

A client of HTTP names its Message VPN, whether there is one or not: the carrier of one that lets nobody in is
forgotten, so that names which somebody made up cost the process nothing for longer than a moment. One that was open
follows when it was not for a while, and what it counted stays: Message VPNs that are deleted leave nothing else behind.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from gateway.attached import Surroundings
from gateway.carrier import Carrier
from gateway.rights import KnownRights

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from angarium.client.protocol.provisioning import Send
    from angarium.message import Row
    from gateway.attached import Attached, Guest, Login
    from gateway.carrier import Then
    from gateway.line import Connect
    from gateway.session import Identity

_NEVER: Final = float("inf")
#: Metrics of gateways, and what each is the sum of.
_SUMMED: Final = {
    "clients": "clients",
    "waiting": "waiting",
    "carriers": "is_open",
    "messages_in": "published",
    "gathered_messages": "gathered_messages",
    "unacknowledged": "unacknowledged",
}
#: Those of them that only rise, and others that do.
_COUNTED: Final = ("published", "discarded", "lost")


class VpnCarriers:
    """The carriers of a process, by Message VPN: those that are open, or were of late."""

    def __init__(
        self,
        identity: Identity,
        connect: Connect,
        on_rows: Callable[[str, list[Row], float], bool],
        random: random.Random,
        *,
        exchanges: bool = False,
    ) -> None:
        numbers = itertools.count(1)
        self._around = Surroundings(
            identity, connect, on_rows, exchanges, random, numbers, KnownRights(), self._move
        )
        self._by_vpn: dict[str, Carrier] = {}
        #: What those counted that are forgotten: figures of `describe`, and messages that were refused, by error code.
        self._past: Counter[str] = Counter()
        self._past_refused: Counter[str] = Counter()
        self._is_stopping = False

    def attach(self, vpn: str, guest: Guest, login: Login, now: float) -> Attached:
        """Log a client in; its guest is told `welcomed` or `refused` later."""
        return self._find(vpn).attach(guest, login, now)

    def _move(self, client: Attached, vpn: str) -> None:
        self._find(vpn).adopt(client)

    def _find(self, vpn: str) -> Carrier:
        carrier = self._by_vpn.get(vpn)
        if carrier is None:
            carrier = self._by_vpn[vpn] = Carrier(vpn, self._around)
            if self._is_stopping:
                carrier.stop()
        return carrier

    def has_room(self, vpn: str) -> bool:
        """Tell whether another message of a client in a Message VPN is taken."""
        return vpn in self._by_vpn and self._by_vpn[vpn].has_room()

    def has_room_guaranteed(self, vpn: str) -> bool:
        """Tell whether another guaranteed message of a client in a Message VPN is taken."""
        return vpn in self._by_vpn and self._by_vpn[vpn].has_room_guaranteed()

    def passed_on(self, vpn: str) -> None:
        """Take note that all rows that came in a Message VPN have been passed on, after `on_rows` gave false."""
        if carrier := self._by_vpn.get(vpn):
            carrier.passed_on()

    def ask(self, vpn: str, send: Send, then: Then) -> bool:
        """Ask the router for an operation in a Message VPN; false if that cannot be now."""
        return self._find(vpn).ask(send, then)

    def pace(self, seconds: float) -> None:
        """Have rounds of direct messages leave so far apart, at least: those for others than clients of the process."""
        for carrier in self._by_vpn.values():
            carrier.pace_s = seconds

    def hand_over(self, now: float) -> None:
        """Have what clients of the process published for each other taken: `tick` is next."""
        for carrier in self._by_vpn.values():
            if carrier.exchange.rows:
                carrier.hand_over(now)

    def tick(self, now: float) -> float:
        """Do what is due, and end a turn: send what it brought; gives when to call again."""
        wake = _NEVER
        for vpn, carrier in [*self._by_vpn.items()]:
            wake = min(wake, carrier.tick(now))
            if carrier.is_forgotten(now):
                self._forget(self._by_vpn.pop(vpn))
        return wake

    def _forget(self, carrier: Carrier) -> None:
        counted = carrier.describe()
        self._past_refused.update(counted["refused"])
        self._past.update({name: counted[name] for name in _COUNTED})

    def stop(self) -> None:
        """Let nobody in any more, and leave when what clients brought has left; see `is_gone`."""
        self._is_stopping = True
        for carrier in self._by_vpn.values():
            carrier.stop()

    @property
    def is_gone(self) -> bool:
        """Tell whether nothing is left of any."""
        return all(carrier.is_gone for carrier in self._by_vpn.values())

    def describe(self) -> list[dict[str, Any]]:
        """Give a row for each."""
        return [carrier.describe() for carrier in self._by_vpn.values()]

    def counts(self, *more: str) -> dict[str, Any]:
        """Give the metrics of all together that every gateway shows, and `more` of those that each has."""
        rows = self.describe()
        refused = self._past_refused.copy()
        for row in rows:
            refused.update(row["refused"])
        summed = {**_SUMMED, **{name: name for name in more}}
        past = self._past
        counts = {metric: past[name] + sum(row[name] for row in rows) for metric, name in summed.items()}
        return {**counts, "refused_messages": dict(refused)}
