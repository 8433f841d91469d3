"""What `angarium top` shows: views of processes, queues and clients, with rates between two looks.

A state machine: it takes looks and keys, and gives lines. It reads no keyboard, asks no node and knows no clock.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from angarium_server.visible import visible
from cluster.commands.node.status_view import process_name
from cluster.commands.terminal.table import counted, duration, rate, size, table, title

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Row = dict[str, Any]

PROCESSES: Final = "processes"
QUEUES: Final = "queues"
CLIENTS: Final = "clients"
#: A rate over less than this says nothing.
_SPAN_MIN_S: Final = 0.05
_NUMBER: Final = re.compile(r"(\d+)")

KEYS: Final = ("1 2 3 view", "s sort", "r reverse", "h help", "q quit")
_KEY_GAP: Final = "  "
HELP: Final = (
    "1 or p      processes",
    "2 or n      queues and topic endpoints",
    "3 or c      clients",
    "s, right    sort by the next column; left: by the one before",
    "r, up, down reverse the order",
    "h or ?      this help, and back",
    "q, Ctrl-C   quit; the last screen stays",
)


class _View(NamedTuple):
    """What one view shows."""

    #: The first one names a row.
    columns: tuple[str, ...]
    #: What it is sorted by at first; names ascend, metrics descend.
    sorted_by: str
    #: Rate -> gives the total of a row that it is a rate of.
    rates: Mapping[str, Callable[[Row], float | None]]


def _counter(name: str) -> Callable[[Row], float | None]:
    return lambda row: row.get(name)


VIEWS: Final = {
    PROCESSES: _View(
        ("process", "pid", "state", "cpu_percent", "rss_bytes", "uptime_s", "restarts"), "process", {}
    ),
    QUEUES: _View(
        (
            "name",
            "messages_spooled",
            "in_per_s",
            "out_per_s",
            "spool_usage_bytes",
            "delivered_unacked",
            "bind_count",
            "vpn",
        ),
        "messages_spooled",
        {"in_per_s": _counter("total_messages_spooled"), "out_per_s": _counter("confirmed_delivered")},
    ),
    CLIENTS: _View(
        (
            "name",
            "in_per_s",
            "queued_messages",
            "subscriptions",
            "flows",
            "slow",
            "discarded_per_s",
            "uptime_s",
            "vpn",
        ),
        "in_per_s",
        {
            "in_per_s": lambda row: row["counters"].get("messages_in", 0),
            "discarded_per_s": lambda row: sum(row["discards"].values()),
        },
    ),
}
_KEYS_OF_VIEWS: Final = {"1": PROCESSES, "p": PROCESSES, "2": QUEUES, "n": QUEUES, "3": CLIENTS, "c": CLIENTS}


class Top:
    """The state of `angarium top`: which view, how it is sorted, and what the last two looks saw."""

    def __init__(self, view: str) -> None:
        self.view = view
        self._sorted_by = VIEWS[view].sorted_by
        self._is_reversed = False
        self._is_helping = False
        self._status: Row = {}
        #: Rows of the last look, with their rates; the column of a rate is None until there were two looks.
        self.rows: list[Row] = []
        #: Rows that the last look left out.
        self._left_out = 0
        #: What is to be said beside the last look; empty: nothing.
        self._note = ""
        #: Name of a row -> its totals at the last look, and when that was.
        self._totals: dict[tuple[str, ...], dict[str, float]] = {}
        self._looked_at: float | None = None

    def look(self, status: Row, rows: Iterable[Row], now: float, *, left_out: int = 0) -> None:
        """Take what the node looks like now.

        Args:
            status: what the controller says of the node.
            rows: the rows of the view; of processes they are those of the status.
            now: when that was.
            left_out: objects that there are besides.
        """
        self._status, self._left_out, self._note = status, left_out, ""
        rates = VIEWS[self.view].rates
        totals: dict[tuple[str, ...], dict[str, float]] = {}
        span_s = None if self._looked_at is None else now - self._looked_at
        self.rows = []
        for row in rows:
            key = (row.get("kind", ""), row.get("vpn", ""), row.get("name", ""))
            found = {name: total for name, of in rates.items() if (total := of(row)) is not None}
            totals[key] = found
            before = self._totals.get(key, {})
            self.rows.append({**row, **{name: _rate(name, before, found, span_s) for name in rates}})
        if self.view == PROCESSES:
            self.rows = [{**row, "process": process_name(row)} for row in self.rows]
        self._totals, self._looked_at = totals, now

    def note(self, text: str) -> None:
        """Have it said until the next look: that nobody answers, for example."""
        self._note = text

    def press(self, key: str) -> bool:
        """Take a key; say whether it needs another look."""
        if key in ("h", "?"):
            self._is_helping = not self._is_helping
        elif key in _KEYS_OF_VIEWS:
            self._is_helping = False
            return self._switch(_KEYS_OF_VIEWS[key])
        elif key in ("s", "right", "left"):
            columns = VIEWS[self.view].columns
            step = -1 if key == "left" else 1
            self._sorted_by = columns[(columns.index(self._sorted_by) + step) % len(columns)]
            self._is_reversed = False
        elif key in ("r", "up", "down"):
            self._is_reversed = not self._is_reversed
        return False

    def _switch(self, view: str) -> bool:
        if view == self.view:
            return False
        self.view, self._sorted_by, self._is_reversed = view, VIEWS[view].sorted_by, False
        self.rows, self._totals, self._looked_at = [], {}, None
        return True

    def lines(self, width: int, height: int) -> list[str]:
        """Give what a screen of a size shows."""
        if self._is_helping:
            return list(HELP)
        head = [*_head(self._status, width), self._note[:width]]
        room = max(1, height - len(head) - 3)  # the header of the table, what is left out, and the keys
        rows = self.sorted_rows()
        drawn = table(rows[:room], VIEWS[self.view].columns, width)
        lines = [*head, drawn.header, *drawn.body]
        more = self._left_out + len(rows) - len(rows[:room])
        lines += [f"and {more:,} more {self.view}"] if more else []
        if not rows:
            lines.append(f"there are no {self.view}")
        way = "up" if self._is_ascending() else "down"
        return [*lines, _footer(f"{self.view} by {title(self._sorted_by)}, {way} | ", width)]

    def sorted_rows(self) -> list[Row]:
        """Give the rows in their order; those without a value come last."""
        name = self._sorted_by
        known = [row for row in self.rows if row.get(name) is not None]
        known.sort(key=lambda row: _sort_key(row[name]), reverse=not self._is_ascending())
        return known + [row for row in self.rows if row.get(name) is None]

    def _is_ascending(self) -> bool:
        is_name = self._sorted_by == VIEWS[self.view].columns[0] or self._sorted_by in ("vpn", "state")
        return is_name is not self._is_reversed


def _footer(order: str, width: int) -> str:
    """Give the last line: where there is little room the first things go, help and quit stay."""
    texts = [order + _KEY_GAP.join(KEYS), *(_KEY_GAP.join(KEYS[i:]) for i in range(len(KEYS) - 1))]
    return next((text for text in texts if len(text) <= width), "h q"[:width])


def _rate(
    name: str, before: Mapping[str, float], now: Mapping[str, float], span_s: float | None
) -> float | None:
    """Give the rate of a total between two looks; None for one that was not there before or began again."""
    if span_s is None or span_s < _SPAN_MIN_S or name not in before or name not in now:
        return None
    return None if now[name] < before[name] else round((now[name] - before[name]) / span_s, 1)


def _sort_key(value: Any) -> Any:
    """Give what orders values: numbers in a name count as such."""
    if not isinstance(value, str):
        return value
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in _NUMBER.split(value) if part]


def _head(status: Row, width: int) -> Sequence[str]:
    rates = status.get("rates") or {}
    spool = status.get("spool") or {}
    bad = sum(1 for row in status["processes"] if row["state"] != "ready")
    lines = [
        f"node {visible(status['node'])}, up {duration(status['uptime_s'])}, "
        f"{counted(status['sessions'], 'client')}, {counted(status['subscriptions'], 'subscription')}"
        + (f", {bad} of {len(status['processes'])} processes not ready !" if bad else ""),
        f"in {rate(rates.get('messages_in_per_s', 0.0))} "
        f"({rate(rates.get('bytes_in_per_s', 0.0), is_bytes=True)}), "
        f"out {rate(rates.get('messages_out_per_s', 0.0))} "
        f"({rate(rates.get('bytes_out_per_s', 0.0), is_bytes=True)})",
    ]
    if spool:
        lines[1] += f", {counted(spool['messages'], 'message')} stored ({size(spool['usage_bytes'])})"
    return [line[:width] for line in lines]
