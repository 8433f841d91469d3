"""How `angarium status` and `angarium top` draw the status of a node on one screen.

It takes what the controller answers to `status` and gives something that rich can draw; what a key means is
the controller's business, so keys that are new there appear here without a change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cluster.commands.output import cell, duration, size, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Group
    from rich.text import Text

#: States in which a process does what it is there for.
_GOOD_STATES: Final = frozenset({"ready"})


def draw_status(status: Mapping[str, Any]) -> Group:
    """Give the status of a node as a few tables."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = [_head(status), Text()]
    processes = [{**process, "state": _state(process["state"])} for process in status["processes"]]
    parts.append(table(processes, _PROCESS_COLUMNS))
    parts += [
        Text(f"{process['role']}.{process['index']}: {process['progress']}")
        for process in status["processes"]
        if process["state"] not in _GOOD_STATES and process.get("progress")
    ]
    if status["rates"]:
        parts += [Text(), table(_directions(status["rates"]), ("rate", "messages/s", "bytes/s"))]
    if status.get("spool"):
        parts += [Text(), table(_spool(status["spool"]), ("spool", "now", "limit"))]
    for title in ("discards", "errors"):
        found = status.get(title)
        if found:
            rows = [{title: name, "number": number} for name, number in found.items()]
            parts += [Text(), table(rows, (title, "number"))]
    if status.get("links"):
        parts += [Text(), table(status["links"], _LINK_COLUMNS, title="links")]
    return Group(*parts)


#: What is shown of the spool, with the limit of each.
_SPOOL_ROWS: Final = (
    ("messages", ""),
    ("usage_bytes", "quota_bytes"),
    ("disk_bytes", ""),
    ("files", "files_max"),
    ("delivered_unacked", "delivered_unacked_max"),
    ("endpoints", ""),
    ("producers", ""),
)
#: Of the channels of links; 'angarium link show' has all of them.
_LINK_COLUMNS: Final = (
    "name",
    "vpn",
    "synchronised",
    "uptime_s",
    "subscriptions_in",
    "subscriptions_out",
    "messages_in",
    "messages_out",
    "queued_messages",
)
_PROCESS_COLUMNS: Final = (
    "role",
    "index",
    "pid",
    "state",
    "uptime_s",
    "restarts",
    "rss_bytes",
    "cpu_percent",
)


def _head(status: Mapping[str, Any]) -> Text:
    from rich.text import Text

    named = {
        "node": status["node"],
        "at": status["url"],
        "up": duration(status["uptime_s"]),
        "sessions": cell(status["sessions"]),
        "subscriptions": cell(status["subscriptions"]),
    }
    if status.get("topology_issues"):
        named["topology issues"] = f"{status['topology_issues']} !"
    return Text("  ").join(Text.assemble((f"{name} ", "dim"), str(value)) for name, value in named.items())


def _spool(spool: Mapping[str, Any]) -> list[dict[str, str]]:
    """Give a row for each figure with a limit, and for what is on disk; 'angarium spool show' has all of them."""
    rows = []
    for name, limit in _SPOOL_ROWS:
        if name in spool:
            most = cell(spool.get(limit), limit) if limit else ""
            rows.append({"spool": name, "now": cell(spool[name], name), "limit": most})
    return rows


def _state(state: str) -> str:
    return state if state in _GOOD_STATES else f"{state} !"


def _directions(rates: Mapping[str, float]) -> list[dict[str, Any]]:
    """Give a row for in and one for out."""
    return [
        {
            "rate": direction,
            "messages/s": rates.get(f"messages_{direction}_per_s"),
            "bytes/s": size(rates.get(f"bytes_{direction}_per_s", 0.0)),
        }
        for direction in ("in", "out")
    ]
