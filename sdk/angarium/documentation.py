"""Where the documentation is, for texts of errors. Who has the SDK alone has no `angarium docs` to read it with."""

from __future__ import annotations

from typing import Final

DOCUMENTATION: Final = "https://angarium.github.io/angarium/"


def documented(page: str) -> str:
    """Say where a page of the documentation is."""
    return f"{DOCUMENTATION}{page}/ or 'angarium docs {page}'"
