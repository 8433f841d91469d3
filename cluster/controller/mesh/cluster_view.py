"""The view that a node has of its cluster: what it knows of itself and its links, and what its neighbours told.

It is soft state, rebuilt from what the router and the link processes say, and kept over their absence: what a
neighbour said last stays, with its age, as long as there is a link to it. Pure: it is updated with the time, and gives
the report for the neighbours, the issues, and what `angarium cluster status` shows.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from angarium.errors import AngariumError
from cluster.controller.mesh import reports
from cluster.controller.mesh.reports import LinkReport, NodeReport
from cluster.controller.mesh.topology import Heard, Issue, Refusal, find_issues

#: Nodes report every few seconds (`REPORT_INTERVAL_S` of the controller); two that are missing make a node stale.
STALE_AFTER_S: Final = 12.0
#: Metrics of a link row that a report has under the same name.
_METRICS: Final = (
    "queued_messages",
    "queued_bytes",
    "spooled_messages",
    "spooled_bytes",
    "retry_messages",
    "dead_messages",
    "subscriptions_in",
    "subscriptions_out",
    "progress_percent",
    "shut",
)

Row = dict[str, Any]


class Identity(NamedTuple):
    """Who this node is."""

    node: str
    node_id: str
    cluster: str
    #: Of the software.
    release: str


class _Neighbour(NamedTuple):
    """What a neighbour told last."""

    #: None if it could not be read; then `fault` says why.
    report: NodeReport | None
    fault: str
    at: float
    #: Whether its link is up as far as the router says.
    is_joined: bool

    def is_fresh(self, now: float) -> bool:
        return self.is_joined and now - self.at < STALE_AFTER_S


class _State(NamedTuple):
    """The state of a link of this node, and since when."""

    state: str
    since: float
    #: Of the neighbour, when the link was up last; empty before that.
    node_id: str


class ClusterView:
    """The cluster as this node knows it."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._vpns: list[str] = []
        self._up_s = 0.0
        self._updated_at = 0.0
        #: Name -> row, of `cluster.controller.operations.links.describe`; those of the link objects.
        self._links: dict[str, Row] = {}
        #: In step with them.
        self._states: dict[str, _State] = {}
        #: By name; only those with a link object.
        self._neighbours: dict[str, _Neighbour] = {}
        self._refusals: list[Refusal] = []
        #: What is wrong with the mesh, as of the last update.
        self.issues: list[Issue] = []

    def update(
        self,
        links: list[Row],
        heard: list[Row],
        refusals: list[Row],
        vpns: list[str],
        up_s: float,
        now: float,
    ) -> None:
        """Take what is known now.

        Args:
            links: all link objects with their state.
            heard: {"node", "report", "age_s"} of each neighbour with a session.
            refusals: {"node", "code", "error"} of those that were refused lately.
            vpns: names of the enabled Message VPNs.
            up_s: how long this node is up.
            now: monotonic, in seconds.
        """
        self._vpns, self._up_s, self._updated_at = sorted(vpns), up_s, now
        self._links = {row["name"]: row for row in links}
        self._states = {name: self._state(row, now) for name, row in self._links.items()}
        told = {row["node"]: row for row in heard}
        known = {name: self._neighbours.get(name) for name in self._links}
        self._neighbours = {
            name: neighbour
            for name, before in known.items()
            if (neighbour := _hear(name, told.get(name), before, now)) is not None
        }
        self._refusals = [Refusal(row["node"], row["code"], row["error"]) for row in refusals]
        self.issues = self._find_issues(now)

    def _state(self, row: Row, now: float) -> _State:
        before = self._states.get(row["name"])
        state, node_id = row["state"], row["node_id"] or (before.node_id if before else "")
        since = now if before is None or before.state != state else before.since
        if state == "up" and row["uptime_s"] is not None and before is None:
            since = now - row["uptime_s"]
        return _State(state, since, node_id)

    # -- what others hear ------------------------------------------------------------------------------------

    def report(self, now: float) -> NodeReport:
        """Give what this node tells of itself."""
        identity = self._identity
        links = [self._link_report(name, now) for name in self._links]
        return NodeReport(
            version=reports.VERSION,
            node=identity.node,
            node_id=identity.node_id,
            cluster=identity.cluster,
            release=reports.clipped(identity.release),
            up_s=round(self._up_s + now - self._updated_at, 1),
            vpn_count=len(self._vpns),
            vpn_digest=reports.digest(self._vpns),
            vpns=self._vpns[: reports.VPNS_MAX],
            link_count=len(links),
            links=reports.order_links(links),
        )

    def _link_report(self, name: str, now: float) -> LinkReport:
        row, state = self._links[name], self._states[name]
        return LinkReport(
            node=name,
            node_id=state.node_id,
            state=state.state,
            for_s=round(now - state.since, 1),
            opens=row["opens"],
            code=row["code"],
            error=row["error"][: reports.ERROR_MAX],
            lag_ms=row["lag_ms"],
            encrypted=row["encrypted"],
            **{metric: row[metric] for metric in _METRICS},
        )

    # -- issues ----------------------------------------------------------------------------------------------

    def _find_issues(self, now: float) -> list[Issue]:
        """Give what is wrong with the mesh, as far as this node knows; nothing on a node without links."""
        if not self._links and not self._refusals:
            return []
        own = self._identity.node
        known = {own: Heard(self.report(now), is_fresh=True)}
        for name, neighbour in self._neighbours.items():
            if neighbour.report is not None and name != own:
                known[name] = Heard(neighbour.report, neighbour.is_fresh(now))
        # The refusal of a neighbour whose link is down is told with the link.
        others = [
            one for one in self._refusals if self._states.get(one.node) is None or self._is_up(one.node)
        ]
        return find_issues(own, known, others)

    def _is_up(self, name: str) -> bool:
        return self._states[name].state == "up"

    # -- for operators ---------------------------------------------------------------------------------------

    def of_link(self, name: str, lag_ms: float | None, now: float) -> Row:
        """Give what the view adds to a link of this node: since when it is so, what the other end knows, issues."""
        neighbour, state = self._neighbours.get(name), self._states.get(name)
        report = neighbour.report if neighbour is not None else None
        far = next((one for one in report.links if one.node == self._identity.node), None) if report else None
        return {
            "since_s": None if state is None else round(now - state.since, 1),
            "lag_ms": far.lag_ms if lag_ms is None and far is not None else lag_ms,
            "issues": [issue.text for issue in self.issues if name in issue.nodes],
        }

    def metrics(self, now: float) -> Row:
        """Give numbers of the cluster, and under `links` those of each link of this node."""
        nodes = self._nodes(now)
        shown = (
            "lag_ms",
            "progress_percent",
            "spooled_messages",
            "spooled_bytes",
            "retry_messages",
            "dead_messages",
        )
        return {
            "topology_issues": len(self.issues),
            "nodes": len(nodes),
            "nodes_up": sum(1 for row in nodes if row["state"] in ("this", "up")),
            "links": {
                name: {"up": self._is_up(name), **{metric: row[metric] for metric in shown}}
                for name, row in self._links.items()
            },
        }

    def describe(self, now: float) -> Row:
        """Give what `angarium cluster status --json` prints."""
        issues = self.issues
        return {
            "cluster": self._identity.cluster,
            "node": self._identity.node,
            "nodes": self._nodes(now),
            "links": self._ends(now),
            "issues": [
                {"kind": one.kind, "nodes": list(one.nodes), "text": one.text, "advice": one.advice}
                for one in issues
            ],
        }

    def _nodes(self, now: float) -> list[Row]:
        rows = {self._identity.node: _node_row(self.report(now), "this", 0.0)}
        for name, neighbour in self._neighbours.items():
            heard_s = now - neighbour.at
            state = "up" if neighbour.is_fresh(now) else "stale"
            if neighbour.report is None:
                rows[name] = {**_nothing(name, state), "error": neighbour.fault, "heard_s": round(heard_s, 1)}
            elif name not in rows:
                rows[name] = _node_row(neighbour.report, state, heard_s)
        for name in self._links:
            rows.setdefault(name, _nothing(name, "unknown"))
        for neighbour in self._neighbours.values():
            for link in neighbour.report.links if neighbour.report is not None else ():
                row = rows.setdefault(link.node, {**_nothing(link.node, "through"), "node_id": link.node_id})
                if row["state"] == "through":
                    row["through"].append(neighbour.report.node if neighbour.report is not None else "")
        return [rows[name] for name in sorted(rows)]

    def _ends(self, now: float) -> list[Row]:
        """Give a row for each end of each link, as the node at that end says."""
        own = self._identity.node
        found = [_end_row(own, link, 0.0, is_stale=False) for link in self.report(now).links]
        for name, neighbour in self._neighbours.items():
            if neighbour.report is not None and name != own:
                age_s, is_stale = now - neighbour.at, not neighbour.is_fresh(now)
                found += [_end_row(name, link, age_s, is_stale=is_stale) for link in neighbour.report.links]
        lags = {(row["node"], row["neighbour"]): row["lag_ms"] for row in found}
        for row in found:
            if row["lag_ms"] is None:  # the end that does not open it has not measured it
                row["lag_ms"] = lags.get((row["neighbour"], row["node"]))
        return sorted(found, key=lambda row: (sorted((row["node"], row["neighbour"])), row["node"]))


def _hear(name: str, row: Row | None, before: _Neighbour | None, now: float) -> _Neighbour | None:
    """Give what is known of a neighbour now; without a session that is what was known before."""
    if row is None:
        return None if before is None else before._replace(is_joined=False)
    at = now - row["age_s"]
    try:
        return _Neighbour(reports.decode(row["report"], name), "", at, is_joined=True)
    except AngariumError as error:
        return _Neighbour(None, str(error), at, is_joined=True)


def _node_row(report: NodeReport, state: str, heard_s: float) -> Row:
    is_told = state in ("this", "up")
    return {
        **_nothing(report.node, state),
        "node_id": report.node_id,
        "release": report.release,
        "uptime_s": round(report.up_s + heard_s, 1) if is_told else None,
        "heard_s": round(heard_s, 1),
        "vpns": report.vpn_count,
        "links_up": sum(1 for link in report.links if link.state == "up") if is_told else None,
        "links": report.link_count,
    }


def _nothing(name: str, state: str) -> Row:
    """Give the row of a node of which nothing else is known."""
    names = ("node_id", "release", "uptime_s", "heard_s", "vpns", "links_up", "links")
    return {"node": name, "state": state, **dict.fromkeys(names), "through": [], "error": ""}


def _end_row(node: str, link: LinkReport, age_s: float, *, is_stale: bool) -> Row:
    return {
        "node": node,
        "neighbour": link.node,
        "state": link.state,
        "stale": is_stale,
        "heard_s": round(age_s, 1),
        "since_s": round(link.for_s + age_s, 1),
        "opens": link.opens,
        "lag_ms": link.lag_ms,
        "encrypted": link.encrypted,
        **{metric: getattr(link, metric) for metric in _METRICS},
        "code": link.code,
        "error": link.error,
    }
