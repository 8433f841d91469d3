"""What happened in a mesh: one history of all clients, and what each node has for itself.

Messages, connections, faults and broken rules are of the whole mesh, and so are the numbers of publications. What
workers, homes and the controller of a node did is in its own records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tests.simulation.event_history import FOREVER, History

if TYPE_CHECKING:
    from tests.simulation.event_history import ConnectionRecord
    from tests.simulation.guaranteed.records import GuaranteedHistory, Publication


class NodeHistory(History):
    """The history as one node writes it."""

    def __init__(self, name: str, shared: History) -> None:
        super().__init__()
        self.name = name
        self.messages = shared.messages
        self.connections = shared.connections
        self.faults = shared.faults
        self.broken = shared.broken
        #: Usernames and their rights are the same on every node, and never change.
        self.rights = shared.rights
        #: Direct copies of guaranteed messages: connection, number, share, time.
        self.copies: list[tuple[ConnectionRecord, int, str | None, float]] = []

    def connect(self, client: str, vpn: str, username: str) -> ConnectionRecord:
        """Begin the record of a connection to this node."""
        record = super().connect(client, vpn, username)
        record.node = self.name
        return record

    def end_all_sessions(self, at: float) -> None:
        """Note that the router of this node is gone."""
        for record in self.connections:
            if record.node == self.name:
                record.ended_at = min(record.ended_at, at)

    def fault(self, at: float, whom: str, what: str) -> None:
        """Note a disturbance here."""
        super().fault(at, f"{self.name}: {whom}", what)

    def break_rule(self, text: str) -> None:
        """Note a broken rule here."""
        super().break_rule(f"node {self.name}: {text}")


class NodeRecords(NamedTuple):
    """What one node has for itself."""

    history: NodeHistory
    guaranteed: GuaranteedHistory
    #: The nodes that it has links to.
    neighbours: tuple[str, ...]


class MeshHistory:
    """All records of a mesh."""

    def __init__(self, shared: History, publications: list[Publication]) -> None:
        self.shared = shared
        self.publications = publications
        #: By name, in order.
        self.nodes: dict[str, NodeRecords] = {}
        #: From then on every node knew what its neighbours' endpoints want; they never forget it.
        self.settled_at = FOREVER
        #: Whether the run came to its end: everything has been carried over, and queues were emptied.
        self.is_over = False
        #: The longest time between HELLO of a link process and its taking WELCOME: so exactly it knows the clocks.
        self.greeting_max_s = 0.0

    @property
    def calm_since(self) -> float:
        """Tell from when on nothing was disturbed; FOREVER if the run never came there."""
        return self.shared.calm_since

    def reach(self, name: str) -> list[str]:
        """Name the nodes where messages of a node may come to: itself and its neighbours."""
        return [name, *self.nodes[name].neighbours]

    def node_of(self, publication: Publication) -> str:
        """Name the node where something was published; empty if it never left its client."""
        return publication.sends[0][1].node if publication.sends else ""
