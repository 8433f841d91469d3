"""How `angarium status` and `angarium top` show the status of a node: as lines that fit one screen.

It takes what the controller answers to `status`. Lines are grouped, and each group has a limit: what is beyond it is
counted, with the command that shows it. A node with a few workers fits 80 columns and 24 lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from angarium_server.visible import visible
from cluster.commands.terminal.table import counted, duration, fold, plain, rate, size, table
from cluster.roles.role import Indices
from cluster.roster.table import ROLES

if TYPE_CHECKING:
    from collections.abc import Mapping

    Row = Mapping[str, Any]

#: States in which a process does what it is there for.
_GOOD_STATES: Final = frozenset({"ready"})
_PROCESS_COLUMNS: Final = ("process", "pid", "state", "uptime_s", "restarts", "rss_bytes", "cpu_percent")
#: Processes that need no number.
_ONLY_ONE: Final = frozenset(
    ("supervisor", *(role.name for role in ROLES.values() if role.indices is Indices.ONE))
)
#: Lines for processes below their header, with what they say: those of a node with seven workers that are well.
PROCESS_LINES_MAX: Final = 10
#: Processes that say why they do not work, and the lines that each may take.
NOTES_MAX: Final = 2
NOTE_LINES_MAX: Final = 2
#: Usernames without a password that are named.
PASSWORDLESS_MAX: Final = 2
#: The column in which the groups begin.
_TITLE_WIDTH: Final = 10


def status_lines(status: Row, width: int = 80, *, is_whole: bool = False) -> list[str]:
    """Give the status of a node as lines; as many as it takes if it is to be whole."""
    lines = [*_head(status, width), ""]
    lines += _processes(status["processes"], width, is_whole=is_whole)
    lines.append("")
    room = None if is_whole else width - _TITLE_WIDTH
    groups = {
        "mqtt": _joined([visible(url) for url in status.get("mqtt") or []], room, "angarium status -o wide"),
        "http": _joined([visible(url) for url in status.get("http") or []], room, "angarium status -o wide"),
        "manage": _joined(
            [visible(url) for url in status.get("management") or []], room, "angarium status -o wide"
        ),
        "build": "compiled" if is_whole and status.get("compiled") else "",
        "messages": _rates(status["rates"]),
        **_spool(status.get("spool") or {}),
        "aside": _aside((status.get("spool") or {}).get("lanes_kept_aside", 0)),
        "disk full": _disk_full(status.get("disk_full") or []),
        "tls": _certificates(status.get("certificates") or []),
        "discards": _counts(status.get("discards") or {}, room),
        "errors": _counts(status.get("errors") or {}, room),
        "links": _links(status.get("links") or [], room),
        "topology": _topology(status.get("topology_issues") or 0),
        "login": passwordless_text(status.get("passwordless") or []),
    }
    return lines + [f"{name:<{_TITLE_WIDTH}}{text}" for name, text in groups.items() if text]


def passwordless_text(rows: list[dict[str, Any]]) -> str:
    """Say under which usernames clients of the host need no password; nothing if there are none."""
    if not rows:
        return ""
    names = [f"{visible(row['username'])} (VPN {visible(row['vpn'])})" for row in rows[:PASSWORDLESS_MAX]]
    more = len(rows) - len(names)
    rest = f" and {more} more" if more else ""
    return f"without a password: {', '.join(names)}{rest}, from this machine"


def _head(status: Row, width: int) -> list[str]:
    """Give who it is and how long it runs, and how many use it: in one line if the name allows it."""
    first = f"node {visible(status['node'])} at {status['url']}, up {duration(status['uptime_s'])}"
    second = f"{counted(status['sessions'], 'client')}, {counted(status['subscriptions'], 'subscription')}"
    joined = f"{first}, {second}"
    return [joined] if len(joined) <= width else [first, second]


def _processes(processes: list[dict[str, Any]], width: int, *, is_whole: bool) -> list[str]:
    """Give a line for each process, those that are not well if there are too many, and what these say."""
    rows = [{**row, "process": process_name(row), "state": _state(row["state"])} for row in processes]
    notes = _notes(rows, width, is_whole=is_whole)
    room = len(rows) if is_whole else PROCESS_LINES_MAX - len(notes)
    shown = rows if len(rows) <= room else _worst(rows, room - 1)
    drawn = table(shown, _PROCESS_COLUMNS, width)
    lines = [drawn.header, *drawn.body]
    if left := [row for row in rows if row not in shown]:
        well = sum(1 for row in left if _is_well(row))
        lines.append(f"and {len(left)} more, {well} of them ready: angarium status -o wide")
    return lines + notes


def _notes(rows: list[dict[str, Any]], width: int, *, is_whole: bool) -> list[str]:
    """Give what processes that are not well say: how far they are, or why they do not work."""
    notes = [
        f"{row['process']}: {visible(row['progress'])}"
        for row in rows
        if not _is_well(row) and row.get("progress")
    ]
    if is_whole:
        return [line for note in notes for line in fold(note, width)]
    lines = [line for note in notes[:NOTES_MAX] for line in fold(note, width)[:NOTE_LINES_MAX]]
    if len(notes) > NOTES_MAX:
        lines.append(f"{len(notes) - NOTES_MAX} more say why: angarium status -o wide")
    return lines


def process_name(row: Row) -> str:
    """Give the name of a process: the role, and its number where there may be several."""
    return str(row["role"]) if row["role"] in _ONLY_ONE else f"{row['role']}.{row['index']}"


def _worst(rows: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Give so many rows in their order: those that are not well, and of the others the first."""
    chosen = sorted(range(len(rows)), key=lambda i: (_is_well(rows[i]), i))[:most]
    return [rows[i] for i in sorted(chosen)]


def _is_well(row: Row) -> bool:
    return row["state"] in _GOOD_STATES


def _state(state: str) -> str:
    return state if state in _GOOD_STATES else f"{state} !"


def _rates(rates: Mapping[str, float]) -> str:
    if not rates:
        return "no rates yet"
    both = (
        f"{direction} {rate(rates.get(f'messages_{direction}_per_s', 0.0))} "
        f"({rate(rates.get(f'bytes_{direction}_per_s', 0.0), is_bytes=True)})"
        for direction in ("in", "out")
    )
    return f"{', '.join(both)}, {rate(rates.get('connects_per_s', 0.0))} new clients"


def _spool(spool: Row) -> dict[str, str]:
    """Give what is stored, each metric with its limit; 'angarium spool show' has all of them."""
    if not spool:
        return {}
    return {
        "spool": f"{counted(spool['messages'], 'message')}, {size(spool['usage_bytes'])} of "
        f"{size(spool['quota_bytes'])}",
        "disk": f"{size(spool['disk_bytes'])}, {plain(spool['files'])} of {plain(spool['files_max'])} files",
        "queues": f"{counted(spool['endpoints'], 'endpoint')}, {counted(spool['producers'], 'producer')}, "
        f"{plain(spool['delivered_unacked'])} of {plain(spool['delivered_unacked_max'])} unacknowledged",
    }


def _aside(lanes: int) -> str:
    """Give how many lanes no object claims."""
    return f"{counted(lanes, 'lane')} that no object claims !: angarium spool show" if lanes else ""


def _disk_full(parts: list[str]) -> str:
    """Give what finds no room on its disk."""
    return f"{', '.join(parts)} !: free space; consumers make room" if parts else ""


def _certificates(sentences: list[str]) -> str:
    """Give the first certificate that has ended or soon will."""
    if not sentences:
        return ""
    more = f" (and {len(sentences) - 1} more)" if len(sentences) > 1 else ""
    return f"{visible(sentences[0])}{more} !"


def _counts(found: Mapping[str, int], room: int | None) -> str:
    """Give reasons with their numbers, the most frequent first, as many as a line has room for."""
    if not found:
        return "none"
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    parts = [f"{visible(str(name))} {plain(number)}" for name, number in ordered]
    return _joined(parts, room, "angarium status -o wide")


def _joined(parts: list[str], room: int | None, command: str) -> str:
    """Join parts by commas, as many as there is room for; the rest is counted, with the command that shows it."""
    whole = ", ".join(parts)
    if room is None or len(whole) <= room:
        return whole
    for kept in range(len(parts) - 1, 0, -1):
        text = f"{', '.join(parts[:kept])} and {len(parts) - kept} more: {command}"
        if len(text) <= room:
            return text
    return f"{len(parts)} of them: {command}"


def _links(channels: list[dict[str, Any]], room: int | None) -> str:
    """Give how many channels of links are up, and which are not."""
    if not channels:
        return ""
    bad = [f"{_channel(row)} !" for row in channels if not row["synchronised"]]
    text = f"{len(channels) - len(bad)} of {len(channels)} up"
    if not bad:
        return text
    return f"{text}, not {_joined(bad, room and room - len(text) - len(', not '), 'angarium link list')}"


def _channel(row: Row) -> str:
    return visible(row["name"] if row["vpn"] == "default" else f"{row['name']} ({row['vpn']})")


def _topology(issues: int) -> str:
    return f"{counted(issues, 'issue')} !: angarium cluster status" if issues else ""
