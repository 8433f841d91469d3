"""What a kind of process is, beside its code: how many there are, what each is told, when it stops, what it shows.

Nothing here runs. `cluster.roster.table` has the kinds that there are.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from angarium_server.frames.metrics import Metrics
    from cluster.catalog.catalog import Catalog
    from cluster.configuration.config import NodeConfig
    from cluster.data.node_file import NodeFile
    from router.ground.config import Identity


class Indices(enum.Enum):
    """Which processes of a role there are."""

    #: One, with the index 0.
    ONE = "one"
    #: As many as the node has workers, which may change while it runs.
    WORKERS = "workers"
    #: As many as `Role.count` says of the configuration, from 0 on.
    CONFIGURED = "configured"
    #: One for each object that `Role.wanted` names; the index is the number of the object.
    OBJECTS = "objects"


class InForce(NamedTuple):
    """What the processes of a node are told at their start is made from this."""

    config: NodeConfig
    node: NodeFile
    #: As neighbours and our own router see this node; with secrets.
    identity: Identity
    workers: int
    data_path: Path
    token_key_hex: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A kind of process."""

    #: In logs, events, metrics and the status; lower case.
    name: str
    #: Run as a program with `--runtime DIR --index I --incarnation K`.
    module: str
    #: Gives what is written to `<runtime>/<name>.json` before each start.
    runtime: Callable[[InForce], Any]
    #: Those of a lower turn are gone before those of the next one are asked to stop.
    stop_turn: int
    indices: Indices = Indices.ONE
    #: The node is not ready before all of them are, and does not start if one cannot.
    is_needed: bool = True
    #: A node without it is nothing: when it is not started any more, the node stops.
    ends_node: bool = False
    #: Clients miss something while it is not ready, so the node is not ready then.
    serves_clients: bool = False
    #: It makes sockets for programs of other users, and says itself who may use which file.
    has_public_sockets: bool = False
    #: It notes what it is at (`angarium_server.black_box`), and its death may be blamed on that.
    has_black_box: bool = False
    #: Of CONFIGURED: gives how many there are.
    count: Callable[[NodeConfig], int] | None = None
    #: Of OBJECTS: gives, for each process that there has to be on the node of this name, its index and what it is told
    #: by the request `<name>_config`.
    wanted: Callable[[Catalog, str], dict[int, dict[str, Any]]] | None = None
    #: What it shows on `/metrics`, once a second; None: nothing of its own.
    metrics: Metrics | None = None
    #: Labels of a process there, taken from what it is told to do; without any it is its index.
    metric_labels: tuple[str, ...] = ()
    #: What is asked for them; another one than `stats` where that would cost too much so often.
    metrics_operation: str = "stats"
