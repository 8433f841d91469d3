"""Operations on links: how they do.

operation       arguments       answer
links.list      name="*"        link objects with their state and the metrics of each Message VPN
links.show      name            one of them
subscriptions.remote  vpn=None  what neighbours want
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from angarium import wire
from cluster.controller.switchboard.switchboard import ROUTER
from cluster.link.role import LINK
from router.links.gate import opens

if TYPE_CHECKING:
    from cluster.admin import arguments
    from cluster.catalog.catalog import Catalog
    from cluster.controller.mesh.cluster_view import ClusterView
    from cluster.controller.switchboard.processes import ObjectProcesses
    from cluster.controller.switchboard.switchboard import Asker, Handlers, Place, Switchboard

Row = dict[str, Any]
#: Makes the answer of the links with their state and the overview of the router.
Finish = Callable[[list[Row], Row | None], Any]
#: Metrics of the sessions of a neighbour that are added up.
_SUMMED: Final = (
    "subscriptions_in",
    "subscriptions_out",
    "subscriptions_dropped",
    "messages_in",
    "messages_out",
    "queued_messages",
    "queued_bytes",
)
#: What the queues of a link hold.
_OF_QUEUES: Final = ("spooled_messages", "spooled_bytes", "retry_messages", "dead_messages")
#: Wishes of both sides, and those among them that are not told yet: in the router, and in the link process on the way
#: to either side.
_EVERYTHING: Final = ("subscriptions_in", "subscriptions_out", "untold", "untold_in")
_UNTOLD: Final = ("untold", "untold_in", "untold_out")


class LinkOperations:
    """The links of the node."""

    def __init__(
        self, board: Switchboard, catalog: Catalog, node: str, view: ClusterView, processes: ObjectProcesses
    ) -> None:
        """Tell of the link objects of this catalog, on the node of this name, and of their processes."""
        self._view = view
        self._board = board
        self._catalog = catalog
        self._node = node
        self._processes = processes
        self.operations: Handlers = {
            "links.list": self._list,
            "links.show": self._show,
            "subscriptions.remote": board.forwarding("remote_subscriptions"),
        }

    def states(self, sessions: list[Row]) -> list[Row]:
        """Give all links as far as the sessions of neighbours tell how they do: nobody is asked."""
        overview = {"links": sessions}
        return [describe(link, overview, None, self._node) for link in self._catalog.find("link", None, "*")]

    # -- operations ------------------------------------------------------------------------------------------

    def _list(self, request: arguments.LinkListArguments, asker: Asker, now: float) -> None:
        self.look(self._catalog.find("link", None, request.name), asker, now, self._shown(now))

    def _show(self, request: arguments.LinkArguments, asker: Asker, now: float) -> None:
        found = self._catalog.show("link", "", request.name)
        shown = self._shown(now)
        self.look([found], asker, now, lambda rows, overview: shown(rows, overview)[0])

    def _shown(self, now: float) -> Finish:
        """Give what adds to links what the view of the cluster says of them."""
        return lambda rows, _: [
            {**row, **self._view.of_link(row["name"], row["lag_ms"], now)} for row in rows
        ]

    def look(self, links: list[Row], asker: Asker | None, now: float, finish: Finish) -> None:
        """Ask the router for the sessions of neighbours, and link processes how they do.

        The answer is what `finish` makes of the links with their state, and of the router's overview: None without one.
        """
        asked = {ROUTER: (ROUTER, "peers", None)}
        for number in (link["number"] for link in links if link["number"] in self._processes.wanted):
            asked[LINK.name, number] = ((LINK.name, number), "stats", None)

        def end(answers: dict[Place, Any]) -> Any:
            overview = answers.get(ROUTER)
            told = [answers.get((LINK.name, link["number"])) for link in links]
            rows = [
                {
                    **describe(link, overview or {}, process, self._node),
                    "shut": self._is_shut(link["name"]),
                }
                for link, process in zip(links, told, strict=True)
            ]
            return finish(rows, overview)

        self._board.collect_view(asker, now, asked, end)

    def _is_shut(self, node: str) -> bool:
        """Tell whether a queue of the link with a node takes no messages."""
        vpns = [vpn for _, vpn in self._catalog.of_kind("vpn")]
        queues = [self._catalog.get("queue", vpn, f"{wire.LINK_NAME_PREFIX}{node}") for vpn in vpns]
        return any(queue is not None and not queue["ingress_enabled"] for queue in queues)


def describe(link: Row, overview: Row, process: Row | None, node: str) -> Row:
    """Give a link object with its state: that of its process, or that of the sessions that the neighbour opened.

    The error is that of its process, else why the neighbour was refused here lately.

    Args:
        link: the object.
        overview: what the router of this node says of neighbours (`router.links.links.Links.overview`).
        process: what the link process says; None if there is none, or it does not answer.
        node: name of this node.
    """
    mine = [row for row in overview.get("links", ()) if row["name"] == link["name"]]
    up = [row for row in mine if row["synchronised"]]
    channels = {channel["vpn"]: channel for channel in (process or {}).get("channels", ())}
    vpns = [{**channels.pop(row["vpn"], {}), **row} for row in mine]
    failed = [channel for channel in channels.values() if channel["error"]]
    refusals = [] if up else [row for row in overview.get("refusals", ()) if row["node"] == link["name"]]
    partly = [row for row in vpns if row.get("error")]  # joined, and one of its queues is not carried
    reason = next(iter([*failed, *partly, *refusals]), {"error": "", "code": 0})
    lags = [row["lag_ms"] for row in vpns if row.get("lag_ms") is not None]
    state = "up" if up and not failed and len(up) == len(mine) else "synchronising" if mine else "down"
    if mine and failed:
        state = "degraded"
    return {
        **link,
        "state": state if link["enabled"] else "disabled",
        "error": reason["error"],
        "code": reason["code"],
        "opens": opens(node, link["name"], link["initiator"]),
        "node_id": mine[0]["node_id"] if mine else "",
        "encrypted": all(row["encrypted"] for row in mine) if mine else None,
        "uptime_s": min((row["uptime_s"] for row in up), default=None),
        "lag_ms": max(lags, default=None),
        "progress_percent": progress(vpns),
        **{name: sum(row[name] for row in mine) for name in _SUMMED},
        **{name: overview.get("queues", {}).get(link["name"], {}).get(name, 0) for name in _OF_QUEUES},
        "channels": [*vpns, *channels.values()],
    }


def progress(channels: list[Row]) -> int:
    """Give how much of what both sides want is in force, in percent; 100 only if all of it is."""
    if not channels:
        return 0
    if all(row["synchronised"] for row in channels):
        return 100
    everything = sum(sum(row.get(name, 0) for name in _EVERYTHING) for row in channels)
    left = sum(sum(row.get(name, 0) for name in _UNTOLD) for row in channels)
    return min(99, 100 * max(0, everything - left) // everything) if everything else 0
