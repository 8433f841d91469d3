"""How values, rows and objects look as text: pure functions from maps to lines.

The unit at the end of a name says how its value is written (2048 of `rss_bytes` is "2.0 KiB"), so titles carry no
units. A table fits the width it is given: names are never cut or folded, sentences fold at blanks, and columns from
the right are left out before a line becomes too long. Nothing here prints, and nothing asks whether a terminal is
there.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.cells import cell_len

from angarium_server.visible import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: What a terminal has at least, and what a pipe gets.
WIDTH: Final = 80
#: Stands for nothing, so that every line of a table has the same number of fields.
NOTHING: Final = "-"
#: Between two columns.
_GAP: Final = "  "
#: A sentence that is folded into fewer columns than this is no longer read.
_SENTENCE_WIDTH_MIN: Final = 24
#: Numbers that name something and count nothing.
_IDENTIFIERS: Final = frozenset({"pid", "incarnation", "id", "position"})
#: Columns of sentences, which may be folded at blanks.
_SENTENCES: Final = frozenset({"meaning", "error", "text", "changes", "selector", "default", "range"})
#: The vpn of who does not use several.
_ORDINARY_VPN: Final = "default"
#: Titles that are not the name of the metric without its unit.
_TITLES: Final = {
    "access_type": "access",
    "bind_count": "consumers",
    "client_connect_default": "connect",
    "cpu_percent": "cpu",
    "delivered_unacked": "unacked",
    "disk_bytes": "on disk",
    "dto_priority": "priority",
    "max_connection_count": "max connections",
    "max_spool_usage_mb": "max size",
    "max_subscription_count": "max subscriptions",
    "messages_in_per_s": "in",
    "messages_out_per_s": "out",
    "messages_spooled": "messages",
    "publish_topic_default": "publish",
    "queued_messages": "queued",
    "rss_bytes": "memory",
    "settled_messages": "settled",
    "sent_messages": "sent",
    "spool_usage_bytes": "size",
    "subscribe_topic_default": "subscribe",
    "unacked_messages": "unacked",
}
_UNIT_SUFFIXES: Final = ("_per_s", "_bytes", "_percent", "_ms", "_us", "_mb", "_s")
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


class Lines(NamedTuple):
    """A table as text: its header, its other lines, and the titles of the columns that had no room."""

    header: str
    body: list[str]
    left_out: list[str]


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], width: int | None = WIDTH) -> Lines:
    """Give the named columns of all rows as lines of at most a width; None for any width.

    The first column names what a row is about. It is never left out, cut or folded.
    """
    rows = list(rows)
    shown = [name for name in columns if not (name == "vpn" and width is not None and _is_ordinary(rows))]
    texts = {name: [visible(cell(row.get(name), name)) or NOTHING for row in rows] for name in shown}
    widths = {name: max([cell_len(title(name)), *map(cell_len, texts[name])]) for name in shown}
    kept = _fit(widths, width)
    is_number = {name: _is_number_column(rows, name) for name in kept}
    header = [title(name).upper() for name in kept]
    lines = [_line([[one] for one in header], kept, is_number)[0]]
    for i in range(len(rows)):
        cells = [
            fold(texts[name][i], kept[name]) if name in _SENTENCES else [texts[name][i]] for name in kept
        ]
        lines += _line(cells, kept, is_number)
    return Lines(lines[0], lines[1:], [title(name).upper() for name in shown if name not in kept])


def pairs(values: Mapping[str, Any], width: int | None = WIDTH) -> list[str]:
    """Give names and values as two columns; a value that is long goes on below itself, folded at blanks."""
    names = max([cell_len(name) for name in values], default=0)
    room = None if width is None else max(width - names - len(_GAP), _SENTENCE_WIDTH_MIN)
    lines = []
    for name, value in values.items():
        text = visible(cell(value, name)) or NOTHING
        for i, part in enumerate([text] if room is None else fold(text, room)):
            lines.append(f"{_pad(name if i == 0 else '', names)}{_GAP}{part}")
    return lines


def title(name: str) -> str:
    """Give the title of a metric: `uptime_s` is "uptime"."""
    if name in _TITLES:
        return _TITLES[name]
    suffix = next((suffix for suffix in _UNIT_SUFFIXES if name.endswith(suffix)), "")
    return name.removesuffix(suffix).replace("_", " ")


def titles(names: Iterable[str]) -> dict[str, str]:
    """Give the titles of the metrics of one object: where two would be the same, both are whole names."""
    short = {name: title(name) for name in names}
    counts = Counter(short.values())
    return {name: text if counts[text] == 1 else name.replace("_", " ") for name, text in short.items()}


def _is_ordinary(rows: list[Mapping[str, Any]]) -> bool:
    """Say whether a column of Message VPNs would say nothing."""
    return all(row.get("vpn") in (_ORDINARY_VPN, "", None) for row in rows)


def _is_number_column(rows: list[Mapping[str, Any]], name: str) -> bool:
    values = [row.get(name) for row in rows]
    return any(value is not None for value in values) and all(
        value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values
    )


def _fit(widths: dict[str, int], width: int | None) -> dict[str, int]:
    """Give the columns that have room, each with its width: the last ones go first, sentences get narrower."""
    if width is None:
        return widths
    first = next(iter(widths))
    kept = dict(widths)
    least = {
        name: min(natural, _SENTENCE_WIDTH_MIN) if name in _SENTENCES else natural
        for name, natural in widths.items()
    }

    def total(of: dict[str, int]) -> int:
        return sum(of[name] for name in kept) + len(_GAP) * (len(kept) - 1)

    for name in reversed(widths):
        if total(least) <= width:
            break
        if name != first and name not in _SENTENCES:
            del kept[name]
    for name in reversed(widths):  # the last sentence is the longest as a rule, and gives most
        if name in kept and (excess := total(kept) - width) > 0:
            kept[name] = max(least[name], kept[name] - excess)
    return kept


def _line(cells: list[list[str]], widths: Mapping[str, int], is_number: Mapping[str, bool]) -> list[str]:
    """Give one row as lines; there are several if a sentence was folded."""
    lines = []
    for i in range(max(len(one) for one in cells)):
        parts = [
            _pad(one[i] if i < len(one) else "", widths[name], right=is_number[name])
            for one, name in zip(cells, widths, strict=True)
        ]
        lines.append(_GAP.join(parts).rstrip())
    return lines


def _pad(text: str, width: int, *, right: bool = False) -> str:
    blanks = " " * (width - cell_len(text))
    return blanks + text if right else text + blanks


def fold(text: str, width: int) -> list[str]:
    """Break a text at blanks into lines of at most a width; a word that is longer stays whole."""
    if cell_len(text) <= width:
        return [text]
    lines = [""]
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and cell_len(joined) > width:
            lines.append(word)
        else:
            lines[-1] = joined
    return lines


def cell(value: Any, name: str = "") -> str:
    """Give the text of one value; the unit at the end of its name says how to write it.

    `None` is empty, `True` is "yes", a list is joined by commas; 2048 is "2.0 KiB" if the name ends in
    `_bytes`, 90 is "1m30s" if it is `uptime_s`, and the number of a process has no commas.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _number(value, name)
    if isinstance(value, list | tuple):
        return ", ".join(cell(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{key}={cell(item)}" for key, item in value.items())
    return str(value)


def _number(value: float, name: str) -> str:
    if name in _IDENTIFIERS:
        return str(value)
    if name.endswith("_per_s"):
        return rate(value, is_bytes="bytes" in name)
    if "bytes" in name.split("_"):
        return size(value)
    if name.endswith("stored_ms"):
        return moment(value)
    if name.endswith("_s"):
        return duration(value)
    unit = {"_percent": " %", "_ms": " ms", "_us": " µs", "_mb": " MB"}.get(name[name.rfind("_") :], "")
    return f"{plain(value)}{unit}"


def plain(value: float) -> str:
    """Give a number with commas, and with one place if it is no whole one: 1234.56 is "1,234.6"."""
    return f"{value:,.1f}" if isinstance(value, float) and not value.is_integer() else f"{value:,.0f}"


def rate(per_s: float, *, is_bytes: bool = False) -> str:
    """Give a rate as people read it: "20,000/s", "2.4 MiB/s"; below 10 with one place."""
    if is_bytes:
        return f"{size(per_s)}/s"
    return f"{per_s:,.1f}/s" if 0 < per_s < 10 and per_s != int(per_s) else f"{per_s:,.0f}/s"


def counted(number: int, noun: str) -> str:
    """Give a number of things: "1 message", "1,234 messages"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def moment(wall_ms: float | None) -> str:
    """Give a wall time as people read it; nothing for none, and "never" for one behind all calendars."""
    if not wall_ms:
        return ""
    try:
        found = datetime.fromtimestamp(wall_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return "never"
    return found.isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")


def size(count: float) -> str:
    """Give a number of bytes as people read it: 1536 is "1.5 KiB"."""
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count /= 1024
        unit += 1
    return f"{count:.0f} {_UNITS[unit]}" if unit == 0 else f"{count:.1f} {_UNITS[unit]}"


def duration(seconds: float) -> str:
    """Give a time span as people read it: 3725 is "1h02m"."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"
