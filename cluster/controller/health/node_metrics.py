"""What the controller shows of the node, its processes, the cluster, and itself."""

from __future__ import annotations

from typing import Final

from angarium_server.frames.metrics import Metrics

NODE: Final = Metrics(
    "node",
    """
    live, started, ready | gauge | 0, 1 | what the [probes](operations.md#probes) say
    stopping | gauge | 0, 1 | whether it is being shut down
    disk_full | gauge | 0, 1 | whether the disk of a worker, of the configuration or of events had no room last
    uptime_s | gauge | s | since `angarium up`
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
    rss_bytes | gauge | bytes | resident memory; the interpreter keeps a quarter of a megabyte around a small object
     that outlived many others, for the next ones
    cpu_percent | gauge | % of one core | since the last measurement, a second ago
    uptime_s | gauge | s | since this start of the process
    """,
)

STANDBY: Final = Metrics(
    "standby",
    """
    in_sync | gauge | 0, 1 | whether the standby has everything that was acknowledged
    epoch | gauge | number | rises with each primary that begins
    lag_groups | gauge | groups | that the standby has not confirmed, of the slowest store
    bringing_bytes | gauge | bytes | that were sent to bring the standby up to date; 0: it is
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
