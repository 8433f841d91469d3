"""How `angarium status` and `angarium top` draw the status of a node on one screen.

It takes what the controller answers to `status` and gives something that rich can draw; what a key means is
the controller's business, so keys that are new there appear here without a change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cluster.commands.output import cell, duration, size, table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.console import Group

#: States in which a process does what it is there for.
_GOOD_STATES = frozenset({"ready"})


def draw_status(status: Mapping[str, Any]) -> Group:
    """Give the status of a node as a few tables."""
    from rich.console import Group
    from rich.text import Text

    head = Text.assemble(
        ("node ", "dim"), (str(status["node"]), "bold"), ("  at ", "dim"), str(status["url"]),
        ("  up ", "dim"), duration(status["uptime_s"]),
        ("  sessions ", "dim"), cell(status["sessions"]),
        ("  subscriptions ", "dim"), cell(status["subscriptions"]),
    )  # fmt: skip
    parts: list[Any] = [head, Text(), table(map(_process_row, status["processes"]), _PROCESS_COLUMNS)]
    for title in ("rates", "discards", "errors", "spool"):
        found = status.get(title)
        if found:
            parts += [Text(), table(_named(found), ("name", "value"), title=title)]
    if status.get("links"):
        columns = tuple(status["links"][0])
        parts += [Text(), table(status["links"], columns, title="links")]
    return Group(*parts)


_PROCESS_COLUMNS = ("role", "index", "pid", "state", "uptime", "restarts", "memory", "cpu %")


def _process_row(process: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "role": process["role"],
        "index": process["index"],
        "pid": str(process["pid"]),
        "state": process["state"] if process["state"] in _GOOD_STATES else f"{process['state']} !",
        "uptime": _if_known(duration, process.get("uptime_s")),
        "restarts": process["restarts"],
        "memory": _if_known(size, process["rss_bytes"]),
        "cpu %": process["cpu_percent"],
    }


def _if_known(form: Callable[[float], str], value: float | None) -> str:
    """A process that has just started was not measured yet."""
    return "" if value is None else form(value)


def _named(found: Any) -> list[dict[str, Any]]:
    """Give a map as rows; a list or a number of errors is one row."""
    if not isinstance(found, dict):
        return [{"name": "", "value": found}]
    return [{"name": name, "value": value} for name, value in found.items()]
