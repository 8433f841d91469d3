"""What has to be well for a node to be alive, started and ready, and the sentence that says why it is not.

Pure functions over what the supervisor and the router told the controller.

- *alive*: the supervisor lets itself be heard. If not, nobody starts processes again, and the node has to be.
- *started*: the node was ready once since `angarium up`. Reading a large spool may take minutes, and is no fault.
- *ready*: every process takes work, the spool is read, and the node is not about to stop: clients may come. A full disk
  is told and not judged: consumers make room.

Links are told and not judged: a node that is cut off from its neighbours serves its own clients.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from cluster.roster.table import ROLES

#: The supervisor tells of the node each second; one that is silent for so long hangs, and nobody here replaces it.
SUPERVISOR_SILENT_S: Final = 10.0
#: The states of a link in which it carries nothing although it should.
_LINK_FAULTS: Final = ("down", "degraded", "synchronising")
#: The roles without which clients miss something.
SERVING: Final = frozenset(role.name for role in ROLES.values() if role.serves_clients)

Row = dict[str, Any]


class Check(NamedTuple):
    """One thing that was looked at; the text says what is wrong and what to do, and is empty if nothing is.

    What has a text and is ok all the same keeps nobody away.
    """

    name: str
    ok: bool
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How a node does now."""

    node: str
    live: list[Check]
    started: list[Check]
    ready: list[Check]
    #: Links to neighbours, which nothing depends on.
    links: list[Check] = field(default_factory=list)

    def answer(self) -> Row:
        """Give what the admin API and `angarium health --json` print."""
        return {
            "node": self.node,
            "live": passed(self.live),
            "started": passed(self.started),
            "ready": passed(self.ready),
            "checks": [check._asdict() for check in (*self.live, *self.ready)],
            "links": [check._asdict() for check in self.links],
        }


def passed(checks: list[Check]) -> bool:
    """Tell whether all is well."""
    return all(check.ok for check in checks)


def examine(node: Row, spool: Row | None, links: list[Row], silent_s: float) -> Health:
    """Look at everything.

    Args:
        node: what the supervisor told last; empty before it told anything.
        spool: the metrics of the spool as the router told them within the last seconds; None if it did not answer.
        links: links with their `name`, `state` and `error`.
        silent_s: since when the supervisor told nothing.
    """
    live = [_supervisor(silent_s)]
    ready = [_node(node), *_processes(node), _spool(spool, node)]
    started = [Check("started", ok=True)]
    if node.get("phase") == "starting" and not passed(ready):
        wrong = [f"{check.name} {check.text}" for check in ready if not check.ok]
        started = [Check("started", ok=False, text="; ".join(wrong))]
    return Health(
        node=node.get("node", ""),
        live=live,
        started=started,
        ready=ready,
        links=[_link(row) for row in links],
    )


def _supervisor(silent_s: float) -> Check:
    if silent_s < SUPERVISOR_SILENT_S:
        return Check("supervisor", ok=True)
    text = f"has been silent for {silent_s:.0f} s: nobody would start a process again; restart the node"
    return Check("supervisor", ok=False, text=text)


def _node(node: Row) -> Check:
    if not node:
        return Check("node", ok=False, text="is not known yet: the controller has just started")
    if node.get("phase") == "stopping":
        return Check("node", ok=False, text="stops: clients go elsewhere")
    return Check("node", ok=True)


def _processes(node: Row) -> list[Check]:
    """Look at everyone without whom clients miss something."""
    return [
        Check(f"{row['role']}.{row['index']}", ok=row["state"] == "ready", text=_what_it_does(row))
        for row in node.get("processes", ())
        if row["role"] in SERVING
    ]


def _what_it_does(row: Row) -> str:
    if row["state"] == "ready":
        return ""
    if row["state"] == "starting":
        return f"is starting: {row.get('progress') or 'no news yet'}"
    last = f" (last: {row['progress']})" if row.get("progress") else ""
    return f"is {row['state']}, after {row.get('restarts', 0)} restarts{last}; 'angarium events' says more"


def _spool(spool: Row | None, node: Row) -> Check:
    if spool is None:
        return Check("spool", ok=False, text="is not known: the router has not told of it")
    missing = node.get("workers", 0) - spool.get("homes_ready", 0)
    if missing > 0:
        text = f"is not read yet by {missing} of {node['workers']} workers; 'angarium status' says how far they are"
        return Check("spool", ok=False, text=text)
    if not spool.get("recovered"):
        return Check("spool", ok=False, text="is read, and what endpoints hold is still being told")
    full = ", ".join(map(str, spool.get("homes_full", ())))
    text = f"takes nothing new: no room on the disk for worker {full}" if full else ""
    return Check("spool", ok=True, text=text)


def _link(row: Row) -> Check:
    if row["state"] not in _LINK_FAULTS:
        return Check(row["name"], ok=True, text=row["state"])
    return Check(row["name"], ok=False, text=row["error"] or f"is {row['state']}")
