"""Links as the controller sees to them: which processes there have to be, what each is told, and how they do.

operation       arguments       answer
links.list      name="*"        link objects with their state and the figures of each Message VPN
links.show      name            one of them
subscriptions.remote  vpn=None  what neighbours want
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cluster.controller import arguments
from cluster.controller.carriers import Carriers
from cluster.controller.switchboard import ROUTER
from router.links.gate import opens

if TYPE_CHECKING:
    from cluster.catalog.catalog import Catalog
    from cluster.controller.switchboard import Asker, Switchboard

Row = dict[str, Any]


class LinkOperations:
    """The links of the node."""

    def __init__(self, board: Switchboard, catalog: Catalog, node: str) -> None:
        """See to the link objects of this catalog, on the node of this name."""
        self._board = board
        self._catalog = catalog
        self._node = node
        self.carriers = Carriers(board, catalog, "link", self._configurations)
        self.operations: arguments.Operations = {
            "links.list": (arguments.LinkListArguments, self._list),
            "links.show": (arguments.LinkArguments, self._show),
            "subscriptions.remote": (arguments.VpnArguments, self._remote_subscriptions),
        }

    def _configurations(self) -> dict[int, Row]:
        """Give what each link process of this node has to do; links that the other side opens have none."""
        vpns = [name for (_, name), vpn in self._catalog.of_kind("vpn").items() if vpn["enabled"]]
        return {
            link["number"]: {
                "neighbour": name,
                "addresses": link["addresses"],
                "public_key": link["public_key"],
                "vpns": sorted(vpns),
            }
            for (_, name), link in self._catalog.of_kind("link").items()
            if link["enabled"] and opens(self._node, name, link["initiator"])
        }

    # -- operations ------------------------------------------------------------------------------------------

    def _list(self, request: arguments.LinkListArguments, asker: Asker, now: float) -> None:
        self._gather(self._catalog.find("link", None, request.name), asker, now, lambda rows: rows)

    def _show(self, request: arguments.LinkArguments, asker: Asker, now: float) -> None:
        found = self._catalog.show("link", "", request.name)
        self._gather([found], asker, now, lambda rows: rows[0])

    def _gather(self, links: list[Row], asker: Asker, now: float, pick: Any) -> None:
        """Ask the router for the sessions of neighbours, and link processes how they do."""
        board = self._board
        gathering = board.gather_view(asker, now)
        router = board.ask(ROUTER, "stats", None, gathering)
        asked = {
            link["name"]: board.ask(("link", link["number"]), "stats", None, gathering)
            for link in links
            if link["number"] in self.carriers.wanted
        }

        def finish(answers: dict[int, Any]) -> Any:
            sessions = (answers.get(router) or {}).get("links", [])
            return pick(
                [describe(link, sessions, answers.get(asked.get(link["name"], -1))) for link in links]
            )

        gathering.finish = finish
        board.end_if_complete(gathering)

    def _remote_subscriptions(self, request: arguments.VpnArguments, asker: Asker, now: float) -> None:
        self._board.forward("remote_subscriptions", {"vpn": request.vpn}, asker, now)


def describe(link: Row, sessions: list[Row], process: Row | None) -> Row:
    """Give a link object with its state: that of its process, or that of the sessions that the neighbour opened."""
    mine = [row for row in sessions if row["name"] == link["name"]]
    up = [row for row in mine if row["synchronised"]]
    channels = {channel["vpn"]: channel for channel in (process or {}).get("channels", ())}
    vpns = [{**channels.pop(row["vpn"], {}), **row} for row in mine]
    failed = [channel for channel in channels.values() if channel["error"]]
    state = "up" if up and not failed and len(up) == len(mine) else "synchronising" if mine else "down"
    if mine and failed:
        state = "degraded"
    return {
        **link,
        "state": state if link["enabled"] else "disabled",
        "error": failed[0]["error"] if failed else "",
        "uptime_s": min((row["uptime_s"] for row in up), default=None),
        "subscriptions_in": sum(row["subscriptions_in"] for row in mine),
        "subscriptions_out": sum(row["subscriptions_out"] for row in mine),
        "messages_in": sum(row["messages_in"] for row in mine),
        "messages_out": sum(row["messages_out"] for row in mine),
        "queued_messages": sum(row["queued_messages"] for row in mine),
        "channels": [*vpns, *channels.values()],
    }
