"""The metrics of a node as the page `/metrics`.

Pure: everything was told to the controller within the last seconds, and nobody is asked when somebody looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from angarium_server.http.exposition import Page
from cluster.controller.health.checks import passed
from cluster.controller.health.node_metrics import CLUSTER, NODE, PROCESS, STANDBY
from router.ground.metrics import LINK, ROUTER, SPOOL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cluster.controller.health.checks import Health
    from cluster.roles.role import Role

Row = Mapping[str, Any]


class Sample(NamedTuple):
    """What a process told last of how it does; empty if it did not answer."""

    role: Role
    labels: Mapping[str, str]
    values: Row


def metrics(
    health: Health,
    node: Row,
    usage: Mapping[int, Row],
    stats: Row | None,
    cluster: Row,
    samples: Iterable[Sample],
    standby: Row,
) -> str:
    """Give the page.

    Args:
        health: how the node does.
        node: what the supervisor told last, and whether a disk is full.
        usage: what each pid uses.
        stats: what the router told last; None if it did not answer, then its metrics are not there.
        cluster: those of the cluster, and under `links` those of each link by the name of the neighbour.
        samples: of the processes whose role has metrics.
        standby: those of the pair; empty without one.
    """
    page = Page()
    verdicts = {name: passed(getattr(health, name)) for name in ("live", "started", "ready")}
    stopping = node.get("phase") == "stopping"
    more = {"disk_full": bool(node.get("disk_full")), "uptime_s": node.get("uptime_s", 0.0)}
    page.add(NODE, {**verdicts, "stopping": stopping, **more})
    for row in node.get("processes", ()):
        used = usage.get(row["pid"], {}) if row["pid"] else {}
        values: Row = {"ready": row["state"] == "ready", "restarts": row.get("restarts", 0), **used}
        page.add(PROCESS, values, role=row["role"], index=row["index"])
    told: Row = stats or {}
    page.add(ROUTER, told)
    page.add(SPOOL, told.get("spool", {}))
    page.add(STANDBY, standby)
    page.add(CLUSTER, cluster)
    for neighbour, values in cluster.get("links", {}).items():
        page.add(CLUSTER, values, neighbour=neighbour)
    for row in told.get("links", ()):
        page.add(LINK, row, neighbour=row["name"], vpn=row["vpn"])
    for role, labels, values in samples:
        assert role.metrics is not None, f"{role.name} shows none"
        page.add(role.metrics, {"up": values.get("state") == "up", **values}, **labels)
    return page.text()
