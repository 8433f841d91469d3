"""How the metrics of a link are drawn: short, so that a row of them fits a screen."""

from __future__ import annotations

from typing import Any, Final

from cluster.commands.terminal.table import duration, size

Row = dict[str, Any]
#: In this order, behind what names the link.
METRICS: Final = ("state", "since", "lag", "queued", "spooled", "dead")
#: Those that a wide table has besides.
MORE_METRICS: Final = ("encrypted", "subs in", "subs out", "retry")
_ANSWERS: Final = {True: "yes", False: "no", None: ""}


def metrics(row: Row) -> Row:
    """Give the metrics of a link, or of one end of it, as they are drawn; what needs a look has an exclamation mark."""
    state = row["state"]
    if state == "synchronising":
        state = f"{state} {row['progress_percent']} %"
    since_s, lag_ms = row["since_s"], row["lag_ms"]
    return {
        "state": state if row["state"] in ("up", "disabled") else f"{state} !",
        "since": "" if since_s is None else duration(since_s),
        "lag": "" if lag_ms is None else f"{lag_ms:,.1f} ms",
        "encrypted": _ANSWERS[row["encrypted"]],
        "subs in": row["subscriptions_in"],
        "subs out": row["subscriptions_out"],
        "queued": _held(row["queued_messages"], row["queued_bytes"]),
        "spooled": _held(row["spooled_messages"], row["spooled_bytes"]),
        "retry": row["retry_messages"],
        "dead": row["dead_messages"],
    }


def _held(messages: int, size_bytes: int) -> str:
    return f"{messages:,} ({size(size_bytes)})" if messages else "0"
