"""The cluster as the controller sees to it: it keeps the view, tells the neighbours, and tells operators of issues.

Once a second the router is asked for the sessions and the reports of neighbours, and each link process how it does.
What follows from that is decided in `cluster.controller.mesh`. A node without links asks nobody.

operation         arguments    answer
cluster.status                 the view: {"cluster", "node", "nodes", "links", "issues"}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cluster.controller.mesh import reports
from cluster.controller.mesh.alarm import Alarm
from cluster.controller.mesh.cluster_view import STALE_AFTER_S
from cluster.controller.mesh.topology import Issue
from cluster.controller.switchboard.switchboard import ROUTER

if TYPE_CHECKING:
    from cluster.admin import arguments
    from cluster.catalog.catalog import Catalog
    from cluster.controller.mesh.cluster_view import ClusterView
    from cluster.controller.operations.links import LinkOperations
    from cluster.controller.switchboard.events import Event
    from cluster.controller.switchboard.switchboard import Asker, Handlers, Switchboard

#: Between two looks at links and neighbours.
LOOK_INTERVAL_S: Final = 1.0
#: Neighbours are told at once what has changed, and otherwise so often.
REPORT_INTERVAL_S: Final = 5.0
#: Events of earlier controllers that are looked through for what operators were told.
EVENTS_MAX: Final = 10_000
ISSUE_EVENT: Final = "SYSTEM_CLUSTER_TOPOLOGY_ISSUE"
CLEAR_EVENT: Final = f"{ISSUE_EVENT}_CLEAR"

Row = dict[str, Any]


class MeshOperations:
    """The mesh, seen from this node."""

    def __init__(
        self, board: Switchboard, catalog: Catalog, links: LinkOperations, view: ClusterView
    ) -> None:
        self._board = board
        self._catalog = catalog
        self._links = links
        self.view = view
        self._alarm = Alarm(_told_before(board.events.find(None, EVENTS_MAX)))
        self._look_at = 0.0
        #: When the router answered last.
        self._answered_at = float("-inf")
        #: What the neighbours were told last, and when.
        self._told: tuple[Any, float] = (None, 0.0)
        #: As many as there were at the last look.
        self.issues = 0
        self.operations: Handlers = {"cluster.status": self._status}

    def tick(self, now: float) -> None:
        """Look now and then, if there is anything to see."""
        if now >= self._look_at and (self._catalog.of_kind("link") or self._alarm.is_busy):
            self._look_at = now + LOOK_INTERVAL_S
            self._look(None, now)

    def _status(self, _request: arguments.NoArguments, asker: Asker, now: float) -> None:
        self._look(asker, now)

    def _look(self, asker: Asker | None, now: float) -> None:
        """Bring the view up to date, act on it, and answer with it."""

        def finish(rows: list[Row], overview: Row | None) -> Row | None:
            self._take(rows, overview, now)
            return None if asker is None else self.view.describe(now)

        self._links.look(self._catalog.find("link", None, "*"), asker, now, finish)

    def _take(self, rows: list[Row], overview: Row | None, now: float) -> None:
        if overview is not None:
            self._answered_at = now
        elif now - self._answered_at < STALE_AFTER_S:
            return  # a router that is busy, or being replaced, is no reason to think that all links are down
        told = overview or {"heard": [], "refusals": []}
        vpns = [name for (_, name), vpn in self._catalog.of_kind("vpn").items() if vpn["enabled"]]
        up_s = float(self._board.node.get("uptime_s", 0.0))
        self.view.update(rows, told["heard"], told["refusals"], vpns, up_s, now)
        self._tell_neighbours(now)
        self._tell_operators(self.view.issues, now)

    def _tell_neighbours(self, now: float) -> None:
        report = self.view.report(now)
        essence = reports.essence(report)
        if not report.links or (essence == self._told[0] and now - self._told[1] < REPORT_INTERVAL_S):
            return
        self._told = (essence, now)
        told = {"report": reports.encode(report)}
        self._board.collect_view(None, now, {ROUTER: (ROUTER, "tell_peers", told)}, lambda _: None)

    def _tell_operators(self, issues: list[Issue], now: float) -> None:
        self.issues = len(issues)
        news = self._alarm.look(issues, now)
        for issue in news.raised:
            text = issue.text if issue.advice in issue.text else f"{issue.text} ({issue.advice})"
            self._record("warning", ISSUE_EVENT, text, issue)
        for issue in news.cleared:
            self._record("info", CLEAR_EVENT, f"this is over: {issue.text}", issue)

    def _record(self, severity: str, name: str, text: str, issue: Issue) -> None:
        event = {"severity": severity, "scope": "SYSTEM", "event": name, "text": text}
        self._board.record({**event, "issue": issue.kind, "nodes": list(issue.nodes)})

    def validate(self) -> None:
        """Assert what the attribute comments say."""
        self._alarm.validate()


def _told_before(events: list[Event]) -> list[Issue]:
    """Give the issues that operators were told by earlier controllers, and not that they are over."""
    told: dict[tuple[str, tuple[str, ...]], Issue] = {}
    for event in events:
        if event["event"] in (ISSUE_EVENT, CLEAR_EVENT):
            issue = Issue(str(event.get("issue")), tuple(event.get("nodes", ())), event["text"], "")
            told.pop(issue.key, None)
            if event["event"] == ISSUE_EVENT:
                told[issue.key] = issue
    return list(told.values())
