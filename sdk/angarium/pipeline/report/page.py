"""The report as one HTML page that opens without a network.

The page holds the figures as JSON, the chart library plotly.js whole, and our script and style sheet that draw
(`report.js` and `report.css` beside this module, which a browser runs and nothing else). Topics and
client names are hostile text: they are in the JSON only, where no character can end the script element, and our script
makes text nodes of them. A Content-Security-Policy lets a browser run the two scripts by their digests and fetch
nothing from anywhere, so that even what slipped through could do nothing.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
from importlib import resources
from typing import Any, Final

from angarium import errors

#: What figures of any page mean, as docs/pipeline.md has it at length.
_GLOSSARY: Final = (
    (
        "latency",
        "spooled time minus the sender's time; a sender's clock that is ahead is counted, not averaged",
    ),
    ("percentiles", "exact up to 4,096 messages, beyond that off by at most 0.13 % of the ranks"),
    ("late", "spooled long after the sender's time (--late-after)"),
    ("expired", "found in a dead message queue because the time to live was over"),
)
#: What figures of publishers' numbering mean.
_NUMBERING_GLOSSARY: Final = (
    (
        "duplicate",
        "one queue has a message twice: publisher, number, topic, time, application id and payload",
    ),
    ("missing", "numbers between the first and the highest of a numbering that never came"),
    ("gap", "missing numbers next to each other"),
    ("out of order", "a number that came after a higher one, and was missing until then"),
    ("restart", "a publisher began its numbering again"),
)
#: A browser asks again after that many seconds for a page that is updated.
_LEAST_REFRESH_S: Final = 2


def render_page(
    figures: dict[str, Any], *, title: str, source: str, made_ms: int, refresh_s: float | None = None
) -> str:
    """Give the page.

    Args:
        figures: as `figures.collect_figures` gives them.
        title: of the page.
        source: what the figures are of.
        made_ms: when they were made, in ms since 1970.
        refresh_s: the page loads itself again after so many seconds; for a report that is updated.
    """
    is_numbered = figures.get("sequences", {"totals": {}})["totals"].get("numbered", 0) > 0
    data = figures | {
        "title": title,
        "source": source,
        "made_ms": made_ms,
        "live": refresh_s is not None,
        "glossary": _GLOSSARY + (_NUMBERING_GLOSSARY if is_numbered else ()),
    }
    scripts = (_chart_library(), _own("report.js"))
    refresh = (
        f'<meta http-equiv="refresh" content="{max(_LEAST_REFRESH_S, round(refresh_s))}">'
        if refresh_s
        else ""
    )
    return "\n".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">',
            f'<meta name="viewport" content="width=device-width, initial-scale=1">{refresh}',
            f"<title>{html.escape(title)}</title>",
            f"<style>{_own('report.css')}</style>\n</head>\n<body>\n<main></main>",
            "<noscript>The charts of this page need JavaScript.</noscript>",
            f'<script type="application/json" id="figures">{embedded_json(data)}</script>',
            *(f"<script>{script}</script>" for script in scripts),
            "</body>\n</html>\n",
        )
    )


def embedded_json(value: Any) -> str:
    """Give JSON that can stand in a script element: in ASCII, and without a character that HTML looks at."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _policy(scripts: tuple[str, ...]) -> str:
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


@functools.cache
def _own(name: str) -> str:
    return resources.files("angarium.pipeline.report").joinpath(name).read_text(encoding="utf-8")


@functools.cache
def _chart_library() -> str:
    """Give plotly.js, without the carriage returns that a browser would turn, so that its digest is right.

    Raises:
        UnavailableError: plotly is not installed (NOT_INSTALLED).
    """
    try:
        script = resources.files("plotly").joinpath("package_data", "plotly.min.js")
    except ModuleNotFoundError:
        raise errors.error_for(errors.NOT_INSTALLED, "plotly", "pip install 'angarium[spark]'") from None
    return script.read_text(encoding="utf-8").replace("\r", "")
