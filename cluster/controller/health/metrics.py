"""The metrics of a node as the page `/metrics`, and what the controller shows there itself.

Pure: everything was told to the controller within the last seconds, and nobody is asked when somebody looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium_server.frames.metrics import Metrics
from angarium_server.http.exposition import Page
from cluster.controller.health.checks import passed
from router.ground.metrics import LINK, ROUTER, SPOOL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cluster.controller.health.checks import Health
    from cluster.roles.role import Role

NODE: Final = Metrics(
    "node",
    """
    live, started, ready | gauge | 0, 1 | what the [probes](operations.md#probes) say
    stopping | gauge | 0, 1 | whether it is being shut down
    disk_full | gauge | 0, 1 | whether the disk of a worker, of the configuration or of events had no room last
    uptime_s | gauge | s | since `angarium up`
    audit_entries | counter by outcome | number | that came into the [audit log](operators.md#the-audit-log): `done`;
     `refused`, with logins that failed
    """,
)

PROCESS: Final = Metrics(
    "process",
    """
    role | | | `supervisor`, `controller`, `router`, `worker`, `link`, `bridge`, `mqtt`, `http`,
     `webhook`, `management`
    index | | | place among the processes of its role
    incarnation | | | number of this start; not for the supervisor
    pid | | | process id; 0 while there is none
    state | | | `starting`, `ready`, `hung`, `restarting`, `stopped`
    ready | gauge | 0, 1 | on `/metrics` only: whether that is its state
    restarts | counter | number | times that it was started again
    progress | | | what a start is busy with; not for the supervisor
    rss_bytes | gauge | bytes | resident memory; the interpreter keeps 16 KiB around a small object that outlived
     many others, for the next ones
    cpu_percent | gauge | % of one core | since the last measurement, 1 to 10 s before
    uptime_s | gauge | s | since this start of the process
    """,
)

STANDBY: Final = Metrics(
    "standby",
    """
    primary | gauge by host | 1 | the host that is the primary
    has_all | gauge by host | 1 | the hosts of the in-sync set: they have everything that was acknowledged
    in_sync | gauge | 0, 1 | whether the standby is one of them
    epoch | gauge | number | rises with each primary that begins
    begun_timestamp_s | gauge | s | when this primary began, since 1970
    silent_s | gauge | s | for which the standby has not followed; with `required` nothing is acknowledged meanwhile
    lag_groups | gauge | groups | that the standby has not confirmed, of the slowest store
    bringing_bytes | gauge | bytes | that were sent to bring the standby up to date; 0: it is
    sent_bytes | counter | bytes | for the standby, from the processes that run now
    """,
)

CLUSTER: Final = Metrics(
    "cluster",
    """
    topology_issues | gauge | number | of the cluster, as this node sees it: [mesh.md](mesh.md#topology-issues)
    nodes, nodes_up | gauge | number | nodes that are known; those that are up
    up | gauge | 0, 1 | of each link, by `neighbour`, as the others below: whether it is joined
    lag_ms | gauge | ms | an answer of the neighbour's router takes so long, of the slowest channel; grows while one
     is missing. The side that opens the link measures it, and tells the other
    progress_percent | gauge | % | how much of what both sides want is in force, as far as this node knows; 100 when
     it is synchronised, 0 while it is down
    spooled_messages, spooled_bytes | gauge | messages, bytes | in `#link/NODE`, of all Message VPNs
    retry_messages | gauge | messages | in `#link/NODE/retry`: refused once, tried again after 5 s
    dead_messages | gauge | messages | in `#link/NODE/dmq`
    """,
)

CONTROLLER: Final = Metrics(
    "controller",
    """
    objects | gauge | number | stored objects
    producers | gauge | number | names of producers that the node remembers
    stages | gauge | number | [stages](#stages-and-sinks) that are not over
    sinks | gauge | number | sinks that the node remembers
    deletions | gauge | number | endpoints that were deleted and of which a worker may still have something: one
     that is down, or everything until the next look
    topology_issues | gauge | number | of the cluster, as this node sees it
    worker_deaths_at_work | counter | number | workers that crashed or hung while they worked for somebody:
     `SYSTEM_WORKER_DIED_AT_WORK`
    put_aside | counter | number | clients and endpoints that were put aside because workers died of them
    issuer_fetches, issuer_fetches_failed | counter | number | answers of addresses with keys of
     [issuers](how-to/log-in-with-tokens.md#keys-at-an-address); those that failed
    operators_refused | counter | number | connections to `[admin] listen` that failed: no certificate, one that has
     ended or that no authority of ours signed, one of nobody in `admin.operators`, no TLS, too many at once
    joins_refused | counter | number | hosts that showed a join token that is wrong, has ended or was used up
    pending | gauge | number | requests to processes that wait for an answer
    peers | | | processes that said hello, as `role.index`
    """,
)


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
    more["audit_entries"] = node.get("audit_entries", {})
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
