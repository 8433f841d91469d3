"""Two hosts on loopback whose connections go through proxies, so that they can be cut as cables can: see `cables`.

What is cut silently is held back and comes when it is healed, as TCP sends again what got lost. Connections of clients
to a host go through a proxy as well.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Final, Self

from tests.failover.cables import CABLES, HOSTS, OUTSIDE, Way
from tests.mesh.delay_proxy import DOWN, UP, DelayProxy

if TYPE_CHECKING:
    from collections.abc import Coroutine

_ANSWER_S: Final = 20.0


class Lines:
    """The proxies, in a loop of their own."""

    def __init__(self, targets: list[tuple[int, str, str]]) -> None:
        """Start nothing yet.

        Args:
            targets: of each proxy: the cable that it stands for, who connects, and where it leads to.
        """
        self._targets = targets
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        #: The cable, who connects, and the proxy.
        self._proxies: list[tuple[int, str, DelayProxy]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        for cable, opener, target in self._targets:
            proxy = DelayProxy(target)
            self._do(proxy.start())
            self._proxies.append((cable, opener, proxy))
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._proxies:
            self._do(one[2].close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def addresses(self, cable: int, opener: str) -> list[str]:
        """Give where somebody connects who uses a cable: `host:port`."""
        return [
            proxy.url.removeprefix("tcp://")
            for index, who, proxy in self._proxies
            if (index, who) == (cable, opener)
        ]

    def cut(self, cut: list[Way]) -> None:
        """Let nothing pass these ways."""

        async def hold() -> None:
            for index, opener, proxy in self._proxies:
                senders = [way.sender for way in cut if way.cable == index]
                directions = [UP if sender == opener else DOWN for sender in senders]
                if directions:
                    proxy.cut_silently(*directions)

        self._do(hold())

    def unplug(self, cables: list[int]) -> None:
        """Close the connections, and refuse new ones."""

        async def close() -> None:
            for index, _, proxy in self._proxies:
                if index in cables:
                    proxy.cut()

        self._do(close())

    def heal(self) -> None:
        """Have everything as it was."""

        async def heal() -> None:
            for _, _, proxy in self._proxies:
                proxy.heal()

        self._do(heal())

    def _do(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(_ANSWER_S)


def lines_between(clients: dict[str, str], shipping: dict[str, str], stores: list[str]) -> Lines:
    """Give the proxies of a pair: between both hosts, to the outside store, and of its clients.

    Args:
        clients: where each host listens for them: `host:port`.
        shipping: where each host listens for the other one.
        stores: of the members of etcd.
    """
    targets: list[tuple[int, str, str]] = []
    for index, cable in enumerate(CABLES):
        if cable.name == "pair":
            targets += [
                (index, host, shipping[other]) for host, other in zip(HOSTS, reversed(HOSTS), strict=True)
            ]
            continue
        host = next(end for end in cable.ends if end in HOSTS)
        if cable.name == "clients":
            targets.append((index, OUTSIDE, clients[host]))
        else:
            targets += [(index, host, store) for store in stores]
    return Lines(targets)
