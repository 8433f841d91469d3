"""What operators see of endpoints, producers and the spool, put together from what router and homes say.

Pure functions over maps. The metrics carry the names that operators of the reference broker know, in snake_case
(docs/metrics.md); what a home or the router reports beyond those is shown under its own name.
"""

from __future__ import annotations

from collections import Counter
from datetime import date
from typing import Any, Final

import msgspec

from angarium import wire
from angarium.message import HEADER_KEYS, USER_PROPERTIES_KEY, unpack_properties

Row = dict[str, Any]

#: One MB of a quota.
BYTES_PER_MB: Final = 1_000_000
#: Metrics of the router by the name under which they are shown.
_ROUTER_NAMES: Final = {
    "messages": "messages_spooled",
    "bytes": "spool_usage_bytes",
    "unacked": "delivered_unacked",
    "bind_count": "bind_count",
    "oldest_stored_ms": "oldest_stored_ms",
    "reader_group": "reader_group",
    "reader_username": "reader_username",
    "reader_client": "reader_client",
}
#: What came into an endpoint and left it, so far and each second: the router calls it the same.
TRAFFIC: Final = tuple(
    f"{what}_{way}{unit}"
    for unit in ("", "_per_s")
    for way in ("in", "out")
    for what in ("messages", "bytes")
)
#: A column that the router tells in bytes.
_MB: Final = "spool_usage_mb"
#: Each column that the router tells, and under which name.
_SOURCES: Final = {new: name for name, new in _ROUTER_NAMES.items()} | {
    **dict(zip(TRAFFIC, TRAFFIC, strict=True)),
    _MB: "bytes",
    "counters": "counters",
    "lanes": "lanes",
}
#: What is known of an endpoint of which the router tells nothing.
_UNTOLD: Final[Row] = {"counters": {}, "lanes": []}
#: Sizes of the spool that are shown in the unit of quotas too.
_IN_MB: Final = {"usage_bytes": "usage_mb", "quota_bytes": "quota_mb", "disk_bytes": "disk_mb"}
#: States of a job, the most urgent first.
_JOB_STATES: Final = ("running", "failed", "done")


def asked_of_router(fields: list[str]) -> list[str]:
    """Give what the router has to tell of endpoints for these columns."""
    return ["vpn", "name", *dict.fromkeys(_SOURCES[name] for name in fields if name in _SOURCES)]


def endpoints(objects: list[Row], told: list[Row], fields: list[str] | None = None) -> list[Row]:
    """Add to objects what the router tells of each, or these columns of that; without its answer they are None."""
    by_name = {(row["vpn"], row["name"]): row for row in told}
    shown = [(name, source) for name, source in _SOURCES.items() if not fields or name in fields]
    for found in objects:
        row = by_name.get((found["vpn"], found["name"]), _UNTOLD)
        for name, source in shown:
            found[name] = row.get(source)
    if not fields or _MB in fields:
        for one in objects:
            one[_MB] = None if one[_MB] is None else megabytes(one[_MB])
    return objects


def lanes(stats: list[Row]) -> Row:
    """Give the metrics of all lanes of an endpoint as one.

    Numbers are added up, but the oldest is the smallest that is not 0, and the newest, or the longest, the largest.
    Texts are named, each once.
    """
    together: Row = {}
    for name in dict.fromkeys(name for row in stats for name in row if name not in _ROUTER_NAMES):
        values = [row[name] for row in stats if isinstance(row.get(name), int | float)]
        if name.startswith("oldest"):
            together[name] = min((value for value in values if value), default=0)
        elif name.startswith(("newest", "longest")):
            together[name] = max(values, default=0)
        elif values:
            together[name] = sum(values)
        elif texts := dict.fromkeys(str(row[name]) for row in stats if row.get(name)):
            together[name] = ", ".join(texts)
    for name in [name for name in together if name.endswith("_mark_bytes")]:
        together[f"{name.removesuffix('_bytes')}_mb"] = megabytes(together[name])
    return together


def producers(known: list[Row], told: list[Row]) -> list[Row]:
    """Give the producers of the registry with what the router tells of those that are open."""
    opened = {row.get("id"): row for row in told}
    rows = []
    for row in known:
        used = date.fromordinal(row["used_day"]).isoformat()
        shown = {name: value for name, value in row.items() if name != "used_day"}
        rows.append({**shown, "last_used": used, "open": row["id"] in opened, **opened.get(row["id"], {})})
    return rows


def publishers(counted: list[tuple[int, str, int]], named: list[tuple[int, str]]) -> list[Row]:
    """Give who published messages, and how many, most first: those who are not connected are one without a name.

    A gateway publishes for its clients, whom its messages name as senders; what others name is their own affair.

    Args:
        counted: numbers of publishers, the sender that their messages name, and how many these are.
        named: numbers and the clients whose they are.
    """
    names, found = dict(named), Counter[str]()
    for number, sender, messages in counted:
        name = names.get(number, "")
        found[sender if sender and name.startswith(wire.GATEWAY_NAME_PREFIX) else name] += messages
    return [{"client": name, "messages": messages} for name, messages in found.most_common()]


def whole_message(found: Row) -> Row:
    """Give a message with what its packed properties say: whoever published it may have written anything there."""
    fields = unpack_properties(found["properties"])
    known = {name: fields.get(key) for name, key in HEADER_KEYS.items()}
    own = fields.get(USER_PROPERTIES_KEY)
    named = own.items() if isinstance(own, dict) else ()
    return {
        **found,
        "headers": {name: value for name, value in known.items() if type(value) in (str, int)},
        "user_properties": {
            name: value for name, value in named if isinstance(name, str) and _is_json(name, value)
        },
    }


def _is_json(name: str, value: Any) -> bool:
    try:
        msgspec.json.encode({name: value})
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def jobs(rows: list[Row]) -> Row:
    """Give how far some jobs are together: over when all are, failed if one failed then; with the first error."""
    states = [row["state"] for row in rows]
    state = next((one for one in _JOB_STATES if one in states), "done")
    ordered = sorted(rows, key=lambda row: row["state"] != "failed")
    error = next((row["error"] for row in ordered if row.get("error")), None)
    totals = {
        name: sum(int(row.get(name) or 0) for row in rows) for name in ("done", "total", "refused", "kept")
    }
    return {"state": state, **totals, "error": error}


def count(answer: Any) -> int:
    """Give the number of messages that a home tells, alone or as the only value of a map."""
    if isinstance(answer, dict):
        return sum(value for value in answer.values() if isinstance(value, int))
    return int(answer or 0)


def megabytes(size: float) -> float:
    """Give bytes as the unit of quotas."""
    return round(size / BYTES_PER_MB, 3)


def spool(stats: Row | None) -> Row:
    """Give the metrics of the spool of the node out of the router's; without its answer there are none."""
    told: Row = (stats or {}).get("spool", {})
    in_mb = {new: megabytes(told[name]) for name, new in _IN_MB.items() if name in told}
    return {**told, **in_mb}
