"""What workers died of, and what is put aside because of it.

The supervisor tells what a worker was at when it crashed or hung. Whose that is, the router knows of sessions and the
catalog of endpoints. One death may have any reason; at the second with the same owner, he is put aside: a session is
ended, and nothing of it is handed to a worker again; an endpoint delivers nothing until an operator sets its
`egress_enabled` again. Everybody else goes on.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from angarium import wire
from cluster.controller.switchboard.switchboard import ROUTER
from cluster.objects import ENDPOINT_KINDS

if TYPE_CHECKING:
    from cluster.catalog.catalog import Catalog
    from cluster.controller.switchboard.changes import Changes
    from cluster.controller.switchboard.events import Event
    from cluster.controller.switchboard.switchboard import Place, Switchboard

#: Deaths at which an owner is put aside.
DEATHS_MAX: Final = 2
#: Time after which a death is forgotten.
FORGOTTEN_AFTER_S: Final = 3_600.0
#: Owners that are remembered; the one whose last death is longest ago is forgotten first.
OWNERS_MAX: Final = 100

Owner = tuple[str, ...]
Row = dict[str, Any]


class Deaths:
    """The deaths of each owner."""

    def __init__(self) -> None:
        #: Owner -> (deaths, when the last one was), by that time.
        self._owners: OrderedDict[Owner, tuple[int, float]] = OrderedDict()

    def count(self, owner: Owner, now: float) -> bool:
        """Count a death; true if its owner is to be put aside, and begins anew."""
        deaths, last = self._owners.pop(owner, (0, now))
        deaths = 1 if now - last > FORGOTTEN_AFTER_S else deaths + 1
        if deaths >= DEATHS_MAX:
            return True
        self._owners[owner] = (deaths, now)
        if len(self._owners) > OWNERS_MAX:
            self._owners.popitem(last=False)
        return False


class Blames:
    """Finds out whose work a worker died of, and puts it aside."""

    def __init__(self, board: Switchboard, catalog: Catalog, changes: Changes) -> None:
        """Ask the router over this board, and disable endpoints of this catalog."""
        self._board = board
        self._catalog = catalog
        self._changes = changes
        self._deaths = Deaths()
        #: Deaths that had an owner or none any more, and owners that were put aside, since this process began.
        self.deaths_at_work = 0
        self.put_aside = 0

    def died(self, event: Event, now: float) -> None:
        """Take what the supervisor tells of a worker that died at work."""
        self.deaths_at_work += 1
        note = event["note"]
        event = {name: value for name, value in event.items() if name != "note"}
        if note["kind"] == "deliver":
            self._endpoint(event, note["whose"] >> wire.LANE_BITS, now)
        else:
            self._session(event, {"session": note["whose"], "router": note["router"]}, now)

    def _endpoint(self, event: Event, number: int, now: float) -> None:
        found = [
            (kind, *key)
            for kind in ENDPOINT_KINDS
            for key, attributes in self._catalog.of_kind(kind).items()
            if attributes["id"] == number
        ]
        if not found:
            self._record(event, "serving an endpoint that is gone", {})
            return
        kind, vpn, name = found[0]
        owner = {"vpn": vpn, "kind": kind, "name": name}
        title = f"{kind.replace('-', ' ')} {name!r} in Message VPN {vpn!r}"
        self._record(event, f"serving {title}", owner)
        if self._deaths.count(found[0], now):
            changes = self._catalog.update(kind, vpn, name, {"egress_enabled": False})
            self._changes.make(changes, None, "put aside", lambda: None)
            self._aside(f"{title} delivers nothing until its egress_enabled is set again", owner)

    def _session(self, event: Event, session: dict[str, int], now: float) -> None:
        board = self._board

        def finish(answers: dict[Place, Any]) -> None:
            owner = answers.get(ROUTER)
            if owner is None:
                self._record(event, "matching messages of no client, or of one that is gone", {})
                return
            title = f"client {owner['client']!r} of username {owner['username']!r} in Message VPN {owner['vpn']!r}"
            self._record(event, f"matching messages of {title}", owner)
            if self._deaths.count(("username", owner["vpn"], owner["username"]), now):
                board.ask(ROUTER, "put_aside", session, board.gather_view(None, now))
                self._aside(f"{title} is disconnected, and its messages are not tried again", owner)

        board.collect_view(None, now, {ROUTER: (ROUTER, "session_owner", session)}, finish)

    def _record(self, event: Event, what: str, owner: Row) -> None:
        self._board.record({**event, **owner, "text": f"{event['text']} while {what}"})

    def _aside(self, text: str, owner: Row) -> None:
        self.put_aside += 1
        text = f"workers died of it {DEATHS_MAX} times: {text}"
        self._board.record(
            {"severity": "error", "scope": "SYSTEM", "event": "SYSTEM_PUT_ASIDE", "text": text, **owner}
        )
