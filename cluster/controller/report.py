"""What operators see of a node, put together from what supervisor, router, workers and the system say.

Pure functions over maps, and the sampler that turns totals into rates. Called by the controller.

What `/metrics` shows is asked each second, so that nobody is when somebody looks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from angarium_server.launch import is_compiled
from cluster.controller.health.metrics import Sample
from cluster.controller.operations import metrics
from cluster.http.role import HTTP
from cluster.mqtt.role import MQTT
from cluster.roster.table import ROLES, WORKER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cluster.controller.switchboard.processes import ObjectProcesses
    from cluster.controller.switchboard.switchboard import Place, Switchboard
    from cluster.roles.role import Role


class Samples:
    """The newest metrics of the processes of all roles that have some."""

    def __init__(self, board: Switchboard, processes: Mapping[str, ObjectProcesses]) -> None:
        """Begin without any; `processes` are those that come and go with objects, by role."""
        self._board = board
        self._processes = processes
        #: One for each process that was asked last; without values if it did not answer.
        self.newest: list[Sample] = []

    def sample(self, now: float) -> None:
        """Ask them all."""
        labels = self._labels()
        if not labels:
            self.newest = []
            return

        def finish(answers: dict[Place, Any]) -> None:
            self.newest = [
                Sample(ROLES[place[0]], label, answers.get(place) or {}) for place, label in labels.items()
            ]

        asked = {place: (place, ROLES[place[0]].metrics_operation, None) for place in labels}
        self._board.collect_view(None, now, asked, finish)

    def of(self, role: Role) -> list[Mapping[str, Any]]:
        """Give what the processes of a role told last."""
        return [sample.values for sample in self.newest if sample.role is role]

    def _labels(self) -> dict[Place, dict[str, str]]:
        """Give the processes to ask, each with its labels."""
        found: dict[Place, dict[str, str]] = {}
        for role in ROLES.values():
            if role.metrics is None:
                continue
            if role.name in self._processes:
                for index, told in self._processes[role.name].wanted.items():
                    names = {name: str(told[name]) for name in role.metric_labels}
                    found[role.name, index] = names or {"index": str(index)}
            else:
                places = sorted(place for place in self._board.peers if place[0] == role.name)
                found.update({place: {"index": str(place[1])} for place in places})
        return found


#: Totals of the router whose rates are shown.
RATED: Final = ("messages_in", "bytes_in", "messages_out", "bytes_out", "connects")
#: Reason, as among discards -> the figure of a worker.
_DEAD: Final = {
    "ttl-expired": "ttl_expired_discard",
    "max-redelivery-exceeded": "max_redelivery_exceeded_discard",
    "rejected": "rejected_discard",
}
#: A rate over less than this says nothing.
_SPAN_MIN_S: Final = 0.1

Row = dict[str, Any]


class Sampler:
    """Rates of the router's totals between the two newest samples."""

    def __init__(self) -> None:
        """Begin without a sample: there are no rates before the second one."""
        #: (time, incarnation of the router, its totals) of the newest sample.
        self._newest: tuple[float, int, dict[str, int]] | None = None
        #: name_per_s -> rate; empty while the router is new or gone.
        self.rates: dict[str, float] = {}

    def sample(self, now: float, incarnation: int, stats: Row) -> None:
        """Take the totals of a router; those of another incarnation start over."""
        totals = {name: int(stats.get(name, 0)) for name in RATED}
        newest = self._newest
        self._newest = (now, incarnation, totals)
        if newest is None or newest[1] != incarnation:
            self.rates = dict.fromkeys((f"{name}_per_s" for name in RATED), 0.0)
            return
        span_s = now - newest[0]
        if span_s >= _SPAN_MIN_S:
            self.rates = {
                f"{name}_per_s": round((total - newest[2][name]) / span_s, 1)
                for name, total in totals.items()
            }

    def forget(self) -> None:
        """The router did not answer: nobody knows a rate."""
        self._newest = None
        self.rates = {}


def processes(node: Row, usage: dict[int, Row]) -> list[Row]:
    """Give a row per process; one that does not live has its state only."""
    nothing: Row = {"rss_bytes": None, "cpu_percent": None, "uptime_s": None}
    rows = []
    for process in node.get("processes", ()):
        measured = usage.get(process["pid"], nothing) if process["pid"] else nothing
        rows.append({**process, **measured})
    return rows


def gateways(node: Row, usage: dict[int, Row]) -> dict[tuple[str, int], Row]:
    """Give the gateway processes of a node, each by its place."""
    return {
        (row["role"], row["index"]): {
            "name": f"{row['role']}.{row['index']}",
            **row,
            "listen": node.get(row["role"], []),
        }
        for row in processes(node, usage)
        if row["role"] in (MQTT.name, HTTP.name)
    }


def full_disks(node: Row, router: Row | None, *, is_disk_full: bool) -> list[str]:
    """Give what has no room on its disk; the controller says whether its store and events had none last."""
    full = [f"worker {index}" for index in (router or {}).get("spool", {}).get("homes_full", [])]
    return full + (["configuration and events"] if is_disk_full or node.get("disk_full") else [])


def _dead(homes: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Give the dead messages that the workers deleted, by reason as among discards; only those that are not 0."""
    told = list(homes)
    totals = {reason: sum(home.get(figure, 0) for home in told) for reason, figure in _DEAD.items()}
    return {reason: total for reason, total in totals.items() if total}


def status(
    node: Row,
    usage: dict[int, Row],
    router: Row | None,
    homes: Iterable[Mapping[str, Any]],
    rates: dict[str, float],
    topology_issues: int,
    *,
    is_disk_full: bool = False,
) -> Row:
    """Give what `angarium status --json` prints; without an answer of the router its numbers are zero."""
    stats = router or {}
    rows = processes(node, usage)
    return {
        "node": node.get("node", ""),
        "url": node.get("url", ""),
        "mqtt": node.get("mqtt", []),
        "http": node.get("http", []),
        "management": node.get("management", []),
        "uptime_s": round(node.get("uptime_s", 0.0), 3),
        "compiled": is_compiled(),
        "processes": rows,
        "workers": sum(1 for row in rows if row["role"] == WORKER.name),
        "sessions": stats.get("sessions", 0),
        "subscriptions": stats.get("subscriptions", 0),
        "rates": rates,
        "totals": {name: stats.get(name, 0) for name in RATED},
        "discards": {**stats.get("discards", {}), **_dead(homes)},
        "spool": metrics.spool(router),
        "disk_full": full_disks(node, router, is_disk_full=is_disk_full),
        "certificates": node.get("certificates", []),
        "links": stats.get("links", []),
        "topology_issues": topology_issues,
        "errors": stats.get("errors", {}),
    }
