"""A node whose guaranteed messaging is attacked, with healthy pairs beside it: one direct, one through a queue."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Self

import steady_queue
from attacked_node import CONFIG, AttackedNode
from numbered import wait_until
from raw_guaranteed import RawGuaranteed
from steady_pair import SteadyPair

from angarium import errors

if TYPE_CHECKING:
    from pathlib import Path

#: Of the 160 messages a second that the pair publishes through its queue, on a machine that others use.
QUEUE_RATE_MIN = 15
QUEUE_PAUSE_MS = 4_000

_names = itertools.count(1)


def new_name(kind: str = "q") -> str:
    """Give a name that no other test uses."""
    return f"{kind}/{next(_names)}"


class AttackedSpool(AttackedNode):
    """A node with two pairs and raw clients that speak of guaranteed messages."""

    def __init__(self, folder: Path, config: str = CONFIG) -> None:
        """Describe it."""
        super().__init__(folder, config)
        self._expected_errors: dict[str, int] = {}

    def stranger(self, *, url: str = "", **options: Any) -> RawGuaranteed:
        """Give a connected socket that has not said HELLO."""
        return RawGuaranteed(self._context, url or self.url, **options)

    def client(self, **fields: Any) -> RawGuaranteed:
        """Give a raw client that is logged in."""
        return self.stranger().hello(**fields)

    # -- operators -------------------------------------------------------------------------------------------

    def ask(self, operation: str, **arguments: Any) -> Any:
        """Ask the controller."""
        return self._admin.call(operation, **arguments)

    def create(self, kind: str, name: str, vpn: str | None = "default", **attributes: Any) -> str:
        """Make an object, and give its name."""
        self.ask("objects.create", kind=kind, name=name, vpn=vpn, attributes=attributes)
        return name

    def queue(self, name: str = "", vpn: str = "default", **attributes: Any) -> str:
        """Make a queue that everybody may do everything with, unless told otherwise."""
        return self.create("queue", name or new_name(), vpn, **{"permission": "delete", **attributes})

    def update(self, kind: str, name: str, vpn: str | None = "default", **attributes: Any) -> None:
        """Change an object."""
        self.ask("objects.update", kind=kind, name=name, vpn=vpn, attributes=attributes)

    def delete(self, kind: str, name: str, vpn: str | None = "default") -> None:
        """Delete an object."""
        self.ask("objects.delete", kind=kind, name=name, vpn=vpn)

    def endpoint(self, name: str, kind: str = "queue", vpn: str = "default") -> dict[str, Any]:
        """Give an endpoint with all its figures."""
        found: dict[str, Any] = self.ask("endpoints.show", kind=kind, name=name, vpn=vpn)
        return found

    def counter(self, name: str, counter: str, vpn: str = "default") -> int:
        """Give what the router counted for a queue."""
        return int(self.endpoint(name, vpn=vpn)["counters"].get(counter, 0))

    def held(self, name: str, kind: str = "queue", vpn: str = "default") -> int:
        """Give the messages in an endpoint."""
        return int(self.endpoint(name, kind, vpn)["messages_spooled"])

    def expect_held(self, name: str, count: int, kind: str = "queue", vpn: str = "default") -> None:
        """Wait until an endpoint holds so many messages."""
        wait_until(lambda: self.held(name, kind, vpn) == count, f"{name} holds {count}")

    # -- harm ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin to watch for harm."""
        super().begin()
        self.queue_pair.look()

    def expect_unharmed(self, pause_ms: float = QUEUE_PAUSE_MS) -> None:
        """Fail if anything but the attacker noticed the attack since `begin`."""
        super().expect_unharmed(pause_ms)
        noticed = self.queue_pair.look()
        assert (noticed.not_rising, noticed.reconnects) == (0, 0), noticed
        assert noticed.longest_pause_ms < pause_ms, noticed

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self.queue_pair = SteadyPair(self.url, [], script=steady_queue.__file__)
        except BaseException:
            self.pair.__exit__()
            self.node.stop()
            raise
        return self

    def __exit__(self, *details: object) -> None:
        with self.queue_pair:
            noticed = self.queue_pair.finish()
        super().__exit__(*details)
        assert (noticed.missing, noticed.reconnects) == (0, 0), noticed
        assert str(errors.INTERNAL) not in self._expected_errors
